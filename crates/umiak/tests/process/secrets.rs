//! Secrets go in everywhere, and nothing that umiak writes or prints contains them. The logs of replicas are their own.

use std::fs;
use std::path::Path;

use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("secrets::launch_writes_none", &[], launch)
        .test("secrets::of_umiak_are_not_in_any_environment", &[], of_umiak)
        .test("secrets::only_lines_of_shells_are_passed_in_memory", &[], only_shells)
        .test("secrets::documents_leave_none", &[], document)
        .test("secrets::snippets_show_none", &[], snippets)
        .test("secrets::stacks_show_none", &[], stacks)
        .test("secrets::sentences_of_umiak_stay_readable", &[], sentences)
        .test("secrets::keys_of_several_lines_are_masked", &[], lines)
        .test("secrets::harmless_names_stay_readable", &[], harmless);
}

/// Secrets of this trial, in turn.
struct Vault {
    made: Vec<String>,
}

impl Vault {
    fn new() -> Self {
        Self { made: Vec::new() }
    }

    fn secret(&mut self) -> String {
        let letters = std::iter::repeat_with(fastrand::alphanumeric).take(12);
        self.made.push(letters.collect());
        self.made.last().expect("just pushed").clone()
    }

    /// Variables with secrets, by their names and in their values.
    fn variables(&mut self) -> Vec<(String, String)> {
        let names = [
            "HF_TOKEN",
            "PASSPHRASE",
            "DBPASS",
            "JWT",
            "BEARER",
            "OAUTH",
            "GITHUB_PAT",
            "AUTHORIZATION",
            "PRIVATEKEY",
            "ACCESSKEYID",
            "AZURE_SAS",
            "WANDB_API_KEY",
        ];
        let mut all: Vec<(String, String)> = names.map(|name| (name.to_owned(), self.secret())).to_vec();
        for (name, value) in [
            ("DATABASE_URL", "postgres://li:{}@db/x"),
            ("PIP_INDEX_URL", "https://{}@pypi.example/simple"),
            ("CONNECTION", "Server=h;User=li;Password={};Port=1"),
            ("HEADERS", "Authorization: Bearer {}"),
            ("EXTRA_ARGS", "--lr 1 --password {}"),
            ("http_proxy", "http://li:{}@proxy:80"),
        ] {
            all.push((name.to_owned(), value.replace("{}", &self.secret())));
        }
        all
    }

    fn arguments(&mut self) -> Vec<String> {
        let forms = [
            "--password={}",
            "--url=https://{}@h/x",
            "--db=Server=h;Password={};",
            "--auth-token={}",
            "li:{}@10.0.0.9",
        ];
        let mut all: Vec<String> = forms.map(|form| form.replace("{}", &self.secret())).to_vec();
        all.extend(["--passphrase".to_owned(), self.secret()]);
        all
    }

    #[track_caller]
    fn check(&self, what: &str, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        for secret in &self.made {
            if let Some(at) = text.find(secret.as_str()) {
                let line = text[..at].rfind('\n').map_or(0, |at| at + 1);
                panic!("{what} has a secret: {}", &text[line..at + secret.len()]);
            }
        }
    }

    #[track_caller]
    fn check_output(&self, what: &str, outcome: &Outcome) {
        self.check(&format!("stderr of {what}"), &outcome.stderr);
        self.check(&format!("stdout of {what}"), &outcome.stdout);
    }

    /// Checks all files below, except for the logs of replicas.
    fn check_files(&self, directory: &Path) -> usize {
        let mut count = 0;
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                count += self.check_files(&path);
            } else if !name.starts_with("workerlog.") && name != "log" {
                self.check(&path.display().to_string(), &fs::read(&path).unwrap_or_default());
                count += 1;
            }
        }
        count
    }
}

/// The token and the password of etcd are for umiak: ranks do not get them, and no process shows them once it runs.
fn of_umiak() {
    let mut vault = Vault::new();
    let sandbox = Sandbox::new();
    let run = ["UMIAK_TOKEN", "UMIAK_ETCD_PASSWORD"].into_iter().fold(
        sandbox.launch_toy("--nproc_per_node 1", &["*:env UMIAK_ETCD_PASSWORD;env UMIAK_TOKEN;touch up;await go"]),
        |run, name| run.env(name, vault.secret()),
    );
    let run = run.start();
    run.wait_for_file("up");
    let processes = sandbox.processes();
    // The front, the guardian and the rank.
    assert!(processes.len() >= 3, "{processes:?}");
    for (pid, name) in processes {
        vault.check(&name, &fs::read(format!("/proc/{pid}/environ")).unwrap_or_default());
    }
    sandbox.write("go", "");
    let outcome = run.finish();
    outcome.expect_code(0);
    vault.check_output("a launch", &outcome);
    vault.check("a rank", sandbox.read("log/workerlog.0").as_bytes());
    vault.check_files(&sandbox.path().join("log"));
    vault.check_files(&sandbox.path().join("state"));
}

/// Prints everything that it was given, and fails with all of it in its error.
const SCRIPT: &str = "import os, sys\n\
for name, value in os.environ.items():\n    print(name, value)\n\
print(sys.argv)\n\
secrets = ' '.join(value for name, value in os.environ.items() if name in os.environ['SHOWN'].split())\n\
raise RuntimeError('cannot log in with ' + secrets + ' ' + ' '.join(sys.argv[1:]))\n";

fn launch() {
    let mut vault = Vault::new();
    let (variables, arguments) = (vault.variables(), vault.arguments());
    let names: Vec<&str> =
        variables.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "http_proxy").collect();
    for mode in ["human", "json"] {
        let sandbox = Sandbox::new();
        sandbox.write("train.py", SCRIPT);
        let log = sandbox.path().join("umiak.log");
        let umiak = |line: &str, rest: &[String]| {
            let words = line.split_whitespace().map(str::to_owned).chain(rest.iter().cloned());
            let run = sandbox
                .umiak(words)
                .env("UMIAK_LOG", "trace")
                .env("UMIAK_LOG_FILE", &log)
                .env("SHOWN", names.join(" "));
            variables.iter().fold(run, |run, (name, value)| run.env(name, value))
        };
        let line = format!("launch --nproc_per_node 2 --output {mode} --show none train.py");
        let outcome = umiak(&line, &arguments).finish();
        outcome.expect_code(1);
        vault.check_output(mode, &outcome);
        assert!(format!("{}{}", outcome.out(), outcome.err()).contains("cannot log in with"), "{}", outcome.err());
        for dry in ["launch --dry-run --nproc_per_node 2 train.py", "launch --dry-run --output json train.py"] {
            let outcome = umiak(dry, &arguments).finish();
            outcome.expect_code(0);
            vault.check_output(dry, &outcome);
        }
        // Refused: the message shows what was given.
        let refused = [
            ("launch --nproc_per_node x:y train.py", 2),
            ("launch --no-such-flag train.py", 2),
            ("launch missing.py", 127),
        ];
        for (wrong, code) in refused {
            let outcome = umiak(wrong, &arguments).finish();
            outcome.expect_code(code);
            vault.check_output(wrong, &outcome);
        }
        for command in
            ["show", "events", "events --output json", "explain", "explain --output json", "ls", "ls --output json"]
        {
            // Without the variables: what is recorded is masked.
            let outcome = sandbox.umiak(command.split_whitespace()).finish();
            outcome.expect_code(0);
            vault.check_output(command, &outcome);
        }
        let count = vault.check_files(&sandbox.path().join("log")) + vault.check_files(&sandbox.path().join("state"));
        assert!(count >= 5, "only {count} files");
        vault.check("the diagnostic log", &fs::read(&log).expect("a log"));
        // One of them may have been stopped before it wrote anything.
        let logs = ["log/workerlog.0", "log/workerlog.1"].map(|log| sandbox.read(log)).concat();
        assert!(logs.contains(&vault.made[0]), "the ranks' own logs are untouched");
    }
}

fn document() {
    let mut vault = Vault::new();
    let (variables, arguments) = (vault.variables(), vault.arguments());
    let (param, in_role, label) = (vault.secret(), vault.secret(), vault.secret());
    let sandbox = Sandbox::new();
    sandbox.write("train.py", SCRIPT);
    let words: Vec<String> = arguments.iter().map(|word| format!("{word:?}")).collect();
    sandbox.write(
        "job.yaml",
        format!(
            "umiak: v1\nname: vault\nlabels: {{api_token: {label}}}\nparams: {{db_password: none}}\nroles:\n  trainer:\n    command: [python3, train.py, {}, \"{{{{db_password}}}}\"]\n    env: {{ROLE_SECRET: {in_role}, OTHER: \"https://{in_role}@h/\"}}\n",
            words.join(", ")
        ),
    );
    let umiak = |line: &str| {
        let run = sandbox.umiak(line.split_whitespace().map(str::to_owned));
        let run = run.env("SHOWN", "HF_TOKEN DATABASE_URL CONNECTION ROLE_SECRET OTHER PASSPHRASE");
        variables.iter().fold(run, |run, (name, value)| run.env(name, value))
    };
    for line in ["plan", "plan --output json", "lint", "run --dry-run"] {
        let (command, flags) = line.split_once(' ').unwrap_or((line, ""));
        let param = if command == "lint" { String::new() } else { format!("-p db_password={param}") };
        let outcome = umiak(&format!("{command} job.yaml {flags} {param}")).finish();
        outcome.expect_code(0);
        vault.check_output(line, &outcome);
    }
    for mode in ["human", "json"] {
        let outcome = umiak(&format!("run job.yaml --show none --output {mode} -p db_password={param}")).finish();
        outcome.expect_code(1);
        vault.check_output(mode, &outcome);
    }
    umiak(&format!("run -d job.yaml -p db_password={param}")).start().finish_unchecked().expect_code(0);
    vault.check_output("wait", &umiak("wait 3").start().finish_unchecked());
    for command in ["show 1", "events 1", "explain 1", "explain 1 --output json", "ls --output json", "show 3"] {
        let outcome = sandbox.umiak(command.split_whitespace()).finish();
        outcome.expect_code(0);
        vault.check_output(command, &outcome);
    }
    assert!(vault.check_files(&sandbox.path().join("state")) > 15);
    let log = sandbox.read("state/runs/run-000001/tasks/trainer-0/attempt-1/log");
    assert!(log.contains(&param), "the replica's own log is untouched");
}

/// Rank 1 waits in a file whose name is a secret, until rank 0 fails with a time-out.
const WAITING: &str = "\
import importlib, os, sys, time

if os.environ['PADDLE_TRAINER_ID'] == '1':
    importlib.import_module(sys.argv[2])
while not os.path.exists('go'):
    time.sleep(0.01)
raise TimeoutError('timed out')
";

fn stacks() {
    let mut vault = Vault::new();
    let secret = vault.secret();
    let sandbox = Sandbox::new();
    sandbox.write("train.py", WAITING);
    let waits = "import time\nopen('up', 'w').close()\nwhile True:\n    time.sleep(0.01)\n";
    sandbox.write(&format!("{secret}.py"), waits);
    let words = "launch --nproc_per_node 2 --show none train.py --password".split(' ');
    let running = sandbox.umiak(words.chain([secret.as_str()])).start();
    running.wait_for_file("up");
    // Without the command line: the supervisor has masked its answer.
    for command in ["stacks", "stacks --output json"] {
        let outcome = sandbox.umiak(command.split(' ')).start().finish_unchecked();
        outcome.expect_code(0).expect_out("***.py");
        vault.check_output(command, &outcome);
    }
    sandbox.write("go", "");
    let outcome = running.finish();
    outcome.expect_code(1);
    vault.check_output("launch", &outcome);
    for command in ["explain --output json", "events --output json"] {
        let outcome = sandbox.umiak(command.split(' ')).finish();
        outcome.expect_code(0).expect_out("***.py");
        vault.check_output(command, &outcome);
    }
    assert!(vault.check_files(&sandbox.path().join("state")) > 0);
}

fn snippets() {
    let mut vault = Vault::new();
    let sandbox = Sandbox::new();
    let (one, two, three) = (vault.secret(), vault.secret(), vault.secret());
    sandbox.write(
        "job.yaml",
        format!(
            "umiak: v1\nroles:\n  a: {{command: [x], env: {{DB_PASSWORD: {one}, DB_PASSWORD: {one}}}, token: {two}, url: \"https://{three}@h\"}}\n"
        ),
    );
    for line in ["lint job.yaml", "lint job.yaml --output json", "run job.yaml", "run job.yaml --output json"] {
        let outcome = sandbox.umiak(line.split_whitespace()).finish();
        outcome.expect_code(2);
        vault.check_output(line, &outcome);
    }
}

/// Secrets that are words of umiak, or parts of its paths: masked in what ranks say, not in what umiak says.
fn sentences() {
    let sandbox = Sandbox::new();
    sandbox.write("train.py", "raise RuntimeError('no access to depot2026 for trainer, aborted')\n");
    let secrets = [
        ("DB_PASSWORD", "trainer"),
        ("API_KEY", "workerlog"),
        ("HF_TOKEN", "aborted"),
        ("PASSPHRASE", "planned"),
        ("OAUTH", "finished"),
        ("CI_TOKEN", "depot2026"),
        ("JWT", "started"),
        ("GITHUB_PAT", "Container"),
    ];
    let umiak = |line: &str| {
        let run = sandbox.umiak(line.split(' '));
        secrets.iter().fold(run, |run, (name, value)| run.env(name, value)).finish()
    };
    let outcome = umiak("launch --nproc_per_node 2 --log_dir depot2026/log --show none train.py");
    outcome.expect_code(1);
    for sentence in [
        " planned 2 ranks on 1 node",
        " started 2 ranks in ",
        ", logs ./depot2026/log,",
        "ABORT!!! Out of all 2 trainers, the trainer process with rank=[",
        " was aborted. Please check its log.",
        "Container rank ",
        "log ./depot2026/log/workerlog.",
        "RuntimeError: no access to ******** for ********, ********",
    ] {
        outcome.expect_err(sentence);
    }
    let outcome = umiak("launch --log_dir depot2026/log missing.py");
    outcome.expect_code(127).expect_err("missing.py");
    for command in ["explain", "show", "events"] {
        let outcome = umiak(command);
        outcome.expect_code(0);
        assert!(!outcome.out().contains("no access to depot2026"), "{command}: {}", outcome.out());
    }
}

/// A rank prints a key line by line.
fn lines() {
    let mut vault = Vault::new();
    let key = [vault.secret(), vault.secret()[..8].to_owned() + "==", vault.secret()];
    vault.made[1].truncate(8);
    let sandbox = Sandbox::new();
    let script = "import os\nkey = os.environ['TLS_KEY'].replace('\\\\n', '\\n').splitlines()\nraise RuntimeError(' '.join(reversed(key)))\n";
    sandbox.write("train.py", script);
    for end in ["\n", "\\n"] {
        let pem = format!("-----BEGIN DATA-----{end}{}{end}-----END DATA-----", key.join(end));
        let outcome = sandbox.umiak("launch --show none train.py".split(' ')).env("TLS_KEY", pem).finish();
        outcome.expect_code(1).expect_err("RuntimeError: -----END DATA-----");
        vault.check_output("launch", &outcome);
        assert!(vault.check_files(&sandbox.path().join("log")) + vault.check_files(&sandbox.path().join("state")) > 4);
    }
}

fn harmless() {
    let sandbox = Sandbox::new();
    sandbox.write("train.py", "");
    let names = ["COMPASS_HOME", "TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY", "MAX_TOKENS", "BYPASS", "SOME_PATH"];
    let run = sandbox.umiak("launch --nproc_per_node 1 train.py".split_whitespace());
    names.iter().fold(run, |run, name| run.env(name, "readable-1")).finish().expect_code(0);
    let text = sandbox.read("log/envlog.0");
    for name in names {
        assert!(text.contains(&format!("{name}=readable-1\n")), "{name} is masked:\n{text}");
    }
}

/// `-c` means something else to other programs.
fn only_shells() {
    let sandbox = Sandbox::new();
    let secret = "correct-horse-battery-staple-42";
    for command in [format!("[python3, -c, \"print(len('{secret}'))\"]"), format!("\"T={secret}; echo ${{#T}}\"")] {
        let text = command.replace(secret, "{{ api_token }}");
        sandbox.write(
            "job.yaml",
            format!("umiak: v1\nparams: {{api_token: {secret}}}\nroles: {{w: {{command: {text}}}}}\n"),
        );
        let outcome = sandbox.umiak(["run", "job.yaml"]).finish();
        outcome.expect_code(0).expect_out(&secret.len().to_string());
    }
}
