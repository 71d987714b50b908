//! The cost of an event does not depend on the number of replicas.
//!
//! The machine counts how often it visits a replica. These tests drive it through plain jobs of growing size, and the
//! mean per event must stay the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::{AttemptId, Effect, Event, Machine, Timer};
use umiak_core::model::{
    Completion, Exit, ExitCodes, FIRST_ATTEMPT, Generation, Instance, Job, JobId, Policy, PortNeed, Restart, Role,
    RoleName, RoleRestart, Scope, StartAfter, Timeouts, Timestamp, When, Work,
};

/// Maximum mean visits per event of a plain job.
const MOST: f64 = 30.0;

/// Replicas of the roles together.
const SIZES: [u32; 4] = [10, 100, 1000, 4000];

/// How an attempt ends by itself; `None` if it runs until it is stopped.
type Script = fn(AttemptId) -> Option<Exit>;

const DONE: Exit = Exit::Code { code: 0 };
const FAILED: Exit = Exit::Code { code: 1 };

/// A machine whose effects are performed at once.
struct Driver {
    machine: Machine,
    script: Script,
    now: Timestamp,
    queue: VecDeque<Event>,
    timers: BTreeMap<Timer, (Timestamp, u32)>,
    alive: BTreeSet<AttemptId>,
    events: u64,
    end: Option<u8>,
}

impl Driver {
    fn new(roles: Vec<Role>, policy: Policy, script: Script) -> Self {
        let name = JobId::new("large").expect("a plain name");
        let job = Job { name, labels: BTreeMap::new(), agent_store: false, contracts: vec![], roles, policy };
        let style = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: true, etcd: None };
        Self {
            machine: Machine::new(job, style, 1),
            script,
            now: Timestamp::default(),
            queue: VecDeque::from([Event::Start]),
            timers: BTreeMap::new(),
            alive: BTreeSet::new(),
            events: 0,
            end: None,
        }
    }

    /// The exit code, and the mean visits per event.
    fn play(mut self) -> (u8, f64) {
        while self.end.is_none() {
            let event = self.queue.pop_front().unwrap_or_else(|| self.fire());
            self.events += 1;
            for effect in self.machine.step(event, self.now) {
                self.perform(effect);
            }
        }
        assert!(self.machine.is_counted());
        (self.end.unwrap_or_default(), self.machine.visits() as f64 / self.events as f64)
    }

    fn fire(&mut self) -> Event {
        let next = self.timers.iter().min_by_key(|(_, (at, _))| *at).map(|(timer, at)| (*timer, *at));
        let (timer, (at, number)) = next.expect("something happens until the end");
        self.timers.remove(&timer);
        self.now = at;
        Event::Timer(timer, number)
    }

    fn perform(&mut self, effect: Effect) {
        let exited = |id, exit| Event::Exited { id, exit, classed: None, usage: None };
        match effect {
            Effect::Spawn(ids) => {
                self.alive.extend(&ids);
                self.queue.extend(ids.iter().map(|id| Event::Started { id: *id, instance: Instance::default() }));
                let ends = ids.iter().filter_map(|id| (self.script)(*id).map(|exit| exited(*id, exit)));
                self.queue.extend(ends);
            }
            Effect::Stop { targets, .. } => {
                let exit = || Exit::Signal { signal: 15, core_dumped: false };
                let running = targets.into_iter().filter(|id| (self.script)(*id).is_none() && self.alive.remove(id));
                self.queue.extend(running.map(|id| exited(id, exit())).collect::<Vec<_>>());
            }
            Effect::ArmTimer { timer, attempt, at } => {
                self.timers.insert(timer, (at, attempt));
            }
            Effect::DisarmTimer(timer) => {
                self.timers.remove(&timer);
            }
            Effect::Await(id) => self.queue.push_back(Event::Ready { id }),
            Effect::Inspect(id) => self.queue.push_back(Event::Inspected { id, evidence: None }),
            Effect::Gather { .. } => self.queue.push_back(Event::Gathered(vec![])),
            Effect::Prepare { attempt } => self.queue.push_back(Event::Prepared { attempt, ready: true }),
            Effect::Finish { code, .. } => self.end = Some(code),
            _ => {}
        }
    }
}

fn role(name: &str, replicas: u32) -> Role {
    Role::new(RoleName::new(name).expect("a plain name"), replicas)
}

fn once() -> Restart {
    Restart { max: 1, ..Restart::default() }
}

fn retried(replicas: u32, scope: Scope) -> Vec<Role> {
    vec![Role { restart: RoleRestart { scope, rule: once() }, ..role("trainer", replicas) }]
}

/// Half of them servers, which trainers wait for and which are stopped at the end.
fn served(replicas: u32) -> Vec<Role> {
    let port = PortNeed { name: "rpc".into(), count: 1, fixed: None };
    let servers = Role {
        completion: Completion { decides: false, ..Completion::default() },
        timeouts: Timeouts { start: Some(Duration::from_secs(9)), patience: None, run: Some(Duration::from_secs(99)) },
        work: Work { ports: vec![port], ..Work::default() },
        ..role("server", replicas / 2)
    };
    let start_after = vec![StartAfter { role: 0, when: When::Ready }];
    vec![servers, Role { start_after, ..role("trainer", replicas / 2) }]
}

#[test]
fn an_event_costs_the_same_in_a_large_job() {
    type Plan = fn(u32) -> (Vec<Role>, Policy);
    let cases: [(&str, Plan, Script, u8); 6] = [
        ("all succeed", |size| (vec![role("trainer", size)], Policy::default()), |_| Some(DONE), 0),
        (
            "one fails, and the others are stopped",
            |size| (vec![role("trainer", size)], Policy::default()),
            |id| (id.slot.index == 1).then_some(FAILED),
            1,
        ),
        (
            "one fails, and all start again",
            |size| (vec![role("trainer", size)], Policy { restart: once(), ..Policy::default() }),
            |id| match (id.attempt, id.slot.index) {
                (FIRST_ATTEMPT, 1) => Some(FAILED),
                (FIRST_ATTEMPT, _) => None,
                _ => Some(DONE),
            },
            0,
        ),
        (
            "each fails once",
            |size| (retried(size, Scope::Replica), Policy::default()),
            |id| Some(if id.attempt == FIRST_ATTEMPT { FAILED } else { DONE }),
            0,
        ),
        (
            "the role starts again",
            |size| (retried(size, Scope::Role), Policy::default()),
            |id| match (id.attempt, id.slot.index) {
                (FIRST_ATTEMPT, 1) => Some(FAILED),
                (FIRST_ATTEMPT, _) => None,
                _ => Some(DONE),
            },
            0,
        ),
        (
            "trainers after servers",
            |size| (served(size), Policy::default()),
            |id| (id.slot.role == 1).then_some(DONE),
            0,
        ),
    ];
    for (name, plan, script, expected) in cases {
        let means = SIZES.map(|size| {
            let (roles, policy) = plan(size);
            let (code, mean) = Driver::new(roles, policy, script).play();
            assert_eq!(code, expected, "{name} with {size} replicas");
            mean
        });
        let most = means.into_iter().fold(0.0, f64::max);
        assert!(most <= MOST, "{name}: {means:?}");
        assert!(most <= means[0] * 1.5, "{name}: grows with the job, {means:?}");
    }
}
