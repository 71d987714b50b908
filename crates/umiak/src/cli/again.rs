//! `umiak resume` and `umiak retry`: continue the run of a document.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Outcome};
use umiak_core::formats::document::{Document, Format};
use umiak_core::formats::{self, Given};
use umiak_core::plan::document::Submission;
use umiak_core::status::{State, Status};

use crate::driver::stop::elsewhere;
use crate::front::document::begin::{self, Beginning, Early};
use crate::front::document::submit::{self, Recorded};
use crate::history::index::Word;
use crate::history::journal::{self, Replay};
use crate::history::{Home, Life, RunDir, life_of, tidy};
use crate::views::run::again as start_again;
use crate::views::standing::RunStanding;

use super::document;
use super::run::{Showing, Talking, detached, ended, start};
use super::runs::{Done, the_run_or_newest};

#[derive(Debug, Args)]
pub(super) struct Resume {
    /// Run id, last digits of its number, or name of a run whose supervisor died; the newest run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Return at once; the run continues without this terminal
    #[arg(short, long)]
    detach: bool,
    /// Continue a run with a damaged journal from the records before the damage. The journal is kept beside the new one
    #[arg(long)]
    accept_damage: bool,
    #[command(flatten)]
    talking: Talking,
    #[command(flatten)]
    showing: Showing,
}

pub(super) fn resume(arguments: &Resume) -> ExitCode {
    let taken = unsupervised(arguments.run.as_deref(), "resume", arguments.accept_damage);
    let result = taken.and_then(|Taken { home, run, status, is_damaged }| {
        if status.is_finished() {
            tidy(&run);
            let error = Diagnostic::error(Code::J0025, format!("{} has ended", run.id())).row("how", how(&status));
            let all = if is_success(&status) { "--all " } else { "" };
            let accept = if is_damaged { "--accept-damage " } else { "" };
            return Err(error.hint(format!("`umiak retry {all}{accept}{}` runs it again", run.id())));
        }
        let submission = submit::read(&run)?.ok_or_else(|| not_a_document(&run, &run.secrets()))?;
        let talking = (arguments.talking, &arguments.showing);
        let notices = accepted(&run, is_damaged)?;
        take_up(&home, run, submission, Began::Resumed, notices, arguments.detach, talking)
    });
    ended(arguments.talking, result)
}

#[derive(Debug, Args)]
pub(super) struct Retry {
    /// Run id, last digits of its number, or name of a run that has ended; the newest run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Rerun all replicas, also those that have succeeded
    #[arg(long)]
    all: bool,
    /// Change a parameter of the document
    #[arg(short = 'p', long = "param", value_name = "NAME=VALUE", value_parser = document::parameter)]
    param: Vec<(String, String)>,
    /// Return at once; the run continues without this terminal
    #[arg(short, long)]
    detach: bool,
    /// Continue a run with a damaged journal from the records before the damage. The journal is kept beside the new one
    #[arg(long)]
    accept_damage: bool,
    #[command(flatten)]
    talking: Talking,
    #[command(flatten)]
    showing: Showing,
}

pub(super) fn retry(arguments: &Retry) -> ExitCode {
    let taken = unsupervised(arguments.run.as_deref(), "retry", arguments.accept_damage);
    let result = taken.and_then(|Taken { home, run, status, is_damaged }| {
        // The records before the damage may be of a run that had not ended yet.
        let is_cut = !status.is_finished() && is_damaged;
        if !status.is_finished() && !is_cut {
            let error = Diagnostic::error(Code::J0025, format!("{} did not finish: its supervisor died", run.id()));
            return Err(error.hint(format!("`umiak resume {}` continues it", run.id())));
        }
        if is_cut && arguments.all {
            return Err(Diagnostic::error(Code::J0025, format!("{} had not ended before the damage", run.id()))
                .hint("omit `--all`, or run the document again"));
        }
        if is_success(&status) && !arguments.all {
            return Err(Diagnostic::error(Code::J0025, format!("{} has succeeded", run.id()))
                .hint("`--all` runs everything again"));
        }
        if let Some((submission, text)) =
            submit::pipeline_again(&run, &arguments.param, |recorded| parse(&run, recorded))?
        {
            let repeats = submission.repeats.clone().filter(|_| !arguments.all);
            let submission = Submission { repeats, ..submission };
            let talking = (arguments.talking, &arguments.showing);
            return start(&home, submission, &text, Vec::new(), arguments.detach, talking);
        }
        let submission = if arguments.param.is_empty() {
            submit::again(&run)?
        } else {
            submit::again_with(&run, &arguments.param, |recorded| parse(&run, recorded))?
        };
        let submission = submission.ok_or_else(|| not_a_document(&run, &run.plan()))?;
        let notices = accepted(&run, is_damaged)?;
        let why = match arguments.all {
            _ if is_cut => {
                // As a run that has not ended has them.
                let written = submit::write(&submission, &run);
                written.map_err(|error| crate::history::cannot_write(&run.secrets(), &error))?;
                Began::Resumed
            }
            true => Began::RetriedAll,
            false => Began::Retried,
        };
        take_up(&home, run, submission, why, notices, arguments.detach, (arguments.talking, &arguments.showing))
    });
    ended(arguments.talking, result)
}

/// Parses the document of a run with other parameters, as it was submitted.
fn parse(run: &RunDir, recorded: &Recorded<'_>) -> Result<Document, Diagnostic> {
    let first = |diagnostics: Vec<Diagnostic>| {
        let unknown = || Diagnostic::error(Code::J0027, "the document of the run cannot be read");
        diagnostics.into_iter().next().unwrap_or_else(unknown)
    };
    let source = document::read(&run.document())?;
    let Recorded { file, params, chosen, directory: dir } = recorded;
    let mut settings = document::settings(file).map_err(|(_, errors)| first(errors))?;
    document::choose(&mut settings, chosen, dir)?;
    if Format::of(&source) == Some(Format::PaddleRec) {
        let error = Diagnostic::error(Code::F0033, "a submission of PaddleRec has no parameters");
        return Err(error.hint("change its files and submit them again"));
    }
    let given = Given { disabled: &chosen.disabled, dir, ..Given::new(params, &settings) };
    formats::parse(&source, &given).map_err(first)
}

fn take_up(
    home: &Home,
    run: RunDir,
    submission: Submission,
    why: Began,
    notices: Vec<Diagnostic>,
    detach: bool,
    (talking, showing): (Talking, &Showing),
) -> Done {
    if detach {
        if why != Began::Resumed {
            // The supervisor reads it there, and removes it if it cannot begin.
            let written = submit::write(&submission, &run);
            written.map_err(|error| crate::history::cannot_write(&run.secrets(), &error))?;
        }
        return detached(home, &run, why, notices, talking);
    }
    let talk = talking.talk(showing, false);
    let early = Early::new(&talk)?;
    let beginning = Beginning { home, run, submission, notices, why, talk, early };
    begin::supervise(beginning, |_| {}).map(ExitCode::from)
}

/// A run that this command may take up.
struct Taken {
    home: Home,
    run: RunDir,
    status: Status,
    /// The status is the one before a damaged record, which the user accepts.
    is_damaged: bool,
}

/// Removes the damage from the journal, just before the run is taken up.
fn accepted(run: &RunDir, is_damaged: bool) -> Result<Vec<Diagnostic>, Diagnostic> {
    let accepted = if is_damaged { journal::accept_damage(run)? } else { None };
    Ok(accepted.map(|(damage, copy)| damage.accepted(&copy)).into_iter().collect())
}

/// The run of a document that this command (`resume` or `retry`) may take up: no supervisor is running.
fn unsupervised(run: Option<&str>, command: &str, accept_damage: bool) -> Result<Taken, Diagnostic> {
    let (home, run) = the_run_or_newest(run)?;
    let replay = journal::replay(&run)?;
    let life = life_of(&run, replay.is_finished())?;
    match &life {
        Life::Live { .. } => {
            let id = run.id();
            return Err(Diagnostic::error(Code::J0006, format!("{id} is still running"))
                .hint(format!("`umiak attach {id}` follows it, `umiak stop {id}` stops it")));
        }
        Life::Elsewhere { host } => return Err(elsewhere(&run, host, command)),
        Life::Lost | Life::Finished => has_document(&run, &replay)?,
    }
    match replay.seen.damage {
        Some(damage) if !accept_damage => Err(damage.diagnostic()),
        damage => Ok(Taken { home, run, status: replay.status, is_damaged: damage.is_some() }),
    }
}

/// Refuses runs without a document: a launch is repeated with its command line.
fn has_document(run: &RunDir, replay: &Replay) -> Result<(), Diagnostic> {
    let status = &replay.status;
    if run.document().exists() || status.next_seq == 0 && replay.seen.damage.is_none() {
        return Ok(());
    }
    let id = run.id();
    let (how, before) = if status.is_finished() {
        (how(status), String::new())
    } else {
        ("its supervisor died".to_owned(), format!("`umiak stop {id}` records its end; "))
    };
    Err(Diagnostic::error(Code::J0028, format!("{id} was started with `umiak launch`, not from a document"))
        .row("how it ended", how)
        .hint(format!("{before}{}", start_again(status))))
}

/// The error for a run whose submission is not in its file.
pub(super) fn not_a_document(run: &RunDir, file: &Path) -> Diagnostic {
    match journal::replay(run) {
        Ok(replay) if replay.status.next_seq == 0 && replay.seen.damage.is_none() => {
            Diagnostic::error(Code::J0025, format!("{} never began: `umiak run` was killed before", run.id()))
                .hint(format!("run the document again; `umiak rm {}` removes this run", run.id()))
        }
        Ok(replay) if run.document().exists() => {
            let id = run.id();
            let error = Diagnostic::error(Code::J0004, format!("`{}` is missing", file.display()));
            let retry = match replay.seen.damage {
                _ if file != run.secrets() => return error.hint("run the document again"),
                Some(_) => format!("`umiak retry --accept-damage {id}`"),
                None => format!("`umiak stop {id}` records its end; then `umiak retry {id}`"),
            };
            error
                .row("content", "the environment and the secrets that the run was submitted with")
                .hint(format!("{retry} runs what is not done, with the environment of that command"))
        }
        Ok(replay) => Diagnostic::error(Code::J0028, format!("{} was not started from a document", run.id()))
            .hint(start_again(&replay.status)),
        Err(error) => error.diagnostic(),
    }
}

fn is_success(status: &Status) -> bool {
    matches!(status.state, State::Finished { outcome: Outcome::Succeeded, .. })
}

/// `failed, code 3`
fn how(status: &Status) -> String {
    let word = RunStanding::Is(Word::of(status)).word();
    match status.state {
        State::Finished { exit_code, .. } => format!("{word}, code {exit_code}"),
        _ => word.to_owned(),
    }
}
