//! Elastic jobs over etcd: any node may be lost, the coordinator's too, and members of etcd.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use umiak_testkit::components::Component::{Etcd, Netns, Python};
use umiak_testkit::components::trials;
use umiak_testkit::etcd::{Cluster, Setup};
use umiak_testkit::net::Host;
use umiak_testkit::sandbox::Running;
use umiak_testkit::suite::Suite;

use super::{EVERY, Elastic, SIGKILL, SIGTERM, Started, clean_up, expect_all, kill_at_once};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("elastic::etcd::the_seeds_command", &[Netns, Python, Etcd], seed)
        .test("elastic::etcd::nodes_come_and_go", &[Netns, Python, Etcd], come_and_go)
        .test("elastic::etcd::the_coordinator_is_lost", &[Netns, Python, Etcd], coordinator_lost)
        .test("elastic::etcd::a_coordinator_without_a_last_word", &[Netns, Python, Etcd], vanished)
        .test("elastic::etcd::cut_off_coordinators_stop", &[Netns, Python, Etcd], cut_off)
        .test("elastic::etcd::members_of_etcd_are_lost", &[Netns, Python, Etcd], members)
        .test("elastic::etcd::the_disk_of_a_member_is_full", &[Netns, Python, Etcd], full)
        .test("elastic::etcd::all_nodes_leave", &[Netns, Python, Etcd], all_leave)
        .test("elastic::etcd::a_newcomer_leads", &[Netns, Python, Etcd], newcomer)
        .test("elastic::etcd::the_number_of_nodes_is_changed", &[Netns, Python, Etcd], scaled)
        .test("elastic::etcd::levels", &[Netns, Python, Etcd], levels)
        .test("elastic::etcd::a_command_before_each_round", &[Netns, Python, Etcd], pre_hook)
        .test("elastic::etcd::torchrun", &[Netns, Python, Etcd], torchrun)
        .test("elastic::etcd::refused", &[Netns, Python, Etcd], refused)
        .test("elastic::etcd::the_password_is_changed", &[Netns, Python, Etcd], password)
        .test("elastic::etcd::random_changes", &[Netns, Python, Etcd], chaos);
}

/// Times that suit a test: the lease is 6 s, so that a busy machine does not cost a coordinator.
const TIMES: &str =
    "--node-timeout 6s --grace 2s --elastic_timeout 1 --max_restart 1000 --restart-backoff 10ms --restart-window 1s";

/// A job on the first hosts of a network, and a cluster of etcd on the others.
struct Job<'a> {
    elastic: &'a Elastic,
    etcd: Cluster<'a>,
    nodes: usize,
}

/// Runs with so many nodes and members of etcd.
fn with(nodes: usize, members: usize, run: impl FnOnce(Job<'_>)) {
    with_setup(nodes, members, false, run);
}

fn with_setup(nodes: usize, members: usize, is_small: bool, run: impl FnOnce(Job<'_>)) {
    let elastic = Elastic::new(nodes + members);
    let hosts: Vec<&Host> = (nodes..nodes + members).map(|host| elastic.cluster.network.host(host)).collect();
    let etcd = Cluster::with(members, &Setup { hosts: &hosts, is_small, ..Setup::default() });
    run(Job { elastic: &elastic, etcd, nodes });
}

impl<'a> Job<'a> {
    fn host(&self, host: usize) -> &'a Host {
        self.elastic.cluster.network.host(host)
    }

    /// The flags of the seed, and times.
    fn flags(&self, np: &str) -> String {
        format!("launch --elastic_server={} --job_id=job1 --np={np} {TIMES}", self.etcd.addresses())
    }

    fn start(&self, host: usize, np: &str) -> Running<'a> {
        self.elastic.start(host, &self.flags(np))
    }

    fn starts(&self, nodes: usize, np: &str) -> Vec<Running<'a>> {
        (0..nodes).map(|host| self.start(host, np)).collect()
    }

    /// The host whose node leads, by its address in etcd.
    fn leader(&self) -> usize {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let value = self.keys().remove("coordinator").unwrap_or_default();
            if let Some(host) = (0..self.nodes).find(|host| value.contains(&format!("\"{}:", self.host(*host).ip()))) {
                return host;
            }
            assert!(Instant::now() < deadline, "no node leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The keys of the job and their values.
    fn keys(&self) -> BTreeMap<String, String> {
        // From `/paddle/job1/` to `/paddle/job10`.
        let body = r#"{"key":"L3BhZGRsZS9qb2IxLw==","range_end":"L3BhZGRsZS9qb2IxMA=="}"#;
        let answer = self.etcd.post(self.etcd.leader(), "/v3/kv/range", body, None);
        let text = |value: &serde_json::Value| decode(value.as_str().unwrap_or_default());
        let entries = answer["kvs"].as_array().cloned().unwrap_or_default();
        let entries = entries.iter().map(|entry| (text(&entry["key"]), text(&entry["value"])));
        entries.map(|(key, value)| (key.replace("/paddle/job1/", ""), value)).collect()
    }

    fn await_nodes(&self, on: &Running<'_>, after: u32, nodes: usize) -> (u32, Vec<Started>) {
        self.elastic.await_nodes(on, after, nodes)
    }

    /// The job ends well, and only the note about that is left in etcd.
    fn finish(&self, runs: Vec<Running<'_>>) {
        self.elastic.finish();
        expect_all(runs.into_iter().map(Running::finish).collect(), 0);
        // Those of killed nodes go with their leases.
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.keys().into_keys().collect::<Vec<_>>() != ["end"] {
            assert!(Instant::now() < deadline, "left in etcd: {:?}", self.keys());
            std::thread::sleep(Duration::from_millis(100));
        }
        self.elastic.judge();
    }
}

/// Base64, as etcd's gateway writes it.
fn decode(text: &str) -> String {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> = text.bytes().filter(|byte| *byte != b'=').map(|byte| u32::from(digit(byte))).collect();
    let bytes = digits.chunks(4).flat_map(|chunk| {
        let bits = chunk.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - chunk.len()));
        bits.to_be_bytes()[1..chunk.len()].to_vec()
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Two nodes, and a spare that takes over.
fn seed() {
    with(3, 1, |job| {
        let start = |host: usize| {
            let (server, own) = (job.etcd.address(0), job.host(host).ip());
            let flags = format!("launch --elastic_server={server} --job_id=job1 --np=2 --host {own} {TIMES}");
            job.elastic.start(host, &flags)
        };
        let (first, second) = (start(0), start(1));
        let (attempt, ranks) = job.await_nodes(&first, 0, 2);
        assert_eq!((attempt, &*ranks[0].before), (1, "-"));
        assert_eq!(job.keys()["np"], "2");
        let third = start(2);
        third.wait_until("it is in etcd", || job.keys().keys().filter(|key| key.starts_with("nodes/")).count() == 3);
        let mut runs = vec![first, second];
        let other = 1 - job.leader();
        let lost = runs.remove(other);
        lost.signal(SIGKILL);
        let (_, ranks) = job.await_nodes(&third, attempt, 2);
        assert!(ranks.iter().all(|start| start.reason == "node_lost"), "{ranks:?}");
        let _ = lost.finish();
        runs.push(third);
        job.finish(runs);
    });
}

/// The next job of the same name does not wait for ranks that are gone: the node time-out is longer than this test.
fn all_leave() {
    with(3, 1, |job| {
        let flags = |np: &str| job.flags(np).replace("--node-timeout 6s", "--node-timeout 1000s");
        for np in ["3", "2", "1"] {
            let nodes: usize = np.parse().expect("a number");
            let runs: Vec<Running<'_>> = (0..nodes).map(|host| job.elastic.start(host, &flags(np))).collect();
            job.await_nodes(&runs[0], 0, nodes);
            for run in &runs {
                run.signal(SIGTERM);
            }
            expect_all(runs.into_iter().map(Running::finish).collect(), 143);
            let left: Vec<String> = job.keys().into_keys().filter(|key| !key.starts_with("left/")).collect();
            assert!(left.is_empty(), "{np}: {left:?}");
            std::fs::remove_file(job.elastic.shared.join("log")).expect("ranks have written it");
        }
    });
}

/// A job has just lost its coordinator: one of its nodes is there, which runs and cannot lead. A newcomer takes its number
/// and range of nodes.
fn newcomer() {
    with(1, 1, |job| {
        let put = |key: &str, value: &str| {
            job.etcd.post(0, "/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#), None);
        };
        // `/paddle/job1/nodes/x` is `192.168.0.9 77`, and `/paddle/job1/np` is `1:2`.
        put("L3BhZGRsZS9qb2IxL25vZGVzL3g=", "MTkyLjE2OC4wLjkgNzc=");
        put("L3BhZGRsZS9qb2IxL25w", "MToy");
        job.start(0, "1").finish().expect_code(2).expect_err("error[R0040]").expect_err("in etcd  1:2");
        let first = job.start(0, "1:2");
        job.await_nodes(&first, 0, 1);
        let keys = job.keys();
        assert!(keys["coordinator"].contains(r#""job":77"#), "{keys:?}");
        assert_eq!(keys["np"], "1:2");
        assert!(keys.iter().any(|(key, value)| key != "nodes/x" && value == "192.168.0.1 77"), "{keys:?}");
        job.elastic.finish();
        first.finish().expect_code(0);
        assert_eq!(job.keys().into_keys().collect::<Vec<_>>(), ["end", "nodes/x"]);
    });
}

fn come_and_go() {
    with(3, 1, |job| {
        let mut runs = job.starts(2, "2:4");
        let (attempt, _) = job.await_nodes(&runs[0], 0, 2);
        runs.push(job.start(2, "2:4"));
        let (attempt, ranks) = job.await_nodes(&runs[0], attempt, 3);
        assert!(ranks.iter().all(|start| start.reason == "node_joined" && start.before == "4"), "{ranks:?}");
        let leader = job.leader();
        let gone = (0..3).find(|host| *host != leader).expect("three nodes");
        let run = runs.remove(gone);
        run.signal(SIGTERM);
        let (attempt, ranks) = job.await_nodes(&runs[0], attempt, 2);
        assert!(ranks.iter().all(|start| start.reason == "node_left"), "{ranks:?}");
        run.finish().expect_code(143);
        // A rank, then a guardian.
        umiak_sys::descend::signal(ranks[3].pid, SIGKILL);
        let (attempt, ranks) = job.await_nodes(&runs[0], attempt, 2);
        assert!(ranks.iter().all(|start| start.reason == "rank_failed"), "{ranks:?}");
        umiak_sys::descend::signal(umiak_sys::descend::children(runs[1].pid())[0], SIGKILL);
        let (attempt, _) = job.await_nodes(&runs[0], attempt, 2);
        runs.push(job.start(gone, "2:4"));
        job.await_nodes(&runs[0], attempt, 3);
        job.finish(runs);
    });
}

/// Killed, stopped, and its host gone.
fn coordinator_lost() {
    with(4, 1, |job| {
        let mut runs: BTreeMap<usize, Running<'_>> = job.starts(3, "2:4").into_iter().enumerate().collect();
        let (mut attempt, _) = job.await_nodes(&runs[&0], 0, 3);
        for how in ["killed", "stopped", "cut off"] {
            let leader = job.leader();
            let run = runs.remove(&leader).expect("it runs");
            match how {
                "killed" => run.signal(SIGKILL),
                "stopped" => run.signal(SIGTERM),
                _ => job.host(leader).link_down(),
            }
            let other = runs.values().next().expect("two are left");
            let (next, ranks) = job.await_nodes(other, attempt, 2);
            let reason = if how == "stopped" { "node_left" } else { "node_lost" };
            assert!(ranks.iter().all(|start| start.reason == reason && start.before == "6"), "{how}: {ranks:?}");
            assert_ne!(job.leader(), leader);
            if how == "cut off" {
                // It stops its ranks by itself, and comes back with the network.
                job.host(leader).link_up();
                runs.insert(leader, run);
            } else {
                let outcome = run.finish();
                if how == "stopped" {
                    outcome.expect_code(143);
                }
                runs.insert(leader, job.start(leader, "2:4"));
            }
            let other = runs.values().next().expect("three run");
            attempt = job.await_nodes(other, next, 3).0;
        }
        job.finish(runs.into_values().collect());
    });
}

/// Nothing announces the loss, of the coordinator and then of another node. Without the ports of the dead, the others would
/// wait for longer than this test: the lease is 100 s, and the node time-out 300 s.
fn vanished() {
    with(4, 1, |job| {
        let flags = job.flags("2:4").replace("--node-timeout 6s", "--node-timeout 300s");
        let start = |host: usize| (host, job.elastic.start(host, &flags));
        let mut runs: BTreeMap<usize, Running<'_>> = (0..4).map(start).collect();
        let (mut attempt, _) = job.await_nodes(&runs[&0], 0, 4);
        let mut killed = Vec::new();
        for is_leader in [true, false] {
            let leader = job.leader();
            let host = *runs.keys().find(|host| (**host == leader) == is_leader).expect("others run");
            let lost = runs.remove(&host).expect("it runs");
            kill_at_once(&lost);
            let (next, ranks) = job.await_nodes(runs.values().next().expect("others run"), attempt, runs.len());
            assert!(ranks.iter().all(|start| start.reason == "node_lost"), "{ranks:?}");
            let _ = lost.finish_unchecked();
            attempt = next;
            killed.push(host);
        }
        job.elastic.finish();
        for outcome in runs.into_values().map(Running::finish) {
            // Some hear of it from etcd, because another node has deleted the key.
            let lost = ["nothing listens there anymore", "its key in etcd was deleted or has expired"];
            let is_told = lost.iter().any(|how| outcome.err().contains(&format!("was lost, {how}; all ranks start")));
            assert!(is_told, "{}", outcome.expect_code(0).err());
            outcome.expect_err("was lost, umiak is no longer running there (connections refused for 2.0 s)");
        }
        // The keys of the killed nodes are left until their leases expire.
        job.elastic.judge();
        for host in killed {
            clean_up(job.elastic, host);
        }
    });
}

/// From etcd only, in both directions and in one. The nodes still reach each other.
fn cut_off() {
    with(3, 1, |job| {
        let runs = job.starts(3, "2:3");
        let (mut attempt, _) = job.await_nodes(&runs[0], 0, 3);
        for _ in 0..2 {
            let leader = job.leader();
            job.host(leader).cut(job.host(3));
            let other = &runs[(leader + 1) % 3];
            let (next, _) = job.await_nodes(other, attempt, 2);
            assert_ne!(job.leader(), leader);
            job.host(leader).join(job.host(3));
            attempt = job.await_nodes(other, next, 3).0;
        }
        // Its packets are lost, to all hosts.
        let leader = job.leader();
        job.host(leader).lose(100);
        let other = &runs[(leader + 1) % 3];
        let (next, _) = job.await_nodes(other, attempt, 2);
        job.host(leader).lose(0);
        job.await_nodes(other, next, 3);
        job.finish(runs);
    });
}

/// A job does not notice a lost minority; without a quorum it stops in time, and goes on afterwards.
fn members() {
    with(2, 3, |mut job| {
        let runs = job.starts(2, "2");
        let (attempt, _) = job.await_nodes(&runs[0], 0, 2);
        let still = |job: &Job<'_>| assert_eq!(job.elastic.last().map(|(attempt, _)| attempt), Some(attempt));
        let leader = job.etcd.leader();
        job.etcd.move_leader((leader + 1) % 3);
        let revision = job.etcd.post(0, "/v3/kv/range", r#"{"key":"AA=="}"#, None)["header"]["revision"].clone();
        job.etcd.post(0, "/v3/kv/compaction", &serde_json::json!({ "revision": revision }).to_string(), None);
        std::thread::sleep(Duration::from_secs(1));
        let leader = job.etcd.leader();
        job.etcd.kill(leader);
        std::thread::sleep(Duration::from_secs(8));
        still(&job);
        let second = job.etcd.leader();
        job.etcd.pause(second);
        // Longer than the lease.
        std::thread::sleep(Duration::from_secs(8));
        job.etcd.resume(second);
        let (_, ranks) = job.await_nodes(&runs[0], attempt, 2);
        assert!(ranks.iter().all(|start| start.reason == "node_lost"), "{ranks:?}");
        job.etcd.restart(leader);
        job.finish(runs);
    });
}

/// The member ends; the job does not notice.
fn full() {
    with_setup(2, 3, true, |mut job| {
        let runs = job.starts(2, "2");
        let (attempt, _) = job.await_nodes(&runs[0], 0, 2);
        job.etcd.move_leader(0);
        job.etcd.fill();
        // Longer than the lease.
        std::thread::sleep(Duration::from_secs(8));
        assert_eq!(job.elastic.last().map(|(attempt, _)| attempt), Some(attempt));
        job.finish(runs);
    });
}

fn scaled() {
    with(3, 1, |job| {
        let runs = job.starts(3, "3");
        let (attempt, _) = job.await_nodes(&runs[0], 0, 3);
        let change = |action: &str| {
            let server = job.etcd.address(0);
            let words =
                format!("python -m paddle.distributed.elastic --elastic_server {server} --job_id job1 {action}");
            job.elastic.cluster.sandboxes[3].umiak(words.split(' ')).on(job.host(3)).finish()
        };
        change("clean").expect_code(2).expect_err("error[R0046]: the job `job1` is running");
        change("--np 2 scale").expect_code(0);
        let (attempt, ranks) = job.await_nodes(&runs[0], attempt, 2);
        // The third node is a spare, and gets other ranks when it takes over.
        let ask = |host: usize, word: &str| {
            job.elastic.cluster.sandboxes[host].umiak([word]).on(job.host(host)).start().finish_unchecked().out()
        };
        let mut spare = None;
        runs[0].wait_until("a node is a spare", || {
            spare = (0..3).find(|host| ask(*host, "ls").contains("spare"));
            spare.is_some()
        });
        assert!(ranks.iter().all(|start| start.reason == "scaled" && start.before == "6"), "{ranks:?}");
        // The next coordinator keeps the number.
        let leader = job.leader();
        let mut runs: BTreeMap<usize, Running<'_>> = runs.into_iter().enumerate().collect();
        let lost = runs.remove(&leader).expect("it runs");
        lost.signal(SIGKILL);
        let first = runs.values().next().expect("two are left");
        let (attempt, _) = job.await_nodes(first, attempt, 2);
        let _ = lost.finish();
        let shown = ask(spare.expect("it was waited for"), "show");
        assert!(shown.contains(&format!("; not in attempt {attempt}")), "{shown}");
        // A node may bring another number with it.
        runs.insert(leader, job.elastic.start(leader, &format!("{} --force true", job.flags("3"))));
        job.await_nodes(runs.values().next().expect("three run"), attempt, 3);
        let runs: Vec<Running<'_>> = runs.into_values().collect();
        // Another number on the command line is an error.
        let other = job.elastic.start(3, &job.flags("2")).finish();
        other.expect_code(2).expect_err("error[R0040]").expect_err("in etcd  3");
        job.finish(runs);
    });
}

/// A rank fails: the node ends and the others go on; or all end.
fn levels() {
    for (level, codes) in [(0, [0, 9]), (-1, [9, 9])] {
        with(2, 1, |job| {
            for (host, script) in
                ["touch up; while [ $PADDLE_TRAINERS_NUM = 2 ]; do sleep 0.1; done", "sleep 1; exit 9"]
                    .iter()
                    .enumerate()
            {
                job.elastic.cluster.sandboxes[host].write("train.sh", script);
            }
            let flags = format!(
                "launch --master etcd://{} --nnodes 1:2 --job_id job1 --elastic_level={level} --elastic_timeout 60 --node-timeout 6s --grace 2s --nproc_per_node 1 sh train.sh",
                job.etcd.address(0)
            );
            let start =
                |host: usize| job.elastic.cluster.sandboxes[host].umiak(flags.split(' ')).on(job.host(host)).start();
            let runs = [start(0), start(1)];
            for (run, code) in runs.into_iter().zip(codes) {
                run.finish().expect_code(code);
            }
        });
    }
}

/// Its output is kept and its failure is told, before the first round and before later ones. A signal ends it.
fn pre_hook() {
    with(1, 1, |job| {
        let sandbox = &job.elastic.cluster.sandboxes[0];
        sandbox.write("hook.sh", "echo before $UMIAK_ATTEMPT\n[ $UMIAK_ATTEMPT = 1 ] || exit 3\n");
        sandbox.write("train.sh", "[ -e failed ] || { touch failed; exit 1; }\n");
        sandbox.write("slow.sh", "touch slow; sleep 1000\n");
        let start = |hook: &str| {
            let flags = format!("{} --elastic_pre_hook=HOOK --nproc_per_node 1 sh train.sh", job.flags("1"));
            let words = flags.split(' ').map(|word| word.replace("HOOK", hook));
            sandbox.umiak(words.collect::<Vec<_>>()).on(job.host(0)).start()
        };
        let outcome = start("sh hook.sh").finish();
        outcome.expect_code(0).expect_err("notice[R0044]: the command before the round failed");
        assert_eq!(sandbox.read("log/elastic_pre_hook.log"), "before 1\nbefore 2\n");
        let run = start("sh slow.sh");
        run.wait_for_file("slow");
        run.signal(SIGTERM);
        run.finish().expect_code(143);
    });
}

fn torchrun() {
    with(3, 1, |job| {
        let flags = format!(
            "torchrun --nnodes 2:3 --rdzv-backend etcd-v2 --rdzv-endpoint {} --rdzv-id job1 --max-restarts 10 --rdzv-conf last_call_timeout=1,etcd_prefix=/paddle,keep_alive_interval=2,keep_alive_max_attempt=3 --node-timeout 6s --grace 2s",
            job.etcd.address(0)
        );
        let mut runs: BTreeMap<usize, Running<'_>> =
            (0..3).map(|host| (host, job.elastic.start(host, &flags))).collect();
        let (attempt, _) = job.await_nodes(&runs[&0], 0, 3);
        let leader = job.leader();
        let run = runs.remove(&leader).expect("it runs");
        run.signal(SIGKILL);
        job.await_nodes(runs.values().next().expect("two"), attempt, 2);
        let _ = run.finish();
        job.finish(runs.into_values().collect());
    });
}

fn refused() {
    with(1, 1, |mut job| {
        let flags = format!("{} --gather-logs", job.flags("1"));
        job.elastic.start(0, &flags).finish().expect_code(2).expect_err("`--gather-logs` cannot be used with etcd");
        // While the job runs: ranks are stopped in time, and the only error names the reason.
        let run = job.elastic.start(0, &format!("{} --rdzv-timeout 3s", job.flags("1")));
        job.await_nodes(&run, 0, 1);
        job.etcd.kill(0);
        let outcome = run.finish();
        outcome.expect_code(123).expect_err("error[R0041]").expect_err("reason").expect_err("etcd cannot be reached");
        assert!(!outcome.err().contains("R0005"), "{}", outcome.err());
        job.start(0, "1").finish().expect_code(123).expect_err("error[R0030]");
    });
}

/// Ranks are stopped in time, and start again when the password is right again.
fn password() {
    with(1, 1, |job| {
        job.etcd.authenticate();
        let change = |password: &str| {
            let root = r#"{"name":"root","password":"hunter2-root"}"#;
            let root = job.etcd.post(0, "/v3/auth/authenticate", root, None);
            let body = format!(r#"{{"name":"ann","password":"{password}"}}"#);
            job.etcd.post(0, "/v3/auth/user/changepw", &body, root["token"].as_str());
        };
        let shared = job.elastic.shared.to_str().expect("a path in UTF-8");
        let flags = format!("{} --nproc_per_node 2 {} {shared} {EVERY}", job.flags("1"), job.elastic.script);
        let command = job.elastic.cluster.sandboxes[0].umiak(flags.split(' ')).on(job.host(0));
        let run = command.env("UMIAK_ETCD_USER", "ann").env("UMIAK_ETCD_PASSWORD", "hunter2-ann").start();
        let (attempt, ranks) = job.await_nodes(&run, 0, 1);
        change("hunter2-bob");
        let is_gone = || !std::path::Path::new(&format!("/proc/{}", ranks[0].pid)).exists();
        run.wait_until("ranks are stopped", is_gone);
        change("hunter2-ann");
        job.await_nodes(&run, attempt, 1);
        job.elastic.finish();
        let outcome = run.finish();
        outcome.expect_code(0).expect_err("notice[R0042]: etcd refuses requests; ranks keep running");
        assert!(!outcome.err().contains("hunter2"), "{}", outcome.err());
        job.elastic.judge();
    });
}

/// Random changes of nodes, of the network, and of etcd.
fn chaos() {
    let seed = fastrand::u64(..10_000);
    let _ = writeln!(std::io::stdout(), "seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    with(5, 3, |mut job| {
        let snapshot = job.elastic.cluster.snapshot();
        let mut runs: BTreeMap<usize, Running<'_>> = job.starts(2, "2:4").into_iter().enumerate().collect();
        let mut met: BTreeMap<&str, usize> = BTreeMap::new();
        let mut attempt = 0;
        let mut last_failed = (0, 0);
        for _ in 0..trials(20) {
            let live: Vec<usize> = runs.keys().copied().collect();
            let (now, ranks) = job.await_nodes(&runs[&live[0]], attempt, live.len().min(4));
            attempt = now;
            std::thread::sleep(Duration::from_millis(rng.u64(..300)));
            let victim = live[rng.usize(..live.len())];
            let event = match rng.u32(..9) {
                0 | 1 if live.len() < 4 => "join",
                2 if live.len() > 2 => "kill the front",
                3 if live.len() > 2 => "stop",
                4 if live.len() > 2 => "kill the coordinator",
                5 if last_failed != (victim, 2) => "kill the guardian",
                6 if live.len() > 2 => "cut off from all",
                7 => "lose a member of etcd, and kill a rank",
                _ => "kill a rank",
            };
            *met.entry(event).or_default() += 1;
            let _ = writeln!(std::io::stdout(), "attempt {attempt}: {event}, {victim}");
            let failed = |host: usize| (host, if last_failed.0 == host { last_failed.1 + 1 } else { 1 });
            match event {
                "join" => {
                    let host = (0..5).find(|host| !runs.contains_key(host)).expect("at most four run");
                    runs.insert(host, job.start(host, "2:4"));
                }
                "kill the guardian" => {
                    last_failed = failed(victim);
                    umiak_sys::descend::signal(umiak_sys::descend::children(runs[&victim].pid())[0], SIGKILL);
                }
                "cut off from all" => {
                    job.host(victim).link_down();
                    let other = runs.iter().find(|(host, _)| **host != victim).expect("others run").1;
                    attempt = job.await_nodes(other, attempt, live.len() - 1).0;
                    job.host(victim).link_up();
                }
                "kill the front" | "stop" | "kill the coordinator" => {
                    let host = if event == "kill the coordinator" { job.leader() } else { victim };
                    let run = runs.remove(&host).expect("it is live");
                    run.signal(if event == "stop" { SIGTERM } else { SIGKILL });
                    let _ = run.finish();
                }
                _ => {
                    let host = if last_failed == (victim, 2) { live[usize::from(live[0] == victim)] } else { victim };
                    last_failed = failed(host);
                    let own = umiak_sys::descend::descendants(runs[&host].pid());
                    let own: Vec<u32> = ranks.iter().map(|start| start.pid).filter(|pid| own.contains(pid)).collect();
                    let member = rng.usize(..3);
                    if event.starts_with("lose") {
                        job.etcd.kill(member);
                    }
                    umiak_sys::descend::signal(own[rng.usize(..own.len())], SIGKILL);
                    if event.starts_with("lose") {
                        job.etcd.restart(member);
                    }
                }
            }
        }
        for (event, times) in met {
            let _ = writeln!(std::io::stdout(), "{times:>6}  {event}");
        }
        // A node that joins must not come after the end.
        let live: Vec<&Running<'_>> = runs.values().collect();
        job.await_nodes(live[0], attempt, live.len().min(4));
        job.finish(runs.into_values().collect());
        drop(job);
        snapshot.assert_as_before();
    });
}
