//! Output on a real pseudo-terminal: the status line, the user's bytes, the summary.

use std::path::Path;

use umiak_testkit::sandbox::{Run, Sandbox, binary, toy};
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::{Session, render};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("screen::status_line_is_live_and_leaves_nothing", &[], status_line)
        .test("screen::partial_lines_and_progress_bars_are_untouched", &[], partial_lines)
        .test("screen::user_bytes_survive_in_order", &[], user_bytes_survive)
        .test("screen::failure_summary", &[], failure_summary)
        .test("screen::ctrl_c_once_stops_and_twice_kills", &[], ctrl_c)
        .test("screen::narrow_terminal_gets_the_short_form", &[], narrow)
        .test("screen::no_progress_and_ci_are_plain", &[], plain)
        .test("screen::ascii_marks", &[], ascii)
        .test("screen::no_status_line_beside_a_pipe", &[], pipe)
        .test("screen::status_line_beside_a_file_or_null", &[], file)
        .test("screen::no_status_line_in_the_background", &[], background)
        .test("screen::what_is_typed_is_the_shells_in_the_background", &[], typed_in_background)
        .test("screen::status_line_comes_and_goes_with_the_foreground", &[], foreground)
        .test("screen::plain_lines_have_a_heartbeat", &[], heartbeat);
}

const SIZE: (u16, u16) = (100, 30);

fn arguments(flags: &str, actions: &[&str]) -> Vec<String> {
    let mut words = vec!["launch".to_owned()];
    words.extend(flags.split_whitespace().map(str::to_owned));
    words.extend([toy(), "toy".to_owned()]);
    words.extend(actions.iter().map(|action| (*action).to_owned()));
    words
}

fn has(screen: &[String], text: &str) -> bool {
    screen.iter().any(|line| line.contains(text))
}

fn status_line() {
    let sandbox = Sandbox::new();
    let session = Session::start(&sandbox, SIZE, &arguments("--nproc_per_node 3", &["0:print hello;await go"]));
    session.wait_for("the status line with one rank left", |screen| has(screen, "1/3 ▸") && has(screen, "hello"));
    let screen = session.screen();
    let status = screen.iter().position(|line| line.contains("1/3 ▸")).unwrap();
    let hello = screen.iter().position(|line| line == "hello").unwrap();
    assert!(status > hello, "the status line is below the output:\n{}", screen.join("\n"));
    assert!(screen[0].contains("Planned 3 ranks on 1 node · 127.0.0.1:"), "{}", screen[0]);
    sandbox.write("go", "");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let screen = render(&bytes, SIZE);
    assert!(!has(&screen, "▸"), "a status line remains:\n{}", screen.join("\n"));
    assert!(has(&screen, "Finished 3 ranks in"), "{}", screen.join("\n"));
}

/// While a line of the user is incomplete, umiak draws nothing over or after it.
fn partial_lines() {
    let sandbox = Sandbox::new();
    let bar = "0:print start;partial 10%;touch a;await a2;partial \\r20%;touch b;await go;partial \\r100%\\n";
    let session = Session::start(&sandbox, SIZE, &arguments("--nproc_per_node 2", &[bar, "1:await go"]));
    session.wait_for("the partial line", |screen| screen.iter().any(|line| line == "10%"));
    // Long enough for a redraw, which would come every second.
    std::thread::sleep(std::time::Duration::from_millis(1300));
    assert!(session.screen().iter().any(|line| line == "10%"), "{}", session.screen().join("\n"));
    assert!(!has(&session.screen(), "2/2 ▸"), "the status line waits:\n{}", session.screen().join("\n"));
    sandbox.write("a2", "");
    session.wait_for("the bar redrawn in its place", |screen| screen.iter().any(|line| line == "20%"));
    sandbox.write("go", "");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let screen = render(&bytes, SIZE);
    assert!(screen.iter().any(|line| line == "100%"), "{}", screen.join("\n"));
    assert!(!has(&screen, "20%") && !has(&screen, "10%"), "{}", screen.join("\n"));
}

/// Without umiak's lines and the terminal's line feeds, the output equals what the rank wrote.
fn user_bytes_survive() {
    let sandbox = Sandbox::new();
    let lines = "0:flood 200000;sleep 300;flood 200000";
    let session = Session::start(&sandbox, SIZE, &arguments("--nproc_per_node 2", &[lines]));
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
    let count = text.matches("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n").count();
    // Each flood of 200 000 bytes holds 3 076 whole lines of 65 bytes and one of 60 that the next line completes.
    let log = sandbox.read("log/workerlog.0");
    let expected = log.matches("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n").count();
    assert_eq!(count, expected);
}

fn failure_summary() {
    let sandbox = Sandbox::new();
    let actions = ["1:err RuntimeError: boom;exit 3", "*:sleep 60000"];
    let session = Session::start(&sandbox, SIZE, &arguments("--nproc_per_node 2", &actions));
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(3));
    let screen = render(&bytes, SIZE);
    for text in ["rank=[1] was aborted", "✗ rank 1 on", "RuntimeError: boom", "log ./log/workerlog.1", "stopped by us"]
    {
        assert!(has(&screen, text), "{text}:\n{}", screen.join("\n"));
    }
    assert!(bytes.windows(2).any(|pair| pair == b"\x1b["), "a terminal gets colour");
}

fn ctrl_c() {
    for (keys, grace, stubborn) in [(1, "60s", ""), (2, "60s", "stubborn;")] {
        let sandbox = Sandbox::new();
        let action = format!("*:{stubborn}print ready;sleep 60000");
        let flags = format!("--nproc_per_node 2 --grace {grace}");
        let mut session = Session::start(&sandbox, SIZE, &arguments(&flags, &[&action]));
        session.wait_for("the rank is ready", |screen| has(screen, "ready"));
        session.type_keys(b"\x03");
        if keys == 2 {
            session.wait_for("the first one was taken", |screen| has(screen, "Stopping"));
            session.type_keys(b"\x03");
        }
        let (status, bytes) = session.finish();
        let screen = render(&bytes, SIZE);
        assert_eq!(status.code(), Some(130), "{}", screen.join("\n"));
        assert!(has(&screen, "stopped by SIGINT"), "{}", screen.join("\n"));
    }
}

fn narrow() {
    let sandbox = Sandbox::new();
    let size = (40, 20);
    let session = Session::start(&sandbox, size, &arguments("--nproc_per_node 2", &["*:await go"]));
    session.wait_for("the short form", |screen| screen.iter().any(|line| line.ends_with("2/2 ▸") && line.len() < 40));
    sandbox.write("go", "");
    session.finish();
}

fn plain() {
    let sandbox = Sandbox::new();
    let session =
        Session::start(&sandbox, SIZE, &arguments("--no-progress --nproc_per_node 2", &["0:print hi;sleep 200"]));
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let screen = render(&bytes, SIZE);
    assert!(!has(&screen, "▸"), "{}", screen.join("\n"));
    assert!(screen[0].contains("planned 2 ranks on 1 node"), "{}", screen[0]);
}

/// A shell line that launches the toy with two ranks, the first of which prints hello. `{}` is the launch.
fn shell_line(line: &str) -> String {
    let launch = format!("{} launch --nproc_per_node 2 {} toy '0:print hello' '*:await go'", binary().display(), toy());
    line.replace("{}", &launch)
}

/// An interactive shell with job control.
fn shell(sandbox: &Sandbox) -> Run<'_> {
    sandbox.program(Path::new("/bin/sh"), ["-i"]).env("PS1", "$ ")
}

fn typed(session: &mut Session<'_>, line: &str) {
    session
        .wait_for("the prompt", |screen| screen.iter().rfind(|line| !line.is_empty()).is_some_and(|line| line == "$"));
    session.type_keys(format!("{line}\n").as_bytes());
}

fn shows_status(screen: &[String]) -> bool {
    has(screen, "2/2 ▸")
}

const ERASE: &[u8] = b"\x1b[2K";

fn draws_nothing(bytes: &[u8]) {
    let drawn = bytes.windows(ERASE.len()).any(|window| window == ERASE);
    assert!(!drawn, "something was drawn:\n{}", String::from_utf8_lossy(bytes));
}

fn pipe() {
    let sandbox = Sandbox::new();
    let line = shell_line("{} | tee out.txt");
    let session = Session::of(sandbox.program(Path::new("/bin/sh"), ["-c", &line]), SIZE);
    session.wait_for("the rank's line", |screen| has(screen, "hello"));
    session.wait_for("our line", |screen| has(screen, "Started 2 ranks in"));
    sandbox.write("go", "");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    draws_nothing(&bytes);
    assert_eq!(sandbox.read("out.txt"), "hello\n");
}

fn file() {
    for target in ["out.txt", "/dev/null"] {
        let sandbox = Sandbox::new();
        let line = shell_line(&format!("{{}} > {target}"));
        let session = Session::of(sandbox.program(Path::new("/bin/sh"), ["-c", &line]), SIZE);
        session.wait_for("the status line", shows_status);
        sandbox.write("go", "");
        session.finish();
    }
}

fn background() {
    let sandbox = Sandbox::new();
    let mut session = Session::of(shell(&sandbox), SIZE);
    typed(&mut session, &shell_line("{} &"));
    session.wait_for("the rank's line", |screen| has(screen, "hello"));
    session.wait_for("our line", |screen| has(screen, "Started 2 ranks in"));
    session.type_keys(b"touch go; wait; echo over\n");
    session.wait_for("the end", |screen| screen.iter().any(|line| line == "over"));
    session.type_keys(b"exit\n");
    let (_, bytes) = session.finish();
    draws_nothing(&bytes);
}

fn typed_in_background() {
    let sandbox = Sandbox::new();
    let mut session = Session::of(shell(&sandbox), SIZE);
    let launch = format!("{} launch --nproc_per_node 1 {} toy '0:stdin;await go' &", binary().display(), toy());
    typed(&mut session, &launch);
    session.wait_for("the rank has read its stdin", |screen| has(screen, "stdin \"\""));
    for number in 0..5 {
        session.type_keys(format!("echo typed{number} | tr d D\n").as_bytes());
    }
    session.wait_for("every line", |screen| (0..5).all(|number| has(screen, &format!("typeD{number}"))));
    session.type_keys(b"touch go; wait; echo over; exit\n");
    session.wait_for("the end", |screen| screen.iter().any(|line| line == "over"));
    session.finish();
}

fn foreground() {
    let sandbox = Sandbox::new();
    let mut session = Session::of(shell(&sandbox), SIZE);
    typed(&mut session, &shell_line("{}"));
    session.wait_for("the status line", shows_status);
    session.type_keys(b"\x1a");
    session.wait_for("the shell again, and no status line", |screen| {
        has(screen, "Stopped")
            && !shows_status(screen)
            && screen.iter().rfind(|line| !line.is_empty()).is_some_and(|line| line == "$")
    });
    session.type_keys(b"bg\n");
    session.wait_for("it runs in the background", |screen| screen.iter().any(|line| line.starts_with("[1] /")));
    let before = session.received().len();
    // More than a second, so that the time in the status line would change.
    std::thread::sleep(std::time::Duration::from_millis(1300));
    draws_nothing(&session.received()[before..]);
    session.type_keys(b"fg\n");
    session.wait_for("the status line again", shows_status);
    sandbox.write("go", "");
    session.wait_for("the end", |screen| has(screen, "Finished 2 ranks in") && !shows_status(screen));
    session.type_keys(b"exit\n");
    session.finish();
}

fn heartbeat() {
    for (flags, variable) in [("--no-progress", ("A", "b")), ("", ("CI", "true")), ("", ("TERM", "dumb"))] {
        let sandbox = Sandbox::new();
        let words = arguments(&format!("{flags} --nproc_per_node 2"), &["*:await go"]);
        let run = sandbox.umiak(words).env(variable.0, variable.1).env("UMIAK_TEST_HEARTBEAT", "40");
        let session = Session::of(run, SIZE);
        session.wait_for("two heartbeats", |screen| {
            screen.iter().filter(|line| line.contains(" running 2/2 ranks, 0:00:0")).count() > 1
        });
        sandbox.write("go", "");
        let (_, bytes) = session.finish();
        draws_nothing(&bytes);
    }
}

fn ascii() {
    let sandbox = Sandbox::new();
    let actions = ["1:exit 3", "*:sleep 60000"];
    let session = Session::start(&sandbox, SIZE, &arguments("--ascii --nproc_per_node 2", &actions));
    let (_, bytes) = session.finish();
    assert!(bytes.is_ascii(), "{}", String::from_utf8_lossy(&bytes));
}
