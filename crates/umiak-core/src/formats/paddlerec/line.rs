//! The command line of `umiak submit` and `python -m paddlerec.run`. PaddleRec's flags may be abbreviated, as with its
//! own parser; umiak's are those of `umiak run`, and are passed on as they are.

use std::ffi::{OsStr, OsString};

use crate::diag::{Code, Diagnostic, nearest};
use crate::formats::argparse::{self, Item, Matching, Opt, Outcome, Takes};
use crate::formats::launch::usage_error;

/// The result of parsing a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    Help,
    /// The same line in full: `--model FILE --backend FILE`, and flags of umiak.
    Line(Vec<OsString>),
}

const MODEL: usize = 0;
const BACKEND: usize = 1;
const ROLE: usize = 2;
/// Flags of umiak from here on.
const OWN: usize = 3;

const fn of_paddlerec(name: &'static str, key: usize) -> Opt {
    Opt { name, key, takes: Takes::Value, matching: Matching::Abbreviated { tier: 0 } }
}

const fn switch(name: &'static str) -> Opt {
    Opt { name, key: OWN, takes: Takes::Nothing, matching: Matching::Whole }
}

const fn with_value(name: &'static str) -> Opt {
    Opt { name, key: OWN, takes: Takes::Value, matching: Matching::Whole }
}

const fn with_attached(name: &'static str) -> Opt {
    Opt { name, key: OWN, takes: Takes::Attached, matching: Matching::Whole }
}

/// Every flag.
pub const OPTIONS: &[Opt] = &[
    of_paddlerec("--model", MODEL),
    of_paddlerec("-m", MODEL),
    of_paddlerec("--backend", BACKEND),
    of_paddlerec("--backend_yaml", BACKEND),
    of_paddlerec("-b", BACKEND),
    of_paddlerec("--role", ROLE),
    of_paddlerec("-r", ROLE),
    with_value("--engine"),
    with_value("--slurm"),
    switch("--slurm-direct"),
    switch("--slurm-requeue"),
    with_value("--slurm-warning"),
    with_attached("--slurm-connect"),
    with_value("--mpi-hosts"),
    with_value("--mpi-launcher"),
    with_value("--mpi-arg"),
    with_value("--kube-kind"),
    with_value("--kube-context"),
    with_value("--kube-namespace"),
    with_value("--kube-image"),
    with_value("--kube-queue"),
    with_value("--kube-volume"),
    with_value("--kube-ship"),
    with_value("--agent"),
    with_value("--name"),
    with_value("--label"),
    switch("--replace"),
    switch("--detach"),
    switch("-d"),
    switch("--dry-run"),
    switch("--isolate"),
    switch("--strict-resources"),
    with_value("--show"),
    with_value("--stdin"),
    with_value("--output"),
    switch("--ascii"),
    switch("--mirror"),
    switch("--no-progress"),
    switch("--verbose"),
    switch("-v"),
];

/// The flags that belong to umiak.
pub fn own() -> impl Iterator<Item = &'static Opt> {
    OPTIONS.iter().filter(|option| option.key >= OWN)
}

/// Reads the arguments after `submit`, or after the module's name.
pub fn parse(argv: &[OsString]) -> Result<Parsed, Vec<Diagnostic>> {
    let line = match argparse::parse(OPTIONS, argv) {
        Ok(Outcome::Help) => return Ok(Parsed::Help),
        Ok(Outcome::Line(line)) => line,
        Err(errors) => return Err(errors.iter().map(usage_error).collect()),
    };
    let (mut model, mut backend, mut own) = (None, None, Vec::new());
    // The word after an unknown flag is probably its value.
    let is_value = matches!(line.items.last(), Some(Item::Unknown(_))) && !line.separated;
    let mut errors = Vec::new();
    for item in line.items {
        match item {
            Item::Known(given) => match (given.key, given.value) {
                (MODEL, value) => model = value,
                (BACKEND, value) => backend = value,
                (ROLE, value) => errors.extend(role(&value.unwrap_or_default())),
                // `-vv` is one word.
                (_, None) => own.push(if given.name == "-v" { given.token } else { given.name.into() }),
                (_, Some(value)) => {
                    let mut word = OsString::from(given.name);
                    word.push("=");
                    word.push(value);
                    own.push(word);
                }
            },
            Item::Unknown(token) => errors.push(unknown(&token)),
        }
    }
    if let Some(word) = line.script.as_ref().filter(|_| !is_value) {
        let message = format!("unexpected argument `{}`", word.to_string_lossy());
        errors.push(Diagnostic::error(Code::L0001, message).hint("write `-m config.yaml -b backend.yaml`"));
    }
    let Some(model) = model.filter(|model: &OsString| !model.is_empty()) else {
        let error = Diagnostic::error(Code::L0001, "`-m` is missing: the `config.yaml` of the model");
        errors.push(error.hint("write `-m config.yaml -b backend.yaml`"));
        return Err(errors);
    };
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut words: Vec<OsString> = vec!["--model".into(), model];
    words.extend(backend.into_iter().flat_map(|backend| ["--backend".into(), backend]));
    Ok(Parsed::Line(words.into_iter().chain(own).collect()))
}

/// `-r` of the first generation: the command that submits is the master.
fn role(word: &OsStr) -> Option<Diagnostic> {
    match word.to_str() {
        Some("MASTER") => None,
        Some("WORKER") => {
            let error = Diagnostic::error(Code::L0003, "`-r WORKER` is not supported: umiak starts the workers itself");
            Some(error.hint("leave `-r` out"))
        }
        _ => {
            let message = format!("`-r` takes `MASTER` or `WORKER`, not `{}`", word.to_string_lossy());
            Some(Diagnostic::error(Code::L0001, message))
        }
    }
}

fn unknown(token: &OsStr) -> Diagnostic {
    let text = token.to_string_lossy();
    let word = text.split('=').next().unwrap_or_default();
    let error = Diagnostic::error(Code::L0001, format!("unknown flag `{word}`"));
    match nearest(word, OPTIONS.iter().map(|option| option.name)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("`umiak submit -h` lists all flags"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(line: &str) -> String {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&words) {
            Ok(Parsed::Help) => "help".to_owned(),
            Ok(Parsed::Line(words)) => words.join(" ".as_ref()).to_string_lossy().into_owned(),
            Err(errors) => errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>().join("; "),
        }
    }

    #[test]
    fn lines() {
        for (line, expected) in [
            ("-m config.yaml -b backend.yaml", "--model config.yaml --backend backend.yaml"),
            ("--mod c.yaml --backend_y b.yaml", "--model c.yaml --backend b.yaml"),
            ("--backend-yaml=b.yaml -mc.yaml", "--model c.yaml --backend b.yaml"),
            ("-m c -m d", "--model d"),
            ("-m c -r MASTER", "--model c"),
            ("-m c --dry-run -d --engine local -vv", "--model c --dry-run -d --engine=local -vv"),
            ("--slurm-connect -m c", "--model c --slurm-connect"),
            ("-m c --slurm-connect=login:7200", "--model c --slurm-connect=login:7200"),
            ("-h", "help"),
            ("", "`-m` is missing: the `config.yaml` of the model"),
            ("-b b", "`-m` is missing: the `config.yaml` of the model"),
            ("-m c -r WORKER", "`-r WORKER` is not supported: umiak starts the workers itself"),
            ("-m c -r BOSS", "`-r` takes `MASTER` or `WORKER`, not `BOSS`"),
            ("-m c --dry", "unknown flag `--dry`"),
            ("-m c.yaml more", "unexpected argument `more`"),
            ("-m", "`-m` needs a value"),
        ] {
            assert_eq!(show(line), expected, "{line}");
        }
    }
}
