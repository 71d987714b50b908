//! Launchers inside replicas: two replicas with a real launcher each are two nodes of one job on this machine, because
//! each has its own address. Also replicas that are ranks themselves, by the contracts.

use umiak_testkit::components::Component::{Paddle, Torch};
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

use crate::frameworks::{example, has_learned, support, virtual_environment, watched};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run::nested::paddles_launchers_form_one_job", &[Paddle], || {
            let outcome = run("nested-paddle", &[("script", &example("paddle_train.py"))]);
            has_learned(&outcome, 4);
        })
        .test("run::nested::a_rank_below_paddles_launcher_is_named", &[Paddle], || {
            let outcome =
                run("nested-paddle", &[("script", &support("paddle_fails.py")), ("arguments", "3 patiently")]);
            // The launcher stops its first rank with SIGTERM and exits with that rank's code: -15 as a byte.
            blames_the_second(&outcome, 241);
        })
        .test("run::nested::torchruns_form_one_job", &[Torch], || {
            let outcome = watched(|| run("nested-torchrun", &[("script", &example("torch_ddp.py"))]));
            // Torchrun copies the output of all ranks of a node.
            let text = outcome.out();
            let of_rank_0: String = text.lines().filter(|line| line.starts_with("rank 0/")).collect();
            assert!(of_rank_0.contains("all_reduce of 1..4 gives 10"), "{text}");
            assert!(of_rank_0.contains("weights identical on all 4 ranks"), "{text}");
            outcome.expect_code(0);
        })
        // All ranks of the other replica and their launcher die as a consequence, often before the failing one.
        .test("run::nested::a_rank_below_torchrun_is_named", &[Torch], || {
            let outcome = run("nested-torchrun", &[("script", &support("torch_fails.py")), ("arguments", "3")]);
            blames_the_second(&outcome, 1);
        })
        .test("run::nested::replicas_are_paddles_ranks", &[Paddle], || {
            has_learned(&run("two-ranks", &[("script", &example("paddle_train.py"))]), 2);
        })
        .test("run::nested::replicas_are_torchs_ranks", &[Torch], || {
            has_learned(&watched(|| run("two-ranks", &[("script", &example("torch_ddp.py"))])), 2);
        });
}

/// Runs `examples/jobs/NAME.yaml` with these parameters.
fn run(name: &str, parameters: &[(&str, &str)]) -> Outcome {
    let sandbox = Sandbox::new();
    let bin = virtual_environment().join("bin");
    let (home, caches) = (sandbox.path().join("home"), sandbox.path().join("caches"));
    std::fs::create_dir(&caches).expect("the sandbox can be written");
    let mut words = vec!["run".to_owned(), example(&format!("jobs/{name}.yaml"))];
    for (name, value) in parameters {
        words.extend(["-p".to_owned(), format!("{name}={value}")]);
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    sandbox.umiak(words).env("PATH", path).env("HOME", home).env("TMPDIR", caches).finish()
}

/// Rank 3 is the second rank of the second node.
fn blames_the_second(outcome: &Outcome, code: i32) {
    outcome.expect_code(code).expect_err("✗ node-1 (pid ").expect_err("ValueError: label 17 is out of range");
    assert!(!outcome.err().contains("✗ node-0"), "the other was blamed:\n{}", outcome.err());
}
