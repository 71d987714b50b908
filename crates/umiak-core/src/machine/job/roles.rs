//! The state of each role as a whole.

use std::time::Duration;

use super::{Machine, Of};
use crate::machine::restart::Past;
use crate::model::{Blame, Slot};

#[derive(Debug, Clone, Default)]
pub(super) struct RoleState {
    /// Set while the whole role is stopped for a restart: the delay, and the kind of failure.
    pub(super) recycling: Option<(Duration, Blame)>,
    pub(super) past: Past,
    /// How often the role was stopped or restarted as a whole; fences off old timers.
    pub(super) cycle: u32,
    /// Replicas on other nodes that are awaited and do not listen yet, by address.
    pub(super) elsewhere: Option<Vec<String>>,
    /// The time to wait for it is over: roles behind it start once it has started.
    pub(super) overdue: bool,
    /// The other nodes were told that it is ready here.
    pub(super) told_ready: bool,
}

impl Machine {
    pub(super) fn slots_of(&self, of: Of) -> Vec<Slot> {
        match of {
            Of::Replica(slot) => vec![slot],
            Of::Role(role) => self.replicas.slots_of(role),
        }
    }

    /// Resets all replicas and roles for a restart of the job: numbers continue, budgets are new.
    pub(super) fn renew(&mut self) {
        let attempt = self.attempt;
        for slot in self.replicas.slots() {
            self.replicas.change(slot, |replica| replica.renew(attempt));
        }
        for role in &mut self.roles {
            let elsewhere = role.elsewhere.take();
            *role = RoleState { cycle: role.cycle + 1, elsewhere, ..RoleState::default() };
        }
    }
}
