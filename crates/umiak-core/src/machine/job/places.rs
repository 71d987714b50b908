//! What the job knows of each replica and of each role beside its attempts.

use std::time::Duration;

use super::{AttemptId, Machine, Of};
use crate::facts::Limit;
use crate::machine::attempt::End;
use crate::machine::restart::Past;
use crate::model::{Blame, Slot, StepIndex, StopHow};

/// Of one replica.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    /// Of its attempt, from 0. Never used twice.
    pub(super) number: u32,
    /// The attempt of that number has been announced.
    pub(super) begun: bool,
    /// All its ports answer.
    pub(super) ready: bool,
    pub(super) timed_out: Option<Limit>,
    /// It waits before it is started again.
    pub(super) backing_off: bool,
    /// A supervisor that is gone had it live: what becomes of it is said at the start.
    pub(super) inherited: Option<Inherited>,
    /// A supervisor that is gone stopped it so. If nothing here wants that, it starts again.
    pub(super) stopped_before: Option<StopHow>,
    pub(super) past: Past,
    /// How earlier attempts ended, until that has been told.
    pub(super) untold: Vec<(u32, End)>,
}

impl Place {
    /// The next attempt is announced.
    pub(super) fn begin(&mut self) {
        self.number += u32::from(self.begun);
        (self.begun, self.ready, self.timed_out, self.stopped_before) = (true, false, None, None);
    }
}

/// What a new supervisor finds of an attempt that was live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inherited {
    Lost,
    /// The engine still has it.
    Adopted,
}

/// Of one role.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    /// All of it is being stopped, to be started again after so long, for a failure of this kind.
    pub(super) recycling: Option<(Duration, Blame)>,
    pub(super) past: Past,
    /// How often it was stopped or started again as a whole: old timers are fenced by it.
    pub(super) cycle: u32,
    /// Where some of it are on other nodes and waited for: who does not answer yet.
    pub(super) elsewhere: Option<Vec<String>>,
}

impl Machine {
    pub(super) fn place(&self, slot: Slot) -> &Place {
        &self.places[slot.role as usize][slot.index as usize]
    }

    pub(super) fn place_mut(&mut self, slot: Slot) -> &mut Place {
        &mut self.places[slot.role as usize][slot.index as usize]
    }

    /// The attempt that a replica is at.
    pub fn id(&self, slot: Slot) -> AttemptId {
        AttemptId { step: self.step, slot, attempt: self.place(slot).number }
    }

    /// Which job of the run this is.
    pub fn step_index(&self) -> StepIndex {
        self.step
    }

    /// Which attempt of this replica runs, ran last, or will be the next after a back-off.
    pub fn number(&self, slot: Slot) -> u32 {
        self.place(slot).number
    }

    pub(super) fn slots_of(&self, of: Of) -> Vec<Slot> {
        match of {
            Of::Replica(slot) => vec![slot],
            Of::Role(role) => (0..self.roles[role as usize].len() as u32).map(|index| Slot { role, index }).collect(),
        }
    }

    /// The whole job starts again: numbers go on, and at least as far as the job's; budgets are new.
    pub(super) fn renew_places(&mut self) {
        for place in self.places.iter_mut().flatten() {
            let number = (place.number + u32::from(place.begun)).max(self.attempt);
            let untold = std::mem::take(&mut place.untold);
            *place = Place { number, untold, ..Place::default() };
        }
        for group in &mut self.groups {
            let elsewhere = group.elsewhere.take();
            *group = Group { cycle: group.cycle + 1, elsewhere, ..Group::default() };
        }
        self.completed = false;
    }
}
