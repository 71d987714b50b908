//! One module for each way to define a job. Text in, model and diagnostics out.

pub mod argparse;
pub mod document;
pub mod launch;
pub mod native;
pub mod prefix;
pub mod settings;
pub mod units;

use crate::diag::{Diagnostic, Source};
use document::{Checked, Document, Format, Tree};
use settings::Settings;

/// The job that a document of any format describes, or all its errors. `params` are those of the command line.
pub fn parse(source: &Source, params: &[(String, String)], settings: &Settings) -> Result<Document, Vec<Diagnostic>> {
    native::parse(source, native_tree(source).map_err(|error| vec![error])?, params, settings)
}

/// Checks a document before a run: parameters without a value are not errors.
pub fn check(source: &Source, params: &[(String, String)], settings: &Settings) -> Checked {
    match native_tree(source) {
        Ok(tree) => native::check(source, tree, params, settings),
        Err(error) => Checked { job: None, needed: Vec::new(), diagnostics: vec![error] },
    }
}

fn native_tree(source: &Source) -> Result<Tree, Diagnostic> {
    if document::is_script(source) {
        return Err(document::not_a_script(source));
    }
    let (format, tree) = document::recognise(source);
    match (format, tree) {
        (Some(Format::Native), Ok(tree)) => Ok(tree),
        (Some(Format::Native) | None, Err(error)) => Err(error),
        (Some(other), _) => Err(document::not_in_this_version(source, other)),
        (None, Ok(tree)) => Err(document::not_recognised(source, &tree.root)),
    }
}
