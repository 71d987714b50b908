//! The jobs of a pipeline, as its machine decides: resolves nodes, places the jobs of steps, and reports their ends.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tracing::warn;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, NodeEnd, Outcome, PlannedPipeline, SkipReason, StopReason};
use umiak_core::machine::exit_code::{STOPPED, interrupted};
use umiak_core::machine::job;
use umiak_core::machine::pipeline::{Effect, Event, Machine, Recorded, Resolution, State};
use umiak_core::model::{Body, EngineChoice, Hosts, Pipeline, StepIndex, StepName};
use umiak_core::pipeline::fingerprint::CachePolicy;
use umiak_core::pipeline::{Answer, Scope, Tree as _};
use umiak_core::plan::document;
use umiak_core::status::{NodeStatus, PipelineStatus, Status};

use super::begin::{CODES, adopt};
use super::results::{Found, Results};
use super::site::Site;
use super::submit;
use crate::driver::steps::{Act, Desk, Steps};
use crate::driver::store::JobStore;
use crate::driver::{JobRun, Run};
use crate::engine;
use crate::history::cache::Cached;
use crate::history::{Home, artifact};
use crate::screen::style::duration;
use crate::screen::{Activity, StatusLine};
use crate::store::Stores;

/// The exit code of a pipeline that has failed, whatever its steps exited with.
const FAILED: u8 = 1;

pub(super) struct PipelineSteps {
    pipeline: Arc<Pipeline>,
    machine: Machine,
    scope: Scope,
    site: Site,
    /// Results of earlier runs; `None` with `--no-cache`.
    results: Option<Results>,
    /// Jobs that an earlier supervisor had started and that have not ended, as recorded.
    recorded: HashMap<StepName, Status>,
    /// The thread of torch's stores, if a step has one.
    stores: Option<Arc<Stores>>,
    /// GPUs of each live step that has any.
    gpus: HashMap<StepIndex, u32>,
    /// Steps that wait until GPUs of other steps are free.
    waiting: VecDeque<(StepIndex, bool)>,
    /// The run was asked to stop.
    stopping: Option<StopReason>,
    end: Option<(Outcome, u8)>,
}

impl PipelineSteps {
    /// A run that begins, or continues: `own` is what its earlier supervisors have recorded, `repeated` the run whose
    /// finished steps it keeps.
    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        site: Site,
        home: &Home,
        own: Option<&PipelineStatus>,
        repeated: Option<&(PipelineStatus, String)>,
    ) -> Result<Self, Diagnostic> {
        let wishes = site.submission.wishes;
        let policy = if wishes.aggressive_cache { CachePolicy::Aggressive } else { CachePolicy::Conservative };
        let results = (!wishes.no_cache).then(|| Results::new(home.clone(), policy, &pipeline)).transpose();
        let results = results.map_err(|error| Diagnostic::failed("use results of earlier runs", &error))?;
        let mut machine = Machine::new(Arc::clone(&pipeline));
        let mut scope = Scope::new(site.run.id().to_string(), site.user());
        let mut recorded = HashMap::new();
        if own.is_some() || repeated.is_some() {
            let before = Recorded { own, repeated: repeated.map(|(status, run)| (status, run.as_str())) };
            machine.recover(before);
            for id in (0..machine.len()).map(StepIndex) {
                let (Some(name), Some(recorded_node)) = (machine.name(id), machine.continued(id, before)) else {
                    continue;
                };
                let of_own = own.and_then(|own| own.node(name.as_str()));
                if let (None, Some(State::Ended(NodeEnd::Cached)), Some((_, run)), Some(values)) =
                    (of_own, machine.state(id), repeated, recorded_node.values())
                    && let Some(path) = artifact::missing(&values.outputs)
                {
                    return Err(lost(&name, run, path));
                }
                if let Some(values) = recorded_node.values() {
                    scope.restore(&pipeline, &machine, id, values.clone());
                }
                let is_empty = recorded_node.skipped == Some(SkipReason::NoItems);
                if let Some(items) = recorded_node.items().or(is_empty.then_some(&[])) {
                    scope.restore_loop(&pipeline, &machine, id, items.to_vec());
                }
                if let Some(job) = of_own.filter(|node| node.ended().is_none()).and_then(NodeStatus::job_status) {
                    recorded.insert(name, job.clone());
                }
            }
        }
        // Steps are numbered anew, so units of an earlier supervisor are not recognised: their steps start again.
        let handles: Vec<String> = recorded.values().flat_map(|job: &Status| &job.handles).cloned().collect();
        engine::end_orphans(site.run.path(), &handles)?;
        Ok(Self {
            pipeline,
            machine,
            scope,
            site,
            results,
            recorded,
            stores: None,
            gpus: HashMap::new(),
            waiting: VecDeque::new(),
            stopping: own.and_then(|own| own.stopping),
            end: None,
        })
    }

    /// Applies an event, and what follows from it at once.
    fn apply(&mut self, desk: &mut Desk<'_>, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.machine.step(event) {
                events.extend(self.perform(desk, effect));
            }
        }
    }

    /// Performs an effect. Returns its answers.
    fn perform(&mut self, desk: &mut Desk<'_>, effect: Effect) -> Vec<Event> {
        match effect {
            Effect::Record { id, fact } => {
                if let (Fact::Refused { reason }, Some(name)) = (&fact, self.machine.name(id)) {
                    let error = cannot_begin(&name, reason.clone());
                    desk.run.alert(|style| style.diagnostic(&error));
                }
                desk.fact(self.machine.name(id).as_ref(), fact);
                Vec::new()
            }
            Effect::Resolve(id) => self.resolve(desk, id).into_iter().collect(),
            Effect::Run { id, stopping } => self.begin(desk, id, stopping).into_iter().collect(),
            Effect::Close(id) => {
                let result = self.scope.close(&self.pipeline, &self.machine, id).map(Box::new);
                vec![Event::Closed { id, result }]
            }
            Effect::Stop { ids, force } => {
                let (waiting, ids): (Vec<StepIndex>, Vec<StepIndex>) =
                    ids.into_iter().partition(|id| self.waiting.iter().any(|(other, _)| other == id));
                desk.acts.push_back(Act::Stop { ids, force });
                // They end without having begun.
                self.waiting.retain(|(id, _)| !waiting.contains(id));
                for id in &waiting {
                    desk.fact(self.machine.name(*id).as_ref(), Fact::Left { end: NodeEnd::Cancelled });
                }
                waiting.into_iter().map(|id| Event::Ended { id, outcome: Outcome::Stopped }).collect()
            }
            Effect::Finish(outcome) => {
                self.end = Some((outcome, self.code(outcome)));
                Vec::new()
            }
        }
    }

    fn code(&self, outcome: Outcome) -> u8 {
        match (outcome, self.stopping) {
            (Outcome::Succeeded, _) => 0,
            (Outcome::Failed, _) => FAILED,
            (_, Some(StopReason::Signal { signal } | StopReason::SecondSignal { signal })) => {
                interrupted(CODES, signal)
            }
            (Outcome::Interrupted | Outcome::Stopped, _) => STOPPED,
        }
    }

    /// Resolves a node. `None` if its result is looked for first.
    fn resolve(&mut self, desk: &mut Desk<'_>, id: StepIndex) -> Option<Event> {
        let what = match self.scope.resolve(&self.pipeline, &self.machine, id, &mut artifact::read) {
            Ok(Answer::Run) => Resolution::Run,
            Ok(Answer::Lookup) => {
                let now = desk.run.clock.now().as_micros();
                let Some(results) = &mut self.results else { return Some(self.resolved(id, Resolution::Run)) };
                let found = results.look(&self.scope, &self.pipeline, &self.machine, id, now)?;
                return Some(self.found(desk, id, found));
            }
            Ok(Answer::Loop(items)) => Resolution::Loop { items },
            Ok(Answer::Skip(why)) => Resolution::Skip { why },
            Err(reason) => Resolution::Failed { reason },
        };
        Some(self.resolved(id, what))
    }

    fn resolved(&self, id: StepIndex, what: Resolution) -> Event {
        match self.scope.values(&self.pipeline, &self.machine, id) {
            Ok(values) => Event::Resolved { id, values: Box::new(values), what },
            Err(reason) => Event::Resolved { id, values: Box::default(), what: Resolution::Failed { reason } },
        }
    }

    /// The answer to a lookup.
    fn found(&mut self, desk: &mut Desk<'_>, id: StepIndex, found: Found) -> Event {
        let what = match found {
            Found::Result(Cached { run, step, outputs, .. }) => {
                self.scope.reuse(id, outputs);
                Resolution::Cached { run: run.to_string(), step }
            }
            Found::Nothing => Resolution::Run,
            Found::Unusable(reason) => {
                let name = self.machine.name(id);
                let message =
                    format!("step `{}` cannot use results of earlier runs", name.as_ref().map_or("", StepName::as_str));
                let notice = Diagnostic::notice(Code::J0034, message).row("reason", reason);
                desk.run.record_notice(name.as_ref(), &notice);
                desk.run.say(|style| style.diagnostic(&notice));
                Resolution::Run
            }
        };
        self.resolved(id, what)
    }

    /// Records the result of a step, for later runs.
    fn keep_result(&mut self, run: &Run, id: StepIndex, outcome: Outcome) {
        let result = || {
            let Body::Step(step) = &self.pipeline.node(self.machine.node(id)).body else { return None };
            let outputs = self.scope.values(&self.pipeline, &self.machine, id).ok()?.outputs;
            let (run, at, second) = (self.site.run.id(), run.clock.now().as_micros(), None);
            let cached = Cached { run, step: self.machine.name(id)?.into(), second, at, max_age_micros: None, outputs };
            Some(cached.with_max_age(step.cache.as_ref()?.max_age))
        };
        let result = if outcome == Outcome::Succeeded { result() } else { None };
        let Some(results) = &mut self.results else { return };
        if let Err(error) = results.record(id, result) {
            warn!(%error, "the result of a step is not kept for later runs");
        }
    }

    /// Begins the job of a step. A step that cannot begin has failed.
    fn begin(&mut self, desk: &mut Desk<'_>, id: StepIndex, stopping: bool) -> Option<Event> {
        match self.place(desk, id, stopping) {
            Ok(Some(job)) => {
                desk.acts.push_back(Act::Begin { job: Box::new(job), stopping });
                None
            }
            Ok(None) => {
                self.waiting.push_back((id, stopping));
                None
            }
            Err(error) => {
                desk.engine.release(id);
                let name = self.machine.name(id);
                desk.run.alert(|style| style.diagnostic(&error));
                desk.fact(name.as_ref(), Fact::Refused { reason: reason(&error) });
                Some(Event::Ended { id, outcome: Outcome::Failed })
            }
        }
    }

    /// Leases what the job of a step needs, and plans it. `None` if it has to wait for devices of other steps.
    fn place(&mut self, desk: &mut Desk<'_>, id: StepIndex, stopping: bool) -> Result<Option<JobRun>, Box<Diagnostic>> {
        let name = self.machine.name(id).expect("a step has a name");
        let wrong = |reason: String| Box::new(cannot_begin(&name, reason));
        let job = self.scope.job(&self.pipeline, &self.machine, id).map_err(wrong)?;
        let own = self.engine(id).cloned();
        desk.engine.place(id, own.as_ref().map_or(self.site.kind, |own| own.kind));
        let can = desk.engine.capabilities(id);
        // Those of other hosts are not shared with other steps here.
        let gpus = if can.hosts == Hosts::Addresses { document::needs(&job).gpus } else { 0 };
        if gpus > 0 && !stopping && !self.gpus.is_empty() && gpus > self.free_gpus() {
            return Ok(None);
        }
        let preparation = self.scope.prepare(&self.pipeline, &self.machine, id).map_err(wrong)?;
        let (directory, environment) = (&self.site.submission.directory, &self.site.submission.environment);
        let programs = submit::programs(&job, can, directory, environment)?;
        let (plan, pool) = self.site.place(desk.engine, Some((id, &name)), &job, own.as_ref(), &programs)?;
        if gpus > 0 {
            self.gpus.insert(id, gpus);
        }
        let mut machine = job::Machine::new(job, CODES, fastrand::u64(..)).of_step(id);
        let recorded = self.recorded.remove(&name);
        let mut adopted = Vec::new();
        if let Some(status) = &recorded {
            adopted = adopt(desk.engine, id, &plan, status)?;
            machine.recover(status, job::Again::Unfinished, &|attempt| adopted.contains(&attempt));
        }
        let stores = JobStore::open(&plan, &mut self.stores)?;
        let mut job = JobRun::new(Some(name), machine, Arc::new(plan), pool);
        if let Some(status) = &recorded {
            job.take_over(&adopted, status);
        }
        job.is_placed_later = can.hosts == Hosts::Placed;
        (job.preparation, job.stores) = (preparation, stores);
        Ok(Some(job))
    }

    /// The engine of a step, if it is not that of the run.
    fn engine(&self, id: StepIndex) -> Option<&EngineChoice> {
        match &self.pipeline.node(self.machine.node(id)).body {
            Body::Step(step) => step.engine.as_ref(),
            Body::Dag { .. } => None,
        }
    }

    /// Numbers of steps that are done, and that have failed.
    fn tally(&self) -> [usize; 2] {
        let tally = self.machine.tally();
        [tally.done, tally.failed].map(|count| count as usize)
    }

    /// GPUs of this run that no other step has.
    fn free_gpus(&self) -> u32 {
        self.site.gpus().saturating_sub(self.gpus.values().sum())
    }

    /// Begins steps that wait for devices, as far as there are enough now.
    fn begin_waiting(&mut self, desk: &mut Desk<'_>) {
        for (id, stopping) in std::mem::take(&mut self.waiting) {
            if let Some(event) = self.begin(desk, id, stopping) {
                self.apply(desk, event);
            }
        }
    }
}

impl Steps for PipelineSteps {
    fn announce(&mut self, run: &mut Run) {
        let Pipeline { name, parallelism, on_failure, .. } = &*self.pipeline;
        let planned = PlannedPipeline {
            pipeline: name.to_string(),
            name: String::new(),
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
            steps: self.pipeline.steps() as u32,
            parallelism: *parallelism,
            on_failure: *on_failure,
            repeats: self.site.submission.repeats.clone(),
        };
        run.recorder.fact(None, Fact::Pipeline(Box::new(planned)));
    }

    fn tell_planned(&self, run: &Run) {
        let parts = [
            format!("pipeline {}", self.pipeline.name),
            steps(self.pipeline.steps()),
            format!("engine {}", self.site.engines()),
            self.site.run.id().to_string(),
        ];
        run.progress("Planned", &parts);
    }

    fn start(&mut self, desk: &mut Desk<'_>) {
        self.apply(desk, Event::Start);
    }

    fn ended(&mut self, desk: &mut Desk<'_>, job: JobRun, outcome: Outcome) {
        let id = job.machine.step_index();
        self.gpus.remove(&id);
        self.keep_result(desk.run, id, outcome);
        self.apply(desk, Event::Ended { id, outcome });
        self.begin_waiting(desk);
    }

    fn stop(&mut self, desk: &mut Desk<'_>, reason: StopReason, force: bool) {
        self.stopping.get_or_insert(reason);
        self.apply(desk, Event::StopAsked { reason, force });
        if self.machine.spares_post() {
            let again = match reason {
                StopReason::User => "a second request kills it",
                _ => "press Ctrl-C again to kill it",
            };
            desk.run.progress("Waiting", &[format!("for the post step; {again}")]);
        }
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.results.as_ref().map(Results::watch)
    }

    fn hear(&mut self, desk: &mut Desk<'_>) {
        let now = desk.run.clock.now().as_micros();
        for (id, found) in self.results.as_mut().map(|results| results.hear(now)).unwrap_or_default() {
            // Its step may have been cancelled meanwhile.
            if self.machine.state(id) == Some(State::Resolving) {
                let event = self.found(desk, id, found);
                self.apply(desk, event);
            }
        }
    }

    fn end(&self) -> Option<(Outcome, u8)> {
        self.end
    }

    fn status(&self, run: &Run) -> StatusLine {
        let [done, failed] = self.tally();
        let running = (self.machine.slots() as usize).saturating_sub(self.waiting.len());
        let (all, stopping) = (self.pipeline.steps().max(running + done + failed), self.stopping.is_some());
        let job = format!("{} {}", self.site.run.id(), self.pipeline.name);
        StatusLine { job, since: run.clock.started(), doing: Activity::Steps { done, all, running, failed, stopping } }
    }

    fn tell_end(&self, run: &Run) {
        let Some((outcome, code)) = self.end else { return };
        let took = duration(run.clock.started().elapsed());
        let [done, failed] = self.tally();
        let id = self.site.run.id();
        match outcome {
            Outcome::Succeeded => run.progress("Finished", &[format!("{} in {took}", steps(done)), id.to_string()]),
            Outcome::Failed => {
                run.progress("Failed", &[format!("{} after {took}, code {code}", steps(failed)), id.to_string()]);
            }
            Outcome::Interrupted | Outcome::Stopped => {
                run.progress("Stopped", &[format!("after {took}, code {code}"), id.to_string()]);
            }
        }
    }
}

/// `1 step`, `5 steps`.
fn steps(count: usize) -> String {
    format!("{count} step{}", if count == 1 { "" } else { "s" })
}

fn cannot_begin(step: &StepName, reason: String) -> Diagnostic {
    Diagnostic::error(Code::J0033, format!("step `{step}` cannot begin")).row("reason", reason)
}

/// An artifact of a step that is kept does not exist: those who use it would fail.
fn lost(step: &StepName, run: &str, path: &str) -> Diagnostic {
    Diagnostic::error(
        Code::J0025,
        format!("an artifact of step `{step}`, which has ended well in {run}, does not exist"),
    )
    .row("artifact", path)
    .hint(format!("`umiak retry --all {run}` runs all steps again"))
}

/// A diagnostic in one line: its sentence with what was seen. That a step cannot begin is known already.
fn reason(error: &Diagnostic) -> String {
    if let (Code::J0033, [(_, reason)]) = (error.code, error.rows.as_slice()) {
        return reason.clone();
    }
    let seen: Vec<String> = error.rows.iter().map(|(name, value)| format!("{name} {value}")).collect();
    if seen.is_empty() { error.message.clone() } else { format!("{} ({})", error.message, seen.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_was_seen() {
        let plain = Diagnostic::error(Code::J0020, "too few GPUs are free on this host");
        assert_eq!(reason(&plain), "too few GPUs are free on this host");
        let seen = plain.row("needed", "6").row("free", "0 of 0");
        assert_eq!(reason(&seen), "too few GPUs are free on this host (needed 6, free 0 of 0)");
        let name = StepName::new("train").unwrap();
        assert_eq!(reason(&cannot_begin(&name, "`/data` cannot be created".into())), "`/data` cannot be created");
    }
}
