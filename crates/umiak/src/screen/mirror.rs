//! Follows log files that replicas write.
//!
//! Files are watched by inotify, so that the thread sleeps while nothing is written. The kernel takes up to fifteen
//! milliseconds to remove a watch, and the end of a job must not wait for that. So the files of a young job are polled
//! every few milliseconds and watched only later, and a watch is removed as soon as its writer is being stopped. All
//! files share one watch, which reports the files that changed, in the order of the writes.
//!
//! A file that another host writes is not watched: the kernel reports only writes of this host, and a network file system
//! shows new contents only after an open. So it is opened again and again, until its writer has ended.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use umiak_core::model::Stream;
use umiak_sys::wait::read_at;
use umiak_sys::watch::{Watch, Watched};
use umiak_sys::{logger, regular};

use super::lines::Prefixed;

/// Age at which a file is watched.
const WATCH_AFTER: Duration = Duration::from_millis(300);
/// Poll interval before that, and while the writer is being stopped.
const LOOK: Duration = Duration::from_millis(4);
/// Poll interval if the kernel has no watches left.
const LOOK_UNWATCHED: Duration = Duration::from_millis(100);
/// Time between two openings of a file that another host writes.
const LOOK_ELSEWHERE: Duration = Duration::from_millis(200);
/// The usual limit of descriptors has room for this number of files.
const FEW: usize = 256;

#[derive(Debug)]
enum Attention {
    /// Polled: too young to be watched.
    Young {
        since: Instant,
    },
    Watched(Watched),
    /// Polled: the kernel has no watches left.
    Unwatched,
    /// Polled: its writer is being stopped.
    Ending,
    /// Its writer has ended: it grows no more.
    Ended,
}

/// A file, and the position up to which it has been shown.
#[derive(Debug)]
struct Mirror {
    key: u64,
    stream: Stream,
    /// If several are shown.
    lines: Option<Prefixed>,
    file: File,
    /// When it was last opened, if another host writes it.
    opened: Option<Instant>,
    attention: Attention,
    offset: u64,
    path: PathBuf,
    /// The number that this file gets when it is rotated: one more than the last.
    number: u64,
    /// As it was at the last poll.
    stamp: Option<Stamp>,
    /// It is in the list of files to read.
    is_due: bool,
}

/// What changes when a file is written, rotated or removed: its size, its links and the time of the last change.
type Stamp = (u64, u64, i64, i64);

/// All mirrored files.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    all: Vec<Mirror>,
    watch: Option<Watch>,
    watched: HashMap<Watched, usize>,
    /// The last poll.
    looked: Option<Instant>,
    /// The last poll at which files that looked the same were read too.
    read: Option<Instant>,
    /// Files to read, in the order in which they were written.
    due: VecDeque<usize>,
}

impl Mirrors {
    /// Follows the output of this replica in `path`, from `offset`. `elsewhere`: another host writes it.
    pub(super) fn follow(
        &mut self,
        (key, stream): (u64, Stream),
        lines: Option<Prefixed>,
        (path, offset): (&Path, u64),
        elsewhere: bool,
    ) -> io::Result<()> {
        if self.all.len() == FEW {
            umiak_sys::limits::raise();
        }
        let number = logger::numbers(path).last().map_or(1, |last| last + 1);
        let attention = Attention::Young { since: Instant::now() };
        let file = open(path)?;
        let opened = elsewhere.then(Instant::now);
        let (path, stamp, is_due) = (path.to_owned(), None, false);
        let mirror = Mirror { key, stream, lines, file, opened, attention, offset, path, number, stamp, is_due };
        match self.position(key, stream) {
            None => self.all.push(mirror),
            Some(index) => {
                self.unwatch(index);
                // It may be in the list of files to read, by its index.
                let is_due = self.all[index].is_due;
                self.all[index] = Mirror { is_due, ..mirror };
            }
        }
        Ok(())
    }

    pub(super) fn position(&self, key: u64, stream: Stream) -> Option<usize> {
        self.all.iter().position(|mirror| (mirror.key, mirror.stream) == (key, stream))
    }

    /// The indices of this replica's streams, or all indices.
    fn of(&self, key: Option<u64>) -> Vec<usize> {
        let is_of = |index: &usize| key.is_none_or(|key| self.all[*index].key == key);
        (0..self.all.len()).filter(is_of).collect()
    }

    /// The stream that is mirrored. The first one also if nothing is mirrored anymore.
    pub(super) fn stream(&self, index: usize) -> Stream {
        self.all.get(index).map_or(Stream::Out, |mirror| mirror.stream)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.all.first().map(|mirror| mirror.path.as_path()).filter(|_| self.all.len() == 1)
    }

    /// The lines of this mirror. `None` also if nothing is mirrored anymore: any write may find that the reader has
    /// gone.
    pub(super) fn lines(&mut self, index: usize) -> Option<&mut Prefixed> {
        self.all.get_mut(index)?.lines.as_mut()
    }

    /// The current size of the file.
    pub(super) fn end(&self, index: usize) -> u64 {
        let size = |mirror: &Mirror| mirror.file.metadata().map_or(mirror.offset, |metadata| metadata.len());
        self.all.get(index).map_or(0, size)
    }

    pub(super) fn has_ended(&self, index: usize) -> bool {
        matches!(self.all[index].attention, Attention::Ended)
    }

    /// Lists the files to read: those that have changed, and those that are polled, if it is time for it. Each message
    /// to the thread wakes it, and many files are followed with one message each.
    pub(super) fn hear(&mut self) {
        let is_time = is_past(&mut self.looked, LOOK);
        let is_read = is_time && is_past(&mut self.read, LOOK_UNWATCHED);
        let changed = self.watch.as_ref().map(Watch::changed).unwrap_or_default();
        for watched in changed.files {
            if let Some(index) = self.watched.get(&watched).copied() {
                self.make_due(index);
            }
        }
        for index in 0..self.all.len() {
            let mirror = &mut self.all[index];
            let is_looked_at = !matches!(mirror.attention, Attention::Watched(_) | Attention::Ended);
            let is_due = match mirror.next_open() {
                None => is_looked_at && is_time && (mirror.has_changed() || is_read),
                Some(Duration::ZERO) => {
                    mirror.open_again();
                    true
                }
                Some(_) => false,
            };
            if changed.overflowed || is_due {
                self.make_due(index);
            }
        }
    }

    fn make_due(&mut self, index: usize) {
        if !std::mem::replace(&mut self.all[index].is_due, true) {
            self.due.push_back(index);
        }
    }

    /// Takes the next file to read off the list. [`Self::put_back`] returns it if it has more.
    pub(super) fn next_due(&mut self) -> Option<usize> {
        let index = self.due.pop_front()?;
        self.all[index].is_due = false;
        Some(index)
    }

    pub(super) fn put_back(&mut self, index: usize) {
        self.make_due(index);
    }

    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Reads the next bytes before `end`, and returns their number.
    pub(super) fn read(&mut self, index: usize, end: u64, buffer: &mut [u8]) -> usize {
        let mirror = &mut self.all[index];
        let wanted = end.saturating_sub(mirror.offset).min(buffer.len() as u64) as usize;
        let mut count = read_at(&mirror.file, &mut buffer[..wanted], mirror.offset).unwrap_or(0);
        if count == 0 && mirror.advance() {
            count = read_at(&mirror.file, buffer, 0).unwrap_or(0);
            // The new file is polled until it is watched in its turn.
            if self.unwatch(index) {
                self.all[index].attention = Attention::Young { since: Instant::now() };
            }
        }
        self.all[index].offset += count as u64;
        count
    }

    /// When to poll again. Starts to watch files that are old enough.
    pub(super) fn attend(&mut self) -> Option<Duration> {
        let mut look = None;
        for index in 0..self.all.len() {
            let next = match self.all[index].attention {
                _ if self.all[index].opened.is_some() => self.all[index].next_open(),
                Attention::Young { since } if since.elapsed() >= WATCH_AFTER => {
                    self.start_watching(index);
                    // Bytes between the last poll and the watch are not reported by the watch: poll once more.
                    Some(Duration::ZERO)
                }
                Attention::Young { .. } | Attention::Ending => Some(LOOK),
                Attention::Unwatched => Some(LOOK_UNWATCHED),
                Attention::Watched(_) | Attention::Ended => None,
            };
            look = look.into_iter().chain(next).min();
        }
        look
    }

    fn start_watching(&mut self, index: usize) {
        if self.watch.is_none() {
            self.watch = Watch::new().ok();
        }
        let added = self.watch.as_ref().and_then(|watch| watch.add(&self.all[index].path).ok());
        self.all[index].attention = match added {
            Some(watched) => {
                self.watched.insert(watched, index);
                self.make_due(index);
                Attention::Watched(watched)
            }
            // Without a watch, polling continues.
            None => Attention::Unwatched,
        };
    }

    fn unwatch(&mut self, index: usize) -> bool {
        let Attention::Watched(watched) = self.all[index].attention else { return false };
        self.watched.remove(&watched);
        if let Some(watch) = &self.watch {
            watch.remove(watched);
        }
        true
    }

    /// The writer of this file, or of all, is being stopped, or has ended.
    pub(super) fn let_go(&mut self, key: Option<u64>, ended: bool) {
        for index in self.of(key) {
            self.unwatch(index);
            self.all[index].open_again();
            let attention = &mut self.all[index].attention;
            if ended || !matches!(attention, Attention::Ended) {
                *attention = if ended { Attention::Ended } else { Attention::Ending };
            }
            self.make_due(index);
        }
    }

    /// The file of this rank has a writer again.
    pub(super) fn take_up(&mut self, key: u64) {
        for index in self.of(Some(key)) {
            self.unwatch(index);
            self.all[index].attention = Attention::Young { since: Instant::now() };
        }
    }

    /// All writers have ended: what other hosts have written can be read.
    pub(super) fn open_again(&mut self) {
        self.all.iter_mut().for_each(Mirror::open_again);
    }

    /// The descriptor of the watch, while it is in use.
    pub(super) fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().filter(|_| !self.watched.is_empty()).map(AsFd::as_fd)
    }
}

/// True if this much time has passed, which then begins again.
fn is_past(last: &mut Option<Instant>, interval: Duration) -> bool {
    let is_past = last.is_none_or(|last| last.elapsed() >= interval);
    if is_past {
        *last = Some(Instant::now());
    }
    is_past
}

/// The rank may have replaced its log.
fn open(path: &Path) -> io::Result<File> {
    regular::open_to_read(path)
}

impl Mirror {
    /// The time until it is opened again, if another host writes it.
    fn next_open(&self) -> Option<Duration> {
        let opened = self.opened.filter(|_| !matches!(self.attention, Attention::Ended))?;
        Some(LOOK_ELSEWHERE.saturating_sub(opened.elapsed()))
    }

    /// Opens it again, if another host writes it.
    fn open_again(&mut self) {
        if self.opened.is_none() {
            return;
        }
        self.opened = Some(Instant::now());
        // The rest of a file that was replaced comes first, if it can still be read.
        let number = |file: &File| file.metadata().ok().map(|metadata| metadata.ino());
        let is_next = |file: &File| number(&self.file).is_none_or(|own| number(file) == Some(own));
        if let Some(file) = open(&self.path).ok().filter(is_next) {
            self.file = file;
        }
    }

    /// True if it has changed since the last call. Not every file system sees a rotation in it.
    fn has_changed(&mut self) -> bool {
        let stamp = self.file.metadata().ok().map(|file| (file.len(), file.nlink(), file.ctime(), file.ctime_nsec()));
        std::mem::replace(&mut self.stamp, stamp) != stamp
    }

    /// Opens the next file, if this one has been rotated and read to its end.
    fn advance(&mut self) -> bool {
        let is_cut = |metadata: &std::fs::Metadata| {
            let is_removed = metadata.nlink() == 0;
            is_removed || std::fs::metadata(&self.path).is_ok_and(|current| current.ino() != metadata.ino())
        };
        if !self.file.metadata().is_ok_and(|metadata| self.offset >= metadata.len() && is_cut(&metadata)) {
            return false;
        }
        loop {
            // A slow reader may be several files behind, and the oldest may have been removed.
            let later = || logger::numbers(&self.path).into_iter().find(|number| *number > self.number);
            let next = later();
            let path = next.map_or_else(|| self.path.clone(), |number| logger::finished(&self.path, number));
            let Ok(file) = open(&path) else { return false };
            // The current file may have been rotated while we opened it, and be the one after the next.
            if next.is_none() && later().is_some() {
                continue;
            }
            let number = next.unwrap_or_else(|| logger::numbers(&self.path).last().map_or(1, |last| last + 1));
            (self.file, self.offset, self.number) = (file, 0, number);
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const KEY: (u64, Stream) = (1, Stream::Out);

    fn text(mirrors: &mut Mirrors) -> String {
        let mut buffer = [0; 64];
        let mut text = Vec::new();
        while let Some(index) = mirrors.next_due() {
            let count = mirrors.read(index, u64::MAX, &mut buffer);
            text.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn a_file_of_another_host_is_opened_again_and_not_watched() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut file = File::create(&path).unwrap();
        let mut mirrors = Mirrors::default();
        mirrors.follow(KEY, None, (&path, 0), true).unwrap();
        let until = Instant::now() + 2 * WATCH_AFTER;
        let mut opened = 0;
        while Instant::now() < until {
            mirrors.hear();
            assert_eq!(text(&mut mirrors), "");
            let wait = mirrors.attend().expect("it is looked at again");
            assert!(mirrors.watched().is_none() && wait <= LOOK_ELSEWHERE);
            std::thread::sleep(wait);
            opened += 1;
        }
        assert!(opened <= 4, "{opened} times in 600 ms");
        file.write_all(b"one\n").unwrap();
        std::thread::sleep(LOOK_ELSEWHERE);
        mirrors.hear();
        assert_eq!(text(&mut mirrors), "one\n");
        file.write_all(b"two\n").unwrap();
        // At once: the next message may be about its end.
        mirrors.let_go(Some(KEY.0), true);
        assert_eq!(text(&mut mirrors), "two\n");
        assert_eq!(mirrors.attend(), None);
    }
}
