//! `umiak show RUN`: the state of a run, from its facts.

use clap::{Args, ValueEnum};
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::facts::Fact;
use umiak_core::model::StepName;
use umiak_core::plan::PipelinePlan;
use umiak_core::status::Status;
use umiak_sys::regular;

use crate::history::index::{self, IndexEntry, Word};
use crate::history::{RunDir, journal};
use crate::views::Output;
use crate::views::graph::{Drawing, Graph};
use crate::views::pai::{self, PaiJob};
use crate::views::pipeline::{Detail, Kind};
use crate::views::run::{ShownRun, human, pipeline};
use crate::views::standing::{LoadedRun, RunStanding};

use super::runs::{Done, Format, load, print_json, print_text, shown, the_run_or_newest};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, last digits of its number, or name (live runs first); the newest run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Only this step of a pipeline (`train`, `split.3`), with its replicas
    #[arg(value_name = "STEP", conflicts_with = "graph")]
    step: Option<String>,
    /// List every replica, also of large runs; of pipelines every step, with its parameters and inputs
    #[arg(long)]
    all: bool,
    /// Show it as another system would: `pai` has the states, retries and exit codes of OpenPAI
    #[arg(long = "as", value_name = "SYSTEM")]
    system: Option<System>,
    /// Draw the DAG of a pipeline, with the states of its nodes: `text`, `mermaid` or `dot`
    #[arg(long, value_name = "FORM", hide_possible_values = true)]
    graph: Option<Graph>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    Pai,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (home, run) = the_run_or_newest(arguments.run.as_deref())?;
    let loaded = load(run)?;
    let entry = index::entries(&home)?.into_iter().find(|entry| entry.run == loaded.run.id());
    let entry = entry.unwrap_or_else(|| IndexEntry::new(loaded.run.id(), &loaded.status));
    let damage = loaded.damage.clone();
    if arguments.system == Some(System::Pai) {
        let plan = regular::read(&loaded.run.plan()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let job = PaiJob::new(&loaded, &entry, plan.as_ref());
        let code = match arguments.format.output {
            Output::Quiet => print_text(&format!("{}\n", job.job_status.state.word())),
            Output::Human => print_text(&pai::human(&arguments.format.style(), &job)),
            Output::Json => print_json(&job),
        };
        return shown(code?, damage.as_deref());
    }
    let plan = loaded.pipeline_plan();
    let style = arguments.format.style();
    if let Some(step) = &arguments.step {
        return shown(show_step(arguments, loaded, entry, plan.as_ref(), step)?, damage.as_deref());
    }
    if let Some(graph) = arguments.graph {
        let Some(plan) = &plan else { return Err(no_pipeline(&loaded)) };
        let run = pipeline(&loaded, plan);
        let drawing = Drawing { pipeline: &plan.pipeline, run: run.as_ref() };
        return shown(print_text(&drawing.draw(graph, &style))?, damage.as_deref());
    }
    let code = match arguments.format.output {
        Output::Quiet => print_text(&format!("{}\n", loaded.standing.word())),
        Output::Human => print_text(&human(&style, &loaded, &entry, plan.as_ref(), arguments.all)),
        Output::Json => print_json(&ShownRun::new(loaded, entry, plan.as_ref())),
    };
    shown(code?, damage.as_deref())
}

fn no_pipeline(loaded: &LoadedRun) -> Diagnostic {
    Diagnostic::error(Code::L0001, format!("`{}` is not a pipeline: it has no steps", loaded.run.id()))
}

/// Shows one step: its values and its job. Of what ran no job, the part of the tree.
fn show_step(
    arguments: &Arguments,
    loaded: LoadedRun,
    entry: IndexEntry,
    plan: Option<&PipelinePlan>,
    name: &str,
) -> Done {
    let style = arguments.format.style();
    let run = plan.and_then(|plan| pipeline(&loaded, plan)).ok_or_else(|| no_pipeline(&loaded))?;
    let instances = run.instances();
    let Some(instance) = instances.iter().find(|instance| instance.name == name) else {
        let id = loaded.run.id();
        let error = Diagnostic::error(Code::L0001, format!("`{id}` has no step `{name}`"));
        let near = nearest(name, instances.iter().map(|instance| instance.name.as_str()));
        return Err(near.into_iter().fold(error, |error, near| error.hint(format!("there is a step `{near}`"))));
    };
    let tree = run.tree(&style, Some(name), Detail::of(arguments.all));
    let job = job(&loaded.run, name)?.filter(|_| instance.kind == Kind::Step);
    let nodes = run.shown_below(name);
    match (arguments.format.output, job) {
        (Output::Quiet, _) => print_text(&format!("{}\n", nodes[0].status)),
        (Output::Human, None) => print_text(&tree),
        (Output::Json, None) => print_json(&nodes),
        (output, Some(mut status)) => {
            name.clone_into(&mut status.name);
            let is_lost = loaded.standing.is_lost() && !status.is_finished();
            let standing = if is_lost { loaded.standing.clone() } else { RunStanding::Is(Word::of(&status)) };
            let mut of_step = IndexEntry::new(loaded.run.id(), &status);
            (of_step.engine, of_step.user, of_step.labels) = (entry.engine, entry.user, entry.labels);
            let LoadedRun { run, damage, .. } = loaded;
            let loaded = LoadedRun { run, status, pipeline: None, standing, damage };
            if output == Output::Json {
                let mut shown = ShownRun::new(loaded, of_step, None);
                shown.pipeline = nodes;
                return print_json(&shown);
            }
            print_text(&format!("{}\n{tree}", human(&style, &loaded, &of_step, None, arguments.all)))
        }
    }
}

/// The state of a step's job, if it has one.
fn job(run: &RunDir, name: &str) -> Result<Option<Status>, Diagnostic> {
    let Ok(step) = StepName::new(name) else { return Ok(None) };
    let mut job: Option<Status> = None;
    journal::each(run, |item| {
        let record = &item.record;
        let is_of = record.step.as_ref() == Some(&step);
        if is_of && matches!(record.fact, Fact::Planned(_)) {
            job.get_or_insert_with(|| Status::of_step(step.clone()));
        }
        if let Some(job) = job.as_mut().filter(|_| is_of || matches!(record.fact, Fact::Supervised(_))) {
            job.add(record);
        }
    })?;
    Ok(job)
}
