//! `umiak plan FILE` and `run --dry-run`: what would run.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Args;
use umiak_core::model::Port;
use umiak_core::plan::document::{self, Granted};
use umiak_core::plan::{Plan, print};
use umiak_sys::ports::{LeaseRequest, Place};

use crate::engine::local;
use crate::supervisor::submit::{Submission, check_variables};

use super::run::{What, submission};
use super::runs::{Done, Format, Output, print_text};
use super::tell;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match submission(&arguments.what) {
        Err(diagnostics) => super::fail(&diagnostics),
        Ok(submission) => {
            show(&submission, arguments.format.output).unwrap_or_else(|diagnostic| super::fail(&[diagnostic]))
        }
    }
}

pub(super) fn show(submission: &Submission, output: Output) -> Done {
    tell(&submission.notices);
    let needs = document::needs(&submission.job);
    // Held until we end, so that what is shown was free.
    let (addresses, _blocks) = umiak_sys::addresses::lease(needs.addresses, fastrand::u64(..));
    if (addresses.len() as u32) < needs.addresses {
        return Err(local::too_few_addresses(needs.addresses, addresses.len()));
    }
    let count = u16::try_from(needs.ports).map_err(|_| local::too_many_ports(needs.ports))?;
    let request = LeaseRequest { count, place: Place::Anywhere, seed: fastrand::u64(..) };
    let (ports, _leases) = umiak_sys::ports::lease(&request).map_err(|error| local::too_few_ports(&error))?;
    let granted = Granted {
        addresses: addresses.into_iter().map(IpAddr::V4).collect(),
        ports: ports.ports.into_iter().filter_map(Port::new).collect(),
    };
    let placed = document::Submission {
        // It has a number when it is run.
        run: "run-??????".to_owned(),
        engine: submission.engine.word().to_owned(),
        directory: submission.directory.clone(),
        wishes: submission.wishes,
        programs: submission.programs.clone(),
        inherited: submission.environment.clone(),
        cpus: umiak_sys::host::cpus(),
        tasks: "tasks".into(),
        scratch: "scratch".into(),
        attached: true,
    };
    let plan = document::place(submission.job.clone(), placed, granted);
    check_variables(submission.engine, &plan)?;
    match output {
        Output::Json => print_text(&print::json(&plan, &submission.known)),
        Output::Quiet => print_text(""),
        Output::Human => print_text(&print::text(&plan, &submission.known)),
    }
}

/// The schema of a plan: `--output json` and `plan.json`.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Plan);
    format!("{}\n", serde_json::to_string_pretty(&schema).expect("a schema is JSON"))
}
