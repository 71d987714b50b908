//! What only documents have: a directory per attempt.

use std::collections::BTreeMap;
use std::path::PathBuf;

use umiak_core::contract::Variable;
use umiak_core::facts::Finding;
use umiak_core::machine::attempt::End;
use umiak_core::machine::job::AttemptId;
use umiak_core::mask::Known;
use umiak_core::model::{Device, DeviceKind, FIRST_ATTEMPT};
use umiak_core::plan::{Plan, Process};

use super::tasks;
use crate::driver::{Core, Door};
use crate::engine::Common;
use crate::history::RunDir;
use crate::screen::summary::ReplicaPlace;

pub(super) struct DocumentDoor {
    run: RunDir,
    /// Secrets that are not written to files.
    known: Known,
    /// Variables of this process that the submitter does not have.
    unset: Vec<String>,
    /// Variables of the submitter that this process does not have, or with other values.
    given: Vec<Variable>,
    /// How attempts have ended, to be written to their directories.
    ends: Vec<(PathBuf, String)>,
}

impl DocumentDoor {
    /// `environment` is that of the submitter.
    pub(super) fn new(run: RunDir, known: Known, environment: BTreeMap<String, String>) -> Self {
        let ours = crate::host::environment();
        let unset = ours.keys().filter(|name| !environment.contains_key(*name)).cloned().collect();
        let given = environment.into_iter().filter(|(name, value)| ours.get(name) != Some(value)).collect();
        Self { run, known, unset, given, ends: Vec::new() }
    }
}

impl Door for DocumentDoor {
    fn planned(&self, core: &Core<'_>) -> Vec<String> {
        let job = &core.job.plan.job;
        let roles: Vec<String> = job.roles.iter().map(|role| format!("{} {}", role.replicas, role.name)).collect();
        vec![
            format!("job {}", job.name),
            roles.join(", "),
            format!("engine {}", core.job.plan.engine),
            self.run.id().to_string(),
        ]
    }

    /// What replicas get in addition to our own environment, which differs from the submitter's after a resume or
    /// retry.
    fn common(&self, plan: &Plan) -> Common {
        let stop = plan.job.policy.stop.grace;
        Common {
            unset: self.unset.clone(),
            set: self.given.iter().chain(&plan.common).cloned().collect(),
            rotate: None,
            grace: plan.job.roles.iter().filter_map(|role| role.grace).chain([stop]).max().unwrap_or(stop),
        }
    }

    fn place(&self, core: &Core<'_>, finding: &Finding) -> ReplicaPlace {
        let Some(replica) = finding.subject.rank.and_then(|rank| core.job.plan.replica(rank)) else {
            return ReplicaPlace::default();
        };
        ReplicaPlace {
            is_elsewhere: core.job.node(replica.slot).is_some(),
            host: core.job.node(replica.slot).unwrap_or_else(umiak_sys::host::name),
            pid: core.job.now.instances.get(&replica.slot).and_then(|instance| instance.pid),
            devices: Device::described(DeviceKind::Gpu, core.job.pool.devices_of(replica.slot)),
            log: core.job.plan.log(replica, finding.subject.attempt).path.display().to_string(),
            name: Some(match &core.job.step {
                None => finding.subject.replica.clone(),
                Some(step) if core.job.plan.replicas.len() == 1 => format!("step {step}"),
                Some(step) => format!("step {step}, {}", finding.subject.replica),
            }),
            run: core.run.recorder.run_name(),
            start_limit: None,
            is_shown: false,
        }
    }

    fn make(&mut self, core: &mut Core<'_>, id: AttemptId, process: &Process) -> std::io::Result<()> {
        let Some(replica) = core.job.plan.at(id.slot) else { return Ok(()) };
        let Some(dir) = core.job.plan.attempt_dir(replica, id.attempt) else { return Ok(()) };
        if core.job.is_placed_later {
            // An agent fills it, once it knows the places of all.
            return umiak_sys::files::make_directory(&dir);
        }
        let common = core.job.step.as_ref().map(|_| core.job.plan.common.as_slice());
        tasks::make(&dir, process, common, &self.known)?;
        if let Some(membership) = replica.member {
            let attempt = core.job.machine.attempt();
            umiak_sys::files::make_directory(&core.job.plan.meeting_dir(membership.group, attempt))?;
            if attempt > FIRST_ATTEMPT && id.slot.index == 0 {
                // Removing those of very many attempts at the end would take long.
                let _ = std::fs::remove_dir_all(core.job.plan.meeting_dir(membership.group, attempt - 1));
            }
        }
        Ok(())
    }

    fn ended(&mut self, core: &Core<'_>, id: AttemptId, end: &End) {
        let Some(replica) = core.job.plan.at(id.slot) else { return };
        if let Some(dir) = core.job.plan.attempt_dir(replica, id.attempt) {
            let End { exit, by_us, usage, .. } = end;
            let record = tasks::EndRecord {
                v: 1,
                replica: &replica.name,
                attempt: id.attempt,
                exit,
                by_us: *by_us,
                usage: *usage,
            };
            self.ends.extend(tasks::end_file(&dir, &record));
        }
    }

    fn settled(&mut self) {
        for (path, text) in self.ends.drain(..) {
            tasks::write_end(&path, &text);
        }
    }
}
