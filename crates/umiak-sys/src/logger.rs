//! Log rotation by size. Only with rotation is there a process between a rank and its file: forked by the guardian, it
//! copies pipes to files and never blocks a rank longer than a write takes.
//!
//! When `workerlog.3` reaches its size limit it becomes `workerlog.3.1`, next time `workerlog.3.2`. Numbers only grow,
//! so a reader that follows the log finds the file after the last one it read. The oldest files beyond the number to
//! keep are removed. Files are cut at line ends where possible.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde::{Deserialize, Serialize};

use crate::files::{self, Contents};

/// Settings of log rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotate {
    pub max_bytes: u64,
    /// How many finished files to keep per log.
    pub keep: u32,
}

/// Copies each pipe to its file until all pipes are closed.
pub(crate) fn run(pipes: Vec<(OwnedFd, PathBuf)>, rotate: Rotate) -> io::Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut logs: Vec<Option<Log>> = Vec::new();
    for (index, (pipe, path)) in pipes.into_iter().enumerate() {
        epoll.add(pipe.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        logs.push(Some(Log::open(File::from(pipe), path, rotate)));
    }
    let mut buffer = vec![0; 64 << 10];
    while logs.iter().any(Option::is_some) {
        let mut events = [EpollEvent::empty(); 64];
        let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other?,
        };
        for event in &events[..count] {
            let place = &mut logs[event.data() as usize];
            let Some(log) = place else { continue };
            match log.pipe.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => *place = None,
                Ok(count) => log.take(&buffer[..count]),
            }
        }
    }
    Ok(())
}

struct Log {
    pipe: File,
    path: PathBuf,
    file: Option<File>,
    size: u64,
    rotate: Rotate,
}

impl Log {
    fn open(pipe: File, path: PathBuf, rotate: Rotate) -> Self {
        let file = files::open(&path, Contents::Append, files::READABLE).ok();
        let size = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
        Self { pipe, path, file, size, rotate }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while self.size + bytes.len() as u64 > self.rotate.max_bytes {
            let room = self.rotate.max_bytes.saturating_sub(self.size) as usize;
            // Cut at a line end; inside a line only if the line alone would fill a file.
            let cut = match bytes[..room.min(bytes.len())].iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if self.size == 0 => room.clamp(1, bytes.len()),
                None => 0,
            };
            self.write(&bytes[..cut]);
            bytes = &bytes[cut..];
            self.start_next();
        }
        self.write(bytes);
    }

    /// A full disk loses lines but never blocks the rank.
    fn write(&mut self, bytes: &[u8]) {
        if let Some(file) = &mut self.file {
            let _ = file.write_all(bytes);
        }
        self.size += bytes.len() as u64;
    }

    fn start_next(&mut self) {
        let number = numbers(&self.path).last().map_or(1, |last| last + 1);
        let next = suffixed(&self.path, "next");
        let fresh = files::open(&next, Contents::Append, files::READABLE);
        // The name always exists: a reader opens either the old file or the new one.
        let moved = fresh.and_then(|file| {
            fs::hard_link(&self.path, suffixed(&self.path, &number.to_string()))?;
            fs::rename(&next, &self.path)?;
            Ok(file)
        });
        if let Ok(file) = moved {
            self.file = Some(file);
        } else {
            // Without hard links (some network file systems), truncate in place rather than grow without bound.
            let _ = fs::remove_file(&next);
            if let Some(file) = &self.file {
                let _ = file.set_len(0);
            }
        }
        self.size = 0;
        let finished = numbers(&self.path);
        for old in finished.iter().take(finished.len().saturating_sub(self.rotate.keep as usize)) {
            let _ = fs::remove_file(suffixed(&self.path, &old.to_string()));
        }
    }
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// The numbers of the finished files of a log, ascending.
pub fn numbers(path: &Path) -> Vec<u64> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let mut numbers: Vec<u64> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(name)?.strip_prefix('.')?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// The number of the last finished file of each log in a directory that has one, by the name of the log.
pub fn last_numbers(directory: &Path) -> HashMap<OsString, u64> {
    let mut last = HashMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((log, number)) = name.to_str().and_then(|name| name.rsplit_once('.')) else { continue };
        if let Ok(number) = number.parse::<u64>() {
            let last = last.entry(log.into()).or_insert(0);
            *last = number.max(*last);
        }
    }
    last
}

/// The path of the finished file with this number.
pub fn finished(path: &Path, number: u64) -> PathBuf {
    suffixed(path, &number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(chunks: &[&[u8]], rotate: Rotate) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("workerlog.0");
        let (reader, writer) = nix::unistd::pipe().unwrap();
        let target = path.clone();
        let thread = std::thread::spawn(move || run(vec![(reader, target)], rotate).unwrap());
        let mut writer = File::from(writer);
        for chunk in chunks {
            writer.write_all(chunk).unwrap();
        }
        drop(writer);
        thread.join().unwrap();
        (directory, path)
    }

    #[test]
    fn files_are_cut_at_lines_and_nothing_is_lost() {
        let lines: Vec<u8> = (0..1000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let (_directory, path) = copy(&[&lines], Rotate { max_bytes: 1000, keep: 100 });
        let mut whole = Vec::new();
        for number in numbers(&path) {
            let part = fs::read(finished(&path, number)).unwrap();
            assert!(part.len() <= 1000 && part.ends_with(b"\n"));
            whole.extend(part);
        }
        whole.extend(fs::read(&path).unwrap());
        assert!(whole == lines);
    }

    #[test]
    fn the_oldest_go_and_a_line_without_end_is_cut() {
        let (_directory, path) = copy(&[&[b'x'; 5000]], Rotate { max_bytes: 1000, keep: 2 });
        let kept = numbers(&path);
        assert_eq!(kept.len(), 2);
        assert!(kept.iter().all(|number| fs::metadata(finished(&path, *number)).unwrap().len() <= 1000));
    }
}
