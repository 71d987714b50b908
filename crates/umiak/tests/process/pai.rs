//! Documents of OpenPAI through the real binary.

mod retries;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use umiak_core::diag::Diagnostic;
use umiak_core::formats::document::decode;
use umiak_core::formats::settings::Settings;
use umiak_core::formats::{Given, check};
use umiak_core::model::{Job, MinSucceeded};
use umiak_testkit::components::Component::{Corpus, Netns, Torch};
use umiak_testkit::components::corpus;
use umiak_testkit::net::Network;
use umiak_testkit::sandbox::{Outcome, Running, Sandbox};
use umiak_testkit::suite::Suite;

use crate::frameworks::{example, train, train_on, virtual_environment, watched};

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("pai::documents_of_the_corpus", &[Corpus], documents_of_the_corpus)
        .test("pai::variables", &[], variables)
        .test("pai::one_bash_runs_the_commands", &[], one_bash)
        .test("pai::plugins_run_around_the_commands", &[], plugins)
        .test("pai::attempts_are_counted_anew_after_a_job_retry", &[], attempts)
        .test("pai::directories", &[], directories)
        .test("pai::completion", &[], completion)
        .test("pai::the_decisive_cause", &[], retries::of_the_cause)
        .test("pai::retries_of_jobs", &[], retries::of_jobs)
        .test("pai::retries_of_instances", &[], retries::of_instances)
        .test("pai::retries_after_failures_of_the_platform", &[], retries::of_the_platform)
        .test("pai::a_stopped_job_is_not_repeated", &[], retries::of_a_stop)
        .test("pai::strict", &[], retries::strict)
        .test("pai::secrets_are_nowhere", &[], secrets)
        .test("pai::the_seeds_snippet_trains_by_spawn", &[Torch], trains_by_spawn)
        .test("pai::the_seeds_snippet_trains_by_commands", &[Torch], trains_by_commands)
        .test("pai::the_seeds_interface", &[Torch, Netns], interface);
}

/// Every document, with the shape of its plan or the reason of its refusal.
fn documents_of_the_corpus() {
    let root = corpus().expect("the suite has checked that it is here").join("openpai");
    let mut paths = Vec::new();
    find(&root, &mut paths);
    paths.sort();
    let mut text = String::new();
    for path in paths {
        let name = path.strip_prefix(&root).expect("below the root").display().to_string();
        let source = decode(&name, &std::fs::read(&path).expect("it can be read")).expect("it is a text");
        let checked = check(&source, &Given::new(&[], &Settings::default()));
        let _ = writeln!(text, "{name}");
        match checked.work.as_ref().and_then(|work| work.jobs().next()) {
            Some(job) => text += &shape(job),
            None => checked.diagnostics.iter().for_each(|error| text += &reason(error)),
        }
    }
    insta::with_settings!({ prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("openpai_corpus", text);
    });
}

pub(crate) fn find(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            find(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            paths.push(path);
        }
    }
}

fn shape(job: &Job) -> String {
    let mut text = format!("  job retries {}, gang {}\n", job.policy.restart.max, job.policy.gang);
    for role in &job.roles {
        let resources = role.work.resources;
        let ports = role.work.ports.iter().map(|port| format!("{}:{}", port.name, port.count));
        let never = |count: u32| if count == 0 { "never".to_owned() } else { count.to_string() };
        let succeeded = match role.completion.min_succeeded {
            MinSucceeded::All => "all".to_owned(),
            MinSucceeded::Count(count) => count.to_string(),
            MinSucceeded::Never => "never".to_owned(),
        };
        let _ = writeln!(
            text,
            "  {} × {}, cpu {}, memory {} MiB, gpu {}, ports {}, fails at {}, succeeds at {succeeded}, {} lines",
            role.name,
            role.replicas,
            resources.whole_cpus(),
            resources.memory_bytes.unwrap_or(0) >> 20,
            resources.gpus,
            ports.collect::<Vec<_>>().join(" "),
            never(role.completion.min_failed),
            role.work.command[2].lines().count(),
        );
    }
    text
}

pub(crate) fn reason(error: &Diagnostic) -> String {
    let place = error.labels.first().map(|label| format!("{}:{}: ", label.start.line, label.start.column));
    format!("  refused: {}{}\n", place.unwrap_or_default(), error.message)
}

const HEAD: &str =
    "protocolVersion: 2\nname: job\ntype: job\nprerequisites: [{type: dockerimage, name: i, uri: a/b}]\n";
const NEEDS: &str = "dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 64, gpu: 0}";

fn run(sandbox: &Sandbox, document: &str) -> Outcome {
    sandbox.write("job.yaml", document);
    sandbox.umiak(["run", "job.yaml"]).finish()
}

fn variables() {
    let sandbox = Sandbox::new();
    let ports = "dockerImage: i, resourcePerInstance: {cpu: 2, memoryMB: 64, gpu: 0, ports: {SynPort: 1, two: 2}}";
    let document = format!(
        "{HEAD}jobRetryCount: 0\ntaskRoles:\n  PS_1: {{instances: 2, {ports}, completion: {{minSucceededInstances: -1}}, commands: ['cd $UMIAK_SUBMIT_DIR', 'env -0 > ps.$PAI_TASK_INDEX', 'while [ ! -e w.0 ]; do sleep 0.02; done']}}\n  w: {{{NEEDS}, extraContainerOptions: {{shmMB: 128}}, commands: ['cd $UMIAK_SUBMIT_DIR', 'while [ ! -e ps.1 ]; do sleep 0.02; done', 'env -0 > w.$PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX']}}\ndefaults: {{virtualCluster: vc}}\n"
    );
    run(&sandbox, &document).expect_code(0);
    let read = |name: &str| -> BTreeMap<String, String> {
        let text = sandbox.read(name);
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let (one, other) = (read("ps.1"), read("w.0"));
    // All tasks know the same addresses and ports, by both names of a role.
    let is_shared = |name: &str| {
        ["PAI_HOST_IP_", "PAI_PORT_LIST_", "PAI_TASK_ROLE_", "PAI_PS", "PAI_ps", "PAI_w_"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let shared = |all: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        all.iter().filter(|(name, _)| is_shared(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    assert_eq!(shared(&one), shared(&other));
    for spelling in ["PS_1", "ps1"] {
        let get = |name: String| one.get(&name).unwrap_or_else(|| panic!("no {name}: {one:#?}")).clone();
        let ip = get(format!("PAI_HOST_IP_{spelling}_1"));
        assert_eq!(get("PAI_CONTAINER_HOST_IP".to_owned()), ip);
        let port = get(format!("PAI_{spelling}_1_SynPort_PORT"));
        assert_eq!(get(format!("PAI_PORT_LIST_{spelling}_1_SynPort")), port);
        assert_eq!(get("PAI_CONTAINER_HOST_SynPort_PORT_LIST".to_owned()), port);
        assert!(port.parse::<u16>().is_ok(), "{port}");
        assert_eq!(get(format!("PAI_PORT_LIST_{spelling}_0_two")).split(',').count(), 2);
        let http = get(format!("PAI_PORT_LIST_{spelling}_1_http"));
        assert!(get(format!("PAI_TASK_ROLE_{spelling}_HOST_LIST")).ends_with(&format!(",{ip}:{http}")));
        assert_eq!(get("PAI_CONTAINER_HOST_PORT".to_owned()), http);
    }
    let user = one["PAI_USER_NAME"].clone();
    let own = one["PAI_CONTAINER_HOST_PORT_LIST"].clone();
    assert!(own.starts_with("SynPort:") && own.contains(";two:") && own.ends_with(';'), "{own}");
    for (name, value) in [
        ("PAI_JOB_NAME", format!("{user}~job").as_str()),
        ("PAI_FRAMEWORK_NAME", format!("{user}~job").as_str()),
        ("PAI_VIRTUAL_CLUSTER", "vc"),
        ("PAI_TASK_ROLE_COUNT", "2"),
        ("PAI_TASK_ROLE_LIST", "PS_1,w"),
        ("PAI_JOB_TASK_COUNT", "3"),
        ("PAI_TASK_ROLE_TASK_COUNT_PS_1", "2"),
        ("PAI_RESOURCE_PS_1", "0,2,64,0"),
        ("PAI_RESOURCE_w", "0,1,64,128"),
        ("PAI_MIN_FAILED_TASK_COUNT_PS_1", "1"),
        ("PAI_MIN_SUCCEEDED_TASK_COUNT_PS_1", "-1"),
        ("PAI_MIN_SUCCEEDED_TASK_COUNT_w", "1"),
        ("PAI_TASK_ROLE_INSTANCES", "ps1:0,ps1:1,w:0"),
        ("PAI_CURRENT_TASK_ROLE_NAME", "PS_1"),
        ("PAI_TASK_INDEX", "1"),
        ("PAI_DEFAULT_FS_URI", ""),
        ("UMIAK_SUBMIT_DIR", sandbox.path().to_str().expect("UTF-8")),
        ("FC_FRAMEWORK_ATTEMPT_ID", "0"),
        ("FC_TASKROLE_NAME", "ps1"),
        ("FC_POD_NAME", "job-ps1-1"),
        ("FC_POD_UID", "run-000001-0-ps1-1-0"),
        ("FC_TASK_UID", "run-000001-0-ps1-1"),
        ("FC_TASK_ATTEMPT_INSTANCE_UID", "0_run-000001-0-ps1-1-0"),
        ("FC_FRAMEWORK_ATTEMPT_INSTANCE_UID", "0_run-000001-0"),
        ("NVIDIA_VISIBLE_DEVICES", "none"),
    ] {
        assert_eq!(one.get(name).map(String::as_str), Some(value), "{name}");
    }
}

/// `cd` and `export` last, the first failing command ends the script, and unset variables are errors.
fn one_bash() {
    for (commands, code, out) in [
        ("[cd /, export A=1, 'echo $PWD $A']", 0, "/ 1"),
        ("['false', echo never]", 1, ""),
        ("['echo $NOT_SET_AT_ALL', echo never]", 1, ""),
        ("['(exit 7) | cat', echo never]", 7, ""),
        ("[exit 3]", 3, ""),
        ("['[[ -n ${BASH_VERSION} ]] && echo bash']", 0, "bash"),
    ] {
        let sandbox = Sandbox::new();
        let outcome = run(&sandbox, &format!("{HEAD}taskRoles:\n  w: {{{NEEDS}, commands: {commands}}}\n"));
        outcome.expect_code(code);
        assert!(!outcome.out().contains("never"), "{commands}: {}", outcome.out());
        assert!(outcome.out().contains(out), "{commands}: {}", outcome.out());
    }
}

/// Those after the commands run in reverse order, and only if the commands succeed.
fn plugins() {
    let document = |commands: &str, first: &str| {
        format!(
            "{HEAD}taskRoles:\n  w: {{{NEEDS}, commands: {commands}}}\nextras:\n  com.microsoft.pai.runtimeplugin:\n  - {{plugin: cmd, parameters: {{preCommands: [{first}], postCommands: [echo late]}}}}\n  - {{plugin: cmd, failurePolicy: ignore, parameters: {{preCommands: ['false'], postCommands: [echo post]}}}}\n"
        )
    };
    for (commands, first, code, out) in [
        ("[echo own]", "echo pre", 0, "pre own post late"),
        ("[echo own, exit 5]", "echo pre", 5, "pre own"),
        ("[echo own, exit 0, echo never]", "echo pre", 0, "pre own post late"),
        ("[echo own]", "exit 6", 6, ""),
    ] {
        let sandbox = Sandbox::new();
        let outcome = run(&sandbox, &document(commands, first));
        outcome.expect_code(code);
        assert_eq!(outcome.out().split_whitespace().collect::<Vec<_>>().join(" "), out, "{commands}");
    }
}

/// An instance is restarted alone, then the job fails and starts again: the numbers of instances begin at 0 again, also
/// for a supervisor that takes over.
fn attempts() {
    let sandbox = Sandbox::new();
    let document = format!(
        "{HEAD}jobRetryCount: 1\ntaskRoles:\n  w: {{instances: 2, taskRetryCount: 1, {NEEDS}, commands: ['cd $UMIAK_SUBMIT_DIR', 'echo $FC_FRAMEWORK_ATTEMPT_ID.$FC_TASK_ATTEMPT_ID >> $PAI_TASK_INDEX', '[ $PAI_TASK_INDEX = 0 ] || sleep 60', '[ $(wc -l < 0) -ge 4 ] || exit 1', touch up, sleep 60]}}\nextras: {{gangAllocation: false}}\n"
    );
    sandbox.write("job.yaml", &document);
    let wait = |running: &Running<'_>, first: &str, second: &str| {
        let said =
            |name: &str| sandbox.read_if_there(name).map(|text| String::from_utf8_lossy(&text).replace('\n', " "));
        running.wait_until("both run", || sandbox.path().join("up").exists() && said("1").as_deref() == Some(second));
        assert_eq!(said("0").as_deref(), Some(first));
    };
    let running = sandbox.umiak(["run", "job.yaml"]).start();
    wait(&running, "0.0 0.1 1.0 1.1 ", "0.0 1.0 ");
    running.signal(9);
    running.finish();
    std::fs::remove_file(sandbox.path().join("up")).expect("it was made");
    let resumed = sandbox.umiak(["resume", "1"]).start();
    wait(&resumed, "0.0 0.1 1.0 1.1 1.2 ", "0.0 1.0 1.1 ");
    resumed.signal(15);
    resumed.finish();
}

/// Each attempt of an instance has a directory of its own: what one creates is not there for another. Files of the
/// submitter are there by links.
fn directories() {
    let sandbox = Sandbox::new();
    sandbox.write("train.py", "print('trains')\n");
    let commands = "[mkdir apex, touch apex/$PAI_TASK_INDEX, 'ls apex', '[ $PAI_WORK_DIR = $PWD ]', cat train.py, '[ $FC_FRAMEWORK_ATTEMPT_ID = 1 ]']";
    let document =
        format!("{HEAD}jobRetryCount: 1\ntaskRoles:\n  w: {{instances: 2, {NEEDS}, commands: {commands}}}\n");
    run(&sandbox, &document).expect_code(0);
    assert_eq!(sandbox.list("").iter().filter(|name| *name == "apex").count(), 0, "in the directory of the submitter");
    for index in ["0", "1"] {
        let logs = sandbox.umiak(["logs", "--attempt", "2", "job", &format!("w-{index}")]).finish();
        assert_eq!(logs.out().split_whitespace().filter(|word| *word == index).count(), 1, "{}", logs.out());
        logs.expect_out("trains");
        assert!(
            sandbox.path().join(format!("state/runs/run-000001/tasks/w-{index}/attempt-2/work/apex/{index}")).exists()
        );
    }
}

/// The rules of completion, each with a job of its own.
fn completion() {
    let (stays, ends, fails) = ("[sleep 60]", "['true']", "[exit 9]");
    let role = |name: &str, instances: u32, completion: &str, commands: &str| {
        format!("  {name}: {{instances: {instances}, {NEEDS}, completion: {{{completion}}}, commands: {commands}}}\n")
    };
    let by_index = "['exit $PAI_TASK_INDEX']";
    let waits = "['[ $PAI_TASK_INDEX = 0 ] || sleep 60']";
    for (what, roles, code) in [
        ("the first role to succeed ends the job", role("a", 2, "", ends) + &role("b", 1, "", stays), 0),
        ("a role that must not decide", role("a", 1, "minSucceededInstances: -1", ends) + &role("b", 1, "", fails), 1),
        ("one failure is enough", role("a", 2, "", waits) + &role("b", 1, "", fails), 1),
        ("null and 0 are the defaults", role("a", 1, "minFailedInstances: 0, minSucceededInstances: null", fails), 9),
        ("one success is enough", role("a", 2, "minSucceededInstances: 1", waits), 0),
        ("failures below the number", role("a", 2, "minFailedInstances: 2", by_index), 0),
        ("failures never count, one succeeds", role("a", 2, "minFailedInstances: -1", by_index), 0),
        ("all have failed, which never counts", role("a", 2, "minFailedInstances: -1", fails), 9),
        ("success is never reached, all end", role("a", 1, "minSucceededInstances: 5", ends), 0),
    ] {
        let sandbox = Sandbox::new();
        let outcome = run(&sandbox, &format!("{HEAD}taskRoles:\n{roles}"));
        assert_eq!(outcome.code(), code, "{what}\n{}", outcome.err());
    }
}

fn secrets() {
    const SECRET: &str = "correct-horse-battery-staple-42";
    let sandbox = Sandbox::new();
    let document = format!(
        "{HEAD}secrets: {{token: {SECRET}}}\ntaskRoles:\n  w: {{{NEEDS}, commands: ['T=<% $secrets.token %>', 'echo ${{#T}}', 'cd $UMIAK_SUBMIT_DIR', touch up, 'while [ ! -e let ]; do sleep 0.02; done']}}\n"
    );
    sandbox.write("job.yaml", &document);
    let running = sandbox.umiak(["run", "job.yaml"]).start();
    running.wait_for_file("up");
    let lines = std::fs::read_dir("/proc").expect("it can be read").flatten();
    let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let shown = lines.filter(|line| String::from_utf8_lossy(line).contains(SECRET)).count();
    assert_eq!(shown, 0, "in the list of processes");
    sandbox.write("let", "");
    let outcome = running.finish();
    outcome.expect_code(0).expect_out(&SECRET.len().to_string());
    assert!(!outcome.err().contains(SECRET) && !outcome.out().contains(SECRET));
    std::fs::remove_file(sandbox.path().join("job.yaml")).expect("it was written");
    let grep = sandbox.program(Path::new("grep"), ["-rl", SECRET, "."]).finish();
    assert_eq!(grep.out(), "", "in files");
    for command in ["show", "explain", "ls"] {
        let outcome = sandbox.umiak([command]).finish();
        assert!(!outcome.out().contains(SECRET) && !outcome.err().contains(SECRET), "{command}");
    }
}

/// Two instances with two processes each, as in the seed: address and port of the first instance by its variables.
fn trains_by_commands() {
    let one = "python3 ddp.py -n 2 -g 2";
    let document = training(&format!("{one} --local 1 & p=$!; {one} --local 0; wait $p"));
    let outcome = watched(|| train(&with_script(&document), &["run", "job.yaml"]));
    outcome.expect_code(0).expect_out("4 processes: loss").expect_out("the same weights everywhere");
}

/// The same by `mp.spawn`: the example that the guide names, from the directory that it expects.
fn trains_by_spawn() {
    let path = format!("{}:{}", virtual_environment().join("bin").display(), std::env::var("PATH").expect("a path"));
    let outcome = watched(|| {
        let sandbox = Sandbox::new();
        std::os::unix::fs::symlink(example(""), sandbox.path().join("examples")).expect("the sandbox can be written");
        train_on(None, &sandbox, &["run", "examples/jobs/openpai.yaml", "-p", "steps=10"], &[("PATH", &path)])
    });
    outcome.expect_code(0).expect_out("4 processes: loss").expect_out("the same weights everywhere");
}

fn training(command: &str) -> String {
    let python = virtual_environment().join("bin");
    format!(
        "{HEAD}taskRoles:\n  worker:\n    instances: 2\n    dockerImage: i\n    resourcePerInstance: {{cpu: 1, memoryMB: 4096, gpu: 0, ports: {{SynPort: 1}}}}\n    commands:\n    - export PATH={}:$PATH OMP_NUM_THREADS=1\n    - {command}\n",
        python.display()
    )
}

fn with_script(document: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("ddp.py", std::fs::read_to_string(example("openpai_ddp.py")).expect("an example"));
    sandbox.write("job.yaml", document);
    sandbox
}

/// The seed exports `GLOO_SOCKET_IFNAME=eth0`: it trains where there is such an interface. Elsewhere the failure names
/// the variable and the interfaces, whether the commands set it or the caller.
fn interface() {
    let network = Network::new(1);
    let host = network.host(0);
    let exported = training("export GLOO_SOCKET_IFNAME=eth0\n    - python3 ddp.py -n 2 -g 1 --steps 3");
    let outcome = watched(|| {
        let sandbox = with_script(&exported);
        train_on(Some(host), &sandbox, &["run", "job.yaml"], &[])
    });
    outcome.expect_code(0).expect_out("the same weights everywhere");
    for words in [
        ["link", "set", "eth0", "down"].as_slice(),
        &["link", "set", "eth0", "name", "ens5"],
        &["link", "set", "ens5", "up"],
    ] {
        assert!(host.command("ip").args(words).status().expect("it runs").success(), "{words:?}");
    }
    let inherited = training("python3 ddp.py -n 2 -g 1 --steps 3");
    for (document, env) in [(&exported, [].as_slice()), (&inherited, &[("GLOO_SOCKET_IFNAME", "lo,eth0")])] {
        let sandbox = with_script(document);
        let outcome = train_on(Some(host), &sandbox, &["run", "job.yaml"], env);
        let hint = "`GLOO_SOCKET_IFNAME` names `eth0`, but this host has `lo`, `ens5`: name an interface that is there";
        outcome.expect_code(1).expect_err(hint);
        sandbox.umiak(["explain", "1"]).finish().expect_out(hint);
    }
}
