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
        .test("kill::any_command_in_any_cgroup_cleans_what_both_left", &[], any_command_anywhere_cleans)
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

/// The next command may run in another cgroup, and need not start anything.
fn any_command_anywhere_cleans() {
    for next in ["ls", "launch /bin/true", "gc"] {
        let sandbox = Sandbox::new();
        let Some(fence) = Fence::make() else { return };
        let start = format!("echo $$ > '{}/cgroup.procs' && exec '{}' \"$@\"", fence.0.display(), binary().display());
        let words =
            ["-c", &start, "sh", "launch", &umiak_testkit::sandbox::toy(), "toy", "*:daemon;touch up;sleep 60000"];
        let run = sandbox.program("sh".as_ref(), words).start();
        run.wait_for_file("up");
        let guardian = umiak_sys::descend::children(run.pid())[0];
        let ranks = umiak_sys::descend::children(guardian);
        let mut daemons = umiak_sys::descend::descendants(guardian);
        daemons.retain(|pid| !ranks.contains(pid));
        assert!(!daemons.is_empty());
        // A process that has ended has no program any more.
        let lives = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok();
        // Both at once: while they are stopped, neither can clean up after the other.
        for pid in [run.pid(), guardian] {
            umiak_sys::descend::signal(pid, 19);
        }
        for pid in [run.pid(), guardian] {
            umiak_sys::descend::signal(pid, 9);
        }
        let jobs = || std::fs::read_dir(&fence.0).unwrap().flatten().filter(|entry| entry.path().is_dir()).count();
        assert_eq!(jobs(), 1, "the cgroup of the job is left");
        Sandbox::new().umiak(next.split(' ')).finish().expect_code(0);
        assert!(!daemons.iter().any(lives), "{next}: {daemons:?} are left");
        assert_eq!(jobs(), 0, "{next}");
        // A scratch directory is removed only when it is a minute old.
        for name in sandbox.list("tmp") {
            std::fs::remove_dir_all(sandbox.path().join("tmp").join(name)).unwrap();
        }
        run.finish();
    }
}

/// A cgroup for one test, in version 2.
struct Fence(std::path::PathBuf);

impl Fence {
    /// `None` if cgroups cannot be made here.
    fn make() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| line.strip_prefix("cgroup2 ")?.split(' ').next())?;
        let path = std::path::Path::new(mount).join(format!("fence-{}", std::process::id()));
        std::fs::create_dir(&path).ok().map(|()| Self(path))
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
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
