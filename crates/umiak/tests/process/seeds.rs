//! The user guide's command lines, typed after `umiak` unchanged.

use serde_json::Value;
use umiak_testkit::components::Component::Python;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("seeds::one_node_with_eight_gpus", &[Python], one_node_with_eight_gpus)
        .test("seeds::omitted_gpus_are_all_that_are_there", &[Python], omitted_gpus)
        .test("seeds::without_gpus_it_is_a_rehearsal", &[Python], rehearsal)
        .test("seeds::gpus_without_a_driver_are_refused", &[Python], gpus_without_a_driver)
        .test("seeds::gpus_that_are_not_there", &[], gpus_that_are_not_there);
}

/// Writes its arguments and environment to `seen.RANK`.
const TRAIN: &str = r#"
import json, os, sys
rank = os.environ["PADDLE_TRAINER_ID"]
with open("seen." + rank, "w") as file:
    json.dump({"argv": sys.argv, "env": dict(os.environ)}, file)
print("output of rank", rank)
"#;

/// Expected environment of each rank.
struct Expected<'a> {
    ranks: u32,
    /// `CUDA_VISIBLE_DEVICES`.
    visible: Option<&'a str>,
    /// `FLAGS_selected_gpus` is the local rank; otherwise it is not set.
    has_gpus: bool,
    script: &'a str,
    args: &'a [&'a str],
    log_dir: &'a str,
}

const EIGHT: Expected<'_> = Expected {
    ranks: 8,
    visible: Some("0,1,2,3,4,5,6,7"),
    has_gpus: true,
    script: "train.py",
    args: &[],
    log_dir: "log",
};

/// Runs the line, checks every rank, and returns umiak's stderr.
#[track_caller]
fn check(gpus: Option<u32>, line: &str, expected: &Expected<'_>) -> String {
    let shell = Shell::with_python();
    let shell = if let Some(count) = gpus { shell.with_gpus(count) } else { shell };
    let sandbox = &shell.sandbox;
    sandbox.write("train.py", TRAIN);
    sandbox.write("train_script", TRAIN);
    let outcome = shell.line(line).finish();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "output of rank 0\n", "{line}");
    let seen: Vec<String> = sandbox.list(".").into_iter().filter(|name| name.starts_with("seen.")).collect();
    assert_eq!(seen.len(), expected.ranks as usize, "{line}");
    for rank in 0..expected.ranks {
        let seen: Value = serde_json::from_str(&sandbox.read(&format!("seen.{rank}"))).expect("the script wrote JSON");
        let argv: Vec<&str> = std::iter::once(expected.script).chain(expected.args.iter().copied()).collect();
        assert_eq!(seen["argv"], Value::from(argv), "{line}");
        let env = |name: &str| seen["env"][name].as_str();
        let number = rank.to_string();
        assert_eq!(env("CUDA_VISIBLE_DEVICES"), expected.visible, "{line}, rank {rank}");
        assert_eq!(env("FLAGS_selected_gpus"), expected.has_gpus.then_some(number.as_str()), "{line}, rank {rank}");
        for name in ["PADDLE_TRAINER_ID", "RANK", "LOCAL_RANK", "PADDLE_LOCAL_RANK"] {
            assert_eq!(env(name), Some(number.as_str()), "{line}: {name} of rank {rank}");
        }
        for name in ["PADDLE_TRAINERS_NUM", "WORLD_SIZE"] {
            assert_eq!(env(name), Some(expected.ranks.to_string().as_str()), "{line}: {name} of rank {rank}");
        }
        let log = sandbox.read(&format!("{}/workerlog.{rank}", expected.log_dir));
        assert_eq!(log, format!("output of rank {rank}\n"), "{line}");
    }
    let endpoints = sandbox.read(&format!("{}/endpoints.log", expected.log_dir));
    assert_eq!(endpoints.lines().count(), expected.ranks as usize + 1, "{line}: {endpoints}");
    let logs: Vec<String> =
        sandbox.list(expected.log_dir).into_iter().filter(|name| name.starts_with("workerlog.")).collect();
    assert_eq!(logs.len(), expected.ranks as usize, "{line}: {logs:?}");
    outcome.err()
}

fn one_node_with_eight_gpus() {
    let four = Expected { ranks: 4, visible: Some("0,1,2,3"), ..EIGHT };
    let two = Expected { ranks: 2, visible: Some("2,3"), args: &["--batch_size=64"], ..EIGHT };
    for (line, expected) in [
        (
            "umiak python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7 train.py --batch_size=64",
            Expected { args: &["--batch_size=64"], ..EIGHT },
        ),
        (
            "umiak python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7 train_script",
            Expected { script: "train_script", ..EIGHT },
        ),
        (r#"umiak python -m paddle.distributed.launch --gpus="0,1,2,3,4,5,6,7" train.py"#, EIGHT),
        ("umiak python -m paddle.distributed.launch --gpus 2,3 train.py --batch_size=64", Expected { ..two }),
        (
            r#"umiak python -m paddle.distributed.launch --gpus=0,1,2,3 --ips="127.0.0.1" train.py --batch_size=64"#,
            Expected { args: &["--batch_size=64"], ..four },
        ),
        (
            r#"umiak python -m paddle.distributed.launch --gpus=0,1,2,3 --ips="127.0.0.1" train_script"#,
            Expected { script: "train_script", ..four },
        ),
        (
            r#"umiak python -m paddle.distributed.launch --gpus="0,1,2,3" --ips="127.0.0.1" train.py"#,
            Expected { ..four },
        ),
        (
            r#"umiak python -m paddle.distributed.launch --log_dir=log/ --run_mode collective --gpus="4,5,6,7" train.py"#,
            Expected { visible: Some("4,5,6,7"), ..four },
        ),
        (
            "umiak python -m paddle.distributed.fleet.launch --gpus 2,3 --log_dir mine train.py --batch_size=64",
            Expected { log_dir: "mine", ..two },
        ),
        (
            "umiak launch --gpus 2,3 --log_dir mine/deeper train.py --batch_size=64",
            Expected { log_dir: "mine/deeper", ..two },
        ),
        ("umiak launch --gpus=2,3 train.py --batch_size=64", Expected { ..two }),
        ("umiak fleetrun --gpus 2,3 train.py --batch_size=64", Expected { ..two }),
        ("fleetrun --gpus=2,3 train.py --batch_size=64", Expected { ..two }),
        // Everything after the script belongs to the script, including umiak's flags and `-h`.
        (
            r#"umiak launch --gpus 2,3 train.py --gpus 7 -h --log_dir "a b" '' -- x"#,
            Expected { args: &["--gpus", "7", "-h", "--log_dir", "a b", "", "--", "x"], ..two },
        ),
    ] {
        check(Some(8), line, &expected);
    }
}

fn omitted_gpus() {
    for line in [
        "umiak python -m paddle.distributed.launch train.py",
        r#"umiak python -m paddle.distributed.launch --ips="127.0.0.1" train.py"#,
        "umiak fleetrun train.py",
        "umiak launch train.py",
        r#"umiak launch --gpus "" train.py"#,
    ] {
        check(Some(4), line, &Expected { ranks: 4, visible: None, ..EIGHT });
        check(None, line, &Expected { ranks: 1, visible: None, has_gpus: false, ..EIGHT });
    }
    // Devices hidden from umiak stay hidden from the ranks.
    let hidden = Expected { ranks: 2, visible: Some("1,3"), ..EIGHT };
    check(Some(4), "CUDA_VISIBLE_DEVICES=1,3 umiak launch train.py", &hidden);
}

fn rehearsal() {
    let line = "umiak python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7 train.py --batch_size=64";
    let on_cpu = Expected { visible: None, has_gpus: false, args: &["--batch_size=64"], ..EIGHT };
    let said = check(None, line, &on_cpu);
    let notice = "notice[L0020]: `--gpus` names devices, but this machine has none; running on CPU\n  processes  8\n";
    assert_eq!(said.matches(notice).count(), 1, "said once: {said}");
}

/// On CPU the job would only appear to work.
fn gpus_without_a_driver() {
    let sandbox = Sandbox::new();
    sandbox.write("train.py", "");
    let before = sandbox.list(".");
    let bus = umiak_testkit::gpus::fake_bus(sandbox.path(), &[None, Some("nouveau")]);
    let launch = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        sandbox.umiak(words).env("UMIAK_PCI_DEVICES", &bus).finish()
    };
    for flag in ["--gpus", "--devices"] {
        let refused = launch(&format!("launch {flag} 0,1 train.py"));
        refused.expect_code(2);
        assert_eq!(
            refused.err(),
            format!(
                "error[L0033]: `{flag}` names devices, but the NVIDIA driver is not working\n  on the bus  0000:10:00.0 (no driver)\n              0000:11:00.0 (driver `nouveau`)\n  driver      lists no GPU in `/proc/driver/nvidia/gpus`\nhint: load the driver (`modprobe nvidia`, then `nvidia-smi` lists the GPUs)\nhint: to try the job on CPU, use `--nproc_per_node N` instead of `{flag}`\n"
            )
        );
    }
    let made: Vec<String> = sandbox.list(".").into_iter().filter(|name| name != "pci-devices").collect();
    assert_eq!(made, before, "nothing was made or started");
    launch("launch --nproc_per_node 2 train.py").expect_code(0);
}

fn gpus_that_are_not_there() {
    let shell = Shell::with_decoy().with_gpus(4);
    shell.sandbox.write("train.py", "");
    let before = shell.sandbox.list(".");
    let line = "umiak python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7 train.py --batch_size=64";
    let outcome = shell.line(line).finish();
    outcome.expect_code(2);
    assert_eq!(
        outcome.err(),
        "error[L0005]: `--gpus` names gpu 4, 5, 6, 7, which this machine does not have\n  available  gpu 0 (NVIDIA H200)\n             gpu 1 (NVIDIA H200)\n             gpu 2 (NVIDIA H200)\n             gpu 3 (NVIDIA H200)\nhint: numbers are physical device numbers; omit `--gpus` to use every available gpu\n"
    );
    assert_eq!(shell.sandbox.list("."), before, "nothing was made or started");
}
