//! The nodes of a pipeline on the console: a tree on a terminal, lines elsewhere.

use std::time::{Duration, Instant};

use umiak_core::facts::{Fact, Outcome, Record, StopReason};
use umiak_core::model::{OutputMode, Pipeline, StepName};
use umiak_core::status::PipelineStatus;

use super::{Driver, Run, short_signal};
use crate::clock::{time_of_day, wall_micros};
use crate::history::RunDir;
use crate::screen::{Screen, StatusLine, Style};
use crate::views::pipeline::{Detail, PipelineRun};
use crate::views::progress::{Progress, lines};
use crate::views::standing::pipeline_plan;

/// At most ten drawings a second.
const REDRAW: Duration = Duration::from_millis(100);

/// A tree that is drawn while its run goes on.
#[derive(Debug)]
pub(crate) struct Tree {
    progress: Progress,
    /// The run and its name.
    title: String,
    since: Instant,
    is_changed: bool,
    last_draw: Option<Instant>,
}

impl Tree {
    /// The tree of a run that began then, if its plan can be read.
    pub(crate) fn load(run: &RunDir, nodes: &PipelineStatus, began: u64) -> Option<Self> {
        let progress = Progress::new(pipeline_plan(run)?.pipeline, nodes);
        let title = format!("{} {}", run.id(), progress.pipeline().name);
        let now = Instant::now();
        let since = now.checked_sub(Duration::from_micros(wall_micros().saturating_sub(began)));
        Some(Self { progress, title, since: since.unwrap_or(now), is_changed: true, last_draw: None })
    }

    /// Takes over what was recorded.
    pub(crate) fn update(&mut self, records: &[Record], nodes: &PipelineStatus) {
        self.is_changed |= !records.is_empty();
        for step in records.iter().filter_map(|record| record.step.as_ref()) {
            nodes.node(step.as_str()).into_iter().for_each(|node| self.progress.update(step.as_str(), node));
        }
    }

    /// The time until it may be drawn again. `None` if nothing has changed.
    pub(crate) fn due(&self) -> Option<Duration> {
        let wait = || self.last_draw.map_or(Duration::ZERO, |last| REDRAW.saturating_sub(last.elapsed()));
        self.is_changed.then(wait)
    }

    /// Draws it, if it is due.
    pub(crate) fn draw(&mut self, screen: &Screen, style: &Style, nodes: &PipelineStatus) {
        if self.due() != Some(Duration::ZERO) {
            return;
        }
        let doing = self.progress.activity(nodes.stopping.is_some());
        let line = StatusLine { job: self.title.clone(), since: self.since, doing };
        screen.nodes(line, self.progress.nodes(style, nodes, wall_micros(), Screen::rows(style)));
        (self.is_changed, self.last_draw) = (false, Some(Instant::now()));
    }

    /// Draws it again after it was erased.
    pub(crate) fn redraw(&mut self) {
        self.is_changed = true;
    }

    pub(crate) fn pipeline(&self) -> &Pipeline {
        self.progress.pipeline()
    }
}

/// The tree of a run that has ended.
pub(crate) fn last_tree(style: &Style, run: &str, pipeline: &Pipeline, nodes: &PipelineStatus) -> String {
    let run_of = PipelineRun { pipeline, status: nodes, is_lost: false, is_over: true, now: wall_micros() };
    run_of.tree(style, None, Detail::End(run))
}

/// What the console of a pipeline shows.
#[derive(Debug, Default)]
pub(super) struct NodesShown {
    tree: Option<Tree>,
    /// The plan cannot be read: there is no tree.
    is_without_tree: bool,
    /// The first step that did not end well.
    pub(super) failed: Option<StepName>,
    /// Explanations of failures, shown after the last tree.
    pub(super) causes: Vec<String>,
}

impl Run {
    /// True if the nodes of a pipeline are drawn as a tree, as long as umiak is in the foreground.
    pub(super) fn has_tree(&self) -> bool {
        self.style.live && self.talk.output == OutputMode::Human && !self.nodes.is_without_tree
    }

    /// Shows what these records say about nodes.
    pub(super) fn tell_nodes(&mut self, records: &[Record]) {
        let is_told = self.talk.output == OutputMode::Human && !self.has_tree();
        let Some(nodes) = self.recorder.recorded().and_then(|status| status.pipeline.as_deref()) else { return };
        let is_bad = |fact: &Fact| match fact {
            Fact::Finished { outcome, .. } => *outcome != Outcome::Succeeded,
            Fact::Refused { .. } => true,
            _ => false,
        };
        let failed = records.iter().find(|record| is_bad(&record.fact)).and_then(|record| record.step.clone());
        self.nodes.failed = self.nodes.failed.take().or(failed);
        if let Some(tree) = &mut self.nodes.tree {
            tree.update(records, nodes);
        }
        if is_told {
            for line in lines(records.iter(), nodes) {
                self.say(|style| line.write(style, &time_of_day()));
            }
        }
    }

    /// Draws the tree, if it has changed. `false` if there is none.
    pub(super) fn show_tree(&mut self) -> bool {
        if !self.has_tree() {
            return false;
        }
        let (Some(run), Some(status)) = (self.recorder.run_dir(), self.recorder.recorded()) else { return false };
        let Some(nodes) = status.pipeline.as_deref() else { return false };
        if self.nodes.tree.is_none() {
            self.nodes.tree = Tree::load(run, nodes, status.run.began);
        }
        match &mut self.nodes.tree {
            Some(tree) => tree.draw(&self.screen, &self.style, nodes),
            None => self.nodes.is_without_tree = true,
        }
        !self.nodes.is_without_tree
    }

    /// The time until the tree has to be drawn.
    pub(super) fn tree_due(&self) -> Option<Duration> {
        self.nodes.tree.as_ref()?.due()
    }

    /// Draws the tree again after it was erased.
    pub(super) fn redraw_tree(&mut self) {
        if let Some(tree) = &mut self.nodes.tree {
            tree.redraw();
        }
    }

    /// Shows the whole tree, then why steps have failed.
    pub(super) fn tell_last_tree(&mut self) {
        self.screen.status(None);
        if !self.style.plain
            && let (Some(run), Some(status)) = (self.recorder.run_dir(), self.recorder.recorded())
            && let Some(nodes) = status.pipeline.as_deref()
        {
            let id = run.id().to_string();
            let read = || pipeline_plan(run).map(|plan| plan.pipeline);
            let text = match &self.nodes.tree {
                Some(tree) => Some(last_tree(&self.style, &id, tree.pipeline(), nodes)),
                None => read().map(|pipeline| last_tree(&self.style, &id, &pipeline, nodes)),
            };
            if let Some(text) = text {
                self.say(|_| text);
            }
        }
        self.tell_causes();
    }

    /// Shows the explanations that were kept.
    pub(super) fn tell_causes(&mut self) {
        for text in std::mem::take(&mut self.nodes.causes) {
            self.screen.alert(text);
        }
    }
}

impl Driver {
    /// Reports a request to stop all steps. Without a tree, each step has a line.
    pub(super) fn tell_stopping_steps(&self, reason: StopReason, force: bool) {
        let running = self.jobs.len();
        if !self.run.has_tree() || running == 0 {
            return;
        }
        let steps = format!("{running} step{}", if running == 1 { "" } else { "s" });
        let how = match (reason, force) {
            (StopReason::Signal { signal }, false) => {
                format!("after {}; press Ctrl-C again to kill", short_signal(signal))
            }
            (StopReason::Signal { .. }, true) => "with SIGKILL; press Ctrl-C again to return to the shell".to_owned(),
            _ => "after `umiak stop`".to_owned(),
        };
        self.run.alert(|style| style.progress("Stopping", &[format!("{steps} {how}")], &time_of_day()));
    }
}
