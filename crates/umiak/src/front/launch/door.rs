//! What only a launched job has: the logs that its ranks share with other runs, Paddle's own lines, and its peers.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use umiak_core::contract::Member;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Evidence, Fact, Finding, Outcome, Resize, StopReason, Subject, Verdict};
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::job::{AttemptId, Stand};
use umiak_core::machine::round::messages::{RankPlace, Servers, Why};
use umiak_core::model::{Device, Exit, FIRST_ATTEMPT, OutputMode, Part, Rotation, Timestamp, TorchLogs};
use umiak_core::plan::{Inventory, Layout, LogLayout, Plan, Process, Run, paddle_lines};
use umiak_sys::files;
use umiak_sys::logger::Rotate;

use super::gpu_log::GpuLog;
use super::hook::Hook;
use super::leaving::Leaving;
use super::log_dir::LogDirLock;
use super::peers::Peers;
use super::pod_log::PodLog;
use super::relay::Waiting;
use super::{peer_words, prepare, torch, words};
use crate::clock::{paddle_stamp, time_of_day};
use crate::driver::words::has_parts;
use crate::driver::{Core, Door, FailureReport};
use crate::engine::{Common, Engine, Swept};
use crate::relay::Relay;
use crate::rendezvous::NetOrder;
use crate::rendezvous::logs::Logs;
use crate::screen::summary::{self, ReplicaPlace, SERVER_TIMEOUT};

pub(super) struct LaunchDoor {
    pub(super) spec: Arc<LaunchSpec>,
    /// Shared by all attempts.
    pub(super) inventory: Arc<Inventory>,
    pub(super) run: Run,
    pub(super) _log_dir: LogDirLock,
    /// Paddle's, if umiak replaces its launcher.
    pub(super) pod_log: Option<PodLog>,
    pub(super) _gpu_log: Option<GpuLog>,
    pub(super) late_files: Option<JoinHandle<()>>,
    /// Files of this attempt that are written while its ranks start.
    pub(super) late_files_due: bool,
    /// The last attempt whose plan was shown.
    pub(super) told_attempt: u32,
    /// With several nodes: the others, and our layout of the attempt that waits for them.
    pub(super) peers: Option<Peers>,
    pub(super) next: Option<(Layout, Option<Waiting>)>,
    /// The command before the next round, and its attempt.
    pub(super) hook: Option<(Hook, u32)>,
    /// With `--store-relay`, on the node of rank 0: in front of its store of this attempt.
    pub(super) relay: Option<Relay>,
    /// Which nodes have servers that do not listen yet, from the last message to all nodes.
    pub(super) servers: Option<Servers>,
    /// With `--gather-logs`, on nodes that send their logs.
    pub(super) logs: Option<Logs>,
    pub(super) leaving: Leaving,
    /// When to show a line about a slow end.
    pub(super) tell_at: Option<Timestamp>,
    /// torchrun's report of the last failed attempt, shown if there is no other.
    pub(super) summary: Option<torch::Summary>,
    /// Why this attempt was stopped for all nodes, and where the ranks of its verdict were.
    pub(super) why: Option<Why>,
    pub(super) places: Vec<RankPlace>,
    /// Why the job ends on this node alone, if that says more.
    pub(super) error: Option<Box<Diagnostic>>,
    /// Since when the next attempt waits for nodes, and whether that has been said.
    pub(super) awaits: Option<(Timestamp, bool)>,
    /// It is recorded that the job does not need this node.
    pub(super) is_spare: bool,
}

impl LaunchDoor {
    fn pod_line(&mut self, line: Option<String>) {
        if let (Some(line), Some(log)) = (line, &mut self.pod_log) {
            log.line(&line);
        }
    }

    /// Paddle's `ABORT!!!` line. If several parts failed, it is about the part of the first cause.
    fn abort(plan: &Plan, verdict: &Verdict) -> String {
        let members = &plan.topology().members;
        let causes: Vec<&Member> =
            verdict.causes.iter().filter_map(|cause| members.get(cause.subject.rank?.0 as usize)).collect();
        let part = causes.first().map_or(Part::Trainer, |member| member.part);
        let mut ranks: Vec<u32> =
            causes.iter().filter(|member| member.part == part).map(|member| member.index).collect();
        ranks.sort_unstable();
        summary::abort(part.role(), plan.topology().count(part), &ranks)
    }

    /// Where a rank of this node runs.
    pub(super) fn own_place(&self, core: &Core<'_>, subject: &Subject, evidence: Option<&Evidence>) -> ReplicaPlace {
        let Some(replica) = subject.rank.and_then(|rank| core.job.plan.replica(rank)) else {
            return ReplicaPlace::default();
        };
        let kind = core.job.plan.topology().device_kind;
        let host = umiak_sys::host::name();
        let log = core.job.plan.log(replica, subject.attempt);
        let log = match &log.stderr {
            // With the run, logs outlive it; otherwise they are removed at its end.
            Some(_) if log.path.starts_with(&core.job.plan.scratch) => String::new(),
            Some(stderr) if evidence.is_some_and(|evidence| evidence.stderr) => torch::shown(stderr),
            Some(_) => torch::shown(&log.path),
            None => shown(&self.spec.request.logs.dir.join(log.path.file_name().unwrap_or_default())),
        };
        ReplicaPlace {
            name: name(&core.job.plan, subject, &host),
            host,
            is_elsewhere: false,
            pid: core.job.pid(replica.slot),
            devices: kind.map(|kind| Device::described(kind, &replica.devices)).unwrap_or_default(),
            log,
            run: core.run.recorder.run_name(),
            start_limit: Some(SERVER_TIMEOUT),
            is_shown: false,
        }
    }

    /// Notice about a server that exited with 0 before it listened: trainers do not wait for it.
    fn tell_early_end(core: &mut Core<'_>, id: AttemptId) {
        let Some(name) = core.job.awaited_at(id).filter(|_| core.job.now.stopping.is_none()) else { return };
        let message = format!("{} exited with 0 before it listened on {name}", core.job.machine.replica_name(id.slot));
        let hint = "trainers start without it; its log may show why it exited";
        core.notice(&Diagnostic::notice(Code::L0031, message).hint(hint));
    }

    /// Tells the coordinator the processes of this node's ranks once all are started: it hosts the store, and knows its
    /// clients by them.
    fn tell_pids(&self, core: &Core<'_>) {
        let Some(peers) = self.peers.as_ref().filter(|_| core.job.plan.topology().agent_store) else { return };
        // Called for each rank: the list is made once.
        if core.job.now.instances.len() == core.job.plan.replicas.len() {
            let pids: Vec<u32> = core.job.slots().filter_map(|slot| core.job.pid(slot)).collect();
            peers.order(NetOrder::Started { attempt: core.job.plan.attempt, pids });
        }
    }

    /// The directory of the logs, as shown, if the user chose it.
    fn logs_at(&self, plan: &Plan) -> Option<String> {
        match self.spec.request.torch.as_ref().map(|torch| &torch.logs) {
            None => Some(shown(&self.spec.request.logs.dir)),
            Some(TorchLogs::Dir(_)) => Some(torch::shown(plan.logs.dir())),
            Some(TorchLogs::InRun) if plan.logs.dir().starts_with(&plan.scratch) => {
                Some("not kept (`--log-dir` keeps them)".to_owned())
            }
            Some(TorchLogs::InRun | TorchLogs::Dropped) => None,
        }
    }

    pub(super) fn join_late_files(&mut self) {
        if let Some(thread) = self.late_files.take() {
            let _ = thread.join();
        }
    }
}

impl Door for LaunchDoor {
    fn planned(&self, core: &Core<'_>) -> Vec<String> {
        let placement = self.spec.request.placement.as_ref();
        words::planned(&core.job.plan, placement, self.logs_at(&core.job.plan), core.run.recorder.run_name())
    }

    fn common(&self, plan: &Plan) -> Common {
        let rotation = if let LogLayout::Files { rotation, .. } = &plan.logs { *rotation } else { None };
        Common {
            unset: plan.unset.clone(),
            set: plan.common.clone(),
            rotate: rotation.map(|Rotation { max_bytes, keep }| Rotate { max_bytes, keep }),
            grace: plan.job.policy.stop.grace,
        }
    }

    fn place(&self, core: &Core<'_>, finding: &Finding) -> ReplicaPlace {
        let rank = finding.subject.rank.map(|rank| rank.0);
        let elsewhere = self.places.iter().find(|place| Some(place.rank) == rank);
        match elsewhere {
            Some(place) => ReplicaPlace {
                host: place.host.clone(),
                is_elsewhere: false,
                pid: place.pid,
                devices: place.devices.clone(),
                log: self.gathered(&core.job.plan, place.rank).unwrap_or_else(|| place.log.clone()),
                name: name(&core.job.plan, &finding.subject, &place.host),
                run: core.run.recorder.run_name(),
                start_limit: Some(SERVER_TIMEOUT),
                is_shown: false,
            },
            None => self.own_place(core, &finding.subject, finding.evidence.as_ref()),
        }
    }

    fn make(&mut self, core: &mut Core<'_>, _: AttemptId, process: &Process) -> std::io::Result<()> {
        if process.log.stderr.is_some() {
            torch::make_attempt(&process.log)?;
        }
        if self.peers.is_some() {
            // The wait for other nodes does not count.
            core.job.now.attempt_started.get_or_insert_with(Instant::now);
        }
        if self.run.attempt > self.told_attempt {
            self.told_attempt = self.run.attempt;
            let parts = words::planned(
                &core.job.plan,
                self.spec.request.placement.as_ref(),
                self.logs_at(&core.job.plan),
                None,
            );
            core.say(|style| style.progress("Planned", &parts, &time_of_day()));
        }
        Ok(())
    }

    fn starting(&mut self, core: &mut Core<'_>, attempts: &[AttemptId]) {
        self.pod_line(paddle_lines::at_spawn(&self.spec.request, &core.job.plan, attempts));
        if std::mem::take(&mut self.late_files_due) {
            self.late_files = prepare::write_late_files(&self.inventory, &core.job.plan);
        }
    }

    fn stopping(&mut self, core: &mut Core<'_>, attempts: &[AttemptId]) {
        for pid in attempts.iter().filter_map(|id| core.job.pid(id.slot)) {
            self.pod_line(paddle_lines::at_stop(&self.spec.request, pid));
        }
    }

    fn keeps_ports(&self) -> bool {
        prepare::keeps_ports(&self.spec.request)
    }

    fn prepare(&mut self, core: &mut Core<'_>, engine: &mut dyn Engine, attempt: u32, swept: &Swept) {
        self.prepare_next(core, engine, attempt, swept);
    }

    fn stand(&mut self, core: &mut Core<'_>, stand: Stand) {
        self.tell_peers(core, stand);
    }

    fn tell_ready(&mut self, attempt: u32) {
        if let Some(peers) = &self.peers {
            peers.order(NetOrder::Listening { attempt });
        }
    }

    fn await_elsewhere(&mut self, core: &mut Core<'_>, role: u16, attempt: u32) {
        if let Some(servers) = self.servers.as_ref().filter(|servers| servers.attempt == attempt) {
            core.job.listen_elsewhere(role, attempt, missing(&core.job.plan, servers));
        }
    }

    fn watch(&self) -> Vec<BorrowedFd<'_>> {
        let peers = self.peers.as_ref().map(Peers::watch).unwrap_or_default();
        let hook = self.hook.as_ref().map(|(hook, _)| hook.as_fd());
        peers.into_iter().chain(self.logs.as_ref().map(Logs::as_fd)).chain(hook).collect()
    }

    fn deadline(&self) -> Option<Timestamp> {
        // What came with the first start is handled at once.
        let is_due = self.peers.as_ref().is_some_and(|peers| !peers.left.is_empty());
        if is_due { Some(Timestamp::from_micros(0)) } else { self.tell_at }
    }

    fn hear(&mut self, core: &mut Core<'_>, engine: &mut dyn Engine) {
        self.hear_peers(core, engine);
        self.hear_hook(core, engine);
        self.hear_logs(core);
        self.tell_leaving(core);
    }

    fn observe(&mut self, core: &mut Core<'_>, fact: &Fact) {
        match fact {
            Fact::Planned(_) if self.run.attempt == FIRST_ATTEMPT => {
                for line in paddle_lines::on_console(&self.spec.request, &core.job.plan) {
                    core.run.screen.talk(format!("{}\n", line.replace("<ts>", &paddle_stamp())));
                }
            }
            Fact::Started { subject, instance } => {
                self.tell_pids(core);
                let slot = core.job.slot_of(subject);
                if let (Some(slot), Some(pid)) = (slot, instance.pid) {
                    self.pod_line(paddle_lines::at_started(&self.spec.request, slot.index, pid));
                }
            }
            Fact::Ended { subject, exit, .. } if exit.is_success() => {
                if let Some(slot) = core.job.slot_of(subject) {
                    Self::tell_early_end(core, AttemptId { attempt: subject.attempt, ..core.job.machine.id(slot) });
                }
            }
            Fact::Stopping { reason: StopReason::Signal { signal } } => {
                self.pod_line(paddle_lines::at_signal(&self.spec.request, *signal));
            }
            Fact::Resizing { change, .. } => {
                self.summary = None;
                let then = match change {
                    Resize::Fenced { .. } => "all ranks stop, and start again when etcd answers",
                    _ => "all ranks start again",
                };
                core.say(|style| words::nodes(style, &format!("{}; {then}", crate::views::facts::changed(change))));
            }
            Fact::Restarting { attempt, .. } => {
                self.summary = None;
                self.pod_line(paddle_lines::at_restart(&self.spec.request, &core.job.plan, *attempt));
            }
            Fact::Finished { outcome, exit_code } => {
                if let Some(summary) = self.summary.take() {
                    summary.copy_error();
                    if core.run.talk.output == OutputMode::Human {
                        core.run.screen.alert(summary.text);
                    }
                }
                let signal = match core.job.now.stopping {
                    Some((_, StopReason::Signal { signal } | StopReason::SecondSignal { signal })) => Some(signal),
                    _ => None,
                };
                let ends = core.job.plan.replicas.iter().filter_map(|replica| core.job.now.ends.get(&replica.slot));
                let first_failed = ends.map(|(exit, _)| exit).find(|exit: &&Exit| !exit.is_success());
                let end = paddle_lines::at_end(
                    &self.spec.request,
                    &core.job.plan,
                    *outcome,
                    signal,
                    *exit_code,
                    first_failed,
                );
                for line in end {
                    self.pod_line(Some(line));
                }
            }
            _ => {}
        }
    }

    fn report(&mut self, core: &mut Core<'_>, verdict: &Verdict) -> FailureReport {
        if verdict.causes.is_empty()
            && let Some(head) = self.tell_why(core)
        {
            return FailureReport { head, instead: true, ..FailureReport::default() };
        }
        if self.spec.request.torch.is_some() {
            self.summary = Some(torch::summary(core, &self.spec, verdict, |finding| self.place(core, finding)));
            return FailureReport {
                tail: core.job.attempt_words().map(|words| format!("  {words}\n")).unwrap_or_default(),
                notice: prepare::why_full(core.job.plan.logs.dir(), "this may be why the rank failed"),
                ..FailureReport::default()
            };
        }
        let abort = Self::abort(&core.job.plan, verdict);
        for line in paddle_lines::at_failure(&self.spec.request, &core.job.plan, verdict, &abort) {
            self.pod_line(Some(line));
        }
        let container = paddle_lines::container_failed(&self.spec.request, &core.job.plan, verdict)
            .map(|lines| format!("{}\n", lines.replace("<ts>", &paddle_stamp())))
            .unwrap_or_default();
        FailureReport {
            head: format!("{}\n{container}", core.run.style.red(&abort)),
            tail: core.job.attempt_words().map(|words| format!("  {words}\n")).unwrap_or_default(),
            notice: prepare::why_full(core.job.plan.logs.dir(), "this may be why the rank failed"),
            ..FailureReport::default()
        }
    }

    /// `SIGINT on node 192.168.0.2 (gpu-b)`.
    fn stopped_by(&self) -> Option<String> {
        match self.why.as_ref()? {
            Why::Interrupted { node, signal, .. } => Some(peer_words::interrupted(node, *signal)),
            _ => None,
        }
    }

    fn is_busy(&mut self, core: &mut Core<'_>) -> bool {
        self.is_leaving(core)
    }

    fn give_up(&mut self, core: &mut Core<'_>) {
        self.give_up_leaving(core);
    }

    fn close(&mut self, core: &mut Core<'_>) {
        self.hook = None;
        // A failure has its own report.
        if matches!(core.job.now.end, Some((Outcome::Succeeded, _)))
            && files::is_full(core.job.plan.logs.dir())
            && let Some(notice) = prepare::why_full(core.job.plan.logs.dir(), "the logs of this job may be incomplete")
        {
            core.notice(&notice);
        }
        if let Some(peers) = self.peers.take() {
            peers.finish_as(core.job.now.end);
        }
        self.join_late_files();
    }
}

/// The servers of nodes that are not ready.
pub(super) fn missing(plan: &Plan, servers: &Servers) -> Vec<String> {
    let awaited = plan.awaited.iter().filter(|server| servers.missing.contains(&server.node.0));
    awaited.map(|server| server.name.clone()).collect()
}

/// `pserver-1 on gpu-a`, for jobs with several parts.
fn name(plan: &Plan, subject: &Subject, host: &str) -> Option<String> {
    has_parts(plan).then(|| format!("{} on {host}", subject.replica))
}

/// A path as the user would type it: `./log` for `log`.
pub(super) fn shown(path: &Path) -> String {
    if path.is_absolute() || path.starts_with(".") || path.starts_with("..") {
        return path.display().to_string();
    }
    PathBuf::from(".").join(path).display().to_string()
}
