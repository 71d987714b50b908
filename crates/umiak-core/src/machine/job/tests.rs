//! The main stories, one each. What happens in between is the simulator's business.

use std::time::Duration;

use super::*;
use crate::facts::Weight;
use crate::formats::launch::{ExitCodes, Generation};
use crate::model::{Completion, JobId, MinSucceeded, Policy, Role, RoleName, StopPolicy};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A machine, the virtual time in milliseconds, and everything it has ordered so far.
struct Story {
    machine: Machine,
    now: u64,
    effects: Vec<Effect>,
}

impl Story {
    /// Roles as (replicas, completion).
    fn new(roles: &[(u32, Completion)]) -> Self {
        let roles = roles.iter().enumerate().map(|(index, (replicas, completion))| Role {
            name: RoleName::new(format!("role{index}")).unwrap(),
            replicas: *replicas,
            completion: *completion,
        });
        let stop = StopPolicy { grace: Duration::from_secs(5), abandon: Duration::from_secs(10) };
        let policy = Policy { stop, ..Policy::default() };
        let job = Job { name: JobId::new("story").unwrap(), contracts: vec![], roles: roles.collect(), policy };
        let style = Style { codes: ExitCodes::Umiak, generation: Generation::Current };
        Self { machine: Machine::new(job, style), now: 0, effects: Vec::new() }
    }

    /// One role of this size, started and running.
    fn running(replicas: u32) -> Self {
        let mut story = Self::new(&[(replicas, Completion::default())]);
        story.start();
        story
    }

    fn start(&mut self) {
        self.give(Event::Start);
        for slot in self.machine.slots() {
            self.give(Event::Spawned { id: id(slot.role, slot.index), pid: 100 + slot.index });
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
        self.give(Event::Exited { id: id(0, index), exit, usage: None })
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
    AttemptId { slot: Slot { role, index }, attempt: 0 }
}

fn code(code: i32) -> Exit {
    Exit::Code { code }
}

fn by(signal: i32) -> Exit {
    Exit::Signal { signal, core_dumped: false }
}

/// (signal, ranks) of every order to signal among these effects; one role only.
fn signals(effects: &[Effect]) -> Vec<(i32, Vec<u32>)> {
    let order = |effect: &Effect| match effect {
        Effect::Signal { signal, targets } => Some((*signal, targets.iter().map(|id| id.slot.index).collect())),
        _ => None,
    };
    effects.iter().filter_map(order).collect()
}

fn timers(effects: &[Effect]) -> Vec<(Timer, u64)> {
    let armed = |effect: &Effect| match effect {
        Effect::ArmTimer { timer, at } => Some((*timer, at.as_micros() / 1000)),
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
    assert_eq!(signals(&story.effects), []);
}

#[test]
fn one_fails_and_the_others_are_stopped_in_the_same_step() {
    let mut story = Story::running(3);
    let effects = story.exit(1, code(7));
    let now = story.now;
    assert_eq!(signals(&effects), [(SIGTERM, vec![0, 2])]);
    assert_eq!(timers(&effects), [(Timer::Grace, now + 5000), (Timer::Settle, now + 500)]);
    story.exit(0, by(SIGTERM));
    assert_eq!(story.verdict(), None, "the window is open while somebody lives");
    let gather = story.exit(2, by(SIGTERM));
    assert_eq!(
        gather.last(),
        Some(&Effect::Gather {
            ended: vec![Slot { role: 0, index: 1 }],
            stopped: vec![Slot { role: 0, index: 0 }, Slot { role: 0, index: 2 }],
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
    story.give(Event::Timer(Timer::Settle));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.causes(), [0]);
    assert_eq!(story.end(), None);
    assert_eq!(signals(&story.give(Event::Timer(Timer::Grace))), [(SIGKILL, vec![1])]);
    story.exit(1, by(SIGKILL));
    assert_eq!(story.end(), Some((Outcome::Failed, 139)));
}

#[test]
fn who_ends_while_evidence_is_read_is_not_judged() {
    let mut story = Story::running(3);
    story.exit(0, code(1));
    story.give(Event::Timer(Timer::Settle));
    // It crashes in its clean-up; its log was not read, so nothing would speak against it.
    story.exit(1, by(11));
    let victim = diagnose::SIGNATURES.iter().find(|signature| signature.kind == diagnose::Kind::Victim).unwrap();
    let evidence = Evidence { signature: Some(victim.to_match()), ..Evidence::default() };
    story.give(Event::Gathered(vec![(Slot { role: 0, index: 0 }, evidence)]));
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
        (vec![(SIGTERM, vec![0, 1])], None),
        (vec![(SIGKILL, vec![0, 1])], None),
        (vec![], Some(Effect::ReturnTerminal)),
    ] {
        let effects = story.give(Event::Signalled { signal: SIGINT });
        assert_eq!(signals(&effects), expected);
        assert!(effect.is_none_or(|effect| effects.contains(&effect)));
    }
    story.exit(0, by(SIGTERM));
    story.exit(1, by(SIGKILL));
    assert_eq!(story.end(), Some((Outcome::Interrupted, 130)));
    assert_eq!(story.verdict(), None);
}

#[test]
fn a_role_that_does_not_decide_is_stopped_without_blame() {
    let mut story = Story::new(&[(1, Completion::default()), (1, helper())]);
    story.start();
    let effects = story.exit(0, code(0));
    assert!(effects.contains(&Effect::Record(Fact::Stopping { reason: StopReason::Completed })));
    story.give(Event::Exited { id: id(1, 0), exit: code(1), usage: None });
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
    assert_eq!(story.verdict(), None);
}

#[test]
fn where_no_role_decides_all_do() {
    let mut story = Story::new(&[(2, helper())]);
    story.start();
    assert_eq!(signals(&story.effects), [], "stopped as it started");
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
        story.give(Event::GuardianLost);
        story.give(Event::Gathered(vec![]));
        assert_eq!(story.end(), Some((Outcome::Failed, 125)), "min_failed {min_failed}");
    }
}

#[test]
fn a_guardian_lost_before_the_start_starts_nothing() {
    let mut story = Story::new(&[(2, Completion::default())]);
    story.give(Event::GuardianLost);
    let effects = story.give(Event::Start);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Spawn(_))));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.end(), Some((Outcome::Failed, 125)));
}

#[test]
fn events_that_do_not_fit_are_recorded_and_change_nothing() {
    let other = |slot, attempt| Event::Exited { id: AttemptId { slot, attempt }, exit: code(1), usage: None };
    let mut story = Story::running(2);
    for event in [
        Event::Start,
        other(Slot { role: 0, index: 0 }, 1),
        other(Slot { role: 0, index: 9 }, 0),
        other(Slot { role: 9, index: 0 }, 0),
        Event::Spawned { id: id(0, 0), pid: 7 },
        Event::Gathered(vec![]),
        Event::Timer(Timer::Settle),
        Event::Timer(Timer::Grace),
        Event::Timer(Timer::Abandon),
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
    let effects = story.give(Event::Timer(Timer::Grace));
    assert_eq!(timers(&effects), [(Timer::Abandon, story.now + 10_000)]);
    let effects = story.give(Event::Timer(Timer::Abandon));
    assert_eq!(effects[0], Effect::Record(Fact::Abandoned { replicas: vec!["role0-1".into()] }));
    assert_eq!(story.end(), Some((Outcome::Interrupted, 130)));
    assert!(is_ignored(&story.exit(1, by(SIGKILL))), "after the end nothing counts");
}

/// A rank that raised an error of its own, and was so slow to end that the peer it left ended first.
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
    story.give(Event::Gathered(vec![(slot(2), victim), (slot(1), own)]));
    assert_eq!(story.causes(), [1]);
    assert_eq!(story.end(), Some((Outcome::Failed, 1)), "our signal's number is not its code");
}
