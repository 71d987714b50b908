//! Known messages of failing programs, in one table: what each means for finding the cause.
//!
//! [`SIGNATURES`] is the source of the reference page and of `umiak explain CODE`. Codes: `U1` the
//! environment, `U2` the program, `U3` memory and devices, `U4` communication, `U9` ranks that
//! ended because of something outside them. A code is never reused.

mod patterns;
mod table;

use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::SignatureMatch;

pub use table::SIGNATURES;

/// A fault in mapped memory. The kernel may report the reason.
pub(super) const BUS_ERROR: &str = "U2304";
/// A network interface is missing.
pub(super) const NO_INTERFACE: &str = "U4106";
/// The rank received SIGTERM.
pub(super) const TERMINATED: &str = "U9101";
/// Nothing listens at the address.
pub(super) const REFUSED: &str = "U9203";
/// Prefix of the codes for ranks that were stopped from outside.
pub(super) const STOPPED: &str = "U91";

/// What the message says about the cause of the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// This rank's own error.
    Cause,
    /// A consequence of an earlier error in the same rank: look further up in its log.
    Consequence,
    /// A peer did not respond. Proves that some rank hangs, but not which one.
    Waiting,
    /// A peer ended first, or this rank was stopped from outside.
    Victim,
}

impl Kind {
    /// The first word of an explanation.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cause => "Cause",
            Self::Consequence => "Consequence",
            Self::Waiting => "Waiting",
            Self::Victim => "Victim",
        }
    }
}

/// How specific a signature is, compared with others in the same line or message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A special case of another signature (a rejected certificate among failed downloads).
    Exact,
    Usual,
    /// A broad pattern: any other signature in the same message is more specific.
    General,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Signature {
    pub code: &'static str,
    pub kind: Kind,
    /// A short description.
    pub title: &'static str,
    /// A regular expression for one line.
    pub pattern: &'static str,
    /// What to do, in one line.
    pub hint: &'static str,
    /// What it means and what to do, printed by `umiak explain`.
    pub text: &'static str,
    pub scope: Scope,
    /// Programs do not recover from this error. If another error was raised while this one was being
    /// handled, this one is still the cause; a caught `FileNotFoundError` usually is not.
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

/// Returns the signature with this code, ignoring case.
pub fn explain(code: &str) -> Option<&'static Signature> {
    SIGNATURES.iter().find(|signature| signature.code.eq_ignore_ascii_case(code))
}

/// The signature of one line: the most specific, and among equals the first of the table, where victims come last.
pub(super) fn of_line(line: &str) -> Option<&'static Signature> {
    patterns::matches(line).map(|index| &SIGNATURES[index]).min_by_key(|signature| signature.scope)
}

/// The signature of an error whose first line is the error itself and whose other lines are details.
///
/// Among equals the first line has priority, because details quote other messages (the last warning of
/// a library, advice about related errors); then the details from the top.
pub(super) fn of_message<'a>(lines: impl Iterator<Item = &'a str>) -> Option<&'static Signature> {
    lines.filter_map(of_line).min_by_key(|signature| signature.scope)
}

#[cfg(test)]
mod tests;
