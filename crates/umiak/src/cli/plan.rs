//! `umiak plan FILE` and `run --dry-run`: what would run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use umiak_core::mask::Known;
use umiak_core::model::{Device, Port};
use umiak_core::plan::document::{self, Attempt, Granted, Placed, Placement, Surroundings};

use crate::engine::local::too_few_addresses;
use crate::front::document::needs;
use crate::front::document::submit::{Submission, check_variables, masked_plan};
use crate::views::Output;

use super::run::{What, submission};
use super::runs::{Done, Format, print_json, print_text};
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

/// As JSON: the plan as it is recorded, and each replica's process.
#[derive(Debug, Serialize)]
struct Shown {
    v: u32,
    plan: Placement,
    /// Variables that all replicas have: who is where. Once, because there may be thousands who are told of thousands.
    common: BTreeMap<String, String>,
    replicas: Vec<Shape>,
}

#[derive(Debug, Serialize)]
struct Shape {
    replica: String,
    program: PathBuf,
    argv: Vec<String>,
    dir: PathBuf,
    env: BTreeMap<String, String>,
}

pub(super) fn show(submission: &Submission, output: Output) -> Done {
    tell(&submission.notices);
    let needed = document::needs(&submission.job);
    // Held until we end, so that what is shown was free.
    let (addresses, _blocks) = umiak_sys::addresses::lease(needed.addresses, fastrand::u64(..));
    if (addresses.len() as u32) < needed.addresses {
        return Err(too_few_addresses(needed.addresses, addresses.len()));
    }
    let leased = match needs::ports(&needed)? {
        Some(request) => umiak_sys::ports::lease(&request).map_err(|error| needs::too_few_ports(&error))?,
        None => Default::default(),
    };
    let granted = Granted {
        addresses: addresses.into_iter().map(IpAddr::V4).collect(),
        ports: leased.0.ports.iter().copied().filter_map(Port::new).collect(),
    };
    let placed = document::Submission {
        // It has a number when it is run.
        run: "run-??????".to_owned(),
        umiak: env!("CARGO_PKG_VERSION").to_owned(),
        engine: submission.engine.word().to_owned(),
        directory: submission.directory.clone(),
        wishes: submission.wishes,
        programs: submission.programs.clone(),
    };
    let placement = document::place(submission.job.clone(), placed, granted);
    let scratch = PathBuf::from("scratch");
    let around = Surroundings::new(&placement, submission.environment.clone(), umiak_sys::host::cpus(), scratch);
    check_variables(submission.engine, &placement, &around)?;
    let known = &submission.known;
    let placement = masked_plan(&placement, known);
    let shape = |placed: &Placed| shape(&placement, placed, &around, known);
    match output {
        Output::Json => {
            let replicas = placement.replicas.iter().map(shape).collect();
            let common = shown(placement.common(), known);
            print_json(&Shown { v: 1, common, replicas, plan: placement })
        }
        Output::Quiet => print_text(""),
        Output::Human => print_text(&human(&placement, shape, known)),
    }
}

fn shape(placement: &Placement, placed: &Placed, around: &Surroundings, known: &Known) -> Shape {
    let gpus = placement.role(placed.slot).work.resources.gpus;
    let devices: Vec<Device> = (0..gpus).map(|position| Device { label: "?".to_owned(), position }).collect();
    let dir = PathBuf::from(format!("tasks/{}/attempt-0", placed.replica));
    let attempt = Attempt { slot: placed.slot, number: 0, of_job: 0, devices: &devices, dir: &dir };
    let process = placement.process(attempt, around);
    Shape {
        replica: placed.replica.clone(),
        program: process.program,
        argv: process.argv,
        dir: process.dir,
        env: shown(process.env, known),
    }
}

fn shown(variables: Vec<(String, String)>, known: &Known) -> BTreeMap<String, String> {
    let masked = variables.into_iter().map(|(name, value)| {
        let value = known.masked(&name, &value);
        (name, value)
    });
    masked.collect()
}

fn human(placement: &Placement, shape: impl Fn(&Placed) -> Shape, known: &Known) -> String {
    let mut text = format!("job {}\nengine {}\n", placement.job.name, placement.engine);
    for role in &placement.job.roles {
        let plural = if role.replicas == 1 { "" } else { "s" };
        let _ = writeln!(text, "\nrole {}, {} replica{plural}", role.name, role.replicas);
        let _ = writeln!(text, "  command  {}", role.work.command.join(" "));
        if !role.completion.decides {
            let _ = writeln!(text, "  does not decide the job's end: it is stopped when the others have ended");
        }
        for after in &role.start_after {
            let other = &placement.job.roles[after.role as usize].name;
            let _ = writeln!(text, "  starts after {other}, when {}", word(after.when));
        }
        let rule = role.restart.rule;
        if rule.max > 0 {
            let _ = writeln!(text, "  restarts {} per {}", rule.max, scope(role.restart.scope));
        }
    }
    if placement.job.policy.restart.max > 0 {
        let _ = writeln!(text, "\nthe whole job restarts {} times at most", placement.job.policy.restart.max);
    }
    let width = placement.replicas.iter().map(|placed| placed.replica.len()).max().unwrap_or(0).max(7);
    let _ = writeln!(text, "\n{:<width$}  rank  address          ports", "replica");
    for placed in &placement.replicas {
        let ports = placed.ports.iter().map(|(name, ports)| {
            let list: Vec<String> = ports.iter().map(|port| port.get().to_string()).collect();
            format!("{name} {}", list.join(","))
        });
        let ports = ports.collect::<Vec<_>>().join("  ");
        let line = format!("{:<width$}  {:<4}  {:<15}  {ports}", placed.replica, placed.rank.0, placed.host);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let common = shown(placement.common(), known);
    // The first of each role stands for the others.
    for placed in placement.replicas.iter().filter(|placed| placed.slot.index == 0) {
        let _ = writeln!(text, "\nenvironment, {}", placed.replica);
        let mut variables = common.clone();
        variables.extend(shape(placed).env);
        for (name, value) in &variables {
            let _ = writeln!(text, "  {name}={value}");
        }
    }
    text
}

fn word(when: umiak_core::model::When) -> &'static str {
    match when {
        umiak_core::model::When::Started => "it has started",
        umiak_core::model::When::Ready => "its ports answer",
        umiak_core::model::When::Succeeded => "it has succeeded",
    }
}

fn scope(scope: umiak_core::model::Scope) -> &'static str {
    match scope {
        umiak_core::model::Scope::Replica => "replica",
        umiak_core::model::Scope::Role => "role, which starts again as a whole",
    }
}
