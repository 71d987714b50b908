//! What the benchmarks of this repository compare us with: the least that the kernel can do.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::ptr;

/// Nanoseconds of `CLOCK_MONOTONIC`: unlike [`std::time::Instant`], two processes may compare them.
pub fn monotonic_nanos() -> u64 {
    // SAFETY: timespec is plain data that the kernel fills.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        now
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Forks and executes `argv`, and nothing else: the child has our environment and descriptors, and `RANK`.
/// To be called while the process has one thread.
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
    // SAFETY: we are single-threaded, so the child's memory is a consistent copy; it only executes or leaves, and
    // both lists end with null.
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
