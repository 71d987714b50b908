//! Steps with `framework: mpi`: a launcher, and workers on which it starts processes with a remote shell.

use umiak_testkit::components::Component::OpenMpi;
use umiak_testkit::suite::Suite;

use super::Place;
use crate::frameworks::example;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pipelines::mpi::ranks_run_on_the_workers", &[OpenMpi], ranks)
        .test("pipelines::mpi::nothing_is_left_of_a_killed_launcher", &[OpenMpi], killed)
        .test("pipelines::mpi::commands_run_as_on_the_worker", &[], commands)
        .test("pipelines::mpi::a_worker_that_fails_fails_the_step", &[], failed_worker);
}

const SIGKILL: i32 = 9;

fn document(launcher: &str, worker: &str) -> String {
    format!(
        "name: p\nentry_points:\n  s:\n    env: {{A: 1, OMPI_ALLOW_RUN_AS_ROOT: 1, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: 1}}\n    command: '{launcher}'\n    distributed_job:\n      framework: mpi\n      members:\n      - {{role: master, replicas: 1}}\n      - {{role: worker, replicas: 2, flavour: {{cpu: 2, mem: 1Gi}}, {worker}}}\n"
    )
}

/// The example: ranks of both workers reach each other.
fn ranks() {
    let place = Place::default();
    let text = std::fs::read_to_string(example("pipelines/mpi.yaml")).expect("the example is there");
    let script = format!("script={}", example("mpi_sum.py"));
    place.run(&text, &["-p", &script]).finish().expect_code(0);
    let log = place.log_of("train", "master-0");
    // `mpirun` does not keep the lines of several ranks apart.
    for rank in 0..4 {
        let line = format!("rank {rank} on worker {}: the sum is 6", rank / 2);
        assert_eq!(log.matches(&line).count(), 1, "{line}\n{log}");
    }
}

/// The sandbox checks that no process is left.
fn killed() {
    let place = Place::default();
    let launcher = "echo $$ > launcher; exec mpirun -np 4 sh -c \"touch here.\\$OMPI_COMM_WORLD_RANK; exec sleep 600\"";
    let running = place.run(&document(launcher, "command: ''"), &[]).start();
    for rank in 0..4 {
        running.wait_for_file(&format!("here.{rank}"));
    }
    let pid: u32 = place.sandbox.read("launcher").trim().parse().expect("a process id");
    umiak_sys::descend::signal(pid, SIGKILL);
    running.finish().expect_code(1);
    place.expect_ends("failed, s failed");
    assert_eq!(place.sandbox.list("state/runs/run-000001").iter().filter(|name| *name == "scratch").count(), 0);
}

/// What `mpirun` would do, by hand.
fn commands() {
    let place = Place::default();
    let launcher = "set -- $(cut -d\" \" -f1 $OMPI_MCA_orte_default_hostfile); \
         $OMPI_MCA_plm_rsh_agent -x $2 echo \"\\$UMIAK_ROLE \\$UMIAK_INDEX \\$A \\$B\" \"in \\$(pwd)\"; \
         $HYDRA_LAUNCHER_EXEC me@$1 \"exit 7\"; echo code $?; \
         $OMPI_MCA_plm_rsh_agent 10.0.0.1 true; echo code $?; cat $HYDRA_HOST_FILE";
    place.run(&document(launcher, "env: {B: 2}, command: echo own"), &[]).finish().expect_code(0);
    place.expect_ends("succeeded, s succeeded");
    let log = place.log_of("s", "master-0");
    let here = place.sandbox.path().canonicalize().expect("the sandbox is there");
    assert!(log.contains(&format!("worker 1 1 2 in {}\n", here.display())), "{log}");
    assert!(log.contains("code 7\n"), "{log}");
    assert!(log.contains("no worker of this job has the address `10.0.0.1`") && log.contains("code 255\n"), "{log}");
    assert_eq!(log.lines().filter(|line| line.ends_with(":2")).count(), 2, "{log}");
    assert_eq!(place.log_of("s", "worker-0"), "own\n");
}

fn failed_worker() {
    let place = Place::default();
    let outcome = place.run(&document("exec sleep 600", "command: exit 5"), &[]).finish();
    outcome.expect_code(1).expect_err("step s, worker-").expect_err("exited with 5");
    place.expect_ends("failed, s failed");
}
