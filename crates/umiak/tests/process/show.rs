//! Which output is on the console: `--show`, names before lines, and unchanged bytes.

use umiak_testkit::sandbox::{Run, Sandbox, toy};
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::{Session, render};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("show::several_roles_are_shown_by_name", &[], roles)
        .test("show::a_document_of_one_role_shows_its_first_replica", &[], one_role)
        .test("show::ranks_of_a_launch", &[], ranks)
        .test("show::words_that_name_nothing", &[], unknown)
        .test("show::names_have_colours_on_terminals_only", &[], colours)
        .test("show::bytes_of_several_are_split_into_lines", &[], bytes)
        .test("show::bars_of_several_are_shown_as_they_end", &[], bars)
        .test("show::a_flood_of_many_ranks_is_complete", &[], flood)
        .test("show::a_reader_that_does_not_read_holds_up_no_rank", &[], slow_reader)
        .test("show::a_reader_that_ctrl_c_stopped_is_not_reported", &[], stopped_reader)
        .test("show::every_attempt_is_shown", &[], attempts);
}

const TWO_ROLES: &str = "
umiak: v1
name: pair
roles:
  ps: {replicas: 2, command: [sh, -c, 'echo server $UMIAK_INDEX; sleep 60'], completes: false}
  trainer: {replicas: 2, command: [sh, -c, 'echo trainer $UMIAK_INDEX; while ! [ -e go ]; do sleep 0.02; done']}
";

/// Sorts lines of stdout, because the order between replicas varies.
fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Runs the document with two roles to the end.
fn run(flags: &str) -> String {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", TWO_ROLES);
    let words = format!("run job.yaml {flags}");
    let running = sandbox.umiak(words.split_whitespace()).start();
    let said = |replica: &str| {
        let log = format!("state/runs/run-000001/tasks/{replica}/attempt-1/log");
        sandbox.read_if_there(&log).is_some_and(|log| log.ends_with(b"\n"))
    };
    running.wait_until("output of all replicas", || ["ps-0", "ps-1", "trainer-0", "trainer-1"].into_iter().all(said));
    sandbox.write("go", "");
    let outcome = running.finish();
    outcome.expect_code(0);
    outcome.out()
}

fn roles() {
    let all = ["ps-0      | server 0", "ps-1      | server 1", "trainer-0 | trainer 0", "trainer-1 | trainer 1"];
    for (flags, expected) in [
        ("", all.to_vec()),
        ("--show all", all.to_vec()),
        ("--show first", vec!["trainer 0"]),
        ("--show none", vec![]),
        ("--show ps", vec!["ps-0 | server 0", "ps-1 | server 1"]),
        ("--show 1,trainer-1", vec!["ps-1      | server 1", "trainer-1 | trainer 1"]),
        ("--show trainer-1", vec!["trainer 1"]),
    ] {
        assert_eq!(lines(&run(flags)), expected, "{flags}");
    }
}

fn one_role() {
    let sandbox = Sandbox::new();
    let role = "{replicas: 2, command: [sh, -c, 'echo I am $UMIAK_INDEX']}";
    sandbox.write("job.yaml", format!("umiak: v1\nname: one\nroles:\n  trainer: {role}\n"));
    let outcome = sandbox.umiak(["run", "job.yaml"]).finish();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "I am 0\n");
    let outcome = sandbox.umiak(["run", "job.yaml", "--show", "all"]).finish();
    assert_eq!(lines(&outcome.out()), ["trainer-0 | I am 0", "trainer-1 | I am 1"]);
}

fn ranks() {
    for (flags, expected) in [
        ("", vec!["I am 0"]),
        ("--show all", vec!["trainer-0 | I am 0", "trainer-1 | I am 1", "trainer-2 | I am 2"]),
        ("--show 1-2", vec!["trainer-1 | I am 1", "trainer-2 | I am 2"]),
        ("--show 2", vec!["I am 2"]),
        ("--show none", vec![]),
        ("--output json --mirror --show 1", vec![]),
    ] {
        let sandbox = Sandbox::new();
        let actions = ["0:print I am 0", "1:print I am 1", "2:print I am 2"];
        let outcome = sandbox.launch_toy(&format!("--nproc_per_node 3 {flags}"), &actions).finish();
        outcome.expect_code(0);
        if flags.contains("json") {
            outcome.expect_err("I am 1\n");
        } else {
            assert_eq!(lines(&outcome.out()), expected, "{flags}");
        }
    }
}

fn unknown() {
    let sandbox = Sandbox::new();
    for (flags, text) in [
        ("--show 2", "error[L0001]: `--show`: the job has no role or replica `rank 2`"),
        ("--show tainer", "did you mean `trainer`?"),
        ("--stdin 0,1", "`--stdin` names 2 replicas"),
    ] {
        let outcome = sandbox.launch_toy(&format!("--nproc_per_node 2 {flags}"), &["*:touch started"]).finish();
        outcome.expect_code(2).expect_err(text);
    }
    sandbox.write("job.yaml", TWO_ROLES);
    sandbox.umiak(["run", "job.yaml", "--show", "worker"]).finish().expect_code(2).expect_err("roles  ps, trainer");
    assert!(sandbox.read_if_there("started").is_none());
}

fn hello(sandbox: &Sandbox) -> Run<'_> {
    let launch = format!("launch --show all --nproc_per_node 2 {} toy", toy());
    let words = launch.split_whitespace().map(str::to_owned).chain(["*:print hello".to_owned()]);
    sandbox.umiak(words.collect::<Vec<String>>())
}

fn colours() {
    for (variable, is_coloured) in [("NOTHING", true), ("NO_COLOR", false)] {
        let sandbox = Sandbox::new();
        let session = Session::of(hello(&sandbox).env(variable, "1"), (100, 30));
        let (status, bytes) = session.finish();
        assert_eq!(status.code(), Some(0));
        let text = String::from_utf8_lossy(&bytes);
        for (colour, name) in [("\x1b[36m", "trainer-0 |"), ("\x1b[33m", "trainer-1 |")] {
            assert_eq!(text.contains(&format!("{colour}{name}\x1b[0m hello")), is_coloured, "{text}");
        }
        assert!(render(&bytes, (100, 30)).iter().any(|line| line == "trainer-1 | hello"), "{text}");
    }
    let sandbox = Sandbox::new();
    assert!(!hello(&sandbox).finish().out().contains('\x1b'));
}

/// Partial lines wait for their end, arbitrary bytes pass, and a very long line is shown in pieces.
fn bytes() {
    let sandbox = Sandbox::new();
    let actions = [
        "0:partial one ;touch half;await other;partial \\xff\\xfe half\\r\\n;partial no end",
        "1:await half;print a whole line;touch other;flood-line 200000",
    ];
    let outcome = sandbox.launch_toy("--show all --nproc_per_node 2", &actions).finish();
    outcome.expect_code(0);
    let (mut first, mut second) = (Vec::new(), Vec::<u8>::new());
    for line in outcome.stdout.split_inclusive(|byte| *byte == b'\n') {
        match (line.strip_prefix(b"trainer-0 | "), line.strip_prefix(b"trainer-1 | ")) {
            (Some(line), _) => first.extend_from_slice(line),
            (_, Some(line)) => second.extend(line.strip_suffix(b"\n").expect("each piece is a line")),
            _ => panic!("a line without a name: {:?}", String::from_utf8_lossy(line)),
        }
    }
    assert_eq!(first, b"one \xff\xfe half\r\nno end\n");
    assert_eq!(second, [&b"a whole line"[..], &b"0123456789abcdef".repeat(12_500)].concat());
}

fn bars() {
    let sandbox = Sandbox::new();
    let launch = format!("launch --show all --nproc_per_node 2 {} toy", toy());
    let bar = "*:partial 10%;sleep 20;partial \\r50%;sleep 20;partial \\r100%\\n";
    let words = launch.split_whitespace().map(str::to_owned).chain([bar.to_owned()]);
    let session = Session::start(&sandbox, (100, 30), &words.collect::<Vec<_>>());
    let (_, bytes) = session.finish();
    let screen = render(&bytes, (100, 30));
    for line in ["trainer-0 | 100%", "trainer-1 | 100%"] {
        assert!(screen.iter().any(|other| other == line), "{}", screen.join("\n"));
    }
}

fn flood() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.launch_toy("--show all --nproc_per_node 32", &["*:flood 65000;print over"]).finish();
    outcome.expect_code(0);
    let text = outcome.out();
    for rank in 0..32 {
        let of_rank = |line: &&str| line.starts_with(&format!("{:<10} | ", format!("trainer-{rank}")));
        assert_eq!(text.lines().filter(of_rank).count(), 1001, "rank {rank}");
    }
}

fn slow_reader() {
    let sandbox = Sandbox::new();
    let actions = ["0:flood 2000000;touch done0", "1:flood 2000000;touch done1"];
    let mut running = sandbox.launch_toy("--show all --nproc_per_node 2", &actions).start_unread();
    running.wait_for_file("done0");
    running.wait_for_file("done1");
    drop(running.take_stdout());
    running.finish().expect_code(0).expect_err("the output can no longer be shown");
}

fn stopped_reader() {
    let sandbox = Sandbox::new();
    sandbox.write("train.sh", "trap 'echo bye; exit 3' INT; touch up; while :; do sleep 0.01; done\n");
    let mut running = sandbox.umiak("launch --nproc_per_node 1 /bin/sh train.sh".split(' ')).start_unread();
    running.wait_for_file("up");
    drop(running.take_stdout());
    running.signal(2);
    let outcome = running.finish();
    outcome.expect_code(130).expect_err("with SIGINT");
    assert!(!outcome.err().contains("no longer be shown"), "{}", outcome.err());
}

fn attempts() {
    let sandbox = Sandbox::new();
    let actions = ["*@1:print first;exit 3", "*@2:print second"];
    let flags = "--show all --nproc_per_node 2 --max_restart 1 --restart-backoff 1ms";
    let outcome = sandbox.launch_toy(flags, &actions).finish();
    outcome.expect_code(0);
    let text = outcome.out();
    for line in ["trainer-0 | second", "trainer-1 | second"] {
        assert!(text.lines().any(|other| other == line), "{text}");
    }
    assert!(text.contains(" | first\n"), "{text}");
}
