//! The jobs of a run whose output is shown: its only one, or those of the chosen steps of a pipeline.

use std::collections::HashMap;

use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::facts::{Fact, Record};
use umiak_core::model::{Body, StepName, Whose};
use umiak_core::status::{PipelineStatus, ReplicaStatus, Status};

use crate::history::{RunDir, journal};
use crate::views::logs::LogOwner;
use crate::views::standing::LoadedRun;

/// Which steps of a pipeline, and which of their replicas.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// `train`, `split.3`; a DAG or a loop means all steps in it. Every step if empty.
    pub(super) steps: Vec<String>,
    /// Every replica if empty.
    replicas: Vec<String>,
}

impl Words {
    /// Steps come first, then replicas.
    pub(super) fn parse(loaded: &LoadedRun, pipeline: &PipelineStatus, words: &[String]) -> Result<Self, Diagnostic> {
        let planned = planned(loaded);
        let is_step = |word: &&String| {
            let mut recorded = pipeline.nodes().map(|(name, _)| name);
            recorded.any(|name| is_below(name, word)) || planned.contains(&without_items(word))
        };
        let count = words.iter().take_while(is_step).count();
        let (steps, replicas) = (words[..count].to_vec(), words[count..].to_vec());
        let chosen = Self { steps, replicas };
        let jobs = Jobs::replay(&loaded.run, &chosen)?;
        let all = || jobs.jobs.iter().flat_map(|job| &job.replicas);
        let names = all().map(|replica| (replica.replica.as_str(), replica.rank));
        let whose = Whose::parse(chosen.replicas.iter().map(String::as_str));
        // Replicas of steps that have not begun are not known.
        match whose.unknown(&names).filter(|_| count == 0 || all().next().is_some()) {
            Some(word) => Err(nobody(loaded, pipeline, &planned, &chosen, &word)),
            None => Ok(chosen),
        }
    }

    /// The number of replicas of the step, if the words name one step, and not a loop or a DAG.
    pub(super) fn replicas_of_one_step(&self, loaded: &LoadedRun) -> Option<u32> {
        let [word] = self.steps.as_slice() else { return None };
        let plan = loaded.pipeline_plan()?;
        let (_, node) = plan.pipeline.iter().skip(1).find(|(id, _)| plan.pipeline.path(*id) == without_items(word))?;
        let is_whole_loop = node.items.is_some() && !word.rsplit('.').next().is_some_and(is_item);
        match &node.body {
            Body::Step(step) if !is_whole_loop => Some(step.job.roles.iter().map(|role| role.replicas).sum()),
            Body::Step(_) | Body::Dag { .. } => None,
        }
    }

    fn is_of(&self, step: &StepName) -> bool {
        self.steps.is_empty() || self.steps.iter().any(|word| is_below(step.as_str(), word))
    }
}

/// True if an instance is the one that the word names, or in it.
fn is_below(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// True for a part of a name that is a position in a loop.
fn is_item(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_digit())
}

/// `split` for `split.3`.
fn without_items(word: &str) -> String {
    word.split('.').filter(|part| !is_item(part)).collect::<Vec<_>>().join(".")
}

/// The names of all nodes.
fn planned(loaded: &LoadedRun) -> Vec<String> {
    let Some(plan) = loaded.pipeline_plan() else { return Vec::new() };
    plan.pipeline.iter().skip(1).map(|(id, _)| plan.pipeline.path(id)).collect()
}

fn nobody(loaded: &LoadedRun, pipeline: &PipelineStatus, planned: &[String], chosen: &Words, word: &str) -> Diagnostic {
    const LISTED: usize = 20;
    let id = loaded.run.id();
    if !chosen.steps.is_empty() {
        let steps = chosen.steps.join("`, `");
        return Diagnostic::error(Code::L0001, format!("`{steps}` of `{id}` has no role or replica `{word}`"))
            .hint(format!("`umiak show {id} {}` shows its replicas", chosen.steps[0]));
    }
    let near = nearest(word, planned.iter().map(String::as_str).chain(pipeline.nodes().map(|(name, _)| name)));
    let more = if planned.len() > LISTED { format!(" and {} more", planned.len() - LISTED) } else { String::new() };
    let listed: Vec<&str> = planned.iter().take(LISTED).map(String::as_str).collect();
    let error = Diagnostic::error(Code::L0001, format!("`{id}` has no step, role or replica `{word}`"))
        .row("steps", format!("{}{more}", listed.join(", ")));
    near.into_iter().fold(error, |error, near| error.hint(format!("there is a step `{near}`")))
}

/// The jobs, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) jobs: Vec<Status>,
    places: HashMap<StepName, usize>,
}

impl Jobs {
    pub(super) fn replay(run: &RunDir, words: &Words) -> Result<Self, Diagnostic> {
        let mut jobs = Self::default();
        journal::each(run, |item| jobs.add(words, &item.record))?;
        Ok(jobs)
    }

    pub(super) fn add(&mut self, words: &Words, record: &Record) {
        let Some(step) = &record.step else {
            if let Fact::Supervised(_) = record.fact {
                self.jobs.iter_mut().for_each(|job| job.add(record));
            }
            return;
        };
        let place = self.places.get(step).copied();
        if place.is_none() && (!matches!(record.fact, Fact::Planned(_)) || !words.is_of(step)) {
            return;
        }
        let place = place.unwrap_or_else(|| {
            self.places.insert(step.clone(), self.jobs.len());
            self.jobs.push(Status::of_step(step.clone()));
            self.jobs.len() - 1
        });
        self.jobs[place].add(record);
    }

    pub(super) fn job(&self, step: &StepName) -> Option<&Status> {
        Some(&self.jobs[*self.places.get(step)?])
    }

    /// The replicas that the words name.
    pub(super) fn owners(&self, words: &Words) -> impl Iterator<Item = (LogOwner, &ReplicaStatus)> {
        let whose = Whose::parse(words.replicas.iter().map(String::as_str));
        let replicas = self.jobs.iter().flat_map(|job| job.replicas.iter().map(move |replica| (job, replica)));
        replicas.filter_map(move |(job, replica)| {
            let is_of = whose.is_empty() || whose.is_of(&replica.replica, replica.rank);
            let owner = LogOwner { step: job.step.clone(), replica: replica.replica.clone() };
            is_of.then_some((owner, replica))
        })
    }
}
