//! `umiak explain`: what an error code means, or why a run ended as it did.

use std::collections::HashMap;
use std::fmt::Write as _;

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::diagnose;
use umiak_core::facts::{Fact, Finding, Subject, Weight};
use umiak_core::model::StepName;
use umiak_core::plan::Log;
use umiak_core::status::{Ended, PipelineStatus, ReplicaStatus};

use crate::history::index::Word;
use crate::history::{Error, Home, RunDir, find, journal};
use crate::host::evidence;
use crate::secrets;
use crate::views::Output;
use crate::views::codes::ExplainedCode;
use crate::views::explanation::{ExplainedRun, FailedNodes, human, is_told};
use crate::views::run::head;
use crate::views::standing::{LoadedRun, RunStanding};

use super::runs::{Done, Format, load, print_json, print_text, shown, the_run_or_newest};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Error code as in `error[L0004]`, or run: id, last digits of its number, or name; the newest run when omitted
    #[arg(value_name = "CODE|RUN")]
    code_or_run: Option<String>,
    #[command(flatten)]
    format: Format,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let Some(what) = arguments.code_or_run.as_deref() else {
        let (_, run) = the_run_or_newest(None)?;
        return explain(run, arguments.format);
    };
    let code = Code::parse(what).map(|code| ExplainedCode::from(code.entry()));
    if let Some(code) = code.or_else(|| diagnose::explain(what).map(Into::into)) {
        return match arguments.format.output {
            Output::Human => print_text(&code.human()),
            Output::Quiet => print_text(&format!("{}\n", code.title)),
            Output::Json => print_json(&code),
        };
    }
    match find(&Home::from_environment()?, what) {
        Err(Error::NoRun { near: None, .. }) => Err(neither(what)),
        found => explain(found?, arguments.format),
    }
}

fn neither(word: &str) -> Diagnostic {
    Diagnostic::error(Code::L0001, format!("there is no error code and no run `{word}`"))
        .hint("messages have their code in brackets, as in `error[L0004]`; `umiak ls` lists the runs")
}

fn explain(run: RunDir, format: Format) -> Done {
    let loaded = load(run)?;
    if let Some(pipeline) = &loaded.pipeline {
        return shown(explain_steps(&loaded, pipeline, format)?, loaded.damage.as_deref());
    }
    let told = told(&loaded.run)?.remove("").unwrap_or_default();
    let tolerated = tolerated(&loaded);
    let code = match format.output {
        Output::Human => print_text(&human(&format.style(), &loaded, &told, &tolerated)),
        Output::Quiet => {
            let causes = loaded.verdict().into_iter().flat_map(|verdict| &verdict.causes);
            print_text(&causes.fold(String::new(), |text, cause| text + &format!("{}\n", cause.subject.replica)))
        }
        Output::Json => print_json(&ExplainedRun::new(&loaded, &told, tolerated)),
    };
    shown(code?, loaded.damage.as_deref())
}

/// What explains the end of the run, and of each step by its name.
fn told(run: &RunDir) -> Result<HashMap<String, Vec<(u64, Fact)>>, Diagnostic> {
    let mut told: HashMap<String, Vec<(u64, Fact)>> = HashMap::new();
    journal::each(run, |item| {
        let record = &item.record;
        if is_told(&record.fact) {
            let step = record.step.as_ref().map_or("", StepName::as_str);
            told.entry(step.to_owned()).or_default().push((record.at, record.fact.clone()));
        }
    })?;
    Ok(told)
}

/// Explains each failed step of a pipeline as a run of its own.
fn explain_steps(loaded: &LoadedRun, pipeline: &PipelineStatus, format: Format) -> Done {
    let style = format.style();
    let mut told = told(&loaded.run)?;
    let nodes = FailedNodes::new(pipeline);
    let of_run = told.remove("").unwrap_or_default();
    let mut text = nodes.human(&style, loaded, &of_run);
    let mut explained = ExplainedRun::new(loaded, &of_run, Vec::new());
    let mut causes = String::new();
    for name in &nodes.failed {
        let Some(job) = pipeline.node(name).and_then(|node| node.job_status()) else { continue };
        let mut status = job.clone();
        status.name.clone_from(name);
        let standing = RunStanding::Is(Word::of(&status));
        let step = LoadedRun { run: loaded.run.clone(), status, pipeline: None, standing, damage: None };
        let told = told.remove(name).unwrap_or_default();
        let tolerated = tolerated(&step);
        text += "\n";
        if explained.steps.len() < SHOWN {
            text += &human(&style, &step, &told, &tolerated);
        } else {
            text += &head(&style, &step);
        }
        for cause in step.verdict().into_iter().flat_map(|verdict| &verdict.causes) {
            let _ = writeln!(causes, "{name}/{}", cause.subject.replica);
        }
        explained.steps.push(ExplainedRun::new(&step, &told, tolerated));
    }
    (explained.refused, explained.cancelled) = (nodes.refused, Some(nodes.cancelled));
    match format.output {
        Output::Human => print_text(&text),
        Output::Quiet => print_text(&causes),
        Output::Json => print_json(&explained),
    }
}

/// Number of failed steps that are explained in full; JSON has all.
const SHOWN: usize = 20;

/// Failures that did not fail the run, with evidence from their logs: the journal has no verdict on them.
fn tolerated(loaded: &LoadedRun) -> Vec<Finding> {
    let finding = |(replica, ended): (&ReplicaStatus, &Ended)| {
        let subject = Subject { replica: replica.replica.clone(), rank: replica.rank, attempt: replica.attempt };
        let directory = loaded.run.attempt(loaded.status.step.as_ref(), &replica.replica, replica.attempt);
        let log = directory.join("log");
        Finding {
            subject,
            exit: ended.exit.clone(),
            classed: ended.classed.clone(),
            ran_micros: ended.ended.saturating_sub(ended.started),
            weight: Weight::Likely,
            timed_out: ended.timed_out,
            stopped_while_ending: false,
            clue: None,
            snapshot: None,
            evidence: log.exists().then(move || {
                let mut evidence = evidence::read(&Log::new(log), None, &directory.join("error.json"));
                secrets::mask_evidence(&mut evidence);
                evidence
            }),
            usage: None,
        }
    };
    loaded.status.tolerated().into_iter().map(finding).collect()
}
