//! What the front tells: facts of the plan, notices, progress, the verdict.

use std::path::{Path, PathBuf};

use umiak_core::contract::Member;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Finding, Planned, PlannedReplica, PlannedRole, Subject, Verdict};
use umiak_core::formats::launch::OutputMode;
use umiak_core::model::Part;
use umiak_core::plan::{Log, Replica, paddle_lines};

use super::Front;
use crate::clock::paddle_stamp;
use crate::runtime::{console, prepare};
use crate::screen::summary::{self, Crowd, Others, Place, SERVER_TIMEOUT};
use crate::screen::{Doing, Status, Style};

impl Front<'_> {
    pub(super) fn announce(&mut self) {
        for notice in self.plan.notices.clone() {
            self.notice(&notice);
        }
        for line in paddle_lines::on_console(&self.spec.request) {
            self.screen.talk(format!("{}\n", line.replace("<ts>", &paddle_stamp())));
        }
        self.record(&Fact::Planned(self.planned()));
        let log_dir = shown(&self.spec.request.logs.dir);
        if let Some(recorder) = &mut self.recorder {
            recorder.begun();
        }
        let text = console::planned(&self.style, &self.plan, &log_dir, self.run_name());
        self.talk(|_| text);
        // The first trainer of each node is the one on the console.
        if let Some(Log { path, start }) = self.plan.mirrored().map(|replica| self.plan.log(replica, 0)) {
            self.screen.follow(path, start);
        }
    }

    pub(super) fn notice(&mut self, notice: &Diagnostic) {
        self.record(&Fact::Noticed { code: notice.code.to_string(), message: notice.message.clone() });
        self.talk(|style| console::diagnostic(style, notice));
    }

    /// Lines for people: not in quiet or JSON mode.
    pub(super) fn talk(&self, text: impl FnOnce(&Style) -> String) {
        if self.spec.own.output == OutputMode::Human {
            self.screen.talk(text(&self.style));
        }
    }

    pub(super) fn planned(&self) -> Planned {
        Planned {
            job: self.plan.job.name.to_string(),
            attempt: self.run.attempt,
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
            world_size: self.plan.topology().world_size().get(),
            log_dir: self.plan.logs.dir().to_string_lossy().into_owned(),
            roles: if console::has_parts(&self.plan) { self.planned_roles() } else { Vec::new() },
            replicas: self
                .plan
                .replicas
                .iter()
                .map(|replica| {
                    let Log { path, start } = self.plan.log(replica, self.run.attempt);
                    PlannedReplica {
                        replica: replica.name.clone(),
                        rank: replica.rank,
                        node: replica.host.to_string(),
                        endpoint: replica.endpoint.map(|endpoint| endpoint.to_string()).unwrap_or_default(),
                        devices: replica.devices.iter().map(|device| device.label.clone()).collect(),
                        log: path.to_string_lossy().into_owned(),
                        log_start: start,
                    }
                })
                .collect(),
        }
    }

    /// Over all nodes.
    fn planned_roles(&self) -> Vec<PlannedRole> {
        let roles = self.plan.topology().parts().into_iter().zip(&self.plan.job.roles);
        roles
            .map(|(part, role)| PlannedRole {
                role: role.name.to_string(),
                replicas: self.plan.topology().count(part),
                decides: role.completion.decides,
            })
            .collect()
    }

    /// Tells the user what happened, in every output mode.
    pub(super) fn report(&mut self, verdict: Verdict) {
        if verdict.causes.is_empty()
            && let Some(why) = self.tell_why()
        {
            self.told_while_going = self.machine.live().0 > 0;
            self.screen.status(None);
            self.screen.alert(why);
            self.verdict = Some(verdict);
            return;
        }
        let abort = self.abort(&verdict);
        for line in paddle_lines::at_failure(&self.spec.request, &self.plan, &verdict, &abort) {
            self.pod_log.line(&line);
        }
        self.told_while_going = self.machine.live().0 > 0;
        let mut explained =
            summary::failure(&self.style, &verdict, &self.others(&verdict), |finding| self.place(finding));
        explained.push_str(&self.which_attempt());
        let container = paddle_lines::container_failed(&self.spec.request, &self.plan, &verdict)
            .map(|lines| format!("{}\n", lines.replace("<ts>", &paddle_stamp())))
            .unwrap_or_default();
        let abort = self.style.red(&abort);
        self.screen.status(None);
        self.screen.alert(format!("{abort}\n{container}{explained}"));
        if let Some(notice) = prepare::why_full(self.plan.logs.dir()) {
            self.notice(&notice);
        }
        self.verdict = Some(verdict);
    }

    /// Where several parts have failed, the line is about the first cause's.
    fn abort(&self, verdict: &Verdict) -> String {
        let members = &self.plan.topology().members;
        let causes: Vec<&Member> =
            verdict.causes.iter().filter_map(|cause| members.get(cause.subject.rank?.0 as usize)).collect();
        let part = causes.first().map_or(Part::Trainer, |member| member.part);
        let mut ranks: Vec<u32> =
            causes.iter().filter(|member| member.part == part).map(|member| member.index).collect();
        ranks.sort_unstable();
        summary::abort(part.role(), self.plan.topology().count(part), &ranks)
    }

    /// Who was stopped because of the causes, which are told already.
    pub(super) fn others(&self, verdict: &Verdict) -> Others {
        let Some((since, _)) = self.stopping else { return Others::Nobody };
        let is_cause = |replica: &&Replica| verdict.causes.iter().any(|cause| cause.subject.rank == Some(replica.rank));
        let live: Vec<&Replica> = self.live().into_iter().filter(|replica| !is_cause(replica)).collect();
        if !live.is_empty() {
            return Others::Going { who: self.crowd(&live), grace: self.plan.job.policy.stop.grace };
        }
        let by_us = |slot| self.ends.get(slot).is_some_and(|(_, by_us)| *by_us);
        let stopped: Vec<&Replica> = self.plan.replicas.iter().filter(|replica| by_us(&replica.slot)).collect();
        if stopped.is_empty() {
            return Others::Nobody;
        }
        let by = if self.killed { "SIGKILL" } else { "SIGTERM" };
        Others::Gone { who: self.crowd(&stopped), by, after: since.elapsed() }
    }

    pub(super) fn crowd(&self, replicas: &[&Replica]) -> Crowd {
        console::crowd(&self.plan, replicas)
    }

    /// `pserver-1 on gpu-a`, where a number alone says little.
    fn name(&self, subject: &Subject, host: &str) -> Option<String> {
        console::has_parts(&self.plan).then(|| format!("{} on {host}", subject.replica))
    }

    pub(super) fn place(&self, finding: &Finding) -> Place {
        let rank = finding.subject.rank.map(|rank| rank.0);
        let elsewhere = self.peers.iter().flat_map(|peers| &peers.places).find(|place| Some(place.rank) == rank);
        match elsewhere {
            Some(place) => Place {
                host: place.host.clone(),
                pid: place.pid,
                devices: place.devices.clone(),
                log: self.gathered(place.rank).unwrap_or_else(|| place.log.clone()),
                name: self.name(&finding.subject, &place.host),
                run: self.run_name(),
                start_limit: Some(SERVER_TIMEOUT),
            },
            None => self.own_place(&finding.subject),
        }
    }

    /// Of a rank on this node.
    pub(super) fn own_place(&self, subject: &Subject) -> Place {
        let Some(replica) = subject.rank.and_then(|rank| self.plan.replica(rank)) else {
            return Place::default();
        };
        let kind = self.plan.topology().device_kind.map_or("", umiak_core::model::DeviceKind::word);
        let labels: Vec<&str> = replica.devices.iter().map(|device| device.label.as_str()).collect();
        let host = umiak_sys::host::name();
        Place {
            name: self.name(subject, &host),
            host,
            pid: self.pids.get(&replica.slot).copied(),
            devices: if labels.is_empty() { String::new() } else { format!("{kind} {}", labels.join(",")) },
            log: shown(
                &self
                    .spec
                    .request
                    .logs
                    .dir
                    .join(replica.log.as_ref().and_then(|log| log.path.file_name()).unwrap_or_default()),
            ),
            run: self.run_name(),
            start_limit: Some(SERVER_TIMEOUT),
        }
    }

    pub(super) fn show_status(&mut self) {
        let (live, total) = self.machine.live();
        if !self.style.live || self.verdict.is_some() || self.spec.own.output != OutputMode::Human {
            return;
        }
        self.screen.status(Some(Status {
            job: self.plan.job.name.to_string(),
            since: self.clock.started(),
            doing: if console::has_parts(&self.plan) {
                Doing::Roles { roles: self.live_roles(), stopping: self.stopping.is_some() }
            } else {
                Doing::Ranks { live, total, stopping: self.stopping.is_some() }
            },
        }));
    }

    /// Name, how many live, how many there are here.
    fn live_roles(&self) -> Vec<(String, usize, usize)> {
        let live = self.live();
        let roles = self.plan.job.roles.iter().enumerate().filter(|(_, role)| role.replicas > 0);
        roles
            .map(|(position, role)| {
                let of_role = live.iter().filter(|replica| replica.slot.role as usize == position).count();
                (role.name.to_string(), of_role, role.replicas as usize)
            })
            .collect()
    }

    /// Once the last rank exists, and before anything that it does is told.
    pub(super) fn tell_started(&mut self) {
        let total = self.plan.replicas.len();
        if self.pids.len() == total && !self.told_started {
            self.told_started = true;
            let text = console::started(
                &self.style,
                &console::here(&self.plan),
                self.attempt_started.elapsed(),
                self.attempt_words(),
            );
            self.talk(|_| text);
        }
    }

    pub(super) fn tell_swept(&mut self, stopped: &[u32], remaining: &[u32]) {
        if stopped.is_empty() {
            return;
        }
        let list = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let mut notice = Diagnostic::notice(Code::L0025, "ranks left processes behind, which were stopped")
            .row("stopped", format!("pid {}", list(stopped)));
        if !remaining.is_empty() {
            notice = notice.row("still there", format!("pid {}", list(remaining)));
        }
        self.record(&Fact::Swept { pids: stopped.to_vec() });
        self.talk(|style| console::diagnostic(style, &notice));
    }
}

/// A path as the user would type it: `./log` for `log`.
pub(super) fn shown(path: &Path) -> String {
    if path.is_absolute() || path.starts_with(".") || path.starts_with("..") {
        return path.display().to_string();
    }
    PathBuf::from(".").join(path).display().to_string()
}
