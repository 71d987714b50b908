//! The baseline of the benchmarks: the minimum that the kernel can do.

#![expect(unsafe_code, reason = "the baseline is a bare fork and exec")]

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: unlike [`std::time::Instant`], two processes may compare them.
pub fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Forks and executes `argv`, and nothing else: the child gets our environment and descriptors, and `RANK`.
pub fn fork_exec(argv: &[OsString], rank: u32) -> io::Result<u32> {
    let words = argv.iter().map(|word| CString::new(word.clone().into_vec())).collect::<Result<Vec<_>, _>>()?;
    let variables = std::env::vars_os()
        .filter(|(name, _)| name != "RANK")
        .chain([("RANK".into(), rank.to_string().into())])
        .map(|(name, value)| CString::new([name.into_vec(), value.into_vec()].join(&b'=')))
        .collect::<Result<Vec<_>, _>>()?;
    let pointers = |words: &[CString]| -> Vec<*const libc::c_char> {
        words.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&words), pointers(&variables));
    let Some(program) = words.first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    // SAFETY: the child only makes async-signal-safe calls, on memory that was prepared before the fork; both lists
    // end with null.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => unsafe {
            // SAFETY: as above.
            libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
            libc::_exit(127)
        },
        pid => Ok(pid as u32),
    }
}
