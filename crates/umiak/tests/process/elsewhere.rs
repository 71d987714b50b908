//! Logs that replicas write on other hosts: the kernel here reports nothing of it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use umiak_testkit::sandbox::{Run, Running, Sandbox, binary};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite.test("elsewhere::logs_are_shown_without_reports_of_the_kernel", &[], logs).test(
        "elsewhere::what_is_not_enforced_under_mpirun",
        &[],
        limits,
    );
}

/// In the place of `mpirun`: starts one agent.
const LAUNCHER: &str = "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit 0; }\nwhile [ \"$1\" != -n ]; do shift; done\nshift 2\nOMPI_COMM_WORLD_RANK=0 exec \"$@\"\n";

const DOCUMENT: &str = "umiak: v1\nname: elsewhere\nroles: {w: {command: 'echo one; until [ -e go ]; do sleep 0.02; done; echo two; until [ -e end ]; do sleep 0.02; done; echo three'}}\n";

/// `umiak LINE`, with stdout in a file.
fn umiak<'a>(sandbox: &'a Sandbox, line: &str, out: &str) -> Run<'a> {
    let line = format!("exec {} {line} >{out}", binary().display());
    sandbox.program(Path::new("/bin/sh"), ["-c", &line]).env("UMIAK_TEST_UNREPORTED", "log")
}

fn add_launcher(sandbox: &Sandbox) {
    let launcher = sandbox.write("launcher", LAUNCHER);
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).expect("our own file");
}

fn logs() {
    let sandbox = Sandbox::new();
    sandbox.write("job.yaml", DOCUMENT);
    add_launcher(&sandbox);
    let shows = |out: &str, text: &str| sandbox.read_if_there(out).is_some_and(|bytes| bytes == text.as_bytes());
    let wait = |running: &Running<'_>, out: &str, text: &str| {
        running.wait_until(&format!("{text:?} in {out}"), || shows(out, text));
    };
    let run = umiak(&sandbox, "run job.yaml --engine mpi --mpi-launcher ./launcher", "console").start();
    wait(&run, "console", "one\n");
    let follower = umiak(&sandbox, "logs -f", "followed").start();
    wait(&follower, "followed", "one\n");
    // Files of this age are watched, if this host writes them.
    std::thread::sleep(Duration::from_millis(500));
    sandbox.write("go", "");
    wait(&run, "console", "one\ntwo\n");
    wait(&follower, "followed", "one\ntwo\n");
    sandbox.write("end", "");
    follower.finish_unchecked().expect_code(0);
    run.finish().expect_code(0);
    for out in ["console", "followed"] {
        assert!(shows(out, "one\ntwo\nthree\n"), "{out}: {}", sandbox.read(out));
    }
}

/// Agents set memory limits where their hosts let them.
fn limits() {
    let sandbox = Sandbox::new();
    add_launcher(&sandbox);
    let document = "umiak: v1\nroles: {w: {resources: {cpu: 1, memory: 64Mi}, command: 'true'}}\n";
    sandbox.write("job.yaml", document);
    let words = ["run", "job.yaml", "--engine", "mpi", "--mpi-launcher", "./launcher"];
    sandbox
        .umiak(words)
        .finish()
        .expect_code(0)
        .expect_err("notice[J0023]: `resources.cpu` is not enforced on engine `mpi`\n")
        .expect_err(
            "`resources.memory` is not enforced on engine `mpi`, on hosts where umiak cannot create a cgroup\n",
        );
}
