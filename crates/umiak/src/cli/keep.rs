//! `umiak keep`: runs one program that must not outlive the process at the other end of its stdin. `mpirun` is run by it:
//! when the supervisor ends, however it ends, nothing is left of `mpirun` and of what it has started on this host.
//!
//! The program is asked to end when stdin is closed, at a signal, and at a byte on stdin. After the grace period, and at
//! the next signal or byte, it is killed. Then everything that it has left on this host is stopped. If the keeper
//! itself is killed, its guardian does the same.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use umiak_core::diag::Diagnostic;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, FIRST_ATTEMPT, Slot, StepIndex, StopHow};
use umiak_core::plan::{Log, Process};

use super::runs::Done;
use crate::driver::sources::Sources;
use crate::engine::local::Local;
use crate::engine::{Common, Engine as _, EngineNews, Start};

/// Of a program whose end is not known, because its guardian was killed: as if it was killed itself.
const KILLED: u8 = 128 + 9;

#[derive(Debug, Args)]
pub(super) struct Keep {
    /// The file to which its output is appended
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// Seconds from SIGTERM to SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    words: Vec<std::ffi::OsString>,
}

const ONLY: AttemptId = AttemptId { step: StepIndex(0), slot: Slot { role: 0, index: 0 }, attempt: FIRST_ATTEMPT };

/// The exit code is that of the program; 128 and the number of the signal that ended it.
pub(super) fn run(arguments: &Keep) -> Done {
    let sources = Sources::new()?;
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    let stdin = stdin.map_err(|error| Diagnostic::failed("wait for the end of stdin", &error))?;
    // Until the guardian, which inherits the lock, has stopped everything: the next supervisor waits for it.
    let log = std::fs::OpenOptions::new().append(true).create(true).open(&arguments.log);
    let _held = log.ok().filter(|log| umiak_sys::hold::try_exclusive(log).is_ok());
    let mut engine = Local::start(false, None)?;
    let grace = Duration::from_secs(arguments.grace.into());
    engine.share(Common { grace, ..Common::default() });
    engine.spawn(vec![Start { id: ONLY, of_job: 1, retries: 0, process: process(arguments), bound: false }]);
    Keeper { sources, engine, stdin: Some(stdin.into()), grace, asked: 0, kill_at: None, code: None }.run()
}

fn process(arguments: &Keep) -> Process {
    Process {
        program: PathBuf::from(&arguments.words[0]),
        argv: arguments.words.clone(),
        is_secret: false,
        env: Vec::new(),
        dir: None,
        linked: None,
        log: Log::new(arguments.log.clone()),
        error_file: PathBuf::new(),
        inherit_stdin: false,
        cpus: Vec::new(),
        memory: None,
        mounts: Vec::new(),
        remote: None,
    }
}

struct Keeper {
    sources: Sources,
    engine: Local,
    /// `None` once it is closed.
    stdin: Option<File>,
    grace: Duration,
    /// How often the program was asked to end.
    asked: usize,
    kill_at: Option<Instant>,
    /// Set once the program has ended.
    code: Option<u8>,
}

impl Keeper {
    fn run(mut self) -> Done {
        loop {
            let timeout = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            let (engine, stdin) = (self.engine.watch(), self.stdin.as_ref().map(|file| file.as_fd()));
            let (has_engine, has_stdin) = (engine.is_some(), stdin.is_some());
            let fds: Vec<_> = engine.into_iter().chain(stdin).collect();
            let arrived = self.sources.wait(&fds, timeout)?;
            let asked = arrived.signals.len();
            if has_stdin && arrived.ready[usize::from(has_engine)] {
                self.read();
            }
            self.ask(asked);
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.kill();
            }
            if has_engine && arrived.ready[0] {
                for news in self.engine.news() {
                    if let Some(code) = self.hear(news)? {
                        return Ok(ExitCode::from(code));
                    }
                }
            }
        }
    }

    /// Each byte is a request to end, and the end of the file is one if there was none.
    fn read(&mut self) {
        let mut buffer = [0; 16];
        match self.stdin.as_mut().map(|file| file.read(&mut buffer)) {
            Some(Ok(count)) if count > 0 => self.ask(count),
            _ => {
                self.stdin = None;
                self.ask(usize::from(self.asked == 0));
            }
        }
    }

    fn ask(&mut self, times: usize) {
        if times == 0 {
            return;
        }
        let is_first = self.asked == 0;
        self.asked += times;
        if self.asked > 1 {
            self.kill();
        } else if is_first && self.code.is_none() {
            self.engine.stop(&[ONLY], StopHow::Terminate);
            self.kill_at = Some(Instant::now() + self.grace);
        }
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.asked = self.asked.max(2);
        match self.code {
            None => self.engine.stop(&[ONLY], StopHow::Kill),
            Some(_) => self.engine.end(false),
        }
    }

    /// Returns the exit code once nothing is left.
    fn hear(&mut self, news: EngineNews) -> Result<Option<u8>, Diagnostic> {
        match news {
            EngineNews::Ended { exit: Exit::Spawn(error), .. } => {
                return Err(Diagnostic::failed("run the program", &error.reason));
            }
            EngineNews::Ended { exit, .. } => {
                let number = match exit {
                    Exit::Code { code } => code,
                    Exit::Signal { signal, .. } => 128 + signal,
                    _ => KILLED.into(),
                };
                self.code = Some(u8::try_from(number).unwrap_or(u8::MAX));
                self.kill_at = None;
                self.engine.end(self.asked < 2);
            }
            EngineNews::Swept(_) => return Ok(self.code),
            EngineNews::Lost { .. } => return Ok(Some(self.code.unwrap_or(KILLED))),
            _ => {}
        }
        Ok(None)
    }
}
