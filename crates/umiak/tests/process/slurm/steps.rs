//! umiak as the task of each node of a step.

use std::time::{Duration, SystemTime};

use umiak_testkit::components::Component::{Slurm as Needed, Torch};
use umiak_testkit::sandbox::{Sandbox, binary};
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

use super::{script, srun};
use crate::frameworks::virtual_environment;

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("slurm::steps::ranks_are_numbered_over_all_nodes", &[Needed], ranks)
        .test("slurm::steps::names_that_do_not_resolve_are_shown", &[Needed], unresolved)
        .test("slurm::steps::a_failure_ends_all_nodes_with_its_code", &[Needed], failure)
        .test("slurm::steps::torch_trains_on_two_nodes", &[Needed, Torch], torch)
        .test("slurm::steps::two_steps_at_once_do_not_meet", &[Needed], two_steps)
        .test("slurm::steps::heterogeneous_groups_are_one_job", &[Needed], groups)
        .test("slurm::steps::a_cancelled_job_stops_its_ranks", &[Needed], cancelled)
        .test("slurm::steps::a_cancelled_step_leaves_no_process", &[Needed], cancelled_step)
        .test("slurm::steps::the_signal_before_the_time_limit_reaches_ranks", &[Needed], time_limit)
        .test("slurm::steps::a_killed_task_ends_the_others", &[Needed], killed);
}

/// Prints what a rank knows.
const SHOW: &str = r#"echo "rank $PADDLE_TRAINER_ID/$PADDLE_TRAINERS_NUM local $PADDLE_LOCAL_RANK/$PADDLE_LOCAL_SIZE on $SLURMD_NODENAME nodes $PADDLE_NNODES id $TORCHELASTIC_RUN_ID" > rank.$PADDLE_TRAINER_ID"#;

/// Says that it runs, and runs until it is told to end. Slurm signals all processes of a job, so it starts none then; and
/// it needs some time, in which umiak reads its own signal.
const WAIT: &str = "trap ': > term.$RANK; i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; kill $!; exit 0' TERM
: > up.$RANK; while :; do sleep 1000 & wait; done";

fn ranks() {
    let (slurm, sandbox) = (Slurm::start(3), Sandbox::new());
    script(&sandbox, "show.sh", SHOW);
    let words = "launch --nproc_per_node 2 ./show.sh";
    let outcome = srun(&slurm, &sandbox, "-N3 --ntasks-per-node=1", words).finish();
    outcome.expect_code(0);
    for rank in 0..6 {
        let (local, node) = (rank % 2, 1 + rank / 2);
        let expected = format!("rank {rank}/6 local {local}/2 on n{node} nodes 3 id slurm-{}.0\n", slurm.first_job());
        assert_eq!(sandbox.read(&format!("rank.{rank}")), expected);
    }
    for (task, ranks) in [(0, "0-1"), (1, "2-3"), (2, "4-5")] {
        let line = format!(
            " planned 6 ranks on 3 nodes of Slurm step {}.0, here ranks {ranks}, 127.0.0.1:",
            slurm.first_job()
        );
        let is_it = |text: &str| text.starts_with(&format!("{task}: ")) && text.contains(&line);
        assert!(outcome.err().lines().any(is_it), "{line}: {}", outcome.err());
    }
    // Only the first node records the run.
    assert_eq!(sandbox.list("state/runs"), ["run-000001"]);
}

/// The first node needs no name to coordinate; the others say what they look for.
fn unresolved() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    let inner = format!(
        "SLURM_STEP_NODELIST=nowhere[1-2] SLURMD_NODENAME= {} launch --rdzv-timeout 3s true",
        binary().display()
    );
    let words = ["-N2", "--ntasks-per-node=1", "--label", "sh", "-c", &inner];
    let outcome = slurm.run(&sandbox, "srun", words).finish();
    outcome.expect_code(123).expect_err("nowhere1:7");
}

fn failure() {
    let (slurm, sandbox) = (Slurm::start(3), Sandbox::new());
    script(
        &sandbox,
        "fail.sh",
        "touch up.$RANK; [ $RANK != 3 ] && exec sleep 1000; until [ -e up.0 ] && [ -e up.5 ]; do sleep 0.01; done; echo broken >&2; exit 7",
    );
    let words = "launch --nproc_per_node 2 ./fail.sh";
    let outcome = srun(&slurm, &sandbox, "-N3 --ntasks-per-node=1", words).finish();
    outcome.expect_code(7);
    let text = outcome.err();
    for task in 0..3 {
        let causes: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{task}: ✗ "))).collect();
        assert!(
            matches!(causes.as_slice(), [one] if one.contains("rank 3 on ") && one.contains(" exited with 7 ")),
            "{text}"
        );
    }
    slurm.wait_until_idle();
}

fn torch() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    let script = format!("{}/tests/process/torchrun/scripts/collectives.py", env!("CARGO_MANIFEST_DIR"));
    let words = format!("torchrun --nproc-per-node 2 {script}");
    let run = srun(&slurm, &sandbox, "-N2 --ntasks-per-node=1", &words);
    let run = run.env("VIRTUAL_ENV", virtual_environment()).env("GLOO_SOCKET_IFNAME", "lo");
    let outcome = run.start().finish_unchecked();
    outcome.expect_code(0);
    for rank in 0..4 {
        outcome.expect_out(&format!("{}: rank {rank}/4: torch ", rank / 2)).expect_out(", sum 24, hosted True\n");
    }
}

fn two_steps() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    // Each rank waits for the ranks of the other step.
    script(
        &sandbox,
        "meet.sh",
        &format!(
            "{SHOW}; mkdir -p seen; touch seen/$SLURM_STEP_ID.$PADDLE_TRAINER_ID; until [ $(ls seen | wc -l) = 4 ]; do sleep 0.01; done; echo step $SLURM_STEP_ID rank $PADDLE_TRAINER_ID of $PADDLE_TRAINERS_NUM"
        ),
    );
    let umiak = binary().display();
    let step = |log: &str| format!("srun --overlap -N2 --ntasks-per-node=1 {umiak} launch --log_dir {log} ./meet.sh");
    script(&sandbox, "both.sh", &format!("{} & {}; code=$?; wait $! && exit $code", step("a"), step("b")));
    let outcome = slurm.run(&sandbox, "salloc", ["-N2", "./both.sh"]).finish();
    outcome.expect_code(0);
    for step in 0..2 {
        for rank in 0..2 {
            outcome.expect_out(&format!("step {step} rank {rank} of 2\n"));
        }
        outcome.expect_err(&format!("2 nodes of Slurm step {}.{step}", slurm.first_job()));
    }
}

fn groups() {
    let (slurm, sandbox) = (Slurm::start(3), Sandbox::new());
    script(&sandbox, "show.sh", SHOW);
    let line = format!("srun --het-group=0,1 {} launch --nproc_per_node 1 ./show.sh", binary().display());
    script(&sandbox, "job.sh", &line);
    let outcome = slurm.run(&sandbox, "salloc", ["-N1", "-n1", ":", "-N2", "-n2", "./job.sh"]).finish();
    outcome.expect_code(0).expect_err("planned 3 ranks on 3 nodes of Slurm step ");
    for rank in 0..3 {
        assert!(sandbox.read(&format!("rank.{rank}")).starts_with(&format!("rank {rank}/3 ")));
    }
}

fn up(slurm: &Slurm, sandbox: &Sandbox, ranks: u32) {
    slurm.wait("all ranks run", || (0..ranks).all(|rank| sandbox.path().join(format!("up.{rank}")).exists()));
}

fn cancelled() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    script(&sandbox, "wait.sh", WAIT);
    let running = srun(&slurm, &sandbox, "-N2 --ntasks-per-node=1", "launch --nproc_per_node 2 ./wait.sh").start();
    up(&slurm, &sandbox, 4);
    slurm.ask("scancel", &[&slurm.first_job().to_string()]);
    let outcome = running.finish();
    outcome.expect_err("stopped by SIGTERM");
    for rank in 0..4 {
        assert!(sandbox.path().join(format!("term.{rank}")).exists(), "rank {rank} was not told: {}", outcome.err());
    }
    slurm.wait_until_idle();
}

/// Slurm kills all processes of a cancelled step at once, the guardian too. Only the scratch directories are left, which
/// a launch on the host removes when they are a minute old.
fn cancelled_step() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    script(&sandbox, "wait.sh", ": > up.$RANK; exec sleep 1000");
    let running = srun(&slurm, &sandbox, "-N2 --ntasks-per-node=1", "launch --nproc_per_node 2 ./wait.sh").start();
    up(&slurm, &sandbox, 4);
    slurm.ask("scancel", &[&format!("{}.0", slurm.first_job())]);
    running.finish_unchecked().expect_code(137);
    slurm.wait("the nodes are empty", || sandbox.processes().is_empty());
    for name in sandbox.list("tmp") {
        let directory = std::fs::File::open(sandbox.path().join("tmp").join(name)).expect("a scratch directory");
        directory.set_modified(SystemTime::now() - Duration::from_secs(90)).expect("our own directory");
    }
    sandbox.umiak(["launch", "true"]).finish().expect_code(0);
}

/// At the limit itself Slurm sends SIGTERM in the same way, but a limit has at least a minute.
fn time_limit() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    script(&sandbox, "wait.sh", WAIT);
    let flags = "-N2 --ntasks-per-node=1 --time=1 --signal=TERM@58";
    let outcome = srun(&slurm, &sandbox, flags, "launch --nproc_per_node 1 ./wait.sh").finish();
    outcome.expect_code(143).expect_err("stopped by SIGTERM");
    for rank in 0..2 {
        assert!(sandbox.path().join(format!("term.{rank}")).exists(), "rank {rank} was not told: {}", outcome.err());
    }
}

/// The other node hears of it, and does not wait for Slurm.
fn killed() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    script(&sandbox, "wait.sh", WAIT);
    script(&sandbox, "task.sh", &format!("echo $$ > task.$SLURM_NODEID; exec {} launch ./wait.sh", binary().display()));
    let running = slurm.run(&sandbox, "srun", ["-N2", "--ntasks-per-node=1", "--label", "./task.sh"]).start();
    up(&slurm, &sandbox, 2);
    let pid = sandbox.read("task.1").trim().parse().expect("a pid");
    umiak_sys::descend::signal(pid, 9);
    let outcome = running.finish();
    assert!(outcome.err().contains("0: error[R0004]"), "{}", outcome.err());
}
