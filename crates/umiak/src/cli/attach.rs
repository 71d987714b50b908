//! `umiak attach [RUN]`: follows the output and the status of a live run from another terminal. Ctrl-C leaves the run
//! running.
//!
//! A child process, `umiak logs -f`, shows the output of replicas; Ctrl-C may end it. This process shows what happens
//! to the run, and ends with the child if the output can no longer be shown.

use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Fact;
use umiak_core::status::{State, Status};
use umiak_sys::wait::{Signals, readable};

use crate::clock::time_of_day;
use crate::driver::stop::elsewhere;
use crate::history::index::Word;
use crate::history::journal::Follower;
use crate::history::{Home, Life, RunDir, find, life, newest, only_live};
use crate::screen::Style;
use crate::views::facts::describe;
use crate::views::run::head;
use crate::views::standing::{LoadedRun, RunStanding};

use super::logs::choose;
use super::runs::{Done, load, reader_of_stdout};
use super::wait::lost;

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, last digits of its number, or name of a live run; the only live run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// The replicas whose output is shown, as for `umiak logs`; otherwise every replica of a document with several roles,
    /// or the first replica
    #[arg(value_name = "REPLICAS")]
    replicas: Vec<String>,
    /// Number of earlier lines to show first
    #[arg(short = 'n', long, value_name = "LINES", default_value_t = 10)]
    tail: u64,
    /// Print ASCII characters only
    #[arg(long)]
    ascii: bool,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let run = match &arguments.run {
        Some(word) => find(&home, word)?,
        None => only_live(&home)?.map_or_else(|| newest(&home), Ok)?,
    };
    if let LoadedRun { damage: Some(damage), .. } = load(RunDir::at(&home, run.id()))? {
        return Err(damage.diagnostic());
    }
    match life(&run)? {
        Life::Live { .. } => {}
        Life::Elsewhere { host } => return Err(elsewhere(&run, &host, "attach")),
        Life::Lost => return Err(lost(&run)),
        Life::Finished => {
            let id = run.id();
            return Err(Diagnostic::error(Code::J0025, format!("{id} has ended"))
                .hint(format!("`umiak logs {id}` shows its output, `umiak show {id}` its result")));
        }
    }
    if !arguments.replicas.is_empty() {
        choose(&load(RunDir::at(&home, run.id()))?, &arguments.replicas)?;
    }
    let mut follower = Follower::open(&run)?;
    follower.catch_up()?;
    let has_roles = run.document().exists() && follower.status().roles.len() > 1;
    let mut console =
        console(&run, arguments, has_roles).map_err(|error| Diagnostic::failed("follow the console", &error))?;
    // Blocked after the child has started: it inherits the mask, and Ctrl-C must end it.
    let signals = Signals::block(&[SIGINT, SIGTERM, SIGCHLD]);
    let signals = signals.map_err(|error| {
        end(&mut console);
        Diagnostic::failed("wait for signals", &error)
    })?;
    let style = Style::detect(arguments.ascii, false);
    let followed = follow(&mut follower, &run, &style, &signals, &mut console);
    match followed {
        Ok(Followed::Ended(status, code)) => {
            // It exits by itself after the last line.
            let _ = console.wait();
            let standing = RunStanding::Is(Word::of(status.state));
            super::say(&head(&style, &LoadedRun { run, status: *status, pipeline: None, standing, damage: None }));
            Ok(ExitCode::from(code))
        }
        Ok(Followed::Left(signal)) => {
            end(&mut console);
            let id = run.id();
            super::say(&format!(
                "\ndetached; {id} is still running: `umiak attach {id}` follows it again, `umiak stop {id}` stops it\n"
            ));
            Ok(ExitCode::from(128 + u8::try_from(signal).unwrap_or(0)))
        }
        Ok(Followed::Unread(code)) => Ok(ExitCode::from(code)),
        Err(diagnostic) => {
            end(&mut console);
            Err(diagnostic)
        }
    }
}

fn console(run: &RunDir, arguments: &Arguments, has_roles: bool) -> std::io::Result<Child> {
    let (id, tail) = (run.id().to_string(), arguments.tail.to_string());
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["logs", "-f", "-n", &tail]).args(arguments.ascii.then_some("--ascii")).arg(id);
    command.args(&arguments.replicas).args((has_roles && arguments.replicas.is_empty()).then_some("all"));
    command.spawn()
}

fn end(console: &mut Child) {
    let _ = console.kill();
    let _ = console.wait();
}

enum Followed {
    /// With the run's code.
    Ended(Box<Status>, u8),
    /// This signal arrived.
    Left(i32),
    /// The output can no longer be shown; with the child's code.
    Unread(u8),
}

/// Shows what happens to the run until it has ended, a signal arrives or its output can no longer be shown.
fn follow(
    follower: &mut Follower,
    run: &RunDir,
    style: &Style,
    signals: &Signals,
    console: &mut Child,
) -> Result<Followed, Diagnostic> {
    let counts = Status::counts(&follower.status().replicas);
    let parts = [run.id().to_string(), follower.status().name.clone(), format!("{} running", counts.live)];
    super::say(&style.progress("Attached", &parts, &time_of_day()));
    loop {
        // Checked before reading: everything written until then is read.
        let life = follower.life()?;
        let mut is_quiet = true;
        while let Some(item) = follower.next()? {
            is_quiet = false;
            if is_told(&item.record.fact) {
                super::say(&style.progress("Run", &[describe(&item.record.fact)], &time_of_day()));
            }
        }
        if let State::Finished { exit_code, .. } = follower.status().state {
            return Ok(Followed::Ended(Box::new(follower.status().clone()), exit_code));
        }
        if life == Life::Lost && is_quiet && follower.life()? == Life::Lost {
            return Err(lost(run));
        }
        // Before the child is asked: Ctrl-C ends it, too.
        if let Some(signal) = signals.read().into_iter().find(|signal| *signal != SIGCHLD) {
            return Ok(Followed::Left(signal));
        }
        if let Ok(Some(status)) = console.try_wait()
            && let Some(code) = unread(status)
        {
            return Ok(Followed::Unread(code));
        }
        follower.wait(&[signals.as_fd()])?;
    }
}

/// The code of a child that could not show the output. Its success means that the reader is gone, or that the named
/// replicas have ended.
fn unread(status: ExitStatus) -> Option<u8> {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    let is_gone = || readable(&reader_of_stdout(), Some(Duration::ZERO)).is_ok_and(|ready| ready.contains(&true));
    (code != 0 || is_gone()).then(|| u8::try_from(code).unwrap_or(1))
}

/// True for facts about the run as a whole; single replicas are seen in their output.
fn is_told(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::Supervised(_)
            | Fact::Pending { .. }
            | Fact::TimedOut { .. }
            | Fact::Stopping { .. }
            | Fact::Paused
            | Fact::Continued
            | Fact::Diagnosed(_)
            | Fact::Noticed { .. }
            | Fact::Pipeline(_)
            | Fact::Resolved(_)
            | Fact::Looping { .. }
            | Fact::Entered
            | Fact::Skipped { .. }
            | Fact::Cached { .. }
            | Fact::Refused { .. }
            | Fact::Left { .. }
            | Fact::EngineLost { .. }
            | Fact::AttemptFailed(_)
            | Fact::Retrying { .. }
            | Fact::Restarting { .. }
    )
}
