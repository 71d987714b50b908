//! A run as OpenPAI shows a job: `show --as pai`, and as JSON the body that its server answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::shown;
use umiak_core::diagnose::pai::{classify, row_of};
use umiak_core::facts::StopReason;
use umiak_core::model::{Blame, Classed, Exit, ExitClass, pai_name, replica_parts};
use umiak_core::plan::{Plan, Replica};
use umiak_core::status::{Ended, ReplicaStatus, Restarted, Stage, State, Status};

use super::standing::{LoadedRun, RunStanding};
use super::table::{Giving, TableCell, table};
use super::time::{between, moment};
use crate::clock::wall_micros;
use crate::history::RunId;
use crate::history::index::{IndexEntry, Word};
use crate::screen::Style;
use crate::screen::style::Mark;

/// The codes of what was stopped: the job by its user, an instance because its job has ended.
const STOPPED: i32 = -210;
const ENDED_WITH_JOB: i32 = -220;

/// Past attempts that are listed; JSON has all.
const ATTEMPTS: usize = 10;

/// A job: what `GET /jobs/{job}` of OpenPAI's server answers, as far as umiak knows it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PaiJob {
    /// The version of this format.
    pub v: u32,
    pub debug_id: RunId,
    pub name: String,
    pub job_status: JobStatus,
    /// By the name that OpenPAI's controller has for the role.
    pub task_roles: BTreeMap<String, TaskRole>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobStatus {
    pub username: String,
    pub state: PaiState,
    pub sub_state: &'static str,
    pub retries: usize,
    pub retry_details: RetryDetails,
    /// In seconds, while a retry waits.
    pub retry_delay_time: Option<u64>,
    /// Times are in milliseconds since the Unix epoch.
    pub submission_time: u64,
    pub created_time: u64,
    pub launched_time: Option<u64>,
    pub completed_time: Option<u64>,
    pub attempt_id: u32,
    pub app_exit_code: Option<i32>,
    pub app_exit_spec: Option<ExitSpec>,
    pub app_exit_trigger_task_role_name: Option<String>,
    pub app_exit_trigger_task_index: Option<u32>,
    pub app_exit_type: Option<&'static str>,
    /// Why it waits. Not in OpenPAI's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// The earlier attempts of the job. Not in OpenPAI's answer.
    pub past_attempts: Vec<PastAttempt>,
}

/// The states of a job, an attempt or an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum PaiState {
    Waiting,
    Running,
    Stopping,
    Succeeded,
    Stopped,
    Failed,
    Unknown,
}

impl PaiState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Running => "RUNNING",
            Self::Stopping => "STOPPING",
            Self::Succeeded => "SUCCEEDED",
            Self::Stopped => "STOPPED",
            Self::Failed => "FAILED",
            Self::Unknown => "UNKNOWN",
        }
    }

    fn mark(self) -> Mark {
        match self {
            Self::Waiting => Mark::Waiting,
            Self::Running => Mark::Running,
            Self::Stopping | Self::Stopped => Mark::Stopped,
            Self::Succeeded => Mark::Done,
            Self::Failed => Mark::Failed,
            Self::Unknown => Mark::Lost,
        }
    }
}

/// Retries by what caused them: the program, or the platform.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct RetryDetails {
    pub user: usize,
    pub platform: usize,
    /// Always 0.
    pub resource: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ExitSpec {
    pub code: i32,
    pub phrase: String,
    /// `USER_FAILURE`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `TRANSIENT`.
    pub behavior: &'static str,
    /// The end in umiak's words.
    pub reason: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PastAttempt {
    pub attempt_id: u32,
    pub task_role_name: Option<String>,
    pub task_index: Option<u32>,
    pub exit_spec: Option<ExitSpec>,
    /// The retry did not count towards `jobRetryCount`.
    pub is_platform: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskRole {
    pub task_role_status: TaskRoleStatus,
    pub task_statuses: Vec<TaskStatus>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TaskRoleStatus {
    /// As in the document.
    pub name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskStatus {
    pub task_index: u32,
    pub task_state: PaiState,
    pub container_ip: String,
    pub container_node_name: String,
    /// Numbers by label, separated by commas.
    pub container_ports: BTreeMap<String, String>,
    pub container_log: String,
    pub container_exit_code: Option<i32>,
    pub container_exit_spec: Option<ExitSpec>,
    pub retries: u32,
    pub accountable_retries: usize,
    pub launched_time: Option<u64>,
    pub completed_time: Option<u64>,
    pub attempt_id: u32,
    /// Its earlier attempts in this attempt of the job, oldest first. Not in OpenPAI's answer.
    pub past_attempts: Vec<ExitSpec>,
}

impl PaiJob {
    pub(crate) fn new(loaded: &LoadedRun, entry: &IndexEntry, plan: Option<&Plan>) -> Self {
        let status = &loaded.status;
        let planned: HashMap<&str, &Replica> =
            plan.iter().flat_map(|plan| &plan.replicas).map(|planned| (planned.name.as_str(), planned)).collect();
        let mut task_roles = BTreeMap::new();
        // The plan of a launch names no role.
        let roles: BTreeSet<&str> = status.replicas.iter().map(ReplicaStatus::role).collect();
        for name in roles {
            let name = name.to_owned();
            let of_role = status.replicas.iter().filter(|replica| replica.role() == name);
            let task_statuses = of_role
                .map(|replica| task(replica, loaded, entry, planned.get(replica.replica.as_str()).copied()))
                .collect();
            task_roles.insert(pai_name(&name), TaskRole { task_role_status: TaskRoleStatus { name }, task_statuses });
        }
        let (name, debug_id) = (status.name.clone(), loaded.run.id());
        Self { v: 1, debug_id, name, job_status: job(loaded, entry), task_roles }
    }
}

fn job(loaded: &LoadedRun, entry: &IndexEntry) -> JobStatus {
    let LoadedRun { status, standing, .. } = loaded;
    let (state, sub_state) = state(standing, status);
    let cause = loaded.verdict().and_then(|verdict| verdict.causes.first());
    let spec = match state {
        PaiState::Succeeded => Some(succeeded()),
        PaiState::Stopped | PaiState::Stopping => Some(stopped(STOPPED, "StopFrameworkRequested")),
        PaiState::Failed => cause.map(|cause| spec(&cause.exit, cause.classed.as_ref())),
        PaiState::Waiting | PaiState::Running | PaiState::Unknown => None,
    };
    let trigger = cause.filter(|_| state == PaiState::Failed).map(|cause| replica_parts(&cause.subject.replica));
    // A retry of the run clears its restarts, and attempts count on.
    let first = status.attempt.saturating_sub(1).saturating_sub(status.restarts.len() as u32);
    let past = |(number, restarted): (usize, &Restarted)| PastAttempt {
        attempt_id: first + number as u32,
        task_role_name: restarted.cause.as_ref().map(|cause| replica_parts(&cause.replica).0.to_owned()),
        task_index: restarted.cause.as_ref().map(|cause| replica_parts(&cause.replica).1),
        exit_spec: restarted.cause.as_ref().map(|cause| self::spec(&cause.exit, cause.classed.as_ref())),
        is_platform: restarted.blame == Blame::Platform,
    };
    let platform = status.restarts.iter().filter(|restart| restart.blame == Blame::Platform).count();
    let delay = status.restarts.last().filter(|_| status.state == State::Restarting);
    JobStatus {
        username: entry.user.clone(),
        state,
        sub_state,
        retries: status.restarts.len(),
        retry_details: RetryDetails { user: status.restarts.len() - platform, platform, resource: 0 },
        retry_delay_time: delay.map(|restart| restart.delay_micros / 1_000_000),
        submission_time: entry.created / 1000,
        created_time: status.began / 1000,
        launched_time: status.replicas.iter().filter_map(launched).min(),
        completed_time: entry.ended.map(|ended| ended / 1000),
        attempt_id: status.attempt.saturating_sub(1),
        app_exit_code: spec.as_ref().map(|spec| spec.code),
        app_exit_type: spec.as_ref().map(|spec| spec.kind),
        app_exit_spec: spec,
        app_exit_trigger_task_role_name: trigger.map(|(role, _)| role.to_owned()),
        app_exit_trigger_task_index: trigger.map(|(_, index)| index),
        waits_for: super::run::waits_for(status).filter(|_| matches!(standing, RunStanding::Is(_))),
        past_attempts: status.restarts.iter().enumerate().map(past).collect(),
    }
}

/// The state of the job, and that of OpenPAI's controller.
fn state(standing: &RunStanding, status: &Status) -> (PaiState, &'static str) {
    let has_run = |replica: &ReplicaStatus| {
        replica.restarts() > 0 || !matches!(replica.stage, Stage::Waiting | Stage::Starting { .. })
    };
    let has_run = status.replicas.iter().any(has_run);
    match standing {
        RunStanding::Is(Word::Running) if has_run => (PaiState::Running, "AttemptRunning"),
        RunStanding::Is(Word::Pending | Word::Running) => (PaiState::Waiting, "AttemptPreparing"),
        RunStanding::Is(Word::Restarting | Word::Spare) => (PaiState::Running, "AttemptCompleted"),
        RunStanding::Is(Word::Stopping) if is_users(status.stopping) => (PaiState::Stopping, "AttemptDeletionPending"),
        RunStanding::Is(Word::Stopping) => (PaiState::Running, "AttemptDeletionPending"),
        RunStanding::Is(Word::Succeeded) => (PaiState::Succeeded, "Completed"),
        RunStanding::Is(Word::Failed) => (PaiState::Failed, "Completed"),
        RunStanding::Is(Word::Interrupted | Word::Stopped) => (PaiState::Stopped, "Completed"),
        RunStanding::Lost | RunStanding::Damaged | RunStanding::Elsewhere(_) => (PaiState::Unknown, "Unknown"),
    }
}

fn is_users(reason: Option<StopReason>) -> bool {
    match reason {
        Some(
            StopReason::User
            | StopReason::Signal { .. }
            | StopReason::SignalElsewhere { .. }
            | StopReason::SecondSignal { .. },
        ) => true,
        Some(
            StopReason::Completed
            | StopReason::PeerFailed
            | StopReason::Resized
            | StopReason::NodeLost
            | StopReason::Hung
            | StopReason::Timeout
            | StopReason::StepFailed,
        )
        | None => false,
    }
}

fn task(replica: &ReplicaStatus, loaded: &LoadedRun, entry: &IndexEntry, planned: Option<&Replica>) -> TaskStatus {
    let status = &loaded.status;
    let is_over = matches!(status.state, State::Finished { .. });
    let end = || Some(stopped(ENDED_WITH_JOB, "FrameworkAttemptCompletion"));
    let (task_state, exit) = match &replica.stage {
        _ if loaded.standing.is_lost() && replica.is_live() => (PaiState::Unknown, None),
        Stage::Waiting if is_over => (PaiState::Stopped, end()),
        // Between two attempts of its own.
        Stage::Waiting if replica.restarts() > 0 => (PaiState::Running, None),
        Stage::Waiting | Stage::Starting { .. } => (PaiState::Waiting, None),
        Stage::Running { .. } if status.stopping.is_some() => (PaiState::Stopping, None),
        Stage::Running { .. } => (PaiState::Running, None),
        Stage::Ended(ended) if ended.is_success() => (PaiState::Succeeded, Some(succeeded())),
        // What was stopped may handle the signal, and end with a code of its own.
        Stage::Ended(ended) if ended.is_failure() && ended.is_by_itself() => {
            (PaiState::Failed, Some(ended_spec(ended)))
        }
        Stage::Ended(_) => (PaiState::Stopped, end()),
        Stage::Abandoned => (PaiState::Unknown, None),
    };
    let ports = planned.map(|planned| planned.ports.as_slice()).unwrap_or_default();
    let numbers = |ports: &[umiak_core::model::Port]| {
        ports.iter().map(|port| port.get().to_string()).collect::<Vec<_>>().join(",")
    };
    TaskStatus {
        task_index: replica_parts(&replica.replica).1,
        task_state,
        container_ip: planned.map(|planned| planned.host.to_string()).unwrap_or_default(),
        container_node_name: replica.node.clone(),
        container_ports: ports.iter().map(|(name, ports)| (name.clone(), numbers(ports))).collect(),
        container_log: super::run::log(&loaded.run, None, replica, replica.attempt),
        container_exit_code: exit.as_ref().map(|exit| exit.code),
        container_exit_spec: exit,
        retries: replica.restarts(),
        accountable_retries: replica.retries.iter().filter(|retry| retry.blame == Blame::User).count(),
        launched_time: launched(replica),
        completed_time: match &replica.stage {
            Stage::Ended(ended) => Some(ended.ended / 1000),
            Stage::Waiting | Stage::Starting { .. } | Stage::Running { .. } | Stage::Abandoned => {
                entry.ended.map(|ended| ended / 1000)
            }
        },
        attempt_id: replica.restarts(),
        past_attempts: replica.past_here().filter_map(|past| past.ended.as_ref()).map(past_spec).collect(),
    }
}

/// When its last attempt started.
fn launched(replica: &ReplicaStatus) -> Option<u64> {
    match &replica.stage {
        Stage::Running { at, .. } => Some(*at / 1000),
        Stage::Ended(ended) => Some(ended.started / 1000),
        Stage::Waiting | Stage::Starting { .. } | Stage::Abandoned => {
            replica.past.iter().rev().find_map(|past| Some(past.ended.as_ref()?.started / 1000))
        }
    }
}

fn past_spec(ended: &Ended) -> ExitSpec {
    match ended {
        ended if ended.is_success() => succeeded(),
        ended if ended.is_failure() && ended.is_by_itself() => ended_spec(ended),
        _ => stopped(ENDED_WITH_JOB, "FrameworkAttemptCompletion"),
    }
}

fn ended_spec(ended: &Ended) -> ExitSpec {
    ExitSpec { reason: super::run::how(ended), ..spec(&ended.exit, ended.classed.as_ref()) }
}

/// An end that no table has classed is classed by its exit.
fn spec(exit: &Exit, classed: Option<&Classed>) -> ExitSpec {
    let Classed { code, name, class } = classed.cloned().unwrap_or_else(|| classify(exit, false, Vec::new));
    let kind = row_of(code).map_or("UNKNOWN_FAILURE", |row| row.kind.word());
    ExitSpec { code, phrase: name, kind, behavior: pai_word(class), reason: exit.describe() }
}

fn pai_word(class: ExitClass) -> &'static str {
    match class {
        ExitClass::Permanent => "PERMANENT",
        ExitClass::Unknown => "UNKNOWN",
        ExitClass::Transient => "TRANSIENT",
        ExitClass::Conflict => "TRANSIENT_CONFLICT",
    }
}

fn succeeded() -> ExitSpec {
    let reason = "exited with 0".to_owned();
    ExitSpec { code: 0, phrase: "Succeeded".to_owned(), kind: "USER_SUCCESS", behavior: "UNKNOWN", reason }
}

fn stopped(code: i32, phrase: &str) -> ExitSpec {
    let reason = if code == STOPPED { "stopped by its user" } else { "stopped, because the job has ended" };
    ExitSpec { code, phrase: phrase.to_owned(), kind: "USER_STOP", behavior: "PERMANENT", reason: reason.to_owned() }
}

/// The job as text.
pub(crate) fn human(style: &Style, job: &PaiJob) -> String {
    let PaiJob { name, debug_id, job_status: status, task_roles, .. } = job;
    let mark = status.state.mark();
    let line = format!("{} {debug_id} {} {}", style.mark(mark), shown(name), status.state.word());
    let mut text = format!("{}\n", style.painted(mark, &line));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {}  {}", style.dim(&format!("{name:<10}")), shown(&value));
    };
    row("submitted", format!("{} by {}", moment(status.submission_time * 1000), status.username));
    let until = status.completed_time.map_or_else(wall_micros, |at| at * 1000);
    row("duration", between(status.submission_time * 1000, until));
    if let Some(waits) = &status.waits_for {
        row("waits for", waits.clone());
    }
    if let Some(exit) = &status.app_exit_spec {
        row("exit", format!("{} {}, {}", exit.code, exit.phrase, exit.kind));
    }
    let RetryDetails { user, platform, .. } = status.retry_details;
    row("retries", format!("{} (user {user}, platform {platform})", status.retries));
    let hidden = status.past_attempts.len().saturating_sub(ATTEMPTS);
    if hidden > 0 {
        row("", format!("{hidden} earlier attempts"));
    }
    for past in &status.past_attempts[hidden..] {
        let who = past.task_role_name.as_ref().map_or_else(String::new, |role| {
            let index = past.task_index.map(|index| format!("[{index}]")).unwrap_or_default();
            format!(" {role}{index}")
        });
        let why = past.exit_spec.as_ref().map(|exit| format!(": {}", told(exit))).unwrap_or_default();
        row("", format!("attempt {}{who}{why}", past.attempt_id));
    }
    let mut rows: Vec<Vec<TableCell>> = Vec::new();
    for role in task_roles.values() {
        for task in &role.task_statuses {
            let mark = task.task_state.mark();
            let ports: Vec<String> =
                task.container_ports.iter().map(|(name, ports)| format!("{name} {ports}")).collect();
            let exit = task.container_exit_spec.as_ref().map(|exit| format!("{} {}", exit.code, exit.phrase));
            rows.push(vec![
                role.task_role_status.name.clone().into(),
                task.task_index.to_string().into(),
                TableCell::marked(format!("{} {}", style.mark(mark), task.task_state.word()), mark),
                task.retries.to_string().into(),
                task.container_ip.clone().into(),
                ports.join(" ").into(),
                exit.unwrap_or_default().into(),
            ]);
        }
    }
    text.push('\n');
    let giving = Giving { cut: &[5], drop: &[5], last: &[6] };
    text += &table(style, &["role", "index", "state", "retries", "ip", "ports", "exit"], &rows, giving);
    for role in task_roles.values() {
        for task in role.task_statuses.iter().filter(|task| !task.past_attempts.is_empty()) {
            let _ = writeln!(text, "\n{}[{}]", shown(&role.task_role_status.name), task.task_index);
            let hidden = task.past_attempts.len().saturating_sub(ATTEMPTS);
            if hidden > 0 {
                let _ = writeln!(text, "  {hidden} earlier attempts");
            }
            for (number, exit) in task.past_attempts.iter().enumerate().skip(hidden) {
                let _ = writeln!(text, "  attempt {number}: {}", shown(&told(exit)));
            }
        }
    }
    text
}

/// `137 ContainerSigKillReceived, transient: was killed by SIGKILL`.
fn told(exit: &ExitSpec) -> String {
    format!("{} {}, {}: {}", exit.code, exit.phrase, exit.behavior.to_lowercase().replace('_', " "), exit.reason)
}
