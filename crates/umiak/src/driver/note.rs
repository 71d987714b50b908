//! Updates the driver's state from recorded facts. Performs nothing.

use std::time::{Duration, Instant};

use umiak_core::facts::Fact;
use umiak_core::model::StopHow;

use super::JobDriver;
use crate::clock::time_of_day_after;

/// Shorter delays before an attempt are not shown.
const PAUSE: Duration = Duration::from_secs(2);

impl JobDriver<'_> {
    pub(super) fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Starting { subject } => {
                if let Some(slot) = self.core.job.slot_of(subject) {
                    let now = &mut self.core.job.now;
                    now.instances.remove(&slot);
                    now.ends.remove(&slot);
                    now.log_at_stop.remove(&slot);
                    now.over_limit.remove(&slot);
                    now.pause = None;
                }
            }
            Fact::Ended { subject, exit, by_us, .. } => {
                if let Some(slot) = self.core.job.slot_of(subject) {
                    self.core.job.now.ends.insert(slot, (exit.clone(), *by_us));
                    if self.core.job.is_shown(slot) {
                        self.core.run.screen.let_go(Some(self.core.job.mirror_key(slot)), true);
                    }
                }
            }
            Fact::Stopping { reason } => {
                // Other steps may go on.
                if self.core.job.step.is_none() {
                    self.core.run.screen.let_go(None, false);
                }
                // A later reason changes neither outcome nor blame.
                if self.core.job.now.stopping.is_none() {
                    self.core.job.now.stopping = Some((Instant::now(), *reason));
                    self.tell_stopping(*reason);
                } else {
                    self.tell_stopping_again(*reason);
                }
            }
            Fact::StopSent { how: StopHow::Kill, .. } if self.core.job.now.stopping.is_some() => {
                self.core.job.now.killed = true;
            }
            Fact::Hung { .. } => self.core.job.now.watching.is_declared = true,
            Fact::Abandoned { .. } => self.core.job.now.abandoned = true,
            Fact::Retrying { scope, subjects, delay_micros, .. } => {
                self.tell_retrying(*scope, subjects, Duration::from_micros(*delay_micros));
            }
            Fact::Restarting { delay_micros, of, .. } => {
                let delay = Duration::from_micros(*delay_micros);
                self.tell_restarting(*of, delay);
                self.core.job.now.pause = Some(time_of_day_after(delay)).filter(|_| delay >= PAUSE);
                self.forget_attempt();
            }
            Fact::Resizing { .. } => self.forget_attempt(),
            _ => {}
        }
    }
    /// Timers of the last attempt no longer apply.
    fn forget_attempt(&mut self) {
        self.core.job.now.timers.keep_deadline();
        (self.core.job.now.stopping, self.core.job.now.told) = (None, false);
    }
}
