//! What an agent does about orders, ends, and requests of its scheduler.

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, Order, StartOrder, Told};
use crate::facts::Usage;
use crate::machine::job::AttemptId;
use crate::model::{Exit, Job, Slot, StartAfter, StopHow, When};

const SIGTERM: i32 = 15;

/// The state of an agent.
#[derive(Debug, Default)]
pub struct Agent {
    /// Its replicas.
    seats: BTreeSet<Slot>,
    live: BTreeSet<AttemptId>,
    /// Attempts that have ended, also before the scheduler has started the unit again.
    ended: BTreeSet<AttemptId>,
    /// The newest attempt of each replica of the job that was ordered to start.
    newest: BTreeMap<Slot, AttemptId>,
    asked: Option<Asked>,
    is_ending: bool,
    /// True if the supervisor has ordered the end.
    is_over: bool,
    /// What the roles wait for, if the scheduler has started the unit again: the supervisor has given its orders in the
    /// first start, one after the other.
    after: Vec<Vec<StartAfter>>,
    waiting: Vec<StartOrder>,
    /// Those of them whose readiness is to be reported.
    awaited: BTreeSet<AttemptId>,
}

/// What the agents of a start of the unit have reported.
#[derive(Debug, Default)]
pub struct Seen {
    pub started: BTreeSet<Slot>,
    pub ready: BTreeSet<Slot>,
    /// Also in earlier starts.
    pub succeeded: BTreeSet<Slot>,
}

impl Seen {
    pub fn add(&mut self, told: &Told) {
        match told {
            Told::Started { id, .. } => drop(self.started.insert(id.slot)),
            Told::Ready { id } => drop(self.ready.insert(id.slot)),
            Told::Ended { id, exit, .. } if exit.is_success() => drop(self.succeeded.insert(id.slot)),
            _ => {}
        }
    }

    /// True if a role that waits for this may start.
    pub fn is_met(&self, job: &Job, after: StartAfter) -> bool {
        let these = match after.when {
            When::Started => &self.started,
            When::Ready => &self.ready,
            When::Succeeded => &self.succeeded,
        };
        let replicas = job.roles.get(usize::from(after.role)).map_or(0, |role| role.replicas);
        (0..replicas).all(|index| {
            let slot = Slot { role: after.role, index };
            these.contains(&slot) || self.succeeded.contains(&slot)
        })
    }
}

/// What an agent does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    Start(Vec<StartOrder>),
    Stop { how: StopHow, targets: Vec<AttemptId> },
    Await(AttemptId),
    Forsake(Vec<AttemptId>),
    Clear,
    Tell(Told),
    End { patient: bool },
}

impl Agent {
    /// `ended` are attempts of all agents whose end was told before this agent began.
    pub fn new(seats: impl IntoIterator<Item = Slot>, ended: BTreeSet<AttemptId>) -> Self {
        Self { seats: seats.into_iter().collect(), ended, ..Self::default() }
    }

    /// The scheduler has started the unit again: roles start in their order.
    #[must_use]
    pub fn again(mut self, job: &Job) -> Self {
        self.after = job.roles.iter().map(|role| role.start_after.clone()).collect();
        self
    }

    /// True if attempts wait for other roles.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Starts attempts whose roles wait for nothing that is not met.
    pub fn release(&mut self, is_met: impl Fn(StartAfter) -> bool) -> Vec<Act> {
        let after = &self.after;
        let is_due = |start: &StartOrder| {
            let of_role = after.get(usize::from(start.id.slot.role)).map_or(&[][..], Vec::as_slice);
            of_role.iter().all(|after| is_met(*after))
        };
        let (due, waiting): (Vec<StartOrder>, _) = std::mem::take(&mut self.waiting).into_iter().partition(is_due);
        self.waiting = waiting;
        let awaited: Vec<Act> =
            due.iter().filter(|start| self.awaited.remove(&start.id)).map(|start| Act::Await(start.id)).collect();
        self.begin(due).into_iter().chain(awaited).collect()
    }

    fn begin(&mut self, due: Vec<StartOrder>) -> Vec<Act> {
        self.live.extend(due.iter().map(|start| start.id));
        if due.is_empty() { Vec::new() } else { vec![Act::Start(due)] }
    }

    /// True if the unit is to be started again after its time limit: the supervisor has not ended it meanwhile.
    pub fn is_to_begin_again(&self) -> bool {
        self.asked == Some(Asked::Limit) && !self.is_over
    }

    pub fn live(&self) -> impl Iterator<Item = AttemptId> + '_ {
        self.live.iter().copied()
    }

    pub fn is_live(&self, id: AttemptId) -> bool {
        self.live.contains(&id)
    }

    pub fn asked(&self) -> Option<Asked> {
        self.asked
    }

    fn own(&self, ids: &[AttemptId]) -> Vec<AttemptId> {
        ids.iter().filter(|id| self.seats.contains(&id.slot)).copied().collect()
    }

    /// Follows orders that arrived together. An agent that begins receives all orders of the unit: what they have started,
    /// ended or replaced meanwhile is not started.
    pub fn follow(&mut self, orders: Vec<Order>) -> Vec<Act> {
        for order in &orders {
            if let Order::Start(starts) = order {
                self.newest.extend(starts.iter().map(|start| (start.id.slot, start.id)));
            }
        }
        orders.into_iter().flat_map(|order| self.follow_one(order)).collect()
    }

    fn follow_one(&mut self, order: Order) -> Vec<Act> {
        match order {
            Order::Start(starts) => {
                if self.asked.is_some() || self.is_ending {
                    return Vec::new();
                }
                let is_due = |start: &StartOrder| {
                    let id = start.id;
                    self.seats.contains(&id.slot)
                        && self.newest.get(&id.slot) == Some(&id)
                        && !self.ended.contains(&id)
                        && !self.live.contains(&id)
                };
                let waits = |start: &StartOrder| {
                    self.after.get(usize::from(start.id.slot.role)).is_some_and(|it| !it.is_empty())
                };
                let due = starts.into_iter().filter(is_due);
                let (waiting, due): (Vec<StartOrder>, Vec<StartOrder>) = due.partition(waits);
                self.waiting.extend(waiting);
                self.begin(due)
            }
            Order::Stop { how, targets } => {
                let (waiting, kept) = std::mem::take(&mut self.waiting)
                    .into_iter()
                    .partition::<Vec<StartOrder>, _>(|start| targets.contains(&start.id));
                self.waiting = kept;
                let mut acts: Vec<Act> = waiting.into_iter().map(|start| self.never_started(start.id)).collect();
                let targets: Vec<_> = targets.into_iter().filter(|id| self.live.contains(id)).collect();
                acts.extend((!targets.is_empty()).then_some(Act::Stop { how, targets }));
                acts
            }
            Order::AwaitReady { id } if self.live.contains(&id) => vec![Act::Await(id)],
            Order::AwaitReady { id } => {
                let is_waiting = self.waiting.iter().any(|start| start.id == id);
                self.awaited.extend(is_waiting.then_some(id));
                Vec::new()
            }
            Order::Forsake { targets } => {
                let targets = self.own(&targets);
                if targets.is_empty() { Vec::new() } else { vec![Act::Forsake(targets)] }
            }
            Order::Clear {} => vec![Act::Clear],
            Order::End { patient } => {
                (self.is_ending, self.is_over) = (true, true);
                self.waiting.clear();
                vec![Act::End { patient }]
            }
        }
    }

    /// An attempt was stopped while it waited for another role.
    fn never_started(&mut self, id: AttemptId) -> Act {
        self.ended.insert(id);
        let exit = Exit::Signal { signal: SIGTERM, core_dumped: false };
        Act::Tell(Told::Ended { id, exit, usage: None, over_limit: false, after: self.asked })
    }

    /// An attempt has ended.
    pub fn end(&mut self, id: AttemptId, exit: Exit, usage: Option<Usage>, over_limit: bool) -> Vec<Act> {
        if !self.live.remove(&id) {
            return Vec::new();
        }
        self.ended.insert(id);
        let mut acts = vec![Act::Tell(Told::Ended { id, exit, usage, over_limit, after: self.asked })];
        acts.extend(self.leave());
        acts
    }

    /// The scheduler asks the unit to end, or there is no supervisor that would: the agent stops its replicas, and leaves.
    pub fn ask(&mut self, asked: Asked) -> Vec<Act> {
        self.asked.get_or_insert(asked);
        self.waiting.clear();
        let targets: Vec<AttemptId> = self.live().collect();
        if targets.is_empty() {
            return self.leave().into_iter().collect();
        }
        vec![Act::Stop { how: StopHow::Terminate, targets }]
    }

    /// How the job would end, as far as these ends say: true if a replica that decides has failed, false if all that decide
    /// have succeeded. `None` while that is open. Attempts that were replaced do not count. `sees_all`: the ends of all
    /// agents are known; otherwise only its own replicas count.
    pub fn verdict(&self, job: &Job, ends: &BTreeMap<AttemptId, Exit>, sees_all: bool) -> Option<bool> {
        let deciding = job.roles.iter().zip(0..).filter(|(role, _)| role.completion.decides);
        let slots =
            deciding.flat_map(|(role, number)| (0..role.replicas).map(move |index| Slot { role: number, index }));
        let counted = slots.filter(|slot| sees_all || self.seats.contains(slot));
        let (mut is_some, mut has_succeeded) = (false, true);
        for slot in counted {
            is_some = true;
            match self.newest.get(&slot).and_then(|id| ends.get(id)).map(Exit::is_success) {
                Some(false) => return Some(true),
                Some(true) => {}
                None => has_succeeded = false,
            }
        }
        (is_some && has_succeeded).then_some(false)
    }

    fn leave(&mut self) -> Option<Act> {
        let is_due = self.asked.is_some() && self.live.is_empty() && !self.is_ending;
        self.is_ending |= is_due;
        is_due.then_some(Act::End { patient: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{JobId, Policy, Role, RoleName, StepIndex};

    fn id(index: u32, attempt: u32) -> AttemptId {
        AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt }
    }

    fn start(ids: &[AttemptId]) -> Order {
        Order::Start(ids.iter().map(|id| StartOrder { id: *id, of_job: id.attempt, retries: 0 }).collect())
    }

    fn agent(ended: &[AttemptId]) -> Agent {
        Agent::new([Slot { role: 0, index: 0 }, Slot { role: 0, index: 1 }], ended.iter().copied().collect())
    }

    fn started(acts: &[Act]) -> Vec<AttemptId> {
        acts.iter()
            .flat_map(|act| match act {
                Act::Start(starts) => starts.iter().map(|start| start.id).collect(),
                _ => Vec::new(),
            })
            .collect()
    }

    #[test]
    fn only_its_own_replicas_are_started() {
        let acts = agent(&[]).follow(vec![start(&[id(0, 1), id(1, 1), id(2, 1)])]);
        assert_eq!(started(&acts), [id(0, 1), id(1, 1)]);
    }

    #[test]
    fn an_agent_that_begins_again_starts_what_has_not_ended() {
        let orders = || vec![start(&[id(0, 1), id(1, 1)]), start(&[id(0, 2)])];
        assert_eq!(started(&agent(&[id(0, 1)]).follow(orders())), [id(1, 1), id(0, 2)]);
        assert_eq!(started(&agent(&[id(0, 1), id(0, 2)]).follow(orders())), [id(1, 1)]);
    }

    #[test]
    fn an_attempt_that_is_already_stopped_is_started_and_stopped() {
        let stop = Order::Stop { how: StopHow::Terminate, targets: vec![id(0, 1)] };
        let acts = agent(&[]).follow(vec![start(&[id(0, 1), id(1, 1)]), stop]);
        assert_eq!(started(&acts), [id(0, 1), id(1, 1)]);
        assert_eq!(acts[1], Act::Stop { how: StopHow::Terminate, targets: vec![id(0, 1)] });
    }

    #[test]
    fn a_job_that_trains_after_a_restart_is_not_decided() {
        let job = job(Vec::new());
        let (ok, bad) = (Exit::Code { code: 0 }, Exit::Code { code: 1 });
        let mut agent = agent(&[]);
        agent.follow(vec![start(&[id(0, 1), id(1, 1)])]);
        assert_eq!(agent.verdict(&job, &BTreeMap::new(), true), None);
        let mut ends = BTreeMap::from([(id(0, 1), bad.clone())]);
        assert_eq!(agent.verdict(&job, &ends, true), Some(true));
        agent.follow(vec![start(&[id(0, 2), id(1, 2)])]);
        assert_eq!(agent.verdict(&job, &ends, true), None, "the failed attempt was replaced");
        ends.extend([(id(0, 2), ok.clone()), (id(1, 2), ok)]);
        assert_eq!(agent.verdict(&job, &ends, true), Some(false), "servers do not decide");
    }

    fn job(after: Vec<StartAfter>) -> Job {
        let role = |name, replicas| Role::new(RoleName::new(name).unwrap(), replicas);
        let mut job = Job {
            name: JobId::new("ctr").unwrap(),
            labels: BTreeMap::default(),
            agent_store: false,
            contracts: Vec::new(),
            roles: vec![role("trainer", 2), role("server", 1)],
            policy: Policy::default(),
        };
        job.roles[1].completion.decides = false;
        job.roles[0].start_after = after;
        job
    }

    #[test]
    fn an_agent_that_does_not_see_the_others_judges_its_own_replicas() {
        let job = job(Vec::new());
        let (ok, bad) = (Exit::Code { code: 0 }, Exit::Code { code: 1 });
        let mut one = Agent::new([Slot { role: 0, index: 0 }], BTreeSet::new());
        one.follow(vec![start(&[id(0, 1), id(1, 1)])]);
        let ends = BTreeMap::from([(id(0, 1), ok)]);
        assert_eq!((one.verdict(&job, &ends, true), one.verdict(&job, &ends, false)), (None, Some(false)));
        assert_eq!(one.verdict(&job, &BTreeMap::from([(id(0, 1), bad)]), false), Some(true));
        let server = Agent::new([Slot { role: 1, index: 0 }], BTreeSet::new());
        assert_eq!(server.verdict(&job, &ends, false), None, "servers do not decide");
    }

    #[test]
    fn roles_start_in_their_order_again() {
        let job = job(vec![StartAfter { role: 1, when: When::Ready }]);
        let server = AttemptId { step: StepIndex(0), slot: Slot { role: 1, index: 0 }, attempt: 1 };
        let seats = [id(0, 1).slot, id(1, 1).slot, server.slot];
        let ready = Order::AwaitReady { id: id(0, 1) };
        let orders = || vec![start(&[server]), start(&[id(0, 1)]), ready.clone(), start(&[id(1, 1)])];
        let mut first = Agent::new(seats, BTreeSet::new());
        assert_eq!(started(&first.follow(orders())), [server, id(0, 1), id(1, 1)], "the supervisor has waited");
        let mut agent = Agent::new(seats, BTreeSet::new()).again(&job);
        assert_eq!(started(&agent.follow(orders())), [server]);
        let mut seen = Seen::default();
        seen.add(&Told::Started { id: server, pid: 1 });
        assert_eq!(agent.release(|after| seen.is_met(&job, after)), []);
        let stop = Order::Stop { how: StopHow::Terminate, targets: vec![id(1, 1)] };
        assert!(matches!(&agent.follow(vec![stop])[..], [Act::Tell(Told::Ended { .. })]));
        seen.add(&Told::Ready { id: server });
        let acts = agent.release(|after| seen.is_met(&job, after));
        assert_eq!((started(&acts), &acts[1..]), (vec![id(0, 1)], &[Act::Await(id(0, 1))][..]));
        assert!(!agent.is_waiting());
    }

    #[test]
    fn a_unit_that_its_supervisor_has_ended_does_not_begin_again() {
        let mut agent = agent(&[]);
        agent.ask(Asked::Limit);
        assert!(agent.is_to_begin_again());
        agent.follow(vec![Order::End { patient: true }]);
        assert!(!agent.is_to_begin_again());
    }

    #[test]
    fn asked_by_its_scheduler_it_stops_everything_and_leaves() {
        let mut agent = agent(&[]);
        agent.follow(vec![start(&[id(0, 1), id(1, 1)])]);
        let stop = Act::Stop { how: StopHow::Terminate, targets: vec![id(0, 1), id(1, 1)] };
        assert_eq!(agent.ask(Asked::Limit), [stop]);
        let exit = Exit::Code { code: 0 };
        let told = |id| {
            Act::Tell(Told::Ended {
                id,
                exit: Exit::Code { code: 0 },
                usage: None,
                over_limit: false,
                after: Some(Asked::Limit),
            })
        };
        assert_eq!(agent.end(id(1, 1), exit.clone(), None, false), [told(id(1, 1))]);
        assert_eq!(agent.end(id(0, 1), exit, None, false), [told(id(0, 1)), Act::End { patient: true }]);
        assert_eq!(agent.follow(vec![start(&[id(0, 2)])]), [], "the unit is about to end");
    }
}
