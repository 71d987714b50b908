//! Umiak's own log: only on request, separate from the job's output, without secrets.

use umiak_testkit::sandbox::{Sandbox, toy};
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::{Session, render};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("log::only_where_asked_for_and_beside_the_output", &[], beside_the_output)
        .test("log::to_a_file", &[], to_a_file)
        .test("log::every_command_takes_the_flag", &[], every_command)
        .test("log::the_status_line_stays_whole", &[], status_line)
        .test("log::no_secrets", &[], no_secrets)
        .test("log::wrong_values_are_refused", &[], wrong_values);
}

const PLANNED: &str = " INFO umiak::front::launch: planned ";
const OPTIONS: &str = "DEBUG umiak::cli: options ";

fn beside_the_output() {
    let sandbox = Sandbox::new();
    let launch = |flags: &str, filter: &str| {
        let flags = format!("--nproc_per_node 2 {flags}");
        let outcome = sandbox.launch_toy(&flags, &["0:print zero"]).env("UMIAK_LOG", filter).finish();
        outcome.expect_code(0).expect_err("finished 2 ranks");
        assert_eq!(outcome.out(), "zero\n");
        outcome.err()
    };
    for (flags, filter, has_info, has_debug) in [
        ("", "", false, false),
        ("", "info", true, false),
        ("", "debug", true, true),
        ("", "warn,umiak::cli=debug", false, true),
        ("-v", "", true, false),
        ("-vv", "", true, true),
        ("--verbose -v", "", true, true),
        ("-v", "trace", true, false),
    ] {
        let err = launch(flags, filter);
        assert_eq!((err.contains(PLANNED), err.contains(OPTIONS)), (has_info, has_debug), "{flags} {filter}\n{err}");
        assert_eq!(err.contains("umiak::"), has_info || has_debug, "{err}");
    }
}

/// Ranks do not inherit the log file.
fn to_a_file() {
    let sandbox = Sandbox::new();
    let line = ["launch", "-v", "--nproc_per_node", "1", "ls", "/proc/self/fd"];
    for _ in 0..2 {
        let outcome = sandbox.umiak(line).env("UMIAK_LOG_FILE", "umiak.log").finish();
        outcome.expect_code(0);
        assert_eq!(outcome.out(), "0\n1\n2\n3\n");
        assert!(!outcome.err().contains("umiak::"), "{}", outcome.err());
    }
    assert_eq!(sandbox.read("umiak.log").matches(PLANNED).count(), 2);
}

fn every_command() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", "umiak: v1\nroles: {w: {command: 'echo out'}}\n");
    for line in ["run job.yaml -vv", "show 1 -vv", "logs -vv 1", "ls -vv", "lint -vv job.yaml", "man -vv"] {
        let outcome = sandbox.umiak(line.split_whitespace()).finish();
        let name = line.split(' ').next().unwrap();
        outcome.expect_code(0).expect_err(&format!("DEBUG umiak::cli::commands: started command={name:?}\n"));
        assert!(!outcome.out().contains("umiak::"), "{}", outcome.out());
    }
}

fn status_line() {
    const SIZE: (u16, u16) = (200, 40);
    let sandbox = Sandbox::new();
    let line = ["launch", "-vv", "--nproc_per_node", "3", &toy(), "toy", "0:print hello;await go"];
    let session = Session::start(&sandbox, SIZE, &line.map(str::to_owned));
    session.wait_for("the status line", |screen| screen.iter().any(|line| line.contains("1/3 ▸")));
    sandbox.write("go", "");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(0));
    let screen = render(&bytes, SIZE);
    let text = screen.join("\n");
    assert!(!text.contains('▸'), "a status line remains:\n{text}");
    assert!(screen.iter().any(|line| line == "hello"), "{text}");
    let logged: Vec<&String> = screen.iter().filter(|line| line.contains(" umiak::")).collect();
    assert!(logged.iter().any(|line| line.contains(PLANNED)), "{text}");
    assert!(logged.iter().all(|line| line.starts_with("20")), "{text}");
}

/// No secrets from variables, arguments or parameters.
fn no_secrets() {
    let sandbox = Sandbox::new();
    let secret = "v3rysecret";
    sandbox.write(
        "job.yaml",
        "umiak: v1\nparams: {token: }\nroles: {w: {command: ['true', '{{ token }}'], env: {API_KEY: '{{ token }}'}}}\n",
    );
    let token = format!("token={secret}");
    let lines: [&[&str]; 4] = [
        &["launch", "--nproc_per_node", "2", "--token", secret, "true", "--api-key", secret],
        &["launch", "--nnodes", "1", "--output", "json", "true", secret],
        &["run", "job.yaml", "-p", &token],
        &["run", "job.yaml", "--engine", "mock", "-p", &token],
    ];
    for line in lines {
        let run = sandbox.umiak(line).env("UMIAK_LOG", "trace").env("UMIAK_LOG_FILE", "umiak.log");
        run.env("HF_TOKEN", secret).env("UMIAK_TOKEN", secret).finish().expect_code(0);
    }
    let log = sandbox.read("umiak.log");
    assert!(log.contains("TRACE umiak::engine::local"), "{log}");
    assert!(!log.contains(secret), "{log}");
}

fn wrong_values() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.umiak(["ls"]).env("UMIAK_LOG", "loud").finish();
    outcome.expect_code(2).expect_err("error[L0009]: `UMIAK_LOG` must be a level or a list of modules, not `loud`\n");
    let outcome = sandbox.umiak(["launch", "-v", "true"]).env("UMIAK_LOG_FILE", "no/such/file").finish();
    outcome.expect_code(2).expect_err("error[L0009]: cannot write to the file in `UMIAK_LOG_FILE`\n");
    let outcome = sandbox.umiak(["-v", "ls"]).finish();
    outcome.expect_code(2).expect_err("`umiak` has no flag `-v`");
}
