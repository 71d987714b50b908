//! Console lines of a launched job.

use umiak_core::model::{Device, Placement};
use umiak_core::plan::Plan;

use crate::clock::time_of_day;
use crate::driver::words::{crowd, everywhere};
use crate::screen::Style;
use crate::screen::style::ranges;

/// The parts of the `Planned` line.
pub(super) fn planned(
    plan: &Plan,
    placement: Option<&Placement>,
    log_dir: Option<String>,
    run: Option<String>,
) -> Vec<String> {
    let nodes = plan.topology().nodes.len();
    let of = placement.map(|placement| format!(" of {}", placement.by)).unwrap_or_default();
    let mut parts = vec![format!("{} on {nodes} node{}{of}", everywhere(plan), if nodes == 1 { "" } else { "s" })];
    if nodes > 1 {
        let here: Vec<_> = plan.replicas.iter().map(|replica| replica.slot).collect();
        parts.push(format!("here {}", crowd(plan, &here).names));
    }
    let devices = Device::labels(plan.replicas.iter().flat_map(|replica| &replica.devices));
    if let Some(kind) = plan.topology().device_kind.filter(|_| !devices.is_empty()) {
        parts.push(format!("{} {devices}", kind.word()));
    }
    match plan.topology() {
        topology if topology.agent_store && plan.streams.is_some() => {
            parts.push(format!("store {}", topology.torch_store));
        }
        _ => parts.push(endpoints(plan)),
    }
    parts.extend(log_dir.map(|dir| format!("logs {dir}")));
    parts.extend(run);
    parts
}

/// `127.0.0.1:6170-6173`.
fn endpoints(plan: &Plan) -> String {
    let endpoints = plan.replicas.iter().filter_map(|replica| replica.endpoint.as_ref());
    let ports: Vec<u32> = endpoints.clone().map(|endpoint| u32::from(endpoint.port.get())).collect();
    let host = endpoints.map(ToString::to_string).next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
    format!("{host}:{}", ranges(&ports).replace(", ", ","))
}

/// A line about other nodes.
pub(super) fn nodes(style: &Style, text: &str) -> String {
    style.progress("Nodes", &[text.to_owned()], &time_of_day())
}
