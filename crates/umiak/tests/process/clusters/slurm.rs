//! What only Slurm does: limits, requeues, lost nodes, cancelled jobs.

use umiak_testkit::components::Component::Slurm as Needed;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use super::{Engine, Site};
use crate::run::wait_until_free;

pub(super) fn register(suite: &mut Suite) {
    let mut test = |name: &str, run: fn(&Site)| {
        suite.test(&format!("slurm: {name}"), &[Needed], move || run(&Site::new(Engine::Slurm)));
    };
    test("replicas are spread over the nodes", nodes);
    test("roles with other resources are a heterogeneous job", heterogeneous);
    test("a task for each replica", direct);
    test("replicas stop before the time limit", limit);
    test("a requeued job goes on after its time limit", requeue);
    test("a requeued job starts its roles in their order", requeue_in_order);
    test("`scancel` stops the run", cancelled);
    test("`scancel` stops a run whose replicas fail at once", cancelled_quick);
    test("an agent without a supervisor leaves when the job is decided", forsaken);
    test("a lost node is named", lost_node);
    test("a job with a lost node is started again on others", lost_node_requeue);
    test("a pre-empted job is named", preempted);
    test("a pre-empted job is started again", preempted_requeue);
    test("a restarted controller is not noticed", controller);
    test("replicas that run are adopted by resume", adopted);
    test("ends that nobody saw are found by resume", resumed);
    test("`umiak stop` ends the job of a dead supervisor", orphan);
    test("a job that Slurm refuses is an error of Slurm", refused);
    test("a job that can never start is an error", hopeless);
    test("the reason of a wait is shown, and a stop ends it", waiting);
    test("Ctrl-C twice kills, and leaves no job", impatient);
    test("a step of a pipeline", step);
    test("the script is shown by `plan`, and kept", script);
}

const SIGKILL: i32 = 9;

/// Says `up`, and runs until it is told to end; then it takes a moment to save its state.
const WAIT: &str =
    "trap 'sleep 0.2; echo saved; exit 0' TERM; echo up on $SLURMD_NODENAME; while :; do sleep 0.05; done";

fn waits(replicas: u32, more: &str) -> String {
    format!(
        "umiak: v1\nname: wait\n{more}\nroles:\n  trainer:\n    replicas: {replicas}\n    command: {}\n",
        serde_json::to_string(WAIT).expect("a string")
    )
}

fn are_up(site: &Site, replicas: u32) -> bool {
    (0..replicas).all(|index| site.log(&format!("trainer-{index}"), 1).contains("up on"))
}

fn nodes(site: &Site) {
    let document = "umiak: v1\nname: nodes\nroles: {trainer: {replicas: 6, command: 'echo $SLURMD_NODENAME'}}\n";
    site.run_with(document, "--slurm nodes=3").finish().expect_code(0);
    let nodes: Vec<String> = (0..6).map(|index| site.log(&format!("trainer-{index}"), 1).trim().to_owned()).collect();
    let mut sorted = nodes.clone();
    sorted.sort();
    assert_eq!(nodes, sorted, "in the order of the nodes");
    sorted.dedup();
    assert_eq!(sorted, ["n1", "n2", "n3"]);
    site.assert_nothing_left();
}

fn heterogeneous(site: &Site) {
    let document = "umiak: v1\nname: het\nroles:\n  pserver: {replicas: 1, completes: false, resources: {cpu: 2}, command: 'echo $SLURM_JOB_ID; sleep 1000'}\n  trainer: {replicas: 2, resources: {cpu: 4, memory: 100Mi}, command: 'echo $UMIAK_RANK'}\n";
    let outcome = site.run_with(document, "").finish();
    outcome.expect_code(0);
    assert_eq!((site.log("trainer-0", 1), site.log("trainer-1", 1)), ("1\n".to_owned(), "2\n".to_owned()));
    let script = site.sandbox.read("state/runs/run-000001/units/0.1/script");
    assert_eq!(script.matches("#SBATCH hetjob\n").count(), 1, "{script}");
    site.assert_nothing_left();
}

fn direct(site: &Site) {
    let document = "umiak: v1\nname: direct\ncontracts: [torch]\nroles: {trainer: {replicas: 4, command: 'echo $RANK $SLURM_PROCID $SLURM_NTASKS'}}\n";
    site.run_with(document, "--slurm nodes=2 --slurm-direct").finish().expect_code(0);
    for rank in 0..4 {
        assert_eq!(site.log(&format!("trainer-{rank}"), 1), format!("{rank} {rank} 4\n"));
    }
    site.assert_nothing_left();
}

fn limit(site: &Site) {
    let flags = "--slurm nodes=2 --slurm time=1 --slurm-warning 55s";
    let outcome = site.run_with(&waits(2, ""), flags).finish();
    outcome.expect_code(123).expect_err("time limit");
    for replica in ["trainer-0", "trainer-1"] {
        assert!(site.log(replica, 1).ends_with("saved\n"), "{}", site.log(replica, 1));
    }
    site.assert_nothing_left();
}

fn requeue(site: &Site) {
    let command = "trap 'sleep 0.2; echo saved; touch saved.$RANK; exit 0' TERM; if [ -e saved.$RANK ]; then echo restored; exit 0; fi; echo up; while :; do sleep 0.05; done";
    let document = format!(
        "umiak: v1\nname: requeue\ncontracts: [torch]\nroles: {{trainer: {{replicas: 2, command: {}}}}}\n",
        serde_json::to_string(command).expect("a string")
    );
    let flags = "--slurm nodes=2 --slurm time=1 --slurm-warning 55s --slurm-requeue";
    site.run_with(&document, flags).finish().expect_code(0);
    for replica in ["trainer-0", "trainer-1"] {
        let log = site.log(replica, 1);
        // One attempt, whose job Slurm has started twice.
        assert!(log.starts_with("up\n") && log.ends_with("saved\nrestored\n"), "{log}");
    }
    site.assert_nothing_left();
}

/// The trainer does not try again: it relies on the server that listens.
fn requeue_in_order(site: &Site) {
    let server = "import os, socket, time\ntime.sleep(1)\nlistener = socket.socket()\nlistener.bind(('', int(os.environ['UMIAK_PORT_RPC'])))\nlistener.listen()\ntime.sleep(1000)";
    let trainer = "import os, signal, socket, sys, time\nhost, port = os.environ['UMIAK_ENDPOINTS_SERVER_RPC'].rsplit(':', 1)\nsocket.create_connection((host, int(port)), 10).close()\nprint('connected', flush=True)\nif os.path.exists('saved'): sys.exit(0)\ndef save(*_):\n    open('saved', 'w').close()\n    sys.exit(0)\nsignal.signal(signal.SIGTERM, save)\ntime.sleep(1000)";
    let text = |code: &str| serde_json::to_string(code).expect("a string");
    let document = format!(
        "umiak: v1\nname: order\nroles:\n  server: {{ports: {{rpc: 1}}, completes: false, command: [python3, -c, {}]}}\n  trainer: {{start_after: server, command: [python3, -c, {}]}}\n",
        text(server),
        text(trainer)
    );
    let flags = "--slurm nodes=2 --slurm time=1 --slurm-warning 50s --slurm-requeue";
    site.run_with(&document, flags).finish().expect_code(0);
    assert_eq!(site.log("trainer-0", 1), "connected\nconnected\n");
    site.assert_nothing_left();
}

/// Slurm signals replicas and agents one after the other.
fn cancelled_quick(site: &Site) {
    let command = "trap 'exit 1' TERM; echo up on $SLURMD_NODENAME; while :; do sleep 0.05; done";
    let document = format!(
        "umiak: v1\nname: quick\nroles: {{trainer: {{replicas: 2, command: {}}}}}\n",
        serde_json::to_string(command).expect("a string")
    );
    let running = site.run(&document).start();
    running.wait_until("both run", || are_up(site, 2));
    let slurm = site.slurm().borrow();
    slurm.ask("scancel", &[&slurm.first_job().to_string()]);
    running.finish().expect_code(3).expect_err("stopped by `scancel`");
    site.umiak("explain").finish().expect_code(0).expect_out("it was stopped: by `scancel`");
    let show = site.umiak("show").finish();
    show.expect_out(&format!("Slurm job {}", slurm.first_job()));
    site.assert_nothing_left();
}

/// A job that trains goes on without a supervisor; one whose replica has failed gives its nodes back.
fn forsaken(site: &Site) {
    let document = "umiak: v1\nname: alone\nroles: {trainer: {replicas: 2, command: 'echo up on $SLURMD_NODENAME; until [ -e fail ]; do sleep 0.05; done; [ $UMIAK_INDEX = 1 ] && exit 7; exec sleep 1000'}}\n";
    let running = site.run(document).env("UMIAK_TEST_FORSAKEN", "8000").start();
    running.wait_until("both run", || are_up(site, 2));
    running.signal(SIGKILL);
    running.finish_unchecked();
    let slurm = site.slurm().borrow();
    let job = slurm.first_job().to_string();
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert_eq!(slurm.state(&job), "RUNNING", "it trains");
    site.sandbox.write("fail", "");
    slurm.wait("the nodes are free", || slurm.ask("squeue", &["-h"]).is_empty());
    wait_until_free(&site.sandbox);
    site.umiak("resume").finish().expect_code(7).expect_err("exited with 7");
    site.assert_nothing_left();
}

fn cancelled(site: &Site) {
    let running = site.run(&waits(2, "")).start();
    running.wait_until("both run", || are_up(site, 2));
    let slurm = site.slurm().borrow();
    slurm.ask("scancel", &[&slurm.first_job().to_string()]);
    running.finish().expect_code(3).expect_err("stopped by `scancel`");
    site.assert_nothing_left();
}

fn lost_node(site: &Site) {
    let running = site.run(&waits(2, "policy: {restarts: {max: 0, max_platform: 0}}")).start();
    running.wait_until("both run", || are_up(site, 2));
    site.slurm().borrow_mut().kill_node(1);
    let outcome = running.finish();
    outcome.expect_code(123).expect_err("was lost with its node `n2`");
    site.slurm().borrow_mut().start_node(1);
    site.assert_nothing_left();
}

/// Replicas that say where they are, and go on until there is the file `go`. When Slurm ends them, they take a moment, in
/// which the agent reads its own signal.
const UNTIL_GO: &str = "umiak: v1\nname: until\npolicy: {restarts: {max: 0, max_platform: 0}}\nroles: {trainer: {replicas: 2, command: 'trap \"sleep 0.3; exit 0\" TERM; echo up on $SLURMD_NODENAME; until [ -e go ]; do sleep 0.05; done; echo done'}}\n";

/// What the agents of the first unit have told.
fn told(site: &Site, word: &str) -> usize {
    let read = |agent| site.sandbox.read_if_there(&format!("state/runs/run-000001/units/0.1/agent-{agent}.jsonl"));
    let texts = (0..3).filter_map(read);
    texts.map(|text| String::from_utf8_lossy(&text).matches(word).count()).sum()
}

fn has_fact(site: &Site, text: &str) -> bool {
    let journal = site.sandbox.read_if_there("state/runs/run-000001/journal.jsonl").unwrap_or_default();
    String::from_utf8_lossy(&journal).contains(text)
}

/// Processes on a node: those of jobs, and Slurm's own.
fn processes_of(site: &Site, node: &str) -> Vec<u32> {
    let marks = [format!("SLURM_CONF={}", site.slurm().borrow().conf().display()), format!("SLURMD_NODENAME={node}")];
    let entries = std::fs::read_dir("/proc").expect("the kernel's list of processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_there = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |mark: &String| environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
        marks.iter().all(has)
    };
    pids.filter(is_there).collect()
}

/// Neither the node nor anything on it answers any more.
fn lost_node_requeue(site: &Site) {
    const SIGSTOP: i32 = 19;
    let mut running = site.run_with(UNTIL_GO, "--slurm nodes=2 --slurm-requeue").start();
    running.wait_until("both run", || are_up(site, 2));
    site.slurm().borrow_mut().kill_node(1);
    let frozen = processes_of(site, "n2");
    assert!(!frozen.is_empty(), "no process on n2");
    for pid in &frozen {
        umiak_sys::descend::signal(*pid, SIGSTOP);
    }
    // Slurm says the same by itself when the node has not answered for a while, as in `lost_node`.
    site.slurm().borrow().ask("scontrol", &["update", "nodename=n2", "state=down", "reason=lost"]);
    // A shell may say `Terminated` when it ends.
    let nodes = |replica| {
        let log = site.log(replica, 1);
        log.lines().filter_map(|line| line.strip_prefix("up on ").map(str::to_owned)).collect::<Vec<_>>()
    };
    site.slurm().borrow().wait("they run again", || {
        nodes("trainer-0").len() == 2 && nodes("trainer-1").len() == 2 || !running.is_running()
    });
    if !running.is_running() {
        for pid in &frozen {
            umiak_sys::descend::signal(*pid, SIGKILL);
        }
        panic!("it did not run again: {}", running.finish_unchecked().err());
    }
    assert_eq!((nodes("trainer-0").join(" "), nodes("trainer-1").join(" ")), ("n1 n1".into(), "n2 n3".into()));
    for pid in &frozen {
        umiak_sys::descend::signal(*pid, SIGKILL);
    }
    site.sandbox.write("go", "");
    running.finish().expect_code(0);
    assert_eq!(site.sandbox.list("state/runs/run-000001/units"), ["0.1"]);
    site.slurm().borrow().ask("scontrol", &["update", "nodename=n2", "state=resume"]);
    site.slurm().borrow_mut().start_node(1);
    site.assert_nothing_left();
}

/// Adds a partition whose jobs take the nodes from those of the other.
fn add_urgent_partition(site: &Site) {
    let mut slurm = site.slurm().borrow_mut();
    let conf = slurm.conf();
    let text = std::fs::read_to_string(&conf).expect("the configuration");
    let text = text.replace(" MaxTime=INFINITE", " PriorityTier=1 MaxTime=INFINITE");
    let more = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nPartitionName=urgent Nodes=n1,n2,n3 PriorityTier=9 State=UP\n";
    std::fs::write(conf, text + more).expect("the cluster is ours");
    slurm.restart_controller();
    slurm.wait_until_idle();
}

/// A job that needs all nodes at once, until it is cancelled.
fn urgent_job(site: &Site) -> String {
    let slurm = site.slurm().borrow();
    let words = ["--partition=urgent", "--nodes=3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1000"];
    let job = slurm.submit(&Sandbox::new(), &words);
    slurm.wait("the urgent job runs", || slurm.state(&job) == "RUNNING");
    job
}

fn preempted(site: &Site) {
    add_urgent_partition(site);
    let running = site.run(&waits(2, "policy: {restarts: {max: 0, max_platform: 0}}")).start();
    running.wait_until("both run", || are_up(site, 2));
    let urgent = urgent_job(site);
    running.finish().expect_code(123).expect_err("was pre-empted: ");
    assert!(site.log("trainer-0", 1).ends_with("saved\n"), "{}", site.log("trainer-0", 1));
    site.slurm().borrow().ask("scancel", &[&urgent]);
    site.assert_nothing_left();
}

fn preempted_requeue(site: &Site) {
    add_urgent_partition(site);
    let running = site.run_with(UNTIL_GO, "--slurm nodes=2 --slurm-requeue").start();
    running.wait_until("both run", || are_up(site, 2));
    let urgent = urgent_job(site);
    site.slurm().borrow().ask("scancel", &[&urgent]);
    let has_two = |replica| site.log(replica, 1).matches("up on").count() == 2;
    running.wait_until("they run again", || ["trainer-0", "trainer-1"].into_iter().all(has_two));
    site.sandbox.write("go", "");
    running.finish().expect_code(0);
    for replica in ["trainer-0", "trainer-1"] {
        assert!(site.log(replica, 1).ends_with("\ndone\n"), "{}", site.log(replica, 1));
        assert_eq!(site.log(replica, 2), "", "one attempt");
    }
    site.assert_nothing_left();
}

fn controller(site: &Site) {
    let running = site.run(UNTIL_GO).start();
    running.wait_until("both run", || are_up(site, 2));
    site.slurm().borrow_mut().restart_controller();
    site.sandbox.write("go", "");
    let outcome = running.finish();
    outcome.expect_code(0);
    assert_eq!(site.log("trainer-0", 1), "up on n1\ndone\n");
    site.assert_nothing_left();
}

fn adopted(site: &Site) {
    let running = site.run(UNTIL_GO).start();
    running.wait_until("both run", || are_up(site, 2));
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&site.sandbox);
    let resumed = site.umiak("resume").start();
    resumed.wait_until("a second supervisor", || has_fact(site, "\"resumed\""));
    assert_eq!(told(site, "\"ended\""), 0, "they still run");
    site.sandbox.write("go", "");
    resumed.finish().expect_code(0).expect_err("adopted 2 replicas");
    for (replica, node) in [("trainer-0", "n1"), ("trainer-1", "n2")] {
        assert_eq!(site.log(replica, 1), format!("up on {node}\ndone\n"));
        assert_eq!(site.log(replica, 2), "", "one attempt");
    }
    site.assert_nothing_left();
}

fn resumed(site: &Site) {
    let running = site.run(UNTIL_GO).start();
    running.wait_until("both run", || are_up(site, 2));
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&site.sandbox);
    site.sandbox.write("go", "");
    site.slurm().borrow().wait("both ends are told", || told(site, "\"ended\"") == 2);
    site.umiak("resume").finish().expect_code(0).expect_err("adopted 2 replicas");
    assert_eq!(site.log("trainer-0", 1), "up on n1\ndone\n");
    assert_eq!(site.log("trainer-0", 2), "", "one attempt");
    site.assert_nothing_left();
}

fn orphan(site: &Site) {
    let running = site.run(&waits(2, "")).start();
    running.wait_until("both run", || are_up(site, 2));
    running.signal(9);
    running.finish_unchecked();
    site.umiak("stop 1").finish().expect_code(0);
    assert!(site.log("trainer-0", 1).ends_with("saved\n"));
    site.assert_nothing_left();
}

fn refused(site: &Site) {
    let document = "umiak: v1\nname: refused\nroles: {trainer: {command: ['true']}}\n";
    let outcome = site.run_with(document, "--slurm partition=nowhere").finish();
    outcome.expect_code(125).expect_err("submit the job").expect_err("nowhere");
    site.assert_nothing_left();
}

fn hopeless(site: &Site) {
    let document = "umiak: v1\nname: hopeless\nroles: {trainer: {replicas: 40, command: ['true']}}\n";
    let outcome = site.run_with(document, "--slurm nodes=40").finish();
    outcome.expect_code(125).expect_err("could not be started").expect_err("(Partition");
    site.assert_nothing_left();
}

fn waiting(site: &Site) {
    let slurm = site.slurm().borrow();
    let elsewhere = Sandbox::new();
    let blocker = slurm.submit(&elsewhere, &["--nodes=3", "--exclusive", "--wrap", "sleep 1000"]);
    slurm.wait("the nodes are taken", || slurm.state(&blocker) == "RUNNING");
    let running = site.run(&waits(2, "")).start();
    let journal = || {
        String::from_utf8_lossy(&site.sandbox.read_if_there("state/runs/run-000001/journal.jsonl").unwrap_or_default())
            .into_owned()
    };
    running.wait_until("a reason", || journal().contains("\"pending\""));
    running.signal(2);
    let outcome = running.finish();
    outcome.expect_code(130).expect_err("waiting");
    slurm.ask("scancel", &[&blocker]);
    site.assert_nothing_left();
}

fn impatient(site: &Site) {
    let document = "umiak: v1\nname: deaf\nroles: {trainer: {replicas: 2, command: 'trap \"\" INT TERM; echo up on; while :; do sleep 0.05; done'}}\n";
    let running = site.run(document).start();
    running.wait_until("both run", || are_up(site, 2));
    running.signal(2);
    running.wait_until("the first is recorded", || has_fact(site, "\"stopping\""));
    running.signal(2);
    running.finish().expect_code(130);
    site.assert_nothing_left();
}

fn step(site: &Site) {
    let document = "umiak: v1\nname: steps\nsteps:\n  prepare: {command: 'echo 7 > data'}\n  train:\n    after: [prepare]\n    engine: slurm\n    roles: {trainer: {replicas: 2, command: 'echo $(cat data) on $SLURMD_NODENAME'}}\n  evaluate: {after: [train], command: 'echo evaluated'}\n";
    site.sandbox.write("job.yaml", document);
    let outcome = site.umiak("run job.yaml").finish();
    outcome.expect_code(0);
    let log = |path: &str| site.sandbox.read(&format!("state/runs/run-000001/tasks/{path}/attempt-1/log"));
    assert_eq!(log("train/trainer-0"), "7 on n1\n");
    assert_eq!(log("evaluate/main-0"), "evaluated\n");
    site.assert_nothing_left();
}

fn script(site: &Site) {
    let document = "umiak: v1\nname: shown\nroles: {trainer: {replicas: 2, command: ['true']}}\n";
    site.sandbox.write("job.yaml", document);
    let shown = site.umiak("plan --engine slurm --slurm partition=main job.yaml").finish();
    shown.expect_code(0).expect_out("#SBATCH --partition=main").expect_out("#SBATCH --ntasks=2").expect_out("srun");
    site.run_with(document, "--slurm partition=main").finish().expect_code(0);
    let kept = site.sandbox.read("state/runs/run-000001/units/0.1/script");
    assert!(kept.contains("#SBATCH --partition=main"), "{kept}");
    site.assert_nothing_left();
}
