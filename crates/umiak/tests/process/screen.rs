//! What a person sees: the status line, the user's bytes, the summary; on a real pseudo-terminal.

use umiak_testkit::sandbox::{Sandbox, toy};
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
        .test("screen::ascii_marks", &[], ascii);
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

/// While a line of the user's is incomplete, nothing of ours is drawn over or behind it.
fn partial_lines() {
    let sandbox = Sandbox::new();
    let bar = "0:print start;partial 10%;touch a;await a2;partial \\r20%;touch b;await go;partial \\r100%\\n";
    let session = Session::start(&sandbox, SIZE, &arguments("--nproc_per_node 2", &[bar, "1:await go"]));
    session.wait_for("the partial line", |screen| screen.iter().any(|line| line == "10%"));
    // Longer than a second, so that a redraw would have come.
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

/// Taking our lines and the terminal's own line feeds away leaves exactly what the rank wrote.
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
    for (keys, grace, stubborn) in [(1, "60s", ""), (2, "60s", "ignore 15;")] {
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

fn ascii() {
    let sandbox = Sandbox::new();
    let actions = ["1:exit 3", "*:sleep 60000"];
    let session = Session::start(&sandbox, SIZE, &arguments("--ascii --nproc_per_node 2", &actions));
    let (_, bytes) = session.finish();
    assert!(bytes.is_ascii(), "{}", String::from_utf8_lossy(&bytes));
}
