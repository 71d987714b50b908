//! SIGKILL to a server, a trainer, a heterogeneous trainer, the front or the guardian at any moment: the cause is
//! named, all processes are stopped, and nothing is left.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use umiak_sys::descend;
use umiak_testkit::components::trials;
use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

use super::{WAIT, expect_cause, expect_well};

pub(crate) fn register(suite: &mut Suite) {
    suite.test("servers::kill::on_one_node", &[], on_one_node).test(
        "servers::kill::when_the_trainers_end",
        &[],
        at_the_end,
    );
}

pub(super) const SIGKILL: i32 = 9;

/// Trials in parallel: a trial mostly waits.
const WORKERS: usize = 4;

/// Random choices of a trial, derived from the seed and the trial's number.
pub(super) struct Chance {
    random: fastrand::Rng,
}

impl Chance {
    fn new(seed: u64, index: usize) -> Self {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        // Hashed, because similar seeds produce similar first numbers.
        let mut hasher = DefaultHasher::new();
        (seed, index).hash(&mut hasher);
        Self { random: fastrand::Rng::with_seed(hasher.finish()) }
    }

    pub(super) fn coin(&mut self) -> bool {
        self.random.bool()
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.random.usize(..end)
    }

    /// Log-uniform from 0.1 ms: as many between 0.1 and 1 ms as between 100 ms and 1 s.
    pub(super) fn pause(&mut self) {
        self.pause_within(0.5);
    }

    /// As above, up to this many seconds.
    pub(super) fn pause_within(&mut self, longest: f64) {
        let moment = Duration::from_secs_f64(1e-4 * (longest / 1e-4).powf(self.random.f64()));
        let at = Instant::now() + moment;
        if let Some(left) = at.checked_duration_since(Instant::now() + Duration::from_micros(200)) {
            std::thread::sleep(left);
        }
        while Instant::now() < at {
            std::hint::spin_loop();
        }
    }
}

/// Runs `count` trials on `workers` threads, each with its own place, and fails with those that failed. A trial returns
/// what it tried, for the final table.
pub(super) fn try_all<Place>(
    workers: usize,
    count: usize,
    make: impl Fn() -> Place + Sync,
    trial: impl Fn(&Place, usize, &mut Chance) -> String + Sync,
) {
    let fixed = std::env::var("UMIAK_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = fixed.unwrap_or_else(|| u64::from(std::process::id()));
    let (next, tried, broken) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let work = || {
        let place = make();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let run = AssertUnwindSafe(|| trial(&place, index, &mut Chance::new(seed, index)));
            match std::panic::catch_unwind(run) {
                Ok(what) => {
                    *tried.lock().expect("no thread panics while it holds the lock").entry(what).or_insert(0) += 1;
                }
                Err(_) => broken.lock().expect("no thread panics while it holds the lock").push(index),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers.min(count) {
            scope.spawn(work);
        }
    });
    let broken = broken.into_inner().expect("no thread panics while it holds the lock");
    assert!(broken.is_empty(), "seed {seed}: {} of {count} trials are broken: {broken:?}", broken.len());
    if std::env::var_os("UMIAK_TRIALS").is_some() {
        let mut table = format!("seed {seed}\n");
        for (what, times) in tried.into_inner().expect("no thread panics while it holds the lock") {
            let _ = writeln!(table, "{times:>5}  {what}");
        }
        let _ = std::io::Write::write_all(&mut std::io::stdout(), table.as_bytes());
    }
}

/// Every process writes its process id first. Some leave children and daemons behind, and ignore SIGTERM.
pub(super) fn actions(chance: &mut Chance) -> Vec<String> {
    let stubborn = if chance.below(4) == 0 { ";stubborn" } else { "" };
    let family = if chance.coin() { ";child;daemon" } else { "" };
    vec![format!("*:pid{stubborn}{family}"), format!("pserver:listen;{WAIT}"), format!("*:reach;{WAIT}")]
}

/// Waits for the process to write its id, and returns it.
pub(super) fn find(run: &Running<'_>, sandbox: &Sandbox, name: &str) -> u32 {
    let file = format!("pid.{name}");
    run.wait_for_file(&file);
    sandbox.read(&file).parse().expect("a process id")
}

#[track_caller]
pub(super) fn expect_killed(outcome: &Outcome) {
    assert_eq!(outcome.status.signal(), Some(SIGKILL), "{}", outcome.err());
}

/// Number of replicas of each role.
const CREW: [(&str, usize); 3] = [("pserver", 2), ("trainer", 2), ("heter_trainer", 1)];
const FLAGS: &str =
    "--server_num 2 --worker_num 2 --heter_worker_num 1 --heter_devices cpu --grace 300ms --max_restart 0";

fn on_one_node() {
    try_all(WORKERS, trials(50), || (), |(), index, chance| one_trial(index, chance));
}

fn one_trial(index: usize, chance: &mut Chance) -> String {
    let sandbox = Sandbox::new();
    let actions = actions(chance);
    let run = sandbox.launch_toy(FLAGS, &actions.iter().map(String::as_str).collect::<Vec<_>>());
    // Makes it likely that the signal falls between fork and exec.
    let run = if chance.coin() { run.env("UMIAK_TEST_PAUSE_BEFORE_EXEC", "100") } else { run };
    let run = run.start();
    let guardian = || descend::children(run.pid()).first().copied();
    match index % 6 {
        5 => {
            // Servers are forked first, in order.
            let server = chance.below(2);
            let forked = || guardian().and_then(|guardian| descend::children(guardian).get(server).copied());
            run.wait_until("a server", || forked().is_some());
            let victim = forked().expect("it was there");
            chance.pause();
            descend::signal(victim, SIGKILL);
            let outcome = run.finish();
            outcome.expect_code(137);
            expect_cause(&outcome, &format!("pserver-{server}"), 2, "was killed by SIGKILL (killed) after");
            "pserver from its fork on".to_owned()
        }
        place @ 0..3 => {
            let (role, count) = CREW[place];
            let name = format!("{role}-{}", chance.below(count));
            let victim = find(&run, &sandbox, &name);
            chance.pause();
            descend::signal(victim, SIGKILL);
            let outcome = run.finish();
            outcome.expect_code(137);
            expect_cause(&outcome, &name, count, "was killed by SIGKILL (killed) after");
            role.to_owned()
        }
        3 => {
            chance.pause();
            run.signal(SIGKILL);
            expect_killed(&run.finish());
            "front".to_owned()
        }
        _ => {
            run.wait_until("a guardian", || guardian().is_some());
            let victim = guardian().expect("it was there");
            chance.pause();
            descend::signal(victim, SIGKILL);
            // Killed before the ranks have started, it only prevents the launch.
            run.finish().expect_code(125).expect_err("error[L001");
            "guardian".to_owned()
        }
    }
}

/// A server that dies while the last trainers end is a failure or not, but the report and the code agree.
fn at_the_end() {
    try_all(
        WORKERS,
        trials(50),
        || (),
        |(), _, chance| {
            let sandbox = Sandbox::new();
            let name = format!("pserver-{}", chance.below(2));
            let stubborn = if chance.coin() { "pserver:stubborn" } else { "*:pid" };
            let actions = ["*:pid", stubborn, &format!("pserver:listen;{WAIT}"), "trainer:reach;await go"];
            let run = sandbox.launch_toy("--server_num 2 --worker_num 2 --grace 100ms", &actions).start();
            for trainer in ["trainer-0", "trainer-1"] {
                find(&run, &sandbox, trainer);
            }
            let victim = find(&run, &sandbox, &name);
            sandbox.write("go", "");
            chance.pause_within(0.05);
            descend::signal(victim, SIGKILL);
            let outcome = run.finish();
            expect_either(&outcome, &name);
            format!("code {}", outcome.code())
        },
    );
}

/// Fails unless all ended well or this server is the cause.
#[track_caller]
pub(super) fn expect_either(outcome: &Outcome, name: &str) {
    if outcome.code() == 0 {
        expect_well(outcome);
    } else {
        outcome.expect_code(137);
        expect_cause(outcome, name, 2, "was killed by SIGKILL (killed) after");
    }
}
