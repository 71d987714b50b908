//! Reads what a rank left about its end: the tail of its log since this run's offset, and torch's error file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use umiak_core::diagnose::{self, interface};
use umiak_core::facts::Evidence;
use umiak_core::model::Slot;
use umiak_sys::wait::{fill_at, read_at};
use umiak_sys::{host, regular};

/// Length of the tail that is read.
const TAIL: u64 = 64 << 10;
/// Length of the quick check. The stack of a C++ exception follows the message.
const GLANCE: u64 = 8 << 10;
/// Beyond this offset lines are not counted: it would take too long.
const COUNTABLE: u64 = 32 << 20;
/// Larger error files are ignored.
const ERROR_FILE: u64 = 1 << 20;

/// Reads the evidence of a rank. `end` limits the log to lines from before our stop.
pub(crate) fn read(log: &Path, start: u64, end: Option<u64>, error_file: &Path) -> Evidence {
    let (tail, first_line) = tail(log, start, end, TAIL).unwrap_or_default();
    diagnose::extract(&tail, first_line, error_of(error_file).as_deref())
}

fn error_of(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(ERROR_FILE + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= ERROR_FILE).then_some(bytes)
}

/// The rank may have replaced its files.
fn open(path: &Path) -> Option<File> {
    regular::open_to_read(path).ok()
}

/// The last lines before `end`, for a quick check.
pub(crate) fn glance(log: &Path, start: u64, end: Option<u64>) -> Vec<u8> {
    let Some(file) = open(log) else { return Vec::new() };
    let end = end.or_else(|| Some(file.metadata().ok()?.len())).unwrap_or(0);
    let from = start.max(end.saturating_sub(GLANCE));
    let mut bytes = vec![0; end.saturating_sub(from) as usize];
    let count = read_at(&file, &mut bytes, from).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

/// True if these lines look like an error.
pub(crate) fn has_error(lines: &[u8]) -> bool {
    ["Error", "Exception", "Traceback", "error:"]
        .iter()
        .any(|word| lines.windows(word.len()).any(|window| window == word.as_bytes()))
}

/// Returns the last bytes of this run's part, and the number of their first line.
fn tail(log: &Path, start: u64, end: Option<u64>, length: u64) -> Option<(Vec<u8>, Option<u64>)> {
    let file = open(log)?;
    let (bytes, from) = end_of(&file, start, end, length)?;
    Some((bytes, (from <= COUNTABLE).then(|| lines_before(&file, from) + 1)))
}

/// The last bytes of an attempt's part, in which a text is searched.
pub(crate) fn last_bytes(log: &Path, start: u64, end: Option<u64>, length: u64) -> Vec<u8> {
    open(log).and_then(|file| end_of(&file, start, end, length)).unwrap_or_default().0
}

/// The last bytes before `end`, and where they begin.
fn end_of(file: &File, start: u64, end: Option<u64>, length: u64) -> Option<(Vec<u8>, u64)> {
    let size = file.metadata().ok()?.len();
    let end = end.map_or(size, |end| end.min(size));
    // A log shorter than this run's offset was truncated since: all of it belongs to this run.
    let start = if start > size { 0 } else { start };
    let from = start.max(end.saturating_sub(length));
    let mut bytes = vec![0; end.saturating_sub(from) as usize];
    let filled = fill_at(file, &mut bytes, from).unwrap_or(0);
    bytes.truncate(filled);
    Some((bytes, from))
}

fn lines_before(file: &File, end: u64) -> u64 {
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    let mut lines = 0;
    while offset < end {
        let wanted = (end - offset).min(buffer.len() as u64) as usize;
        match read_at(file, &mut buffer[..wanted], offset) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                lines += buffer[..count].split(|byte| *byte == b'\n').count() as u64 - 1;
                offset += count as u64;
            }
        }
    }
    lines
}

/// Adds the interfaces of this host where one is missing.
pub(crate) fn add_interfaces<'a>(evidence: impl Iterator<Item = &'a mut Evidence>) {
    let mut present = None;
    for evidence in evidence.filter(|evidence| interface::is_missing(evidence)) {
        interface::complete(evidence, present.get_or_insert_with(interfaces));
    }
}

/// The interfaces that have an address, each once.
fn interfaces() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for address in host::addresses() {
        if !names.contains(&address.interface) {
            names.push(address.interface);
        }
    }
    names
}

/// Returns the evidence of a replica, added if missing.
pub(crate) fn of_slot(evidence: &mut Vec<(Slot, Evidence)>, slot: Slot) -> &mut Evidence {
    let position = evidence.iter().position(|(other, _)| *other == slot).unwrap_or_else(|| {
        evidence.push((slot, Evidence::default()));
        evidence.len() - 1
    });
    &mut evidence[position].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_begins_at_this_run_and_knows_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        std::fs::write(&log, "old 1\nold 2\nnew 1\nnew 2\n").unwrap();
        let (bytes, line) = tail(&log, 12, None, TAIL).unwrap();
        assert_eq!((bytes.as_slice(), line), (b"new 1\nnew 2\n".as_slice(), Some(3)));
    }
}
