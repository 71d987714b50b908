//! What the job knows of each role as a whole.

use std::time::Duration;

use super::{Machine, Of};
use crate::machine::restart::Past;
use crate::model::{Blame, Slot};

#[derive(Debug, Clone, Default)]
pub(super) struct RoleState {
    /// All of it is being stopped, to be started again after so long, for a failure of this kind.
    pub(super) recycling: Option<(Duration, Blame)>,
    pub(super) past: Past,
    /// How often it was stopped or started again as a whole: old timers are fenced by it.
    pub(super) cycle: u32,
    /// Where some of it are on other nodes and waited for: those that do not listen yet.
    pub(super) elsewhere: Option<Vec<String>>,
    /// It was waited for long enough: those behind it start when it has.
    pub(super) overdue: bool,
    /// The other nodes know that it is ready here.
    pub(super) told_ready: bool,
}

impl Machine {
    pub(super) fn slots_of(&self, of: Of) -> Vec<Slot> {
        match of {
            Of::Replica(slot) => vec![slot],
            Of::Role(role) => self.replicas.slots_of(role),
        }
    }

    /// The whole job starts again: numbers go on, budgets are new.
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
