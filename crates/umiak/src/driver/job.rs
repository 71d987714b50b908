//! One job of a run: its machine, its plan, and what is known of its attempts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umiak_core::facts::{Fact, Outcome, StopReason, Subject};
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::{AttemptId, Event, Machine};
use umiak_core::model::{Exit, Instance, Slot, StepName};
use umiak_core::pipeline::Preparation;
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Console, Log, Plan};
use umiak_core::status::{Stage, Status};

use super::probe::Prober;
use super::store::JobStore;
use super::timers::Timers;
use super::{hang, words};
use crate::host::evidence::LogSize;
use crate::host::observe::Seen;

/// A job of a run.
pub(crate) struct JobRun {
    /// Its name, if the run has several jobs.
    pub(crate) step: Option<StepName>,
    pub(crate) machine: Machine,
    /// The plan of the current attempt of the job.
    pub(crate) plan: Arc<Plan>,
    pub(crate) pool: Pool,
    /// The plan has no places yet: agents compute what depends on them.
    pub(crate) is_placed_later: bool,
    /// What each start of the whole job needs.
    pub(crate) preparation: Preparation,
    pub(crate) now: Now,
    pub(super) prober: Option<Prober>,
    /// Torch's stores that umiak hosts in this process.
    pub(crate) stores: Vec<JobStore>,
}

/// State of a job; empty when it begins.
#[derive(Default)]
pub(crate) struct Now {
    /// Events for the machine, in order.
    pub(super) queue: VecDeque<Event>,
    pub(super) timers: Timers,
    /// Attempts whose starts are not in the journal yet.
    pub(super) unrecorded: Vec<AttemptId>,
    /// Attempts that wait for devices.
    pub(super) waiting: Vec<AttemptId>,
    /// True if devices have been released.
    pub(super) is_freed: bool,
    /// Running attempts, as their engine identifies them.
    pub(crate) instances: HashMap<Slot, Instance>,
    /// How the current attempt of each replica ended, and true if we stopped it.
    pub(crate) ends: HashMap<Slot, (Exit, bool)>,
    /// Length of each log when its replica was first told to stop: lines before that are not caused by the stop.
    pub(super) log_at_stop: HashMap<Slot, LogSize>,
    /// Progress, if the policy limits the time without.
    pub(super) watching: hang::Watching,
    /// What the others were doing when the first had failed.
    pub(super) seen: HashMap<Slot, Seen>,
    /// A rank of another node has failed because a peer did not respond.
    pub(crate) waited_elsewhere: bool,
    /// Replicas of whose current attempt a process was killed at its memory limit.
    pub(super) over_limit: HashSet<Slot>,
    /// The time of day of the next attempt, during a delay that is worth showing.
    pub(super) pause: Option<String>,
    /// How long logs of failed attempts have been searched.
    pub(super) searched: Duration,
    /// When the stop of all replicas began, and why.
    pub(crate) stopping: Option<(Instant, StopReason)>,
    pub(crate) killed: bool,
    /// What cancelled the job in its cluster.
    pub(super) cancelled_by: Option<String>,
    pub(crate) abandoned: bool,
    /// True once a report replaces the status line.
    pub(crate) told: bool,
    /// True if attempts were still running when the verdict was shown.
    pub(super) told_while_going: bool,
    pub(super) told_started: bool,
    /// The last reported reason why nothing runs.
    pub(super) pending: Option<String>,
    /// Files that are mirrored.
    pub(super) followed: HashMap<Slot, PathBuf>,
    /// Replicas connected to the console.
    pub(super) console: Console,
    pub(crate) attempt_started: Option<Instant>,
    /// The attempt of the job that is being prepared.
    pub(crate) preparing: Option<u32>,
    pub(crate) end: Option<(Outcome, u8)>,
    /// The last fact. Written only when nothing of the job is left, as its readers expect.
    pub(super) last: Option<Fact>,
}

impl Now {
    /// Resets the state for another attempt of the whole job.
    pub(crate) fn begin_attempt(&mut self) {
        self.instances.clear();
        self.ends.clear();
        self.log_at_stop.clear();
        self.over_limit.clear();
        self.searched = Duration::ZERO;
        self.seen.clear();
        self.watching = hang::Watching::default();
        self.waited_elsewhere = false;
        self.stopping = None;
        self.attempt_started = None;
        (self.killed, self.told, self.told_while_going, self.told_started) = (false, false, false, false);
    }
}

impl JobRun {
    pub(crate) fn new(step: Option<StepName>, machine: Machine, plan: Arc<Plan>, pool: Pool) -> Self {
        Self {
            step,
            machine,
            plan,
            pool,
            is_placed_later: false,
            preparation: Preparation::default(),
            now: Now::default(),
            prober: None,
            stores: Vec::new(),
        }
    }

    /// Keeps what is recorded of attempts that an earlier supervisor had started and that still run.
    pub(crate) fn take_over(&mut self, adopted: &[AttemptId], status: &Status) {
        self.now.pending.clone_from(&status.pending);
        for slot in adopted.iter().map(|id| id.slot) {
            self.pool.take(slot, self.plan.role(slot).work.resources);
            let known = self.plan.at(slot).and_then(|replica| status.replica(&replica.name));
            if let Some(Stage::Running { instance, .. }) = known.map(|known| &known.stage) {
                self.now.instances.insert(slot, instance.clone());
            }
        }
        self.now.told_started = !self.now.instances.is_empty();
    }

    /// Tells the mirror of a replica from those of other replicas and jobs.
    pub(super) fn mirror_key(&self, slot: Slot) -> u64 {
        let rank = self.plan.at(slot).map_or(0, |replica| replica.rank.0);
        u64::from(self.machine.step_index().0) << 32 | u64::from(rank)
    }

    /// True if its output is shown on the console.
    pub(crate) fn is_shown(&self, slot: Slot) -> bool {
        self.now.console.shown.binary_search(&slot).is_ok()
    }

    /// Queues an event for the machine, after the current one.
    pub(crate) fn queue(&mut self, event: Event) {
        self.now.queue.push_back(event);
    }

    pub(crate) fn is_live(&self, slot: Slot) -> bool {
        self.machine.attempt_of(slot).is_some_and(Attempt::is_live)
    }

    pub(crate) fn slot_of(&self, subject: &Subject) -> Option<Slot> {
        self.plan.replica(subject.rank?).map(|replica| replica.slot)
    }

    /// Its process on this host.
    pub(crate) fn pid(&self, slot: Slot) -> Option<u32> {
        self.now.instances.get(&slot).filter(|instance| instance.node.is_none())?.pid
    }

    /// The cluster node that runs it.
    pub(crate) fn node(&self, slot: Slot) -> Option<String> {
        self.now.instances.get(&slot)?.node.clone()
    }

    /// Records that servers on other nodes listen, except these.
    pub(crate) fn listen_elsewhere(&mut self, role: u16, attempt: u32, missing: Vec<String>) {
        if let Some(prober) = &mut self.prober {
            prober.await_elsewhere(missing.clone());
        }
        self.queue(Event::AnsweredElsewhere { role, attempt, missing });
    }

    /// Returns the port at which this attempt does not listen yet, if that is awaited.
    pub(crate) fn awaited_at(&self, id: AttemptId) -> Option<String> {
        self.prober.as_ref()?.awaited_at(id)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.plan.replicas.iter().map(|replica| replica.slot)
    }

    /// Returns the log of an attempt.
    pub(crate) fn log(&self, id: AttemptId) -> Option<Log> {
        self.plan.at(id.slot).map(|replica| self.plan.log(replica, id.attempt))
    }

    /// `attempt 1 of 3`, if a launched job can have several.
    pub(crate) fn attempt_words(&self) -> Option<String> {
        let attempt = self.machine.attempt();
        match self.machine.most_attempts() {
            _ if self.plan.is_document() => None,
            Some(1) => None,
            Some(attempts) => Some(format!("attempt {attempt} of {attempts}")),
            None => Some(format!("attempt {attempt}")),
        }
    }

    /// The plan as a fact for the journal.
    pub(crate) fn planned(&self) -> Fact {
        words::fact(&self.plan, &self.machine, &self.pool)
    }
}
