//! Our own lines about a run, for people.

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use umiak_core::diag::{Diagnostic, Severity};
use umiak_core::plan::Plan;

use crate::screen::Style;
use crate::screen::style::{Mark, duration, ranges};

use super::launch::failed;
use crate::clock::time_of_day;

pub(super) fn planned(style: &Style, plan: &Plan, log_dir: &str, run: Option<String>) -> String {
    if plan.topology.nodes.len() > 1 {
        return planned_among(style, plan, log_dir, run);
    }
    let nodes = plan.topology.nodes.len();
    let ranks = plan.topology.members.len();
    let mut parts = vec![
        format!("{ranks} rank{} on {nodes} node{}", plural(ranks), plural(nodes)),
        endpoints(plan),
        format!("logs {log_dir}"),
    ];
    if let Some(kind) = plan.topology.device_kind {
        parts.insert(1, format!("{} {}", kind.word(), devices(plan)));
    }
    parts.extend(run);
    style.progress("Planned", &parts, &time_of_day())
}

/// One of several nodes.
fn planned_among(style: &Style, plan: &Plan, log_dir: &str, run: Option<String>) -> String {
    let ranks: Vec<u32> = plan.replicas.iter().map(|replica| replica.rank.0).collect();
    let mut parts = vec![
        format!("{} ranks on {} nodes", plan.topology.world_size().get(), plan.topology.nodes.len()),
        format!("here rank{} {}", plural(ranks.len()), ranges(&ranks)),
        endpoints(plan),
        format!("logs {log_dir}"),
    ];
    if let Some(kind) = plan.topology.device_kind {
        parts.insert(2, format!("{} {}", kind.word(), devices(plan)));
    }
    parts.extend(run);
    style.progress("Planned", &parts, &time_of_day())
}

fn devices(plan: &Plan) -> String {
    let labels = plan.replicas.iter().flat_map(|replica| &replica.devices).map(|device| device.label.as_str());
    labels.collect::<Vec<_>>().join(",")
}

/// `127.0.0.1:6170-6173`.
fn endpoints(plan: &Plan) -> String {
    let ports: Vec<u32> = plan.replicas.iter().map(|replica| u32::from(replica.endpoint.port.get())).collect();
    let host = plan.replicas[0].endpoint.to_string();
    let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
    format!("{host}:{}", ranges(&ports).replace(", ", ","))
}

/// `attempt` is told where there can be several.
pub(super) fn started(style: &Style, ranks: usize, took: Duration, attempt: Option<String>) -> String {
    let parts = [Some(format!("{ranks} rank{} in {}", plural(ranks), duration(took))), attempt];
    style.progress("Started", &parts.into_iter().flatten().collect::<Vec<_>>(), &time_of_day())
}

pub(super) fn finished(style: &Style, ranks: usize, took: Duration, attempt: Option<String>) -> String {
    let parts = [Some(format!("{ranks} rank{} in {}", plural(ranks), duration(took))), attempt];
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

pub(super) fn stopping(style: &Style, signal: &str, ranks: &[u32]) -> String {
    let parts = [format!("{signal} received: SIGTERM to rank{} {}, again to kill", plural(ranks.len()), ranges(ranks))];
    style.progress("Stopping", &parts, &time_of_day())
}

pub(super) fn interrupted(style: &Style, by: &str, ranks: usize, took: Duration, killed: bool) -> String {
    format!(
        "{} stopped by {by}: {ranks} rank{} {} within {}\n",
        style.mark(Mark::Stopped),
        plural(ranks),
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
