//! `umiak plan FILE` and `run --dry-run`: prints the plan.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use clap::Args;
use umiak_core::cluster::kubernetes::notices;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::document::printed;
use umiak_core::model::{Host, Hosts, Job, KubeKind, Port, Workload};
use umiak_core::plan::PipelinePlan;
use umiak_core::plan::document::{self, Granted, RunPlace, Submission};

use crate::engine::kubernetes::Prepared;
use crate::engine::local::too_few_addresses;
use crate::engine::script::{self, Renderer};
use crate::engine::{self, EngineKind};
use crate::front::document::needs;
use crate::front::document::submit::check_variables;
use crate::secrets;
use crate::views::Output;
use crate::views::graph::{Drawing, Graph};
use crate::views::plan::{pipeline_text, text};

use super::run::{Ready, What, ready};
use super::runs::{Done, Format, print_json, print_text};
use super::tell;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    what: What,
    /// Draw the DAG of a pipeline: `text`, `mermaid` or `dot`
    #[arg(long, value_name = "FORM", hide_possible_values = true)]
    graph: Option<Graph>,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match ready(&arguments.what) {
        Err(diagnostics) => super::fail(&diagnostics),
        Ok(ready) => {
            // The process ends: freeing a large pipeline value by value takes a fifth of the time.
            let ready = ManuallyDrop::new(ready);
            show(&ready, arguments.graph, arguments.format).unwrap_or_else(|diagnostic| super::fail(&[diagnostic]))
        }
    }
}

pub(super) fn show(ready: &Ready, graph: Option<Graph>, format: Format) -> Done {
    let (submission, document) = match ready {
        Ready::Run(ready) => &**ready,
        Ready::Cloud(submission) => {
            tell(&submission.notices);
            return super::cloud::show(submission, graph.is_some(), format);
        }
    };
    tell(&document.notices);
    let job = match &submission.work {
        Workload::Job(job) => job,
        Workload::Pipeline(_) if graph.is_none() && format.output == Output::Quiet => return print_text(""),
        Workload::Pipeline(pipeline) => {
            let known = secrets::learn(submission);
            let mut plan = ManuallyDrop::new(PipelinePlan::new(None, submission, pipeline, &known));
            if graph.is_none() {
                let mut renderer = Renderer::default();
                let scripts = renderer.scripts(submission, pipeline)?;
                tell(&renderer.notices);
                plan.scripts = scripts.iter().map(|script| script.masked(&known)).collect();
            }
            let style = format.style();
            return match (graph, format.output) {
                (Some(graph), _) => print_text(&Drawing { pipeline: &plan.pipeline, run: None }.draw(graph, &style)),
                (None, Output::Json) => print_json(&*plan),
                (None, Output::Human | Output::Quiet) => print_text(&pipeline_text(&style, &plan)),
            };
        }
    };
    if graph.is_some() {
        return Err(Diagnostic::error(Code::L0001, "`--graph` draws pipelines: this document is one job"));
    }
    let needed = document::needs(job);
    let engine = engine::kind(&submission.engine)?;
    if engine == EngineKind::Kubernetes {
        return manifests(submission, job, format);
    }
    // Held until we exit, so that the addresses shown are free.
    let (hosts, _blocks) = match engine.capabilities().hosts {
        Hosts::Names | Hosts::Placed => (document::names(job), Vec::new()),
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
    let granted =
        Granted { hosts, ports: leased.0.ports.iter().copied().filter_map(Port::new).collect(), by_owner: false };
    let mut plan = document::place(submission, job, &submission.programs, unnumbered(), granted);
    let known = secrets::learn(submission);
    check_variables(engine.capabilities(), &plan)?;
    if format.output == Output::Quiet {
        return print_text("");
    }
    let mut renderer = Renderer::default();
    plan.script = renderer.script(engine, &plan)?;
    tell(&renderer.notices);
    match format.output {
        Output::Json => {
            crate::screen::write_json(&plan.json(&known))?;
            Ok(ExitCode::SUCCESS)
        }
        Output::Human | Output::Quiet => print_text(&text(&plan, &known)),
    }
}

fn unnumbered() -> RunPlace {
    let user = umiak_sys::host::user().unwrap_or_default();
    let (run, cpus) = (script::RUN.to_owned(), umiak_sys::host::cpus());
    RunPlace { run, step: None, user, cpus, tasks: "tasks".into(), scratch: "scratch".into(), attached: true }
}

/// The plan of a job on Kubernetes, without contact to a cluster.
fn manifests(submission: &Submission, job: &Job, format: Format) -> Done {
    let prepared = Prepared::new(submission, job, &submission.programs, unnumbered(), script::RUN)?;
    let (options, kind) = (&submission.cluster.kubernetes, prepared.names.kind());
    let known = secrets::learn(submission);
    let objects = prepared.shown(&known)?;
    tell(&notices(job, kind, options));
    let plan = &prepared.plan;
    match format.output {
        Output::Json => {
            let mut plan = plan.clone();
            plan.manifests = objects;
            crate::screen::write_json(&plan.json(&known))?;
            Ok(ExitCode::SUCCESS)
        }
        Output::Quiet => print_text(""),
        Output::Human => {
            let what = match kind {
                KubeKind::Jobset => "a JobSet",
                KubeKind::Jobs => "an Indexed Job for each role",
                KubeKind::Auto | KubeKind::Volcano => "a Volcano Job",
            };
            let chosen = if options.kind.is_auto() {
                "; a cluster without Volcano gets another kind, with other addresses: see `--kube-kind`"
            } else {
                ""
            };
            let head = format!("\nmanifests, {what}{chosen}\nnames end in other letters in each run\n\n");
            print_text(&(text(plan, &known) + &head + &printed(&objects)))
        }
    }
}
