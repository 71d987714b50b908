//! The state of a run, and a run whose journal was read.

use umiak_core::facts::Verdict;
use umiak_core::plan::{PipelinePlan, Plan};
use umiak_core::status::{PipelineStatus, Status};

use crate::history::index::{IndexEntry, Word};
use crate::history::journal::Damage;
use crate::history::{Home, Life, RunDir, life_of};
use crate::screen::style::Mark;

/// The recorded state of a run, or the state that follows from its supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunStanding {
    Is(Word),
    Lost,
    /// No supervisor, and a journal that does not say how the run ended.
    Damaged,
    /// Its supervisor is on this other host.
    Elsewhere(String),
}

impl RunStanding {
    /// `damaged`: the word is the one before a damaged record.
    pub(crate) fn of(word: Word, life: Life, damaged: bool) -> Self {
        match life {
            Life::Live { .. } if damaged && word.is_finished() => Self::Is(Word::Running),
            Life::Live { .. } | Life::Finished => Self::Is(word),
            Life::Lost if damaged => Self::Damaged,
            Life::Lost => Self::Lost,
            Life::Elsewhere { host } => Self::Elsewhere(host),
        }
    }

    /// A run that cannot be examined counts as lost.
    pub(crate) fn of_entry(home: &Home, entry: &IndexEntry) -> Self {
        let run = RunDir::at(home, entry.run);
        Self::of(entry.state, life_of(&run, entry.is_final()).unwrap_or(Life::Lost), entry.damaged)
    }

    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Is(Word::Pending) => "pending",
            Self::Is(Word::Running) => "running",
            Self::Is(Word::Stopping) => "stopping",
            Self::Is(Word::Restarting) => "restarting",
            Self::Is(Word::Spare) => "spare",
            Self::Is(Word::Succeeded) => "succeeded",
            Self::Is(Word::Failed) => "failed",
            Self::Is(Word::Interrupted) => "interrupted",
            Self::Is(Word::Stopped) => "stopped",
            Self::Lost => "lost",
            Self::Damaged => "damaged",
            Self::Elsewhere(_) => "elsewhere",
        }
    }

    pub(crate) const WORDS: &[&str] = &[
        "pending",
        "running",
        "stopping",
        "restarting",
        "spare",
        "succeeded",
        "failed",
        "interrupted",
        "stopped",
        "lost",
        "damaged",
        "elsewhere",
    ];

    pub(crate) fn mark(&self) -> Mark {
        match self {
            Self::Is(Word::Pending | Word::Spare) => Mark::Waiting,
            Self::Is(Word::Running) => Mark::Running,
            Self::Is(Word::Restarting) => Mark::Restarted,
            Self::Is(Word::Succeeded) => Mark::Done,
            Self::Is(Word::Failed) => Mark::Failed,
            Self::Is(Word::Stopping | Word::Interrupted | Word::Stopped) => Mark::Stopped,
            Self::Lost | Self::Damaged | Self::Elsewhere(_) => Mark::Lost,
        }
    }

    /// True if no supervisor runs it, and its end is not recorded.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost | Self::Damaged)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Is(word) if word.is_finished())
    }
}

/// The plan of a run that is a pipeline.
pub(crate) fn pipeline_plan(run: &RunDir) -> Option<PipelinePlan> {
    serde_json::from_slice(&umiak_sys::regular::read(&run.plan()).ok()?).ok()
}

/// True if other hosts write the logs of a run. `None` as long as its plan is not written.
pub(crate) fn writes_elsewhere(run: &RunDir) -> Option<bool> {
    let bytes = umiak_sys::regular::read(&run.plan()).ok()?;
    let of_job = serde_json::from_slice(&bytes).map(|plan: Plan| plan.writes_elsewhere());
    let of_any = of_job.or_else(|_| serde_json::from_slice(&bytes).map(|plan: PipelinePlan| plan.writes_elsewhere()));
    of_any.ok()
}

/// A run whose journal was read.
#[derive(Debug)]
pub(crate) struct LoadedRun {
    pub(crate) run: RunDir,
    pub(crate) status: Status,
    /// The state of the nodes, if the run is a pipeline.
    pub(crate) pipeline: Option<Box<PipelineStatus>>,
    pub(crate) standing: RunStanding,
    /// Why the status is only a part of what was recorded.
    pub(crate) damage: Option<Box<Damage>>,
}

impl LoadedRun {
    /// The pipeline as it was submitted, if the run is one.
    pub(crate) fn pipeline_plan(&self) -> Option<PipelinePlan> {
        self.pipeline.as_ref()?;
        pipeline_plan(&self.run)
    }

    /// Why the run failed. Empty for a run that succeeded after a failed attempt.
    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.status.verdict.as_ref().filter(|_| self.standing != RunStanding::Is(Word::Succeeded))
    }
}
