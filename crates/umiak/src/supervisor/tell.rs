//! What a person is told while a run goes on.

use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Finding, Outcome, StopReason, Subject, Verdict};
use umiak_core::formats::launch::OutputMode;
use umiak_core::machine::attempt::Attempt;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, Scope, Slot, signal_name};

use super::supervise::Supervisor;
use crate::clock::time_of_day;
use crate::engine::Swept;
use crate::runtime::console;
use crate::screen::style::{Mark, duration};
use crate::screen::summary::{self, Crowd, Others, Place};
use crate::screen::{Doing, Status, Style};

impl Supervisor {
    /// Lines for people: not in quiet or JSON mode.
    pub(super) fn say(&self, text: impl FnOnce(&Style) -> String) {
        if self.talk.output == OutputMode::Human {
            self.screen.talk(text(&self.style));
        }
    }

    fn progress(&self, verb: &str, parts: &[String]) {
        self.say(|style| style.progress(verb, parts, &time_of_day()));
    }

    pub(super) fn tell_planned(&self) {
        let job = &self.plan.job;
        let roles: Vec<String> = job.roles.iter().map(|role| format!("{} {}", role.replicas, role.name)).collect();
        let parts = [
            format!("job {}", job.name),
            roles.join(", "),
            format!("engine {}", self.plan.engine),
            self.run.id().to_string(),
        ];
        self.progress("Planned", &parts);
    }

    /// Once everybody who need not wait exists.
    pub(super) fn tell_started(&mut self) {
        if self.now.told_started || self.now.stopping.is_some() {
            return;
        }
        let all = || self.plan.replicas.iter().map(|replica| replica.slot);
        let is_starting = |slot: Slot| matches!(self.machine.attempt_of(slot), Some(Attempt::Starting { .. }));
        if self.now.pids.is_empty() || all().any(is_starting) {
            return;
        }
        self.now.told_started = true;
        // Who has been there and will start again waits for nobody.
        let waiting = |slot: &Slot| {
            matches!(self.machine.attempt_of(*slot), Some(Attempt::Waiting)) && !self.now.pids.contains_key(slot)
        };
        let waiting = all().filter(waiting).count();
        let started = self.now.pids.len();
        let plural = if started == 1 { "" } else { "s" };
        let mut parts = vec![format!("{started} replica{plural} in {}", duration(self.clock.started().elapsed()))];
        if waiting > 0 {
            parts.push(format!("{waiting} wait for others"));
        }
        self.progress("Started", &parts);
    }

    pub(super) fn tell_stopping(&self, reason: StopReason) {
        let live = self.live();
        if live.is_empty() || self.talk.output != OutputMode::Human {
            return;
        }
        let who = self.crowd(live.into_iter().map(|id| id.slot)).names;
        let why = match reason {
            StopReason::Signal { signal } => {
                let name = signal_name(signal);
                let name = name.split(' ').next().unwrap_or(&name).to_owned();
                format!("{name} received: SIGTERM to {who}, again to kill")
            }
            StopReason::User => format!("`umiak stop`: SIGTERM to {who}"),
            StopReason::Timeout => format!("the run's `timeout` is over: SIGTERM to {who}"),
            _ => return,
        };
        self.screen.alert(self.style.progress("Stopping", &[why], &time_of_day()));
    }

    fn crowd(&self, slots: impl IntoIterator<Item = Slot>) -> Crowd {
        let name = |slot: Slot| (self.plan.job.roles[slot.role as usize].name.as_str(), slot.index);
        Crowd::replicas(slots.into_iter().map(name))
    }

    /// An attempt failed, and another will make it good.
    pub(super) fn tell_failed(&mut self, finding: &Finding) {
        if self.talk.output == OutputMode::Human {
            // The run goes on: there is nothing to explain yet.
            let place = Place { run: None, ..self.place(finding) };
            let text = summary::attempt_failed(&self.style, finding, &place);
            self.screen.alert(text);
        }
    }

    pub(super) fn tell_retrying(&self, scope: Scope, subjects: &[Subject], delay: Duration) {
        let Some(first) = subjects.first() else { return };
        let who = match scope {
            Scope::Replica => format!("{} starts again", first.replica),
            Scope::Role => format!("all of {} start again", summary::replica_parts(&first.replica).0),
        };
        let delay = duration(delay);
        self.say(|style| format!("{} {who} in {delay}, attempt {}\n", style.mark(Mark::Restarted), first.attempt + 1));
    }

    pub(super) fn tell_restarting(&self, attempt: u32, of: Option<u32>, delay: Duration) {
        let words = match of {
            Some(of) => format!("attempt {attempt} of {of}"),
            None => format!("attempt {attempt}"),
        };
        self.say(|style| console::restarting(style, &words, delay));
    }

    /// The verdict on a failed job, in every output mode.
    pub(super) fn report(&mut self, verdict: &Verdict) {
        self.now.told = true;
        self.screen.status(None);
        let text = summary::failure(&self.style, verdict, &self.others(verdict), |finding| self.place(finding));
        self.screen.alert(text);
    }

    /// Those whom we stopped and who are not to blame.
    fn others(&self, verdict: &Verdict) -> Others {
        let Some((since, _)) = self.now.stopping else { return Others::Nobody };
        let live = self.live();
        if !live.is_empty() {
            let who = self.crowd(live.into_iter().map(|id| id.slot));
            return Others::Going { who, grace: self.plan.job.policy.stop.grace };
        }
        let causes: Vec<Slot> = verdict.causes.iter().filter_map(|cause| self.slot(&cause.subject.replica)).collect();
        let is_stopped = |(slot, (_, by_us)): &(&Slot, &(Exit, bool))| *by_us && !causes.contains(slot);
        let mut stopped: Vec<Slot> = self.now.ends.iter().filter(is_stopped).map(|(slot, _)| *slot).collect();
        stopped.sort_unstable();
        if stopped.is_empty() {
            return Others::Nobody;
        }
        let by = if self.now.killed { "SIGKILL" } else { "SIGTERM" };
        Others::Gone { who: self.crowd(stopped), by, after: since.elapsed() }
    }

    fn place(&self, finding: &Finding) -> Place {
        let name = finding.subject.replica.clone();
        let Some(slot) = self.slot(&name) else { return Place::default() };
        let labels: Vec<&str> = self.pool.devices_of(slot).iter().map(|device| device.label.as_str()).collect();
        Place {
            host: umiak_sys::host::name(),
            pid: self.now.pids.get(&slot).copied(),
            devices: if labels.is_empty() { String::new() } else { format!("gpu {}", labels.join(",")) },
            log: self.log(AttemptId { slot, attempt: finding.subject.attempt }).display().to_string(),
            name: Some(name),
            run: Some(self.run.id().to_string()),
            start_limit: None,
        }
    }

    pub(super) fn tell_swept(&mut self, swept: &Swept) {
        if swept.stopped.is_empty() {
            return;
        }
        let list = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let mut notice = Diagnostic::notice(Code::L0025, "replicas left processes behind, which were stopped")
            .row("stopped", format!("pid {}", list(&swept.stopped)));
        if !swept.remaining.is_empty() {
            notice = notice.row("still there", format!("pid {}", list(&swept.remaining)));
        }
        self.record_now(Fact::Swept { pids: swept.stopped.clone() });
        self.say(|style| console::diagnostic(style, &notice));
    }

    pub(super) fn tell_end(&self) {
        let Some((outcome, code)) = self.now.end else { return };
        let took = duration(self.clock.started().elapsed());
        let run = self.run.id();
        let count = self.plan.replicas.len();
        let plural = if count == 1 { "" } else { "s" };
        match outcome {
            Outcome::Succeeded => {
                self.progress("Finished", &[format!("{count} replica{plural} in {took}"), run.to_string()]);
            }
            Outcome::Failed => {
                let by = match self.now.stopping {
                    Some((_, StopReason::Timeout)) => "took longer than its `timeout`",
                    _ => "failed",
                };
                self.say(|style| format!("{} {run} {by} after {took}, code {code}\n", style.mark(Mark::Failed)));
            }
            Outcome::Interrupted | Outcome::Stopped => {
                let after = self.now.stopping.map_or(Duration::ZERO, |(since, _)| since.elapsed());
                let how = if self.now.killed { "killed" } else { "gone" };
                self.say(|style| {
                    format!("{} {run} stopped: everybody {how} within {}\n", style.mark(Mark::Stopped), duration(after))
                });
            }
        }
    }

    pub(super) fn show_status(&mut self) {
        if !self.style.live || self.now.told || self.talk.output != OutputMode::Human {
            return;
        }
        let role = |(position, role): (usize, &umiak_core::model::Role)| {
            let slots = (0..role.replicas).map(|index| Slot { role: position as u16, index });
            let live = slots.filter(|slot| self.machine.attempt_of(*slot).is_some_and(Attempt::is_live)).count();
            (role.name.to_string(), live, role.replicas as usize)
        };
        let roles = self.plan.job.roles.iter().enumerate().map(role).collect();
        self.screen.status(Some(Status {
            job: format!("{} {}", self.run.id(), self.plan.job.name),
            since: self.clock.started(),
            doing: Doing::Roles { roles, stopping: self.now.stopping.is_some() },
        }));
    }
}
