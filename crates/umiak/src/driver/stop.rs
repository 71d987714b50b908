//! `umiak stop`: asks a supervisor to end its run, or ends the record of a run that has none.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Fact, Outcome, StopReason, Subject};
use umiak_core::model::Exit;
use umiak_core::status::Status;

use super::control::{self, ControlAnswer, ControlOrder};
use crate::clock::Clock;
use crate::engine;
use crate::history::journal::{self, Writer};
use crate::history::{Home, Life, RunDir, Supervisor, index, is_held, life_of, tidy};

/// How long a supervisor may take until it listens.
const BEGINNING: Duration = Duration::from_secs(5);

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// It has been asked to, and is over.
    Over,
    /// It has been asked to; not waited for.
    Asked,
    /// Nobody supervised it any more: now it is recorded as ended.
    Closed,
}

pub(crate) fn stop(home: &Home, run: &RunDir, kill: bool, wait: bool) -> Result<Stopped, Diagnostic> {
    let status = journal::replay(run).map_err(|error| error.diagnostic())?.status;
    match life_of(run, status.is_finished()).map_err(|error| error.diagnostic())? {
        Life::Finished => Err(ended(run)),
        Life::Elsewhere { host } => Err(elsewhere(run, &host, "stop")),
        Life::Lost => close(home, run).map(|()| Stopped::Closed),
        // A shared home shows the lock of another host's supervisor, and its socket leads nowhere.
        Life::Live { supervisor: Some(supervisor) } if supervisor.is_elsewhere() => {
            Err(elsewhere(run, &supervisor.host, "stop"))
        }
        Life::Live { supervisor } => {
            if supervisor.as_ref().is_some_and(|supervisor| supervisor.control.is_empty()) {
                return Err(deaf(run, supervisor.as_ref()));
            }
            match ask(run, kill) {
                Ok(answer) if answer.ok => {}
                // It was killed a moment ago, and what it ran goes with it: then there is an end to write.
                _ if !supervisor.as_ref().is_none_or(is_there) => {}
                Ok(answer) => return Err(no_answer(run, supervisor.as_ref(), &answer.error.unwrap_or_default())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let why = format!("no answer within {} s", control::ANSWER.as_secs());
                    return Err(no_answer(run, supervisor.as_ref(), &why));
                }
                Err(error) => return Err(no_answer(run, supervisor.as_ref(), &error.to_string())),
            }
            if !wait {
                return Ok(Stopped::Asked);
            }
            wait_for_end(run)?;
            // Whoever was to write the end may have died of something else meanwhile.
            let status = journal::replay(run).map_err(|error| error.diagnostic())?.status;
            if status.is_finished() { Ok(Stopped::Over) } else { close(home, run).map(|()| Stopped::Closed) }
        }
    }
}

fn ended(run: &RunDir) -> Diagnostic {
    Diagnostic::error(Code::J0025, format!("{} has ended already", run.id()))
        .hint(format!("`umiak show {}` tells how", run.id()))
}

/// A supervisor holds its run a moment before it listens.
fn ask(run: &RunDir, kill: bool) -> std::io::Result<ControlAnswer> {
    let begin = Instant::now();
    loop {
        match control::ask(run, &ControlOrder::Stop { kill }) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                    && begin.elapsed() < BEGINNING
                    && is_held(run).unwrap_or(false) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Another host's supervisor cannot be reached from here.
pub(crate) fn elsewhere(run: &RunDir, host: &str, command: &str) -> Diagnostic {
    Diagnostic::error(Code::J0008, format!("{} is supervised on `{host}`", run.id())).hint(format!(
        "there: `umiak {command} {}`, or from here `ssh {host} umiak {command} {}`",
        run.id(),
        run.id()
    ))
}

/// Whether the process that supervises is still the one that said so.
fn is_there(supervisor: &Supervisor) -> bool {
    umiak_sys::hold::process_start(supervisor.pid) == Some(supervisor.start)
}

/// Its socket could not be made where its home is.
fn deaf(run: &RunDir, supervisor: Option<&Supervisor>) -> Diagnostic {
    let pid = supervisor.map_or(0, |supervisor| supervisor.pid);
    Diagnostic::error(Code::J0026, format!("{} has no control socket: its home does not allow one", run.id()))
        .hint(format!("press Ctrl-C where it runs, or `kill -TERM {pid}`"))
}

fn no_answer(run: &RunDir, supervisor: Option<&Supervisor>, why: &str) -> Diagnostic {
    let error = Diagnostic::error(Code::J0026, format!("the supervisor of {} does not answer", run.id()))
        .row("reason", why.to_owned());
    match supervisor {
        Some(supervisor) if umiak_sys::hold::is_paused(supervisor.pid) => error.hint(format!(
            "it is paused: `fg` where it was started or `kill -CONT {}` lets it go on, then stop it again",
            supervisor.pid
        )),
        Some(supervisor) => error.hint(format!("`kill -TERM {}` asks it too", supervisor.pid)),
        None => error,
    }
}

fn wait_for_end(run: &RunDir) -> Result<(), Diagnostic> {
    // A stop takes its grace; a supervisor that dies meanwhile ends the wait too.
    let mut pause = Duration::from_millis(2);
    let begin = Instant::now();
    // Until it has let go: whoever comes after us may want the run.
    while is_held(run).map_err(|error| error.diagnostic())? {
        std::thread::sleep(pause);
        let longest = if begin.elapsed() > Duration::from_secs(2) { 200 } else { 20 };
        pause = (pause * 2).min(Duration::from_millis(longest));
    }
    Ok(())
}

/// Writes the end that a lost supervisor could not.
fn close(home: &Home, run: &RunDir) -> Result<(), Diagnostic> {
    let mut writer = Writer::open(run).map_err(|error| error.diagnostic())?;
    // Somebody may have gone on with it since we looked.
    if writer.status().is_finished() {
        return Err(ended(run));
    }
    engine::end_orphans(run.path(), &writer.status().handles)?;
    let clock = Clock::start();
    let mut facts = vec![super::record::supervised(Began::Resumed)];
    facts.push(Fact::Stopping { reason: StopReason::User });
    facts.extend(lost(writer.status()));
    facts.push(Fact::Finished { outcome: Outcome::Stopped, exit_code: 3 });
    let records = writer.number(clock.now(), facts);
    let written = writer.append(&records).and_then(|()| writer.sync());
    written.map_err(|error| crate::history::cannot_write(&run.journal(), &error))?;
    drop(writer);
    tidy(run);
    if let Some(entry) = index::IndexEntry::of(run) {
        let _ = index::append(home, &entry);
    }
    Ok(())
}

/// What was live when its supervisor was lost.
fn lost(status: &Status) -> Vec<Fact> {
    let live = status.replicas.iter().filter(|replica| replica.is_live());
    live.zip(0..)
        .map(|(replica, order)| Fact::Ended {
            subject: Subject { replica: replica.replica.clone(), rank: replica.rank, attempt: replica.attempt },
            exit: Exit::Lost,
            by_us: false,
            order,
            usage: None,
            log_end: None,
        })
        .collect()
}
