//! The bash script of an instance: what OpenPAI's runtime does with its commands and plugins.

use std::fmt::Write as _;

/// Commands of a plugin, before or after those of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) lines: String,
    /// A failing line fails the instance.
    pub(super) is_strict: bool,
}

const PROLOGUE: &str = "export PAI_WORK_DIR=$PWD\n";
/// The options of the user's script: the first failing command ends it, and unset variables are errors.
const STRICT: &str = "set -o errexit -o nounset -o pipefail\n";

/// One bash runs the commands. With plugins, each part has its own: an `exit` in one does not end the others, and those
/// after the user's commands run only if these succeed.
pub(super) fn script(before: &[Part], commands: &str, after: &[Part]) -> String {
    if before.is_empty() && after.is_empty() {
        return format!("{PROLOGUE}{STRICT}{commands}");
    }
    let mut script = PROLOGUE.to_owned();
    let mut run = |text: &str, is_strict: bool| {
        // The text is not an argument, which every user of the host could read.
        let _ = write!(script, "part={}\nbash <(printf '%s\\n' \"$part\")", quoted(text));
        script += if is_strict { " || exit\n" } else { " || true\n" };
    };
    for part in before {
        run(&options(part), part.is_strict);
    }
    run(&format!("{STRICT}{commands}"), true);
    for part in after {
        run(&options(part), part.is_strict);
    }
    script
}

/// True for a script whose parts are in single quotes.
pub(super) fn has_parts(script: &str) -> bool {
    script.strip_prefix(PROLOGUE).is_some_and(|rest| rest.starts_with("part="))
}

/// In single quotes: lines stay lines, and people read them in plans.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn options(part: &Part) -> String {
    if part.is_strict { format!("set -o errexit\n{}", part.lines) } else { part.lines.clone() }
}
