//! The reader shared by all document formats. A format adds its keys, its [`template::Templates`] and its lowering.
//!
//! | step | module |
//! |---|---|
//! | bytes to a source, and the name of its format | `recognise` |
//! | text to a tree with positions | `yaml`, `tree` |
//! | the text that is recorded, without its secrets | `masked` |
//! | how far aliases and templates expand it | `expansion` |
//! | templates are filled on the leaves | `template` |
//! | how large a job may be, names that would collide, cycles | `limits`, `names`, `order` |
//! | tables of keys | [`keys`] |
//! | tree to values, every error collected | `reader`, [`super::units`] |

pub(super) mod expansion;
pub mod keys;
pub(super) mod limits;
pub(super) mod masked;
pub(super) mod names;
pub(super) mod order;
pub(super) mod reader;
mod recognise;
pub(super) mod template;
pub(super) mod tree;
mod yaml;

pub use recognise::{Format, decode};
pub(super) use recognise::{framework, is_script, not_a_script, not_recognised, recognise};
pub(super) use yaml::Tree;
pub use yaml::{MAX_BYTES, printed};

use std::collections::BTreeMap;

use super::paddleflow::{Dialect, Special};
use super::paddlerec::Target;
use crate::diag::{Diagnostic, Span};
use crate::mask::Known;
use crate::model::{EngineChoice, Job, Pipeline, Workload};

/// What a format reads from a tree. Errors and notices are in its reader.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) work: Option<Workload>,
    /// The text with secrets replaced.
    pub(crate) masked: String,
    pub(crate) secrets: Known,
    /// Parameters that must be given before it can run, and where they are written.
    pub(crate) needed: Vec<(String, Span)>,
    /// Flavours that are not defined.
    pub(crate) flavours: BTreeMap<String, Span>,
    /// What not every version of its system accepts.
    pub(crate) special: Vec<(Special, Span)>,
    /// The engine that it names for all of it.
    pub(crate) engine: Option<EngineChoice>,
    /// Where it runs, if it says so.
    pub(crate) target: Option<Box<Target>>,
}

impl Reading {
    /// The job, if it is not a pipeline.
    pub(crate) fn job(self) -> Option<Job> {
        match self.work? {
            Workload::Job(job) => Some(*job),
            Workload::Pipeline(_) => None,
        }
    }
}

/// A document that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub work: Workload,
    pub notices: Vec<Diagnostic>,
    /// The text with secrets replaced.
    pub masked: String,
    /// The values of its secret parameters, to be masked in everything else that is written about the document.
    pub secrets: Known,
    /// The engine that it names for all of it. Steps may have their own.
    pub engine: Option<EngineChoice>,
    /// Where it runs, if it says so: only submissions of PaddleRec do.
    pub target: Option<Box<Target>>,
}

impl Document {
    /// The job, if it is not a pipeline.
    pub fn job(&self) -> Option<&Job> {
        match &self.work {
            Workload::Job(job) => Some(job),
            Workload::Pipeline(_) => None,
        }
    }

    pub fn pipeline(&self) -> Option<&Pipeline> {
        match &self.work {
            Workload::Pipeline(pipeline) => Some(pipeline),
            Workload::Job(_) => None,
        }
    }
}

/// The result of checking a document before a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// `None` if there are errors or missing parameters.
    pub work: Option<Workload>,
    /// Parameters that must be given before it can run.
    pub needed: Vec<String>,
    /// Errors; without errors, notices.
    pub diagnostics: Vec<Diagnostic>,
    /// Which versions of PaddleFlow accept a pipeline.
    pub dialect: Option<Dialect>,
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
