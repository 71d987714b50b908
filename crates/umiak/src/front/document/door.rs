//! What only documents have: task directories, and devices that replicas take turns with.

use std::path::{Path, PathBuf};

use umiak_core::facts::{Fact, Finding, Planned, PlannedReplica, PlannedRole, Usage};
use umiak_core::machine::job::{AttemptId, Machine};
use umiak_core::mask::Known;
use umiak_core::model::{Exit, Job, Slot, SpawnError, SpawnStage};
use umiak_core::plan::Awaited;
use umiak_core::plan::document::{self, Placement, Process, Surroundings};
use umiak_core::plan::pool::Pool;

use super::tasks;
use crate::driver::{Core, Door, LogOf, NotStarted};
use crate::engine::{Cpus, MemoryLimit, Start};
use crate::history::RunDir;
use crate::screen::summary::{Crowd, ReplicaPlace};
use crate::screen::{Activity, StatusLine};

pub(super) struct DocumentDoor {
    pub(super) run: RunDir,
    pub(super) placement: Placement,
    /// What is written nowhere.
    pub(super) known: Known,
    pub(super) around: Surroundings,
    pub(super) pool: Pool,
    /// The caller's stdin is for a replica that is alone.
    pub(super) detached: bool,
}

impl DocumentDoor {
    /// The plan as the journal has it.
    pub(super) fn fact(&self, machine: &Machine) -> Fact {
        let role = |role: &umiak_core::model::Role| PlannedRole {
            role: role.name.to_string(),
            replicas: role.replicas,
            decides: role.completion.decides,
        };
        let replica = |placed: &document::Placed| PlannedReplica {
            replica: placed.replica.clone(),
            rank: placed.rank,
            node: placed.host.to_string(),
            endpoint: placed.endpoint.map_or_else(|| placed.host.to_string(), |endpoint| endpoint.to_string()),
            devices: self.pool.devices_of(placed.slot).iter().map(|device| device.label.clone()).collect(),
            log: self.dir(machine.id(placed.slot)).join("log").to_string_lossy().into_owned(),
            log_start: 0,
        };
        Fact::Planned(Planned {
            job: self.placement.job.name.to_string(),
            attempt: machine.attempt(),
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
            world_size: self.placement.replicas.len() as u32,
            log_dir: self.run.path().join("tasks").to_string_lossy().into_owned(),
            roles: self.placement.job.roles.iter().map(role).collect(),
            replicas: self.placement.replicas.iter().map(replica).collect(),
        })
    }

    fn dir(&self, id: AttemptId) -> PathBuf {
        self.run.attempt(&self.placement.placed(id.slot).replica, id.attempt)
    }

    fn make_task(&self, core: &Core, id: AttemptId, dir: &Path, process: &Process) -> std::io::Result<()> {
        tasks::make(dir, process, &self.known)?;
        let role = self.placement.role(id.slot);
        std::fs::create_dir_all(document::gloo_dir(&self.around.scratch, role, core.machine.attempt()))?;
        if self.mirrored() == Some(id.slot) {
            tasks::touch_log(process)?;
        }
        Ok(())
    }
}

impl Door for DocumentDoor {
    fn job(&self) -> &Job {
        &self.placement.job
    }

    fn counted(&self, slots: &[Slot]) -> String {
        format!("{} replica{}", slots.len(), if slots.len() == 1 { "" } else { "s" })
    }

    fn crowd(&self, slots: &[Slot]) -> Crowd {
        Crowd::replicas(slots.iter().map(|slot| (self.placement.role(*slot).name.as_str(), slot.index)))
    }

    fn noun(&self) -> &'static str {
        "replicas"
    }

    fn place(&self, core: &Core, finding: &Finding) -> ReplicaPlace {
        let Some(slot) = finding.subject.rank.and_then(|rank| core.machine.slot_of(rank)) else {
            return ReplicaPlace::default();
        };
        let labels: Vec<&str> = self.pool.devices_of(slot).iter().map(|device| device.label.as_str()).collect();
        ReplicaPlace {
            host: umiak_sys::host::name(),
            pid: core.pid(slot),
            devices: if labels.is_empty() { String::new() } else { format!("gpu {}", labels.join(",")) },
            log: self
                .dir(AttemptId { attempt: finding.subject.attempt, ..core.id(slot) })
                .join("log")
                .display()
                .to_string(),
            name: Some(finding.subject.replica.clone()),
            run: core.recorder.run_name(),
            start_limit: None,
        }
    }

    fn attempt_words(&self, _: &Core) -> Option<String> {
        None
    }

    fn planned(&self, _: &Core) -> Vec<String> {
        let job = &self.placement.job;
        let roles: Vec<String> = job.roles.iter().map(|role| format!("{} {}", role.replicas, role.name)).collect();
        vec![
            format!("job {}", job.name),
            roles.join(", "),
            format!("engine {}", self.placement.engine),
            self.run.id().to_string(),
        ]
    }

    fn status(&self, core: &Core) -> Option<StatusLine> {
        let role = |(position, role): (usize, &umiak_core::model::Role)| {
            let slots = (0..role.replicas).map(|index| Slot { role: position as u16, index });
            (role.name.to_string(), slots.filter(|slot| core.is_live(*slot)).count(), role.replicas as usize)
        };
        let roles = self.placement.job.roles.iter().enumerate().map(role).collect();
        Some(StatusLine {
            job: format!("{} {}", self.run.id(), self.placement.job.name),
            since: core.clock.started(),
            doing: Activity::Roles { roles, stopping: core.now.stopping.is_some() },
        })
    }

    fn names_its_end(&self) -> bool {
        true
    }

    fn log_dir(&self) -> PathBuf {
        self.run.path().to_owned()
    }

    /// The first replica of the first role that decides.
    fn mirrored(&self) -> Option<Slot> {
        let roles = &self.placement.job.roles;
        let role = roles.iter().position(|role| role.completion.decides).unwrap_or(0);
        Some(Slot { role: role as u16, index: 0 })
    }

    fn log(&self, id: AttemptId) -> Option<LogOf> {
        let dir = self.dir(id);
        Some(LogOf { path: dir.join("log"), start: 0, error_file: dir.join("error.json"), shared: false })
    }

    fn memory_limit(&self, slot: Slot) -> Option<u64> {
        self.placement.role(slot).work.resources.memory_bytes
    }

    fn answers(&self, slot: Slot) -> Vec<Awaited> {
        let placed = self.placement.placed(slot);
        let ports = placed.ports.iter().flat_map(|(_, ports)| ports);
        let awaited = |port: &umiak_core::model::Port| {
            let name = umiak_core::model::Endpoint { address: placed.host, port: *port }.to_string();
            Awaited { at: vec![name.clone()], name }
        };
        ports.map(awaited).collect()
    }

    fn start(&mut self, core: &mut Core, id: AttemptId) -> Result<Start, NotStarted> {
        let resources = self.placement.role(id.slot).work.resources;
        let given = self.pool.take(id.slot, resources).ok_or(NotStarted::Waits)?;
        let dir = self.dir(id);
        let of_job = core.machine.attempt();
        let devices = &given.devices;
        let attempt = document::Attempt { slot: id.slot, number: id.attempt, of_job, devices, dir: &dir };
        let process = self.placement.process(attempt, &self.around);
        if let Err(error) = self.make_task(core, id, &dir, &process) {
            if is_full(&error) {
                self.pool.give_back(id.slot);
                return Err(NotStarted::Full(dir, error));
            }
            let (reason, errno) = (error.to_string(), error.raw_os_error().unwrap_or(0));
            return Err(NotStarted::Failed(SpawnError { doing: SpawnStage::MakeDirectory, errno, reason }));
        }
        let name = format!("{}.{}", self.placement.placed(id.slot).replica, id.attempt);
        Ok(Start {
            id,
            program: process.program,
            argv: process.argv.into_iter().map(Into::into).collect(),
            env: process.env,
            dir: Some(process.dir),
            log: process.log,
            cpus: if given.cpus.is_empty() { Cpus::Any } else { Cpus::Only(given.cpus) },
            memory: resources.memory_bytes.map(|bytes| MemoryLimit { name, bytes }),
            inherit_stdin: self.placement.replicas.len() == 1 && !self.detached,
        })
    }

    fn release(&mut self, id: AttemptId, exit: &Exit, by_us: bool, usage: Option<Usage>) {
        let replica = &self.placement.placed(id.slot).replica;
        let dir = self.run.attempt(replica, id.attempt);
        tasks::write_end(&dir, &tasks::End { v: 1, replica, attempt: id.attempt, exit, by_us, usage });
        self.pool.give_back(id.slot);
    }
}

/// What goes away when there is room again.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}
