//! The state of a job, computed from its facts: the records of one step of a run. `show` prints it, `ls` summarises it,
//! and `resume` starts from it.
//!
//! Adding a fact is the only way to change it, so replaying the journal restores the state that the supervisor had.

mod pipeline;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::{
    Began, Fact, Finding, Limit, Outcome, Planned, PlannedNode, Record, StopReason, StoreWaits, Subject, Supervised,
    Verdict,
};
use crate::model::{
    Blame, Classed, EngineKind, Exit, FIRST_ATTEMPT, Instance, Rank, Scope, StepName, StopSent, replica_parts,
};

pub use pipeline::{NodeState, NodeStatus, PipelineStatus, RunStatus};

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Status {
    pub job: String,
    /// The name of the run.
    pub name: String,
    /// The command line of a launch, secrets masked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The step of the run; absent if the run is one job. Records of other steps are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    /// The number of steps, if the run is a pipeline; each loop counts once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    #[serde(skip)]
    pub state: State,
    /// The engine's names for what it runs: one for each unit of this attempt of the job, and for
    /// allocations of earlier attempts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handles: Vec<String>,
    /// Why nothing runs yet, as reported by the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// The scheduler's own names of its units: `Slurm job 73`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<String>,
    /// What cancelled the job in its cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    /// Ranks that wait at torch's store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_waits: Option<StoreWaits>,
    /// Nodes that wait for their turn in an elastic job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<String>,
    /// The number of the attempt of the whole group, from 1.
    pub attempt: u32,
    pub roles: Vec<RoleStatus>,
    /// In the order of the plan. With several nodes, the replicas of the node that records the run.
    pub replicas: Vec<ReplicaStatus>,
    /// The placement of all replicas, if the job has several nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<PlannedNode>,
    /// The last supervisor.
    pub supervisor: Option<Supervised>,
    /// The number of supervisors before it.
    pub epoch: u32,
    /// When the first record was written, in microseconds since the Unix epoch.
    pub began: u64,
    /// When the last record was written.
    pub last: u64,
    /// How long supervisors have run, without the time between them.
    pub supervised_micros: u64,
    /// Why the job is being stopped, or was stopped.
    pub stopping: Option<StopReason>,
    /// When and why the whole group was restarted.
    pub restarts: Vec<Restarted>,
    /// The verdict on the last failure of the whole group.
    pub verdict: Option<Verdict>,
    /// The number of the next record.
    pub next_seq: u64,
    /// The number of ignored records of replaced supervisors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stale: u64,
    #[serde(skip)]
    positions: BTreeMap<String, usize>,
    #[serde(skip)]
    epoch_began: u64,
    /// `supervised_micros` at the last retry of the run.
    #[serde(skip)]
    supervised_before: u64,
    /// True for an elastic job whose nodes have changed.
    #[serde(skip)]
    resized: bool,
    /// The position of the next exit in the kernel's order.
    #[serde(skip)]
    pub(crate) next_order: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The state of the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// Nothing is started yet.
    #[default]
    Pending,
    Running,
    Stopping,
    /// Between two attempts of the whole group.
    Restarting,
    Finished {
        outcome: Outcome,
        exit_code: u8,
    },
}

/// A role of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RoleStatus {
    pub role: String,
    pub replicas: u32,
    pub decides: bool,
}

/// One replica: its last attempt, and what came before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReplicaStatus {
    pub replica: String,
    pub rank: Option<Rank>,
    /// The last attempt that was started, or the next one.
    pub attempt: u32,
    pub stage: Stage,
    /// The address of its node.
    pub node: String,
    pub endpoint: String,
    pub devices: Vec<String>,
    /// The log file of the last attempt that was started, and the offset at which its output begins.
    pub log: String,
    pub log_start: u64,
    /// The earlier attempts, oldest first.
    pub past: Vec<Past>,
    /// When and why it was restarted.
    pub retries: Vec<Retry>,
    /// In an elastic job whose nodes have changed: its last attempt on this node, which has other ranks since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u32>,
    /// How we stopped this attempt, if we did.
    #[serde(skip)]
    pub(crate) stop_sent: Option<StopSent>,
    /// Number of its first attempt in this attempt of the job.
    #[serde(skip)]
    pub(crate) first: u32,
    /// The run has ended before a restart that was decided: a retry starts it again, however it ended.
    #[serde(skip)]
    pub(crate) withdrawn: bool,
}

/// The state of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Stage {
    Waiting,
    Starting {
        at: u64,
    },
    Running {
        at: u64,
        #[serde(flatten)]
        instance: Instance,
        ready: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        timed_out: Option<Limit>,
    },
    Ended(Ended),
    /// It did not exit even after SIGKILL.
    Abandoned,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ended {
    pub exit: Exit,
    /// What the job's table of exits says about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classed: Option<Classed>,
    pub by_us: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_out: Option<Limit>,
    pub started: u64,
    pub ended: u64,
    /// It may never have run: its start was requested, and then the supervisor died.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unseen: bool,
    #[serde(skip)]
    pub(crate) order: u64,
    /// It ended before we sent a signal.
    #[serde(skip)]
    pub(crate) before_stop: bool,
}

impl Ended {
    /// True if it completed its work: a replica that exits with 0 because it was stopped has not.
    pub fn is_success(&self) -> bool {
        self.exit.is_success() && self.timed_out.is_none() && !self.by_us
    }

    /// True if it ended before we sent a signal, or exceeded its time limit.
    pub fn is_by_itself(&self) -> bool {
        self.before_stop || self.timed_out.is_some()
    }

    /// True if it failed, and not because we stopped it for other replicas.
    pub fn is_failure(&self) -> bool {
        self.timed_out.is_some() || (!self.exit.is_success() && !self.by_us)
    }
}

/// An attempt that was followed by another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Past {
    pub attempt: u32,
    #[serde(flatten)]
    pub ended: Option<Ended>,
    /// As in [`ReplicaStatus`].
    #[serde(skip)]
    first: u32,
}

/// The whole group was restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Restarted {
    pub at: u64,
    pub blame: Blame,
    /// How long the next attempt waited.
    pub delay_micros: u64,
    /// The cause that decided on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

/// The replica that caused a failure, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Cause {
    pub replica: String,
    pub exit: Exit,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classed: Option<Classed>,
}

impl Cause {
    fn of(finding: &Finding) -> Self {
        let Finding { subject, exit, classed, .. } = finding;
        Self { replica: subject.replica.clone(), exit: exit.clone(), classed: classed.clone() }
    }
}

/// A replica was restarted while others kept running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Retry {
    pub at: u64,
    pub scope: Scope,
    pub blame: Blame,
}

/// The number of replicas in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Counts {
    pub waiting: u32,
    pub live: u32,
    pub succeeded: u32,
    pub failed: u32,
    /// Stopped by us, or abandoned.
    pub stopped: u32,
}

impl Status {
    /// The state of a step's job.
    pub fn of_step(step: StepName) -> Self {
        Self { step: Some(step), ..Self::default() }
    }

    /// True for a node of an elastic job that took part, and is not needed now.
    pub fn is_spare(&self) -> bool {
        self.state == State::Restarting && self.resized && self.pending.is_some()
    }

    /// Adds all records of a journal.
    pub fn replay<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut status = Self::default();
        records.into_iter().for_each(|record| status.add(record));
        status
    }

    /// Adds one record.
    pub fn add(&mut self, record: &Record) {
        if record.epoch < self.epoch {
            self.stale += 1;
            return;
        }
        if self.next_seq == 0 {
            (self.began, self.attempt) = (record.at, FIRST_ATTEMPT);
        }
        if self.next_seq == 0 || record.epoch > self.epoch {
            self.epoch = record.epoch;
            self.epoch_began = record.at;
        } else {
            self.supervised_micros += record.at.saturating_sub(self.last.max(self.epoch_began));
        }
        self.last = self.last.max(record.at);
        self.next_seq = record.seq + 1;
        // A supervisor is one of all steps.
        if record.step == self.step || matches!(record.fact, Fact::Supervised(_)) {
            self.apply(record.at, &record.fact);
        }
    }

    fn apply(&mut self, at: u64, fact: &Fact) {
        match fact {
            Fact::Supervised(supervised) => self.begin(supervised),
            Fact::Planned(planned) => self.plan(planned),
            Fact::Pipeline(planned) => {
                self.job.clone_from(&planned.pipeline);
                self.steps = Some(planned.steps);
                self.name.clone_from(if planned.name.is_empty() { &planned.pipeline } else { &planned.name });
                self.state = State::Running;
            }
            Fact::Starting { subject } => self.starting(subject, at),
            Fact::Submitted { handle } => self.submitted(handle),
            Fact::Accepted { name } => {
                if !self.accepted.contains(name) {
                    self.accepted.push(name.clone());
                }
            }
            Fact::Pending { reason } => self.pending = Some(reason.clone()),
            Fact::Cancelled { by } => self.cancelled_by = Some(by.clone()),
            Fact::Started { subject, instance } => self.started(subject, instance, at),
            Fact::Ready { subject } => self.change(subject, |stage| {
                if let Stage::Running { ready, .. } = stage {
                    *ready = true;
                }
            }),
            Fact::TimedOut { subject, what, .. } => self.change(subject, |stage| {
                if let Stage::Running { timed_out, .. } = stage {
                    *timed_out = Some(*what);
                }
            }),
            Fact::Hung { .. } => {
                for replica in &mut self.replicas {
                    if let Stage::Running { timed_out, .. } = &mut replica.stage {
                        *timed_out = Some(Limit::Hang);
                    }
                }
            }
            Fact::Ended { subject, exit, classed, by_us, order, .. } => {
                self.next_order = self.next_order.max(order + 1);
                self.ended(subject, exit, classed.as_ref(), *by_us, *order, at);
            }
            Fact::Stopping { reason } => {
                self.stopping = Some(*reason);
                self.state = State::Stopping;
            }
            Fact::Abandoned { replicas } => {
                for name in replicas {
                    if let Some(replica) = self.replica_mut(name) {
                        replica.stage = Stage::Abandoned;
                    }
                }
            }
            Fact::Diagnosed(verdict) => {
                self.excuse(verdict);
                self.verdict = Some(verdict.clone());
            }
            Fact::Retrying { scope, subjects, blame, .. } => {
                for subject in subjects {
                    self.next_attempt(subject, Retry { at, scope: *scope, blame: *blame });
                }
            }
            Fact::Resizing { attempt, .. } => {
                self.resized = true;
                self.start_again(*attempt);
            }
            Fact::Spares { nodes } => self.spares.clone_from(nodes),
            Fact::Restarting { attempt, blame, delay_micros, cause, .. } => {
                let mut causes = self.verdict.iter().flat_map(|verdict| &verdict.causes);
                let cause = causes
                    .find(|found| cause.as_ref().is_none_or(|name| found.subject.replica == *name))
                    .map(Cause::of);
                self.restarts.push(Restarted { at, blame: *blame, delay_micros: *delay_micros, cause });
                self.start_again(*attempt);
            }
            Fact::Finished { outcome, exit_code } => {
                // Restarts that have not begun: each replica shows how it ended.
                self.replicas.iter_mut().for_each(ReplicaStatus::withdraw);
                self.store_waits = None;
                self.state = State::Finished { outcome: *outcome, exit_code: *exit_code };
            }
            Fact::StopSent { how, replicas } => {
                for name in replicas {
                    if let Some(replica) = self.replica_mut(name) {
                        replica.stop_sent = Some(replica.stop_sent.map_or(StopSent::new(*how), |sent| sent.and(*how)));
                    }
                }
            }
            Fact::StoreWaits(waits) => self.store_waits = (waits.clients > 0).then(|| waits.clone()),
            Fact::CollectiveTimeout { .. }
            | Fact::Paused
            | Fact::Continued
            | Fact::Observed { .. }
            | Fact::AttemptFailed(_)
            | Fact::Noticed { .. }
            | Fact::Ignored { .. }
            | Fact::EngineLost { .. }
            | Fact::Resolved(_)
            | Fact::Looping { .. }
            | Fact::Entered
            | Fact::Skipped { .. }
            | Fact::Cached { .. }
            | Fact::Refused { .. }
            | Fact::Left { .. }
            | Fact::Swept { .. } => {}
        }
    }

    fn begin(&mut self, supervised: &Supervised) {
        self.supervisor = Some(supervised.clone());
        self.stopping = None;
        if matches!(supervised.why, Began::Retried | Began::RetriedAll) {
            // A retry resets budgets and failures, also for later supervisors.
            self.restarts.clear();
            self.supervised_before = self.supervised_micros;
            self.verdict = None;
            self.handles.clear();
            (self.pending, self.store_waits) = (None, None);
            for replica in &mut self.replicas {
                let stays = !replica.withdrawn && matches!(&replica.stage, Stage::Ended(ended) if ended.is_success());
                if !stays || supervised.why == Began::RetriedAll {
                    replica.renew(0);
                }
                replica.retries.clear();
            }
        }
        if supervised.why != Began::Submitted {
            self.state = State::Running;
        }
    }

    /// Sets endpoints and logs of a new attempt or a new supervisor. The state of each replica is kept.
    fn plan(&mut self, planned: &Planned) {
        self.job.clone_from(&planned.job);
        self.name.clone_from(if planned.name.is_empty() { &planned.job } else { &planned.name });
        self.command.clone_from(&planned.command);
        self.attempt = planned.attempt;
        self.roles = planned
            .roles
            .iter()
            .map(|role| RoleStatus { role: role.role.clone(), replicas: role.replicas, decides: role.decides })
            .collect();
        self.nodes.clone_from(&planned.nodes);
        if self.resized {
            let named: BTreeSet<&str> = planned.replicas.iter().map(|place| place.replica.as_str()).collect();
            for replica in &mut self.replicas {
                replica.move_to(planned.attempt, named.contains(replica.replica.as_str()));
            }
        }
        for place in &planned.replicas {
            let replica = match self.replica_mut(&place.replica) {
                Some(replica) => replica,
                None => self.new_replica(&place.replica),
            };
            replica.rank = Some(place.rank);
            replica.node.clone_from(&place.node);
            replica.endpoint.clone_from(&place.endpoint);
            replica.devices.clone_from(&place.devices);
            replica.log.clone_from(&place.log);
            replica.log_start = place.log_start;
        }
    }

    fn new_replica(&mut self, name: &str) -> &mut ReplicaStatus {
        self.positions.insert(name.to_owned(), self.replicas.len());
        self.replicas.push(ReplicaStatus {
            replica: name.to_owned(),
            rank: None,
            attempt: FIRST_ATTEMPT,
            stage: Stage::Waiting,
            node: String::new(),
            endpoint: String::new(),
            devices: Vec::new(),
            log: String::new(),
            log_start: 0,
            past: Vec::new(),
            retries: Vec::new(),
            until: None,
            stop_sent: None,
            first: FIRST_ATTEMPT,
            withdrawn: false,
        });
        self.replicas.last_mut().expect("it was just pushed")
    }

    fn starting(&mut self, subject: &Subject, at: u64) {
        self.state = State::Running;
        let replica = match self.replica_mut(&subject.replica) {
            Some(replica) => replica,
            None => self.new_replica(&subject.replica),
        };
        replica.turn_to(subject.attempt);
        replica.stage = Stage::Starting { at };
    }

    /// In a job that hangs, only the causes hang: the others waited for them, and were stopped.
    fn excuse(&mut self, verdict: &Verdict) {
        for victim in verdict.victims.iter().filter(|victim| victim.timed_out == Some(Limit::Hang)) {
            self.change(&victim.subject, |stage| match stage {
                Stage::Running { timed_out, .. } | Stage::Ended(Ended { timed_out, .. }) => *timed_out = None,
                Stage::Waiting | Stage::Starting { .. } | Stage::Abandoned => {}
            });
        }
    }

    fn started(&mut self, subject: &Subject, instance: &Instance, at: u64) {
        self.pending = None;
        let instance = instance.clone();
        if let (Some(node), Some(replica)) = (&instance.node, self.replica_mut(&subject.replica)) {
            replica.node.clone_from(node);
        }
        self.change(subject, |stage| *stage = Stage::Running { at, instance, ready: false, timed_out: None });
    }

    fn ended(&mut self, subject: &Subject, exit: &Exit, classed: Option<&Classed>, by_us: bool, order: u64, at: u64) {
        let before_stop = self.replica(&subject.replica).is_some_and(|replica| replica.stop_sent.is_none());
        self.change(subject, |stage| {
            let (started, timed_out, unseen) = match stage {
                Stage::Running { at, timed_out, .. } => (*at, *timed_out, false),
                Stage::Starting { at } => (*at, None, *exit == Exit::Lost),
                Stage::Waiting | Stage::Ended(_) | Stage::Abandoned => (at, None, false),
            };
            let (exit, classed) = (exit.clone(), classed.cloned());
            *stage =
                Stage::Ended(Ended { exit, classed, by_us, timed_out, started, ended: at, unseen, order, before_stop });
        });
    }

    /// Starts inside an allocation have the handle of the allocation.
    fn submitted(&mut self, handle: &String) {
        if !self.handles.contains(handle) {
            self.handles.push(handle.clone());
        }
    }

    /// The group starts again as a whole: all replicas are reset, and budgets are new.
    fn start_again(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.stopping = None;
        (self.pending, self.store_waits) = (None, None);
        // An allocation keeps its nodes for the next attempt.
        self.handles.retain(|handle| EngineKind::of_handle(handle).is_some_and(EngineKind::keeps_units));
        self.state = State::Restarting;
        for replica in self.replicas.iter_mut().filter(|replica| replica.until.is_none()) {
            replica.renew(attempt);
        }
    }

    fn next_attempt(&mut self, subject: &Subject, retry: Retry) {
        if let Some(replica) = self.replica_mut(&subject.replica) {
            replica.turn_to(subject.attempt);
            replica.stage = Stage::Waiting;
            replica.retries.push(retry);
        }
    }

    fn change(&mut self, subject: &Subject, change: impl FnOnce(&mut Stage)) {
        if let Some(replica) = self.replica_mut(&subject.replica)
            && replica.attempt == subject.attempt
        {
            change(&mut replica.stage);
        }
    }

    /// The replica of this name, if it is on this node in the current attempt.
    pub fn present(&self, name: &str) -> Option<&ReplicaStatus> {
        self.replica(name).filter(|replica| replica.until.is_none())
    }

    pub fn replica(&self, name: &str) -> Option<&ReplicaStatus> {
        self.positions.get(name).map(|position| &self.replicas[*position])
    }

    fn replica_mut(&mut self, name: &str) -> Option<&mut ReplicaStatus> {
        self.positions.get(name).map(|position| &mut self.replicas[*position])
    }

    /// Replicas that failed without failing the run: its policies allow that, and no verdict names them.
    pub fn tolerated(&self) -> Vec<(&ReplicaStatus, &Ended)> {
        let findings = || self.verdict.iter().flat_map(|verdict| verdict.causes.iter().chain(&verdict.victims));
        let is_named = |replica: &ReplicaStatus| {
            findings().any(|finding| {
                (&finding.subject.replica, finding.subject.attempt) == (&replica.replica, replica.attempt)
            })
        };
        let failed = self.replicas.iter().filter_map(|replica| match &replica.stage {
            Stage::Ended(ended) if ended.is_failure() && ended.is_by_itself() => Some((replica, ended)),
            _ => None,
        });
        failed.filter(|(replica, _)| !is_named(replica)).collect()
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished { .. })
    }

    /// How much of its time limit the run has used. A retry resets it.
    pub fn used_micros(&self) -> u64 {
        self.supervised_micros - self.supervised_before
    }

    pub fn counts<'a>(replicas: impl IntoIterator<Item = &'a ReplicaStatus>) -> Counts {
        let mut counts = Counts::default();
        for replica in replicas {
            match &replica.stage {
                Stage::Waiting => counts.waiting += 1,
                Stage::Starting { .. } | Stage::Running { .. } => counts.live += 1,
                Stage::Ended(ended) if ended.is_success() => counts.succeeded += 1,
                Stage::Ended(ended) if ended.is_failure() => counts.failed += 1,
                Stage::Ended(_) | Stage::Abandoned => counts.stopped += 1,
            }
        }
        counts
    }
}

impl ReplicaStatus {
    /// `trainer` of `trainer-3`.
    pub fn role(&self) -> &str {
        replica_parts(&self.replica).0
    }

    /// How often it was started again in this attempt of the job.
    pub fn restarts(&self) -> u32 {
        self.attempt - self.first
    }

    /// Its earlier attempts in this attempt of the job.
    pub fn past_here(&self) -> impl Iterator<Item = &Past> {
        self.past.iter().filter(|past| past.attempt >= self.first)
    }

    /// Attempts that may have output, oldest first.
    pub fn begun(&self) -> Vec<u32> {
        let current = (self.stage != Stage::Waiting).then_some(self.attempt);
        self.past.iter().map(|past| past.attempt).chain(current).collect()
    }

    pub fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. } | Stage::Running { .. })
    }

    /// Resets the replica to a new attempt, with at least this number. Numbers are never reused.
    fn renew(&mut self, attempt: u32) {
        let begun = self.stage != Stage::Waiting;
        let first = (self.attempt + u32::from(begun)).max(attempt);
        self.turn_to(first);
        (self.first, self.withdrawn) = (first, false);
        self.retries.clear();
    }

    /// The ranks of a node of an elastic job have changed: this one is here in that attempt, or it was here before.
    fn move_to(&mut self, attempt: u32, is_here: bool) {
        if !is_here && self.until.is_none() {
            self.withdraw();
            (self.until, self.withdrawn) = (Some(self.attempt), false);
        } else if is_here && self.until.take().is_some() {
            self.renew(attempt);
        }
    }

    /// Returns to the attempt before, if this one waits for its start.
    fn withdraw(&mut self) {
        if self.stage != Stage::Waiting {
            return;
        }
        let Some(Past { attempt, ended, first }) = self.past.pop() else { return };
        if first == self.first {
            self.retries.pop();
        }
        (self.attempt, self.first, self.withdrawn) = (attempt, first, true);
        self.stage = ended.map_or(Stage::Abandoned, Stage::Ended);
    }

    /// Switches to another attempt. The previous one is moved to `past` if it was started.
    fn turn_to(&mut self, attempt: u32) {
        if attempt == self.attempt {
            return;
        }
        self.stop_sent = None;
        let ended = match std::mem::replace(&mut self.stage, Stage::Waiting) {
            Stage::Ended(ended) => Some(ended),
            Stage::Waiting => {
                self.attempt = attempt;
                return;
            }
            Stage::Starting { .. } | Stage::Running { .. } | Stage::Abandoned => None,
        };
        self.past.push(Past { attempt: self.attempt, ended, first: self.first });
        self.attempt = attempt;
    }
}
