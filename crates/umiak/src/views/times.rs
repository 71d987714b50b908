//! Times of log lines. Replicas write their logs directly, so the time of a line is known only if the line contains
//! one. A line without a time was written no earlier than the line before it, or than the start of its attempt.

use umiak_sys::clock::{LocalTime, from_local};

/// Number of bytes searched for a time.
const BEGINNING: usize = 64;

/// When a line was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineTime {
    /// In microseconds since the Unix epoch.
    pub(crate) at: u64,
    /// True if the line contains the time, or was read when it was written. Otherwise `at` is the earliest time.
    pub(crate) is_exact: bool,
}

/// The times of the lines of one attempt, in their order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    last: u64,
    /// The year for lines with only a month and a day.
    year: i32,
}

impl Times {
    /// The times of an attempt that began then.
    pub(crate) fn since(began: u64) -> Self {
        Self { last: began, year: umiak_sys::clock::local(began / 1_000_000).year }
    }

    /// The time of the last line, or of the start.
    pub(crate) fn last(self) -> u64 {
        self.last
    }

    /// The time of the next line. It is never before the previous one, even if the clock was set or the time is quoted.
    pub(crate) fn of(&mut self, line: &[u8]) -> LineTime {
        match stamp(line, self.year) {
            Some(at) => {
                self.last = self.last.max(at);
                LineTime { at: self.last, is_exact: true }
            }
            None => LineTime { at: self.last, is_exact: false },
        }
    }
}

/// The time in the beginning of a line: `2026-11-15 03:08:23,123` (Python, Paddle), `2026-11-15T03:08:23.123Z`, or
/// `I1115 03:08:23.123456` (glog).
pub(crate) fn stamp(line: &[u8], year: i32) -> Option<u64> {
    let line = &line[..line.len().min(BEGINNING)];
    glog(line, year).or_else(|| {
        let starts = (0..line.len().saturating_sub(18)).filter(|start| line[*start].is_ascii_digit());
        // Not in the middle of a longer number.
        let mut starts = starts.filter(|start| *start == 0 || !line[*start - 1].is_ascii_digit());
        starts.find_map(|start| iso(&line[start..]))
    })
}

fn iso(text: &[u8]) -> Option<u64> {
    let is_form = text.len() >= 19
        && matches!((text[4], text[7]), (b'-', b'-') | (b'/', b'/'))
        && matches!(text[10], b' ' | b'T')
        && (text[13], text[16]) == (b':', b':');
    if !is_form {
        return None;
    }
    let time = |at: usize, length: usize| number(&text[at..at + length]);
    let parts = [time(0, 4)?, time(5, 2)?, time(8, 2)?, time(11, 2)?, time(14, 2)?, time(17, 2)?];
    let (fraction, rest) = fraction(&text[19..]);
    Some(seconds(parts, zone(rest))? * 1_000_000 + fraction)
}

fn glog(line: &[u8], year: i32) -> Option<u64> {
    let is_form = line.len() >= 14 && matches!(line[0], b'I' | b'W' | b'E' | b'F') && line[5] == b' ';
    if !is_form || (line[8], line[11]) != (b':', b':') {
        return None;
    }
    let time = |at: usize| number(&line[at..at + 2]);
    let parts = [year, time(1)?, time(3)?, time(6)?, time(9)?, time(12)?];
    Some(seconds(parts, None)? * 1_000_000 + fraction(&line[14..]).0)
}

fn number(digits: &[u8]) -> Option<i32> {
    std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// `,123` or `.123456` in microseconds, and what follows.
fn fraction(text: &[u8]) -> (u64, &[u8]) {
    let Some((b',' | b'.', digits)) = text.split_first() else { return (0, text) };
    let count = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let shown = digits[..count].iter().copied().chain(std::iter::repeat(b'0')).take(6);
    (shown.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')), &digits[count..])
}

/// `Z`, `+08:00` or `-0500`, in seconds east of Greenwich.
fn zone(text: &[u8]) -> Option<i64> {
    let (first, rest) = text.split_first()?;
    let sign = match first {
        b'Z' => return Some(0),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let hours = number(rest.get(..2)?)?;
    let rest = rest[2..].strip_prefix(b":").unwrap_or(&rest[2..]);
    let minutes = rest.get(..2).and_then(number).unwrap_or(0);
    Some(sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

/// Seconds since the Unix epoch, of a time in a zone, or in the local one.
fn seconds([year, month, day, hour, minute, second]: [i32; 6], zone: Option<i64>) -> Option<u64> {
    let is_time = (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_time = is_time && (0..24).contains(&hour) && (0..60).contains(&minute) && (0..61).contains(&second);
    if !is_time || year < 1970 {
        return None;
    }
    match zone {
        None => from_local(LocalTime { year, month, day, hour, minute, second, millisecond: 0 }),
        Some(east) => {
            // Days since 1970. Years begin in March, so the leap day is the last of a year.
            let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
            let (year, month) = (i64::from(year), i64::from(month));
            let days =
                365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + i64::from(day) - 719_469;
            let of_day = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second);
            u64::try_from(days * 86_400 + of_day - east).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::time::moment;

    fn seen(line: &str) -> Option<String> {
        stamp(line.as_bytes(), 2026).map(|at| format!("{}.{:06}", moment(at), at % 1_000_000))
    }

    #[test]
    fn times_that_lines_carry() {
        for line in [
            "2026-11-15 03:08:23,123 INFO step 1",
            "[2026-11-15 03:08:23.123] step 1",
            "LAUNCH INFO 2026-11-15 03:08:23,123 PADDLE",
            "I1115 03:08:23.123000 4711 init.cc:12] hello",
            "2026/11/15 03:08:23.123 hello",
        ] {
            assert_eq!(seen(line).as_deref(), Some("2026-11-15 03:08:23.123000"), "{line}");
        }
        for line in
            ["step 1", "loss 0.5 at 03:08:23", "2026-13-15 03:08:23", "", "12026-11-15 03:08:23", "Isaac 03:08:23.1"]
        {
            assert_eq!(seen(line), None, "{line}");
        }
    }

    #[test]
    fn zones_are_heeded() {
        assert_eq!(stamp(b"1970-01-02T00:00:01Z", 2026), Some(86_401_000_000));
        assert_eq!(stamp(b"2026-11-15T03:08:23.5Z", 2026), Some(1_794_712_103_500_000));
        assert_eq!(stamp(b"2026-11-15T11:08:23.5+08:00 x", 2026), Some(1_794_712_103_500_000));
        assert_eq!(stamp(b"2026-11-14T22:08:23.5-0500", 2026), Some(1_794_712_103_500_000));
    }

    #[test]
    fn lines_without_a_time_follow_the_one_before() {
        let began = stamp(b"2026-11-15T03:00:00Z", 2026).unwrap();
        let mut times = Times::since(began);
        assert_eq!(times.of(b"hello"), LineTime { at: began, is_exact: false });
        let first = times.of(b"2026-11-15T03:00:05Z one");
        assert_eq!(first, LineTime { at: began + 5_000_000, is_exact: true });
        assert_eq!(times.of(b"  more"), LineTime { is_exact: false, ..first });
        assert_eq!(times.of(b"2026-11-15T03:00:02Z back"), first, "times do not run backwards");
    }
}
