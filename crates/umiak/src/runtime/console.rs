//! Our own lines about a run, for people.

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use umiak_core::diag::{Diagnostic, Severity};
use umiak_core::model::Part;
use umiak_core::plan::{Plan, Replica};

use crate::screen::Style;
use crate::screen::style::{Mark, duration, ranges};
use crate::screen::summary::Crowd;

use super::launch::failed;
use crate::clock::time_of_day;

pub(super) fn planned(style: &Style, plan: &Plan, log_dir: &str, run: Option<String>) -> String {
    let nodes = plan.topology().nodes.len();
    let mut parts = vec![format!("{} on {nodes} node{}", everybody(plan), plural(nodes))];
    if nodes > 1 {
        parts.push(format!("here {}", crowd(plan, &plan.replicas.iter().collect::<Vec<_>>()).names));
    }
    if let Some(kind) = plan.topology().device_kind.filter(|_| !devices(plan).is_empty()) {
        parts.push(format!("{} {}", kind.word(), devices(plan)));
    }
    parts.push(endpoints(plan));
    parts.push(format!("logs {log_dir}"));
    parts.extend(run);
    style.progress("Planned", &parts, &time_of_day())
}

/// `8 ranks`; `2 servers and 4 trainers` where there are several parts.
fn everybody(plan: &Plan) -> String {
    let parts: Vec<(Part, u32)> =
        plan.topology().parts().into_iter().map(|part| (part, plan.topology().count(part))).collect();
    counted(&parts, has_parts(plan))
}

/// The same for this node.
pub(super) fn here(plan: &Plan) -> String {
    let count = |part: &Part| plan.replicas.iter().filter(|replica| is(plan, replica, *part)).count() as u32;
    let parts = plan.topology().parts().into_iter().map(|part| (part, count(&part))).filter(|(_, count)| *count > 0);
    counted(&parts.collect::<Vec<_>>(), has_parts(plan))
}

fn is(plan: &Plan, replica: &Replica, part: Part) -> bool {
    plan.member(replica).is_some_and(|(_, member)| member.part == part)
}

fn counted(parts: &[(Part, u32)], has_parts: bool) -> String {
    let word = |part: Part| match part {
        _ if !has_parts => "rank",
        Part::Server => "server",
        Part::Trainer => "trainer",
        Part::Coordinator => "coordinator",
        Part::HeterTrainer => "heterogeneous trainer",
    };
    let words: Vec<String> =
        parts.iter().map(|(part, count)| format!("{count} {}{}", word(*part), plural(*count as usize))).collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Where there are several parts, numbers alone say little.
pub(super) fn has_parts(plan: &Plan) -> bool {
    plan.topology().members.iter().any(|member| member.part != Part::Trainer)
}

/// Some of this node's, in words.
pub(super) fn crowd(plan: &Plan, replicas: &[&Replica]) -> Crowd {
    if has_parts(plan) {
        Crowd::replicas(replicas.iter().map(|replica| (plan.role(replica.slot).name.as_str(), replica.index)))
    } else {
        Crowd::ranks(&replicas.iter().map(|replica| replica.rank.0).collect::<Vec<_>>())
    }
}

fn devices(plan: &Plan) -> String {
    let labels = plan.replicas.iter().flat_map(|replica| &replica.devices).map(|device| device.label.as_str());
    labels.collect::<Vec<_>>().join(",")
}

/// `127.0.0.1:6170-6173`.
fn endpoints(plan: &Plan) -> String {
    let endpoints = plan.replicas.iter().filter_map(|replica| replica.endpoint);
    let ports: Vec<u32> = endpoints.clone().map(|endpoint| u32::from(endpoint.port.get())).collect();
    let host = endpoints.map(|endpoint| endpoint.to_string()).next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
    format!("{host}:{}", ranges(&ports).replace(", ", ","))
}

/// `attempt` is told where there can be several.
pub(super) fn started(style: &Style, who: &str, took: Duration, attempt: Option<String>) -> String {
    let parts = [Some(format!("{who} in {}", duration(took))), attempt];
    style.progress("Started", &parts.into_iter().flatten().collect::<Vec<_>>(), &time_of_day())
}

/// Trainers wait for these servers.
pub(super) fn awaiting(style: &Style, servers: &[String]) -> String {
    let parts = [format!(
        "for {}, which {} not answer yet",
        servers.join(", "),
        if servers.len() == 1 { "does" } else { "do" }
    )];
    style.progress("Waiting", &parts, &time_of_day())
}

pub(super) fn finished(style: &Style, who: &str, took: Duration, attempt: Option<String>) -> String {
    let parts = [Some(format!("{who} in {}", duration(took))), attempt];
    style.progress("Finished", &parts.into_iter().flatten().collect::<Vec<_>>(), &time_of_day())
}

pub(crate) fn restarting(style: &Style, attempt: &str, delay: Duration) -> String {
    let delay = duration(delay);
    if style.plain {
        style.progress("Restarting", &[format!("in {delay}"), format!("{attempt} failed")], &time_of_day())
    } else {
        format!("{} {attempt} failed, restarting in {delay}\n", style.mark(Mark::Restarted))
    }
}

/// Stopped while nothing ran.
pub(super) fn not_restarted(style: &Style, by: &str) -> String {
    format!("{} stopped by {by} before the restart\n", style.mark(Mark::Stopped))
}

pub(super) fn stopping(style: &Style, signal: &str, who: &Crowd) -> String {
    let parts = [format!("{signal} received: SIGTERM to {}, again to kill", who.names)];
    style.progress("Stopping", &parts, &time_of_day())
}

pub(super) fn interrupted(style: &Style, by: &str, who: &str, took: Duration, killed: bool) -> String {
    format!(
        "{} stopped by {by}: {who} {} within {}\n",
        style.mark(Mark::Stopped),
        if killed { "killed" } else { "ended" },
        duration(took)
    )
}

/// The end of a stop that took longer than the report could wait.
pub(super) fn gone(style: &Style, took: Duration, killed: bool, abandoned: bool) -> String {
    let how = match (abandoned, killed) {
        (true, _) => "not all gone, even after SIGKILL,",
        (false, true) => "all gone, by SIGKILL,",
        (false, false) => "all gone, by SIGTERM,",
    };
    format!("{} {how} after {}\n", style.mark(Mark::Stopped), duration(took))
}

/// About other nodes.
pub(super) fn nodes(style: &Style, text: &str) -> String {
    style.progress("Nodes", &[text.to_owned()], &time_of_day())
}

/// Data on stdout. A reader that has gone away is no error.
pub(crate) fn write_data(text: &str) -> Result<(), Diagnostic> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(failed("write its output", &error)),
        _ => Ok(()),
    }
}

pub(crate) fn diagnostic(style: &Style, diagnostic: &Diagnostic) -> String {
    diagnostic.render(|severity, head| match severity {
        Severity::Error => style.red(head),
        Severity::Notice => style.yellow(head),
    })
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
