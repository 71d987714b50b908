//! Interpreters chosen by another tool: `uv run`, `poetry run`, `conda run`, `coverage run`, `fleetrun`.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use umiak_testkit::components::Component::{Python, Runners};
use umiak_testkit::components::runners;
use umiak_testkit::suite::Suite;

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("lines::runners_are_asked_once", &[Python], runners_are_asked_once)
        .test("lines::runners_that_do_not_answer", &[Python], runners_that_do_not_answer)
        .test("lines::fleetrun_has_its_own_interpreter", &[Python], fleetrun)
        .test("lines::coverage_has_its_own_interpreter", &[Python], coverage)
        .test("lines::real_runners", &[Python, Runners], real_runners);
}

/// Prints its interpreter and a variable of its environment.
const WHERE: &str = "import os, sys\nprint(sys.executable, os.environ.get('WRAPPED'), *sys.argv[1:])\n";

/// A shell with a second interpreter in `env/bin`, reached only through a script's first line or a stand-in.
fn shell() -> Shell {
    let shell = Shell::with_python();
    shell.sandbox.write("where.py", WHERE);
    let directory = shell.sandbox.path().join("env/bin");
    std::fs::create_dir_all(&directory).expect("the sandbox can be written");
    let python = std::fs::read_link(shell.sandbox.path().join("bin/python")).expect("a link");
    symlink(python, directory.join("python")).expect("the sandbox can be written");
    shell
}

fn program(shell: &Shell, name: &str, text: &str) -> PathBuf {
    let path = shell.sandbox.write(name, text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    path
}

/// A stand-in for `uv`, `poetry` and `conda`: prints some output, chooses an interpreter and sets a variable.
const STAND_IN: &str = r#"#!/bin/sh
echo "$*" >> calls
echo "Resolved 3 packages"
shift
while [ "$1" != "${1#-}" ]; do shift 2; done
export WRAPPED="a=b
c"
PATH="$PWD/env/bin:$PATH" exec "$@"
"#;

fn runners_are_asked_once() {
    let shell = shell();
    for name in ["uv", "poetry", "conda"] {
        program(&shell, &format!("bin/{name}"), STAND_IN);
    }
    for line in [
        "uv run python -m paddle.distributed.launch",
        "uv run --with x python -u -m paddle.distributed.launch",
        "uv run -m paddle.distributed.launch",
        "poetry run fleetrun",
        "conda run -n python3 python -m paddle.distributed.launch",
        "conda run -n x python -m paddle.distributed.fleet.launch",
    ] {
        let _ = std::fs::remove_file(shell.sandbox.path().join("calls"));
        let outcome = shell.line(&format!("umiak {line} --nproc_per_node 3 where.py --lr 1")).finish();
        outcome.expect_code(0);
        let seen = shell.neutral(&outcome.out());
        assert_eq!(seen, "DIR/env/bin/python a=b\nc --lr 1\n", "{line}");
        assert_eq!(shell.sandbox.read("calls").lines().count(), 1, "{line}");
    }
}

fn runners_that_do_not_answer() {
    let shell = shell();
    program(&shell, "bin/uv", "#!/bin/sh\necho no such group >&2\nexit 3\n");
    program(&shell, "bin/poetry", "#!/bin/sh\necho hello\n");
    for (line, expected) in [
        (
            "uv run --group x python",
            "no such group\nerror[L0013]: `uv run --group x python` failed\n  status  exit status: 3\nhint: umiak runs it once to find its interpreter; try it by hand with `-c 'print(1)'`\n",
        ),
        (
            "poetry run python",
            "error[L0013]: `poetry run python` did not start a Python interpreter\n  it printed  hello\nhint: umiak runs it once to find its interpreter; try it by hand with `-c 'print(1)'`\n",
        ),
        (
            "./bin/pdm run python",
            "error[L0013]: `./bin/pdm` could not be run\n  command  ./bin/pdm run python\n  reason   No such file or directory (os error 2)\nhint: install it, or name the interpreter: `umiak /path/to/python -m paddle.distributed.launch …`\n",
        ),
    ] {
        let outcome = shell.line(&format!("umiak {line} -m paddle.distributed.launch where.py")).finish();
        outcome.expect_code(127);
        assert_eq!((outcome.out(), outcome.err()), (String::new(), expected.to_owned()), "{line}");
    }
    program(&shell, "bin/uv", STAND_IN);
    let outcome = shell.line("umiak uv run python -m paddlerec.run -m c.yaml").finish();
    outcome.expect_code(2).expect_err("error[F0001]: there is no file `c.yaml`\n");
    let outcome = shell.line("umiak uv run train.py").finish();
    outcome.expect_code(2).expect_err("error[L0001]: `umiak uv run` starts launchers, and `train.py` is not one\n");
}

/// The interpreter is taken from the script's first line, not from `PATH`.
fn fleetrun() {
    let shell = shell();
    let python = shell.sandbox.path().join("env/bin/python").display().to_string();
    program(&shell, "env/bin/fleetrun", &format!("#!{python}\nraise SystemExit('umiak stands in for it')\n"));
    for line in [
        "umiak env/bin/fleetrun where.py",
        "umiak $PWD/env/bin/fleetrun where.py",
        // The first `fleetrun` on the sandbox's `PATH` is umiak itself, which has no interpreter line.
        "PATH=$PATH:$PWD/env/bin umiak fleetrun where.py",
        "PATH=$PATH:$PWD/env/bin fleetrun where.py",
    ] {
        let outcome = shell.line(line).finish();
        outcome.expect_code(0);
        assert_eq!(shell.neutral(&outcome.out()), "DIR/env/bin/python None\n", "{line}");
    }
    let outcome = shell.line("umiak fleetrun where.py").finish();
    outcome.expect_code(0);
    assert_eq!(shell.neutral(&outcome.out()), "DIR/bin/python3 None\n", "without a script, the default interpreter");
    let outcome = shell.line("umiak ./gone/fleetrun where.py").finish();
    outcome.expect_code(127).expect_err("error[L0013]: no Python interpreter was found\n  tried  ./gone/fleetrun\n");
}

fn coverage() {
    let shell = shell();
    let python = shell.sandbox.path().join("env/bin/python").display().to_string();
    // The form that pip writes for long paths.
    program(&shell, "bin/coverage", &format!("#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"));
    let outcome = shell.line("umiak coverage run -p -m paddle.distributed.launch where.py").finish();
    outcome.expect_code(0);
    assert_eq!(shell.neutral(&outcome.out()), "DIR/env/bin/python None\n");
}

/// The installed uv, poetry and coverage.
fn real_runners() {
    let bin = runners().expect("a component of this test").join("bin");
    let shell = shell();
    let home = shell.sandbox.path().join("home");
    shell.sandbox.write("pyproject.toml", "[project]\nname = \"x\"\nversion = \"1\"\nrequires-python = \">=3.9\"\n");
    for (line, expected) in [
        (
            "uv run --offline --no-project --python $PWD/env/bin/python python -m paddle.distributed.launch",
            "DIR/env/bin/python",
        ),
        ("poetry run python -m paddle.distributed.launch", "BIN/python"),
        ("coverage run -m paddle.distributed.launch", "BIN/python"),
    ] {
        let line = format!("umiak {}/{line} --nproc_per_node 2 where.py", bin.display());
        // In an active environment, poetry does not create another one.
        let run = shell.line(&line).env("HOME", &home).env("POETRY_VIRTUALENVS_CREATE", "false");
        let outcome = run.env("VIRTUAL_ENV", bin.parent().expect("an environment")).finish();
        outcome.expect_code(0);
        let seen = shell.neutral(&outcome.out()).replace(&*bin.to_string_lossy(), "BIN");
        let first = seen.split(' ').next().unwrap_or_default();
        assert_eq!(first.trim_end_matches("3.11").trim_end_matches('3'), expected, "{line}");
    }
}
