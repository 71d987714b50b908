use super::*;

fn record(message: &str) -> LogRecord {
    LogRecord { micros: 1_000_000, message: message.to_owned() }
}

fn signal(signal: i32) -> Exit {
    Exit::Signal { signal, core_dumped: false }
}

/// The description for process 4121, which this signal ended.
fn told(lines: &[&str], exit: &Exit) -> Vec<String> {
    let account = Account {
        log: lines.iter().map(|line| record(line)).collect(),
        now_micros: 1_000_000,
        memory_kills: 0,
        limit_kib: None,
    };
    let facts = attribute(&[Death { pid: 4121, exit, stopped: false }], &account);
    facts[0].iter().map(KernelFact::describe).collect()
}

#[test]
fn lines_of_real_kernels() {
    let summary = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,task_memcg=/job,task=python3,pid=4121,uid=0";
    for (what, lines, exit, expected) in [
        (
            "6.x, a cgroup's limit",
            &[
                "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
                "memory: usage 20480kB, limit 20480kB, failcnt 92",
                "memory+swap: usage 20480kB, limit 9007199254740988kB, failcnt 0",
                summary,
                "Memory cgroup out of memory: Killed process 4121 (python3) total-vm:118956kB, anon-rss:20224kB, file-rss:6628kB, shmem-rss:0kB, UID:0 pgtables:104kB oom_score_adj:0",
            ][..],
            9,
            "the OOM killer killed it (it used 26 MiB; its cgroup limit is 20 MiB)",
        ),
        (
            "5.x, the host's memory",
            &[
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/user.slice,task=python,pid=4121,uid=1000",
                "Out of memory: Killed process 4121 (python) total-vm:98211300kB, anon-rss:64107212kB, file-rss:2048kB, shmem-rss:1024kB, UID:1000 pgtables:125952kB oom_score_adj:0",
            ],
            9,
            "the OOM killer killed it (it used 61.1 GiB; the host was out of memory)",
        ),
        (
            "5.x, without the rate-limited lines",
            &[
                "Memory cgroup out of memory: Killed process 4121 (a) b) total-vm:1kB, anon-rss:2048kB, file-rss:0kB, shmem-rss:0kB",
            ],
            9,
            "the OOM killer killed it (it used 2 MiB; its cgroup limit was reached)",
        ),
        (
            "4.x",
            &[
                "Memory cgroup out of memory: Kill process 4121 (python) score 1000 or sacrifice child",
                "Killed process 4121 (python) total-vm:110848kB, anon-rss:19936kB, file-rss:5592kB, shmem-rss:0kB",
            ],
            9,
            "the OOM killer killed it (it used 24 MiB; its cgroup limit was reached)",
        ),
        (
            "6.x, a segmentation fault",
            &[
                "python3[4121]: segfault at 10 ip 0000561d5f489141 sp 00007fff1f57aab0 error 6 in libfoo.so.1[1141,561d5f489000+1000] likely on CPU 1 (core 1, socket 0)",
            ],
            11,
            "segmentation fault at 0x10 in libfoo.so.1",
        ),
        (
            "5.x, a segmentation fault",
            &[
                "a[1]: b[4121]: segfault at 0 ip 00007f6e01c2a1b0 sp 00007ffd9d0b2d18 error 4 in libc-2.31.so[7f6e01b97000+178000]",
            ],
            11,
            "segmentation fault at 0x0 in libc-2.31.so",
        ),
        (
            "a jump to nowhere",
            &[
                "python3[4121]: segfault at 0 ip 0000000000000000 sp 00007ffd9d0b2d18 error 14 likely on CPU 3 (core 1, socket 0)",
            ],
            11,
            "segmentation fault at 0x0",
        ),
        (
            "general protection",
            &[
                "traps: python3[4121] general protection fault ip:7f2a01c2a1b0 sp:7ffd9d0b2d18 error:0 in libtorch_cpu.so[7f29f0000000+5000000]",
            ],
            11,
            "general protection fault at instruction 0x7f2a01c2a1b0 in libtorch_cpu.so",
        ),
        (
            "an instruction that this CPU does not have",
            &[
                "traps: python3[4121] trap invalid opcode ip:557bc5a5213a sp:7ffcc0be4d00 error:0 in _C.so[113a,557bc5a52000+1000]",
            ],
            4,
            "illegal instruction at instruction 0x557bc5a5213a in _C.so",
        ),
        (
            "hardware memory error",
            &["MCE: Killing python3:4121 due to hardware memory corruption fault at 7f2a01c2a000"],
            7,
            "hardware memory error at 0x7f2a01c2a000",
        ),
    ] {
        assert!(lines.iter().any(|line| is_of_interest(line)), "{what}");
        assert_eq!(told(lines, &signal(exit)), [expected], "{what}");
        assert_eq!(told(lines, &signal(15)), [""; 0], "{what}: another signal ended it");
    }
}

#[test]
fn lines_that_say_nothing_about_the_rank() {
    for line in [
        "Out of memory: Killed process 41210 (python) total-vm:1kB, anon-rss:1kB",
        "Memory cgroup out of memory: OOM victim 4121 (python) is already exiting. Skip killing the task",
        "oom_reaper: reaped process 4121 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "oom-kill:",
        "oom-kill:constraint=,pid=",
        "Killed process ",
        "memory: usage ",
        "traps: ",
        "traps: x[",
        "]: segfault at ",
        "x[4121]: segfault at",
        " due to hardware memory corruption",
        "usb 1-1: new high-speed device [4121]",
    ] {
        assert_eq!(told(&[line], &signal(9)), [""; 0], "{line}");
    }
}

#[test]
fn a_fault_of_another_thread_needs_time_and_kind() {
    let line = "pt_autograd_0[4199]: segfault at 0 ip 0000000000000000 sp 00007ffd9d0b2d18 error 14";
    let (crash, kill) = (signal(11), signal(9));
    let of = |deaths: &[Death<'_>], now_micros| {
        let facts =
            attribute(deaths, &Account { log: vec![record(line)], now_micros, memory_kills: 0, limit_kib: None });
        facts
            .iter()
            .map(|facts| facts.iter().map(KernelFact::describe).collect::<Vec<_>>().join("; "))
            .collect::<Vec<_>>()
    };
    let death = |pid, exit| Death { pid, exit, stopped: false };
    let told = "segmentation fault at 0x0, thread 4199";
    assert_eq!(of(&[death(4121, &crash), death(4122, &kill)], 2_000_000), [told, ""]);
    assert_eq!(of(&[death(4121, &crash)], 60_000_000), [""], "a line from long ago");
    assert_eq!(of(&[death(4121, &crash), death(4122, &crash)], 2_000_000), ["", ""], "it may belong to either");
}

#[test]
fn the_counter_tells_where_the_log_does_not() {
    let (kill, passed_on, crash) = (signal(9), Exit::Code { code: 137 }, signal(11));
    let of = |deaths: &[(&Exit, bool)], log: &[&str], memory_kills| {
        let deaths: Vec<Death<'_>> =
            deaths.iter().zip(4121..).map(|((exit, stopped), pid)| Death { pid, exit, stopped: *stopped }).collect();
        let log = log.iter().map(|line| record(line)).collect();
        let facts = attribute(&deaths, &Account { log, now_micros: 1_000_000, memory_kills, limit_kib: None });
        facts
            .iter()
            .map(|facts| facts.iter().map(KernelFact::describe).collect::<Vec<_>>().join("; "))
            .collect::<Vec<_>>()
    };
    let unsure = "the OOM killer killed it or one of its processes (its cgroup limit was reached)";
    assert_eq!(of(&[(&kill, false), (&crash, false)], &[], 1), [unsure, ""]);
    assert_eq!(of(&[(&kill, false)], &[], 0), [""]);
    assert_eq!(of(&[(&kill, true)], &[], 1), [""], "it may have been our SIGKILL");
    let nearby = "the OOM killer killed 1 process of this cgroup during the run";
    assert_eq!(of(&[(&kill, false), (&kill, false)], &[], 1), [nearby, nearby]);
    let child = "Memory cgroup out of memory: Killed process 5000 (python3) total-vm:9kB, anon-rss:2048kB";
    let told = "the OOM killer killed it or one of its processes (it used 2 MiB; its cgroup limit was reached)";
    assert_eq!(of(&[(&passed_on, false)], &[child], 1), [told], "a shell passes on its child's end");
}

#[test]
fn sizes() {
    for (kib, text) in [(4, "4 KiB"), (20_480, "20 MiB"), (1_572_864, "1.5 GiB"), (134_217_728, "128.0 GiB")] {
        assert_eq!(size(kib), text);
    }
}

#[test]
fn a_fact_brings_its_hint_where_the_rank_said_nothing() {
    let full = KernelFact::SharedMemoryFull { path: "/dev/shm".into(), free_bytes: 0 };
    let code = |evidence: &Evidence| evidence.signature.as_ref().map(|signature| signature.code.clone());
    let mut silent = Evidence::default();
    add(&mut silent, full.clone());
    assert_eq!(code(&silent).as_deref(), Some("U3104"));
    let mut spoken =
        Evidence { signature: signatures::explain("U1204").map(Signature::to_match), ..Evidence::default() };
    add(&mut spoken, full.clone());
    assert_eq!(code(&spoken).as_deref(), Some("U1204"));
    let mut fault =
        Evidence { signature: signatures::explain("U2304").map(Signature::to_match), ..Evidence::default() };
    add(&mut fault, full);
    assert_eq!(code(&fault).as_deref(), Some("U3104"), "the reason of the bus error");
}

#[test]
fn a_limit_of_its_own_is_named() {
    let told = |mut evidence: Evidence| {
        add_over_limit(&mut evidence, 64 << 10);
        assert_eq!(evidence.signature.as_ref().map(|signature| &*signature.code), Some("U3103"));
        evidence.kernel.iter().map(KernelFact::describe).collect::<Vec<_>>()
    };
    let unsure = "the OOM killer killed it or one of its processes (it exceeded its limit of 64 MiB)";
    assert_eq!(told(Evidence::default()), [unsure]);
    let mut counted = Evidence::default();
    add(&mut counted, KernelFact::MemoryKills { count: 2 });
    assert_eq!(told(counted), [unsure], "it is what was counted");
    let scope = OomScope::Cgroup;
    for (resident_kib, sure) in [
        (Some(61 << 10), "the OOM killer killed it (it used 61 MiB; it exceeded its limit of 64 MiB)"),
        (Some(1 << 10), "the OOM killer killed it (it exceeded its limit of 64 MiB)"),
    ] {
        let mut named = Evidence::default();
        add(&mut named, KernelFact::OomKilled { scope, named: true, resident_kib, limit_kib: None, cgroup: None });
        assert_eq!(told(named), [sure], "the log named it already");
    }
}
