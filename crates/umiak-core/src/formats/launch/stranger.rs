//! Suggestions for unknown flags and for flags after the script.

use std::ffi::{OsStr, OsString};

use super::arguments::Arguments;
use super::flags::{FLAGS, Flag, Owner};
use super::words;
use crate::diag::{Code, Diagnostic, nearest};
use crate::formats::argparse::{Item, Line};
use crate::formats::prefix::{Front, recognise};

/// Flags of `torchrun`, and their replacements. `-` matches `_` too.
const TORCH: &[(&[&str], &str)] = &[
    (&["-m", "--module"], "start a module with `umiak launch python -m MODULE`"),
    (&["--standalone"], "one node is the default: leave it out"),
    (&["--rdzv-endpoint"], "use `--master HOST:PORT --nnodes N`"),
    (&["--rdzv-backend", "--rdzv-conf"], "leave it out; use `--master HOST:PORT --nnodes N`"),
    (&["--rdzv-id"], "use `--job_id`"),
    (&["--node-rank"], "use `--rank`"),
    (&["--master-addr", "--master-port"], "use `--master HOST:PORT`"),
    (&["--local-addr"], "use `--host`"),
    (&["--max-restarts"], "use `--max_restart`"),
    (&["--no-python"], "leave it out: a program that is not a Python file is executed directly"),
    (&["-r", "--redirects", "-t", "--tee"], "leave it out: the output of each rank is in `--log_dir`"),
    (&["--start-method", "--monitor-interval", "--role", "--event-log-handler"], "leave it out"),
];

/// Flags that training scripts also have: after the script, they belong to it.
const OF_SCRIPTS: [&str; 21] = [
    "devices",
    "log_dir",
    "log_level",
    "log_overwrite",
    "run_mode",
    "host",
    "rank",
    "backend",
    "job_id",
    "np",
    "scale",
    "force",
    "workers",
    "output",
    "mirror",
    "verbose",
    "token",
    "isolate",
    "ascii",
    "endpoints",
    "print_config",
];

/// The unknown flags, in the order of the command line.
pub(super) fn unknown(line: &Line) -> impl Iterator<Item = &OsString> {
    line.items.iter().filter_map(|item| match item {
        Item::Unknown(token) => Some(token),
        Item::Known(_) => None,
    })
}

/// The flag without `=` and its value.
fn word(token: &OsStr) -> String {
    let text = token.to_string_lossy();
    text.split('=').next().unwrap_or(&text).to_owned()
}

/// An unknown flag under `umiak launch`.
pub(super) fn error(token: &OsStr) -> Diagnostic {
    let word = word(token);
    if let Some(instead) = of_torch(&word) {
        return Diagnostic::error(Code::L0001, format!("`{word}` is a flag of `torchrun`")).hint(instead);
    }
    let error = Diagnostic::error(Code::L0001, format!("unknown flag `{word}`"));
    let error = match instead(&word) {
        Some(instead) => error.hint(instead),
        None => error.hint("`-h` lists all flags; the script's own flags come after the script"),
    };
    error.hint("`--compat paddle` ignores unknown flags, as Paddle does")
}

/// The suggestion for an unknown flag.
pub(super) fn instead(word: &str) -> Option<String> {
    of_torch(word).map(str::to_owned).or_else(|| near(word).map(|name| format!("did you mean `{name}`?")))
}

fn of_torch(word: &str) -> Option<&'static str> {
    let folded = word.replace('_', "-");
    TORCH.iter().find(|(names, _)| names.contains(&folded.as_str())).map(|(_, instead)| *instead)
}

/// The nearest flag. Flags of umiak are compared with `_` as `-`, and may be abbreviated.
fn near(word: &str) -> Option<&'static str> {
    let folded = word.replace('_', "-");
    let underscored = format!("--{}", word.trim_start_matches('-').replace('-', "_"));
    let ours = || FLAGS.iter().filter(|flag| flag.owner == Owner::Umiak).map(|flag| flag.name);
    ours()
        .find(|name| *name == folded || (folded.len() > 4 && name.starts_with(&folded)))
        .or_else(|| nearest(&folded, ours()))
        .or_else(|| nearest(&underscored, FLAGS.iter().flat_map(Flag::names)))
}

/// Explains a script that is probably the value of an unknown flag before it, because unknown flags take no value.
pub(super) fn before_script(line: &Line) -> Option<String> {
    let Some(Item::Unknown(token)) = line.items.last().filter(|_| !line.separated) else { return None };
    if token.as_encoded_bytes().contains(&b'=') {
        return None;
    }
    let word = word(token);
    let script = line.script.as_ref()?.to_string_lossy();
    let instead = instead(&word).map(|instead| format!("; {instead}")).unwrap_or_default();
    Some(format!("`{word}` is unknown, so `{script}` was read as the script, as Paddle does{instead}"))
}

/// Names the unknown flags of a line without a script.
pub(super) fn beside_missing_script(line: &Line) -> Option<String> {
    let unknown: Vec<String> = unknown(line).map(|token| word(token)).collect();
    let names: Vec<&str> = unknown.iter().map(String::as_str).collect();
    let instead = match names.as_slice() {
        [] => return None,
        [one] => instead(one).map(|instead| format!("; {instead}")).unwrap_or_default(),
        _ => String::new(),
    };
    Some(format!("{} {} unknown{instead}", words::both(&names), if names.len() == 1 { "is" } else { "are" }))
}

/// Flags of a launcher among the script's arguments, unless the script is a launcher itself.
pub(super) fn behind_script(line: &Line, given: &Arguments) -> Option<Diagnostic> {
    let script = line.script.as_ref()?;
    let line_of_words: Vec<OsString> =
        ["umiak".into(), script.clone()].into_iter().chain(line.script_args.iter().cloned()).collect();
    if matches!(recognise(&line_of_words), Front::Launch(..) | Front::Wrapped { .. } | Front::Submit { .. }) {
        return None;
    }
    let is_meant = |word: &str| {
        let folded = word.replace('-', "_");
        FLAGS.iter().any(|flag| {
            flag.names().any(|name| name.len() > 2 && name.replace('-', "_") == folded)
                && given.source(flag.attribute).is_none()
                && (is_device_list(word) || !OF_SCRIPTS.contains(&flag.attribute))
        })
    };
    let mut found: Vec<String> = Vec::new();
    for word in line.script_args.iter().map(|argument| word(argument)).filter(|word| word.starts_with("--")) {
        if is_meant(&word) && !found.contains(&word) {
            found.push(word);
        }
    }
    let names: Vec<&str> = found.iter().map(String::as_str).collect();
    let first = names.first()?;
    let (follow, are) = if names.len() == 1 { ("follows", "is") } else { ("follow", "are") };
    let message = format!("{} {follow} the script and {are} passed to it", words::both(&names));
    let script = script.to_string_lossy();
    Some(
        Diagnostic::notice(Code::L0023, message)
            .hint(format!("flags for umiak come before the script: `umiak launch {first} … {script}`")),
    )
}

/// A device list of one kind belongs to the launcher; `--devices` may belong to the script.
fn is_device_list(word: &str) -> bool {
    matches!(word, "--gpus" | "--selected_gpus" | "--xpus" | "--npus" | "--mlus")
}
