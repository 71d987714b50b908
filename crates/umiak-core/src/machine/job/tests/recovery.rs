//! Supervisors that take over from a journal.

use super::roles::{SECOND, at, restart, retried, spawned, story};
use super::*;
use crate::facts::{Began, Record, Supervised};
use crate::model::{Blame, Scope, StartAfter, When};
use crate::status::Status;

/// The journal of a story, as the next supervisor finds it.
fn journal(story: &Story) -> Status {
    let facts = story.effects.iter().filter_map(|effect| match effect {
        Effect::Record(fact) => Some(fact.clone()),
        _ => None,
    });
    let mut status = Status::default();
    for (seq, fact) in facts.enumerate() {
        status.add(&Record { v: 1, seq: seq as u64, at: seq as u64 * 1000, epoch: 0, fact });
    }
    status
}

fn supervised(status: &mut Status, epoch: u32, why: Began) {
    let fact = Fact::Supervised(Supervised { why, host: String::new(), pid: 1, umiak: String::new() });
    status.add(&Record { v: 1, seq: status.next_seq, at: status.last + 5_000_000, epoch, fact });
}

/// The same job, taken over.
fn taken(old: &Story, again: Again) -> Story {
    let mut machine = Machine::new(old.machine.job.clone(), old.machine.style, 7);
    machine.recover(&journal(old), again);
    Story { machine, now: old.now + 10_000, effects: Vec::new() }
}

/// One each: succeeded, failed though its policy forgives that, live, not seen yet.
fn all_kinds() -> Story {
    let mut story = story(&[4]);
    story.machine.job.roles[0].completion.min_failed = 3;
    story.give(Event::Start);
    for index in 0..3 {
        story.up(at(0, index, 0));
    }
    story.ends(at(0, 0, 0), code(0));
    story.ends(at(0, 1, 0), code(7));
    story
}

#[test]
fn what_is_run_again() {
    for (again, expected) in
        [(Again::Unfinished, vec![2, 3]), (Again::Unsuccessful, vec![1, 2, 3]), (Again::All, vec![0, 1, 2, 3])]
    {
        let mut next = taken(&all_kinds(), again);
        let effects = next.give(Event::Start);
        let ids: Vec<_> = expected.into_iter().map(|index| at(0, index, 1)).collect();
        assert_eq!(spawned(&effects), ids, "{again:?}: as the next attempt");
        let closed = effects.iter().filter(|effect| {
            matches!(effect,
            Effect::Record(Fact::Ended { exit: Exit::Lost, by_us: false, subject, .. }) if subject.attempt == 0)
        });
        assert_eq!(closed.count(), 2, "{again:?}: who lived is closed as lost");
        assert_eq!(retried(&effects), None, "and nothing is spent");
    }
}

#[test]
fn what_was_lost_is_closed_and_not_signalled_even_if_the_first_thing_is_a_stop() {
    let mut next = taken(&all_kinds(), Again::Unfinished);
    assert_eq!(signals(&next.give(Event::StopAsked { kill: false })), []);
    let effects = next.give(Event::Start);
    assert!(matches!(effects[0], Effect::Record(Fact::Ended { exit: Exit::Lost, .. })));
    assert_eq!((spawned(&effects), next.end()), (vec![], Some((Outcome::Stopped, 3))));
}

#[test]
fn a_job_that_had_failed_or_was_done_starts_nobody() {
    let mut failed = story(&[2]);
    failed.begin();
    failed.ends(at(0, 1, 0), code(7));
    let mut next = taken(&failed, Again::Unfinished);
    assert_eq!(spawned(&next.give(Event::Start)), []);
    next.give(Event::Gathered(vec![]));
    assert_eq!(next.end(), Some((Outcome::Failed, 7)), "as it would have");

    let mut done = story(&[1, 1]);
    done.machine.job.roles[1].completion = helper();
    done.begin();
    done.ends(at(0, 0, 0), code(0));
    let mut next = taken(&done, Again::Unfinished);
    assert_eq!(spawned(&next.give(Event::Start)), []);
    assert_eq!(next.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn a_role_that_was_being_stopped_for_a_restart_gets_it() {
    let mut old = story(&[3]);
    restart(&mut old, 0, Scope::Role, 1, 0);
    old.begin();
    old.ends(at(0, 0, 0), code(7));
    let mut next = taken(&old, Again::Unfinished);
    let effects = next.give(Event::Start);
    assert_eq!(signals(&effects), [], "those are gone");
    let all: Vec<_> = (0..3).map(|index| (format!("role0-{index}"), 1)).collect();
    assert_eq!(retried(&effects), Some((all, Blame::User)));
}

#[test]
fn what_was_spent_stays_spent_unless_the_run_is_tried_again() {
    for (again, left) in [(Again::Unfinished, false), (Again::Unsuccessful, true)] {
        let mut old = story(&[1]);
        restart(&mut old, 0, Scope::Replica, 1, 0);
        old.begin();
        old.ends(at(0, 0, 0), code(7));
        let mut next = taken(&old, again);
        assert_eq!(spawned(&next.give(Event::Start)), [at(0, 0, 1)], "the back-off is not waited for again");
        assert_eq!(retried(&next.ends(at(0, 0, 1), code(7))).is_some(), left, "{again:?}");
    }
}

/// Two roles, the second after the first; the job has failed once and starts again.
fn between_attempts() -> Story {
    let mut story = story(&[1, 1]);
    story.machine.job.policy.restart.max = 1;
    story.machine.job.roles[1].start_after = vec![StartAfter { role: 0, when: When::Started }];
    story.give(Event::Start);
    story.up(at(0, 0, 0));
    story.up(at(1, 0, 0));
    story.ends(at(1, 0, 0), code(0));
    story.ends(at(0, 0, 0), code(7));
    story.give(Event::Gathered(vec![]));
    assert!(story.machine.is_pausing());
    story
}

#[test]
fn an_attempt_of_the_job_does_not_count_the_ends_of_the_one_before() {
    let mut old = between_attempts();
    old.give(Event::Prepared { attempt: 1, ready: true });
    assert_eq!(spawned(&old.give(Event::Timer(Timer::Backoff, 0))), [at(0, 0, 1)]);
    let mut next = taken(&old, Again::Unfinished);
    assert_eq!(spawned(&next.give(Event::Start)), [at(0, 0, 2)]);
    assert_eq!(spawned(&next.give(Event::Spawned { id: at(0, 0, 2), pid: 1 })), [at(1, 0, 1)], "not done yet");
    next.ends(at(0, 0, 2), code(1));
    next.ends(at(1, 0, 1), by(SIGTERM));
    next.give(Event::Gathered(vec![]));
    assert_eq!(next.end(), Some((Outcome::Failed, 1)), "the job's restart was spent");
}

#[test]
fn a_restart_for_the_platform_spends_its_own_budget() {
    let mut old = story(&[1]);
    let refused = crate::model::SpawnError { doing: "fork".into(), errno: 11, reason: String::new() };
    (old.machine.job.policy.restart.max, old.machine.job.policy.restart.max_platform) = (1, 1);
    old.begin();
    old.ends(at(0, 0, 0), Exit::Spawn(refused));
    old.give(Event::Gathered(vec![]));
    let mut next = taken(&old, Again::Unfinished);
    next.begin();
    next.ends(at(0, 0, 1), code(7));
    next.give(Event::Gathered(vec![]));
    assert!(next.machine.is_pausing(), "that of the program is not spent");
}

#[test]
fn a_retry_that_is_lost_itself_forgets_the_same() {
    for (why, expected) in [(Began::Retried, vec![1, 2, 3]), (Began::RetriedAll, vec![0, 1, 2, 3])] {
        let old = all_kinds();
        let mut status = journal(&old);
        supervised(&mut status, 1, why);
        supervised(&mut status, 2, Began::Resumed);
        let mut machine = Machine::new(old.machine.job.clone(), old.machine.style, 7);
        machine.recover(&status, Again::Unfinished);
        let mut next = Story { machine, now: 60_000, effects: Vec::new() };
        let ids: Vec<_> = expected.into_iter().map(|index| at(0, index, 1)).collect();
        assert_eq!(spawned(&next.give(Event::Start)), ids, "{why:?}");
    }
}

#[test]
fn the_time_of_a_run_counts_supervisors_only_and_begins_anew_with_a_retry() {
    let mut old = story(&[1]);
    old.machine.job.policy.timeout = Some(SECOND * 9);
    old.begin();
    let mut status = journal(&old);
    let used = status.used_micros();
    supervised(&mut status, 1, Began::Resumed);
    assert_eq!(status.used_micros(), used, "time without a supervisor does not count");
    supervised(&mut status, 2, Began::Retried);
    assert_eq!(status.used_micros(), 0);
}

#[test]
fn who_was_first_is_still_first() {
    let mut old = story(&[3]);
    old.begin();
    old.ends(at(0, 2, 0), code(7));
    old.ends(at(0, 0, 0), code(1));
    let mut next = taken(&old, Again::Unfinished);
    next.give(Event::Start);
    next.give(Event::Gathered(vec![]));
    assert_eq!((next.causes(), next.end()), (vec![2], Some((Outcome::Failed, 7))));
}
