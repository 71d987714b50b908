//! Successful jobs: ranks, environment, files, mirror, output modes.

use std::os::unix::fs::PermissionsExt as _;

use umiak_testkit::components::Component::Python;
use umiak_testkit::gpus;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("launch::readme_example_trains", &[Python], readme_example_trains)
        .test("launch::gpus_are_held_for_a_launch", &[], gpus_are_held_for_a_launch)
        .test("launch::first_rank_is_mirrored_and_all_are_logged", &[], first_rank_is_mirrored_and_all_are_logged)
        .test("launch::logs_are_appended_and_only_new_lines_are_shown", &[], logs_are_appended)
        .test("launch::log_overwrite_truncates", &[], log_overwrite_truncates)
        .test("launch::mirror_is_complete", &[], mirror_is_complete)
        .test("launch::sole_rank_has_the_callers_stdin", &[], sole_rank_has_the_callers_stdin)
        .test("launch::ranks_get_no_descriptors_of_the_caller", &[], ranks_get_no_descriptors_of_the_caller)
        .test("launch::json_is_facts", &[], json_is_facts)
        .test("launch::dry_run_starts_nothing", &[], dry_run_starts_nothing)
        .test("launch::secrets_are_masked_in_every_file", &[], secrets_are_masked)
        .test("launch::logs_are_cut_by_size_and_the_mirror_is_complete", &[], logs_are_cut_by_size)
        .test("launch::isolated_job_sees_only_itself", &[], isolated_job)
        .test("launch::files_do_not_grow_with_the_square_of_the_ranks", &[], few_files)
        .test("launch::two_jobs_at_once_have_their_own_ports", &[], two_jobs_at_once);
}

fn readme_example_trains() {
    let sandbox = Sandbox::new();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/ring_allreduce.py");
    let outcome = sandbox.umiak(["launch", "--nproc_per_node", "4", example]).finish();
    outcome.expect_code(0);
    assert!(outcome.out().contains("identical on all 4 ranks"), "{}", outcome.out());
}

/// Files with the environment of a rank list all endpoints: many ranks would have too many of them.
fn few_files() {
    for (limit, backups) in [("48000", 256), ("100", 260)] {
        let sandbox = Sandbox::new();
        let launch = sandbox.umiak(["launch", "--nproc_per_node", "260", "/bin/true"]);
        launch.env("PADDLE_ENV_LIMIT_LEN", limit).finish().expect_code(0);
        let names = sandbox.list("log");
        let count = |stem: &str| names.iter().filter(|name| name.starts_with(stem)).count();
        let counts = [count("workerlog."), count("envlog."), count("backup_env.")];
        assert_eq!(counts, [260, 256, backups], "{limit}");
    }
}

fn first_rank_is_mirrored_and_all_are_logged() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--nproc_per_node 3", &["0:print zero", "1:print one", "2:err two"]).finish();
    outcome.expect_code(0).expect_err("planned 3 ranks on 1 node").expect_err("finished 3 ranks");
    assert_eq!(outcome.out(), "zero\n");
    assert_eq!(sandbox.read("log/workerlog.0"), "zero\n");
    assert_eq!(sandbox.read("log/workerlog.1"), "one\n");
    assert_eq!(sandbox.read("log/workerlog.2"), "two\n");
    let pod = |name: &String| name.strip_prefix("default.").is_some_and(|rest| rest.len() == "abcdef.log".len());
    let files = sandbox.list("log");
    assert_eq!(files.iter().filter(|name| pod(name)).count(), 1, "{files:?}");
    let others: Vec<&String> = files.iter().filter(|name| !pod(name)).collect();
    assert_eq!(
        others,
        [
            "backup_env.0.json",
            "backup_env.1.json",
            "backup_env.2.json",
            "endpoints.log",
            "envlog.0",
            "envlog.1",
            "envlog.2",
            "workerlog.0",
            "workerlog.1",
            "workerlog.2"
        ]
    );
    let endpoints = sandbox.read("log/endpoints.log");
    let lines: Vec<&str> = endpoints.split('\n').collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0], "PADDLE_TRAINER_ENDPOINTS: ");
    assert!(lines[1..].iter().all(|line| line.starts_with("127.0.0.1:")), "{endpoints}");
}

fn logs_are_appended() {
    let sandbox = Sandbox::new();
    sandbox.launch_toy("--nproc_per_node 1", &["*:print first"]).finish().expect_code(0);
    let outcome = sandbox.launch_toy("--nproc_per_node 1", &["*:print second"]).finish();
    assert_eq!(outcome.out(), "second\n");
    assert_eq!(sandbox.read("log/workerlog.0"), "first\nsecond\n");
}

fn log_overwrite_truncates() {
    let sandbox = Sandbox::new();
    sandbox.launch_toy("--nproc_per_node 1", &["*:print first"]).finish().expect_code(0);
    let outcome = sandbox.launch_toy("--nproc_per_node 1 --log_overwrite 1", &["*:print second"]).finish();
    assert_eq!(outcome.out(), "second\n");
    assert_eq!(sandbox.read("log/workerlog.0"), "second\n");
}

fn mirror_is_complete() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--nproc_per_node 2", &["0:flood 20000000;partial end\\xff"]).finish();
    outcome.expect_code(0);
    assert_eq!(outcome.stdout.len(), 20_000_004);
    assert!(outcome.stdout.ends_with(b"end\xff"));
    assert!(outcome.stdout == std::fs::read(sandbox.path().join("log/workerlog.0")).unwrap(), "the mirror differs");
}

fn sole_rank_has_the_callers_stdin() {
    let sandbox = Sandbox::new();
    let input = sandbox.write("input", "hello");
    let with_input = |flags: &str| {
        let file = std::fs::File::open(&input).unwrap();
        sandbox.launch_toy(flags, &["0:stdin"]).stdin(file).finish().out()
    };
    assert_eq!(with_input("--nproc_per_node 1"), "stdin \"hello\"\n");
    assert_eq!(with_input("--nproc_per_node 2"), "stdin \"\"\n");
}

fn ranks_get_no_descriptors_of_the_caller() {
    let sandbox = Sandbox::new();
    let umiak = umiak_testkit::sandbox::binary().display();
    let line = format!("exec 7</dev/null; exec {umiak} launch --nproc_per_node 1 ls /proc/self/fd");
    let outcome = sandbox.program(std::path::Path::new("/bin/sh"), ["-c", &line]).finish();
    outcome.expect_code(0);
    // Descriptor 3 is the directory that `ls` reads.
    assert_eq!(outcome.out(), "0\n1\n2\n3\n");
}

fn json_is_facts() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--output json --nproc_per_node 2", &["*:print hidden"]).finish();
    outcome.expect_code(0);
    let facts = outcome.facts();
    let kinds: Vec<&str> = facts.iter().map(|fact| fact["type"].as_str().unwrap()).collect();
    let expected =
        ["supervised", "planned", "starting", "starting", "started", "started", "ended", "ended", "finished"];
    assert_eq!(kinds, expected);
    for (position, fact) in facts.iter().enumerate() {
        assert_eq!((fact["v"].as_u64(), fact["seq"].as_u64()), (Some(1), Some(position as u64)));
    }
    let last = facts.last().unwrap();
    assert_eq!((last["status"].as_str(), last["code"].as_u64()), (Some("succeeded"), Some(0)));
    assert_eq!(outcome.err(), "", "JSON mode is silent on success");
    let mirrored = sandbox.launch_toy("--output json --mirror --nproc_per_node 1", &["*:print shown"]).finish();
    assert_eq!(mirrored.err(), "shown\n");
}

fn dry_run_starts_nothing() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--dry-run --nproc_per_node 2 --log_dir out", &["*:touch started"]).finish();
    outcome.expect_code(0);
    assert!(outcome.out().contains("PADDLE_TRAINER_ID=1"), "{}", outcome.out());
    assert_eq!(sandbox.list("."), ["tmp"], "nothing was made");
    let json = sandbox.launch_toy("--dry-run --output json --nproc_per_node 2", &["*:exit 0"]).finish().facts();
    assert_eq!(json[0]["replicas"][1]["env"]["RANK"], "1");
}

fn secrets_are_masked() {
    let sandbox = Sandbox::new();
    let run = sandbox
        .launch_toy("--nproc_per_node 1 --log_level DEBUG", &["*:env env"])
        .env("HF_TOKEN", "hf_verysecret")
        .env("WEIRD", "https://li:verysecret@example.com/x");
    run.finish().expect_code(0);
    let seen: serde_json::Value = serde_json::from_str(&sandbox.read("env.0")).unwrap();
    assert_eq!(seen["HF_TOKEN"], "hf_verysecret", "the rank itself gets it");
    for file in sandbox.list("log") {
        let text = sandbox.read(&format!("log/{file}"));
        assert!(!text.contains("verysecret"), "{file} holds a secret:\n{text}");
    }
    let mode = std::fs::metadata(sandbox.path().join("log/backup_env.0.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A document does not use GPUs in use by a launch; a launch that names them still gets them, with a notice.
fn gpus_are_held_for_a_launch() {
    let sandbox = Sandbox::new();
    let driver = gpus::fake(sandbox.path(), 2);
    sandbox
        .write("job.yaml", "umiak: v1\nroles: {w: {resources: {gpu: 1}, command: 'echo on $CUDA_VISIBLE_DEVICES'}}\n");
    let launch = |flags: &str, actions: &[&str]| {
        sandbox.launch_toy(&format!("--gpus {flags}"), actions).env("UMIAK_NVIDIA_PROC", &driver)
    };
    let first = launch("0 --log_dir a", &["0:touch up;await go"]).start();
    first.wait_for_file("up");
    let run = || sandbox.umiak(["run", "job.yaml"]).env("UMIAK_NVIDIA_PROC", &driver);
    let free = run().start().finish_unchecked();
    free.expect_code(0);
    assert!(free.out().contains("on 1"), "{}", free.out());
    let second = launch("0,1 --log_dir b", &["0:touch up2;await go"]).start();
    second.wait_for_file("up2");
    run().start().finish_unchecked().expect_code(125).expect_err("error[J0020]").expect_err("free    0 of 2");
    sandbox.write("go", "");
    let first = first.finish_unchecked();
    assert!(!first.err().contains("L0030"), "{}", first.err());
    first.expect_code(0);
    second.finish_unchecked().expect_code(0).expect_err("notice[L0030]: gpu 0 is in use by another run of umiak");
    // A launch inside a run may use the run's GPUs.
    let nested = launch("0 --log_dir c", &["0:print up"]).env("UMIAK_RUN", "run-000001").finish();
    assert!(!nested.err().contains("L0030"), "{}", nested.err());
    sandbox.assert_nothing_left();
}

fn two_jobs_at_once() {
    let sandbox = Sandbox::new();
    let first = sandbox.launch_toy("--nproc_per_node 8 --log_dir a", &["0:touch up;await go"]).start();
    first.wait_for_file("up");
    let second = sandbox.launch_toy("--nproc_per_node 8 --log_dir b", &["0:touch go"]).start();
    let ports = |name: &str| -> Vec<String> {
        sandbox.read(name).lines().skip(1).map(|line| line.rsplit(':').next().unwrap().to_owned()).collect()
    };
    second.wait_for_file("go");
    let (a, b) = (ports("a/endpoints.log"), ports("b/endpoints.log"));
    assert!(a.iter().all(|port| !b.contains(port)), "{a:?} {b:?}");
    // Both share one sandbox, and `finish` checks for leftovers, so both are awaited at the same time.
    std::thread::scope(|scope| {
        scope.spawn(|| first.finish().expect_code(0).elapsed);
        scope.spawn(|| second.finish().expect_code(0).elapsed);
    });
}

fn logs_are_cut_by_size() {
    let sandbox = Sandbox::new();
    let flags = "--nproc_per_node 2 --log-max-size 64K --log-keep 1000";
    let outcome = sandbox.launch_toy(flags, &["*:flood 3000000;partial the\\send"]).finish();
    outcome.expect_code(0);
    assert!(outcome.out().ends_with("the end"));
    assert_eq!(outcome.stdout.len(), 3_000_007, "the mirror follows from file to file");
    let parts: Vec<String> = sandbox.list("log").into_iter().filter(|name| name.starts_with("workerlog.1.")).collect();
    let total: u64 = parts
        .iter()
        .map(|part| std::fs::metadata(sandbox.path().join("log").join(part)).unwrap().len())
        .inspect(|size| assert!(*size <= 64 << 10, "{size}"))
        .sum();
    assert_eq!(total + sandbox.read("log/workerlog.1").len() as u64, 3_000_007);
    // Without `--log-keep`, five files are kept.
    sandbox.launch_toy("--log-max-size 64K --log_dir few", &["*:flood 3000000"]).finish().expect_code(0);
    let kept = sandbox.list("few").into_iter().filter(|name| name.starts_with("workerlog.0.")).count();
    assert_eq!(kept, 5);
}

fn isolated_job() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.umiak(["launch", "--isolate", "--nproc_per_node", "1", "sh", "-c", "ls /proc"]).finish();
    if outcome.status.code() == Some(125) {
        // Isolation is not permitted on every host.
        outcome.expect_err("error[L0028]");
        return;
    }
    outcome.expect_code(0);
    let processes = outcome.out().lines().filter(|name| name.parse::<u32>().is_ok()).count();
    assert!(processes <= 4, "guardian, shell and ls:\n{}", outcome.out());
}
