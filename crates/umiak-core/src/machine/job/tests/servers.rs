//! Servers and trainers of a launched job, on one node and on several.

use super::*;
use crate::model::{Part, StartAfter, When};

/// Servers and trainers of this node; trainers wait until the servers answer.
fn story(servers: u32, trainers: u32) -> Story {
    let mut story = Story::new(&[]);
    let mut job = story.machine.job.clone();
    job.roles = vec![Part::Server.as_role(servers), Part::Trainer.as_role(trainers)];
    job.roles[0].timeouts.start = Some(Duration::from_secs(60));
    job.roles[1].start_after = vec![StartAfter { role: 0, when: When::Ready }];
    let style = story.machine.style;
    story.machine = Machine::new(job, style, 7);
    story
}

/// One node of several.
fn shared(servers: u32, trainers: u32, elsewhere: &[&str]) -> Story {
    let mut story = story(servers, trainers);
    story.machine.share();
    if !elsewhere.is_empty() {
        story.machine.expect_elsewhere(0, elsewhere.iter().map(ToString::to_string).collect());
    }
    story
}

impl Story {
    fn spawned(&mut self, role: u16, count: u32) -> Vec<Effect> {
        (0..count)
            .flat_map(|index| {
                self.give(Event::Started { id: id(role, index), instance: Instance::of_pid(100 + index) })
            })
            .collect()
    }

    fn answer(&mut self, missing: &[&str]) -> Vec<Effect> {
        let missing = missing.iter().map(ToString::to_string).collect();
        self.give(Event::AnsweredElsewhere { role: 0, attempt: 1, missing })
    }

    fn decided(&mut self, outcome: Outcome) -> Vec<Effect> {
        let decided = Decided {
            attempt: 1,
            outcome,
            verdict: None,
            signal: None,
            kill: false,
            code: None,
            restart: None,
            change: None,
        };
        self.give(Event::Decided(Box::new(decided)))
    }
}

fn spawns(effects: &[Effect]) -> Vec<(u16, u32)> {
    let ids = effects.iter().filter_map(|effect| match effect {
        Effect::Spawn(ids) => Some(ids),
        _ => None,
    });
    ids.flatten().map(|id| (id.slot.role, id.slot.index)).collect()
}

fn stands(effects: &[Effect]) -> Vec<Stand> {
    let stand = |effect: &Effect| match effect {
        Effect::Stand(stand) => Some(stand.clone()),
        _ => None,
    };
    effects.iter().filter_map(stand).collect()
}

#[test]
fn trainers_start_when_all_servers_answer_and_decide_the_end() {
    let mut story = story(2, 1);
    assert_eq!(spawns(&story.give(Event::Start)), [(0, 0), (0, 1)]);
    assert_eq!(spawns(&story.spawned(0, 2)), []);
    assert_eq!(spawns(&story.give(Event::Ready { id: id(0, 1) })), []);
    assert_eq!(spawns(&story.give(Event::Ready { id: id(0, 0) })), [(1, 0)]);
    story.spawned(1, 1);
    let effects = story.ends(id(1, 0), code(0));
    assert_eq!(stops(&effects), [(Terminate, vec![0, 1])]);
    story.ends(id(0, 0), by(SIGTERM));
    story.ends(id(0, 1), code(3));
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)), "how servers end then is no failure");
}

#[test]
fn a_server_that_dies_earlier_is_the_cause() {
    for ready in [false, true] {
        let mut story = story(2, 1);
        story.give(Event::Start);
        story.spawned(0, 2);
        if ready {
            story.give(Event::Ready { id: id(0, 0) });
            story.give(Event::Ready { id: id(0, 1) });
            story.spawned(1, 1);
        }
        story.ends(id(0, 1), by(SIGKILL));
        story.ends(id(0, 0), by(SIGTERM));
        if ready {
            story.ends(id(1, 0), by(SIGTERM));
        }
        story.give(Event::Gathered(vec![]));
        assert_eq!((story.causes(), story.end()), (vec![1], Some((Outcome::Failed, 137))), "{ready}");
    }
}

#[test]
fn a_server_that_never_answers_took_too_long() {
    let mut story = story(1, 1);
    story.give(Event::Start);
    story.spawned(0, 1);
    let effects = story.give(Event::Timer(Timer::StartUp(Slot { role: 0, index: 0 }), 1));
    assert_eq!(stops(&effects), [(Terminate, vec![0])]);
    story.ends(id(0, 0), by(SIGTERM));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.end(), Some((Outcome::Failed, crate::machine::exit_code::TIMED_OUT)));
}

#[test]
fn trainers_that_waited_long_enough_start_all_the_same() {
    let patience = Duration::from_secs(30);
    let impatient = |servers, elsewhere: &[&str]| {
        let mut story = if elsewhere.is_empty() { story(servers, 1) } else { shared(servers, 1, elsewhere) };
        (story.machine.job.roles[0].timeouts.start, story.machine.job.roles[0].timeouts.patience) =
            (None, Some(patience));
        story
    };
    for elsewhere in [&[][..], &["10.0.0.2:6170"]] {
        let mut story = impatient(1, elsewhere);
        assert_eq!(timers(&story.give(Event::Start)), [(Timer::Patience(0), 1 + 30_000)]);
        story.spawned(0, 1);
        let effects = story.give(Event::Timer(Timer::Patience(0), 1));
        assert_eq!(spawns(&effects), [(1, 0)]);
        assert!(effects.contains(&Effect::StartUnready { role: 0 }));
    }
    // If all listen in time, nothing is reported.
    let mut story = impatient(1, &[]);
    story.give(Event::Start);
    story.spawned(0, 1);
    assert_eq!(spawns(&story.give(Event::Ready { id: id(0, 0) })), [(1, 0)]);
    assert_eq!(story.give(Event::Timer(Timer::Patience(0), 1)), []);
    // A node without trainers waits for nothing.
    let mut servers = super::servers::story(1, 0);
    servers.machine.job.roles[0].timeouts.patience = Some(patience);
    assert_eq!(timers(&servers.give(Event::Start)), []);
}

#[test]
fn the_other_nodes_are_told_once_that_all_servers_here_listen() {
    let told = |effects: &[Effect]| effects.contains(&Effect::TellReady { attempt: 1 });
    for last in
        [Event::Ready { id: id(0, 1) }, Event::Exited { id: id(0, 1), exit: code(0), classed: None, usage: None }]
    {
        let mut story = shared(2, 0, &[]);
        story.give(Event::Start);
        story.spawned(0, 2);
        assert!(!told(&story.give(Event::Ready { id: id(0, 0) })));
        assert!(told(&story.give(last.clone())), "{last:?}");
        assert!(!told(&story.ends(id(0, 0), code(0))));
    }
    let mut alone = story(1, 1);
    alone.give(Event::Start);
    alone.spawned(0, 1);
    assert!(!told(&alone.give(Event::Ready { id: id(0, 0) })));
}

#[test]
fn a_node_of_servers_serves_until_all_nodes_are_told_the_end() {
    let mut story = shared(2, 0, &[]);
    assert_eq!(spawns(&story.give(Event::Start)), [(0, 0), (0, 1)]);
    story.spawned(0, 2);
    assert_eq!(stands(&story.effects), [Stand::Serving]);
    // A server exits by itself, as a trainer told it to.
    assert_eq!(stops(&story.ends(id(0, 1), code(0))), []);
    assert_eq!(story.end(), None);
    let effects = story.decided(Outcome::Succeeded);
    assert_eq!(stops(&effects), [(Terminate, vec![0])]);
    story.ends(id(0, 0), by(SIGTERM));
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn servers_that_have_all_ended_well_wait_for_the_others() {
    let mut story = shared(1, 0, &[]);
    story.give(Event::Start);
    story.spawned(0, 1);
    story.ends(id(0, 0), code(0));
    assert_eq!(stands(&story.effects), [Stand::Serving, Stand::Succeeded]);
    assert_eq!(story.end(), None);
    story.decided(Outcome::Succeeded);
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn a_server_that_dies_while_trainers_elsewhere_need_it_is_told() {
    let mut story = shared(2, 0, &[]);
    story.give(Event::Start);
    story.spawned(0, 2);
    let effects = story.ends(id(0, 0), by(SIGKILL));
    assert_eq!(stands(&effects), [Stand::Failed]);
    assert_eq!(stops(&effects), [(Terminate, vec![1])]);
}

#[test]
fn a_server_that_dies_when_all_trainers_have_ended_is_no_failure() {
    // The decision is still on its way: only the server's end is known here, at each stage of reporting it.
    for told in 0..3 {
        let mut story = shared(2, 0, &[]);
        story.give(Event::Start);
        story.spawned(0, 2);
        story.ends(id(0, 0), by(SIGKILL));
        if told > 0 {
            story.ends(id(0, 1), by(SIGTERM));
        }
        if told > 1 {
            story.give(Event::Gathered(vec![]));
        }
        story.decided(Outcome::Succeeded);
        if told == 0 {
            story.ends(id(0, 1), by(SIGTERM));
        }
        assert_eq!((story.causes(), story.end()), (vec![], Some((Outcome::Succeeded, 0))), "{told}");
    }
}

#[test]
fn own_servers_stay_for_trainers_on_other_nodes() {
    let mut story = shared(1, 1, &[]);
    story.give(Event::Start);
    story.spawned(0, 1);
    story.give(Event::Ready { id: id(0, 0) });
    story.spawned(1, 1);
    let effects = story.ends(id(1, 0), code(0));
    assert_eq!((stands(&effects), stops(&effects)), (vec![Stand::Serving], vec![]));
    assert_eq!(stops(&story.decided(Outcome::Succeeded)), [(Terminate, vec![0])]);
}

#[test]
fn trainers_wait_for_servers_on_other_nodes_too() {
    let mut story = shared(1, 2, &["10.0.0.2:6170", "10.0.0.3:6170"]);
    let effects = story.give(Event::Start);
    assert_eq!(spawns(&effects), [(0, 0)]);
    assert!(effects.contains(&Effect::AwaitElsewhere { role: 0, attempt: 1 }));
    story.spawned(0, 1);
    story.give(Event::Ready { id: id(0, 0) });
    assert_eq!(spawns(&story.answer(&["10.0.0.3:6170"])), []);
    let effects = story.answer(&[]);
    assert_eq!(spawns(&effects), [(1, 0), (1, 1)]);
    assert!(effects.contains(&Effect::DisarmTimer(Timer::Elsewhere(0))));
    // A second answer is ignored.
    assert!(is_ignored(&story.answer(&[])));
}

#[test]
fn servers_that_cannot_be_reached_are_named_in_time() {
    let mut story = shared(0, 1, &["10.0.0.2:6170", "10.0.0.3:6170"]);
    let armed = timers(&story.give(Event::Start));
    assert_eq!(armed, [(Timer::Elsewhere(0), 1 + 65_000)]);
    story.answer(&["10.0.0.3:6170"]);
    story.give(Event::Timer(Timer::Elsewhere(0), 1));
    let effects = story.give(Event::Gathered(vec![]));
    let told = stands(&effects);
    let [Stand::Told(ends)] = told.as_slice() else { panic!("{told:?}") };
    let reason = "no report that 10.0.0.3:6170 listens within 60 s".to_owned();
    assert_eq!(ends[0].exit, Exit::Unmet { role: "pserver".to_owned(), reason });
    assert_eq!(ends[0].timed_out, Some(Limit::Start));
}

#[test]
fn names_count_over_all_nodes() {
    let story = story(1, 2);
    let machine = story.machine.ranks_from(Rank(5)).numbered(vec![vec![1], vec![2, 4]]);
    let name = |role, index| machine.replica_name(Slot { role, index });
    assert_eq!([name(0, 0), name(1, 0), name(1, 1)], ["pserver-1", "trainer-2", "trainer-4"]);
    assert_eq!(machine.subject(Slot { role: 1, index: 1 }).rank, Some(Rank(7)));
}

/// Servers that may end by themselves once the trainer has succeeded.
fn lingering(servers: u32) -> Story {
    let mut story = story(servers, 1);
    story.machine.job.roles[1].start_after.clear();
    story.machine.job.policy.linger = Some(Duration::from_secs(30));
    story.machine.job.policy.timeout = Some(Duration::from_secs(60));
    story.give(Event::Start);
    story.spawned(0, servers);
    story.spawned(1, 1);
    story
}

#[test]
fn servers_may_end_by_themselves_for_a_while() {
    let mut story = lingering(2);
    let effects = story.ends(id(1, 0), code(0));
    assert_eq!((stops(&effects), timers(&effects)), (vec![], vec![(Timer::Linger, story.now + 30_000)]));
    assert!(effects.contains(&Effect::DisarmTimer(Timer::Deadline)));
    assert_eq!(stops(&story.ends(id(0, 0), code(0))), []);
    let effects = story.ends(id(0, 1), code(3));
    assert!(effects.contains(&Effect::DisarmTimer(Timer::Linger)));
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)), "how servers end then is no failure");
}

#[test]
fn servers_that_run_on_are_stopped() {
    let mut story = lingering(2);
    story.ends(id(1, 0), code(0));
    story.ends(id(0, 0), code(0));
    let effects = story.give(Event::Timer(Timer::Linger, 1));
    assert_eq!(stops(&effects), [(Terminate, vec![1])]);
    story.ends(id(0, 1), by(SIGTERM));
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn a_job_that_lingers_can_be_stopped() {
    let mut story = lingering(1);
    story.ends(id(1, 0), code(0));
    assert_eq!(stops(&story.give(Event::Signalled { signal: SIGTERM })), [(Terminate, vec![0])]);
    assert_eq!(story.give(Event::Timer(Timer::Linger, 1)), []);
    story.ends(id(0, 0), by(SIGTERM));
    assert_eq!(story.end(), Some((Outcome::Interrupted, 143)));
}
