//! Directories that replicas see at other paths. Each test runs as this user, and as an ordinary one if this is root.

use std::path::{Path, PathBuf};
use std::process::Command;

use umiak_testkit::components::Component::Namespaces;
use umiak_testkit::sandbox::{Run, Sandbox, binary};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("run: mounts: a path that the host does not have", &[Namespaces], || for_users(new_path))
        .test("run: mounts: over existing directories, and inside each other", &[Namespaces], || for_users(nested))
        .test("run: mounts: the command of an attempt by hand", &[Namespaces], || for_users(by_hand))
        .test("run: mounts: refused before anything starts", &[Namespaces], || for_users(refused))
        .test("run: mounts: where namespaces are not permitted", &[Namespaces], || for_users(not_permitted))
        .test("run: mounts: a directory that goes away", &[Namespaces], || for_users(gone))
        .test("run: mounts: nothing outlives front and guardian", &[Namespaces], || for_users(killed));
}

/// A user whom no file belongs to.
const OTHER: u32 = 65534;

/// A directory of a user who runs umiak.
struct Place {
    sandbox: Sandbox,
    is_other: bool,
}

fn for_users(test: fn(&Place)) {
    let users = if umiak_sys::host::user_id() == 0 { &[false, true][..] } else { &[false] };
    for is_other in users.iter().copied() {
        let place = Place { sandbox: Sandbox::new(), is_other };
        for name in ["a/sub", "b", "home"] {
            std::fs::create_dir_all(place.path(name)).expect("the sandbox can be written");
        }
        place.sandbox.write("a/name", "a\n");
        place.sandbox.write("b/name", "b\n");
        test(&place);
        place.sandbox.assert_nothing_left();
    }
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path().join(name)
    }

    /// A path below the root that no other test uses.
    fn new_path(&self) -> String {
        format!("/umiak-{}", self.sandbox.path().file_name().unwrap_or_default().to_string_lossy())
    }

    fn program(&self, program: &Path, words: &[&str]) -> Run<'_> {
        let home = self.path("home");
        if !self.is_other {
            return self.sandbox.program(program, words).env("HOME", home);
        }
        let owner = Command::new("chown").args(["-R", &OTHER.to_string()]).arg(self.sandbox.path()).status();
        assert!(owner.is_ok_and(|status| status.success()), "the sandbox gets another owner");
        let id = OTHER.to_string();
        let program = program.to_string_lossy();
        let become_other = ["--reuid", &id, "--regid", &id, "--clear-groups", &program];
        self.sandbox.program(Path::new("setpriv"), [&become_other, words].concat()).env("HOME", home)
    }

    fn run(&self, roles: &str) -> Run<'_> {
        self.sandbox.write("job.yaml", format!("umiak: v1\nname: mounts\nroles:\n{roles}"));
        self.program(binary(), &["run", "job.yaml"])
    }

    fn log(&self, replica: &str) -> String {
        self.sandbox.read(&format!("state/runs/run-000001/tasks/{replica}/attempt-1/log"))
    }
}

/// Replicas see the directory, and can write to it unless it is read-only. The host does not get the path.
fn new_path(place: &Place) {
    let path = place.new_path();
    let roles = format!(
        "  w:\n    replicas: 2\n    dir: {path}/deep\n    mounts: [{{dir: a, path: {path}/deep}}, {{dir: b, path: {path}-2, read_only: true}}]\n    command: |\n      id -u; pwd; cat name {path}-2/name; echo \"$UMIAK_INDEX\" > out.$UMIAK_INDEX\n      touch {path}-2/no || echo read-only\n      touch {path}/no || echo empty\n      [ -d /proc/self ] && [ -d /tmp ]\n"
    );
    place.run(&roles).finish().expect_code(0);
    let user = if place.is_other { OTHER } else { umiak_sys::host::user_id() };
    for index in 0..2 {
        let log: Vec<String> = place.log(&format!("w-{index}")).lines().map(str::to_owned).collect();
        let said: Vec<&str> = log.iter().map(String::as_str).filter(|line| !line.contains("touch")).collect();
        assert_eq!(said, [&user.to_string(), &format!("{path}/deep"), "a", "b", "read-only", "empty"]);
        assert_eq!(place.sandbox.read(&format!("a/out.{index}")), format!("{index}\n"));
    }
    assert!(!Path::new(&path).exists() && !Path::new(&format!("{path}-2")).exists(), "left on the host");
    assert_eq!(place.sandbox.list("b"), ["name"]);
}

/// Outer directories are mounted first, and a directory is what it was before anything was mounted.
fn nested(place: &Place) {
    let (path, root) = (place.new_path(), place.sandbox.path().display());
    let roles = format!(
        "  swapped: {{command: cat a/name b/name, mounts: [{{dir: a, path: {root}/b}}, {{dir: b, path: {root}/a}}]}}\n  nested: {{command: cat {path}/name {path}/sub/name, mounts: [{{dir: b, path: {path}/sub}}, {{dir: a, path: {path}}}]}}\n  inner: {{command: 'touch {path}/no || touch {path}/sub/yes', mounts: [{{dir: a, path: {path}, read_only: true}}, {{dir: b, path: {path}/sub}}]}}\n  same: {{command: cat a/name, mounts: [{{dir: a, path: {root}/a}}]}}\n"
    );
    place.run(&roles).finish().expect_code(0);
    assert_eq!(place.log("swapped-0"), "b\na\n");
    assert_eq!(place.log("nested-0"), "a\nb\n");
    assert_eq!(place.log("same-0"), "a\n");
    assert_eq!(
        (place.sandbox.list("a"), place.sandbox.list("b")),
        (vec!["name".to_owned(), "sub".to_owned()], vec!["name".to_owned(), "yes".to_owned()])
    );
}

fn by_hand(place: &Place) {
    let path = place.new_path();
    super::program(&place.path("a/show"), "#!/bin/sh\npwd; cat name\n");
    let roles = format!("  w: {{dir: {path}, command: [./show], mounts: [{{dir: a, path: {path}}}]}}\n");
    place.run(&roles).finish().expect_code(0);
    let command = place.path("state/runs/run-000001/tasks/w-0/attempt-1/command");
    place.program(&command, &[]).finish().expect_code(0).expect_out(&format!("{path}\na\n"));
}

/// All that can be known before is said before, with the remedy.
fn refused(place: &Place) {
    let root = place.sandbox.path().display();
    for (mount, expected) in [
        ("{dir: none, path: /none}".to_owned(), format!("create `{root}/none`")),
        ("{dir: a/name, path: /none}".to_owned(), "both the directory and the path must be directories".to_owned()),
        (format!("{{dir: a, path: {root}/b/name}}"), "both the directory and the path must be directories".to_owned()),
        (format!("{{dir: a, path: {root}/b/none}}"), format!("create it: `mkdir -p {root}/b/none`")),
        ("{dir: a, path: /}".to_owned(), "use an absolute path below `/`".to_owned()),
        ("{dir: a, path: /usr/../x}".to_owned(), "use an absolute path below `/`".to_owned()),
    ] {
        let outcome = place.run(&format!("  w: {{command: echo started, mounts: [{mount}]}}\n")).finish();
        outcome.expect_code(2).expect_err("error[J0031]").expect_err(&expected);
        assert!(!place.path("state/runs/run-000001").exists(), "{mount}: a run was recorded");
    }
    let inside = "  w: {command: 'true', mounts: [{dir: a, path: /none}, {dir: b, path: /none/new}]}\n";
    place.run(inside).finish().expect_code(2).expect_err(&format!("create it: `mkdir -p {root}/a/new`"));
}

/// Only a path that leads to its directory works then.
fn not_permitted(place: &Place) {
    const FORBID: &str = "echo 0 > /proc/sys/user/max_mnt_namespaces && exec \"$@\"";
    let root = place.sandbox.path().display();
    let run = |mount: &str| {
        let roles = format!("  w: {{command: cat link/name, mounts: [{mount}]}}\n");
        place.sandbox.write("job.yaml", format!("umiak: v1\nname: mounts\nroles:\n{roles}"));
        let words = ["-Ur", "sh", "-c", FORBID, "sh", &binary().to_string_lossy(), "run", "job.yaml"];
        place.program(Path::new("unshare"), &words).finish()
    };
    std::os::unix::fs::symlink("a", place.path("link")).expect("the sandbox can be written");
    run("{dir: a, path: /none}")
        .expect_code(2)
        .expect_err("mount namespaces are not permitted: No space left on device")
        .expect_err(&format!("or make a link: `ln -s {root}/a /none`"));
    run(&format!("{{dir: a, path: {root}/link, read_only: true}}")).expect_code(2).expect_err("not permitted");
    run(&format!("{{dir: a, path: {root}/link}}")).expect_code(0);
    assert_eq!(place.log("w-0"), "a\n");
}

/// A start that fails says which directory it was.
fn gone(place: &Place) {
    let path = place.new_path();
    let roles = format!(
        "  first: {{command: rmdir a/sub}}\n  then: {{command: 'true', start_after: {{role: first, when: succeeded}}, mounts: [{{dir: a/sub, path: {path}}}]}}\n"
    );
    let outcome = place.run(&roles).finish();
    outcome.expect_code(1).expect_err("mount its directories");
    let said = format!("umiak: cannot mount `{}` at `{path}`\n", place.path("a/sub").display());
    assert_eq!(place.log("then-0"), said);
}

/// The kernel ends the replica with its guardian, also in a user namespace, and its mounts with the replica.
fn killed(place: &Place) {
    let path = place.new_path();
    let roles = format!("  w: {{command: 'touch {path}/up; exec sleep 1000', mounts: [{{dir: a, path: {path}}}]}}\n");
    let run = place.run(&roles).start();
    run.wait_for_file("a/up");
    let guardian = umiak_sys::descend::children(run.pid())[0];
    for pid in [guardian, run.pid()] {
        umiak_sys::descend::signal(pid, 9);
    }
    run.finish_unchecked();
    super::house::wait_for("the replica to be gone", || place.sandbox.processes().is_empty());
}
