//! Launch lines from the READMEs and scripts of the Paddle family, as typed on a host with eight GPUs. Each line has
//! the expected ranks and devices beside it, which are also compared with Paddle's own launcher where it is installed:
//! every line that Paddle runs must run here with the same ranks and devices.

mod table;
mod wrappers;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use umiak_testkit::components::Component::{Netns, Paddle, Python};
use umiak_testkit::components::environment;
use umiak_testkit::net::Network;
use umiak_testkit::sandbox::Running;
use umiak_testkit::suite::Suite;

use crate::shell::Shell;
use table::{By, LINES, Line};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("lines::run_as_written", &[], run_as_written)
        .test("lines::paddle_reads_them_so", &[Paddle], paddle_reads_them_so)
        .test("lines::what_paddle_says_on_the_console", &[Paddle], console)
        .test("lines::proxies", &[Python], proxies)
        .test("lines::threads", &[Python], threads)
        .test("lines::run_check", &[Paddle], run_check)
        .test("lines::run_check_on_two_nodes", &[Paddle, Netns], run_check_on_two_nodes);
    wrappers::register(suite);
}

/// The launchers, as written before their flags.
const LAUNCHERS: [&str; 5] = [
    "paddle.distributed.launch_ps ",
    "paddle.distributed.launch ",
    "paddle.distributed.fleet.launch ",
    "paddle.fleet.launch ",
    "fleetrun ",
];

/// Returns the line with `umiak` in front and with these flags.
fn with_umiak(line: &str, flags: &str) -> String {
    let program = line.find("python ").or_else(|| line.find("fleetrun ")).expect("a launcher");
    let end = LAUNCHERS.iter().find_map(|name| line.find(name).map(|at| at + name.len())).expect("a launcher");
    format!("{}umiak {}{flags} {}", &line[..program], &line[program..end], &line[end..])
}

/// Returns all words of the line that look like a script.
fn scripts(line: &str) -> impl Iterator<Item = &str> {
    let is_script = |word: &&str| Path::new(word).extension().is_some_and(|end| end == "py") || *word == "train_script";
    line.split_whitespace().filter(is_script)
}

fn shell() -> Shell {
    let shell = Shell::with_decoy().with_gpus(8);
    for Line { typed, .. } in LINES {
        for script in scripts(typed) {
            let path = shell.sandbox.path().join(script);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("the sandbox can be written");
            shell.sandbox.write(script, "");
        }
    }
    shell
}

/// Summarises a plan: the devices of each rank, or the number of replicas of each role.
fn runs(plan: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let roles = list(&plan["job"]["roles"]);
    if roles.iter().any(|role| role["name"] == "pserver") {
        let mut counts: Vec<(String, String)> = roles
            .iter()
            .map(|role| (role["name"].as_str().unwrap_or_default().to_owned(), role["replicas"].to_string()))
            .collect();
        counts.sort();
        return counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ");
    }
    let devices = list(&plan["replicas"]).into_iter().map(|replica| {
        let labels: Vec<String> =
            list(&replica["devices"]).iter().filter_map(|device| device["label"].as_str().map(str::to_owned)).collect();
        if labels.is_empty() { "-".to_owned() } else { labels.join("+") }
    });
    let nodes = list(&plan["groups"][0]["nodes"]).len();
    let nodes = if nodes > 1 { format!(" on {nodes} nodes") } else { String::new() };
    format!("{}{nodes}", devices.collect::<Vec<_>>().join(" "))
}

fn run_as_written() {
    let shell = shell();
    let mut wrong = Vec::new();
    for Line { typed, runs: expected, .. } in LINES {
        let outcome = shell.line(&with_umiak(typed, "--dry-run --output json")).finish();
        let seen = match serde_json::from_slice::<Value>(&outcome.stdout) {
            Ok(plan) if outcome.status.success() => runs(&plan),
            Ok(error) => format!("refused {}", error["error"]["code"].as_str().unwrap_or("?")),
            // Errors in the command line itself are printed on stderr only.
            Err(_) => format!("refused {}", outcome.err().get(6..11).unwrap_or("?")),
        };
        if seen != *expected {
            wrong.push(format!("{typed}\n  expected {expected}\n  seen     {seen}\n{}", outcome.err()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let of_paddle = LINES.iter().filter(|line| matches!(line.paddle, By::Same)).count();
    assert!(LINES.len() >= 50 && of_paddle >= 40, "{} lines, {of_paddle} that Paddle runs", LINES.len());
}

/// Runs Paddle's launcher in one process, because importing it takes seconds.
fn paddle_reads_them_so() {
    let python = environment().expect("a component of this test").join("bin/python");
    let shell = shell();
    let program = shell.sandbox.write("paddle_lines.py", include_str!("support/paddle_lines.py"));
    let mut command = Command::new(python);
    command.arg(program).current_dir(shell.sandbox.path()).env_remove("CUDA_VISIBLE_DEVICES");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("Python");
    let text: String = LINES.iter().flat_map(|line| [line.typed, "\n"]).collect();
    let mut stdin = child.stdin.take().expect("a pipe");
    let feeder = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("its output");
    feeder.join().expect("the thread lives").expect("all lines are read");
    let answers: Vec<Value> =
        output.stdout.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(answers.len(), LINES.len());
    let mut wrong = Vec::new();
    for (Line { typed, runs, paddle }, answer) in LINES.iter().zip(&answers) {
        let script = answer["script"].as_str().unwrap_or_default();
        let seen = answer["runs"].as_str().filter(|_| scripts(typed).any(|known| known == script));
        let (expected, why) = match paddle {
            By::Same => (Some(*runs), "the same"),
            By::Nobody(why) => (None, *why),
            By::Other { runs, why } => (Some(*runs), *why),
        };
        if seen != expected {
            wrong.push(format!("{typed}\n  expected {expected:?}: {why}\n  Paddle   {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The last line of Paddle's traceback, and its warning about CPU jobs, appear unchanged on the console.
fn console() {
    let python = environment().expect("a component of this test").join("bin/python").display().to_string();
    let shell = Shell::with_python();
    shell.sandbox.write("train.py", "");
    let said = |program: &str, flags: &str| {
        let line = format!("{program}{python} -m paddle.distributed.launch {flags} train.py");
        shell.line(&line).start().finish_unchecked().err()
    };
    for (flags, expected) in [
        ("--backend foo", "ValueError: paddle.distributed initialize error, backend argument can only be one of"),
        ("--backend nccl", "ValueError: paddle.distributed initialize error, your paddle is not compiled with cuda"),
        ("--backend gloo", "launch start with CPUONLY mode"),
    ] {
        // Ignores the prefix, which is a timestamp or the location in an error.
        let line_of = |text: &str| {
            let line = text.lines().rev().find(|line| line.contains(expected));
            let line = line.unwrap_or_else(|| panic!("{flags}\n{text}"));
            line[line.find(expected).expect("it was found")..].to_owned()
        };
        assert_eq!(line_of(&said("umiak ", flags)), line_of(&said("", flags)), "{flags}");
    }
}

/// Prints the variables named by its arguments.
const SHOW: &str = "import os, sys\nprint(*(f'{name}={os.environ.get(name)}' for name in sys.argv[1:]))\n";

fn proxies() {
    let shell = Shell::with_python();
    shell.sandbox.write("show.py", SHOW);
    let set = "http_proxy=http://p:1 HTTPS_PROXY=http://p:2 NO_PROXY=.corp";
    let names = "http_proxy HTTPS_PROXY no_proxy NO_PROXY http_proxy_original";
    for (flags, expected) in [
        (
            "",
            "http_proxy=http://p:1 HTTPS_PROXY=http://p:2 no_proxy=.corp,127.0.0.1 NO_PROXY=.corp,127.0.0.1 http_proxy_original=None\n",
        ),
        (
            "--compat paddle",
            "http_proxy=None HTTPS_PROXY=http://p:2 no_proxy=None NO_PROXY=.corp http_proxy_original=http://p:1\n",
        ),
    ] {
        let outcome = shell.line(&format!("{set} umiak launch {flags} show.py {names}")).finish();
        outcome.expect_code(0);
        assert_eq!(outcome.out(), expected, "{flags}");
    }
}

fn threads() {
    let shell = Shell::with_python();
    shell.sandbox.write("show.py", SHOW);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for (line, expected) in [
        ("umiak launch", "1".to_owned()),
        ("umiak python -m paddle.distributed.launch", "1".to_owned()),
        ("OMP_NUM_THREADS=3 umiak launch", "3".to_owned()),
        ("OMP_NUM_THREADS=3 umiak launch --omp 5", "5".to_owned()),
        ("umiak launch --omp auto", cpus.to_string()),
    ] {
        let outcome = shell.line(&format!("{line} show.py OMP_NUM_THREADS")).finish();
        outcome.expect_code(0);
        assert_eq!(outcome.out(), format!("OMP_NUM_THREADS={expected}\n"), "{line}");
    }
}

/// Paddle's own check, up to its last line. It needs two ranks: with one it also fails under Paddle.
fn run_check() {
    let python = environment().expect("a component of this test").join("bin/python");
    let shell = Shell::with_python();
    let line =
        format!("umiak {} -m paddle.distributed.launch --nnodes 1 --nproc_per_node 2 run_check", python.display());
    let outcome = shell.line(&line).env("HOME", shell.sandbox.path()).start().finish_unchecked();
    outcome.expect_code(0).expect_err("Paddle Distributed Test begin...");
    assert!(outcome.out().contains("Prepare distributed training with 1 nodes 2 cards\n"), "{}", outcome.out());
    assert!(outcome.out().ends_with("Distributed training completed\n"), "{}", outcome.out());
    // Without Paddle, the error says so.
    let outcome =
        shell.line("umiak python3 -m paddle.distributed.launch --nnodes 1 run_check").start().finish_unchecked();
    outcome.expect_code(127).expect_err("error[L0011]: `run_check` needs Paddle, which was not found\n");
}

fn run_check_on_two_nodes() {
    let python = environment().expect("a component of this test").join("bin/python");
    let network = Network::new(2);
    let shells = [(); 2].map(|()| Shell::with_python());
    let runs: Vec<_> = (0..2)
        .map(|node| {
            // Without `--nnodes`.
            let line = format!(
                "umiak {} -m paddle.distributed.launch --master 192.168.0.1:7788 --rank {node} run_check",
                python.display()
            );
            shells[node].line(&line).env("HOME", shells[node].sandbox.path()).on(network.host(node)).start()
        })
        .collect();
    for outcome in runs.into_iter().map(Running::finish_unchecked) {
        outcome.expect_code(0);
        assert!(outcome.out().contains("Prepare distributed training with 2 nodes 1 cards\n"), "{}", outcome.out());
        assert!(outcome.out().ends_with("Distributed training completed\n"), "{}", outcome.out());
    }
}
