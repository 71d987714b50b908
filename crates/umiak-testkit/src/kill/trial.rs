//! One trial: start a job, kill, check.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use umiak_sys::descend::{Reaped, WaitStatus, children, decode, reap, signal};

use super::Report;
use super::census::{Census, Kind};
use crate::toy::family::read_register;

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

const ALL: [Kind; 5] = [Kind::Umiak, Kind::Rank, Kind::InGroup, Kind::Daemon, Kind::Logger];

/// Processes that must exit do so long before; only a very busy machine comes close.
const DEADLINE: Duration = Duration::from_secs(25);

/// Which process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    Front,
    Guardian,
    Both,
    /// Both, and then another umiak command runs on the host.
    BothThenNext,
    /// Both, of a job in its own PID namespace.
    BothIsolated,
}

impl Victim {
    const ALL: [Self; 5] = [Self::Front, Self::Guardian, Self::Both, Self::BothThenNext, Self::BothIsolated];

    pub fn name(self) -> &'static str {
        match self {
            Self::Front => "front",
            Self::Guardian => "guardian",
            Self::Both => "both",
            Self::BothThenNext => "both-then-next",
            Self::BothIsolated => "both-isolated",
        }
    }

    pub(super) fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|victim| victim.name() == name).unwrap_or_else(|| panic!("no victim `{name}`"))
    }
}

/// The event from which the time of the kill counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Anchor {
    /// The start of the first victim: the front, or the guardian if it is the victim.
    Start,
    /// The fork of the first rank. Ranks pause before their exec, so that the kill hits that interval.
    Fork,
    /// Every rank has its grandchildren: without this a slow machine would seldom have leftovers.
    Family,
}

/// The plan of a trial, from its seed.
#[derive(Debug)]
pub(super) struct Plan {
    victim: Victim,
    anchor: Anchor,
    moment: Duration,
    /// Both are stopped before they are killed: neither can react to the other's end.
    stop_first: bool,
    guardian_first: bool,
    /// The family ignores SIGTERM.
    stubborn: bool,
    /// A logger rotates the logs of the ranks.
    logger: bool,
}

/// How long ranks pause before their exec.
const PAUSE: Duration = Duration::from_millis(300);

impl Plan {
    pub(super) fn new(seed: u64, index: usize, victims: &[Victim]) -> Self {
        // Hashed, because generators with neighbouring seeds start alike.
        let mut hasher = DefaultHasher::new();
        (seed, index).hash(&mut hasher);
        let mut random = fastrand::Rng::with_seed(hasher.finish());
        let anchor = match index / victims.len() % 4 {
            0 => Anchor::Family,
            1 => Anchor::Fork,
            _ => Anchor::Start,
        };
        // Log-uniform from 0.1 ms: as many trials between 0.1 and 1 ms as between 100 ms and 1 s.
        let longest = if anchor == Anchor::Fork { PAUSE.as_secs_f64() } else { 2.0 };
        let seconds = 1e-4 * (longest / 1e-4).powf(random.f64());
        let victim = victims[index % victims.len()];
        Self {
            victim,
            anchor,
            moment: Duration::from_secs_f64(seconds),
            stop_first: random.bool(),
            guardian_first: random.bool(),
            stubborn: random.u8(..4) == 0,
            logger: random.u8(..4) == 0,
        }
    }

    /// Waits for the anchor.
    fn await_anchor(&self, front: u32, directory: &Path) {
        let family = || read_register(directory).iter().filter(|(name, ..)| name == "toy-complete").count() == 2;
        let guardian = || children(front).first().copied();
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            let reached = match self.anchor {
                Anchor::Start => self.victim == Victim::Front || guardian().is_some(),
                Anchor::Fork => guardian().is_some_and(|guardian| !children(guardian).is_empty()),
                Anchor::Family => family(),
            };
            if reached {
                return;
            }
            std::thread::yield_now();
        }
    }
}

pub(super) fn run(plan: &Plan, index: usize, binary: &Path, here: &Path) -> Report {
    let directory = here.join(format!("trial-{index}"));
    std::fs::create_dir_all(directory.join("tmp")).expect("the sandbox can be written");
    let front = start(plan, binary, &directory);
    plan.await_anchor(front, &directory);
    sleep_until(Instant::now() + plan.moment);
    let guardian = children(front).first().copied();
    let before_exec = guardian.is_some_and(|guardian| children(guardian).into_iter().any(is_before_exec));
    kill(plan, front, guardian);
    let mut census = Census::new(front, &directory);
    census.guardian = guardian;
    let mut end = None;
    wait_for_the_end(plan, front, &mut census, &mut end);
    if plan.victim == Victim::BothThenNext {
        run_next_command(binary, &directory);
        wait_until(|| {
            reap_all(front, &mut end);
            census.take();
            ALL.into_iter().all(|kind| census.living(kind).is_empty())
        });
    }
    let kinds = [Kind::Rank, Kind::InGroup, Kind::Daemon];
    let mut umiak_left = census.living(Kind::Umiak);
    if plan.victim != Victim::Both {
        // If grandchildren survive, so does their logger.
        umiak_left.extend(census.living(Kind::Logger));
    }
    let report = Report {
        index,
        victim: plan.victim,
        described: format!("{plan:?}"),
        before_exec,
        seen: kinds.map(|kind| census.count(kind)),
        left: kinds.map(|kind| census.living(kind)),
        umiak_left,
        files_left: names(&directory.join("tmp")),
        code: end.and_then(|end| if let WaitStatus::Code(code) = end { Some(code) } else { None }),
        said: std::fs::read_to_string(directory.join("said")).unwrap_or_default(),
    };
    clean_up(front, &census);
    if !report.left_any() {
        let _ = std::fs::remove_dir_all(&directory);
    }
    report
}

fn start(plan: &Plan, binary: &Path, directory: &Path) -> u32 {
    let said = File::create(directory.join("said")).expect("the sandbox can be written");
    let toy = std::env::current_exe().expect("the test binary has a path");
    let mut command = Command::new(binary);
    command.args(["launch", "--nproc_per_node", "2", "--grace", "200ms"]);
    if plan.victim == Victim::BothIsolated {
        command.arg("--isolate");
    }
    if plan.logger {
        command.args(["--log-max-size", "1M"]);
    }
    let actions = if plan.stubborn { "*:stubborn;family;sleep 60000" } else { "*:family;sleep 60000" };
    command.arg(toy).args(["toy", actions]).current_dir(directory).env("TMPDIR", directory.join("tmp"));
    if plan.anchor == Anchor::Fork {
        command.env("UMIAK_TEST_PAUSE_BEFORE_EXEC", PAUSE.as_millis().to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    // Not waited for here: all descendants are reaped in one place.
    command.spawn().expect("umiak can be started").id()
}

/// Until its exec a rank has the guardian's name.
fn is_before_exec(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "umiak-guardian")
}

/// Accurate to microseconds: half of the delays are shorter than the shortest sleep.
fn sleep_until(at: Instant) {
    let slack = Duration::from_micros(200);
    if let Some(left) = at.checked_duration_since(Instant::now() + slack) {
        std::thread::sleep(left);
    }
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}

fn kill(plan: &Plan, front: u32, guardian: Option<u32>) {
    let mut victims: Vec<u32> = match plan.victim {
        Victim::Front => vec![front],
        Victim::Guardian => guardian.into_iter().collect(),
        Victim::Both | Victim::BothThenNext | Victim::BothIsolated => guardian.into_iter().chain([front]).collect(),
    };
    if !plan.guardian_first {
        victims.reverse();
    }
    if plan.stop_first && victims.len() > 1 {
        signal_all(&victims, SIGSTOP);
    }
    signal_all(&victims, SIGKILL);
}

fn signal_all(pids: &[u32], number: i32) {
    for pid in pids {
        signal(*pid, number);
    }
}

/// Waits until all processes that must exit have exited.
fn wait_for_the_end(plan: &Plan, front: u32, census: &mut Census, end: &mut Option<WaitStatus>) {
    let grandchildren_may_stay = matches!(plan.victim, Victim::Both | Victim::BothThenNext);
    let must_go: &[Kind] = if grandchildren_may_stay { &[Kind::Umiak, Kind::Rank] } else { &ALL };
    wait_until(|| {
        reap_all(front, end);
        census.take();
        end.is_some() && must_go.iter().all(|kind| census.living(*kind).is_empty())
    });
}

fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + DEADLINE;
    let mut pause = Duration::from_millis(1);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    true
}

fn reap_all(front: u32, end: &mut Option<WaitStatus>) {
    while let Reaped::Ended { pid, status, .. } = reap() {
        if pid == front {
            *end = Some(decode(status));
        }
    }
}

/// Any other command on the host.
fn run_next_command(binary: &Path, directory: &Path) {
    let mut command = Command::new(binary);
    command.args(["launch", "--nproc_per_node", "1", "--log_dir", "next", "/bin/true"]).current_dir(directory);
    command.env("TMPDIR", directory.join("tmp")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = command.status();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Kills the processes that the trial found, so that the next one starts clean.
fn clean_up(front: u32, census: &Census) {
    wait_until(|| {
        let living: Vec<u32> = ALL.into_iter().flat_map(|kind| census.living(kind)).collect();
        signal_all(&living, SIGKILL);
        reap_all(front, &mut None);
        living.is_empty()
    });
    census.remove_cgroup();
}
