//! `umiak logs -f`: follows logs until the replicas or the run have ended. The process sleeps while nothing is written.
//!
//! The kernel reports only writes of this host, and a network file system shows new contents only after an open. So logs
//! that other hosts write are opened again and again.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use umiak_core::diag::Diagnostic;
use umiak_core::status::Status;
use umiak_sys::regular;
use umiak_sys::wait::read_at;
use umiak_sys::watch::Watch;

use crate::cli::runs::{Done, reader_of_stdout, talk, write};
use crate::cli::wait::lost;
use crate::clock::wall_micros;
use crate::history::journal::Follower;
use crate::history::{Life, RunDir};
use crate::views::logs::{LogLines, LogOwner, LogPrinter};
use crate::views::standing::{LoadedRun, writes_elsewhere};
use crate::views::times::LineTime;

use super::jobs::{Jobs, Words};
use super::merge::{self, Telling};
use super::source::{self, Pointer, Source};
use super::{Asked, Wanted, have_ended, limits};

/// Bytes read in one round before they are written.
const AT_ONCE: usize = 1 << 20;

/// Time between two openings of logs that another host writes.
const LOOK_ELSEWHERE: Duration = Duration::from_millis(200);

/// An attempt that is followed.
#[derive(Debug)]
struct Live {
    owner: LogOwner,
    attempt: u32,
    began: u64,
    source: Source,
    file: Option<(File, PathBuf)>,
    offset: u64,
    /// Where a later attempt begins in the same file.
    end: Option<u64>,
    lines: LogLines,
    /// The error about its file has been shown.
    told: bool,
}

/// What is followed.
#[derive(Debug)]
pub(super) enum Following {
    /// Replicas of the run's only job, until these or the run have ended.
    Replicas { names: Vec<String>, until: Vec<String> },
    /// Steps, until these or the run have ended. The output of some was shown already.
    Steps { words: Words, shown: Vec<Wanted> },
}

impl Following {
    /// True if no more output comes.
    fn is_over(&self, follower: &Follower) -> bool {
        match self {
            Self::Replicas { until, .. } => have_ended(follower.status(), until),
            Self::Steps { words, .. } => {
                let node = |word: &String| follower.pipeline().and_then(|pipeline| pipeline.node(word));
                let has_ended = |word: &String| node(word).is_some_and(|node| node.ended().is_some());
                follower.status().is_finished() || !words.steps.is_empty() && words.steps.iter().all(has_ended)
            }
        }
    }

    /// The attempts that have begun.
    fn begun(&self, follower: &Follower, jobs: &Jobs) -> Vec<(LogOwner, Vec<u32>)> {
        match self {
            Self::Replicas { names, .. } => {
                let known = names.iter().filter_map(|name| follower.status().replica(name));
                let owner = |name: &String| LogOwner { step: None, replica: name.clone() };
                known.map(|replica| (owner(&replica.replica), replica.begun())).collect()
            }
            Self::Steps { words, .. } => jobs.owners(words).map(|(owner, replica)| (owner, replica.begun())).collect(),
        }
    }
}

pub(super) fn follow(loaded: &LoadedRun, following: &Following, wanted: &[Wanted], asked: &Asked<'_>) -> Done {
    let run = &loaded.run;
    let mut follower = Follower::open(run)?;
    let mut jobs = Jobs::default();
    let mut pointers: Vec<Pointer> = Vec::new();
    let mut followed: Vec<Live> = Vec::new();
    // The last attempt of each that is, or was, followed.
    let mut newest: HashMap<LogOwner, u32> = HashMap::new();
    if let Following::Steps { shown, .. } = following {
        newest.extend(shown.iter().map(|shown| (shown.owner.clone(), shown.attempt)));
    }
    read(&mut follower, run, &mut pointers, following, &mut jobs)?;
    let printer = asked.printer;
    for wanted in wanted {
        newest.insert(wanted.owner.clone(), wanted.attempt);
        begin(run, &pointers, &mut followed, printer, wanted);
    }
    if !catch_up(&mut followed, asked, follower.watch())? {
        return Ok(ExitCode::SUCCESS);
    }
    let mut is_elsewhere = None;
    loop {
        is_elsewhere = is_elsewhere.or_else(|| writes_elsewhere(run));
        // Both are checked before the files are read: everything written until then is read.
        let life = follower.life()?;
        read(&mut follower, run, &mut pointers, following, &mut jobs)?;
        let is_over = following.is_over(&follower);
        let is_opened = is_elsewhere == Some(true) || matches!(life, Life::Elsewhere { .. });
        for (owner, begun) in following.begun(&follower, &jobs) {
            let last = newest.get(&owner).copied();
            // Several attempts may have begun and ended since the last round.
            for attempt in begun.into_iter().filter(|attempt| last.is_none_or(|last| *attempt > last)) {
                newest.insert(owner.clone(), attempt);
                let wanted = Wanted { owner: owner.clone(), attempt, began: 0 };
                begin(run, &pointers, &mut followed, printer, &wanted);
            }
        }
        let mut out = Vec::new();
        let mut kept = Vec::new();
        for mut live in followed {
            if is_opened {
                live.open_again();
            }
            let is_read = live.pump(follower.watch(), &mut out)?;
            // An attempt writes nothing more once a later one has begun, or its step has ended.
            let is_past = newest.get(&live.owner).is_some_and(|attempt| *attempt > live.attempt);
            let is_ended = live.owner.step.as_ref().and_then(|step| jobs.job(step)).is_some_and(Status::is_finished);
            if is_read && (is_past || is_ended) {
                out.extend(live.lines.finish(now()));
            } else {
                kept.push(live);
            }
        }
        followed = kept;
        let is_over = is_over && out.len() <= AT_ONCE;
        if is_over {
            out.extend(followed.iter_mut().flat_map(|live| live.lines.finish(now())));
        }
        if !write(&out)? || is_over {
            return Ok(ExitCode::SUCCESS);
        }
        if life == Life::Lost && out.is_empty() && follower.life()? == Life::Lost {
            write(&followed.iter_mut().flat_map(|live| live.lines.finish(now())).collect::<Vec<u8>>())?;
            return Err(lost(run));
        }
        let limit = (is_opened && !followed.is_empty()).then_some(LOOK_ELSEWHERE);
        if out.is_empty() && follower.wait_for(&reader_of_stdout(), limit)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The time of output that is read now.
fn now() -> LineTime {
    LineTime { at: wall_micros(), is_exact: true }
}

/// Shows earlier output: all of it, or its end. `false` when the reader has closed the pipe.
fn catch_up(followed: &mut [Live], asked: &Asked<'_>, watch: &Watch) -> Result<bool, Diagnostic> {
    let (mut telling, mut changed, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for (place, live) in followed.iter().enumerate() {
        let (path, _) = live.source.current();
        if !path.exists() {
            continue;
        }
        let _ = watch.add(path);
        let parts = live.source.open(asked.window)?;
        changed.push(parts.last().and_then(source::Open::changed));
        let lines = asked.printer.lines(&live.owner, live.attempt);
        telling.push(Telling::new(&live.owner.to_string(), live.attempt, parts, live.began, lines));
        places.push(place);
    }
    let limits = limits(&mut telling, &changed, asked.since)?;
    let is_read = merge::tell(&mut telling, &limits, true)?;
    for (place, telling) in places.into_iter().zip(telling) {
        let (lines, last) = telling.into_rest();
        followed[place].lines = lines;
        if let Some((file, path, offset)) = last {
            followed[place].offset = offset;
            followed[place].file = Some((file, path));
        }
    }
    Ok(is_read)
}

/// Reads new facts.
fn read(
    follower: &mut Follower,
    run: &RunDir,
    pointers: &mut Vec<Pointer>,
    following: &Following,
    jobs: &mut Jobs,
) -> Result<(), Diagnostic> {
    while let Some(item) = follower.next()? {
        source::note(run, &item.record, pointers);
        if let Following::Steps { words, .. } = following {
            jobs.add(words, &item.record);
        }
    }
    Ok(())
}

fn begin(run: &RunDir, pointers: &[Pointer], followed: &mut Vec<Live>, printer: &LogPrinter, wanted: &Wanted) {
    for source in Source::all(run, pointers, &wanted.owner, wanted.attempt) {
        let Wanted { owner, attempt, began } = wanted.clone();
        let (path, offset) = source.current();
        for earlier in followed.iter_mut().filter(|live| live.source.current().0 == path) {
            earlier.end = earlier.end.or(Some(offset));
        }
        let lines = printer.lines(&owner, attempt);
        followed.push(Live { owner, attempt, began, source, file: None, offset, end: None, lines, told: false });
    }
}

impl Live {
    /// Opens the file once it exists. An error is shown once, and opening is tried again.
    fn open(&mut self, path: &Path) -> Option<File> {
        match regular::open_to_read(path) {
            Ok(file) => Some(file),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound && !std::mem::replace(&mut self.told, true) {
                    talk(&source::unreadable(&self.owner.to_string(), self.attempt, path, &error));
                }
                None
            }
        }
    }

    /// Opens the file again, which another host writes. The rest of a file that was replaced comes first,
    /// if it can still be read.
    fn open_again(&mut self) {
        let Some((file, path)) = &mut self.file else { return };
        let number = |file: &File| file.metadata().ok().map(|metadata| metadata.ino());
        let is_next = |again: &File| number(file).is_none_or(|own| number(again) == Some(own));
        if let Some(again) = regular::open_to_read(path).ok().filter(is_next) {
            *file = again;
        }
    }

    /// Appends new output to `out`. True if nothing is left to read.
    fn pump(&mut self, watch: &Watch, out: &mut Vec<u8>) -> Result<bool, Diagnostic> {
        if self.file.is_none() {
            let path = self.source.current().0.to_owned();
            // Watched before it is read, so that no write is missed.
            let Some(file) = self.open(&path) else { return Ok(!path.exists()) };
            let _ = watch.add(&path);
            self.file = Some((file, path));
        }
        let mut buffer = vec![0; 128 << 10];
        loop {
            let Some((file, path)) = &mut self.file else { return Ok(true) };
            let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.offset));
            let most = left.min(buffer.len() as u64) as usize;
            let count = read_at(file, &mut buffer[..most], self.offset)
                .map_err(|error| source::unreadable(&self.owner.to_string(), self.attempt, &*path, &error))?;
            self.offset += count as u64;
            out.extend(self.lines.feed(&buffer[..count], now()));
            if out.len() > AT_ONCE {
                return Ok(false);
            }
            if count > 0 {
                continue;
            }
            // Rotated: the path leads to another file now. Truncated: read from the beginning.
            let Ok(here) = file.metadata() else { return Ok(true) };
            if std::fs::metadata(&*path).is_ok_and(|named| named.ino() != here.ino()) {
                let path = path.clone();
                let Some(next) = self.open(&path) else { return Ok(!path.exists()) };
                let _ = watch.add(&path);
                self.file = Some((next, path));
                self.offset = 0;
            } else if here.len() < self.offset {
                self.offset = 0;
            } else {
                return Ok(true);
            }
        }
    }
}
