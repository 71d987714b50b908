//! Extracts the error, its place, the traceback and the last lines from the end of a log.
//!
//! The input is the last piece of one attempt's output, as bytes: it may begin in the middle of a
//! line and contain progress bars, colours, lines of other threads and anything else. The output is
//! bounded for any input, because it is sent to every node and written to the journal.

use serde_json::Value;

use super::blocks;
use super::chain::{self, Choice};
use super::signatures::{self, Kind, Signature};
use super::text::{self, Row, WIDTH, bounded};
use crate::facts::{Evidence, Line};

/// Lines of a traceback that are kept.
const HEIGHT: usize = 40;
/// Lines at the end that are kept.
const LAST: usize = 5;
/// Lines at the end that are searched for an error if there is neither a traceback nor an abort.
const NEAR: usize = 30;
/// A larger error file is ignored.
const MAX_ERROR_FILE: usize = 1024 * 1024;

/// Reads the evidence from the last bytes of this attempt's log.
///
/// `first_line` is the number of the line in which `tail` begins, if known. `error_file` is the
/// content of the file named by `TORCHELASTIC_ERROR_FILE`, if the rank wrote one: it is the
/// exception that ended the rank, so it takes precedence over the log.
pub fn extract(tail: &[u8], first_line: Option<u64>, error_file: Option<&[u8]>) -> Evidence {
    let rows = text::rows(tail, first_line);
    let lines: Vec<&str> = rows.iter().map(|row| row.text.as_str()).collect();
    let last_lines = last_of(&lines);
    let report = error_file
        .and_then(recorded)
        .map(|(text, message)| from_error_file(&rows, &text, &message))
        .or_else(|| from_log(&rows, &lines))
        .or_else(|| from_words(&rows, &lines));
    let evidence = Evidence { last_lines, ..Evidence::default() };
    match report {
        None => evidence,
        Some(report) => Evidence {
            headline: Some(Line { text: bounded(&report.headline, WIDTH), number: report.number }),
            place: report.place,
            traceback: report.traceback,
            signature: report.signature.map(Signature::to_match),
            ..evidence
        },
    }
}

/// The last lines of a log, without looking for an error in them.
pub fn last_lines(tail: &[u8]) -> Vec<String> {
    let rows = text::rows(tail, None);
    last_of(&rows.iter().map(|row| row.text.as_str()).collect::<Vec<_>>())
}

fn last_of(lines: &[&str]) -> Vec<String> {
    let last = lines.iter().rev().map(|line| line.trim()).filter(|line| !line.is_empty()).take(LAST);
    let mut last_lines: Vec<String> = last.map(|line| bounded(line, WIDTH)).collect();
    last_lines.reverse();
    last_lines
}

/// True if a log ends with a time-out: a peer did not respond.
pub fn ends_with_timeout(tail: &[u8]) -> bool {
    // The patterns are compiled only if one of them can match: other ranks wait to be stopped.
    let may = ["imed out", "imeout", "TIMEOUT", "failed to pass"];
    if !may.iter().any(|words| tail.windows(words.len()).any(|window| window == words.as_bytes())) {
        return false;
    }
    let rows = text::rows(tail, None);
    let mut near = rows.iter().rev().filter(|row| !row.text.is_empty()).take(2 * NEAR);
    near.any(|row| signatures::of_line(row.text.trim()).is_some_and(|signature| signature.kind == Kind::Waiting))
}

/// The parts of the evidence that come from one error.
struct Report {
    headline: String,
    number: Option<u64>,
    place: Option<String>,
    traceback: Vec<String>,
    signature: Option<&'static Signature>,
}

impl Report {
    fn new(rows: &[Row], lines: &[&str], choice: Choice) -> Self {
        let (start, end) = choice.lines;
        // The whole chain if it fits; otherwise only the chosen error.
        let (start, end) = if end - start > HEIGHT { (choice.block.start, choice.block.end) } else { (start, end) };
        Self {
            number: rows[choice.block.head].number,
            traceback: printed(&lines[start..end]),
            headline: choice.block.headline,
            place: choice.block.place,
            signature: choice.signature,
        }
    }
}

/// The traceback, bounded, without trailing blank lines.
fn printed(lines: &[&str]) -> Vec<String> {
    let end = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
    text::folded(&lines[..end], HEIGHT).iter().map(|line| bounded(line, WIDTH)).collect()
}

/// The error that ended the program; for a consequence, its cause.
fn from_log(rows: &[Row], lines: &[&str]) -> Option<Report> {
    let choices = chain::resolve(lines, &blocks::find(lines));
    let mut choice = chain::choose(lines, &choices)?;
    if choice.is_echo() {
        choice = chain::origin(lines, &choices, &choice).unwrap_or(choice);
    }
    Some(Report::new(rows, lines, choice))
}

/// Torch's error file: the traceback, and the message.
fn recorded(file: &[u8]) -> Option<(String, String)> {
    let document: Value = (file.len() <= MAX_ERROR_FILE).then(|| serde_json::from_slice(file).ok())??;
    let message = document.get("message")?;
    if let Value::String(text) = message {
        return Some((text.clone(), text.clone()));
    }
    let text = message.pointer("/extraInfo/py_callstack").and_then(Value::as_str).unwrap_or_default();
    let summary = message.get("message").and_then(Value::as_str)?;
    Some((text.to_owned(), summary.to_owned()))
}

fn from_error_file(log: &[Row], traceback: &str, message: &str) -> Report {
    let rows = text::rows(traceback.as_bytes(), None);
    let lines: Vec<&str> = rows.iter().map(|row| row.text.as_str()).collect();
    let mut report = from_log(&rows, &lines).unwrap_or_else(|| {
        let rows = text::rows(message.as_bytes(), None);
        let lines: Vec<&str> = rows.iter().map(|row| row.text.as_str()).collect();
        let headline = lines.iter().find(|line| !line.is_empty()).copied().unwrap_or_default();
        Report {
            headline: headline.to_owned(),
            number: None,
            place: None,
            traceback: printed(&lines),
            signature: signatures::of_message(lines.iter().copied()),
        }
    });
    // The same error is usually in the log too, where users look for it.
    report.number = log.iter().rev().find(|row| row.text == report.headline).and_then(|row| row.number);
    if report.signature.is_some_and(|signature| signature.kind == Kind::Consequence) {
        let lines: Vec<&str> = log.iter().map(|row| row.text.as_str()).collect();
        if let Some(origin) = from_log(log, &lines).filter(|origin| origin.signature.is_some()) {
            return Report { place: origin.place.or(report.place), ..origin };
        }
    }
    report
}

/// The best of the last lines, for programs that print an error and exit: the last one with a
/// signature, where a lost peer counts only if there is nothing else; otherwise the last one that
/// contains a word such as `error`.
fn from_words(rows: &[Row], lines: &[&str]) -> Option<Report> {
    // Errors that were found and not chosen did not end the program, and their lines do not show the reason.
    let passed = blocks::find(lines);
    let free = |at: &usize| !passed.iter().any(|block| (block.start..block.end).contains(at));
    let near = || (0..lines.len()).rev().filter(|&at| !lines[at].is_empty()).take(NEAR).filter(free);
    let report = |at: usize, signature| Report {
        headline: lines[at].trim().to_owned(),
        number: rows[at].number,
        place: None,
        traceback: Vec::new(),
        signature,
    };
    let serious = near().filter(|&at| text::is_serious(lines[at]));
    let known: Vec<_> =
        serious.filter_map(|at| signatures::of_line(lines[at].trim()).map(|signature| (at, signature))).collect();
    let of = |kinds: &[Kind]| known.iter().find(|(_, signature)| kinds.contains(&signature.kind));
    let best = of(&[Kind::Cause]).or_else(|| of(&[Kind::Consequence, Kind::Waiting])).or_else(|| known.first());
    best.map(|&(at, signature)| report(at, Some(signature)))
        .or_else(|| near().find(|&at| calls_itself_error(lines[at])).map(|at| report(at, None)))
}

fn calls_itself_error(line: &str) -> bool {
    let words = ["error", "fatal", "exception", "critical", "abort", "failed", "panic"];
    let lower = line.to_lowercase();
    text::is_serious(line) && words.iter().any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests;
