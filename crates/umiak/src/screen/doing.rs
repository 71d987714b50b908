//! What a process is doing, in words.

use std::time::Duration;

use umiak_core::facts::{NoStack, ProcessState, Snapshot};

use super::style::duration;

/// Parts of the names of kernel functions, and for what a process in them waits. The first that fits counts.
const WAITS: &[(&str, &str)] = &[
    ("futex", "waits for another thread or process"),
    ("nanosleep", "sleeps for a set time"),
    ("n_tty_read", "waits for input from a terminal"),
    ("pipe_read", "waits for data from a pipe"),
    ("pipe_write", "waits for the reader of a pipe"),
    ("accept", "waits for a connection"),
    ("connect", "waits for an answer to its connection"),
    ("sendmsg", "waits for a peer to receive data"),
    ("sk_stream_wait_memory", "waits for a peer to receive data"),
    ("sk_wait_data", "waits for data from a peer"),
    ("recv", "waits for data from a peer"),
    ("wait_woken", "waits for data from a peer or a terminal"),
    ("unix_stream", "waits for data from a local socket"),
    ("poll", "waits for data or a timer"),
    ("select", "waits for data or a timer"),
    ("do_wait", "waits for a child process"),
    ("wait4", "waits for a child process"),
    ("sigtimedwait", "waits for a signal"),
    ("sigsuspend", "waits for a signal"),
    ("pause", "waits for a signal"),
    ("flock", "waits for a file lock"),
    ("posix_lock", "waits for a file lock"),
    ("nfs", "waits for a network file system"),
    ("rpc_", "waits for a network file system"),
    ("fuse", "waits for a user-space file system"),
    ("request_wait_answer", "waits for a user-space file system"),
    ("io_schedule", "waits for a disk or file system"),
    ("folio", "waits for a disk or file system"),
    ("page", "waits for a disk or file system"),
];

/// In one line: `at train.py:88 in step; waits for another thread or process (futex_wait_queue), 1.2 s CPU`.
pub fn doing(snapshot: &Snapshot) -> String {
    let mut parts = vec![waits(snapshot)];
    parts.push(format!("{:.1} s CPU", snapshot.cpu_micros as f64 / 1e6));
    parts.extend(snapshot.quiet_micros.map(|micros| format!("last output {} ago", age(micros))));
    parts.extend(snapshot.connections.map(|count| match count {
        0 => "no connection".to_owned(),
        1 => "1 connection".to_owned(),
        _ => format!("{count} connections"),
    }));
    let place = snapshot.place().map(|frame| format!("at {}; ", frame.describe())).unwrap_or_default();
    format!("{place}{}", parts.join(", "))
}

fn age(micros: u64) -> String {
    duration(Duration::from_micros(micros))
}

/// The state of its main thread, and for what it waits, with the name of the kernel's function.
pub fn waits(snapshot: &Snapshot) -> String {
    let function = snapshot.waits_in.as_deref();
    let known = function.and_then(|name| WAITS.iter().find(|(part, _)| name.contains(part))).map(|(_, words)| *words);
    let words = match snapshot.state {
        ProcessState::Running => return "running".to_owned(),
        ProcessState::Suspended => return "suspended by SIGSTOP or a debugger".to_owned(),
        ProcessState::Exiting => return "exiting".to_owned(),
        ProcessState::Sleeping if snapshot.awaits_input => "waits for its standard input",
        ProcessState::Sleeping => known.unwrap_or("waits in the kernel"),
        ProcessState::Blocked => known.unwrap_or("waits in the kernel for a device or file system, uninterruptibly"),
    };
    function.map_or_else(|| words.to_owned(), |function| format!("{words} ({function})"))
}

/// Why its stack could not be read.
pub fn without_stack(why: NoStack) -> &'static str {
    match why {
        NoStack::NotPython => "it runs no Python interpreter",
        NoStack::Ended => "it has ended",
        NoStack::NotPermitted => "its memory may not be read (ptrace is not permitted)",
        NoStack::NotInTime => "there was not enough time to read it",
        NoStack::Unreadable => "its interpreter is starting, or its version is unknown",
    }
}

#[cfg(test)]
mod tests {
    use ProcessState::{Blocked, Running, Sleeping, Suspended};

    use super::*;

    #[test]
    fn a_wait_is_told_in_words_and_with_the_function() {
        let told = |state, waits_in: Option<&str>| {
            waits(&Snapshot { state, waits_in: waits_in.map(str::to_owned), ..Snapshot::default() })
        };
        for (state, waits_in, expected) in [
            (Sleeping, Some("futex_wait_queue"), "waits for another thread or process (futex_wait_queue)"),
            (Sleeping, Some("hrtimer_nanosleep"), "sleeps for a set time (hrtimer_nanosleep)"),
            (Sleeping, Some("ep_poll"), "waits for data or a timer (ep_poll)"),
            (Sleeping, Some("inet_csk_accept"), "waits for a connection (inet_csk_accept)"),
            (Sleeping, Some("anon_pipe_read"), "waits for data from a pipe (anon_pipe_read)"),
            (Sleeping, Some("new_function"), "waits in the kernel (new_function)"),
            (Sleeping, None, "waits in the kernel"),
            (Blocked, Some("folio_wait_bit_common"), "waits for a disk or file system (folio_wait_bit_common)"),
            (Blocked, Some("x"), "waits in the kernel for a device or file system, uninterruptibly (x)"),
            (Running, Some("x"), "running"),
            (Suspended, Some("do_signal_stop"), "suspended by SIGSTOP or a debugger"),
        ] {
            assert_eq!(told(state, waits_in), expected);
        }
        let snapshot = Snapshot { awaits_input: true, waits_in: Some("wait_woken".to_owned()), ..Snapshot::default() };
        assert_eq!(waits(&snapshot), "waits for its standard input (wait_woken)");
    }
}
