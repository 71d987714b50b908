//! Runs with several jobs: a source of jobs decides which one begins and when the run ends. Its jobs run as any other.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use umiak_core::diag::Diagnostic;
use umiak_core::facts::{Fact, Outcome, StopReason};
use umiak_core::machine::job::Event;
use umiak_core::model::{StepIndex, StepName};

use super::{Driver, JobRun, Run};
use crate::engine::Engine;
use crate::screen::StatusLine;

/// Where the jobs of a run come from, if it has several.
pub(crate) trait Steps {
    /// Records the plan, before anything starts.
    fn announce(&mut self, run: &mut Run);
    /// Shows the plan, once it is recorded.
    fn tell_planned(&self, run: &Run);
    /// Begins with the first jobs.
    fn start(&mut self, desk: &mut Desk<'_>);
    /// The job of a step has ended, and its facts are recorded.
    fn ended(&mut self, desk: &mut Desk<'_>, job: JobRun, outcome: Outcome);
    /// The run is asked to stop; to kill, if `force` is true.
    fn stop(&mut self, desk: &mut Desk<'_>, reason: StopReason, force: bool);
    /// Readable when [`Steps::hear`] should be called.
    fn watch(&self) -> Option<BorrowedFd<'_>>;
    fn hear(&mut self, desk: &mut Desk<'_>);
    /// How the run has ended.
    fn end(&self) -> Option<(Outcome, u8)>;
    fn status(&self, run: &Run) -> StatusLine;
    fn tell_end(&self, run: &Run);
}

/// What a source of jobs works with.
pub(crate) struct Desk<'a> {
    pub(crate) run: &'a mut Run,
    pub(crate) engine: &'a mut dyn Engine,
    pub(crate) acts: &'a mut VecDeque<Act>,
}

impl Desk<'_> {
    /// Queues a fact about a step, or about the run, to be written before the next act.
    pub(crate) fn fact(&mut self, step: Option<&StepName>, fact: Fact) {
        self.run.recorder.fact(step, fact);
    }
}

/// What a source of jobs has decided.
pub(crate) enum Act {
    Begin {
        job: Box<JobRun>,
        /// It is asked to stop before it starts.
        stopping: bool,
    },
    Stop {
        ids: Vec<StepIndex>,
        force: bool,
    },
}

/// One more returns to the shell, whatever still runs.
const MOST_SIGNALS: u32 = 2;

/// A run with several jobs.
pub(super) struct Conducted {
    pub(super) steps: Box<dyn Steps>,
    acts: VecDeque<Act>,
    /// Steps whose jobs have ended.
    over: VecDeque<StepIndex>,
    /// Steps that have ended, whose leftovers are not stopped yet.
    retiring: Vec<StepIndex>,
    /// Signals that asked the run to stop.
    signals: u32,
}

impl Conducted {
    pub(super) fn new(steps: Box<dyn Steps>) -> Self {
        Self { steps, acts: VecDeque::new(), over: VecDeque::new(), retiring: Vec::new(), signals: 0 }
    }
}

impl Driver {
    pub(super) fn conduct(&mut self, f: impl FnOnce(&mut dyn Steps, &mut Desk<'_>)) {
        let Some(Conducted { steps, acts, .. }) = &mut self.conducted else { return };
        f(steps.as_mut(), &mut Desk { run: &mut self.run, engine: self.engine.as_mut(), acts });
        self.run.write();
    }

    /// Records and shows the plan and the notices, as [`Driver::announce`].
    pub(super) fn announce_steps(&mut self, notices: &[Diagnostic]) -> Result<(), Diagnostic> {
        let Some(Conducted { steps, .. }) = &mut self.conducted else { return Ok(()) };
        steps.announce(&mut self.run);
        for notice in notices {
            self.run.record_notice(None, notice);
            self.run.say(|style| style.diagnostic(notice));
        }
        self.run.write();
        self.run.recorder.register()?;
        steps.tell_planned(&self.run);
        Ok(())
    }

    /// After a job was driven: its facts are written before those of another, and its end is noticed.
    pub(super) fn settle_job(&mut self, step: StepIndex) {
        let Some(mut job) = self.job(step) else { return };
        job.flush();
        let has_ended = job.core.job.now.end.is_some();
        if let Some(conducted) = self.conducted.as_mut().filter(|_| has_ended) {
            conducted.over.push_back(step);
        }
    }

    /// Ends jobs, and begins those that follow, until nothing is left to do now.
    pub(super) fn settle(&mut self) {
        loop {
            let Some(conducted) = &mut self.conducted else { return };
            if let Some(step) = conducted.over.pop_front() {
                self.end_step(step);
            } else if let Some(act) = conducted.acts.pop_front() {
                self.act(act);
            } else {
                // Last: what follows a step need not wait until its leftovers are looked for.
                for step in std::mem::take(&mut conducted.retiring) {
                    self.engine.retire(step);
                }
                return;
            }
        }
    }

    fn end_step(&mut self, step: StepIndex) {
        let Some(mut job) = self.job(step) else { return };
        let Some((outcome, _)) = job.core.job.now.end else { return };
        if let Some(last) = job.core.job.now.last.take() {
            job.core.fact(last);
        }
        job.flush();
        self.engine.release(step);
        if let Some(conducted) = &mut self.conducted {
            conducted.retiring.push(step);
        }
        if let Some(job) = self.jobs.remove(&step) {
            self.conduct(|steps, desk| steps.ended(desk, job, outcome));
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Begin { job, stopping } => {
                let step = job.machine.step_index();
                self.jobs.insert(step, *job);
                self.with(step, |job| {
                    job.core.fact(job.core.job.planned());
                    if stopping {
                        job.dispatch(Event::StopAsked { kill: false });
                    }
                    job.dispatch(Event::Start);
                });
            }
            Act::Stop { ids, force } => {
                let event = || if force { Event::StopAsked { kill: true } } else { Event::Halted };
                for id in ids {
                    self.with(id, |job| job.dispatch(event()));
                }
            }
        }
    }

    /// A signal, or `umiak stop`. The machine decides which steps end and how; they get the request itself, so that they
    /// know of a signal.
    pub(super) fn stop_steps(&mut self, reason: StopReason, kill: bool, event: impl Fn() -> Event) {
        self.conduct(|steps, desk| steps.stop(desk, reason, kill));
        let Some(conducted) = &mut self.conducted else { return };
        if let StopReason::Signal { .. } = reason {
            conducted.signals += 1;
            self.run.return_terminal |= conducted.signals > MOST_SIGNALS;
        }
        for act in std::mem::take(&mut conducted.acts) {
            let Act::Stop { ids, force } = act else {
                self.act(act);
                continue;
            };
            self.tell_stopping_steps(reason, force);
            for id in ids {
                self.with(id, |job| {
                    job.dispatch(event());
                    if force {
                        // It may have begun after the first request.
                        job.dispatch(Event::StopAsked { kill: true });
                    }
                });
            }
        }
    }
}
