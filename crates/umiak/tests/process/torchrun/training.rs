//! Training goes on after failures: the result is that of an undisturbed run.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use umiak_testkit::components::Component::Torch;
use umiak_testkit::components::trials;
use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

use super::torchrun;
use crate::frameworks::{assert_only_caches, example, has_learned, train as train_once, watched};

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("torchrun::the_example_trains", &[Torch], the_example)
        .test("torchrun::killed_ranks_do_not_change_the_result", &[Torch], killed_ranks)
        .test("torchrun::rank_0_may_be_late_after_a_restart", &[Torch], late_rank_0);
}

/// The example of the guide.
fn the_example() {
    let words = ["torchrun", "--nproc-per-node", "2", &example("torch_ddp.py"), "--steps", "60"];
    let outcome = watched(|| train_once(&Sandbox::new(), &words));
    has_learned(&outcome, 2);
}

const RANKS: u32 = 2;
const STEPS: u32 = 120;
/// Kills in one run.
const KILLS: usize = 5;

fn killed_ranks() {
    let undisturbed = train(&mut [].into_iter(), &mut 0);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let (wanted, mut done) = (trials(4), 0);
    for run in 0..wanted.div_ceil(KILLS) {
        let count = KILLS.min(wanted - run * KILLS);
        let mut kills: Vec<Kill> = (0..count).map(|_| Kill::new(&mut random)).collect();
        kills.sort_by_key(|kill| kill.step);
        assert_eq!(train(&mut kills.into_iter(), &mut done), undisturbed, "seed {seed}, run {run}");
    }
    assert!(done * 2 >= wanted, "only {done} of {wanted} kills found a rank; seed {seed}");
    if std::env::var_os("UMIAK_TRIALS").is_some() {
        let _ = writeln!(std::io::stdout(), "torchrun: {done} ranks killed, the result was always the same");
    }
}

/// A rank is killed when this step has a checkpoint, or if there is none yet, a while after the start.
#[derive(Debug)]
struct Kill {
    rank: u32,
    step: u32,
    after: Duration,
}

impl Kill {
    fn new(random: &mut fastrand::Rng) -> Self {
        // One in four hits the start: importing torch, and forming the group.
        let (step, after) = if random.u32(..4) == 0 { (0, random.u64(..2000)) } else { (random.u32(1..STEPS), 0) };
        Self { rank: random.u32(..RANKS), step, after: Duration::from_millis(after) }
    }

    /// Returns true if the rank was killed; false if the job ended before.
    fn perform(&self, sandbox: &Sandbox, running: &mut Running<'_>, attempt: usize) -> bool {
        let step = || sandbox.read_if_there("step").and_then(|text| String::from_utf8(text).ok()?.parse::<u32>().ok());
        let pid = || sandbox.read_if_there(&format!("pid.{attempt}.{}", self.rank));
        while pid().is_none() || (self.step > 0 && step().is_none_or(|step| step < self.step)) {
            if !running.is_running() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(self.after);
        let pid = pid().and_then(|text| String::from_utf8(text).ok()?.parse().ok()).expect("a process id");
        let is_there = running.is_running() && Path::new(&format!("/proc/{pid}/exe")).exists();
        umiak_sys::descend::signal(pid, 9);
        is_there
    }
}

/// Returns the checksum of the parameters.
fn train(kills: &mut dyn Iterator<Item = Kill>, done: &mut usize) -> String {
    let sandbox = Sandbox::new();
    let flags = format!("--nproc-per-node {RANKS} --max-restarts {}", KILLS + 1);
    let mut running = torchrun(&sandbox, &flags, "ddp.py", &[&STEPS.to_string()]).start();
    let mut attempt = 0;
    for kill in kills {
        if kill.perform(&sandbox, &mut running, attempt) {
            (attempt, *done) = (attempt + 1, *done + 1);
        }
    }
    let outcome = running.finish();
    assert_only_caches(&sandbox);
    checksum(&outcome)
}

#[track_caller]
fn checksum(outcome: &Outcome) -> String {
    outcome.expect_code(0);
    let text = outcome.out();
    let last = text.lines().filter_map(|line| line.strip_prefix("checksum ")).next_back();
    last.unwrap_or_else(|| panic!("no checksum:\n{text}")).to_owned()
}

/// Ranks of attempt 2 must not see keys of attempt 1: they would connect to processes that are gone.
fn late_rank_0() {
    for _ in 0..(trials(20) / 10).max(2) {
        let sandbox = Sandbox::new();
        let outcome = torchrun(&sandbox, "--nproc-per-node 3 --max-restarts 1", "late.py", &[]).finish();
        assert_only_caches(&sandbox);
        outcome.expect_code(0);
        for rank in 0..3 {
            outcome.expect_out(&format!("rank {rank}: sum 3 in attempt 2\n"));
        }
    }
}
