//! `umiak logs [RUN] [REPLICAS]`: the output of replicas. Logs are bytes and are copied unchanged, text or not.
//!
//! Lines of several replicas are ordered by their times, where these are known ([`crate::views::times`]).

mod follow;
mod jobs;
mod merge;
mod nodes;
mod source;

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::facts::PlannedNode;
use umiak_core::model::{Whose, replica_parts};
use umiak_core::status::{NodeStatus, PipelineStatus, ReplicaStatus, Stage, Status};

use crate::views::logs::{LogOwner, LogPrinter};
use crate::views::run::since;
use crate::views::standing::LoadedRun;

use super::runs::{Done, Format, load, shown, talk, the_run, the_run_or_newest};
use super::values;
use follow::Following;
use jobs::{Jobs, Words};
use merge::Telling;
use source::{Pointer, Source, Window};

/// The usual limit of descriptors has room for this number of files.
const FEW: usize = 256;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, last digits of its number, or name (live runs first); the newest run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Roles (`trainer`), replicas (`trainer-3`, `trainer-0-3`), ranks (`3`, `0-3`, `0,2`), or `all`. When omitted, the
    /// replica that caused the failure, else the first replica that decides the result. Of a pipeline, first the steps
    /// (`train`, `split.3`; a DAG or a loop means all steps in it), then replicas; when omitted, all
    #[arg(value_name = "[STEPS] [REPLICAS]")]
    whose: Vec<String>,
    /// Number of the attempt, or `all`; the last when omitted
    #[arg(long, value_name = "N", value_parser = which)]
    attempt: Option<Which>,
    /// Print new output, also of further attempts, until the named replicas or the run have ended
    #[arg(short = 'f', long, conflicts_with = "head")]
    follow: bool,
    /// Show only the last lines
    #[arg(short = 'n', long, value_name = "LINES")]
    tail: Option<u64>,
    /// Show only the first lines
    #[arg(long, value_name = "LINES", conflicts_with = "tail")]
    head: Option<u64>,
    /// Show only lines since this time: an age as in `10min`, or a date as in `2026-11-15 03:08`. A line without a time
    /// has the time of the line before it
    #[arg(long, value_name = "TIME", value_parser = values::point)]
    since: Option<u64>,
    /// Start each line with its time: the one in the line, or with `-f` when it was read. `~` means "not before"
    #[arg(short = 't', long)]
    timestamps: bool,
    /// Let `--tail` and `--head` count bytes
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
    let (loaded, words) = the_run_and_whose(arguments)?;
    let done = print(arguments, &loaded, &words);
    match (done, &loaded.damage) {
        (Err(missing), Some(damage)) => {
            talk(&missing);
            Err(damage.diagnostic())
        }
        (done, damage) => shown(done?, damage.as_deref()),
    }
}

fn print(arguments: &Arguments, loaded: &LoadedRun, words: &[String]) -> Done {
    if let Some(pipeline) = &loaded.pipeline {
        return print_steps(arguments, loaded, pipeline, words);
    }
    let Chosen { replicas: chosen, elsewhere } = choose(loaded, words)?;
    if !elsewhere.is_empty() {
        let shown = |replica: &&ReplicaStatus| match replica.until {
            Some(until) => format!("{} until attempt {until}, on this node", replica.replica),
            None => replica.replica.clone(),
        };
        let shown = chosen.iter().map(shown).collect::<Vec<_>>().join(", ");
        talk(&nodes::not_here(loaded, &elsewhere, Diagnostic::notice).row("shown", shown));
    } else if let Some((former, since)) = chosen.iter().find_map(|one| Some((one, since(&loaded.status, one)?))) {
        let until = former.until.unwrap_or(former.attempt);
        let message = format!("`{}` was on this node until attempt {until}, and is {since}", former.replica);
        talk(&Diagnostic::notice(Code::J0014, message));
    }
    let names: Vec<String> = chosen.iter().map(|replica| replica.replica.clone()).collect();
    let of = |replica: &&'_ ReplicaStatus| LogOwner { step: None, replica: replica.replica.clone() };
    let owners: Vec<(LogOwner, &ReplicaStatus)> = chosen.iter().map(|replica| (of(replica), *replica)).collect();
    let wanted = arguments.wanted(&owners);
    let printer = arguments.printer(loaded, &owners, owners.len() > 1 || wanted.len() > 1);
    let asked = Asked { window: arguments.window(), since: arguments.since, printer: &printer };
    // No more can be known about a damaged run: what it has written until now is shown.
    if arguments.follow && loaded.damage.is_none() {
        // Without names, the whole run is followed.
        let until = if words.is_empty() { Vec::new() } else { names.clone() };
        return follow::follow(loaded, &Following::Replicas { names, until }, &wanted, &asked);
    }
    if wanted.is_empty() {
        return Err(match arguments.attempt {
            Some(Which::Number(number)) if chosen.iter().any(|replica| !replica.begun().is_empty()) => {
                no_attempt(loaded, &chosen, number)
            }
            _ => not_begun(loaded, &chosen),
        });
    }
    show(loaded, &wanted, &asked)
}

/// Prints the output of a pipeline's steps, in the order in which they began.
fn print_steps(arguments: &Arguments, loaded: &LoadedRun, pipeline: &PipelineStatus, words: &[String]) -> Done {
    let words = Words::parse(loaded, pipeline, words)?;
    let jobs = Jobs::replay(&loaded.run, &words)?;
    let owners: Vec<(LogOwner, &ReplicaStatus)> = jobs.owners(&words).collect();
    let wanted = arguments.wanted(&owners);
    // The only replica of the only step that was named. It may not have begun.
    let replicas = words.replicas_of_one_step(loaded);
    let is_one = wanted.len() <= 1 && (replicas == Some(1) || replicas.is_some() && owners.len() == 1);
    let printer = arguments.printer(loaded, &owners, !is_one);
    let asked = Asked { window: arguments.window(), since: arguments.since, printer: &printer };
    if arguments.follow && loaded.damage.is_none() {
        let is_over = |wanted: &&Wanted| {
            wanted.owner.step.as_ref().and_then(|step| jobs.job(step)).is_some_and(Status::is_finished)
        };
        let (over, live): (Vec<&Wanted>, Vec<&Wanted>) = wanted.iter().partition(is_over);
        let (over, live): (Vec<Wanted>, Vec<Wanted>) =
            (over.into_iter().cloned().collect(), live.into_iter().cloned().collect());
        if !over.is_empty() {
            show(loaded, &over, &asked)?;
        }
        return follow::follow(loaded, &Following::Steps { words, shown: over }, &live, &asked);
    }
    if wanted.is_empty() {
        return Err(no_output(loaded, pipeline, &words, arguments.attempt));
    }
    show(loaded, &wanted, &asked)
}

/// Why the named steps have no output.
fn no_output(loaded: &LoadedRun, pipeline: &PipelineStatus, words: &Words, attempt: Option<Which>) -> Diagnostic {
    let id = loaded.run.id();
    let name = words.steps.first().map_or("", String::as_str);
    let node = pipeline.node(name);
    let error = |message: String| Diagnostic::error(Code::J0009, message);
    if let Some((run, step)) = node.and_then(NodeStatus::cached_from) {
        return error(format!("`{name}` of `{id}` did not run: the result of `{run}` is used"))
            .hint(format!("`umiak logs {run} {step}` shows the output of that run"));
    }
    match (node.and_then(NodeStatus::ended), attempt) {
        (Some(_), Some(Which::Number(number))) => error(format!("`{name}` of `{id}` has no attempt {number}")),
        (Some(_), _) => error(format!("`{name}` of `{id}` did not run")).hint(format!("`umiak show {id}` shows why")),
        (None, _) if name.is_empty() => {
            error(format!("no step of `{id}` has been started")).hint("`-f` waits for them")
        }
        (None, _) => error(format!("`{name}` of `{id}` has not been started")).hint("`-f` waits for it"),
    }
}

/// An attempt whose output is shown.
#[derive(Debug, Clone)]
struct Wanted {
    owner: LogOwner,
    attempt: u32,
    /// When it began; 0 if not recorded.
    began: u64,
}

impl Arguments {
    fn wanted(&self, owners: &[(LogOwner, &ReplicaStatus)]) -> Vec<Wanted> {
        let attempts = |replica: &ReplicaStatus| match self.attempt {
            Some(Which::All) => replica.begun(),
            // A further attempt may still begin.
            Some(Which::Number(number)) if self.follow => vec![number],
            Some(Which::Number(number)) => replica.begun().into_iter().filter(|begun| *begun == number).collect(),
            None => replica.begun().last().copied().into_iter().collect(),
        };
        let of = |(owner, replica): &(LogOwner, &ReplicaStatus)| {
            let wanted = |attempt| Wanted { owner: owner.clone(), attempt, began: began(replica, attempt) };
            attempts(replica).into_iter().map(wanted).collect::<Vec<_>>()
        };
        owners.iter().flat_map(of).collect()
    }

    fn window(&self) -> Window {
        match (self.tail, self.head) {
            (Some(count), _) => Window::Last { count, bytes: self.bytes },
            (_, Some(count)) => Window::First { count, bytes: self.bytes },
            _ => Window::All,
        }
    }

    fn printer(&self, loaded: &LoadedRun, owners: &[(LogOwner, &ReplicaStatus)], is_named: bool) -> LogPrinter {
        let ranks = owners.iter().zip(0..).map(|((owner, replica), place)| {
            // Steps have different colours.
            let rank = replica.rank.filter(|_| owner.step.is_none()).map_or(place, |rank| rank.0);
            (owner.clone(), rank)
        });
        let (output, style) = (self.format.output, self.format.style());
        LogPrinter::new(loaded.run.id().to_string(), output, style, is_named, self.timestamps, ranks.collect())
    }
}

/// Which part of each log to show, and how.
struct Asked<'a> {
    window: Window,
    since: Option<u64>,
    printer: &'a LogPrinter,
}

/// The run that the first word names, and the other words. If it names no run but replicas of the newest run, that run
/// and all words.
fn the_run_and_whose(arguments: &Arguments) -> Result<(LoadedRun, Vec<String>), Diagnostic> {
    let Some(first) = &arguments.run else { return Ok((load(the_run_or_newest(None)?.1)?, Vec::new())) };
    match the_run(first) {
        Ok((_, run)) => Ok((load(run)?, arguments.whose.clone())),
        Err(error) => {
            let Ok(newest) = the_run_or_newest(None).and_then(|(_, run)| load(run)) else { return Err(error) };
            if let Some(pipeline) = &newest.pipeline {
                let words: Vec<String> = std::iter::once(first).chain(&arguments.whose).cloned().collect();
                return Words::parse(&newest, pipeline, &words).map_err(|_| error).map(|_| (newest, words));
            }
            let replicas = nodes::all(&newest.status);
            if Whose::parse([first.as_str()]).unknown(&replicas.iter().copied()).is_some() {
                return Err(error);
            }
            Ok((newest, std::iter::once(first).chain(&arguments.whose).cloned().collect()))
        }
    }
}

/// When an attempt began; 0 if not recorded.
fn began(replica: &ReplicaStatus, attempt: u32) -> u64 {
    let past = replica.past.iter().find(|past| past.attempt == attempt).and_then(|past| past.ended.as_ref());
    match (&replica.stage, past) {
        (_, Some(ended)) | (Stage::Ended(ended), None) => ended.started,
        (Stage::Starting { at } | Stage::Running { at, .. }, None) => *at,
        (Stage::Waiting | Stage::Abandoned, None) => 0,
    }
}

/// The time from which each log is shown. A log without times is shown as a whole, with a notice.
fn limits(
    telling: &mut [Telling],
    changed: &[Option<u64>],
    since: Option<u64>,
) -> Result<Vec<Option<u64>>, Diagnostic> {
    let Some(since) = since else { return Ok(vec![None; telling.len()]) };
    let mut timeless = Vec::new();
    let mut limits = Vec::new();
    for (telling, changed) in telling.iter_mut().zip(changed) {
        // The whole file is older.
        if changed.is_some_and(|changed| changed < since) {
            limits.push(Some(u64::MAX));
        } else if telling.began() >= since || telling.has_times()? {
            limits.push(Some(since));
        } else {
            timeless.push(telling.replica().to_owned());
            limits.push(None);
        }
    }
    if !timeless.is_empty() {
        let message = "`--since` does not apply to logs without times: all their lines are shown";
        talk(&Diagnostic::notice(Code::J0013, message).row("replicas", timeless.join(", ")));
    }
    Ok(limits)
}

/// Shows the logs of each step, ordered by time. Missing ones are reported; it is an error only if all are missing.
fn show(loaded: &LoadedRun, wanted: &[Wanted], asked: &Asked<'_>) -> Done {
    let pointers = source::pointers(&loaded.run)?;
    let mut missing: Vec<Diagnostic> = Vec::new();
    for job in wanted.chunk_by(|one, next| one.owner.step == next.owner.step) {
        missing.extend(show_job(loaded, &pointers, job, asked)?);
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

/// Shows the logs of one job, ordered by time. Returns what is wrong with missing ones.
fn show_job(
    loaded: &LoadedRun,
    pointers: &[Pointer],
    wanted: &[Wanted],
    asked: &Asked<'_>,
) -> Result<Vec<Diagnostic>, Diagnostic> {
    let mut missing: Vec<Diagnostic> = Vec::new();
    let (mut telling, mut changed) = (Vec::new(), Vec::new());
    if wanted.len() > FEW {
        umiak_sys::limits::raise();
    }
    for Wanted { owner, attempt, began } in wanted {
        let sources = Source::all(&loaded.run, pointers, owner, *attempt);
        let opened: Result<Vec<_>, _> = sources.iter().map(|source| source.open(asked.window)).collect();
        match opened {
            Ok(streams) => streams.into_iter().for_each(|parts| {
                changed.push(parts.last().and_then(source::Open::changed));
                let lines = asked.printer.lines(owner, *attempt);
                telling.push(Telling::new(&owner.to_string(), *attempt, parts, *began, lines));
            }),
            Err(diagnostic) => missing.push(diagnostic),
        }
    }
    let is_plain = telling.len() == 1 && asked.printer.is_raw() && asked.since.is_none();
    if is_plain && let Some(telling) = telling.pop() {
        telling.copy()?;
    } else {
        let limits = limits(&mut telling, &changed, asked.since)?;
        merge::tell(&mut telling, &limits, false)?;
    }
    Ok(missing)
}

/// The replicas whose output is shown.
pub(super) struct Chosen<'a> {
    replicas: Vec<&'a ReplicaStatus>,
    /// Chosen replicas whose logs are on other nodes.
    elsewhere: Vec<PlannedNode>,
}

/// The replicas that the words name. Without words, the replica that failed first. It is an error if all that the words
/// name are on other nodes.
pub(super) fn choose<'a>(loaded: &'a LoadedRun, words: &[String]) -> Result<Chosen<'a>, Diagnostic> {
    let status = &loaded.status;
    if !words.is_empty() {
        let whose = Whose::parse(words.iter().map(String::as_str));
        return match whose.unknown(&nodes::all(status).iter().copied()) {
            Some(word) => Err(nobody(loaded, &word)),
            None if whose.is_empty() => Err(nobody(loaded, &words.join(" "))),
            None => {
                let is_of = |replica: &&ReplicaStatus| whose.is_of(&replica.replica, replica.rank);
                let replicas: Vec<&ReplicaStatus> = status.replicas.iter().filter(is_of).collect();
                let elsewhere = nodes::elsewhere(status, |name, rank| whose.is_of(name, rank));
                if replicas.is_empty() {
                    return Err(nodes::not_here(loaded, &elsewhere, Diagnostic::error));
                }
                Ok(Chosen { replicas, elsewhere })
            }
        };
    }
    let cause = loaded.verdict().and_then(|verdict| verdict.causes.first()).map(|cause| &cause.subject);
    if let Some(replica) = cause.and_then(|cause| status.replica(&cause.replica)) {
        return Ok(Chosen { replicas: vec![replica], elsewhere: Vec::new() });
    }
    let elsewhere = nodes::elsewhere(status, |name, _| cause.is_some_and(|cause| cause.replica == name));
    let decides = status.roles.iter().find(|role| role.decides).map(|role| role.role.as_str());
    let present = || status.replicas.iter().filter(|replica| replica.until.is_none());
    let first = present().find(|replica| decides.is_none_or(|role| replica.role() == role));
    let first = first.or(present().next()).or(status.replicas.first());
    first.map(|replica| Chosen { replicas: vec![replica], elsewhere }).ok_or_else(|| {
        Diagnostic::error(Code::J0009, format!("`{}` has no replicas yet", loaded.run.id()))
            .hint(format!("`umiak events {} -f` shows its progress", loaded.run.id()))
    })
}

fn nobody(loaded: &LoadedRun, words: &str) -> Diagnostic {
    let replicas = nodes::all(&loaded.status);
    let names = replicas.iter().map(|(name, _)| *name);
    let mut roles: Vec<&str> = Vec::new();
    for (role, _) in names.clone().map(replica_parts) {
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
    let near = nearest(words, roles.iter().copied().chain(names));
    let error = Diagnostic::error(Code::L0001, format!("`{}` has no role or replica `{words}`", loaded.run.id()))
        .row("roles", roles.join(", "))
        .row("ranks", replicas.len().checked_sub(1).map_or_else(|| "none".to_owned(), |last| format!("0 to {last}")));
    match near {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("write roles, replicas as in `trainer-3`, ranks as in `0-3`, or `all`"),
    }
}

fn not_begun(loaded: &LoadedRun, chosen: &[&ReplicaStatus]) -> Diagnostic {
    let name = chosen.first().map_or("", |replica| replica.replica.as_str());
    Diagnostic::error(Code::J0009, format!("`{name}` of `{}` has not been started", loaded.run.id()))
        .hint("`-f` waits for it")
}

fn no_attempt(loaded: &LoadedRun, chosen: &[&ReplicaStatus], number: u32) -> Diagnostic {
    let whose = match chosen {
        [one] => format!("`{}` of `{}`", one.replica, loaded.run.id()),
        _ => format!("`{}`", loaded.run.id()),
    };
    let attempts: BTreeSet<u32> = chosen.iter().flat_map(|replica| replica.begun()).collect();
    let attempts: Vec<String> = attempts.iter().map(u32::to_string).collect();
    Diagnostic::error(Code::L0001, format!("{whose} has no attempt {number}")).row("attempts", attempts.join(", "))
}

/// True if no more output comes from these replicas or, without names, from the run.
fn have_ended(status: &Status, names: &[String]) -> bool {
    status.is_finished()
        || !names.is_empty()
            && names.iter().filter_map(|name| status.replica(name)).all(|replica| match &replica.stage {
                // A failed replica may be restarted.
                Stage::Ended(ended) => ended.is_success(),
                Stage::Abandoned => true,
                Stage::Waiting | Stage::Starting { .. } | Stage::Running { .. } => false,
            })
}
