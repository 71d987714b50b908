//! What agents and their supervisor send each other where nodes do not see the directory of the run: the files of the unit
//! and of its attempts. Both sides keep a directory, and a connection copies what is new. So agents and supervisor work on
//! files, whether or not they share them.
//!
//! A frame is a [`Header`] as JSON and a body, each with its length before it. What is added to a file is sent with its
//! position, so that a connection that broke continues where the receiver is.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The longest header.
pub const MAX_HEADER: usize = 8 << 10;
/// The longest body: a whole file.
pub const MAX_BODY: usize = 256 << 20;
/// What is added to a file is sent in pieces of this size.
pub const PIECE: usize = 256 << 10;
/// Bytes that a sender has on their way before it waits for an answer.
pub const WINDOW: usize = 4 * PIECE;

/// The beginning of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Header {
    /// The first frame of an agent.
    Hello {
        v: u32,
        token: String,
        /// It wants to see the files of all agents.
        #[serde(default)]
        gathers: bool,
    },
    /// The body is the whole file, which replaces another.
    Whole { name: String },
    /// The body belongs into the file at this position.
    More { name: String, at: u64 },
    /// How long is this file?
    Ask { name: String },
    /// It is this long. The answer to all frames about files that an agent sends.
    Have { name: String, length: u64 },
}

/// Where a file that an agent sends belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// In the directory of the unit.
    OfUnit(PathBuf),
    /// In the directory of the run.
    OfRun(PathBuf),
}

/// The place of a file with this name, if agents may send it.
pub fn place(name: &str) -> Option<Sent> {
    let path = Path::new(name);
    let parts: Vec<&str> = name.split('/').collect();
    if name.contains(|letter: char| letter.is_control()) || parts.iter().any(|part| ["", ".", ".."].contains(part)) {
        return None;
    }
    match parts[..] {
        [file] if agent(file).is_some() => Some(Sent::OfUnit(path.to_owned())),
        ["placement.json" | "limit" | "slurm.log"] => Some(Sent::OfUnit(path.to_owned())),
        // `tasks/trainer-0/attempt-1/log`, in a pipeline `tasks/train/trainer-0/attempt-1/log`.
        ["tasks", _, attempt, file] | ["tasks", _, _, attempt, file] => {
            let is_ours = attempt.starts_with("attempt-") && file != "exit.json";
            is_ours.then(|| Sent::OfRun(path.to_owned()))
        }
        _ => None,
    }
}

/// The number of the agent that has this file.
pub fn agent(file: &str) -> Option<usize> {
    file.strip_prefix("agent-")?.strip_suffix(".jsonl")?.parse().ok()
}

/// A header and the length of its body as bytes.
pub fn encode(header: &Header, body: usize) -> Vec<u8> {
    let text = serde_json::to_vec(header).expect("plain data");
    let mut bytes = Vec::with_capacity(8 + text.len());
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend((body as u32).to_le_bytes());
    bytes.extend(text);
    bytes
}

/// The lengths of header and body, if they are possible.
pub fn lengths(bytes: [u8; 8]) -> Option<(usize, usize)> {
    let [a, b, c, d, rest @ ..] = bytes;
    let (header, body) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(rest) as usize);
    (header <= MAX_HEADER && body <= MAX_BODY).then_some((header, body))
}

/// What to do with bytes for a position of a file that has a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// All are there.
    Known,
    /// Bytes before these are missing.
    Gap,
    /// Those from this one on are new.
    New(usize),
}

pub fn fit(length: u64, at: u64, bytes: usize) -> Fit {
    match length.checked_sub(at) {
        None => Fit::Gap,
        Some(known) if known >= bytes as u64 => Fit::Known,
        Some(known) => Fit::New(known as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_send_only_files_of_their_own() {
        for name in ["agent-0.jsonl", "placement.json", "limit", "slurm.log"] {
            assert_eq!(place(name), Some(Sent::OfUnit(name.into())), "{name}");
        }
        for name in ["tasks/trainer-0/attempt-1/log", "tasks/split.3/w-0/attempt-12/env"] {
            assert_eq!(place(name), Some(Sent::OfRun(name.into())), "{name}");
        }
        for name in [
            "",
            "unit.json",
            "orders.jsonl",
            "supervisor.json",
            "agent-x.jsonl",
            "/etc/passwd",
            "../job",
            "tasks/../../x/attempt-1/log",
            "tasks/a/attempt-1/exit.json",
            "tasks/a/b/log",
            "tasks/a/attempt-1/x\ny",
            "tasks//attempt-1/log",
            "./limit",
            "tasks/a/attempt-1/..",
        ] {
            assert_eq!(place(name), None, "{name}");
        }
    }

    #[test]
    fn frames_have_lengths_that_are_checked() {
        let header = Header::More { name: "agent-0.jsonl".into(), at: 7 };
        let bytes = encode(&header, 300);
        let (head, body) = lengths(bytes[..8].try_into().unwrap()).unwrap();
        assert_eq!((serde_json::from_slice::<Header>(&bytes[8..8 + head]).unwrap(), body), (header, 300));
        assert_eq!(lengths([0xff; 8]), None);
        assert_eq!(lengths([1, 0, 0, 0, 0, 0, 0, 0xff]), None);
    }

    #[test]
    fn bytes_that_were_sent_again_are_not_written_again() {
        assert_eq!(fit(10, 10, 5), Fit::New(0));
        assert_eq!(fit(12, 10, 5), Fit::New(2));
        assert_eq!(fit(15, 10, 5), Fit::Known);
        assert_eq!(fit(9, 10, 5), Fit::Gap);
    }
}
