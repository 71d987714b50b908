//! Evidence for attempts that ended badly: their logs, and messages of the kernel.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use umiak_core::diagnose::{self, kernel::add_over_limit, pai};
use umiak_core::facts::Evidence;
use umiak_core::machine::job::{AttemptId, Gathered};
use umiak_core::model::{Classed, Exit, Exits, Slot};
use umiak_core::plan::Log;

use super::JobDriver;
use crate::host::evidence;
use crate::host::kernel::EndedProcess;
use crate::secrets;

const SIGKILL: i32 = 9;
/// Nothing else is heard during the search of a log. When it has taken this long, and a tenth of the time since the
/// start, only this much of each log is searched.
const SEARCH: Duration = Duration::from_millis(500);
const HURRIED: u64 = 64 << 10;

impl JobDriver<'_> {
    /// `ended` failed by themselves; for `stopped`, only log lines from before our stop count; `done` have succeeded.
    pub(super) fn gather(&mut self, ended: &[AttemptId], stopped: &[AttemptId], done: &[AttemptId]) -> Vec<Gathered> {
        let now = &self.core.job.now;
        let told = ended.iter().filter_map(|id| {
            let (log, error_file) = self.left_by(*id)?;
            // One that exceeded a time limit was stopped by us: what it wrote after our signal is no evidence.
            let is_stopped = now.ends.get(&id.slot).is_some_and(|(_, by_us)| *by_us);
            let end = now.log_at_stop.get(&id.slot).copied().filter(|_| is_stopped);
            Some((id.slot, evidence::read(&log, end, &error_file)))
        });
        let hurried = stopped.iter().filter_map(|id| {
            let ((log, error_file), end) = (self.left_by(*id)?, *now.log_at_stop.get(&id.slot)?);
            // Most were healthy: only a log whose last lines before our stop have an error is searched.
            let last = evidence::glance(&log, Some(end));
            let evidence = if evidence::has_error(&last) {
                evidence::read(&log, Some(end), &error_file)
            } else {
                Evidence { last_lines: diagnose::last_lines(&last), ..Evidence::default() }
            };
            Some((id.slot, evidence))
        });
        let finished = done.iter().filter_map(|id| {
            let log = self.core.job.log(*id)?;
            let last_lines = diagnose::last_lines(&evidence::glance(&log, None));
            Some((id.slot, Evidence { last_lines, ..Evidence::default() }))
        });
        let mut evidence: Vec<(Slot, Evidence)> = told.chain(hurried).chain(finished).collect();
        let ends = ended.iter().chain(stopped).filter_map(|id| {
            let (pid, (exit, _)) = (self.core.job.pid(id.slot)?, now.ends.get(&id.slot)?);
            let stopped = now.log_at_stop.contains_key(&id.slot);
            Some(EndedProcess { slot: id.slot, pid, exit: exit.clone(), stopped })
        });
        let ends: Vec<EndedProcess> = ends.collect();
        self.core.run.kernel.explain(&ends, self.core.job.plan.logs.dir(), &mut evidence);
        for end in ends.iter().filter(|end| self.is_over_limit(end)) {
            let Some(bytes) = self.core.job.plan.role(end.slot).work.resources.memory_bytes else { continue };
            add_over_limit(evidence::of_slot(&mut evidence, end.slot), bytes >> 10);
        }
        // The process of another node is not known here, but its node has told.
        let elsewhere = ended.iter().chain(stopped).filter(|id| self.core.job.pid(id.slot).is_none());
        for id in elsewhere.filter(|id| now.over_limit.contains(&id.slot) && !now.log_at_stop.contains_key(&id.slot)) {
            let Some(bytes) = self.core.job.plan.role(id.slot).work.resources.memory_bytes else { continue };
            add_over_limit(evidence::of_slot(&mut evidence, id.slot), bytes >> 10);
        }
        evidence::add_interfaces(evidence.iter_mut().map(|(_, evidence)| evidence));
        // Before it leaves this node: other nodes do not know its secrets.
        for (_, evidence) in &mut evidence {
            secrets::mask_evidence(evidence);
        }
        let mut evidence: HashMap<Slot, Evidence> = evidence.into_iter().collect();
        let all = ended.iter().chain(stopped).chain(done);
        all.map(|id| self.known(id.slot, evidence.remove(&id.slot))).collect()
    }

    /// What the job's table of exits says about a failed end. The log is searched only if the exit does not decide.
    pub(super) fn classify(&mut self, id: AttemptId, exit: &Exit, over_limit: bool) -> Option<Classed> {
        let Exits::Pai = self.core.job.plan.job.policy.exits.filter(|_| !exit.is_success())?;
        let begun = self.core.job.now.attempt_started.map(|begun| begun.elapsed()).unwrap_or_default();
        let length = if self.core.job.now.searched < SEARCH + begun / 10 { pai::SEARCHED } else { HURRIED };
        // What it wrote after our signal is no evidence.
        let end = self.core.job.now.log_at_stop.get(&id.slot).copied();
        let log = self.core.job.log(id);
        let started = Instant::now();
        let classed = pai::classify(exit, over_limit, || {
            log.map(|log| evidence::last_bytes(&log, end, length)).unwrap_or_default()
        });
        self.core.job.now.searched += started.elapsed();
        Some(classed)
    }

    /// Evidence, with what was seen of the replica before our first signal, and its addresses.
    fn known(&self, slot: Slot, evidence: Option<Evidence>) -> Gathered {
        let seen = self.core.job.now.seen.get(&slot);
        let mut addresses =
            self.core.job.plan.at(slot).map(|replica| self.core.job.plan.addresses(replica)).unwrap_or_default();
        addresses.extend(seen.into_iter().flat_map(|seen| &seen.addresses));
        Gathered { slot, evidence, snapshot: seen.map(|seen| seen.snapshot.clone()), addresses }
    }

    /// Returns an attempt's log, and the file where torch may have written its error.
    fn left_by(&self, id: AttemptId) -> Option<(Log, PathBuf)> {
        let replica = self.core.job.plan.at(id.slot)?;
        Some((self.core.job.plan.log(replica, id.attempt), self.core.job.plan.error_file(replica, id.attempt)))
    }

    /// True if the memory limit ended it. For a stopped attempt that is certain only if it did not end by our signal.
    fn is_over_limit(&self, end: &EndedProcess) -> bool {
        let by_kernel = end.exit.signal() == Some(SIGKILL) && !self.core.job.now.killed;
        self.core.job.now.over_limit.contains(&end.slot) && (by_kernel || !end.stopped)
    }
}
