//! Console lines of a run.

use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Finding, Outcome, StopReason, Subject, Verdict};
use umiak_core::model::{OutputMode, Scope, Slot, replica_parts, signal_name};
use umiak_sys::hooks;

use super::{Driver, JobDriver, Run, Talk, words};
use crate::clock::time_of_day;
use crate::engine::{self, Swept};
use crate::screen::StatusLine;
use crate::screen::style::{Mark, duration};
use crate::screen::summary::{self, Others, ReplicaPlace};

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

impl JobDriver<'_> {
    /// A line about the progress of the job; not about a step in a tree.
    pub(super) fn progress(&self, verb: &str, parts: &[String]) {
        match &self.core.job.step {
            None => self.core.run.progress(verb, parts),
            Some(_) if self.core.run.has_tree() => {}
            Some(step) => {
                let rest = format!(" {}", parts.join(", "));
                self.core.say(|style| style.step_progress(step.as_str(), verb, &rest, &time_of_day()));
            }
        }
    }

    pub(super) fn tell_planned(&self) {
        self.progress("Planned", &self.door.planned(&self.core));
    }

    /// Reports the start once every attempt that need not wait exists, before any of its output is shown.
    pub(super) fn tell_started(&mut self) {
        let now = &self.core.job.now;
        let is_ending = now.stopping.is_some() || self.core.job.machine.is_pausing();
        if now.told_started || is_ending || now.instances.is_empty() {
            return;
        }
        if self.core.job.machine.starting() > 0 {
            return;
        }
        let waiting = self.core.job.machine.waiting();
        if waiting > 0 && !self.core.job.plan.is_document() {
            return;
        }
        // Records of a step are told.
        if self.core.job.step.is_some() {
            self.core.job.now.told_started = true;
            return;
        }
        let since = now.attempt_started.unwrap_or_else(|| self.core.run.clock.started());
        let started: Vec<Slot> = self.core.job.slots().filter(|slot| now.instances.contains_key(slot)).collect();
        let mut parts =
            vec![format!("{} in {}", words::counted(&self.core.job.plan, &started), duration(since.elapsed()))];
        if waiting > 0 {
            parts.push(format!("{waiting} waiting for other roles"));
        }
        parts.extend(self.core.job.attempt_words());
        self.core.job.now.told_started = true;
        self.progress("Started", &parts);
    }

    pub(super) fn tell_stopping(&self, reason: StopReason) {
        let live: Vec<Slot> = self.core.job.slots().filter(|slot| self.core.job.is_live(*slot)).collect();
        if live.is_empty() || self.core.run.talk.output != OutputMode::Human {
            return;
        }
        let why = match reason {
            StopReason::Signal { signal } => match signal {
                SIGINT => "with SIGINT; press Ctrl-C again to kill".to_owned(),
                SIGTERM => "with SIGTERM; a second signal kills".to_owned(),
                other => format!("with SIGTERM after {}; a second signal kills", short_signal(other)),
            },
            StopReason::StepFailed => match &self.core.run.nodes.failed {
                Some(failed) => format!("with SIGTERM: step {failed} failed"),
                None => "with SIGTERM: another step failed".to_owned(),
            },
            StopReason::User => {
                let by = self.core.job.now.cancelled_by.as_deref().unwrap_or("`umiak stop`");
                format!("with SIGTERM after {by}")
            }
            StopReason::Hung => "with SIGTERM: the job hangs, no replica made progress".to_owned(),
            StopReason::Timeout => {
                let what = if self.core.job.step.is_some() { "step" } else { "run" };
                format!("with SIGTERM: the {what} exceeded its `timeout`")
            }
            _ => return,
        };
        self.alert_stopping(&live, &why);
    }

    /// Says that these replicas, or the step, are being stopped. On a terminal, the tree shows it.
    fn alert_stopping(&self, live: &[Slot], why: &str) {
        match &self.core.job.step {
            Some(_) if self.core.run.has_tree() => {}
            Some(step) => {
                let rest = format!(" {why}");
                self.core.alert(|style| style.step_progress(step.as_str(), "Stopping", &rest, &time_of_day()));
            }
            None => {
                let what = format!("{} {why}", words::crowd(&self.core.job.plan, live).names);
                self.core.alert(|style| style.progress("Stopping", &[what], &time_of_day()));
            }
        }
    }

    /// Answers another signal while replicas are already being stopped.
    pub(super) fn tell_stopping_again(&self, reason: StopReason) {
        let why = match reason {
            StopReason::Signal { .. } => "already; press Ctrl-C again to kill",
            StopReason::SecondSignal { .. } => "with SIGKILL; press Ctrl-C again to return to the shell",
            _ => return,
        };
        let live: Vec<Slot> = self.core.job.slots().filter(|slot| self.core.job.is_live(*slot)).collect();
        if !live.is_empty() {
            self.alert_stopping(&live, why);
        }
    }

    /// Reports a failed attempt that will be retried.
    pub(super) fn tell_failed(&self, finding: &Finding) {
        // The run continues: there is nothing to explain yet.
        let place = ReplicaPlace { run: None, ..self.place(finding) };
        self.core.alert(|style| summary::attempt_failed(style, finding, &place));
    }

    pub(super) fn tell_retrying(&self, scope: Scope, subjects: &[Subject], delay: Duration) {
        let Some(first) = subjects.first() else { return };
        let who = match scope {
            Scope::Replica => format!("{} restarts", first.replica),
            Scope::Role => format!("all of {} restart", replica_parts(&first.replica).0),
        };
        let (when, next) = (soon(delay), first.attempt);
        self.core.say(|style| format!("{} {who} {when}, attempt {next}\n", style.mark(Mark::Restarted)));
    }

    /// Reports a restart of the whole job, after its failed attempt was reported.
    pub(super) fn tell_restarting(&self, of: Option<u32>, delay: Duration) {
        let attempt = self.core.job.machine.attempt();
        let words = match of {
            Some(of) => format!("attempt {attempt} of {of}"),
            None => format!("attempt {attempt}"),
        };
        let when = soon(delay);
        self.core.say(|style| {
            if style.plain {
                let parts = [when, format!("{words} failed")];
                style.progress("Restarting", &parts, &time_of_day())
            } else {
                format!("{} {words} failed, restarting {when}\n", style.mark(Mark::Restarted))
            }
        });
    }

    /// Shows the verdict on a failed job, in every output mode.
    pub(super) fn report(&mut self, verdict: &Verdict) {
        let report = self.door.report(&mut self.core, verdict);
        let core = &mut self.core;
        core.job.now.told = true;
        core.job.now.told_while_going = core.job.machine.live().0 > 0;
        if core.job.step.is_none() {
            core.run.screen.status(None);
        }
        let style = &self.core.run.style;
        let text = if report.instead {
            format!("{}{}", report.head, report.tail)
        } else if self.core.run.talk.output == OutputMode::Quiet {
            summary::cause(style, verdict, |finding| self.place(finding))
        } else {
            let others = self.others(verdict);
            let explained = summary::failure(style, verdict, &others, |finding| self.place(finding));
            format!("{}{explained}{}", report.head, report.tail)
        };
        // The tree has the cause in one line.
        if self.core.job.step.is_some() && self.core.run.has_tree() && self.core.run.style.is_live() {
            self.core.run.nodes.causes.push(text);
        } else {
            self.core.run.screen.alert(text);
        }
        if let Some(notice) = report.notice {
            self.core.notice(&notice);
        }
    }

    /// Returns where it ran, and whether its output is on the console.
    fn place(&self, finding: &Finding) -> ReplicaPlace {
        let core = &self.core;
        let is_mirrored = match (core.run.talk.output, core.run.talk.mirror) {
            _ if core.run.talk.detached => false,
            (OutputMode::Json, mirror) => mirror,
            (OutputMode::Human | OutputMode::Quiet, _) => core.run.style.streams_meet,
        };
        let is_shown = is_mirrored && core.job.slot_of(&finding.subject).is_some_and(|slot| core.job.is_shown(slot));
        ReplicaPlace { is_shown, ..self.door.place(core, finding) }
    }

    /// Replicas that were stopped and are not causes.
    fn others(&self, verdict: &Verdict) -> Others {
        let now = &self.core.job.now;
        let Some((since, _)) = now.stopping else { return Others::Nobody };
        let causes: Vec<Slot> =
            verdict.causes.iter().filter_map(|cause| self.core.job.slot_of(&cause.subject)).collect();
        let others = || self.core.job.slots().filter(|slot| !causes.contains(slot));
        let live: Vec<Slot> = others().filter(|slot| self.core.job.is_live(*slot)).collect();
        if !live.is_empty() {
            return Others::Going {
                who: words::crowd(&self.core.job.plan, &live),
                grace: self.core.job.plan.job.policy.stop.grace,
            };
        }
        let stopped: Vec<Slot> = others().filter(|slot| now.ends.get(slot).is_some_and(|(_, by_us)| *by_us)).collect();
        if stopped.is_empty() {
            return Others::Nobody;
        }
        let by = if now.killed { "SIGKILL" } else { "SIGTERM" };
        Others::Gone { who: words::crowd(&self.core.job.plan, &stopped), by, after: since.elapsed() }
    }

    /// Reports ports that started attempts are waiting for, once they are late.
    pub(super) fn tell_awaited(&mut self) {
        let now = self.core.run.clock.now();
        let late = self.core.job.prober.as_mut().and_then(|prober| prober.late(now));
        if let Some(names) = late.filter(|_| self.core.job.now.stopping.is_none()) {
            self.progress("Waiting", &[format!("for a listener at {}", names.join(", "))]);
        }
    }

    /// Starts the roles behind this one after it took too long to listen. Its ports are not checked any more.
    pub(super) fn start_unready(&mut self, role: u16) {
        let missing = self.core.job.prober.take().map(|prober| prober.missing()).unwrap_or_default();
        let role = &self.core.job.plan.job.roles[role as usize];
        let limit = duration(role.timeouts.patience.unwrap_or_default());
        let message = format!("no server listens at {} after {limit}; starting trainers anyway", missing.join(", "));
        let hint =
            "a server must listen on its `PADDLE_PORT`; `--server-timeout 10m` waits longer and then ends the job";
        self.core.notice(&Diagnostic::notice(Code::L0034, message).hint(hint));
    }

    fn everybody(&self) -> String {
        words::counted(&self.core.job.plan, &self.core.job.slots().collect::<Vec<_>>())
    }

    pub(super) fn tell_end(&self) {
        let Some((outcome, code)) = self.core.job.now.end else { return };
        let core = &self.core;
        let took = duration(core.run.clock.started().elapsed());
        let run = core.run.recorder.run_name().filter(|_| self.core.job.plan.is_document());
        let after = core.job.now.stopping.map_or(Duration::ZERO, |(since, _)| since.elapsed());
        match outcome {
            Outcome::Succeeded => {
                let mut parts = vec![format!("{} in {took}", self.everybody())];
                parts.extend(core.job.attempt_words());
                parts.extend(run);
                self.progress("Finished", &parts);
            }
            Outcome::Failed => {
                if let Some(run) = run {
                    let by = match core.job.now.stopping {
                        Some((_, StopReason::Timeout)) => "exceeded its `timeout`",
                        _ => "failed",
                    };
                    core.say(|style| format!("{} {run} {by} after {took}, code {code}\n", style.mark(Mark::Failed)));
                } else if core.job.now.told_while_going {
                    // At the time of the report they were still stopping.
                    let how = match (core.job.now.abandoned, core.job.now.killed) {
                        (true, _) => "not all stopped, even by SIGKILL,",
                        (false, true) => "all stopped by SIGKILL",
                        (false, false) => "all stopped by SIGTERM",
                    };
                    core.say(|style| format!("{} {how} after {}\n", style.mark(Mark::Stopped), duration(after)));
                }
            }
            Outcome::Interrupted | Outcome::Stopped => {
                let by = match core.job.now.stopping {
                    Some((_, StopReason::Signal { signal } | StopReason::SecondSignal { signal })) => {
                        Some(short_signal(signal))
                    }
                    Some((_, StopReason::User)) => {
                        let cancelled = || core.job.now.cancelled_by.clone();
                        self.door.stopped_by().or_else(cancelled).or_else(|| Some("`umiak stop`".to_owned()))
                    }
                    _ => self.door.stopped_by(),
                };
                let Some(by) = by else { return };
                let how = if core.job.now.killed { "killed" } else { "ended" };
                let what = if core.job.machine.is_pausing() {
                    " before the restart".to_owned()
                } else {
                    format!(": {} {how} within {}", self.everybody(), duration(after))
                };
                let run = run.map(|run| format!("{run} ")).unwrap_or_default();
                core.say(|style| format!("{} {run}stopped by {by}{what}\n", style.mark(Mark::Stopped)));
            }
        }
    }
}

impl Driver {
    /// The plural noun for what the run runs.
    fn noun(&self) -> &'static str {
        self.jobs.values().next().map_or("replicas", |job| words::noun(&job.plan))
    }

    /// Reports a stop requested during the final sweep.
    pub(super) fn tell_sweeping(&self, by: &str, kill: bool) {
        let who = self.noun();
        let what = if kill {
            format!("processes left behind by {who} with SIGKILL after {by}")
        } else {
            format!("processes left behind by {who} after {by}; press Ctrl-C again to kill")
        };
        self.run.alert(|style| style.progress("Stopping", &[what], &time_of_day()));
    }

    pub(super) fn tell_lost(&mut self, why: Option<String>) {
        let lost = engine::lost(self.noun());
        let lost = why.into_iter().fold(lost, |lost, why| lost.row("not restarted", why));
        self.run.screen.alert(self.run.style.diagnostic(&lost));
    }

    pub(super) fn tell_swept(&mut self, swept: &Swept) {
        self.run.tell_swept(self.noun(), swept);
    }

    /// The status line; `None` once a report replaces it.
    fn status(&mut self) -> Option<StatusLine> {
        match &self.conducted {
            Some(conducted) => Some(conducted.steps.status(&self.run)),
            None => self.first().filter(|job| !job.core.job.now.told).map(|job| words::status(&job.core)),
        }
    }

    /// Prints one line a minute to a plain log, to show that the run continues.
    pub(super) fn tell_heartbeat(&mut self) {
        let every = hooks::heartbeat();
        let is_due = self.run.heartbeat_at.is_some_and(|at| at <= self.run.clock.now());
        if let Some(status) = is_due.then(|| self.status()).flatten() {
            let (verb, parts) = status.plain();
            let line = self.run.style.progress(verb, &parts, &time_of_day());
            self.run.screen.heartbeat(line, every);
        }
        let Talk { output, detached, .. } = self.run.talk;
        let is_wanted = self.run.style.plain && output == OutputMode::Human && !detached;
        if is_wanted && (is_due || self.run.heartbeat_at.is_none()) {
            self.run.heartbeat_at = Some(self.run.clock.now() + every);
        }
    }

    pub(super) fn show_status(&mut self) {
        if self.conducted.is_some() && self.run.show_tree() {
            return;
        }
        if self.run.style.live
            && self.run.talk.output == OutputMode::Human
            && let Some(status) = self.status()
        {
            self.run.screen.status(Some(status));
        }
    }
}

impl Run {
    /// Records and shows which processes were left behind.
    pub(super) fn tell_swept(&mut self, noun: &str, swept: &Swept) {
        if swept.stopped.is_empty() {
            return;
        }
        let list = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("{noun} left processes behind, which were stopped");
        let mut notice = Diagnostic::notice(Code::L0025, text).row("stopped", format!("pid {}", list(&swept.stopped)));
        if !swept.remaining.is_empty() {
            notice = notice.row("still running", format!("pid {}", list(&swept.remaining)));
        }
        self.recorder.fact(None, Fact::Swept { pids: swept.stopped.clone() });
        self.say(|style| style.diagnostic(&notice));
    }
}

/// `SIGINT` without the text in brackets.
pub(crate) fn short_signal(signal: i32) -> String {
    let name = signal_name(signal);
    name.split(' ').next().unwrap_or(&name).to_owned()
}

/// `in 4.2 s`, `now`.
fn soon(delay: Duration) -> String {
    if delay.is_zero() { "now".to_owned() } else { format!("in {}", duration(delay)) }
}
