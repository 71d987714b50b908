//! The state of one run, from its facts: `umiak show`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::shown;
use umiak_core::facts::{Finding, Limit, PlannedNode};
use umiak_core::model::{Exit, FIRST_ATTEMPT, StepName, replica_parts, signal_name};
use umiak_core::plan::PipelinePlan;
use umiak_core::status::{Ended, ReplicaStatus, RoleStatus, Stage, State, Status};

use super::listing::size;
use super::pipeline::{Detail, PipelineRun, ShownNode};
use super::standing::{LoadedRun, RunStanding};
use super::store;
use super::table::{Giving, TableCell, table};
use super::time::{ago, between, moment};
use crate::clock::wall_micros;
use crate::history::index::{IndexEntry, RoleSize};
use crate::history::{RunDir, RunId};
use crate::screen::Style;
use crate::screen::style::Mark;
use crate::screen::summary::{self, Crowd, Others, ReplicaPlace, SERVER_TIMEOUT};

/// With more replicas than this, only failed and lost ones are listed.
const FOLDED: usize = 50;
/// Number of earlier attempts listed for each replica.
const PAST: usize = 3;

/// What `umiak show --output json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ShownRun {
    /// The version of this format.
    pub v: u32,
    pub run: RunId,
    /// As in `umiak ls`.
    pub status: String,
    /// The exit code of the run, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    pub engine: String,
    pub user: String,
    /// In microseconds since the Unix epoch.
    pub created: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The run directory.
    pub directory: String,
    /// Replicas that failed without failing the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerated: Vec<String>,
    /// The word of PaddleFlow for the state of a pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paddleflow: Option<&'static str>,
    /// The nodes of a pipeline, parents before their children.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pipeline: Vec<ShownNode>,
    #[serde(flatten)]
    pub facts: Status,
}

impl ShownRun {
    pub(crate) fn new(loaded: LoadedRun, entry: IndexEntry, plan: Option<&PipelinePlan>) -> Self {
        let nodes = plan.and_then(|plan| Some(pipeline(&loaded, plan)?.shown()));
        let paddleflow = loaded.pipeline.is_some().then(|| loaded.status.state.paddleflow_word());
        let LoadedRun { run, mut status, standing, .. } = loaded;
        if status.roles.is_empty() {
            // The plan of a launch names no role if all ranks are trainers, which then decide.
            let role = |size: &RoleSize| RoleStatus { role: size.role.clone(), replicas: size.replicas, decides: true };
            status.roles = entry.roles.iter().map(role).collect();
        }
        for replica in &mut status.replicas {
            replica.log = log(&run, status.step.as_ref(), replica, replica.attempt);
        }
        Self {
            v: 3,
            run: run.id(),
            status: standing.word().to_owned(),
            code: entry.code,
            engine: entry.engine,
            user: entry.user,
            created: entry.created,
            ended: entry.ended,
            labels: entry.labels,
            directory: run.path().display().to_string(),
            tolerated: status.tolerated().iter().map(|(replica, _)| replica.replica.clone()).collect(),
            paddleflow,
            pipeline: nodes.unwrap_or_default(),
            facts: status,
        }
    }
}

/// The pipeline with what has happened.
pub(crate) fn pipeline<'a>(loaded: &'a LoadedRun, plan: &'a PipelinePlan) -> Option<PipelineRun<'a>> {
    Some(PipelineRun {
        pipeline: &plan.pipeline,
        status: loaded.pipeline.as_deref()?,
        is_lost: loaded.standing.is_lost(),
        is_over: loaded.standing.is_over(),
        now: wall_micros(),
    })
}

pub(crate) fn human(
    style: &Style,
    loaded: &LoadedRun,
    entry: &IndexEntry,
    plan: Option<&PipelinePlan>,
    all: bool,
) -> String {
    let LoadedRun { run, status, standing, .. } = loaded;
    let mut text = head(style, loaded);
    let mut row = |name: &str, value: String| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {}  {}", style.dim(&format!("{name:<10}")), shown(&value));
        }
    };
    row("command", status.command.clone());
    row(if entry.steps.is_some() { "pipeline" } else { "roles" }, size(entry));
    row("started", format!("{} ({})", moment(entry.created), ago(entry.created, wall_micros())));
    if let Some(ended) = entry.ended {
        row("ended", format!("{}, after {}", moment(ended), between(entry.created, ended)));
    }
    row("by", format!("{} on engine {}", entry.user, entry.engine));
    row("labels", entry.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", "));
    row("supervisor", supervisor(run, status, standing));
    if status.attempt > FIRST_ATTEMPT {
        row("attempts", format!("{} of the whole job", status.attempt));
    }
    row("scheduler", status.accepted.join(", "));
    if let Some(waits) = waits_for(status).filter(|_| matches!(standing, RunStanding::Is(_))) {
        row("waits for", waits);
    }
    row("directory", run.path().display().to_string());
    let tolerated = status.tolerated();
    row(
        "tolerated",
        tolerated.iter().map(|(name, ended)| format!("{} {}", name.replica, how(ended))).collect::<Vec<_>>().join(", "),
    );
    for (position, line) in nodes(status).into_iter().enumerate() {
        row(if position == 0 { "nodes" } else { "" }, line);
    }
    row("spares", status.spares.join(", "));
    if let Some(pipeline) = plan.and_then(|plan| pipeline(loaded, plan)) {
        let _ = write!(text, "\n{}", pipeline.tree(style, None, Detail::of(all)));
    }
    text.push_str(&replicas(run, style, status, all, standing.is_lost()));
    if let Some(verdict) = loaded.verdict() {
        text.push('\n');
        text.push_str(&summary::failure(style, verdict, &Others::Nobody, |finding| place(run, status, finding)));
    }
    match standing {
        RunStanding::Lost => {
            let _ = writeln!(text, "\n{} {}", style.yellow("hint:"), after_loss(loaded));
        }
        RunStanding::Elsewhere(host) => {
            let _ = writeln!(
                text,
                "\n{} `umiak show {}` on {host} shows whether it is running",
                style.yellow("hint:"),
                run.id()
            );
        }
        // The error about the damage has the hint.
        RunStanding::Is(_) | RunStanding::Damaged => {}
    }
    text
}

/// What a run that does nothing waits for.
pub(crate) fn waits_for(status: &Status) -> Option<String> {
    match (status.state, status.restarts.last()) {
        (State::Finished { .. } | State::Stopping, _) => None,
        (State::Restarting, Some(last)) if last.delay_micros > 0 => {
            let until = moment(last.at + last.delay_micros);
            let why = last.cause.as_ref().and_then(|cause| cause.classed.as_ref());
            let why = why.map(|classed| format!(", after {}", classed.describe())).unwrap_or_default();
            Some(format!("the next attempt, at {until}{why}"))
        }
        (State::Pending | State::Running | State::Restarting, _) => {
            status.pending.clone().or_else(|| status.store_waits.as_ref().map(store::missing))
        }
    }
}

/// Number of nodes listed.
const NODES: usize = 16;

/// The replicas of each node, one line per node. Only one of the nodes records the run.
pub(crate) fn nodes(status: &Status) -> Vec<String> {
    let is_here = |node: &&PlannedNode| node.replicas.iter().any(|name| status.present(name).is_some());
    let line = |node: &PlannedNode| {
        let parts = node.replicas.iter().map(|name| replica_parts(name));
        let names = Crowd::replicas(parts).names;
        let here = if is_here(&node) { ", recorded here" } else { ": states and logs are on that node" };
        format!("{}  {names}{here}", node.node)
    };
    let mut lines: Vec<String> = status.nodes.iter().take(NODES).map(line).collect();
    if status.nodes.len() > NODES {
        lines.push(format!("and {} more nodes", status.nodes.len() - NODES));
    }
    lines
}

/// `✗ run-000032 bert-ft failed with 3`
pub(crate) fn head(style: &Style, loaded: &LoadedRun) -> String {
    let LoadedRun { run, status, standing, .. } = loaded;
    let mark = standing.mark();
    let code = match status.state {
        State::Finished { exit_code, .. } if exit_code != 0 => format!(" with {exit_code}"),
        _ => String::new(),
    };
    let name = if status.name.is_empty() { String::new() } else { format!(" {}", shown(&status.name)) };
    let line = format!("{} {}{name} {}{code}", style.mark(mark), run.id(), standing.word());
    format!("{}\n", style.painted(mark, &line))
}

/// What to do about a run whose supervisor died.
pub(crate) fn after_loss(loaded: &LoadedRun) -> String {
    let id = loaded.run.id();
    if loaded.run.document().exists() || loaded.status.next_seq == 0 {
        return format!("`umiak resume {id}` continues it");
    }
    format!("`umiak stop {id}` records its end; {}", again(&loaded.status))
}

/// How to repeat a launched run: with its command line, if recorded.
pub(crate) fn again(status: &Status) -> String {
    match status.command.as_str() {
        "" => "start it again with the command that started it".to_owned(),
        line => format!("start it again with `{line}`"),
    }
}

fn supervisor(run: &RunDir, status: &Status, standing: &RunStanding) -> String {
    let (host, pid) = match (run.read_supervisor(), &status.supervisor) {
        (Some(supervisor), _) => (supervisor.host, supervisor.pid),
        (None, Some(supervised)) => (supervised.host.clone(), supervised.pid),
        (None, None) => return String::new(),
    };
    let before = match status.epoch {
        0 => String::new(),
        1 => ", after 1 earlier supervisor".to_owned(),
        count => format!(", after {count} earlier supervisors"),
    };
    let gone = if standing.is_lost() { ", died" } else { "" };
    format!("pid {pid} on {host}{before}{gone}")
}

fn replicas(run: &RunDir, style: &Style, status: &Status, all: bool, is_lost: bool) -> String {
    let needs_a_look = |replica: &&ReplicaStatus| all || matches!(mark(&replica.stage), Mark::Failed | Mark::Lost);
    let is_folded = !all && status.replicas.len() > FOLDED;
    let listed: Vec<&ReplicaStatus> = if is_folded {
        status.replicas.iter().filter(needs_a_look).take(FOLDED).collect()
    } else {
        status.replicas.iter().collect()
    };
    let mut listed = listed;
    listed.sort_by_key(|replica| replica.until.is_some());
    let mut text = String::new();
    if is_folded {
        text.push('\n');
        let mut roles: Vec<&str> = Vec::new();
        for replica in &status.replicas {
            if roles.last() != Some(&replica.role()) && !roles.contains(&replica.role()) {
                roles.push(replica.role());
            }
        }
        for role in roles {
            let _ = writeln!(text, "{role}  {}", counts(style, status, role));
        }
    }
    if !listed.is_empty() {
        let rows: Vec<Vec<TableCell>> =
            listed.iter().map(|replica| row(run, style, status, replica, is_lost)).collect();
        text.push('\n');
        text.push_str(&table(
            style,
            &["replica", "rank", "state", "took", "attempt", "endpoint", "devices", "log"],
            &rows,
            Giving { cut: &[7, 4], drop: &[6, 5, 3], last: &[2, 0] },
        ));
    }
    if is_folded {
        let _ = writeln!(text, "{} replicas; `--all` lists them", status.replicas.len());
    }
    text
}

/// `✓ 126  ✗ 2`
fn counts(style: &Style, status: &Status, role: &str) -> String {
    let counts = Status::counts(status.replicas.iter().filter(|replica| replica.role() == role));
    let parts = [
        (Mark::Waiting, counts.waiting),
        (Mark::Running, counts.live),
        (Mark::Done, counts.succeeded),
        (Mark::Failed, counts.failed),
        (Mark::Stopped, counts.stopped),
    ];
    let parts = parts.into_iter().filter(|(_, count)| *count > 0);
    parts
        .map(|(mark, count)| style.painted(mark, &format!("{} {count}", style.mark(mark))))
        .collect::<Vec<_>>()
        .join("  ")
}

pub(super) fn mark(stage: &Stage) -> Mark {
    match stage {
        Stage::Waiting => Mark::Waiting,
        Stage::Starting { .. } | Stage::Running { .. } => Mark::Running,
        Stage::Ended(ended) if ended.is_success() => Mark::Done,
        Stage::Ended(ended) if ended.unseen => Mark::Lost,
        Stage::Ended(ended) if ended.is_failure() => Mark::Failed,
        Stage::Ended(_) => Mark::Stopped,
        Stage::Abandoned => Mark::Lost,
    }
}

fn row(run: &RunDir, style: &Style, status: &Status, replica: &ReplicaStatus, is_lost: bool) -> Vec<TableCell> {
    let is_lost = is_lost && replica.is_live();
    let mark = if is_lost { Mark::Lost } else { mark(&replica.stage) };
    let (state, took) = match &replica.stage {
        _ if is_lost => ("lost with its supervisor".to_owned(), String::new()),
        Stage::Waiting if status.is_finished() => ("not started".to_owned(), String::new()),
        Stage::Waiting => ("waiting".to_owned(), String::new()),
        Stage::Starting { .. } => ("starting".to_owned(), String::new()),
        Stage::Running { instance, ready, timed_out, at } => {
            let ready = if *ready { ", ready" } else { "" };
            let late = if timed_out.is_some() { ", timed out" } else { "" };
            (format!("{}{ready}{late}", instance.describe()), between(*at, wall_micros()))
        }
        Stage::Ended(ended) => (how(ended), between(ended.started, ended.ended)),
        Stage::Abandoned => ("did not exit after SIGKILL".to_owned(), String::new()),
    };
    let attempt = match replica.past.len() {
        0 if replica.attempt == FIRST_ATTEMPT && replica.until.is_none() => String::new(),
        _ => {
            let earlier = if replica.past.len() > PAST { format!("{} ", style.dots()) } else { String::new() };
            let last = &replica.past[replica.past.len().saturating_sub(PAST)..];
            let past: Vec<String> = last
                .iter()
                .map(|past| format!("{}: {}", past.attempt, past.ended.as_ref().map_or_else(|| "?".to_owned(), how)))
                .collect();
            let past = if past.is_empty() { String::new() } else { format!(" ({earlier}{})", past.join("; ")) };
            let since = since(status, replica).map(|since| format!("; {since}")).unwrap_or_default();
            format!("{}{past}{since}", replica.attempt)
        }
    };
    vec![
        replica.replica.clone().into(),
        replica.rank.map(|rank| rank.0.to_string()).unwrap_or_default().into(),
        TableCell::marked(format!("{} {state}", style.mark(mark)), mark),
        took.into(),
        attempt.into(),
        replica.endpoint.clone().into(),
        replica.devices.join(",").into(),
        TableCell::path(log(run, status.step.as_ref(), replica, replica.attempt)),
    ]
}

/// Where a rank is that was on this node in an earlier attempt of an elastic job.
pub(crate) fn since(status: &Status, replica: &ReplicaStatus) -> Option<String> {
    replica.until?;
    let node = status.nodes.iter().find(|node| node.replicas.contains(&replica.replica));
    Some(match node {
        Some(node) => format!("since attempt {} on {}", status.attempt, node.node),
        None => format!("not in attempt {}", status.attempt),
    })
}

/// The log of an attempt, or of the last one before it that was started: its own file, or the one in the plan.
pub(super) fn log(run: &RunDir, step: Option<&StepName>, replica: &ReplicaStatus, attempt: u32) -> String {
    let begun = replica.begun().into_iter().rfind(|begun| *begun <= attempt);
    let own = run.own_log(step, &replica.replica, begun.unwrap_or(attempt), Some(Path::new(&replica.log)));
    own.map_or_else(|| replica.log.clone(), |own| own.display().to_string())
}

/// `exited with 1`, `stopped by us`, `timed out`.
pub(crate) fn how(ended: &Ended) -> String {
    match ended.timed_out {
        Some(Limit::Start) => "was not ready in time".to_owned(),
        Some(Limit::Hang) => "hung".to_owned(),
        Some(Limit::Run) => "timed out".to_owned(),
        None if ended.unseen => "may never have run".to_owned(),
        None if ended.by_us => match &ended.exit {
            Exit::Signal { signal, .. } => format!("stopped by us ({})", signal_word(*signal)),
            exit => format!("stopped by us, {}", exit.describe()),
        },
        None => ended.exit.describe(),
    }
}

/// `SIGTERM`, without the explanation.
fn signal_word(signal: i32) -> String {
    let name = signal_name(signal);
    name.split_once(" (").map_or(name.clone(), |(name, _)| name.to_owned())
}

/// Where a replica ran, for the summary.
pub(crate) fn place(run: &RunDir, status: &Status, finding: &Finding) -> ReplicaPlace {
    let replica = status.replica(&finding.subject.replica);
    let is_elsewhere = |node: &&PlannedNode| replica.is_none() && node.replicas.contains(&finding.subject.replica);
    let host = status
        .nodes
        .iter()
        .find(is_elsewhere)
        .map(|node| node.node.clone())
        .or_else(|| run.read_supervisor().map(|supervisor| supervisor.host))
        .or_else(|| status.supervisor.as_ref().map(|supervisor| supervisor.host.clone()))
        .unwrap_or_else(|| "this host".to_owned());
    let log =
        replica.map(|replica| log(run, status.step.as_ref(), replica, finding.subject.attempt)).unwrap_or_default();
    let is_document = run.document().exists();
    // Its node in a cluster.
    let node = replica.filter(|_| !status.handles.is_empty()).map(|replica| replica.node.clone());
    ReplicaPlace {
        is_elsewhere: node.is_some(),
        host: node.unwrap_or(host),
        pid: None,
        devices: replica.map(|replica| replica.devices.join(",")).unwrap_or_default(),
        log,
        // A launch without roles names its replicas by rank.
        name: (is_document || !status.roles.is_empty()).then(|| finding.subject.replica.clone()),
        run: None,
        start_limit: (!is_document).then_some(SERVER_TIMEOUT),
        is_shown: false,
    }
}
