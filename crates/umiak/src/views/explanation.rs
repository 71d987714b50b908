//! Why a run ended as it did: `umiak explain`.

use std::fmt::Write as _;

use serde::Serialize;
use umiak_core::facts::{Fact, Finding, StopReason, Verdict, Weight};
use umiak_core::status::Stage;

use super::facts::{describe, stop_reason};
use super::run::{head, how, place};
use super::standing::{LoadedRun, RunStanding};
use super::time::moment;
use crate::history::RunId;
use crate::screen::Style;
use crate::screen::summary::{self, Others};

/// What the journal has about how a run went wrong.
#[derive(Debug, Serialize)]
pub(crate) struct ExplainedRun {
    v: u32,
    run: RunId,
    standing: &'static str,
    /// Of each failure of the whole group, the last one last.
    verdicts: Vec<Verdict>,
    /// Failures that were made good by another attempt.
    made_good: Vec<Finding>,
}

impl ExplainedRun {
    pub(crate) fn new(loaded: &LoadedRun, told: &[(u64, Fact)]) -> Self {
        let verdicts = told.iter().filter_map(|(_, fact)| match fact {
            Fact::Diagnosed(verdict) => Some(verdict.clone()),
            _ => None,
        });
        let made_good = told.iter().filter_map(|(_, fact)| match fact {
            Fact::AttemptFailed(finding) => Some(*finding.clone()),
            _ => None,
        });
        Self {
            v: 1,
            run: loaded.run.id(),
            standing: loaded.standing.word(),
            verdicts: verdicts.collect(),
            made_good: made_good.collect(),
        }
    }
}

/// True for facts about how a run went wrong, or did not.
pub(crate) fn is_told(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::Supervised(_)
            | Fact::TimedOut { .. }
            | Fact::Stopping { .. }
            | Fact::Diagnosed(_)
            | Fact::Noticed { .. }
            | Fact::Abandoned { .. }
            | Fact::Swept { .. }
            | Fact::AttemptFailed(_)
            | Fact::Retrying { .. }
            | Fact::Restarting { .. }
    )
}

pub(crate) fn human(style: &Style, loaded: &LoadedRun, told: &[(u64, Fact)]) -> String {
    let LoadedRun { run, status, standing } = loaded;
    let mut text = head(style, loaded);
    let one = |finding: &Finding| {
        let verdict = Verdict { causes: vec![finding.clone()], victims: Vec::new() };
        summary::failure(style, &verdict, &Others::Nobody, |finding| place(run, status, finding))
    };
    let last =
        told.iter().rposition(|(_, fact)| matches!(fact, Fact::Diagnosed(_))).filter(|_| loaded.verdict().is_some());
    for (position, (at, fact)) in told.iter().enumerate() {
        match fact {
            Fact::Diagnosed(verdict) => {
                let which =
                    if Some(position) == last { "the failure" } else { "a failure that was followed by a restart" };
                let _ = writeln!(text, "\n{} {which}", style.dim(&moment(*at)));
                for cause in &verdict.causes {
                    text.push_str(&one(cause));
                    let _ = writeln!(text, "  why it counts as {}", weight(cause));
                }
                for victim in &verdict.victims {
                    let _ = writeln!(
                        text,
                        "  {} {}: {}",
                        style.dim("followed"),
                        victim.subject.replica,
                        victim_words(victim)
                    );
                }
            }
            Fact::AttemptFailed(finding) => {
                let _ = writeln!(text, "\n{} made good by another attempt", style.dim(&moment(*at)));
                text.push_str(&one(finding));
            }
            Fact::Supervised(_) if position == 0 => {}
            other => {
                let _ = writeln!(text, "\n{} {}", style.dim(&moment(*at)), describe(other));
            }
        }
    }
    if loaded.verdict().is_none() {
        let _ = writeln!(text, "\n{}", without_verdict(loaded));
    }
    let stopped: Vec<String> = status
        .replicas
        .iter()
        .filter_map(|replica| match &replica.stage {
            Stage::Ended(ended) if ended.by_us && ended.timed_out.is_none() => {
                Some(format!("{} {}", replica.replica, how(ended)))
            }
            _ => None,
        })
        .collect();
    if !stopped.is_empty() {
        let _ = writeln!(text, "\nstopped by us");
        for line in stopped.iter().take(20) {
            let _ = writeln!(text, "  {line}");
        }
        if stopped.len() > 20 {
            let _ = writeln!(text, "  and {} more", stopped.len() - 20);
        }
    }
    if *standing == RunStanding::Lost {
        let _ = writeln!(text, "{} `umiak resume {}` goes on with what is not done", style.yellow("hint:"), run.id());
    }
    text
}

fn without_verdict(loaded: &LoadedRun) -> String {
    match (&loaded.standing, loaded.status.stopping) {
        (RunStanding::Lost, _) => {
            "its supervisor was lost before the run had ended: killed, or the machine was".to_owned()
        }
        (RunStanding::Elsewhere(host), _) => format!("it is on {host}, and has not ended as far as its journal says"),
        (standing, Some(StopReason::Completed)) if standing.is_over() => "it ended well".to_owned(),
        (standing, Some(reason)) if standing.is_over() => format!("it was stopped: {}", stop_reason(reason)),
        (standing, None) if standing.is_over() => "it ended well".to_owned(),
        _ => "it has not ended, and nothing has gone wrong so far".to_owned(),
    }
}

fn weight(finding: &Finding) -> &'static str {
    match finding.weight {
        _ if finding.timed_out.is_some() => "the cause: it took longer than it may, and our signal ended it for that",
        Weight::Certain => "the cause: the kernel says so, it could not be started, or it names an error of its own",
        Weight::Likely => "the cause: it ended badly before anybody was stopped, and does not say why",
        Weight::Possible => "a cause: it ended badly after the others were being stopped, but not by that",
        Weight::Victim => "a victim: its own words say that a peer went first",
    }
}

fn victim_words(finding: &Finding) -> String {
    let evidence = finding.evidence.as_ref();
    let mut words = finding.exit.describe();
    if let Some(signature) = evidence.and_then(|evidence| evidence.signature.as_ref()) {
        let _ = write!(words, ", {} [{}]", signature.title, signature.code);
    }
    if let Some(line) = evidence.and_then(|evidence| evidence.headline.as_ref()) {
        let _ = write!(words, "\n    {}", line.text);
    }
    words
}
