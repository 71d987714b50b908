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

/// A log for each signature.
const FIXTURES: &[(&str, &[u8])] = fixtures! {
    U1101 U1102 U1103 U1104 U1105 U1201 U1202 U1203 U1204 U1205 U1206 U1207
    U1301 U1302 U1303 U1304 U1401 U1402 U1403
    U2101 U2102 U2103 U2104 U2201 U2202 U2203 U2204 U2205 U2206 U2301 U2302 U2303 U2401 U2402
    U3101 U3102 U3103 U3104 U3201 U3202 U3203 U3204 U3205 U3206 U3207
    U4101 U4102 U4103 U4201 U4202 U4203 U4204
    U9101 U9102 U9103 U9201 U9202 U9203 U9204 U9205 U9206 U9207
};

#[test]
fn every_signature_is_found_in_its_log() {
    let codes: Vec<_> = SIGNATURES.iter().map(|signature| signature.code).collect();
    let fixtures: Vec<_> = FIXTURES.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, fixtures, "each signature has a log, and each log a signature");
    let mut wrong = Vec::new();
    for (code, log) in FIXTURES {
        let evidence = extract(log, Some(1), None);
        let found = evidence.signature.as_ref().map(|signature| signature.code.as_str());
        if found != Some(*code) {
            wrong.push(format!("{code}: found {found:?} in {:?}", evidence.headline));
        }
        assert!(evidence.headline.is_some_and(|line| line.number.is_some()), "{code}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Peers of a rank that went first, as gloo in Paddle 3.3 and in torch 2.15 tells of it.
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
        ("Bus error (core dumped)", "U3104"),
    ];
    for (line, code) in cases {
        assert_eq!(of_line(line).map(|signature| signature.code), Some(code), "{line}");
    }
    for line in ["", "epoch 3 step 10 loss 0.31", "ValueError: bad value", "loss.backward()"] {
        assert_eq!(of_line(line).map(|signature| signature.code), None, "{line}");
    }
}
