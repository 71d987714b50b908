//! `umiak attach [RUN]`: follows the output and the status of a live run from another terminal. Ctrl-C leaves the run
//! running.
//!
//! A child process, `umiak logs -f`, shows the output of replicas; Ctrl-C may end it. This process shows what happens
//! to the run, and ends with the child if the output can no longer be shown.
//!
//! A pipeline is shown as `umiak run` shows it: a tree on a terminal, lines elsewhere. Output only of steps that are
//! named, and then without a tree, because the child writes to the same terminal.

use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Record};
use umiak_core::status::{NodeState, State, Status};
use umiak_sys::wait::{Signals, readable, stop_ourselves};

use crate::clock::time_of_day;
use crate::driver::sources::SIGTSTP;
use crate::driver::stop::elsewhere;
use crate::driver::tree::{Tree, last_tree};
use crate::history::index::Word;
use crate::history::journal::Follower;
use crate::history::{Home, Life, RunDir, find, life, newest, only_live};
use crate::screen::{MirrorTo, Screen, Style};
use crate::views::facts::describe;
use crate::views::progress::lines;
use crate::views::run::head;
use crate::views::standing::{LoadedRun, RunStanding, pipeline_plan};

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
    /// or the first replica. Of a pipeline, the steps whose output is shown instead of the tree
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
    let mut follower = Follower::open(&run)?;
    follower.catch_up()?;
    // Steps are checked by the child.
    if !arguments.replicas.is_empty() && follower.pipeline().is_none() {
        choose(&load(RunDir::at(&home, run.id()))?, &arguments.replicas)?;
    }
    let style = Style::detect(arguments.ascii, false);
    if follower.pipeline().is_some() && arguments.replicas.is_empty() {
        return attach_pipeline(&mut follower, run, &style);
    }
    let has_roles = run.document().exists() && follower.status().roles.len() > 1;
    let mut console =
        console(&run, arguments, has_roles).map_err(|error| Diagnostic::failed("follow the console", &error))?;
    // Blocked after the child has started: it inherits the mask, and Ctrl-C must end it.
    let signals = Signals::block(&[SIGINT, SIGTERM, SIGCHLD]);
    let signals = signals.map_err(|error| {
        end(&mut console);
        Diagnostic::failed("wait for signals", &error)
    })?;
    let followed = follow(&mut follower, &run, &style, &signals, Console::Child(&mut console));
    match followed {
        Ok(Followed::Ended(status, code)) => {
            // It exits by itself after the last line.
            let _ = console.wait();
            say_end(&style, run, *status);
            Ok(ExitCode::from(code))
        }
        Ok(Followed::Left(signal)) => {
            end(&mut console);
            Ok(say_left(&run, signal))
        }
        Ok(Followed::Unread(code)) => Ok(ExitCode::from(code)),
        Err(diagnostic) => {
            end(&mut console);
            Err(diagnostic)
        }
    }
}

fn say_end(style: &Style, run: RunDir, status: Status) {
    let standing = RunStanding::Is(Word::of(&status));
    super::say(&head(style, &LoadedRun { run, status, pipeline: None, standing, damage: None }));
}

fn say_left(run: &RunDir, signal: i32) -> ExitCode {
    let id = run.id();
    super::say(&format!(
        "\ndetached; {id} is still running: `umiak attach {id}` follows it again, `umiak stop {id}` stops it\n"
    ));
    ExitCode::from(128 + u8::try_from(signal).unwrap_or(0))
}

/// Shows a pipeline until it has ended, or a signal arrives.
fn attach_pipeline(follower: &mut Follower, run: RunDir, style: &Style) -> Done {
    let signals = Signals::block(&[SIGINT, SIGTERM, SIGTSTP]);
    let signals = signals.map_err(|error| Diagnostic::failed("wait for signals", &error))?;
    let screen = Screen::start(style.clone(), MirrorTo::Nowhere);
    let screen = screen.map_err(|error| Diagnostic::failed("start its console output", &error))?;
    let nodes = follower.pipeline().filter(|_| style.live);
    let mut tree = nodes.and_then(|nodes| Tree::load(&run, nodes, follower.status().began));
    let on = Console::Screen(&screen, tree.as_mut());
    let followed = follow(follower, &run, style, &signals, on);
    screen.status(None);
    if let (Ok(Followed::Ended(..)), Some(nodes), false) = (&followed, follower.pipeline(), style.plain) {
        let id = run.id().to_string();
        let pipeline = tree.map(|tree| tree.pipeline().clone()).or_else(|| Some(pipeline_plan(&run)?.pipeline));
        if let Some(pipeline) = pipeline {
            screen.talk(last_tree(style, &id, &pipeline, nodes));
        }
    }
    screen.close();
    let _ = readable(&[screen.done().as_fd()], None);
    screen.join();
    match followed? {
        Followed::Ended(status, code) => {
            say_end(style, run, *status);
            Ok(ExitCode::from(code))
        }
        Followed::Left(signal) => Ok(say_left(&run, signal)),
        Followed::Unread(code) => Ok(ExitCode::from(code)),
    }
}

fn attached(follower: &Follower, run: &RunDir, style: &Style) -> String {
    let status = follower.status();
    let running = match follower.pipeline() {
        Some(nodes) => nodes.nodes().filter(|(_, node)| node.state == NodeState::Running).count(),
        None => Status::counts(&status.replicas).live as usize,
    };
    style.progress(
        "Attached",
        &[run.id().to_string(), status.name.clone(), format!("{running} running")],
        &time_of_day(),
    )
}

/// Lines about what happened: to nodes, unless a tree shows them, and to the run.
fn tell(records: &[Record], follower: &Follower, style: &Style, has_tree: bool) -> Vec<String> {
    let about_run = records.iter().filter(|record| record.step.is_none() && is_told(&record.fact));
    let about_run = about_run.map(|record| style.progress("Run", &[describe(&record.fact)], &time_of_day()));
    let nodes = follower.pipeline().filter(|_| !has_tree);
    let about_nodes = nodes.map(|nodes| lines(records, nodes)).unwrap_or_default();
    about_run.chain(about_nodes.iter().map(|line| line.write(style, &time_of_day()))).collect()
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

/// Where a run is shown.
enum Console<'a> {
    /// The output, by this process, and lines.
    Child(&'a mut Child),
    /// A tree, if there is one, or lines.
    Screen(&'a Screen, Option<&'a mut Tree>),
}

/// Shows what happens to the run until it has ended, a signal arrives or its output can no longer be shown.
fn follow(
    follower: &mut Follower,
    run: &RunDir,
    style: &Style,
    signals: &Signals,
    mut console: Console<'_>,
) -> Result<Followed, Diagnostic> {
    let mut told = vec![attached(follower, run, style)];
    loop {
        // Checked before reading: everything written until then is read.
        let life = follower.life()?;
        let mut records: Vec<Record> = Vec::new();
        while let Some(item) = follower.next()? {
            records.push(item.record);
        }
        let has_tree = matches!(console, Console::Screen(_, Some(_)));
        told.extend(tell(&records, follower, style, has_tree));
        for line in told.drain(..) {
            match &console {
                Console::Child(_) => super::say(&line),
                Console::Screen(screen, _) => screen.talk(line),
            }
        }
        let mut due = None;
        if let (Console::Screen(screen, Some(tree)), Some(nodes)) = (&mut console, follower.pipeline()) {
            tree.update(&records, nodes);
            tree.draw(screen, style, nodes);
            due = tree.due();
        }
        if let State::Finished { exit_code, .. } = follower.status().state {
            return Ok(Followed::Ended(Box::new(follower.status().clone()), exit_code));
        }
        if life == Life::Lost && records.is_empty() && follower.life()? == Life::Lost {
            return Err(lost(run));
        }
        // Before the child is asked: Ctrl-C ends it, too.
        let heard = signals.read();
        if let Some(signal) = heard.iter().find(|signal| !matches!(**signal, SIGCHLD | SIGTSTP)) {
            return Ok(Followed::Left(*signal));
        }
        if heard.contains(&SIGTSTP)
            && let Console::Screen(screen, tree) = &mut console
        {
            screen.hide_status();
            stop_ourselves();
            if let Some(tree) = tree {
                tree.redraw();
            }
            continue;
        }
        if let Console::Child(child) = &mut console
            && let Ok(Some(status)) = child.try_wait()
            && let Some(code) = unread(status)
        {
            return Ok(Followed::Unread(code));
        }
        follower.wait_for(&[signals.as_fd()], due)?;
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
            | Fact::StoreWaits(_)
            | Fact::CollectiveTimeout { .. }
            | Fact::TimedOut { .. }
            | Fact::Stopping { .. }
            | Fact::Paused
            | Fact::Continued
            | Fact::Diagnosed(_)
            | Fact::Noticed { .. }
            | Fact::EngineLost { .. }
            | Fact::AttemptFailed(_)
            | Fact::Retrying { .. }
            | Fact::Restarting { .. }
    )
}
