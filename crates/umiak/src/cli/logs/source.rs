//! Where the output of an attempt is, and which part of it to show. Both ends of a file are found without reading what
//! lies between them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, LogEnd, PlannedReplica, Record};
use umiak_sys::logger;
use umiak_sys::regular;
use umiak_sys::wait::{fill_at, read_at};

use crate::cli::runs::talk;
use crate::history::{RunDir, RunId, ids, is_held, journal};
use crate::host::log_end;
use crate::views::logs::LogOwner;

const BLOCK: usize = 128 << 10;

/// Where the output of an attempt goes, according to its plan.
#[derive(Debug)]
pub(super) struct Pointer {
    owner: LogOwner,
    attempt: u32,
    path: PathBuf,
    /// Of stderr, if it has its own.
    stderr: Option<PathBuf>,
    start: LogPlace,
    /// Recorded when the attempt ends: what follows is of another run.
    end: Option<LogEnd>,
    /// For an attempt without a recorded end: where a later run begins in the same log.
    later: Option<LogPlace>,
    is_gone: bool,
}

/// A place in a log: the number of the last file that rotation has finished, and an offset in the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LogPlace {
    rotated: u64,
    offset: u64,
}

impl LogPlace {
    fn start_of(place: &PlannedReplica) -> Self {
        Self { rotated: place.log_rotated, offset: place.log_start }
    }
}

/// All pointers of a run, in the order of the plans.
pub(super) fn pointers(run: &RunDir) -> Result<Vec<Pointer>, Diagnostic> {
    let mut pointers = Vec::new();
    journal::each(run, |item| note(run, &item.record, &mut pointers))?;
    let is_open = |pointer: &Pointer| pointer.end.is_none() && !pointer.path.starts_with(run.path());
    if pointers.iter().any(is_open) && !is_held(run)? {
        let later = later_starts(run)?;
        for pointer in pointers.iter_mut().filter(|pointer| is_open(pointer)) {
            let mut starts = later.iter().filter(|(path, _)| *path == pointer.path).map(|(_, start)| *start);
            pointer.later = starts.next();
            // A later run that begins before another one has overwritten the file.
            pointer.is_gone = starts.any(|start| Some(start) < pointer.later);
        }
    }
    Ok(pointers)
}

/// Where later runs began in log files, in the order of the runs. A killed supervisor has not recorded where its own
/// run ended.
fn later_starts(run: &RunDir) -> Result<Vec<(PathBuf, LogPlace)>, Diagnostic> {
    let home = run.home();
    let mut starts = Vec::new();
    let mut later: Vec<RunId> = ids(&home)?.into_iter().filter(|id| *id > run.id()).collect();
    later.sort_unstable();
    for later in later.into_iter().map(|id| RunDir::at(&home, id)) {
        // Unreadable journals are skipped.
        let Ok(mut reader) = journal::Reader::open(&later) else { continue };
        while let Ok(Some(item)) = reader.next() {
            if let Fact::Planned(planned) = &item.record.fact {
                let places = planned.replicas.iter();
                starts.extend(places.map(|place| (later.path().join(&place.log), LogPlace::start_of(place))));
                break;
            }
        }
    }
    Ok(starts)
}

/// Updates the pointers from a record. Relative paths are relative to the run directory.
pub(super) fn note(run: &RunDir, record: &Record, pointers: &mut Vec<Pointer>) {
    let owner = |replica: &String| LogOwner { step: record.step.clone(), replica: replica.clone() };
    match &record.fact {
        Fact::Planned(planned) => pointers.extend(planned.replicas.iter().map(|place| Pointer {
            owner: owner(&place.replica),
            attempt: planned.attempt,
            path: run.path().join(&place.log),
            stderr: place.stderr.as_ref().map(|path| run.path().join(path)),
            start: LogPlace::start_of(place),
            end: None,
            later: None,
            is_gone: false,
        })),
        Fact::Ended { subject, log_end: Some(end), .. } => {
            let owner = owner(&subject.replica);
            let of = |pointer: &&mut Pointer| (&pointer.owner, pointer.attempt) == (&owner, subject.attempt);
            if let Some(pointer) = pointers.iter_mut().rev().find(of) {
                pointer.end = Some(end.clone());
            }
        }
        _ => {}
    }
}

impl Pointer {
    /// The files with the attempt's output, and whether rotation has finished some. `next` is where the next attempt
    /// begins.
    fn parts(&self, next: Option<LogPlace>) -> (Vec<Part>, bool) {
        let recorded = self.end.as_ref().map(|end| LogPlace { rotated: end.rotated, offset: end.at });
        let end = next.into_iter().chain(recorded.or(self.later)).min();
        let finished = logger::numbers(&self.path);
        let last = end.map_or(u64::MAX, |end| end.rotated);
        let first = |number: u64| if number == self.start.rotated + 1 { self.start.offset } else { 0 };
        let ours = finished.iter().copied().filter(|number| (self.start.rotated + 1..=last).contains(number));
        let mut parts: Vec<Part> = ours
            .map(|number| Part { start: first(number), ..Part::whole(logger::finished(&self.path, number)) })
            .collect();
        let is_cut = !parts.is_empty() || last != u64::MAX && last > self.start.rotated;
        // The file that was written last: a later run may have rotated it, and dropped it.
        let (path, is_dropped) = match finished.iter().find(|number| **number > last) {
            Some(number) if *number == last + 1 => (logger::finished(&self.path, *number), false),
            Some(_) => (self.path.clone(), true),
            None => (self.path.clone(), false),
        };
        let start = if is_cut { 0 } else { self.start.offset };
        let (own, is_gone) = (self.end.clone(), self.is_gone || is_dropped);
        parts.push(Part { path, start, end: end.map(|end| end.offset), own, is_gone });
        (parts, is_cut)
    }
}

/// Which part of the output to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    All,
    Last { count: u64, bytes: bool },
    First { count: u64, bytes: bool },
}

/// The output of one attempt: usually a part of one file, or several files if the log was rotated.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// For messages.
    owner: String,
    attempt: u32,
    parts: Vec<Part>,
    is_cut: bool,
}

#[derive(Debug, Clone)]
struct Part {
    path: PathBuf,
    start: u64,
    /// Where the next attempt or another run begins.
    end: Option<u64>,
    /// The recorded end that the file must still have.
    own: Option<LogEnd>,
    is_gone: bool,
}

impl Part {
    /// The whole file.
    fn whole(path: PathBuf) -> Self {
        Self { path, start: 0, end: None, own: None, is_gone: false }
    }
}

impl Source {
    /// The logs of an attempt: one, or one for each stream.
    pub(super) fn all(run: &RunDir, pointers: &[Pointer], owner: &LogOwner, attempt: u32) -> Vec<Self> {
        let first = Self::find(run, pointers, owner, attempt);
        let mut pointers = pointers.iter().rev();
        let pointer = pointers.find(|pointer| pointer.owner == *owner && pointer.attempt == attempt);
        let stderr = pointer.and_then(|pointer| pointer.stderr.clone());
        let stderr = stderr.map(|path| Self { parts: vec![Part::whole(path)], is_cut: false, ..first.clone() });
        std::iter::once(first).chain(stderr).collect()
    }

    /// Finds the log in the run directory, else at the place that the plan of the attempt names.
    fn find(run: &RunDir, pointers: &[Pointer], owner: &LogOwner, attempt: u32) -> Self {
        let pointer = pointers.iter().rev().find(|pointer| pointer.owner == *owner && pointer.attempt == attempt);
        let own =
            run.own_log(owner.step.as_ref(), &owner.replica, attempt, pointer.map(|pointer| pointer.path.as_path()));
        let (parts, is_cut) = match (own, pointer) {
            (Some(own), _) => Self::in_own_directory(&own),
            (None, Some(pointer)) => {
                let later = pointers
                    .iter()
                    .filter(|other| other.owner == *owner && other.attempt > attempt && other.path == pointer.path);
                pointer.parts(later.map(|other| other.start).min())
            }
            (None, None) => unreachable!("an attempt without a plan has a log of its own"),
        };
        Self { owner: owner.to_string(), attempt, parts, is_cut }
    }

    /// The log of an attempt with a directory of its own.
    fn in_own_directory(path: &Path) -> (Vec<Part>, bool) {
        let finished = logger::numbers(path);
        let is_cut = !finished.is_empty();
        let finished = finished.into_iter().map(|number| logger::finished(path, number));
        (finished.chain([path.to_owned()]).map(Part::whole).collect(), is_cut)
    }

    /// The file that grows, and where this attempt begins in it.
    pub(super) fn current(&self) -> (&Path, u64) {
        let part = self.parts.last().expect("there is at least one part");
        (&part.path, part.start)
    }

    /// Opens the files, each limited to the part to show, in order.
    pub(super) fn open(&self, window: Window) -> Result<Vec<Open>, Diagnostic> {
        let who = format!("`{}`, attempt {}", self.owner, self.attempt);
        if self.is_cut {
            talk(
                &Diagnostic::notice(Code::J0010, format!("the log of {who} was rotated: only what is left is shown"))
                    .row("files", format!("{} beside `{}`", self.parts.len() - 1, self.current().0.display())),
            );
        }
        let mut opened = Vec::new();
        for part in &self.parts {
            let fail = |error: io::Error| unreadable(&self.owner, self.attempt, &part.path, &error);
            let file = match regular::open_to_read(&part.path) {
                // Removed by rotation in the meantime; later files still exist.
                Err(error) if error.kind() == io::ErrorKind::NotFound && opened.len() + 1 < self.parts.len() => {
                    continue;
                }
                other => other.map_err(fail)?,
            };
            let length = file.metadata().map_err(fail)?.len();
            let is_same = match &part.own {
                Some(end) => !part.is_gone && log_end::is_same(&file, part.start, end).map_err(fail)?,
                None => !part.is_gone && part.end.is_none_or(|end| end >= part.start),
            };
            if !is_same {
                return Err(written_anew(&who, &part.path));
            }
            let mut start = part.start;
            if length < start {
                talk(
                    &Diagnostic::notice(
                        Code::J0010,
                        format!("the log of {who} was truncated: only what is left is shown"),
                    )
                    .row("file", part.path.display().to_string())
                    .row("expected", format!("at least {start} bytes, found {length}")),
                );
                start = 0;
            }
            let end = part.end.unwrap_or(length).clamp(start, length);
            opened.push(Open { file, path: part.path.clone(), offset: start, end, buffer: vec![0; BLOCK] });
        }
        let fail = |error: io::Error| unreadable(&self.owner, self.attempt, self.current().0, &error);
        match window {
            Window::All => {}
            Window::Last { count, bytes } => last(&mut opened, count, bytes).map_err(fail)?,
            Window::First { count, bytes } => first(&mut opened, count, bytes).map_err(fail)?,
        }
        Ok(opened)
    }
}

/// Moves the beginnings so that only the last `count` lines or bytes are left.
fn last(opened: &mut [Open], count: u64, bytes: bool) -> io::Result<()> {
    let mut left = count;
    for open in opened.iter_mut().rev() {
        if bytes {
            let take = left.min(open.end - open.offset);
            open.offset = open.end - take;
            left -= take;
        } else {
            let (at, found) = lines_from_end(&open.file, open.offset, open.end, left)?;
            open.offset = at;
            left -= found;
        }
    }
    Ok(())
}

/// Moves the ends so that only the first `count` lines or bytes are left.
fn first(opened: &mut [Open], count: u64, bytes: bool) -> io::Result<()> {
    let mut left = count;
    for open in opened {
        if bytes {
            let take = left.min(open.end - open.offset);
            open.end = open.offset + take;
            left -= take;
        } else {
            let mut at = open.offset;
            let mut buffer = vec![0; BLOCK];
            while left > 0 && at < open.end {
                let wanted = (open.end - at).min(BLOCK as u64) as usize;
                let read = read_at(&open.file, &mut buffer[..wanted], at)?;
                if read == 0 {
                    break;
                }
                let mut used = read;
                for (position, _) in buffer[..read].iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                    left -= 1;
                    if left == 0 {
                        used = position + 1;
                        break;
                    }
                }
                at += used as u64;
            }
            open.end = at;
        }
    }
    Ok(())
}

/// Where the last `count` lines begin, and how many there are. A last line without a line feed counts.
fn lines_from_end(file: &File, start: u64, end: u64, count: u64) -> io::Result<(u64, u64)> {
    if count == 0 || start == end {
        return Ok((end, 0));
    }
    let mut found = 0;
    let mut buffer = vec![0; BLOCK];
    let mut at = end;
    while at > start {
        let begin = at.saturating_sub(BLOCK as u64).max(start);
        let size = (at - begin) as usize;
        let filled = fill_at(file, &mut buffer[..size], begin)?;
        for position in (0..filled).rev().filter(|position| buffer[*position] == b'\n') {
            let after = begin + position as u64 + 1;
            // The line feed at the very end belongs to the last line; each other one ends the line before.
            if after == end {
                continue;
            }
            found += 1;
            if found == count {
                return Ok((after, found));
            }
        }
        at = begin;
    }
    Ok((start, found + 1))
}

/// An open file and the range left to read.
#[derive(Debug)]
pub(super) struct Open {
    file: File,
    path: PathBuf,
    offset: u64,
    end: u64,
    buffer: Vec<u8>,
}

impl Open {
    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// When the file was last modified, in microseconds since the Unix epoch.
    pub(super) fn changed(&self) -> Option<u64> {
        let changed = self.file.metadata().ok()?.modified().ok()?;
        Some(changed.duration_since(std::time::UNIX_EPOCH).ok()?.as_micros() as u64)
    }

    /// The position of the next read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn file(self) -> File {
        self.file
    }

    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let wanted = (self.end - self.offset).min(BLOCK as u64) as usize;
        let count = read_at(&self.file, &mut self.buffer[..wanted], self.offset)?;
        self.offset += count as u64;
        Ok((count > 0).then(|| &self.buffer[..count]))
    }
}

pub(super) fn unreadable(replica: &str, attempt: u32, path: impl AsRef<Path>, error: &io::Error) -> Diagnostic {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    };
    Diagnostic::error(Code::J0009, format!("the log of `{replica}`, attempt {attempt}, cannot be shown"))
        .row("file", path.as_ref().display().to_string())
        .row("reason", reason)
        .hint("it was removed, it is on another host, or the attempt never began; `umiak show` shows the attempts")
}

fn written_anew(who: &str, path: &Path) -> Diagnostic {
    Diagnostic::error(Code::J0009, format!("the log of {who} was overwritten"))
        .row("file", path.display().to_string())
        .row("reason", "a later run overwrote or rotated it, or the file was replaced by hand")
        .hint("the current content of the file is not of this run")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, text).unwrap();
        file
    }

    #[test]
    fn the_last_lines() {
        let text = b"one\ntwo\nthree\n";
        for (count, start) in [(0, 14), (1, 8), (2, 4), (3, 0), (9, 0)] {
            assert_eq!(lines_from_end(&file(text), 0, 14, count).unwrap().0, start, "{count}");
        }
        assert_eq!(lines_from_end(&file(text), 4, 14, 9).unwrap(), (4, 2), "not before the attempt");
        assert_eq!(lines_from_end(&file(b"one\ntwo"), 0, 7, 1).unwrap(), (4, 1), "a line without an end counts");
        assert_eq!(lines_from_end(&file(b"\n\n\n"), 0, 3, 2).unwrap(), (1, 2));
        assert_eq!(lines_from_end(&file(b""), 0, 0, 2).unwrap(), (0, 0));
        let long = vec![b'x'; 3 * BLOCK];
        assert_eq!(lines_from_end(&file(&long), 0, long.len() as u64, 1).unwrap(), (0, 1));
        let blocks: Vec<u8> = (0..100_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let (start, found) = lines_from_end(&file(&blocks), 0, blocks.len() as u64, 50_000).unwrap();
        assert_eq!(found, 50_000);
        assert!(blocks[start as usize..].starts_with(b"line 50000\n"));
    }
}
