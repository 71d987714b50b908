//! Console lines of a run.

use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Finding, Outcome, StopReason, Subject, Verdict};
use umiak_core::model::{OutputMode, Scope, Slot, replica_parts, signal_name};
use umiak_sys::hooks;

use super::{Driver, words};
use crate::clock::time_of_day;
use crate::engine::{self, Swept};
use crate::screen::style::{Mark, duration};
use crate::screen::summary::{self, Others, ReplicaPlace};

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

impl Driver {
    pub(super) fn progress(&self, verb: &str, parts: &[String]) {
        self.core.say(|style| style.progress(verb, parts, &time_of_day()));
    }

    pub(super) fn tell_planned(&self) {
        self.progress("Planned", &self.door.planned(&self.core));
    }

    /// Reports the start once every attempt that need not wait exists, before any of its output is shown.
    pub(super) fn tell_started(&mut self) {
        let now = &self.core.now;
        let is_ending = now.stopping.is_some() || self.core.machine.is_pausing();
        if now.told_started || is_ending || now.instances.is_empty() {
            return;
        }
        if self.core.machine.starting() > 0 {
            return;
        }
        let waiting = self.core.machine.waiting();
        if waiting > 0 && !self.core.plan.is_document() {
            return;
        }
        let since = now.attempt_started.unwrap_or_else(|| self.core.clock.started());
        let started: Vec<Slot> = self.core.slots().filter(|slot| now.instances.contains_key(slot)).collect();
        let mut parts = vec![format!("{} in {}", words::counted(&self.core.plan, &started), duration(since.elapsed()))];
        if waiting > 0 {
            parts.push(format!("{waiting} waiting for other roles"));
        }
        parts.extend(self.core.attempt_words());
        self.core.now.told_started = true;
        self.progress("Started", &parts);
    }

    pub(super) fn tell_stopping(&self, reason: StopReason) {
        let live: Vec<Slot> = self.core.slots().filter(|slot| self.core.is_live(*slot)).collect();
        if live.is_empty() || self.core.talk.output != OutputMode::Human {
            return;
        }
        let who = words::crowd(&self.core.plan, &live).names;
        let why = match reason {
            StopReason::Signal { signal } => match signal {
                SIGINT => format!("{who} with SIGINT; press Ctrl-C again to kill"),
                SIGTERM => format!("{who} with SIGTERM; a second signal kills"),
                other => format!("{who} with SIGTERM after {}; a second signal kills", short_signal(other)),
            },
            StopReason::User => format!("{who} with SIGTERM after `umiak stop`"),
            StopReason::Hung => format!("{who} with SIGTERM: the job hangs, no replica made progress"),
            StopReason::Timeout => format!("{who} with SIGTERM: the run exceeded its `timeout`"),
            _ => return,
        };
        self.core.alert(|style| style.progress("Stopping", &[why], &time_of_day()));
    }

    /// Describes another signal while replicas are already being stopped.
    fn answer(&self, kill: bool) -> Option<String> {
        let live: Vec<Slot> = self.core.slots().filter(|slot| self.core.is_live(*slot)).collect();
        let who = words::crowd(&self.core.plan, &live).names;
        let what = if kill {
            format!("{who} with SIGKILL; press Ctrl-C again to return to the shell")
        } else {
            format!("{who} already; press Ctrl-C again to kill")
        };
        (!live.is_empty()).then_some(what)
    }

    pub(super) fn tell_stopping_again(&self, reason: StopReason) {
        let answer = match reason {
            StopReason::Signal { .. } => self.answer(false),
            StopReason::SecondSignal { .. } => self.answer(true),
            _ => None,
        };
        if let Some(answer) = answer {
            self.core.alert(|style| style.progress("Stopping", &[answer], &time_of_day()));
        }
    }

    /// Reports a stop requested during the final sweep.
    pub(super) fn tell_sweeping(&self, by: &str, kill: bool) {
        let who = words::noun(&self.core.plan);
        let what = if kill {
            format!("processes left behind by {who} with SIGKILL after {by}")
        } else {
            format!("processes left behind by {who} after {by}; press Ctrl-C again to kill")
        };
        self.core.alert(|style| style.progress("Stopping", &[what], &time_of_day()));
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
        let attempt = self.core.machine.attempt();
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
        core.now.told = true;
        core.now.told_while_going = core.machine.live().0 > 0;
        core.screen.status(None);
        let style = &self.core.style;
        let text = if report.instead {
            format!("{}{}", report.head, report.tail)
        } else if self.core.talk.output == OutputMode::Quiet {
            summary::cause(style, verdict, |finding| self.place(finding))
        } else {
            let others = self.others(verdict);
            let explained = summary::failure(style, verdict, &others, |finding| self.place(finding));
            format!("{}{explained}{}", report.head, report.tail)
        };
        self.core.screen.alert(text);
        if let Some(notice) = report.notice {
            self.core.notice(&notice);
        }
    }

    /// Returns where it ran, and whether its output is on the console.
    fn place(&self, finding: &Finding) -> ReplicaPlace {
        let core = &self.core;
        let is_mirrored = match (core.talk.output, core.talk.mirror) {
            _ if core.talk.detached => false,
            (OutputMode::Json, mirror) => mirror,
            (OutputMode::Human | OutputMode::Quiet, _) => core.style.streams_meet,
        };
        let is_shown = is_mirrored && core.slot_of(&finding.subject).is_some_and(|slot| core.is_shown(slot));
        ReplicaPlace { is_shown, ..self.door.place(core, finding) }
    }

    /// Replicas that were stopped and are not causes.
    fn others(&self, verdict: &Verdict) -> Others {
        let now = &self.core.now;
        let Some((since, _)) = now.stopping else { return Others::Nobody };
        let causes: Vec<Slot> = verdict.causes.iter().filter_map(|cause| self.core.slot_of(&cause.subject)).collect();
        let others = || self.core.slots().filter(|slot| !causes.contains(slot));
        let live: Vec<Slot> = others().filter(|slot| self.core.is_live(*slot)).collect();
        if !live.is_empty() {
            return Others::Going {
                who: words::crowd(&self.core.plan, &live),
                grace: self.core.plan.job.policy.stop.grace,
            };
        }
        let stopped: Vec<Slot> = others().filter(|slot| now.ends.get(slot).is_some_and(|(_, by_us)| *by_us)).collect();
        if stopped.is_empty() {
            return Others::Nobody;
        }
        let by = if now.killed { "SIGKILL" } else { "SIGTERM" };
        Others::Gone { who: words::crowd(&self.core.plan, &stopped), by, after: since.elapsed() }
    }

    pub(super) fn tell_lost(&mut self, why: Option<String>) {
        let lost = engine::lost(words::noun(&self.core.plan));
        let lost = why.into_iter().fold(lost, |lost, why| lost.row("not restarted", why));
        self.core.screen.alert(self.core.style.diagnostic(&lost));
    }

    pub(super) fn tell_swept(&mut self, swept: &Swept) {
        if swept.stopped.is_empty() {
            return;
        }
        let list = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("{} left processes behind, which were stopped", words::noun(&self.core.plan));
        let mut notice = Diagnostic::notice(Code::L0025, text).row("stopped", format!("pid {}", list(&swept.stopped)));
        if !swept.remaining.is_empty() {
            notice = notice.row("still running", format!("pid {}", list(&swept.remaining)));
        }
        self.record(Fact::Swept { pids: swept.stopped.clone() });
        self.core.say(|style| style.diagnostic(&notice));
    }

    /// Reports ports that started attempts are waiting for, once they are late.
    pub(super) fn tell_awaited(&mut self) {
        let now = self.core.clock.now();
        let late = self.core.prober.as_mut().and_then(|prober| prober.late(now));
        if let Some(names) = late.filter(|_| self.core.now.stopping.is_none()) {
            self.progress("Waiting", &[format!("for a listener at {}", names.join(", "))]);
        }
    }

    /// Starts the roles behind this one after it took too long to listen. Its ports are not checked any more.
    pub(super) fn start_unready(&mut self, role: u16) {
        let missing = self.core.prober.take().map(|prober| prober.missing()).unwrap_or_default();
        let role = &self.core.plan.job.roles[role as usize];
        let limit = duration(role.timeouts.patience.unwrap_or_default());
        let message = format!("no server listens at {} after {limit}; starting trainers anyway", missing.join(", "));
        let hint =
            "a server must listen on its `PADDLE_PORT`; `--server-timeout 10m` waits longer and then ends the job";
        self.core.notice(&Diagnostic::notice(Code::L0034, message).hint(hint));
    }

    fn everybody(&self) -> String {
        words::counted(&self.core.plan, &self.core.slots().collect::<Vec<_>>())
    }

    pub(super) fn tell_end(&self) {
        let Some((outcome, code)) = self.core.now.end else { return };
        let core = &self.core;
        let took = duration(core.clock.started().elapsed());
        let run = core.recorder.run_name().filter(|_| self.core.plan.is_document());
        let after = core.now.stopping.map_or(Duration::ZERO, |(since, _)| since.elapsed());
        match outcome {
            Outcome::Succeeded => {
                let mut parts = vec![format!("{} in {took}", self.everybody())];
                parts.extend(core.attempt_words());
                parts.extend(run);
                self.progress("Finished", &parts);
            }
            Outcome::Failed => {
                if let Some(run) = run {
                    let by = match core.now.stopping {
                        Some((_, StopReason::Timeout)) => "exceeded its `timeout`",
                        _ => "failed",
                    };
                    core.say(|style| format!("{} {run} {by} after {took}, code {code}\n", style.mark(Mark::Failed)));
                } else if core.now.told_while_going {
                    // At the time of the report they were still stopping.
                    let how = match (core.now.abandoned, core.now.killed) {
                        (true, _) => "not all stopped, even by SIGKILL,",
                        (false, true) => "all stopped by SIGKILL",
                        (false, false) => "all stopped by SIGTERM",
                    };
                    core.say(|style| format!("{} {how} after {}\n", style.mark(Mark::Stopped), duration(after)));
                }
            }
            Outcome::Interrupted | Outcome::Stopped => {
                let by = match core.now.stopping {
                    Some((_, StopReason::Signal { signal } | StopReason::SecondSignal { signal })) => {
                        Some(short_signal(signal))
                    }
                    Some((_, StopReason::User)) => self.door.stopped_by().or_else(|| Some("`umiak stop`".to_owned())),
                    _ => self.door.stopped_by(),
                };
                let Some(by) = by else { return };
                let how = if core.now.killed { "killed" } else { "ended" };
                let what = if core.machine.is_pausing() {
                    " before the restart".to_owned()
                } else {
                    format!(": {} {how} within {}", self.everybody(), duration(after))
                };
                let run = run.map(|run| format!("{run} ")).unwrap_or_default();
                core.say(|style| format!("{} {run}stopped by {by}{what}\n", style.mark(Mark::Stopped)));
            }
        }
    }

    /// Prints one line a minute to a plain log, to show that the run continues.
    pub(super) fn tell_heartbeat(&mut self) {
        let every = hooks::heartbeat();
        let core = &self.core;
        let is_due = core.now.heartbeat_at.is_some_and(|at| at <= core.clock.now());
        if is_due && !core.now.told {
            let (verb, parts) = words::status(core).plain();
            core.screen.heartbeat(core.style.progress(verb, &parts, &time_of_day()), every);
        }
        let is_wanted = core.style.plain && core.talk.output == OutputMode::Human && !core.talk.detached;
        if is_wanted && (is_due || core.now.heartbeat_at.is_none()) {
            self.core.now.heartbeat_at = Some(self.core.clock.now() + every);
        }
    }

    pub(super) fn show_status(&mut self) {
        if self.core.style.live && !self.core.now.told && self.core.talk.output == OutputMode::Human {
            self.core.screen.status(Some(words::status(&self.core)));
        }
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
