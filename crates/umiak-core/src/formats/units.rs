//! Durations, sizes and CPU counts in documents, `umiak.toml` and flags. An error is the expected value, in words.

use std::fmt::Write as _;
use std::time::Duration;

/// The longest duration. For no limit, the key or flag is omitted.
const LONGEST: f64 = 10.0 * 366.0 * 86400.0;

/// `500ms`, `10s`, `5m` or `5min`, `6h`, `1d`, `1w`, and sums of them: `1h30m`. A plain number is seconds.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err("a duration that is not negative");
    }
    let wanted = Err("a duration such as `10s`, `5m`, `6h`, `1d` or `500ms`");
    if let Some(seconds) = decimal(text) {
        return bounded(seconds);
    }
    let mut rest = text;
    let mut total = 0.0;
    if rest.is_empty() {
        return wanted;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let Some(number) = decimal(&rest[..digits]) else { return wanted };
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            "w" => 604_800.0,
            _ => return wanted,
        };
        total += number * unit;
        rest = &rest[letters..];
    }
    bounded(total)
}

fn bounded(seconds: f64) -> Result<Duration, &'static str> {
    if seconds > LONGEST {
        return Err("at most ten years; omit it for no limit");
    }
    // Rounded to milliseconds, so that binary fractions do not show.
    Ok(Duration::from_millis((seconds * 1000.0).round() as u64))
}

/// `2`, `0.5`, `500m`: in thousandths.
pub fn cpu(text: &str) -> Result<u32, &'static str> {
    let text = text.trim();
    let millis = match text.strip_suffix('m') {
        Some(millis) => decimal(millis),
        None => decimal(text).map(|cpus| cpus * 1000.0),
    };
    match millis {
        Some(millis) if (1.0..=1e9).contains(&millis) => Ok(millis.round() as u32),
        Some(_) => Err("more than 0 CPUs and at most a million"),
        None => Err("a number of CPUs such as `2`, `0.5` or `500m`"),
    }
}

/// `4Gi`, `512M`, or bytes.
pub fn memory(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    let power = |base: f64, exponent: i32| base.powi(exponent);
    let factor = match unit.strip_suffix('B').unwrap_or(unit) {
        "" => 1.0,
        "k" | "K" => power(1e3, 1),
        "M" => power(1e3, 2),
        "G" => power(1e3, 3),
        "T" => power(1e3, 4),
        "P" => power(1e3, 5),
        "Ki" => power(1024.0, 1),
        "Mi" => power(1024.0, 2),
        "Gi" => power(1024.0, 3),
        "Ti" => power(1024.0, 4),
        "Pi" => power(1024.0, 5),
        _ => return Err("a size such as `4Gi`, `512M` or a number of bytes"),
    };
    match decimal(number) {
        Some(number) if number * factor >= 1.0 && number * factor < 9e18 => Ok((number * factor).round() as u64),
        Some(_) => Err("more than 0 bytes and less than 9 exabytes"),
        None => Err("a size such as `4Gi`, `512M` or a number of bytes"),
    }
}

/// The size of files: `64K`, `100M`, `1G`, with or without `B` or `iB`; powers of 1024.
pub fn file_size(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let wanted = "a size such as `100M` or `1G`";
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wanted),
    };
    let number: u64 = number.parse().map_err(|_| wanted)?;
    number.checked_mul(1 << shift).ok_or("less than 16 exabytes")
}

/// A duration as [`duration`] reads it, in whole milliseconds: `1h30m`.
pub fn written(duration: Duration) -> String {
    const UNITS: [(&str, u128); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (unit, millis) in UNITS {
        if rest >= millis {
            let _ = write!(text, "{}{unit}", rest / millis);
            rest %= millis;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Thousandths of a CPU as [`cpu`] reads them.
pub fn cpu_written(millis: u32) -> String {
    if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") }
}

/// Bytes as [`memory`] reads them: in the largest unit without a fraction.
pub fn memory_written(bytes: u64) -> String {
    let unit = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)]
        .into_iter()
        .find(|(_, shift)| bytes.is_multiple_of(1 << shift));
    match unit {
        Some((unit, shift)) if bytes > 0 => format!("{}{unit}", bytes >> shift),
        _ => bytes.to_string(),
    }
}

/// Digits with at most one point: no sign, no exponent, no infinity.
fn decimal(text: &str) -> Option<f64> {
    let is_plain =
        text.chars().all(|c| c.is_ascii_digit() || c == '.') && text.starts_with(|c: char| c.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("10s", 10_000),
            ("5m", 300_000),
            ("6h", 21_600_000),
            ("1d", 86_400_000),
            ("500ms", 500),
            ("90", 90_000),
            ("0.5", 500),
            ("1.5h", 5_400_000),
            ("1h30m", 5_400_000),
            ("10min", 600_000),
            ("1h30min", 5_400_000),
            ("2w", 1_209_600_000),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "s", "-5", "-5s", "5 s", "5x", "1e3", "inf", "nan", ".5", "5s5", "1.2.3s", "10000000d", "５s"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpus() {
        for (text, millis) in [("2", 2000), ("500m", 500), ("0.5", 500), ("1.25", 1250)] {
            assert_eq!(cpu(text), Ok(millis), "{text}");
        }
        for bad in ["", "0", "0m", "-1", "two", "1e3", "2 cores", "inf"] {
            assert!(cpu(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_of_files() {
        for (text, expected) in [
            ("64K", Some(64 << 10)),
            ("100M", Some(100 << 20)),
            ("1GiB", Some(1 << 30)),
            ("1gb", Some(1 << 30)),
            ("8192", Some(8192)),
            ("1", Some(1)),
            ("M", None),
            ("1X", None),
            ("-1M", None),
            ("99999999999T", None),
        ] {
            assert_eq!(file_size(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (millis, text) in
            [(0, "0s"), (500, "500ms"), (90_000, "1m30s"), (3_600_000, "1h"), (86_400_000, "1d"), (1001, "1s1ms")]
        {
            assert_eq!(written(Duration::from_millis(millis)), text);
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)));
        }
        for (millis, text) in [(2000, "2"), (500, "500m"), (1250, "1250m")] {
            assert_eq!((cpu_written(millis).as_str(), cpu(text)), (text, Ok(millis)));
        }
        for (bytes, text) in [(8 << 30, "8Gi"), (6500 << 20, "6500Mi"), (512_000_000, "500000Ki"), (1001, "1001")] {
            assert_eq!((memory_written(bytes).as_str(), memory(text)), (text, Ok(bytes)));
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4Gi", 4 << 30),
            ("512M", 512_000_000),
            ("1024", 1024),
            ("1.5Ki", 1536),
            ("2GB", 2_000_000_000),
            ("2 GiB", 2 << 30),
            ("1k", 1000),
        ] {
            assert_eq!(memory(text), Ok(bytes), "{text}");
        }
        for bad in ["", "0", "4Gib", "4gi", "-1", "1m", "many", "99999999P"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
    }
}
