//! Submissions to PaddleCloud, with a stand-in for the site's client.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use umiak_testkit::schema::violation;
use umiak_testkit::suite::Suite;

use crate::shell::Shell;

pub(super) fn register(suite: &mut Suite) {
    suite
        .test("paddlerec::paddlecloud_with_its_client", &[], with_client)
        .test("paddlerec::paddlecloud_without_its_client", &[], without_client)
        .test("paddlerec::paddlecloud_refuses", &[], refusal)
        .test("paddlerec::repeated_secrets_of_paddlecloud", &[], secrets)
        .test("paddlerec::the_config_of_paddlecloud", &[], config)
        .test("paddlerec::flags_with_paddlecloud", &[], flags)
        .test("paddlerec::directories_of_paddlecloud", &[], directories)
        .test("paddlerec::limits_of_paddlecloud", &[], limits)
        .test("paddlerec::files_of_paddlecloud", &[], files);
}

const CONFIG: &str = "workspace: ./\nmode: [train]\nrunner: [{name: train, class: cluster_train, device: cpu}]\nphase: [{name: p, thread_num: 4, model: '{workspace}/model.py'}]\n";
const BACKEND: &str = r#"backend: "PaddleCloud"
cluster_type: k8s
config:
  fs_name: "afs://yinglong.afs"
  fs_ugi: "user,correct-horse"
  output_path: "/output"
  afs_remote_mount_point: "/data"
submit:
  ak: "key-of-the-user"
  sk: "battery-staple"
  job_name: "ctr"
  files: ./*.py ./data
  k8s_trainers: 4
  k8s_ps_num: 2
"#;
const LINE: &str = "umiak submit -m train.yaml -b backend.yaml";

fn shell() -> Shell {
    let shell = Shell::with_decoy();
    let sandbox = &shell.sandbox;
    std::fs::create_dir_all(sandbox.path().join("data/deep")).expect("the sandbox can be written");
    for (name, text) in
        [("train.yaml", CONFIG), ("backend.yaml", BACKEND), ("model.py", "model"), ("data/deep/part", "1 2 3")]
    {
        sandbox.write(name, text);
    }
    shell
}

/// The client: writes its arguments and the files that it sees.
fn client(shell: &Shell, end: &str) {
    let path = shell.sandbox.write(
        "bin/paddlecloud",
        format!("#!/bin/sh\nprintf '%s\\n' \"$@\" > ../arguments\nenv > ../environment\n{end}\n"),
    );
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// The directory of the only submission.
fn folder(shell: &Shell) -> PathBuf {
    let names = shell.sandbox.list(".");
    let mut found = names.iter().filter(|name| name.starts_with("ctr_"));
    let name = found.next().unwrap_or_else(|| panic!("no directory: {names:?}"));
    assert!(found.next().is_none(), "{names:?}");
    let digits = name.trim_start_matches("ctr_");
    assert!(digits.len() == 14 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
    shell.sandbox.path().join(name)
}

fn with_client() {
    let shell = shell();
    client(&shell, r#"echo '{"groupName": "paddle", "jobId": "job-1", "userId": "li"}'"#);
    let outcome = shell.line(&format!("http_proxy=x https_proxy=y {LINE}")).finish();
    outcome.expect_code(0).expect_out("\"jobId\": \"job-1\"").expect_err("submitted to PaddleCloud; `bash ctr_");
    let folder = folder(&shell);
    let names = shell.sandbox.list(folder.file_name().and_then(|name| name.to_str()).expect("UTF-8"));
    assert_eq!(names, ["before_hook.sh", "config.ini", "config.yaml", "data", "end_hook.sh", "job.sh", "model.py"]);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it is there");
    assert_eq!((read("config.yaml").as_str(), read("data/deep/part").as_str()), (CONFIG, "1 2 3"));
    for line in ["fs_ugi=user,correct-horse", "CPU_NUM=4", "PADDLEREC_CLUSTER_TYPE=K8S", "AFS_REMOTE_MOUNT_POINT=/data"]
    {
        assert!(read("config.ini").lines().any(|one| one == line), "{line}: {}", read("config.ini"));
    }
    let mode = |name: &str| std::fs::metadata(folder.join(name)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("job.sh"), mode("config.ini")), (0o700, 0o700, 0o600), "they have secrets");
    let arguments = shell.sandbox.read("arguments");
    let expected = ["job", "--ak", "key-of-the-user", "--sk", "battery-staple", "train", "--job-name", "ctr"];
    assert_eq!(arguments.lines().take(8).collect::<Vec<_>>(), expected);
    for pair in [
        "--k8s-trainers\n4\n",
        "--k8s-ps-num\n2\n",
        "--start-cmd\npython -m paddlerec.run -m ./config.yaml\n",
        "./model.py\n",
    ] {
        assert!(arguments.contains(pair), "{pair}: {arguments}");
    }
    assert!(!shell.sandbox.read("environment").contains("_proxy="));
    let text = outcome.out() + &outcome.err();
    assert!(!text.contains("battery-staple") && !text.contains("correct-horse"), "{text}");
    // It is the platform's job, and no run of umiak.
    shell.line("umiak ls --output json").finish().expect_code(0).expect_out("\"runs\": []");
}

fn without_client() {
    let shell = shell();
    let outcome = shell.line(LINE).finish();
    outcome.expect_code(127).expect_err("error[E0101]: `paddlecloud`, the client of PaddleCloud, was not found\n");
    outcome.expect_err("hint: install it, and run `bash ctr_");
    assert!(folder(&shell).join("job.sh").exists());
    // It can be run later.
    client(&shell, "echo later");
    let script = folder(&shell).join("job.sh");
    shell.line(&format!("bash {}", script.display())).finish().expect_code(0).expect_out("later\n");
}

fn refusal() {
    let shell = shell();
    client(&shell, "echo '{\"error\": \"quota of battery-staple\"}'; echo 'no quota' >&2; exit 4");
    let outcome = shell.line(LINE).finish();
    outcome.expect_code(1).expect_err("no quota\nerror[E0102]: PaddleCloud did not accept the job\n");
    outcome
        .expect_err("  it said  {\"error\": \"quota of ********\"}\n")
        .expect_err("hint: correct it and run `bash ctr_");
}

fn files() {
    let shell = shell();
    client(&shell, "echo called");
    for command in ["umiak plan train.yaml", &format!("{LINE} --dry-run")] {
        std::fs::rename(shell.sandbox.path().join("train.yaml"), shell.sandbox.path().join("config.yaml")).ok();
        let outcome = shell.line(&command.replace("train.yaml", "config.yaml")).finish();
        outcome.expect_code(0).expect_out("# job.sh\n#!/bin/bash\n").expect_out("--sk ******** train");
        assert!(!outcome.out().contains("correct-horse"), "{}", outcome.out());
    }
    let json = shell.line("umiak plan config.yaml --output json").finish().out();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let schema = shell.line("umiak schema cloud-plan").finish().out();
    assert_eq!(violation(&serde_json::from_str(&schema).expect("JSON"), &json), None);
    let line = LINE.replace("train.yaml", "config.yaml");
    for (files, error) in [
        ("./*.txt", "error[F0013]: `submit.files`: no file matches `./*.txt`\n"),
        ("./job.sh", "error[F0018]: `submit.files` contains `job.sh`, which the submission makes itself\n"),
        (
            "model.py data/model.py",
            "error[F0018]: `model.py` and `data/model.py` would have one name in the submission\n",
        ),
        (".", "error[F0013]: `submit.files`: `.` has no name that a copy could have\n"),
        ("./", "error[F0013]: `submit.files`: `./` has no name that a copy could have\n"),
        ("./*.py ..", "error[F0013]: `submit.files`: `..` has no name that a copy could have\n"),
        ("data/here", "error[F0013]: `submit.files`: `data/here` contains the current directory\n"),
    ] {
        shell.sandbox.write("job.sh", "");
        shell.sandbox.write("data/model.py", "");
        let _ = symlink("..", shell.sandbox.path().join("data/here"));
        shell.sandbox.write("backend.yaml", BACKEND.replace("./*.py ./data", files));
        shell.line(&line).finish().expect_code(2).expect_err(error).expect_err("[backend.yaml:12:10]\n");
    }
    assert!(!shell.sandbox.list(".").iter().any(|name| name.starts_with("ctr_")), "nothing is written");
    shell.sandbox.write("backend.yaml", BACKEND);
    // On this host instead.
    let outcome = shell.line(&format!("{line} --engine mock")).finish();
    outcome.expect_code(0).expect_err("2 pserver, 4 trainer, engine mock");
}

/// Of repeated keys the last one counts. The others are secrets, too.
fn secrets() {
    let shell = shell();
    shell.sandbox.write("backend.yaml", BACKEND.replace("  sk:", "  sk: \"old-staple\"\n  sk:"));
    for line in ["umiak lint train.yaml backend.yaml", &format!("{LINE} --dry-run"), &format!("{LINE} --engine mock")] {
        let outcome = shell.line(line).finish();
        let text = outcome.out() + &outcome.err();
        assert!(text.contains("duplicate key") || line.contains("lint"), "{text}");
        assert!(!text.contains("old-staple") && !text.contains("battery-staple"), "{text}");
    }
    let found = shell.line("grep -r -e old-staple -e battery-staple $UMIAK_HOME").finish();
    found.expect_code(1);
    assert!(shell.line("cat $UMIAK_HOME/runs/*/document.yaml").finish().out().contains("sk: \"********\"\n  sk:"));
}

/// `-m` is the configuration of the job, whatever else is called `config.yaml`.
fn config() {
    let shell = shell();
    client(&shell, "cat config.yaml");
    shell.sandbox.write("backend.yaml", BACKEND.replace("./*.py ./data", "./*.yaml"));
    shell.line(LINE).finish().expect_code(0).expect_out(CONFIG);
    shell.sandbox.write("config.yaml", "another: one\n");
    let outcome = shell.line(LINE).finish();
    outcome
        .expect_code(2)
        .expect_err("error[F0018]: `train.yaml` and `config.yaml` would have one name in the submission\n");
    shell.sandbox.write("config.yaml", CONFIG);
    shell.line("sleep 1; umiak submit -m ./config.yaml -b backend.yaml").finish().expect_code(0).expect_out(CONFIG);
}

/// The platform runs the job: flags about runs are refused, the others work.
fn flags() {
    let shell = shell();
    client(&shell, "echo '{\"jobId\": \"job-1\", \"key\": \"battery-staple\"}'");
    for flag in ["-d", "--replace", "--isolate", "--strict-resources", "--label a=b", "--show all", "--stdin 0"] {
        for line in [LINE, &format!("{LINE} --dry-run")] {
            let outcome = shell.line(&format!("{line} {flag}")).finish();
            outcome.expect_code(2).expect_err("has no meaning for a submission to PaddleCloud: the platform runs");
        }
    }
    std::fs::rename(shell.sandbox.path().join("train.yaml"), shell.sandbox.path().join("config.yaml")).expect("a file");
    let outcome = shell.line("umiak plan config.yaml --graph text").finish();
    outcome.expect_code(2).expect_err("error[L0001]: `--graph` has no meaning for a submission to PaddleCloud");
    assert!(!shell.sandbox.list(".").iter().any(|name| name.starts_with("ctr_")), "nothing is written");
    let line = LINE.replace("train.yaml", "config.yaml");
    let outcome = shell.line(&format!("{line} --name other --output json")).finish();
    outcome.expect_code(0);
    let json: serde_json::Value = serde_json::from_str(&outcome.out()).expect("JSON");
    let schema = shell.line("umiak schema cloud-plan").finish().out();
    assert_eq!(violation(&serde_json::from_str(&schema).expect("JSON"), &json), None);
    assert_eq!(
        (json["name"].as_str(), json["answer"].as_str().map(|said| said.contains("job-1"))),
        (Some("other"), Some(true))
    );
    assert!(json["folder"].as_str().is_some_and(|folder| folder.starts_with("other_")), "{json}");
    assert!(shell.sandbox.read("arguments").contains("--job-name\nother\n") && !json.to_string().contains("staple"));
    let quiet = shell.line(&format!("{line} --name quiet --output quiet")).finish();
    quiet.expect_code(0);
    assert_eq!((quiet.out(), quiet.err()), (String::new(), String::new()));
    // The hint can be pasted.
    std::fs::remove_file(shell.sandbox.path().join("bin/paddlecloud")).expect("it is there");
    shell.sandbox.write("backend.yaml", BACKEND.replace("\"ctr\"", "\"my ctr\""));
    shell.line(&line).finish().expect_code(127).expect_err("run `bash 'my ctr_");
}

/// Earlier submissions are left out, and links are not followed.
fn directories() {
    let shell = shell();
    client(&shell, "find . -type f -o -type l | sort");
    let path = |name: &str| shell.sandbox.path().join(name);
    std::fs::create_dir_all(path("data/old_20200102030405")).expect("the sandbox can be written");
    std::fs::create_dir_all(path("old_20200102030405")).expect("the sandbox can be written");
    shell.sandbox.write("data/old_20200102030405/job.sh", "battery-staple");
    shell.sandbox.write("old_20200102030405/job.sh", "battery-staple");
    symlink("..", path("data/deep/loop")).expect("the sandbox can be written");
    shell.sandbox.write("backend.yaml", BACKEND.replace("./*.py ./data", "model.* data ./mode?.py"));
    let outcome = shell.line(LINE).finish();
    outcome.expect_code(0);
    assert_eq!(
        outcome.out(),
        "./before_hook.sh\n./config.ini\n./config.yaml\n./data/deep/loop\n./data/deep/part\n./end_hook.sh\n./job.sh\n./model.py\n"
    );
    shell.sandbox.write("backend.yaml", BACKEND.replace("./*.py ./data", "model.py old_*"));
    shell.line(LINE).finish().expect_code(2).expect_err("no file matches `old_*`\n");
    shell.sandbox.write("backend.yaml", BACKEND.replace("./*.py ./data", "pipe"));
    let outcome = shell.line(&format!("mkfifo pipe; {LINE}")).finish();
    outcome.expect_code(125).expect_err("error[E0103]: `pipe` cannot be read\n");
}

/// What the platform cannot do, this host can.
fn limits() {
    let shell = shell();
    let several = CONFIG
        .replace("mode: [train]", "mode: [train, again]")
        .replace("device: cpu}", "device: cpu}, {name: again, class: cluster_train}");
    shell.sandbox.write("train.yaml", several);
    shell.line(LINE).finish().expect_code(2).expect_err("error[F0004]: a submission to `paddlecloud` is one runner");
    shell.line(&format!("{LINE} --engine mock")).finish().expect_code(0);
}
