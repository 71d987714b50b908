//! `umiak keep`. Its stdin is a pipe that the test holds.

use std::io::{PipeWriter, Write as _};
use std::time::{Duration, Instant};

use umiak_testkit::sandbox::{Running, Sandbox};
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("mpi::keep::the_exit_code_is_that_of_the_program", &[], codes)
        .test("mpi::keep::the_end_of_stdin_ends_the_program", &[], end_of_stdin)
        .test("mpi::keep::a_signal_ends_the_program", &[], signal)
        .test("mpi::keep::a_program_that_does_not_end_is_killed", &[], stubborn)
        .test("mpi::keep::two_requests_kill_at_once", &[], twice)
        .test("mpi::keep::nothing_is_left_of_a_killed_keeper", &[], killed_keeper);
}

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Ignores SIGTERM, and has children in other sessions.
const STUBBORN: &str = "trap '' TERM; setsid sleep 600 & touch ready; while :; do sleep 1; done";
/// Ends at SIGTERM, and leaves a process.
const POLITE: &str = "trap 'echo asked; exit 4' TERM; setsid sleep 600 & touch ready; while :; do sleep 0.1; done";

/// Runs a line of a shell under a keeper.
pub(super) fn keep<S: AsRef<std::ffi::OsStr>>(
    sandbox: &Sandbox,
    grace: u32,
    words: impl IntoIterator<Item = S>,
) -> (Running<'_>, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut run = sandbox.umiak(["keep", "--log", "log", "--grace", &grace.to_string(), "--"]).stdin(reader);
    run.command.args(words);
    (run.start(), writer)
}

fn line<'a>(sandbox: &'a Sandbox, grace: u32, line: &str) -> (Running<'a>, PipeWriter) {
    keep(sandbox, grace, ["/bin/sh", "-c", line])
}

fn codes() {
    for (text, code) in
        [("echo said; echo wrong >&2", 0), ("exit 3", 3), ("kill -9 $$", 137), ("setsid sleep 600 & exit 5", 5)]
    {
        let sandbox = Sandbox::new();
        let (running, _stdin) = line(&sandbox, 5, text);
        running.finish().expect_code(code);
        if code == 0 {
            assert_eq!(sandbox.read("log"), "said\nwrong\n");
        }
    }
    let sandbox = Sandbox::new();
    let (running, _stdin) = keep(&sandbox, 5, ["/nowhere/mpirun"]);
    running.finish().expect_code(125).expect_err("umiak could not run the program").expect_err("No such file");
}

fn end_of_stdin() {
    let sandbox = Sandbox::new();
    let (running, stdin) = line(&sandbox, 60, POLITE);
    running.wait_for_file("ready");
    drop(stdin);
    running.finish().expect_code(4);
    let log = sandbox.read("log");
    assert!(log.ends_with("asked\n"), "{log}");
}

fn signal() {
    let sandbox = Sandbox::new();
    let (running, _stdin) = line(&sandbox, 60, POLITE);
    running.wait_for_file("ready");
    running.signal(SIGTERM);
    running.finish().expect_code(4);
}

fn stubborn() {
    let sandbox = Sandbox::new();
    let (running, stdin) = line(&sandbox, 1, STUBBORN);
    running.wait_for_file("ready");
    let began = Instant::now();
    drop(stdin);
    running.finish().expect_code(137);
    assert!(began.elapsed() >= Duration::from_secs(1), "killed before its time");
}

fn twice() {
    let sandbox = Sandbox::new();
    let (running, mut stdin) = line(&sandbox, 600, STUBBORN);
    running.wait_for_file("ready");
    stdin.write_all(b"\n\n").expect("the keeper reads");
    running.finish().expect_code(137);
}

/// The sandbox checks that no process is left.
fn killed_keeper() {
    let sandbox = Sandbox::new();
    let (running, _stdin) = line(&sandbox, 1, STUBBORN);
    running.wait_for_file("ready");
    running.signal(SIGKILL);
    running.finish();
}
