//! Front doors: one module for each way people define a job. Text in, model and diagnostics out.

pub mod argparse;
pub mod document;
pub mod launch;
pub mod native;
pub mod prefix;
pub mod settings;

use crate::diag::{Diagnostic, Source};
use document::{Document, Format};
use settings::Settings;

/// The job that a document of any format describes, or everything that is wrong with it. `params` are those of the
/// command line.
pub fn parse(source: &Source, params: &[(String, String)], settings: &Settings) -> Result<Document, Vec<Diagnostic>> {
    let (format, tree) = document::recognise(source);
    match (format, tree) {
        (Some(Format::Native), Ok(tree)) => native::parse(source, tree, params, settings),
        (Some(Format::Native) | None, Err(error)) => Err(vec![error]),
        (Some(other), _) => Err(vec![document::not_in_this_version(source, other)]),
        (None, Ok(tree)) => Err(vec![document::not_recognised(source, &tree.root)]),
    }
}
