//! Wrong input: exact codes, exact messages, and nothing started, created or left behind.

mod lacking;
mod refused;

use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use umiak_testkit::sandbox::{Outcome, toy};
use umiak_testkit::suite::Suite;

use crate::shell::Shell;
use refused::Row;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("input::usage", &[], || refused(None, refused::USAGE))
        .test("input::not_in_this_version", &[], || refused(None, refused::NOT_YET))
        .test("input::etcd", &[], || refused(None, refused::ETCD))
        .test("input::own_commands", &[], || refused(None, refused::OWN))
        .test("input::environment", &[], || refused(None, refused::ENVIRONMENT))
        .test("input::machine", &[], || refused(None, lacking::MACHINE))
        .test("input::devices", &[], || refused(Some(4), lacking::GPUS))
        .test("input::errors_are_data_too_with_json", &[], errors_as_json)
        .test("input::help", &[], help)
        .test("input::explain", &[], explain)
        .test("input::own_address_is_not_listed", &[], own_address_is_not_listed)
        .test("input::unreadable_script", &[], unreadable_script)
        .test("input::scripts_that_cannot_start", &[], scripts_that_cannot_start)
        .test("input::a_pipe_is_left_to_the_rank", &[], a_pipe_is_left_to_the_rank)
        .test("input::too_few_ports", &[], too_few_ports)
        .test("input::two_jobs_with_one_fixed_start", &[], two_jobs_with_one_fixed_start)
        .test("input::zero_and_empty_are_not_given", &[], zero_and_empty)
        .test("input::compat_paddle_ignores_unknown_flags", &[], compat_ignores_unknown_flags)
        .test("input::names_need_not_be_text", &[], names_need_not_be_text);
}

/// A shell whose interpreter leaves a file behind when it is started.
fn shell(gpus: Option<u32>) -> Shell {
    let shell = Shell::with_decoy();
    shell.sandbox.write("train.py", "");
    shell.sandbox.write("job.yaml", "");
    std::fs::create_dir(shell.sandbox.path().join("directory")).expect("the sandbox can be written");
    if let Some(count) = gpus { shell.with_gpus(count) } else { shell }
}

/// Runs a line that must neither start a process nor create a file.
#[track_caller]
fn starts_nothing(shell: &Shell, line: &str) -> Outcome {
    let before = shell.sandbox.list(".");
    let outcome = shell.line(line).finish();
    assert_eq!(shell.sandbox.list("."), before, "{line}: something was made or started");
    outcome
}

fn refused(gpus: Option<u32>, rows: &[Row<'_>]) {
    check(&shell(gpus), rows);
}

fn check(shell: &Shell, rows: &[Row<'_>]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(line, code, text)| {
            let outcome = starts_nothing(shell, line);
            let seen = (outcome.status.code(), outcome.out(), shell.neutral(&outcome.err()));
            let expected = (Some(*code), String::new(), (*text).to_owned());
            (seen != expected).then(|| format!("{line}\n  expected {expected:?}\n  seen     {seen:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn errors_as_json() {
    let shell = shell(None);
    let outcome = starts_nothing(&shell, "umiak launch --output json trian.py");
    outcome.expect_code(127).expect_err("error[L0011]");
    let facts = outcome.facts();
    assert_eq!(facts.len(), 1);
    assert_eq!(facts[0]["error"]["code"], "L0011");
    assert_eq!(facts[0]["error"]["hints"][0], "did you mean `train.py`?");
}

fn help() {
    let shell = shell(None);
    for (line, first) in [
        ("umiak launch -h", "usage: umiak launch [flags] training_script ..."),
        ("umiak launch --gpus 0 --help", "usage: umiak launch [flags] training_script ..."),
        ("umiak fleetrun -h", "usage: umiak fleetrun [flags] training_script ..."),
        (
            "umiak python3 -m paddle.distributed.launch -h",
            "usage: umiak python3 -m paddle.distributed.launch [flags] training_script ...",
        ),
        ("umiak -h", "Launches and supervises distributed training jobs"),
        ("umiak help", "Launches and supervises distributed training jobs"),
        ("umiak --version", concat!("umiak ", env!("CARGO_PKG_VERSION"))),
    ] {
        let outcome = starts_nothing(&shell, line);
        outcome.expect_code(0);
        assert_eq!(outcome.out().lines().next(), Some(first), "{line}");
        assert_eq!(outcome.err(), "", "{line}");
    }
    // A missing command prints help but is not a success.
    let outcome = starts_nothing(&shell, "umiak");
    outcome.expect_code(2).expect_err("Usage: umiak <COMMAND>").expect_err("umiak fleetrun train.py");
    assert_eq!(outcome.out(), "");
}

fn explain() {
    let shell = shell(None);
    for (code, first) in [
        ("L0004", "L0004: this host is not in the node list"),
        ("l0004", "L0004: this host is not in the node list"),
        ("U3102", "U3102: out of GPU memory"),
    ] {
        let outcome = starts_nothing(&shell, &format!("umiak explain {code}"));
        outcome.expect_code(0);
        assert_eq!(outcome.out().lines().next(), Some(first));
        assert_eq!(outcome.err(), "");
    }
    // Everything on the reference page is printed.
    let signature = starts_nothing(&shell, "umiak explain U1105").out();
    for part in ["\n\nCause. The kernel cannot", "\nhint: check the file's", "\npattern: Exec format error|"] {
        assert!(signature.contains(part), "{signature}");
    }
}

fn own_address_is_not_listed() {
    let shell = shell(None);
    // No host has an address of the documentation block.
    let outcome = starts_nothing(&shell, r#"umiak launch --ips="203.0.113.77" train.py"#);
    outcome
        .expect_code(2)
        .expect_err("error[L0004]: this host is not in `--ips`\n  listed     203.0.113.77\n  this host  ")
        .expect_err("\nhint: run on a listed node, or say which one this is with `--host 203.0.113.77`\n");
}

fn unreadable_script() {
    let shell = shell(None);
    let path = shell.sandbox.write("closed.py", "");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("a mode");
    let is_superuser = std::fs::File::open(&path).is_ok();
    if !is_superuser {
        let outcome = starts_nothing(&shell, "umiak launch closed.py");
        outcome.expect_code(126);
        assert_eq!(outcome.err(), "error[L0012]: `closed.py` cannot be read\nhint: check the file's permissions\n");
    }
}

fn scripts_that_cannot_start() {
    let shell = shell(None);
    for (name, text) in [
        ("no-interpreter", "#!/no/such/python -u\n: > started\n"),
        ("bin/windows", "#!/usr/bin/env python3\r\n: > started\r\n"),
    ] {
        let path = shell.sandbox.write(name, text);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    symlink("nowhere", shell.sandbox.path().join("link.py")).expect("the sandbox can be written");
    let interpreter = "error[L0012]: `./no-interpreter` needs the interpreter `/no/such/python`, which does not exist\nhint: correct its first line, or install the interpreter\n";
    let windows = "error[L0012]: the first line of `windows` ends in a carriage return\n  first line  #!/usr/bin/env …\nhint: the file has Windows line endings; convert it with `dos2unix`\n";
    let link = "error[L0011]: the training script `link.py` was not found\n  looked in  DIR\nhint: a broken symbolic link has that name\n";
    check(
        &shell,
        &[
            ("umiak launch ./no-interpreter", 126, interpreter),
            ("umiak launch windows", 126, windows),
            ("umiak launch link.py", 127, link),
        ],
    );
}

/// Opening the pipe would block until a writer comes, and consume data meant for the rank.
fn a_pipe_is_left_to_the_rank() {
    let shell = shell(None);
    shell.line("mkfifo pipe.py && exec umiak launch pipe.py").finish().expect_code(0).expect_err("finished 1 rank");
    assert!(shell.sandbox.path().join("started").exists());
}

fn too_few_ports() {
    let shell = shell(None);
    let outcome = starts_nothing(&shell, "PORT_RANGE=35100:35101 umiak launch --nproc_per_node 4 train.py");
    outcome
        .expect_code(125)
        .expect_err("error[L0010]: too few free ports in the range of `PORT_RANGE`\n")
        .expect_err("  needed  6: 4 for processes, 2 for stores\n")
        .expect_err(" between 35100 and 35101\nhint: widen `PORT_RANGE`, or leave it out\n");

    let taken = TcpListener::bind("0.0.0.0:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port();
    for variable in ["FLAGS_START_PORT", "PADDLE_START_PORT", "FLAGS_FIXED_PORT"] {
        let outcome = starts_nothing(&shell, &format!("{variable}={port} umiak launch train.py"));
        outcome.expect_code(125);
        assert_eq!(
            outcome.err(),
            format!(
                "error[L0010]: ports that `{variable}` asks for are in use\n  asked for  {port}\n  in use     {port}\nhint: stop the processes that use them, choose another start, or leave `{variable}` out to use free ports\n"
            )
        );
    }
}

fn two_jobs_with_one_fixed_start() {
    let shell = shell(None);
    let toy = toy();
    // This port is free now; other tests do not take it, because they choose ports below the ephemeral range.
    let start = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let line =
        format!("umiak launch --start_port {start} --nproc_per_node 1 --log_dir a '{toy}' toy '0:touch up;await go'");
    let first = shell.line(&line).start();
    first.wait_for_file("up");
    let second = shell.sandbox.path().join("second");
    let script = format!(
        "umiak launch --start_port {start} --nproc_per_node 1 --log_dir b train.py 2> {}; echo $? >> {}; touch go",
        second.display(),
        second.display()
    );
    // `status` instead of `finish`: both runs share the sandbox, so leftovers are checked after both have ended.
    let mut other = shell.line(&script).command;
    assert!(other.status().expect("sh runs").success());
    first.finish().expect_code(0);
    assert_eq!(
        shell.sandbox.read("second"),
        format!(
            "error[L0010]: ports that `--start_port` asks for are in use\n  asked for  {start}\n  in use     {start} (another umiak job)\nhint: stop the processes that use them, choose another start, or leave `--start_port` out to use free ports\n125\n"
        )
    );
    assert!(!shell.sandbox.path().join("b").exists(), "the second made its log directory");
}

fn zero_and_empty() {
    for line in [
        "umiak python -m paddle.distributed.launch --nproc_per_node 0 train.py",
        "umiak launch --gpus '' train.py",
        "umiak launch --job_id '' train.py",
        "umiak launch --ips '' train.py",
        "PADDLE_DEVICES= umiak launch train.py",
        "umiak launch -- train.py",
        "umiak launch --nproc 1 --log_d log train.py",
        "umiak launch --nproc-per-node 1 --log-dir log train.py",
    ] {
        let shell = shell(None);
        let outcome = shell.line(line).finish();
        outcome.expect_code(0).expect_err("finished 1 rank");
        assert!(!outcome.err().contains("notice"), "{line}\n{}", outcome.err());
        assert!(shell.sandbox.path().join("started").exists(), "{line}");
        assert!(shell.sandbox.list("log").iter().any(|name| name.starts_with("default.")), "{line}");
    }
}

fn compat_ignores_unknown_flags() {
    let shell = shell(None);
    let outcome = shell.line("umiak launch --compat paddle --gpsu=0,1 --frobnicate train.py").finish();
    outcome.expect_code(0).expect_err("notice[L0023]: `--gpsu` and `--frobnicate` have no effect\n");
    assert!(shell.sandbox.path().join("started").exists());
    // Paddle's own command lines imply `--compat paddle`.
    for line in ["umiak fleetrun", "fleetrun", "umiak python3 -m paddle.distributed.launch"] {
        let outcome = shell.line(&format!("{line} --gpsu=0,1 train.py")).finish();
        outcome.expect_code(0).expect_err(
            "notice[L0023]: `--gpsu` has no effect: it is unknown, and ignored as in Paddle; did you mean `--gpus`?\n",
        );
        let outcome = starts_nothing(&shell, &format!("{line} --gpsu 0,1 train.py"));
        outcome.expect_code(127).expect_err(
            "hint: `--gpsu` is unknown, so `0,1` was read as the script, as Paddle does; did you mean `--gpus`?\n",
        );
    }
    let outcome = shell.line("umiak launch train.py --nproc_per_node 2").finish();
    outcome.expect_code(0).expect_err("notice[L0023]: `--nproc_per_node` follows the script and is passed to it\n");
}

/// Bytes that are not UTF-8 reach the script unchanged in arguments, names and variables.
fn names_need_not_be_text() {
    let shell = shell(None);
    let script = OsString::from_vec(b"show \xff".to_vec());
    let path = shell.sandbox.path().join(&script);
    std::fs::write(&path, "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\" \"$ODD\" > \"seen.$PADDLE_TRAINER_ID\"\n")
        .expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let log_dir = OsStr::from_bytes(b"logs \xfe");
    let mut arguments: Vec<&OsStr> = ["launch", "--nproc_per_node", "2", "--log_dir"].map(OsStr::new).to_vec();
    arguments.extend([log_dir, &script, OsStr::from_bytes(b"\xff\xfe"), OsStr::new("")]);
    arguments.extend(["a\nb", "启动"].map(OsStr::new));
    let outcome = shell.sandbox.umiak(arguments).env("ODD", OsStr::from_bytes(b"\xf0")).finish();
    outcome.expect_code(0);
    for rank in 0..2 {
        let seen = std::fs::read(shell.sandbox.path().join(format!("seen.{rank}"))).expect("the script ran");
        let arguments = [b"\xff\xfe||a\nb|".as_slice(), "启动|".as_bytes(), b"\xf0|"].concat();
        assert!(seen.ends_with(&[b"show \xff|".as_slice(), &arguments].concat()), "{seen:?}");
        assert!(shell.sandbox.path().join(log_dir).join(format!("workerlog.{rank}")).exists());
    }
}
