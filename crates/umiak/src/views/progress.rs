//! A pipeline while it runs: the nodes that a terminal shows, and lines for a log.
//!
//! What is shown is kept up to date with each record, so that drawing 10 000 steps costs as much as drawing 10.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use umiak_core::diag::shown;
use umiak_core::facts::{Fact, NodeEnd, Outcome, Record};
use umiak_core::model::{Body, FIRST_ATTEMPT, Items, NodeId, Pipeline};
use umiak_core::status::{NodeStatus, PipelineStatus};

use super::facts::{list, plural, skip_reason};
use super::pipeline::{Instance, Kind, PipelineRun, mark};
use super::time::between;
use crate::screen::style::Mark;
use crate::screen::{Activity, NodeRow, NodeTime, Nodes, Style};

/// The place of an instance in the tree: positions among siblings, from the root, each plus one. A parent comes before
/// its children.
type Key = Vec<u32>;

/// A row before and one after all children of a node.
const BEFORE: u32 = 0;
const AFTER: u32 = u32::MAX;

/// The nodes of a pipeline, as far as they are worth a row.
#[derive(Debug)]
pub(crate) struct Progress {
    pipeline: Pipeline,
    /// The node of this name in a DAG, and its position there.
    children: HashMap<(NodeId, Box<str>), (NodeId, u32)>,
    /// Steps in each node, the items of loops over lists included.
    weights: Vec<usize>,
    /// DAGs and loops that have begun.
    groups: BTreeMap<Key, Group>,
    live: BTreeSet<Key>,
    failed: BTreeSet<Key>,
    counts: Counts,
}

/// The parts of a DAG or a loop.
#[derive(Debug)]
struct Group {
    is_loop: bool,
    marks: Vec<Mark>,
    ended: usize,
    /// Of a DAG: the positions of children that wait, have ended well, and were stopped or skipped.
    waiting: BTreeSet<u32>,
    done: BTreeSet<u32>,
    off: BTreeSet<u32>,
}

/// Numbers of steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    all: usize,
    /// Ended well.
    done: usize,
    running: usize,
    cached: usize,
    failed: usize,
}

/// What a row shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Node,
    /// So many siblings in this state.
    Folded(Mark, usize),
    /// So many that run, and so many that have failed.
    More(usize, usize),
}

impl Group {
    fn new(parts: usize, is_loop: bool) -> Self {
        let waiting = if is_loop { BTreeSet::new() } else { (0..parts as u32).collect() };
        let (done, off) = (BTreeSet::new(), BTreeSet::new());
        Self { is_loop, marks: vec![Mark::Waiting; parts], ended: 0, waiting, done, off }
    }

    /// Changes the state of a part. `false` if it has that state, or has ended.
    fn set(&mut self, position: u32, mark: Mark) -> bool {
        let Some(known) = self.marks.get_mut(position as usize) else { return false };
        if *known == mark || !matches!(known, Mark::Waiting | Mark::Running) {
            return false;
        }
        *known = mark;
        self.ended += usize::from(!matches!(mark, Mark::Waiting | Mark::Running));
        if !self.is_loop {
            self.waiting.remove(&position);
            match mark {
                Mark::Done | Mark::Cached => _ = self.done.insert(position),
                Mark::Stopped => _ = self.off.insert(position),
                _ => {}
            }
        }
        true
    }

    /// Children that may be shown each, or as one.
    fn folds(&self) -> [(Mark, &BTreeSet<u32>); 3] {
        [(Mark::Done, &self.done), (Mark::Stopped, &self.off), (Mark::Waiting, &self.waiting)]
    }
}

impl Progress {
    /// A pipeline with what is recorded so far.
    pub(crate) fn new(pipeline: Pipeline, recorded: &PipelineStatus) -> Self {
        let mut children = HashMap::new();
        let mut add = |parent: NodeId, child: NodeId, position: usize| {
            let name = pipeline.node(child).name.as_str().into();
            children.insert((parent, name), (child, position as u32));
        };
        let mut weights = vec![1; pipeline.nodes.len()];
        // Children come after their parents.
        for (id, node) in pipeline.iter().collect::<Vec<_>>().into_iter().rev() {
            if let Body::Dag { children } = &node.body {
                children.iter().enumerate().for_each(|(position, child)| add(id, *child, position));
                weights[id.0 as usize] = children.iter().map(|child| weights[child.0 as usize]).sum();
            }
            if let Some(Items::List(items)) = &node.items {
                weights[id.0 as usize] *= items.len().max(1);
            }
        }
        let parts = match &pipeline.node(Pipeline::ROOT).body {
            Body::Dag { children } => children.len(),
            Body::Step(_) => 0,
        };
        pipeline.post.into_iter().for_each(|post| add(Pipeline::ROOT, post, parts));
        let posts = usize::from(pipeline.post.is_some());
        let counts = Counts { all: weights[0] + posts, ..Counts::default() };
        let groups = BTreeMap::from([(Key::new(), Group::new(parts + posts, false))]);
        let (live, failed) = (BTreeSet::new(), BTreeSet::new());
        let mut progress = Self { pipeline, children, weights, groups, live, failed, counts };
        // The name of a parent is before those of its children.
        for (name, node) in recorded.nodes() {
            progress.update(name, node);
        }
        progress
    }

    pub(crate) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The place of an instance, its node, and true if it is an item of a loop.
    fn find(&self, name: &str) -> Option<(Key, NodeId, bool)> {
        let (mut key, mut node, mut is_item) = (Key::new(), Pipeline::ROOT, true);
        for part in name.split('.') {
            is_item = !is_item && self.pipeline.node(node).items.is_some();
            let position: u32 = if is_item {
                part.parse().ok()?
            } else {
                let (child, position) = *self.children.get(&(node, part.into()))?;
                node = child;
                position
            };
            key.push(position.checked_add(1)?);
        }
        Some((key, node, is_item))
    }

    /// Takes over the state of an instance. The costs do not depend on the number of nodes.
    pub(crate) fn update(&mut self, name: &str, status: &NodeStatus) {
        let Some((key, id, is_item)) = self.find(name) else { return };
        let node = self.pipeline.node(id);
        let is_loop = node.items.is_some() && !is_item;
        let mark = mark(status.state);
        let Some((position, whole)) = key.split_last() else { return };
        if !self.groups.get_mut(whole).is_some_and(|group| group.set(position - 1, mark)) {
            return;
        }
        let steps = match &node.items {
            Some(Items::List(items)) if is_item => self.weights[id.0 as usize] / items.len().max(1),
            _ => self.weights[id.0 as usize],
        };
        let is_step = matches!(node.body, Body::Step(_)) && !is_loop;
        if is_step {
            self.counts.running -= usize::from(self.live.contains(&key));
            match mark {
                Mark::Running => self.counts.running += 1,
                Mark::Failed => self.counts.failed += 1,
                Mark::Cached => self.counts.cached += 1,
                _ => {}
            }
        }
        // Steps in what was skipped have no state of their own.
        if is_step && status.ended().is_some_and(NodeEnd::is_good) || status.skipped.is_some() {
            self.counts.done += steps;
        }
        self.live.remove(&key);
        match mark {
            Mark::Running => _ = self.live.insert(key.clone()),
            Mark::Failed => _ = self.failed.insert(key.clone()),
            _ => {}
        }
        if self.groups.contains_key(&key) {
            return;
        }
        if is_loop && let Some(items) = status.items() {
            if !matches!(node.items, Some(Items::List(_))) {
                self.counts.all += items.len().saturating_sub(1) * steps;
            }
            self.groups.insert(key, Group::new(items.len(), true));
        } else if let Body::Dag { children } = &node.body
            && status.times().0.is_some()
            && !is_loop
        {
            self.groups.insert(key, Group::new(children.len(), false));
        }
    }

    /// The numbers of the status line.
    pub(crate) fn activity(&self, stopping: bool) -> Activity {
        let Counts { all, done, running, failed, .. } = self.counts;
        Activity::Steps { done, all, running, failed, stopping }
    }

    /// At most `rows` rows.
    pub(crate) fn nodes(&self, style: &Style, status: &PipelineStatus, now: u64, rows: usize) -> Nodes {
        let run = PipelineRun { pipeline: &self.pipeline, status, is_lost: false, is_over: false, now };
        let chosen = self.choose(rows);
        let rows = chosen.iter().map(|(key, shown)| self.row(style, &run, &chosen, key, *shown)).collect();
        Nodes { cached: self.counts.cached, rows }
    }

    /// The rows, in the order of the tree: first what runs and what has failed, then as much of the rest as there is
    /// room for. The costs depend on the number of rows.
    fn choose(&self, rows: usize) -> BTreeMap<Key, Shown> {
        let (live, failed) = (self.live.len(), self.failed.len());
        let room = if live + failed > rows { rows.saturating_sub(1) } else { rows };
        // Many failures leave half of the rows to what runs.
        let shown_failed = failed.min((room / 2).max(room.saturating_sub(live)));
        let shown_live = live.min(room - shown_failed);
        let keys = self.live.iter().take(shown_live).chain(self.failed.iter().take(shown_failed));
        let mut chosen: BTreeMap<Key, Shown> = keys.map(|key| (key.clone(), Shown::Node)).collect();
        let more = Shown::More(live - shown_live, failed - shown_failed);
        if more != Shown::More(0, 0) && rows > 0 {
            chosen.insert(vec![AFTER, AFTER], more);
        }
        let mut room = rows - chosen.len();
        let root = std::iter::once(Key::new());
        let keys: Vec<Key> = root.chain(chosen.keys().filter(|key| self.live.contains(*key)).cloned()).collect();
        let groups: Vec<(Key, &Group)> = keys
            .into_iter()
            .filter_map(|key| self.groups.get(&key).filter(|group| !group.is_loop).map(|group| (key, group)))
            .collect();
        let folds = || groups.iter().flat_map(|(key, group)| group.folds().map(|(mark, parts)| (key, mark, parts)));
        let is_whole = folds().map(|(_, _, parts)| parts.len()).sum::<usize>() <= room;
        let mut left = folds().filter(|(_, _, parts)| !parts.is_empty()).count();
        for (key, mark, parts) in folds().filter(|(_, _, parts)| !parts.is_empty()) {
            left -= 1;
            // Each of the others has one row, as far as possible.
            let free = room.saturating_sub(left);
            let is_listed = is_whole || parts.len() == 1 || mark == Mark::Waiting && parts.len() <= free;
            let listed = match mark {
                _ if room == 0 => break,
                _ if is_listed => parts.len(),
                Mark::Waiting => free.saturating_sub(1),
                _ => 0,
            };
            for position in parts.iter().take(listed) {
                chosen.insert([key.as_slice(), &[position + 1]].concat(), Shown::Node);
            }
            room -= listed;
            if listed < parts.len() {
                let place = if mark == Mark::Waiting { vec![AFTER] } else { vec![BEFORE, mark as u32] };
                chosen.insert([key.as_slice(), &place].concat(), Shown::Folded(mark, parts.len() - listed));
                room -= 1;
            }
        }
        chosen
    }

    fn row(
        &self,
        style: &Style,
        run: &PipelineRun<'_>,
        chosen: &BTreeMap<Key, Shown>,
        key: &Key,
        shows: Shown,
    ) -> NodeRow {
        // Not all ancestors are shown if there are too many rows.
        let above = |at: &usize| chosen.get(&key[..*at]) == Some(&Shown::Node);
        let depth = (1..key.len()).filter(above).count();
        let begin = (1..key.len()).rev().find(above).unwrap_or(0);
        let folded = |mark: Mark, text: &str| NodeRow {
            mark,
            head: format!("{}{} {text}", " ".repeat(2 * depth + 2), style.mark(mark)),
            time: NodeTime::Unknown,
            note: String::new(),
        };
        match shows {
            Shown::More(live, failed) => {
                let words = [(live, "running"), (failed, "failed")];
                let words = words.iter().filter(|(count, _)| *count > 0);
                let words: Vec<String> = words.map(|(count, what)| format!("{count} more {what}")).collect();
                folded(if live > 0 { Mark::Running } else { Mark::Failed }, &format!("and {}", words.join(", ")))
            }
            Shown::Folded(mark, count) => {
                let what = match mark {
                    Mark::Waiting => " waiting",
                    Mark::Stopped => " skipped, stopped or cancelled",
                    _ => "",
                };
                folded(mark, &format!("{count} step{}{what}", plural(count)))
            }
            Shown::Node => {
                let names = self.names(key);
                let (name, label) = (names.join("."), names[begin..].join("."));
                let (id, is_item) = self.node_at(key);
                let node = self.pipeline.node(id);
                let kind = match &node.body {
                    _ if node.items.is_some() && !is_item => Kind::Loop,
                    Body::Dag { .. } => Kind::Dag,
                    Body::Step(_) => Kind::Step,
                };
                let status = run.status.node(&name);
                let instance = Instance { name, id, node, depth, kind, is_item, status };
                let count = match (self.groups.get(key), &node.items) {
                    (Some(group), _) if group.is_loop => format!(" [{}/{}]", group.ended, group.marks.len()),
                    (None, Some(Items::List(items))) if !is_item => format!(" [0/{}]", items.len()),
                    _ => String::new(),
                };
                let mark = run.mark_of(status);
                let note = shown(&run.note(style, &instance)).into_owned();
                NodeRow { mark, head: run.head(style, &instance, 0, &label, &count), time: time(status, run.now), note }
            }
        }
    }

    /// The node of an instance, and true if that is an item of a loop.
    fn node_at(&self, key: &[u32]) -> (NodeId, bool) {
        let (mut id, mut is_item) = (Pipeline::ROOT, true);
        for position in key {
            let node = self.pipeline.node(id);
            is_item = !is_item && node.items.is_some();
            if let (false, Body::Dag { children }) = (is_item, &node.body) {
                id = children.get(*position as usize - 1).copied().or(self.pipeline.post).unwrap_or(id);
            }
        }
        (id, is_item)
    }

    /// The name of an instance, in parts.
    fn names(&self, key: &[u32]) -> Vec<String> {
        let name = |length: usize| match self.node_at(&key[..length]) {
            (_, true) => (key[length - 1] - 1).to_string(),
            (id, false) => self.pipeline.node(id).name.clone(),
        };
        (1..=key.len()).map(name).collect()
    }
}

fn time(status: Option<&NodeStatus>, now: u64) -> NodeTime {
    match status.map_or((None, None), NodeStatus::times) {
        (Some(started), Some(ended)) => NodeTime::Took(Duration::from_micros(ended.saturating_sub(started))),
        (Some(started), None) => Instant::now()
            .checked_sub(Duration::from_micros(now.saturating_sub(started)))
            .map_or(NodeTime::Unknown, NodeTime::Since),
        (None, _) => NodeTime::Unknown,
    }
}

/// A line about a node: `train started (2 pserver, 2 worker)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeLine {
    step: String,
    verb: &'static str,
    /// Begins with a space or a colon, unless it is empty.
    rest: String,
}

impl NodeLine {
    pub(crate) fn write(&self, style: &Style, time: &str) -> String {
        style.step_progress(&self.step, self.verb, &self.rest, time)
    }
}

/// One line for each change of state in these records, which are part of `nodes`. Nodes that are cancelled together, or
/// kept together by a retry, share one.
pub(crate) fn lines<'a>(records: impl IntoIterator<Item = &'a Record>, nodes: &PipelineStatus) -> Vec<NodeLine> {
    let mut lines: Vec<NodeLine> = Vec::new();
    let mut shared: Vec<(&'static str, String, Vec<String>)> = Vec::new();
    for record in records {
        let Some(step) = &record.step else { continue };
        let together = match &record.fact {
            Fact::Left { end: NodeEnd::Cancelled } => Some(("Cancelled", String::new())),
            Fact::Cached { from_run, .. } => Some(("Cached", format!(" from {from_run}"))),
            _ => None,
        };
        if let Some((verb, rest)) = together {
            match shared.iter_mut().find(|known| (known.0, &known.1) == (verb, &rest)) {
                Some((_, _, steps)) => steps.push(step.to_string()),
                None => shared.push((verb, rest, vec![step.to_string()])),
            }
            continue;
        }
        let (started, ended) = nodes.node(step.as_str()).map_or((None, None), NodeStatus::times);
        let took = |word: &str| match (started, ended) {
            (Some(started), Some(ended)) => format!(" {word} {}", between(started, ended)),
            _ => String::new(),
        };
        let (verb, rest) = match &record.fact {
            Fact::Planned(planned) => {
                let roles: Vec<String> =
                    planned.roles.iter().map(|role| format!("{} {}", role.replicas, role.role)).collect();
                let roles = if planned.replicas.len() > 1 { format!(" ({})", roles.join(", ")) } else { String::new() };
                let attempt = if planned.attempt > FIRST_ATTEMPT {
                    format!(", attempt {}", planned.attempt)
                } else {
                    String::new()
                };
                ("Started", format!("{roles}{attempt}"))
            }
            Fact::Entered => ("Started", String::new()),
            Fact::Looping { items } => ("Started", format!(" ({} item{})", items.len(), plural(items.len()))),
            Fact::Skipped { why } => ("Skipped", format!(": {}", skip_reason(*why))),
            Fact::Refused { reason } => ("Failed", format!(": could not start: {reason}")),
            Fact::Finished { outcome: Outcome::Succeeded, .. } | Fact::Left { end: NodeEnd::Succeeded } => {
                ("Finished", took("in"))
            }
            Fact::Finished { outcome: Outcome::Failed, exit_code } => {
                ("Failed", format!("{}, code {exit_code}", took("after")))
            }
            Fact::Left { end: NodeEnd::Failed } => ("Failed", took("after")),
            Fact::Finished { .. } | Fact::Left { end: NodeEnd::Stopped } => ("Stopped", took("after")),
            _ => continue,
        };
        lines.push(NodeLine { step: step.to_string(), verb, rest });
    }
    lines.extend(shared.into_iter().map(|(verb, rest, steps)| NodeLine { step: list(&steps), verb, rest }));
    lines
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use umiak_core::diag::Source;
    use umiak_core::facts::{
        NodeValues, Planned, PlannedPipeline, PlannedReplica, PlannedRole, SkipReason, Subject, VERSION,
    };
    use umiak_core::formats::{self, settings::Settings};
    use umiak_core::model::{Exit, Instance as Started, Rank, StepName, Value, Workload};
    use umiak_core::status::RunStatus;
    use unicode_width::UnicodeWidthStr as _;

    use super::super::graph::tests::FIVE;
    use super::*;
    use crate::screen::{StatusLine, drawn};

    /// A pipeline whose records are added one by one, a second after each other.
    struct Told {
        status: RunStatus,
        progress: Progress,
        records: Vec<Record>,
    }

    fn pipeline(document: &str) -> Pipeline {
        let source = Source::new("pipeline.yaml", document);
        let document = formats::parse(&source, &formats::Given::new(&[], &Settings::default())).expect("a document");
        let Workload::Pipeline(pipeline) = document.work else { panic!("a job") };
        *pipeline
    }

    impl Told {
        fn new(document: &str) -> Self {
            let planned = PlannedPipeline { pipeline: "p".into(), ..PlannedPipeline::default() };
            let progress = Progress::new(pipeline(document), &PipelineStatus::default());
            let mut told = Self { status: RunStatus::default(), progress, records: Vec::new() };
            told.add("", Fact::Pipeline(Box::new(planned)));
            told
        }

        fn add(&mut self, step: &str, fact: Fact) {
            let step = (!step.is_empty()).then(|| StepName::new(step).unwrap());
            let seq = self.records.len() as u64;
            let record = Record { run: None, v: VERSION, seq, at: (seq + 1) * 1_000_000, epoch: 0, step, fact };
            self.status.add(&record);
            if let (Some(step), Some(nodes)) = (&record.step, &self.status.pipeline) {
                self.progress.update(step.as_str(), nodes.node(step.as_str()).unwrap());
            }
            self.records.push(record);
        }

        fn start(&mut self, step: &str) {
            self.start_roles(step, &[("main", 1)]);
        }

        fn start_roles(&mut self, step: &str, roles: &[(&str, u32)]) {
            let names = roles.iter().flat_map(|(role, count)| (0..*count).map(move |index| format!("{role}-{index}")));
            let replica = |(rank, replica): (u32, String)| PlannedReplica {
                replica,
                rank: Rank(rank),
                node: String::new(),
                endpoint: String::new(),
                devices: vec![],
                log: String::new(),
                log_start: 0,
                log_rotated: 0,
                stderr: None,
            };
            let replicas: Vec<PlannedReplica> = (0..).zip(names).map(replica).collect();
            let role = |(role, replicas): &(&str, u32)| PlannedRole {
                role: (*role).into(),
                replicas: *replicas,
                decides: true,
            };
            let planned = Planned {
                job: "job".into(),
                name: String::new(),
                command: String::new(),
                attempt: 1,
                umiak: "0".into(),
                world_size: replicas.len() as u32,
                log_dir: String::new(),
                roles: roles.iter().map(role).collect(),
                replicas: replicas.clone(),
                nodes: vec![],
            };
            self.add(step, Fact::Planned(planned));
            for PlannedReplica { replica, rank, .. } in replicas {
                let subject = Subject { replica, rank: Some(rank), attempt: 1 };
                self.add(step, Fact::Started { subject, instance: Started::default() });
            }
        }

        fn end(&mut self, step: &str, outcome: Outcome) {
            self.add(step, Fact::Finished { outcome, exit_code: u8::from(outcome != Outcome::Succeeded) * 3 });
        }

        fn run(&mut self, step: &str) {
            self.start(step);
            self.end(step, Outcome::Succeeded);
        }

        /// What a terminal shows.
        fn seen(&self, style: &Style, height: usize) -> String {
            let now = self.records.last().unwrap().at;
            let nodes = self.progress.nodes(style, self.status.pipeline.as_ref().unwrap(), now, height - 4);
            let at = Instant::now();
            let since = at.checked_sub(Duration::from_micros(now - 1_000_000)).unwrap();
            let line = StatusLine { job: "run-000001 ctr".into(), since, doing: self.progress.activity(false) };
            drawn(style, &line, nodes, height, at)
        }
    }

    fn style(width: usize) -> Style {
        Style { fixed_width: Some(width), ..Style::default() }
    }

    fn five() -> Told {
        let mut told = Told::new(FIVE);
        told.add("prepare", Fact::Cached { from_run: "run-000031".into(), from_step: "prepare".into() });
        told.add("split", Fact::Looping { items: vec![Value::Int(1), Value::Int(2), Value::Int(3)] });
        told.add("check", Fact::Entered);
        told.run("split.0");
        told.start("split.2");
        told.run("check.rows");
        told
    }

    #[test]
    fn five_steps() {
        let mut told = five();
        insta::assert_snapshot!("progress_five_middle", told.seen(&style(100), 30));
        told.add("check.extra", Fact::Skipped { why: SkipReason::Condition });
        told.add("check", Fact::Left { end: NodeEnd::Succeeded });
        told.run("split.1");
        told.end("split.2", Outcome::Succeeded);
        told.add("split", Fact::Left { end: NodeEnd::Succeeded });
        told.start_roles("train", &[("pserver", 2), ("worker", 2)]);
        let subject = Subject { replica: "worker-1".into(), rank: Some(Rank(3)), attempt: 1 };
        let exit = Exit::Code { code: 0 };
        told.add(
            "train",
            Fact::Ended { subject, exit, classed: None, by_us: false, order: 0, usage: None, log_end: None },
        );
        insta::assert_snapshot!("progress_five", told.seen(&style(100), 30));
        insta::assert_snapshot!("progress_five_narrow", told.seen(&style(40), 30));
        let ascii = told.seen(&Style { ascii: true, ..style(100) }, 30);
        assert!(ascii.is_ascii(), "{ascii}");
        insta::assert_snapshot!("progress_five_ascii", ascii);
        let lines: Vec<String> = lines(&told.records, told.status.pipeline.as_ref().unwrap())
            .iter()
            .map(|line| line.write(&Style { plain: true, ..Style::default() }, "12:04:31"))
            .collect();
        insta::assert_snapshot!("progress_five_lines", lines.concat());
    }

    /// Shards of which each of the last ones waits for one of the first.
    fn sixty() -> String {
        let mut document = "name: sixty\nentry_points:\n  begin: {command: a}\n".to_owned();
        for step in 0..58 {
            let before = if step < 29 { "begin".to_owned() } else { format!("shard-{}", step - 29) };
            let _ = writeln!(document, "  shard-{step}: {{deps: {before}, command: a}}");
        }
        document + "  merge: {deps: shard-57, command: a}\n"
    }

    #[test]
    fn sixty_steps_are_folded() {
        let mut told = Told::new(&sixty());
        told.run("begin");
        for step in 0..41 {
            told.run(&format!("shard-{step}"));
        }
        told.start("shard-41");
        told.end("shard-41", Outcome::Failed);
        told.start("shard-42");
        told.start("shard-43");
        insta::assert_snapshot!("progress_sixty", told.seen(&style(100), 20));
        // Little room: what runs and has failed comes first.
        insta::assert_snapshot!("progress_sixty_low", told.seen(&style(100), 8));
        insta::assert_snapshot!("progress_sixty_lowest", told.seen(&style(100), 6));
        assert_eq!(told.seen(&style(100), 4).lines().count(), 1);
    }

    #[test]
    fn ten_thousand_steps_are_folded() {
        let items: Vec<String> = (0..10_000).map(|item| item.to_string()).collect();
        let document =
            format!("name: many\nentry_points:\n  one: {{command: a, loop_argument: [{}]}}\n", items.join(", "));
        let mut told = Told::new(&document);
        told.add("one", Fact::Looping { items: (0..10_000).map(Value::Int).collect() });
        for item in 0..7_000 {
            told.run(&format!("one.{item}"));
        }
        for item in 7_000..7_040 {
            told.start(&format!("one.{item}"));
        }
        for item in 7_000..7_030 {
            told.end(&format!("one.{item}"), Outcome::Failed);
        }
        insta::assert_snapshot!("progress_many", told.seen(&style(100), 16));
    }

    /// A run that is resumed, or attached to, begins with what is recorded.
    #[test]
    fn recorded_nodes_count() {
        let mut told = five();
        told.add("check.extra", Fact::Skipped { why: SkipReason::Condition });
        told.add("check", Fact::Left { end: NodeEnd::Succeeded });
        let again = Progress::new(told.progress.pipeline.clone(), told.status.pipeline.as_ref().unwrap());
        assert_eq!(again.counts, told.progress.counts);
        assert_eq!(again.counts, Counts { all: 9, done: 4, running: 1, cached: 1, failed: 0 });
        assert_eq!((&again.live, again.choose(20)), (&told.progress.live, told.progress.choose(20)));
    }

    /// Wide characters take two cells, and no line is wider than the terminal.
    #[test]
    fn wide_characters_fit() {
        let mut told = five();
        let item = Some(Value::Text("训练数据集的第三个分片".into()));
        told.add("split.2", Fact::Resolved(Box::new(NodeValues { item, ..NodeValues::default() })));
        insta::assert_snapshot!("progress_wide", told.seen(&style(60), 30));
        for width in 20..120 {
            for line in told.seen(&style(width), 30).lines() {
                assert!(line.width() < width, "{width}: {line}");
            }
        }
    }

    /// Rows never exceed the room, whatever the states are.
    #[test]
    fn there_are_never_more_rows_than_room() {
        let mut told = Told::new(&sixty());
        told.run("begin");
        for step in 0..29 {
            told.start(&format!("shard-{step}"));
            if step % 3 > 0 {
                told.end(&format!("shard-{step}"), if step % 3 == 1 { Outcome::Failed } else { Outcome::Succeeded });
            }
            for rows in 0..40 {
                let chosen = told.progress.choose(rows);
                assert!(chosen.len() <= rows, "{rows}: {chosen:?}");
                let hidden = chosen.values().any(|shown| matches!(shown, Shown::More(..)));
                let needed = told.progress.live.len() + told.progress.failed.len();
                assert_eq!(hidden, needed > rows && rows > 0, "{rows}");
            }
        }
    }
}
