//! What only a launched job has: the logs that its ranks share with other runs, Paddle's own lines, and its peers.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use umiak_core::contract::Member;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Finding, Planned, PlannedReplica, PlannedRole, StopReason, Subject, Verdict};
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::job::{AttemptId, Machine, Stand};
use umiak_core::model::{DeviceKind, Exit, Job, Part, Slot, Timestamp};
use umiak_core::plan::{Awaited, Inventory, Layout, Plan, ReplicaPlan, Run, paddle_lines};

use super::gpu_log::GpuLog;
use super::leaving::Leaving;
use super::peers::Peers;
use super::pod_log::PodLog;
use super::{prepare, words};
use crate::clock::{paddle_stamp, time_of_day};
use crate::driver::{Core, Door, LogOf, NotStarted, Report};
use crate::engine::{Cpus, Engine, Start, Swept};
use crate::rendezvous::logs::Logs;
use crate::screen::summary::{self, Crowd, ReplicaPlace, SERVER_TIMEOUT};
use crate::screen::{Activity, StatusLine};

pub(super) struct LaunchDoor {
    pub(super) spec: Arc<LaunchSpec>,
    /// What all attempts share; the plan and the offsets are the current one's.
    pub(super) inventory: Arc<Inventory>,
    pub(super) run: Run,
    pub(super) plan: Arc<Plan>,
    pub(super) log_starts: Vec<u64>,
    pub(super) pod_log: PodLog,
    pub(super) _gpu_log: Option<GpuLog>,
    pub(super) late_files: Option<JoinHandle<()>>,
    /// Files of this attempt that are written while its ranks start.
    pub(super) late_files_due: bool,
    /// The attempt whose plan was told.
    pub(super) told_attempt: u32,
    /// Where there are several nodes: the others, and our part of the attempt for which they are waited.
    pub(super) peers: Option<Peers>,
    pub(super) next: Option<Layout>,
    /// With `--gather-logs`, on nodes that send theirs.
    pub(super) logs: Option<Logs>,
    pub(super) leaving: Leaving,
    /// Where another node's end ended this one.
    pub(super) stopped_by: Option<String>,
}

impl LaunchDoor {
    fn at(&self, slots: &[Slot]) -> Vec<&ReplicaPlan> {
        slots.iter().filter_map(|slot| self.plan.at(*slot)).collect()
    }

    /// The plan as the journal has it.
    pub(super) fn fact(&self, machine: &Machine) -> Fact {
        let roles = self.plan.topology.parts().into_iter().zip(&self.plan.job.roles);
        let role = |(part, role): (Part, &umiak_core::model::Role)| PlannedRole {
            role: role.name.to_string(),
            replicas: self.plan.topology.count(part),
            decides: role.completion.decides,
        };
        let replicas = self.plan.replicas.iter().zip(&self.log_starts);
        let replica = |(replica, start): (&ReplicaPlan, &u64)| PlannedReplica {
            replica: machine.replica_name(replica.slot),
            rank: replica.rank,
            node: replica.node.to_string(),
            endpoint: replica.endpoint.to_string(),
            devices: replica.devices.iter().map(|device| device.label.clone()).collect(),
            log: replica.log.to_string_lossy().into_owned(),
            log_start: *start,
        };
        Fact::Planned(Planned {
            job: self.plan.job.name.to_string(),
            attempt: self.run.attempt,
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
            world_size: self.plan.topology.world_size().get(),
            log_dir: self.plan.log_dir.to_string_lossy().into_owned(),
            roles: if words::has_parts(&self.plan) { roles.map(role).collect() } else { Vec::new() },
            replicas: replicas.map(replica).collect(),
        })
    }

    fn pod_line(&mut self, line: Option<String>) {
        if let Some(line) = line {
            self.pod_log.line(&line);
        }
    }

    /// Where several parts have failed, the line is about the first cause's.
    fn abort(&self, verdict: &Verdict) -> String {
        let members = &self.plan.topology.members;
        let causes: Vec<&Member> =
            verdict.causes.iter().filter_map(|cause| members.get(cause.subject.rank?.0 as usize)).collect();
        let part = causes.first().map_or(Part::Trainer, |member| member.part);
        let mut ranks: Vec<u32> =
            causes.iter().filter(|member| member.part == part).map(|member| member.index).collect();
        ranks.sort_unstable();
        summary::abort(part.role(), self.plan.topology.count(part), &ranks)
    }

    /// `pserver-1 on gpu-a`, where a number alone says little.
    fn name(&self, subject: &Subject, host: &str) -> Option<String> {
        words::has_parts(&self.plan).then(|| format!("{} on {host}", subject.replica))
    }

    /// Of a rank on this node.
    pub(super) fn own_place(&self, core: &Core, subject: &Subject) -> ReplicaPlace {
        let Some(replica) = subject.rank.and_then(|rank| self.plan.replica(rank)) else {
            return ReplicaPlace::default();
        };
        let kind = self.plan.topology.device_kind.map_or("", DeviceKind::word);
        let labels: Vec<&str> = replica.devices.iter().map(|device| device.label.as_str()).collect();
        let host = umiak_sys::host::name();
        ReplicaPlace {
            name: self.name(subject, &host),
            host,
            pid: core.pid(replica.slot),
            devices: if labels.is_empty() { String::new() } else { format!("{kind} {}", labels.join(",")) },
            log: shown(&self.spec.log_dir.join(replica.log.file_name().unwrap_or_default())),
            run: core.recorder.run_name(),
            start_limit: Some(SERVER_TIMEOUT),
        }
    }

    /// A server that has ended well answers no more. Trainers do not wait for it, which is worth a word.
    fn tell_early_end(&self, core: &mut Core, id: AttemptId) {
        let Some(name) = core.awaited_at(id).filter(|_| core.now.stopping.is_none()) else { return };
        let message = format!("{} has ended with 0 before it answered at {name}", core.machine.replica_name(id.slot));
        let hint = "trainers on this node start without it; its log may say why it ended";
        core.notice(&Diagnostic::notice(Code::L0031, message).hint(hint));
    }

    pub(super) fn join_late_files(&mut self) {
        if let Some(thread) = self.late_files.take() {
            let _ = thread.join();
        }
    }
}

impl Door for LaunchDoor {
    fn job(&self) -> &Job {
        &self.plan.job
    }

    fn counted(&self, slots: &[Slot]) -> String {
        words::some(&self.plan, &self.at(slots))
    }

    fn crowd(&self, slots: &[Slot]) -> Crowd {
        words::crowd(&self.plan, &self.at(slots))
    }

    fn noun(&self) -> &'static str {
        "ranks"
    }

    fn place(&self, core: &Core, finding: &Finding) -> ReplicaPlace {
        let rank = finding.subject.rank.map(|rank| rank.0);
        let elsewhere = self.peers.iter().flat_map(|peers| &peers.places).find(|place| Some(place.rank) == rank);
        match elsewhere {
            Some(place) => ReplicaPlace {
                host: place.host.clone(),
                pid: place.pid,
                devices: place.devices.clone(),
                log: self.gathered(place.rank).unwrap_or_else(|| place.log.clone()),
                name: self.name(&finding.subject, &place.host),
                run: core.recorder.run_name(),
                start_limit: Some(SERVER_TIMEOUT),
            },
            None => self.own_place(core, &finding.subject),
        }
    }

    fn attempt_words(&self, core: &Core) -> Option<String> {
        let attempt = core.machine.attempt() + 1;
        match self.plan.job.policy.restart.attempts() {
            Some(1) => None,
            Some(attempts) => Some(format!("attempt {attempt} of {attempts}")),
            None => Some(format!("attempt {attempt}")),
        }
    }

    fn planned(&self, core: &Core) -> Vec<String> {
        words::planned(&self.plan, &shown(&self.spec.log_dir), core.recorder.run_name())
    }

    fn status(&self, core: &Core) -> Option<StatusLine> {
        let stopping = core.now.stopping.is_some();
        let doing = if words::has_parts(&self.plan) {
            let roles = self.plan.job.roles.iter().enumerate().filter(|(_, role)| role.replicas > 0);
            let live = |(position, role): (usize, &umiak_core::model::Role)| {
                let slots = (0..role.replicas).map(|index| Slot { role: position as u16, index });
                (role.name.to_string(), slots.filter(|slot| core.is_live(*slot)).count(), role.replicas as usize)
            };
            Activity::Roles { roles: roles.map(live).collect(), stopping }
        } else {
            let (live, total) = core.machine.live();
            Activity::Ranks { live, total, stopping }
        };
        Some(StatusLine { job: self.plan.job.name.to_string(), since: core.clock.started(), doing })
    }

    fn names_its_end(&self) -> bool {
        false
    }

    fn log_dir(&self) -> PathBuf {
        self.plan.log_dir.clone()
    }

    fn mirrored(&self) -> Option<Slot> {
        self.plan.mirrored().map(|replica| replica.slot)
    }

    fn log(&self, id: AttemptId) -> Option<LogOf> {
        let replica = self.plan.at(id.slot)?;
        let position = (replica.rank.0 - self.plan.first_rank().0) as usize;
        let (path, error_file) = (replica.log.clone(), replica.error_file.clone());
        Some(LogOf { path, start: self.log_starts[position], error_file, shared: true })
    }

    fn answers(&self, slot: Slot) -> Vec<Awaited> {
        self.plan.at(slot).and_then(|replica| replica.answers.clone()).into_iter().collect()
    }

    fn elsewhere(&self, _: u16) -> Vec<Awaited> {
        self.plan.awaited.clone()
    }

    fn start(&mut self, core: &mut Core, id: AttemptId) -> Result<Start, NotStarted> {
        if self.peers.is_some() {
            // How long other nodes were waited for says nothing about this one.
            core.now.attempt_started.get_or_insert_with(Instant::now);
        }
        if self.run.attempt > self.told_attempt {
            self.told_attempt = self.run.attempt;
            core.now.attempt_started = Some(Instant::now());
            let parts = words::planned(&self.plan, &shown(&self.spec.log_dir), None);
            core.say(|style| style.progress("Planned", &parts, &time_of_day()));
        }
        let replica = self.plan.at(id.slot).expect("the machine has the roles of the plan");
        Ok(Start {
            id,
            program: replica.program.clone(),
            argv: replica.argv.clone(),
            env: replica.env.clone(),
            dir: None,
            log: replica.log.clone(),
            cpus: if replica.cpus.is_empty() { Cpus::Any } else { Cpus::Near(replica.cpus.clone()) },
            memory: None,
            inherit_stdin: replica.inherit_stdin,
        })
    }

    fn starting(&mut self, _: &mut Core, attempts: &[AttemptId]) {
        let line = paddle_lines::at_spawn(&self.spec, &self.plan, attempts);
        self.pod_line(line);
        if std::mem::take(&mut self.late_files_due) {
            self.late_files = prepare::write_late_files(&self.inventory, &self.plan);
        }
    }

    fn stopping(&mut self, core: &mut Core, attempts: &[AttemptId]) {
        for pid in attempts.iter().filter_map(|id| core.pid(id.slot)) {
            let line = paddle_lines::at_stop(&self.spec, pid);
            self.pod_line(line);
        }
    }

    fn keeps_ports(&self) -> bool {
        prepare::keeps_ports(&self.spec)
    }

    fn prepare(&mut self, core: &mut Core, engine: &mut dyn Engine, attempt: u32, swept: &Swept) {
        self.prepare_next(core, engine, attempt, swept);
    }

    fn stand(&mut self, core: &mut Core, stand: Stand) {
        self.tell_peers(core, stand);
    }

    fn watch(&self) -> Vec<BorrowedFd<'_>> {
        let peers = self.peers.as_ref().map(Peers::as_fd);
        peers.into_iter().chain(self.logs.as_ref().map(Logs::as_fd)).collect()
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.leaving.tell_at()
    }

    fn hear(&mut self, core: &mut Core, engine: &mut dyn Engine) {
        self.hear_peers(core, engine);
        self.hear_logs(core);
        self.tell_leaving(core);
    }

    fn observe(&mut self, core: &mut Core, fact: &Fact) {
        match fact {
            Fact::Planned(_) if self.run.attempt == 0 => {
                for line in paddle_lines::on_console(&self.spec) {
                    core.screen.talk(format!("{}\n", line.replace("<ts>", &paddle_stamp())));
                }
            }
            Fact::Started { subject, instance } => {
                let slot = subject.rank.and_then(|rank| core.machine.slot_of(rank));
                if let (Some(slot), Some(pid)) = (slot, instance.pid) {
                    let line = paddle_lines::at_started(&self.spec, slot.index, pid);
                    self.pod_line(line);
                }
            }
            Fact::Ended { subject, exit, .. } if exit.is_success() => {
                if let Some(slot) = subject.rank.and_then(|rank| core.machine.slot_of(rank)) {
                    self.tell_early_end(core, AttemptId { attempt: subject.attempt, ..core.id(slot) });
                }
            }
            Fact::Stopping { reason: StopReason::Signal { signal } } => {
                let line = paddle_lines::at_signal(&self.spec, *signal);
                self.pod_line(line);
            }
            Fact::Restarting { attempt, .. } => {
                let line = paddle_lines::at_restart(&self.spec, &self.plan, attempt + 1);
                self.pod_line(line);
            }
            Fact::Finished { outcome, exit_code } => {
                let signal = match core.now.stopping {
                    Some((_, StopReason::Signal { signal } | StopReason::SecondSignal { signal })) => Some(signal),
                    _ => None,
                };
                let ends = self.plan.replicas.iter().filter_map(|replica| core.now.ends.get(&replica.slot));
                let first_failed = ends.map(|(exit, _)| exit).find(|exit: &&Exit| !exit.is_success());
                let end = paddle_lines::at_end(&self.spec, &self.plan, *outcome, signal, *exit_code, first_failed);
                for line in end {
                    self.pod_log.line(&line);
                }
            }
            _ => {}
        }
    }

    fn report(&mut self, core: &mut Core, verdict: &Verdict) -> Report {
        if verdict.causes.is_empty()
            && let Some(head) = self.tell_why(core)
        {
            return Report { head, instead: true, ..Report::default() };
        }
        let abort = self.abort(verdict);
        for line in paddle_lines::at_failure(&self.spec, &self.plan, verdict, &abort) {
            self.pod_log.line(&line);
        }
        let container = paddle_lines::container_failed(&self.spec, &self.plan, verdict)
            .map(|lines| format!("{}\n", lines.replace("<ts>", &paddle_stamp())))
            .unwrap_or_default();
        Report {
            head: format!("{}\n{container}", core.style.red(&abort)),
            tail: self.attempt_words(core).map(|words| format!("  {words}\n")).unwrap_or_default(),
            instead: false,
            notice: prepare::why_full(&self.plan.log_dir),
        }
    }

    fn stopped_by(&self) -> Option<String> {
        self.stopped_by.clone()
    }

    fn is_busy(&mut self, core: &mut Core) -> bool {
        self.is_leaving(core)
    }

    fn give_up(&mut self, core: &mut Core) {
        self.give_up_leaving(core);
    }

    fn close(&mut self, _: &mut Core) {
        self.stopped_by = self.interrupted_elsewhere();
        if let Some(peers) = self.peers.take() {
            peers.finish();
        }
        self.join_late_files();
    }
}

/// A path as the user would type it: `./log` for `log`.
pub(super) fn shown(path: &Path) -> String {
    if path.is_absolute() || path.starts_with(".") || path.starts_with("..") {
        return path.display().to_string();
    }
    PathBuf::from(".").join(path).display().to_string()
}
