//! Facts as text: `umiak events`.

use std::time::Duration;

use umiak_core::diag::{shown, shown_json};
use umiak_core::facts::{Began, Fact, Limit, NodeEnd, Outcome, Record, Resize, SkipReason, StopReason, Subject};
use umiak_core::model::{FIRST_ATTEMPT, Rank, StopHow, signal_name};

use super::time::moment;
use super::{Output, store};
use crate::history::RunId;
use crate::screen::doing::doing;
use crate::screen::style::duration;

/// Turns records into lines, one after the other.
#[derive(Debug)]
pub(crate) struct RecordLines {
    output: Output,
    run: RunId,
    /// The newest supervisor so far: records of earlier ones are ignored.
    epoch: u32,
}

impl RecordLines {
    pub(crate) fn new(output: Output, run: RunId) -> Self {
        Self { output, run, epoch: 0 }
    }

    /// Appends one record; `raw` is its line in the journal, printed in JSON with the run added.
    pub(crate) fn add(&mut self, text: &mut Vec<u8>, record: &Record, raw: &[u8]) {
        let is_stale = record.epoch < self.epoch;
        self.epoch = self.epoch.max(record.epoch);
        match self.output {
            Output::Json => {
                text.extend_from_slice(format!("{{\"run\":\"{}\",", self.run).as_bytes());
                let raw = String::from_utf8_lossy(raw.strip_prefix(b"{").unwrap_or(raw));
                text.extend_from_slice(shown_json(&raw).as_bytes());
                text.push(b'\n');
            }
            Output::Human => {
                let stale = if is_stale { " (ignored: written by a replaced supervisor)" } else { "" };
                let step = record.step.as_ref().map(|step| format!("{}: ", shown(step.as_str()))).unwrap_or_default();
                let line = format!("{}  {step}{}{stale}\n", moment(record.at), describe(&record.fact));
                text.extend_from_slice(line.as_bytes());
            }
            Output::Quiet => {}
        }
    }
}

fn who(subject: &Subject) -> String {
    match subject.attempt {
        FIRST_ATTEMPT => subject.replica.clone(),
        attempt => format!("{} (attempt {attempt})", subject.replica),
    }
}

pub(super) fn list(names: &[String]) -> String {
    const SHOWN: usize = 6;
    match names.len() {
        0..=SHOWN => names.join(", "),
        count => format!("{} and {} more", names[..SHOWN].join(", "), count - SHOWN),
    }
}

pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn micros(micros: u64) -> String {
    duration(Duration::from_micros(micros))
}

/// A fact in one line.
pub(crate) fn describe(fact: &Fact) -> String {
    shown(&words(fact)).into_owned()
}

fn words(fact: &Fact) -> String {
    match fact {
        Fact::Supervised(supervised) => {
            let why = match supervised.why {
                Began::Submitted => "submitted",
                Began::Resumed => "resumed",
                Began::Retried => "retried",
                Began::RetriedAll => "retried, all replicas",
            };
            format!("{why}: supervised by pid {} on {}, umiak {}", supervised.pid, supervised.host, supervised.umiak)
        }
        Fact::Planned(planned) => {
            let count = planned.replicas.len();
            format!("planned {}: {count} replica{}, attempt {}", planned.job, plural(count), planned.attempt)
        }
        Fact::Starting { subject } => format!("{} is being started", who(subject)),
        Fact::Submitted { handle } => format!("submitted as {handle}"),
        Fact::Accepted { name } => format!("accepted as {name}"),
        Fact::Pending { reason } => format!("pending: {reason}"),
        Fact::Cancelled { by } => format!("cancelled by {by}"),
        Fact::Started { subject, instance } => match instance.describe() {
            known if known.is_empty() => format!("{} started", who(subject)),
            known => format!("{} started, {known}", who(subject)),
        },
        Fact::Ready { subject } => format!("{} is ready: it listens on its ports", who(subject)),
        Fact::TimedOut { subject, what: Limit::Start, limit_micros } => {
            format!("{} was not ready within {}", who(subject), micros(*limit_micros))
        }
        Fact::Hung { limit_micros } => format!("the job hangs: no replica made progress for {}", micros(*limit_micros)),
        Fact::StoreWaits(waits) if waits.clients == 0 => "ranks no longer wait at the store".to_owned(),
        Fact::StoreWaits(waits) => format!("ranks wait at the store: {}", store::missing(waits)),
        Fact::CollectiveTimeout { rank: Some(Rank(rank)) } => format!("rank {rank} reports a collective time-out"),
        Fact::CollectiveTimeout { rank: None } => "a rank reports a collective time-out".to_owned(),
        Fact::TimedOut { subject, what: Limit::Hang, limit_micros } => {
            format!("{} made no progress for {}", who(subject), micros(*limit_micros))
        }
        Fact::TimedOut { subject, what: Limit::Run, limit_micros } => {
            format!("{} ran longer than {}", who(subject), micros(*limit_micros))
        }
        Fact::Ended { subject, exit, classed, by_us, .. } => {
            let by_us = if *by_us { ", stopped by us" } else { "" };
            let classed = classed.as_ref().map(|it| format!(", {}", it.describe())).unwrap_or_default();
            format!("{} {}{by_us}{classed}", who(subject), exit.describe())
        }
        Fact::Stopping { reason } => format!("stopping: {}", stop_reason(*reason)),
        Fact::StopSent { how: StopHow::Interrupt, replicas } => format!("interrupted: {}", list(replicas)),
        Fact::StopSent { how: StopHow::Terminate, replicas } => format!("terminating: {}", list(replicas)),
        Fact::StopSent { how: StopHow::Kill, replicas } => format!("killed: {}", list(replicas)),
        Fact::Paused => "paused".to_owned(),
        Fact::Continued => "continued".to_owned(),
        Fact::Observed { replicas } => {
            let seen: Vec<String> =
                replicas.iter().map(|it| format!("{} {}", who(&it.subject), doing(&it.snapshot))).collect();
            format!("still running before the stop: {}", list(&seen))
        }
        Fact::Diagnosed(verdict) => {
            let names: Vec<String> = verdict.causes.iter().map(|cause| who(&cause.subject)).collect();
            let headline = verdict.causes.first().and_then(|cause| cause.evidence.as_ref()?.headline.as_ref());
            let headline = headline.map(|line| format!(": {}", line.text)).unwrap_or_default();
            format!("the cause is {}{headline}", list(&names))
        }
        Fact::Pipeline(planned) => format!("pipeline {}, {} steps", planned.pipeline, planned.steps),
        Fact::Resolved(_) => "its values are known".to_owned(),
        Fact::Looping { items } => format!("a loop over {} items", items.len()),
        Fact::Entered => "begins".to_owned(),
        Fact::Skipped { why } => format!("skipped: {}", skip_reason(*why)),
        Fact::Cached { from_run, from_step } => format!("cached from step {from_step} of {from_run}"),
        Fact::Refused { reason } => format!("could not start: {reason}"),
        Fact::Left { end } => node_end(*end).to_owned(),
        Fact::Noticed { code, message } => format!("notice[{code}]: {message}"),
        Fact::Ignored { event, state } => format!("ignored {event}: {state}"),
        Fact::EngineLost { pid } => format!("{}, which runs the replicas, was killed from outside", engine(*pid)),
        Fact::Abandoned { replicas } => format!("did not exit after SIGKILL: {}", list(replicas)),
        Fact::Swept { pids } => {
            format!("stopped {} process{} left behind", pids.len(), if pids.len() == 1 { "" } else { "es" })
        }
        Fact::AttemptFailed(finding) => {
            format!(
                "{} failed after {}: {}",
                who(&finding.subject),
                micros(finding.ran_micros),
                finding.exit.describe()
            )
        }
        Fact::Retrying { subjects, delay_micros, .. } => {
            let names: Vec<String> = subjects.iter().map(who).collect();
            format!("restarting {} in {}", list(&names), micros(*delay_micros))
        }
        Fact::Restarting { attempt, of, delay_micros, .. } => {
            let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
            format!("restarting everything in {}: attempt {}{of}", micros(*delay_micros), attempt)
        }
        Fact::Spares { nodes } if nodes.is_empty() => "no spare nodes".to_owned(),
        Fact::Spares { nodes } => format!("spare: {}", list(nodes)),
        Fact::Resizing { attempt, change } => format!("{}: attempt {attempt}", changed(change)),
        Fact::Finished { outcome, exit_code } => {
            let outcome = match outcome {
                Outcome::Succeeded => "succeeded",
                Outcome::Failed => "failed",
                Outcome::Interrupted => "interrupted",
                Outcome::Stopped => "stopped",
            };
            format!("{outcome}, code {exit_code}")
        }
    }
}

/// The process that runs the replicas.
pub(super) fn engine(pid: Option<u32>) -> String {
    pid.map_or_else(|| "the engine".to_owned(), |pid| format!("the guardian (pid {pid})"))
}

pub(crate) fn stop_reason(reason: StopReason) -> String {
    match reason {
        StopReason::Completed => "the roles that decide the result have ended".to_owned(),
        StopReason::PeerFailed => "a replica failed".to_owned(),
        StopReason::Resized => "the nodes of the job change".to_owned(),
        StopReason::NodeLost => "a node was lost".to_owned(),
        StopReason::Hung => "no replica made progress".to_owned(),
        StopReason::Timeout => "its time limit was exceeded".to_owned(),
        StopReason::StepFailed => "another step failed".to_owned(),
        StopReason::User => "by `umiak stop`".to_owned(),
        StopReason::SignalElsewhere { signal } => format!("another node received {}", signal_name(signal)),
        StopReason::Signal { signal } | StopReason::SecondSignal { signal } => {
            format!("umiak received {}", signal_name(signal))
        }
    }
}

pub(super) fn skip_reason(why: SkipReason) -> &'static str {
    match why {
        SkipReason::Condition => "its condition is false",
        SkipReason::Disabled => "disabled",
        SkipReason::NoItems => "its loop has no items",
    }
}

pub(super) fn node_end(end: NodeEnd) -> &'static str {
    match end {
        NodeEnd::Succeeded => "succeeded",
        NodeEnd::Failed => "failed",
        NodeEnd::Stopped => "stopped",
        NodeEnd::Cancelled => "cancelled",
        NodeEnd::Skipped => "skipped",
        NodeEnd::Cached => "cached",
    }
}

/// How the members of an elastic job change.
pub(crate) fn changed(change: &Resize) -> String {
    match change {
        Resize::Joined { nodes } => format!("{} joined", list(nodes)),
        Resize::Lost { node, reason } => format!("{node} was lost, {reason}"),
        Resize::Left { node } => format!("{node} left"),
        Resize::Fenced { node } => format!("the coordinator {node} could not renew its lease in etcd"),
        Resize::GivenUp { by } => format!("the coordinator {by} has gone on without this node, which was cut off"),
        Resize::Scaled { min, max } if min == max => format!("the number of nodes is {min} now"),
        Resize::Scaled { min, max } => format!("the number of nodes is {min} to {max} now"),
        Resize::LeftOut { node, failures: 0 } => format!("{node} is left out, its ranks cannot start"),
        Resize::LeftOut { node, failures: 1 } => format!("{node} is left out, a rank failed there"),
        Resize::LeftOut { node, failures } => {
            format!("{node} is left out, only its ranks failed in {failures} attempts in a row")
        }
    }
}
