//! Supervisors that take over from a journal.

use super::roles::{SECOND, at, restart, retried, spawned, story};
use super::*;
use crate::facts::{Began, Record, Supervised};
use crate::model::{Blame, Scope, StartAfter, When};
use crate::status::Status;

/// The journal of a story, as the next supervisor reads it.
fn journal(story: &Story) -> Status {
    let facts = story.effects.iter().filter_map(|effect| match effect {
        Effect::Record(fact) => Some(fact.clone()),
        _ => None,
    });
    let mut status = Status::default();
    for (seq, fact) in facts.enumerate() {
        status.add(&Record { run: None, v: 1, seq: seq as u64, at: seq as u64 * 1000, epoch: 0, step: None, fact });
    }
    status
}

fn supervised(status: &mut Status, epoch: u32, why: Began) {
    let fact = Fact::Supervised(Supervised { why, host: String::new(), pid: 1, umiak: String::new() });
    status.add(&Record { run: None, v: 1, seq: status.next_seq, at: status.last + 5_000_000, epoch, step: None, fact });
}

/// The same job, taken over.
fn taken(old: &Story, again: Again) -> Story {
    let mut machine = Machine::new(old.machine.job.clone(), old.machine.style, 7);
    machine.recover(&journal(old), again, &|_| false);
    Story { machine, now: old.now + 10_000, effects: Vec::new() }
}

/// One of each: succeeded, failed under a forgiving policy, live, not seen yet.
fn all_kinds() -> Story {
    let mut story = story(&[4]);
    story.machine.job.roles[0].completion.min_failed = 3;
    story.give(Event::Start);
    for index in 0..3 {
        story.up(at(0, index, 0));
    }
    story.ends(at(0, 0, 1), code(0));
    story.ends(at(0, 1, 1), code(7));
    story
}

#[test]
fn what_is_run_again() {
    for (again, expected) in
        [(Again::Unfinished, vec![2, 3]), (Again::Unsuccessful, vec![1, 2, 3]), (Again::All, vec![0, 1, 2, 3])]
    {
        let mut next = taken(&all_kinds(), again);
        let effects = next.give(Event::Start);
        let ids: Vec<_> = expected.into_iter().map(|index| at(0, index, 2)).collect();
        assert_eq!(spawned(&effects), ids, "{again:?}: as the next attempt");
        let closed = effects.iter().filter(|effect| {
            matches!(effect,
            Effect::Record(Fact::Ended { exit: Exit::Lost, by_us: false, subject, .. }) if subject.attempt == 1)
        });
        assert_eq!(closed.count(), 2, "{again:?}: live attempts are closed as lost");
        assert_eq!(retried(&effects), None, "and nothing is spent");
    }
}

#[test]
fn what_was_lost_is_closed_and_not_signalled_even_if_the_first_thing_is_a_stop() {
    let mut next = taken(&all_kinds(), Again::Unfinished);
    assert_eq!(stops(&next.give(Event::StopAsked { kill: false })), []);
    let effects = next.give(Event::Start);
    assert!(matches!(effects[0], Effect::Record(Fact::Ended { exit: Exit::Lost, .. })));
    assert_eq!((spawned(&effects), next.end()), (vec![], Some((Outcome::Stopped, 3))));
}

#[test]
fn a_job_that_had_failed_or_was_done_starts_nobody() {
    let mut failed = story(&[2]);
    failed.begin();
    failed.ends(at(0, 1, 1), code(7));
    let mut next = taken(&failed, Again::Unfinished);
    assert_eq!(spawned(&next.give(Event::Start)), []);
    next.give(Event::Gathered(vec![]));
    assert_eq!(next.end(), Some((Outcome::Failed, 7)), "as without the takeover");

    let mut done = story(&[1, 1]);
    done.machine.job.roles[1].completion = helper();
    done.begin();
    done.ends(at(0, 0, 1), code(0));
    let mut next = taken(&done, Again::Unfinished);
    assert_eq!(spawned(&next.give(Event::Start)), []);
    assert_eq!(next.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn a_role_that_was_being_stopped_for_a_restart_gets_it() {
    let mut old = story(&[3]);
    restart(&mut old, 0, Scope::Role, 1, 0);
    old.begin();
    old.ends(at(0, 0, 1), code(7));
    let mut next = taken(&old, Again::Unfinished);
    let effects = next.give(Event::Start);
    assert_eq!(stops(&effects), [], "they are gone");
    let all: Vec<_> = (0..3).map(|index| (format!("role0-{index}"), 2)).collect();
    assert_eq!(retried(&effects), Some((all, Blame::User)));
}

#[test]
fn what_was_spent_stays_spent_unless_the_run_is_tried_again() {
    for (again, left) in [(Again::Unfinished, false), (Again::Unsuccessful, true)] {
        let mut old = story(&[1]);
        restart(&mut old, 0, Scope::Replica, 1, 0);
        old.begin();
        old.ends(at(0, 0, 1), code(7));
        let mut next = taken(&old, again);
        assert_eq!(spawned(&next.give(Event::Start)), [at(0, 0, 2)], "the back-off is not waited for again");
        assert_eq!(retried(&next.ends(at(0, 0, 2), code(7))).is_some(), left, "{again:?}");
    }
}

/// Two roles, the second after the first; the job has failed once and restarts.
fn between_attempts() -> Story {
    let mut story = story(&[1, 1]);
    story.machine.job.policy.restart.max = 1;
    story.machine.job.roles[1].start_after = vec![StartAfter { role: 0, when: When::Started }];
    story.give(Event::Start);
    story.up(at(0, 0, 1));
    story.up(at(1, 0, 1));
    story.ends(at(1, 0, 1), code(0));
    story.ends(at(0, 0, 1), code(7));
    story.give(Event::Gathered(vec![]));
    assert!(story.machine.is_pausing());
    story
}

#[test]
fn an_attempt_of_the_job_does_not_count_the_ends_of_the_one_before() {
    let mut old = between_attempts();
    old.give(Event::Prepared { attempt: 2, ready: true });
    assert_eq!(spawned(&old.give(Event::Timer(Timer::Backoff, 1))), [at(0, 0, 2)]);
    let mut next = taken(&old, Again::Unfinished);
    assert_eq!(spawned(&next.give(Event::Start)), [at(0, 0, 3)]);
    assert_eq!(
        spawned(&next.give(Event::Started { id: at(0, 0, 3), instance: Instance::of_pid(1) })),
        [at(1, 0, 2)],
        "not finished yet"
    );
    next.ends(at(0, 0, 3), code(1));
    next.ends(at(1, 0, 2), by(SIGTERM));
    next.give(Event::Gathered(vec![]));
    assert_eq!(next.end(), Some((Outcome::Failed, 1)), "the job's restart was spent");
}

#[test]
fn a_restart_for_the_platform_spends_its_own_budget() {
    let mut old = story(&[1]);
    let refused = SpawnError { doing: SpawnStage::Fork, errno: 11, reason: String::new() };
    (old.machine.job.policy.restart.max, old.machine.job.policy.restart.max_platform) = (1, 1);
    old.begin();
    old.ends(at(0, 0, 1), Exit::Spawn(refused));
    old.give(Event::Gathered(vec![]));
    let mut next = taken(&old, Again::Unfinished);
    next.begin();
    next.ends(at(0, 0, 2), code(7));
    next.give(Event::Gathered(vec![]));
    assert!(next.machine.is_pausing(), "the program's budget is not spent");
}

#[test]
fn a_retry_that_is_lost_itself_forgets_the_same() {
    for (why, expected) in [(Began::Retried, vec![1, 2, 3]), (Began::RetriedAll, vec![0, 1, 2, 3])] {
        let old = all_kinds();
        let mut status = journal(&old);
        supervised(&mut status, 1, why);
        supervised(&mut status, 2, Began::Resumed);
        let mut machine = Machine::new(old.machine.job.clone(), old.machine.style, 7);
        machine.recover(&status, Again::Unfinished, &|_| false);
        let mut next = Story { machine, now: 60_000, effects: Vec::new() };
        let ids: Vec<_> = expected.into_iter().map(|index| at(0, index, 2)).collect();
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
    old.ends(at(0, 2, 1), code(7));
    old.ends(at(0, 0, 1), code(1));
    let mut next = taken(&old, Again::Unfinished);
    next.give(Event::Start);
    next.give(Event::Gathered(vec![]));
    assert_eq!((next.causes(), next.end()), (vec![2], Some((Outcome::Failed, 7))));
}

/// The same job, taken over by a supervisor whose engine still has these attempts.
fn adopting(old: &Story, adopted: &[AttemptId]) -> Story {
    let mut machine = Machine::new(old.machine.job.clone(), old.machine.style, 7);
    machine.recover(&journal(old), Again::Unfinished, &|id| adopted.contains(&id));
    Story { machine, now: old.now + 10_000, effects: Vec::new() }
}

#[test]
fn what_the_engine_still_has_goes_on_under_its_number() {
    let mut old = story(&[4]);
    old.machine.job.roles[0].timeouts.run = Some(SECOND);
    old.give(Event::Start);
    old.up(at(0, 0, 1));
    old.up(at(0, 2, 1));
    let mut next = adopting(&old, &[at(0, 0, 1), at(0, 1, 1)]);
    assert_eq!((next.machine.live(), next.machine.is_finished()), ((2, 4), false));
    let effects = next.give(Event::Start);
    let lost: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Record(Fact::Ended { subject, exit: Exit::Lost, .. }) => Some(subject.replica.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(lost, ["role0-2", "role0-3"]);
    assert_eq!(spawned(&effects), [at(0, 2, 2), at(0, 3, 2)]);
    let limit = next.now + 1000;
    assert_eq!(timers(&effects), [(Timer::Run(at(0, 0, 1).slot), limit)], "its time limit starts again");
    next.up(at(0, 1, 1));
    next.up(at(0, 2, 2));
    next.up(at(0, 3, 2));
    for id in [at(0, 0, 1), at(0, 1, 1), at(0, 2, 2), at(0, 3, 2)] {
        next.ends(id, code(0));
    }
    assert_eq!(next.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn a_stop_of_an_earlier_supervisor_is_sent_again_and_its_victim_starts_again() {
    let mut old = story(&[2]);
    old.begin();
    old.give(Event::StopAsked { kill: false });
    let both = [at(0, 0, 1), at(0, 1, 1)];
    let mut next = adopting(&old, &both);
    let effects = next.give(Event::Start);
    assert_eq!(stops(&effects), [(Terminate, vec![0, 1])]);
    let graces = both.map(|id| (Timer::GraceOf(Of::Replica(id.slot)), next.now + 5000));
    assert_eq!(timers(&effects), graces);
    assert_eq!(spawned(&next.ends(both[0], by(SIGTERM))), [at(0, 0, 2)], "this supervisor was not asked to stop");
    let effects = next.give(Event::Timer(Timer::GraceOf(Of::Replica(both[1].slot)), 1));
    assert_eq!(stops(&effects), [(Kill, vec![1])]);
    // An attempt that this supervisor stops does not restart.
    next.give(Event::StopAsked { kill: false });
    next.ends(both[1], by(SIGKILL));
    next.ends(at(0, 0, 2), by(SIGTERM));
    assert_eq!(next.end(), Some((Outcome::Stopped, 3)));
}

#[test]
fn a_stop_before_the_start_gives_what_is_stopped_again_all_of_its_time() {
    let mut old = story(&[2]);
    old.machine.job.roles[0].timeouts.run = Some(SECOND);
    old.begin();
    old.give(Event::Timer(Timer::Run(at(0, 0, 1).slot), 1));
    let mut next = adopting(&old, &[at(0, 0, 1), at(0, 1, 1)]);
    let effects = next.give(Event::StopAsked { kill: false });
    assert_eq!(
        (stops(&effects), timers(&effects)),
        (vec![(Terminate, vec![1])], vec![(Timer::Grace, next.now + 5000)])
    );
    let effects = next.give(Event::Start);
    assert_eq!(stops(&effects), [(Terminate, vec![0])]);
    let own = Timer::GraceOf(Of::Replica(at(0, 0, 1).slot));
    assert_eq!(timers(&effects), [(own, next.now + 5000)]);
    assert_eq!(stops(&next.give(Event::Timer(Timer::Grace, 1))), [(Kill, vec![1])]);
    assert_eq!(stops(&next.give(Event::Timer(own, 1))), [(Kill, vec![0])]);
}

#[test]
fn events_of_another_step_are_fenced() {
    let mut story = Story::new(&[(1, Completion::default())]);
    story.machine = story.machine.of_step(StepIndex(3));
    let effects = story.give(Event::Start);
    let [own] = spawned(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(own.step, StepIndex(3));
    let other = AttemptId { step: StepIndex(0), ..own };
    assert!(is_ignored(&story.give(Event::Started { id: other, instance: Instance::default() })));
    assert!(is_ignored(&story.give(Event::Exited { id: other, exit: code(1), classed: None, usage: None })));
    story.give(Event::Exited { id: own, exit: code(0), classed: None, usage: None });
    assert_eq!(story.end(), Some((Outcome::Succeeded, 0)));
}

#[test]
fn an_allocation_outlives_a_restart_of_the_job() {
    let mut status = Status::default();
    let add = |status: &mut Status, fact| {
        let seq = status.next_seq;
        status.add(&Record { run: None, v: 1, seq, at: seq, epoch: 0, step: None, fact });
    };
    for handle in ["slurm:run-1/0.1", "mock-cluster:run-1/0.0.0.1", "slurm:run-1/0.1"] {
        add(&mut status, Fact::Submitted { handle: handle.into() });
    }
    assert_eq!(status.handles, ["slurm:run-1/0.1", "mock-cluster:run-1/0.0.0.1"]);
    add(&mut status, Fact::Restarting { attempt: 2, of: None, delay_micros: 9, blame: Blame::User, cause: None });
    assert_eq!(status.handles, ["slurm:run-1/0.1"]);
    add(&mut status, Fact::Submitted { handle: "slurm:run-1/0.2".into() });
    assert_eq!(status.handles, ["slurm:run-1/0.1", "slurm:run-1/0.2"]);
}

#[test]
fn a_status_knows_the_handles_and_why_nothing_runs() {
    let mut status = Status::default();
    let add = |status: &mut Status, fact| {
        let seq = status.next_seq;
        status.add(&Record { run: None, v: 1, seq, at: seq, epoch: 0, step: None, fact });
    };
    add(&mut status, Fact::Submitted { handle: "job-7".into() });
    add(&mut status, Fact::Pending { reason: "no node has 8 GPUs".into() });
    assert_eq!((status.handles.concat().as_str(), status.pending.as_deref()), ("job-7", Some("no node has 8 GPUs")));
    let subject = Subject { replica: "role0-0".into(), rank: None, attempt: 1 };
    add(&mut status, Fact::Starting { subject: subject.clone() });
    assert!(status.pending.is_some(), "requested is not running");
    let instance = Instance { node: Some("gpu-12".into()), ..Instance::default() };
    add(&mut status, Fact::Started { subject, instance });
    assert_eq!((status.handles.concat().as_str(), status.pending.as_deref()), ("job-7", None));
    let json = serde_json::to_value(&status).expect("plain data");
    assert_eq!(json["replicas"][0]["stage"]["node"], "gpu-12");
}
