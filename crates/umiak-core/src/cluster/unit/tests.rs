use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::super::Place;
use super::*;
use crate::machine::job::AttemptId;
use crate::model::{Slot, StepIndex};

const GRACE: Duration = Duration::from_secs(5);

fn id(index: u32) -> AttemptId {
    AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt: 1 }
}

fn at(again: u32, node: &str) -> Place {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    Place { again, node: node.to_owned(), address, ports: Vec::new(), wake: SocketAddr::new(address, 1) }
}

fn placement(again: u32, nodes: usize) -> Placement {
    let places = (0..nodes).map(|node| at(again, &format!("n{node}"))).collect();
    Placement { again, seats: (0..nodes as u32).map(|rank| vec![rank]).collect(), places, ended: BTreeSet::new() }
}

/// A unit, and the time.
struct Case {
    unit: Unit,
    now: Duration,
}

impl Case {
    /// Two replicas on as many nodes, which run.
    fn running() -> Self {
        let mut case = Self { unit: Unit::new([id(0), id(1)], GRACE, false, false), now: Duration::ZERO };
        assert_eq!(case.step(Event::Submitted(Ok(()))), []);
        case.begin(0, 2);
        case
    }

    fn begin(&mut self, again: u32, nodes: usize) {
        for agent in 0..nodes {
            self.told(agent, Told::Place(at(again, &format!("n{agent}"))));
        }
        self.step(Event::Placed(placement(again, nodes)));
        for agent in 0..nodes {
            self.told(agent, Told::Started { id: id(agent as u32), pid: 1 });
        }
        self.pass(1);
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.unit.step(event, self.now)
    }

    fn told(&mut self, agent: usize, told: Told) -> Vec<Effect> {
        self.step(Event::Told { agent, told })
    }

    fn looked(&mut self, look: Look) -> Vec<Effect> {
        self.step(Event::Looked { asked: self.now, look, log: None })
    }

    fn ended(&mut self, agent: usize, after: Option<Asked>) -> Vec<Effect> {
        let exit = Exit::Signal { signal: SIGTERM, core_dumped: false };
        self.told(agent, Told::Ended { id: id(agent as u32), exit, usage: None, over_limit: false, after })
    }

    fn left(&mut self, agent: usize) -> Vec<Effect> {
        self.told(agent, Told::Left { stopped: Vec::new(), remaining: Vec::new() })
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

fn pending() -> Look {
    Look::Pending { reason: "it waits".to_owned() }
}

fn ends(effects: &[Effect]) -> Vec<Exit> {
    let exit = |effect: &Effect| match effect {
        Effect::Ended { exit, .. } => Some(exit.clone()),
        _ => None,
    };
    effects.iter().filter_map(exit).collect()
}

#[test]
fn an_end_that_the_scheduler_caused_waits_for_its_reason() {
    let mut case = Case::running();
    assert_eq!(case.ended(0, Some(Asked::End)), []);
    assert_eq!(case.unit.patience(case.now), URGENT.0);
    let node = "n1".to_owned();
    let lost = Exit::NodeLost { node: node.clone() };
    let terminated = Exit::Signal { signal: SIGTERM, core_dumped: false };
    assert_eq!(ends(&case.looked(Look::Over(Over::NodeLost { node }))), [lost, terminated], "the other node is well");
}

#[test]
fn a_list_of_lost_nodes_that_has_none_of_the_unit_is_about_all() {
    for list in ["elsewhere", "n["] {
        let mut case = Case::running();
        let lost = Exit::NodeLost { node: list.to_owned() };
        assert_eq!(ends(&case.looked(Look::Over(Over::NodeLost { node: list.to_owned() }))), [lost.clone(), lost]);
    }
}

#[test]
fn an_end_without_a_reason_is_reported_as_it_was() {
    let mut case = Case::running();
    for agent in 0..2 {
        case.ended(agent, Some(Asked::End));
        case.left(agent);
    }
    case.pass(1);
    assert_eq!(ends(&case.looked(Look::Running)).len(), 0, "the scheduler may still say why");
    case.pass(5);
    assert_eq!(ends(&case.looked(Look::Running)).len(), 2);
    // Some agents were killed, and their ends are missing.
    let mut case = Case::running();
    case.ended(0, Some(Asked::End));
    case.pass(16);
    assert_eq!(ends(&case.looked(Look::Running)).len(), 1);
}

#[test]
fn a_unit_that_is_started_again_forgets_its_first_start() {
    let mut case = Case::running();
    for agent in 0..2 {
        case.ended(agent, Some(Asked::Limit));
        case.left(agent);
    }
    let effects = case.looked(pending());
    assert_eq!(ends(&effects), [], "they will run again");
    assert_eq!(effects[0], Effect::Requeued { why: Some(Asked::Limit) });
    // The file still has the old placement.
    case.step(Event::Placed(placement(0, 2)));
    let stop = Event::Stop { how: StopHow::Terminate, targets: vec![id(0), id(1)] };
    assert!(matches!(case.step(stop)[..], [Effect::Order(_)]));
    assert_eq!(case.unit.take_cancel(), Some(false), "a job that waits again is cancelled by a stop");
}

#[test]
fn another_start_may_have_more_nodes() {
    let mut case = Case::running();
    case.ended(0, Some(Asked::End));
    case.left(0);
    case.begin(1, 3);
    assert_eq!(case.unit.placement().map(|placement| placement.places.len()), Some(3));
    assert!(!case.unit.have_all_left());
    assert!(case.unit.held.is_empty());
    assert_eq!(case.unit.patience(case.now), RUNNING, "nothing is urgent");
}

#[test]
fn an_adopted_unit_that_was_started_again_runs() {
    let mut case = Case { unit: Unit::new([id(0), id(1)], GRACE, false, true), now: Duration::ZERO };
    // The placement is read before the reports of both starts.
    case.step(Event::Placed(placement(1, 2)));
    for agent in 0..2 {
        case.told(agent, Told::Place(at(0, "n0")));
        case.ended(agent, Some(Asked::Limit));
        case.left(agent);
    }
    assert!(!case.unit.have_all_left());
    for agent in 0..2 {
        case.told(agent, Told::Place(at(1, "n0")));
    }
    assert!(case.unit.held.is_empty() && !case.unit.have_all_left());
    let exit = Exit::Code { code: 0 };
    let told = Told::Ended { id: id(0), exit: exit.clone(), usage: None, over_limit: false, after: None };
    assert_eq!(ends(&case.told(0, told)), [exit]);
}

#[test]
fn a_look_from_before_the_placement_is_not_a_second_start() {
    let mut case = Case::running();
    let early = Event::Looked { asked: Duration::ZERO, look: pending(), log: None };
    assert_eq!(case.step(early), []);
    assert!(case.unit.placement().is_some());
    case.looked(Look::Suspended { reason: "it is suspended".to_owned() });
    assert!(case.unit.placement().is_some(), "a suspended job keeps its agents");
}

#[test]
fn a_job_that_is_cancelled_from_outside_stops_the_run() {
    let mut case = Case::running();
    case.ended(0, Some(Asked::End));
    let effects = case.looked(Look::Over(Over::Cancelled { by: Some("li".to_owned()) }));
    assert_eq!(effects[0], Effect::Cancelled { by: "li".to_owned() });
    assert_eq!(ends(&effects).len(), 2);
}

#[test]
fn a_unit_that_can_never_start_is_cancelled_once() {
    let mut case = Case { unit: Unit::new([id(0)], GRACE, false, false), now: Duration::ZERO };
    case.step(Event::Submitted(Ok(())));
    let hopeless = || Look::Hopeless { reason: "too large".to_owned() };
    assert_eq!(ends(&case.looked(hopeless())), [], "an answer may be wrong for a moment");
    case.pass(1);
    case.looked(pending());
    case.pass(1);
    assert_eq!(ends(&case.looked(hopeless())), []);
    case.pass(2);
    let ended = ends(&case.looked(hopeless()));
    assert!(matches!(&ended[..], [Exit::Spawn(error)] if error.doing == SpawnStage::Submit));
    assert_eq!(case.unit.take_cancel(), Some(true));
    assert!(!case.unit.is_open());
    case.looked(hopeless());
    assert_eq!(case.unit.take_cancel(), None);
}

#[test]
fn agents_that_do_not_leave_are_cancelled_with_their_unit() {
    let mut case = Case::running();
    assert_eq!(case.step(Event::End { patient: true }), [Effect::Order(Order::End { patient: true })]);
    case.pass(14);
    assert_eq!(case.step(Event::Tick), []);
    assert_eq!(case.unit.take_cancel(), None);
    case.pass(2);
    case.step(Event::Tick);
    assert_eq!(case.unit.take_cancel(), Some(true));
    case.pass(10);
    assert_eq!(
        case.step(Event::Tick),
        [Effect::Done { gave_up: true }],
        "a scheduler that does not answer is not waited for"
    );
    assert_eq!(case.step(Event::Tick), [], "once");
}

#[test]
fn agents_that_do_not_kill_are_killed_with_their_unit() {
    let mut case = Case::running();
    case.step(Event::Stop { how: StopHow::Kill, targets: vec![id(0), id(1)] });
    assert_eq!(case.unit.take_cancel(), None);
    case.pass(6);
    case.step(Event::Tick);
    assert_eq!(case.unit.take_cancel(), Some(true));
}

#[test]
fn a_restart_after_a_kill_keeps_the_unit() {
    let mut case = Case::running();
    case.step(Event::Stop { how: StopHow::Kill, targets: vec![id(0), id(1)] });
    for agent in 0..2 {
        assert_eq!(ends(&case.ended(agent, None)).len(), 1);
    }
    case.pass(10);
    case.step(Event::Tick);
    assert_eq!(case.unit.take_cancel(), None, "all were killed");
    // One of two is killed late, and the other one starts again meanwhile.
    let mut case = Case::running();
    case.step(Event::Stop { how: StopHow::Kill, targets: vec![id(0), id(1)] });
    case.ended(0, None);
    case.step(Event::Start { order: Order::Clear {}, ids: vec![id(0)] });
    case.pass(6);
    case.step(Event::Tick);
    assert_eq!(case.unit.take_cancel(), None);
}

#[test]
fn a_request_to_cancel_that_was_not_accepted_is_repeated() {
    let mut case = Case { unit: Unit::new([id(0)], GRACE, false, false), now: Duration::ZERO };
    case.step(Event::Submitted(Ok(())));
    case.step(Event::End { patient: true });
    assert_eq!(case.unit.take_cancel(), Some(false));
    case.step(Event::NotCancelled { kill: false });
    case.step(Event::Tick);
    assert_eq!(case.unit.take_cancel(), None, "not at once");
    case.pass(1);
    case.step(Event::Tick);
    assert_eq!(case.unit.take_cancel(), Some(false));
    case.pass(1);
    case.step(Event::Tick);
    assert_eq!(case.unit.take_cancel(), None, "it was accepted");
}

#[test]
fn attempts_whose_files_are_gone_are_lost() {
    let mut case = Case::running();
    let ended = ends(&case.step(Event::Unreachable { reason: "its directory was removed".to_owned() }));
    assert_eq!(ended, [Exit::Lost, Exit::Lost]);
    assert_eq!(case.unit.take_cancel(), Some(true));
}

#[test]
fn an_attempt_that_is_ordered_when_the_time_is_over_has_reached_the_limit() {
    let mut case = Case::running();
    case.ended(0, Some(Asked::Limit));
    let next = AttemptId { attempt: 2, ..id(1) };
    assert_eq!(ends(&case.ended(1, None)).len(), 1);
    case.step(Event::Start { order: Order::Clear {}, ids: vec![next] });
    let ended = ends(&case.looked(Look::Over(Over::Done)));
    assert!(ended.iter().all(|exit| matches!(exit, Exit::TimeLimit { .. })) && ended.len() == 2, "{ended:?}");
}

#[test]
fn a_unit_ends_when_all_agents_have_left() {
    let mut case = Case::running();
    case.step(Event::End { patient: true });
    assert_eq!(case.left(0), []);
    assert_eq!(case.left(1), [Effect::Done { gave_up: false }]);
    // `mpirun` has to end, too.
    let mut case = Case::running();
    case.unit.is_awaited = true;
    case.step(Event::End { patient: true });
    case.left(0);
    assert_eq!(case.left(1), []);
    assert_eq!(case.looked(Look::Over(Over::Done)).last(), Some(&Effect::Done { gave_up: false }));
}

#[test]
fn what_agents_cleared_is_reported_together() {
    let mut case = Case::running();
    assert_eq!(case.step(Event::Clear), [Effect::Order(Order::Clear {})]);
    assert_eq!(case.told(1, Told::Cleared { stopped: vec![7], remaining: vec![] }), []);
    let swept = Swept { stopped: vec![7, 8], remaining: vec![9] };
    assert_eq!(case.told(0, Told::Cleared { stopped: vec![8], remaining: vec![9] }), [Effect::Cleared(swept)]);
    let mut waiting = Case { unit: Unit::new([id(0)], GRACE, false, false), now: Duration::ZERO };
    assert_eq!(waiting.step(Event::Clear), [Effect::Cleared(Swept::default())]);
}

#[test]
fn what_was_refused_has_the_reason_of_the_scheduler() {
    let mut case = Case { unit: Unit::new([id(0)], GRACE, false, false), now: Duration::ZERO };
    let ended = ends(&case.step(Event::Submitted(Err("no such partition".to_owned()))));
    assert!(matches!(&ended[..], [Exit::Spawn(error)] if error.reason == "no such partition"));
    assert!(case.unit.is_over());
    assert_eq!(case.step(Event::End { patient: true }).last(), Some(&Effect::Done { gave_up: false }));
}

#[test]
fn an_agent_that_was_killed_is_the_cause() {
    let mut case = Case::running();
    // The launcher ends the agent of replica 1 because that of replica 0 was killed.
    case.ended(1, Some(Asked::End));
    let effects = case.looked(Look::Over(Over::Failed { reason: "`mpirun` failed".to_owned() }));
    let ids: Vec<u32> = effects
        .iter()
        .filter_map(|effect| if let Effect::Ended { id, .. } = effect { Some(id.slot.index) } else { None })
        .collect();
    let terminated = Exit::Signal { signal: SIGTERM, core_dumped: false };
    assert_eq!((ids, ends(&effects)), (vec![0, 1], vec![Exit::Lost, terminated]));
}

#[test]
fn a_unit_is_not_forgotten_at_once() {
    let mut case = Case::running();
    let forgotten = || Look::Over(Over::Forgotten);
    assert_eq!(case.looked(forgotten()), []);
    case.pass(4);
    assert_eq!(case.looked(Look::Running), []);
    assert_eq!(case.looked(forgotten()), []);
    case.pass(6);
    assert_eq!(ends(&case.looked(forgotten())).len(), 2);
}
