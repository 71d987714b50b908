//! What replicas are doing, grouped by where they are.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::shown;
use umiak_core::facts::{Child, Observed, PlannedNode, ProcessState, Snapshot};
use umiak_core::model::replica_parts;
use umiak_core::status::Status;

use super::time::moment;
use crate::history::RunId;
use crate::screen::doing::{doing, without_stack};
use crate::screen::style::{Mark, Style, ranges};
use crate::screen::summary::Crowd;

/// `umiak stacks --output json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SeenRun {
    /// The version of this format.
    pub(crate) v: u32,
    pub(crate) run: RunId,
    /// The name of the run.
    pub(crate) name: String,
    /// When the answer arrived, in microseconds since the Unix epoch.
    pub(crate) at: u64,
    /// Number of live replicas of this node. Those without a process yet are not in `replicas`.
    pub(crate) live: usize,
    pub(crate) replicas: Vec<Observed>,
    /// Replicas on other nodes, which are not in `replicas`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) elsewhere: Vec<PlannedNode>,
}

/// The nodes of a job, other than this one.
pub(crate) fn elsewhere(status: &Status) -> Vec<PlannedNode> {
    let is_here = |node: &PlannedNode| node.replicas.iter().any(|name| status.replica(name).is_some());
    status.nodes.iter().filter(|node| !is_here(node)).cloned().collect()
}

/// True if both do the same at the same place. Without a stack the function of the kernel is the place.
fn is_alike(a: &Snapshot, b: &Snapshot) -> bool {
    // A loop that waits is running or sleeping by chance.
    let is_chance = |state| matches!(state, ProcessState::Running | ProcessState::Sleeping);
    let is_same_state = a.state == b.state || (is_chance(a.state) && is_chance(b.state));
    let is_same_wait = a.state == b.state && a.waits_in == b.waits_in && a.no_stack == b.no_stack;
    a.stack == b.stack && if a.stack.is_empty() { is_same_wait } else { is_same_state }
}

/// Groups of those that are alike, the largest first.
fn groups<T>(all: impl IntoIterator<Item = T>, is_alike: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in all {
        match groups.iter_mut().find(|group| is_alike(&group[0], &item)) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

/// The answer of `umiak stacks`.
pub(crate) fn human(style: &Style, seen: &SeenRun) -> String {
    let name = if seen.name.is_empty() { String::new() } else { format!(" {}", shown(&seen.name)) };
    let mut text = format!("{} {}{name}  {}\n", style.mark(Mark::Running), seen.run, style.dim(&moment(seen.at)));
    text.push_str(&replicas(style, &seen.replicas));
    let missing = seen.live.saturating_sub(seen.replicas.len());
    if missing > 0 {
        let noun = if missing == 1 { "replica has" } else { "replicas have" };
        let _ = writeln!(text, "  {missing} {noun} no process yet");
    }
    if seen.live == 0 {
        let here = if seen.elsewhere.is_empty() { "" } else { " on this node" };
        let _ = writeln!(text, "  no replica is running{here}");
    }
    for node in &seen.elsewhere {
        let names = Crowd::replicas(node.replicas.iter().map(|name| replica_parts(name))).names;
        let _ = writeln!(text, "  {} on {}: not shown", style.bold(&names), shown(&node.node));
    }
    if !seen.elsewhere.is_empty() {
        let hint = "stacks are read on the node where the processes are: `py-spy dump --pid PID` there, or \
                    `--hang-timeout`, which reports those of all nodes";
        let _ = writeln!(text, "{} {hint}", style.yellow("hint:"));
    }
    text
}

/// The replicas by what they are doing, with the stacks of their Python child processes below them.
pub(crate) fn replicas(style: &Style, replicas: &[Observed]) -> String {
    let mut text = String::new();
    for group in groups(replicas, |a, b| is_alike(&a.snapshot, &b.snapshot)) {
        let names = Crowd::replicas(group.iter().map(|it| replica_parts(&it.subject.replica))).names;
        tell(&mut text, style, "  ", &names, &group[0].snapshot);
        let children = group.iter().flat_map(|it| &it.children);
        for group in groups(children, |a, b| is_alike(&a.snapshot, &b.snapshot)) {
            tell(&mut text, style, "    ", &children_of(&group), &group[0].snapshot);
        }
    }
    text
}

fn tell(text: &mut String, style: &Style, indent: &str, names: &str, snapshot: &Snapshot) {
    let why = snapshot.no_stack.map(|why| format!("; no stack: {}", without_stack(why))).unwrap_or_default();
    let _ = writeln!(text, "{indent}{} {}{why}", style.bold(names), doing(snapshot));
    for frame in &snapshot.stack {
        let _ = writeln!(text, "{indent}  {}", style.dim(&frame.describe()));
    }
    if snapshot.more_frames > 0 {
        let more = format!("{} {} more", style.dots(), snapshot.more_frames);
        let _ = writeln!(text, "{indent}  {}", style.dim(&more));
    }
}

/// `child process pt_data_worker (pid 4123)`, `2 child processes pt_data_worker (pids 4123-4124)`.
fn children_of(group: &[&Child]) -> String {
    let mut pids: Vec<u32> = group.iter().map(|child| child.pid).collect();
    pids.sort_unstable();
    let name = shown(&group[0].name);
    match pids[..] {
        [pid] => format!("child process {name} (pid {pid})"),
        _ => format!("{} child processes {name} (pids {})", pids.len(), ranges(&pids)),
    }
}

#[cfg(test)]
mod tests {
    use umiak_core::facts::{NoStack, StackFrame, Subject};

    use super::*;

    fn snapshot(line: u32) -> Snapshot {
        let frame = StackFrame { function: "step".to_owned(), file: "train.py".to_owned(), line };
        Snapshot { stack: vec![frame], waits_in: Some("futex_wait_queue".to_owned()), ..Snapshot::default() }
    }

    fn observed(index: u32, snapshot: Snapshot, children: Vec<Child>) -> Observed {
        let subject = Subject { replica: format!("trainer-{index}"), rank: None, attempt: 1 };
        Observed { subject, snapshot, children }
    }

    #[test]
    fn children_cut_stacks_reasons_and_other_nodes_are_told() {
        let child = |pid, line| Child {
            pid,
            name: "pt_data_worker".to_owned(),
            snapshot: Snapshot { more_frames: 12, ..snapshot(line) },
        };
        let unread = |why| Snapshot { no_stack: Some(why), ..Snapshot { stack: Vec::new(), ..snapshot(0) } };
        let seen = SeenRun {
            v: 1,
            run: "run-000007".parse().unwrap(),
            name: "bert".to_owned(),
            at: 0,
            live: 5,
            replicas: vec![
                observed(0, snapshot(88), vec![child(11, 3), child(12, 3)]),
                observed(1, snapshot(88), vec![child(13, 4)]),
                observed(2, unread(NoStack::NotPython), Vec::new()),
                observed(3, unread(NoStack::NotPermitted), Vec::new()),
            ],
            elsewhere: vec![PlannedNode {
                node: "10.0.0.2".to_owned(),
                replicas: vec!["trainer-5".to_owned(), "trainer-6".to_owned()],
            }],
        };
        let text = human(&Style::default(), &seen);
        let (head, rest) = text.split_once('\n').unwrap();
        assert!(head.contains(" run-000007 bert  1970-"), "{head}");
        assert_eq!(
            rest,
            "  trainer 0-1 at train.py:88 in step; waits for another thread or process (futex_wait_queue), 0.0 s CPU
    train.py:88 in step
    2 child processes pt_data_worker (pids 11-12) at train.py:3 in step; waits for another thread or process (futex_wait_queue), 0.0 s CPU
      train.py:3 in step
      … 12 more
    child process pt_data_worker (pid 13) at train.py:4 in step; waits for another thread or process (futex_wait_queue), 0.0 s CPU
      train.py:4 in step
      … 12 more
  trainer-2 waits for another thread or process (futex_wait_queue), 0.0 s CPU; no stack: it runs no Python interpreter
  trainer-3 waits for another thread or process (futex_wait_queue), 0.0 s CPU; no stack: its memory may not be read (ptrace is not permitted)
  1 replica has no process yet
  trainer 5-6 on 10.0.0.2: not shown
hint: stacks are read on the node where the processes are: `py-spy dump --pid PID` there, or `--hang-timeout`, which reports those of all nodes
"
        );
        let nothing = SeenRun { live: 0, replicas: Vec::new(), elsewhere: Vec::new(), ..seen };
        assert!(human(&Style::default(), &nothing).ends_with("  no replica is running\n"));
    }
}
