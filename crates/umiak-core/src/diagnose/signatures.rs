//! Known words of dying programs: one table, with what each means for finding the cause.
//!
//! The reference page and `umiak explain CODE` are written from [`SIGNATURES`]. Codes: `U1` the
//! environment, `U2` the program, `U3` memory and devices, `U4` communication, `U9` ranks that
//! ended because of something outside them. A code is never given to another case.

mod patterns;
mod table;

use crate::facts::SignatureMatch;

pub use table::SIGNATURES;

/// A fault in mapped memory, which the kernel may know the reason of.
pub(super) const BUS_ERROR: &str = "U2304";
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

/// How much the words say, beside others in the same line or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// One case within what another signature's words stand for (a refused certificate among failed downloads).
    Exact,
    Usual,
    /// Words of a whole family: any other signature in the same message says more.
    General,
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
    pub scope: Scope,
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
        Self { code, kind, title, pattern, hint, text, scope: Scope::Usual, grave: false }
    }

    const fn general(mut self) -> Self {
        self.scope = Scope::General;
        self
    }

    const fn exact(mut self) -> Self {
        self.scope = Scope::Exact;
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

/// The signature of one line: the most specific, and among those the first of the table, where victims come last.
pub(super) fn of_line(line: &str) -> Option<&'static Signature> {
    patterns::matches(line).map(|index| &SIGNATURES[index]).min_by_key(|signature| signature.scope)
}

/// The signature of an error whose first line is the error itself and whose other lines are details.
///
/// Among equals the first line wins, because details quote other things (the last warning of a
/// library, advice about related errors), and then the details from the top.
pub(super) fn of_message<'a>(lines: impl Iterator<Item = &'a str>) -> Option<&'static Signature> {
    lines.filter_map(of_line).min_by_key(|signature| signature.scope)
}

#[cfg(test)]
mod tests;
