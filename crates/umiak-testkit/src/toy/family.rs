//! Grandchildren: processes that a rank starts and forgets, registered for the test.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use super::process::{Grandchild, set_name, start_grandchild};
use umiak_sys::descend::start_time;

/// The file where members of a family register, in the job's directory.
pub const REGISTER: &str = "family";

/// Longer than any test waits for them to exit, short enough that a failed test leaves nothing for long.
const LIFE: Duration = Duration::from_secs(60);

/// Becomes a rank with one grandchild in its group and one daemon. All of them write `NAME PID START` into
/// [`REGISTER`].
pub(super) fn start() {
    set_name("toy-rank");
    register();
    start_grandchild(Grandchild::InGroup, live);
    start_grandchild(Grandchild::Daemon, live);
    register_as("toy-complete");
}

fn live() {
    register();
    std::thread::sleep(LIFE);
}

fn register() {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    register_as(name.trim_end());
}

/// One write to a file opened for appending, so that members do not overwrite each other.
fn register_as(name: &str) {
    let pid = std::process::id();
    let line = format!("{name} {pid} {}\n", start_time(pid).unwrap_or(0));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(REGISTER);
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The registered members: name, process id, start time.
pub fn read_register(directory: &Path) -> Vec<(String, u32, u64)> {
    let text = std::fs::read_to_string(directory.join(REGISTER)).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })
        .collect()
}
