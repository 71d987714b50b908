//! An error as JSON: `launch`, `run`, `resume` and `retry` with `--output json`.

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::Diagnostic;

use crate::secrets;

/// A line on stdout in place of the run's events.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReportedError<'a> {
    v: u32,
    error: &'a Diagnostic,
}

/// The error as one line.
pub(crate) fn line(error: &Diagnostic) -> String {
    let mut line = serde_json::to_value(ReportedError { v: 1, error }).expect("a diagnostic is JSON");
    secrets::mask_json(&mut line);
    format!("{line}\n")
}
