//! Stacks of running Python processes, read from outside: the process is neither stopped nor changed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};
use umiak_core::facts::{NoStack, StackFrame};

/// Frames of a stack that are kept, innermost first.
const FRAMES: usize = 48;
/// A running process changes its stack while it is read, so a read can fail.
const TRIES: usize = 3;
/// Processes that are read at the same time.
const WORKERS: usize = 8;

/// The stack of a main thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stack {
    pub(crate) frames: Vec<StackFrame>,
    /// Outer frames that are left out.
    pub(crate) more: u32,
}

/// Returns the stack of the main thread of each process, or why there is none. The first ones are read first.
pub(crate) fn take(pids: &[u32], limit: Duration) -> HashMap<u32, Result<Stack, NoStack>> {
    umiak_sys::hooks::hang_at(Path::new("stacks"));
    let deadline = Instant::now() + limit;
    let (sender, receiver) = mpsc::channel();
    let (next, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..pids.len().min(cores).min(WORKERS) {
        let (pids, sender) = (pids.to_vec(), sender.clone());
        let (next, is_over) = (Arc::clone(&next), Arc::clone(&is_over));
        // Not joined: one that is still reading at the deadline ends by itself.
        let worker = std::thread::Builder::new().name("stacks".to_owned()).spawn(move || {
            while let Some(pid) = pids.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                if is_over.load(Ordering::Relaxed) || sender.send((pid, main_stack(pid))).is_err() {
                    return;
                }
            }
        });
        if worker.is_err() {
            break;
        }
    }
    drop(sender);
    let mut stacks: HashMap<u32, Result<Stack, NoStack>> =
        pids.iter().map(|pid| (*pid, Err(NoStack::NotInTime))).collect();
    while let Ok((pid, stack)) = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        stacks.insert(pid, stack);
    }
    is_over.store(true, Ordering::Relaxed);
    stacks
}

fn main_stack(pid: u32) -> Result<Stack, NoStack> {
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let mut spy = PythonSpy::new(pid.cast_signed(), &config).map_err(|_| why_not(pid))?;
    let traces = (0..TRIES).find_map(|_| spy.get_stack_traces().ok()).ok_or_else(|| why_not(pid))?;
    let is_main = |trace: &&StackTrace| {
        trace.os_thread_id == Some(u64::from(pid)) || trace.thread_name.as_deref() == Some("MainThread")
    };
    let trace = traces.iter().find(is_main).or(traces.first()).ok_or(NoStack::Unreadable)?;
    let frame = |frame: &py_spy::Frame| StackFrame {
        function: frame.name.clone(),
        file: frame.filename.clone(),
        line: u32::try_from(frame.line).unwrap_or(0),
    };
    let more = trace.frames.len().saturating_sub(FRAMES) as u32;
    Ok(Stack { frames: trace.frames.iter().take(FRAMES).map(frame).collect(), more })
}

/// Why a stack could not be read.
fn why_not(pid: u32) -> NoStack {
    match is_python(pid) {
        Ok(true) => NoStack::Unreadable,
        Ok(false) if has_memory(pid) => NoStack::NotPython,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => NoStack::NotPermitted,
        Ok(false) | Err(_) => NoStack::Ended,
    }
}

/// True if an interpreter is loaded: as the program, or as a library.
fn is_python(pid: u32) -> io::Result<bool> {
    // Needs the same permission as reading the stack.
    File::open(format!("/proc/{pid}/mem"))?;
    for line in BufReader::new(File::open(format!("/proc/{pid}/maps"))?).split(b'\n') {
        let line = line?;
        let path = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if path.contains(&b'/') && (name.starts_with(b"python") || name.starts_with(b"libpython")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// False for a process that has ended and was not reaped.
fn has_memory(pid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}/exe")).is_ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn says_why_there_is_no_stack() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let of = |limit| take(&[pid], limit).remove(&pid).expect("each process is in the answer");
        assert_eq!(of(Duration::from_secs(60)).unwrap_err(), NoStack::NotPython);
        assert_eq!(of(Duration::ZERO).unwrap_err(), NoStack::NotInTime);
        child.kill().unwrap();
        // Not reaped yet.
        while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
        assert_eq!(of(Duration::from_secs(60)).unwrap_err(), NoStack::Ended);
        child.wait().unwrap();
        assert_eq!(of(Duration::from_secs(60)).unwrap_err(), NoStack::Ended);
    }
}
