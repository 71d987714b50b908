//! What only Slurm does: limits, requeues, lost nodes, cancelled jobs.

use umiak_testkit::components::Component::Slurm as Needed;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use super::{Engine, Site};

pub(super) fn register(suite: &mut Suite) {
    let mut test = |name: &str, run: fn(&Site)| {
        suite.test(&format!("slurm: {name}"), &[Needed], move || run(&Site::new(Engine::Slurm)));
    };
    test("replicas are spread over the nodes", nodes);
    test("roles with other resources are a heterogeneous job", heterogeneous);
    test("a task for each replica", direct);
    test("replicas stop before the time limit", limit);
    test("a requeued job goes on after its time limit", requeue);
    test("`scancel` stops the run", cancelled);
    test("a lost node is named", lost_node);
    test("a restarted controller is not noticed", controller);
    test("ends that nobody saw are found by resume", resumed);
    test("`umiak stop` ends the job of a dead supervisor", orphan);
    test("a job that Slurm refuses is an error of Slurm", refused);
    test("a job that can never start is an error", hopeless);
    test("the reason of a wait is shown, and a stop ends it", waiting);
    test("Ctrl-C twice kills, and leaves no job", impatient);
    test("a step of a pipeline", step);
    test("the script is shown by `plan`, and kept", script);
}

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

fn cancelled(site: &Site) {
    let running = site.run(&waits(2, "")).start();
    running.wait_until("both run", || are_up(site, 2));
    let slurm = site.slurm().borrow();
    slurm.ask("scancel", &[&slurm.first_job().to_string()]);
    running.finish().expect_code(3).expect_err("stopped by `scancel`");
    site.assert_nothing_left();
}

fn lost_node(site: &Site) {
    let (sandbox, slurm) = (&site.sandbox, site.slurm());
    let document = waits(2, "policy: {restarts: {max: 0, max_platform: 0}}");
    sandbox.write("job.yaml", &document);
    let running = sandbox
        .umiak("run job.yaml --engine slurm --slurm nodes=2".split_whitespace())
        .env("SLURM_CONF", slurm.borrow().conf())
        .start();
    let log = |replica: &str| sandbox.read_if_there(&format!("state/runs/run-000001/tasks/{replica}/attempt-1/log"));
    running.wait_until("both run", || {
        ["trainer-0", "trainer-1"].iter().all(|name| log(name).is_some_and(|log| log.starts_with(b"up")))
    });
    slurm.borrow_mut().kill_node(1);
    let outcome = running.finish();
    outcome.expect_code(123).expect_err("was lost with its node `n2`");
    slurm.borrow_mut().start_node(1);
    sandbox.assert_nothing_left();
}

fn controller(site: &Site) {
    let (sandbox, slurm) = (&site.sandbox, site.slurm());
    let document =
        "umiak: v1\nname: controller\nroles: {trainer: {replicas: 2, command: 'echo up; sleep 6; echo done'}}\n";
    sandbox.write("job.yaml", document);
    let running = sandbox
        .umiak("run job.yaml --engine slurm --slurm nodes=2".split_whitespace())
        .env("SLURM_CONF", slurm.borrow().conf())
        .start();
    let log = || sandbox.read_if_there("state/runs/run-000001/tasks/trainer-0/attempt-1/log").unwrap_or_default();
    running.wait_until("it runs", || log() == b"up\n");
    slurm.borrow_mut().restart_controller();
    running.finish().expect_code(0);
    assert_eq!(log(), b"up\ndone\n");
    sandbox.assert_nothing_left();
}

fn resumed(site: &Site) {
    let document =
        "umiak: v1\nname: resumed\nroles: {trainer: {replicas: 2, command: 'echo up; sleep 2; echo done'}}\n";
    let running = site.run(document).start();
    running.wait_until("both run", || site.log("trainer-0", 1) == "up\n" && site.log("trainer-1", 1) == "up\n");
    running.signal(9);
    running.finish_unchecked();
    std::thread::sleep(std::time::Duration::from_secs(3));
    site.umiak("resume").finish().expect_code(0).expect_err("adopted 2 replicas");
    assert_eq!(site.log("trainer-0", 1), "up\ndone\n");
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
    std::thread::sleep(std::time::Duration::from_millis(300));
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
