//! Kernel facts about the death of a rank: memory, faults, cores, full file systems, and resource usage.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use umiak_testkit::components::Component::{KernelLog, MemoryCgroup, Namespaces};
use umiak_testkit::components::limited_cgroup;
use umiak_testkit::sandbox::{Outcome, Sandbox, toy};
use umiak_testkit::suite::Suite;

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("kernel::out_of_memory_is_named", &[MemoryCgroup, KernelLog], out_of_memory)
        .test("kernel::out_of_memory_in_a_container", &[MemoryCgroup, KernelLog], out_of_memory_in_a_container)
        .test("kernel::a_kill_that_is_not_for_memory", &[], a_kill_that_is_not_for_memory)
        .test("kernel::segmentation_fault_has_its_address", &[KernelLog], segmentation_fault)
        .test("kernel::segmentation_fault_in_another_thread", &[KernelLog], segmentation_fault_in_a_thread)
        .test("kernel::full_shared_memory", &[Namespaces], full_shared_memory)
        .test("kernel::full_disk_is_a_fact", &[Namespaces], full_disk)
        .test("kernel::core_dumps_are_found", &[], core_dumps)
        .test("kernel::usage_is_plausible", &[], usage_is_plausible)
        .test("kernel::gpu_log_only_when_asked_for", &[], gpu_log)
        .test("kernel::gpu_log_without_the_tool", &[], gpu_log_without_the_tool)
        .test("kernel::gpu_log_with_a_tool_that_hangs", &[], gpu_log_with_a_tool_that_hangs);
}

const WAIT: &str = "sleep 60000";

/// Returns the first cause and its kernel facts.
fn facts(outcome: &Outcome) -> (serde_json::Value, Vec<serde_json::Value>) {
    let all = outcome.facts();
    let verdict = all.iter().find(|fact| fact["type"] == "diagnosed").expect("a verdict");
    let cause = verdict["causes"][0].clone();
    let kernel = cause["evidence"]["kernel"].as_array().cloned().unwrap_or_default();
    (cause, kernel)
}

/// Runs umiak in a cgroup limited to 48 MiB, with a rank that allocates more.
fn in_a_small_cgroup(name: &str, prefix: &str, flags: &str) -> Outcome {
    let shell = Shell::with_decoy();
    let cgroup = limited_cgroup(name, 48 << 20).expect("the test says that it needs one");
    let line = format!(
        "echo $$ > '{}' && {prefix} umiak launch {flags} --nproc_per_node 2 '{}' toy '0:{WAIT}' '1:allocate 400000000'",
        cgroup.members().display(),
        toy()
    );
    shell.line(&line).finish()
}

fn out_of_memory() {
    let outcome = in_a_small_cgroup("umiak-memory", "exec", "");
    outcome
        .expect_code(137)
        .expect_err("rank=[1]")
        .expect_err("the OOM killer killed it (it used ")
        .expect_err("; its cgroup limit is 48 MiB)")
        .expect_err("[U3103]");
    let outcome = in_a_small_cgroup("umiak-memory", "exec", "--output json");
    let (cause, kernel) = facts(&outcome);
    assert_eq!(kernel[0]["fact"], "oom_killed", "{cause}");
    assert_eq!((&kernel[0]["named"], &kernel[0]["scope"]), (&true.into(), &"cgroup".into()));
    assert_eq!(kernel[0]["limit_kib"], 48 << 10);
    assert!(cause["usage"]["max_rss_kib"].as_u64().unwrap() > 20 << 10, "{cause}");
}

/// In a PID namespace the kernel log shows other process ids, so only the cgroup's counter is evidence.
fn out_of_memory_in_a_container() {
    let outcome = in_a_small_cgroup("umiak-contained", "unshare --pid --fork --mount-proc", "--output json");
    outcome.expect_code(137);
    let (cause, kernel) = facts(&outcome);
    assert_eq!(kernel[0]["fact"], "oom_killed", "{cause}");
    assert_eq!((&kernel[0]["named"], &kernel[0]["scope"]), (&false.into(), &"cgroup".into()));
}

fn a_kill_that_is_not_for_memory() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("", &["*:signal 9"]).finish();
    outcome.expect_code(137).expect_err("was killed by SIGKILL");
    assert!(!outcome.err().contains("OOM killer"), "{}", outcome.err());
}

/// Repeats until the kernel has logged the crash: it logs only a few crashes in five seconds, for all processes
/// together.
fn until_told(run: impl Fn() -> Outcome, told: impl Fn(&Outcome) -> bool) -> Outcome {
    let mut outcome = run();
    for _ in 0..8 {
        if told(&outcome) {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
        outcome = run();
    }
    outcome
}

fn segmentation_fault() {
    let sandbox = Sandbox::new();
    let outcome = until_told(
        || sandbox.launch_toy("--nproc_per_node 2", &["1:fault", &format!("0:{WAIT}")]).finish(),
        |outcome| outcome.err().contains("segmentation fault at"),
    );
    outcome
        .expect_code(139)
        .expect_err("was killed by SIGSEGV")
        .expect_err("\n  segmentation fault at 0x10 in process-");
    let outcome = until_told(
        || sandbox.launch_toy("--output json", &["*:fault"]).finish(),
        |outcome| !facts(outcome).1.is_empty(),
    );
    let (cause, kernel) = facts(&outcome);
    let fault = kernel.first().unwrap_or_else(|| panic!("no fact: {cause}"));
    assert_eq!((&fault["fact"], &fault["address"]), (&"fault".into(), &"0x10".into()), "{cause}");
    assert_eq!(fault["kind"], "segmentation");
    assert!(fault["thread"].is_null(), "the main thread is not named: {cause}");
}

/// If another process crashes at the same time, the fault cannot be attributed, so the run is repeated.
fn segmentation_fault_in_a_thread() {
    let sandbox = Sandbox::new();
    let outcome = until_told(
        || sandbox.launch_toy("", &["*:fault-in-thread"]).finish(),
        |outcome| outcome.err().contains("segmentation fault at"),
    );
    outcome.expect_code(139).expect_err("segmentation fault at 0x10 in process-").expect_err(", thread ");
}

fn full_shared_memory() {
    let shell = Shell::with_decoy();
    let launch = format!("umiak launch --nproc_per_node 2 '{}' toy '0:{WAIT}' '1:map /dev/shm/segment'", toy());
    shell.sandbox.write("line", format!("mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 99\n{launch}\n"));
    let outcome = shell.line("unshare --user --map-root-user --mount sh line").finish();
    outcome
        .expect_code(135)
        .expect_err("was killed by SIGBUS")
        .expect_err("\n  /dev/shm is full (0 KiB free): ")
        .expect_err("hint: enlarge `/dev/shm`");
}

fn full_disk() {
    let shell = Shell::with_decoy();
    std::fs::create_dir(shell.sandbox.path().join("small")).expect("the sandbox can be written");
    let launch =
        format!("umiak launch --output json --nproc_per_node 2 --log_dir small/log '{}' toy '1:map small/data'", toy());
    shell.sandbox.write("line", format!("mount -t tmpfs -o size=64k tmpfs small || exit 99\n{launch}\n"));
    let outcome = shell.line("unshare --user --map-root-user --mount sh line").finish();
    outcome.expect_code(135);
    let (cause, kernel) = facts(&outcome);
    assert_eq!(kernel[0]["fact"], "disk_full", "{cause}");
    assert!(kernel[0]["path"].as_str().unwrap().ends_with("small/log"), "{cause}");
    assert_eq!(kernel.len(), 1, "one file system, one fact: {cause}");
}

/// Finds cores that are written to the working directory; other core patterns are only reported.
fn core_dumps() {
    let shell = Shell::with_decoy();
    let launch = |flags: &str| format!("ulimit -c unlimited && exec umiak launch {flags} '{}' toy '*:signal 6'", toy());
    let outcome = shell.line(&launch("")).finish();
    outcome.expect_code(134).expect_err("was killed by SIGABRT");
    let outcome = shell.line(&launch("--output json")).finish();
    let (cause, kernel) = facts(&outcome);
    let dumped = cause["exit"]["core_dumped"] == true;
    let told = kernel.iter().find(|fact| fact["fact"] == "core_dumped");
    assert_eq!(told.is_some(), dumped, "{cause}");
    let cores = shell.sandbox.list(".").into_iter().filter(|name| name.starts_with("core")).count();
    if let (Some(fact), true) = (told, cores > 0) {
        let path = fact["path"].as_str().expect("the core is there");
        assert!(shell.sandbox.path().join(path).is_file(), "{fact}");
    }
    // With cores disabled none is reported.
    let outcome = shell.line(&launch("--output json").replace("unlimited", "0")).finish();
    assert!(facts(&outcome).1.is_empty());
}

fn usage_is_plausible() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--output json", &["*:allocate 50000000;burn 300;exit 1"]).finish();
    let (cause, _) = facts(&outcome);
    let usage = |name: &str| cause["usage"][name].as_u64().unwrap_or_else(|| panic!("{name}: {cause}"));
    let cpu = usage("user_micros") + usage("system_micros");
    assert!((100_000..60_000_000).contains(&cpu), "{cpu}");
    assert!((48_000..500_000).contains(&usage("max_rss_kib")), "{cause}");
    let ended = outcome.facts().into_iter().find(|fact| fact["type"] == "ended").expect("an end");
    assert_eq!(ended["usage"], cause["usage"]);
    let outcome = sandbox.launch_toy("", &["*:burn 300;exit 1"]).finish();
    outcome.expect_err("\n  used ").expect_err(" CPU, ").expect_err(" MiB peak\n");
}

/// Answers like `nvidia-smi --format=csv,noheader,nounits`, and logs its arguments.
const TOOL: &str = r#"#!/bin/sh
echo "$*" >> asked
case "$*" in
*--query-gpu=index,uuid*) printf '0, GPU-0, 550.54, NVIDIA H200, 165, Disabled, Enabled\n1, GPU-1, 550.54, NVIDIA H200, 166, Disabled, Enabled\n' ;;
*--query-compute-apps*) echo '4121, /usr/bin/python3, GPU-0, NVIDIA H200, 512' ;;
*) printf '0, 97, 143771, 512, 143259, 2026/11/15 03:08:23.123\n1, 0, 143771, 1, 143770, 2026/11/15 03:08:23.125\n' ;;
esac
"#;

const HEADERS: [&str; 3] = [
    "index,uuid,driver_version,name,gpu_serial,display_active,display_mode\n",
    "pid,process_name,gpu_uuid,gpu_name,used_memory\n",
    "index,utilization_gpu,memory_total,memory_used,memory_free,timestamp\n",
];

fn with_tool(text: &str) -> Shell {
    let shell = Shell::with_decoy().with_gpus(2);
    let tool = shell.sandbox.write("bin/nvidia-smi", text);
    std::fs::set_permissions(tool, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    shell
}

fn gpu_log() {
    let shell = with_tool(TOOL);
    let launch = |flags: &str, actions: &str| format!("umiak launch {flags} --job_id j '{}' toy '{actions}'", toy());
    shell.line(&launch("", "*:exit 0")).finish().expect_code(0);
    assert!(!shell.sandbox.path().join("asked").exists(), "the tool ran without `--enable_gpu_log`");
    shell.sandbox.write("log/j.gpu.log", "of an earlier run\n");
    let run = shell.line(&launch("--enable_gpu_log true", "0:await go")).start();
    let expected = format!(
        "{}0,GPU-0,550.54,NVIDIA H200,165,Disabled,Enabled\n1,GPU-1,550.54,NVIDIA H200,166,Disabled,Enabled\n\n{}4121,/usr/bin/python3,GPU-0,NVIDIA H200,512\n\n{}0,97,143771,512,143259,2026/11/15 03:08:23.123\n1,0,143771,1,143770,2026/11/15 03:08:23.125\n",
        HEADERS[0], HEADERS[1], HEADERS[2]
    );
    run.wait_until("the first rows", || shell.sandbox.read("log/j.gpu.log") == expected);
    shell.sandbox.write("go", "");
    run.finish().expect_code(0);
    let asked = shell.sandbox.read("asked");
    assert!(
        asked.lines().all(|line| line.contains("--format=csv,noheader,nounits") && line.ends_with("--id=0,1")),
        "{asked}"
    );
}

fn gpu_log_without_the_tool() {
    let shell = Shell::with_decoy().with_gpus(2);
    let umiak = umiak_testkit::sandbox::binary().display().to_string();
    let line = format!("PATH=/nothing exec '{umiak}' launch --enable_gpu_log true '{}' toy '0:sleep 500'", toy());
    shell.line(&line).finish().expect_code(0);
    assert_eq!(shell.sandbox.read("log/default.gpu.log"), format!("{}\n{}\n{}", HEADERS[0], HEADERS[1], HEADERS[2]));
}

/// The job ends with its ranks, and the tool is stopped; `finish` fails if it is left.
fn gpu_log_with_a_tool_that_hangs() {
    let shell = with_tool("#!/bin/sh\n: > asked\nexec sleep 60\n");
    let line = format!("exec umiak launch --enable_gpu_log true '{}' toy '0:await asked'", toy());
    let outcome = shell.line(&line).finish();
    outcome.expect_code(0);
    assert!(outcome.elapsed.as_secs() < 20, "{:?}", outcome.elapsed);
    std::fs::remove_file(shell.sandbox.path().join("asked")).expect("it was asked");
    let run = shell.line(&line.replace("await asked", "sleep 60000")).start();
    run.wait_for_file("asked");
    run.signal(9);
    run.finish();
}
