//! Umiak against the real thing: one probe under Paddle's own launchers, both generations, and under `umiak` with
//! the very same words behind it. Every variable, every property of the process, every file, every console line
//! and the exit code are compared; what differs must be in [`DIFFERENCES`], and what is there must differ.

mod compare;
mod observe;

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use umiak_core::contract::differences::{DIFFERENCES, Difference, Surface};
use umiak_core::formats::launch::Generation;
use umiak_testkit::components::Component::Paddle;
use umiak_testkit::suite::Suite;

use compare::{Seen, compare};
use observe::{Launcher, Observation, observe};

/// One command line and its surroundings.
struct Case {
    name: &'static str,
    generation: Generation,
    /// Flags in front of the script.
    flags: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// How often it is run in the same directory.
    runs: usize,
}

const fn case(name: &'static str, generation: Generation, flags: &'static [&'static str]) -> Case {
    Case { name, generation, flags, env: &[], runs: 1 }
}

impl Case {
    const fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    const fn twice(self) -> Self {
        Self { runs: 2, ..self }
    }
}

const TWO: &[&str] = &["--nproc_per_node", "2"];
/// Rank 1 exits with 7, rank 0 waits to be stopped.
const FAILURE: &[(&str, &str)] = &[("UMIAK_PROBE_EXIT", "1:7")];
/// Proxies, and variables that override flags.
const SURROUNDINGS: &[(&str, &str)] = &[
    ("http_proxy", "http://proxy.example:3128"),
    ("https_proxy", "http://proxy.example:3129"),
    ("HTTP_PROXY", "http://upper.example:1"),
    ("no_proxy", "localhost"),
    ("PADDLE_JOB_ID", "envjob"),
    ("PADDLE_LOG_LEVEL", "DEBUG"),
];
const NAMED: &[&str] = &["--nproc_per_node", "2", "--job_id", "flagjob"];

/// The first takes longest: Paddle's legacy launcher needs 16 s to give up.
const CASES: [Case; 8] = [
    case("legacy_failure", Generation::Legacy, TWO).with(FAILURE),
    case("current_failure", Generation::Current, TWO).with(FAILURE),
    case("current_success_twice", Generation::Current, TWO).twice(),
    case("current_surroundings", Generation::Current, NAMED).with(SURROUNDINGS),
    case("current_sole_rank", Generation::Current, &[]),
    case("current_devices", Generation::Current, &["--devices", "5,7"]).with(&[("CUDA_VISIBLE_DEVICES", "4,5,6,7")]),
    case("legacy_success_twice", Generation::Legacy, TWO).twice(),
    case("legacy_surroundings", Generation::Legacy, NAMED).with(SURROUNDINGS),
];

/// What each case showed: computed once, by whoever asks first.
static RESULTS: [OnceLock<Result<Vec<Seen>, String>>; CASES.len()] = [const { OnceLock::new() }; CASES.len()];

pub(crate) fn register(suite: &mut Suite) {
    const CHECKS: [fn(); CASES.len()] =
        [check::<0>, check::<1>, check::<2>, check::<3>, check::<4>, check::<5>, check::<6>, check::<7>];
    for (case, check) in CASES.iter().zip(CHECKS) {
        suite.test(&format!("conformance::{}", case.name), &[Paddle], check);
    }
    suite.test("conformance::old_exit_codes_are_exact", &[Paddle], old_exit_codes_are_exact);
    suite.test("conformance::no_entry_is_stale", &[Paddle], no_entry_is_stale);
}

fn check<const CASE: usize>() {
    let case = &CASES[CASE];
    let unlisted: Vec<String> = seen(CASE)
        .iter()
        .filter(|seen| !DIFFERENCES.iter().any(|entry| covers(entry, case, seen)))
        .map(ToString::to_string)
        .collect();
    assert!(unlisted.is_empty(), "{} unlisted differences from Paddle:\n{}", unlisted.len(), unlisted.join("\n"));
}

fn covers(entry: &Difference, case: &Case, seen: &Seen) -> bool {
    entry.covers(seen.surface, case.generation, seen.kind, &seen.name)
}

/// Pattern by pattern; of console lines entry by entry, because some depend on what else is installed.
fn no_entry_is_stale() {
    let all: Vec<(&Case, &[Seen])> =
        CASES.iter().enumerate().map(|(index, case)| (case, seen(index).as_slice())).collect();
    let single = |entry: &Difference| match entry.surface {
        Surface::Console => vec![*entry],
        _ => entry.patterns.chunks(1).map(|patterns| Difference { patterns, ..*entry }).collect(),
    };
    let stale: Vec<String> = DIFFERENCES
        .iter()
        .flat_map(single)
        .filter(|entry| !all.iter().any(|(case, seen)| seen.iter().any(|seen| covers(entry, case, seen))))
        .map(|entry| format!("{entry:?}"))
        .collect();
    assert!(stale.is_empty(), "entries that no longer differ:\n{}", stale.join("\n"));
}

fn seen(index: usize) -> &'static Vec<Seen> {
    // The legacy launcher is asleep most of its time, so its cases go side by side.
    if CASES[index].generation == Generation::Legacy {
        std::thread::scope(|scope| {
            for (other, case) in CASES.iter().enumerate() {
                if case.generation == Generation::Legacy {
                    scope.spawn(move || result(other));
                }
            }
        });
    }
    result(index).as_ref().unwrap_or_else(|message| panic!("{message}"))
}

fn result(index: usize) -> &'static Result<Vec<Seen>, String> {
    RESULTS[index].get_or_init(|| {
        std::panic::catch_unwind(AssertUnwindSafe(|| {
            let case = &CASES[index];
            let theirs = observe_paddle(case);
            let ours = observe(case, Launcher::Umiak { flags: &[] });
            theirs.iter().zip(&ours).flat_map(|(theirs, ours)| compare(case.generation, theirs, ours)).collect()
        }))
        .map_err(|panic| {
            panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "the observation panicked".to_owned())
        })
    })
}

/// Paddle's console loses what its rank wrote last when the launcher ends sooner than it reads, which on a busy machine
/// happens now and then: then it is watched once more.
fn observe_paddle(case: &Case) -> Vec<Observation> {
    let is_whole = |seen: &Observation| seen.console.iter().any(|line| line.starts_with("probe rank 0"));
    (0..4)
        .map(|_| observe(case, Launcher::Paddle))
        .find(|seen| seen.iter().all(is_whole))
        .unwrap_or_else(|| observe(case, Launcher::Paddle))
}

/// With `--exit-codes paddle` the code is Paddle's to the number; what that is, the failure cases above observe.
fn old_exit_codes_are_exact() {
    let exact = Launcher::Umiak { flags: &["--exit-codes", "paddle"] };
    for (name, paddle) in [("legacy_failure", 1), ("current_failure", 241), ("current_sole_rank", 0)] {
        let index = CASES.iter().position(|case| case.name == name).expect("a case of the table");
        let real = seen(index).iter().find_map(Seen::paddle_code).unwrap_or(0);
        assert_eq!(real, paddle, "{name}: the real launcher's code has changed");
        let ours = observe(&CASES[index], exact).pop().expect("one run");
        assert_eq!(ours.code, paddle, "{name}");
        let said = format!("Exit code {}", if paddle > 128 { paddle - 256 } else { paddle });
        let legacy = CASES[index].generation == Generation::Legacy;
        assert!(legacy || ours.console.iter().any(|line| line.ends_with(&said)), "{name}: `{said}` in the pod log");
    }
}
