//! Elastic jobs on several hosts: nodes join, leave, are killed and cut off, and the others go on.

mod etcd;
mod frameworks;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use umiak_testkit::components::Component::{Netns, Python};
use umiak_testkit::components::trials;
use umiak_testkit::sandbox::{Outcome, Running};
use umiak_testkit::suite::Suite;

use crate::nodes::Cluster;

pub(crate) fn register(suite: &mut Suite) {
    frameworks::register(suite);
    etcd::register(suite);
    suite
        .test("elastic::nodes_join_and_leave", &[Netns, Python], join_and_leave)
        .test("elastic::launch_takes_a_range_too", &[Netns, Python], launch)
        .test("elastic::a_spare_takes_over", &[Netns, Python], spare)
        .test("elastic::a_node_with_another_command", &[Netns, Python], other_command)
        .test("elastic::a_node_without_a_last_word", &[Netns, Python], vanished)
        .test("elastic::cut_off_nodes_are_given_up", &[Netns, Python], partition)
        .test("elastic::the_coordinators_loss_ends_the_job", &[Netns, Python], coordinator_lost)
        .test("elastic::a_node_that_keeps_failing_is_left_out", &[Netns, Python], left_out)
        .test("elastic::checkpoints_survive_random_changes", &[Netns, Python], chaos);
}

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGSTOP: i32 = 19;
/// Ranks of each node.
const RANKS: usize = 2;
/// Steps from one checkpoint to the next.
const EVERY: u64 = 5;

/// A job of two to four nodes, and a directory that all of them see.
struct Elastic {
    cluster: Cluster,
    shared: PathBuf,
    script: String,
}

/// One start of a rank, as it wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Started {
    attempt: u32,
    rank: usize,
    world: usize,
    node: usize,
    reason: String,
    before: String,
    step: u64,
    pid: u32,
}

impl Elastic {
    fn new(hosts: usize) -> Self {
        let cluster = Cluster::new(hosts);
        let shared = cluster.sandboxes[0].path().join("shared");
        std::fs::create_dir(&shared).expect("the sandbox can be written");
        let script = format!("{}/tests/process/elastic/train.py", env!("CARGO_MANIFEST_DIR"));
        Self { cluster, shared, script }
    }

    fn start(&self, host: usize, flags: &str) -> Running<'_> {
        self.start_with(host, flags, EVERY)
    }

    fn start_with(&self, host: usize, flags: &str, every: u64) -> Running<'_> {
        let every = every.to_string();
        let script = [&self.script, self.shared.to_str().expect("a path in UTF-8"), &every];
        let ranks = RANKS.to_string();
        let words = flags.split(' ').chain(["--nproc-per-node", &ranks]).chain(script);
        self.cluster.sandboxes[host].umiak(words).on(self.cluster.network.host(host)).start()
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(self.shared.join("log")).unwrap_or_default();
        text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
    }

    fn starts(&self) -> Vec<Started> {
        let lines = self.lines().into_iter().filter(|words| words[0] == "start" && words.len() == 9);
        let number = |word: &String| word.parse().expect("a number");
        lines
            .map(|words| Started {
                attempt: number(&words[1]) as u32,
                rank: number(&words[2]),
                world: number(&words[3]),
                node: number(&words[4]),
                reason: words[5].clone(),
                before: words[6].clone(),
                step: number(&words[7]) as u64,
                pid: number(&words[8]) as u32,
            })
            .collect()
    }

    /// The last attempt, once all its ranks have started.
    fn last(&self) -> Option<(u32, Vec<Started>)> {
        let starts = self.starts();
        let attempt = starts.iter().map(|start| start.attempt).max()?;
        let ranks: Vec<Started> = starts.into_iter().filter(|start| start.attempt == attempt).collect();
        let distinct: BTreeSet<usize> = ranks.iter().map(|start| start.rank).collect();
        (distinct.len() == ranks[0].world).then_some((attempt, ranks))
    }

    /// Waits until an attempt after this one runs on so many nodes.
    fn await_nodes(&self, on: &Running<'_>, after: u32, nodes: usize) -> (u32, Vec<Started>) {
        let mut found = None;
        let is_there = |last: &(u32, Vec<Started>)| last.0 > after && last.1[0].world == nodes * RANKS;
        on.wait_until(&format!("an attempt after {after} on {nodes} nodes"), || {
            found = self.last().filter(is_there);
            found.is_some()
        });
        found.expect("it was waited for")
    }

    fn finish(&self) {
        std::fs::write(self.shared.join("finish"), "").expect("the sandbox can be written");
    }

    /// What must hold of every run: each attempt has one world, ranks are started once, only one attempt trains at a time,
    /// and the next one goes on from the last checkpoint.
    fn judge(&self) {
        let mut worlds: BTreeMap<u32, usize> = BTreeMap::new();
        for start in self.starts() {
            let world = *worlds.entry(start.attempt).or_insert(start.world);
            assert_eq!(world, start.world, "two worlds in one attempt: {start:?}");
        }
        let (mut attempt, mut step, mut checkpoint) = (0, 0, 0);
        for words in self.lines() {
            match words[0].as_str() {
                "start" if words[2] == "0" => {
                    let (next, from): (u32, u64) = (words[1].parse().unwrap(), words[7].parse().unwrap());
                    assert!(next > attempt, "attempt {next} started after {attempt}");
                    assert!(from >= checkpoint && from <= step, "from {from}, saved {checkpoint}, done {step}");
                    assert!(step - from <= EVERY, "{} steps were lost", step - from);
                    (attempt, step) = (next, from);
                }
                "step" => {
                    assert_eq!(words[1], attempt.to_string(), "two attempts train");
                    step = words[2].parse().unwrap();
                    // Written after the step.
                    checkpoint = checkpoint.max((step.saturating_sub(1)) / EVERY * EVERY);
                }
                _ => {}
            }
        }
    }
}

/// Flags with times that suit a test.
fn flags(range: &str) -> String {
    format!(
        "torchrun --nnodes {range} --rdzv-backend c10d --rdzv-endpoint 192.168.0.1:29400 --rdzv-id job7 --max-restarts 100 --rdzv-conf last_call_timeout=0.5,join_timeout=60 --node-timeout 2s --reconnect-window 3s --grace 2s"
    )
}

fn expect_all(outcomes: Vec<Outcome>, code: i32) {
    for outcome in outcomes {
        outcome.expect_code(code);
    }
}

fn join_and_leave() {
    let job = Elastic::new(3);
    let snapshot = job.cluster.snapshot();
    let flags = flags("2:4");
    let first = job.start(0, &flags);
    let second = job.start(1, &flags);
    let (attempt, ranks) = job.await_nodes(&first, 0, 2);
    assert_eq!(attempt, 1);
    assert!(ranks.iter().all(|start| start.reason == "-" && start.before == "-"), "{ranks:?}");
    let third = job.start(2, &flags);
    let (attempt, ranks) = job.await_nodes(&first, attempt, 3);
    assert!(ranks.iter().all(|start| start.reason == "node_joined" && start.before == "4"), "{ranks:?}");
    second.signal(SIGTERM);
    let (attempt, ranks) = job.await_nodes(&first, attempt, 2);
    assert!(ranks.iter().all(|start| start.reason == "node_left" && start.before == "6"), "{ranks:?}");
    second.finish().expect_code(143);
    third.signal(SIGKILL);
    let again = job.start(1, &flags);
    let (_, ranks) = job.await_nodes(&first, attempt, 2);
    assert!(ranks.iter().all(|start| start.reason == "node_lost"), "{ranks:?}");
    let _ = third.finish();
    job.finish();
    let outcome = first.finish();
    outcome.expect_code(0).expect_err("joined; all ranks start again").expect_err("left; all ranks start again");
    outcome.expect_err("was lost, its umiak was killed; all ranks start again");
    assert!(!outcome.err().contains("error["), "changes are no failures:\n{}", outcome.err());
    again.finish().expect_code(0);
    snapshot.assert_as_before();
    job.judge();
}

fn launch() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = "--nnodes 1:3 --master 192.168.0.1:6768 --elastic_timeout 1 --nproc_per_node 1";
    let first = cluster.launch(0, flags, &["*:touch up;await go"]);
    let second = cluster.launch(1, flags, &["*:touch up;await go"]);
    first.wait_until("two nodes", || cluster.sandboxes[1].path().join("up").exists());
    let third = cluster.launch(2, flags, &["*:touch up;await go"]);
    third.wait_for_file("up");
    cluster.go();
    expect_all(vec![first.finish(), second.finish(), third.finish()], 0);
    snapshot.assert_as_before();
}

fn spare() {
    let job = Elastic::new(3);
    let snapshot = job.cluster.snapshot();
    let flags = flags("1:2");
    let (first, second) = (job.start(0, &flags), job.start(1, &flags));
    let (attempt, _) = job.await_nodes(&first, 0, 2);
    let third = job.start(2, &flags);
    // A spare changes nothing, and is shown.
    let show =
        || job.cluster.sandboxes[0].umiak(["show"]).on(job.cluster.network.host(0)).start().finish_unchecked().out();
    first.wait_until("the spare is shown", || show().contains("spares      192.168.0.3"));
    assert_eq!(job.last().map(|(attempt, _)| attempt), Some(attempt));
    second.signal(SIGKILL);
    let (_, ranks) = job.await_nodes(&first, attempt, 2);
    assert!(ranks.iter().all(|start| start.reason == "node_lost" && start.before == "4"), "{ranks:?}");
    let _ = second.finish();
    // The next one is still a spare when the job ends.
    let fourth = job.start(1, &flags);
    fourth.wait_until("it waits", || job.cluster.sandboxes[1].path().exists());
    std::thread::sleep(Duration::from_secs(2));
    job.finish();
    expect_all(vec![first.finish(), third.finish()], 0);
    fourth.finish().expect_code(0).expect_err("the job runs on 2 other nodes; this one joins when it is needed");
    snapshot.assert_as_before();
    job.judge();
}

/// It takes part, and both consoles say it, once.
fn other_command() {
    let job = Elastic::new(3);
    let flags = flags("2:3");
    let (first, second) = (job.start(0, &flags), job.start_with(1, &flags, EVERY + 1));
    let (attempt, _) = job.await_nodes(&first, 0, 2);
    let third = job.start(2, &flags);
    job.await_nodes(&first, attempt, 3);
    job.finish();
    let notices = [first, second, third].map(|run| {
        let outcome = run.finish();
        outcome.expect_code(0);
        outcome.err().lines().filter(|line| line.contains("R0045")).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(notices.each_ref().map(Vec::len), [1, 1, 0], "{notices:?}");
    assert!(notices[0][0].contains("node 192.168.0.2 ("), "{notices:?}");
    assert!(notices[1][0].contains("this node runs another command than the coordinator's node, 192.168.0.1 ("));
}

/// Kills umiak, its guardian and its ranks at the same moment: none of them sees another one die.
fn kill_at_once(run: &Running<'_>) {
    let below = umiak_sys::descend::descendants(run.pid());
    let all = || std::iter::once(run.pid()).chain(below.iter().copied());
    all().for_each(|pid| umiak_sys::descend::signal(pid, SIGSTOP));
    std::thread::sleep(Duration::from_millis(20));
    all().for_each(|pid| umiak_sys::descend::signal(pid, SIGKILL));
}

/// Kills umiak and its guardian, and leaves the ranks to the kernel.
fn kill_both(run: &Running<'_>) {
    let guardian = umiak_sys::descend::children(run.pid())[0];
    umiak_sys::descend::signal(run.pid(), SIGSTOP);
    umiak_sys::descend::signal(guardian, SIGKILL);
    umiak_sys::descend::signal(run.pid(), SIGKILL);
}

/// Nothing announces the loss, and the host still answers. Until the node time-out, this test would not wait.
fn vanished() {
    let job = Elastic::new(4);
    let snapshot = job.cluster.snapshot();
    let flags = flags("2:4").replace("--node-timeout 2s", "--node-timeout 300s");
    let mut runs: Vec<Running<'_>> = (0..4).map(|host| job.start(host, &flags)).collect();
    let (mut attempt, _) = job.await_nodes(&runs[0], 0, 4);
    for kill in [kill_at_once, kill_both] {
        let lost = runs.pop().expect("four nodes");
        kill(&lost);
        let (next, ranks) = job.await_nodes(&runs[0], attempt, runs.len());
        assert!(ranks.iter().all(|start| start.reason == "node_lost"), "{ranks:?}");
        attempt = next;
        let _ = lost.finish_unchecked();
    }
    job.finish();
    let outcomes: Vec<Outcome> = runs.into_iter().map(Running::finish).collect();
    for outcome in &outcomes {
        for host in ["192.168.0.3", "192.168.0.4"] {
            outcome.expect_code(0).expect_err(&format!("{host} (")).expect_err(
                "was lost, umiak is no longer running there (connections refused for 2.0 s); all ranks start again",
            );
        }
    }
    for host in 2..4 {
        clean_up(&job, host);
    }
    snapshot.assert_as_before();
    job.judge();
}

/// Nothing runs on this host. The next command there removes the files of what was killed, once they are old enough.
fn clean_up(job: &Elastic, host: usize) {
    let sandbox = &job.cluster.sandboxes[host];
    for name in sandbox.list("tmp") {
        let directory = std::fs::File::open(sandbox.path().join("tmp").join(name)).expect("it is there");
        directory.set_modified(SystemTime::now() - Duration::from_secs(120)).expect("it is ours");
    }
    sandbox.umiak(["launch", "/bin/true"]).on(job.cluster.network.host(host)).finish().expect_code(0);
}

/// Both directions, and one only. After the cut the node may come back with a new launch.
fn partition() {
    for both in [true, false] {
        let job = Elastic::new(3);
        let snapshot = job.cluster.snapshot();
        let flags = flags("2:3");
        let (first, second, third) = (job.start(0, &flags), job.start(1, &flags), job.start(2, &flags));
        let (attempt, _) = job.await_nodes(&first, 0, 3);
        let (here, there) = (job.cluster.network.host(0), job.cluster.network.host(2));
        if both {
            here.cut(there);
        } else {
            there.lose(100);
        }
        let (attempt, ranks) = job.await_nodes(&first, attempt, 2);
        assert!(ranks.iter().all(|start| start.reason == "node_lost"), "{ranks:?}");
        third.finish().expect_code(123).expect_err("the coordinator was lost");
        if both {
            here.join(there);
        } else {
            there.lose(0);
        }
        let again = job.start(2, &flags);
        job.await_nodes(&first, attempt, 3);
        job.finish();
        expect_all(vec![first.finish(), second.finish(), again.finish()], 0);
        snapshot.assert_as_before();
        job.judge();
    }
}

fn coordinator_lost() {
    let job = Elastic::new(3);
    let snapshot = job.cluster.snapshot();
    let flags = flags("1:3");
    let (first, second, third) = (job.start(0, &flags), job.start(1, &flags), job.start(2, &flags));
    job.await_nodes(&first, 0, 3);
    first.signal(SIGKILL);
    for run in [second, third] {
        run.finish().expect_code(123).expect_err("error[R0005]: the coordinator was lost");
    }
    let _ = first.finish();
    snapshot.assert_as_before();
    job.judge();
}

fn left_out() {
    let cluster = Cluster::new(3);
    let snapshot = cluster.snapshot();
    let flags = format!("{} --nproc-per-node 1 --no-python", flags("2:3"));
    for (host, script) in ["sleep 1000000", "sleep 1000000", "sleep 0.3; exit 9"].iter().enumerate() {
        cluster.sandboxes[host].write("train.sh", format!("[ $GROUP_WORLD_SIZE = 2 ] && touch up && exit 0\n{script}"));
    }
    let start = |host: usize| {
        let words = flags.split(' ').chain(["sh", "train.sh"]);
        cluster.sandboxes[host].umiak(words).on(cluster.network.host(host)).start()
    };
    let runs: Vec<Running<'_>> = (0..3).map(start).collect();
    let outcomes: Vec<Outcome> = runs.into_iter().map(Running::finish).collect();
    outcomes[0].expect_code(0).expect_err("is left out, only its ranks failed in 3 attempts in a row");
    outcomes[1].expect_code(0);
    outcomes[2].expect_code(9);
    snapshot.assert_as_before();
}

/// Random changes.
fn chaos() {
    let seed = fastrand::u64(..10_000);
    let _ = writeln!(std::io::stdout(), "seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let job = Elastic::new(5);
    let snapshot = job.cluster.snapshot();
    let flags = flags("2:4");
    let mut runs: Vec<Option<Running<'_>>> = (0..5).map(|_| None).collect();
    runs[0] = Some(job.start(0, &flags));
    runs[1] = Some(job.start(1, &flags));
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    let mut attempt = 0;
    // A node whose ranks alone fail three times in a row is left out, which is another test.
    let mut last_failed = (0, 0);
    for _ in 0..trials(20) {
        let live: Vec<usize> = (0..5).filter(|host| runs[*host].is_some()).collect();
        let first = runs[0].as_ref().expect("the coordinator runs");
        let (now, ranks) = job.await_nodes(first, attempt, live.len().min(4));
        attempt = now;
        std::thread::sleep(Duration::from_millis(rng.u64(..300)));
        let free: Vec<usize> = (1..5).filter(|host| runs[*host].is_none()).collect();
        let is_spared = |host: &usize| *host != 0 && last_failed == (*host, 2);
        let failing: Vec<usize> = live.iter().copied().filter(|host| !is_spared(host)).collect();
        let others = &live[1..];
        let event = match rng.u32(..6) {
            0 | 1 if live.len() < 4 => "join",
            2 if live.len() > 2 => "kill the front",
            3 if live.len() > 2 => "stop",
            4 if failing.len() > 1 => "kill the guardian",
            _ => "kill a rank",
        };
        *met.entry(event).or_default() += 1;
        let candidates = match event {
            "kill a rank" => &failing[..],
            "kill the guardian" => &failing[1..],
            _ => others,
        };
        let victim = candidates[rng.usize(..candidates.len())];
        if event.starts_with("kill") && event != "kill the front" {
            last_failed = (victim, if last_failed.0 == victim { last_failed.1 + 1 } else { 1 });
        }
        match event {
            "join" => {
                let host = free[rng.usize(..free.len())];
                runs[host] = Some(job.start(host, &flags));
            }
            "kill a rank" => {
                let own = umiak_sys::descend::descendants(runs[victim].as_ref().expect("it is live").pid());
                let own: Vec<u32> = ranks.iter().map(|start| start.pid).filter(|pid| own.contains(pid)).collect();
                umiak_sys::descend::signal(own[rng.usize(..own.len())], SIGKILL);
            }
            // Another one is started, and the node stays.
            "kill the guardian" => {
                let front = runs[victim].as_ref().expect("it is live").pid();
                umiak_sys::descend::signal(umiak_sys::descend::children(front)[0], SIGKILL);
            }
            _ => {
                let run = runs[victim].take().expect("it is live");
                run.signal(if event == "stop" { SIGTERM } else { SIGKILL });
                let _ = run.finish();
            }
        }
    }
    for (event, times) in met {
        let _ = writeln!(std::io::stdout(), "{times:>6}  {event}");
    }
    // A node that joins must not come after the end.
    let live: Vec<&Running<'_>> = runs.iter().flatten().collect();
    job.await_nodes(live[0], attempt, live.len().min(4));
    job.finish();
    expect_all(runs.into_iter().flatten().map(Running::finish).collect(), 0);
    snapshot.assert_as_before();
    job.judge();
}
