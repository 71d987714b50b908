//! The scenario of a seed: a job, and what each of its processes will do.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::{AttemptId, Event};
use umiak_core::model::{
    Completion, Exit, FIRST_ATTEMPT, Instance, Job, JobId, MinSucceeded, Policy, Restart, Role, RoleName, Slot,
    SpawnError, SpawnStage, StepIndex, StopPolicy, Timestamp,
};
use umiak_core::model::{ExitCodes, Generation};

/// A job, and everything that will happen to it.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub job: Job,
    pub style: CodeStyle,
    pub start: Timestamp,
    /// For the first attempt, in rank order.
    pub scripts: Vec<Script>,
    /// For later attempts; in the last of them no process fails by itself.
    pub retries: Vec<Vec<Script>>,
    /// How long preparing an attempt takes, and the first attempt for which it fails.
    pub prepare: Duration,
    pub unprepared: Option<u32>,
    /// Signals from the user, the guardian's death, and events that make no sense.
    pub visits: Vec<(Timestamp, Event)>,
    /// How long reading the evidence takes.
    pub gather: Duration,
    /// Timers fire up to this much late.
    pub late: Duration,
    /// Probability that a notification or a timer is duplicated.
    pub echo: f64,
}

/// What one process will do.
#[derive(Debug, Clone)]
pub struct Script {
    pub slot: Slot,
    /// Why it cannot be started.
    pub refused: Option<SpawnError>,
    /// From the request to the start notification.
    pub announced: Duration,
    /// How long it runs undisturbed, how it ends then, and what it leaves in its log.
    pub life: Option<Duration>,
    pub end: Exit,
    pub words: Words,
    /// From its death to the notification.
    pub reported: Duration,
    pub on_interrupt: Option<(Duration, Exit, Words)>,
    pub on_term: Option<(Duration, Exit, Words)>,
    /// `None`: uninterruptible sleep.
    pub on_kill: Option<Duration>,
    /// How it dies after a peer's death.
    pub on_lost_peer: Option<(Duration, Exit, Words)>,
}

/// What the log of a process says about its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    Silence,
    /// An unhandled error of its own.
    OwnError,
    /// "Connection reset by peer".
    LostPeer,
    /// "Terminated".
    Terminated,
}

/// How many processes end badly by themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Good,
    OneBad,
    SomeBad,
}

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rng = &mut rng;
        let mut job = job(rng);
        let slots: Vec<Slot> = (0u16..)
            .zip(&job.roles)
            .flat_map(|(role, spec)| (0..spec.replicas).map(move |index| Slot { role, index }))
            .collect();
        let mood = pick(rng, &[Mood::Good, Mood::OneBad, Mood::OneBad, Mood::SomeBad]);
        let bad = rng.usize(..slots.len());
        let coupled = rng.f64() < 0.6;
        let scripts: Vec<Script> = slots
            .iter()
            .enumerate()
            .map(|(rank, slot)| {
                let is_bad = match mood {
                    Mood::Good => false,
                    Mood::OneBad => rank == bad,
                    Mood::SomeBad => rank == bad || rng.f64() < 0.3,
                };
                script(rng, *slot, is_bad, coupled)
            })
            .collect();
        let start = time(rng.u64(0..50_000));
        let visits = visits(rng, &slots, start);
        let style = CodeStyle {
            codes: pick(
                rng,
                &[ExitCodes::Umiak, ExitCodes::Umiak, ExitCodes::Umiak, ExitCodes::Paddle, ExitCodes::Torch],
            ),
            generation: pick(rng, &[Generation::Current, Generation::Legacy]),
            document: false,
            etcd: None,
        };
        let gather = if rng.f64() < 0.6 { Duration::ZERO } else { millis(rng, 1..400) };
        let late = if rng.f64() < 0.7 { Duration::from_micros(200) } else { millis(rng, 1..400) };
        let echo = pick(rng, &[0.0, 0.0, 0.1, 0.5]);
        job.policy.restart = restart(rng);
        let mut retries: Vec<Vec<Script>> = Vec::new();
        for _ in 0..rng.u32(..4) {
            let bad = rng.usize(..slots.len());
            retries
                .push(slots.iter().enumerate().map(|(rank, slot)| script(rng, *slot, rank == bad, coupled)).collect());
        }
        retries.push(slots.iter().map(|slot| script(rng, *slot, false, coupled)).collect());
        Self {
            seed,
            style,
            job,
            start,
            scripts,
            visits,
            gather,
            late,
            echo,
            retries,
            prepare: pick(rng, &[Duration::ZERO, Duration::from_millis(3), Duration::from_millis(900)]),
            unprepared: (rng.f64() < 0.1).then(|| rng.u32(1..3)),
        }
    }

    /// `role1-3` and the like, in rank order.
    pub fn names(&self) -> Vec<String> {
        let name = |slot: Slot| format!("{}-{}", self.job.roles[slot.role as usize].name, slot.index);
        self.scripts.iter().map(|script| name(script.slot)).collect()
    }

    /// What this process will do in this attempt.
    pub fn script(&self, attempt: u32, rank: usize) -> &Script {
        let retry = |attempt: u32| self.retries.get((attempt - FIRST_ATTEMPT) as usize - 1).or(self.retries.last());
        let scripts = if attempt == FIRST_ATTEMPT { None } else { retry(attempt) };
        &scripts.unwrap_or(&self.scripts)[rank]
    }

    pub fn rank(&self, slot: Slot) -> Option<usize> {
        self.scripts.iter().position(|script| script.slot == slot)
    }
}

fn job(rng: &mut Rng) -> Job {
    let count = pick(rng, &[1, 1, 1, 2, 2, 3, 4]);
    let widest = pick(rng, &[1, 2, 3, 4, 8, 16]);
    let roles = (0..count).map(|index| {
        let replicas = rng.u32(1..=widest);
        let completion = Completion {
            min_failed: pick(rng, &[1, 1, 1, 1, 1, 1, 0, 2, 3, 20]),
            min_succeeded: match rng.u32(..4) {
                0 => MinSucceeded::Count(rng.u32(1..=replicas + 1)),
                _ => MinSucceeded::All,
            },
            decides: rng.f64() < 0.75,
        };
        let name = RoleName::new(format!("role{index}")).expect("a plain name");
        Role { completion, ..Role::new(name, replicas) }
    });
    Job {
        name: JobId::new("simulated").expect("a plain name"),
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: vec![],
        roles: roles.collect(),
        policy: Policy {
            restart: Restart::default(),
            stop: StopPolicy {
                grace: Duration::from_millis(pick(rng, &[0, 100, 1000, 5000])),
                abandon: Duration::from_millis(pick(rng, &[100, 2000, 10_000])),
            },
            settle: Duration::from_millis(pick(rng, &[0, 100, 500, 500, 500, 1000])),
            ..Policy::default()
        },
    }
}

fn restart(rng: &mut Rng) -> Restart {
    let backoff = pick(rng, &[0, 10, 500, 1000]);
    Restart {
        max: pick(rng, &[0, 0, 1, 2, 5]),
        backoff: Duration::from_millis(backoff),
        max_backoff: Duration::from_millis(pick(rng, &[backoff, 1500, 30_000])),
        window: pick(rng, &[None, None, Some(Duration::from_millis(1)), Some(Duration::from_secs(5))]),
        ..Restart::default()
    }
}

fn script(rng: &mut Rng, slot: Slot, bad: bool, coupled: bool) -> Script {
    let stuck = rng.f64() < 0.03;
    let refusals = [
        (SpawnStage::Fork, 11, "Resource temporarily unavailable"),
        (SpawnStage::Execute, 2, "No such file or directory"),
    ];
    let (doing, errno, reason) = pick(rng, &refusals);
    let refused = bad && rng.f64() < 0.15;
    let end = if bad { bad_end(rng) } else { code(0) };
    let says = rng.f64() < 0.7;
    Script {
        slot,
        refused: refused.then(|| SpawnError { doing, errno, reason: reason.into() }),
        // Sometimes the start notification arrives after the stop.
        announced: if rng.f64() < 0.8 { millis(rng, 0..20) } else { millis(rng, 0..3000) },
        life: (bad || (!stuck && rng.f64() < 0.9)).then(|| millis(rng, 0..8000)),
        words: if bad && says { Words::OwnError } else { Words::Silence },
        end,
        // A dying process on a GPU is reported a tenth of a second after its sockets have closed.
        reported: match rng.u32(..5) {
            0 => millis(rng, 80..300),
            1 | 2 if bad => millis(rng, 80..300),
            1 => millis(rng, 0..900),
            _ => millis(rng, 0..5),
        },
        on_interrupt: if stuck { None } else { on_interrupt(rng) },
        on_term: if stuck { None } else { on_term(rng) },
        on_kill: match (stuck, rng.bool()) {
            (false, _) => Some(millis(rng, 0..5)),
            (true, true) => Some(millis(rng, 50..15_000)),
            (true, false) => None,
        },
        on_lost_peer: (coupled && !stuck && rng.f64() < 0.8).then(|| {
            let (end, words) = pick(
                rng,
                &[
                    (code(1), Words::LostPeer),
                    (code(1), Words::LostPeer),
                    (killed_by(6), Words::LostPeer),
                    (code(1), Words::Silence),
                ],
            );
            (millis(rng, 1..150), end, words)
        }),
    }
}

fn bad_end(rng: &mut Rng) -> Exit {
    let signals = [6, 7, 9, 9, 11, 11, 15];
    if rng.bool() { killed_by(pick(rng, &signals)) } else { code(pick(rng, &[1, 1, 2, 7, 42, 255])) }
}

/// `None` if it ignores SIGINT.
fn on_interrupt(rng: &mut Rng) -> Option<(Duration, Exit, Words)> {
    let slow = millis(rng, 10..6000);
    let quick = millis(rng, 0..10);
    let after = pick(rng, &[quick, quick, slow]);
    match rng.u32(..8) {
        0 | 1 => None,
        2 => Some((after, code(0), Words::Silence)),
        3 => Some((after, code(1), Words::OwnError)),
        4 => Some((after, code(130), Words::Silence)),
        _ => Some((after, killed_by(2), Words::Silence)),
    }
}

/// `None` if it ignores SIGTERM.
fn on_term(rng: &mut Rng) -> Option<(Duration, Exit, Words)> {
    let slow = millis(rng, 10..6000);
    let quick = millis(rng, 0..10);
    let after = pick(rng, &[quick, quick, quick, slow]);
    match rng.u32(..10) {
        0 => None,
        1 => Some((after, code(0), Words::Silence)),
        2 => Some((after, code(1), Words::Terminated)),
        3 => Some((after, code(1), Words::Silence)),
        4 => Some((after, code(143), Words::Silence)),
        _ => Some((after, killed_by(15), Words::Silence)),
    }
}

fn visits(rng: &mut Rng, slots: &[Slot], start: Timestamp) -> Vec<(Timestamp, Event)> {
    let mut visits = Vec::new();
    let end = start.as_micros() + 12_000_000;
    let moment = |rng: &mut Rng| match rng.u32(..6) {
        0 => time(rng.u64(..=start.as_micros())),
        1 => time(rng.u64(..end * 4)),
        _ => time(rng.u64(..end)),
    };
    let mut signals = pick(rng, &[0, 0, 0, 1, 1, 2, 3, 4]);
    let mut at = moment(rng);
    while signals > 0 {
        visits.push((at, Event::Signalled { signal: pick(rng, &[2, 15, 1]) }));
        // The next signal usually follows soon.
        at = if rng.f64() < 0.7 { at + millis(rng, 0..3000) } else { moment(rng) };
        signals -= 1;
    }
    if rng.f64() < 0.08 {
        visits.push((moment(rng), Event::EngineLost { again: false }));
        if rng.f64() < 0.3 {
            visits.push((moment(rng), Event::EngineLost { again: false }));
        }
    }
    for _ in 0..pick(rng, &[0, 0, 1, 3]) {
        let slot = pick(rng, slots);
        let id = pick(
            rng,
            &[
                AttemptId { step: StepIndex(0), slot, attempt: 99 },
                AttemptId { step: StepIndex(0), slot: Slot { role: 9, ..slot }, attempt: FIRST_ATTEMPT },
                AttemptId { step: StepIndex(0), slot: Slot { index: 99, ..slot }, attempt: FIRST_ATTEMPT },
            ],
        );
        let event = match rng.u32(..4) {
            0 => Event::Started { id, instance: Instance::of_pid(1) },
            1 => Event::Exited { id, exit: pick(rng, &[code(0), code(1), killed_by(9)]), classed: None, usage: None },
            2 => Event::Gathered(vec![]),
            _ => Event::Start,
        };
        let at = if matches!(event, Event::Start) { start + millis(rng, 1..5000) } else { moment(rng) };
        visits.push((at, event));
    }
    if rng.f64() < 0.05 && start.as_micros() > 0 {
        // About an attempt that was not requested yet.
        let id = AttemptId { step: StepIndex(0), slot: pick(rng, slots), attempt: FIRST_ATTEMPT };
        let at = time(rng.u64(..start.as_micros()));
        let exited = Event::Exited { id, exit: code(1), classed: None, usage: None };
        visits.push((at, pick(rng, &[Event::Started { id, instance: Instance::of_pid(1) }, exited])));
    }
    visits
}

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())].clone()
}

fn time(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// Whole milliseconds half of the time, so that events coincide.
fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    let micros = if rng.bool() { 0 } else { rng.u64(..1000) };
    Duration::from_micros(rng.u64(range) * 1000 + micros)
}

fn code(code: i32) -> Exit {
    Exit::Code { code }
}

fn killed_by(signal: i32) -> Exit {
    Exit::Signal { signal, core_dumped: false }
}
