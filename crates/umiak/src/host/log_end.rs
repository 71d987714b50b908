//! The end of an attempt's output in a log shared with other attempts and runs, with a digest that shows whether the
//! output is still the same.

use std::fs::File;
use std::io;

use umiak_core::facts::LogEnd;
use umiak_core::plan::Log;
use umiak_sys::wait::fill_at;
use umiak_sys::{logger, regular};

/// Length of the digested part at each end of the output. Shorter output is digested whole.
const LOOKED_AT: u64 = 16 << 10;

/// Returns the current end of an attempt's output.
pub(crate) fn read(log: &Log, rotates: bool) -> io::Result<LogEnd> {
    let file = regular::open_to_read(&log.path)?;
    let at = file.metadata()?.len();
    let rotated = if rotates { logger::numbers(&log.path).last().copied().unwrap_or(0) } else { log.rotated };
    // A file that was begun by rotation is the attempt's from its first byte.
    let start = if rotated > log.rotated { 0 } else { log.start };
    Ok(LogEnd { at, rotated, digest: digest(&file, start, at)? })
}

/// False if the file was rewritten since.
pub(crate) fn is_same(file: &File, start: u64, end: &LogEnd) -> io::Result<bool> {
    Ok(file.metadata()?.len() >= end.at && digest(file, start, end.at)? == end.digest)
}

fn digest(file: &File, start: u64, end: u64) -> io::Result<String> {
    let start = start.min(end);
    let first_end = end.min(start + LOOKED_AT);
    let last_start = first_end.max(end.saturating_sub(LOOKED_AT));
    Ok(LogEnd::digest(&bytes(file, start, first_end)?, &bytes(file, last_start, end)?))
}

fn bytes(file: &File, start: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (end - start) as usize];
    let filled = fill_at(file, &mut bytes, start)?;
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_log_that_was_written_anew_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("workerlog.0");
        let long = "a line that is written by one run\n".repeat(2000);
        for own in ["", "loss 0.1\n", &long] {
            fs::write(&path, format!("of an earlier run\n{own}")).unwrap();
            let end = read(&Log { start: 18, ..Log::new(path.clone()) }, false).unwrap();
            let is_same = || is_same(&File::open(&path).unwrap(), 18, &end).unwrap();
            assert!(is_same());
            fs::write(&path, format!("of an earlier run\n{own}and of a later one\n")).unwrap();
            assert!(is_same(), "what follows is not ours");
            if !own.is_empty() {
                fs::write(&path, format!("of an earlier run\n{}", "x".repeat(own.len() * 2))).unwrap();
                assert!(!is_same());
                fs::write(&path, &own[..1]).unwrap();
                assert!(!is_same());
            }
        }
    }
}
