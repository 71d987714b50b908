//! What the other replicas are doing when one has failed, before they are stopped.

use std::net::SocketAddr;

use umiak_core::diagnose;
use umiak_core::facts::{Fact, Observed};
use umiak_core::machine::job::AttemptId;
use umiak_core::model::Slot;

use super::{JobDriver, JobRun};
use crate::host::{evidence, observe};

impl JobDriver<'_> {
    /// Looks at these replicas. Kept until the evidence is gathered: the stop comes first.
    pub(super) fn observe(&mut self, ids: &[AttemptId]) {
        let core = &mut self.core;
        let ranks: Vec<(Slot, u32)> = ids.iter().filter_map(|id| Some((id.slot, core.job.pid(id.slot)?))).collect();
        if ranks.is_empty() || !self.engine.capabilities(core.job.machine.step_index()).here {
            return;
        }
        let seen = core.job.now.watching.take_seen().unwrap_or_else(|| {
            let stacks = core.job.now.watching.is_declared || core.job.now.waited_elsewhere || core.job.has_waited();
            observe::look(&ranks, observe::BEFORE_STOP, stacks)
        });
        core.job.now.seen = seen.into_iter().collect();
        for id in ids {
            let Some(log) = core.job.log(*id) else { continue };
            let endpoint: Option<SocketAddr> =
                core.job.plan.at(id.slot).and_then(|replica| replica.endpoint.as_ref()?.to_string().parse().ok());
            if let Some(seen) = core.job.now.seen.get_mut(&id.slot) {
                let listening = endpoint.zip(seen.listening.as_ref());
                seen.snapshot.listens = listening.map(|(at, on)| on.accepts(Some(at.ip()), at.port()));
                let quiet = observe::quiet(&log);
                seen.snapshot.quiet_micros = quiet.and_then(|quiet| u64::try_from(quiet.as_micros()).ok());
            }
        }
    }

    /// Records what was seen.
    pub(super) fn record_observed(&mut self) {
        let seen = &self.core.job.now.seen;
        let slots = self.core.job.slots().filter_map(|slot| Some((slot, seen.get(&slot)?)));
        let replicas: Vec<Observed> = slots
            .map(|(slot, seen)| Observed {
                subject: self.core.job.machine.subject(slot),
                snapshot: seen.snapshot.clone(),
                children: seen.children.clone(),
            })
            .collect();
        if !replicas.is_empty() {
            self.core.fact(Fact::Observed { replicas });
        }
    }
}

impl JobRun {
    /// True if the log of a failed replica ends with a time-out: a peer did not respond.
    pub(crate) fn has_waited(&self) -> bool {
        let failed = self.now.ends.iter().filter(|(_, (exit, by_us))| !by_us && !exit.is_success());
        let mut logs = failed.filter_map(|(slot, _)| self.log(self.machine.id(*slot)));
        logs.any(|log| diagnose::ends_with_timeout(&evidence::glance(&log, None)))
    }
}
