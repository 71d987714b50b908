//! A replica with the commands of the mock engine, as a real process: the same document runs on every engine and must
//! produce the same facts. It is the test binary itself, under the name [`NAME`].
//!
//! The commands and their conditions are those of `umiak`'s `engine/mock.rs`. Commands that need a real process follow
//! them in [`act`].

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The program's name in documents.
pub const NAME: &str = "actor";

/// Open until the process exits.
static LISTENERS: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// Links the program into a directory that belongs on `PATH`.
pub fn install(directory: &Path) -> PathBuf {
    std::fs::create_dir_all(directory).expect("the sandbox can be written");
    let link = directory.join(NAME);
    std::os::unix::fs::symlink(std::env::current_exe().expect("the test binary has a path"), &link)
        .expect("the sandbox can be written");
    link
}

/// Runs as the actor if this process was started as one, and returns the exit code.
pub(super) fn run_if_asked() -> Option<u8> {
    let mut arguments = std::env::args();
    let program = arguments.next()?;
    if Path::new(&program).file_name()? != NAME {
        return None;
    }
    // What umiak ignores or blocks is none of its replicas' business, and that it is so is tested elsewhere.
    let (index, attempt) = (number("UMIAK_INDEX"), number("UMIAK_ATTEMPT"));
    for word in arguments {
        let Some(word) = holds(&word, index, attempt) else { continue };
        if let Some(code) = act(word) {
            return Some(code);
        }
    }
    Some(0)
}

fn number(variable: &str) -> u32 {
    let value = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is set by umiak"));
    value.parse().unwrap_or_else(|_| panic!("{variable} is a number: {value}"))
}

/// The command behind its condition `INDICES@ATTEMPT:`, of which both parts are optional; `None` if the condition is
/// false.
fn holds(word: &str, index: u32, attempt: u32) -> Option<&str> {
    let Some((condition, rest)) = word.split_once(':') else { return Some(word) };
    let is_condition = |c: char| c.is_ascii_digit() || c == ',' || c == '@';
    if condition.is_empty() || !condition.chars().all(is_condition) {
        return Some(word);
    }
    let (indices, attempts) = condition.split_once('@').unwrap_or((condition, ""));
    let names = |list: &str, number: u32| list.is_empty() || list.split(',').any(|one| one.parse() == Ok(number));
    (names(indices, index) && names(attempts, attempt)).then_some(rest)
}

/// Performs one command; `Some` is an exit.
fn act(word: &str) -> Option<u8> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    match name {
        "print" => super::write_out(&mut std::io::stdout(), format!("{value}\n").as_bytes()),
        "sleep" => std::thread::sleep(duration(value)),
        "ready" => listen(),
        "ignore-term" => [2, 15].into_iter().for_each(super::process::ignore_signal),
        "on-term" => super::process::exit_on(&[2, 15], value.parse().expect("a code")),
        "exit" => return Some(value.parse().expect("a code")),
        "signal" => {
            umiak_sys::descend::signal(std::process::id(), value.parse().expect("a signal"));
            std::thread::sleep(Duration::from_secs(60));
        }
        // Not in the mock: the value of a variable; connections to all endpoints in a variable; a daemon left behind.
        "variable" => {
            let text = format!("{value}={}\n", std::env::var(value).unwrap_or_else(|_| "(unset)".to_owned()));
            super::write_out(&mut std::io::stdout(), text.as_bytes());
        }
        "reach" => reach(value),
        "leave" => {
            let child = Command::new("setsid").args(["sleep", "60"]).stdin(Stdio::null()).spawn();
            std::mem::forget(child.expect("sleep can be started"));
        }
        other => panic!("unknown actor command `{other}`"),
    }
    None
}

fn duration(text: &str) -> Duration {
    match text.strip_suffix("ms") {
        Some(millis) => Duration::from_millis(millis.parse().expect("milliseconds")),
        None => Duration::from_secs_f64(text.strip_suffix('s').unwrap_or(text).parse().expect("seconds")),
    }
}

/// Listens on all its ports, at its own address.
fn listen() {
    let host = std::env::var("UMIAK_HOST").expect("UMIAK_HOST is set by umiak");
    for (_, ports) in std::env::vars().filter(|(name, _)| name.starts_with("UMIAK_PORTS_")) {
        for port in ports.split(',') {
            let endpoint = format!("{host}:{port}");
            let listener = TcpListener::bind(&endpoint).unwrap_or_else(|error| panic!("{endpoint}: {error}"));
            LISTENERS.lock().expect("one thread").push(listener);
        }
    }
}

fn reach(variable: &str) {
    let endpoints = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is set by umiak"));
    let deadline = Instant::now() + Duration::from_secs(60);
    for endpoint in endpoints.split(',') {
        while let Err(error) = TcpStream::connect(endpoint) {
            assert!(Instant::now() < deadline, "{endpoint}: {error}");
            std::thread::sleep(Duration::from_millis(2));
        }
        super::write_out(&mut std::io::stdout(), format!("reached {endpoint}\n").as_bytes());
    }
}
