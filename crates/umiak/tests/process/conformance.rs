//! Compares umiak with Paddle's own launchers, both generations: one probe runs under each with the same command line.
//! Every variable, process property, file, console line and the exit code are compared. Each difference must be listed
//! in [`DIFFERENCES`], and each entry there must still be a difference.

mod compare;
mod observe;

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use umiak_core::contract::differences::{DIFFERENCES, Difference, Jobs, Surface};
use umiak_core::model::Generation;
use umiak_testkit::components::Component::Paddle;
use umiak_testkit::suite::Suite;

use compare::{Seen, compare};
use observe::{Launcher, Observation, observe};

/// One command line and its environment.
struct Case {
    name: &'static str,
    generation: Generation,
    jobs: Jobs,
    /// True if the line calls the current launcher's module, which hands over to the legacy launcher.
    is_handed_over: bool,
    /// Flags in front of the script.
    flags: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    /// Number of runs in the same directory.
    runs: usize,
}

const fn case(name: &'static str, generation: Generation, flags: &'static [&'static str]) -> Case {
    Case { name, generation, jobs: Jobs::All, is_handed_over: false, flags, env: &[], runs: 1 }
}

const fn servers(name: &'static str, generation: Generation, flags: &'static [&'static str]) -> Case {
    Case { jobs: Jobs::Servers, ..case(name, generation, flags) }
}

impl Case {
    const fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    const fn twice(self) -> Self {
        Self { runs: 2, ..self }
    }

    const fn handed_over(self) -> Self {
        Self { is_handed_over: true, ..self }
    }

    /// Prefix of the lines that Paddle copies from a log to its console.
    fn copied(&self) -> Option<&'static str> {
        match (self.jobs, self.generation) {
            (Jobs::All | Jobs::SeveralNodes, _) => Some("probe rank 0"),
            (Jobs::Servers, Generation::Current) => Some("probe rank pserver-0"),
            (Jobs::Servers, Generation::Legacy) => None,
        }
    }
}

const TWO: &[&str] = &["--nproc_per_node", "2"];
/// Rank 1 exits with 7; rank 0 waits to be stopped.
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
const DEBUG: &[(&str, &str)] = &[("PADDLE_LOG_LEVEL", "DEBUG")];
const RPC: &[&str] = &["--run_mode", "rpc", "--master", "127.0.0.1:7790", "--nproc_per_node", "2"];
const SERVERS: &[&str] = &["--run_mode", "ps", "--server_num", "2", "--trainer_num", "2"];
const LISTED: &[&str] = &[
    "--servers",
    "127.0.0.1:7700,127.0.0.1:7701",
    "--trainers",
    "127.0.0.1:7702,127.0.0.1:7703",
    "--gloo_port",
    "7709",
];
const OLD_SERVERS: &[&str] = &["--server_num", "2", "--worker_num", "2"];
const ONE_OF_EACH: &[&str] = &["--run_mode", "ps", "--server_num", "1", "--worker_num", "1"];
const OLD_LISTED: &[&str] = &["--servers=127.0.0.1:7710,127.0.0.1:7711", "--workers=127.0.0.1:7712,127.0.0.1:7713"];
/// Workers without ports.
const OLD_GLOO: &[&str] = &["--servers", "127.0.0.1:7720", "--workers", "127.0.0.1,127.0.0.1", "--http_port", "7729"];
const HETER: &[&str] = &[
    "--server_num",
    "1",
    "--worker_num",
    "1",
    "--coordinator_num",
    "1",
    "--heter_worker_num",
    "1;2",
    "--heter_devices",
    "cpu;gpu",
];
const HETER_LISTED: &[&str] = &[
    "--servers",
    "127.0.0.1:7730",
    "--workers",
    "127.0.0.1:7731,127.0.0.1:7732",
    "--heter_workers",
    "127.0.0.1:7733",
    "--heter_devices",
    "cpu",
];

/// The slowest comes first: Paddle's legacy launcher takes 16 s to give up.
const CASES: [Case; 19] = [
    case("legacy_failure", Generation::Legacy, TWO).with(FAILURE),
    case("current_failure", Generation::Current, TWO).with(FAILURE),
    case("current_success_twice", Generation::Current, TWO).twice(),
    case("current_surroundings", Generation::Current, NAMED).with(SURROUNDINGS),
    case("current_sole_rank", Generation::Current, &[]),
    case("current_devices", Generation::Current, &["--devices", "5,7"]).with(&[("CUDA_VISIBLE_DEVICES", "4,5,6,7")]),
    case("legacy_success_twice", Generation::Legacy, TWO).twice(),
    case("legacy_surroundings", Generation::Legacy, NAMED).with(SURROUNDINGS),
    case("current_rpc", Generation::Current, RPC).with(DEBUG),
    servers("current_servers", Generation::Current, SERVERS).with(DEBUG),
    servers("current_servers_failure", Generation::Current, SERVERS).with(FAILURE),
    servers("current_servers_listed", Generation::Current, LISTED).with(DEBUG),
    servers("legacy_servers_twice", Generation::Legacy, OLD_SERVERS).handed_over().twice(),
    servers("legacy_servers_failure", Generation::Legacy, ONE_OF_EACH).with(&[("UMIAK_PROBE_EXIT", "0:7")]),
    servers("legacy_servers_listed", Generation::Legacy, OLD_LISTED).with(SURROUNDINGS),
    servers("legacy_servers_gloo", Generation::Legacy, OLD_GLOO).with(&[("PADDLE_WITH_GLOO", "1")]),
    servers("legacy_servers_devices", Generation::Legacy, OLD_SERVERS).with(&[("CUDA_VISIBLE_DEVICES", "4,5")]),
    servers("legacy_heter", Generation::Legacy, HETER),
    servers("legacy_heter_listed", Generation::Legacy, HETER_LISTED),
];

/// Results of each case, computed once on first use.
static RESULTS: [OnceLock<Result<Vec<Seen>, String>>; CASES.len()] = [const { OnceLock::new() }; CASES.len()];

pub(crate) fn register(suite: &mut Suite) {
    #[rustfmt::skip]
    const CHECKS: [fn(); CASES.len()] = [
        check::<0>, check::<1>, check::<2>, check::<3>, check::<4>, check::<5>, check::<6>, check::<7>, check::<8>,
        check::<9>, check::<10>, check::<11>, check::<12>, check::<13>, check::<14>, check::<15>, check::<16>,
        check::<17>, check::<18>,
    ];
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
    entry.covers(seen.surface, case.generation, case.jobs, seen.kind, &seen.name)
}

/// Checks each pattern on its own. Console entries are checked as a whole, because some lines depend on installed
/// packages.
fn no_entry_is_stale() {
    let all: Vec<(&Case, &[Seen])> =
        CASES.iter().enumerate().map(|(index, case)| (case, seen(index).as_slice())).collect();
    let single = |entry: &Difference| match entry.surface {
        Surface::Console => vec![*entry],
        _ => entry.patterns.chunks(1).map(|patterns| Difference { patterns, ..*entry }).collect(),
    };
    let stale: Vec<String> = DIFFERENCES
        .iter()
        .filter(|entry| entry.jobs != Jobs::SeveralNodes)
        .flat_map(single)
        .filter(|entry| !all.iter().any(|(case, seen)| seen.iter().any(|seen| covers(entry, case, seen))))
        .map(|entry| format!("{entry:?}"))
        .collect();
    assert!(stale.is_empty(), "entries that no longer differ:\n{}", stale.join("\n"));
}

fn seen(index: usize) -> &'static Vec<Seen> {
    // The legacy launcher mostly sleeps, so its cases run in parallel.
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
            theirs.iter().zip(&ours).flat_map(|(theirs, ours)| compare(case, theirs, ours)).collect()
        }))
        .map_err(|panic| {
            panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "the observation panicked".to_owned())
        })
    })
}

/// Retries when Paddle's launcher exits before it has copied the rank's last lines to the console, which happens on a
/// busy machine.
fn observe_paddle(case: &Case) -> Vec<Observation> {
    let is_whole =
        |seen: &Observation| case.copied().is_none_or(|start| seen.console.iter().any(|line| line.starts_with(start)));
    (0..4)
        .map(|_| observe(case, Launcher::Paddle))
        .find(|seen| seen.iter().all(is_whole))
        .unwrap_or_else(|| observe(case, Launcher::Paddle))
}

/// `--exit-codes paddle` gives Paddle's exact code, which the failure cases above observe.
fn old_exit_codes_are_exact() {
    let exact = Launcher::Umiak { flags: &["--exit-codes", "paddle"] };
    let find = |name: &str| CASES.iter().position(|case| case.name == name).expect("a case of the table");
    for (name, paddle) in [("legacy_failure", 1), ("current_failure", 241), ("current_sole_rank", 0)] {
        let index = find(name);
        let real = seen(index).iter().find_map(Seen::paddle_code).unwrap_or(0);
        assert_eq!(real, paddle, "{name}: the real launcher's code has changed");
        let ours = observe(&CASES[index], exact).pop().expect("one run");
        assert_eq!(ours.code, paddle, "{name}");
        let said = format!("Exit code {}", if paddle > 128 { paddle - 256 } else { paddle });
        let legacy = CASES[index].generation == Generation::Legacy;
        assert!(legacy || ours.console.iter().any(|line| line.ends_with(&said)), "{name}: `{said}` in the pod log");
    }
    // Paddle exits with 0 here; umiak never does so for a failure.
    let index = find("legacy_servers_failure");
    assert_eq!(seen(index).iter().find_map(Seen::paddle_code), Some(0), "the real launcher's code has changed");
    assert_eq!(observe(&CASES[index], exact).pop().expect("one run").code, 1);
}
