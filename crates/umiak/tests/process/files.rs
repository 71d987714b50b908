//! Files beside other users: what they cannot write, where they cannot lead us, and what they hold.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use umiak_sys::ports::{self, LeaseRequest, PortRange};
use umiak_testkit::sandbox::{Sandbox, binary, toy};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("files::others_cannot_write_whatever_the_umask", &[], not_writable)
        .test("files::links_of_other_users_are_not_followed", &[], not_followed)
        .test("files::modes_of_existing_files_are_tightened", &[], tightened)
        .test("files::files_of_other_users_are_refused", &[], not_theirs)
        .test("files::log_directories_behind_links_of_others_are_refused", &[], not_led_elsewhere)
        .test("files::numbers_are_whole_where_runs_are_removed_or_stopped", &[], whole_numbers)
        .test("files::who_holds_the_ports_is_named", &[], holder_named);
}

fn below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(below(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

fn not_writable() {
    let sandbox = Sandbox::new();
    let home = sandbox.path().join("own-home");
    sandbox.write("job.yaml", "umiak: v1\nname: both\nroles:\n  trainer: {replicas: 2, command: \"echo hello\"}\n");
    let launch = format!("launch --nproc_per_node 2 --log-max-size 4K --enable_gpu_log true {} toy", toy());
    let lines = [
        format!("{launch} '*:flood 20000'"),
        format!("{launch} '1:err KeyError: 1;exit 3'"),
        "run job.yaml".to_owned(),
    ];
    for line in lines {
        let line = format!("umask 0; exec '{}' {line}", binary().display());
        let outcome = sandbox.program("sh".as_ref(), ["-c", &line]).env("UMIAK_HOME", &home).finish();
        assert!(outcome.status.code().is_some_and(|code| code == 0 || code == 3), "{}", outcome.err());
    }
    let written: Vec<PathBuf> = below(&home).into_iter().chain(below(&sandbox.path().join("log"))).collect();
    let is_rotated = |path: &PathBuf| path.to_string_lossy().contains("workerlog.0.");
    assert!(written.len() > 20 && written.iter().any(is_rotated), "{written:?}");
    for path in [home, sandbox.path().join("log")].into_iter().chain(written) {
        let mode = fs::symlink_metadata(&path).map_or(0, |found| found.permissions().mode());
        // Sockets have no contents; who may connect is decided by their directory.
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        assert!(mode & 0o022 == 0 || is_socket, "{} has mode {mode:o}", path.display());
    }
}

fn not_followed() {
    for name in ["workerlog.0", "workerlog.1", "endpoints.log"] {
        let sandbox = Sandbox::new();
        let log = sandbox.path().join("log");
        let victim = sandbox.path().join("victim");
        fs::create_dir(&log).unwrap();
        symlink(&victim, log.join(name)).unwrap();
        let launch = || sandbox.launch_toy("--nproc_per_node 2", &["*:print hello"]).finish();
        // Our own directory: links in it are ours.
        launch().expect_code(0);
        assert!(victim.exists(), "{name}");
        fs::remove_file(&victim).unwrap();
        if std::os::unix::fs::chown(&log, Some(65534), Some(65534)).is_err() {
            fs::set_permissions(&log, Permissions::from_mode(0o777)).unwrap();
        }
        launch().expect_code(125).expect_err("error[L0014]").expect_err("is a symbolic link").expect_err(name);
        assert!(!victim.exists(), "{name} was followed");
    }
}

/// All files that a job of two ranks writes, except those with random names.
const WRITTEN: [&str; 7] =
    ["workerlog.0", "workerlog.1", "endpoints.log", "envlog.0", "envlog.1", "backup_env.0.json", "backup_env.1.json"];

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn tightened() {
    for flags in ["", " --log_overwrite true", " --log-max-size 4K"] {
        let sandbox = Sandbox::new();
        let log = sandbox.path().join("log");
        fs::create_dir(&log).unwrap();
        for name in WRITTEN {
            sandbox.write(&format!("log/{name}"), "");
            fs::set_permissions(log.join(name), Permissions::from_mode(0o666)).unwrap();
        }
        fs::set_permissions(log.join("workerlog.1"), Permissions::from_mode(0o620)).unwrap();
        sandbox.launch_toy(&format!("--nproc_per_node 2{flags}"), &["*:print hello"]).finish().expect_code(0);
        for name in WRITTEN {
            let expected = match name {
                "workerlog.1" => 0o600,
                name if name.starts_with("backup") => 0o600,
                _ => 0o644,
            };
            assert_eq!(mode(&log.join(name)), expected, "{name}{flags}");
        }
    }
}

const OTHER: u32 = 65534;

fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(OTHER), Some(OTHER)).unwrap();
}

fn not_theirs() {
    if umiak_sys::host::user_id() != 0 {
        return;
    }
    for name in WRITTEN {
        let sandbox = Sandbox::new();
        let (log, victim) = (sandbox.path().join("log"), sandbox.path().join("victim"));
        let file = log.join(name);
        fs::create_dir(&log).unwrap();
        let launch = || sandbox.launch_toy("--nproc_per_node 2", &["*:print hello"]).finish();
        fs::write(&file, "theirs").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        give(&file);
        let refused = launch();
        refused.expect_code(125).expect_err("error[L0014]").expect_err(name).expect_err("belongs to user ");
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs", "{name}");
        // The owner of a directory can replace the files in it anyway.
        give(&log);
        launch().expect_code(0);
        assert_eq!(mode(&file) & 0o022, 0, "{name}");
        fs::remove_file(&file).unwrap();
        fs::write(&victim, "ours").unwrap();
        fs::hard_link(&victim, &file).unwrap();
        launch().expect_code(125).expect_err("error[L0014]").expect_err(name).expect_err("has other names");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "ours", "{name}");
        // Our own directory: only we add names to it.
        std::os::unix::fs::chown(&log, Some(0), Some(0)).unwrap();
        launch().expect_code(0);
    }
}

fn not_led_elsewhere() {
    if umiak_sys::host::user_id() != 0 {
        return;
    }
    let sandbox = Sandbox::new();
    let shared = sandbox.path().join("shared");
    let private = sandbox.path().join("private");
    fs::create_dir(&shared).unwrap();
    give(&shared);
    fs::create_dir(&private).unwrap();
    let link = shared.join("log");
    symlink(&private, &link).unwrap();
    symlink(&link, sandbox.path().join("own")).unwrap();
    let launch = |directory: &str| {
        sandbox.launch_toy(&format!("--nproc_per_node 2 --log_dir {directory}"), &["*:print hello"]).finish()
    };
    let is_empty = || fs::read_dir(&private).unwrap().next().is_none();
    give(&link);
    for directory in ["shared/log", "shared/log/", "shared/log/.", "own"] {
        let refused = launch(directory);
        refused.expect_code(125).expect_err("error[L0014]").expect_err("is a symbolic link of user ");
        assert!(is_empty(), "{directory}");
    }
    // Our own link, wherever it is.
    std::os::unix::fs::lchown(&link, Some(0), Some(0)).unwrap();
    for directory in ["shared/log", "own"] {
        launch(directory).expect_code(0);
        assert!(!is_empty(), "{directory}");
    }
}

/// The second `rm 3` means the run that is gone, not another one that its digits or its name could mean.
fn whole_numbers() {
    let sandbox = Sandbox::new();
    for _ in 0..12 {
        sandbox.umiak(["launch", "/bin/true"]).finish().expect_code(0);
    }
    sandbox.umiak("launch --job_id run-000003 /bin/true".split(' ')).finish().expect_code(0);
    sandbox.umiak("launch --job_id 3 /bin/true".split(' ')).finish().expect_code(0);
    let ids = || sandbox.umiak("ls --output quiet".split(' ')).finish().out().lines().count();
    assert_eq!(ids(), 14);
    sandbox.umiak(["rm", "3"]).finish().expect_code(0);
    for line in ["rm 3", "rm run-000003", "rm 03", "stop 3", "stop run-000003", "stop --kill 3"] {
        sandbox.umiak(line.split(' ')).finish().expect_code(2).expect_err("no run");
    }
    assert_eq!(ids(), 13);
    // Reading is harmless: the last digits are enough.
    assert!(sandbox.umiak(["show", "3"]).finish().out().contains("run-000013"));
}

/// Only other users are named: `umiak ls` shows what our own jobs hold.
fn holder_named() {
    let sandbox = Sandbox::new();
    let request = LeaseRequest { count: 1, range: PortRange::Anywhere, address: None, seed: 7 };
    let (leased, lease) = ports::lease(&request).expect("a port is free");
    let port = leased.ports[0];
    let refused = || {
        let outcome =
            sandbox.umiak(format!("launch --start-port {port} /bin/true").split(' ')).start().finish_unchecked();
        outcome.expect_code(125).expect_err("(another umiak job)");
        outcome
    };
    assert!(!refused().err().contains("reserved"), "{}", refused().err());
    drop(lease);
    if umiak_sys::host::user_id() != 0 {
        return;
    }
    let holder = format!(
        "import os, socket, time\nup = open('up', 'w')\nos.setuid(65534)\nname = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
         name.bind(b'\\0umiak-port-{port}')\nup.write('up')\nup.close()\ntime.sleep(600)"
    );
    let holder = sandbox.program(Path::new("/usr/bin/env"), ["python3", "-c", &holder]).start();
    let up = sandbox.path().join("up");
    holder.wait_until("the port is held", || fs::read_to_string(&up).is_ok_and(|text| text == "up"));
    let outcome = refused();
    holder.signal(9);
    holder.finish_unchecked();
    outcome.expect_err("  reserved   1 by ").expect_err("uid 65534\n");
}
