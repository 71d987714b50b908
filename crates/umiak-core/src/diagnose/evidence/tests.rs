use proptest::prelude::*;

use super::*;

fn of(log: &str) -> Evidence {
    extract(log.as_bytes(), Some(1), None)
}

fn headline(evidence: &Evidence) -> &str {
    evidence.headline.as_ref().map_or("", |line| line.text.as_str())
}

fn code(evidence: &Evidence) -> &str {
    evidence.signature.as_ref().map_or("", |signature| signature.code.as_str())
}

/// A traceback of one frame.
fn raised(file: &str, exception: &str) -> String {
    format!("Traceback (most recent call last):\n  File \"{file}\", line 3, in go\n    go()\n{exception}\n")
}

const HANDLING: &str = "\nDuring handling of the above exception, another exception occurred:\n\n";
const CAUSE: &str = "\nThe above exception was the direct cause of the following exception:\n\n";

#[test]
fn seed_reader() {
    let log = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/seed-workerlog.4.log"));
    let evidence = extract(log, Some(101), None);
    let expected = Line { text: "Error: [Errno 5] Input/output error".into(), number: Some(102) };
    assert_eq!(evidence.headline, Some(expected));
    let place = "/root/paddlejob/workspace/env_run/reader.py:218 in __next__  data = next(self, loader)";
    assert_eq!(evidence.place.as_deref(), Some(place));
    assert_eq!(code(&evidence), "U1204");
    assert_eq!(evidence.traceback.len(), 7);
    assert_eq!(evidence.last_lines.len(), 5);
}

#[test]
fn seed_terminated() {
    let log = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/seed-workerlog.0.log"));
    let evidence = extract(log, None, None);
    assert_eq!(code(&evidence), "U9101");
    assert!(evidence.signature.is_some_and(|signature| signature.victim));
}

#[test]
fn place_is_the_users() {
    let log = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/U3102.log"));
    let evidence = extract(log, Some(18231), None);
    assert_eq!(evidence.place.as_deref(), Some("train.py:88 in step  loss.backward()"));
    assert!(headline(&evidence).starts_with("torch.OutOfMemoryError: CUDA out of memory."));
    assert_eq!(evidence.headline.unwrap().number, Some(18244));
    let crash = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/U2301.log"));
    assert_eq!(extract(crash, None, None).place.as_deref(), Some("/home/li/job/model.py:31 in attend"));
    let syntax = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/logs/U2101.log"));
    assert_eq!(extract(syntax, None, None).place.as_deref(), Some("train.py:61  for batch in loader"));
}

/// Which of two chained exceptions is shown.
#[test]
fn chains() {
    let lost = "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:1";
    let oom = "torch.OutOfMemoryError: CUDA out of memory.";
    let cases = [
        // Named by the author.
        (CAUSE, "ValueError: bad header", "ReadError: cannot load", "ValueError: bad header"),
        (CAUSE, lost, "TrainError: step failed", lost),
        // A harmless error first, then the real one.
        (HANDLING, "FileNotFoundError: cache", "ValueError: bad header", "ValueError: bad header"),
        (HANDLING, "KeyError: 'x'", oom, oom),
        // The clean-up fails too.
        (HANDLING, oom, "RuntimeError: cannot save", oom),
        (HANDLING, "ValueError: bad header", lost, "ValueError: bad header"),
        // A wrapper around a message about a peer is still about the peer.
        (HANDLING, lost, "TrainError: step failed", lost),
        (HANDLING, "KeyboardInterrupt", lost, lost),
        (HANDLING, "KeyboardInterrupt", "TrainError: step failed", "KeyboardInterrupt"),
    ];
    for (words, first, second, expected) in cases {
        let log = format!("{}{words}{}", raised("a.py", first), raised("b.py", second));
        let evidence = of(&log);
        assert_eq!(headline(&evidence), expected, "{first} / {second}");
        assert!(evidence.traceback.len() > 8, "the whole chain is kept");
    }
}

/// Several errors that are not chained.
#[test]
fn deaths() {
    let mine = raised("train.py", "ValueError: bad header");
    let lost = raised("train.py", "RuntimeError: Connection closed by peer [10.0.0.2]:1");
    let abort = "terminate called after throwing an instance of 'c10::Error'\n  what():  driver shutting down\n";
    let notice = "[SignalInfo: *** SIGTERM (@0x3fe) received by PID 4 (TID 0x7f) from PID 1 ***]\n";
    let steps = "epoch 1 step 1\n".repeat(300);
    let aside = format!("Exception ignored in: <function Loader.__del__>\n{}", raised("w.py", "AttributeError: x"));
    let cases = [
        (format!("{mine}{abort}"), "ValueError: bad header"),
        (format!("{mine}{notice}"), "ValueError: bad header"),
        (format!("{mine}{aside}"), "ValueError: bad header"),
        (format!("{mine}{lost}"), "ValueError: bad header"),
        // Caught and survived: it is not what ended the program.
        (format!("{mine}{steps}{lost}"), "RuntimeError: Connection closed by peer [10.0.0.2]:1"),
        (format!("{mine}{steps}"), ""),
        (format!("{steps}{aside}"), ""),
        (abort.to_owned(), "c10::Error: driver shutting down"),
        (format!("{lost}{abort}"), "RuntimeError: Connection closed by peer [10.0.0.2]:1"),
        (format!("{lost}\nFatal Python error: Aborted\n"), "RuntimeError: Connection closed by peer [10.0.0.2]:1"),
        (format!("{abort}\nFatal Python error: Aborted\n"), "c10::Error: driver shutting down"),
        (raised("a.py", "ValueError: one") + &raised("a.py", "ValueError: two"), "ValueError: two"),
    ];
    for (log, expected) in cases {
        let evidence = of(&log);
        assert_eq!(headline(&evidence), expected, "{:?}", evidence.last_lines);
    }
}

#[test]
fn workers_report_through_the_training_loop() {
    let log = format!(
        "{}Original {}",
        raised("train.py", "OSError: Caught OSError in DataLoader worker process 0."),
        raised("dataset.py", "OSError: [Errno 5] Input/output error")
    );
    let evidence = of(&log);
    assert_eq!((headline(&evidence), code(&evidence)), ("OSError: [Errno 5] Input/output error", "U1204"));
    assert_eq!(evidence.place.as_deref(), Some("dataset.py:3 in go  go()"));
    // A reader thread prints its own traceback, sometimes after the loop's.
    let echo = raised("train.py", "SystemError: Blocking queue is killed because the data reader raises an exception.");
    let reader = format!("Exception in thread Thread-1:\n{}", raised("reader.py", "ValueError: bad record 7"));
    for log in [format!("{reader}{echo}"), format!("{echo}{reader}")] {
        assert_eq!(headline(&of(&log)), "ValueError: bad record 7", "{log}");
    }
    assert_eq!(code(&of(&echo)), "U2401");
}

#[test]
fn other_last_words() {
    let paddle = "SystemError: \n\n---------------\nC++ Traceback (most recent call last):\n---------------\n0   f()\n\n\
        ----------------------\nError Message Summary:\n----------------------\nResourceExhaustedError: \n\n\
        Out of memory error on GPU 0. Cannot allocate 2.000000GB memory on GPU 0.\n";
    let crash = "C++ Traceback (most recent call last):\n---\n0   f()\n---\nError Message Summary:\n---\n\
        FatalError: `Segmentation fault` is detected by the operating system.\n  \
        [SignalInfo: *** SIGSEGV (@0x0) received by PID 9 (TID 0x7f) from PID 0 ***]\n";
    let cases = [
        (
            format!("Traceback (most recent call last):\n  File \"train.py\", line 3, in go\n{paddle}"),
            "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 2.000000GB memory on GPU 0.",
            "U3102",
        ),
        (crash.to_owned(), "FatalError: `Segmentation fault` is detected by the operating system.", "U2301"),
        (
            "F0103 05:08:55.123456  1164 tensor.cc:12] Check failed: a == b (1 vs. 2)\n*** Check failure stack trace: ***\n"
                .to_owned(),
            "F0103 05:08:55.123456  1164 tensor.cc:12] Check failed: a == b (1 vs. 2)",
            "",
        ),
        ("thread 'main' panicked at src/main.rs:3:5:\nno shards\n".to_owned(), "panicked: no shards", ""),
        ("trainer: net.c:9: f: Assertion `n > 0' failed.\n".to_owned(), "trainer: net.c:9: f: Assertion `n > 0' failed.", ""),
        (
            "50%|#####     | 5/10 [00:01<00:01]Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nsocket.timeout\n"
                .to_owned(),
            "socket.timeout",
            "U4209",
        ),
        (
            "  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1, in f\n  | ExceptionGroup: x (1 sub-exception)\n  \
             +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"b.py\", line 2, in g\n    \
             | ValueError: inner\n    +------------------------------------\n"
                .to_owned(),
            "ValueError: inner",
            "",
        ),
        (
            "  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1, in f\n  |     f()\n  \
             | ExceptionGroup: many (1 sub-exception)\n  +-+---------------- 1 ----------------\n    \
             | OSError: [Errno 5] Input/output error\n    +------------------------------------\n"
                .to_owned(),
            "ExceptionGroup: many (1 sub-exception)",
            "U1204",
        ),
        ("bash: train: command not found\n".to_owned(), "bash: train: command not found", "U1104"),
        ("loading\nERROR: could not find config\nbye\n".to_owned(), "ERROR: could not find config", ""),
        (
            "/usr/bin/python3: can't open file '/job/trian.py': [Errno 2] No such file or directory\n".to_owned(),
            "/usr/bin/python3: can't open file '/job/trian.py': [Errno 2] No such file or directory",
            "U1201",
        ),
        ("warning: Permission denied, retry\nall fine\n".to_owned(), "", ""),
        (String::new(), "", ""),
    ];
    for (log, expected, signature) in cases {
        let evidence = of(&log);
        assert_eq!((headline(&evidence), code(&evidence)), (expected, signature), "{log}");
    }
}

#[test]
fn error_file() {
    let stack = raised("train.py", "ValueError: bad header");
    let file = serde_json::json!({"message": {
        "message": "ValueError: bad header", "extraInfo": {"py_callstack": stack, "timestamp": "1635896935"},
    }});
    let file = file.to_string();
    let evidence = extract(b"step 1\nValueError: bad header\nbye\n", Some(7), Some(file.as_bytes()));
    assert_eq!(evidence.headline, Some(Line { text: "ValueError: bad header".into(), number: Some(8) }));
    assert_eq!(evidence.place.as_deref(), Some("train.py:3 in go  go()"));
    assert_eq!(evidence.traceback.len(), 4);
    let plain = br#"{"message": "MemoryError: big\nmore", "timestamp": 1}"#;
    let evidence = extract(b"", None, Some(plain));
    assert_eq!((headline(&evidence), code(&evidence)), ("MemoryError: big", "U3101"));
    for broken in [&b""[..], b"{", b"[]", b"{\"message\": 3}", b"\xff"] {
        assert_eq!(extract(b"ok\n", None, Some(broken)), extract(b"ok\n", None, None));
    }
}

#[test]
fn long_tracebacks_are_folded() {
    let frames = "  File \"a.py\", line 1, in f\n    f()\n".repeat(400);
    let evidence = of(&format!("Traceback (most recent call last):\n{frames}ValueError: {}\n", "x".repeat(9000)));
    assert_eq!(evidence.traceback.len(), HEIGHT);
    assert_eq!(evidence.traceback[0], "Traceback (most recent call last):");
    assert!(evidence.traceback[1].contains("lines omitted"));
    assert!(evidence.traceback[HEIGHT - 1].starts_with("ValueError: x"));
    assert_eq!(headline(&evidence).chars().count(), WIDTH);
}

fn assert_bounded(evidence: &Evidence) {
    let fits = |text: &str| text.chars().count() <= WIDTH && !text.chars().any(char::is_control);
    assert!(evidence.headline.as_ref().is_none_or(|line| fits(&line.text)));
    assert!(evidence.place.as_deref().is_none_or(fits));
    assert!(evidence.traceback.len() <= HEIGHT && evidence.traceback.iter().all(|line| fits(line)));
    assert!(evidence.last_lines.len() <= LAST && evidence.last_lines.iter().all(|line| fits(line)));
}

/// Pieces of logs: random combinations of them reach the inner branches of the parsers.
const PIECES: &[&str] = &[
    "Traceback (most recent call last):",
    "Original Traceback (most recent call last):",
    "  File \"a.py\", line 1, in f",
    "  File \"a.py\", line 1 in f",
    "    code()",
    "ValueError: x",
    "OSError:",
    "C++ Traceback (most recent call last):",
    "Error Message Summary:",
    "----------------------",
    "terminate called after throwing an instance of 'X'",
    "  what():",
    "Fatal Python error: Aborted",
    "Current thread 0x1 (most recent call first):",
    "[SignalInfo: *** SIGTERM (@0x3fe) received by PID 1 (TID 0x7) from PID 1 ***]",
    "thread 'main' panicked at src/main.rs:1:1:",
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
    "Blocking queue is killed because the data reader raises an exception",
    "SystemError: Blocking queue is killed because the data reader raises an exception",
    "SyntaxError: x",
    "usage: x",
    "x.py: error: argument",
    "Exception ignored in: x",
    "[rank0]: ",
    "\u{1b}[31m",
    "\r",
    "é",
    "",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes(tail in prop::collection::vec(any::<u8>(), 0..2000), file in prop::collection::vec(any::<u8>(), 0..50)) {
        assert_bounded(&extract(&tail, Some(u64::MAX), Some(&file)));
    }

    #[test]
    fn any_mixture(pieces in prop::collection::vec((prop::sample::select(PIECES), any::<bool>()), 0..60), cut in 0usize..40) {
        let log: String = pieces.iter().flat_map(|(piece, ends)| [*piece, if *ends { "\n" } else { "" }]).collect();
        let bytes = log.as_bytes();
        assert_bounded(&extract(&bytes[cut.min(bytes.len())..], Some(1), None));
        let file = serde_json::json!({"message": {"message": log, "extraInfo": {"py_callstack": log}}}).to_string();
        assert_bounded(&extract(bytes, None, Some(file.as_bytes())));
    }
}

/// `torchrun` inside a rank: the errors of its processes, lost peers included, are above its report.
#[test]
fn a_launcher_inside_tells_what_its_processes_said() {
    let rank = |exception: &str| raised("train.py", exception).replace('\n', "\n[rank0]: ");
    let lost = rank("RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:62100.");
    let report = raised("/bin/torchrun", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ");
    let only_lost = of(&format!("[rank0]: {lost}\n{report}"));
    assert!(only_lost.signature.as_ref().is_some_and(|signature| signature.victim), "{only_lost:?}");
    let own = rank("ValueError: label 17 is out of range");
    let evidence = of(&format!("[rank0]: {own}\n[rank0]: {lost}\n{report}"));
    assert!(headline(&evidence).contains("ValueError: label 17"), "{evidence:?}");
    assert_eq!(code(&of(&report)), "U2404");
}
