//! What only documents have: a directory for each attempt.

use umiak_core::facts::Finding;
use umiak_core::machine::attempt::End;
use umiak_core::machine::job::AttemptId;
use umiak_core::mask::Known;
use umiak_core::plan::Process;

use super::tasks;
use crate::driver::{Core, Door};
use crate::history::RunDir;
use crate::screen::summary::ReplicaPlace;

pub(super) struct DocumentDoor {
    pub(super) run: RunDir,
    /// What is written nowhere.
    pub(super) known: Known,
}

impl Door for DocumentDoor {
    fn planned(&self, core: &Core) -> Vec<String> {
        let job = &core.plan.job;
        let roles: Vec<String> = job.roles.iter().map(|role| format!("{} {}", role.replicas, role.name)).collect();
        vec![
            format!("job {}", job.name),
            roles.join(", "),
            format!("engine {}", core.plan.engine),
            self.run.id().to_string(),
        ]
    }

    fn place(&self, core: &Core, finding: &Finding) -> ReplicaPlace {
        let Some(replica) = finding.subject.rank.and_then(|rank| core.plan.replica(rank)) else {
            return ReplicaPlace::default();
        };
        let labels: Vec<&str> = core.pool.devices_of(replica.slot).iter().map(|device| device.label.as_str()).collect();
        ReplicaPlace {
            host: umiak_sys::host::name(),
            pid: core.pid(replica.slot),
            devices: if labels.is_empty() { String::new() } else { format!("gpu {}", labels.join(",")) },
            log: core.plan.log(replica, finding.subject.attempt).path.display().to_string(),
            name: Some(finding.subject.replica.clone()),
            run: core.recorder.run_name(),
            start_limit: None,
        }
    }

    fn make(&mut self, core: &mut Core, id: AttemptId, process: &Process) -> std::io::Result<()> {
        let Some(replica) = core.plan.at(id.slot) else { return Ok(()) };
        let Some(dir) = core.plan.attempt_dir(replica, id.attempt) else { return Ok(()) };
        tasks::make(&dir, process, &self.known)?;
        if let Some(membership) = replica.member {
            std::fs::create_dir_all(core.plan.gloo_dir(membership.group, core.machine.attempt()))?;
        }
        if core.plan.mirrored().is_some_and(|mirrored| mirrored.slot == id.slot) {
            tasks::touch_log(process)?;
        }
        Ok(())
    }

    fn ended(&mut self, core: &Core, id: AttemptId, end: &End) {
        let Some(replica) = core.plan.at(id.slot) else { return };
        if let Some(dir) = core.plan.attempt_dir(replica, id.attempt) {
            let End { exit, by_us, usage, .. } = end;
            let record = tasks::EndRecord {
                v: 1,
                replica: &replica.name,
                attempt: id.attempt,
                exit,
                by_us: *by_us,
                usage: *usage,
            };
            tasks::write_end(&dir, &record);
        }
    }
}
