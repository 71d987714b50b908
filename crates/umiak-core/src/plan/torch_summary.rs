//! torchrun's report of a failure, for users and tools that look for it. It lists ranks that failed by themselves, not those
//! that the launcher stopped.

use std::fmt::Write as _;

use serde_json::Value;

use crate::model::Exit;

/// torchrun's words for what it does not know.
const UNKNOWN: &str = "<N/A>";
const NO_TRACEBACK: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
/// Lines of the frame are not longer.
const WIDTH: usize = 60;

/// One rank that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure<'a> {
    pub rank: u32,
    pub local_rank: u32,
    pub host: &'a str,
    pub pid: Option<u32>,
    pub exit: &'a Exit,
    /// The file to which the rank wrote its error, if it did.
    pub error_file: Option<String>,
    /// The error and its traceback, if known.
    pub error: Option<String>,
}

impl Failure<'_> {
    /// Negative for a signal.
    pub fn code(&self) -> i32 {
        match self.exit {
            Exit::Code { code } => *code,
            _ => self.exit.signal().map_or(1, |signal| -signal),
        }
    }

    fn text(&self, index: usize, time: &str) -> String {
        let code = self.code();
        let pid = self.pid.map_or_else(|| UNKNOWN.to_owned(), |pid| pid.to_string());
        let name = (code < 0).then(|| crate::model::signal_name(-code));
        let name = name.as_deref().map_or(UNKNOWN, |name| name.split(' ').next().unwrap_or(name));
        let signal = if code < 0 { format!(" ({name})") } else { String::new() };
        let message = match &self.error {
            Some(error) => error.trim_end().replace('\n', "\n  "),
            None if code < 0 => format!("Signal {} ({name}) received by PID {pid}", -code),
            None => NO_TRACEBACK.to_owned(),
        };
        let Self { rank, local_rank, host, .. } = self;
        let file = self.error_file.as_deref().unwrap_or(UNKNOWN);
        format!(
            "[{index}]:\n  time      : {time}\n  host      : {host}\n  rank      : {rank} (local_rank: {local_rank})\n  \
             exitcode  : {code} (pid: {pid}) {signal}\n  error_file: {file}\n  traceback : {message}"
        )
    }
}

/// What torch wrote to an error file: the traceback, else the message.
pub fn recorded(file: &[u8]) -> Option<String> {
    let document: Value = serde_json::from_slice(file).ok()?;
    let message = document.get("message")?;
    let text = message.pointer("/extraInfo/py_callstack").or_else(|| message.get("message")).unwrap_or(message);
    text.as_str().map(str::to_owned)
}

/// The report. `program` is the script as typed; the first failure is the cause.
pub fn report(program: &str, failures: &[Failure<'_>], time: &str) -> String {
    let title = format!("{program} FAILED");
    let texts: Vec<String> = failures.iter().enumerate().map(|(index, failure)| failure.text(index, time)).collect();
    let Some((root, others)) = texts.split_first() else { return String::new() };
    let lines = std::iter::once(title.as_str()).chain(texts.iter().flat_map(|text| text.lines()));
    let width = lines.map(|line| line.chars().count()).max().unwrap_or(0).min(WIDTH);
    let others = if others.is_empty() { "  <NO_OTHER_FAILURES>".to_owned() } else { others.join("\n") };
    let (border, section) = ("=".repeat(width), "-".repeat(width));
    let mut report = format!("{border}\n{title}\n{section}\nFailures:\n{others}\n{section}\n");
    let _ = write!(report, "Root Cause (first observed failure):\n{root}\n{border}\n");
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_torchrun_prints_it() {
        let (code, signal) = (Exit::Code { code: 3 }, Exit::Signal { signal: 11, core_dumped: false });
        let failure = |rank: u32, exit| Failure {
            rank,
            local_rank: rank,
            host: "node-a",
            pid: Some(100 + rank),
            exit,
            error_file: None,
            error: None,
        };
        let recorded = Failure {
            error_file: Some("/l/error.json".to_owned()),
            error: Some("Traceback (most recent call last):\nValueError: x\n".to_owned()),
            ..failure(2, &code)
        };
        let file = br#"{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback\nx"}}}"#;
        assert_eq!(super::recorded(file).as_deref(), Some("Traceback\nx"));
        assert_eq!(super::recorded(br#"{"message": "x", "timestamp": 1}"#).as_deref(), Some("x"));
        assert_eq!(super::recorded(b"{"), None);
        let time = "2026-11-17_02:08:39";
        insta::assert_snapshot!(report("fail.py", &[failure(1, &code)], time));
        insta::assert_snapshot!(report("fail.py", &[recorded, failure(0, &signal)], time));
    }
}
