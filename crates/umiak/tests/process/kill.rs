//! The kill table: front, guardian or both receive SIGKILL at any moment, and no process survives.

use umiak_testkit::components::Component::Namespaces;
use umiak_testkit::components::trials;
use umiak_testkit::kill::{Report, Victim, run, table};
use umiak_testkit::sandbox::{Sandbox, binary};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("kill::nobody_outlives_front_guardian_or_both", &[], nobody_outlives)
        .test("kill::next_command_cleans_what_both_left", &[], next_command_cleans)
        .test("kill::jobs_of_other_namespaces_are_left_alone", &[Namespaces], other_namespaces)
        .test("kill::isolated_job_goes_with_both", &[Namespaces], isolated_job_goes);
}

/// Random moments in every run; a failure prints the seed.
fn seed() -> u64 {
    let fixed = std::env::var("UMIAK_SEED").ok().and_then(|text| text.parse().ok());
    fixed.unwrap_or_else(|| u64::from(std::process::id()))
}

fn nobody_outlives() {
    let reports = try_all(&[Victim::Front, Victim::Guardian, Victim::Both], |report| {
        let broken = match report.victim {
            // Processes started by a rank are stopped only with `--isolate`, or by the next umiak command on the host.
            Victim::Both => !report.left[0].is_empty() || !report.umiak_left.is_empty(),
            Victim::Guardian => report.left_any() || !report.files_left.is_empty() || report.code != Some(125),
            _ => report.left_any() || !report.files_left.is_empty(),
        };
        !broken
    });
    // Each victim must have had running processes in some trial, or the table proves nothing.
    for victim in [Victim::Front, Victim::Guardian, Victim::Both] {
        for place in 0..3 {
            let seen = reports.iter().filter(|report| report.victim == victim && report.seen[place] > 0).count();
            assert!(seen > 0, "no processes were running in any trial:\n{}", table(&reports));
        }
    }
}

/// Leftovers are found by the job's cgroup; without one, cleaning is not guaranteed.
fn next_command_cleans() {
    try_all(&[Victim::BothThenNext], |report| !report.left_any());
}

/// A container that shares the cgroups sees other process ids and must not take the job for dead.
fn other_namespaces() {
    let sandbox = Sandbox::new();
    let run = sandbox.launch_toy("--nproc_per_node 2", &["0:touch up;await go", "1:await go"]).start();
    run.wait_for_file("up");
    let container = Sandbox::new();
    let words = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--"];
    let mut other = container.program(std::path::Path::new("unshare"), words);
    other.command.arg(binary()).args(["launch", "/bin/true"]);
    let outcome = other.finish();
    outcome.expect_code(0);
    assert!(!outcome.err().contains("L0027"), "it cleaned up a foreign job:\n{}", outcome.err());
    sandbox.write("go", "");
    run.finish().expect_code(0);
}

fn isolated_job_goes() {
    try_all(&[Victim::BothIsolated], |report| !report.left_any());
}

fn try_all(victims: &[Victim], is_fine: impl Fn(&Report) -> bool) -> Vec<Report> {
    let sandbox = Sandbox::new();
    let seed = seed();
    let reports = run(&sandbox, seed, victims, trials(50));
    let broken: Vec<&Report> = reports.iter().filter(|report| !is_fine(report)).collect();
    let first: Vec<String> = broken.iter().take(5).map(|report| format!("{report:#?}")).collect();
    let count = broken.len();
    assert!(broken.is_empty(), "seed {seed}, {count} trials broken\n{}{}", table(&reports), first.join("\n"));
    if std::env::var_os("UMIAK_TRIALS").is_some() {
        use std::io::Write as _;
        let _ = write!(std::io::stdout(), "seed {seed}\n{}", table(&reports));
    }
    sandbox.assert_nothing_left();
    reports
}
