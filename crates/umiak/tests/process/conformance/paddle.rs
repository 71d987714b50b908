//! Paddle's own launchers, both generations.

use std::sync::OnceLock;

use umiak_core::contract::differences::{FROM_PADDLE, Jobs};
use umiak_core::model::Generation;
use umiak_testkit::components::Component::Paddle;
use umiak_testkit::suite::Suite;

use super::compare::Seen;
use super::observe::{Launcher, observe};
use super::{Case, Original, Result, Table};

pub(super) fn register(suite: &mut Suite) {
    TABLE.register("conformance", suite, &[Paddle]);
    suite.test("conformance::old_exit_codes_are_exact", &[Paddle], old_exit_codes_are_exact);
}

const fn case(name: &'static str, generation: Generation, flags: &'static [&'static str]) -> Case {
    Case::new(name, Original::Paddle { generation, is_handed_over: false }, flags)
}

const fn servers(name: &'static str, generation: Generation, flags: &'static [&'static str]) -> Case {
    case(name, generation, flags).of(Jobs::Servers)
}

/// The line calls the current launcher's module, which hands over to the legacy launcher.
const fn handed_over(name: &'static str, flags: &'static [&'static str]) -> Case {
    let original = Original::Paddle { generation: Generation::Legacy, is_handed_over: true };
    Case::new(name, original, flags).of(Jobs::Servers)
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
    handed_over("legacy_servers_twice", OLD_SERVERS).twice(),
    servers("legacy_servers_failure", Generation::Legacy, ONE_OF_EACH).with(&[("UMIAK_PROBE_EXIT", "0:7")]),
    servers("legacy_servers_listed", Generation::Legacy, OLD_LISTED).with(SURROUNDINGS),
    servers("legacy_servers_gloo", Generation::Legacy, OLD_GLOO).with(&[("PADDLE_WITH_GLOO", "1")]),
    servers("legacy_servers_devices", Generation::Legacy, OLD_SERVERS).with(&[("CUDA_VISIBLE_DEVICES", "4,5")]),
    servers("legacy_heter", Generation::Legacy, HETER),
    servers("legacy_heter_listed", Generation::Legacy, HETER_LISTED),
];

static RESULTS: [OnceLock<Result>; CASES.len()] = [const { OnceLock::new() }; CASES.len()];

static TABLE: Table = Table { cases: &CASES, results: &RESULTS, list: FROM_PADDLE };

/// `--exit-codes paddle` gives Paddle's exact code, which the failure cases above observe.
fn old_exit_codes_are_exact() {
    let exact = Launcher::Umiak { flags: &["--exit-codes", "paddle"] };
    let find = |name: &str| CASES.iter().position(|case| case.name == name).expect("a case of the table");
    for (name, paddle) in [("legacy_failure", 1), ("current_failure", 241), ("current_sole_rank", 0)] {
        let index = find(name);
        let real = TABLE.seen(index).iter().find_map(Seen::original_code).unwrap_or(0);
        assert_eq!(real, paddle, "{name}: the real launcher's code has changed");
        let ours = observe(&CASES[index], exact).pop().expect("one run");
        assert_eq!(ours.code, paddle, "{name}");
        let said = format!("Exit code {}", if paddle > 128 { paddle - 256 } else { paddle });
        let legacy = CASES[index].original.generation() == Some(Generation::Legacy);
        assert!(legacy || ours.console.iter().any(|line| line.ends_with(&said)), "{name}: `{said}` in the pod log");
    }
    // Paddle exits with 0 here; umiak never does so for a failure.
    let index = find("legacy_servers_failure");
    assert_eq!(TABLE.seen(index).iter().find_map(Seen::original_code), Some(0), "the real launcher's code has changed");
    assert_eq!(observe(&CASES[index], exact).pop().expect("one run").code, 1);
}
