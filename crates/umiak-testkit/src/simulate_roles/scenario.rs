//! The scenario of a seed: a job, and what each attempt of its replicas will do.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{
    Completion, Exit, Job, JobId, MinSucceeded, Policy, PortNeed, Restart, Role, RoleName, RoleRestart, Scope, Slot,
    SpawnError, SpawnStage, StartAfter, StopPolicy, Success, Timeouts, When, Work,
};
use umiak_core::model::{ExitCodes, Exits, Generation};

/// From this attempt on nothing fails, so that every run ends.
const TAME: u32 = 8;

/// A job, and everything that will happen to it.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub job: Job,
    pub style: CodeStyle,
    /// Probability that an attempt ends badly.
    pub bad: f64,
    /// Timers fire up to this much late.
    pub late: Duration,
    /// Probability that a notification or a timer is duplicated.
    pub echo: f64,
    /// How long reading evidence takes.
    pub gather: Duration,
    /// How many supervisors may be lost, and how often the run may be retried after its end.
    pub losses: u32,
    pub retries: u32,
    /// True if the engine keeps running processes when a supervisor is lost.
    pub keeps: bool,
    /// How much interference there is: user actions and stray events.
    pub trouble: f64,
}

/// What one process will do.
#[derive(Debug, Clone)]
pub(super) struct Script {
    /// Why it cannot be started.
    pub(super) refused: Option<SpawnError>,
    /// From the request to the start notification.
    pub(super) announced: Duration,
    /// From the request until it listens on its ports.
    pub(super) ready: Option<Duration>,
    /// How long it runs undisturbed, and how it ends then.
    pub(super) life: Option<Duration>,
    pub(super) end: Exit,
    /// From its death to the notification.
    pub(super) reported: Duration,
    pub(super) on_interrupt: Option<(Duration, Exit)>,
    pub(super) on_term: Option<(Duration, Exit)>,
    /// `None`: uninterruptible sleep.
    pub(super) on_kill: Option<Duration>,
}

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x0001_e500);
        let rng = &mut rng;
        let job = job(rng);
        let generation = Generation::Current;
        Self {
            seed,
            job,
            style: CodeStyle { codes: ExitCodes::Umiak, generation, document: rng.f64() < 0.8, etcd: None },
            bad: pick(rng, &[0.0, 0.1, 0.3, 0.3, 0.6]),
            late: if rng.f64() < 0.7 { Duration::from_micros(200) } else { millis(rng, 1..400) },
            echo: pick(rng, &[0.0, 0.0, 0.1, 0.5]),
            gather: if rng.f64() < 0.6 { Duration::ZERO } else { millis(rng, 1..2500) },
            losses: pick(rng, &[0, 0, 1, 2, 4]),
            retries: pick(rng, &[0, 0, 1, 2]),
            trouble: pick(rng, &[0.0, 0.5, 1.0]),
            keeps: rng.f64() < 0.4,
        }
    }

    /// What this attempt will do: deterministic.
    pub(super) fn script(&self, id: AttemptId) -> Script {
        let AttemptId { slot, attempt, .. } = id;
        let place = (u64::from(slot.role) << 48) | (u64::from(slot.index) << 32) | u64::from(attempt);
        let mut rng = Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place);
        let tame = attempt >= TAME;
        script(&mut rng, &self.job.roles[slot.role as usize], if tame { 0.0 } else { self.bad }, tame)
    }

    pub(super) fn slots(&self) -> Vec<Slot> {
        let roles = (0u16..).zip(&self.job.roles);
        roles.flat_map(|(role, spec)| (0..spec.replicas).map(move |index| Slot { role, index })).collect()
    }

    pub(super) fn name(&self, slot: Slot) -> String {
        format!("{}-{}", self.job.roles[slot.role as usize].name, slot.index)
    }

    pub(super) fn grace(&self, slot: Slot) -> Duration {
        self.job.roles[slot.role as usize].grace.unwrap_or(self.job.policy.stop.grace)
    }
}

fn job(rng: &mut Rng) -> Job {
    let count = rng.u16(1..=4);
    let widest = pick(rng, &[1, 2, 3, 4, 8]);
    let own_grace = rng.f64() < 0.4;
    let roles = (0..count).map(|position| role(rng, position, widest, own_grace)).collect();
    Job {
        name: JobId::new("simulated").expect("a plain name"),
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: vec![],
        roles,
        policy: Policy {
            restart: restart(rng),
            stop: StopPolicy {
                grace: Duration::from_millis(pick(rng, &[0, 100, 1000, 5000])),
                abandon: Duration::from_millis(pick(rng, &[100, 2000, 10_000])),
            },
            settle: Duration::from_millis(pick(rng, &[0, 100, 500])),
            exits: pick(rng, &[None, Some(Exits::Pai)]),
            success: pick(rng, &[Success::All, Success::All, Success::All, Success::First, Success::End]),
            timeout: pick(rng, &[None, None, None, None, Some(3), Some(12)]).map(Duration::from_secs),
            ..Policy::default()
        },
    }
}

fn role(rng: &mut Rng, position: u16, widest: u32, own_grace: bool) -> Role {
    let replicas = rng.u32(1..=widest);
    let name = RoleName::new(format!("role{position}")).expect("a plain name");
    let after = (0..position).filter_map(|role| {
        let when = pick(rng, &[When::Started, When::Ready, When::Ready, When::Succeeded]);
        (rng.f64() < 0.35).then_some(StartAfter { role, when })
    });
    let start_after = after.collect();
    let ports = if rng.f64() < 0.6 { vec![PortNeed { name: "rpc".into(), count: 1, fixed: None }] } else { vec![] };
    Role {
        completion: Completion {
            min_failed: pick(rng, &[1, 1, 1, 1, 0, 2, 3]),
            min_succeeded: match rng.u32(..4) {
                0 => MinSucceeded::Count(rng.u32(1..=replicas + 1)),
                1 => pick(rng, &[MinSucceeded::Never, MinSucceeded::All]),
                _ => MinSucceeded::All,
            },
            decides: rng.f64() < 0.7,
        },
        restart: RoleRestart { scope: pick(rng, &[Scope::Replica, Scope::Role]), rule: restart(rng) },
        start_after,
        timeouts: Timeouts {
            start: pick(rng, &[None, Some(100), Some(1500)]).map(Duration::from_millis),
            patience: pick(rng, &[None, None, None, Some(50), Some(700)]).map(Duration::from_millis),
            run: pick(rng, &[None, None, None, Some(1000), Some(4000)]).map(Duration::from_millis),
        },
        grace: (own_grace && rng.bool()).then(|| Duration::from_millis(pick(rng, &[0, 50, 700, 9000]))),
        work: Work { ports, ..Work::default() },
        ..Role::new(name, replicas)
    }
}

fn restart(rng: &mut Rng) -> Restart {
    let backoff = pick(rng, &[0, 10, 500, 1000]);
    Restart {
        max: pick(rng, &[0, 0, 1, 2, 5]),
        max_platform: pick(rng, &[0, 1, 3]),
        backoff: Duration::from_millis(backoff),
        platform_backoff: pick(rng, &[None, None, Some(0), Some(700)]).map(Duration::from_millis),
        max_backoff: Duration::from_millis(pick(rng, &[backoff, 1500, 30_000])),
        window: pick(rng, &[None, None, Some(Duration::from_millis(1)), Some(Duration::from_secs(3))]),
    }
}

fn script(rng: &mut Rng, role: &Role, bad: f64, tame: bool) -> Script {
    let bad = rng.f64() < bad;
    let stuck = !tame && rng.f64() < 0.04;
    let refusals =
        [(SpawnStage::Fork, 11), (SpawnStage::Fork, 12), (SpawnStage::Execute, 2), (SpawnStage::ChangeDirectory, 13)];
    let (doing, errno) = pick(rng, &refusals);
    let refused = bad && rng.f64() < 0.3;
    let server = !tame && !role.completion.decides && rng.f64() < 0.5;
    let long = if tame { 500 } else { 5000 };
    let term = pick(rng, &[code(0), code(1), code(143), by(15), by(15), by(15), by(15)]);
    Script {
        refused: refused.then(|| SpawnError { doing, errno, reason: "refused".into() }),
        announced: if tame || rng.f64() < 0.85 { millis(rng, 0..20) } else { millis(rng, 0..3000) },
        ready: (tame || rng.f64() < 0.93).then(|| millis(rng, 0..if tame { 50 } else { 900 })),
        life: (!server && (bad || tame || rng.f64() < 0.96)).then(|| millis(rng, 0..long)),
        end: match (bad, rng.bool()) {
            (false, _) => code(0),
            (true, true) => code(pick(rng, &[1, 2, 7, 42, 255])),
            (true, false) => by(pick(rng, &[6, 9, 11, 15])),
        },
        reported: if rng.f64() < 0.8 { millis(rng, 0..5) } else { millis(rng, 0..700) },
        on_interrupt: (!stuck && rng.f64() < 0.7).then(|| {
            let slow = millis(rng, 10..6000);
            let quick = millis(rng, 0..10);
            (pick(rng, &[quick, quick, slow]), pick(rng, &[code(0), code(1), code(130), by(2), by(2)]))
        }),
        on_term: (!stuck && rng.f64() < 0.88).then(|| {
            let slow = millis(rng, 10..6000);
            let quick = millis(rng, 0..10);
            (pick(rng, &[quick, quick, slow]), term)
        }),
        on_kill: match (stuck, rng.bool()) {
            (false, _) => Some(millis(rng, 0..5)),
            (true, true) => Some(millis(rng, 50..15_000)),
            (true, false) => None,
        },
    }
}

pub(super) fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())].clone()
}

/// Whole milliseconds half of the time, so that events coincide.
pub(super) fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    let micros = if rng.bool() { 0 } else { rng.u64(..1000) };
    Duration::from_micros(rng.u64(range) * 1000 + micros)
}

pub(super) fn code(code: i32) -> Exit {
    Exit::Code { code }
}

fn by(signal: i32) -> Exit {
    Exit::Signal { signal, core_dumped: false }
}
