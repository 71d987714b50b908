//! What all schedulers do alike.

use std::os::unix::fs::PermissionsExt as _;

use umiak_testkit::components::{Component, trials};
use umiak_testkit::suite::Suite;

use super::{Engine, Site};
use crate::frameworks::virtual_environment;

pub(super) fn register(suite: &mut Suite) {
    let mut test = |engines: &[Engine], name: &str, more: &[Component], run: fn(&Site)| {
        for engine in engines.iter().copied() {
            let needs: Vec<Component> = [engine.needs()].iter().chain(more).copied().collect();
            let title = engine.needs().name();
            suite.test(&format!("{title}: {name}"), &needs, move || run(&Site::new(engine)));
        }
    };
    let all = [Engine::USUAL, Engine::OTHERS].concat();
    test(&all, "trainers know each other", &[], trainers);
    test(&all, "the rank that fails is named, and the others stop", &[], failure);
    test(&Engine::OTHERS, "very short replicas do not hang", &[], |site| short(site, 1));
    let usual = Engine::USUAL;
    test(&usual, "servers, then trainers", &[], servers);
    test(&usual, "restarts keep the allocation", &[], restart);
    test(&usual, "a job of OpenPAI with two roles", &[], pai);
    test(&usual, "a pipeline of PaddleFlow", &[], paddleflow);
    test(&usual, "a restart after SIGKILL keeps the allocation", &[], stubborn);
    test(&usual, "words and variables arrive unchanged", &[Component::Python], unchanged);
    test(&usual, "64 replicas, again and again", &[], many);
    test(&usual, "very short replicas do not hang", &[], |site| short(site, trials(50).div_ceil(10)));
    test(&usual, "processes that a replica left are stopped", &[], left);
    test(&usual, "a killed agent is a lost replica, not a hang", &[], killed_agent);
    test(&usual, "real torch trains on two nodes", &[Component::Torch], torch);
    test(&[Engine::Mpi], "a step has a launcher of its own", &[], own_launcher);
}

/// Fails unless replicas 0 and 1 of four said that they are on one node, and the others on another.
fn expect_two_nodes(site: &Site, nodes: &[String]) {
    let expected: &[&str] =
        if site.engine == Engine::Slurm { &["n1", "n1", "n2", "n2"] } else { &["a", "a", "b", "b"] };
    assert_eq!(nodes, expected);
}

const SHOW: &str = r#"umiak: v1
name: show
contracts: [torch, paddle]
roles:
  trainer:
    replicas: 4
    command: echo "$RANK/$WORLD_SIZE $PADDLE_TRAINER_ID/$PADDLE_TRAINERS_NUM $MASTER_ADDR:$MASTER_PORT $PADDLE_TRAINER_ENDPOINTS $PADDLE_CURRENT_ENDPOINT ${SLURMD_NODENAME-$TEST_MPI_HOST}"
"#;

fn trainers(site: &Site) {
    let outcome = site.run_with(SHOW, &site.two_by_two()).finish();
    outcome.expect_code(0).expect_err("finished 4 replicas");
    let lines: Vec<String> = (0..4).map(|rank| site.log(&format!("trainer-{rank}"), 1)).collect();
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    for (rank, words) in words.iter().enumerate() {
        assert_eq!(words[..2], [format!("{rank}/4"), format!("{rank}/4")], "{lines:?}");
        let endpoints: Vec<&str> = words[3].split(',').collect();
        assert_eq!((endpoints.len(), endpoints[rank]), (4, words[4]), "its own endpoint is in the list at its rank");
    }
    assert!(words.iter().all(|other| other[2..4] == words[0][2..4]), "all have the same lists: {lines:?}");
    expect_two_nodes(site, &words.iter().map(|words| words[5].to_owned()).collect::<Vec<_>>());
    site.assert_nothing_left();
}

const SERVERS: &str = r#"umiak: v1
name: ps
roles:
  pserver:
    replicas: 2
    ports: {rpc: 1}
    completes: false
    command: [python3, -c, "import os, socket, time\ns = socket.socket()\ns.bind(('', int(os.environ['UMIAK_PORT_RPC'])))\ns.listen()\ntime.sleep(1000)"]
  trainer:
    replicas: 2
    start_after: pserver
    command: [python3, -c, "import os, socket\nfor at in os.environ['UMIAK_ENDPOINTS_PSERVER_RPC'].split(','):\n    host, port = at.rsplit(':', 1)\n    socket.create_connection((host, int(port)), 10).close()\nprint('connected to all')"]
"#;

fn servers(site: &Site) {
    site.run(SERVERS).finish().expect_code(0);
    for trainer in ["trainer-0", "trainer-1"] {
        assert_eq!(site.log(trainer, 1), "connected to all\n");
    }
    site.assert_nothing_left();
}

fn failure(site: &Site) {
    let document = "umiak: v1\nname: fail\ncontracts: [torch]\nroles:\n  trainer:\n    replicas: 4\n    command: 'echo up; if [ $RANK = 2 ]; then sleep 0.3; echo \"ValueError: bad sample\" >&2; exit 7; fi; sleep 1000'\n";
    let outcome = site.run(document).finish();
    outcome
        .expect_code(7)
        .expect_err("✗ trainer-2 on ")
        .expect_err("exited with 7")
        .expect_err("ValueError: bad sample");
    outcome.expect_err("stopped by us");
    site.assert_nothing_left();
}

fn restart(site: &Site) {
    let document = "umiak: v1\nname: again\npolicy: {restarts: 2, backoff: 10ms}\ncontracts: [torch]\nroles:\n  trainer:\n    replicas: 3\n    command: 'echo attempt $UMIAK_ATTEMPT; if [ $RANK = 1 ] && [ $UMIAK_ATTEMPT -lt 3 ]; then exit 5; fi; sleep 0.2'\n";
    site.run(document).finish().expect_code(0);
    for attempt in 1..=3 {
        assert_eq!(site.log("trainer-1", attempt), format!("attempt {attempt}\n"));
    }
    assert_eq!(site.sandbox.list("state/runs/run-000001/units"), ["0.1"], "one allocation for all attempts");
    site.assert_nothing_left();
}

/// The workers end the job, and know where the servers are.
fn pai(site: &Site) {
    let role = "dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 64, gpu: 0, ports: {rpc: 1}}";
    let document = format!(
        "protocolVersion: 2\nname: job\ntype: job\nprerequisites: [{{type: dockerimage, name: i, uri: a/b}}]\njobRetryCount: 0\ntaskRoles:\n  ps: {{instances: 2, {role}, completion: {{minSucceededInstances: -1}}, commands: ['exec sleep 1000']}}\n  w: {{instances: 2, {role}, commands: ['echo $PAI_TASK_INDEX $PAI_HOST_IP_ps_1:$PAI_PORT_LIST_ps_1_rpc']}}\n"
    );
    site.run(&document).finish().expect_code(0);
    let lines: Vec<String> = (0..2).map(|index| site.log(&format!("w-{index}"), 1)).collect();
    for (index, line) in lines.iter().enumerate() {
        let (own, at) = line.trim_end().split_once(' ').unwrap_or_else(|| panic!("{lines:?}"));
        let port =
            at.rsplit_once(':').and_then(|(host, port)| Some((!host.is_empty()).then_some(port)?.parse::<u16>()));
        assert!(own == index.to_string() && port.is_some_and(|port| port.is_ok()), "{lines:?}");
    }
    site.assert_nothing_left();
}

/// All steps are on the engine.
fn paddleflow(site: &Site) {
    let document = "name: flow\nentry_points:\n  prepare: {command: 'echo 7 > data'}\n  train: {deps: prepare, command: 'echo trained with $(cat data) of {{PF_STEP_NAME}}'}\n";
    site.run(document).finish().expect_code(0);
    assert_eq!(site.log("train/main-0", 1), "trained with 7 of train\n");
    site.assert_nothing_left();
}

/// The second attempt lives longer than a unit would whose agents do not kill.
fn stubborn(site: &Site) {
    let command = "trap '' TERM; echo attempt $UMIAK_ATTEMPT; if [ $UMIAK_ATTEMPT = 2 ]; then sleep 7; exit 0; fi; [ $RANK = 1 ] && exit 5; while :; do sleep 0.1; done";
    let document = format!(
        "umiak: v1\nname: stubborn\npolicy: {{restarts: 1, backoff: 10ms, grace: 300ms}}\ncontracts: [torch]\nroles: {{trainer: {{replicas: 2, command: {}}}}}\n",
        serde_json::to_string(command).expect("a string")
    );
    site.run(&document).finish().expect_code(0);
    for replica in ["trainer-0", "trainer-1"] {
        assert_eq!([site.log(replica, 1), site.log(replica, 2)], ["attempt 1\n", "attempt 2\n"]);
    }
    assert_eq!(site.sandbox.list("state/runs/run-000001/units"), ["0.1"], "one allocation for all attempts");
    site.assert_nothing_left();
}

/// Hard words for shells, schedulers and JSON.
const HARD: [&str; 12] = [
    "plain",
    "two words",
    "it's \"quoted\"",
    "$HOME `id` $(id) \\ \\n",
    "line one\nline two\n",
    "tab\there",
    "ünïcödé 训练 🚣",
    "* ? [a-z] {a,b} ~",
    "; & | < > ( ) # !",
    "%t %j %% %",
    ":",
    "-np",
];

/// Every character that an argument of a program and a document can have.
const CONTROLS: &str = "\u{1}\u{7}\u{8}\u{b}\u{c}\r\u{e}\u{1b}[31m\u{1f}\u{7f}\u{85}\u{2028}\u{feff}\u{10ffff}";
/// For names of jobs: a `/` is refused.
const HARD_NAME: &str = "it's a \"job\" $HOME `id` 100%j %t \\ 训练 é";
/// For directories.
const HARD_PATH: &str = "it's 100%j \"$HOME\" `id` * [a]\n启动 é %t";

fn unchanged(site: &Site) {
    let seed = fastrand::u64(..);
    let random = random_words(seed);
    let hard = HARD.iter().copied().chain([CONTROLS]).map(str::to_owned);
    let all: Vec<String> = hard.chain(random).collect();
    let program = "import json, os, sys\njson.dump([sys.argv[1:], os.environ['HARD'], os.getcwd()], sys.stdout)";
    let words: Vec<String> = all.iter().map(|word| quoted(word)).collect();
    let directory = format!("{HARD_PATH} of the role");
    let document = format!(
        "umiak: v1\nname: {}\nroles:\n  trainer:\n    replicas: 2\n    dir: {}\n    env: {{HARD: {}}}\n    command: [python3, -c, {}, {}]\n",
        quoted(HARD_NAME),
        quoted(&directory),
        quoted(&all.concat()),
        quoted(program),
        words.join(", ")
    );
    let working = site.sandbox.path().join(format!("{HARD_PATH} of the job"));
    std::fs::create_dir_all(working.join(&directory)).expect("the sandbox can be written");
    let home = site.sandbox.path().join(format!("{HARD_PATH} of umiak"));
    let run = site.run(&document).current_dir(&working).env("UMIAK_HOME", &home);
    std::fs::rename(site.sandbox.path().join("job.yaml"), working.join("job.yaml"))
        .expect("the sandbox can be written");
    let outcome = run.finish();
    assert!(outcome.status.success(), "seed {seed}: {}", outcome.err());
    for replica in ["trainer-0", "trainer-1"] {
        let log = home.join("runs/run-000001/tasks").join(replica).join("attempt-1/log");
        let text = std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let seen: (Vec<String>, String, String) =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}: {text}"));
        assert_eq!(seen, (all.clone(), all.concat(), working.join(&directory).display().to_string()), "seed {seed}");
    }
    assert!(!home.join("runs/run-000001/units/0.1/unit.json").exists(), "secrets are left");
    site.assert_nothing_left();
}

/// For YAML, which has some characters only with an escape.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| !letter.is_control() && !"\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}".contains(letter);
    let letter = |letter: char| match letter {
        '"' | '\\' => format!("\\{letter}"),
        _ if is_plain(letter) => letter.to_string(),
        _ => format!("\\U{:08X}", u32::from(letter)),
    };
    format!("\"{}\"", text.chars().map(letter).collect::<String>())
}

/// Words of random characters, without NUL.
fn random_words(seed: u64) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut character = || match random.u32(0..4) {
        0 => random.char('\u{1}'..='\u{7f}'),
        1 => *random.choice(&['\'', '"', '$', '\\', '`', ' ', '\n', '\r', '\t', '%', '*', '\u{1b}']).expect("some"),
        _ => random.char('\u{1}'..),
    };
    let lengths: Vec<usize> = (0..trials(50)).map(|number| 1 + (number * 7) % 39).collect();
    lengths.iter().map(|length| (0..*length).map(|_| character()).collect()).collect()
}

fn many(site: &Site) {
    let document = "umiak: v1\nname: many\ncontracts: [torch]\nroles: {trainer: {replicas: 64, command: 'echo $RANK of $WORLD_SIZE'}}\n";
    let runs = trials(50).min(20);
    for _ in 0..runs {
        let run = site.run(document).finish();
        run.expect_code(0).expect_err("finished 64 replicas");
    }
    for run in 1..=runs {
        for rank in 0..64 {
            let log = site.log_of(run, &format!("trainer-{rank}"), 1);
            assert_eq!(log, format!("{rank} of 64\n"), "rank {rank} in run {run}");
        }
    }
    site.assert_nothing_left();
}

/// Open MPI 4.1 hangs if many of its processes exit at once: agents stay until all are told to go.
fn short(site: &Site, runs: usize) {
    let document = "umiak: v1\nname: short\nroles: {trainer: {replicas: 64, command: ['true']}}\n";
    for _ in 0..runs {
        site.run(document).finish().expect_code(0);
    }
    site.assert_nothing_left();
}

fn left(site: &Site) {
    let document = "umiak: v1\nname: left\nroles: {trainer: {replicas: 2, command: 'setsid sleep 1000 & exit 0'}}\n";
    site.run(document).finish().expect_code(0);
    site.assert_nothing_left();
}

fn killed_agent(site: &Site) {
    let document = "umiak: v1\nname: killed\npolicy: {restarts: {max: 0, max_platform: 0}}\nroles: {trainer: {replicas: 2, command: 'echo up; sleep 1000'}}\n";
    let running = site.run(document).start();
    running.wait_until("both run", || (0..2).all(|rank| site.log(&format!("trainer-{rank}"), 1) == "up\n"));
    let agents: Vec<u32> = site
        .sandbox
        .processes()
        .into_iter()
        .filter(|(_, line)| line.contains(" agent ") && !line.contains("srun") && !line.contains("mpirun"))
        .map(|(pid, _)| pid)
        .collect();
    let victim = agents.first().expect("an agent");
    std::process::Command::new("kill").args(["-9", &victim.to_string()]).status().expect("kill can be started");
    let outcome = running.finish();
    // One replica, that of the agent; the other one is stopped because of it.
    outcome.expect_err("was lost");
    assert_ne!(outcome.code(), 0, "{}", outcome.err());
    site.assert_nothing_left();
}

/// The run is on this host, and `umiak.toml` names the launcher of the step.
fn own_launcher(site: &Site) {
    let used = site.sandbox.path().join("used");
    let launcher =
        site.sandbox.write("my-mpirun", format!("#!/bin/sh\n: > '{}'\nexec mpirun \"$@\"\n", used.display()));
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    site.sandbox.write("umiak.toml", format!("[engine.mine]\nkind = \"mpi\"\nlauncher = \"{}\"\n", launcher.display()));
    let document = "umiak: v1\nname: steps\nsteps:\n  first: {command: 'echo here'}\n  train: {after: [first], engine: mine, command: 'echo $OMPI_COMM_WORLD_RANK'}\n";
    site.sandbox.write("job.yaml", document);
    site.umiak("run job.yaml").finish().expect_code(0);
    assert!(used.exists(), "another launcher was used");
    assert_eq!(site.sandbox.read("state/runs/run-000001/tasks/train/main-0/attempt-1/log"), "0\n");
    site.assert_nothing_left();
}

const TRAIN: &str = r"import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(7)
torch.set_num_threads(1)
dist.init_process_group('gloo')
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(30):
    inputs = torch.randn(16, 4, generator=generator)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = torch.tensor([loss.item()])
dist.all_reduce(total)
assert total.item() / dist.get_world_size() < 0.5, total
weights = [torch.empty_like(model.module.weight) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.data)
assert all(torch.equal(weights[0], other) for other in weights)
print(f'trained {dist.get_rank()} of {dist.get_world_size()} on', os.environ[os.environ['NODE']], flush=True)
dist.destroy_process_group()
# Torch 2.15 sometimes aborts when the interpreter exits, under any launcher.
os._exit(0)
";

fn torch(site: &Site) {
    let python = virtual_environment().join("bin/python");
    site.sandbox.write("train.py", TRAIN);
    let document = format!(
        "umiak: v1\nname: ddp\ncontracts: [torch]\nroles: {{trainer: {{replicas: 4, env: {{TORCHINDUCTOR_CACHE_DIR: cache, NODE: {}}}, command: ['{}', train.py]}}}}\n",
        site.engine.node_variable(),
        python.display()
    );
    site.run_with(&document, &site.two_by_two()).finish().expect_code(0);
    let logs: Vec<String> = (0..4).map(|rank| site.log(&format!("trainer-{rank}"), 1)).collect();
    let node = |(rank, log): (usize, &String)| {
        let node = log.trim_end().strip_prefix(&format!("trained {rank} of 4 on "));
        node.unwrap_or_else(|| panic!("{logs:?}")).to_owned()
    };
    expect_two_nodes(site, &logs.iter().enumerate().map(node).collect::<Vec<_>>());
    site.assert_nothing_left();
}
