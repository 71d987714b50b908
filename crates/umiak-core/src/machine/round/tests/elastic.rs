//! Elastic jobs: members that come and go.

use std::time::Duration;

use super::super::messages::{
    AttemptEnd, Decision, Expects, FromAgent, Join, LastAttempt, Loss, Refusal, Restart, Stage, Standing, Start,
    ToAgent, Why,
};
use super::{Round, at, decision, hear, join, news, options, own, ready, refusal, said, sent, starts, stops};
use crate::facts::Outcome;
use crate::machine::round::agent::{self, Agent};
use crate::machine::round::coordinator::{Effect, Event};
use crate::machine::round::limits::{Limits, REFUSED};

const WINDOW: u64 = 30_000;

fn range() -> Expects {
    Expects::Range { min: 2, max: 4 }
}

/// These nodes have joined, and nothing else has happened.
fn joined(nodes: &[u8], restarts: u32) -> (Round, Vec<Effect>) {
    let mut round = Round::new(options(&range(), restarts));
    let effects = nodes.iter().flat_map(|node| round.join(join(*node, &range()))).collect();
    (round, effects)
}

fn running(nodes: &[u8], restarts: u32) -> Round {
    let (mut round, effects) = joined(nodes, restarts);
    let links: Vec<u64> = nodes.iter().map(|node| u64::from(*node)).collect();
    let later = round.pass(WINDOW + 500, &links);
    assert_eq!(starts(&[effects, later].concat()).len(), 1);
    round
}

fn nodes(start: &Start) -> Vec<u64> {
    start.nodes.iter().map(|node| node.launch).collect()
}

/// All ranks of these nodes have been stopped, and they are ready again.
fn again(round: &mut Round, links: &[u64], attempt: u32) -> Vec<Effect> {
    let ends: Vec<Effect> =
        links.iter().flat_map(|link| round.stands(*link, attempt - 1, Stage::Told(Vec::new()))).collect();
    let ready = links.iter().flat_map(|link| round.stands(*link, attempt, ready(attempt, 2).stage));
    let ready: Vec<Effect> = ready.collect();
    [ends, ready].concat()
}

/// Node `last` as it is now, on another connection than its first.
fn reconnect(round: &mut Round, last: u8, standing: Standing) -> Vec<Effect> {
    let join = Join { standing, ..join(last, &range()) };
    round.step(Event::Joined { link: u64::from(last) + 10, join: Box::new(join), source: None })
}

#[test]
fn the_first_attempt_waits_for_others_unless_all_are_there() {
    let (mut round, effects) = joined(&[1, 2], 0);
    assert!(starts(&effects).is_empty());
    let waiting = sent(&effects).into_iter().rev().find_map(|(_, message)| match message {
        ToAgent::Waiting(waiting) => Some(waiting),
        _ => None,
    });
    assert_eq!(waiting.map(|waiting| (waiting.of, waiting.most)), Some((2, Some(4))));
    assert!(starts(&round.pass(WINDOW - 1000, &[1, 2])).is_empty());
    let start = starts(&round.pass(1500, &[1, 2])).remove(0);
    assert_eq!((nodes(&start), start.last), (vec![1, 2], None));
    let (_, effects) = joined(&[1, 2, 3, 4], 0);
    assert_eq!(nodes(&starts(&effects)[0]), [1, 2, 3, 4]);
    // The last of them comes just in time.
    let (mut late, _) = joined(&[1], 0);
    late.pass(590_000, &[1]);
    late.join(join(2, &range()));
    let effects = late.pass(10_000, &[1, 2]);
    assert_eq!((starts(&effects).len(), decision(&effects)), (1, None));
    let (mut alone, _) = joined(&[1], 0);
    assert!(starts(&alone.pass(WINDOW * 2, &[1])).is_empty(), "one node is not enough");
}

#[test]
fn a_lost_node_costs_no_restart_and_others_keep_their_place() {
    let mut round = running(&[1, 2, 3, 4], 0);
    let effects = round.step(Event::Gone { link: 2 });
    assert!(matches!(stops(&effects)[0].why, Why::NodeLost { how: Loss::Killed, .. }));
    let effects = again(&mut round, &[1, 3, 4], 2);
    let decided = decision(&effects).expect("the attempt ends");
    assert_eq!(decided.restart.map(|restart| (restart.attempt, restart.delay)), Some((2, Duration::ZERO)));
    let start = starts(&effects).remove(0);
    assert_eq!(nodes(&start), [1, 4, 3], "the last one fills the gap");
    assert_eq!(start.last, Some(LastAttempt { world: 8, end: AttemptEnd::NodeLost, changes: 1, counted: 0 }));
}

#[test]
fn a_node_of_which_nothing_runs_is_lost_at_once() {
    let watches = |effects: &[Effect]| effects.contains(&Effect::Watch { launch: 3 });
    let mut round = running(&[1, 2, 3], 0);
    assert!(stops(&round.step(Event::Vanished { launch: 3 })).is_empty(), "it is connected");
    let effects = round.step(Event::Closed { link: 3 });
    assert!(watches(&effects) && round.coordinator.misses(3));
    assert!(stops(&effects).is_empty(), "its ranks may run");
    assert!(stops(&round.step(Event::Vanished { launch: 9 })).is_empty(), "no such node");
    let effects = round.step(Event::Vanished { launch: 3 });
    let Why::NodeLost { node, how } = &stops(&effects)[0].why else { panic!("{effects:?}") };
    assert_eq!((&*node.host, *how), ("host3", Loss::Vanished { after: REFUSED }));
    assert!(!round.coordinator.misses(3));
    let start = starts(&again(&mut round, &[1, 2], 2)).remove(0);
    assert_eq!((nodes(&start), start.last.map(|last| last.end)), (vec![1, 2], Some(AttemptEnd::NodeLost)));
    // One that is back is not.
    let mut round = running(&[1, 2, 3], 0);
    round.step(Event::Closed { link: 3 });
    reconnect(&mut round, 3, Standing::new(1, Stage::Running));
    assert!(!round.coordinator.misses(3));
    assert!(stops(&round.step(Event::Vanished { launch: 3 })).is_empty());
    // A guest is forgotten as soon as its connection is closed.
    let mut round = running(&[1, 2], 0);
    round.join(join(3, &range()));
    assert!(!watches(&round.step(Event::Closed { link: 3 })));
    // Between two attempts it is not awaited any longer.
    let mut round = running(&[1, 2, 3], 5);
    again(&mut round, &[1, 2], 2);
    assert!(watches(&round.step(Event::Closed { link: 3 })));
    let effects = [round.step(Event::Vanished { launch: 3 }), again(&mut round, &[1, 2], 2)].concat();
    assert_eq!(nodes(&starts(&effects)[0]), [1, 2]);
}

#[test]
fn too_few_nodes_wait_for_another() {
    let mut round = running(&[1, 2], 0);
    round.step(Event::Gone { link: 2 });
    assert!(starts(&again(&mut round, &[1], 2)).is_empty());
    assert!(starts(&round.pass(5000, &[1])).is_empty());
    let start = starts(&round.join(join(3, &range()))).remove(0);
    assert_eq!((nodes(&start), start.attempt), (vec![1, 3], 2), "at once");
}

#[test]
fn joiners_wait_for_the_window_or_until_all_are_there() {
    let mut round = running(&[1, 2], 0);
    let effects = round.join(join(3, &range()));
    assert_eq!(nodes(&starts(&effects)[0]), [1, 2], "it learns what runs");
    assert!(stops(&round.pass(WINDOW - 1000, &[1, 2, 3])).is_empty());
    let effects = round.pass(1500, &[1, 2, 3]);
    let Why::Joined { nodes: joining } = &stops(&effects)[0].why else { panic!("{effects:?}") };
    assert_eq!(joining.len(), 1);
    assert!(sent(&effects).iter().all(|(links, message)| !matches!(message, ToAgent::Stop(_)) || !links.contains(&3)));
    let start = starts(&again(&mut round, &[1, 2], 2)).remove(0);
    assert_eq!((nodes(&start), start.last.map(|last| last.end)), (vec![1, 2, 3], Some(AttemptEnd::NodeJoined)));
    // Two more: one has a place, the other is a spare.
    let mut round = running(&[1, 2, 3], 0);
    let effects = [round.join(join(4, &range())), round.join(join(5, &range()))].concat();
    assert!(matches!(stops(&effects)[0].why, Why::Joined { .. }), "no window once the job is complete");
    let start = starts(&again(&mut round, &[1, 2, 3], 2)).remove(0);
    assert_eq!(nodes(&start), [1, 2, 3, 4]);
    assert!(stops(&round.pass(WINDOW * 2, &[1, 2, 3, 4, 5])).is_empty());
    // The spare takes the place of a lost node.
    round.step(Event::Gone { link: 3 });
    let start = starts(&again(&mut round, &[1, 2, 4], 3)).remove(0);
    assert_eq!(nodes(&start), [1, 2, 5, 4]);
}

#[test]
fn spares_come_and_go_unnoticed_and_hear_the_end() {
    let mut round = running(&[1, 2, 3, 4], 0);
    round.join(join(5, &range()));
    round.join(join(6, &range()));
    assert!(sent(&round.step(Event::Closed { link: 5 })).is_empty());
    let effects = round.stands(6, 1, Stage::Interrupted { signal: Some(15), kill: false });
    assert_eq!(decision(&effects).map(|decision| decision.outcome), Some(Outcome::Interrupted));
    assert!(stops(&effects).is_empty());
    round.join(join(7, &range()));
    let effects: Vec<Effect> = (1..=4).flat_map(|link| round.stands(link, 1, Stage::Succeeded)).collect();
    let (links, _) = sent(&effects).pop().expect("the decision");
    assert_eq!(links, [1, 2, 3, 4, 7]);
}

#[test]
fn a_node_that_is_stopped_leaves_and_the_coordinators_own_ends_the_job() {
    let mut round = running(&[1, 2, 3], 0);
    let effects = round.stands(3, 1, Stage::Interrupted { signal: Some(15), kill: false });
    assert!(matches!(stops(&effects)[0].why, Why::NodeLost { how: Loss::Left, .. }));
    let its = decision(&effects).expect("its own");
    assert_eq!((its.outcome, its.restart), (Outcome::Interrupted, None));
    let start = starts(&again(&mut round, &[1, 2], 2)).remove(0);
    assert_eq!((nodes(&start), start.last.map(|last| last.end)), (vec![1, 2], Some(AttemptEnd::NodeLeft)));
    let effects = round.stands(1, 2, Stage::Interrupted { signal: Some(2), kill: false });
    let decided = decision(&effects).expect("the end");
    assert_eq!((decided.outcome, decided.restart), (Outcome::Interrupted, None));
    let mut round = running(&[1, 2, 3], 0);
    let effects = round.step(Event::Gone { link: 1 });
    assert!(matches!(stops(&effects)[0].why, Why::NodeLost { .. }));
    let effects = again(&mut round, &[2, 3], 2);
    assert_eq!(decision(&effects).and_then(|decision| decision.restart), None, "its coordinator is lost");
}

#[test]
fn failures_count_and_a_node_that_keeps_failing_is_left_out() {
    let mut round = running(&[1, 2, 3], 9);
    for attempt in 1..=3 {
        round.stands(3, attempt, Stage::Failed { waited: false });
        round.stands(1, attempt, Stage::Told(Vec::new()));
        round.stands(2, attempt, Stage::Told(Vec::new()));
        let effects = round.stands(3, attempt, own(4));
        let mut decisions = sent(&effects).into_iter().filter_map(|(links, message)| match message {
            ToAgent::Decision(decision) => Some((links, decision)),
            _ => None,
        });
        if attempt == 3 {
            let (links, its) = decisions.next().expect("its own");
            assert_eq!((links, its.restart), (vec![3], None));
            assert!(matches!(its.why, Some(Why::RankFailed { .. })));
        }
        let (_, theirs) = decisions.next().expect("that of the others");
        assert!(theirs.restart.is_some());
        let links: &[u64] = if attempt == 3 { &[1, 2] } else { &[1, 2, 3] };
        assert_eq!(matches!(theirs.why, Some(Why::NodeLost { how: Loss::LeftOut { failures: 3 }, .. })), attempt == 3);
        let next = attempt + 1;
        let effects: Vec<Effect> =
            links.iter().flat_map(|link| round.stands(*link, next, ready(next, 2).stage)).collect();
        assert_eq!(nodes(&starts(&effects)[0]), links);
    }
    // Without restarts, the first failure ends the job.
    let mut round = running(&[1, 2, 3], 0);
    round.stands(3, 1, Stage::Failed { waited: false });
    let effects = [round.stands(3, 1, own(4)), again(&mut round, &[1, 2], 2)].concat();
    assert_eq!(decision(&effects).map(|decision| (decision.outcome, decision.restart)), Some((Outcome::Failed, None)));
}

#[test]
fn who_was_given_up_is_refused() {
    let mut round = running(&[1, 2, 3], 0);
    round.step(Event::Gone { link: 3 });
    again(&mut round, &[1, 2], 2);
    let mut stale = join(3, &range());
    stale.standing.stage = Stage::Running;
    assert_eq!(refusal(&round.join(stale)), Some(Refusal::GivenUp));
    assert_eq!(refusal(&round.join(join(3, &range()))), None, "a new launch is welcome");
}

#[test]
fn a_node_that_does_not_fit_does_not_end_a_job_that_has_started() {
    let mut round = running(&[1, 2], 0);
    let effects = round.join(join(3, &Expects::Range { min: 2, max: 5 }));
    assert!(matches!(refusal(&effects), Some(Refusal::OtherNodes { .. })));
    assert!(stops(&effects).is_empty() && decision(&effects).is_none());
    // Before that it does: they cannot all be right.
    let (mut round, _) = joined(&[1, 2], 0);
    let effects = round.join(join(3, &Expects::Range { min: 2, max: 5 }));
    assert!(matches!(decision(&effects), Some(Decision { why: Some(Why::Refused { .. }), .. })));
}

#[test]
fn a_lost_node_that_comes_back_too_soon_joins_later_or_ends() {
    let mut round = running(&[1, 2, 3, 4], 0);
    round.step(Event::Gone { link: 3 });
    round.step(Event::Gone { link: 4 });
    // The attempt that lost them is not decided yet.
    assert_eq!(refusal(&reconnect(&mut round, 3, Standing::new(1, Stage::Running))), Some(Refusal::GivenUp));
    let effects = reconnect(&mut round, 4, ready(1, 2));
    assert_eq!(effects, [Effect::Close { link: 14 }], "it tries again");
    assert_eq!(nodes(&starts(&again(&mut round, &[1, 2], 2))[0]), [1, 2]);
    assert!(refusal(&reconnect(&mut round, 4, ready(1, 2))).is_none());
}

#[test]
fn a_member_that_missed_its_start_is_ready_again() {
    let mut round = running(&[1, 2, 3], 0);
    round.step(Event::Closed { link: 3 });
    round.step(Event::Gone { link: 2 });
    round.stands(1, 1, Stage::Told(Vec::new()));
    assert!(starts(&round.stands(1, 2, ready(2, 2).stage)).is_empty(), "one is not enough");
    // It may have had the start, whose ranks would run, until it says otherwise.
    let effects = reconnect(&mut round, 3, ready(1, 2));
    assert_eq!(decision(&effects).map(|decision| decision.attempt), Some(1));
    assert!(starts(&effects).is_empty());
    assert_eq!(nodes(&starts(&round.stands(13, 2, ready(2, 2).stage))[0]), [1, 3]);
    // One that was forgotten meanwhile is a new node.
    let mut round = running(&[1, 2], 0);
    round.step(Event::Gone { link: 2 });
    again(&mut round, &[1], 2);
    assert_eq!(nodes(&starts(&reconnect(&mut round, 2, ready(1, 2)))[0]), [1, 2]);
}

#[test]
fn a_newcomer_is_as_ready_for_a_later_start() {
    let mut agent = Agent::new(join(3, &range()), Limits::default(), at(0));
    agent.step(agent::Event::Tick, at(0));
    agent.step(agent::Event::Connected, at(1));
    hear(&mut agent, ToAgent::Welcome, 2);
    for attempt in [1, 4] {
        let restart = Some(Restart { attempt: attempt + 1, delay: Duration::ZERO, moves: false });
        let why = Some(Why::Joined { nodes: Vec::new() });
        let (verdict, places) = (None, Vec::new());
        let decision = Decision { attempt, outcome: Outcome::Failed, why, verdict, places, restart, alone: false };
        let effects = hear(&mut agent, ToAgent::Decision(Box::new(decision)), 3);
        assert_eq!(news(&effects), [], "it has seen no attempt that ended");
        assert_eq!(said(&effects), [(attempt + 1, ready(1, 2).stage)]);
    }
    let end = Decision {
        attempt: 7,
        outcome: Outcome::Succeeded,
        why: None,
        verdict: None,
        places: Vec::new(),
        restart: None,
        alone: false,
    };
    assert!(hear(&mut agent, ToAgent::Decision(Box::new(end)), 4).contains(&agent::Effect::Send(FromAgent::Bye)));
}

#[test]
fn a_guest_that_reconnects_hears_of_no_attempt_that_ended() {
    let mut round = running(&[1, 2, 3, 4], 1);
    round.join(join(5, &range()));
    round.stands(4, 1, Stage::Failed { waited: false });
    for link in 1..=3 {
        round.stands(link, 1, Stage::Told(Vec::new()));
    }
    round.stands(4, 1, own(7));
    for link in 1..=4 {
        round.stands(link, 2, ready(2, 2).stage);
    }
    let effects = reconnect(&mut round, 5, ready(1, 2));
    assert_eq!((decision(&effects), starts(&effects).len()), (None, 1));
}

#[test]
fn ranks_of_an_attempt_before_the_last_are_given_up() {
    let mut round = running(&[1, 2], 0);
    for attempt in 2..=3 {
        round.join(join(attempt as u8 + 1, &range()));
        let members: &[u64] = if attempt == 2 { &[1, 2] } else { &[1, 2, 3] };
        round.pass(WINDOW + 500, &[1, 2, 3, 4]);
        assert_eq!(starts(&again(&mut round, members, attempt)).len(), 1);
    }
    assert_eq!(refusal(&reconnect(&mut round, 2, Standing::new(1, Stage::Running))), Some(Refusal::GivenUp));
    assert!(refusal(&reconnect(&mut round, 2, ready(1, 2))).is_none());
}

#[test]
fn a_node_that_is_slow_to_stop_is_not_lost_when_others_join() {
    let mut round = running(&[1, 2, 3], 0);
    round.join(join(4, &range()));
    round.stands(1, 1, Stage::Told(Vec::new()));
    round.stands(3, 1, Stage::Told(Vec::new()));
    round.now = round.now + Duration::from_millis(1500);
    let decided = decision(&round.step(Event::Tick)).expect("the time is over");
    assert!(matches!(decided.why, Some(Why::Joined { .. })), "{decided:?}");
}
