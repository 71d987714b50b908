//! Options of `sbatch` that a user gives: passed on as they are, except those whose value follows from the job.

use crate::diag::{Code, Diagnostic};
use crate::model::SlurmOptions;

/// Options that umiak sets, and what to use instead.
const MANAGED: &[(&str, &str)] = &[
    ("array", "a job with several replicas is one allocation: use `replicas` of a role"),
    ("batch", "use `constraint`"),
    ("chdir", "the working directory of a role is `dir`"),
    ("clusters", "set `SLURM_CLUSTERS` when you submit"),
    ("comment", "umiak finds its job by the comment; use `labels`"),
    ("cpus-per-task", "use `resources.cpu` of the role"),
    ("error", "the output of replicas is in their logs, that of the script in `slurm.log`"),
    ("export", "variables of a role are `env`"),
    ("export-file", "variables of a role are `env`"),
    ("get-user-env", "variables of a role are `env`"),
    ("gpus-per-task", "use `resources.gpu` of the role"),
    ("help", "see `man sbatch`"),
    ("hold", "`scontrol hold JOB` holds a job that waits"),
    ("input", "the script reads nothing"),
    ("job-name", "use the name of the job, or `--name`"),
    ("kill-on-invalid-dep", "umiak stops waiting for a dependency that cannot be satisfied"),
    ("no-requeue", "use `requeue: false` of Slurm's options"),
    ("ntasks", "the number of tasks is that of the replicas"),
    ("open-mode", "logs are appended to"),
    ("output", "the output of replicas is in their logs, that of the script in `slurm.log`"),
    ("parsable", "umiak reads the job's number itself"),
    ("quiet", "umiak reads the output of `sbatch` itself"),
    ("requeue", "use `requeue: true` of Slurm's options"),
    ("signal", "use `warning` of Slurm's options: the seconds before the time limit"),
    ("test-only", "`umiak plan --engine slurm` shows the script without submitting it"),
    ("usage", "see `man sbatch`"),
    ("verbose", "umiak reads the output of `sbatch` itself"),
    ("version", "run `sbatch --version`"),
    ("wait", "umiak waits for the job itself"),
    ("wrap", "the command of a role is `command`"),
];

/// What is wrong with the options.
pub fn check(options: &SlurmOptions) -> Vec<Diagnostic> {
    options.native.iter().filter_map(|(name, value)| wrong(name, value.as_deref())).collect()
}

fn wrong(name: &str, value: Option<&str>) -> Option<Diagnostic> {
    let option = format!("`{name}`");
    let error = |message: String| Some(Diagnostic::error(Code::E0203, message));
    if let Some((_, instead)) = MANAGED.iter().find(|(managed, _)| *managed == name) {
        return error(format!("option {option} of Slurm is set by umiak")).map(|it| it.hint(*instead));
    }
    let is_long = name.len() > 1 && name.starts_with(|first: char| first.is_ascii_lowercase());
    if !is_long || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        let hint = "use the long name of an option of `sbatch`, without dashes: `partition`";
        return error(format!("{option} is not the name of an option of Slurm")).map(|it| it.hint(hint));
    }
    if value.is_some_and(|value| value.contains(char::is_control)) {
        return error(format!("the value of option {option} of Slurm has a line break or a control character"));
    }
    None
}

/// The options as they apply: of several with the same name the last, at the place of the first.
pub(super) fn effective(options: &SlurmOptions) -> Vec<(&str, Option<&str>)> {
    let mut result: Vec<(&str, Option<&str>)> = Vec::new();
    for (name, value) in &options.native {
        match result.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value.as_deref(),
            None => result.push((name, value.as_deref())),
        }
    }
    result
}

/// A word in the syntax of `#SBATCH` lines, where a backslash escapes inside both kinds of quotes.
pub(super) fn quoted(value: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%[]()*&|!".contains(&byte);
    if !value.is_empty() && value.bytes().all(is_plain) {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Seconds of a time limit as Slurm reads it: `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`,
/// `days-hours:minutes`, `days-hours:minutes:seconds`. `None` for no limit, or what is no time.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
        None => (None, text),
    };
    let fields = rest.split(':').map(|field| field.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let (hours, minutes, seconds) = match (days.is_some(), fields.as_slice()) {
        (true, [hours]) => (*hours, 0, 0),
        (true, [hours, minutes]) => (*hours, *minutes, 0),
        (false, [minutes]) => (0, *minutes, 0),
        (false, [minutes, seconds]) => (0, *minutes, *seconds),
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        _ => return None,
    };
    let total = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?.checked_mul(60)?.checked_add(minutes)?;
    total.checked_mul(60)?.checked_add(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(native: &[(&str, Option<&str>)]) -> SlurmOptions {
        let native = native.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
        SlurmOptions { native, ..SlurmOptions::default() }
    }

    #[test]
    fn options_that_follow_from_the_job_are_refused() {
        let options = options(&[
            ("partition", Some("gpu")),
            ("ntasks", Some("4")),
            ("exclusive", None),
            ("requeue", None),
            ("p", Some("gpu")),
            ("--time", Some("4")),
            ("account", Some("a\n#SBATCH --uid=0")),
            ("signal", Some("USR2")),
        ]);
        let text: String = check(&options).iter().map(Diagnostic::to_plain).collect();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_last_of_several_applies() {
        let options = options(&[("partition", Some("a")), ("qos", None), ("partition", Some("b"))]);
        assert_eq!(effective(&options), [("partition", Some("b")), ("qos", None)]);
    }

    #[test]
    fn times_as_slurm_reads_them() {
        for (text, expected) in [
            ("5", Some(300)),
            ("5:30", Some(330)),
            ("1:00:00", Some(3600)),
            ("1-2", Some(26 * 3600)),
            ("1-2:30", Some(26 * 3600 + 1800)),
            ("1-2:30:01", Some(26 * 3600 + 1801)),
            ("UNLIMITED", None),
            ("1:2:3:4", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
