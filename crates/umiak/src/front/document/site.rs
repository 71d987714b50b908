//! Places jobs on a host: leases addresses, ports and devices, and plans with them.

use std::path::PathBuf;

use umiak_core::diag::{Code, Diagnostic, Source};
use umiak_core::formats::document::Format;
use umiak_core::model::{Device, DeviceKind, EngineChoice, Job, Resources, StepIndex, StepName};
use umiak_core::plan::document::{self, RunPlace, Submission};
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Gpu, Inventory, Plan};
use umiak_sys::regular;

use super::needs;
use super::submit::check_variables;
use crate::engine::{Engine, EngineKind, FixedPort};
use crate::history::RunDir;

/// A run on a host: what all its jobs are placed with.
pub(super) struct Site {
    pub(super) run: RunDir,
    pub(super) kind: EngineKind,
    pub(super) submission: Submission,
    user: String,
    /// Number of CPUs of the host.
    cpus: usize,
    /// The CPUs that replicas are bound to, with `--strict-resources`.
    bound: Option<Vec<u32>>,
    /// The GPUs that the submitter may use.
    gpus: Vec<(u32, Device)>,
    attached: bool,
}

impl Site {
    pub(super) fn new(
        run: RunDir,
        kind: EngineKind,
        submission: Submission,
        inventory: &Inventory,
        attached: bool,
    ) -> Self {
        let is_here = submission.work.engines(kind).iter().any(|kind| kind.capabilities().here);
        let bound = (submission.wishes.strict_resources && is_here).then(own_cpus);
        let user = umiak_sys::host::user().unwrap_or_default();
        let (cpus, gpus) = (inventory.cpus, candidates(inventory));
        Self { run, kind, submission, user, cpus, bound, gpus, attached }
    }

    /// The engines of the run, for lists.
    pub(super) fn engines(&self) -> String {
        self.submission.work.engines(self.kind).iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ")
    }

    /// The name of the user.
    pub(super) fn user(&self) -> &str {
        &self.user
    }

    /// Number of GPUs that the submitter may use.
    pub(super) fn gpus(&self) -> u32 {
        self.gpus.len() as u32
    }

    /// Checks that there are enough CPUs for every job, with `--strict-resources`.
    pub(super) fn check_cpus(&self) -> Result<(), Diagnostic> {
        let mut jobs = self.submission.work.placed(self.kind).filter(|(_, kind)| kind.capabilities().here);
        jobs.try_for_each(|(job, _)| check_cpus(job, &self.run, document::needs(job).cpus, self.bound.as_deref()))
    }

    /// Leases what a job needs, and plans it. `own` is its engine, if it is not that of the run. The engine holds the leases until the job is released.
    pub(super) fn place(
        &self,
        engine: &mut dyn Engine,
        step: Option<(StepIndex, &StepName)>,
        job: &Job,
        own: Option<&EngineChoice>,
        programs: &[PathBuf],
    ) -> Result<(Plan, Pool), Diagnostic> {
        let index = step.map(|(index, _)| index).unwrap_or_default();
        let can = engine.capabilities(index);
        let needed = document::needs(job);
        let granted = needs::lease(engine, index, job, &needed)?;
        let devices = if needed.gpus > 0 { engine.lease_devices(index, &self.gpus, needed.gpus)? } else { Vec::new() };
        check_devices(job, &self.run, needed.gpus, devices.len() as u32, self.gpus.len())?;
        let name = step.map(|(_, name)| name);
        let place = RunPlace {
            run: self.run.id().to_string(),
            step: name.cloned(),
            user: self.user.clone(),
            cpus: self.cpus,
            tasks: self.run.tasks(name),
            scratch: self.run.scratch(name),
            // Several steps could read at once.
            attached: self.attached && step.is_none(),
        };
        let mut plan = document::place(&self.submission, job, programs, place, granted);
        if let Some(EngineChoice { kind, cluster, .. }) = own {
            (plan.engine, plan.cluster) = (kind.word().to_owned(), cluster.clone());
        }
        check_variables(can, &plan)?;
        engine.check_ports(&fixed_ports(&plan))?;
        Ok((plan, Pool::new(devices, self.bound.clone().filter(|_| can.here))))
    }
}

fn fixed_ports(plan: &Plan) -> Vec<FixedPort<'_>> {
    let mut fixed = Vec::new();
    for replica in &plan.replicas {
        let role = plan.role(replica.slot);
        for need in &role.work.ports {
            if let (Some(port), Some(address)) = (need.fixed, replica.host.address()) {
                fixed.push(FixedPort { role: role.name.as_str(), name: &need.name, address, port });
            }
        }
    }
    fixed
}

/// The GPUs that the submitter may use, labelled as `CUDA_VISIBLE_DEVICES` names them.
pub(in crate::front) fn candidates(inventory: &Inventory) -> Vec<(u32, Device)> {
    let limit = inventory.env.get(DeviceKind::Gpu.visible_variable()).filter(|value| *value != "all");
    let named = |gpu: &Gpu| match limit {
        None => Some(gpu.index.to_string()),
        Some(list) => {
            let is_it = |label: &&str| *label == gpu.index.to_string() || *label == gpu.uuid;
            list.split(',').map(str::trim).find(is_it).map(str::to_owned)
        }
    };
    let device = |gpu: &Gpu| Some((gpu.minor, Device { label: named(gpu)?, position: gpu.index }));
    inventory.gpus.iter().filter_map(device).collect()
}

/// Checks that `there` is enough for all replicas at once or, without a gang, for the largest one.
fn check_enough(job: &Job, there: u32, needed: u32, of_role: impl Fn(&Resources) -> u32) -> Result<(), Shortage> {
    let widest = job.roles.iter().map(|role| of_role(&role.work.resources)).max().unwrap_or(0);
    match there {
        _ if there >= needed || !job.policy.gang && there >= widest => Ok(()),
        _ if there >= widest => Err(Shortage::OfAll),
        _ => Err(Shortage::OfOne),
    }
}

/// What the host has too little for.
enum Shortage {
    OfOne,
    /// For all at once; they could run in turns.
    OfAll,
}

/// What hints suggest, in the keys of the document's format.
struct Keys {
    no_gpus: &'static str,
    /// How replicas start without waiting for room for all, where that is possible.
    no_gang: Option<&'static str>,
}

impl Keys {
    fn of(run: &RunDir) -> Self {
        let bytes = regular::read(&run.document()).unwrap_or_default();
        match Format::of(&Source::new("", String::from_utf8_lossy(&bytes))) {
            Some(Format::OpenPai) => {
                let no_gang = Some("extras: {gangAllocation: false}");
                Self { no_gpus: "set `gpu: 0` in `resourcePerInstance`", no_gang }
            }
            Some(Format::PaddleFlow) => Self { no_gpus: "use a flavour without GPUs", no_gang: None },
            Some(Format::PaddleRec) => Self { no_gpus: "set `device: cpu`", no_gang: None },
            Some(Format::Native) | None => {
                Self { no_gpus: "remove `gpu` from `resources`", no_gang: Some("policy: {gang: false}") }
            }
        }
    }
}

fn or_in_turns(hint: &str, no_gang: Option<&str>) -> String {
    let in_turns = no_gang.map(|key| format!("; `{key}` lets replicas wait for each other")).unwrap_or_default();
    format!("{hint}{in_turns}")
}

/// Checks that enough GPUs are leased.
fn check_devices(job: &Job, run: &RunDir, needed: u32, leased: u32, there: usize) -> Result<(), Diagnostic> {
    check_enough(job, leased, needed, |resources| resources.gpus).map_err(|shortage| {
        let Keys { no_gpus, no_gang } = Keys::of(run);
        Diagnostic::error(Code::J0020, "too few GPUs are free on this host")
            .row("needed", needed.to_string())
            .row("free", format!("{leased} of {there}"))
            .hint(match shortage {
                _ if there == 0 => format!("this host has no GPUs; {no_gpus} to run on CPUs"),
                Shortage::OfAll => or_in_turns("stop the processes that use them, or start fewer replicas", no_gang),
                Shortage::OfOne => "stop the processes that use them, or request fewer GPUs".to_owned(),
            })
    })
}

/// The CPUs that replicas can be bound to: those this process may run on, limited by the CPU quota of its cgroup.
fn own_cpus() -> Vec<u32> {
    let mut cpus = umiak_sys::host::allowed_cpus();
    cpus.truncate(umiak_sys::host::cpus());
    cpus
}

/// Checks that there are enough CPUs, with `--strict-resources`.
fn check_cpus(job: &Job, run: &RunDir, needed: u32, there: Option<&[u32]>) -> Result<(), Diagnostic> {
    let Some(there) = there.map(|cpus| cpus.len() as u32) else { return Ok(()) };
    check_enough(job, there, needed, Resources::whole_cpus).map_err(|shortage| {
        Diagnostic::error(Code::J0020, "too few CPUs on this host for `--strict-resources`")
            .row("needed", needed.to_string())
            .row("usable", there.to_string())
            .hint(match shortage {
                Shortage::OfAll => or_in_turns("start fewer replicas, or request less `cpu`", Keys::of(run).no_gang),
                Shortage::OfOne => {
                    "request less `cpu`, or omit `--strict-resources` to run without enforcing it".to_owned()
                }
            })
    })
}
