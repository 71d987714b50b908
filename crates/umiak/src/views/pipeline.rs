//! Pipelines with what has happened: the tree of nodes of `umiak show`, as text and as JSON.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::shown;
use umiak_core::facts::{NodeEnd, NodeValues, SkipReason};
use umiak_core::model::{Body, FIRST_ATTEMPT, Items, Node, NodeId, Pipeline};
use umiak_core::pipeline::text::print;
use umiak_core::status::{NodeState, NodeStatus, PipelineStatus, RoleStatus, Status};
use unicode_width::UnicodeWidthStr as _;

use super::facts::plural;
use super::time::between;
use crate::screen::Style;
use crate::screen::style::{Mark, fit};

/// With more lines than this, only what runs or has failed is listed.
const FOLDED: usize = 50;
/// Names are padded to at most this width.
const WIDEST: usize = 40;

/// A node with more dependencies does not name those it waits for.
const MANY: usize = 64;
/// A role with more replicas has numbers instead of a mark for each.
const GROUP: usize = 16;

/// How much a tree says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail<'a> {
    /// At the end of this run: states, times and reasons.
    End(&'a str),
    /// The outputs, too.
    Usual,
    /// All values, and every node.
    All,
}

impl Detail<'_> {
    pub(crate) fn of(all: bool) -> Self {
        if all { Self::All } else { Self::Usual }
    }
}

/// A pipeline that was run.
pub(crate) struct PipelineRun<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) status: &'a PipelineStatus,
    /// Its supervisor has died.
    pub(crate) is_lost: bool,
    pub(crate) is_over: bool,
    /// In microseconds since the Unix epoch.
    pub(crate) now: u64,
}

/// A node in one run of the DAG around it, a loop, or one item of a loop.
pub(crate) struct Instance<'a> {
    /// `train`, `dag.child`, `split.3`.
    pub(crate) name: String,
    pub(super) id: NodeId,
    pub(super) node: &'a Node,
    pub(super) depth: usize,
    pub(crate) kind: Kind,
    pub(super) is_item: bool,
    pub(super) status: Option<&'a NodeStatus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Step,
    Dag,
    /// One instance for each item follows.
    Loop,
}

/// A node as `umiak show --output json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ShownNode {
    /// `train`, `dag.child`, `split.3` for an item of a loop.
    name: String,
    kind: Kind,
    /// `waiting`, `running`, `succeeded`, `failed`, `stopped`, `cancelled`, `skipped`, `cached`; `lost` if it was
    /// running when the supervisor died.
    pub(crate) status: &'static str,
    /// The word of PaddleFlow for it.
    paddleflow: &'static str,
    /// Microseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    /// The run and the step whose result is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_from: Option<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<SkipReason>,
    /// Why it could not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// The number of items of a loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<usize>,
    #[serde(flatten)]
    values: NodeValues,
}

impl<'a> PipelineRun<'a> {
    /// All instances, parents before their children.
    pub(crate) fn instances(&self) -> Vec<Instance<'a>> {
        let mut all = Vec::new();
        if let Body::Dag { children } = &self.pipeline.node(Pipeline::ROOT).body {
            for child in children.iter().chain(&self.pipeline.post) {
                self.walk(*child, "", 0, &mut all);
            }
        }
        all
    }

    fn walk(&self, id: NodeId, dag: &str, depth: usize, all: &mut Vec<Instance<'a>>) {
        let node = self.pipeline.node(id);
        let name = if dag.is_empty() { node.name.clone() } else { format!("{dag}.{}", node.name) };
        let status = self.status.node(&name);
        if node.items.is_none() {
            self.body(id, &name, depth, false, all);
            return;
        }
        let items = status.and_then(NodeStatus::items).map_or(0, <[_]>::len);
        all.push(Instance { name: name.clone(), id, node, depth, kind: Kind::Loop, is_item: false, status });
        for item in 0..items {
            self.body(id, &format!("{name}.{item}"), depth + 1, true, all);
        }
    }

    fn body(&self, id: NodeId, name: &str, depth: usize, is_item: bool, all: &mut Vec<Instance<'a>>) {
        let node = self.pipeline.node(id);
        let (kind, children) = match &node.body {
            Body::Dag { children } => (Kind::Dag, children.as_slice()),
            Body::Step(_) => (Kind::Step, &[][..]),
        };
        let status = self.status.node(name);
        all.push(Instance { name: name.to_owned(), id, node, depth, kind, is_item, status });
        for child in children {
            self.walk(*child, name, depth + 1, all);
        }
    }

    pub(crate) fn mark(&self, name: &str) -> Mark {
        self.mark_of(self.status.node(name))
    }

    pub(super) fn mark_of(&self, status: Option<&NodeStatus>) -> Mark {
        match status.map(|status| status.state) {
            None => Mark::Waiting,
            Some(NodeState::Open | NodeState::Running) if self.is_lost => Mark::Lost,
            Some(state) => mark(state),
        }
    }

    fn word(&self, status: Option<&NodeStatus>) -> &'static str {
        match status.map(|status| status.state) {
            None if self.is_over => "cancelled",
            None | Some(NodeState::Pending) => "waiting",
            Some(NodeState::Open | NodeState::Running) if self.is_lost => "lost",
            Some(NodeState::Open | NodeState::Running) => "running",
            Some(NodeState::Ended(end)) => super::facts::node_end(end),
        }
    }

    /// All instances, as JSON.
    pub(crate) fn shown(&self) -> Vec<ShownNode> {
        let shown = |instance: Instance<'_>| {
            let status = instance.status;
            let (started, ended) = status.map_or((None, None), NodeStatus::times);
            let cached = status.and_then(NodeStatus::cached_from);
            let never = if self.is_over { "cancelled" } else { "pending" };
            ShownNode {
                kind: instance.kind,
                status: self.word(status),
                paddleflow: status.map_or(never, NodeStatus::paddleflow_word),
                started,
                ended,
                code: status.and_then(|status| status.exit_code),
                cached_from: cached.map(|(run, step)| (run.to_owned(), step.to_owned())),
                skipped: status.and_then(|status| status.skipped),
                refused: status.and_then(NodeStatus::refused).map(str::to_owned),
                items: status.and_then(NodeStatus::items).map(<[_]>::len),
                values: status.and_then(NodeStatus::values).cloned().unwrap_or_default(),
                name: instance.name,
            }
        };
        self.instances().into_iter().map(shown).collect()
    }

    /// Those that the name names: the instance, and all in it.
    pub(crate) fn shown_below(&self, name: &str) -> Vec<ShownNode> {
        self.shown().into_iter().filter(|node| is_below(&node.name, name)).collect()
    }

    /// The tree; with `below`, only the nodes that this name names. Items of loops that need no attention are folded.
    pub(crate) fn tree(&self, style: &Style, below: Option<&str>, detail: Detail<'_>) -> String {
        let all = detail == Detail::All;
        let mut instances = self.instances();
        if let Some(below) = below {
            instances.retain(|instance| is_below(&instance.name, below));
        }
        let base = instances.first().map_or(0, |instance| instance.depth);
        let is_live = |instance: &Instance<'_>| {
            matches!(self.mark_of(instance.status), Mark::Running | Mark::Failed | Mark::Lost)
        };
        let mut rows: Vec<&Instance<'_>> = Vec::new();
        let mut hidden: Option<usize> = None;
        for instance in &instances {
            hidden = hidden.filter(|depth| instance.depth > *depth);
            if hidden.is_none() && instance.is_item && !all && !is_live(instance) {
                hidden = Some(instance.depth);
            }
            if hidden.is_none() {
                rows.push(instance);
            }
        }
        let mut folded = [0; 3];
        if rows.len() > FOLDED && !all {
            let is_step = |instance: &&Instance<'_>| instance.kind != Kind::Dag && !instance.is_item;
            for instance in rows.iter().filter(|instance| !is_live(instance)).filter(|one| is_step(one)) {
                let place = match self.mark_of(instance.status) {
                    Mark::Waiting => 1,
                    Mark::Stopped => 2,
                    _ => 0,
                };
                folded[place] += 1;
            }
            rows.retain(|instance| is_live(instance));
        }
        let head = |instance: &&Instance<'_>| {
            let name = &instance.name;
            let label = if instance.is_item { name.rsplit('.').next().unwrap_or(name) } else { &instance.node.name };
            let count = if instance.kind == Kind::Loop { self.count(instance) } else { String::new() };
            self.head(style, instance, base, label, &count)
        };
        let heads: Vec<String> = rows.iter().map(head).collect();
        let width = heads.iter().map(|head| head.width()).max().unwrap_or(0).min(WIDEST);
        let mut text = String::new();
        for (instance, head) in rows.iter().zip(&heads) {
            let mark = self.mark_of(instance.status);
            let gap = " ".repeat(width.saturating_sub(head.width()));
            let rest = format!("{:>8}  {}", self.took(instance), shown(&self.note(style, instance)));
            let room = style.width().saturating_sub(width.max(head.width()) + 1).max(20);
            let line = format!("{}{gap} {}", style.painted(mark, head), fit(rest.trim_end(), room));
            let _ = writeln!(text, "{}", line.trim_end());
            let indent = " ".repeat(2 * (instance.depth - base) + 6);
            for line in values(instance.status, style, detail) {
                let _ = writeln!(text, "{indent}{}", style.dim(&shown(&line)));
            }
        }
        for (count, mark, what) in [
            (folded[0], Mark::Done, "have ended well"),
            (folded[1], Mark::Waiting, "have not been started"),
            (folded[2], Mark::Stopped, "were skipped, stopped or cancelled"),
        ] {
            if count > 0 {
                let line = format!("  {} {count} step{} {what}", style.mark(mark), plural(count));
                let _ = writeln!(text, "{}", style.painted(mark, &line));
            }
        }
        if folded.iter().any(|count| *count > 0) {
            let _ = match detail {
                Detail::End(run) => writeln!(text, "`umiak show {run} --all` lists them"),
                Detail::Usual | Detail::All => writeln!(text, "`--all` lists them"),
            };
        }
        text
    }

    /// `✓ split [3/3]`, with a label for the name.
    pub(super) fn head(&self, style: &Style, instance: &Instance<'_>, base: usize, label: &str, count: &str) -> String {
        let item = instance.status.and_then(NodeStatus::values).and_then(|values| values.item.as_ref());
        let item = item.filter(|_| instance.is_item).map(|item| format!(" ({})", fit(&print(item), 20)));
        let post = if self.pipeline.post == Some(instance.id) { " (post)" } else { "" };
        let indent = " ".repeat(2 * (instance.depth - base) + 2);
        let mark = style.mark(self.mark_of(instance.status));
        shown(&format!("{indent}{mark} {label}{}{count}{post}", item.unwrap_or_default())).into_owned()
    }

    /// ` [2/3]`
    fn count(&self, instance: &Instance<'_>) -> String {
        let ended =
            |item: usize| self.status.node(&format!("{}.{item}", instance.name)).is_some_and(|it| it.ended().is_some());
        match (instance.status.and_then(NodeStatus::items), &instance.node.items) {
            (Some(items), _) => format!(" [{}/{}]", (0..items.len()).filter(|item| ended(*item)).count(), items.len()),
            (None, Some(Items::List(items))) => format!(" [0/{}]", items.len()),
            (None, _) => " [loop]".to_owned(),
        }
    }

    fn took(&self, instance: &Instance<'_>) -> String {
        match instance.status.map_or((None, None), NodeStatus::times) {
            (Some(started), Some(ended)) => between(started, ended),
            (Some(started), None) if !self.is_lost => between(started, self.now),
            _ => String::new(),
        }
    }

    /// What there is to say about it.
    pub(super) fn note(&self, style: &Style, instance: &Instance<'_>) -> String {
        let Some(status) = instance.status.filter(|status| status.state != NodeState::Pending) else {
            return if self.is_over { "not started".to_owned() } else { self.waits_for(instance) };
        };
        if let Some((run, step)) = status.cached_from() {
            let of = if step == instance.name { String::new() } else { format!(", step {step}") };
            return format!("cached from {run}{of}");
        }
        if let Some(reason) = status.refused() {
            return format!("could not start: {reason}");
        }
        match (status.state, status.skipped) {
            (_, Some(why)) => format!("skipped: {}", super::facts::skip_reason(why)),
            (NodeState::Ended(NodeEnd::Cancelled), _) => "cancelled".to_owned(),
            (NodeState::Ended(NodeEnd::Stopped), _) => "stopped".to_owned(),
            (NodeState::Running, _) if self.is_lost => "lost with its supervisor".to_owned(),
            (NodeState::Running, _) => status.job_status().map(|job| members(style, job)).unwrap_or_default(),
            (NodeState::Ended(NodeEnd::Failed), _) => status.job_status().map(failed).unwrap_or_default(),
            _ => String::new(),
        }
    }

    fn waits_for(&self, instance: &Instance<'_>) -> String {
        if self.pipeline.post == Some(instance.id) {
            return "runs at the end, whatever happens".to_owned();
        }
        if instance.node.deps.len() > MANY {
            return format!("waits for some of {} nodes", instance.node.deps.len());
        }
        let dag = instance.name.rsplit_once('.').filter(|_| !instance.is_item).map(|(dag, _)| format!("{dag}."));
        let is_open = |id: &&NodeId| {
            let name = format!("{}{}", dag.as_deref().unwrap_or_default(), self.pipeline.node(**id).name);
            !self.status.node(&name).and_then(NodeStatus::ended).is_some_and(NodeEnd::is_good)
        };
        let names: Vec<String> =
            instance.node.deps.iter().filter(is_open).map(|id| self.pipeline.node(*id).name.clone()).collect();
        if names.is_empty() { String::new() } else { format!("waits for {}", super::facts::list(&names)) }
    }
}

/// The mark of a node whose run is not lost.
pub(super) fn mark(state: NodeState) -> Mark {
    match state {
        NodeState::Pending => Mark::Waiting,
        NodeState::Open | NodeState::Running => Mark::Running,
        NodeState::Ended(end) => match end {
            NodeEnd::Succeeded => Mark::Done,
            NodeEnd::Cached => Mark::Cached,
            NodeEnd::Failed => Mark::Failed,
            NodeEnd::Stopped | NodeEnd::Cancelled | NodeEnd::Skipped => Mark::Stopped,
        },
    }
}

/// True if an instance is the one that the word names, or in it.
pub(crate) fn is_below(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The replicas of a job, if it has several: `pserver ▸▸  worker ▸✓`.
fn members(style: &Style, job: &Status) -> String {
    if job.replicas.len() == 1 {
        return String::new();
    }
    let group = |role: &RoleStatus| {
        let marks: Vec<&str> = job
            .replicas
            .iter()
            .filter(|replica| replica.role() == role.role)
            .map(|replica| match super::run::mark(&replica.stage) {
                Mark::Running if replica.attempt > FIRST_ATTEMPT => style.mark(Mark::Restarted),
                mark => style.mark(mark),
            })
            .collect();
        if marks.len() <= GROUP {
            return format!("{} {}", role.role, marks.concat());
        }
        let count = |mark: &Mark| marks.iter().filter(|other| **other == style.mark(*mark)).count();
        let counts = Mark::ALL.iter().map(|mark| (mark, count(mark))).filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts.map(|(mark, count)| format!("{} {count}", style.mark(*mark))).collect();
        format!("{} {}", role.role, counts.join(" "))
    };
    job.roles.iter().map(group).collect::<Vec<_>>().join("  ")
}

/// The cause of a failed step.
fn failed(job: &Status) -> String {
    let Some(cause) = job.verdict.as_ref().and_then(|verdict| verdict.causes.first()) else { return String::new() };
    let headline = cause.evidence.as_ref().and_then(|evidence| evidence.headline.as_ref());
    let headline = headline.map(|line| format!(": {}", line.text)).unwrap_or_default();
    format!("{} {}{headline}", cause.subject.replica, cause.exit.describe())
}

/// The values of a node.
fn values(status: Option<&NodeStatus>, style: &Style, detail: Detail<'_>) -> Vec<String> {
    let Some(values) = status.and_then(NodeStatus::values).filter(|_| !matches!(detail, Detail::End(_))) else {
        return Vec::new();
    };
    let all = detail == Detail::All;
    let (to, from) = if style.ascii { ("->", "<-") } else { ("→", "←") };
    let paths = |sign: &str, artifacts: &[(String, Vec<String>)]| {
        artifacts.iter().map(|(name, paths)| format!("{sign} {name}  {}", paths.join(", "))).collect::<Vec<_>>()
    };
    let mut lines = Vec::new();
    if all {
        lines.extend(values.parameters.iter().map(|(name, value)| format!("{name} = {}", print(value))));
        lines.extend(paths(from, &values.inputs));
    }
    // What was not made is not shown.
    let is_good = status.and_then(NodeStatus::ended).is_some_and(NodeEnd::is_good);
    if all || is_good {
        lines.extend(paths(to, &values.outputs));
    }
    lines
}
