//! Jobs over etcd: another node becomes the coordinator. And what keeps two sides from training at once.

use std::time::Duration;

use super::super::messages::{
    AttemptEnd, Expects, Join, LastAttempt, Loss, Refusal, Stage, Standing, Start, ToAgent, Why,
};
use super::{Round, at, decision, hear, join, news, options, own, ready, sent, starts, stops};
use crate::facts::Outcome;
use crate::machine::round::agent::{self, Agent, News};
use crate::machine::round::coordinator::{Effect, Event, Options, Past, Succession};
use crate::machine::round::limits::Limits;
use crate::model::{ElasticLevel, Endpoint, Port};

fn range() -> Expects {
    Expects::Range { min: 2, max: 4 }
}

fn store() -> Endpoint {
    Endpoint { address: "192.168.0.1".parse().unwrap(), port: Port::new(7000).unwrap() }
}

fn over_etcd(past: Option<Past>) -> Options {
    Options {
        succession: Some(Succession { at: store(), has_store: true, past, unknown: None }),
        ..options(&range(), 3)
    }
}

fn begin(options: Options, nodes: &[u8]) -> (Round, Vec<Effect>) {
    let mut round = Round::new(options);
    let effects = nodes.iter().flat_map(|node| round.join(join(*node, &range()))).collect();
    (round, effects)
}

/// Four nodes run the first attempt.
fn running(options: Options) -> (Round, Start) {
    let (round, effects) = begin(options, &[1, 2, 3, 4]);
    let start = starts(&effects).remove(0);
    (round, start)
}

fn nodes(start: &Start) -> Vec<u64> {
    start.nodes.iter().map(|node| node.launch).collect()
}

fn past(start: &Start, attempt: u32) -> Past {
    let start = Box::new(Start { attempt, ..start.clone() });
    Past { start, coordinator: 1, end: AttemptEnd::NodeLost, patience: Duration::from_secs(20) }
}

/// The node with this number as the coordinator, after the first was lost.
fn successor(past: Past) -> Round {
    Round::new(Options { launch: 2, ..over_etcd(Some(past)) })
}

fn comes(round: &mut Round, node: u8, attempt: u32) -> Vec<Effect> {
    round.join(Join { standing: ready(attempt, 2), ..join(node, &range()) })
}

#[test]
fn a_job_goes_on_where_it_was() {
    let (_, start) = running(over_etcd(None));
    assert_eq!((nodes(&start), start.torch_store), (vec![1, 2, 3, 4], store()));
    let mut round = successor(past(&start, 5));
    comes(&mut round, 2, 6);
    assert!(starts(&comes(&mut round, 3, 6)).is_empty(), "the others are awaited");
    let next = starts(&comes(&mut round, 4, 6)).remove(0);
    assert_eq!((next.attempt, nodes(&next)), (6, vec![4, 2, 3]));
    let last = next.last.unwrap();
    assert_eq!((last.world, last.end, last.changes), (8, AttemptEnd::NodeLost, 1));
}

/// Its members are unknown, and some may still run.
#[test]
fn a_node_has_seen_a_later_attempt_than_the_coordinator() {
    let (_, start) = running(over_etcd(None));
    let mut round = successor(past(&start, 5));
    comes(&mut round, 2, 6);
    comes(&mut round, 3, 7);
    assert!(starts(&comes(&mut round, 4, 6)).is_empty());
    assert_eq!(starts(&round.pass(20_500, &[2, 3, 4]))[0].attempt, 7);
}

#[test]
fn nodes_that_stay_away_are_awaited_until_their_ranks_have_stopped() {
    let (_, start) = running(over_etcd(None));
    let mut round = successor(past(&start, 1));
    comes(&mut round, 2, 2);
    comes(&mut round, 3, 2);
    assert!(starts(&round.pass(19_000, &[2, 3])).is_empty());
    assert_eq!(nodes(&starts(&round.pass(1500, &[2, 3]))[0]), [3, 2], "no window follows");
}

/// Nodes that know nothing of a job that did not end.
#[test]
fn ranks_of_an_unknown_past_are_awaited() {
    let unknown = Some(Duration::from_secs(20));
    let options = Options {
        succession: Some(Succession { at: store(), has_store: true, past: None, unknown }),
        ..options(&range(), 3)
    };
    let (mut round, effects) = begin(options, &[1, 2, 3, 4]);
    assert!(starts(&effects).is_empty() && starts(&round.pass(19_000, &[1, 2, 3, 4])).is_empty());
    let start = starts(&round.pass(1500, &[1, 2, 3, 4])).remove(0);
    assert_eq!((start.attempt, start.last), (1, None));
    // One that waits for nodes has nothing to do before they come.
    let (_, start) = running(over_etcd(None));
    let mut round = successor(past(&start, 1));
    comes(&mut round, 2, 2);
    round.pass(25_000, &[2]);
    assert!(round.coordinator.deadline() > Some(round.now));
}

/// A fence before the coordinator's own node has joined.
#[test]
fn a_coordinator_alone_stops_too() {
    let mut round = Round::new(over_etcd(None));
    round.step(Event::Fenced(Loss::Fenced));
    assert!(
        starts(&[1, 2, 3, 4].into_iter().flat_map(|node| round.join(join(node, &range()))).collect::<Vec<_>>())
            .is_empty()
    );
}

/// Attempts 1 to 3 ended with failures, and the fourth with its coordinator. Those that are long ago do not count.
#[test]
fn restarts_are_counted_over_coordinators() {
    for (counted, is_spent) in [(3, true), (2, false)] {
        let (_, mut start) = running(over_etcd(None));
        start.last = Some(LastAttempt { world: 8, end: AttemptEnd::RankFailed, changes: 0, counted });
        let mut round = successor(past(&start, 4));
        for node in 2..=4 {
            comes(&mut round, node, 5);
        }
        round.stands(3, 5, Stage::Failed { waited: false });
        for link in [2, 4] {
            round.stands(link, 5, Stage::Told(Vec::new()));
        }
        let decided = decision(&round.stands(3, 5, own(2))).expect("all have told");
        assert_eq!(decided.restart.is_none(), is_spent, "{counted} of 3 restarts are spent");
    }
}

#[test]
fn a_coordinator_that_is_stopped_hands_over() {
    let (mut round, _) = running(over_etcd(None));
    let effects = round.stands(1, 1, Stage::Interrupted { signal: Some(15), kill: false });
    let decisions: Vec<_> = sent(&effects)
        .into_iter()
        .filter_map(|(links, message)| match message {
            ToAgent::Decision(decision) => Some((links, decision.outcome, decision.moves())),
            _ => None,
        })
        .collect();
    assert_eq!(decisions, [(vec![1], Outcome::Interrupted, false), (vec![2, 3, 4], Outcome::Failed, true)]);
    let byes: Vec<Effect> = (2..=4).flat_map(|link| round.step(Event::Bye { link })).collect();
    assert!(byes.contains(&Effect::Finish));
    // `umiak stop` is about the whole job.
    let (mut round, _) = running(over_etcd(None));
    let effects = round.stands(3, 1, Stage::Interrupted { signal: None, kill: false });
    let decided = decision(&effects).expect("it ends");
    assert_eq!((decided.outcome, decided.restart), (Outcome::Stopped, None));
}

#[test]
fn a_coordinator_without_its_lease_stops_all() {
    let (mut round, _) = running(over_etcd(None));
    let effects = round.step(Event::Fenced(Loss::Fenced));
    let (links, _) = sent(&effects).remove(0);
    let decided = decision(&effects).expect("it ends here");
    assert_eq!(links, [1, 2, 3, 4]);
    assert!(decided.moves() && matches!(decided.why, Some(Why::NodeLost { how: Loss::Fenced, .. })));
    assert!(round.step(Event::Fenced(Loss::Fenced)).is_empty());
}

#[test]
fn the_number_of_nodes_is_changed() {
    let (mut round, _) = running(over_etcd(None));
    let effects = round.step(Event::Scaled { min: 1, max: 3 });
    assert_eq!(stops(&effects)[0].why, Why::Scaled { min: 1, max: 3 });
    for link in 1..=4 {
        round.stands(link, 1, Stage::Told(Vec::new()));
    }
    let ready: Vec<Effect> = (1..=4).flat_map(|link| round.stands(link, 2, ready(2, 2).stage)).collect();
    let start = starts(&ready).remove(0);
    assert_eq!((nodes(&start), start.last.unwrap().end), (vec![1, 2, 3], AttemptEnd::Scaled));
    // More again: the spare takes part after the window.
    assert!(matches!(stops(&round.step(Event::Scaled { min: 1, max: 4 }))[0].why, Why::Joined { .. }));
    let (mut round, _) = running(over_etcd(None));
    assert!(stops(&round.step(Event::Scaled { min: 4, max: 9 })).is_empty(), "four fit");
}

/// Rank 0 hosts it, unless umiak does.
#[test]
fn the_store_of_ranks_is_not_at_the_coordinators_port() {
    let succession = Some(Succession { at: store(), has_store: false, past: None, unknown: None });
    let (_, start) = running(Options { succession, ..options(&range(), 0) });
    assert_ne!(start.torch_store.port, store().port);
}

/// On a node that does not take part.
#[test]
fn a_stop_on_a_spare_is_about_the_job() {
    let (mut round, _) = running(over_etcd(None));
    round.join(join(5, &range()));
    let decided = decision(&round.stands(5, 1, Stage::Interrupted { signal: None, kill: false })).expect("it ends");
    assert_eq!(decided.outcome, Outcome::Stopped);
}

#[test]
fn levels() {
    // Off: any failure is the last.
    let (mut round, _) = running(Options { level: ElasticLevel::Off, ..over_etcd(None) });
    round.step(Event::Gone { link: 4 });
    let told: Vec<Effect> = (1..=3).flat_map(|link| round.stands(link, 1, Stage::Told(Vec::new()))).collect();
    assert_eq!(decision(&told).map(|decision| decision.restart), Some(None));
    // Nodes: one whose rank fails is left out at once, the coordinator's own too.
    for (node, moves) in [(3, false), (1, true)] {
        let (mut round, _) = running(Options { level: ElasticLevel::Nodes, ..over_etcd(None) });
        round.stands(node, 1, Stage::Failed { waited: false });
        let mut effects = Vec::new();
        for link in (1..=4).filter(|link| *link != node) {
            effects.extend(round.stands(link, 1, Stage::Told(Vec::new())));
        }
        effects.extend(round.stands(node, 1, own((node as u32 - 1) * 2)));
        let decisions = sent(&effects).into_iter().filter_map(|(links, message)| match message {
            ToAgent::Decision(decision) => Some((links, decision)),
            _ => None,
        });
        let decisions: Vec<_> = decisions.collect();
        assert_eq!((&*decisions[0].0, decisions[0].1.restart), (&[node][..], None));
        assert_eq!((decisions[1].1.restart.is_some(), decisions[1].1.moves()), (true, moves));
    }
}

#[test]
fn a_node_stops_before_it_is_given_up() {
    let limits = Limits::default();
    let mut agent = Agent::new(join(2, &range()), limits, at(0));
    agent.step(agent::Event::Tick, at(0));
    agent.step(agent::Event::Connected, at(1));
    hear(&mut agent, ToAgent::Welcome, 2);
    let pass = |agent: &mut Agent, from: u64, to: u64| -> Vec<News> {
        (from..=to).step_by(500).flat_map(|time| news(&agent.step(agent::Event::Tick, at(time)))).collect()
    };
    // Without ranks, it waits. A start that was on its way for so long may be over.
    assert_eq!(pass(&mut agent, 500, 21_000), [News::Quiet]);
    let (mut round, start) = running(options(&range(), 0));
    let late = hear(&mut agent, ToAgent::Start(start.clone()), 21_000);
    assert!(late.contains(&agent::Effect::Disconnect) && news(&late) == [News::Back], "{late:?}");
    agent.step(agent::Event::Connected, at(21_000));
    hear(&mut agent, ToAgent::Welcome, 21_000);
    assert!(matches!(news(&hear(&mut agent, ToAgent::Start(start), 21_000))[..], [News::Start(_)]));
    agent.step(agent::Event::Standing(Standing::new(1, Stage::Running)), at(21_000));
    // The coordinator does not hear it. Whatever else it says does not keep the ranks running.
    assert!(matches!(stops(&round.pass(31_000, &[1, 3, 4]))[0].why, Why::NodeLost { .. }));
    assert_eq!(pass(&mut agent, 21_500, 40_500), [News::Quiet]);
    hear(&mut agent, ToAgent::Suspects { nodes: Vec::new() }, 40_500);
    let lost = News::Lost(Loss::Silent { after: limits.fence() });
    assert_eq!(pass(&mut agent, 41_000, 41_000), [lost]);
}

#[test]
fn heartbeats_are_answered_until_the_job_moves() {
    let (mut round, _) = running(over_etcd(None));
    let answer = Effect::Send { links: vec![2], message: ToAgent::Beat { sent: at(7) } };
    let beat = Event::Beat { link: 2, sent: at(7) };
    assert!(round.step(beat.clone()).contains(&answer));
    round.step(Event::Fenced(Loss::Fenced));
    assert!(!round.step(beat).contains(&answer), "nodes that miss the decision stop by themselves");
}

#[test]
fn a_coordinator_whose_node_never_joined_hands_over() {
    let mut round = Round::new(over_etcd(None));
    assert!(round.join(join(2, &range())).is_empty(), "it waits for the first node");
    let effects = round.step(Event::Deserted);
    assert!(effects.contains(&Effect::Close { link: 2 }));
    let effects = round.join(join(2, &range()));
    assert!(matches!(&sent(&effects)[..], [(_, ToAgent::Refused(Refusal::TooLate))]), "{effects:?}");
}

#[test]
fn an_earlier_connection_that_arrives_late_is_closed() {
    let (mut round, _) = running(over_etcd(None));
    let back = Join { connected: at(3), standing: Standing::new(1, Stage::Running), ..join(2, &range()) };
    let late = Join { connected: at(2), standing: ready(1, 2), ..join(2, &range()) };
    round.step(Event::Joined { link: 12, join: Box::new(back), source: None });
    let effects = round.step(Event::Joined { link: 13, join: Box::new(late), source: None });
    assert_eq!(effects, [Effect::Close { link: 13 }]);
}

#[test]
fn a_member_whose_connection_broke_is_awaited() {
    let (mut round, _) = running(over_etcd(None));
    round.step(Event::Closed { link: 3 });
    round.stands(2, 1, Stage::Failed { waited: false });
    round.stands(2, 1, Stage::Told(vec![]));
    round.pass(12_000, &[1, 2, 4]);
    for link in [1, 2, 4] {
        assert!(starts(&round.step(Event::Standing { link, standing: ready(2, 2) })).is_empty());
    }
    assert!(starts(&round.pass(17_000, &[1, 2, 4])).is_empty(), "its ranks may run");
    assert_eq!(starts(&round.pass(3_000, &[1, 2, 4])).len(), 1);
}

#[test]
fn a_member_that_has_left_its_attempt_is_not_told_to_start_it() {
    let (mut round, _) = running(over_etcd(None));
    // It took the coordinator for lost, and found the same one.
    let back = Join { standing: ready(2, 2), ..join(3, &range()) };
    let effects = round.step(Event::Joined { link: 9, join: Box::new(back), source: None });
    assert!(starts(&effects).is_empty());
    assert!(effects.contains(&Effect::Close { link: 9 }));
    assert!(matches!(stops(&effects)[0].why, Why::NodeLost { .. }));
}
