//! Known words of dying programs: one table, with what each means for finding the cause.
//!
//! The reference page and `umiak explain CODE` are written from [`SIGNATURES`]. Codes: `U1` the
//! environment, `U2` the program, `U3` memory and devices, `U4` communication, `U9` ranks that
//! ended because of something outside them. A code is never given to another case.

mod table;

use std::sync::LazyLock;

use regex::RegexSet;

use crate::facts::SignatureMatch;

pub use table::SIGNATURES;

/// The rank was asked to end.
pub(super) const TERMINATED: &str = "U9101";
/// How the codes of ranks that something outside stopped begin.
pub(super) const STOPPED: &str = "U91";

/// What the words say about who was first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// This rank's own error.
    Cause,
    /// The echo of an earlier error in the same rank: look further up in its log.
    Consequence,
    /// A peer did not come. Proof of a hang somewhere, not of who hangs.
    Waiting,
    /// A peer went first, or something outside stopped this rank.
    Victim,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Signature {
    pub code: &'static str,
    pub kind: Kind,
    /// The case in a few words.
    pub title: &'static str,
    /// A regular expression for one line.
    pub pattern: &'static str,
    /// What to do, in one line.
    pub hint: &'static str,
    /// What it means and how to go on, as `umiak explain` prints it.
    pub text: &'static str,
    /// Words of a whole family: any other signature in the same message says more.
    pub general: bool,
    /// Programs do not catch this to go on. When another error came up while this one was being
    /// handled, this one is still the reason; a caught `FileNotFoundError` is usually none.
    pub grave: bool,
}

impl Signature {
    /// One row, without its flags.
    const fn new(
        code: &'static str,
        kind: Kind,
        title: &'static str,
        pattern: &'static str,
        hint: &'static str,
        text: &'static str,
    ) -> Self {
        Self { code, kind, title, pattern, hint, text, general: false, grave: false }
    }

    const fn general(mut self) -> Self {
        self.general = true;
        self
    }

    const fn grave(mut self) -> Self {
        self.grave = true;
        self
    }

    /// The form in which a match is recorded.
    pub fn to_match(&self) -> SignatureMatch {
        SignatureMatch {
            code: self.code.to_owned(),
            title: self.title.to_owned(),
            victim: self.kind == Kind::Victim,
            hint: Some(self.hint.to_owned()),
        }
    }
}

/// The signature with this code, in either case.
pub fn explain(code: &str) -> Option<&'static Signature> {
    SIGNATURES.iter().find(|signature| signature.code.eq_ignore_ascii_case(code))
}

/// All patterns at once; compiled at the first failure, not at the start of a healthy run.
static PATTERNS: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSet::new(SIGNATURES.iter().map(|signature| signature.pattern)).expect("a test compiles every pattern")
});

/// The signature of one line: the first specific one of the table, else the first general one.
pub(super) fn of_line(line: &str) -> Option<&'static Signature> {
    let hits = PATTERNS.matches(line);
    let all = || hits.iter().map(|index| &SIGNATURES[index]);
    all().find(|signature| !signature.general).or_else(|| all().next())
}

/// The signature of an error whose first line is the error itself and whose other lines are details.
///
/// A specific match on the first line wins, because details quote other things (the last warning of
/// a library, advice about related errors); then a specific one in the details; then a general one.
pub(super) fn of_message<'a>(mut lines: impl Iterator<Item = &'a str>) -> Option<&'static Signature> {
    let first = lines.next().and_then(of_line);
    if first.is_some_and(|signature| !signature.general) {
        return first;
    }
    let details: Vec<_> = lines.filter_map(of_line).collect();
    details.iter().find(|signature| !signature.general).copied().or(first).or_else(|| details.first().copied())
}

#[cfg(test)]
mod tests;
