//! A unit from its submission to its end, as its supervisor sees it: what agents report, what the scheduler says, and what
//! the supervisor asks become news for the driver, orders for the agents, and requests to the scheduler.
//!
//! A scheduler may start a unit again, maybe on other nodes. Agents count the starts (`again`), and everything here is
//! known by its start: what an earlier one has placed or left says nothing about this one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::look::{Look, Over};
use super::{Asked, Order, Placement, Told};
use crate::facts::Usage;
use crate::formats::hostlist;
use crate::machine::job::AttemptId;
use crate::model::{Exit, Instance, SpawnError, SpawnStage, StopHow};

/// How long a scheduler may take to say why it asked a unit to end: after all agents have left, and while some have not.
const REASON: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(15));
/// How long agents may take to leave, in addition to the grace of their replicas, before their unit is cancelled; how long
/// the scheduler may take then; and how long after an order to kill the unit is cancelled.
const LEAVING: Duration = Duration::from_secs(10);
const KILLING: Duration = Duration::from_secs(5);
/// How long a unit must be unknown to its scheduler, or have a reason for which it can never start: an answer may be wrong
/// for a moment.
const FORGOTTEN: Duration = Duration::from_secs(5);
const HOPELESS: Duration = Duration::from_secs(2);
/// The pause before a scheduler that did not accept a request to cancel is asked again.
const CANCEL_AGAIN: Duration = Duration::from_secs(1);
/// Intervals at which the scheduler is asked.
const WAITING: Duration = Duration::from_secs(1);
const RUNNING: Duration = Duration::from_secs(5);
/// The same while something depends on the answer: at first, and at most.
const URGENT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
const PROGRAM: Duration = Duration::from_millis(1);

const SIGTERM: i32 = 15;
/// Of a list of lost nodes.
const MAX_NODES: usize = 100_000;

/// The reason of ends before the time limit, of which the scheduler says nothing itself.
const LIMITED: &str = "its allocation is about to end";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// Not accepted by the scheduler yet.
    #[default]
    Submitting,
    /// It waits for its allocation.
    Waiting,
    Running,
    /// The scheduler has ended it.
    Over,
}

/// The end of an attempt that the scheduler caused: reported once it says why.
#[derive(Debug)]
struct Held {
    id: AttemptId,
    agent: usize,
    exit: Exit,
    usage: Option<Usage>,
    after: Asked,
}

/// What is known of an agent, in its latest start.
#[derive(Debug, Default)]
struct AgentState {
    again: u32,
    has_left: bool,
    has_cleared: bool,
}

/// Processes that were left behind: those that were stopped, and those that still run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    pub stopped: Vec<u32>,
    pub remaining: Vec<u32>,
}

impl Swept {
    pub fn add(&mut self, other: &Self) {
        self.stopped.extend(&other.stopped);
        self.remaining.extend(&other.remaining);
    }
}

/// What happens to a unit.
#[derive(Debug, Clone)]
pub enum Event {
    /// The scheduler has accepted or refused it.
    Submitted(Result<(), String>),
    /// The agents of a start are all there.
    Placed(Placement),
    Told {
        agent: usize,
        told: Told,
    },
    /// What the scheduler answers to a question of this moment. `log`: the end of its own log of the unit, for an end.
    Looked {
        asked: Duration,
        look: Look,
        log: Option<String>,
    },
    /// The directory of its files was removed: agents cannot be reached any more.
    Unreachable {
        reason: String,
    },
    /// The scheduler did not accept the request to cancel it.
    NotCancelled {
        kill: bool,
    },
    /// The supervisor starts attempts, stops them, clears what they left behind, or ends the unit.
    Start {
        order: Order,
        ids: Vec<AttemptId>,
    },
    Stop {
        how: StopHow,
        targets: Vec<AttemptId>,
    },
    Clear,
    End {
        patient: bool,
    },
    /// Time has passed.
    Tick,
}

/// What follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Order(Order),
    Started {
        id: AttemptId,
        instance: Instance,
    },
    Ready {
        id: AttemptId,
    },
    Ended {
        id: AttemptId,
        exit: Exit,
        usage: Option<Usage>,
        over_limit: bool,
    },
    Pending {
        reason: String,
    },
    /// The scheduler has taken the nodes away, and will start the unit again; why, if that is known.
    Requeued {
        why: Option<Asked>,
    },
    Cancelled {
        by: String,
    },
    Cleared(Swept),
    /// Nothing is left of the unit; or its scheduler did not end it in time.
    Done {
        gave_up: bool,
    },
}

/// The state of a unit.
#[derive(Debug, Default)]
pub struct Unit {
    stage: Stage,
    grace: Duration,
    /// True if nothing may be left of the unit in its scheduler when a run ends.
    is_awaited: bool,
    /// Attempts that were ordered and whose end was not reported.
    live: BTreeSet<AttemptId>,
    /// Those whose start was reported, and by which agent.
    started: BTreeMap<AttemptId, usize>,
    placement: Option<Placement>,
    placed_at: Duration,
    /// Placements of earlier starts do not count.
    again: u32,
    agents: BTreeMap<usize, AgentState>,
    /// What agents have cleared so far, if that was asked.
    clearing: Option<Swept>,
    held: Vec<Held>,
    held_since: Option<Duration>,
    /// To be asked of the scheduler: true to kill.
    cancel: Option<bool>,
    is_cancelled: bool,
    /// The same, for a request that it did not accept.
    cancel_again: Option<(Duration, bool)>,
    /// When the unit is killed because its agents did not kill all attempts.
    kill_at: Option<Duration>,
    /// When the end was ordered.
    ending: Option<Duration>,
    urgent_since: Option<Duration>,
    /// Since when the scheduler does not know it.
    unknown_since: Option<Duration>,
    /// Since when it says that the unit can never start.
    hopeless_since: Option<Duration>,
    swept: Swept,
    is_done: bool,
}

impl Unit {
    /// `live` are the attempts that start with it, or that another supervisor has started in it.
    pub fn new(live: impl IntoIterator<Item = AttemptId>, grace: Duration, is_awaited: bool, is_adopted: bool) -> Self {
        let stage = if is_adopted { Stage::Waiting } else { Stage::Submitting };
        Self { stage, live: live.into_iter().collect(), grace, is_awaited, ..Self::default() }
    }

    /// True if attempts can be started in it.
    pub fn is_open(&self) -> bool {
        self.stage != Stage::Over && self.ending.is_none() && self.cancel.is_none() && !self.is_cancelled
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    pub fn is_done(&self) -> bool {
        self.is_done
    }

    pub fn swept(&self) -> &Swept {
        &self.swept
    }

    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// What is to be asked of the scheduler: true to kill the unit.
    pub fn take_cancel(&mut self) -> Option<bool> {
        let cancel = self.cancel.take();
        if cancel.is_some() {
            (self.is_cancelled, self.cancel_again) = (true, None);
        }
        cancel
    }

    pub fn must_cancel(&self) -> bool {
        self.cancel.is_some()
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// The time until the scheduler is asked again.
    pub fn patience(&self, now: Duration) -> Duration {
        match (self.urgent_since, self.stage) {
            // A program that runs here is asked without a request to another host.
            (Some(_), _) if self.is_awaited => PROGRAM,
            (Some(since), _) => (now.saturating_sub(since) / 8).clamp(URGENT.0, URGENT.1),
            (None, Stage::Running) => RUNNING,
            (None, _) => WAITING,
        }
    }

    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Submitted(Ok(())) => {
                if self.stage == Stage::Submitting {
                    self.stage = Stage::Waiting;
                }
            }
            Event::Submitted(Err(reason)) => {
                self.refuse(reason, &mut effects);
                self.over(&mut effects);
            }
            Event::Placed(placement) => self.place(placement, now),
            Event::Told { agent, told } => self.hear(agent, told, now, &mut effects),
            Event::Looked { asked, look, log } => self.apply(asked, look, log.as_deref(), now, &mut effects),
            Event::Unreachable { reason } => {
                if self.is_open() {
                    self.request_cancel(true);
                }
                let started = std::mem::take(&mut self.started);
                let failed = SpawnError { doing: SpawnStage::Agent, errno: 0, reason };
                let exit = |id| if started.contains_key(&id) { Exit::Lost } else { Exit::Spawn(failed.clone()) };
                self.end_all(&mut effects, exit);
            }
            Event::NotCancelled { kill } => {
                self.is_cancelled = false;
                self.cancel_again = Some((now + CANCEL_AGAIN, kill));
            }
            Event::Start { order, ids } => {
                // What was to be killed has ended, or it would not start again.
                self.kill_at = None;
                self.live.extend(ids);
                effects.push(Effect::Order(order));
            }
            Event::Stop { how, targets } => self.stop(how, targets, now, &mut effects),
            Event::Clear => self.clear(&mut effects),
            Event::End { patient } => self.end(patient, now, &mut effects),
            Event::Tick => self.tick(now),
        }
        if self.live.is_empty() {
            self.kill_at = None;
        }
        self.check_end(now, &mut effects);
        let depends = !self.held.is_empty() || self.have_all_left() || self.unknown_since.is_some();
        let depends = depends || self.hopeless_since.is_some() || self.cancel_again.is_some();
        let is_urgent = self.is_cancelled || self.ending.is_some() || depends;
        self.urgent_since = is_urgent.then(|| self.urgent_since.unwrap_or(now));
        effects
    }

    fn tick(&mut self, now: Duration) {
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            self.request_cancel(true);
        }
        if let Some((_, kill)) = self.cancel_again.filter(|(at, _)| *at <= now) {
            self.cancel_again = None;
            self.request_cancel(kill);
        }
    }

    fn place(&mut self, placement: Placement, now: Duration) {
        let is_newer = self.placement.as_ref().is_none_or(|known| known.again < placement.again);
        if placement.again < self.again || !is_newer {
            return;
        }
        (self.again, self.placed_at) = (placement.again, now);
        self.placement = Some(placement);
        if self.stage != Stage::Over {
            self.stage = Stage::Running;
        }
    }

    /// The scheduler has taken the unit's nodes away, and will start it again: what has ended because of that will run
    /// again.
    fn requeued(&mut self) {
        self.stage = Stage::Waiting;
        if let Some(placement) = self.placement.take() {
            self.again = self.again.max(placement.again + 1);
        }
        self.held.clear();
        self.held_since = None;
    }

    fn hear(&mut self, agent: usize, told: Told, now: Duration, effects: &mut Vec<Effect>) {
        match told {
            Told::Place(place) => {
                let known = self.agents.entry(agent).or_default();
                if known.again < place.again {
                    self.held.retain(|held| held.agent != agent);
                    if self.held.is_empty() {
                        self.held_since = None;
                    }
                    if self.placement.as_ref().is_some_and(|placement| placement.again < place.again) {
                        self.placement = None;
                    }
                    self.again = self.again.max(place.again);
                }
                *known = AgentState { again: place.again, ..AgentState::default() };
            }
            Told::Started { id, pid } if self.live.contains(&id) => {
                self.started.insert(id, agent);
                let node = self.placement.as_ref().and_then(|placement| placement.places.get(agent));
                let node = node.map(|place| place.node.clone());
                effects.push(Effect::Started { id, instance: Instance { pid: Some(pid), name: None, node } });
            }
            Told::Ready { id } if self.live.contains(&id) => effects.push(Effect::Ready { id }),
            Told::Started { .. } | Told::Ready { .. } => {}
            Told::Ended { id, exit, usage, over_limit, after } => match after.filter(|_| self.ending.is_none()) {
                Some(after) if self.live.contains(&id) => {
                    self.held.push(Held { id, agent, exit, usage, after });
                    self.held_since.get_or_insert(now);
                }
                _ => self.ended(id, exit, usage, over_limit, effects),
            },
            Told::Cleared { stopped, remaining } => {
                self.agents.entry(agent).or_default().has_cleared = true;
                if let Some(swept) = &mut self.clearing {
                    swept.add(&Swept { stopped, remaining });
                }
                if self.all(|agent| agent.has_cleared) {
                    self.cleared(effects);
                }
            }
            Told::Left { stopped, remaining } => {
                self.agents.entry(agent).or_default().has_left = true;
                self.swept.add(&Swept { stopped, remaining });
            }
        }
    }

    /// True if this holds for all agents of the current start.
    fn all(&self, holds: impl Fn(&AgentState) -> bool) -> bool {
        self.placement.as_ref().is_some_and(|placement| {
            let known = |number| self.agents.get(&number).filter(|agent| agent.again == placement.again);
            (0..placement.places.len()).all(|number| known(number).is_some_and(&holds))
        })
    }

    fn have_all_left(&self) -> bool {
        self.all(|agent| agent.has_left)
    }

    fn ended(&mut self, id: AttemptId, exit: Exit, usage: Option<Usage>, over_limit: bool, effects: &mut Vec<Effect>) {
        if self.live.remove(&id) {
            effects.push(Effect::Ended { id, exit, usage, over_limit });
        }
    }

    /// Ends all attempts whose end was not reported.
    fn end_all(&mut self, effects: &mut Vec<Effect>, exit: impl Fn(AttemptId) -> Exit) {
        for id in std::mem::take(&mut self.live) {
            effects.push(Effect::Ended { id, exit: exit(id), usage: None, over_limit: false });
        }
    }

    fn refuse(&mut self, reason: String, effects: &mut Vec<Effect>) {
        let refused = SpawnError { doing: SpawnStage::Submit, errno: 0, reason };
        self.end_all(effects, |_| Exit::Spawn(refused.clone()));
    }

    fn release(&mut self, effects: &mut Vec<Effect>, exit: impl Fn(&Held) -> Option<Exit>) {
        self.held_since = None;
        for held in std::mem::take(&mut self.held) {
            let exit = exit(&held).unwrap_or_else(|| held.exit.clone());
            self.ended(held.id, exit, held.usage, false, effects);
        }
    }

    fn request_cancel(&mut self, kill: bool) {
        self.cancel = Some(kill || self.cancel == Some(true));
    }

    fn apply(&mut self, asked: Duration, look: Look, log: Option<&str>, now: Duration, effects: &mut Vec<Effect>) {
        if self.stage == Stage::Over {
            return;
        }
        if look != Look::Over(Over::Forgotten) {
            self.unknown_since = None;
        }
        if !matches!(look, Look::Hopeless { .. } | Look::Unknown { .. }) {
            self.hopeless_since = None;
        }
        match look {
            Look::Pending { reason } => {
                // A question from before the agents were there says nothing about a unit that runs.
                if self.stage == Stage::Running && asked > self.placed_at {
                    effects.push(Effect::Requeued { why: self.held.first().map(|held| held.after) });
                    self.requeued();
                }
                if self.stage != Stage::Running {
                    self.stage = Stage::Waiting;
                    effects.push(Effect::Pending { reason });
                }
            }
            Look::Suspended { reason } => effects.push(Effect::Pending { reason }),
            Look::Hopeless { reason } if now.saturating_sub(*self.hopeless_since.get_or_insert(now)) < HOPELESS => {
                effects.push(Effect::Pending { reason });
            }
            Look::Hopeless { reason } => {
                if self.is_open() {
                    self.request_cancel(true);
                }
                // Another try would wait for the same.
                self.refuse(reason, effects);
            }
            Look::Running => {
                if self.stage == Stage::Waiting && self.placement.is_some() {
                    self.stage = Stage::Running;
                }
                let limit = if self.have_all_left() { REASON.0 } else { REASON.1 };
                if self.held_since.is_some_and(|since| now.saturating_sub(since) > limit) {
                    self.release(effects, |_| None);
                }
            }
            Look::Unknown { reason } => {
                if self.stage == Stage::Waiting {
                    effects.push(Effect::Pending { reason });
                }
            }
            Look::Over(Over::Forgotten)
                if now.saturating_sub(*self.unknown_since.get_or_insert(now)) < FORGOTTEN && !self.is_cancelled => {}
            Look::Over(over) => {
                let is_ours = self.is_cancelled || self.ending.is_some();
                if let Over::Cancelled { by } = &over
                    && !is_ours
                    && !self.live.is_empty()
                {
                    effects.push(Effect::Cancelled { by: by.clone().unwrap_or_else(|| "its cluster".to_owned()) });
                }
                let started = std::mem::take(&mut self.started);
                let was_limited = self.held.iter().any(|held| held.after == Asked::Limit);
                // What was lost comes first: the scheduler ended the others because of it.
                let held: Vec<AttemptId> = self.held.iter().map(|held| held.id).collect();
                let lost: Vec<AttemptId> = self.live.iter().filter(|id| !held.contains(id)).copied().collect();
                let terminated = || Exit::Signal { signal: SIGTERM, core_dumped: false };
                let places = self.placement.iter().flat_map(|placement| &placement.places);
                let nodes: Vec<String> = places.map(|place| place.node.clone()).collect();
                let has_places = !nodes.is_empty();
                // If the list has none of the unit's nodes, it says nothing about single replicas.
                let down = match &over {
                    Over::NodeLost { node } => hostlist::expand(node, MAX_NODES).unwrap_or_default(),
                    _ => Vec::new(),
                };
                let is_well: Vec<bool> = nodes.iter().map(|node| !down.contains(node)).collect();
                let is_known = is_well.contains(&false);
                let is_lost = |agent: usize| !is_known || !is_well.get(agent).copied().unwrap_or(false);
                let exit = |id: AttemptId| match ended_by(&over, None) {
                    _ if is_ours || matches!(over, Over::Cancelled { .. }) => terminated(),
                    // The scheduler has ended those on the other nodes.
                    Some(Exit::NodeLost { .. }) if started.get(&id).is_some_and(|agent| !is_lost(*agent)) => {
                        terminated()
                    }
                    Some(exit) => exit,
                    // Agents that were asked to end start nothing any more.
                    None if was_limited => Exit::TimeLimit { reason: LIMITED.to_owned() },
                    // Its agent was there.
                    None if has_places || started.contains_key(&id) => Exit::Lost,
                    None => {
                        let why = log.map(str::to_owned).or_else(|| reason(&over));
                        let reason = why.unwrap_or_else(|| {
                            "the job of the scheduler ended before its agents had started".to_owned()
                        });
                        Exit::Spawn(SpawnError { doing: SpawnStage::Agent, errno: 0, reason })
                    }
                };
                let is_one_missing = !lost.is_empty();
                let mut ends: Vec<(AttemptId, Exit)> = lost.into_iter().map(|id| (id, exit(id))).collect();
                ends.sort_by_key(|(_, exit)| *exit == terminated());
                for (id, exit) in ends {
                    self.ended(id, exit, None, false, effects);
                }
                self.release(effects, |held| match ended_by(&over, Some(held.after)) {
                    Some(Exit::NodeLost { .. }) if !is_lost(held.agent) => None,
                    // The cause is one whose end was not seen.
                    Some(Exit::Lost) if is_one_missing => Some(terminated()),
                    exit => exit.filter(|_| !is_ours),
                });
                self.over(effects);
            }
        }
    }

    fn over(&mut self, effects: &mut Vec<Effect>) {
        self.stage = Stage::Over;
        self.cleared(effects);
    }

    fn stop(&mut self, how: StopHow, targets: Vec<AttemptId>, now: Duration, effects: &mut Vec<Effect>) {
        let targets: Vec<AttemptId> = targets.into_iter().filter(|id| self.live.contains(id)).collect();
        if targets.is_empty() {
            return;
        }
        let kill = how == StopHow::Kill;
        if targets.len() == self.live.len() {
            if self.stage == Stage::Running {
                // Agents that do not follow are killed with their unit.
                self.kill_at = self.kill_at.or(kill.then(|| now + KILLING));
            } else {
                // Without an allocation, there is no agent that would follow the order.
                self.request_cancel(kill);
            }
        }
        effects.push(Effect::Order(Order::Stop { how, targets }));
    }

    fn clear(&mut self, effects: &mut Vec<Effect>) {
        if self.stage != Stage::Running || self.placement.is_none() {
            return effects.push(Effect::Cleared(Swept::default()));
        }
        for agent in self.agents.values_mut() {
            agent.has_cleared = false;
        }
        self.clearing = Some(Swept::default());
        effects.push(Effect::Order(Order::Clear {}));
    }

    fn cleared(&mut self, effects: &mut Vec<Effect>) {
        if let Some(swept) = self.clearing.take() {
            effects.push(Effect::Cleared(swept));
        }
    }

    fn end(&mut self, patient: bool, now: Duration, effects: &mut Vec<Effect>) {
        let is_first = self.ending.is_none();
        self.ending.get_or_insert(now);
        if self.stage != Stage::Over && (self.placement.is_none() || !patient) {
            self.request_cancel(!patient);
        }
        if is_first || !patient {
            effects.push(Effect::Order(Order::End { patient }));
        }
    }

    /// Ends the unit once nothing is left of it; cancels it if its agents do not leave.
    fn check_end(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let Some(since) = self.ending.filter(|_| !self.is_done) else { return };
        let have_left = self.have_all_left();
        let is_over = self.stage == Stage::Over || have_left && !self.is_awaited;
        let limit = if have_left { LEAVING } else { LEAVING + self.grace };
        let elapsed = now.saturating_sub(since);
        if !is_over && elapsed > limit && !self.is_cancelled && self.cancel_again.is_none() {
            self.request_cancel(true);
        }
        if is_over || elapsed > limit + LEAVING {
            self.is_done = true;
            effects.push(Effect::Done { gave_up: !is_over });
        }
    }
}

/// How attempts ended that a scheduler has ended.
fn ended_by(over: &Over, after: Option<Asked>) -> Option<Exit> {
    match over {
        Over::Preempted { reason } => Some(Exit::Preempted { reason: reason.clone() }),
        Over::TimeLimit { reason } => Some(Exit::TimeLimit { reason: reason.clone() }),
        Over::NodeLost { node } => Some(Exit::NodeLost { node: node.clone() }),
        _ if after == Some(Asked::Limit) => Some(Exit::TimeLimit { reason: LIMITED.to_owned() }),
        // It ended its agents because one of them, or its own program, had ended.
        Over::Failed { .. } => after.map(|_| Exit::Lost),
        Over::Done | Over::Cancelled { .. } | Over::Forgotten => None,
    }
}

fn reason(over: &Over) -> Option<String> {
    match over {
        Over::Failed { reason } => Some(reason.clone()),
        Over::Forgotten => Some("the scheduler no longer knows it".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
