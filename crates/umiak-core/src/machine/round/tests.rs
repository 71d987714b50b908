mod elastic;
mod succession;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::agent::{self, Agent, News};
use super::coordinator::{self, Coordinator, Effect, Event, Options};
use super::limits::{ANSWER, CONNECT, GOODBYE, Limits, NEWS, REFUSED, TELL};
use super::messages::{
    Answer, Decision, Expects, FromAgent, JobKind, Join, Loss, NodeProcess, Offer, RankPlace, Refusal, Restart,
    Servers, Stage, Standing, Start, Stop, ToAgent, Told, Why,
};
use crate::diagnose;
use crate::facts::{Evidence, Limit, Outcome, Subject};
use crate::machine::job::NODE_LOST;
use crate::model::{self, Exit, Part, Port, Rank, SpawnError, SpawnStage, Timestamp};

const SETTLE: Duration = Duration::from_millis(500);

fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(millis * 1000)
}

fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

fn list(lasts: &[u8]) -> Expects {
    Expects::List(lasts.iter().map(|last| address(*last)).collect())
}

fn count(nodes: u32, sort_ip: bool) -> Expects {
    Expects::Count { nodes, sort_ip }
}

fn ready(attempt: u32, processes: u16) -> Standing {
    let port = |number| Port::new(number).unwrap();
    let processes = (0..processes).map(|local| NodeProcess::trainer(port(6000 + local), vec![])).collect();
    Standing::new(attempt, Stage::Ready(Offer { processes, stores: [port(7000), port(7001)], device_kind: None }))
}

fn join(last: u8, expects: &Expects) -> Join {
    Join {
        connected: at(1),
        launch: u64::from(last),
        command: 1,
        line: String::new(),
        address: address(last),
        host: format!("host{last}"),
        expects: expects.clone(),
        kind: JobKind::Collective,
        rank: None,
        uneven: false,
        logs: false,
        alive: None,
        standing: ready(1, 2),
    }
}

fn options(expects: &Expects, restarts: u32) -> Options {
    Options {
        expects: expects.clone(),
        launch: 1,
        uneven: false,
        limits: Limits::default(),
        settle: SETTLE,
        hang: Some(Duration::from_secs(4)),
        restart: model::Restart { max: restarts, ..model::Restart::default() },
        window: Duration::from_secs(30),
        level: model::ElasticLevel::Ranks,
        succession: None,
        seed: 1,
    }
}

/// A coordinator whose node `n` uses link `n`.
struct Round {
    coordinator: Coordinator,
    now: Timestamp,
}

impl Round {
    fn new(options: Options) -> Self {
        Self { coordinator: Coordinator::new(options, at(0)), now: at(0) }
    }

    /// Three listed nodes, running.
    fn running(restarts: u32) -> Self {
        let expects = list(&[1, 2, 3]);
        let mut round = Self::new(options(&expects, restarts));
        let effects: Vec<Effect> = [1, 2, 3].into_iter().flat_map(|last| round.join(join(last, &expects))).collect();
        assert_eq!(starts(&effects).len(), 1);
        round
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        self.coordinator.step(event, self.now)
    }

    fn join(&mut self, join: Join) -> Vec<Effect> {
        self.join_from(None, join)
    }

    fn join_from(&mut self, source: Option<u8>, join: Join) -> Vec<Effect> {
        self.step(Event::Joined { link: join.launch, join: Box::new(join), source: source.map(address) })
    }

    fn stands(&mut self, link: u64, attempt: u32, stage: Stage) -> Vec<Effect> {
        self.step(Event::Standing { link, standing: Standing::new(attempt, stage) })
    }

    /// Time passes; these links send a heartbeat twice a second.
    fn pass(&mut self, millis: u64, heard: &[u64]) -> Vec<Effect> {
        let mut effects = Vec::new();
        let end = self.now + Duration::from_millis(millis);
        while self.now < end {
            self.now = end.min(self.now + Duration::from_millis(500));
            for link in heard {
                effects.extend(self.step(Event::Beat { link: *link, sent: self.now }));
            }
            effects.extend(self.step(Event::Tick));
        }
        effects
    }
}

fn sent(effects: &[Effect]) -> Vec<(Vec<u64>, ToAgent)> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send { message: ToAgent::Beat { .. }, .. } => None,
        Effect::Send { links, message } => Some((links.clone(), message.clone())),
        _ => None,
    });
    sent.collect()
}

fn starts(effects: &[Effect]) -> Vec<Start> {
    let starts = sent(effects).into_iter().filter_map(|(_, message)| match message {
        ToAgent::Start(start) => Some(start),
        _ => None,
    });
    starts.collect()
}

fn stops(effects: &[Effect]) -> Vec<Stop> {
    let stops = sent(effects).into_iter().filter_map(|(_, message)| match message {
        ToAgent::Stop(stop) => Some(stop),
        _ => None,
    });
    stops.collect()
}

fn decision(effects: &[Effect]) -> Option<Decision> {
    sent(effects).into_iter().find_map(|(_, message)| match message {
        ToAgent::Decision(decision) => Some(*decision),
        _ => None,
    })
}

fn refusal(effects: &[Effect]) -> Option<Refusal> {
    sent(effects).into_iter().find_map(|(_, message)| match message {
        ToAgent::Refused(refusal) => Some(refusal),
        _ => None,
    })
}

/// The end of a rank: with an error of its own, after losing a peer, or without output.
fn told(rank: u32, signature: Option<&str>, traceback: bool) -> Told {
    let signature = signature.and_then(diagnose::explain).map(diagnose::Signature::to_match);
    let traceback = if traceback { vec!["Traceback (most recent call last):".to_owned()] } else { vec![] };
    Told {
        end: diagnose::End {
            subject: Subject { replica: format!("trainer-{rank}"), rank: Some(Rank(rank)), attempt: 1 },
            exit: Exit::Code { code: 1 },
            classed: None,
            ran: Duration::from_secs(1),
            order: 0,
            by_us: false,
            before_stop: true,
            serves: false,
            timed_out: None,
            evidence: Some(Evidence { traceback, signature, ..Evidence::default() }),
            snapshot: None,
            addresses: Vec::new(),
            usage: None,
        },
        place: RankPlace { rank, ..RankPlace::default() },
    }
}

/// A trainer that did not start because servers on another node did not answer.
fn unmet(rank: u32) -> Stage {
    let mut told = told(rank, None, false);
    let exit = Exit::Unmet { role: "pserver".into(), reason: "no answer".into() };
    (told.end.exit, told.end.timed_out) = (exit, Some(Limit::Start));
    Stage::Told(vec![told])
}

fn own(rank: u32) -> Stage {
    Stage::Told(vec![told(rank, None, true)])
}

fn victim(rank: u32) -> Stage {
    Stage::Told(vec![told(rank, Some("U9202"), false)])
}

fn causes(decision: &Decision) -> Vec<u32> {
    let causes = decision.verdict.iter().flat_map(|verdict| &verdict.causes);
    causes.filter_map(|cause| cause.subject.rank).map(|rank| rank.0).collect()
}

/// The last part of the address of the node that was lost.
fn lost(decision: &Decision) -> Option<IpAddr> {
    match &decision.why {
        Some(Why::NodeLost { node, .. }) => Some(node.address),
        _ => None,
    }
}

#[test]
fn who_is_refused() {
    let three = list(&[1, 2, 3]);
    let any = count(3, false);
    let ranked = |last, rank| Join { rank: Some(rank), ..join(last, &any) };
    let is = |expects: &Expects, here: Vec<Join>, comes: Join, wanted: fn(&Refusal) -> bool| {
        let mut round = Round::new(options(expects, 0));
        for join in here {
            assert_eq!(refusal(&round.join(join)), None);
        }
        let effects = round.join(Join { launch: 99, ..comes });
        let refused = refusal(&effects).expect("it is refused");
        assert!(wanted(&refused), "{refused:?}");
        assert!(effects.contains(&Effect::Close { link: 99 }));
        // Shown here too: as a notice, or as the reason of the end.
        let shown = effects.iter().any(|effect| matches!(effect, Effect::Refused { .. }));
        let ended = decision(&effects).is_some_and(|decision| matches!(decision.why, Some(Why::Refused { .. })));
        assert_eq!((shown, ended), (!refused.is_contradiction(), refused.is_contradiction()), "{refused:?}");
    };
    is(&three, vec![join(1, &three)], join(2, &list(&[1, 3, 2])), |why| matches!(why, Refusal::OtherNodes { .. }));
    is(&three, vec![join(1, &three)], join(2, &any), |why| matches!(why, Refusal::OtherNodes { .. }));
    is(&three, vec![join(1, &three)], Join { kind: JobKind::Servers, ..join(2, &three) }, |why| {
        matches!(why, Refusal::Kinds { ours: JobKind::Collective, theirs: JobKind::Servers, .. })
    });
    is(&three, vec![join(1, &three)], Join { address: address(9), ..join(2, &three) }, |why| {
        matches!(why, Refusal::NotListed { .. })
    });
    is(&three, vec![join(1, &three), join(2, &three)], join(2, &three), |why| {
        matches!(why, Refusal::Taken { same_command: true, .. })
    });
    is(&three, vec![join(1, &three), join(2, &three)], Join { command: 2, ..join(2, &three) }, |why| {
        matches!(why, Refusal::Taken { same_command: false, .. })
    });
    is(&any, vec![ranked(1, 0)], ranked(2, 0), |why| matches!(why, Refusal::Rank { rank: 0, by: Some(_), .. }));
    is(&any, vec![ranked(1, 0)], ranked(2, 3), |why| matches!(why, Refusal::Rank { rank: 3, by: None, .. }));
    is(&any, vec![ranked(1, 0)], join(2, &any), |why| *why == Refusal::MixedRanks);
    is(&three, vec![join(1, &three)], Join { standing: ready(1, 3), ..join(2, &three) }, |why| {
        matches!(why, Refusal::Processes { ours: 2, theirs: 3, .. })
    });
    let full = Expects::Count { nodes: 1, sort_ip: false };
    let mut round = Round::new(options(&full, 0));
    round.join(Join { standing: Standing::new(1, Stage::Succeeded), ..join(1, &full) });
    assert_eq!(refusal(&round.join(join(2, &full))), Some(Refusal::Full { nodes: 1 }));
    let mut round = Round::running(0);
    assert_eq!(refusal(&round.join(join(4, &three))), Some(Refusal::TooLate));
}

#[test]
fn an_address_belongs_to_one_source() {
    let three = count(3, false);
    let round = |source: Option<u8>| {
        let mut round = Round::new(options(&three, 0));
        round.join(join(1, &three));
        assert_eq!(refusal(&round.join_from(source, join(2, &three))), None);
        round
    };
    let same_address = Join { launch: 3, address: address(2), ..join(3, &three) };
    // Two nodes of one host.
    assert_eq!(refusal(&round(Some(2)).join_from(Some(2), same_address.clone())), None);
    assert_eq!(refusal(&round(None).join_from(None, same_address.clone())), None);
    for (first, second, shown) in
        [(Some(2), Some(66), None), (Some(66), Some(2), Some(address(66))), (None, Some(66), None)]
    {
        let refused = refusal(&round(first).join_from(second, same_address.clone()));
        assert!(matches!(refused, Some(Refusal::Taken { from, .. }) if from == shown), "{refused:?}");
    }
    // A node that reconnects is known by its launch.
    let mut round = round(Some(2));
    round.step(Event::Closed { link: 2 });
    assert_eq!(refusal(&round.join_from(Some(2), join(2, &three))), None);
}

#[test]
fn refusals_are_summed_up() {
    let mut round = Round::running(0);
    let mut shown = 0;
    let mut summed = Vec::new();
    let mut count = |effects: Vec<Effect>| {
        for effect in effects {
            match effect {
                Effect::Refused { .. } => shown += 1,
                Effect::RefusedMore { count } => summed.push(count),
                _ => {}
            }
        }
    };
    for launch in 100..3_100 {
        count(round.join(Join { launch, ..join(4, &list(&[1, 2, 3])) }));
    }
    count(round.pass(10_000, &[1, 2, 3]));
    // Other addresses are named too, but not all of them.
    for last in 5..50 {
        count(round.join(Join { launch: 9, ..join(last, &list(&[1, 2, 3])) }));
    }
    count(round.pass(10_000, &[1, 2, 3]));
    // The rest comes before the decision: a front that has heard it hears no more.
    count(round.join(Join { launch: 9, ..join(60, &list(&[1, 2, 3])) }));
    let end: Vec<Effect> = [1, 2, 3].into_iter().flat_map(|link| round.stands(link, 1, Stage::Succeeded)).collect();
    let rest = end.iter().position(|effect| matches!(effect, Effect::RefusedMore { .. }));
    let sent = |effect: &Effect| matches!(effect, Effect::Send { message: ToAgent::Decision(_), .. });
    assert!(rest.is_some_and(|rest| end.iter().position(sent).is_some_and(|sent| rest < sent)), "{end:?}");
    count(end);
    assert_eq!((shown, summed), (8, vec![2_999, 45 - 7, 1]));
}

#[test]
fn nodes_that_contradict_each_other_end_all_and_a_second_job_does_not() {
    let three = list(&[1, 2, 3]);
    for (command, ends) in [(1, true), (2, false)] {
        let mut round = Round::new(options(&three, 0));
        round.join(join(1, &three));
        round.join(join(2, &three));
        let effects = round.join(Join { command, standing: ready(1, 3), ..join(3, &three) });
        assert!(matches!(refusal(&effects), Some(Refusal::Processes { ours: 2, theirs: 3, .. })));
        let decided = decision(&effects).map(|decision| (decision.outcome, decision.decided().code));
        assert_eq!(decided, ends.then_some((Outcome::Failed, Some(NODE_LOST))));
        let told = |effect: &Effect| matches!(effect, Effect::Send { links, message: ToAgent::Decision(_) } if *links == [1, 2]);
        assert_eq!(effects.iter().any(told), ends);
    }
    // A node that joins a little later receives it too, and is waited for.
    let mut round = Round::new(options(&three, 0));
    round.join(join(1, &three));
    round.join(Join { standing: ready(1, 3), ..join(2, &three) });
    assert!(!round.step(Event::Bye { link: 1 }).contains(&Effect::Finish));
    let effects = round.join(join(3, &three));
    let told =
        |effect: &Effect| matches!(effect, Effect::Send { links, message: ToAgent::Decision(_) } if *links == [3]);
    assert!(effects.iter().any(told) && effects.contains(&Effect::Finish));
}

#[test]
fn the_others_hear_which_nodes_have_servers_that_do_not_listen() {
    let expects = list(&[1, 2, 3]);
    let mut round = Round::new(Options { uneven: true, ..options(&expects, 0) });
    let serves = |last: u8| {
        let mut join = join(last, &expects);
        if let Stage::Ready(offer) = &mut join.standing.stage {
            offer.processes[0].part = Part::Server;
        }
        join
    };
    round.join(join(1, &expects));
    round.join(serves(2));
    round.join(serves(3));
    let listens =
        |link| Event::Standing { link, standing: Standing { listens: true, ..Standing::new(1, Stage::Serving) } };
    let heard = |effects: &[Effect]| {
        let servers = effects.iter().filter_map(|effect| match effect {
            Effect::Send { message: ToAgent::Servers(servers), .. } => Some(servers.missing.clone()),
            _ => None,
        });
        servers.collect::<Vec<_>>()
    };
    assert_eq!(heard(&round.step(listens(2))), [[2]]);
    assert_eq!(heard(&round.step(listens(2))), [[0; 0]; 0], "a repeated report is not forwarded");
    // A reconnected node receives the last message again, at once.
    let back = Join { standing: Standing::new(1, Stage::Running), ..join(1, &expects) };
    assert_eq!(heard(&round.step(Event::Joined { link: 9, join: Box::new(back), source: None })), [[2]]);
    assert_eq!(heard(&round.step(listens(3))), [[0; 0]]);
}

#[test]
fn an_agent_keeps_saying_that_its_servers_listen() {
    let mut agent = welcomed();
    hear(&mut agent, start(1), 3);
    let listens = |effects: &[agent::Effect]| {
        let said = effects.iter().filter_map(|effect| match effect {
            agent::Effect::Send(FromAgent::Standing(standing)) => Some((standing.attempt, standing.listens)),
            agent::Effect::Send(FromAgent::Join(join)) => Some((join.standing.attempt, join.standing.listens)),
            _ => None,
        });
        said.collect::<Vec<_>>()
    };
    assert_eq!(listens(&agent.step(agent::Event::Listening { attempt: 1 }, at(4))), [(1, true)]);
    assert_eq!(listens(&stand(&mut agent, 1, Stage::Serving, 5)), [(1, true)]);
    agent.step(agent::Event::Closed, at(6));
    assert_eq!(listens(&agent.step(agent::Event::Connected, at(7))), [(1, true)]);
    hear(&mut agent, ToAgent::Welcome, 8);
    hear(&mut agent, decided(1, true), 9);
    assert_eq!(listens(&stand(&mut agent, 2, ready(2, 2).stage, 10)), [(2, false)]);
    // Messages about another attempt are not forwarded.
    let servers = |attempt| ToAgent::Servers(Servers { attempt, missing: vec![] });
    hear(&mut agent, start(2), 11);
    assert_eq!(news(&hear(&mut agent, servers(1), 12)), []);
    assert_eq!(news(&hear(&mut agent, servers(2), 13)), [News::Servers(Servers { attempt: 2, missing: vec![] })]);
}

#[test]
fn the_node_beside_the_coordinator_has_its_place_first() {
    let expects = count(2, false);
    let ranked = |last| Join { rank: Some(0), ..join(last, &expects) };
    let mut round = Round::new(options(&expects, 0));
    assert_eq!(sent(&round.join(ranked(2))), [], "no answer before that");
    assert_eq!(sent(&round.join(ranked(3))), []);
    round.step(Event::Closed { link: 3 });
    let effects = round.join(ranked(1));
    assert!(matches!(refusal(&effects), Some(Refusal::Rank { rank: 0, by: Some(by), .. }) if by.host == "host1"));
    assert!(effects.contains(&Effect::Close { link: 2 }) && !effects.contains(&Effect::Close { link: 3 }));
}

#[test]
fn uneven_nodes_and_nodes_that_cannot_start() {
    let expects = list(&[1, 2]);
    let mut round = Round::new(Options { uneven: true, ..options(&expects, 0) });
    round.join(join(1, &expects));
    let effects = round.join(Join { standing: ready(1, 5), ..join(2, &expects) });
    let sizes: Vec<usize> = starts(&effects)[0].nodes.iter().map(|node| node.processes.len()).collect();
    assert_eq!(sizes, [2, 5]);
    // The reason why it cannot start matters more than its number of processes.
    let mut round = Round::new(options(&expects, 0));
    round.join(join(1, &expects));
    let unable = Standing::new(1, Stage::Unable { why: "no GPU".into() });
    let effects = round.join(Join { standing: unable, ..join(2, &expects) });
    assert!(matches!(decision(&effects).unwrap().why, Some(Why::Unable { why, .. }) if why == "no GPU"));
}

#[test]
fn a_first_node_that_cannot_start() {
    let expects = list(&[1, 2, 3]);
    let mut round = Round::new(options(&expects, 0));
    assert_eq!(round.join(join(2, &expects)), []);
    let unable = Standing::new(1, Stage::Unable { why: "no GPU".into() });
    let early = round.join(Join { standing: unable, ..join(1, &expects) });
    let late = round.join(join(3, &expects));
    for (link, effects) in [(1, &early), (2, &early), (3, &late)] {
        let heard = sent(effects).into_iter().filter(|(to, _)| to.contains(&link));
        let decisions = heard.filter(|(_, message)| matches!(message, ToAgent::Decision(decision) if matches!(&decision.why, Some(Why::Unable { why, .. }) if why == "no GPU")));
        assert_eq!(decisions.count(), 1, "{link}: {effects:?}");
    }
    assert_eq!((refusal(&early), refusal(&late)), (None, None));
}

#[test]
fn the_order_of_nodes() {
    let ranks = [Some(2), Some(0), Some(1)];
    for (expects, ranks, order) in [
        (list(&[1, 3, 2]), [None; 3], [1, 3, 2]),
        (count(3, false), ranks, [2, 1, 3]),
        (count(3, true), ranks, [2, 1, 3]),
        (count(3, true), [None; 3], [1, 2, 3]),
        (count(3, false), [None; 3], [1, 3, 2]),
    ] {
        let mut round = Round::new(options(&expects, 0));
        let mut effects = Vec::new();
        // They join as 3, 2, 1; the coordinator's own is 1. Node 3 has the first of the ranks, and so on.
        for (last, rank) in [3, 2, 1].into_iter().zip(ranks) {
            effects.extend(round.join(Join { rank, ..join(last, &expects) }));
        }
        let starts = starts(&effects);
        let got: Vec<u64> = starts[0].nodes.iter().map(|node| node.launch).collect();
        assert_eq!(got, order, "{expects:?} {ranks:?}");
        assert_eq!(starts[0].paddle_store.address, starts[0].nodes[0].address);
    }
}

#[test]
fn news_are_not_told_more_than_once_a_second() {
    let expects = list(&(1..=100).collect::<Vec<u8>>());
    let mut round = Round::new(options(&expects, 0));
    let is_news = |(_, message): &(Vec<u64>, ToAgent)| matches!(message, ToAgent::Waiting(_));
    let mut effects = Vec::new();
    for last in 1..=50 {
        effects.extend(round.join(join(last, &expects)));
        round.now = round.now + Duration::from_millis(10);
    }
    assert_eq!(sent(&effects).into_iter().filter(is_news).count(), 1);
    round.now = at(0) + NEWS;
    let effects = round.step(Event::Tick);
    let news = sent(&effects).into_iter().find(is_news).expect("a second has passed");
    assert!(matches!(&news.1, ToAgent::Waiting(waiting) if waiting.joined == 50 && waiting.missing.len() == 50));
    // How an address answers, and which nodes were refused.
    round.step(Event::Probed { address: address(60), answer: Answer::Refused });
    round.step(Event::TurnedAway { address: address(60), answer: Answer::OtherToken });
    round.step(Event::Probed { address: address(60), answer: Answer::Silent });
    for junk in 0..5000 {
        let address = IpAddr::V4(Ipv4Addr::from(junk));
        round.step(Event::TurnedAway { address, answer: Answer::Silent });
    }
    let size = format!("{:?}", round.coordinator).len();
    assert!(size < 400_000, "stray connections fill the memory: {size}");
    round.now = round.now + NEWS;
    let effects = round.step(Event::Tick);
    let (_, news) = sent(&effects).into_iter().find(is_news).unwrap();
    let ToAgent::Waiting(waiting) = news else { unreachable!() };
    let sixty = waiting.missing.iter().find(|missing| missing.address == address(60)).unwrap();
    assert_eq!(sixty.answer, Answer::OtherToken);
}

#[test]
fn suspicion_and_loss() {
    let mut round = Round::running(0);
    let effects = round.pass(4500, &[1, 2]);
    assert_eq!(sent(&effects), []);
    let effects = round.pass(1000, &[1, 2]);
    assert!(matches!(&sent(&effects)[..], [(_, ToAgent::Suspects { nodes })] if nodes[0].address == address(3)));
    let effects = round.step(Event::Beat { link: 3, sent: at(0) });
    assert!(matches!(&sent(&effects)[..], [(_, ToAgent::Suspects { nodes })] if nodes.is_empty()));
    let effects = round.pass(32_000, &[1, 2]);
    let Why::NodeLost { node, how: Loss::Silent { .. } } = &stops(&effects)[0].why else { panic!("{effects:?}") };
    assert_eq!((node.node, node.address), (2, address(3)));
    let decision = decision(&effects).unwrap();
    assert_eq!((lost(&decision), causes(&decision)), (Some(address(3)), vec![]));
    // A closed connection has a reconnect window; a killed front has none.
    let mut round = Round::running(0);
    round.step(Event::Closed { link: 2 });
    assert!(stops(&round.pass(59_000, &[1, 3])).is_empty());
    assert!(matches!(
        &stops(&round.pass(2000, &[1, 3]))[0].why,
        Why::NodeLost { how: Loss::Disconnected { .. }, node } if node.address == address(2)
    ));
    let mut round = Round::running(0);
    let effects = round.step(Event::Gone { link: 2 });
    assert!(matches!(&stops(&effects)[0].why, Why::NodeLost { how: Loss::Killed, .. }));
}

#[test]
fn nobody_is_silent_while_the_coordinator_sleeps() {
    let mut round = Round::running(0);
    round.pass(3000, &[1, 2, 3]);
    round.now = round.now + Duration::from_secs(45);
    assert_eq!(sent(&round.step(Event::Tick)), []);
    assert_eq!(sent(&round.pass(3000, &[1, 2, 3])), []);
}

#[test]
fn before_the_start_a_node_comes_and_goes() {
    let expects = list(&[1, 2]);
    let mut round = Round::new(options(&expects, 0));
    round.join(join(1, &expects));
    round.join(Join { standing: Standing::new(1, Stage::Running), ..join(2, &expects) });
    round.step(Event::Closed { link: 2 });
    let effects = round.join(Join { launch: 22, ..join(2, &expects) });
    assert_eq!(starts(&effects)[0].nodes[1].launch, 22);
    // Messages on the old connection are ignored.
    assert_eq!(sent(&round.stands(2, 1, Stage::Failed { waited: false })), []);
}

#[test]
fn who_comes_back_hears_the_current_order() {
    let expects = list(&[1, 2, 3]);
    let back = |attempt, stage| Join { standing: Standing::new(attempt, stage), ..join(2, &expects) };
    let again = |round: &mut Round, join: Join| {
        let effects = round.step(Event::Joined { link: 22, join: Box::new(join), source: None });
        sent(&effects).into_iter().filter(|(links, _)| *links == [22]).map(|(_, message)| message).collect::<Vec<_>>()
    };
    let mut round = Round::running(1);
    assert!(matches!(&again(&mut round, join(2, &expects))[..], [ToAgent::Welcome, ToAgent::Start(_)]));
    let mut round = Round::running(1);
    round.stands(1, 1, Stage::Failed { waited: false });
    assert!(matches!(&again(&mut round, back(1, Stage::Running))[..], [ToAgent::Welcome, ToAgent::Stop(_)]));
    // It missed the decision on the last attempt.
    let mut round = Round::running(1);
    round.step(Event::Closed { link: 2 });
    round.stands(1, 1, own(0));
    let effects = round.pass(2000, &[1, 3]);
    let decided = decision(&effects).unwrap();
    assert!(decided.restart.is_some());
    match &again(&mut round, back(1, Stage::Running))[..] {
        [ToAgent::Welcome, ToAgent::Decision(last), ToAgent::Waiting(_)] => assert_eq!(**last, decided),
        other => panic!("{other:?}"),
    }
    // And the one that there is no other attempt.
    let mut round = Round::running(1);
    round.step(Event::Closed { link: 2 });
    round.stands(1, 1, own(0));
    round.pass(2000, &[1, 3]);
    round.stands(3, 2, Stage::Interrupted { signal: Some(2), kill: false });
    match &again(&mut round, back(1, Stage::Running))[..] {
        [ToAgent::Welcome, ToAgent::Decision(one), ToAgent::Decision(two)] => {
            assert_eq!((one.attempt, two.attempt, two.outcome), (1, 2, Outcome::Interrupted));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures_stop_all_and_are_judged_together() {
    let mut round = Round::running(0);
    let effects = round.stands(2, 1, Stage::Failed { waited: false });
    assert!(matches!(&stops(&effects)[0].why, Why::RankFailed { node, .. } if node.address == address(2)));
    assert_eq!(sent(&round.stands(2, 1, victim(2))), []);
    assert_eq!(sent(&round.stands(1, 1, Stage::Told(vec![]))), []);
    let decided = decision(&round.stands(3, 1, own(4))).expect("all have reported");
    assert_eq!((causes(&decided), decided.restart), (vec![4], None));
    assert_eq!(decided.places.iter().map(|place| place.rank).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(decided.decided().code, None);
    // A node that does not report is not waited for.
    let mut round = Round::running(0);
    round.stands(2, 1, own(2));
    round.now = round.now + SETTLE + TELL;
    assert_eq!(causes(&decision(&round.step(Event::Tick)).unwrap()), [2]);
    // A report about another attempt has no effect.
    let mut round = Round::running(0);
    assert_eq!(sent(&round.stands(2, 2, Stage::Failed { waited: false })), []);
}

#[test]
fn a_lost_node_is_the_cause_when_only_victims_speak() {
    for (stage, blamed) in [(victim(2), None), (unmet(2), None), (own(2), Some(2))] {
        let mut round = Round::running(3);
        round.step(Event::Closed { link: 3 });
        round.stands(2, 1, stage);
        let decided = decision(&round.stands(1, 1, Stage::Told(vec![]))).unwrap();
        assert_eq!(causes(&decided), Vec::from_iter(blamed));
        assert_eq!(lost(&decided), blamed.is_none().then_some(address(3)));
        assert_eq!(decided.decided().code, blamed.is_none().then_some(123));
        assert_eq!(decided.restart.is_some(), blamed.is_some());
    }
    // The same when it just does not answer.
    let mut round = Round::running(0);
    round.stands(2, 1, victim(2));
    round.stands(1, 1, victim(0));
    let decided = decision(&round.pass(1500, &[1, 2])).unwrap();
    assert_eq!((lost(&decided), causes(&decided)), (Some(address(3)), vec![]));
}

#[test]
fn interrupted_unable_and_time_up() {
    let mut round = Round::running(3);
    let effects = round.stands(2, 1, Stage::Interrupted { signal: Some(15), kill: false });
    let decided = decision(&effects).unwrap();
    assert_eq!(stops(&effects).len(), 1);
    assert_eq!((decided.outcome, decided.decided().signal), (Outcome::Interrupted, Some(15)));
    let mut round = Round::running(3);
    let decided = decision(&round.stands(2, 1, Stage::Unable { why: "disk".into() })).unwrap();
    assert_eq!((decided.outcome, decided.decided().code), (Outcome::Failed, Some(123)));
    let expects = list(&[1, 2]);
    let mut round = Round::new(options(&expects, 3));
    round.join(join(1, &expects));
    let effects = round.pass(600_000, &[1]);
    assert!(matches!(decision(&effects).unwrap().why, Some(Why::TimeUp { waiting }) if waiting.missing.len() == 1));
    // A failure and a signal: the failure is reported, and there is no other attempt.
    let mut round = Round::running(3);
    round.stands(2, 1, Stage::Failed { waited: false });
    round.stands(2, 1, Stage::Interrupted { signal: Some(2), kill: false });
    round.stands(1, 1, Stage::Told(vec![]));
    round.stands(3, 1, Stage::Told(vec![]));
    let decided = decision(&round.stands(2, 1, own(2))).unwrap();
    assert_eq!((causes(&decided), decided.restart), (vec![2], None));
}

#[test]
fn nodes_that_only_serve_end_with_the_others() {
    let mut round = Round::running(0);
    assert_eq!(decision(&round.stands(1, 1, Stage::Serving)), None);
    assert_eq!(decision(&round.stands(2, 1, Stage::Serving)), None);
    let decision = decision(&round.stands(3, 1, Stage::Succeeded)).unwrap();
    assert_eq!((decision.outcome, decision.why), (Outcome::Succeeded, None));
    // The report of such a node is awaited: its server may be why a trainer elsewhere failed.
    let mut round = Round::running(0);
    round.stands(1, 1, Stage::Serving);
    round.stands(2, 1, Stage::Serving);
    assert_eq!(stops(&round.stands(3, 1, Stage::Failed { waited: false })).len(), 1);
    round.stands(3, 1, victim(5));
    round.stands(1, 1, own(0));
    let decision = super::tests::decision(&round.stands(2, 1, Stage::Told(vec![]))).unwrap();
    assert_eq!(causes(&decision), [0]);
}

#[test]
fn gloo_meets_at_the_first_server() {
    let expects = list(&[1, 2]);
    let mut round = Round::new(Options { uneven: true, ..options(&expects, 0) });
    let mut serves = Join { uneven: true, ..join(2, &expects) };
    if let Stage::Ready(offer) = &mut serves.standing.stage {
        offer.processes[0].part = Part::Server;
    }
    round.join(Join { uneven: true, ..join(1, &expects) });
    let start = starts(&round.join(serves)).remove(0);
    assert_eq!((start.paddle_store.address, start.torch_store.address), (address(2), address(1)));
}

#[test]
fn restarts_are_counted_here() {
    let mut round = Round::running(2);
    for attempt in 1..=3 {
        let mut effects = Vec::new();
        for (link, stage) in [(1, own(0)), (2, Stage::Told(vec![])), (3, Stage::Told(vec![]))] {
            effects.extend(round.stands(link, attempt, stage));
        }
        let decided = decision(&effects).unwrap();
        assert_eq!(decided.restart.map(|restart| restart.attempt), (attempt < 3).then_some(attempt + 1));
        if attempt < 3 {
            // Steps still come with every heartbeat, and not more often.
            assert!(round.coordinator.deadline().unwrap() > round.now);
            round.pass(1000, &[1, 2, 3]);
            let effects: Vec<Effect> = [1, 2, 3]
                .into_iter()
                .flat_map(|link| round.stands(link, attempt + 1, ready(attempt + 1, 2).stage))
                .collect();
            assert_eq!(starts(&effects)[0].attempt, attempt + 1);
        }
    }
    // A rank that could not be started is not restarted.
    let mut round = Round::running(2);
    let mut end = told(0, None, false);
    end.end.exit = Exit::Spawn(SpawnError { doing: SpawnStage::Execute, errno: 2, reason: "not found".into() });
    round.stands(1, 1, Stage::Told(vec![end]));
    let decided = decision(&round.pass(2000, &[1, 2, 3])).unwrap();
    assert_eq!(decided.restart, None);
    // Servers that did not answer may answer next time.
    let mut round = Round::running(2);
    round.stands(1, 1, unmet(0));
    let decided = decision(&round.pass(2000, &[1, 2, 3])).unwrap();
    assert_eq!((causes(&decided), decided.restart.map(|restart| restart.attempt)), (vec![0], Some(2)));
}

#[test]
fn goodbye() {
    let succeed = |round: &mut Round| {
        [1, 2, 3].into_iter().flat_map(|link| round.stands(link, 1, Stage::Succeeded)).collect::<Vec<_>>()
    };
    let mut round = Round::running(0);
    assert_eq!(decision(&succeed(&mut round)).unwrap().outcome, Outcome::Succeeded);
    for (link, over) in [(1, false), (2, false), (3, true)] {
        let effects = round.step(Event::Bye { link });
        assert_eq!((effects.contains(&Effect::Finish), round.coordinator.is_over()), (over, over));
    }
    assert_eq!(round.coordinator.deadline(), None);
    // A node that is briefly away receives it too; one that never comes is not waited for.
    let mut round = Round::running(0);
    succeed(&mut round);
    round.step(Event::Closed { link: 3 });
    round.step(Event::Bye { link: 1 });
    round.step(Event::Bye { link: 2 });
    assert!(!round.coordinator.is_over());
    round.now = round.now + GOODBYE;
    assert!(round.step(Event::Tick).contains(&Effect::Finish));
}

/// An agent that the coordinator has accepted.
fn welcomed() -> Agent {
    let expects = list(&[1, 2]);
    let mut agent = Agent::new(join(2, &expects), Limits::default(), at(0));
    assert_eq!(agent.step(agent::Event::Tick, at(0)), [agent::Effect::Connect { within: CONNECT }]);
    let effects = agent.step(agent::Event::Connected, at(1));
    assert!(matches!(&effects[..], [agent::Effect::Send(FromAgent::Join(_))]));
    hear(&mut agent, ToAgent::Welcome, 2);
    agent
}

fn hear(agent: &mut Agent, message: ToAgent, millis: u64) -> Vec<agent::Effect> {
    agent.step(agent::Event::Heard(Box::new(message)), at(millis))
}

fn stand(agent: &mut Agent, attempt: u32, stage: Stage, millis: u64) -> Vec<agent::Effect> {
    agent.step(agent::Event::Standing(Standing::new(attempt, stage)), at(millis))
}

fn news(effects: &[agent::Effect]) -> Vec<News> {
    let news = effects.iter().filter_map(|effect| match effect {
        agent::Effect::Tell(news) => Some(news.clone()),
        _ => None,
    });
    news.collect()
}

fn said(effects: &[agent::Effect]) -> Vec<(u32, Stage)> {
    let said = effects.iter().filter_map(|effect| match effect {
        agent::Effect::Send(FromAgent::Standing(standing)) => Some((standing.attempt, standing.stage.clone())),
        _ => None,
    });
    said.collect()
}

fn start(attempt: u32) -> ToAgent {
    let expects = list(&[1, 2]);
    let mut round = Round::new(options(&expects, 0));
    round.join(join(1, &expects));
    let effects = round.join(join(2, &expects));
    ToAgent::Start(Start { attempt, ..starts(&effects)[0].clone() })
}

fn decided(attempt: u32, restart: bool) -> ToAgent {
    ToAgent::Decision(Box::new(Decision {
        attempt,
        outcome: Outcome::Failed,
        why: None,
        verdict: None,
        places: vec![],
        restart: restart.then_some(Restart { attempt: attempt + 1, delay: Duration::ZERO, moves: false }),
        alone: false,
    }))
}

#[test]
fn an_agent_tries_until_its_time_is_up() {
    let mut agent = Agent::new(join(2, &list(&[1, 2])), Limits::default(), at(0));
    let mut tries = 0;
    let mut told = Vec::new();
    while let Some(deadline) = agent.deadline() {
        let effects = agent.step(agent::Event::Tick, deadline);
        told.extend(news(&effects));
        if effects.iter().any(|effect| matches!(effect, agent::Effect::Connect { .. })) {
            tries += 1;
            told.extend(news(&agent.step(agent::Event::NotConnected(Answer::Refused), deadline)));
        }
    }
    assert_eq!(told, [News::Unreached(Answer::Refused), News::TimeUp(Answer::Refused)]);
    assert!((600..620).contains(&tries), "{tries} tries");
    // After a permanent rejection it does not try again.
    let mut agent = Agent::new(join(2, &list(&[1, 2])), Limits::default(), at(0));
    agent.step(agent::Event::Tick, at(0));
    let effects = agent.step(agent::Event::NotConnected(Answer::OtherToken), at(1));
    assert_eq!((news(&effects), agent.is_over()), (vec![News::TurnedAway(Answer::OtherToken)], true));
}

#[test]
fn what_is_said_before_the_welcome_is_sent() {
    let mut agent = Agent::new(join(2, &list(&[1, 2])), Limits::default(), at(0));
    agent.step(agent::Event::Tick, at(0));
    agent.step(agent::Event::Connected, at(1));
    let effects = stand(&mut agent, 1, Stage::Interrupted { signal: Some(2), kill: false }, 2);
    assert_eq!(said(&effects), [(1, Stage::Interrupted { signal: Some(2), kill: false })]);
}

#[test]
fn an_agent_starts_stops_and_ends() {
    let mut agent = welcomed();
    assert_eq!(news(&hear(&mut agent, start(2), 3)), [], "another attempt");
    assert!(matches!(&news(&hear(&mut agent, start(1), 3))[..], [News::Start(start)] if start.you == 1));
    assert_eq!(news(&hear(&mut agent, start(1), 4)), [], "only once");
    let stop = |attempt| ToAgent::Stop(Stop { attempt, why: Why::CoordinatorLost { how: Loss::Refused } });
    assert_eq!(news(&hear(&mut agent, stop(2), 5)), []);
    assert_eq!(news(&hear(&mut agent, stop(1), 5)).len(), 1);
    assert_eq!(news(&hear(&mut agent, stop(1), 6)), []);
    assert_eq!(news(&hear(&mut agent, decided(2, false), 7)), []);
    assert_eq!(news(&hear(&mut agent, decided(1, true), 7)).len(), 1);
    assert_eq!(said(&stand(&mut agent, 1, Stage::Told(vec![]), 8)), [], "no longer needed");
    // The next attempt may be decided before this one has ended.
    let effects = hear(&mut agent, decided(2, false), 9);
    assert!(effects.contains(&agent::Effect::Send(FromAgent::Bye)) && agent.is_over());
}

#[test]
fn a_coordinator_that_is_gone() {
    // Refused for two seconds.
    let mut agent = welcomed();
    assert_eq!(agent.step(agent::Event::Closed, at(10)), [agent::Effect::Connect { within: CONNECT }], "at once");
    let mut now = at(10);
    let mut told = Vec::new();
    while !agent.is_over() {
        told.extend(news(&agent.step(agent::Event::NotConnected(Answer::Refused), now)));
        now = agent.deadline().unwrap_or(now);
        told.extend(news(&agent.step(agent::Event::Tick, now)));
    }
    assert_eq!(told.last(), Some(&News::Lost(Loss::Refused)));
    assert_eq!(now, at(10) + REFUSED);
    // Silent: shown, then a new connection, then the window.
    let mut agent = welcomed();
    let mut told = Vec::new();
    let mut now = at(2);
    while let Some(deadline) = agent.deadline() {
        now = deadline.max(now);
        let effects = agent.step(agent::Event::Tick, now);
        told.extend(news(&effects));
        if effects.iter().any(|effect| matches!(effect, agent::Effect::Connect { .. })) {
            now = now + Duration::from_secs(5);
            told.extend(news(&agent.step(agent::Event::NotConnected(Answer::Silent), now)));
        }
    }
    let lost = News::Lost(Loss::Disconnected { after: Duration::from_secs(60) });
    assert_eq!(told, [News::Quiet, News::Unreached(Answer::Silent), lost]);
    assert!(now >= at(2 + 90_000) && now < at(2 + 97_000), "{now:?}");
}

#[test]
fn a_failure_that_nobody_hears_of() {
    let alone = [News::Alone { attempt: 1 }];
    // The coordinator does not answer.
    let mut agent = welcomed();
    hear(&mut agent, start(1), 3);
    assert_eq!(news(&stand(&mut agent, 1, Stage::Told(vec![]), 10)), []);
    let mut told = Vec::new();
    for second in 1..=5 {
        told.extend(news(&agent.step(agent::Event::Tick, at(10 + second * 1000))));
    }
    assert_eq!(told.last(), Some(&alone[0]));
    assert_eq!(ANSWER, Duration::from_secs(5));
    // The port is closed: at once.
    let mut agent = welcomed();
    hear(&mut agent, start(1), 3);
    agent.step(agent::Event::Closed, at(4));
    agent.step(agent::Event::NotConnected(Answer::Refused), at(5));
    assert_eq!(news(&stand(&mut agent, 1, Stage::Told(vec![]), 6)), alone);
    // The connection broke and comes back: the report is sent again.
    let mut agent = welcomed();
    hear(&mut agent, start(1), 3);
    agent.step(agent::Event::Closed, at(4));
    assert_eq!(news(&stand(&mut agent, 1, Stage::Told(vec![]), 6)), []);
    match &agent.step(agent::Event::Connected, at(7))[..] {
        [agent::Effect::Send(FromAgent::Join(join))] => assert_eq!(join.standing.stage, Stage::Told(vec![])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_leaves_says_so() {
    // A signal that crossed a restart counts for the next attempt.
    let mut agent = welcomed();
    hear(&mut agent, start(1), 3);
    let interrupted = Stage::Interrupted { signal: Some(2), kill: false };
    assert_eq!(said(&stand(&mut agent, 1, interrupted.clone(), 4)), [(1, interrupted.clone())]);
    assert_eq!(said(&hear(&mut agent, decided(1, true), 5)), [(2, interrupted.clone())]);
    // So does one that comes after it.
    let mut agent = welcomed();
    hear(&mut agent, start(1), 3);
    hear(&mut agent, decided(1, true), 4);
    assert_eq!(said(&stand(&mut agent, 1, interrupted.clone(), 5)), [(2, interrupted)]);
    // An end that was not decided.
    let mut agent = welcomed();
    hear(&mut agent, start(1), 3);
    hear(&mut agent, decided(1, true), 4);
    let effects = agent.step(agent::Event::Ended, at(5));
    assert!(matches!(&said(&effects)[..], [(2, Stage::Unable { .. })]));
    hear(&mut agent, decided(2, false), 6);
    assert!(agent.is_over());
    // Without a coordinator it does not wait.
    let mut agent = Agent::new(join(2, &list(&[1, 2])), Limits::default(), at(0));
    agent.step(agent::Event::Tick, at(0));
    agent.step(agent::Event::NotConnected(Answer::Refused), at(1));
    agent.step(agent::Event::Ended, at(2));
    assert!(agent.is_over());
}

#[test]
fn links_are_numbered_and_strangers_say_nothing() {
    let mut round = Round::running(0);
    let before = format!("{:?}", round.coordinator);
    for event in [
        Event::Standing { link: 9, standing: Standing::new(1, Stage::Failed { waited: false }) },
        Event::Beat { link: 9, sent: at(0) },
        Event::Bye { link: 9 },
        Event::Gone { link: 9 },
        Event::Closed { link: 9 },
    ] {
        assert_eq!(round.step(event), vec![] as Vec<coordinator::Effect>);
    }
    assert_eq!(before, format!("{:?}", round.coordinator));
}

#[test]
fn an_agent_tries_a_second_connection_while_the_coordinator_is_silent() {
    let limits = Limits { silence: Duration::from_secs(6), ..Limits::default() };
    let mut agent = Agent::new(join(2, &list(&[1, 2])), limits, at(0));
    agent.step(agent::Event::Tick, at(0));
    agent.step(agent::Event::Connected, at(0));
    hear(&mut agent, ToAgent::Welcome, 0);
    let mut attempts = Vec::new();
    let mut pass = |agent: &mut Agent, until: u64| {
        while let Some(due) = agent.deadline().filter(|due| *due < at(until)) {
            for effect in agent.step(agent::Event::Tick, due) {
                match effect {
                    agent::Effect::Connect { within } => attempts.push((due, within)),
                    agent::Effect::Disconnect => panic!("the connection stays"),
                    _ => {}
                }
            }
            // Not reached: the packet was lost.
            if attempts.last().is_some_and(|(began, _)| *began == due) {
                agent.step(agent::Event::NotConnected(Answer::Silent), due + Duration::from_millis(299));
            }
        }
    };
    pass(&mut agent, 5_500);
    let within = Duration::from_millis(300);
    assert_eq!(attempts, (0..12).map(|n| (at(2_000 + n * 300), within)).collect::<Vec<_>>());
    // The one that succeeds replaces the silent connection, and the node joins again.
    agent.step(agent::Event::Tick, at(5_600));
    let effects = agent.step(agent::Event::Connected, at(5_610));
    assert!(matches!(&effects[..], [agent::Effect::Send(FromAgent::Join(_))]), "{effects:?}");
    assert_eq!(news(&hear(&mut agent, ToAgent::Welcome, 5_620)), [News::Back]);
    // Answers without an attempt are ignored.
    assert_eq!(agent.step(agent::Event::Connected, at(5_630)), []);
    assert_eq!(agent.step(agent::Event::NotConnected(Answer::Refused), at(5_640)), []);
}

/// A node without progress may wait for another that works.
#[test]
fn a_job_hangs_if_all_its_nodes_do() {
    let mut round = Round::running(0);
    assert_eq!(stops(&round.stands(1, 1, Stage::Hung)), []);
    assert_eq!(stops(&round.stands(2, 1, Stage::Hung)), []);
    round.stands(1, 1, Stage::Running);
    assert_eq!(stops(&round.stands(3, 1, Stage::Hung)), []);
    assert_eq!(stops(&round.stands(1, 1, Stage::Hung))[0].why, Why::Hung);
    // The last node ends instead. The others may have waited for it, and then move again.
    for last in [Stage::Succeeded, Stage::Serving] {
        let mut round = Round::running(0);
        round.stands(1, 1, Stage::Hung);
        round.stands(2, 1, Stage::Hung);
        assert_eq!(stops(&round.stands(3, 1, last.clone())), []);
        let mut moving = Round { coordinator: round.coordinator.clone(), now: round.now };
        assert_eq!(stops(&round.pass(3_900, &[1, 2, 3])), []);
        assert_eq!(stops(&round.pass(200, &[1, 2, 3]))[0].why, Why::Hung, "{last:?}");
        moving.stands(1, 1, Stage::Running);
        assert_eq!(stops(&moving.pass(60_000, &[1, 2, 3])), []);
    }
}
