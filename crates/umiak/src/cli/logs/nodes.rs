//! Replicas on other nodes: only one node records a run, and logs stay on the node of their replica.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::PlannedNode;
use umiak_core::model::{Rank, replica_parts};
use umiak_core::status::Status;

use crate::screen::summary::Crowd;
use crate::views::standing::LoadedRun;

/// Number of nodes listed.
const NODES: usize = 16;

/// Names and ranks of all replicas, also of those on other nodes.
pub(super) fn all(status: &Status) -> Vec<(&str, Option<Rank>)> {
    let here = status.replicas.iter().map(|replica| (replica.replica.as_str(), replica.rank));
    let names = status.nodes.iter().flat_map(|node| &node.replicas).filter(|name| status.present(name).is_none());
    // The plan has no ranks of other nodes. Without roles, they are in the names.
    let rank = |name: &str| status.roles.is_empty().then(|| Rank(replica_parts(name).1));
    here.chain(names.map(|name| (name.as_str(), rank(name)))).collect()
}

/// The replicas on other nodes that match, by node.
pub(super) fn elsewhere(status: &Status, is_wanted: impl Fn(&str, Option<Rank>) -> bool) -> Vec<PlannedNode> {
    let here = status.replicas.len();
    let wanted: Vec<&str> = all(status)
        .into_iter()
        .skip(here)
        .filter(|(name, rank)| is_wanted(name, *rank))
        .map(|(name, _)| name)
        .collect();
    let of = |node: &PlannedNode| {
        let replicas = node.replicas.iter().filter(|name| wanted.contains(&name.as_str())).cloned().collect();
        PlannedNode { node: node.node.clone(), replicas }
    };
    status.nodes.iter().map(of).filter(|node| !node.replicas.is_empty()).collect()
}

/// Completes the diagnostic of `new` about the logs of these replicas.
pub(super) fn not_here(
    loaded: &LoadedRun,
    nodes: &[PlannedNode],
    new: impl FnOnce(Code, String) -> Diagnostic,
) -> Diagnostic {
    let crowd = |nodes: &[PlannedNode]| {
        Crowd::replicas(nodes.iter().flat_map(|node| &node.replicas).map(|name| replica_parts(name)))
    };
    let Crowd { count, names } = crowd(nodes);
    let verb = if loaded.standing.is_over() { "ran" } else { "runs" };
    let verb = if count > 1 && verb == "runs" { "run" } else { verb };
    let logs = if count > 1 { "their logs are" } else { "its log is" };
    let diagnostic = if let [node] = nodes {
        new(Code::J0009, format!("`{names}` {verb} on node {}; {logs} on that node", node.node))
    } else {
        let new = new(Code::J0009, format!("`{names}` {verb} on other nodes; {logs} on those nodes"));
        let listed = nodes.iter().take(NODES);
        listed.fold(new, |new, node| new.row(node.node.clone(), crowd(std::slice::from_ref(node)).names))
    };
    let copies: Vec<String> =
        nodes.iter().flat_map(|node| &node.replicas).filter_map(|name| copy(loaded, name)).collect();
    match &copies[..] {
        [] => diagnostic.hint("let all nodes use one `--log_dir` on a shared file system; in jobs without etcd, `--gather-logs` copies the logs of all nodes to the node that records the run"),
        [one] => diagnostic.row("copy", one.clone()),
        [first, .., last] => diagnostic.row("copies", format!("{first} to {last}")),
    }
}

/// The log of a replica on another node, if this run wrote it here, too: gathered, or in a shared directory.
fn copy(loaded: &LoadedRun, replica: &str) -> Option<String> {
    let (role, index) = replica_parts(replica);
    let mut peers = loaded.status.replicas.iter().filter(|peer| peer.role() == role);
    let log = peers.find_map(|peer| peer.log.strip_suffix(&format!(".{}", replica_parts(&peer.replica).1)))?;
    let log = format!("{log}.{index}");
    let path = loaded.run.path().join(&log);
    let is_of_this_run = |path: &Path| {
        let began = UNIX_EPOCH + Duration::from_micros(loaded.status.began);
        path.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|changed| changed >= began)
    };
    is_of_this_run(&path).then(|| path.display().to_string())
}
