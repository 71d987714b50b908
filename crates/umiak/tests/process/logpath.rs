//! From a rank's write to the reader of umiak's stdout: every byte, in order, at any reading speed.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use umiak_testkit::sandbox::{Running, Sandbox, toy};
use umiak_testkit::suite::Suite;

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("logpath::any_bytes_pass_unchanged", &[], any_bytes)
        .test("logpath::a_line_without_end_passes_in_little_memory", &[], endless_line)
        .test("logpath::a_rank_that_fails_after_an_endless_line_is_explained", &[], endless_line_then_failure)
        .test("logpath::a_rank_that_replaces_its_files_by_pipes_is_named", &[], replaced)
        .test("logpath::a_slow_reader_slows_nobody", &[], slow_reader)
        .test("logpath::the_launcher_ends_after_the_last_byte", &[], ends_after_the_last_byte)
        .test("logpath::a_reader_that_never_was_stops_nothing", &[], dead_reader);
}

/// Fails unless the console and the rank's log are equal; compares in blocks, because both are large.
fn assert_equal(mut console: impl Read, log: &Path) -> u64 {
    let mut log = File::open(log).expect("the rank has a log");
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut offset = 0;
    loop {
        let count = console.read(&mut left).expect("the console can be read");
        if count == 0 {
            assert_eq!(log.read(&mut right).expect("the log can be read"), 0, "the console ended at {offset}");
            return offset;
        }
        log.read_exact(&mut right[..count]).expect("the console has bytes that are not in the log");
        assert!(left[..count] == right[..count], "different after {offset}");
        offset += count as u64;
    }
}

fn any_bytes() {
    let sandbox = Sandbox::new();
    let all: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let file = sandbox.write("bytes", &all).display().to_string();
    // Progress bars overwrite their line, and a read may end inside a character.
    let actions =
        format!("0:partial  10%\\r;partial  20%\\r;partial \\xe6\\x97;sleep 20;partial \\xa5\\xff\\xfe;cat {file}");
    let mut run = sandbox.launch_toy("--nproc_per_node 2", &[&actions]).start_unread();
    let length = assert_equal_at_the_end(&mut run, &sandbox);
    run.finish().expect_code(0);
    assert_eq!(length, 100_000 + 5 + 5 + 2 + 3);
}

/// Reads the console to its end, then compares.
fn assert_equal_at_the_end(run: &mut Running<'_>, sandbox: &Sandbox) -> u64 {
    let mut console = Vec::new();
    run.take_stdout().read_to_end(&mut console).expect("the console can be read");
    assert_equal(console.as_slice(), &sandbox.path().join("log/workerlog.0"))
}

/// 200 MB; `UMIAK_TEST_LARGE` makes it a gigabyte.
fn large() -> u64 {
    if std::env::var_os("UMIAK_TEST_LARGE").is_some() { 1 << 30 } else { 200 << 20 }
}

fn endless_line() {
    let sandbox = Sandbox::new();
    let size = large();
    let actions = format!("0:flood-line {size};touch done");
    let mut run = sandbox.launch_toy("--nproc_per_node 1", &[&actions]).start_unread();
    run.wait_for_file("done");
    let mut console = run.take_stdout();
    let log = sandbox.path().join("log/workerlog.0");
    // Leaves the last megabyte unread, so that the launcher is still alive when its memory is measured.
    let most = assert_prefix(&mut console, &log, size - (1 << 20));
    let peak = peak_memory(run.pid());
    assert!(peak < 64 << 20, "{peak} bytes for one line");
    let mut rest = Vec::new();
    console.read_to_end(&mut rest).expect("the console can be read");
    run.finish().expect_code(0);
    assert_eq!(most + rest.len() as u64, size);
    let mut end = vec![0; rest.len()];
    umiak_sys::wait::read_at(&File::open(&log).expect("a log"), &mut end, most).expect("the log can be read");
    assert!(rest == end, "the end differs");
}

fn assert_prefix(console: &mut impl Read, log: &Path, length: u64) -> u64 {
    let mut log = File::open(log).expect("the rank has a log");
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut offset = 0;
    while offset < length {
        let count = console.read(&mut left).expect("the console can be read");
        assert!(count > 0, "the console ended at {offset}");
        log.read_exact(&mut right[..count]).expect("the console has bytes that are not in the log");
        assert!(left[..count] == right[..count], "different after {offset}");
        offset += count as u64;
    }
    offset
}

fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the launcher lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).expect("a number") << 10
}

fn endless_line_then_failure() {
    let sandbox = Sandbox::new();
    let actions = "1:flood-line 100000000;partial \\nValueError: bad batch\\n;exit 3";
    let outcome = sandbox.launch_toy("--nproc_per_node 2", &[actions, "0:sleep 60000"]).finish();
    outcome.expect_code(3).expect_err("rank=[1] was aborted").expect_err("ValueError: bad batch");
    assert!(outcome.stderr.len() < 1 << 20, "{} bytes of explanation", outcome.stderr.len());
    // The same without an end of the line.
    let outcome = sandbox
        .launch_toy("--nproc_per_node 2 --log_dir other", &["1:flood-line 100000000;exit 3", "0:sleep 60000"])
        .finish();
    outcome.expect_code(3).expect_err("rank=[1] was aborted");
    assert!(outcome.stderr.len() < 1 << 20, "{} bytes of explanation", outcome.stderr.len());
}

fn slow_reader() {
    let sandbox = Sandbox::new();
    let size = 64 << 20;
    let mut run = sandbox.launch_toy("--nproc_per_node 2", &[&format!("0:flood {size};touch done")]).start_unread();
    let mut console = run.take_stdout();
    let log = sandbox.path().join("log/workerlog.0");
    run.wait_until("the log", || log.exists());
    let mut file = File::open(&log).expect("a log");
    let mut read = 0;
    let (mut left, mut right) = (vec![0; 1 << 14], vec![0; 1 << 14]);
    let mut take = |console: &mut dyn Read| {
        let count = console.read(&mut left).expect("the console can be read");
        file.read_exact(&mut right[..count]).expect("the console has bytes that are not in the log");
        assert!(left[..count] == right[..count], "different after {read}");
        read += count;
        (count, read)
    };
    // One megabyte per second.
    while !sandbox.path().join("done").exists() {
        assert!(take(&mut console).1 < size / 2, "the rank waited for its reader");
        std::thread::sleep(Duration::from_millis(16));
    }
    while take(&mut console).0 > 0 {}
    assert_eq!(take(&mut console).1, size);
    run.finish().expect_code(0);
}

fn ends_after_the_last_byte() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.launch_toy("--nproc_per_node 2", &["0:flood 1000000;partial end"]).start_unread();
    let console = run.take_stdout();
    // Ranks and guardian have ended, and the pipe holds only part of the output.
    let pid = run.pid();
    run.wait_until("the guardian's end", || {
        sandbox.read_if_there("log/workerlog.0").is_some_and(|log| log.ends_with(b"end"))
            && umiak_sys::descend::children(pid).is_empty()
    });
    assert!(run.is_running(), "the launcher left before its reader had everything");
    assert_equal(console, &sandbox.path().join("log/workerlog.0"));
    run.finish().expect_code(0).expect_err("finished 2 ranks");
}

fn dead_reader() {
    let shell = Shell::with_decoy();
    // The reader exits before the first byte.
    let line = format!("{{ sleep 0.2; umiak launch '{}' toy '0:flood 300000;print end'; echo $? >&2; }} | :", toy());
    let outcome = shell.line(&line).finish();
    outcome.expect_code(0).expect_err("finished 1 rank");
    assert!(outcome.err().ends_with("\n0\n"), "{}", outcome.err());
    assert!(shell.sandbox.read("log/workerlog.0").ends_with("end\n"), "the log is whole");
}

/// Every rank replaces its log and its error file by named pipes; then one fails, and the others are stopped.
const REPLACES: &str = "\
import os, sys, time

rank = os.environ['PADDLE_TRAINER_ID']
for path in ['log/workerlog.' + rank, os.environ['TORCHELASTIC_ERROR_FILE']]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path):
        os.remove(path)
    os.mkfifo(path)
open('up-' + rank, 'w').close()
while rank != sys.argv[1]:
    time.sleep(0.01)
while not (os.path.exists('up-0') and os.path.exists('up-1')):
    time.sleep(0.01)
sys.exit(3)
";

fn replaced() {
    // Rank 0 is shown on the console.
    for rank in ["0", "1"] {
        let sandbox = Sandbox::new();
        sandbox.write("train.py", REPLACES);
        let outcome = sandbox.umiak(["launch", "--nproc_per_node", "2", "train.py", rank]).finish();
        outcome.expect_code(3).expect_err(&format!("✗ rank {rank} on ")).expect_err("exited with 3");
        sandbox.umiak(["explain"]).finish().expect_code(0);
    }
}
