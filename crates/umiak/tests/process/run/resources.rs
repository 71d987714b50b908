//! Limits from `resources` on this host: memory by a cgroup, CPUs with `--strict-resources`.

use std::collections::BTreeSet;
use std::fs;

use umiak_sys::descend;
use umiak_testkit::components::Component::{MemoryCgroup, Namespaces};
use umiak_testkit::components::{LimitedCgroup, limited_cgroup};
use umiak_testkit::sandbox::{Outcome, Run, binary, toy};
use umiak_testkit::suite::Suite;

use super::house::{House, Unwatched as _, wait_for};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::resources::over_its_limit", &[MemoryCgroup], over_its_limit)
        .test("run::resources::a_process_of_its_own", &[MemoryCgroup], a_process_of_its_own)
        .test("run::resources::limits_of_all_attempts", &[MemoryCgroup], limits_of_all_attempts)
        .test("run::resources::nothing_left_when_interrupted", &[MemoryCgroup], interrupted)
        .test("run::resources::nothing_left_when_killed", &[MemoryCgroup], killed)
        .test("run::resources::what_both_killed_left_is_cleaned", &[MemoryCgroup], both_killed)
        .test("run::resources::memory_that_cannot_be_limited", &[Namespaces], not_limited)
        .test("run::resources::advice_is_said_once", &[], advice)
        .test("run::resources::cpus_of_ones_own", &[], cpus)
        .test("run::resources::too_few_cpus", &[], too_few_cpus);
}

/// A house whose runs have their own cgroup, so leftovers are visible and nothing else cleans them.
struct Fenced {
    house: House,
    cgroup: LimitedCgroup,
}

impl Fenced {
    fn new(name: &str, document: &str) -> Self {
        let cgroup = limited_cgroup(&format!("umiak-fence-{name}"), 4 << 30).expect("the test says that it needs one");
        let house = House::with(&document.replace("TOY", &format!("{} toy", toy())));
        Self { house, cgroup }
    }

    fn umiak(&self, line: &str) -> Run<'_> {
        let line = format!("echo $$ > '{}' && exec '{}' {line}", self.cgroup.members().display(), binary().display());
        self.house.sandbox.program("sh".as_ref(), ["-c", &line]).env("UMIAK_HOME", self.house.home.path())
    }

    /// Returns the cgroups below, as relative paths.
    fn cells(&self) -> Vec<String> {
        let members = self.cgroup.members();
        let top = members.parent().expect("a directory");
        let mut found = Vec::new();
        let mut ahead = vec![top.to_owned()];
        while let Some(directory) = ahead.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    found.push(entry.path().strip_prefix(top).expect("it is below").to_string_lossy().into_owned());
                    ahead.push(entry.path());
                }
            }
        }
        found
    }

    fn assert_empty(&self) {
        assert_eq!(self.cells(), [""; 0]);
    }
}

/// Returns the first cause and its kernel facts.
fn kernel(outcome: &Outcome) -> (serde_json::Value, Vec<serde_json::Value>) {
    let facts = outcome.facts();
    let verdict = facts.iter().find(|fact| fact["type"] == "diagnosed").expect("a verdict");
    let cause = verdict["causes"][0].clone();
    let kernel = cause["evidence"]["kernel"].as_array().cloned().unwrap_or_default();
    (cause, kernel)
}

const HOG: &str = "umiak: v1
roles:
  hog: {resources: {memory: 64Mi}, start_after: calm, command: \"exec TOY '*:allocate 400000000'\"}
  calm: {resources: {memory: 64Mi}, command: \"exec TOY '*:allocate 1000000;sleep 60000'\"}
";

fn over_its_limit() {
    let fenced = Fenced::new("over", HOG);
    let outcome = fenced.umiak("run job.yaml").finish();
    outcome
        .expect_code(1)
        .expect_err("✗ hog-0 ")
        .expect_err("was killed by SIGKILL")
        .expect_err("it exceeded its limit of 64 MiB)")
        .expect_err("[U3103]")
        .expect_err("stopped by us  calm-0 (SIGTERM");
    assert!(!outcome.err().contains("J0023"), "it is enforced: {}", outcome.err());
    fenced.assert_empty();
    let outcome = fenced.umiak("run job.yaml --output json").finish();
    let (cause, kernel) = kernel(&outcome);
    assert_eq!(cause["subject"]["replica"], "hog-0");
    assert_eq!((&kernel[0]["fact"], &kernel[0]["scope"]), (&"oom_killed".into(), &"replica".into()), "{cause}");
    assert_eq!((kernel.len(), &kernel[0]["limit_kib"]), (1, &(64 << 10).into()), "{cause}");
    fenced.assert_empty();
}

/// Cgroup version 1 kills one process, version 2 the whole replica; either way the limit is the cause.
fn a_process_of_its_own() {
    let document =
        "umiak: v1\nroles: {hog: {resources: {memory: 64Mi}, command: \"TOY '*:allocate 400000000'; exit 3\"}}\n";
    let fenced = Fenced::new("child", document);
    let outcome = fenced.umiak("run job.yaml").finish();
    assert!([3, 137].contains(&outcome.code()), "{}", outcome.err());
    outcome.expect_err("it exceeded its limit of 64 MiB)");
    fenced.assert_empty();
}

/// Each attempt has its own cgroup, removed with the attempt unless a process is left in it.
fn limits_of_all_attempts() {
    let document = "umiak: v1
roles:
  again:
    resources: {memory: 64Mi}
    restarts: {max: 2, backoff: 1ms}
    command: \"cat /proc/self/cgroup; if [ $UMIAK_ATTEMPT = 1 ]; then setsid sleep 60 & fi; [ $UMIAK_ATTEMPT = 3 ] || exit 3; touch up; until test -e go; do sleep 0.01; done\"
  unlimited: {command: \"cat /proc/self/cgroup\"}
";
    let fenced = Fenced::new("again", document);
    let running = fenced.umiak("run job.yaml").start();
    running.wait_for_file("up");
    let names = |cells: Vec<String>| -> BTreeSet<String> {
        cells.iter().filter_map(|cell| Some(cell.rsplit_once('/')?.1.to_owned())).collect()
    };
    running.wait_until("the last attempt's cgroup alone", || names(fenced.cells()) == ["again-0.3".to_owned()].into());
    fenced.house.touch("go");
    running.finish().expect_code(0);
    fenced.assert_empty();
    let log = |replica: &str, attempt: u32| {
        fs::read_to_string(fenced.house.run().attempt(None, replica, attempt).join("log")).expect("a log")
    };
    for attempt in 1..=3 {
        let seen = log("again-0", attempt);
        assert!(seen.contains("/umiak-run-000001-") && seen.contains(&format!("/again-0.{attempt}\n")), "{seen}");
    }
    assert!(!log("unlimited-0", 1).contains("/umiak-run-"), "{}", log("unlimited-0", 1));
}

const WAITS: &str = "umiak: v1\npolicy: {restarts: {max_platform: 0}}\nroles: {w: {replicas: 2, resources: {memory: 64Mi}, command: \"setsid sleep 60 & touch up$UMIAK_INDEX.$UMIAK_ATTEMPT; until test -e go; do sleep 0.01; done\"}}\n";

fn interrupted() {
    let fenced = Fenced::new("interrupted", WAITS);
    let running = fenced.umiak("run job.yaml").start();
    running.wait_for_file("up0.1");
    running.wait_for_file("up1.1");
    assert_eq!(fenced.cells().len(), 3, "{:?}", fenced.cells());
    running.signal(SIGINT);
    running.finish().expect_code(130);
    fenced.assert_empty();
}

/// The guardian cleans up after a killed supervisor, and the supervisor after a killed guardian.
fn killed() {
    for whom in ["supervisor", "guardian"] {
        let fenced = Fenced::new(whom, WAITS);
        let running = fenced.umiak("run job.yaml").start();
        running.wait_for_file("up0.1");
        running.wait_for_file("up1.1");
        if whom == "supervisor" {
            running.signal(SIGKILL);
        } else {
            for pid in descend::children(running.pid()) {
                descend::signal(pid, SIGKILL);
            }
        }
        running.finish();
        fenced.house.wait_until_free();
        wait_for("the cgroups to be removed", || fenced.cells().is_empty());
    }
}

/// If both are killed at once, processes in other sessions survive in the cgroup until the next umiak command ends
/// them.
fn both_killed() {
    for next in ["resume 1", "run job.yaml", "gc"] {
        let fenced = Fenced::new(next.split(' ').next().expect("a word"), WAITS);
        let running = fenced.umiak("run job.yaml").start();
        running.wait_for_file("up0.1");
        running.wait_for_file("up1.1");
        let guardians = descend::children(running.pid());
        // SIGSTOP first, so that neither process notices the end of the other.
        for pid in guardians.iter().chain([&running.pid()]) {
            descend::signal(*pid, 19);
        }
        for pid in guardians.iter().chain([&running.pid()]) {
            descend::signal(*pid, SIGKILL);
        }
        running.finish_unchecked();
        fenced.house.wait_until_free();
        assert!(!fenced.cells().is_empty(), "there is nothing to clean up");
        fenced.house.touch("go");
        fenced.umiak(next).finish_unwatched().expect_code(0);
        fenced.assert_empty();
        fenced.house.sandbox.assert_nothing_left();
    }
}

/// Without a visible cgroup, umiak prints a notice, or refuses with `--strict-resources`.
fn not_limited() {
    let house = House::with("umiak: v1\nroles: {w: {resources: {memory: 64Mi}, command: LEDGER}}\n");
    let umiak = |flags: &str| {
        let line = format!("mount -t tmpfs tmpfs /sys/fs/cgroup && exec '{}' run job.yaml {flags}", binary().display());
        let words = ["--user", "--map-root-user", "--mount", "sh", "-c", &line];
        house.sandbox.program("unshare".as_ref(), words).env("UMIAK_HOME", house.home.path()).finish()
    };
    let outcome = umiak("");
    outcome.expect_code(0).expect_err(
        "notice[J0023]: `resources.memory` is not enforced here: no cgroup with a memory controller is mounted",
    );
    let outcome = umiak("--strict-resources");
    outcome.expect_code(125).expect_err("error[J0020]").expect_err("cannot be enforced here: no cgroup");
    assert_eq!(house.ledger().len(), 1, "the second was never started");
}

fn advice() {
    let house =
        House::with("umiak: v1\nroles: {w: {replicas: 3, resources: {cpu: 64, memory: 64Mi}, command: LEDGER}}\n");
    let outcome = house.umiak("run job.yaml").finish();
    outcome.expect_code(0);
    assert_eq!(
        outcome.err().matches("`resources.cpu` is not enforced on engine `local`").count(),
        1,
        "{}",
        outcome.err()
    );
    let outcome = house.umiak("run job.yaml --engine mock").finish();
    outcome
        .expect_code(0)
        .expect_err("`resources.cpu`")
        .expect_err("`resources.memory` is not enforced on engine `mock`");
    let outcome = house.umiak("run job.yaml --engine mock --strict-resources").finish();
    outcome.expect_code(125).expect_err("error[J0020]: `resources.cpu` cannot be enforced on engine `mock`");
}

/// Returns what a replica printed: its CPUs, and their number with `OMP_NUM_THREADS`.
fn seen(house: &House, replica: &str) -> (String, String) {
    let log = fs::read_to_string(house.run().attempt(None, replica, 1).join("log")).expect("a log");
    let (cpus, rest) = log.trim_end().split_once('\n').unwrap_or_else(|| panic!("two lines: {log}"));
    (cpus.trim_start_matches("Cpus_allowed_list:").trim().to_owned(), rest.replace('\n', " "))
}

const LOOK: &str = "grep Cpus_allowed_list /proc/self/status; nproc; echo $OMP_NUM_THREADS; sleep 0.1";

fn cpus() {
    let ours = umiak_sys::host::allowed_cpus().len().min(umiak_sys::host::cpus());
    let document =
        |roles: &str| format!("umiak: v1\npolicy: {{gang: false}}\nroles: {{{roles}}}\n").replace("LOOK", LOOK);
    // Each replica has its own CPU; one more replica waits until a CPU is free.
    let count = ours + 1;
    let house =
        House::with(&document(&format!("w: {{replicas: {count}, resources: {{cpu: 500m}}, command: \"LOOK\"}}")));
    house.umiak("run job.yaml --strict-resources").finish().expect_code(0);
    let lists: Vec<(String, String)> = (0..count).map(|index| seen(&house, &format!("w-{index}"))).collect();
    assert!(lists.iter().all(|(list, rest)| list.parse::<u32>().is_ok() && rest == "1 1"), "{lists:?}");
    let different: BTreeSet<&String> = lists[..ours].iter().map(|(list, _)| list).collect();
    assert_eq!(different.len(), ours, "{lists:?}");
    // Fractions are rounded up; a replica without `cpu` is not restricted.
    if ours < 2 {
        return;
    }
    let roles = "a: {resources: {cpu: 1.5}, command: \"LOOK\"}, b: {command: \"LOOK\"}";
    let house = House::with(&document(roles));
    house.umiak("run job.yaml --strict-resources").finish().expect_code(0);
    assert_eq!(seen(&house, "a-0").1, "2 2");
    let all = fs::read_to_string("/proc/self/status").expect("it is us");
    let all = all.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list");
    assert_eq!(seen(&house, "b-0").0, all.trim());
}

fn too_few_cpus() {
    let ours = umiak_sys::host::allowed_cpus().len().min(umiak_sys::host::cpus());
    let roles = |replicas: usize, cpu: usize| {
        format!("roles: {{w: {{replicas: {replicas}, resources: {{cpu: {cpu}}}, command: LEDGER}}}}\n")
    };
    for (document, hint) in [
        (format!("umiak: v1\n{}", roles(ours + 1, 1)), "gang: false"),
        (format!("umiak: v1\n{}", roles(1, ours + 1)), "omit `--strict-resources`"),
        (format!("umiak: v1\npolicy: {{gang: false}}\n{}", roles(2, ours + 1)), "omit `--strict-resources`"),
    ] {
        let house = House::with(&document);
        for line in ["run job.yaml --strict-resources", "run -d job.yaml --strict-resources"] {
            let outcome = house.umiak(line).finish();
            outcome.expect_code(125).expect_err("error[J0020]: too few CPUs").expect_err(hint);
            outcome.expect_err(&format!("usable  {ours}"));
            assert_eq!((house.runs().len(), house.ledger().len()), (0, 0), "{document}");
        }
        house.umiak("run job.yaml").finish().expect_code(0);
    }
}
