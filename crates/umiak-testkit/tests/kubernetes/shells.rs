//! The script of a pod, run by the shells that images have, with what the kubelet would give it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proptest::prelude::*;
use serde_json::Value;
use umiak_core::mask::Known;
use umiak_core::model::{Contract, Job, KubeKind, KubernetesOptions};
use umiak_core::plan::Attempt;
use umiak_core::plan::pool::Given;
use umiak_testkit::programs::find_on_path;

use super::{Rendered, job, rendered, templates};

/// Programs, with what follows them on a command line.
fn shells() -> Vec<Vec<&'static str>> {
    let all = [vec!["sh"], vec!["dash"], vec!["bash", "--posix"], vec!["bash"], vec!["busybox", "sh"]];
    all.into_iter().filter(|words| find_on_path(words[0]).is_some()).collect()
}

/// As the kubelet expands `$(NAME)`, with no variable of a name that is used here.
fn expanded(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut expanded = String::new();
    let mut at = 0;
    while at < letters.len() {
        expanded.push(letters[at]);
        at += if letters[at] == '$' && letters.get(at + 1) == Some(&'$') { 2 } else { 1 };
    }
    expanded
}

/// What a container of a pod runs.
struct Pod<'a> {
    objects: &'a [Value],
    template: &'a Value,
    kind: KubeKind,
    /// Where the directories of umiak are.
    root: &'a Path,
}

impl Pod<'_> {
    fn text(&self, text: &str) -> String {
        expanded(text).replace("/umiak/", &format!("{}/", self.root.display()))
    }

    fn env(&self) -> BTreeMap<String, String> {
        let env = self.template["spec"]["containers"][0]["env"].as_array().expect("a list");
        let secret = |key: &str| {
            let data = self.objects.iter().find(|object| object["kind"] == "Secret").expect("a Secret");
            data["stringData"][key].as_str().expect("a key of the Secret").to_owned()
        };
        let value = |variable: &Value| match variable["value"].as_str() {
            Some(value) => self.text(value),
            None => secret(variable["valueFrom"]["secretKeyRef"]["key"].as_str().expect("a key")),
        };
        env.iter().map(|variable| (variable["name"].as_str().expect("a name").to_owned(), value(variable))).collect()
    }

    fn command(&self, shell: &[&str], index: u32, change: impl Fn(String) -> String) -> Command {
        let container = &self.template["spec"]["containers"][0];
        let words = |key: &str| {
            let words = container[key].as_array().expect("a list").iter();
            words.map(|word| word.as_str().expect("a text").to_owned()).collect::<Vec<_>>()
        };
        let start = words("command");
        assert_eq!((start[0].as_str(), start[1].as_str()), ("/bin/sh", "-c"));
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).args(["-c", &change(self.text(&start[2])), &start[3]]);
        command.args(words("args").iter().map(|word| expanded(word)));
        command.env_clear().envs(self.env()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let name = if self.kind == KubeKind::Volcano { "VC_TASK_INDEX" } else { "JOB_COMPLETION_INDEX" };
        command.env(name, index.to_string()).current_dir(self.root);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Calls `act` with each shell and the pod of a role.
fn with_pod(job: &Job, known: &Known, role: &str, act: impl Fn(&[&str], &Pod<'_>, &Rendered)) {
    for kind in [KubeKind::Volcano, KubeKind::Jobs] {
        let options = KubernetesOptions { kind, image: Some("image".into()), ..KubernetesOptions::default() };
        let rendered = rendered(job, &options, known, &[]).unwrap_or_else(|error| panic!("{}", error.to_plain()));
        let templates = templates(&rendered.objects);
        for shell in shells() {
            let root = tempfile::tempdir().expect("a directory");
            let pod = Pod { objects: &rendered.objects, template: &templates[role], kind, root: root.path() };
            act(&shell, &pod, &rendered);
        }
    }
}

fn spawn(mut command: Command) -> Child {
    command.spawn().expect("the shell starts")
}

/// Output, errors and exit code.
fn ended(command: Command) -> (String, String, Option<i32>) {
    let output = spawn(command).wait_with_output().expect("the shell ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

fn same(text: String) -> String {
    text
}

/// The variables that the shells and the controllers add.
const ADDED: [&str; 9] =
    ["PATH", "PWD", "OLDPWD", "SHLVL", "_", "VC_TASK_INDEX", "JOB_COMPLETION_INDEX", "POSIXLY_CORRECT", "LINENO"];

/// Runs `env -0` as each replica, and compares with the variables of the plan.
fn check_variables(job: &Job, known: &Known, shells: &[Vec<&str>], kind: KubeKind) -> Result<(), TestCaseError> {
    let options = KubernetesOptions { kind, image: Some("image".into()), ..KubernetesOptions::default() };
    let rendered = rendered(job, &options, known, &[]).map_err(|error| TestCaseError::fail(error.to_plain()))?;
    let templates = templates(&rendered.objects);
    let root = tempfile::tempdir().expect("a directory");
    for replica in &rendered.plan.replicas {
        let role = usize::from(replica.slot.role);
        let template = &templates[rendered.names.role(role)];
        let pod = Pod { objects: &rendered.objects, template, kind, root: root.path() };
        let given = Given::default();
        let attempt = Attempt { slot: replica.slot, number: 1, of_job: 1, retries: 0, given: &given };
        let own = rendered.plan.variables(replica, &attempt);
        let place =
            |(name, value): (String, String)| (name, value.replace("/umiak/", &format!("{}/", root.path().display())));
        let expected: BTreeMap<String, String> = rendered.plan.common.iter().cloned().chain(own).map(place).collect();
        for shell in shells {
            let (output, errors, code) = ended(pod.command(shell, replica.index, same));
            prop_assert_eq!(code, Some(0), "{:?}: {}", shell, errors);
            let pairs = output.split('\0').filter_map(|pair| pair.split_once('='));
            let found: BTreeMap<String, String> = pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .filter(|(name, _)| expected.contains_key(name) || !ADDED.contains(&name.as_str()))
                .collect();
            prop_assert_eq!(&found, &expected, "{:?} {}", shell, replica.name);
        }
    }
    Ok(())
}

#[test]
fn every_contract_in_every_shell() {
    let text = r#"
umiak: v1
name: ctr
roles:
  server: {replicas: 2, part: server, command: [env, "-0"], ports: {rpc: 2}}
  trainer:
    replicas: 3
    part: trainer
    command: [env, "-0"]
    env: {train.mode: "a 'b' $HOME $(X) $$(Y)", API_TOKEN: "s3cr3t 'x' $1", odd.secret-key: "two\nlines", EMPTY: "", IFS: "3", PWD: "/nowhere", UID: "5", umiak_index: "7", PATH_LIKE: ":a"}
"#;
    let (mut job, known) = job(text);
    for contract in [
        Contract::Paddle,
        Contract::Torch,
        Contract::PaddleServers,
        Contract::PaddleJob,
        Contract::PytorchJob,
        Contract::Tensorflow,
        Contract::Pai,
    ] {
        job.contracts = vec![contract];
        for kind in [KubeKind::Volcano, KubeKind::Jobset] {
            check_variables(&job, &known, &shells(), kind).unwrap_or_else(|error| panic!("{contract:?}: {error}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_values(
        env in proptest::collection::btree_map("[A-Z][A-Z.]{0,6}", "[a0-9$()'\"\\\\ \\n*~;#角-]{0,16}", 0..6),
        secret in "[a-z$'\" ]{0,12}",
        replicas in 1u32..4,
        contract in 0usize..3,
    ) {
        let (mut job, mut known) = job("umiak: v1\nname: x\nroles: {r: {command: [env, '-0']}}");
        let role = &mut job.roles[0];
        role.replicas = replicas;
        role.work.env = env.into_iter().filter(|(name, _)| !ADDED.contains(&name.as_str()) && name != "POD.IP").collect();
        role.work.env.push(("MY_PASSWORD".into(), secret.clone()));
        known.add(&secret);
        job.contracts = vec![[Contract::Paddle, Contract::Torch, Contract::Pai][contract]];
        check_variables(&job, &known, &[vec!["sh"]], KubeKind::Jobs)?;
    }
}

#[test]
fn words_of_commands() {
    let words = ["$HOME", "$(hostname)", "$$", "a b", "it's", "\"", "", "*", "-n", "a\nb", "\\", "角", "`x`"];
    let listed = words.map(|word| serde_json::to_string(word).expect("a text")).join(", ");
    let text = format!(
        "umiak: v1\nname: x\nroles: {{r: {{replicas: 2, command: [sh, '-c', 'printf \"%s|\" \"$@\"', sh, {listed}, '--token=abc123def456ghi'], env: {{t.x: a}}}}}}"
    );
    let (job, mut known) = job(&text);
    known.add("abc123def456ghi");
    with_pod(&job, &known, "r", |shell, pod, rendered| {
        let manifest = serde_json::to_string(&rendered.objects[1..]).expect("JSON");
        assert!(!manifest.contains("abc123def456ghi"), "{manifest}");
        let (output, errors, code) = ended(pod.command(shell, 1, same));
        let expected = words.join("|") + "|--token=abc123def456ghi|";
        assert_eq!((output, code), (expected, Some(0)), "{shell:?} {errors}");
    });
}

#[test]
fn exit_codes() {
    for (command, expected) in [
        ("[sh, '-c', 'exit 7']", 7),
        ("[sh, '-c', 'kill -9 $$']", 137),
        ("[not-a-program]", 127),
        ("[/]", 126),
        ("['true']", 0),
    ] {
        let (job, known) = job(&format!("umiak: v1\nname: x\nroles: {{r: {{command: {command}}}}}"));
        with_pod(&job, &known, "r", |shell, pod, _| {
            assert_eq!(ended(pod.command(shell, 0, same)).2, Some(expected), "{shell:?} {command}");
        });
    }
    let (job, known) = job("umiak: v1\nname: x\nroles: {r: {command: ['true'], dir: nowhere}}");
    with_pod(&job, &known, "r", |shell, pod, _| {
        assert_eq!(ended(pod.command(shell, 0, same)).2, Some(125), "{shell:?}");
    });
}

#[test]
fn an_index_that_is_none() {
    let (job, known) = job("umiak: v1\nname: x\nroles: {r: {replicas: 2, command: ['true']}}");
    with_pod(&job, &known, "r", |shell, pod, _| {
        let (_, errors, code) = ended(pod.command(shell, 2, same));
        assert_eq!(code, Some(125), "{shell:?}");
        assert!(errors.contains("INDEX is 2 of 2"), "{errors}");
    });
}

/// Starts the command, waits for its first line, sends a signal to the script, and returns the exit code.
fn signalled(command: Command, signal: Signal) -> Option<i32> {
    let mut child = spawn(command);
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    kill(Pid::from_raw(child.id() as i32), signal).expect("the script runs");
    let mut rest = Vec::new();
    let _ = output.read_to_end(&mut rest);
    child.wait().expect("the script ends").code()
}

#[test]
fn signals_are_passed_on() {
    let role = |line: &str| job(&format!("umiak: v1\nname: x\nroles: {{r: {{command: {line:?}}}}}"));
    // It starts nothing while it waits: dash loses a signal that arrives while it starts a program.
    let handles = |signal: &str| format!("trap 'kill $!; exit 7' {signal}; sleep 30 & echo ready; wait");
    let (job, known) = role(&handles("TERM"));
    with_pod(&job, &known, "r", |shell, pod, _| {
        assert_eq!(signalled(pod.command(shell, 0, same), Signal::SIGTERM), Some(7), "{shell:?}");
    });
    // Of the shells with an `env` that gives signals back.
    let (job, known) = role(&handles("INT"));
    with_pod(&job, &known, "r", |shell, pod, _| {
        if shell[0] != "busybox" {
            assert_eq!(signalled(pod.command(shell, 0, same), Signal::SIGINT), Some(7), "{shell:?}");
        }
    });
    let (job, known) = role("echo ready; exec sleep 60");
    with_pod(&job, &known, "r", |shell, pod, _| {
        assert_eq!(signalled(pod.command(shell, 0, same), Signal::SIGTERM), Some(143), "{shell:?}");
    });
}

const WAITING: &str = "umiak: v1\nname: x\nroles:\n  s: {replicas: 2, command: ['true'], ports: {rpc: 1}}\n  \
    t: {command: [echo, started], start_after: {role: s, when: ready}}\n";

/// The script with an address of this host.
fn here(port: u16) -> impl Fn(String) -> String {
    move |script| {
        let host = script.split_whitespace().find(|word| word.contains("-s-")).expect("a host").to_owned();
        let name = host.split("-s-").next().expect("a stem").to_owned();
        let script = script.replace(&format!("{name}-s-\"$umiak_other\".{name}"), "localhost");
        let script = script.replace(&format!("{name}-s-0.{name}"), "localhost");
        script.replace(&format!("{name}-s-1.{name}"), "localhost").replace(" 6170", &format!(" {port}"))
    }
}

#[test]
fn a_role_waits_for_open_ports() {
    let (job, known) = job(WAITING);
    with_pod(&job, &known, "t", |shell, pod, _| {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        let mut child = spawn(pod.command(shell, 0, here(port)));
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("a line");
        assert_eq!(line, format!("umiak: waiting for localhost:{port}\n"), "{shell:?}");
        assert_eq!(child.try_wait().expect("a state"), None, "{shell:?}");
        let _listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n", "{shell:?}");
    });
}

#[test]
fn one_that_waits_ends_at_a_signal() {
    let (job, known) = job(WAITING);
    with_pod(&job, &known, "t", |shell, pod, _| {
        let mut child = spawn(pod.command(shell, 0, here(1)));
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        errors.read_line(&mut String::new()).expect("a line");
        std::thread::sleep(Duration::from_millis(50));
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
        assert_eq!(child.wait().expect("it ends").code(), Some(143), "{shell:?}");
    });
}
