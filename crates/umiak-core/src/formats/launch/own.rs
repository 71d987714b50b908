//! Our own flags, from the text of the table's choices to their types.

use std::time::Duration;

use super::arguments::Arguments;
use super::{Compat, ExitCodes, LogNames, OutputMode, OwnFlags};

pub(super) fn lower(arguments: &Arguments) -> OwnFlags {
    let default = OwnFlags::default();
    OwnFlags {
        output: match arguments.text("output") {
            Some("json") => OutputMode::Json,
            Some("quiet") => OutputMode::Quiet,
            _ => OutputMode::Human,
        },
        mirror: arguments.is_switched_on("mirror"),
        dry_run: arguments.is_switched_on("dry-run"),
        compat: if arguments.text("compat").is_some() { Compat::Paddle } else { Compat::None },
        exit_codes: match arguments.text("exit-codes") {
            Some("paddle") => ExitCodes::Paddle,
            Some("torch") => ExitCodes::Torch,
            _ => ExitCodes::Umiak,
        },
        share_devices: arguments.is_switched_on("share-devices"),
        log_names: if arguments.text("log-names") == Some("local") { LogNames::Local } else { LogNames::Global },
        no_progress: arguments.is_switched_on("no-progress"),
        ascii: arguments.is_switched_on("ascii"),
        isolate: arguments.is_switched_on("isolate"),
        numa: arguments.is_switched_on("numa"),
        log_max_size: arguments.text("log-max-size").and_then(size),
        log_keep: arguments.int("log-keep").and_then(|keep| u32::try_from(keep).ok()).unwrap_or(default.log_keep),
        grace: arguments.text("grace").and_then(duration).unwrap_or(default.grace),
    }
}

/// `500ms`, `5s`, `2m`, `1h`; a fraction (`0.5s`) is fine, a bare number is not: its unit would be a guess.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// `64K`, `100M`, `1G`, with or without `B` or `iB`; powers of 1024. Less than 4K is a typing error.
pub(super) fn size(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|size| *size >= 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("64K", Some(64 << 10)),
            ("100M", Some(100 << 20)),
            ("1GiB", Some(1 << 30)),
            ("1gb", Some(1 << 30)),
            ("8192", Some(8192)),
            ("1", None),
            ("M", None),
            ("1X", None),
            ("-1M", None),
            ("99999999999T", None),
        ] {
            assert_eq!(size(text), expected, "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, expected) in [
            ("500ms", Some(500)),
            ("5s", Some(5000)),
            ("0.5s", Some(500)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("0s", Some(0)),
            ("5", None),
            ("s", None),
            ("", None),
            ("-1s", None),
            ("5 s", None),
            ("1.2.3s", None),
            ("99999999999999999999999h", None),
        ] {
            assert_eq!(duration(text).map(|duration| duration.as_millis()), expected, "{text}");
        }
    }
}
