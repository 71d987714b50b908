//! The secrets that this process knows: those of its environment, its command line, and the document that it runs. All
//! that umiak writes or shows, except for the output of replicas, goes through [`masked`].

use std::ffi::OsString;
use std::sync::{LazyLock, PoisonError, RwLock};

use serde_json::Value;
use umiak_core::facts::{Evidence, Fact, Snapshot};
use umiak_core::mask::Known;
use umiak_core::plan::document::Submission;

static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(|| {
    let mut known = Known::default();
    for (name, value) in std::env::vars_os() {
        if let (Some(name), Some(value)) = (name.to_str(), value.to_str()) {
            known.learn(name, value);
        }
    }
    known.learn_words(&std::env::args_os().collect::<Vec<_>>());
    RwLock::new(known)
});

fn change(change: impl FnOnce(&mut Known)) {
    change(&mut KNOWN.write().unwrap_or_else(PoisonError::into_inner));
}

/// Remembers the secrets of a job: its parameters, its environment, and what its commands, variables and labels contain.
/// Returns all that are known then.
pub(crate) fn learn(submission: &Submission) -> Known {
    let Submission { job, known: secrets, environment, .. } = submission;
    change(|known| {
        known.extend(secrets);
        for (name, value) in environment.iter().chain(&job.labels) {
            known.learn(name, value);
        }
        for role in &job.roles {
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
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The text without secrets.
pub(crate) fn masked(text: &str) -> String {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).text(text)
}

/// Masks the texts of a fact.
pub(crate) fn mask_fact(fact: &mut Fact) {
    mask(fact.texts());
}

/// Masks the lines of a log.
pub(crate) fn mask_evidence(evidence: &mut Evidence) {
    mask(evidence.texts());
}

/// Masks the names of functions and files.
pub(crate) fn mask_snapshot(snapshot: &mut Snapshot) {
    mask(snapshot.texts());
}

/// Masks all texts of a JSON value.
pub(crate) fn mask_json(value: &mut Value) {
    match value {
        Value::String(text) => *text = masked(text),
        Value::Array(items) => items.iter_mut().for_each(mask_json),
        Value::Object(entries) => entries.values_mut().for_each(mask_json),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn mask(texts: Vec<&mut String>) {
    for text in texts {
        *text = masked(text);
    }
}
