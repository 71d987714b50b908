//! Notices that a job hangs: for the time that the policy allows no replica writes, reads or sends anything, and two
//! samples of their stacks are equal. CPU time is no sign of progress: replicas that wait for each other often spin.
//!
//! Counters that cannot be read count as progress: a job is never called hung for what is not known. Stacks are a second
//! opinion only: of programs other than Python none can be read, so missing ones count as unchanged.

use std::collections::BTreeMap;
use std::time::Duration;

use umiak_core::facts::StackFrame;
use umiak_core::machine::job::Event;
use umiak_core::model::{Slot, Timestamp};

use super::Driver;
use crate::host::{observe, stacks};

/// Time between the two samples of stacks.
const BETWEEN: Duration = Duration::from_secs(5);
/// Bounds of the time between two looks.
const OFTEN: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(5);

/// Log length, and bytes moved by its processes, if known.
type Progress = BTreeMap<Slot, (u64, Option<u64>)>;
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

    /// Counts the time without progress anew: replicas were suspended and resumed. The next look withdraws a report
    /// that they hang.
    pub(super) fn begin_again(&mut self) {
        *self = Self { hung: self.hung, ..Self::default() };
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
        let is_watched = !pids.is_empty() && !is_stopping;
        if !is_watched || has_moved(&watch.last, &progress) {
            watch.last = progress;
            let was_hung = std::mem::take(&mut watch.hung);
            (watch.moved, watch.sample) = (Some(now), None);
            if was_hung && is_watched {
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
                let equal = sample.as_ref().is_some_and(|(_, first)| are_alike(first, &current));
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
        let length = |slot: Slot| {
            let log = self.core.log(self.core.machine.id(slot));
            log.and_then(|log| std::fs::metadata(log.path).ok()).map_or(0, |metadata| metadata.len())
        };
        pids.iter().map(|(slot, pid)| (*slot, (length(*slot), umiak_sys::observe::moved(*pid)))).collect()
    }
}

/// True if something has changed, or may have.
fn has_moved(last: &Progress, current: &Progress) -> bool {
    last != current || current.values().any(|(_, bytes)| bytes.is_none())
}

/// True unless a process in both samples has another stack. A stack that could not be read says nothing.
fn are_alike(first: &Stacks, second: &Stacks) -> bool {
    let other = |pid: u32| first.iter().find(|(of, _)| *of == pid).map(|(_, stack)| stack);
    second.iter().all(|(pid, stack)| other(*pid).is_none_or(|other| other == stack))
}

fn sampled(pids: &[(Slot, u32)]) -> Stacks {
    let processes: Vec<u32> = pids.iter().map(|(_, pid)| umiak_sys::observe::worker(*pid)).collect();
    stacks::take(&processes, observe::UNHURRIED.stacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(line: u32) -> Vec<StackFrame> {
        vec![StackFrame { function: "step".to_owned(), file: "train.py".to_owned(), line }]
    }

    #[test]
    fn only_stacks_of_both_samples_are_compared() {
        let first = vec![(1, stack(3)), (2, stack(4))];
        assert!(are_alike(&first, &vec![(2, stack(4)), (1, stack(3))]), "the order says nothing");
        assert!(are_alike(&first, &vec![(2, stack(4)), (3, stack(9))]), "one could not be read in each");
        assert!(are_alike(&first, &Vec::new()) && are_alike(&Vec::new(), &first), "none could be read");
        assert!(!are_alike(&first, &vec![(2, stack(5))]));
    }

    #[test]
    fn unknown_counters_are_progress() {
        let progress = |bytes: Option<u64>| Progress::from([(Slot { role: 0, index: 0 }, (7, bytes))]);
        assert!(!has_moved(&progress(Some(1)), &progress(Some(1))));
        assert!(has_moved(&progress(Some(1)), &progress(Some(2))));
        assert!(has_moved(&progress(None), &progress(None)));
    }
}
