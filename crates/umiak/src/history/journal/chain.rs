//! Checksums of records. Each one depends on the record before it, and the first one on the run's id: a record that was
//! changed, removed, repeated or moved does not fit, nor does one of another run.
//!
//! They find damage. They do not prove who wrote a record: whoever can write the file can compute them.

use twox_hash::XxHash3_64;
use umiak_core::facts::VERSION;

use super::super::RunId;

/// `,"sum":"0123456789abcdef"}`, the end of each line.
const NAME: &[u8] = b",\"sum\":\"";
const DIGITS: usize = 16;
const END: &[u8] = b"\"}";
const LENGTH: usize = NAME.len() + DIGITS + END.len();

/// The checksums that the next records depend on.
///
/// A supervisor that was replaced may still write. Its records depend on its own last one, so that they do not damage
/// the journal of its successor.
#[derive(Debug, Clone)]
pub struct Chain {
    epoch: u32,
    last: u64,
    /// The last checksum of each replaced supervisor.
    replaced: Vec<(u32, u64)>,
}

impl Chain {
    pub fn new(run: RunId) -> Self {
        Self { epoch: 0, last: XxHash3_64::oneshot(run.to_string().as_bytes()), replaced: Vec::new() }
    }

    /// Adds the checksum to a record, a JSON object that begins at `begin`.
    pub fn seal(&mut self, line: &mut Vec<u8>, begin: usize, epoch: u32) {
        let brace = line.pop();
        debug_assert_eq!(brace, Some(b'}'), "a record is an object");
        let before = self.before(epoch).unwrap_or(self.last);
        let sum = XxHash3_64::oneshot_with_seed(before, &line[begin..]);
        line.extend_from_slice(NAME);
        line.extend_from_slice(format!("{sum:016x}").as_bytes());
        line.extend_from_slice(END);
        self.go_on(epoch, sum);
    }

    /// True if this line, which ended with `sum`, is the next one.
    pub(super) fn take(&mut self, body: &[u8], sum: u64, epoch: u32) -> bool {
        let fits = self.before(epoch).is_some_and(|before| XxHash3_64::oneshot_with_seed(before, body) == sum);
        if fits {
            self.go_on(epoch, sum);
        }
        fits
    }

    /// True if another supervisor has begun since.
    pub(super) fn is_replaced(&self, epoch: u32) -> bool {
        epoch < self.epoch
    }

    fn before(&self, epoch: u32) -> Option<u64> {
        if epoch >= self.epoch {
            return Some(self.last);
        }
        self.replaced.iter().find(|(of, _)| *of == epoch).map(|(_, last)| *last)
    }

    fn go_on(&mut self, epoch: u32, sum: u64) {
        if epoch < self.epoch {
            for (_, last) in self.replaced.iter_mut().filter(|(of, _)| *of == epoch) {
                *last = sum;
            }
            return;
        }
        if epoch > self.epoch {
            self.replaced.push((self.epoch, self.last));
        }
        (self.epoch, self.last) = (epoch, sum);
    }
}

/// A journal with the checksums of this run: for records that were written for another one. Lines that are no records of
/// this version are left as they are.
pub fn sealed(run: RunId, journal: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Head {
        v: u32,
        #[serde(default)]
        epoch: u32,
    }
    let mut chain = Chain::new(run);
    let mut text = Vec::new();
    for line in journal.split_inclusive('\n') {
        let whole = line.strip_suffix('\n').and_then(|line| Some((line, serde_json::from_str::<Head>(line).ok()?)));
        match whole {
            Some((line, head)) if head.v == VERSION => {
                let begin = text.len();
                text.extend_from_slice(split(line.as_bytes()).map_or(line.as_bytes(), |(body, _)| body));
                text.extend_from_slice(if split(line.as_bytes()).is_some() { b"}" } else { b"" });
                chain.seal(&mut text, begin, head.epoch);
                text.push(b'\n');
            }
            _ => text.extend_from_slice(line.as_bytes()),
        }
    }
    String::from_utf8(text).expect("a journal is text")
}

/// Splits a line into the object without its closing brace and the checksum.
pub(super) fn split(line: &[u8]) -> Option<(&[u8], u64)> {
    let (body, end) = line.split_at_checked(line.len().checked_sub(LENGTH)?)?;
    let digits = end.strip_prefix(NAME)?.strip_suffix(END)?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.as_bytes().iter().all(is_digit))?;
    Some((body, u64::from_str_radix(digits, 16).ok()?))
}
