//! The replicas of a job, and how many are in which state.
//!
//! Policies need the number of replicas of a role that wait, run or have succeeded. Counting them for each event would
//! cost more the larger the job is. So every change of a replica goes through [`Replicas::change`], which maintains the
//! counts and the sets of waiting replicas.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;

use crate::facts::Limit;
use crate::machine::attempt::{Attempt, End};
use crate::machine::restart::Past;
use crate::machine::role::Counts;
use crate::model::{Exit, FIRST_ATTEMPT, Slot, StopSent};

#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub(super) attempt: Attempt,
    /// Number of the attempt, from [`FIRST_ATTEMPT`]. Never reused.
    pub(super) number: u32,
    /// Number of its first attempt in this attempt of the job.
    pub(super) first: u32,
    /// True once the attempt of that number has been announced.
    pub(super) begun: bool,
    /// True if it listens on all its ports.
    pub(super) ready: bool,
    pub(super) timed_out: Option<Limit>,
    /// True during the back-off before a restart.
    pub(super) backing_off: bool,
    /// Set if it was live under an earlier supervisor. Handled at the start.
    pub(super) inherited: Option<Inherited>,
    /// The stop that an earlier supervisor sent. Unless this supervisor stops it too, it starts again.
    pub(super) stopped_before: Option<StopSent>,
    pub(super) past: Past,
    /// Ends of earlier attempts that are not reported yet.
    pub(super) untold: Vec<(u32, End)>,
}

/// What a new supervisor finds for an attempt that was live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inherited {
    Lost,
    /// The engine still has it.
    Adopted,
}

impl Replica {
    fn new(number: u32) -> Self {
        Self {
            attempt: Attempt::Waiting,
            number,
            first: number,
            begun: false,
            ready: false,
            timed_out: None,
            backing_off: false,
            inherited: None,
            stopped_before: None,
            past: Past::default(),
            untold: Vec::new(),
        }
    }

    /// Begins the next attempt.
    pub(super) fn begin(&mut self) {
        self.number += u32::from(self.begun);
        (self.begun, self.ready, self.timed_out, self.stopped_before) = (true, false, None, None);
    }

    /// Resets the replica for a restart of the whole job. Numbers continue, at least from the job's; budgets are new.
    pub(super) fn renew(&mut self, attempt: u32) {
        let number = (self.number + u32::from(self.begun)).max(attempt);
        let untold = std::mem::take(&mut self.untold);
        *self = Self { untold, ..Self::new(number) };
    }

    fn standing(&self) -> Standing {
        match &self.attempt {
            Attempt::Waiting => Standing::Waiting,
            Attempt::Starting { .. } => Standing::Starting,
            Attempt::Running { .. } if self.ready => Standing::Ready,
            Attempt::Running { .. } => Standing::Running,
            Attempt::Stopping { .. } => Standing::Stopping,
            Attempt::Ended(end) if end.is_success() => Standing::Succeeded,
            Attempt::Ended(end) if end.exit == Exit::Lost => Standing::Lost,
            Attempt::Ended(end) if end.is_failure() => Standing::Failed,
            Attempt::Ended(_) => Standing::Stopped,
            Attempt::Abandoned => Standing::Abandoned,
        }
    }

    fn is_due(&self) -> bool {
        self.attempt == Attempt::Waiting && !self.backing_off
    }
}

/// The state of a replica, as far as policies distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Waiting,
    Starting,
    /// Its ports do not answer, or are not awaited.
    Running,
    Ready,
    Stopping,
    Succeeded,
    Failed,
    /// Failed, with no exit status.
    Lost,
    /// Ended by our stop, not by a failure of its own.
    Stopped,
    Abandoned,
}

/// How many replicas are in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Tally([u32; 10]);

impl Tally {
    fn of(&self, standing: Standing) -> u32 {
        self.0[standing as usize]
    }

    fn sum(&self, standings: &[Standing]) -> u32 {
        standings.iter().map(|standing| self.of(*standing)).sum()
    }

    pub(super) fn all(&self) -> u32 {
        self.0.iter().sum()
    }

    pub(super) fn waiting(&self) -> u32 {
        self.of(Standing::Waiting)
    }

    pub(super) fn starting(&self) -> u32 {
        self.of(Standing::Starting)
    }

    /// Excludes those that are being stopped.
    pub(super) fn running(&self) -> u32 {
        self.sum(&[Standing::Running, Standing::Ready])
    }

    pub(super) fn ready(&self) -> u32 {
        self.of(Standing::Ready)
    }

    pub(super) fn live(&self) -> u32 {
        self.sum(&[Standing::Starting, Standing::Running, Standing::Ready, Standing::Stopping])
    }

    pub(super) fn over(&self) -> u32 {
        self.all() - self.live() - self.waiting()
    }

    pub(super) fn succeeded(&self) -> u32 {
        self.of(Standing::Succeeded)
    }

    pub(super) fn lost(&self) -> u32 {
        self.of(Standing::Lost)
    }

    pub(super) fn abandoned(&self) -> u32 {
        self.of(Standing::Abandoned)
    }

    /// Counts for a completion policy: a replica that could not be stopped has failed.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            replicas: self.all(),
            succeeded: self.succeeded(),
            failed: self.sum(&[Standing::Failed, Standing::Lost, Standing::Abandoned]),
            over: self.over(),
        }
    }
}

/// The replicas of one role.
#[derive(Debug, Clone, Default)]
struct Members {
    replicas: Vec<Replica>,
    tally: Tally,
    /// Neither started nor in a back-off.
    due: BTreeSet<u32>,
    backing_off: BTreeSet<u32>,
}

/// The replicas of all roles.
#[derive(Debug, Clone)]
pub(super) struct Replicas {
    roles: Vec<Members>,
    total: Tally,
    visits: Visits,
}

/// How often replicas were visited. The simulator bounds this per event. It always counts, since an increment is
/// cheaper than a second build of this crate. Not part of the state.
#[derive(Clone, Default)]
struct Visits(Cell<u64>);

impl Visits {
    fn add(&self, count: usize) {
        self.0.set(self.0.get() + count as u64);
    }
}

impl fmt::Debug for Visits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl Replicas {
    /// Replicas of roles of these sizes, all waiting.
    pub(super) fn new(sizes: impl IntoIterator<Item = u32>) -> Self {
        let mut all = Self { roles: Vec::new(), total: Tally::default(), visits: Visits::default() };
        for size in sizes {
            let mut tally = Tally::default();
            tally.0[Standing::Waiting as usize] = size;
            all.total.0[Standing::Waiting as usize] += size;
            let replicas = (0..size).map(|_| Replica::new(FIRST_ATTEMPT)).collect();
            all.roles.push(Members { replicas, tally, due: (0..size).collect(), backing_off: BTreeSet::new() });
        }
        all
    }

    pub(super) fn find(&self, slot: Slot) -> Option<&Replica> {
        self.visits.add(1);
        self.roles.get(slot.role as usize)?.replicas.get(slot.index as usize)
    }

    pub(super) fn get(&self, slot: Slot) -> &Replica {
        self.visits.add(1);
        &self.roles[slot.role as usize].replicas[slot.index as usize]
    }

    /// The only way to change a replica: updates the counts.
    pub(super) fn change<T>(&mut self, slot: Slot, change: impl FnOnce(&mut Replica) -> T) -> T {
        self.visits.add(1);
        let members = &mut self.roles[slot.role as usize];
        let replica = &mut members.replicas[slot.index as usize];
        let before = replica.standing();
        let result = change(replica);
        let after = replica.standing();
        for tally in [&mut members.tally, &mut self.total] {
            tally.0[before as usize] -= 1;
            tally.0[after as usize] += 1;
        }
        keep(&mut members.due, slot.index, replica.is_due());
        keep(&mut members.backing_off, slot.index, replica.backing_off);
        result
    }

    pub(super) fn of_role(&self, role: u16) -> &Tally {
        &self.roles[role as usize].tally
    }

    pub(super) fn total(&self) -> &Tally {
        &self.total
    }

    /// Replicas of a role that are neither started nor in a back-off.
    pub(super) fn due(&self, role: u16) -> Vec<Slot> {
        self.slots_in(role, &self.roles[role as usize].due)
    }

    pub(super) fn backing_off(&self, role: u16) -> Vec<Slot> {
        self.slots_in(role, &self.roles[role as usize].backing_off)
    }

    fn slots_in(&self, role: u16, set: &BTreeSet<u32>) -> Vec<Slot> {
        self.visits.add(set.len());
        set.iter().map(|index| Slot { role, index: *index }).collect()
    }

    pub(super) fn slots_of(&self, role: u16) -> Vec<Slot> {
        let size = self.roles[role as usize].replicas.len();
        self.visits.add(size);
        (0..size as u32).map(|index| Slot { role, index }).collect()
    }

    pub(super) fn slots(&self) -> Vec<Slot> {
        (0..self.roles.len() as u16).flat_map(|role| self.slots_of(role)).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Replica)> {
        self.slots().into_iter().map(|slot| (slot, self.get(slot)))
    }

    pub(super) fn visits(&self) -> u64 {
        self.visits.0.get()
    }

    /// True if a recount gives the same counts.
    pub(super) fn are_counted(&self) -> bool {
        let mut total = Tally::default();
        let roles = self.roles.iter().all(|members| {
            let mut tally = Tally::default();
            for replica in &members.replicas {
                tally.0[replica.standing() as usize] += 1;
                total.0[replica.standing() as usize] += 1;
            }
            let indices = |wanted: fn(&Replica) -> bool| {
                (0u32..).zip(&members.replicas).filter(|(_, replica)| wanted(replica)).map(|(index, _)| index).collect()
            };
            let (due, backing_off): (BTreeSet<u32>, BTreeSet<u32>) =
                (indices(Replica::is_due), indices(|replica| replica.backing_off));
            (tally, &due, &backing_off) == (members.tally, &members.due, &members.backing_off)
        });
        roles && total == self.total
    }
}

fn keep(set: &mut BTreeSet<u32>, index: u32, wanted: bool) {
    if wanted {
        set.insert(index);
    } else {
        set.remove(&index);
    }
}
