//! The job of a node and its ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::{self, AttemptId, Event, Gathered, Machine, Stand};
use umiak_core::machine::round::messages::{NodeProcess, Offer, RankPlace, Stage, Standing, Start, Told};
use umiak_core::model::{
    Exit, ExitCodes, Generation, Instance, Job, JobId, Policy, Port, Rank, Role, RoleName, Slot, StepIndex, StopHow,
    StopPolicy,
};

use super::journal::Entry;
use super::scenario::{ABANDON, SETTLE};
use super::world::{Item, Sabotage, State, World};

impl World {
    pub(super) fn offer(&self, front: usize, attempt: u32) -> Standing {
        let port = |number: usize| Port::new(6000 + (attempt % 500) as u16 * 100 + number as u16).expect("not 0");
        let processes = (0..self.scenario.fronts[front].processes).map(|rank| NodeProcess::trainer(port(rank), vec![]));
        let offer = Offer { processes: processes.collect(), stores: [port(50), port(51)], device_kind: None };
        Standing::new(attempt, Stage::Ready(offer))
    }

    fn new_machine(&self, front: usize) -> Machine {
        let processes = self.scenario.fronts[front].processes as u32;
        let job = Job {
            name: JobId::new("simulated").expect("a plain name"),
            labels: BTreeMap::new(),
            agent_store: false,
            contracts: vec![],
            roles: vec![Role::new(RoleName::new("trainer").expect("a plain name"), processes)],
            policy: Policy {
                restart: self.scenario.restart,
                stop: StopPolicy { grace: self.scenario.grace, abandon: ABANDON },
                settle: SETTLE,
                hang: None,
                ..Policy::default()
            },
        };
        let style = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: false, etcd: None };
        let mut machine = Machine::new(job, style, self.scenario.seed);
        machine.share();
        machine
    }

    fn numbers(&self, front: usize, start: &Start) -> (Rank, Vec<Vec<u32>>) {
        let lower = start.nodes.iter().take(start.you as usize);
        let first: u32 = lower.map(|share| share.processes.len() as u32).sum();
        let count = self.scenario.fronts[front].processes as u32;
        (Rank(first), vec![(first..first + count).collect()])
    }

    pub(super) fn first_start(&mut self, front: usize, start: &Start) {
        let (first, numbers) = self.numbers(front, start);
        let machine = self.new_machine(front).ranks_from(first).numbered(numbers).joining_at(start.attempt);
        self.fronts[front].machine = Some(machine);
        self.job(front, Event::Start);
    }

    pub(super) fn name_ranks(&mut self, front: usize, start: &Start) {
        let (first, numbers) = self.numbers(front, start);
        if let Some(machine) = &mut self.fronts[front].machine {
            machine.rename(first, numbers);
        }
    }

    pub(super) fn has_ranks(&self, front: usize) -> bool {
        self.fronts[front].alive.contains(&true)
    }

    pub(super) fn job(&mut self, front: usize, event: Event) {
        if self.fronts[front].state != State::Running {
            return;
        }
        self.note(|| format!("  job {front} ← {event:?}"));
        let now = self.local(front);
        let Some(machine) = &mut self.fronts[front].machine else { return };
        for effect in machine.step(event, now) {
            self.perform_job(front, effect);
        }
    }

    fn perform_job(&mut self, front: usize, effect: job::Effect) {
        use job::Effect;
        match effect {
            Effect::Spawn(ids) => self.spawn(front, &ids),
            Effect::Stop { how, targets } => {
                let attempt = self.fronts[front].attempt;
                self.record(Entry::Stopping { front, attempt });
                if self.sabotage != Some(Sabotage::NoSignals) {
                    for id in targets {
                        self.stop_rank(front, how, id.slot);
                    }
                }
            }
            Effect::ArmTimer { timer, attempt, at } => {
                let at = self.global(front, at).max(self.now);
                self.plan(at, Item::Job(front, Event::Timer(timer, attempt)));
            }
            Effect::Gather { ended, stopped, .. } => {
                let found = ended.into_iter().chain(stopped).map(Gathered::nothing).collect();
                self.plan(self.now + Duration::from_millis(10), Item::Job(front, Event::Gathered(found)));
            }
            Effect::Prepare { attempt } => {
                (self.fronts[front].next, self.fronts[front].is_named) = (false, false);
                let at = self.now + self.scenario.fronts[front].prepare;
                self.plan(at, Item::Prepared(front, attempt));
            }
            Effect::Stand(stand) => {
                let Some(machine) = &self.fronts[front].machine else { return };
                // Between two attempts, messages are about the next one.
                let attempt = machine.attempt() + u32::from(machine.is_pausing());
                let stage = match stand {
                    Stand::Serving => Stage::Serving,
                    Stand::Succeeded => Stage::Succeeded,
                    Stand::Hung => Stage::Hung,
                    Stand::Moves => Stage::Running,
                    Stand::Failed => Stage::Failed { waited: false },
                    Stand::Told(ends) => Stage::Told(
                        ends.into_iter()
                            .map(|end| {
                                let rank = end.subject.rank.map_or(0, |rank| rank.0);
                                Told { end, place: RankPlace { rank, ..RankPlace::default() } }
                            })
                            .collect(),
                    ),
                    Stand::Interrupted { signal, kill } => Stage::Interrupted { signal, kill },
                };
                self.stand(front, Standing::new(attempt, stage));
            }
            Effect::Finish { outcome, code } => self.close(front, outcome, code),
            _ => {}
        }
    }

    /// The node has leased its ports for the next attempt.
    pub(super) fn prepared(&mut self, front: usize, attempt: u32) {
        let node = &mut self.fronts[front];
        let is_pausing = node.machine.as_ref().is_some_and(Machine::is_pausing);
        if node.state != State::Running || !is_pausing {
            return;
        }
        node.next = true;
        let standing = self.offer(front, attempt);
        self.stand(front, standing);
    }

    fn spawn(&mut self, front: usize, ids: &[AttemptId]) {
        let Some(attempt) = ids.first().map(|id| id.attempt) else { return };
        self.record(Entry::Spawned { front, attempt });
        (self.fronts[front].attempt, self.fronts[front].is_named) = (attempt, false);
        let fails = self.scenario.fronts[front].fails.get(attempt as usize).copied().flatten();
        let fails = fails.filter(|_| self.now < self.scenario.quiet);
        for id in ids {
            let rank = id.slot.index as usize;
            self.fronts[front].alive[rank] = true;
            let started = Event::Started { id: *id, instance: Instance::of_pid(1000 + rank as u32) };
            self.plan(self.now, Item::Job(front, started));
            let (after, code) = match fails.filter(|_| rank == 0) {
                Some(after) => (after, 1),
                None => (self.scenario.work, 0),
            };
            self.plan(self.now + after, Item::Dies { front, attempt, rank, exit: Exit::Code { code } });
        }
    }

    fn stop_rank(&mut self, front: usize, how: StopHow, slot: Slot) {
        let grace = self.scenario.grace.as_micros() as u64;
        // Some take longer than they have.
        let after = match how {
            StopHow::Kill => 1000,
            StopHow::Interrupt | StopHow::Terminate => match self.rng.u32(..4) {
                0 => grace * 2,
                1 => self.rng.u64(..grace),
                _ => self.rng.u64(..20_000),
            },
        };
        let exit = Exit::Signal { signal: if how == StopHow::Kill { 9 } else { 15 }, core_dumped: false };
        let (attempt, rank) = (self.fronts[front].attempt, slot.index as usize);
        self.plan(self.now + Duration::from_micros(after), Item::Dies { front, attempt, rank, exit });
    }

    pub(super) fn dies(&mut self, front: usize, attempt: u32, rank: usize, exit: Exit) {
        let node = &mut self.fronts[front];
        if node.attempt != attempt || !std::mem::replace(&mut node.alive[rank], false) {
            return;
        }
        if let Exit::Code { code: 1 } = exit {
            self.record(Entry::Failed { front, attempt });
        }
        if !self.has_ranks(front) {
            self.record(Entry::Ended { front, attempt });
        }
        let id = AttemptId { step: StepIndex(0), slot: Slot { role: 0, index: rank as u32 }, attempt };
        let exited = Event::Exited { id, exit, classed: None, usage: None };
        self.plan(self.now + Duration::from_millis(1), Item::Job(front, exited));
    }

    /// The front is gone: the guardian stops the ranks, or they are gone with their host.
    pub(super) fn bury(&mut self, front: usize, vanishes: bool) {
        if !self.has_ranks(front) {
            return;
        }
        let attempt = self.fronts[front].attempt;
        self.record(Entry::Stopping { front, attempt });
        for rank in 0..self.fronts[front].alive.len() {
            if vanishes {
                self.dies(front, attempt, rank, Exit::Lost);
            } else {
                let after = self.rng.u64(..=self.scenario.grace.as_micros() as u64);
                let at = self.now + Duration::from_micros(after);
                self.plan(at, Item::Dies { front, attempt, rank, exit: Exit::Lost });
            }
        }
    }
}
