//! Jobs with several roles: restarts inside them, time limits, start order, stopping.

use super::*;
use crate::model::{Blame, PortNeed, Restart, RoleRestart, Scope, StartAfter, Timeouts, When};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Roles of these sizes, with default policies, before any event.
pub(super) fn story(sizes: &[u32]) -> Story {
    let roles: Vec<_> = sizes.iter().map(|size| (*size, Completion::default())).collect();
    let mut story = Story::new(&roles);
    story.machine.style.document = true;
    story
}

pub(super) fn restart(story: &mut Story, role: usize, scope: Scope, max: u32, max_platform: u32) {
    story.machine.job.roles[role].restart =
        RoleRestart { scope, rule: Restart { max, max_platform, ..Restart::default() } };
}

pub(super) fn at(role: u16, index: u32, attempt: u32) -> AttemptId {
    AttemptId { step: StepIndex(0), slot: Slot { role, index }, attempt }
}

impl Story {
    pub(super) fn begin(&mut self) -> Vec<AttemptId> {
        let ids = spawned(&self.give(Event::Start));
        for id in &ids {
            self.up(*id);
        }
        ids
    }

    pub(super) fn up(&mut self, id: AttemptId) {
        self.give(Event::Started { id, instance: Instance::of_pid(9) });
    }

    pub(super) fn ends(&mut self, id: AttemptId, exit: Exit) -> Vec<Effect> {
        self.give(Event::Exited { id, exit, classed: None, usage: None })
    }

    pub(super) fn fire(&mut self, timer: Timer) -> Vec<Effect> {
        let fence = self.machine.fence(timer);
        self.give(Event::Timer(timer, fence))
    }
}

pub(super) fn spawned(effects: &[Effect]) -> Vec<AttemptId> {
    let ids = |effect: &Effect| if let Effect::Spawn(ids) = effect { Some(ids.clone()) } else { None };
    effects.iter().filter_map(ids).flatten().collect()
}

pub(super) fn retried(effects: &[Effect]) -> Option<(Vec<(String, u32)>, Blame)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Record(Fact::Retrying { subjects, blame, .. }) => {
            Some((subjects.iter().map(|subject| (subject.replica.clone(), subject.attempt)).collect(), *blame))
        }
        _ => None,
    })
}

fn refused(errno: i32) -> Exit {
    let doing = if errno == 2 { SpawnStage::Execute } else { SpawnStage::Fork };
    Exit::Spawn(SpawnError { doing, errno, reason: String::new() })
}

fn after(story: &mut Story, role: usize, other: u16, when: When) {
    story.machine.job.roles[role].start_after.push(StartAfter { role: other, when });
}

fn ports(story: &mut Story, role: usize) {
    story.machine.job.roles[role].work.ports = vec![PortNeed { name: "rpc".into(), count: 1, fixed: None }];
}

#[test]
fn a_replica_starts_again_alone_until_its_budget_is_spent() {
    let mut story = story(&[2]);
    restart(&mut story, 0, Scope::Replica, 1, 0);
    story.begin();
    let effects = story.ends(at(0, 1, 1), code(7));
    assert_eq!(retried(&effects), Some((vec![("role0-1".into(), 2)], Blame::User)));
    assert!(effects.contains(&Effect::Inspect(at(0, 1, 1))) && stops(&effects).is_empty());
    assert!(story.give(Event::Inspected { id: at(0, 1, 1), evidence: None }).len() == 2, "one fact, one message");
    assert_eq!(spawned(&story.fire(Timer::BackoffOf(Of::Replica(Slot { role: 0, index: 1 })))), [at(0, 1, 2)]);
    story.up(at(0, 1, 2));
    let effects = story.ends(at(0, 1, 2), code(8));
    assert_eq!((retried(&effects), stops(&effects)), (None, vec![(Terminate, vec![0])]));
    story.ends(at(0, 0, 1), by(SIGTERM));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.end(), Some((Outcome::Failed, 8)), "one role: the cause's own code");
}

#[test]
fn a_role_starts_again_as_a_whole_while_the_others_go_on() {
    let mut story = story(&[2, 1]);
    restart(&mut story, 0, Scope::Role, 1, 1);
    story.begin();
    // The first failure sets the blame, whatever the others do while they are stopped.
    let effects = story.ends(at(0, 0, 1), refused(11));
    assert_eq!(stops(&effects), [(Terminate, vec![1])]);
    let effects = story.ends(at(0, 1, 1), code(1));
    assert_eq!(retried(&effects), Some((vec![("role0-0".into(), 2), ("role0-1".into(), 2)], Blame::Platform)));
    assert_eq!(spawned(&story.fire(Timer::BackoffOf(Of::Role(0)))), [at(0, 0, 2), at(0, 1, 2)]);
    assert_eq!(story.end(), None);
}

#[test]
fn budgets_of_user_and_platform_are_apart_and_what_cannot_run_is_not_tried_again() {
    for (exit, user, platform, again) in [
        (code(1), 1, 0, true),
        (code(1), 0, 1, false),
        (refused(11), 0, 1, true),
        (refused(11), 1, 0, false),
        (refused(2), 9, 9, false),
    ] {
        let mut story = story(&[1]);
        restart(&mut story, 0, Scope::Replica, user, platform);
        story.begin();
        let effects = story.ends(at(0, 0, 1), exit.clone());
        assert_eq!(retried(&effects).is_some(), again, "{exit:?} {user} {platform}");
    }
}

#[test]
fn the_job_starts_again_with_fresh_budgets_of_its_roles() {
    let mut story = story(&[1]);
    restart(&mut story, 0, Scope::Replica, 1, 0);
    story.machine.job.policy.restart.max = 1;
    story.begin();
    assert!(retried(&story.ends(at(0, 0, 1), code(1))).is_some());
    story.fire(Timer::BackoffOf(Of::Replica(Slot { role: 0, index: 0 })));
    assert!(retried(&story.ends(at(0, 0, 2), code(1))).is_none());
    story.give(Event::Gathered(vec![]));
    story.give(Event::Prepared { attempt: 2, ready: true });
    assert_eq!(spawned(&story.fire(Timer::Backoff)), [at(0, 0, 3)], "numbers continue");
    assert!(retried(&story.ends(at(0, 0, 3), code(1))).is_some());
}

#[test]
fn an_attempt_that_takes_too_long_has_failed_and_is_the_cause() {
    for exit in [by(SIGTERM), by(SIGKILL), code(0), code(5)] {
        let mut story = story(&[1]);
        story.machine.job.roles[0].timeouts = Timeouts { run: Some(SECOND), ..Timeouts::default() };
        story.begin();
        let slot = Slot { role: 0, index: 0 };
        assert_eq!(timers(&story.effects), [(Timer::Run(slot), story.now + 1000)]);
        // A duplicate notification does not restart the time limit.
        assert!(is_ignored(&story.give(Event::Started { id: at(0, 0, 1), instance: Instance::of_pid(9) })));
        assert_eq!(stops(&story.fire(Timer::Run(slot))), [(Terminate, vec![0])]);
        assert_eq!(stops(&story.fire(Timer::GraceOf(Of::Replica(slot)))), [(Kill, vec![0])]);
        story.ends(at(0, 0, 1), exit.clone());
        story.give(Event::Gathered(vec![]));
        assert_eq!(story.verdict().map(|verdict| verdict.causes[0].weight), Some(Weight::Certain));
        assert_eq!(story.end(), Some((Outcome::Failed, 124)), "{exit:?}: any exit after the limit is a timeout");
    }
}

#[test]
fn who_took_too_long_and_does_not_go_has_failed() {
    let mut story = story(&[2]);
    story.machine.job.roles[0].timeouts.run = Some(SECOND);
    story.begin();
    let slot = Slot { role: 0, index: 0 };
    for timer in [Timer::Run(slot), Timer::GraceOf(Of::Replica(slot))] {
        story.fire(timer);
    }
    let effects = story.fire(Timer::AbandonOf(Of::Replica(slot)));
    assert_eq!(stops(&effects), [(Terminate, vec![1])], "the other role does not wait forever");
}

#[test]
fn the_run_that_takes_too_long_ends_with_124() {
    let mut story = story(&[1, 1]);
    story.machine.job.policy.timeout = Some(SECOND);
    story.begin();
    story.give(Event::Timer(Timer::Deadline, 0));
    story.ends(at(0, 0, 1), by(SIGTERM));
    story.ends(at(1, 0, 1), by(SIGTERM));
    assert_eq!(story.end(), Some((Outcome::Failed, 124)));
}

#[test]
fn a_role_waits_until_another_is_started_ready_or_done() {
    for (when, has_ports) in [(When::Started, true), (When::Ready, true), (When::Ready, false), (When::Succeeded, true)]
    {
        let mut story = story(&[1, 1]);
        after(&mut story, 1, 0, when);
        if has_ports {
            ports(&mut story, 0);
        }
        assert_eq!(spawned(&story.give(Event::Start)), [at(0, 0, 1)]);
        let events = [
            Event::Started { id: at(0, 0, 1), instance: Instance::of_pid(1) },
            Event::Ready { id: at(0, 0, 1) },
            Event::Exited { id: at(0, 0, 1), exit: code(0), classed: None, usage: None },
        ];
        let started = events.map(|event| !spawned(&story.give(event)).is_empty());
        let expected = match when {
            When::Ready if has_ports => [false, true, false],
            When::Started | When::Ready => [true, false, false],
            When::Succeeded => [false, false, true],
        };
        assert_eq!(started, expected, "{when:?}, ports: {has_ports}");
    }
}

#[test]
fn ports_that_do_not_answer_are_a_failure_only_where_somebody_waits() {
    for awaited in [true, false] {
        let mut story = story(&[1, 1]);
        ports(&mut story, 0);
        story.machine.job.roles[0].timeouts.start = Some(SECOND);
        after(&mut story, 1, 0, if awaited { When::Ready } else { When::Started });
        story.begin();
        let slot = Slot { role: 0, index: 0 };
        assert_eq!(
            !story.fire(Timer::StartUp(slot)).iter().all(|effect| is_ignored(std::slice::from_ref(effect))),
            awaited
        );
    }
}

#[test]
fn a_role_that_is_stopped_to_start_again_has_not_succeeded() {
    let mut story = story(&[3, 1]);
    story.machine.job.roles[0].completion.min_succeeded = MinSucceeded::Count(1);
    restart(&mut story, 0, Scope::Role, 1, 0);
    after(&mut story, 1, 0, When::Succeeded);
    story.begin();
    assert_eq!(spawned(&story.ends(at(0, 0, 1), code(1))), []);
    assert_eq!(spawned(&story.ends(at(0, 1, 1), code(0))), [], "it ended well while it was stopped");
    story.ends(at(0, 2, 1), by(SIGTERM));
    assert_eq!(spawned(&story.fire(Timer::BackoffOf(Of::Role(0)))).len(), 3);
}

/// The awaited role failed for good and its policy forgives that: without a refusal the job would hang.
#[test]
fn who_waits_in_vain_is_refused_and_the_job_fails() {
    let mut story = story(&[2, 1]);
    story.machine.job.roles[0].completion.min_failed = 0;
    ports(&mut story, 0);
    after(&mut story, 1, 0, When::Ready);
    story.begin();
    let effects = story.ends(at(0, 0, 1), code(1));
    assert!(effects.iter().any(|effect| matches!(effect,
        Effect::Record(Fact::Ended { exit: Exit::Unmet { role, .. }, .. }) if role == "role0")));
    assert_eq!(stops(&effects), [(Terminate, vec![1])], "decided in the same step");
    story.ends(at(0, 1, 1), by(SIGTERM));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.end(), Some((Outcome::Failed, 1)), "several roles: no replica's code stands for all");
}

#[test]
fn a_refusal_can_be_made_good_by_all_roles_anew() {
    let mut story = story(&[1, 1]);
    story.machine.job.roles[0].completion.min_failed = 0;
    story.machine.job.policy.restart.max = 1;
    after(&mut story, 1, 0, When::Started);
    story.give(Event::Start);
    story.ends(at(0, 0, 1), code(1));
    story.give(Event::Gathered(vec![]));
    assert!(story.machine.is_pausing());
}

#[test]
fn all_is_done_while_a_role_that_does_not_decide_waits_or_backs_off() {
    let mut waits = story(&[1, 1]);
    waits.machine.job.roles[1].completion = helper();
    after(&mut waits, 1, 0, When::Succeeded);
    waits.begin();
    let effects = waits.ends(at(0, 0, 1), code(0));
    assert_eq!((spawned(&effects), waits.end()), (vec![], Some((Outcome::Succeeded, 0))));

    let mut backs_off = story(&[1, 1]);
    backs_off.machine.job.roles[1].completion = helper();
    restart(&mut backs_off, 1, Scope::Replica, 1, 0);
    backs_off.begin();
    backs_off.ends(at(1, 0, 1), code(1));
    backs_off.ends(at(0, 0, 1), code(0));
    assert_eq!(backs_off.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn a_role_has_its_own_grace() {
    let mut story = story(&[1, 1]);
    story.machine.job.roles[1].grace = Some(SECOND * 20);
    story.begin();
    let effects = story.give(Event::Signalled { signal: SIGINT });
    let own = Timer::GraceOf(Of::Role(1));
    let expected = [
        (Timer::Terminate, story.now + 2000),
        (Timer::Grace, story.now + 5000),
        (Timer::TerminateOf(Of::Role(1)), story.now + 2000),
        (own, story.now + 20_000),
    ];
    assert_eq!(timers(&effects), expected);
    let killed = |effects: &[Effect]| {
        let targets = |effect: &Effect| match effect {
            Effect::Stop { how: Kill, targets } => Some(targets.clone()),
            _ => None,
        };
        effects.iter().filter_map(targets).flatten().collect::<Vec<_>>()
    };
    assert_eq!(killed(&story.fire(Timer::Grace)), [at(0, 0, 1)]);
    // The second signal kills the remaining replicas once. Each abandon timer counts from its own SIGKILL.
    let effects = story.give(Event::Signalled { signal: SIGINT });
    assert_eq!(killed(&effects), [at(1, 0, 1)]);
    assert_eq!(timers(&effects), [(Timer::AbandonOf(Of::Role(1)), story.now + 10_000)]);
    assert_eq!(killed(&story.fire(own)), []);
}

#[test]
fn the_second_stop_kills_whatever_came_in_between() {
    for between in [None, Some(Event::Signalled { signal: SIGINT })] {
        let mut story = story(&[1]);
        story.begin();
        assert_eq!(stops(&story.give(Event::StopAsked { kill: false })), [(Terminate, vec![0])]);
        between.map(|event| story.give(event));
        assert_eq!(stops(&story.give(Event::StopAsked { kill: false })), [(Kill, vec![0])]);
        story.ends(at(0, 0, 1), by(SIGKILL));
        assert_eq!(story.end(), Some((Outcome::Stopped, 3)));
    }
    let mut story = story(&[1]);
    story.begin();
    assert_eq!(stops(&story.give(Event::StopAsked { kill: true })).last(), Some(&(Kill, vec![0])));
}

#[test]
fn a_stop_ends_back_offs_recycling_and_pauses() {
    let mut backs_off = story(&[1]);
    restart(&mut backs_off, 0, Scope::Replica, 1, 0);
    backs_off.begin();
    backs_off.ends(at(0, 0, 1), code(1));
    backs_off.give(Event::StopAsked { kill: false });
    assert_eq!(backs_off.end(), Some((Outcome::Stopped, 3)));

    let mut recycles = story(&[2]);
    restart(&mut recycles, 0, Scope::Role, 1, 0);
    recycles.machine.job.roles[0].grace = Some(SECOND);
    recycles.begin();
    recycles.ends(at(0, 0, 1), code(1));
    let effects = recycles.give(Event::StopAsked { kill: false });
    assert_eq!(timers(&effects), [], "no extra time");
    recycles.ends(at(0, 1, 1), by(SIGTERM));
    assert_eq!(recycles.end(), Some((Outcome::Stopped, 3)));

    let mut pauses = story(&[1]);
    pauses.machine.job.policy.restart.max = 1;
    pauses.begin();
    pauses.ends(at(0, 0, 1), code(1));
    pauses.give(Event::Gathered(vec![]));
    pauses.give(Event::StopAsked { kill: false });
    assert_eq!(pauses.end(), Some((Outcome::Stopped, 3)));
}

#[test]
fn losing_the_guardian_ends_back_offs_and_recycling_with_the_job() {
    for (scope, code_then) in [(Scope::Replica, 125), (Scope::Role, 7)] {
        let mut story = story(&[1]);
        if scope == Scope::Role {
            story = self::story(&[2]);
        }
        restart(&mut story, 0, scope, 5, 5);
        story.begin();
        story.ends(at(0, 0, 1), code(7));
        story.give(Event::EngineLost { again: false });
        story.give(Event::Gathered(vec![]));
        assert_eq!(story.end().map(|(outcome, _)| outcome), Some(Outcome::Failed), "{scope:?}");
        assert_eq!(story.end().map(|(_, code)| code), Some(code_then), "{scope:?}");
    }
}

/// One replica of the role timed out before: it has a timer of its own, and the role has none.
#[test]
fn a_role_with_one_that_does_not_go_is_not_started_again() {
    let mut story = story(&[2]);
    restart(&mut story, 0, Scope::Role, 5, 5);
    story.machine.job.roles[0].timeouts.run = Some(SECOND);
    story.begin();
    let slot = Slot { role: 0, index: 1 };
    story.fire(Timer::Run(slot));
    assert_eq!(timers(&story.ends(at(0, 0, 1), code(7))), []);
    story.fire(Timer::GraceOf(Of::Replica(slot)));
    story.fire(Timer::AbandonOf(Of::Replica(slot)));
    story.give(Event::Gathered(vec![]));
    assert_eq!(story.end(), Some((Outcome::Failed, 7)));
}

#[test]
fn timers_of_an_earlier_restart_of_a_role_are_fenced() {
    let mut story = story(&[2]);
    restart(&mut story, 0, Scope::Role, 5, 0);
    story.begin();
    story.ends(at(0, 0, 1), code(1));
    let old = story.machine.fence(Timer::GraceOf(Of::Role(0)));
    story.ends(at(0, 1, 1), by(SIGTERM));
    story.fire(Timer::BackoffOf(Of::Role(0)));
    story.ends(at(0, 0, 2), code(1));
    assert!(is_ignored(&story.give(Event::Timer(Timer::GraceOf(Of::Role(0)), old))));
    assert_eq!(stops(&story.fire(Timer::GraceOf(Of::Role(0)))), [(Kill, vec![1])]);
}

#[test]
fn every_failure_that_is_made_good_is_told_however_late() {
    let mut story = story(&[1]);
    restart(&mut story, 0, Scope::Replica, 5, 0);
    story.begin();
    let slot = Slot { role: 0, index: 0 };
    story.ends(at(0, 0, 1), code(1));
    story.fire(Timer::BackoffOf(Of::Replica(slot)));
    story.ends(at(0, 0, 2), code(2));
    for (attempt, expected) in [(1, code(1)), (2, code(2))] {
        let effects = story.give(Event::Inspected { id: at(0, 0, attempt), evidence: None });
        let [Effect::Record(Fact::AttemptFailed(finding)), Effect::TellFailed(_)] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert_eq!((finding.subject.attempt, &finding.exit), (attempt, &expected));
    }
}
