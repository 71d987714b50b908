//! `--stdin`: one of several ranks is connected to the caller's stdin and terminal.

use umiak_testkit::components::Component::Python;
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::Session;

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("stdin::one_of_several_ranks_has_it", &[], piped)
        .test("stdin::a_prompt_of_one_replica_among_several", &[], prompt)
        .test("stdin::pdb_in_one_of_several_ranks", &[Python], debugger)
        .test("stdin::ranks_without_it_say_how_to_have_it", &[Python], hint);
}

fn piped() {
    let sandbox = Sandbox::new();
    let text = std::fs::File::open(sandbox.write("text", "hello")).expect("just written");
    let outcome = sandbox.launch_toy("--nproc_per_node 3 --stdin 1", &["*:stdin"]).stdin(text).finish();
    outcome.expect_code(0);
    assert_eq!(outcome.out(), "stdin \"hello\"\n", "its output is shown");
    assert_eq!(sandbox.read("log/workerlog.0"), "stdin \"\"\n");
    assert_eq!(sandbox.read("log/workerlog.2"), "stdin \"\"\n");
}

const SIZE: (u16, u16) = (100, 30);

fn last_line(screen: &[String]) -> &str {
    screen.iter().rfind(|line| !line.is_empty()).map_or("", String::as_str)
}

const ASKS: &str = r#"
umiak: v1
name: ask
roles:
  ps: {command: "echo serving; sleep 60", completes: false}
  trainer: {command: "printf 'name? '; read name; echo hello $name"}
"#;

/// A partial line is shown at once, because it may be a prompt.
fn prompt() {
    let sandbox = Sandbox::new();
    sandbox.write("ask.yaml", ASKS);
    let words = "run ask.yaml --stdin trainer-0".split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut session = Session::start(&sandbox, SIZE, &words);
    session.wait_for("the server", |screen| screen.iter().any(|line| line == "ps-0      | serving"));
    session.wait_for("the prompt", |screen| screen.iter().any(|line| line.starts_with("trainer-0 | name?")));
    session.type_keys(b"li\n");
    // The replica's line continues after the typed text, unless another line came in between.
    session.wait_for("the answer", |screen| {
        screen.iter().any(|line| matches!(line.as_str(), "hello li" | "trainer-0 | hello li"))
    });
    let (status, _) = session.finish();
    assert_eq!(status.code(), Some(0));
}

const SCRIPT: &str = "import os\nrank = int(os.environ['RANK'])\nbreakpoint()\nprint('rank', rank, 'went on')\n";

fn debugger() {
    let shell = Shell::with_python();
    shell.sandbox.write("train.py", SCRIPT.replace("breakpoint()", "rank == 1 and breakpoint()"));
    let mut session = Session::of(shell.line("umiak launch --nproc_per_node 2 --stdin 1 train.py"), SIZE);
    session.wait_for("the debugger", |screen| last_line(screen) == "(Pdb)");
    session.type_keys(b"p rank + 41\n");
    session.wait_for("its answer, and its prompt again", |screen| {
        screen.iter().any(|line| line == "42") && last_line(screen) == "(Pdb)"
    });
    session.type_keys(b"c\n");
    session.wait_for("the end of the rank", |screen| screen.iter().any(|line| line.ends_with("rank 1 went on")));
    let (status, _) = session.finish();
    assert_eq!(status.code(), Some(0));
}

fn hint() {
    let shell = Shell::with_python();
    shell.sandbox.write("train.py", SCRIPT);
    let outcome = shell.line("umiak launch --nproc_per_node 2 train.py").finish();
    outcome.expect_code(1);
    outcome.expect_err("bdb.BdbQuit");
    outcome.expect_err("hint: with several ranks, stdin is `/dev/null`; `--stdin RANK` connects one of them");
    shell.sandbox.write("ask.py", "input('continue? ')\n");
    let outcome = shell.line("umiak launch --nproc_per_node 2 ask.py").finish();
    outcome.expect_code(1).expect_err("EOFError: EOF when reading a line").expect_err("`--stdin RANK`");
}
