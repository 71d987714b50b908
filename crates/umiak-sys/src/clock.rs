//! The wall clock in this place's time, by the C library: a time zone database of our own would have to be
//! searched at every start.

use std::time::{SystemTime, UNIX_EPOCH};

/// A moment as people here write it.
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

/// Now.
pub fn local_now() -> LocalTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs() as libc::time_t;
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
        millisecond: now.subsec_millis(),
    }
}
