//! Stacks of running Python processes, read from outside: the process is neither stopped nor changed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};
use umiak_core::facts::StackFrame;

/// Frames of a stack that are kept, innermost first.
const FRAMES: usize = 48;
/// A running process changes its stack while it is read, so a read can fail.
const TRIES: usize = 3;
/// Processes that are read at the same time.
const WORKERS: usize = 8;

/// Returns the stack of the main thread of each process whose interpreter could be read within the limit.
pub(crate) fn take(pids: &[u32], limit: Duration) -> Vec<(u32, Vec<StackFrame>)> {
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
                let stack = (!is_over.load(Ordering::Relaxed)).then(|| main_stack(pid)).flatten();
                if sender.send((pid, stack)).is_err() {
                    return;
                }
            }
        });
        if worker.is_err() {
            break;
        }
    }
    drop(sender);
    let mut stacks = Vec::new();
    while let Ok((pid, stack)) = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        stacks.extend(stack.map(|stack| (pid, stack)));
    }
    is_over.store(true, Ordering::Relaxed);
    stacks
}

fn main_stack(pid: u32) -> Option<Vec<StackFrame>> {
    let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
    let mut spy = PythonSpy::new(pid.cast_signed(), &config).ok()?;
    let traces = (0..TRIES).find_map(|_| spy.get_stack_traces().ok())?;
    let is_main = |trace: &&StackTrace| {
        trace.os_thread_id == Some(u64::from(pid)) || trace.thread_name.as_deref() == Some("MainThread")
    };
    let trace = traces.iter().find(is_main).or(traces.first())?;
    let frame = |frame: &py_spy::Frame| StackFrame {
        function: frame.name.clone(),
        file: frame.filename.clone(),
        line: u32::try_from(frame.line).unwrap_or(0),
    };
    Some(trace.frames.iter().take(FRAMES).map(frame).collect())
}
