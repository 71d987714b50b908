//! `umiak logs RUN`: what replicas have written. Logs are bytes: what is no text passes as it is.

mod follow;
mod source;

use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::model::Rank;
use umiak_core::status::{ReplicaStatus, Stage, Status};

use crate::views::logs::LogPrinter;
use crate::views::standing::LoadedRun;

use super::runs::{Done, Format, load, talk, the_run, write};
use source::{Pointer, Source, Window};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// An id, the end of its number, or a name (its newest run)
    #[arg(value_name = "RUN")]
    run: String,
    /// A role, a replica (`trainer-3`), or `rank 3`; else the first cause, or the first replica that decides
    #[arg(value_name = "WHOSE", num_args = 0..=2)]
    whose: Vec<String>,
    /// Of this attempt, or of `all`; else of the last
    #[arg(long, value_name = "N", value_parser = which)]
    attempt: Option<Which>,
    /// Go on until they have ended
    #[arg(short = 'f', long, conflicts_with = "head")]
    follow: bool,
    /// Only the last lines
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<u64>,
    /// Only the first lines
    #[arg(long, value_name = "LINES", conflicts_with = "tail")]
    head: Option<u64>,
    /// Count bytes instead of lines
    #[arg(long)]
    bytes: bool,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Number(u32),
    All,
}

fn which(text: &str) -> Result<Which, String> {
    match text {
        "all" => Ok(Which::All),
        number => number.parse().map(Which::Number).map_err(|_| "write the number of an attempt, or `all`".to_owned()),
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (_, run) = the_run(&arguments.run)?;
    let loaded = load(run)?;
    let (chosen, cause) = choose(&loaded, &arguments.whose)?;
    let pointers = source::pointers(&loaded.run)?;
    let attempts = |replica: &ReplicaStatus| match (arguments.attempt, cause) {
        (Some(Which::All), _) => begun(replica),
        (Some(Which::Number(number)), _) => vec![number],
        // While it is followed, the attempt after the cause is what matters.
        (None, Some(attempt)) if !arguments.follow => vec![attempt],
        (None, _) => begun(replica).last().copied().into_iter().collect(),
    };
    let wanted: Vec<(String, u32)> = chosen
        .iter()
        .flat_map(|replica| attempts(replica).into_iter().map(|attempt| (replica.replica.clone(), attempt)))
        .collect();
    let window = match (arguments.tail, arguments.head) {
        (Some(count), _) => Window::Last { count, bytes: arguments.bytes },
        (_, Some(count)) => Window::First { count, bytes: arguments.bytes },
        _ => Window::All,
    };
    let names: Vec<String> = chosen.iter().map(|replica| replica.replica.clone()).collect();
    let is_named = chosen.len() > 1 || wanted.len() > 1;
    let ranks = chosen.iter().zip(0..).map(|(replica, place)| replica.rank.map_or(place, |rank| rank.0));
    let ranked = names.iter().cloned().zip(ranks).collect();
    let printer = LogPrinter::new(arguments.format.output, arguments.format.style(), is_named, ranked);
    if arguments.follow {
        return follow::follow(&loaded, &names, &wanted, window, &printer);
    }
    if wanted.is_empty() {
        return Err(not_begun(&loaded, &chosen));
    }
    show(&loaded, &pointers, &wanted, window, &printer)
}

/// One after the other. What is missing is told; it is an error only if nothing is left.
fn show(
    loaded: &LoadedRun,
    pointers: &[Pointer],
    wanted: &[(String, u32)],
    window: Window,
    printer: &LogPrinter,
) -> Done {
    let mut missing: Vec<Diagnostic> = Vec::new();
    for (replica, attempt) in wanted {
        let parts = match Source::find(&loaded.run, pointers, replica, *attempt).open(window) {
            Ok(parts) => parts,
            Err(diagnostic) => {
                missing.push(diagnostic);
                continue;
            }
        };
        let mut lines = printer.lines(replica, *attempt);
        for mut part in parts {
            let path = part.path();
            let fail = |error: std::io::Error| source::unreadable(replica, *attempt, &path, &error);
            while let Some(chunk) = part.next().map_err(fail)? {
                if !write(&lines.feed(chunk))? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
        write(&lines.finish())?;
    }
    if missing.len() == wanted.len() {
        let mut missing = missing.into_iter();
        let first = missing.next().expect("something was wanted");
        missing.for_each(|diagnostic| talk(&diagnostic));
        return Err(first);
    }
    missing.iter().for_each(talk);
    Ok(ExitCode::SUCCESS)
}

/// Those that the words mean, and the attempt that failed where no words say whom.
fn choose<'a>(loaded: &'a LoadedRun, words: &[String]) -> Result<(Vec<&'a ReplicaStatus>, Option<u32>), Diagnostic> {
    let status = &loaded.status;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            let cause = loaded.verdict().and_then(|verdict| verdict.causes.first()).map(|cause| &cause.subject);
            if let Some((cause, replica)) = cause.and_then(|cause| Some((cause, status.replica(&cause.replica)?))) {
                return Ok((vec![replica], Some(cause.attempt)));
            }
            let decides = status.roles.iter().find(|role| role.decides).map(|role| role.role.as_str());
            let first = status.replicas.iter().find(|replica| decides.is_none_or(|role| replica.role() == role));
            first.map(|replica| (vec![replica], None)).ok_or_else(|| {
                Diagnostic::error(Code::J0009, format!("`{}` has no replicas yet", loaded.run.id()))
                    .hint(format!("`umiak events {} -f` shows how it goes on", loaded.run.id()))
            })
        }
        ["rank", number] => {
            let rank = number.parse().map(Rank).ok();
            let found = status.replicas.iter().find(|replica| rank.is_some() && replica.rank == rank);
            found.map(|replica| (vec![replica], None)).ok_or_else(|| nobody(loaded, &format!("rank {number}")))
        }
        [name] => {
            if let Some(replica) = status.replica(name) {
                return Ok((vec![replica], None));
            }
            let role: Vec<&ReplicaStatus> = status.replicas.iter().filter(|replica| replica.role() == name).collect();
            if role.is_empty() { Err(nobody(loaded, name)) } else { Ok((role, None)) }
        }
        _ => Err(nobody(loaded, &words.join(" "))),
    }
}

fn nobody(loaded: &LoadedRun, words: &str) -> Diagnostic {
    let replicas = &loaded.status.replicas;
    let names = replicas.iter().map(|replica| replica.replica.as_str());
    let mut roles: Vec<&str> = replicas.iter().map(ReplicaStatus::role).collect();
    roles.dedup();
    let near = nearest(words, roles.iter().copied().chain(names));
    let error = Diagnostic::error(Code::L0001, format!("`{}` has no role or replica `{words}`", loaded.run.id()))
        .row("roles", roles.join(", "))
        .row("ranks", replicas.len().checked_sub(1).map_or_else(|| "none".to_owned(), |last| format!("0 to {last}")));
    match near {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("write a role, a replica as in `trainer-3`, or `rank 3`"),
    }
}

fn not_begun(loaded: &LoadedRun, chosen: &[&ReplicaStatus]) -> Diagnostic {
    let name = chosen.first().map_or("", |replica| replica.replica.as_str());
    Diagnostic::error(Code::J0009, format!("`{name}` of `{}` has not been started", loaded.run.id()))
        .hint("`-f` waits for it")
}

/// Attempts of which there can be output, oldest first.
fn begun(replica: &ReplicaStatus) -> Vec<u32> {
    let mut attempts: Vec<u32> = replica.past.iter().map(|past| past.attempt).collect();
    if replica.stage != Stage::Waiting {
        attempts.push(replica.attempt);
    }
    attempts
}

/// Whether nothing more comes from these.
fn have_ended(status: &Status, names: &[String]) -> bool {
    status.is_finished()
        || names.iter().filter_map(|name| status.replica(name)).all(|replica| match &replica.stage {
            // One that failed may be started again.
            Stage::Ended(ended) => ended.is_success(),
            Stage::Abandoned => true,
            Stage::Waiting | Stage::Starting { .. } | Stage::Running { .. } => false,
        })
}
