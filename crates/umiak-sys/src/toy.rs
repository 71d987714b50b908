//! Signal behaviour of the toy trainer in our tests: installing handlers needs `unsafe`, which lives here.

use std::sync::atomic::{AtomicI32, Ordering};

/// Ignores a signal from now on.
pub fn ignore_signal(signal: i32) {
    // SAFETY: installs a constant disposition.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

static CODE: AtomicI32 = AtomicI32::new(0);

/// Exits with `code` when SIGTERM comes, after one line on stdout.
pub fn exit_on_term(code: i32) {
    CODE.store(code, Ordering::SeqCst);
    let handler: extern "C" fn(i32) = handle;
    // SAFETY: the handler only makes async-signal-safe calls.
    unsafe {
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
    }
}

extern "C" fn handle(_signal: i32) {
    let text = b"caught SIGTERM\n";
    // SAFETY: write and _exit are async-signal-safe; the buffer is static.
    unsafe {
        libc::write(1, text.as_ptr().cast(), text.len());
        libc::_exit(CODE.load(Ordering::SeqCst));
    }
}
