//! Moments and durations as text.

use std::time::Duration;

use umiak_sys::clock::{LocalTime, local};

use crate::screen::style::duration;

/// `3 min ago`, or a date after 30 days.
pub(crate) fn ago(at: u64, now: u64) -> String {
    let seconds = now.saturating_sub(at) / 1_000_000;
    match seconds {
        0..5 => "now".to_owned(),
        5..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        86_400..172_800 => "1 day ago".to_owned(),
        172_800..2_592_000 => format!("{} days ago", seconds / 86_400),
        _ => moment(at)[..10].to_owned(),
    }
}

/// `2026-11-15 03:08:23`.
pub(crate) fn moment(at: u64) -> String {
    let LocalTime { year, month, day, hour, minute, second, .. } = local(at / 1_000_000);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

pub(crate) fn between(from: u64, to: u64) -> String {
    duration(Duration::from_micros(to.saturating_sub(from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-15 12:00 here.
    fn at_noon() -> u64 {
        let noon = LocalTime { year: 2026, month: 11, day: 15, hour: 12, minute: 0, second: 0, millisecond: 0 };
        umiak_sys::clock::from_local(noon).unwrap() * 1_000_000
    }

    #[test]
    fn how_long_ago() {
        let now = at_noon();
        for (seconds, text) in [
            (1, "now"),
            (42, "42 s ago"),
            (200, "3 min ago"),
            (7300, "2 h ago"),
            (90_000, "1 day ago"),
            (400_000, "4 days ago"),
        ] {
            assert_eq!(ago(now - seconds * 1_000_000, now), text);
        }
        assert_eq!(ago(now - 40 * 86_400_000_000, now), "2026-10-06");
    }
}
