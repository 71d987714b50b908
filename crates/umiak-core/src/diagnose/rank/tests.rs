use super::*;
use crate::diagnose::extract;
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
        ran: Duration::from_millis(1500),
        order: 0,
        by_us: false,
        before_stop: true,
        timed_out: None,
        evidence: Some(extract(log.as_bytes(), Some(1), None)),
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
