use super::*;
use crate::diagnose::extract;

macro_rules! fixtures {
    ($($code:ident)*) => {
        &[$((
            stringify!($code),
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/", stringify!($code), ".log"
            )) as &[u8],
        )),*]
    };
}

/// A log for each signature, and several where programs print different messages for it: those have a name after
/// the code.
const FIXTURES: &[(&str, &[u8])] = fixtures! {
    U1101 U1102 U1102_symbol U1103 U1104 U1105 U1106 U1106_two U1107 U1108 U1109 U1110
    U1201 U1202 U1203 U1204 U1205 U1206 U1207 U1208 U1209 U1210
    U1301 U1301_brpc U1301_paddle U1301_python U1302 U1302_temporary U1303 U1304 U1305 U1306 U1306_gated U1307
    U1401 U1402 U1403 U1404 U1405 U1406 U1406_nccl U1407 U1408 U1408_rpc U1408_trainer
    U1501
    U2101 U2102 U2103 U2103_address U2103_paddle U2104 U2105 U2106 U2107 U2108 U2108_breakpoint
    U2201 U2202 U2203 U2204 U2204_pickle U2205 U2206 U2207 U2208 U2209 U2210
    U2301 U2301_paddle U2302 U2303 U2304 U2305
    U2401 U2402 U2403 U2404 U2404_mpi U2405
    U3101 U3101_fork U3101_native U3101_paddle U3102 U3102_paddle U3103 U3103_slurm U3104 U3104_nccl U3105
    U3201 U3202 U3203 U3204 U3204_xid U3205 U3206 U3207
    U4101 U4102 U4102_cuda U4103 U4104 U4104_ddp U4105 U4106 U4106_gloo U4107
    U4201 U4202 U4203 U4203_connect U4203_paddle U4204 U4205 U4206 U4207 U4208 U4209
    U9101 U9102 U9103 U9104
    U9201 U9201_aborted U9202 U9203 U9203_gloo U9203_store U9204 U9205 U9206 U9207 U9208 U9208_paddle
};

/// Lines of healthy programs, some of which look like errors.
const HEALTHY: &str = include_str!("../../../../../fixtures/logs/healthy.log");
/// Lines that match words of the table but did not end the program.
const WARNINGS: &str = include_str!("../../../../../fixtures/logs/warnings.log");

fn code_of(line: &str) -> Option<&'static str> {
    of_line(line).map(|signature| signature.code)
}

#[test]
fn every_signature_is_found_in_its_log() {
    let codes: Vec<_> = SIGNATURES.iter().map(|signature| signature.code).collect();
    let fixtures: Vec<_> = FIXTURES.iter().map(|(name, _)| *name).filter(|name| !name.contains('_')).collect();
    assert_eq!(codes, fixtures, "each signature has a log, and each log a signature");
    let mut wrong = Vec::new();
    for (name, log) in FIXTURES {
        let (code, _) = name.split_once('_').unwrap_or((name, ""));
        let victim = explain(code).expect("a log has a signature").kind == Kind::Victim;
        let evidence = extract(log, Some(1), None);
        let found = evidence.signature.as_ref().map(|signature| (signature.code.as_str(), signature.victim));
        if found != Some((code, victim)) {
            wrong.push(format!("{name}: found {found:?} in {:?}", evidence.headline));
        }
        assert!(evidence.headline.is_some_and(|line| line.number.is_some()), "{name}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A log that is in the directory but not in the list above would not be tested.
#[test]
fn every_log_is_in_the_list() {
    let logs = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs")).unwrap();
    let mut names: Vec<String> = logs.map(|log| log.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with('U'));
    names.sort();
    let listed: Vec<String> = FIXTURES.iter().map(|(name, _)| format!("{name}.log")).collect();
    let missing: Vec<_> = names.iter().filter(|name| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn healthy_output_has_no_signature() {
    assert!(HEALTHY.lines().count() > 20);
    for line in HEALTHY.lines() {
        assert_eq!(code_of(line), None, "{line}");
    }
    assert_eq!(extract(HEALTHY.as_bytes(), None, None).signature, None);
}

#[test]
fn warnings_are_no_diagnosis() {
    for line in WARNINGS.lines() {
        assert_eq!(extract(line.as_bytes(), None, None).signature, None, "{line}");
    }
    assert_eq!(extract(WARNINGS.as_bytes(), None, None).signature, None);
}

/// A victim's message in the same line, message or log does not hide the rank's own error.
#[test]
fn a_cause_goes_before_a_victim() {
    for exact in SIGNATURES.iter().filter(|signature| signature.scope == Scope::Exact) {
        assert_ne!(exact.kind, Kind::Victim, "{}: takes precedence", exact.code);
    }
    let cases = [
        // One line.
        ("OSError: [Errno 28] No space left on device, then Connection reset by peer\n", "U1203"),
        (
            "requests.exceptions.ConnectionError: Max retries exceeded with url: /x ([Errno 111] Connection refused)\n",
            "U1304",
        ),
        // Plain lines, in either order.
        ("ERROR: No space left on device\nERROR: Connection reset by peer\n", "U1203"),
        ("ERROR: Connection reset by peer\nERROR: No space left on device\n", "U1203"),
        ("ERROR: Connection reset by peer\nERROR: Socket Timeout\nERROR: Broken pipe\n", "U4202"),
        // The rank's own error without a signature, and a library's log line right after it.
        (
            "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nValueError: bad header\n\
             [rank0]:[W1103 05:08:55.1 TCPStore.cpp:131] [c10d] recvVector failed: failed to recv, got 0 bytes\n",
            "",
        ),
    ];
    for (log, expected) in cases {
        let signature = extract(log.as_bytes(), None, None).signature;
        assert_eq!(signature.map_or(String::new(), |signature| signature.code), expected, "{log}");
    }
}

#[test]
fn the_more_specific_wins() {
    let cases = [
        ("HTTPError: 401 Client Error: Unauthorized for url: https://x", "U1306"),
        ("HTTPError: 404 Client Error: Not Found for url: https://x", "U1304"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "U1102"),
        ("ImportError: cannot import name 'builder' from 'google.protobuf.internal' (x.py)", "U1107"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "U2204"),
        ("_pickle.UnpicklingError: Weights only load failed.", "U2208"),
        ("ValueError: (InvalidArgument) The shape of input is wrong", "U2201"),
        ("ValueError: (InvalidArgument) The axis is wrong", "U2106"),
        ("SystemError: (Fatal) Blocking queue is killed because the data reader raises an exception.", "U2401"),
        ("OSError: (External) CUDA error(999), unknown error.", "U3205"),
        ("OSError: (External) NCCL error(2), unhandled system error.", "U4101"),
        ("MemoryError: (ResourceExhausted) Fail to alloc memory of 4 size, error code is 12.", "U3101"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "U4107"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "U3104"),
        ("ProcessExitedException: process 0 terminated with signal SIGSEGV", "U2301"),
        ("Gloo connectFullMesh failed with Connection refused, remote=[127.0.1.1]:17308", "U9203"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "U1303"),
    ];
    for (line, code) in cases {
        assert_eq!(code_of(line), Some(code), "{line}");
    }
}

/// Peers of a rank that ended first, as reported by gloo in Paddle 3.3 and in torch 2.15.
#[test]
fn real_victims_are_victims() {
    for (code, log) in [
        ("U9201", include_bytes!("../../../../../fixtures/logs/paddle-gloo-peer-gone.log").as_slice()),
        ("U9202", include_bytes!("../../../../../fixtures/logs/torch-gloo-peer-killed.log")),
    ] {
        let signature = extract(log, Some(1), None).signature.expect("known words");
        assert_eq!((signature.code.as_str(), signature.victim), (code, true));
    }
}

#[test]
fn the_table_is_well_formed() {
    for pair in SIGNATURES.windows(2) {
        assert!(pair[0].code < pair[1].code, "{} is out of order", pair[1].code);
    }
    for signature in SIGNATURES {
        let Signature { code, title, hint, text, .. } = signature;
        assert!(!title.is_empty() && !hint.is_empty(), "{code}");
        let digits = code.strip_prefix('U').unwrap();
        assert!(digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{code}");
        assert!(!title.ends_with('.') && !hint.ends_with('.'), "{code}: no full stop on one sentence");
        assert!(text.ends_with('.'), "{code}: the text is sentences");
        assert_eq!(code.starts_with("U9"), signature.kind == Kind::Victim, "{code}: victims are U9");
        assert!(regex::Regex::new(signature.pattern).is_ok_and(|pattern| !pattern.is_match("")), "{code}");
    }
}

#[test]
fn explain_takes_either_case() {
    assert_eq!(explain("u3102").map(|signature| signature.code), Some("U3102"));
    assert!(explain("U0000").is_none());
    assert_eq!(explain(TERMINATED).map(|signature| signature.kind), Some(Kind::Victim));
}

#[test]
fn one_line_in_other_words() {
    let cases = [
        ("ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 2.0GB memory on GPU 0", "U3102"),
        ("MemoryError", "U3101"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory", "U3101"),
        ("ImportError: /lib/libc.so.6: version `GLIBC_2.34' not found (required by x.so)", "U1103"),
        ("ImportError: cannot import name 'foo' from 'bar' (bar.py)", "U1101"),
        ("sh: 1: nvcc: not found", "U1104"),
        ("/bin/sh: 1: nosuchprog: not found", "U1104"),
        ("./run.sh: 2: nosuchcmd: not found", "U1104"),
        ("/bin/sh: nosuchprog: not found", "U1104"),
        ("/usr/bin/python3: No module named paddle_job", "U1101"),
        ("RuntimeError: Socket Timeout", "U4202"),
        (
            "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
            "U4202",
        ),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15", "U9101"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "U9204"),
        ("OSError: (External) CUDA error(719), unspecified launch failure.", "U3202"),
        ("ExternalError: CUDA error(2), out of memory.", "U3102"),
        ("KeyError: 'PADDLE_TRAINER_ID'", "U2103"),
        ("run.sh: line 3: 20113 Killed                  python train.py", "U3103"),
        ("run.sh: line 3: 20113 Segmentation fault      (core dumped) python train.py", "U2301"),
        ("Bus error (core dumped)", "U2304"),
    ];
    for (line, code) in cases {
        assert_eq!(code_of(line), Some(code), "{line}");
    }
}
