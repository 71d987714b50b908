//! Walks through the timeline step by step and compares it with the expected state.

use std::collections::{BTreeMap, BTreeSet};

use umiak_core::facts::{Began, Fact, Limit, StopReason, Subject, Verdict};
use umiak_core::machine::job::{AttemptId, Effect, Event};
use umiak_core::model::{Exit, FIRST_ATTEMPT, Scope, Slot, StartAfter, StepIndex, StopHow, Timestamp, When};

use super::policy::{self, Ends, Fate};
use super::shadow::{End, Group, Shadow, Stage};
use super::timeline::{Rule, Run, Step, Violation, What};

/// Everything that is wrong with a run.
pub(super) fn check(run: &Run) -> Vec<Violation> {
    let mut judge = Judge::new(run);
    for index in 0..run.steps.len() {
        judge.index = index;
        judge.step(&run.steps[index]);
    }
    judge.index = run.steps.len();
    judge.check(!run.stalled, Rule::Finish, || "nothing is left to happen, and it has not ended".to_owned());
    judge.violations
}

pub(super) struct Judge<'a> {
    pub(super) run: &'a Run,
    pub(super) index: usize,
    pub(super) now: Timestamp,
    pub(super) shadows: BTreeMap<Slot, Shadow>,
    pub(super) groups: Vec<Group>,
    names: BTreeMap<String, Slot>,
    spawned: BTreeSet<AttemptId>,
    pub(super) attempt: u32,
    /// When the supervisor received the start event.
    pub(super) started: Option<Timestamp>,
    pub(super) finished: bool,
    /// The first reason to stop, and the strongest reason since.
    pub(super) stop: Option<(StopReason, StopReason)>,
    pub(super) guardian_lost: bool,
    /// A guardian was lost in this attempt of the job, and another took its place.
    pub(super) guardian_replaced: bool,
    pub(super) signals: u32,
    pub(super) stops: u32,
    pub(super) first_signal: Option<i32>,
    /// True once a kill request has ended the grace periods.
    pub(super) impatient: bool,
    pub(super) verdict: Option<Verdict>,
    /// When the whole job was restarted.
    pub(super) restarts: Vec<(umiak_core::model::Blame, Timestamp)>,
    /// Between two attempts: the earliest next start, and whether preparation succeeded.
    pub(super) pause: Option<(Timestamp, Option<bool>)>,
    /// Total time of earlier supervisors.
    pub(super) used: std::time::Duration,
    began: Timestamp,
    violations: Vec<Violation>,
}

impl<'a> Judge<'a> {
    fn new(run: &'a Run) -> Self {
        let slots = run.scenario.slots();
        Self {
            run,
            index: 0,
            now: Timestamp::default(),
            shadows: slots.iter().map(|slot| (*slot, Shadow::default())).collect(),
            groups: vec![Group::default(); run.scenario.job.roles.len()],
            names: slots.iter().map(|slot| (run.scenario.name(*slot), *slot)).collect(),
            spawned: BTreeSet::new(),
            attempt: FIRST_ATTEMPT,
            started: None,
            finished: false,
            stop: None,
            guardian_lost: false,
            guardian_replaced: false,
            signals: 0,
            stops: 0,
            first_signal: None,
            impatient: false,
            verdict: None,
            restarts: Vec::new(),
            pause: None,
            used: std::time::Duration::ZERO,
            began: Timestamp::default(),
            violations: Vec::new(),
        }
    }

    pub(super) fn check(&mut self, holds: bool, rule: Rule, message: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { rule, step: self.index, message: message() });
        }
    }

    fn step(&mut self, step: &Step) {
        self.check(self.now <= step.at, Rule::Numbers, || "time runs backwards".to_owned());
        self.now = step.at;
        let event = match &step.what {
            What::Began(why, adopted) => return self.take_over(*why, adopted),
            What::Event(event) => event,
        };
        let ended = self.finished;
        self.before(event);
        let mut announced: Option<&Fact> = None;
        for effect in &step.effects {
            if ended {
                let harmless = matches!(effect, Effect::Record(Fact::Ignored { .. }));
                self.check(harmless, Rule::Finish, || format!("{effect:?} after the end"));
                continue;
            }
            match effect {
                Effect::Record(fact) => self.fact(fact, step),
                Effect::Spawn(ids) => self.spawn(ids),
                Effect::Stop { how, targets } => self.stop_sent(*how, targets, announced),
                Effect::Finish { outcome, code } => {
                    let same = announced == Some(&Fact::Finished { outcome: *outcome, exit_code: *code });
                    self.check(same, Rule::FactFirst, || "the end is not in the journal".to_owned());
                }
                Effect::StartUnready { role } => self.start_unready(*role),
                Effect::Prepare { attempt } => {
                    let recorded = self.pause.is_some() && self.attempt == *attempt;
                    self.check(recorded, Rule::FactFirst, || "the restart is not in the journal".to_owned());
                }
                _ => {}
            }
            announced = if let Effect::Record(fact) = effect { Some(fact) } else { None };
        }
        if !step.lost && !ended {
            self.after(event);
        }
        if step.lost || (self.finished && !ended) {
            self.used += step.at.since(self.began);
        }
    }

    /// Another supervisor takes over.
    fn take_over(&mut self, why: Began, adopted: &BTreeSet<AttemptId>) {
        self.began = self.now;
        self.started = None;
        self.finished = false;
        self.stop = None;
        (self.guardian_lost, self.guardian_replaced) = (false, false);
        (self.signals, self.stops, self.first_signal, self.impatient) = (0, 0, None, false);
        self.verdict = None;
        self.pause = None;
        for group in &mut self.groups {
            (group.recycling, group.overdue) = (None, false);
        }
        let retried = why != Began::Resumed;
        if retried {
            self.restarts.clear();
            self.used = std::time::Duration::ZERO;
            self.groups.iter_mut().for_each(|group| group.past.clear());
        }
        for (slot, shadow) in &mut self.shadows {
            shadow.waits = None;
            if retried {
                shadow.past.clear();
            }
            let stays = match &shadow.stage {
                Stage::Ended(end) if end.is_good() => why != Began::RetriedAll,
                Stage::Ended(end) => end.is_bad() && end.exit != Exit::Lost && !retried,
                Stage::Announced | Stage::Running { .. } => true,
                Stage::Idle | Stage::Gone => false,
            };
            if !stays {
                let promised = shadow.promised;
                shadow.clear();
                shadow.promised = promised.filter(|_| !retried);
            }
            let held = |id: &AttemptId| id.slot == *slot && Some(id.attempt) == shadow.number;
            shadow.adopted = shadow.is_live() && adopted.iter().any(held);
            shadow.lost = shadow.is_live() && !shadow.adopted;
            // A recorded stop counts, whether it was sent or not.
            shadow.stopped_before = shadow.stopped;
            shadow.asked = shadow.asked.or(shadow.stopped.map(|_| self.now));
            shadow.terminated |= shadow.stopped >= Some(StopHow::Terminate);
            shadow.killed = shadow.killed.or(shadow.stopped.filter(|how| *how == StopHow::Kill).map(|_| self.now));
            // Undecided failures are decided again.
            shadow.open = shadow.end().is_some_and(End::is_bad);
        }
    }

    fn before(&mut self, event: &Event) {
        match event {
            Event::Start if self.started.is_none() => {
                self.started = Some(self.now);
                self.go_on();
            }
            Event::EngineLost { again: false } => self.guardian_lost = true,
            Event::EngineLost { again: true } => self.guardian_replaced = true,
            Event::Signalled { signal } => {
                self.signals += 1;
                self.first_signal.get_or_insert(*signal);
                self.impatient |= self.signals > 1;
            }
            Event::StopAsked { kill } => {
                self.stops += 1;
                self.impatient |= *kill || self.stops > 1;
            }
            Event::Prepared { attempt, ready } if *attempt == self.attempt => {
                if let Some((_, room)) = &mut self.pause {
                    room.get_or_insert(*ready);
                }
            }
            _ => {}
        }
    }

    /// Adopted attempts have their full time limits. A role that restarts because of an earlier failure is stopped.
    fn go_on(&mut self) {
        let now = self.now;
        for shadow in self.shadows.values_mut().filter(|shadow| shadow.adopted) {
            shadow.adopted = false;
            if let Stage::Running { since } = &mut shadow.stage {
                *since = now;
            }
            shadow.again = shadow.stopped_before.filter(|how| Some(*how) == shadow.stopped);
            match shadow.again {
                Some(StopHow::Interrupt | StopHow::Terminate) => shadow.asked = Some(now),
                Some(StopHow::Kill) => shadow.killed = Some(now),
                None => {}
            }
        }
        for slot in self.shadows.keys().copied().collect::<Vec<_>>() {
            if self.shadows[&slot].open {
                self.recycle(slot);
            }
        }
    }

    fn fact(&mut self, fact: &Fact, step: &Step) {
        match fact {
            Fact::Starting { subject } => self.starting(subject),
            Fact::Started { subject, .. } => {
                let now = self.now;
                if let Some(shadow) = self.subject(subject) {
                    let first = shadow.stage == Stage::Announced && shadow.spawned;
                    shadow.stage = Stage::Running { since: now };
                    self.check(first, Rule::OneEnd, || format!("{subject:?} started without a request"));
                }
            }
            Fact::Ready { subject } => {
                if let Some(shadow) = self.subject(subject) {
                    let first = !std::mem::replace(&mut shadow.ready, true);
                    self.check(first, Rule::Stale, || format!("{subject:?} is ready twice"));
                }
            }
            Fact::TimedOut { subject, what, limit_micros } => self.timed_out(subject, *what, *limit_micros),
            Fact::Ended { subject, exit, by_us, .. } => self.ended(subject, exit, *by_us),
            Fact::Stopping { reason } => self.stopping(*reason, step),
            Fact::StopSent { how, replicas } => {
                for slot in replicas.iter().filter_map(|name| self.slot(name)).collect::<Vec<_>>() {
                    let shadow = self.shadows.get_mut(&slot).expect("slots of its job");
                    shadow.interrupted |= *how == StopHow::Interrupt && shadow.stopped.is_none();
                    shadow.stopped = Some(*how);
                }
            }
            Fact::Abandoned { replicas } => self.abandoned(replicas),
            Fact::Diagnosed(verdict) => self.verdict = Some(verdict.clone()),
            Fact::Retrying { scope, subjects, blame, max, delay_micros } => {
                self.retrying(*scope, subjects, *blame, *max, *delay_micros);
            }
            Fact::Restarting { attempt, delay_micros, blame, .. } => self.restarting(*attempt, *delay_micros, *blame),
            Fact::Finished { outcome, exit_code } => self.finish(*outcome, *exit_code),
            _ => {}
        }
    }

    pub(super) fn slot(&self, name: &str) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// The replica that a fact is about, if it is at that attempt.
    fn subject(&mut self, subject: &Subject) -> Option<&mut Shadow> {
        let slot = self.slot(&subject.replica);
        let fits = slot.is_some_and(|slot| self.shadows[&slot].number == Some(subject.attempt));
        self.check(fits, Rule::Numbers, || format!("{subject:?} does not match a running attempt"));
        self.shadows.get_mut(&slot.filter(|_| fits)?)
    }

    fn starting(&mut self, subject: &Subject) {
        let Some(slot) = self.slot(&subject.replica) else { return };
        let shadow = &self.shadows[&slot];
        let (last, stage, promised, waits) = (shadow.number, shadow.stage.clone(), shadow.promised, shadow.waits);
        let grows = last.is_none_or(|last| subject.attempt > last);
        self.check(grows, Rule::Numbers, || format!("{subject:?} after {last:?}"));
        let kept = promised.is_none_or(|promised| promised == subject.attempt);
        self.check(kept, Rule::Numbers, || format!("{subject:?}, and {promised:?} was promised"));
        self.check(stage == Stage::Idle, Rule::Rerun, || format!("{subject:?} starts from {stage:?}"));
        // If the engine is lost before the start, all are announced, and lost with it.
        let waited = self.guardian_lost || waits.is_none_or(|until| until <= self.now);
        self.check(waited, Rule::Backoff, || format!("{subject:?} is in a back-off"));
        let pause = self.pause.take();
        self.guardian_replaced &= pause.is_none();
        let may = pause.is_none_or(|(until, room)| until <= self.now && room == Some(true));
        self.check(may, Rule::Restart, || format!("{subject:?} starts in a pause until {pause:?}"));
        let (open, stop) = (self.started.is_some() && self.stop.is_none(), self.stop);
        self.check(open, Rule::Spawn, || format!("{subject:?} starts, after {stop:?}"));
        let recycling = self.groups[slot.role as usize].recycling.is_some();
        self.check(!recycling, Rule::Spawn, || format!("{subject:?} starts while its role is stopped"));
        let shadow = self.shadows.get_mut(&slot).expect("it was just seen");
        shadow.clear();
        shadow.number = Some(subject.attempt);
        shadow.stage = Stage::Announced;
    }

    fn spawn(&mut self, ids: &[AttemptId]) {
        for id in ids {
            let shadow = self.shadows.get_mut(&id.slot).expect("slots of its job");
            let known = shadow.stage == Stage::Announced && shadow.number == Some(id.attempt) && !shadow.spawned;
            shadow.spawned = true;
            self.check(known, Rule::FactFirst, || format!("{id:?} is not in the journal"));
            let first = self.spawned.insert(*id);
            self.check(first, Rule::Numbers, || format!("{id:?} is started twice"));
            self.check(!self.guardian_lost, Rule::Spawn, || format!("{id:?} starts without a guardian"));
            for after in self.run.scenario.job.roles[id.slot.role as usize].start_after.clone() {
                let come = self.has_come(after, true);
                self.check(come, Rule::Order, || format!("{id:?} starts before {after:?}"));
            }
        }
    }

    /// Roles that wait for this one stop waiting: not too early.
    fn start_unready(&mut self, role: u16) {
        let patience = self.run.scenario.job.roles[role as usize].timeouts.patience;
        let due = patience.and_then(|patience| Some(self.started? + patience));
        let in_time = due.is_some_and(|due| self.now >= due);
        self.check(in_time, Rule::Order, || format!("role {role} was waited for until {due:?} only"));
        self.groups[role as usize].overdue = true;
    }

    pub(super) fn slots_of(&self, role: u16) -> Vec<Slot> {
        self.shadows.keys().copied().filter(|slot| slot.role == role).collect()
    }

    /// True if the condition is met, according to the facts, or in truth if requested.
    fn has_come(&self, after: StartAfter, in_truth: bool) -> bool {
        let other = &self.run.scenario.job.roles[after.role as usize];
        let overdue = self.groups[after.role as usize].overdue;
        let ports = after.when == When::Ready && !other.work.ports.is_empty() && !overdue;
        if after.when == When::Succeeded {
            return self.fate(after.role) == Fate::Good;
        }
        self.slots_of(after.role).iter().all(|slot| {
            let shadow = &self.shadows[slot];
            match &shadow.stage {
                Stage::Running { .. } if ports && in_truth => {
                    let id =
                        AttemptId { step: StepIndex(0), slot: *slot, attempt: shadow.number.unwrap_or(FIRST_ATTEMPT) };
                    let answered = self.run.answered.get(&id).is_some_and(|at| *at <= self.now);
                    shadow.asked.is_none() && shadow.ready && answered
                }
                Stage::Running { .. } => shadow.asked.is_none() && (shadow.ready || !ports),
                Stage::Ended(end) => end.is_good(),
                Stage::Idle | Stage::Announced | Stage::Gone => false,
            }
        })
    }

    /// True if the condition can no longer be met.
    fn is_vain(&self, after: StartAfter) -> bool {
        if self.groups[after.role as usize].recycling.is_some() || self.has_come(after, false) {
            return false;
        }
        let over = |shadow: &Shadow| matches!(shadow.stage, Stage::Ended(_) | Stage::Gone);
        let bad = |shadow: &Shadow| over(shadow) && !shadow.end().is_some_and(End::is_good);
        let mut shadows = self.slots_of(after.role).into_iter().map(|slot| &self.shadows[&slot]);
        if after.when == When::Succeeded { shadows.all(over) } else { shadows.any(bad) }
    }

    pub(super) fn fate(&self, role: u16) -> Fate {
        if self.groups[role as usize].recycling.is_some() {
            return Fate::Open;
        }
        let slots = self.slots_of(role);
        let count = |wanted: fn(&Shadow) -> bool| slots.iter().filter(|slot| wanted(&self.shadows[*slot])).count();
        let good = count(|shadow| shadow.end().is_some_and(End::is_good));
        let bad = count(|shadow| shadow.stage == Stage::Gone || shadow.end().is_some_and(End::is_bad));
        let ended = count(|shadow| shadow.end().is_some());
        let gone = count(|shadow| shadow.stage == Stage::Gone);
        let job = &self.run.scenario.job;
        let ends = Ends { replicas: slots.len(), good, bad, other: ended + gone - good - bad };
        policy::fate(&job.roles[role as usize].completion, job.policy.success, ends)
    }

    fn ended(&mut self, subject: &Subject, exit: &Exit, by_us: bool) {
        let exits = self.run.scenario.job.policy.exits;
        let now = self.now;
        let Some(slot) = self.slot(&subject.replica) else { return };
        let Some(shadow) = self.subject(subject) else { return };
        let (lived, lost, before) = (shadow.is_live(), shadow.lost, shadow.stopped_before.is_some());
        let late = shadow.timed_out.is_some();
        let ours = match exit {
            Exit::Signal { .. } | Exit::Code { code: 1.. } if shadow.interrupted => true,
            Exit::Code { code: 0 } => shadow.asked.is_some() || shadow.killed.is_some(),
            Exit::Signal { signal: 15, .. } => shadow.asked.is_some(),
            Exit::Signal { signal: 9, .. } => shadow.killed.is_some(),
            _ => false,
        };
        let timed_out = shadow.timed_out.is_some();
        let class = policy::class(exits, exit, timed_out || by_us);
        let end = End { exit: exit.clone(), class, by_us, timed_out, at: now };
        shadow.open = end.is_bad();
        shadow.stage = Stage::Ended(end);
        self.check(lived, Rule::OneEnd, || format!("{subject:?} ends, and did not live"));
        self.check(ours == by_us, Rule::OurDoing, || format!("{subject:?} ended with {exit:?}: {by_us}"));
        let may_be_lost = lost || self.guardian_lost || self.guardian_replaced;
        self.check(*exit != Exit::Lost || may_be_lost, Rule::OneEnd, || format!("{subject:?} is not lost"));
        // Lost with an earlier supervisor: reset.
        if lost {
            self.check(*exit == Exit::Lost, Rule::OneEnd, || format!("{subject:?} was another supervisor's"));
            self.shadows.get_mut(&slot).expect("it was just seen").clear();
            return;
        }
        // An earlier supervisor stopped it, and this one has no reason to.
        let recycling = self.groups[slot.role as usize].recycling.is_some();
        if by_us && before && !late && !recycling && self.stop.is_none() && !self.guardian_lost {
            self.shadows.get_mut(&slot).expect("it was just seen").clear();
        } else {
            self.recycle(slot);
            self.release(slot.role);
        }
    }

    fn timed_out(&mut self, subject: &Subject, what: Limit, limit_micros: u64) {
        let now = self.now;
        let Some(slot) = self.slot(&subject.replica) else { return };
        let timeouts = self.run.scenario.job.roles[slot.role as usize].timeouts;
        let limit = if what == Limit::Start { timeouts.start } else { timeouts.run };
        let Some(shadow) = self.subject(subject) else { return };
        let late =
            matches!(shadow.stage, Stage::Running { since } if limit.is_some_and(|limit| now.since(since) >= limit));
        let ready = shadow.ready && what == Limit::Start;
        let asked = shadow.asked.is_some();
        shadow.timed_out = Some(what);
        let told = limit.is_some_and(|limit| limit.as_micros() == u128::from(limit_micros));
        let right = late && !ready && !asked && told;
        self.check(right, Rule::Limits, || format!("{subject:?} is not late for {what:?}"));
    }

    /// Conditions after all effects of an event.
    fn after(&mut self, event: &Event) {
        if self.started.is_none() || self.finished {
            return;
        }
        let lost = self.shadows.values().any(|shadow| shadow.lost);
        self.check(!lost, Rule::OneEnd, || "attempts of an earlier supervisor are not closed".to_owned());
        let unsent = self.shadows.values().any(|shadow| shadow.is_live() && shadow.again.is_some());
        self.check(!unsent, Rule::Terminate, || "a stop of an earlier supervisor is not sent again".to_owned());
        self.after_stops(event);
        if self.stop.is_some() || self.pause.is_some() {
            return;
        }
        for slot in self.shadows.keys().copied().collect::<Vec<_>>() {
            self.after_replica(slot);
        }
        self.should_have_retried();
        self.should_have_decided();
    }

    fn after_replica(&mut self, slot: Slot) {
        let role = &self.run.scenario.job.roles[slot.role as usize];
        let shadow = self.shadows[&slot].clone();
        let slack = self.run.scenario.late;
        if let Stage::Running { since } = shadow.stage
            && shadow.asked.is_none()
        {
            let now = self.now;
            let over = |limit: Option<std::time::Duration>| limit.is_some_and(|limit| now > since + limit + slack);
            self.check(!over(role.timeouts.run), Rule::Limits, || format!("{slot:?} runs too long"));
            let waits = |after: &StartAfter| after.role == slot.role && after.when == When::Ready;
            let awaited = self.run.scenario.job.roles.iter().any(|other| other.start_after.iter().any(waits));
            let late = awaited && !role.work.ports.is_empty() && !shadow.ready && over(role.timeouts.start);
            self.check(!late, Rule::Limits, || format!("the ports of {slot:?} do not answer"));
        }
        let idle = shadow.stage == Stage::Idle && self.groups[slot.role as usize].recycling.is_none();
        let waits = shadow.waits.is_some_and(|until| self.now <= until + slack);
        if idle && !waits && !self.guardian_lost {
            let vain = role.start_after.iter().any(|after| self.is_vain(*after));
            self.check(!vain, Rule::Order, || format!("{slot:?} waits for a condition that cannot be met"));
            self.waits_at_most(slot);
            let due = role.start_after.iter().all(|after| self.has_come(*after, false));
            self.check(!due, Rule::Order, || format!("{slot:?} is due and does not start"));
        }
    }

    /// A role that has not started in the first attempt waits no longer than `patience` allows.
    fn waits_at_most(&mut self, slot: Slot) {
        let first =
            self.attempt == FIRST_ATTEMPT && self.shadows[&slot].number.is_none() && self.began == Timestamp::default();
        let Some(started) = self.started.filter(|_| first && self.stop.is_none()) else { return };
        let roles = &self.run.scenario.job.roles;
        for after in roles[slot.role as usize].start_after.iter().filter(|after| after.when == When::Ready) {
            let Some(patience) = roles[after.role as usize].timeouts.patience else { continue };
            let in_time = self.now <= started + patience + self.run.scenario.late;
            let holds = in_time || self.groups[after.role as usize].overdue;
            self.check(holds, Rule::Order, || format!("{slot:?} waits for {after:?} beyond its patience"));
        }
    }

    pub(super) fn scope(&self, slot: Slot) -> Scope {
        self.run.scenario.job.roles[slot.role as usize].restart.scope
    }
}
