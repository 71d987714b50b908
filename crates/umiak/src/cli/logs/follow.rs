//! `umiak logs -f`: on until the replicas have ended, or the run has. Nothing wakes up while nothing is written.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use umiak_core::diag::Diagnostic;
use umiak_core::status::Stage;
use umiak_sys::wait::read_at;
use umiak_sys::watch::Watch;

use crate::cli::runs::{Done, Loaded, reader_of_stdout, write};
use crate::cli::wait::lost;
use crate::history::Life;
use crate::history::journal::Follower;

use super::source::{Source, Window, pointers};
use super::{Lines, Printer, have_ended};

/// An attempt that is followed.
#[derive(Debug)]
struct Live {
    replica: String,
    attempt: u32,
    source: Source,
    file: Option<(File, PathBuf)>,
    offset: u64,
    lines: Lines,
}

pub(super) fn follow(
    loaded: &Loaded,
    names: &[String],
    wanted: &[(String, u32)],
    window: Window,
    printer: &Printer,
) -> Done {
    let run = &loaded.run;
    let mut follower = Follower::open(run)?;
    let mut followed: Vec<Live> = Vec::new();
    let begin = |followed: &mut Vec<Live>, replica: &str, attempt: u32| -> Result<(), Diagnostic> {
        let source = Source::find(run, &pointers(run)?, replica, attempt);
        let offset = source.current().1;
        let lines = printer.lines(replica, attempt);
        followed.push(Live { replica: replica.to_owned(), attempt, source, file: None, offset, lines });
        Ok(())
    };
    for (replica, attempt) in wanted {
        begin(&mut followed, replica, *attempt)?;
        let live = followed.last_mut().expect("just begun");
        if !live.catch_up(window, follower.watch())? {
            return Ok(ExitCode::SUCCESS);
        }
    }
    loop {
        // Both are asked before the files are looked at: what was written until then is seen.
        let life = follower.life()?;
        follower.catch_up()?;
        let is_over = have_ended(follower.status(), names);
        for name in names {
            let Some(replica) = follower.status().replica(name) else { continue };
            let is_followed = followed.iter().any(|live| live.replica == *name && live.attempt >= replica.attempt);
            if replica.stage != Stage::Waiting && !is_followed {
                begin(&mut followed, name, replica.attempt)?;
            }
        }
        let mut out = Vec::new();
        for live in &mut followed {
            live.pump(follower.watch(), &mut out)?;
            if is_over {
                out.extend(live.lines.finish());
            }
        }
        if !write(&out)? || is_over {
            return Ok(ExitCode::SUCCESS);
        }
        if life == Life::Lost && out.is_empty() && follower.life()? == Life::Lost {
            write(&followed.iter_mut().flat_map(|live| live.lines.finish()).collect::<Vec<u8>>())?;
            return Err(lost(run));
        }
        if out.is_empty() && follower.wait(&reader_of_stdout())? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

impl Live {
    /// What was there before: all of it, or its end. `false` when nobody reads any more.
    fn catch_up(&mut self, window: Window, watch: &Watch) -> Result<bool, Diagnostic> {
        let (path, _) = self.source.current();
        let path = path.to_owned();
        if !path.exists() {
            return Ok(true);
        }
        let _ = watch.add(&path);
        let mut parts = self.source.open(window)?;
        for part in &mut parts {
            let (replica, attempt, path) = (self.replica.clone(), self.attempt, part.path());
            while let Some(chunk) =
                part.next().map_err(|error| super::source::unreadable(&replica, attempt, &path, &error))?
            {
                if !write(&self.lines.feed(chunk))? {
                    return Ok(false);
                }
            }
        }
        if let Some(last) = parts.pop() {
            self.offset = last.offset();
            self.file = Some((last.file(), path));
        }
        Ok(true)
    }

    /// What has come since.
    fn pump(&mut self, watch: &Watch, out: &mut Vec<u8>) -> Result<(), Diagnostic> {
        const AT_ONCE: usize = 1 << 20;
        if self.file.is_none() {
            let path = self.source.current().0.to_owned();
            // Watched before it is read: what comes in between is reported.
            let Ok(file) = File::open(&path) else { return Ok(()) };
            let _ = watch.add(&path);
            self.file = Some((file, path));
        }
        let mut buffer = vec![0; 128 << 10];
        loop {
            let Some((file, path)) = &mut self.file else { return Ok(()) };
            let count = read_at(file, &mut buffer, self.offset)
                .map_err(|error| super::source::unreadable(&self.replica, self.attempt, &*path, &error))?;
            self.offset += count as u64;
            out.extend(self.lines.feed(&buffer[..count]));
            if out.len() > AT_ONCE {
                return Ok(());
            }
            if count > 0 {
                continue;
            }
            // Cut by size: the name is another file's now. Or made shorter: it begins again.
            let Ok(here) = file.metadata() else { return Ok(()) };
            if std::fs::metadata(&*path).is_ok_and(|named| named.ino() != here.ino()) {
                let Ok(next) = File::open(&*path) else { return Ok(()) };
                let _ = watch.add(path);
                *file = next;
                self.offset = 0;
            } else if here.len() < self.offset {
                self.offset = 0;
            } else {
                return Ok(());
            }
        }
    }
}
