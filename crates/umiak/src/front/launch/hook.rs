//! `--elastic_pre_hook`: a command that runs on this node before each round. Its output is in the log directory. Its
//! failure is reported, and does not stop the round.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::exit_code;
use umiak_core::model::FIRST_ATTEMPT;
use umiak_core::plan::{ETCD_PASSWORD, TOKEN};
use umiak_sys::helper;
use umiak_sys::wait::Waker;

use super::{Around, NotRun, code_style};
use crate::driver::short_signal;

const LOG: &str = "elastic_pre_hook.log";

/// A command that runs; killed when dropped.
pub(super) struct Hook {
    log: PathBuf,
    ended: Receiver<std::io::Result<ExitStatus>>,
    /// Readable when it has ended.
    done: Arc<Waker>,
    stop: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Hook {
    pub(super) fn start(command: &str, log_dir: &Path, attempt: u32) -> std::io::Result<Self> {
        let log = log_dir.join(LOG);
        let file = OpenOptions::new().append(true).create(true).open(&log)?;
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(command)
            .env("UMIAK_ATTEMPT", attempt.to_string())
            .env_remove(TOKEN)
            .env_remove(ETCD_PASSWORD);
        let (done, stop) = (Arc::new(Waker::new()?), Arc::new(Waker::new()?));
        let (end, ended) = channel();
        let (is_done, is_stopped) = (Arc::clone(&done), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("hook".to_owned()).spawn(move || {
            let _ = end.send(helper::logged(shell, &file, is_stopped.as_fd()));
            is_done.wake();
        })?;
        Ok(Self { log, ended, done, stop, thread: Some(thread) })
    }

    /// How it ended; `None` while it runs.
    pub(super) fn ended(&self) -> Option<Result<(), Diagnostic>> {
        let end = match self.ended.try_recv() {
            Ok(end) => end,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(std::io::Error::other("its thread ended")),
        };
        let how = match end {
            Ok(status) if status.success() => return Some(Ok(())),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Some(Err(failed(&how).row("output", self.log.display().to_string())))
    }
}

pub(super) fn failed(how: &str) -> Diagnostic {
    Diagnostic::notice(Code::R0044, "the command before the round failed; ranks start all the same").row("reason", how)
}

impl AsFd for Hook {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The command, if there is one.
pub(super) fn command(spec: &umiak_core::formats::launch::LaunchSpec) -> Option<&str> {
    spec.request.elastic.as_ref()?.pre_hook.as_deref()
}

/// Runs the command before the first round. A signal ends it, and the job.
pub(super) fn before_first(around: &mut Around<'_>, log_dir: &Path) -> Result<(), NotRun> {
    let spec = Arc::clone(&around.spec);
    let Some(command) = command(&spec) else { return Ok(()) };
    let hook = match Hook::start(command, log_dir, FIRST_ATTEMPT) {
        Ok(hook) => hook,
        Err(error) => {
            around.notice_and_record(failed(&error.to_string()));
            return Ok(());
        }
    };
    around.hear_signals()?;
    loop {
        let arrived = around.sources.wait(&[hook.as_fd()], None)?;
        if let Some(ended) = hook.ended() {
            if let Err(notice) = ended {
                around.notice_and_record(notice);
            }
            break;
        }
        if arrived.pause {
            umiak_sys::wait::stop_ourselves();
        }
        if let Some(signal) = arrived.signals.first().copied() {
            around.say(&format!("stopped by {} before the first round", short_signal(signal)));
            return Err(NotRun::Code(exit_code::interrupted(code_style(&spec), signal)));
        }
    }
    around.leave_signals()?;
    Ok(())
}
