//! Reads what a rank left about its end: the tail of its log since this run's offset, and torch's error file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use umiak_core::diagnose::{self, interface};
use umiak_core::facts::Evidence;
use umiak_core::model::Slot;
use umiak_core::plan::Log;
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

/// The size of an attempt's log, by stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogSize {
    out: u64,
    err: u64,
}

impl LogSize {
    pub(crate) fn of(log: &Log) -> Self {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        Self { out: size(&log.path), err: log.stderr.as_deref().map_or(0, size) }
    }

    pub(crate) fn total(self) -> u64 {
        self.out + self.err
    }
}

/// Where an attempt's output is in each of its files.
fn pieces(log: &Log, end: Option<LogSize>) -> impl Iterator<Item = Piece<'_>> {
    let out = Piece { path: &log.path, start: log.start, end: end.map(|end| end.out) };
    let err = log.stderr.as_deref().map(|path| Piece { path, start: 0, end: end.map(|end| end.err) });
    std::iter::once(out).chain(err)
}

/// The part of one file that belongs to an attempt. `end` limits it to lines from before our stop.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    path: &'a Path,
    start: u64,
    end: Option<u64>,
}

/// Reads the evidence of a rank. `end` limits the log to lines from before our stop. Errors are looked for in stderr first,
/// if it has a log of its own.
pub(crate) fn read(log: &Log, end: Option<LogSize>, error_file: &Path) -> Evidence {
    let error = error_of(error_file);
    let extract = |piece: Piece<'_>, error: Option<&[u8]>| {
        let (tail, first_line) = tail(piece, TAIL).unwrap_or_default();
        diagnose::extract(&tail, first_line, error)
    };
    let mut pieces = pieces(log, end);
    let out = pieces.next().expect("there is a log");
    let Some(err) = pieces.next() else { return extract(out, error.as_deref()) };
    let err = Evidence { stderr: true, ..extract(err, error.as_deref()) };
    if err.headline.is_some() {
        return err;
    }
    let out = extract(out, None);
    if out.headline.is_some() || err.last_lines.is_empty() { out } else { err }
}

/// What a rank wrote to its error file, unless that is too long or not a regular file.
pub(crate) fn error_of(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(ERROR_FILE + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= ERROR_FILE).then_some(bytes)
}

/// The rank may have replaced its files.
fn open(path: &Path) -> Option<File> {
    regular::open_to_read(path).ok()
}

/// The last lines before `end`, for a quick check.
pub(crate) fn glance(log: &Log, end: Option<LogSize>) -> Vec<u8> {
    let glance = |piece: Piece<'_>| {
        let Some(file) = open(piece.path) else { return Vec::new() };
        let end = piece.end.or_else(|| Some(file.metadata().ok()?.len())).unwrap_or(0);
        let from = piece.start.max(end.saturating_sub(GLANCE));
        let mut bytes = vec![0; end.saturating_sub(from) as usize];
        let count = read_at(&file, &mut bytes, from).unwrap_or(0);
        bytes.truncate(count);
        bytes
    };
    joined(pieces(log, end).map(glance))
}

/// The last output of each stream, one after the other, each from the beginning of a line.
fn joined(streams: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    streams.fold(Vec::new(), |mut all, stream| {
        if all.last().is_some_and(|last| *last != b'\n') && !stream.is_empty() {
            all.push(b'\n');
        }
        all.extend(stream);
        all
    })
}

/// True if these lines look like an error.
pub(crate) fn has_error(lines: &[u8]) -> bool {
    ["Error", "Exception", "Traceback", "error:"]
        .iter()
        .any(|word| lines.windows(word.len()).any(|window| window == word.as_bytes()))
}

/// Returns the last bytes of this run's part, and the number of their first line.
fn tail(piece: Piece<'_>, length: u64) -> Option<(Vec<u8>, Option<u64>)> {
    let file = open(piece.path)?;
    let (bytes, from) = end_of(&file, piece.start, piece.end, length)?;
    Some((bytes, (from <= COUNTABLE).then(|| lines_before(&file, from) + 1)))
}

/// The last bytes of an attempt's part, in which a text is searched.
pub(crate) fn last_bytes(log: &Log, end: Option<LogSize>, length: u64) -> Vec<u8> {
    let last = |piece: Piece<'_>| {
        open(piece.path).and_then(|file| end_of(&file, piece.start, piece.end, length)).unwrap_or_default().0
    };
    joined(pieces(log, end).map(last))
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
        let (bytes, line) = tail(Piece { path: &log, start: 12, end: None }, TAIL).unwrap();
        assert_eq!((bytes.as_slice(), line), (b"new 1\nnew 2\n".as_slice(), Some(3)));
    }

    #[test]
    fn streams_are_joined_at_lines() {
        let join = |streams: [&str; 2]| joined(streams.iter().map(|stream| stream.as_bytes().to_vec()));
        assert_eq!(join(["epoch 3", "ValueError: x"]), b"epoch 3\nValueError: x");
        assert_eq!(join(["epoch 3\n", "x"]), b"epoch 3\nx");
        assert_eq!(join(["epoch 3", ""]), b"epoch 3");
    }

    #[test]
    fn an_error_is_found_in_either_stream() {
        let directory = tempfile::tempdir().unwrap();
        let [out, err] = ["stdout.log", "stderr.log"].map(|name| directory.path().join(name));
        let log = Log { stderr: Some(err.clone()), ..Log::new(out.clone()) };
        for (on_out, on_err, headline, last, stderr) in [
            ("step 1\n", "ValueError: bad\n", Some("ValueError: bad"), "ValueError: bad", true),
            ("fatal error: disk\n", "UserWarning: x\n", Some("fatal error: disk"), "fatal error: disk", false),
            ("step 1\n", "UserWarning: x\n", None, "UserWarning: x", true),
            ("step 1\n", "", None, "step 1", false),
        ] {
            std::fs::write(&out, on_out).unwrap();
            std::fs::write(&err, on_err).unwrap();
            let found = read(&log, None, Path::new("/nowhere"));
            let line = found.headline.as_ref().map(|line| line.text.as_str());
            assert_eq!((line, found.last_lines.last().unwrap().as_str(), found.stderr), (headline, last, stderr));
            assert_eq!(read(&log, Some(LogSize::default()), Path::new("/nowhere")).last_lines, Vec::<String>::new());
        }
    }
}
