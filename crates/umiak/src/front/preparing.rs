//! While a job is prepared, its thread is in file operations that may take long or never return: a slow disk, a file
//! system that hangs. Another thread reads the signals meanwhile, and names the path after a while.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::exit_code::{self, CodeStyle};
use umiak_core::model::OutputMode;
use umiak_sys::wait::{Signals, Waker, exit_now, readable, stop_ourselves};

use crate::clock::time_of_day;
use crate::driver::short_signal;
use crate::driver::sources::{SIGTSTP, Sources};
use crate::screen::{Style, say};

/// After this time, the path is named.
const LONG: Duration = Duration::from_secs(5);
/// After a signal, the current operation may take this long to end, so that everything is removed in good order.
const MOMENT: Duration = Duration::from_secs(1);

/// Where this process prepares a job, and what it has made for it. A process prepares one job.
static STATE: Mutex<State> = Mutex::new(State { at: None, made: None });

struct State {
    at: Option<PathBuf>,
    made: Option<PathBuf>,
}

/// The next operation is about this path.
pub(crate) fn at(path: &Path) {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).at = Some(path.to_owned());
    umiak_sys::hooks::hang_at(path);
}

/// The directory of a run that has not begun: removed if a signal ends this process while an operation hangs.
pub(crate) fn made(run: &Path) {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).made = Some(run.to_owned());
}

/// How the thread talks, and the exit codes.
#[derive(Clone)]
pub(crate) struct Voice {
    pub(crate) style: Style,
    pub(crate) output: OutputMode,
    pub(crate) codes: CodeStyle,
}

impl Voice {
    /// The line that a signal has ended the preparation.
    pub(crate) fn stopped(&self, signal: i32) -> String {
        let text = format!("by {} while the job was prepared", short_signal(signal));
        self.style.progress("Stopped", &[text], &time_of_day())
    }

    pub(crate) fn code(&self, signal: i32) -> u8 {
        exit_code::interrupted(self.codes, signal)
    }

    pub(crate) fn say_stopped(&self, signal: i32) {
        self.say(&self.stopped(signal));
    }

    /// Directly: the screen belongs to the other thread.
    fn say(&self, text: &str) {
        if self.output == OutputMode::Human {
            say(text);
        }
    }
}

/// The thread; ended when dropped.
pub(crate) struct Watch {
    end: Arc<Waker>,
    thread: Option<JoinHandle<Option<i32>>>,
}

impl Watch {
    pub(crate) fn start(sources: &Sources, voice: Voice) -> Result<Self, Diagnostic> {
        let failed = |error: std::io::Error| Diagnostic::failed("watch for signals", &error);
        let end = Arc::new(Waker::new().map_err(failed)?);
        let (signals, ended) = (sources.signals(), Arc::clone(&end));
        let thread = std::thread::Builder::new().name("signals".into()).stack_size(128 << 10);
        let thread = thread.spawn(move || watch(&signals, &ended, &voice)).map_err(failed)?;
        Ok(Self { end, thread: Some(thread) })
    }

    /// Ends the thread. Returns the signal that it has read.
    pub(crate) fn finish(mut self) -> Option<i32> {
        self.end()
    }

    fn end(&mut self) -> Option<i32> {
        self.end.wake();
        self.thread.take()?.join().ok().flatten()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

fn watch(signals: &Signals, end: &Waker, voice: &Voice) -> Option<i32> {
    let began = Instant::now();
    let mut named = false;
    loop {
        let left = (!named).then(|| LONG.saturating_sub(began.elapsed()));
        let ready = readable(&[end.as_fd(), signals.as_fd()], left).ok()?;
        if ready[0] {
            return None;
        }
        if !ready[1] {
            if began.elapsed() >= LONG {
                named = true;
                voice.say(&voice.style.diagnostic(&takes_long()));
            }
            continue;
        }
        for signal in signals.read() {
            if signal == SIGTSTP {
                stop_ourselves();
                continue;
            }
            let ready = readable(&[end.as_fd()], Some(MOMENT)).ok()?;
            if ready[0] {
                return Some(signal);
            }
            leave(signals, voice, signal);
        }
    }
}

/// The operation hangs. The guardian removes the rest.
fn leave(signals: &Signals, voice: &Voice, signal: i32) -> ! {
    voice.say_stopped(signal);
    // This may hang too.
    signals.release();
    if let Some(run) = STATE.lock().unwrap_or_else(PoisonError::into_inner).made.take() {
        let _ = std::fs::remove_dir_all(run);
    }
    exit_now(voice.code(signal))
}

fn takes_long() -> Diagnostic {
    let notice = Diagnostic::notice(Code::L0035, "preparing the job takes long");
    let notice = match &STATE.lock().unwrap_or_else(PoisonError::into_inner).at {
        Some(path) => notice.row("waiting for", path.display().to_string()),
        None => notice,
    };
    notice.hint("check that its file system responds; Ctrl-C ends umiak")
}
