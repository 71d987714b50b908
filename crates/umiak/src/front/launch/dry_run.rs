//! `--dry-run`: the plan that a run would execute, printed.

use umiak_core::diag::Diagnostic;
use umiak_core::formats::launch::OutputMode;
use umiak_core::mask::Known;
use umiak_core::plan::{Plan, print};

use crate::screen::write_data;

pub(super) fn print(plan: &Plan, output: OutputMode) -> Result<(), Diagnostic> {
    let known = Known::default();
    match output {
        OutputMode::Json => write_data(&print::json(plan, &known)),
        OutputMode::Human => write_data(&print::text(plan, &known)),
        OutputMode::Quiet => Ok(()),
    }
}
