//! Time: a monotonic clock for the machines, and the wall clock for display.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use umiak_core::model::Timestamp;
use umiak_sys::clock::{LocalTime, local, local_now};

/// The wall clock at the start, plus monotonic time since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    wall: u64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), wall: wall_micros() }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.wall + self.start.elapsed().as_micros() as u64)
    }

    pub(crate) fn started(&self) -> Instant {
        self.start
    }
}

/// The wall clock, in microseconds since the Unix epoch.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

/// `12:04:31`, for plain lines.
pub(crate) fn time_of_day() -> String {
    time_of_day_after(Duration::ZERO)
}

/// The same, so much later.
pub(crate) fn time_of_day_after(delay: Duration) -> String {
    let at = local(wall_micros().saturating_add(delay.as_micros() as u64) / 1_000_000);
    format!("{:02}:{:02}:{:02}", at.hour, at.minute, at.second)
}

/// `2026-11-15_03:08:23`, the format of torchrun's report.
pub(crate) fn torch_stamp() -> String {
    let LocalTime { year, month, day, hour, minute, second, .. } = local_now();
    format!("{year}-{month:02}-{day:02}_{hour:02}:{minute:02}:{second:02}")
}

/// `2026-11-15 03:08:23,123`, the format of Paddle's lines.
pub(crate) fn paddle_stamp() -> String {
    let LocalTime { year, month, day, hour, minute, second, millisecond } = local_now();
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02},{millisecond:03}")
}
