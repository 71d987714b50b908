//! Values of flags: durations, points in time, sizes.

use std::time::Duration;

use umiak_core::formats::units;
use umiak_sys::clock::{LocalTime, from_local};

use crate::clock::wall_micros;

/// An age: a duration with a unit. A plain number is refused: it could be meant as days.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    if text.parse::<f64>().is_ok() {
        return Err("write the unit, as in `2d`".to_owned());
    }
    limit(text)
}

/// A duration; a plain number is seconds.
pub(super) fn limit(text: &str) -> Result<Duration, String> {
    units::duration(text).map_err(|expected| format!("expected {expected}"))
}

/// A point in time: a span before now, or a date with or without a time.
pub(super) fn point(text: &str) -> Result<u64, String> {
    if let Ok(span) = span(text) {
        return Ok(wall_micros().saturating_sub(span.as_micros() as u64));
    }
    let wrong = || "write how long ago, as in `2d`, or a date, as in `2026-11-15` or `2026-11-15 03:08`".to_owned();
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0:0"));
    let numbers =
        |text: &str, by: char| text.split(by).map(str::parse).collect::<Result<Vec<i32>, _>>().map_err(|_| wrong());
    let (date, time) = (numbers(date, '-')?, numbers(time, ':')?);
    let [year, month, day] = date[..] else { return Err(wrong()) };
    let (hour, minute, second) = match time[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(wrong()),
    };
    let is_time = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..61).contains(&second);
    let time = LocalTime { year, month, day, hour, minute, second, millisecond: 0 };
    from_local(time).filter(|_| is_time).map(|seconds| seconds * 1_000_000).ok_or_else(wrong)
}

/// The size of files.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    units::file_size(text).map_err(|expected| format!("expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::time::moment;

    #[test]
    fn spans_points_and_sizes() {
        assert_eq!(span("2d"), Ok(Duration::from_secs(172_800)));
        assert_eq!(span("1h30min"), Ok(Duration::from_secs(5400)));
        assert!(span("2").is_err() && span("d").is_err() && span("2 years").is_err() && span("").is_err());
        assert_eq!(moment(point("2026-11-15 03:08").unwrap()), "2026-11-15 03:08:00");
        assert!(point("2026-02-31").is_err() && point("yesterday").is_err() && point("2026-11-15 25:00").is_err());
        assert_eq!(bytes("10G"), Ok(10 << 30));
        assert_eq!(bytes("1KiB"), Ok(1024));
        assert!(bytes("ten").is_err());
    }
}
