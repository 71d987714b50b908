//! Why a run ended as it did: `umiak explain`.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::shown;
use umiak_core::facts::{Fact, Finding, KernelFact, Limit, NodeEnd, Outcome, StopReason, Verdict, Weight};
use umiak_core::model::{Exit, StepName, signal_name};
use umiak_core::status::{Ended, PipelineStatus, Stage, State, Status};

use super::facts::{describe, engine, list, stop_reason};
use super::run::{after_loss, head, how, nodes, place, since};
use super::stacks;
use super::standing::{LoadedRun, RunStanding};
use super::time::moment;
use crate::history::RunId;
use crate::screen::Style;
use crate::screen::style::Mark;
use crate::screen::summary::{self, Others};

/// What `umiak explain RUN --output json` prints: what the journal has about the failures of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExplainedRun {
    /// The version of this format.
    v: u32,
    run: RunId,
    /// As in `umiak ls`.
    status: String,
    /// One for each failure of the whole group, oldest first.
    verdicts: Vec<Verdict>,
    /// Attempts that failed and were followed by another.
    attempts: Vec<FailedAttempt>,
    /// Failures that did not fail the run.
    tolerated: Vec<Finding>,
    /// When the process that runs the replicas was killed from outside, and the live replicas with it.
    engine_losses: Vec<EngineLoss>,
    /// The step of a pipeline that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<StepName>,
    /// The failed steps of a pipeline.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) steps: Vec<ExplainedRun>,
    /// Nodes of a pipeline that could not start, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) refused: Vec<(String, String)>,
    /// The number of nodes of a pipeline that were cancelled, or stopped, because of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancelled: Option<usize>,
}

/// What a pipeline's failure consists of.
#[derive(Debug)]
pub(crate) struct FailedNodes {
    /// Names of steps, whose jobs have failed.
    pub(crate) failed: Vec<String>,
    /// With the reasons.
    pub(crate) refused: Vec<(String, String)>,
    pub(crate) cancelled: usize,
}

impl FailedNodes {
    pub(crate) fn new(pipeline: &PipelineStatus) -> Self {
        let (mut failed, mut refused, mut cancelled) = (Vec::new(), Vec::new(), 0);
        for (name, node) in pipeline.nodes() {
            match (node.ended(), node.refused(), node.job_status()) {
                (_, Some(reason), _) => refused.push((name.to_owned(), reason.to_owned())),
                (Some(NodeEnd::Failed), None, Some(_)) => failed.push(name.to_owned()),
                (Some(NodeEnd::Cancelled | NodeEnd::Stopped), ..) => cancelled += 1,
                _ => {}
            }
        }
        let began = |name: &String| pipeline.node(name).map(|node| node.times().1);
        failed.sort_by_key(began);
        Self { failed, refused, cancelled }
    }

    /// What is told about the run itself, before its failed steps.
    pub(crate) fn human(&self, style: &Style, loaded: &LoadedRun, told: &[(u64, Fact)]) -> String {
        let mut text = head(style, loaded);
        for (at, fact) in told.iter().skip_while(|(_, fact)| matches!(fact, Fact::Supervised(_))) {
            let _ = writeln!(text, "\n{} {}", style.dim(&moment(*at)), describe(fact));
        }
        for (name, reason) in &self.refused {
            let _ = writeln!(text, "\n{}", style.red(&format!("{} {name} could not start", style.mark(Mark::Failed))));
            let _ = writeln!(text, "  {}", shown(reason));
        }
        if self.failed.is_empty() && self.refused.is_empty() {
            let _ = writeln!(text, "\n{}", without_verdict(loaded));
        }
        if self.cancelled > 0 {
            let nodes = if self.cancelled == 1 { "node was" } else { "nodes were" };
            let _ = writeln!(text, "\n{} {nodes} stopped or cancelled because of that", self.cancelled);
        }
        if loaded.standing == RunStanding::Lost {
            let _ = writeln!(text, "{} {}", style.yellow("hint:"), after_loss(loaded));
        }
        text
    }
}

/// The loss of the process that runs the replicas.
#[derive(Debug, Serialize, JsonSchema)]
struct EngineLoss {
    /// Microseconds since the Unix epoch.
    at: u64,
    /// The guardian, on engine `local`.
    pid: Option<u32>,
}

/// An attempt that was followed by another.
#[derive(Debug, Serialize, JsonSchema)]
struct FailedAttempt {
    #[serde(flatten)]
    finding: Finding,
    /// The result of the next attempt.
    next: NextAttempt,
}

/// The result of the attempt after a failed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NextAttempt {
    Succeeded,
    Failed,
    Stopped,
    Running,
    /// It has not been started.
    None,
}

impl NextAttempt {
    fn after(status: &Status, finding: &Finding) -> Self {
        let Some(replica) = status.replica(&finding.subject.replica) else { return Self::None };
        let of = |ended: &Ended| match () {
            () if ended.is_success() => Self::Succeeded,
            () if ended.is_failure() => Self::Failed,
            () => Self::Stopped,
        };
        match replica.past.iter().find(|past| past.attempt > finding.subject.attempt) {
            Some(past) => past.ended.as_ref().map_or(Self::Stopped, of),
            None if replica.attempt <= finding.subject.attempt => Self::None,
            None => match &replica.stage {
                Stage::Waiting => Self::None,
                Stage::Starting { .. } | Stage::Running { .. } => Self::Running,
                Stage::Ended(ended) => of(ended),
                Stage::Abandoned => Self::Stopped,
            },
        }
    }

    fn words(self, next: u32) -> String {
        match self {
            Self::Succeeded => format!("attempt {next} succeeded"),
            Self::Failed => format!("attempt {next} failed too"),
            Self::Stopped => format!("attempt {next} was stopped"),
            Self::Running => format!("attempt {next} is running"),
            Self::None => format!("attempt {next} was not started"),
        }
    }
}

impl ExplainedRun {
    pub(crate) fn new(loaded: &LoadedRun, told: &[(u64, Fact)], tolerated: Vec<Finding>) -> Self {
        let verdicts = told.iter().filter_map(|(_, fact)| match fact {
            Fact::Diagnosed(verdict) => Some(verdict.clone()),
            _ => None,
        });
        let attempts = told.iter().filter_map(|(_, fact)| match fact {
            Fact::AttemptFailed(finding) => {
                let next = NextAttempt::after(&loaded.status, finding);
                Some(FailedAttempt { finding: *finding.clone(), next })
            }
            _ => None,
        });
        let losses = told.iter().filter_map(|(at, fact)| match fact {
            Fact::EngineLost { pid } => Some(EngineLoss { at: *at, pid: *pid }),
            _ => None,
        });
        Self {
            v: 2,
            run: loaded.run.id(),
            status: loaded.standing.word().to_owned(),
            verdicts: verdicts.collect(),
            attempts: attempts.collect(),
            tolerated,
            engine_losses: losses.collect(),
            step: loaded.status.step.clone(),
            steps: Vec::new(),
            refused: Vec::new(),
            cancelled: None,
        }
    }
}

/// True for facts that explain how a run ended.
pub(crate) fn is_told(fact: &Fact) -> bool {
    matches!(
        fact,
        Fact::Supervised(_)
            | Fact::TimedOut { .. }
            | Fact::Hung { .. }
            | Fact::CollectiveTimeout { .. }
            | Fact::Stopping { .. }
            | Fact::Observed { .. }
            | Fact::Diagnosed(_)
            | Fact::Noticed { .. }
            | Fact::EngineLost { .. }
            | Fact::Abandoned { .. }
            | Fact::Swept { .. }
            | Fact::AttemptFailed(_)
            | Fact::Retrying { .. }
            | Fact::Restarting { .. }
            | Fact::Resizing { .. }
    )
}

pub(crate) fn human(style: &Style, loaded: &LoadedRun, told: &[(u64, Fact)], tolerated: &[Finding]) -> String {
    let LoadedRun { run, status, standing, .. } = loaded;
    let mut text = head(style, loaded);
    for line in nodes(status) {
        let _ = writeln!(text, "  {} {line}", style.dim("node"));
    }
    for replica in &status.replicas {
        if let (Some(until), Some(since)) = (replica.until, since(status, replica)) {
            let name = &replica.replica;
            let _ = writeln!(text, "  {} {name} on this node until attempt {until}, {since}", style.dim("rank"));
        }
    }
    let one = |finding: &Finding| {
        let verdict = Verdict { causes: vec![finding.clone()], victims: Vec::new() };
        summary::failure(style, &verdict, &Others::Nobody, |finding| place(run, status, finding))
    };
    for (position, (at, fact)) in told.iter().enumerate() {
        match fact {
            Fact::Diagnosed(verdict) => {
                let lost = lost_engine(&told[..position]);
                let what = what_followed(loaded, &told[position + 1..]);
                // Replicas that the kernel killed with the guardian are no causes.
                let (with_it, causes): (Vec<&Finding>, Vec<&Finding>) =
                    verdict.causes.iter().partition(|cause| lost.is_some() && cause.exit == Exit::Lost);
                let blamed =
                    lost.filter(|_| causes.is_empty()).map(|lost| format!(": {lost} was lost")).unwrap_or_default();
                let _ = writeln!(text, "\n{} {what}{blamed}", style.dim(&moment(*at)));
                if !with_it.is_empty() {
                    let names: Vec<String> = with_it.iter().map(|cause| cause.subject.replica.clone()).collect();
                    let _ = writeln!(text, "  {} {}", style.dim("lost with it"), list(&names));
                }
                for cause in causes {
                    text.push_str(&one(cause));
                    let _ = writeln!(text, "  {}", why(cause, status));
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
                let next = NextAttempt::after(status, finding).words(finding.subject.attempt + 1);
                let attempt = finding.subject.attempt;
                let name = &finding.subject.replica;
                let _ = writeln!(text, "\n{} attempt {attempt} of {name} failed, {next}", style.dim(&moment(*at)));
                text.push_str(&one(finding));
            }
            Fact::Supervised(_) if position == 0 => {}
            Fact::Observed { replicas } => {
                let _ = writeln!(text, "\n{} still running before the stop", style.dim(&moment(*at)));
                text.push_str(&stacks::replicas(style, replicas));
            }
            other => {
                let _ = writeln!(text, "\n{} {}", style.dim(&moment(*at)), describe(other));
            }
        }
    }
    for finding in tolerated {
        let _ = writeln!(text, "\ntolerated: the run continued without {}", finding.subject.replica);
        text.push_str(&one(finding));
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
        let _ = writeln!(text, "{} {}", style.yellow("hint:"), after_loss(loaded));
    }
    text
}

/// The loss of the engine since the last verdict, if any.
fn lost_engine(before: &[(u64, Fact)]) -> Option<String> {
    let since = before.iter().rev().take_while(|(_, fact)| !matches!(fact, Fact::Diagnosed(_) | Fact::Supervised(_)));
    since.into_iter().find_map(|(_, fact)| match fact {
        Fact::EngineLost { pid } => Some(engine(*pid)),
        _ => None,
    })
}

/// What followed a failure of the whole group.
fn what_followed(loaded: &LoadedRun, later: &[(u64, Fact)]) -> String {
    let next = later.iter().find_map(|(_, fact)| match fact {
        Fact::Restarting { attempt, .. } => Some(format!("a failure, followed by a restart: attempt {attempt}")),
        Fact::Supervised(_) => Some("a failure, before the run was resumed or retried".to_owned()),
        _ => None,
    });
    next.unwrap_or_else(|| if loaded.standing.is_over() { "the failure" } else { "a failure" }.to_owned())
}

fn without_verdict(loaded: &LoadedRun) -> String {
    let outcome = match loaded.status.state {
        State::Finished { outcome, .. } => Some(outcome),
        _ => None,
    };
    match (&loaded.standing, outcome, loaded.status.stopping) {
        (RunStanding::Lost, ..) => match loaded.run.read_supervisor() {
            Some(supervisor) if !supervisor.is_of_this_boot() => {
                "the host was restarted before the run had ended".to_owned()
            }
            _ => "its supervisor was killed before the run had ended".to_owned(),
        },
        (RunStanding::Damaged, ..) => "its journal is damaged: how it ended is not known".to_owned(),
        (RunStanding::Elsewhere(host), ..) => format!("its supervisor is on {host}, and its journal has no end yet"),
        (_, Some(Outcome::Succeeded), _) => "it succeeded".to_owned(),
        (_, Some(_), Some(reason)) if reason != StopReason::Completed => {
            let cancelled = loaded.status.cancelled_by.as_ref().filter(|_| reason == StopReason::User);
            let why = cancelled.map_or_else(|| stop_reason(reason), |by| format!("by {by}"));
            format!("it was stopped: {why}")
        }
        (_, Some(_), _) => "it failed, and its journal has no cause".to_owned(),
        _ => "it has not ended, and nothing has failed so far".to_owned(),
    }
}

/// The reason why this attempt is named as the cause.
fn why(finding: &Finding, status: &Status) -> String {
    let evidence = finding.evidence.as_ref();
    let signature = evidence.and_then(|evidence| evidence.signature.as_ref());
    let is_oom = |fact: &KernelFact| matches!(fact, KernelFact::OomKilled { .. });
    let reason = match &finding.exit {
        _ if finding.timed_out == Some(Limit::Start) => "it did not listen on its ports in time".to_owned(),
        _ if finding.timed_out == Some(Limit::Hang) => match finding.clue {
            Some(_) => "the job made no progress, and most of the others waited elsewhere".to_owned(),
            None => "it made no progress, like all others".to_owned(),
        },
        _ if finding.timed_out == Some(Limit::Run) => "it ran longer than its time limit".to_owned(),
        _ if evidence.is_some_and(|evidence| evidence.kernel.iter().any(is_oom)) => {
            "the OOM killer killed it".to_owned()
        }
        Exit::Spawn(_) => "it could not be started".to_owned(),
        Exit::Unmet { .. } => "the role that it starts after did not reach the required state".to_owned(),
        Exit::NodeLost { .. } => "its node was lost".to_owned(),
        Exit::Evicted { .. } | Exit::Preempted { .. } => "the platform evicted or preempted it".to_owned(),
        Exit::TimeLimit { .. } => "the scheduler's time limit was reached".to_owned(),
        Exit::NoRoom { .. } => "the platform had no room for all replicas".to_owned(),
        // Of several nodes, only the coordinator's journal is read: the loss is recorded on the other node.
        Exit::Lost if !status.nodes.is_empty() => "the guardian on its node was killed from outside".to_owned(),
        Exit::Lost => "its end was not observed".to_owned(),
        _ if finding.clue.is_some() => {
            "the ranks that failed only report a peer that was lost or did not respond".to_owned()
        }
        _ if signature.is_some_and(|signature| signature.victim) => alone(finding, status),
        exit if finding.weight == Weight::Certain => match (signature, exit.signal()) {
            (Some(signature), _) => format!("its log has a known error: {}", signature.title),
            (None, Some(signal)) => format!("{} ended it, and umiak did not send that signal", name_of(signal)),
            (None, None) => "its log ends with an error of its own".to_owned(),
        },
        _ if finding.weight == Weight::Likely => {
            let is_shown = evidence.is_some_and(|evidence| evidence.headline.is_some());
            let log = if is_shown { "the error above is from its log" } else { "no error was found in its log" };
            format!("it failed before any other was stopped; {log}")
        }
        _ => match signature {
            Some(signature) => format!("its log says: {}", signature.title),
            None => "it failed while the others were being stopped, but not by the signal from umiak".to_owned(),
        },
    };
    let verb = if finding.weight == Weight::Possible { "may be" } else { "is" };
    format!("why it {verb} the cause: {reason}")
}

/// The reason if the log blames a peer, but no peer failed.
fn alone(finding: &Finding, status: &Status) -> String {
    let name = &finding.subject.replica;
    let ended = |name: &str| match &status.replica(name)?.stage {
        Stage::Ended(ended) => Some(ended.ended),
        _ => None,
    };
    let at = ended(name).unwrap_or(u64::MAX);
    let left: Vec<&str> = status
        .replicas
        .iter()
        .filter(|peer| matches!(&peer.stage, Stage::Ended(end) if end.is_success() && end.ended <= at))
        .map(|peer| peer.replica.as_str())
        .take(3)
        .collect();
    let words = "its log reports a lost peer, but no peer failed";
    if left.is_empty() { words.to_owned() } else { format!("{words}; {} had exited with 0 before", left.join(", ")) }
}

/// `SIGTERM`, without the explanation.
fn name_of(signal: i32) -> String {
    let name = signal_name(signal);
    name.split(' ').next().unwrap_or(&name).to_owned()
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
