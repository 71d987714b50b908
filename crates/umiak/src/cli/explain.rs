//! `umiak explain`: what an error code means, or why a run ended as it did.

use clap::Args;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::diagnose;
use umiak_core::facts::{Fact, Finding, Subject, Weight};
use umiak_core::status::{Ended, ReplicaStatus};

use crate::history::{Error, Home, RunDir, find, journal};
use crate::host::evidence;
use crate::secrets;
use crate::views::Output;
use crate::views::codes::ExplainedCode;
use crate::views::explanation::{ExplainedRun, human, is_told};
use crate::views::standing::LoadedRun;

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
    let mut told: Vec<(u64, Fact)> = Vec::new();
    journal::each(&loaded.run, |item| {
        if is_told(&item.record.fact) {
            told.push((item.record.at, item.record.fact.clone()));
        }
    })?;
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

/// Failures that did not fail the run, with evidence from their logs: the journal has no verdict on them.
fn tolerated(loaded: &LoadedRun) -> Vec<Finding> {
    let finding = |(replica, ended): (&ReplicaStatus, &Ended)| {
        let subject = Subject { replica: replica.replica.clone(), rank: replica.rank, attempt: replica.attempt };
        let directory = loaded.run.attempt(None, &replica.replica, replica.attempt);
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
            evidence: log.exists().then(|| {
                let mut evidence = evidence::read(&log, 0, None, &directory.join("error.json"));
                secrets::mask_evidence(&mut evidence);
                evidence
            }),
            usage: None,
        }
    };
    loaded.status.tolerated().into_iter().map(finding).collect()
}
