//! Kills supervisors of a pipeline with loops, nested DAGs and distributed steps: a finished step is not run again, and
//! nothing is forgotten.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use umiak_core::facts::{Fact, Outcome, Record};
use umiak_core::model::{Exit, StepName};
use umiak_core::status::State;
use umiak_sys::descend;
use umiak_testkit::components::trials;
use umiak_testkit::suite::Suite;

use super::chaos::{Dice, note, seed, side_by_side};
use super::house::{House, Unwatched as _};

const SIGKILL: i32 = 9;

/// The first command of every replica.
const LEDGER: &str = "echo $UMIAK_ATTEMPT >> ledger/$UMIAK_STEP@$UMIAK_ROLE-$UMIAK_INDEX";

/// Steps of the chain.
const CHAIN: usize = 20;
/// All steps, with every item of loops: `make`, 8 of `each`, `train`, 3 times 6 of `dag`, the chain, `sum`, `last`.
const STEPS: usize = 1 + 8 + 1 + 3 * 6 + CHAIN + 1 + 1;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("run::pipelines::killed_at_any_moment", &[], killed_at_any_moment);
}

fn document() -> String {
    let mut text = String::from(
        r#"name: chaos
parallelism: 4
fs_options: {main_fs: {name: ppl}}
entry_points:
  make:
    command: LEDGER; echo '[1,2,3,4,5,6,7,8]' > {{nums}}
    artifacts: {output: [nums]}
  each:
    deps: make
    loop_argument: "{{nums}}"
    artifacts: {input: {nums: "{{make.nums}}"}, output: [twice]}
    command: LEDGER; echo $((PF_LOOP_ARGUMENT * 2)) > {{twice}}
  train:
    deps: make
    distributed_job:
      framework: paddle
      members:
        - {role: pserver, replicas: 1, command: "LEDGER; sleep 0.02"}
        - {role: worker, replicas: 2, command: "LEDGER; sleep 0.02"}
  dag:
    loop_argument: [10, 20, 30]
    parameters: {n: 1}
    entry_points:
      x: {command: LEDGER}
      y: {deps: x, command: LEDGER, loop_argument: [1, 2, 3, 4]}
      z:
        deps: y
        distributed_job:
          framework: pytorch
          members:
            - {role: worker, replicas: 2, command: "LEDGER; sleep 0.01"}
  c0: {command: LEDGER}
"#,
    );
    for step in 1..CHAIN {
        let _ = writeln!(text, "  c{step}: {{deps: c{}, command: LEDGER}}", step - 1);
    }
    let _ = write!(
        text,
        r#"  sum:
    deps: "each, train, dag, c{}"
    artifacts: {{input: {{all: "{{{{each.twice}}}}"}}}}
    command: LEDGER; cat $(echo {{{{all}}}} | tr ',' ' ') | paste -sd+ | sed 's/.*/echo $((&))/' | sh > total
post_process:
  last: {{command: LEDGER}}
"#,
        CHAIN - 1
    );
    text.replace("LEDGER", LEDGER)
}

fn killed_at_any_moment() {
    let (seed, count) = (seed(), trials(50).max(1));
    let hits = AtomicUsize::new(0);
    side_by_side(
        count,
        |trial| format!("trial {trial}"),
        |trial| {
            let mut dice = Dice::new(seed, trial);
            let house = House::new();
            house.sandbox.write("job.yaml", document());
            let mut line = "run job.yaml";
            for _ in 0..=dice.below(3) {
                let run = house.umiak(line);
                let known = if house.runs().is_empty() { 0 } else { house.status().next_seq as usize };
                let by_record = dice.below(2) == 0;
                let run = if by_record {
                    run.env("UMIAK_TEST_JOURNAL_DIE", (known + dice.below(400)).to_string())
                } else {
                    run
                };
                let running = run.start();
                if !by_record {
                    std::thread::sleep(dice.moment(Duration::from_secs(3)));
                    let guardians = descend::children(running.pid());
                    running.signal(SIGKILL);
                    if dice.below(3) == 0 {
                        for pid in guardians {
                            descend::signal(pid, SIGKILL);
                        }
                    }
                }
                let outcome = running.finish_unchecked();
                hits.fetch_add(usize::from(outcome.status.signal() == Some(SIGKILL)), Ordering::Relaxed);
                if house.runs().is_empty() {
                    continue;
                }
                house.wait_until_free();
                if house.status().is_finished() {
                    break;
                }
                line = "resume run-000001";
            }
            if !house.runs().is_empty() && house.status().next_seq == 0 && !house.run().secrets().exists() {
                house.umiak("resume run-000001").finish_unwatched().expect_code(2).expect_err("never began");
                return;
            }
            if house.runs().is_empty() || !house.status().is_finished() {
                let line = if house.runs().is_empty() { "run job.yaml" } else { "resume run-000001" };
                house.umiak(line).finish_unwatched().expect_code(0);
            }
            check(&house);
        },
    );
    note(&format!("{count} trials, {} hits, seed {seed}\n", hits.into_inner()));
}

fn check(house: &House) {
    let records = house.records();
    assert_eq!(house.status().state, State::Finished { outcome: Outcome::Succeeded, exit_code: 0 });
    assert_eq!(house.sandbox.read("total").trim(), "72");
    let mut steps: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in &records {
        if let Some(step) = &record.step {
            steps.entry(StepName::as_str(step)).or_default().push(record);
        }
    }
    let ledger = house.ledger();
    let mut begun = 0;
    for (step, records) in steps {
        let ends = records.iter().filter(|record| matches!(record.fact, Fact::Finished { .. })).count();
        let mut starts: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut successes: BTreeMap<String, u32> = BTreeMap::new();
        let mut has_ended = false;
        for record in &records {
            match &record.fact {
                Fact::Starting { subject } => {
                    assert!(!has_ended, "{step} has ended, and starts again");
                    starts.entry(subject.replica.clone()).or_default().push(subject.attempt);
                }
                Fact::Ended { subject, exit: Exit::Code { code: 0 }, by_us: false, .. } => {
                    assert!(successes.insert(subject.replica.clone(), subject.attempt).is_none(), "{step} twice");
                }
                Fact::Finished { outcome, .. } => {
                    assert_eq!(*outcome, Outcome::Succeeded, "{step}");
                    has_ended = true;
                }
                _ => {}
            }
        }
        if starts.is_empty() {
            continue;
        }
        begun += 1;
        assert_eq!(ends, 1, "{step} ends once");
        for (replica, starts) in starts {
            let attempts = ledger.get(&format!("{step}@{replica}")).cloned().unwrap_or_default();
            assert!(attempts.is_sorted_by(|one, other| one < other), "{step} {replica}: {attempts:?}");
            assert!(
                attempts.iter().all(|attempt| starts.contains(attempt)),
                "{step} {replica}: {attempts:?}, {starts:?}"
            );
            match successes.get(&replica) {
                Some(success) => assert!(attempts.contains(success), "{step} {replica}: {success}, {attempts:?}"),
                // Servers do not decide: they are not needed when the workers are done.
                None => assert!(replica.starts_with("pserver"), "{step} {replica} has not succeeded"),
            }
        }
    }
    assert_eq!(begun, STEPS);
    let run = house.run();
    // A supervisor that was killed right after the end has left files: the next list of runs removes them.
    house.umiak("ls").finish_unwatched().expect_code(0);
    for path in [run.secrets(), run.control(), run.scratch(None)] {
        assert!(!path.exists(), "{} is left", path.display());
    }
    house.sandbox.assert_nothing_left();
}
