//! Kills supervisors, including those that resume the run: nothing is done twice and nothing is forgotten.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use umiak_core::facts::Fact;
use umiak_core::status::State;
use umiak_sys::descend;
use umiak_testkit::components::trials;
use umiak_testkit::sandbox::Outcome;
use umiak_testkit::suite::Suite;

use super::house::{House, Unwatched as _};

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// Trials in parallel: a trial mostly waits.
const WORKERS: usize = 4;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::chaos::killed_at_every_record", &[], killed_at_every_record)
        .test("run::chaos::killed_at_any_moment", &[], killed_at_any_moment)
        .test("run::chaos::stopped_supervisor_keeps_its_run", &[], stopped_supervisor)
        .test("run::chaos::lost_guardians_spend_the_budget_of_the_platform", &[], lost_guardians)
        .test("run::chaos::end_that_was_written_is_the_end", &[], killed_after_the_end)
        .test("run::chaos::failed_job_is_not_started_to_be_stopped", &[], failed_stays_failed)
        .test("run::chaos::grandchildren_end_before_the_next_attempt", &[], grandchildren);
}

struct Case {
    name: &'static str,
    document: &'static str,
    detached: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "one role",
        document: "umiak: v1\nname: one\nroles:\n  trainer: {replicas: 3, command: \"LEDGER; sleep 0.03\"}\n",
        detached: false,
    },
    Case {
        name: "one after the other",
        document: "umiak: v1\nname: two\nroles:\n  first: {replicas: 2, command: \"LEDGER; sleep 0.02\"}\n  second: {replicas: 2, command: \"LEDGER\", start_after: {role: first, when: succeeded}}\n",
        detached: false,
    },
    Case {
        name: "a server",
        document: "umiak: v1\nname: server\npolicy: {grace: 1s}\nroles:\n  server: {command: \"LEDGER; sleep 60\", completes: false}\n  trainer: {replicas: 2, command: \"LEDGER; sleep 0.02\", start_after: server}\n",
        detached: false,
    },
    Case {
        name: "replica restart",
        document: "umiak: v1\nname: replica\nroles:\n  trainer:\n    replicas: 2\n    command: \"LEDGER; sleep 0.02; test $UMIAK_INDEX = 0 && mkdir once && exit 7; exit 0\"\n    restarts: {max: 1, backoff: 10ms}\n",
        detached: false,
    },
    Case {
        name: "role restart",
        document: "umiak: v1\nname: role\npolicy: {grace: 1s}\nroles:\n  trainer:\n    replicas: 2\n    command: \"LEDGER; sleep 0.02; test $UMIAK_INDEX = 0 && mkdir once && exit 7; sleep 0.05\"\n    restarts: {max: 1, scope: role, backoff: 10ms}\n",
        detached: false,
    },
    Case {
        name: "job restart",
        document: "umiak: v1\nname: job\npolicy: {grace: 1s, settle: 10ms, restarts: {max: 1, backoff: 10ms}}\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; sleep 0.02; test $UMIAK_INDEX = 0 && mkdir once && exit 7; sleep 0.05\"}\n  other: {command: \"LEDGER; sleep 0.03\"}\n",
        detached: false,
    },
    Case {
        name: "a failing replica",
        document: "umiak: v1\nname: fails\npolicy: {grace: 1s, settle: 10ms}\nroles:\n  trainer: {replicas: 3, command: \"LEDGER; test $UMIAK_INDEX = 1 && exit 7; sleep 60\"}\n",
        detached: false,
    },
    Case {
        name: "a time limit",
        document: "umiak: v1\nname: late\npolicy: {grace: 1s, settle: 10ms}\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; test $UMIAK_INDEX = 1 && sleep 60; sleep 0.02\", timeout: 300ms, restarts: {max: 1, backoff: 10ms}}\n",
        detached: false,
    },
    Case {
        name: "detached",
        document: "umiak: v1\nname: away\nroles:\n  trainer: {replicas: 2, command: \"LEDGER; sleep 0.03\"}\n",
        detached: true,
    },
];

/// Random moments in every run; a failure prints the seed.
pub(super) fn seed() -> u64 {
    let fixed = std::env::var("UMIAK_SEED").ok().and_then(|text| text.parse().ok());
    fixed.unwrap_or_else(|| u64::from(std::process::id()))
}

/// The random numbers of a trial.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64, trial: usize) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (trial as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        ((self.next() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Log-uniform: short times are as likely as long ones.
    pub(super) fn moment(&mut self, longest: Duration) -> Duration {
        let shortest: f64 = 1e-4;
        Duration::from_secs_f64(shortest * (longest.as_secs_f64() / shortest).powf(self.next()))
    }
}

/// The result of an undisturbed run.
struct Usual {
    state: State,
    /// Length of each record's line.
    lengths: Vec<usize>,
}

fn usual(case: &Case) -> Usual {
    let house = House::with(case.document);
    begin(&house, case, None);
    house.wait_until_free();
    house.check_ended();
    let lengths = std::fs::read_to_string(house.run().journal()).expect("a journal");
    Usual { state: house.status().state, lengths: lengths.lines().map(str::len).collect() }
}

/// Starts `run`, which may be killed while it writes its journal.
fn begin(house: &House, case: &Case, die: Option<&str>) -> Outcome {
    let line = if case.detached { "run -d job.yaml" } else { "run job.yaml" };
    let run = house.umiak(line);
    let run = if let Some(die) = die { run.env("UMIAK_TEST_JOURNAL_DIE", die) } else { run };
    run.finish_unwatched()
}

/// Resumes until the run has ended; up to `deaths` supervisors are killed again.
fn resume(house: &House, dice: &mut Dice, deaths: usize) {
    for death in 0.. {
        house.wait_until_free();
        let ended = house.status().is_finished();
        let run = house.umiak("resume run-000001");
        let next = house.status().next_seq as usize;
        let run = if death < deaths {
            let at = next + dice.below(12);
            let die = if dice.next() < 0.5 { format!("{at}.{}", dice.below(200)) } else { at.to_string() };
            run.env("UMIAK_TEST_JOURNAL_DIE", die)
        } else {
            run
        };
        let outcome = run.finish_unwatched();
        if ended {
            outcome.expect_code(2).expect_err("J0025");
            return;
        }
        if outcome.status.signal() != Some(SIGKILL) {
            return;
        }
    }
}

/// Runs the trials in parallel, and reports the names of those that fail.
pub(super) fn side_by_side(count: usize, name: impl Fn(usize) -> String + Sync, trial: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trial(index)));
                    if let Err(panic) = result {
                        let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        failed
                            .lock()
                            .expect("no thread panics while it holds the lock")
                            .push(format!("{}\n{why}", name(index)));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no thread panics while it holds the lock");
    assert!(
        failed.is_empty(),
        "{} of {count} trials failed, seed {}\n{}",
        failed.len(),
        seed(),
        failed.into_iter().take(3).collect::<Vec<_>>().join("\n")
    );
}

/// Every boundary between two records of every document, and the middle of every record.
fn killed_at_every_record() {
    let seed = seed();
    let usual: Vec<Usual> = CASES.iter().map(usual).collect();
    let mut deaths: Vec<(usize, String)> = Vec::new();
    for (case, usual) in usual.iter().enumerate() {
        for (record, length) in usual.lengths.iter().enumerate() {
            deaths.push((case, (record + 1).to_string()));
            deaths.extend([1, length / 2, *length].map(|bytes| (case, format!("{record}.{bytes}"))));
        }
    }
    let all = deaths.len();
    let mut dice = Dice::new(seed, usize::MAX);
    for position in (1..deaths.len()).rev() {
        deaths.swap(position, dice.below(position + 1));
    }
    let count = trials(50).max(1);
    // Repeated trials differ in when the resuming supervisors are killed.
    let at = |trial: usize| &deaths[trial % all];
    side_by_side(
        count,
        |trial| format!("trial {trial}: {}, {}", CASES[at(trial).0].name, at(trial).1),
        |trial| {
            let (case, die) = at(trial);
            let mut dice = Dice::new(seed, trial);
            let house = House::with(CASES[*case].document);
            begin(&house, &CASES[*case], Some(die));
            let is_torn = CASES[*case].detached && die.starts_with("0.");
            if is_torn && house.runs().is_empty() {
                // `run -d` saw that nothing was recorded and removed the run.
                assert!(house.ledger().is_empty());
                return;
            }
            // With a shorter process id than usual, the first record is shorter and therefore complete.
            assert!(!is_torn || *die == format!("0.{}", usual[*case].lengths[0]));
            let deaths = dice.below(3);
            resume(&house, &mut dice, deaths);
            house.check_ended();
            assert_eq!(house.status().state, usual[*case].state);
        },
    );
    note(&format!("{count} trials, {all} different first deaths in {} documents, seed {seed}\n", CASES.len()));
}

/// Prints a summary when `UMIAK_TRIALS` is set.
pub(super) fn note(text: &str) {
    use std::io::Write as _;
    if std::env::var_os("UMIAK_TRIALS").is_some() {
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Supervisor,
    Guardian,
    Both,
}

/// Sends SIGKILL to supervisor, guardian or both, also of resumed runs.
fn killed_at_any_moment() {
    let seed = seed();
    let victims = [Victim::Supervisor, Victim::Guardian, Victim::Both];
    let count = trials(50).max(1);
    let hits = AtomicUsize::new(0);
    let case = |trial: usize| &CASES[trial % (CASES.len() - 1)];
    side_by_side(
        count,
        |trial| format!("trial {trial}: {}", case(trial).name),
        |trial| {
            let mut dice = Dice::new(seed, trial);
            let house = House::with(case(trial).document);
            let mut line = "run job.yaml";
            for _ in 0..=dice.below(3) {
                let victim = victims[dice.below(3)];
                let running = house.umiak(line).start();
                std::thread::sleep(dice.moment(Duration::from_millis(400)));
                let guardians = descend::children(running.pid());
                if victim != Victim::Guardian {
                    running.signal(SIGKILL);
                }
                if victim != Victim::Supervisor {
                    for pid in &guardians {
                        descend::signal(*pid, SIGKILL);
                    }
                }
                let outcome = running.finish_unchecked();
                hits.fetch_add(usize::from(outcome.status.signal() == Some(SIGKILL)), Ordering::Relaxed);
                if house.runs().is_empty() {
                    continue;
                }
                house.wait_until_free();
                line = match house.status().state {
                    // A supervisor that loses its guardian fails the run as lost by the platform.
                    State::Finished { exit_code: 0, .. } => break,
                    State::Finished { .. } => "retry run-000001",
                    _ => "resume run-000001",
                };
            }
            // It may have been killed before the run existed or had any record.
            if !house.runs().is_empty() && house.status().next_seq == 0 && !house.run().secrets().exists() {
                house.umiak("resume run-000001").finish_unwatched().expect_code(2).expect_err("never began");
                return;
            }
            if house.runs().is_empty() {
                house.umiak("run job.yaml").finish_unwatched();
            } else if !house.status().is_finished() {
                house.umiak("resume run-000001").finish_unwatched();
            }
            house.umiak("resume run-000001").finish_unwatched().expect_code(2).expect_err("J0025");
            house.check_ended();
        },
    );
    note(&format!("{count} trials, {} hits, seed {seed}\n", hits.into_inner()));
}

/// A lost guardian is a failure of the platform: its budget, then 125, however many roles there are.
fn lost_guardians() {
    let house = House::with(
        "umiak: v1\npolicy: {restarts: {max: 0, max_platform: 1, backoff: 1ms}}\nroles:\n  server: {command: sleep 60, completes: false}\n  trainer: {replicas: 2, command: \"LEDGER; sleep 60\"}\n",
    );
    let run = house.umiak("run job.yaml").start();
    for attempts in ["1\n", "1\n2\n"] {
        let read = |name: &str| std::fs::read_to_string(house.sandbox.path().join(name)).unwrap_or_default();
        let begun = || ["ledger/trainer-0", "ledger/trainer-1"].map(read) == [attempts; 2];
        run.wait_until("the attempt to start", begun);
        descend::signal(descend::children(run.pid())[0], SIGKILL);
    }
    run.finish().expect_code(125).expect_err("L0017");
    let lost = house.records().iter().filter(|record| matches!(record.fact, Fact::EngineLost { pid: Some(_) })).count();
    assert_eq!(lost, 2);
    let explained = house.umiak("explain run-000001").finish_unwatched().out();
    assert!(explained.contains("was lost\n  lost with it server-0, trainer-0, trainer-1"), "{explained}");
    house.check_ended();
}

/// A stopped supervisor keeps its lock: there are never two supervisors of one run.
fn stopped_supervisor() {
    let house = House::with(
        "umiak: v1\npolicy: {restarts: {max_platform: 0}}\nroles:\n  trainer: {command: \"LEDGER; until test -e go; do sleep 0.01; done\"}\n",
    );
    let run = house.umiak("run job.yaml").start();
    house.wait_for_file("ledger/trainer-0");
    let guardian = descend::children(run.pid());
    run.signal(SIGSTOP);
    for line in ["resume run-000001", "retry run-000001", "rm run-000001"] {
        house.umiak(line).finish_unwatched().expect_code(2).expect_err("J0006");
    }
    let before = house.records().len();
    house.umiak("stop run-000001").finish_unwatched().expect_code(125).expect_err("J0026");
    // The supervisor keeps the lock when its guardian is killed.
    for pid in &guardian {
        descend::signal(*pid, SIGKILL);
    }
    house.umiak("resume run-000001").finish_unwatched().expect_code(2).expect_err("J0006");
    assert_eq!(house.records().len(), before, "the journal did not grow");
    run.signal(SIGCONT);
    run.finish().expect_code(125).expect_err("L0017");
    house.umiak("resume run-000001").finish_unwatched().expect_code(2).expect_err("J0025");
    house.check_ended();
}

/// The supervisor is killed right after it recorded the end: the next command cleans up.
fn killed_after_the_end() {
    let usual = usual(&CASES[0]);
    let house = House::with(CASES[0].document);
    let outcome = begin(&house, &CASES[0], Some(&usual.lengths.len().to_string()));
    assert_eq!(outcome.status.signal(), Some(SIGKILL));
    house.wait_until_free();
    assert!(house.status().is_finished());
    assert!(house.run().secrets().exists(), "there is nothing to clean up");
    house.check_listed_and_tidied();
}

impl House {
    fn check_listed_and_tidied(&self) {
        self.umiak("ls").finish_unwatched().expect_code(0);
        self.check_ended();
    }
}

/// A job that has failed for good fails again on resume, and does not restart replicas only to stop them.
fn failed_stays_failed() {
    let house = House::with(
        "umiak: v1\npolicy: {settle: 10ms}\nroles:\n  trainer: {replicas: 3, command: \"LEDGER; test $UMIAK_INDEX = 1 && exit 7; sleep 60\"}\n",
    );
    let usual = House::with(&house.sandbox.read("job.yaml"));
    usual.umiak("run job.yaml").finish().expect_code(7);
    let records = usual.records();
    let stopping = records.iter().position(|record| matches!(record.fact, Fact::Stopping { .. })).expect("it stops");
    house.umiak("run job.yaml").env("UMIAK_TEST_JOURNAL_DIE", (stopping + 1).to_string()).finish_unwatched();
    house.wait_until_free();
    house.umiak("resume run-000001").finish().expect_code(7);
    let starts = house.records().iter().filter(|record| matches!(record.fact, Fact::Starting { .. })).count();
    assert_eq!(starts, 3);
    house.check_ended();
}

/// Processes left behind by a replica are gone before it restarts; those of other replicas are not.
fn grandchildren() {
    let house = House::with(
        "umiak: v1\nname: family\npolicy: {grace: 1s}\nroles:\n  trainer:\n    replicas: 2\n    command: |\n      LEDGER\n      if test $UMIAK_INDEX = 1; then\n        setsid sleep 50.1 &\n        until test -e seen; do sleep 0.01; done\n        exit 0\n      fi\n      if mkdir once; then\n        sleep 50.2 &\n        setsid sleep 50.3 &\n        sleep 0.1\n        exit 7\n      fi\n      ps -A -o args | grep '^sleep 50' > processes\n      touch seen\n    restarts: {max: 1, backoff: 10ms}\n",
    );
    house.umiak("run job.yaml").finish().expect_code(0);
    let processes = house.sandbox.read("processes");
    assert!(processes.contains("sleep 50.1"), "{processes}");
    assert!(!processes.contains("sleep 50.2"), "{processes}");
    assert!(!processes.contains("sleep 50.3"), "{processes}");
    house.check_ended();
}
