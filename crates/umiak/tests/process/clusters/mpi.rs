//! What only mpirun does: hosts whose processes are not its own, and no adoption.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use umiak_testkit::components::Component::OpenMpi as Needed;
use umiak_testkit::suite::Suite;

use super::{Engine, Site};
use crate::run::wait_until_free;

pub(super) fn register(suite: &mut Suite) {
    let mut test = |name: &str, run: fn(&Site)| {
        suite.test(&format!("mpi: {name}"), &[Needed], move || run(&Site::new(Engine::Mpi)));
    };
    test("roles with other resources, in their order over the hosts", heterogeneous);
    test("nothing is left on any host when umiak is killed, and `resume` starts again", killed);
    test("a launcher that does not end is ended", deaf_launcher);
}

const SIGKILL: i32 = 9;

fn heterogeneous(site: &Site) {
    let document = "umiak: v1\nname: het\nroles:\n  pserver: {replicas: 1, completes: false, resources: {cpu: 2}, command: 'echo $UMIAK_RANK $OMPI_COMM_WORLD_RANK $TEST_MPI_HOST; sleep 1000'}\n  trainer: {replicas: 3, start_after: pserver, resources: {cpu: 4, memory: 100Mi}, command: 'echo $UMIAK_RANK $OMPI_COMM_WORLD_RANK $TEST_MPI_HOST'}\n";
    site.run_with(document, &site.mpi_hosts("a:2,b:1,c:1")).finish().expect_code(0);
    let logs = ["pserver-0", "trainer-0", "trainer-1", "trainer-2"].map(|replica| site.log(replica, 1));
    assert_eq!(logs, ["0 0 a\n", "1 1 a\n", "2 2 b\n", "3 3 c\n"]);
    site.assert_nothing_left();
}

/// Processes of a host are no descendants of umiak: they end with their connection.
fn killed(site: &Site) {
    let document = "umiak: v1\nname: killed\ncontracts: [torch]\nroles: {trainer: {replicas: 4, command: 'echo on $TEST_MPI_HOST; [ $UMIAK_ATTEMPT = 2 ] || exec sleep 1000'}}\n";
    let running = site.run(document).start();
    let hosts = ["a", "a", "b", "b"];
    let is_up = |attempt: u32| {
        hosts
            .iter()
            .enumerate()
            .all(|(rank, host)| site.log(&format!("trainer-{rank}"), attempt) == format!("on {host}\n"))
    };
    running.wait_until("all run", || is_up(1));
    let there = site.hosts.as_ref().expect("hosts of mpirun");
    for host in ["a", "b"] {
        assert!(
            there.processes(host).iter().any(|(_, line)| line.starts_with("sleep ")),
            "{:?}",
            there.processes(host)
        );
    }
    running.signal(SIGKILL);
    running.finish_unchecked();
    wait_until_free(&site.sandbox);
    site.sandbox.assert_nothing_left();
    site.umiak("resume").finish().expect_code(0);
    assert!(is_up(2), "all have a second attempt");
    assert_eq!(site.sandbox.list("state/runs/run-000001/units"), ["0.1", "0.2"]);
    site.sandbox.assert_nothing_left();
}

/// In the place of an `mpirun` that does not notice that all its processes have ended.
const DEAF: &str = "#!/bin/sh\n[ \"$1\" = --version ] && exec mpirun --version\ntrap '' TERM INT HUP\nmpirun \"$@\"\n: > hung\nwhile :; do sleep 1; done\n";

fn deaf_launcher(site: &Site) {
    let hung = site.sandbox.path().join("hung");
    let text = DEAF.replace(": > hung", &format!(": > '{}'", hung.display()));
    let launcher = site.sandbox.write("deaf-mpirun", text);
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    for (command, code) in [("echo done", 0), ("[ $UMIAK_RANK = 1 ] && exit 7; exec sleep 1000", 7)] {
        let _ = std::fs::remove_file(&hung);
        let document = format!("umiak: v1\nname: deaf\nroles: {{w: {{replicas: 2, command: '{command}'}}}}\n");
        let outcome = site.run_with(&document, &format!("--mpi-launcher {}", launcher.display())).finish();
        outcome.expect_code(code);
        assert!(hung.exists(), "the launcher has ended by itself");
        assert!(outcome.elapsed < Duration::from_secs(25), "{:?}: {}", outcome.elapsed, outcome.err());
    }
    site.assert_nothing_left();
}
