//! What an agent does about orders, ends, and requests of its scheduler.

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, Order, StartOrder, Told};
use crate::facts::Usage;
use crate::machine::job::AttemptId;
use crate::model::{Exit, Job, Slot, StopHow};

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
                let due: Vec<StartOrder> = starts.into_iter().filter(is_due).collect();
                self.live.extend(due.iter().map(|start| start.id));
                if due.is_empty() { Vec::new() } else { vec![Act::Start(due)] }
            }
            Order::Stop { how, targets } => {
                let targets: Vec<_> = targets.into_iter().filter(|id| self.live.contains(id)).collect();
                if targets.is_empty() { Vec::new() } else { vec![Act::Stop { how, targets }] }
            }
            Order::AwaitReady { id } if self.live.contains(&id) => vec![Act::Await(id)],
            Order::AwaitReady { .. } => Vec::new(),
            Order::Forsake { targets } => {
                let targets = self.own(&targets);
                if targets.is_empty() { Vec::new() } else { vec![Act::Forsake(targets)] }
            }
            Order::Clear {} => vec![Act::Clear],
            Order::End { patient } => {
                self.is_ending = true;
                vec![Act::End { patient }]
            }
        }
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
        let targets: Vec<AttemptId> = self.live().collect();
        if targets.is_empty() {
            return self.leave().into_iter().collect();
        }
        vec![Act::Stop { how: StopHow::Terminate, targets }]
    }

    /// How the job would end, as far as these ends say: true if a replica that decides has failed, false if all that decide
    /// have succeeded. `None` while that is open. Attempts that were replaced do not count.
    pub fn verdict(&self, job: &Job, ends: &BTreeMap<AttemptId, Exit>) -> Option<bool> {
        let mut has_succeeded = true;
        for (role, number) in job.roles.iter().zip(0..).filter(|(role, _)| role.completion.decides) {
            for index in 0..role.replicas {
                let newest = self.newest.get(&Slot { role: number, index });
                match newest.and_then(|id| ends.get(id)).map(Exit::is_success) {
                    Some(false) => return Some(true),
                    Some(true) => {}
                    None => has_succeeded = false,
                }
            }
        }
        has_succeeded.then_some(false)
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
        let (ok, bad) = (Exit::Code { code: 0 }, Exit::Code { code: 1 });
        let mut agent = agent(&[]);
        agent.follow(vec![start(&[id(0, 1), id(1, 1)])]);
        assert_eq!(agent.verdict(&job, &BTreeMap::new()), None);
        let mut ends = BTreeMap::from([(id(0, 1), bad.clone())]);
        assert_eq!(agent.verdict(&job, &ends), Some(true));
        agent.follow(vec![start(&[id(0, 2), id(1, 2)])]);
        assert_eq!(agent.verdict(&job, &ends), None, "the failed attempt was replaced");
        ends.extend([(id(0, 2), ok.clone()), (id(1, 2), ok)]);
        assert_eq!(agent.verdict(&job, &ends), Some(false), "servers do not decide");
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
