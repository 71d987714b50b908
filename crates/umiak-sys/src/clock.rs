//! The wall clock in local time, from the C library. A time zone database of our own would be searched at every start.

use std::time::{SystemTime, UNIX_EPOCH};

/// A point in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalTime {
    pub year: i32,
    pub month: i32,
    pub day: i32,
    pub hour: i32,
    pub minute: i32,
    pub second: i32,
    pub millisecond: u32,
}

/// Clock ticks since boot, the unit and origin of start times in `/proc`.
pub(crate) fn ticks_since_boot() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills our structure.
    unsafe {
        libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now);
    }
    let ticks = ticks_per_second();
    now.tv_sec as u64 * ticks + now.tv_nsec as u64 / (1_000_000_000 / ticks)
}

pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: reads a constant of the system.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
}

pub fn local_now() -> LocalTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LocalTime { millisecond: now.subsec_millis(), ..local(now.as_secs()) }
}

/// The local time of a second since the Unix epoch.
pub fn local(seconds: u64) -> LocalTime {
    let seconds = seconds as libc::time_t;
    // SAFETY: tm is plain data that the call fills; both pointers are ours and valid.
    let broken_down = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&raw const seconds, &raw mut time);
        time
    };
    LocalTime {
        year: broken_down.tm_year + 1900,
        month: broken_down.tm_mon + 1,
        day: broken_down.tm_mday,
        hour: broken_down.tm_hour,
        minute: broken_down.tm_min,
        second: broken_down.tm_sec,
        millisecond: 0,
    }
}

/// The second since the Unix epoch of a local time; `None` if that time does not exist.
pub fn from_local(time: LocalTime) -> Option<u64> {
    // SAFETY: tm is plain data; every field that the call reads is set, and the pointer is ours.
    let seconds = unsafe {
        let mut broken_down: libc::tm = std::mem::zeroed();
        broken_down.tm_year = time.year - 1900;
        broken_down.tm_mon = time.month - 1;
        broken_down.tm_mday = time.day;
        broken_down.tm_hour = time.hour;
        broken_down.tm_min = time.minute;
        broken_down.tm_sec = time.second;
        broken_down.tm_isdst = -1;
        libc::mktime(&raw mut broken_down)
    };
    let found = u64::try_from(seconds).ok()?;
    let back = local(found);
    // `mktime` turns 31 February into a day in March.
    ((back.year, back.month, back.day) == (time.year, time.month, time.day)).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let time = LocalTime { year: 2026, month: 11, day: 15, hour: 3, minute: 8, second: 23, millisecond: 0 };
        assert_eq!(local(from_local(time).unwrap()), time);
        assert_eq!(from_local(LocalTime { month: 2, day: 31, ..time }), None);
    }
}
