//! Options of `sbatch` that a user gives: passed on as they are, except those whose value follows from the job.

use crate::diag::{Code, Diagnostic};
use crate::formats::engines::slurm_native;
use crate::model::SlurmOptions;

/// What is wrong with the options, for those that did not come through a front door.
pub fn check(options: &SlurmOptions) -> Vec<Diagnostic> {
    let wrong = |(name, value): &(String, Option<String>)| slurm_native(name, value.as_deref()).err();
    options.native.iter().filter_map(wrong).map(|reason| Diagnostic::error(Code::E0203, reason)).collect()
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
