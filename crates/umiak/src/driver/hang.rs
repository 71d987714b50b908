//! Notices that a job hangs: for the time that the policy allows no replica writes, reads or sends anything, and two
//! samples of all stacks are equal. CPU time is no sign of progress: replicas that wait for each other often spin.

use std::collections::BTreeMap;
use std::time::Duration;

use umiak_core::facts::StackFrame;
use umiak_core::machine::job::Event;
use umiak_core::model::{Slot, Timestamp};

use super::Driver;
use crate::host::stacks;

/// Time between the two samples of stacks.
const BETWEEN: Duration = Duration::from_secs(5);
/// Time for the stacks of all replicas.
pub(super) const STACKS: Duration = Duration::from_secs(2);
/// Bounds of the time between two looks.
const OFTEN: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(5);

/// Log length, and bytes moved by its processes.
type Progress = BTreeMap<Slot, (u64, u64)>;
type Stacks = Vec<(u32, Vec<StackFrame>)>;

/// What is known about the progress of the current attempt of the job.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// When to look again.
    at: Option<Timestamp>,
    last: Progress,
    /// When something last moved.
    moved: Option<Timestamp>,
    /// The first sample of stacks.
    sample: Option<(Timestamp, Stacks)>,
    hung: bool,
}

impl Watch {
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.at
    }

    pub(super) fn is_hung(&self) -> bool {
        self.hung
    }
}

impl Driver {
    /// Looks for progress, if it is time.
    pub(super) fn watch_progress(&mut self) {
        let Some(limit) = self.core.plan.job.policy.hang else { return };
        let now = self.core.clock.now();
        if self.core.now.watch.at.is_some_and(|at| at > now) || !self.engine.kind().capabilities().here {
            return;
        }
        let pids: Vec<(Slot, u32)> =
            self.core.machine.live_ids().iter().filter_map(|id| Some((id.slot, self.core.pid(id.slot)?))).collect();
        let progress = self.progress_of(&pids);
        let is_stopping = self.core.now.stopping.is_some();
        let watch = &mut self.core.now.watch;
        watch.at = Some(now + (limit / 10).clamp(OFTEN, SELDOM));
        if progress != watch.last || pids.is_empty() || is_stopping {
            watch.last = progress;
            let was_hung = std::mem::take(&mut watch.hung);
            (watch.moved, watch.sample) = (Some(now), None);
            if was_hung {
                self.dispatch(Event::Hung(false));
            }
            return;
        }
        let quiet_until = *watch.moved.get_or_insert(now) + limit;
        if now < quiet_until || watch.hung {
            return;
        }
        match &watch.sample {
            Some((taken, _)) if now < *taken + BETWEEN => {}
            sample => {
                let current = sampled(&pids);
                let equal = sample.as_ref().is_some_and(|(_, first)| *first == current);
                let watch = &mut self.core.now.watch;
                watch.sample = Some((now, current));
                watch.hung = equal;
                if equal {
                    self.dispatch(Event::Hung(true));
                }
            }
        }
    }

    fn progress_of(&self, pids: &[(Slot, u32)]) -> Progress {
        let moved = umiak_sys::observe::moved(&pids.iter().map(|(_, pid)| *pid).collect::<Vec<_>>());
        let length = |slot: Slot| {
            let log = self.core.log(self.core.machine.id(slot));
            log.and_then(|log| std::fs::metadata(log.path).ok()).map_or(0, |metadata| metadata.len())
        };
        pids.iter().zip(moved).map(|((slot, _), (_, moved))| (*slot, (length(*slot), moved))).collect()
    }
}

fn sampled(pids: &[(Slot, u32)]) -> Stacks {
    let processes: Vec<u32> = pids.iter().map(|(_, pid)| umiak_sys::observe::worker(*pid)).collect();
    let mut stacks = stacks::take(&processes, STACKS);
    stacks.sort_by_key(|(pid, _)| *pid);
    stacks
}
