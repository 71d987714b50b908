//! The secrets that this process knows: those of its environment, its command line, and the document that it runs. All
//! that umiak writes or shows, except for the output of replicas, is masked here.
//!
//! A secret may be a word such as `trainer`, or a part of the log directory. In texts that come from elsewhere (command
//! lines, logs, stacks) every value is masked. In sentences of umiak, which quote such texts only after that, [`masked`]
//! leaves these values alone: they would hide what the sentence says, and show that they are the secret.

use std::ffi::OsString;
use std::path::Path;
use std::sync::{LazyLock, PoisonError, RwLock};

use serde_json::Value;
use umiak_core::facts::{Child, Evidence, Fact, Snapshot};
use umiak_core::mask::Known;
use umiak_core::plan::document::Submission;

/// Secrets, and what of them is masked where.
#[derive(Default)]
struct Secrets {
    all: Known,
    /// Those that are masked in sentences of umiak.
    unmistakable: Known,
    /// Texts that umiak shows whatever they contain.
    shown: Vec<String>,
}

impl Secrets {
    fn sort(&mut self) {
        self.unmistakable = self.all.unmistakable(&self.shown);
    }
}

static SECRETS: LazyLock<RwLock<Secrets>> = LazyLock::new(|| {
    let mut secrets = Secrets::default();
    for (name, value) in std::env::vars_os() {
        if let (Some(name), Some(value)) = (name.to_str(), value.to_str()) {
            secrets.all.learn(name, value);
        }
    }
    secrets.all.learn_words(&std::env::args_os().collect::<Vec<_>>());
    secrets.shown.push(umiak_sys::host::name());
    secrets.shown.extend(std::env::current_dir().map(|path| path.display().to_string()));
    secrets.sort();
    RwLock::new(secrets)
});

/// Learns the secrets of the environment now, before any of them is overwritten.
pub(crate) fn read_environment() {
    LazyLock::force(&SECRETS);
}

fn change(change: impl FnOnce(&mut Secrets)) {
    let mut secrets = SECRETS.write().unwrap_or_else(PoisonError::into_inner);
    change(&mut secrets);
    secrets.sort();
}

fn read<T>(read: impl FnOnce(&Secrets) -> T) -> T {
    read(&SECRETS.read().unwrap_or_else(PoisonError::into_inner))
}

/// Keeps this path readable in sentences of umiak.
pub(crate) fn show(path: &Path) {
    change(|secrets| secrets.shown.push(path.display().to_string()));
}

/// Remembers the secrets of a job: its parameters, its environment, and what its commands, variables and labels contain.
/// Returns all that are known then.
pub(crate) fn learn(submission: &Submission) -> Known {
    let Submission { work, known: secrets, environment, .. } = submission;
    change(|Secrets { all: known, .. }| {
        known.extend(secrets);
        for (name, value) in environment.iter().chain(work.labels()) {
            known.learn(name, value);
        }
        for role in work.jobs().flat_map(|job| &job.roles) {
            for (name, value) in &role.work.env {
                known.learn(name, value);
            }
            known.learn_words(&role.work.command.iter().map(OsString::from).collect::<Vec<_>>());
        }
    });
    known()
}

/// All of them.
pub(crate) fn known() -> Known {
    read(|secrets| secrets.all.clone())
}

/// True if a text contains a secret.
pub(crate) fn are_in(text: &str) -> bool {
    read(|secrets| secrets.all.are_in(text))
}

/// A sentence of umiak without secrets.
pub(crate) fn masked(text: &str) -> String {
    read(|secrets| secrets.unmistakable.text(text))
}

/// Masks the texts of a fact.
pub(crate) fn mask_fact(fact: &mut Fact) {
    if let Fact::Noticed { message, .. } = fact {
        *message = masked(message);
    } else {
        mask(fact.texts());
    }
    for value in fact.values() {
        value.rewrite(&|text| read(|secrets| secrets.all.text(text)));
    }
}

/// Masks the lines of a log.
pub(crate) fn mask_evidence(evidence: &mut Evidence) {
    mask(evidence.texts());
}

/// Masks the names of functions and files.
pub(crate) fn mask_snapshot(snapshot: &mut Snapshot) {
    mask(snapshot.texts());
}

pub(crate) fn mask_child(child: &mut Child) {
    mask(child.texts());
}

/// Masks all texts of a JSON value: sentences of umiak.
pub(crate) fn mask_json(value: &mut Value) {
    match value {
        Value::String(text) => *text = masked(text),
        Value::Array(items) => items.iter_mut().for_each(mask_json),
        Value::Object(entries) => entries.values_mut().for_each(mask_json),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Masks texts that come from elsewhere.
fn mask(texts: Vec<&mut String>) {
    for text in texts {
        *text = read(|secrets| secrets.all.text(text));
    }
}
