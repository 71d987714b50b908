//! The toy trainer: a rank that does what its arguments say. It is the test binary itself, started with `toy` as its
//! first argument, so that nothing else has to be built or found.
//!
//! Each further argument is `RANKS:ACTION;ACTION;…`, where RANKS is `*` or a comma-separated list; `RANKS@N` means
//! these ranks in attempt N only. A rank performs the actions of every argument that names it, in order, and then exits
//! with 0. See [`perform`] for the actions.
//!
//! In a parameter-server job a process has a name instead, such as `pserver-1` or `heter_trainer-0`. The list contains
//! that name or just the role; a number means a trainer.

pub mod actor;
pub mod family;
mod part;
pub(crate) mod process;
mod ring;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use umiak_core::model::FIRST_ATTEMPT;

/// Runs as the toy if this process was started as one, and returns the exit code.
pub fn run_if_asked() -> Option<u8> {
    if let Some(code) = actor::run_if_asked() {
        return Some(code);
    }
    let arguments: Vec<String> = std::env::args().collect();
    (arguments.get(1).map(String::as_str) == Some("toy")).then(|| run(&arguments[2..]))
}

fn run(arguments: &[String]) -> u8 {
    let own = part::Part::own();
    let restarts: Option<u32> = std::env::var("TORCHELASTIC_RESTART_COUNT").ok().and_then(|count| count.parse().ok());
    let attempt = restarts.map_or_else(String::new, |restarts| (FIRST_ATTEMPT + restarts).to_string());
    for argument in arguments {
        let (ranks, actions) = argument.split_once(':').expect("RANKS:ACTIONS");
        let (ranks, in_attempt) = ranks.split_once('@').unwrap_or((ranks, &attempt));
        if in_attempt != attempt {
            continue;
        }
        if !own.is_in(ranks) {
            continue;
        }
        for action in actions.split(';') {
            let (verb, value) = action.split_once(' ').unwrap_or((action, ""));
            if let Some(code) = perform(verb, value) {
                return code;
            }
        }
    }
    0
}

/// Performs one action; `Some` is an exit.
fn perform(verb: &str, value: &str) -> Option<u8> {
    let millis = || Duration::from_millis(value.parse().expect("milliseconds"));
    match verb {
        // Text with the escapes `\n`, `\r`, `\x41` and `\s` (a space).
        "print" => write_out(&mut std::io::stdout(), &[unescape(value), b"\n".to_vec()].concat()),
        "partial" => write_out(&mut std::io::stdout(), &unescape(value)),
        "err" => write_out(&mut std::io::stderr(), &[unescape(value), b"\n".to_vec()].concat()),
        "cat" => write_out(&mut std::io::stdout(), &std::fs::read(value).expect("the file to print")),
        "flood" => flood(value.parse().expect("bytes"), b"\n"),
        // One line without a newline.
        "flood-line" => flood(value.parse().expect("bytes"), b""),
        "sleep" => std::thread::sleep(millis()),
        "exit" => return Some(value.parse().expect("a code")),
        "signal" => {
            umiak_sys::descend::signal(std::process::id(), value.parse().expect("a signal"));
            std::thread::sleep(Duration::from_secs(60));
        }
        "ignore" => process::ignore_signal(value.parse().expect("a signal")),
        // Ignores SIGINT and SIGTERM.
        "stubborn" => [2, 15].into_iter().for_each(process::ignore_signal),
        // Exits with this code on SIGTERM, after printing a line.
        "on-term" => process::exit_on(&[15], value.parse().expect("a code")),
        "touch" => std::fs::write(value, "").expect("the file can be made"),
        "await" => await_file(Path::new(value)),
        // Waits until the process whose number is in this file has ended, or is suspended.
        "await-end" => await_state(Path::new(value), |state| state.is_none()),
        "await-suspended" => await_state(Path::new(value), |state| state == Some('T')),
        // A grandchild in the same group, or in its own session, that sleeps for a minute.
        "child" => spawn_sleeper(false),
        "daemon" => spawn_sleeper(true),
        // Both at once, forked without an exec, and registered.
        "family" => family::start(),
        // Real connections between neighbouring ranks.
        "ring" => ring::connect(),
        "ring-close" => ring::close(),
        "ring-wait" => ring::wait_for_loss(),
        "env" => dump_environment(value),
        // Parameter servers, and processes that connect to them.
        "listen" => part::listen(),
        "listen-once" => part::listen_once(),
        "listen-gloo" => part::listen_for_gloo(),
        "reach" => part::reach(),
        "seek" => part::seek(),
        "pid" => part::Part::own().write_pid(),
        "name" => write_out(&mut std::io::stdout(), format!("I am {}\n", part::Part::own()).as_bytes()),
        // Exits with this code the first time.
        "fail-once" => return part::Part::own().fails_first().then(|| value.parse().expect("a code")),
        // Deaths caused by the kernel: a bad address, in the main thread or another; memory; a full file system.
        "fault" => process::fault(),
        "fault-in-thread" => std::thread::spawn(process::fault).join().expect("never returns"),
        "allocate" => {
            std::hint::black_box(vec![1u8; value.parse().expect("bytes")]);
        }
        "map" => map_file(value),
        "burn" => burn(millis()),
        "stdin" => {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut std::io::stdin(), &mut text).expect("stdin can be read");
            write_out(&mut std::io::stdout(), format!("stdin {text:?}\n").as_bytes());
        }
        other => panic!("unknown toy action `{other}`"),
    }
    None
}

fn write_out(stream: &mut impl std::io::Write, bytes: &[u8]) {
    stream.write_all(bytes).and_then(|()| stream.flush()).expect("the log can be written");
}

fn flood(mut bytes: u64, line_end: &[u8]) {
    let line = [&b"0123456789abcdef".repeat(4), line_end].concat();
    let chunk = line.repeat(256);
    let mut stdout = std::io::stdout().lock();
    while bytes > 0 {
        let count = bytes.min(chunk.len() as u64);
        stdout.write_all(&chunk[..count as usize]).expect("the log can be written");
        bytes -= count;
    }
    stdout.flush().expect("the log can be written");
}

/// A sparse file of 1 MiB, every page of which is touched.
fn map_file(path: &str) {
    const LENGTH: usize = 1 << 20;
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path);
    let file = file.expect("the file can be made");
    file.set_len(LENGTH as u64).expect("a length");
    process::touch_pages(&file, LENGTH);
}

/// Keeps a CPU busy.
fn burn(duration: Duration) {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn await_file(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} never appeared", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn await_state(path: &Path, is_reached: impl Fn(Option<char>) -> bool) {
    await_file(path);
    let pid = std::fs::read_to_string(path).expect("a process id");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if is_reached(stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())) {
            return;
        }
        assert!(Instant::now() < deadline, "{pid} never changed: {stat}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn spawn_sleeper(own_session: bool) {
    let mut command = if own_session { Command::new("setsid") } else { Command::new("sleep") };
    if own_session {
        command.arg("sleep");
    }
    let child = command.arg("60").stdin(Stdio::null()).spawn().expect("sleep can be started");
    // Left running on purpose, as a careless trainer would.
    std::mem::forget(child);
}

fn dump_environment(path: &str) {
    let variables: serde_json::Map<String, serde_json::Value> =
        std::env::vars().map(|(name, value)| (name, value.into())).collect();
    let rank = part::Part::own().file_ending();
    std::fs::write(format!("{path}.{rank}"), serde_json::Value::from(variables).to_string()).expect("can be written");
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (escape, tail) = rest.split_first().expect("an escape after the backslash");
        rest = tail;
        match escape {
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b's' => bytes.push(b' '),
            b'c' => bytes.push(b';'),
            b'x' => {
                let digits = std::str::from_utf8(&rest[..2]).expect("two digits");
                bytes.push(u8::from_str_radix(digits, 16).expect("hexadecimal digits"));
                rest = &rest[2..];
            }
            other => bytes.push(*other),
        }
    }
    bytes
}
