//! The job scripts of `docs/guide/slurm.md`, submitted as they are.

use umiak_testkit::components::Component::{OpenMpi, Python, Slurm as Needed};
use umiak_testkit::sandbox::{Sandbox, binary};
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    suite.test("slurm::guide::the_job_scripts_run", &[Needed, OpenMpi, Python], job_scripts);
}

const TRAIN: &str = "import os; open('rank.' + os.environ['RANK'] + '.' + os.environ['WORLD_SIZE'], 'w').close()";

fn job_scripts() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/slurm.md");
    let guide = std::fs::read_to_string(path).expect("the guide");
    let scripts: Vec<&str> = guide
        .split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|block| block.starts_with("#!"))
        .collect();
    assert_eq!(scripts.len(), 4, "the scripts of the guide");
    let slurm = Slurm::start(2);
    for text in scripts {
        let sandbox = Sandbox::new();
        sandbox.write("train.py", TRAIN);
        // Root may not run `mpirun` without more flags.
        sandbox.write("job.sh", text.replace("mpirun ", "mpirun --allow-run-as-root "));
        let path = format!(
            "{}:{}",
            binary().parent().expect("a directory").display(),
            std::env::var("PATH").expect("a path to programs")
        );
        let submitted = slurm.run(&sandbox, "sbatch", ["--parsable", "-o", "out", "job.sh"]).env("PATH", path);
        let job = submitted.start().finish_unchecked().expect_code(0).out().trim().to_owned();
        let state = slurm.wait_for_end(&job);
        assert_eq!(state, "COMPLETED", "{text}\n{}", sandbox.read("out"));
        for rank in 0..4 {
            let name = format!("rank.{rank}.4");
            assert!(sandbox.path().join(&name).exists(), "no {name}: {text}\n{}", sandbox.read("out"));
        }
    }
}
