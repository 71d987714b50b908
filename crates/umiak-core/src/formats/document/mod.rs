//! The reader shared by all document formats. A format adds its keys, its [`template::Templates`] and its lowering.
//!
//! | step | module |
//! |---|---|
//! | bytes to a source, and the name of its format | `recognise` |
//! | text to a tree with positions | `yaml`, `tree` |
//! | the text that is recorded, without its secrets | `masked` |
//! | how far aliases and templates expand it | `expansion` |
//! | templates are filled on the leaves | `template` |
//! | how large a job may be, names that would collide | `limits`, `names` |
//! | tables of keys | [`keys`] |
//! | tree to values, every error collected | `reader`, [`super::units`] |

pub(super) mod expansion;
pub mod keys;
pub(super) mod limits;
pub(super) mod masked;
pub(super) mod names;
pub(super) mod reader;
mod recognise;
pub(super) mod template;
pub(super) mod tree;
mod yaml;

pub use recognise::{Format, decode};
pub(super) use recognise::{framework, is_script, not_a_script, not_in_this_version, not_recognised, recognise};
pub use yaml::MAX_BYTES;
pub(super) use yaml::Tree;

use crate::diag::{Diagnostic, Span};
use crate::mask::Known;
use crate::model::Job;

/// What a format reads from a tree. Errors and notices are in its reader.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) job: Option<Job>,
    /// The text with secrets replaced.
    pub(crate) masked: String,
    pub(crate) secrets: Known,
    /// Parameters that must be given before it can run, and where they are written.
    pub(crate) needed: Vec<(String, Span)>,
}

/// A document that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub job: Job,
    pub notices: Vec<Diagnostic>,
    /// The text with secrets replaced.
    pub masked: String,
    /// The values of its secret parameters, to be masked in everything else that is written about the document.
    pub secrets: Known,
}

/// The result of checking a document before a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// `None` if there are errors or missing parameters.
    pub job: Option<Job>,
    /// Parameters that must be given before it can run.
    pub needed: Vec<String>,
    /// Errors; without errors, notices.
    pub diagnostics: Vec<Diagnostic>,
}

/// A native document that was made from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    pub text: String,
    /// The format of the original. A native document stays as it is.
    pub format: Format,
}

#[cfg(test)]
mod tests;
