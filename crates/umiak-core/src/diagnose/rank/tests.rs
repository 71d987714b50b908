use super::*;
use crate::diagnose::extract;
use crate::facts::{Clue, ProcessState, StackFrame};
use crate::model::{Rank, SpawnError, SpawnStage};

const OWN: &str =
    "Traceback (most recent call last):\n  File \"train.py\", line 3, in go\n    go()\nValueError: bad header\n";
const LOST: &str = "Traceback (most recent call last):\n  File \"train.py\", line 3, in go\n    go()\n\
    RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:1\n";
const RESET: &str = "terminate called after throwing an instance of 'gloo::IoException'\n  \
    what():  Connection reset by peer\n";
const TIMEOUT: &str = "terminate called after throwing an instance of 'c10::DistBackendError'\n  \
    what():  [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=413)\n";
const NOTICE: &str = "[SignalInfo: *** SIGTERM (@0x3fe) received by PID 1164 (TID 0x7f) from PID 1022 ***]\n";

fn code(code: i32) -> Exit {
    Exit::Code { code }
}

fn signal(signal: i32) -> Exit {
    Exit::Signal { signal, core_dumped: false }
}

/// An end before our stop, not caused by us; `order` is set by the position in the case.
fn end(rank: u32, exit: Exit, log: &str) -> End {
    End {
        subject: Subject { replica: format!("trainer-{rank}"), rank: Some(Rank(rank)), attempt: 1 },
        exit,
        classed: None,
        ran: Duration::from_millis(1500),
        order: 0,
        by_us: false,
        before_stop: true,
        serves: false,
        timed_out: None,
        evidence: Some(extract(log.as_bytes(), Some(1), None)),
        snapshot: None,
        addresses: Vec::new(),
        usage: None,
    }
}

fn late(end: End) -> End {
    End { before_stop: false, ..end }
}

fn ours(end: End) -> End {
    End { before_stop: false, by_us: true, ..end }
}

fn ranks(findings: &[Finding]) -> Vec<u32> {
    findings.iter().map(|finding| finding.subject.rank.unwrap().0).collect()
}

/// Ranks ends that happened in the given order.
fn judge(ends: Vec<End>) -> Verdict {
    let ends = ends.into_iter().enumerate().map(|(order, end)| End { order: order as u64, ..end });
    // The caller may pass them in any order.
    rank(ends.rev().collect())
}

#[track_caller]
fn check(what: &str, ends: Vec<End>, causes: &[u32], victims: &[u32]) {
    let verdict = judge(ends);
    assert_eq!((&*ranks(&verdict.causes), &*ranks(&verdict.victims)), (causes, victims), "{what}");
}

#[test]
fn who_was_first() {
    let refused = Exit::Spawn(SpawnError { doing: SpawnStage::Execute, errno: 2, reason: "not found".into() });
    check("good ends", vec![end(0, code(0), OWN)], &[], &[]);
    check("only our doing", vec![ours(end(0, signal(15), "")), late(end(1, code(143), ""))], &[], &[]);
    check("one of its own", vec![end(1, code(1), OWN), ours(end(0, signal(15), NOTICE))], &[1], &[]);
    check(
        "killed, reported after its peers",
        vec![end(0, code(1), LOST), end(1, signal(6), RESET), late(end(2, signal(9), "epoch 1\n"))],
        &[2],
        &[0, 1],
    );
    check(
        "killed by SIGKILL with a stranger's words",
        vec![end(0, code(1), LOST), late(end(1, signal(9), LOST))],
        &[1],
        &[0],
    );
    check(
        "the same exception twice",
        vec![end(3, code(1), OWN), late(end(1, code(1), OWN)), ours(end(0, signal(15), ""))],
        &[3, 1],
        &[],
    );
    check("a silent exit before a traceback", vec![end(0, code(1), "bye\n"), end(1, code(1), OWN)], &[1], &[0]);
    check("a silent exit before lost peers", vec![end(0, code(1), LOST), end(1, code(1), "")], &[1], &[0]);
    check("silent before and after our stop", vec![end(0, code(1), ""), late(end(1, code(1), ""))], &[0], &[1]);
    check("refused start", vec![end(0, code(1), LOST), end(1, refused, "")], &[1], &[0]);
    check("lost", vec![end(0, Exit::Lost, ""), end(1, code(1), LOST)], &[0], &[1]);
    check("lost, with errors in the logs", vec![end(0, Exit::Lost, LOST), end(1, Exit::Lost, OWN)], &[1], &[0]);
    let evicted = || Exit::Evicted { reason: "out of disk".into() };
    let gone = Exit::NodeLost { node: "gpu-12".into() };
    check("evicted", vec![end(0, code(1), ""), end(1, evicted(), "")], &[1], &[0]);
    check("evicted after our stop", vec![end(0, code(1), ""), late(end(1, evicted(), ""))], &[0], &[1]);
    check("a node is lost, and that is heard late", vec![end(0, code(1), ""), late(end(1, gone, ""))], &[1], &[0]);
    check("lost beside an error", vec![end(0, Exit::Lost, ""), late(end(1, code(1), OWN))], &[1], &[0]);
    check(
        "a time-out is no proof",
        vec![end(0, signal(6), TIMEOUT), end(1, code(1), LOST), late(end(2, code(1), OWN))],
        &[2],
        &[0, 1],
    );
    check("a time-out comes before lost peers", vec![end(1, code(1), LOST), end(0, signal(6), TIMEOUT)], &[0], &[1]);
    check("an abort without words", vec![end(1, signal(6), RESET), end(0, signal(6), "")], &[0], &[1]);
    check("a crash of the clean-up", vec![end(0, signal(11), LOST), end(1, signal(11), "")], &[1], &[0]);
    check("a shell passes a kill on", vec![end(1, code(1), LOST), end(0, code(137), "")], &[0], &[1]);
    check(
        "aborts of the runtime",
        {
            let log = format!("{RESET}\nFatal Python error: Aborted\n");
            vec![end(0, signal(6), &log), late(end(1, signal(9), ""))]
        },
        &[1],
        &[0],
    );
    let worker = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n\
        RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly\n";
    check("workers that our signal reached", vec![end(0, code(1), ""), late(end(1, code(1), worker))], &[0], &[1]);
    check("a broken pipe", vec![end(1, signal(13), ""), end(0, code(1), OWN)], &[0], &[1]);
}

/// No rank reports its own error: then the earliest is named as a possible cause.
#[test]
fn only_victims() {
    let verdict = judge(vec![end(2, code(1), LOST), end(1, signal(6), RESET)]);
    assert_eq!((ranks(&verdict.causes), ranks(&verdict.victims)), (vec![2], vec![1]));
    assert_eq!(verdict.causes[0].weight, Weight::Possible);
    assert_eq!(verdict.victims[0].weight, Weight::Victim);
    // Rank 0 was terminated from outside; its peer's connection broke first.
    check("stopped from outside", vec![end(1, code(1), LOST), end(0, signal(15), NOTICE)], &[0], &[1]);
    let interrupted = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyboardInterrupt\n";
    check("interrupted", vec![end(1, code(1), LOST), end(0, code(130), interrupted)], &[0], &[1]);
    let handling =
        format!("{interrupted}\nDuring handling of the above exception, another exception occurred:\n\n{LOST}");
    check("interrupted, then lost", vec![end(1, code(1), &handling), end(0, code(1), OWN)], &[0], &[1]);
    check("no evidence at all", vec![End { evidence: None, ..end(0, code(1), "") }], &[0], &[]);
}

#[test]
fn answers_to_our_signal_are_our_doing() {
    let ends = [code(143), code(137), code(130), signal(15)].map(|exit| late(end(1, exit, "")));
    for answer in ends.into_iter().chain([late(end(1, code(1), NOTICE))]) {
        let what = format!("{:?}", answer.exit);
        check(&what, vec![end(0, code(1), ""), answer], &[0], &[]);
    }
}

#[test]
fn seeds_in_both_orders() {
    let reader = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/seed-workerlog.4.log"));
    let notice = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/seed-workerlog.0.log"));
    let (zero, four) = (end(0, signal(15), notice), end(4, code(1), reader));
    for ends in [vec![zero.clone(), four.clone()], vec![four, zero]] {
        let verdict = judge(ends);
        assert_eq!((ranks(&verdict.causes), ranks(&verdict.victims)), (vec![4], vec![0]));
        let finding = &verdict.causes[0];
        assert_eq!((finding.weight, finding.ran_micros), (Weight::Certain, 1_500_000));
        let headline = finding.evidence.as_ref().unwrap().headline.as_ref().unwrap();
        assert!(headline.text.ends_with("[Errno 5] Input/output error"), "{headline:?}");
    }
}

#[test]
fn a_kill_for_memory_is_a_cause_even_when_we_killed_too() {
    let oom = KernelFact::OomKilled {
        scope: crate::facts::OomScope::Cgroup,
        named: true,
        resident_kib: None,
        limit_kib: None,
        cgroup: None,
    };
    let killed = |mut end: End| {
        end.evidence.as_mut().unwrap().kernel.push(oom.clone());
        end
    };
    let verdict = judge(vec![end(0, code(1), LOST), killed(ours(end(1, signal(9), LOST)))]);
    assert_eq!((ranks(&verdict.causes), ranks(&verdict.victims)), (vec![1], vec![0]));
    assert!(!verdict.causes[0].stopped_while_ending, "we did not stop it");
    check("without the kernel's word", vec![end(0, code(1), LOST), ours(end(1, signal(9), LOST))], &[0], &[]);
    check("a shell passes it on", vec![end(0, code(1), LOST), killed(late(end(1, code(137), "")))], &[1], &[0]);
}

const GLOO_LOST: &str = "Traceback (most recent call last):\n  File \"train.py\", line 3, in go\n    go()\nRuntimeError: \
    [/w/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:19868. Check the logs.\n";
const GLOO_TIMEOUT: &str = "Traceback (most recent call last):\n  File \"train.py\", line 88, in step\n    \
    loss.backward()\nRuntimeError: [/w/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv\n";

fn running(end: End, change: impl FnOnce(&mut Snapshot)) -> End {
    let mut snapshot = Snapshot { connections: Some(4), ..Snapshot::default() };
    change(&mut snapshot);
    End { snapshot: Some(snapshot), ..ours(end) }
}

fn at(file: &str, line: u32) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let library = |name: &str| format!("/venv/lib/python3.11/site-packages/{name}");
        let file = if file == "torch" { library("torch/distributed/c10d_logger.py") } else { file.to_owned() };
        let inner = StackFrame { function: "f".into(), file, line };
        let outer = StackFrame { function: "step".into(), file: "/home/u/train.py".into(), line: 88 };
        snapshot.stack = if line == 88 { vec![outer] } else { vec![inner, outer] };
    }
}

#[track_caller]
fn clue(what: &str, ends: Vec<End>, causes: &[u32], clue: &Clue) {
    let verdict = judge(ends);
    assert_eq!(ranks(&verdict.causes), causes, "{what}");
    assert!(verdict.causes.iter().all(|cause| cause.clue.as_ref() == Some(clue)), "{what}: {:?}", verdict.causes);
    let is_cause = |victim: &Finding| causes.contains(&victim.subject.rank.unwrap().0);
    assert!(!verdict.victims.iter().any(is_cause), "{what}: {:?}", verdict.victims);
}

#[test]
fn when_every_failed_rank_blames_a_peer() {
    let by = |ranks: &[u32]| Clue::Named { by: ranks.iter().map(|rank| format!("trainer-{rank}")).collect() };
    let lost = |rank| end(rank, code(1), GLOO_LOST);
    let timed_out = |rank| end(rank, code(1), GLOO_TIMEOUT);
    let plain = |rank| running(end(rank, signal(15), ""), |_| ());
    clue("ended with 0", vec![end(2, code(0), "step 7\n"), lost(1), plain(0)], &[2], &Clue::EndedEarly { running: 2 });
    clue(
        "suspended",
        vec![timed_out(0), timed_out(2), running(end(1, signal(9), ""), |it| it.state = ProcessState::Suspended)],
        &[1],
        &Clue::Suspended,
    );
    let owner = End { addresses: vec!["127.0.0.1:40013".parse().unwrap()], ..plain(3) };
    clue("named by its address", vec![lost(0), lost(1), plain(2), owner], &[3], &by(&[0, 1]));
    let closed = running(end(2, signal(15), ""), |it| it.connections = Some(0));
    clue("closed its sockets", vec![lost(0), plain(1), closed], &[2], &Clue::NotConnected { connected: 2 });
    let sleeps = running(end(3, signal(15), ""), at("/home/u/data.py", 31));
    let waits = running(end(2, signal(15), ""), at("torch", 81));
    clue("hangs elsewhere", vec![timed_out(0), waits, sleeps], &[3], &Clue::Elsewhere);
    let barrier = GLOO_TIMEOUT.replace("line 88", "line 109");
    clue(
        "in another collective",
        vec![timed_out(0), end(2, code(1), &barrier), timed_out(1), timed_out(3)],
        &[2],
        &Clue::Elsewhere,
    );
    clue("without a stack", vec![timed_out(0), timed_out(1), plain(2)], &[2], &Clue::Unresponsive);
    let seeks = |rank, port| {
        let log = format!(
            "Traceback (most recent call last):\n  File \"train.py\", line 3, in go\n    go()\n\
             DistNetworkError: The client socket has timed out after 6000ms while trying to connect to (127.0.0.1, {port}).\n"
        );
        end(rank, code(1), &log)
    };
    let host = End { addresses: vec!["127.0.0.1:29500".parse().unwrap()], ..plain(0) };
    let wrong = Clue::WrongAddress { address: "127.0.0.1:29501".into() };
    clue("wrong port", vec![ours(seeks(2, 29501)), timed_out(1), timed_out(3), host.clone()], &[2], &wrong);
    let alone =
        "torch.distributed.DistStoreError: Timed out after 7 seconds waiting for clients. 1/4 clients joined.\n";
    let deaf = End { addresses: host.addresses, ..end(0, code(1), alone) };
    clue("wrong port of the host", vec![deaf, seeks(1, 29500), seeks(2, 29500)], &[0], &by(&[1, 2]));
    let interrupted =
        "Traceback (most recent call last):\n  File \"train.py\", line 3, in go\n    go()\nKeyboardInterrupt\n";
    clue("interrupted", vec![lost(0), plain(2), ours(end(1, signal(15), interrupted))], &[1], &Clue::Signalled);
    let sized = "DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/4\n";
    let sized = end(1, code(1), sized);
    clue("wrong world size", vec![sized, plain(0), plain(2), plain(3)], &[1], &Clue::WrongRank { rank: 4 });
    let refused = "ConnectionRefusedError: [Errno 111] Connection refused\n";
    let listens = |rank, listens| running(end(rank, signal(15), ""), |it| it.listens = Some(listens));
    let ends = vec![end(0, code(1), refused), listens(1, true), listens(2, true), listens(3, false)];
    clue("listens elsewhere", ends, &[3], &Clue::NotListening { listening: 2 });
    let met = |rank, listeners| {
        running(end(rank, signal(15), ""), |it| (it.listens, it.listeners) = (Some(false), Some(listeners)))
    };
    let ends = vec![end(0, code(1), refused), met(1, 1), met(2, 0), met(3, 0)];
    clue("listens elsewhere, while the others have met", ends, &[1], &Clue::NotListening { listening: 0 });
    let ending = running(end(0, signal(15), ""), |it| (it.state, it.connections) = (ProcessState::Exiting, None));
    clue("is about to exit", vec![lost(1), lost(2), lost(3), ending], &[0], &Clue::Remaining { lost: 3 });
    let missed = "DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//cpu//0/2\n";
    let missing = |rank| end(rank, code(1), missed);
    clue("duplicate rank", vec![missing(0), missing(2), missing(1), missing(3)], &[2], &by(&[0, 1, 3]));
}

/// It lost a connection, or says so; the rank that it names has its own open. Neither is certain.
#[test]
fn a_single_accuser_that_the_kernel_contradicts() {
    let owner = |connections| {
        let end = running(end(2, signal(15), ""), |it| it.connections = Some(connections));
        End { addresses: vec!["127.0.0.1:40013".parse().unwrap()], ..end }
    };
    let other = || running(end(0, signal(15), ""), |_| ());
    let verdict = judge(vec![end(1, code(7), GLOO_LOST), other(), owner(3)]);
    assert_eq!(ranks(&verdict.causes), [1, 2]);
    let clues: Vec<bool> = verdict.causes.iter().map(|cause| cause.clue.is_some()).collect();
    assert_eq!(clues, [false, true]);
    assert!(verdict.victims.is_empty(), "{:?}", verdict.victims);
    let verdict = judge(vec![end(1, code(7), GLOO_LOST), other(), owner(0)]);
    assert_eq!(ranks(&verdict.causes), [2]);
}

/// Servers wait for requests, each at its own place.
#[test]
fn a_server_is_not_the_odd_one() {
    let hung = |end: End| End { timed_out: Some(Limit::Hang), by_us: true, ..end };
    let trainer = |rank| hung(running(end(rank, signal(15), ""), at("torch", 81)));
    let server = |serves| End { serves, ..hung(running(end(2, signal(15), ""), at("/home/u/serve.py", 5))) };
    let odd = |serves| ranks(&judge(vec![trainer(0), trainer(1), server(serves)]).causes);
    assert_eq!(odd(false), [2]);
    // Without an odd one, all that waited are shown.
    assert_eq!(odd(true), [0, 1, 2]);
    let servers = |serves| {
        let ending = running(end(3, signal(15), ""), |it| (it.state, it.connections) = (ProcessState::Exiting, None));
        let lost = |rank| end(rank, code(1), GLOO_LOST);
        ranks(&judge(vec![lost(0), lost(1), End { serves, ..ending }]).causes)
    };
    assert_eq!((servers(false), servers(true)), (vec![3], vec![0]));
}

/// A clue never competes with an error of a rank's own.
#[test]
fn an_own_error_needs_no_clue() {
    let verdict = judge(vec![end(2, code(0), ""), end(1, code(1), GLOO_LOST), end(0, code(1), OWN)]);
    assert_eq!((ranks(&verdict.causes), verdict.causes[0].clue.clone()), (vec![0], None));
}
