//! Submissions of PaddleRec to Slurm and to mpirun.

use umiak_testkit::components::Component::{OpenMpi, PaddlePs, Python, Slurm as Slurmd};
use umiak_testkit::components::ps_environment;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

use super::{LINE, has_trained, shell, write_example};
use crate::frameworks::{assert_only_caches, prepared};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("paddlerec::slurm_gets_the_keys_of_the_backend", &[Python, Slurmd], script)
        .test("paddlerec::mpirun_gets_the_hosts_of_the_backend", &[Python, OpenMpi], hosts)
        .test("paddlerec::modes_on_a_cluster_and_here", &[Python, OpenMpi], modes)
        .test("paddlerec::the_example_trains_on_slurm", &[PaddlePs, Slurmd], || trains("slurm"))
        .test("paddlerec::the_example_trains_with_mpirun", &[PaddlePs, OpenMpi], || trains("mpi"));
}

fn script() {
    let shell = shell("Slurm", "");
    let keys = "    partition: gpu\n    account: ads\n    time: '2:00:00'\n    nodes: 2\n";
    let backend = shell.sandbox.read("backend.yaml");
    shell.sandbox.write("backend.yaml", backend + keys);
    for line in ["umiak plan config.yaml", &format!("{LINE} --dry-run")] {
        let plan = shell.line(line).finish();
        plan.expect_code(0);
        for option in ["partition=gpu", "account=ads", "time=2:00:00", "nodes=2", "job-name=k8s-ctr-dnn", "ntasks=4"] {
            plan.expect_out(&format!("#SBATCH --{option}\n"));
        }
    }
    // The command line wins, and `umiak.toml` has what neither says.
    shell.sandbox.write("umiak.toml", "[engine.slurm]\npartition = \"cpu\"\nqos = \"low\"\n");
    let plan = shell.line("umiak plan config.yaml --slurm account=search").finish();
    plan.expect_out("--partition=gpu\n").expect_out("--qos=low\n").expect_out("--account=search\n");
    let plan = shell.line("umiak plan config.yaml --engine local").finish();
    plan.expect_code(0).expect_out("engine local");
}

fn hosts() {
    let shell = shell("MPI", "print('trained with', os.environ['OMPI_COMM_WORLD_SIZE'])");
    let backend = shell.sandbox.read("backend.yaml");
    shell.sandbox.write("backend.yaml", backend + "    hosts: ['localhost:4']\n");
    let outcome = shell.line("umiak lint backend.yaml").finish();
    outcome.expect_code(0).expect_out("backend.yaml: ok, 2 roles, 4 replicas\n");
    shell.line("umiak plan config.yaml").finish().expect_code(0).expect_out("/mpirun ").expect_out(" --hostfile ");
    let outcome = shell.line(LINE).finish();
    outcome.expect_code(0).expect_out("trainer-1 | trained with 4\n").expect_err("engine mpi,");
    assert_eq!(shell.sandbox.read("state/runs/run-000001/units/0.1/hosts"), "localhost slots=4\n");
}

/// Runners that are not on the cluster stay here.
fn modes() {
    let shell = shell("mpi", "");
    let code =
        "import os\nopen('order', 'a').write('%s %s\\n' % (os.environ['mode'], 'OMPI_COMM_WORLD_SIZE' in os.environ))";
    shell.sandbox.write("model.py", code);
    shell.sandbox.write(
        "config.yaml",
        "workspace: model.py\nmode: [one, two]\nrunner:\n- {name: one, class: cluster_train}\n- {name: two, class: infer}\nphase: [{name: p, thread_num: 1}]\n",
    );
    shell.sandbox.write("backend.yaml", "backend: mpi\nsubmit: {server_num: 1, trainer_num: 1}\n");
    shell.line("umiak submit -m config.yaml -b backend.yaml").finish().expect_code(0);
    let order = shell.sandbox.read("order");
    let lines: Vec<&str> = order.lines().collect();
    assert_eq!((lines.first(), lines.last()), (Some(&"one True"), Some(&"two False")), "{order}");
}

/// Two servers and two trainers with the real Paddle, under Slurm on two nodes.
fn trains(backend: &str) {
    let sandbox = Sandbox::new();
    write_example(&sandbox, &format!("backend: \"{backend}\""));
    let slurm = (backend == "slurm").then(|| Slurm::start(2));
    if slurm.is_some() {
        let text = sandbox.read("backend.yaml");
        sandbox.write("backend.yaml", text + "    nodes: 2\n");
    }
    let environment = ps_environment().expect("the suite has checked that it is here");
    let words = ["submit", "-m", "config.yaml", "-b", "backend.yaml"];
    let run = prepared(&sandbox, &environment, &words);
    let outcome = match &slurm {
        Some(slurm) => run.env("SLURM_CONF", slurm.conf()).finish(),
        None => run.finish(),
    };
    assert_only_caches(&sandbox);
    has_trained(&outcome, backend);
    if let Some(slurm) = &slurm {
        slurm.wait_until_idle();
    }
    sandbox.assert_nothing_left();
}
