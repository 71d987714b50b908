//! Unusual environments: closed or full streams, readers that exit, missing variables, full disks.

use umiak_testkit::components::Component::Namespaces;
use umiak_testkit::sandbox::{Outcome, Sandbox, toy};
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::{Session, render};

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("surroundings::output_that_cannot_be_written_is_an_error", &[], full_output)
        .test("surroundings::a_reader_that_goes_away_stops_nothing", &[], reader_goes_away)
        .test("surroundings::closed_streams", &[], closed_streams)
        .test("surroundings::little_environment", &[], little_environment)
        .test("surroundings::log_dir_of_any_name", &[], log_dir_of_any_name)
        .test("surroundings::ignored_signals_stay_ignored", &[], ignored_signals)
        .test("surroundings::ctrl_c_on_a_terminal_says_what_the_next_one_does", &[], ctrl_c_on_a_terminal)
        .test("surroundings::full_disk_before_the_start", &[Namespaces], full_disk_before_the_start)
        .test("surroundings::full_disk_while_running", &[Namespaces], full_disk_while_running)
        .test("surroundings::full_disk_of_a_job_that_succeeds", &[Namespaces], full_disk_of_a_job_that_succeeds)
        .test("surroundings::full_home", &[Namespaces], full_home);
}

fn full_output() {
    let shell = Shell::with_decoy();
    shell.sandbox.write("train.py", "");
    for line in [
        "umiak -h",
        "umiak --version",
        "umiak launch -h",
        "umiak explain L0004",
        "umiak completions bash",
        "umiak man",
        "umiak schema facts",
        "umiak launch --dry-run train.py",
        "umiak launch --dry-run --output json train.py",
    ] {
        let outcome = shell.line(&format!("{line} > /dev/full")).finish();
        outcome.expect_code(125);
        let expected =
            "error[L0016]: umiak could not write its output\n  reason  No space left on device (os error 28)\n";
        assert_eq!(outcome.err(), expected, "{line}");
        // A reader that exits early is not an error.
        let outcome = shell.line(&format!("{{ {line}; echo $? >&2; }} | true")).finish();
        assert_eq!(outcome.err(), "0\n", "{line}");
    }
    assert_eq!(shell.sandbox.list("."), ["bin", "tmp", "train.py"]);
}

fn reader_goes_away() {
    let shell = Shell::with_decoy();
    let line = format!("{{ umiak launch '{}' toy '0:flood 3000000;print end'; echo $? >&2; }} | head -c 1", toy());
    let outcome = shell.line(&line).finish();
    outcome.expect_code(0).expect_err("finished 1 rank");
    assert!(outcome.err().ends_with("\n0\n"), "{}", outcome.err());
    assert!(shell.sandbox.read("log/workerlog.0").ends_with("end\n"), "the log is whole");
}

fn closed_streams() {
    for redirection in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        for ranks in [1, 2] {
            let shell = Shell::with_decoy();
            let line =
                format!("umiak launch --nproc_per_node {ranks} '{}' toy '*:print text;stdin' {redirection}", toy());
            shell.line(&line).finish().expect_code(0);
            for rank in 0..ranks {
                let log = shell.sandbox.read(&format!("log/workerlog.{rank}"));
                assert_eq!(log, "text\nstdin \"\"\n", "{redirection}");
            }
        }
    }
}

fn little_environment() {
    for setting in
        ["env -i", "env -u HOME", "env TMPDIR=/nothing", "env TMPDIR=", "env LANG=C LC_ALL=C", "env NO_COLOR=1"]
    {
        let shell = Shell::with_decoy();
        let umiak = shell.sandbox.path().join("bin/umiak");
        let line = format!("{setting} '{}' launch --nproc_per_node 2 '{}' toy '*:print text'", umiak.display(), toy());
        let outcome = shell.line(&line).finish();
        outcome.expect_code(0);
        assert_eq!(outcome.out(), "text\n", "{setting}");
        let left: Vec<String> =
            shell.sandbox.list("log").into_iter().filter(|name| name.starts_with("umiak-")).collect();
        assert!(left.is_empty(), "{setting}: {left:?}");
    }
}

fn log_dir_of_any_name() {
    let shell = Shell::with_decoy();
    let toy = toy();
    for name in ["日志 目录/第 1 次", "-dash", "$(touch made)", "a'b\"c", "trailing/", "./dot/../dot"] {
        let quoted = name.replace('\'', r"'\''");
        let line = format!("LANG=C LC_ALL=C umiak launch --log_dir='{quoted}' '{toy}' toy '0:print text'");
        let outcome = shell.line(&line).finish();
        outcome.expect_code(0);
        assert_eq!(shell.sandbox.read(&format!("{name}/workerlog.0")), "text\n");
        outcome.expect_err(name.trim_start_matches("./"));
    }
    assert!(!shell.sandbox.path().join("made").exists(), "a shell interpreted the name");
}

/// `nohup umiak …`, and jobs that a script puts into the background.
fn ignored_signals() {
    for (name, signal) in [("HUP", 1), ("INT", 2)] {
        let shell = Shell::with_decoy();
        let line = format!("trap '' {name}; exec umiak launch '{}' toy '0:touch up;await go'", toy());
        let run = shell.line(&line).start();
        run.wait_for_file("up");
        run.signal(signal);
        shell.sandbox.write("go", "");
        run.finish().expect_code(0).expect_err("finished 1 rank");
    }
}

fn ctrl_c_on_a_terminal() {
    let sandbox = Sandbox::new();
    let toy = toy();
    let words = ["launch", "--nproc_per_node", "2", "--grace", "60s", &toy, "toy", "*:stubborn;print up;sleep 60000"];
    let mut session = Session::start(&sandbox, (100, 24), &words.map(str::to_owned));
    let shows = |text: &'static str| move |screen: &[String]| screen.iter().any(|line| line.contains(text));
    session.wait_for("the first rank's output", shows("up"));
    session.wait_for("the status line", shows("2/2 ▸  ‹Ctrl-C stop›"));
    session.type_keys(b"\x03");
    session.wait_for("what a second Ctrl-C does", shows("stopping  ‹Ctrl-C kill›"));
    session.type_keys(b"\x03");
    let (status, bytes) = session.finish();
    assert_eq!(status.code(), Some(130));
    let screen = render(&bytes, (100, 24)).join("\n");
    assert!(screen.contains("⊘ stopped by SIGINT: 2 ranks killed within "), "{screen}");
}

/// Runs the line with a file system of 64 KiB at `small`.
fn on_a_small_disk(shell: &Shell, line: &str) -> Outcome {
    std::fs::create_dir(shell.sandbox.path().join("small")).expect("the sandbox can be written");
    shell.sandbox.write("line", format!("mount -t tmpfs -o size=64k tmpfs small || exit 99\n{line}\n"));
    shell.line("unshare --user --map-root-user --mount sh line").finish()
}

fn full_disk_before_the_start() {
    let shell = Shell::with_decoy();
    shell.sandbox.write("train.py", "");
    let fill = "head -c 64k /dev/zero > small/fill 2> /dev/null";
    let outcome = on_a_small_disk(&shell, &format!("{fill}\numiak launch --log_dir small/log train.py"));
    outcome.expect_code(125);
    assert_eq!(
        shell.neutral(&outcome.err()),
        "error[L0014]: `DIR/small/log/endpoints.log` cannot be written\n  reason  No space left on device (os error 28)\nhint: choose another directory with `--log_dir`, or free space there\n"
    );
    assert!(!shell.sandbox.path().join("started").exists());
}

/// The job succeeds, and its logs are cut.
fn full_disk_of_a_job_that_succeeds() {
    let shell = Shell::with_decoy();
    let flood = "sh -c 'head -c 100000 /dev/zero 2> /dev/null; true'";
    let outcome = on_a_small_disk(&shell, &format!("umiak launch --show none --log_dir small/log {flood}"));
    let said = shell.neutral(&outcome.expect_code(0).err());
    let notice = "notice[L0026]: `DIR/small/log` can no longer be written\n  reason  No space left on device (os error 28)\nhint: the logs of this job may be incomplete; free space there, or choose another directory with `--log_dir`\n";
    assert!(said.contains(notice), "{said}");
}

/// A record that cannot be written is reported before the job starts; a job that only its record can find is refused.
fn full_home() {
    let fill = "mkdir small/home; head -c 64k /dev/zero > small/fill 2> /dev/null; export UMIAK_HOME=$PWD/small/home";
    let shell = Shell::with_decoy();
    shell.sandbox.write("train.py", "");
    let outcome = on_a_small_disk(&shell, &format!("{fill}\numiak launch train.py"));
    let said = shell.neutral(&outcome.expect_code(0).err());
    let reported = said.find("notice[J0003]: run-000001 is not recorded so far\n");
    assert!(reported.is_some_and(|at| said[at..].contains(" planned 1 rank")), "{said}");
    let shell = Shell::with_decoy();
    shell.sandbox.write("train.py", "");
    let outcome =
        on_a_small_disk(&shell, &format!("{fill}\numiak launch -d train.py; code=$?; ls small/home/runs; exit $code"));
    outcome.expect_code(125).expect_err("run-000001/journal.jsonl` cannot be written").expect_err("No space left");
    assert!(!outcome.out().contains("run-000001"), "{}", outcome.out());
    assert!(!shell.sandbox.path().join("started").exists());
}

fn full_disk_while_running() {
    let shell = Shell::with_decoy();
    let line = format!("umiak launch --nproc_per_node 2 --log_dir small/log '{}' toy '1:flood 100000'", toy());
    let outcome = on_a_small_disk(&shell, &line);
    outcome.expect_code(101).expect_err("rank=[1]");
    let said = shell.neutral(&outcome.err());
    let notice = "notice[L0026]: `DIR/small/log` can no longer be written\n  reason  No space left on device (os error 28)\nhint: this may be why the rank failed; free space there, or choose another directory with `--log_dir`\n";
    assert!(said.contains(notice), "{said}");
}
