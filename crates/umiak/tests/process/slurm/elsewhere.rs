//! umiak where no step of one task per node started it.

use umiak_core::cluster::mpi::LauncherKind;
use umiak_testkit::components::Component::{self, Mpich, OpenMpi, OpenMpi5, Slurm as Needed};
use umiak_testkit::sandbox::{Sandbox, binary};
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

use super::{script, srun};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("slurm::elsewhere::a_batch_script_uses_its_own_node", &[Needed], batch)
        .test("slurm::elsewhere::several_tasks_on_a_node_are_refused", &[Needed], crowded)
        .test("slurm::elsewhere::each_task_may_be_a_job_of_its_own", &[Needed], apart)
        .test("slurm::elsewhere::mpirun_in_an_allocation", &[Needed, OpenMpi], || mpirun(OpenMpi))
        .test("slurm::elsewhere::open_mpi_5_in_an_allocation", &[Needed, OpenMpi5], || mpirun(OpenMpi5))
        .test("slurm::elsewhere::mpich_in_an_allocation", &[Needed, Mpich], || mpirun(Mpich));
}

fn batch() {
    let (slurm, sandbox) = (Slurm::start(3), Sandbox::new());
    let umiak = binary().display();
    script(&sandbox, "job.sh", &format!("{umiak} launch --nproc_per_node 2 true; {umiak} launch --nnodes 1 true"));
    let job = slurm.submit(&sandbox, &["-N3", "-o", "out", "./job.sh"]);
    assert_eq!(slurm.wait_for_end(&job), "COMPLETED");
    let text = sandbox.read("out");
    let notice = format!(
        "notice[L0038]: Slurm job {job} has 3 nodes, and only this one is used\nhint: use all of them with \
         `srun --ntasks-per-node=1 umiak launch …`; `--nnodes 1` means this node alone\n"
    );
    assert_eq!(text.matches(&notice).count(), 1, "{text}");
    assert!(text.contains("planned 2 ranks on 1 node, "), "{text}");
    sandbox.assert_nothing_left();
}

fn crowded() {
    let (slurm, sandbox) = (Slurm::start(2), Sandbox::new());
    let outcome = srun(&slurm, &sandbox, "-N2 -n4 --ntasks-per-node=2", "launch touch started").finish();
    outcome.expect_code(2).expect_err("error[L0036]: Slurm started 2 tasks on one node");
    assert!(!sandbox.path().join("started").exists());
}

fn apart() {
    let (slurm, sandbox) = (Slurm::start(1), Sandbox::new());
    script(&sandbox, "show.sh", "touch job.$SLURM_PROCID.$PADDLE_TRAINERS_NUM");
    srun(&slurm, &sandbox, "-n2", "launch --nnodes 1 --nproc_per_node 1 ./show.sh").finish().expect_code(0);
    for task in 0..2 {
        assert!(sandbox.path().join(format!("job.{task}.1")).exists());
    }
}

fn mpirun(component: Component) {
    let (slurm, sandbox) = (Slurm::start(3), Sandbox::new());
    let rank = "${OMPI_COMM_WORLD_RANK-$PMI_RANK}";
    script(&sandbox, "show.sh", &format!("touch rank.$PADDLE_TRAINER_ID.$PADDLE_TRAINERS_NUM.{rank}"));
    let launcher = component.launcher().expect("the suite has found it");
    // Root may not run Open MPI without its option.
    let options = match launcher.launcher.kind {
        LauncherKind::OpenMpi4 | LauncherKind::OpenMpi5 => "--allow-run-as-root --map-by ppr:1:node",
        LauncherKind::Hydra => "-ppn 1 -n 3",
    };
    let (program, umiak) = (launcher.program.display(), binary().display());
    let line = format!("{program} {options} {umiak} launch --nproc_per_node 2 ./show.sh");
    script(&sandbox, "job.sh", &line);
    let job = slurm.submit(&sandbox, &["-N3", "-o", "out", "./job.sh"]);
    let state = slurm.wait_for_end(&job);
    let text = sandbox.read("out");
    assert_eq!(state, "COMPLETED", "{text}");
    assert!(text.contains(&format!("planned 6 ranks on 3 nodes of mpirun in Slurm job {job}, ")), "{text}");
    for rank in 0..6 {
        let name = format!("rank.{rank}.6.{}", rank / 2);
        assert!(sandbox.path().join(&name).exists(), "{name}: {:?}", sandbox.list("."));
    }
}
