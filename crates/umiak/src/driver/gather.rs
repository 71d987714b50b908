//! Evidence for attempts that ended badly: their logs, and messages of the kernel.

use std::path::PathBuf;

use umiak_core::diagnose::kernel::add_over_limit;
use umiak_core::facts::Evidence;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::Slot;
use umiak_core::plan::Log;

use super::Driver;
use crate::host::evidence;
use crate::host::kernel::EndedProcess;
use crate::secrets;

const SIGKILL: i32 = 9;

impl Driver {
    /// `ended` failed by themselves; for `stopped`, only log lines from before our stop count.
    pub(super) fn gather(&mut self, ended: &[AttemptId], stopped: &[AttemptId]) -> Vec<(Slot, Evidence)> {
        let now = &self.core.now;
        let told = ended.iter().filter_map(|id| {
            let (log, error_file) = self.left_by(*id)?;
            Some((id.slot, evidence::read(&log.path, log.start, None, &error_file)))
        });
        // Most were healthy: a log whose last lines before our stop have no error is skipped.
        let hurried = stopped.iter().filter_map(|id| {
            let ((log, error_file), end) = (self.left_by(*id)?, *now.log_at_stop.get(&id.slot)?);
            evidence::has_error(&log.path, log.start, end)
                .then(|| (id.slot, evidence::read(&log.path, log.start, Some(end), &error_file)))
        });
        let mut evidence: Vec<(Slot, Evidence)> = told.chain(hurried).collect();
        let ends = ended.iter().chain(stopped).filter_map(|id| {
            let (pid, (exit, _)) = (self.core.pid(id.slot)?, now.ends.get(&id.slot)?);
            let stopped = now.log_at_stop.contains_key(&id.slot);
            Some(EndedProcess { slot: id.slot, pid, exit: exit.clone(), stopped })
        });
        let ends: Vec<EndedProcess> = ends.collect();
        self.core.kernel.explain(&ends, self.core.plan.logs.dir(), &mut evidence);
        for end in ends.iter().filter(|end| self.is_over_limit(end)) {
            let Some(bytes) = self.core.plan.role(end.slot).work.resources.memory_bytes else { continue };
            add_over_limit(evidence::of_slot(&mut evidence, end.slot), bytes >> 10);
        }
        // Before it leaves this node: other nodes do not know its secrets.
        for (_, evidence) in &mut evidence {
            secrets::mask_evidence(evidence);
        }
        evidence
    }

    /// Returns an attempt's log, and the file where torch may have written its error.
    fn left_by(&self, id: AttemptId) -> Option<(Log, PathBuf)> {
        let replica = self.core.plan.at(id.slot)?;
        Some((self.core.plan.log(replica, id.attempt), self.core.plan.error_file(replica, id.attempt)))
    }

    /// True if the memory limit ended it. For a stopped attempt that is certain only if it did not end by our signal.
    fn is_over_limit(&self, end: &EndedProcess) -> bool {
        let by_kernel = end.exit.signal() == Some(SIGKILL) && !self.core.now.killed;
        self.core.now.over_limit.contains(&end.slot) && (by_kernel || !end.stopped)
    }
}
