//! The cluster of the tests itself: jobs survive its faults, and nothing survives the cluster.

use std::panic::{AssertUnwindSafe, catch_unwind};

use umiak_testkit::components::Component::Slurm as Needed;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("slurm::cluster::tasks_run_on_every_node", &[Needed], tasks)
        .test("slurm::cluster::a_job_survives_a_restart_of_the_controller", &[Needed], controller)
        .test("slurm::cluster::a_killed_node_comes_back", &[Needed], node)
        .test("slurm::cluster::nothing_is_left_after_a_panic", &[Needed], panics);
}

fn tasks() {
    let (slurm, sandbox) = (Slurm::start(3), Sandbox::new());
    let script = "getent hosts $SLURMD_NODENAME | cut -d' ' -f1; echo $SLURMD_NODENAME";
    let outcome = slurm.run(&sandbox, "srun", ["-N3", "--label", "sh", "-c", script]).finish();
    let mut lines: Vec<String> = outcome.expect_code(0).out().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["0: 127.0.0.1", "0: n1", "1: 127.0.0.1", "1: n2", "2: 127.0.0.1", "2: n3"]);
    slurm.wait_until_idle();
}

fn controller() {
    let (mut slurm, sandbox) = (Slurm::start(1), Sandbox::new());
    let wrapped = format!("--wrap=touch begun; until [ -e {}/go ]; do sleep 0.02; done", sandbox.path().display());
    let job = slurm.submit(&sandbox, &["-o", "/dev/null", &wrapped]);
    slurm.wait("the job begins", || sandbox.path().join("begun").exists());
    slurm.restart_controller();
    assert_eq!(slurm.state(&job), "RUNNING");
    sandbox.write("go", "");
    assert_eq!(slurm.wait_for_end(&job), "COMPLETED");
}

fn node() {
    let (mut slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    slurm.kill_node(1);
    slurm.start_node(1);
    slurm.wait_until_idle();
    slurm.run(&sandbox, "srun", ["-N2", "true"]).finish().expect_code(0);
}

/// The test fails while a job runs; its tasks do not survive the cluster.
fn panics() {
    let sandbox = Sandbox::new();
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let slurm = Slurm::start(2);
        let running = slurm.run(&sandbox, "srun", ["-N2", "sh", "-c", "touch at.$SLURM_NODEID; sleep 1000"]).start();
        running.wait_for_file("at.0");
        running.wait_for_file("at.1");
        std::panic::resume_unwind(Box::new(slurm.conf()));
    }));
    let conf = *failed.unwrap_err().downcast::<std::path::PathBuf>().expect("our own panic");
    assert!(!conf.exists(), "{} is left", conf.display());
    sandbox.assert_nothing_left();
}
