//! `umiak plan FILE` and `run --dry-run`: prints the plan.

use std::process::ExitCode;

use clap::Args;
use umiak_core::formats::document::Document;
use umiak_core::model::{Host, Hosts, Port};
use umiak_core::plan::document::{self, Granted, RunPlace, Submission};

use crate::engine::EngineKind;
use crate::engine::local::too_few_addresses;
use crate::front::document::needs;
use crate::front::document::submit::check_variables;
use crate::secrets;
use crate::views::Output;
use crate::views::plan::text;

use super::run::{What, submission};
use super::runs::{Done, Format, print_text};
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

pub(super) fn show((submission, document): &(Submission, Document), output: Output) -> Done {
    tell(&document.notices);
    let needed = document::needs(&submission.job);
    let engine = EngineKind::parse(&submission.engine)?;
    // Held until we exit, so that the addresses shown are free.
    let (hosts, _blocks) = match engine.capabilities().hosts {
        Hosts::Names => (document::names(&submission.job), Vec::new()),
        Hosts::Addresses => {
            let (addresses, blocks) = umiak_sys::addresses::lease(needed.addresses, fastrand::u64(..));
            if (addresses.len() as u32) < needed.addresses {
                return Err(too_few_addresses(needed.addresses, addresses.len()));
            }
            (addresses.into_iter().map(|address| Host::Address(address.into())).collect(), blocks)
        }
    };
    let leased = match needs::ports(&needed)? {
        Some(request) => umiak_sys::ports::lease(&request).map_err(|error| needs::too_few_ports(&error))?,
        None => Default::default(),
    };
    let granted = Granted { hosts, ports: leased.0.ports.iter().copied().filter_map(Port::new).collect() };
    // The run gets its number when it is run.
    let (run, tasks, scratch) = ("run-??????".to_owned(), "tasks".into(), "scratch".into());
    let user = umiak_sys::host::user().unwrap_or_default();
    let place = RunPlace { run, user, cpus: umiak_sys::host::cpus(), tasks, scratch, attached: true };
    let plan = document::place(submission, place, granted);
    let known = secrets::learn(submission);
    check_variables(engine, &plan)?;
    match output {
        Output::Json => {
            crate::screen::write_json(&plan.json(&known))?;
            Ok(ExitCode::SUCCESS)
        }
        Output::Quiet => print_text(""),
        Output::Human => print_text(&text(&plan, &known)),
    }
}
