//! The main scenarios, one each. The simulator covers the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::diagnose;
use crate::facts::{Evidence, Fact, Limit, Outcome, StopReason, Subject, Verdict, Weight};
use crate::model::StopHow::{Interrupt, Kill, Terminate};
use crate::model::{
    Completion, Exit, ExitCodes, Generation, Instance, JobId, MinSucceeded, Policy, Role, RoleName, SpawnError,
    SpawnStage, StopHow, StopPolicy,
};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A machine, the virtual time in milliseconds, and all effects so far.
struct Story {
    machine: Machine,
    now: u64,
    effects: Vec<Effect>,
}

impl Story {
    /// Roles as (replicas, completion).
    fn new(roles: &[(u32, Completion)]) -> Self {
        let roles = roles.iter().enumerate().map(|(index, (replicas, completion))| Role {
            completion: *completion,
            ..Role::new(RoleName::new(format!("role{index}")).unwrap(), *replicas)
        });
        let stop = StopPolicy { grace: Duration::from_secs(5), abandon: Duration::from_secs(10) };
        let policy = Policy { stop, ..Policy::default() };
        let job = Job {
            name: JobId::new("story").unwrap(),
            labels: BTreeMap::new(),
            agent_store: false,
            contracts: vec![],
            roles: roles.collect(),
            policy,
        };
        let style = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: false, etcd: None };
        Self { machine: Machine::new(job, style, 7), now: 0, effects: Vec::new() }
    }

    /// One role of this size, started and running.
    fn running(replicas: u32) -> Self {
        let mut story = Self::new(&[(replicas, Completion::default())]);
        story.start();
        story
    }

    fn start(&mut self) {
        self.give(Event::Start);
        for slot in self.machine.replicas.slots() {
            self.give(Event::Started { id: id(slot.role, slot.index), instance: Instance::of_pid(100 + slot.index) });
        }
    }

    /// The effects of one event, a millisecond after the one before.
    fn give(&mut self, event: Event) -> Vec<Effect> {
        self.now += 1;
        let effects = self.machine.step(event, Timestamp::from_micros(self.now * 1000));
        self.effects.extend(effects.clone());
        effects
    }

    fn exit(&mut self, index: u32, exit: Exit) -> Vec<Effect> {
        self.give(Event::Exited { id: id(0, index), exit, classed: None, usage: None })
    }

    fn end(&self) -> Option<(Outcome, u8)> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Finish { outcome, code } => Some((*outcome, *code)),
            _ => None,
        })
    }

    fn verdict(&self) -> Option<&Verdict> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Report(verdict) => Some(verdict),
            _ => None,
        })
    }

    fn causes(&self) -> Vec<u32> {
        let causes = self.verdict().map(|verdict| verdict.causes.as_slice()).unwrap_or_default();
        causes.iter().filter_map(|finding| finding.subject.rank).map(|rank| rank.0).collect()
    }
}

fn id(role: u16, index: u32) -> AttemptId {
    AttemptId { step: StepIndex(0), slot: Slot { role, index }, attempt: 1 }
}

fn code(code: i32) -> Exit {
    Exit::Code { code }
}

fn by(signal: i32) -> Exit {
    Exit::Signal { signal, core_dumped: false }
}

/// (how, ranks) of every stop among these effects; one role only.
fn stops(effects: &[Effect]) -> Vec<(StopHow, Vec<u32>)> {
    let order = |effect: &Effect| match effect {
        Effect::Stop { how, targets } => Some((*how, targets.iter().map(|id| id.slot.index).collect())),
        _ => None,
    };
    effects.iter().filter_map(order).collect()
}

fn timers(effects: &[Effect]) -> Vec<(Timer, u64)> {
    let armed = |effect: &Effect| match effect {
        Effect::ArmTimer { timer, at, .. } => Some((*timer, at.as_micros() / 1000)),
        _ => None,
    };
    effects.iter().filter_map(armed).collect()
}

fn is_ignored(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Record(Fact::Ignored { .. })])
}

fn helper() -> Completion {
    Completion { decides: false, ..Completion::default() }
}

#[test]
fn all_succeed() {
    let mut story = Story::running(3);
    for index in 0..3 {
        story.exit(index, code(0));
    }
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
    assert_eq!(stops(&story.effects), []);
}

fn told(slot: Slot, evidence: Evidence) -> Gathered {
    Gathered { evidence: Some(evidence), ..Gathered::nothing(slot) }
}

#[test]
fn one_fails_and_the_others_are_stopped_in_the_same_step() {
    let mut story = Story::running(3);
    let effects = story.exit(1, code(7));
    let now = story.now;
    let observed = effects.iter().position(|effect| matches!(effect, Effect::Observe(ids) if ids.len() == 2));
    let stopped = effects.iter().position(|effect| matches!(effect, Effect::Stop { .. }));
    assert!(observed.is_some() && observed < stopped, "what runs is looked at before the first signal");
    assert_eq!(stops(&effects), [(Terminate, vec![0, 2])]);
    assert_eq!(timers(&effects), [(Timer::Grace, now + 5000), (Timer::Settle, now + 500)]);
    story.exit(0, by(SIGTERM));
    assert_eq!(story.verdict(), None, "the window is open while a rank is live");
    let gather = story.exit(2, by(SIGTERM));
    assert_eq!(
        gather.last(),
        Some(&Effect::Gather {
            ended: vec![Slot { role: 0, index: 1 }],
            stopped: vec![Slot { role: 0, index: 0 }, Slot { role: 0, index: 2 }],
            done: vec![],
        })
    );
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.causes(), [1]);
    assert_eq!(story.end(), Some((Outcome::Failed, 7)));
}

#[test]
fn the_report_does_not_wait_for_ranks_that_take_their_time() {
    let mut story = Story::running(2);
    story.exit(0, by(11));
    story.give(Event::Timer(Timer::Settle, 1));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.causes(), [0]);
    assert_eq!(story.end(), None);
    assert_eq!(stops(&story.give(Event::Timer(Timer::Grace, 1))), [(Kill, vec![1])]);
    story.exit(1, by(SIGKILL));
    assert_eq!(story.end(), Some((Outcome::Failed, 139)));
}

#[test]
fn who_ends_while_evidence_is_read_is_not_judged() {
    let mut story = Story::running(3);
    story.exit(0, code(1));
    story.give(Event::Timer(Timer::Settle, 1));
    // It crashes in its clean-up. Its log was not read, so nothing points to a lost peer.
    story.exit(1, by(11));
    let victim = diagnose::SIGNATURES.iter().find(|signature| signature.kind == diagnose::Kind::Victim).unwrap();
    let evidence = Evidence { signature: Some(victim.to_match()), ..Evidence::default() };
    story.give(Event::Gathered(vec![told(Slot { role: 0, index: 0 }, evidence)]));
    assert_eq!(story.causes(), [0]);
    assert_eq!(story.verdict().map(|verdict| verdict.causes[0].weight), Some(Weight::Possible));
}

#[test]
fn a_signal_before_the_start_is_obeyed_first() {
    let mut story = Story::new(&[(2, Completion::default())]);
    story.give(Event::Signalled { signal: SIGTERM });
    let effects = story.give(Event::Start);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Spawn(_))));
    assert_eq!(story.end(), Some((Outcome::Interrupted, 143)));
}

#[test]
fn the_first_signal_asks_the_second_kills_the_third_returns() {
    let mut story = Story::running(2);
    for (expected, effect) in [
        (vec![(Interrupt, vec![0, 1])], None),
        (vec![(Kill, vec![0, 1])], None),
        (vec![], Some(Effect::ReturnTerminal)),
    ] {
        let effects = story.give(Event::Signalled { signal: SIGINT });
        assert_eq!(stops(&effects), expected);
        assert!(effect.is_none_or(|effect| effects.contains(&effect)));
    }
    story.exit(0, by(SIGTERM));
    story.exit(1, by(SIGKILL));
    assert_eq!(story.end(), Some((Outcome::Interrupted, 130)));
    assert_eq!(story.verdict(), None);
}

#[test]
fn an_interrupt_is_followed_by_sigterm_and_a_kill_within_the_grace() {
    let mut story = Story::running(3);
    let effects = story.give(Event::Signalled { signal: SIGINT });
    assert_eq!(stops(&effects), [(Interrupt, vec![0, 1, 2])]);
    assert_eq!(timers(&effects), [(Timer::Terminate, story.now + 2000), (Timer::Grace, story.now + 5000)]);
    // Its own signal handler chose the code: not a failure.
    story.exit(0, code(1));
    let effects = story.fire(Timer::Terminate);
    assert_eq!((stops(&effects), timers(&effects)), (vec![(Terminate, vec![1, 2])], vec![]));
    story.exit(1, by(SIGTERM));
    assert_eq!(stops(&story.fire(Timer::Grace)), [(Kill, vec![2])]);
    story.exit(2, by(SIGKILL));
    assert_eq!((story.end(), story.verdict()), (Some((Outcome::Interrupted, 130)), None));
}

#[test]
fn a_short_grace_leaves_half_of_it_to_an_interrupt() {
    let mut story = Story::running(1);
    story.machine.job.policy.stop.grace = std::time::Duration::from_secs(1);
    let effects = story.give(Event::Signalled { signal: SIGINT });
    assert_eq!(timers(&effects), [(Timer::Terminate, story.now + 500), (Timer::Grace, story.now + 1000)]);
}

#[test]
fn what_asks_more_strongly_than_ctrl_c_gives_no_more_time() {
    let mut story = Story::running(1);
    story.give(Event::Signalled { signal: SIGINT });
    let effects = story.give(Event::StopAsked { kill: false });
    assert_eq!((stops(&effects), timers(&effects)), (vec![], vec![]), "a stop is no stronger reason than a signal");
    let effects = story.give(Event::Signalled { signal: SIGTERM });
    assert_eq!(stops(&effects), [(Kill, vec![0])]);
}

#[test]
fn a_role_that_does_not_decide_is_stopped_without_blame() {
    let mut story = Story::new(&[(1, Completion::default()), (1, helper())]);
    story.start();
    let effects = story.exit(0, code(0));
    assert!(effects.contains(&Effect::Record(Fact::Stopping { reason: StopReason::Completed })));
    story.give(Event::Exited { id: id(1, 0), exit: code(1), classed: None, usage: None });
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
    assert_eq!(story.verdict(), None);
}

#[test]
fn where_no_role_decides_all_do() {
    let mut story = Story::new(&[(2, helper())]);
    story.start();
    assert_eq!(stops(&story.effects), [], "stopped as it started");
    story.exit(0, code(0));
    story.exit(1, code(0));
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn losing_the_guardian_fails_the_job_whatever_its_policy() {
    for min_failed in [0, 1, 9] {
        let completion = Completion { min_failed, min_succeeded: MinSucceeded::All, decides: true };
        let mut story = Story::new(&[(2, completion)]);
        story.start();
        story.give(Event::EngineLost { again: false });
        story.give(Event::Gathered(vec![]));
        assert_eq!(story.end(), Some((Outcome::Failed, 125)), "min_failed {min_failed}");
    }
}

/// The code of a replica does not stand for a run of several roles, but the loss of the engine is ours in any run.
#[test]
fn losing_the_guardian_ends_a_run_of_several_roles_with_125() {
    for again in [false, true] {
        let mut story = Story::new(&[(1, Completion::default()), (2, Completion::default())]);
        story.machine.style.document = true;
        story.start();
        story.give(Event::EngineLost { again });
        story.give(Event::Gathered(vec![]));
        assert_eq!(story.end(), Some((Outcome::Failed, 125)), "again {again}");
    }
}

#[test]
fn a_engine_lost_before_the_start_starts_nothing() {
    let mut story = Story::new(&[(2, Completion::default())]);
    story.give(Event::EngineLost { again: false });
    let effects = story.give(Event::Start);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Spawn(_))));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.end(), Some((Outcome::Failed, 125)));
}

#[test]
fn events_that_do_not_fit_are_recorded_and_change_nothing() {
    let other = |slot, attempt| Event::Exited {
        id: AttemptId { step: StepIndex(0), slot, attempt },
        exit: code(1),
        classed: None,
        usage: None,
    };
    let mut story = Story::running(2);
    for event in [
        Event::Start,
        other(Slot { role: 0, index: 0 }, 2),
        other(Slot { role: 0, index: 9 }, 1),
        other(Slot { role: 9, index: 0 }, 1),
        Event::Started { id: id(0, 0), instance: Instance::of_pid(7) },
        Event::Gathered(vec![]),
        Event::Timer(Timer::Settle, 1),
        Event::Timer(Timer::Grace, 1),
        Event::Timer(Timer::Abandon, 1),
    ] {
        let before = format!("{:?}", story.machine);
        assert!(is_ignored(&story.give(event.clone())), "{event:?}");
        assert_eq!(format!("{:?}", story.machine), before, "{event:?}");
    }
}

#[test]
fn a_notice_that_comes_twice_takes_no_place_in_the_order() {
    let mut story = Story::running(2);
    story.exit(0, code(0));
    assert!(is_ignored(&story.exit(0, code(0))));
    let effects = story.exit(1, code(0));
    assert!(matches!(effects[0], Effect::Record(Fact::Ended { order: 1, .. })), "{:?}", effects[0]);
}

#[test]
fn what_does_not_go_is_abandoned() {
    let mut story = Story::running(2);
    story.give(Event::Signalled { signal: SIGINT });
    story.exit(0, by(SIGTERM));
    let effects = story.give(Event::Timer(Timer::Grace, 1));
    assert_eq!(timers(&effects), [(Timer::Abandon, story.now + 10_000)]);
    let effects = story.give(Event::Timer(Timer::Abandon, 1));
    assert_eq!(effects[0], Effect::Record(Fact::Abandoned { replicas: vec!["role0-1".into()] }));
    assert_eq!(story.end(), Some((Outcome::Interrupted, 130)));
    assert!(is_ignored(&story.exit(1, by(SIGKILL))), "events after the end are ignored");
}

/// A rank that raised an error of its own and ended so slowly that a peer that lost it ended first.
#[test]
fn a_rank_that_failed_before_our_signal_is_the_cause_though_our_signal_ended_it() {
    let mut story = Story::running(3);
    story.exit(2, code(1));
    story.exit(0, by(SIGTERM));
    story.exit(1, by(SIGTERM));
    let evidence = |text: &str| crate::diagnose::extract(text.as_bytes(), None, None);
    let own = evidence("Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nValueError: bad\n");
    let victim = evidence("ConnectionError: rank 2 lost rank 1: it closed the connection\n");
    let slot = |index| Slot { role: 0, index };
    story.give(Event::Gathered(vec![told(slot(2), victim), told(slot(1), own)]));
    assert_eq!(story.causes(), [1]);
    assert_eq!(story.end(), Some((Outcome::Failed, 1)), "our signal's number is not its code");
}

mod recovery;
mod roles;
mod servers;

mod restarts {
    use super::*;
    use crate::model::Restart;

    /// Two ranks with this many restarts.
    fn story(max: u32) -> Story {
        let mut story = Story::new(&[(2, Completion::default())]);
        story.machine.job.policy.restart = Restart { max, ..Restart::default() };
        story.start();
        story
    }

    /// The ids of the starts among the effects.
    fn spawned(effects: &[Effect]) -> Vec<AttemptId> {
        effects
            .iter()
            .filter_map(|effect| if let Effect::Spawn(ids) = effect { Some(ids.clone()) } else { None })
            .flatten()
            .collect()
    }

    fn ids(attempt: u32) -> Vec<AttemptId> {
        (0..2).map(|index| AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt }).collect()
    }

    /// Rank 1 fails, rank 0 is stopped, the verdict is reported.
    fn fail(story: &mut Story, attempt: u32, exit: Exit) -> Vec<Effect> {
        let [first, second] = [ids(attempt)[0], ids(attempt)[1]];
        story.give(Event::Exited { id: second, exit, classed: None, usage: None });
        story.give(Event::Exited { id: first, exit: by(SIGTERM), classed: None, usage: None });
        story.give(Event::Gathered(vec![]))
    }

    fn prepared(attempt: u32) -> Event {
        Event::Prepared { attempt, ready: true }
    }

    #[test]
    fn changes_of_members_are_not_limited() {
        let mut story = story(2);
        story.machine.set_changes(5);
        let effects = fail(&mut story, 1, code(7));
        let of = effects.iter().find_map(|effect| match effect {
            Effect::Record(Fact::Restarting { of, .. }) => Some(*of),
            _ => None,
        });
        assert_eq!(of, Some(Some(8)));
    }

    #[test]
    fn a_failed_group_starts_again_as_a_whole_until_the_budget_is_spent() {
        let mut story = story(2);
        for attempt in 1..=2 {
            let effects = fail(&mut story, attempt, code(7));
            let [
                ..,
                Effect::Report(_),
                Effect::Record(Fact::Restarting { attempt: next, of, delay_micros, .. }),
                arm,
                prepare,
            ] = effects.as_slice()
            else {
                panic!("{effects:?}")
            };
            assert_eq!((*next, *of), (attempt + 1, Some(3)));
            let at = Timestamp::from_micros(story.now * 1000 + delay_micros);
            assert_eq!(*arm, Effect::ArmTimer { timer: Timer::Backoff, attempt, at });
            assert_eq!(*prepare, Effect::Prepare { attempt: attempt + 1 });
            assert!(story.machine.is_pausing());
            assert_eq!(story.give(prepared(attempt + 1)), [], "the back-off is not over");
            let effects = story.give(Event::Timer(Timer::Backoff, attempt));
            assert_eq!(spawned(&effects), ids(attempt + 1));
            let all = ids(attempt + 1).len();
            assert!(story.machine.is_whole_start(all) && !story.machine.is_whole_start(1), "others start too");
            assert_eq!(story.machine.attempt(), attempt + 1);
        }
        assert_eq!(story.end(), None);
        fail(&mut story, 3, code(8));
        assert_eq!(story.end(), Some((Outcome::Failed, 8)), "the last attempt's code");
    }

    #[test]
    fn an_attempt_that_succeeds_ends_the_run_well() {
        let mut story = story(1);
        fail(&mut story, 1, code(1));
        story.give(Event::Timer(Timer::Backoff, 1));
        assert_eq!(spawned(&story.give(prepared(2))), ids(2), "in either order");
        for id in ids(2) {
            story.give(Event::Exited { id, exit: code(0), classed: None, usage: None });
        }
        assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
    }

    #[test]
    fn events_of_an_old_attempt_are_fenced() {
        let mut story = story(1);
        fail(&mut story, 1, code(1));
        story.give(prepared(2));
        story.give(Event::Timer(Timer::Backoff, 1));
        story.give(Event::Exited { id: ids(2)[0], exit: code(3), classed: None, usage: None });
        for event in [
            Event::Exited { id: ids(1)[1], exit: code(1), classed: None, usage: None },
            Event::Started { id: ids(1)[1], instance: Instance::of_pid(9) },
            Event::Timer(Timer::Grace, 1),
            Event::Timer(Timer::Settle, 1),
            Event::Timer(Timer::Backoff, 1),
            prepared(2),
            prepared(3),
        ] {
            let before = format!("{:?}", story.machine);
            assert!(is_ignored(&story.give(event.clone())), "{event:?}");
            assert_eq!(format!("{:?}", story.machine), before, "{event:?}");
        }
        assert_eq!(stops(&story.give(Event::Timer(Timer::Grace, 2))), [(Kill, vec![1])], "its own timer counts");
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let mut story = story(5);
        fail(&mut story, 1, code(7));
        story.give(Event::Signalled { signal: SIGINT });
        assert_eq!(story.end(), Some((Outcome::Interrupted, 130)));
        assert!(story.machine.is_pausing(), "it ended between two attempts");
        assert!(is_ignored(&story.give(Event::Timer(Timer::Backoff, 1))));
    }

    #[test]
    fn a_signal_while_a_failed_attempt_ends_forbids_another_one() {
        let mut story = story(5);
        story.exit(1, code(7));
        story.give(Event::Signalled { signal: SIGINT });
        story.exit(0, by(SIGTERM));
        story.give(Event::Gathered(vec![]));
        assert_eq!(story.end(), Some((Outcome::Failed, 7)));
    }

    #[test]
    fn what_cannot_be_made_good_is_not_tried_again() {
        let refused = SpawnError { doing: SpawnStage::Execute, errno: 2, reason: "not found".into() };
        let mut refusal = story(5);
        fail(&mut refusal, 1, Exit::Spawn(refused));
        assert_eq!(refusal.end(), Some((Outcome::Failed, 127)));

        let mut lost = story(5);
        lost.give(Event::EngineLost { again: false });
        lost.give(Event::Gathered(vec![]));
        assert_eq!(lost.end(), Some((Outcome::Failed, 125)));

        // An engine that can be started again is a failure of the platform, which has a budget of its own.
        let mut platform = story(5);
        platform.machine.job.policy.restart.max_platform = 0;
        platform.give(Event::EngineLost { again: true });
        platform.give(Event::Gathered(vec![]));
        assert_eq!(platform.end(), Some((Outcome::Failed, 125)));

        let mut stuck = story(5);
        stuck.exit(1, code(7));
        for timer in [Timer::Settle, Timer::Grace, Timer::Abandon] {
            stuck.give(Event::Timer(timer, 1));
        }
        stuck.give(Event::Gathered(vec![]));
        assert_eq!(stuck.end(), Some((Outcome::Failed, 7)), "an abandoned process holds devices and ports");
    }

    #[test]
    fn an_engine_that_can_be_started_again_spends_the_budget_of_the_platform() {
        let mut story = story(0);
        story.machine.job.policy.restart.max_platform = 1;
        for attempt in [2, 3] {
            story.give(Event::EngineLost { again: true });
            let effects = story.give(Event::Gathered(vec![]));
            let is_prepared = effects.contains(&Effect::Prepare { attempt });
            assert_eq!(is_prepared, attempt == 2, "{effects:?}");
            if is_prepared {
                // Nothing is lost in the wait.
                story.give(Event::EngineLost { again: true });
                story.give(Event::Prepared { attempt, ready: true });
                let effects = story.give(Event::Timer(Timer::Backoff, 1));
                assert!(effects.iter().any(|effect| matches!(effect, Effect::Spawn(_))), "{effects:?}");
            }
        }
        assert_eq!(story.end(), Some((Outcome::Failed, 125)));
    }

    #[test]
    fn what_happens_in_the_wait_may_forbid_the_next_attempt() {
        for event in [Event::Prepared { attempt: 2, ready: false }, Event::EngineLost { again: false }] {
            let mut story = story(5);
            fail(&mut story, 1, code(7));
            story.give(event.clone());
            assert_eq!(story.end(), Some((Outcome::Failed, 7)), "{event:?}");
        }
    }

    #[test]
    fn an_order_of_exits_goes_on_through_the_attempts() {
        let mut story = story(1);
        fail(&mut story, 1, code(1));
        story.give(prepared(2));
        story.give(Event::Timer(Timer::Backoff, 1));
        let effects = story.give(Event::Exited { id: ids(2)[0], exit: code(0), classed: None, usage: None });
        assert!(matches!(effects[0], Effect::Record(Fact::Ended { order: 2, .. })), "{:?}", effects[0]);
    }
}

#[test]
fn one_node_of_several_counts_from_its_first_rank() {
    let mut story = Story::new(&[(2, Completion::default())]);
    story.machine = story.machine.ranks_from(Rank(6));
    story.start();
    let slot = Slot { role: 0, index: 1 };
    assert_eq!(story.machine.replica_name(slot), "role0-7");
    assert_eq!(story.machine.subject(slot).rank, Some(Rank(7)));
}

/// One of several nodes, running.
fn shared(replicas: u32) -> Story {
    let mut story = Story::new(&[(replicas, Completion::default())]);
    story.machine.share();
    story.start();
    story
}

fn decided(attempt: u32, outcome: Outcome, restart: Option<Duration>) -> Event {
    let code = (outcome == Outcome::Failed).then_some(NODE_LOST);
    let signal = (outcome == Outcome::Interrupted).then_some(SIGTERM);
    Event::Decided(Box::new(Decided {
        attempt,
        outcome,
        verdict: None,
        signal,
        kill: false,
        code,
        restart,
        change: None,
    }))
}

fn end_of(effects: &[Effect]) -> Option<(Outcome, u8)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Finish { outcome, code } => Some((*outcome, *code)),
        _ => None,
    })
}

#[test]
fn one_of_several_waits_for_the_others() {
    let mut story = shared(1);
    let effects = story.exit(0, Exit::Code { code: 0 });
    assert!(effects.contains(&Effect::Stand(Stand::Succeeded)) && end_of(&effects).is_none());
    assert_eq!(end_of(&story.give(decided(1, Outcome::Succeeded, None))), Some((Outcome::Succeeded, 0)));
    // Or until no other node can be reached.
    let mut story = shared(1);
    story.exit(0, Exit::Code { code: 0 });
    story.give(Event::Alone);
    assert_eq!(end_of(&story.give(Event::Gathered(vec![]))), Some((Outcome::Failed, NODE_LOST)));
}

#[test]
fn one_of_several_ends_before_its_start() {
    for (event, end) in [
        (Event::Signalled { signal: SIGINT }, (Outcome::Interrupted, 130)),
        (Event::Alone, (Outcome::Failed, NODE_LOST)),
        (decided(1, Outcome::Failed, None), (Outcome::Failed, NODE_LOST)),
        (decided(1, Outcome::Interrupted, None), (Outcome::Interrupted, 143)),
    ] {
        let mut story = Story::new(&[(1, Completion::default())]);
        story.machine.share();
        assert_eq!(end_of(&story.give(event.clone())), Some(end), "{event:?}");
    }
}

#[test]
fn a_failure_and_a_signal_elsewhere() {
    let mut story = shared(1);
    story.exit(0, Exit::Code { code: 7 });
    story.give(Event::Gathered(vec![]));
    assert_eq!(end_of(&story.give(decided(1, Outcome::Interrupted, None))), Some((Outcome::Interrupted, 143)));
}

#[test]
fn attempts_that_happen_without_us() {
    let restart = Some(Duration::ZERO);
    // Away from the beginning, and still away in the next attempt.
    let mut story = Story::new(&[(1, Completion::default())]);
    story.machine.share();
    assert!(story.give(decided(1, Outcome::Failed, restart)).contains(&Effect::Prepare { attempt: 2 }));
    assert!(story.give(decided(2, Outcome::Failed, restart)).contains(&Effect::Prepare { attempt: 3 }));
    story.give(Event::Timer(Timer::Backoff, 2));
    let effects = story.give(Event::Prepared { attempt: 3, ready: true });
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Spawn(ids) if ids[0].attempt == 3)));
    // Other nodes have had two attempts since, and this one joins the next: no back-off of ours applies.
    let mut story = Story::new(&[(1, Completion::default())]);
    story.machine.share();
    story.give(decided(1, Outcome::Failed, restart));
    let mut done = story.machine.clone();
    let effects = story.give(Event::Prepared { attempt: 4, ready: true });
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Spawn(ids) if ids[0].attempt == 4)));
    // They succeed without it.
    let effects = done.step(decided(3, Outcome::Succeeded, None), Timestamp::from_micros(9_000_000));
    assert_eq!(end_of(&effects), Some((Outcome::Succeeded, 0)));
    // The next attempt is over while ours is still ending.
    let mut story = shared(1);
    story.give(Event::StoppedElsewhere(StopReason::PeerFailed));
    story.give(decided(1, Outcome::Failed, restart));
    story.give(decided(2, Outcome::Interrupted, None));
    let effects = story.exit(0, Exit::Signal { signal: SIGTERM, core_dumped: false });
    assert_eq!(end_of(&effects), Some((Outcome::Interrupted, 143)));
}

#[test]
fn a_signal_between_attempts_is_told() {
    let mut story = shared(1);
    story.exit(0, Exit::Code { code: 7 });
    story.give(Event::Gathered(vec![]));
    story.give(decided(1, Outcome::Failed, Some(Duration::from_secs(9))));
    let effects = story.give(Event::Signalled { signal: SIGINT });
    assert!(effects.contains(&Effect::Stand(Stand::Interrupted { signal: Some(SIGINT), kill: false })));
    assert_eq!(end_of(&effects), Some((Outcome::Interrupted, 130)));
}

/// The ranks of a job without progress are stopped; without stacks none of them is odd, and all are named.
#[test]
fn a_job_that_hangs_has_timed_out() {
    let mut story = Story::running(2);
    let effects = story.give(Event::Hung(true));
    assert_eq!(stops(&effects), [(Terminate, vec![0, 1])]);
    story.exit(0, by(SIGTERM));
    story.exit(1, by(SIGTERM));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.causes(), [0, 1]);
    assert_eq!(story.end(), Some((Outcome::Failed, 124)));
    let mut story = Story::running(2);
    assert_eq!(stops(&story.give(Event::Hung(false))), []);
}
