//! Walks through a run with a shadow of each attempt's expected state, and compares.

use std::collections::BTreeMap;
use std::time::Duration;

use umiak_core::facts::{Fact, StopReason, Subject, Verdict};
use umiak_core::machine::job::{AttemptId, Effect, Event, Timer};
use umiak_core::model::{Exit, FIRST_ATTEMPT, MinSucceeded, Slot, StopHow, Timestamp};

use super::invariants::{Rule, Violation};
use super::pause::Pause;
use super::timeline::{Run, Step};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
const SIGINT: i32 = 2;

/// From SIGINT to SIGTERM: 2 s, or half the grace period if that is shorter.
pub(crate) fn after_interrupt(grace: Duration) -> Duration {
    Duration::from_secs(2).min(grace / 2)
}

/// The expected state of one attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Shadow {
    pub(super) recorded: bool,
    pub(super) spawned: bool,
    pub(super) announced: bool,
    pub(super) interrupted: bool,
    pub(super) terminated: bool,
    pub(super) killed: bool,
    pub(super) abandoned: bool,
    pub(super) end: Option<ShadowEnd>,
}

#[derive(Debug, Clone)]
pub(super) struct ShadowEnd {
    pub(super) exit: Exit,
    pub(super) by_us: bool,
    pub(super) order: u64,
    pub(super) before_stop: bool,
}

impl Shadow {
    fn is_over(&self) -> bool {
        self.end.is_some() || self.abandoned
    }

    fn is_live(&self) -> bool {
        self.recorded && !self.is_over()
    }
}

/// A fact whose effect must follow.
#[derive(Debug, PartialEq)]
enum Announced {
    Stop(StopHow, Vec<String>),
    Report(Verdict),
    Finish(String),
}

pub(super) struct Judge<'a> {
    pub(super) run: &'a Run,
    pub(super) names: Vec<String>,
    pub(super) shadows: Vec<Shadow>,
    pub(super) step: usize,
    pub(super) attempt: u32,
    pub(super) pause: Option<Pause>,
    /// When the group was restarted.
    pub(super) restarts: Vec<Timestamp>,
    started: bool,
    pub(super) guardian_lost: bool,
    signals: u32,
    pub(super) first_signal: Option<i32>,
    /// The first reason to stop, and when; the strongest so far.
    pub(super) stop: Option<(Timestamp, StopReason)>,
    pub(super) strongest: Option<StopReason>,
    pub(super) killed_at: Option<Timestamp>,
    /// This attempt's armed timers, and whether they have fired.
    pub(super) timers: BTreeMap<Timer, bool>,
    /// Which evidence was requested, and whether it has arrived.
    pub(super) gather: Option<(Vec<usize>, bool)>,
    pub(super) verdict: Option<Verdict>,
    pub(super) reported: bool,
    announced: Option<Announced>,
    pub(super) finished: Option<Timestamp>,
    orders: u64,
    violations: Vec<Violation>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(run: &'a Run) -> Self {
        Self {
            run,
            names: run.scenario.names(),
            shadows: vec![Shadow::default(); run.scenario.scripts.len()],
            step: 0,
            attempt: FIRST_ATTEMPT,
            pause: None,
            restarts: Vec::new(),
            started: false,
            guardian_lost: false,
            signals: 0,
            first_signal: None,
            stop: None,
            strongest: None,
            killed_at: None,
            timers: BTreeMap::new(),
            gather: None,
            verdict: None,
            reported: false,
            announced: None,
            finished: None,
            orders: 0,
            violations: Vec::new(),
        }
    }

    pub(super) fn judge(mut self) -> Vec<Violation> {
        let run = self.run;
        for (index, step) in run.steps.iter().enumerate() {
            self.step = index;
            let forward = index == 0 || run.steps[index - 1].at <= step.at;
            self.check(forward, Rule::Numbering, || "time runs backwards".into());
            if self.is_stale(&step.event) {
                let ignored = matches!(step.effects.as_slice(), [Effect::Record(Fact::Ignored { .. })]);
                self.check(ignored && step.unchanged, Rule::Stale, || format!("{:?} was acted on", step.event));
                continue;
            }
            self.hear(&step.event);
            for effect in &step.effects {
                self.see(step, effect);
            }
            self.settle_step(step);
        }
        self.step = run.steps.len();
        self.close();
        self.violations
    }

    pub(super) fn check(&mut self, holds: bool, rule: Rule, message: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { rule, step: self.step, message: message() });
        }
    }

    /// True if an event is outdated, or never made sense.
    fn is_stale(&self, event: &Event) -> bool {
        let shadow =
            |id: &AttemptId| self.rank(id.slot).filter(|_| id.attempt == self.attempt).map(|rank| &self.shadows[rank]);
        self.finished.is_some()
            || match event {
                Event::Start => self.started,
                Event::Started { id, .. } => !shadow(id).is_some_and(|shadow| shadow.is_live() && !shadow.announced),
                Event::Exited { id, .. } => !shadow(id).is_some_and(Shadow::is_live),
                Event::Signalled { .. } => false,
                Event::Timer(timer, attempt) => *attempt != self.attempt || self.timers.get(timer) != Some(&false),
                Event::Prepared { attempt, .. } => !self.awaits(*attempt),
                Event::Gathered(_) => !matches!(self.gather, Some((_, false))),
                Event::EngineLost { .. } => self.guardian_lost,
                // There are no other nodes, and no roles with a start order or restarts of their own; nothing looks for hangs.
                Event::Hung(_)
                | Event::StoppedElsewhere(_)
                | Event::Decided(_)
                | Event::Alone
                | Event::Ready { .. }
                | Event::AnsweredElsewhere { .. }
                | Event::Inspected { .. }
                | Event::Halted
                | Event::StopAsked { .. } => true,
            }
    }

    fn hear(&mut self, event: &Event) {
        match event {
            Event::Start => self.started = true,
            Event::Signalled { signal } => {
                self.signals += 1;
                self.first_signal.get_or_insert(*signal);
            }
            Event::Timer(timer, _) => {
                self.timers.insert(*timer, true);
            }
            Event::Prepared { ready, .. } => {
                if let Some(pause) = &mut self.pause {
                    pause.ready = Some(*ready);
                }
            }
            Event::Gathered(_) => {
                if let Some((_, answered)) = &mut self.gather {
                    *answered = true;
                }
            }
            Event::EngineLost { .. } => self.guardian_lost = true,
            Event::Started { .. }
            | Event::AnsweredElsewhere { .. }
            | Event::Ready { .. }
            | Event::Inspected { .. }
            | Event::Halted
            | Event::StopAsked { .. }
            | Event::Hung(_)
            | Event::Exited { .. }
            | Event::StoppedElsewhere(_)
            | Event::Decided(_)
            | Event::Alone => {}
        }
    }

    fn rank(&self, slot: Slot) -> Option<usize> {
        self.run.scenario.rank(slot)
    }

    /// The rank of a subject, after checking its form.
    pub(super) fn subject(&mut self, subject: &Subject) -> usize {
        let rank = self.names.iter().position(|name| *name == subject.replica);
        let right =
            rank.is_some() && rank == subject.rank.map(|rank| rank.0 as usize) && subject.attempt == self.attempt;
        self.check(right, Rule::Numbering, || format!("{subject:?}"));
        rank.unwrap_or_default()
    }

    fn ranks(&self, ids: &[AttemptId]) -> Vec<usize> {
        ids.iter().filter_map(|id| self.rank(id.slot)).collect()
    }

    pub(super) fn live(&self) -> Vec<usize> {
        (0..self.shadows.len()).filter(|rank| self.shadows[*rank].is_live()).collect()
    }

    fn see(&mut self, step: &Step, effect: &Effect) {
        let last = self.finished.is_some();
        self.check(!last, Rule::Finish, || format!("{effect:?} after the end"));
        let announced = self.announced.take();
        let follows = match (&announced, effect) {
            (None, Effect::Stop { .. } | Effect::Report(_) | Effect::Finish { .. }) => false,
            (None, _) => true,
            (Some(Announced::Stop(how, names)), Effect::Stop { how: sent, targets }) => {
                let targets: Vec<_> = self.ranks(targets).into_iter().map(|rank| self.names[rank].clone()).collect();
                how == sent && *names == targets
            }
            (Some(Announced::Report(verdict)), Effect::Report(reported)) => verdict == reported,
            (Some(Announced::Finish(text)), Effect::Finish { outcome, code }) => *text == format!("{outcome:?} {code}"),
            (Some(_), _) => false,
        };
        self.check(follows, Rule::FactFirst, || format!("{effect:?} after {announced:?}"));
        match effect {
            Effect::DisarmTimer(_)
            | Effect::Await(_)
            | Effect::AwaitElsewhere { .. }
            | Effect::TellReady { .. }
            | Effect::StartUnready { .. }
            | Effect::Inspect(_)
            | Effect::Forsake(_)
            | Effect::TellFailed(_) => {
                self.check(false, Rule::Decision, || format!("{effect:?} in a group without roles"));
            }
            Effect::Stand(stand) => self.check(false, Rule::Decision, || format!("{stand:?} without other nodes")),
            Effect::Record(fact) => self.see_fact(step, fact),
            // The fact before it is checked instead.
            Effect::Release { .. } | Effect::Observe(_) => {}
            Effect::Spawn(ids) => self.see_spawn(ids),
            Effect::Stop { how, targets } => self.see_stop_sent(step, *how, targets),
            Effect::ArmTimer { timer, attempt, at } => self.see_timer(step, *timer, *attempt, *at),
            Effect::Gather { ended, .. } => self.see_gather(step, ended),
            Effect::Report(_) => self.reported = true,
            Effect::Prepare { attempt } => self.see_prepare(*attempt),
            Effect::ReturnTerminal => {
                let third = self.signals >= 3 && matches!(step.event, Event::Signalled { .. });
                self.check(third, Rule::Decision, || "the terminal was returned unasked".into());
            }
            Effect::Finish { outcome, code } => {
                let open = !self.live().is_empty() || matches!(self.gather, Some((_, false)));
                self.check(self.started && !open, Rule::Finish, || "finished before all was over".into());
                self.see_last_attempt(step);
                let earned =
                    self.stop.is_some() || self.pause.is_some() || (self.has_succeeded() && !self.has_failed());
                self.check(earned, Rule::Decision, || "finished without success and without a stop".into());
                self.finished = Some(step.at);
                self.judge_code(*outcome, *code);
            }
        }
    }

    fn see_fact(&mut self, step: &Step, fact: &Fact) {
        match fact {
            Fact::Starting { subject } => {
                if self.pause.is_some() {
                    self.see_next_attempt(step);
                }
                let rank = self.subject(subject);
                let first = !std::mem::replace(&mut self.shadows[rank].recorded, true);
                self.check(first, Rule::OneEnd, || format!("{} starts twice", subject.replica));
            }
            Fact::Started { subject, instance } => {
                let rank = self.subject(subject);
                let told = matches!(&step.event, Event::Started { id, instance: told } if told == instance && self.rank(id.slot) == Some(rank));
                let first = !std::mem::replace(&mut self.shadows[rank].announced, true);
                self.check(told && first, Rule::OneEnd, || format!("{} started out of nothing", subject.replica));
            }
            Fact::Ended { subject, exit, by_us, order, .. } => {
                let rank = self.subject(subject);
                self.see_end(step, rank, exit, *by_us, *order);
            }
            Fact::Stopping { reason } => self.see_stop(step, *reason),
            Fact::StopSent { how, replicas } => {
                self.announced = Some(Announced::Stop(*how, replicas.clone()));
            }
            Fact::Diagnosed(verdict) => {
                let first = self.verdict.is_none() && matches!(step.event, Event::Gathered(_));
                self.check(first, Rule::Report, || "a verdict out of turn".into());
                self.announced = Some(Announced::Report(verdict.clone()));
                self.judge_verdict(step, verdict);
                self.verdict = Some(verdict.clone());
            }
            Fact::Abandoned { replicas } => self.see_abandoned(step, replicas),
            Fact::Finished { outcome, exit_code } => {
                self.announced = Some(Announced::Finish(format!("{outcome:?} {exit_code}")));
            }
            Fact::Restarting { attempt, of, delay_micros, .. } => {
                self.see_restarting(step, *attempt, *of, Duration::from_micros(*delay_micros));
            }
            Fact::Ignored { .. }
            | Fact::Supervised(_)
            | Fact::Submitted { .. }
            | Fact::Accepted { .. }
            | Fact::Pending { .. }
            | Fact::Cancelled { .. }
            | Fact::Ready { .. }
            | Fact::TimedOut { .. }
            | Fact::AttemptFailed(_)
            | Fact::Retrying { .. }
            | Fact::Planned(_)
            | Fact::Noticed { .. }
            | Fact::Pipeline(_)
            | Fact::Resolved(_)
            | Fact::Looping { .. }
            | Fact::Entered
            | Fact::Skipped { .. }
            | Fact::Cached { .. }
            | Fact::Refused { .. }
            | Fact::Left { .. }
            | Fact::EngineLost { .. }
            | Fact::Swept { .. }
            | Fact::Observed { .. }
            | Fact::Hung { .. }
            | Fact::StoreWaits(_)
            | Fact::Resizing { .. }
            | Fact::Spares { .. }
            | Fact::CollectiveTimeout { .. }
            | Fact::Paused
            | Fact::Continued => {
                self.check(false, Rule::Stale, || format!("{fact:?} for an event that fits"));
            }
        }
    }

    fn see_end(&mut self, step: &Step, rank: usize, exit: &Exit, by_us: bool, order: u64) {
        let told = match &step.event {
            Event::Exited { id, exit: told, .. } => told == exit && self.rank(id.slot) == Some(rank),
            Event::EngineLost { .. } | Event::Start => self.guardian_lost && *exit == Exit::Lost,
            _ => false,
        };
        let shadow = self.shadows[rank].clone();
        self.check(told && shadow.is_live(), Rule::OneEnd, || format!("rank {rank} ended out of nothing"));
        let expected = match exit {
            Exit::Signal { .. } | Exit::Code { code: 1.. } if shadow.interrupted => true,
            Exit::Code { code: 0 } => shadow.interrupted || shadow.terminated || shadow.killed,
            Exit::Signal { signal: SIGTERM, .. } => shadow.terminated,
            Exit::Signal { signal: SIGKILL, .. } => shadow.killed,
            _ => false,
        };
        self.check(by_us == expected, Rule::OurDoing, || format!("rank {rank}, {exit:?}: by_us {by_us}"));
        let next = self.orders;
        self.check(order == next, Rule::Numbering, || format!("order {order} instead of {next}"));
        self.orders += 1;
        let before_stop = self.stop.is_none();
        self.shadows[rank].end = Some(ShadowEnd { exit: exit.clone(), by_us, order, before_stop });
    }

    fn see_spawn(&mut self, ids: &[AttemptId]) {
        let ranks = self.ranks(ids);
        let announced = ranks.iter().all(|rank| self.shadows[*rank].recorded && !self.shadows[*rank].spawned);
        self.check(announced, Rule::FactFirst, || "spawned without a fact, or twice".into());
        let current = ids.iter().all(|id| id.attempt == self.attempt);
        let allowed =
            current && self.started && self.stop.is_none() && !self.guardian_lost && ranks.len() == self.shadows.len();
        self.check(allowed, Rule::Spawn, || format!("spawned {ranks:?}"));
        for rank in ranks {
            self.shadows[rank].spawned = true;
        }
    }

    fn see_stop(&mut self, step: &Step, reason: StopReason) {
        let before = self.strongest.replace(reason);
        let stronger = before.is_none_or(|before| before < reason);
        self.check(stronger, Rule::Decision, || format!("{reason:?} after {before:?}"));
        let justified = match reason {
            StopReason::Completed => self.stop.is_none() && !self.has_failed() && self.has_succeeded(),
            StopReason::PeerFailed => self.stop.is_none() && self.has_failed(),
            StopReason::Resized
            | StopReason::NodeLost
            | StopReason::Hung
            | StopReason::Timeout
            | StopReason::StepFailed
            | StopReason::User
            | StopReason::SignalElsewhere { .. } => false,
            StopReason::Signal { signal } => self.signals == 1 && step.event == Event::Signalled { signal },
            StopReason::SecondSignal { signal } => self.signals == 2 && step.event == Event::Signalled { signal },
        };
        self.check(justified, Rule::Decision, || format!("stopped for {reason:?}"));
        self.stop.get_or_insert((step.at, reason));
    }

    fn see_stop_sent(&mut self, step: &Step, how: StopHow, targets: &[AttemptId]) {
        let targets = self.ranks(targets);
        let all = targets == self.live();
        let grace = self.run.scenario.job.policy.stop.grace;
        let (rule, allowed) = match (how, self.stop) {
            (StopHow::Interrupt, Some((at, reason))) => {
                let asked = matches!(reason, StopReason::Signal { signal: SIGINT });
                let first = |rank: &usize| !self.shadows[*rank].interrupted && !self.shadows[*rank].terminated;
                (Rule::Terminate, at == step.at && asked && targets.iter().all(first))
            }
            (StopHow::Terminate, Some((at, reason))) => {
                let interrupted = matches!(reason, StopReason::Signal { signal: SIGINT });
                let waited = step.event == Event::Timer(Timer::Terminate, self.attempt)
                    && step.at >= at + after_interrupt(grace);
                let due = if interrupted { waited } else { at == step.at };
                (Rule::Terminate, due && !targets.iter().any(|rank| self.shadows[*rank].terminated))
            }
            (StopHow::Kill, Some((at, _))) => {
                let waited = step.event == Event::Timer(Timer::Grace, self.attempt) && step.at >= at + grace;
                let urged = self.signals == 2 && matches!(step.event, Event::Signalled { .. });
                (Rule::Kill, (waited || urged) && !targets.iter().any(|rank| self.shadows[*rank].killed))
            }
            (_, None) => (Rule::Terminate, false),
        };
        self.check(all && allowed, rule, || format!("{how:?} to {targets:?}"));
        for rank in targets {
            match how {
                StopHow::Interrupt => self.shadows[rank].interrupted = true,
                StopHow::Terminate => self.shadows[rank].terminated = true,
                StopHow::Kill => {
                    (self.shadows[rank].terminated, self.shadows[rank].killed) = (true, true);
                    self.killed_at = Some(step.at);
                }
            }
        }
    }

    fn see_abandoned(&mut self, step: &Step, replicas: &[String]) {
        let waited = self.killed_at.is_some_and(|at| step.at >= at + self.run.scenario.job.policy.stop.abandon);
        self.check(waited, Rule::Kill, || "abandoned too early".into());
        for name in replicas {
            let rank = self.names.iter().position(|other| other == name).unwrap_or_default();
            let fits = self.shadows[rank].is_live() && self.shadows[rank].killed;
            self.check(fits, Rule::OneEnd, || format!("{name} was abandoned"));
            self.shadows[rank].abandoned = true;
        }
    }

    fn see_timer(&mut self, step: &Step, timer: Timer, attempt: u32, at: Timestamp) {
        let policy = self.run.scenario.job.policy;
        let after = match timer {
            Timer::Settle => policy.settle,
            Timer::Terminate => after_interrupt(policy.stop.grace),
            Timer::Grace => policy.stop.grace,
            Timer::Abandon => policy.stop.abandon,
            Timer::Backoff => self.pause.map_or(Duration::ZERO, |pause| pause.delay),
            Timer::Deadline
            | Timer::TerminateOf(_)
            | Timer::GraceOf(_)
            | Timer::AbandonOf(_)
            | Timer::BackoffOf(_)
            | Timer::Linger
            | Timer::Elsewhere(_)
            | Timer::Patience(_)
            | Timer::StartUp(_)
            | Timer::Run(_) => return self.check(false, Rule::Timers, || format!("{timer:?} was armed")),
        };
        let first = self.timers.insert(timer, false).is_none();
        self.check(first && attempt == self.attempt && at == step.at + after, Rule::Timers, || {
            format!("{timer:?} armed for {at:?}")
        });
    }

    fn see_gather(&mut self, step: &Step, slots: &[Slot]) {
        let ranks: Vec<usize> = slots.iter().filter_map(|slot| self.rank(*slot)).collect();
        let bad: Vec<usize> = (0..self.shadows.len())
            .filter(|rank| self.shadows[*rank].end.as_ref().is_some_and(|end| !end.exit.is_success() && !end.by_us))
            .collect();
        let candidates = ranks == bad && self.gather.is_none();
        self.check(candidates, Rule::Report, || format!("gathered {ranks:?}, ended badly: {bad:?}"));
        let settle = self.run.scenario.job.policy.settle;
        let in_time = matches!(self.stop, Some((at, StopReason::PeerFailed))
            if step.at <= at + settle + self.run.scenario.late && (step.at >= at + settle || self.live().is_empty()));
        self.check(in_time, Rule::Report, || "the window closed at the wrong time".into());
        self.gather = Some((ranks, false));
    }

    /// Conditions after each step.
    fn settle_step(&mut self, step: &Step) {
        let announced = self.announced.take();
        self.check(announced.is_none(), Rule::FactFirst, || format!("{announced:?} was never done"));
        self.answered(step);
        if !self.started || self.finished.is_some() {
            return;
        }
        if self.pause.is_some() {
            return self.settle_pause();
        }
        let live = self.live();
        let spawned = self.guardian_lost || live.iter().all(|rank| self.shadows[*rank].spawned);
        self.check(spawned, Rule::Spawn, || "recorded and not spawned".into());
        let owed = match self.stop {
            None => self.has_failed() || (self.has_succeeded() && !live.is_empty()),
            Some(_) => false,
        };
        self.check(!owed, Rule::Decision, || "nothing was stopped".into());
        let asked = live.iter().all(|rank| self.shadows[*rank].interrupted || self.shadows[*rank].terminated);
        self.check(self.stop.is_none() || asked, Rule::Terminate, || "not all were asked to end".into());
        let due = live.is_empty() && !matches!(self.gather, Some((_, false)));
        self.check(!due, Rule::Finish, || "all is over and nothing happens".into());
        let closed = step.event != Event::Timer(Timer::Settle, self.attempt) || self.gather.is_some();
        self.check(closed, Rule::Report, || "the window did not close".into());
    }

    /// Checks that a signal or a timer had its effect.
    fn answered(&mut self, step: &Step) {
        let kills = match (&step.event, self.signals) {
            (Event::Signalled { .. }, signals @ (1 | 2)) => {
                let told = match self.strongest {
                    Some(StopReason::Signal { .. }) => signals == 1,
                    Some(StopReason::SecondSignal { .. }) => signals == 2,
                    _ => false,
                };
                self.check(told, Rule::Decision, || "the user's signal was not obeyed".into());
                signals == 2
            }
            (Event::Timer(Timer::Terminate, _), _) => {
                let all = self.live().iter().all(|rank| self.shadows[*rank].terminated);
                return self.check(all, Rule::Terminate, || "not all were asked to end".into());
            }
            (Event::Timer(Timer::Grace, _), _) => true,
            (Event::Timer(Timer::Abandon, _), _) => {
                let none = self.live().is_empty();
                return self.check(none, Rule::Kill, || "a rank is still waited for".into());
            }
            _ => false,
        };
        let killed = self.live().iter().all(|rank| self.shadows[*rank].killed);
        self.check(!kills || killed, Rule::Kill, || "not all were killed".into());
    }

    /// Conditions after the last step.
    fn close(&mut self) {
        let last = self.run.steps.last().map_or(Timestamp::default(), |step| step.at);
        self.check(self.finished.is_some(), Rule::Bounded, || "it never ended".into());
        let open = self.shadows.iter().filter(|shadow| shadow.is_live()).count();
        self.check(open == 0, Rule::OneEnd, || format!("{open} starts without an end"));
        let failed = matches!(self.stop, Some((_, StopReason::PeerFailed))) || self.pause.is_some();
        let reported = self.reported;
        self.check(failed == reported, Rule::Report, || format!("failed {failed}, reported {reported}"));
        self.check_bound(self.finished.unwrap_or(last));
    }

    /// Stopping an attempt, and reporting it, may not take longer than the policies allow.
    pub(super) fn check_bound(&mut self, end: Timestamp) {
        if let Some((at, _)) = self.stop {
            let scenario = &self.run.scenario;
            let policy = scenario.job.policy;
            let stopping = policy.stop.grace + policy.stop.abandon + scenario.late * 2;
            let telling = policy.settle + scenario.late;
            let begun = at.max(scenario.start);
            let bound = begun + stopping.max(telling) + scenario.gather;
            self.check(end <= bound, Rule::Bounded, || format!("stopped at {at:?}, over at {end:?}"));
        }
    }

    /// True if a role has failed under its policy.
    fn has_failed(&self) -> bool {
        let lost = |shadow: &Shadow| shadow.end.as_ref().is_some_and(|end| end.exit == Exit::Lost);
        let roles = &self.run.scenario.job.roles;
        (self.guardian_lost && self.shadows.iter().any(lost))
            || (0..roles.len()).any(|role| {
                let Tally { replicas, succeeded, failed, over } = self.tally(role);
                let allowed = roles[role].completion.min_failed;
                allowed > 0 && (failed >= allowed || (over == replicas && succeeded < self.needed(role)))
            })
    }

    /// True if all deciding roles have succeeded for good.
    fn has_succeeded(&self) -> bool {
        let roles = &self.run.scenario.job.roles;
        let nobody = roles.iter().all(|role| !role.completion.decides);
        (0..roles.len()).filter(|role| nobody || roles[*role].completion.decides).all(|role| {
            let Tally { replicas, succeeded, over, .. } = self.tally(role);
            succeeded >= self.needed(role) || over == replicas
        })
    }

    fn needed(&self, role: usize) -> u32 {
        let role = &self.run.scenario.job.roles[role];
        match role.completion.min_succeeded {
            MinSucceeded::All => role.replicas,
            MinSucceeded::Count(count) => count.min(role.replicas),
            MinSucceeded::Never => u32::MAX,
        }
    }

    fn tally(&self, role: usize) -> Tally {
        let mut tally = Tally::default();
        let scripts = &self.run.scenario.scripts;
        for (shadow, _) in self.shadows.iter().zip(scripts).filter(|(_, script)| script.slot.role as usize == role) {
            tally.replicas += 1;
            tally.over += u32::from(shadow.is_over());
            if let Some(end) = &shadow.end {
                tally.succeeded += u32::from(end.exit.is_success());
                tally.failed += u32::from(!end.exit.is_success() && !end.by_us);
            }
        }
        tally
    }
}

/// How many replicas of a role are in which state.
#[derive(Default)]
struct Tally {
    replicas: u32,
    succeeded: u32,
    failed: u32,
    over: u32,
}
