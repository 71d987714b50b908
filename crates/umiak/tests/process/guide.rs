//! Runs the guides for one machine: their examples are typed into a shell on a terminal, and the screen must show what
//! the guide shows. Documents are checked with `umiak lint`, and commands for several machines run with `--dry-run`.
//! Values that differ from run to run (times, ports, process ids, hosts) are ignored, and so is the order between a
//! rank's lines and umiak's. A `…` in the guide matches the rest of a line, or any number of lines if it is alone on
//! its line. Every block must be listed here with its requirements.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use regex::{Captures, Regex};
use umiak_testkit::components::Component::{KernelLog, MemoryCgroup, Python};
use umiak_testkit::suite::Suite;
use umiak_testkit::terminal::Session;

use crate::shell::Shell;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("guide::the_examples_of_launch_are_true", &[Python], || examples(&LAUNCH))
        .test("guide::the_examples_of_jobs_are_true", &[Python], || examples(&JOBS))
        .test("guide::the_examples_of_openpai_are_true", &[Python], || examples(&OPENPAI))
        .test("guide::the_examples_of_pipelines_are_true", &[Python], || examples(&PIPELINES))
        .test("guide::the_examples_of_paddleflow_are_true", &[], || examples(&PADDLEFLOW))
        .test("guide::the_examples_of_paddlerec_are_true", &[Python], || examples(&PADDLEREC))
        .test("guide::the_examples_of_torchrun_are_true", &[Python], || examples(&TORCHRUN))
        .test("guide::the_lines_of_elastic_jobs_are_true", &[Python], || examples(&ELASTIC))
        .test("guide::the_quickstart_is_true_and_short", &[Python], quickstart)
        .test("guide::the_first_document_of_the_readme_runs_when_copied", &[Python], readme)
        .test("guide::the_examples_of_servers_are_true", &[Python], || examples(&SERVERS));
}

/// A guide and the requirements of its examples.
#[derive(Debug)]
struct Guide {
    file: &'static str,
    /// Examples by their first line.
    settings: &'static [(&'static str, Setting)],
    /// Documents that show an error.
    mistakes: &'static [&'static str],
    /// True if all examples share one directory, so that run numbers continue. Otherwise each has its own.
    goes_on: bool,
}

const LAUNCH: Guide = Guide { file: "docs/guide/launch.md", settings: SETTINGS, mistakes: &[], goes_on: false };

const JOBS: Guide = Guide {
    file: "docs/guide/jobs.md",
    settings: &[
        ("umiak run hello.yaml", Setting::Plain),
        ("umiak lint typo.yaml", Setting::Plain),
        ("umiak plan hello.yaml", Setting::Plain),
        ("umiak run --show worker ctr.yaml", Setting::Plain),
        ("umiak run flaky.yaml", Setting::Plain),
        ("umiak run -d long.yaml", Setting::Plain),
        ("umiak run -d half.yaml", Setting::Plain),
        ("umiak run stage.yaml; echo $?", Setting::Plain),
        ("umiak rm hello", Setting::Plain),
        ("umiak run bound.yaml --strict-resources", Setting::Plain),
        ("umiak run large.yaml", Setting::MemoryLimit),
    ],
    mistakes: &["typo.yaml"],
    goes_on: true,
};

const OPENPAI: Guide = Guide {
    file: "docs/guide/openpai.md",
    settings: &[
        ("umiak lint hello.yaml", Setting::Plain),
        ("umiak run meet.yaml", Setting::Plain),
        ("umiak lint typo.yaml", Setting::Plain),
        ("umiak run serve.yaml", Setting::Plain),
        ("umiak run flaky.yaml", Setting::Plain),
        ("umiak convert hello.yaml", Setting::Plain),
    ],
    mistakes: &["typo.yaml"],
    goes_on: true,
};

const PIPELINES: Guide = Guide {
    file: "docs/guide/pipelines.md",
    settings: &[
        ("umiak lint first.yaml", Setting::Plain),
        ("umiak run search.yaml --fs here=.", Setting::Plain),
        ("umiak run examples/pipelines/servers.yaml --fs ppl=.", Setting::Plain),
        ("umiak run broken.yaml; echo $?", Setting::Plain),
        ("umiak run cached.yaml --fs here=. --output quiet", Setting::Plain),
        ("umiak plan nightly.yaml --graph text", Setting::Plain),
    ],
    mistakes: &[],
    goes_on: true,
};

const PADDLEFLOW: Guide = Guide {
    file: "docs/guide/paddleflow.md",
    settings: &[("umiak run distributed.yaml", Setting::Plain), ("umiak lint old.yaml", Setting::Plain)],
    mistakes: &["old.yaml"],
    goes_on: true,
};

const PADDLEREC: Guide = Guide {
    file: "docs/guide/paddlerec.md",
    settings: &[
        ("umiak lint config.yaml backend.yaml", Setting::Plain),
        ("umiak submit -m config.yaml -b wrong.yaml", Setting::Plain),
        ("umiak submit -m long.yaml -b backend.yaml -d", Setting::Plain),
    ],
    mistakes: &["wrong.yaml"],
    goes_on: true,
};

const TORCHRUN: Guide = Guide {
    file: "docs/guide/torchrun.md",
    settings: &[
        ("umiak torchrun --nproc-per-node 2 --no-python ./hello.sh", Setting::AnyOrder),
        ("umiak torchrun --nproc-per-node 2 -t 3 --log-dir logs --no-python ./hello.sh", Setting::AnyOrder),
        ("umiak torchrun --nproc-per-node 2 train.py", Setting::AnyOrder),
        ("umiak torchrun --max-restarts 3 --no-python ./flaky.sh", Setting::Plain),
        ("PET_NPROC_PER_NODE=2 PET_NO_PYTHON=1 umiak torchrun ./hello.sh", Setting::AnyOrder),
        ("umiak torchrun --nnodes 1:4 train.py", Setting::Plain),
    ],
    mistakes: &[],
    goes_on: false,
};

/// Its lines need several nodes, and some need etcd: all run with `--dry-run`.
const ELASTIC: Guide = Guide { file: "docs/guide/elastic.md", settings: &[], mistakes: &[], goes_on: false };

const QUICKSTART: Guide = Guide {
    file: "docs/guide/quickstart.md",
    settings: &[
        ("umiak launch --nproc_per_node 2 examples/ring_allreduce.py", Setting::Plain),
        ("umiak python3 -m paddle.distributed.launch --nproc_per_node 2 examples/ring_allreduce.py", Setting::Plain),
        ("umiak lint job.yaml", Setting::Plain),
        ("umiak launch --nproc_per_node 2 --output json /bin/echo hi 2>/dev/null | python3 last.py", Setting::Plain),
    ],
    mistakes: &[],
    goes_on: true,
};

const SERVERS: Guide = Guide {
    file: "docs/guide/parameter-server.md",
    settings: &[
        ("umiak launch --run_mode ps --server_num 2 --trainer_num 2 examples/tiny_ps.py", Setting::Plain),
        ("umiak launch --dry-run --run_mode ps --server_num 2 --trainer_num 2 examples/tiny_ps.py", Setting::Plain),
        ("umiak launch --run_mode ps --server_num 1 --trainer_num 1 --server-timeout 1s ./deaf.sh", Setting::Plain),
        (
            "umiak launch --run_mode ps --server_num 2 --trainer_num 2 examples/tiny_ps.py --fail-server 1",
            Setting::Plain,
        ),
    ],
    mistakes: &[],
    goes_on: false,
};

/// What an example needs besides the guide's scripts and the directory `examples`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Plain,
    /// Several ranks write to the console; the order of their lines does not matter.
    AnyOrder,
    /// A driver that shows this many GPUs.
    Gpus(u32),
    /// The guide's fixed ports are replaced by free ones, and the last of them is taken.
    TakenPort,
    /// The guide's fixed ports are replaced by free ones.
    FixedPorts,
    /// Limited memory, and a kernel log that names killed processes. Where either is missing, the example is skipped
    /// with a message.
    MemoryLimit,
    /// Types Ctrl-C when the line before umiak's response is on the screen.
    Interrupt,
}

/// Examples of `launch`.
const SETTINGS: &[(&str, Setting)] = &[
    ("umiak launch --nproc_per_node 2 ./evaluate.sh", Setting::Plain),
    ("FLAGS_START_PORT=21000 umiak launch --nproc_per_node 2 ./evaluate.sh 2>&1 | cat", Setting::FixedPorts),
    ("PADDLE_NPROC_PER_NODE=3 umiak launch --nproc_per_node 2 ./evaluate.sh", Setting::Plain),
    ("umiak launch --log_dri x examples/ring_allreduce.py", Setting::Plain),
    ("umiak fleetrun --log_dri=x ./evaluate.sh", Setting::Plain),
    ("umiak launch --gpus 0,5 ./evaluate.sh", Setting::Gpus(2)),
    ("FLAGS_START_PORT=21000 umiak launch --nproc_per_node 2 ./evaluate.sh", Setting::TakenPort),
    ("umiak launch --nproc_per_node 2 train.py", Setting::Plain),
    ("umiak launch --nproc_per_node 2 --max_restart 2 ./train.sh", Setting::Plain),
    ("umiak launch --nproc_per_node 4 examples/ring_allreduce.py --steps 5000", Setting::Interrupt),
    ("umiak launch --dry-run --nproc_per_node 2 examples/ring_allreduce.py", Setting::Plain),
    ("umiak launch --nproc_per_node 2 --output json ./train.sh 2>/dev/null", Setting::Plain),
];

/// The guide's working directory, state directory and interpreter.
const DIRECTORY: &str = "/home/li/umiak";
const STATE: &str = "/home/li/.local/state/umiak";
const INTERPRETER: &str = "/usr/bin/python3";
/// The guide's fixed ports.
const PORTS: [u16; 2] = [21_000, 21_001];

/// Wide enough for every command, and high enough that nothing scrolls off.
const SIZE: (u16, u16) = (250, 100);

const ANYTHING: char = '…';

fn examples(guide: &Guide) {
    let root = root();
    let text = std::fs::read_to_string(root.join(guide.file)).expect("the guide is there");
    let blocks = blocks(&text);
    let scripts: Vec<(&str, &str)> = blocks.iter().filter_map(Block::script).collect();
    let examples: Vec<Example<'_>> = blocks.iter().filter_map(Block::example).collect();
    let mut wrong = Vec::new();
    for block in &blocks {
        if block.script().is_none() && block.example().is_none() && block.commands().is_empty() {
            wrong.push(format!("neither an example nor a script:\n{}", block.text));
        }
    }
    for (name, _) in &scripts {
        let is_run = examples.iter().any(|example| example.commands().any(|command| command.contains(name)));
        if !is_run && !scripts.iter().any(|(_, text)| text.contains(name)) {
            wrong.push(format!("no example runs `{name}`"));
        }
    }
    for (first, _) in guide.settings {
        if !examples.iter().any(|example| example.first() == *first) {
            wrong.push(format!("the guide has no example that begins with `{first}`"));
        }
    }
    let shell = |setting: Setting| {
        let shell = Shell::with_python();
        let shell = if let Setting::Gpus(count) = setting { shell.with_gpus(count) } else { shell };
        furnish(&shell, &scripts, &root.join("examples"));
        shell
    };
    let common = guide.goes_on.then(|| shell(Setting::Plain));
    lint(guide, &shell(Setting::Plain), &scripts);
    for command in blocks.iter().flat_map(Block::commands) {
        rehearse(&shell(Setting::Plain), command);
    }
    for example in &examples {
        if guide.settings.contains(&(example.first(), Setting::MemoryLimit)) && !limits_memory() {
            let text = format!("skipped: `{}` of {}: memory cannot be limited here\n", example.first(), guide.file);
            let _ = std::io::stderr().write_all(text.as_bytes());
            continue;
        }
        let checked = match guide.settings.iter().find(|(first, _)| example.first() == *first) {
            Some((_, setting)) => match &common {
                Some(shell) => example.check(shell, *setting),
                None => example.check(&shell(*setting), *setting),
            },
            None => Err("not listed in this test's settings".to_owned()),
        };
        if let Err(trouble) = checked {
            wrong.push(format!("`{}`: {trouble}", example.first()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Each section fits on a screen.
fn quickstart() {
    let text = std::fs::read_to_string(root().join(QUICKSTART.file)).expect("the quickstart is there");
    for section in text.split("\n## ").skip(1) {
        let lines = section.trim_end().lines().count();
        assert!(lines <= 40, "{lines} lines in `{}`", section.lines().next().unwrap_or_default());
    }
    examples(&QUICKSTART);
}

fn readme() {
    let text = std::fs::read_to_string(root().join("README.md")).expect("the README is there");
    let blocks = blocks(&text);
    let document = blocks.iter().find(|block| block.kind == "yaml").expect("a document");
    let shell = Shell::with_python();
    shell.sandbox.write("job.yaml", document.text);
    shell.line("umiak run job.yaml").finish().expect_code(0);
    let printed = shell.line("umiak logs 1 worker").finish().out();
    assert_eq!(printed.matches("| 200\n").count(), 3, "{printed}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn limits_memory() -> bool {
    [MemoryCgroup, KernelLog].iter().all(|component| component.version().is_some())
}

/// Every document of the guide passes `lint`, except those that show an error.
fn lint(guide: &Guide, shell: &Shell, scripts: &[(&str, &str)]) {
    let is_document = |name: &&str| Path::new(name).extension().is_some_and(|extension| extension == "yaml");
    for name in scripts.iter().map(|(name, _)| *name).filter(is_document) {
        let code = if guide.mistakes.contains(&name) { 2 } else { 0 };
        shell.line(&format!("umiak lint {name}")).finish().expect_code(code);
    }
}

/// Plans a command for several machines, as the first of them.
fn rehearse(shell: &Shell, command: &str) {
    shell.sandbox.write("train.py", "");
    let line = command.replace("umiak launch ", "umiak launch --dry-run ");
    let line = line.replace("umiak torchrun ", "umiak torchrun --dry-run ");
    // Here are no GPUs.
    let line = line.replace("--nproc-per-node gpu", "--nproc-per-node 2");
    let host = if line.contains("torchrun") { "--local-addr" } else { "--host" };
    let several = line.contains("192.168.0.1");
    let line = if several { line.replace("--dry-run ", &format!("--dry-run {host} 192.168.0.1 ")) } else { line };
    shell.line(&line).finish().expect_code(0);
}

/// A fenced block.
#[derive(Debug)]
struct Block<'a> {
    kind: &'a str,
    text: &'a str,
    /// The text before it.
    before: &'a str,
}

fn blocks(guide: &str) -> Vec<Block<'_>> {
    let parts: Vec<&str> = guide.split("```").collect();
    assert!(parts.len() % 2 == 1, "a fence of the guide is open");
    let fenced = parts.chunks_exact(2).map(|pair| (pair[0], pair[1].split_once('\n').expect("a fence has lines")));
    fenced.map(|(before, (kind, text))| Block { kind, text, before }).collect()
}

impl<'a> Block<'a> {
    /// Name and text of a file that the guide introduces.
    fn script(&self) -> Option<(&'a str, &'a str)> {
        let before = self.before.trim_end();
        let introduction = match self.kind {
            "sh" | "python" => before.strip_suffix("` is this script:"),
            "yaml" => before.strip_suffix("` is this document:"),
            _ => None,
        };
        let (_, name) = introduction?.rsplit_once('`')?;
        Some((name, self.text))
    }

    /// Command lines that are not run here.
    fn commands(&self) -> Vec<&'a str> {
        let is_command = |line: &&str| line.contains("umiak launch ") || line.contains("umiak torchrun ");
        let is_shell = self.kind == "sh" && self.script().is_none() && self.text.lines().all(|line| is_command(&line));
        if is_shell { self.text.lines().collect() } else { Vec::new() }
    }

    fn example(&self) -> Option<Example<'a>> {
        let is_example = self.kind == "console" && self.text.starts_with(PROMPT);
        is_example.then(|| Example { lines: self.text.lines().collect() })
    }
}

const PROMPT: &str = "$ ";

/// Commands after prompts, each with its output.
#[derive(Debug)]
struct Example<'a> {
    lines: Vec<&'a str>,
}

impl Example<'_> {
    fn commands(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| line.strip_prefix(PROMPT))
    }

    fn first(&self) -> &str {
        self.commands().next().expect("an example begins with a prompt")
    }

    /// Types the example and compares the screen.
    fn check(&self, shell: &Shell, setting: Setting) -> Result<(), String> {
        let ports = matches!(setting, Setting::TakenPort | Setting::FixedPorts).then(Moved::new);
        let taken = ports.as_ref().filter(|_| setting == Setting::TakenPort);
        let _taken = taken.map(|ports| listen(ports.0[1]).expect("it was free a moment ago"));
        let lines = self.type_into(shell, setting, ports.as_ref());
        let log = said(shell);
        let neutral = |text: &str| {
            let text = text.replace(INTERPRETER, "PYTHON").replace(DIRECTORY, "DIR").replace(STATE, "DIR/state");
            let text = shell.neutral(&text).replace("DIR/bin/python3", "PYTHON");
            let text = ports.as_ref().map_or_else(|| without_ports(&text), |ports| ports.back(&text));
            // The position of `^C` depends on whether a status line is shown at that moment.
            without_figures(&text.replace("^C", ""))
        };
        let ranks: BTreeSet<String> = log.lines().map(neutral).collect();
        // With several replicas, lines start with the replica's name.
        // So do lines of `torchrun -t`, in another form.
        let is_of_rank = |line: &str| {
            let is_prefixed = |end: &str| line.split_once(end).is_some_and(|(_, line)| ranks.contains(line));
            ranks.contains(line) || is_prefixed(" | ") || is_prefixed("]:")
        };
        let shown: Vec<String> = self.lines.iter().map(|line| neutral(line)).collect();
        let mut seen: Vec<String> = lines.iter().map(|line| neutral(line)).collect();
        if setting == Setting::Interrupt {
            // Ranks print until the signal arrives.
            let awaited = neutral(self.before_the_answer());
            let last = seen.iter().position(|line| *line == awaited).expect("it was waited for");
            let later = seen.split_off(last + 1);
            seen.extend(later.into_iter().filter(|line| !is_of_rank(line)));
        }
        for is_rank in [false, true] {
            let of = |lines: &[String]| -> Vec<String> {
                let is_wanted = |line: &&String| is_anything(line) || is_of_rank(line) == is_rank;
                lines.iter().filter(is_wanted).cloned().collect()
            };
            let (mut shown, mut seen) = (of(&shown), of(&seen));
            if is_rank && setting == Setting::AnyOrder {
                shown.sort();
                seen.sort();
            }
            let text: String = seen.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            if !pattern(&shown).is_match(&text) {
                let whose = if is_rank { "rank 0's" } else { "umiak's" };
                return Err(format!("{whose} lines in the guide:\n{}\non the screen:\n{text}", shown.join("\n")));
            }
        }
        Ok(())
    }

    /// The line after which Ctrl-C is typed.
    fn before_the_answer(&self) -> &str {
        let answer = self.lines.iter().position(|line| line.contains("Stopping ranks"));
        answer.and_then(|answer| self.lines.get(answer - 1)).expect("the example shows what Ctrl-C does")
    }

    /// Returns the final screen up to the last prompt.
    fn type_into(&self, shell: &Shell, setting: Setting, ports: Option<&Moved>) -> Vec<String> {
        let mut session = Session::of(shell.interactive(), SIZE);
        let wait = |session: &Session<'_>, typed: usize| {
            session.wait_for("the prompt", |screen| {
                let last = screen.iter().rfind(|line| !line.is_empty());
                let is_waiting = last.is_some_and(|line| line == PROMPT.trim_end());
                is_waiting && screen.iter().filter(|line| line.starts_with(PROMPT)).count() == typed
            });
        };
        for (typed, command) in self.commands().enumerate() {
            wait(&session, typed);
            let command = ports.map_or_else(|| command.to_owned(), |ports| ports.there(command));
            session.type_keys(format!("{command}\n").as_bytes());
            if setting == Setting::Interrupt && typed == 0 {
                let awaited = self.before_the_answer();
                session.wait_for(awaited, |screen| screen.iter().any(|line| line == awaited));
                session.type_keys(b"\x03");
            }
        }
        wait(&session, self.commands().count());
        let mut lines = session.lines();
        lines.pop();
        session.type_keys(b"exit\n");
        session.finish();
        lines
    }
}

/// Returns the output of rank 0, or of all replicas of documents.
fn said(shell: &Shell) -> String {
    let runs = shell.sandbox.path().join("state/runs");
    let below = |path: PathBuf| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let replicas = below(runs).into_iter().flat_map(|run| below(run.join("tasks")));
    let logs = replicas.flat_map(below).map(|attempt| attempt.join("log"));
    let logs = logs.chain([shell.sandbox.path().join("log/workerlog.0")]);
    // Those of torchrun: `logs/ID/attempt_0/0/stdout.log`.
    let runs = below(shell.sandbox.path().join("state/runs")).into_iter().map(|run| run.join("logs"));
    let jobs = runs.chain([shell.sandbox.path().join("logs")]).flat_map(below);
    let streams = jobs.flat_map(below).flat_map(below).flat_map(below);
    let logs = logs.chain(streams.filter(|path| path.extension().is_some_and(|it| it == "log")));
    logs.filter_map(|log| std::fs::read(log).ok()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

/// Creates the files of the guide's user.
fn furnish(shell: &Shell, scripts: &[(&str, &str)], examples: &Path) {
    for (name, text) in scripts {
        let path = shell.sandbox.write(name, text);
        if text.starts_with("#!") {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        }
    }
    let directory = |name: &str| -> PathBuf {
        let path = shell.sandbox.path().join(name);
        std::fs::create_dir_all(&path).expect("the sandbox can be written");
        path
    };
    // `train.py` fails in rank 1, which has no directory.
    directory("data/0");
    for name in ["", "pipelines"] {
        let copies = directory(&format!("examples/{name}"));
        let entries = std::fs::read_dir(examples.join(name)).expect("the examples are there").flatten();
        for entry in entries.filter(|entry| entry.path().is_file()) {
            std::fs::copy(entry.path(), copies.join(entry.file_name())).expect("the sandbox can be written");
        }
    }
}

/// Free ports in place of the guide's, which another process may hold.
#[derive(Debug)]
struct Moved([u16; 2]);

impl Moved {
    fn new() -> Self {
        // Below the ephemeral range, and different for most parallel runs of this test.
        let first = 22_000 + (std::process::id() % 4000) as u16 * 2;
        let pairs = (first..first + 2000).step_by(2).map(|port| [port, port + 1]);
        let is_free = |pair: &[u16; 2]| pair.iter().all(|port| listen(*port).is_ok());
        Self(pairs.into_iter().find(is_free).expect("two free ports"))
    }

    fn there(&self, text: &str) -> String {
        replaced(text, PORTS, self.0)
    }

    fn back(&self, text: &str) -> String {
        replaced(text, self.0, PORTS)
    }
}

fn replaced(text: &str, from: [u16; 2], to: [u16; 2]) -> String {
    from.iter().zip(to).fold(text.to_owned(), |text, (from, to)| text.replace(&from.to_string(), &to.to_string()))
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
}

/// Replaces ports that umiak chose, but keeps their number.
fn without_ports(text: &str) -> String {
    let number = |text: &str| text.parse::<u16>().expect("a port");
    let count = |range: &str| range.split_once('-').map_or(1, |(first, last)| number(last) - number(first) + 1);
    let neutral = |found: &Captures<'_>| match found[2].split(',').map(count).sum::<u16>() {
        1 => format!("{}PORT", &found[1]),
        several => format!("{}PORT to {} more", &found[1], several - 1),
    };
    regex(r"(127\.0\.0\.1:|\bport )(\d+(?:-\d+)?(?:,\d{4,5}(?:-\d+)?)*)").replace_all(text, neutral).into_owned()
}

/// Replaces times, sizes, processes and names of this machine.
fn without_figures(text: &str) -> String {
    [
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "DATE"),
        (r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", "DATE"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_[a-z0-9_]{8}", "ID"),
        (r"^  host      : \S+", "  host : HOST"),
        (r"\(pid: \d+\) *$", "(pid: PID)"),
        (r"^\d\d:\d\d:\d\d ", "TIME "),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "DATE"),
        (r"\b(now|\d+ (s|min|h) ago)\b", "AGO"),
        (r"\b\d+(\.\d+)? (ms|s)\b", "DURATION"),
        // A replica's own address; 127.0.0.1 is shared.
        (r"\b127\.([1-9]\d*\.\d+|0\.[1-9]\d*)\.\d+(:\d+)?\b", "ADDRESS"),
        (r"\b\d+(\.\d+)? KiB\b", "SIZE"),
        (r"\bby +\S+ on engine", "by USER on engine"),
        // Column widths depend on their contents.
        (r"  +", " "),
        (r"\b\d+ MiB peak", "SIZE peak"),
        (r"\bon \S+ \(pid \d+\)", "on HOST (pid PID)"),
        (r"\bpid \d+ on [^ ,]+", "pid PID on HOST"),
        (r"\bpid \d+\b", "pid PID"),
        (r#""pid":\d+"#, r#""pid":PID"#),
        (r#""at":\d+"#, r#""at":MICROS"#),
        (r#""umiak":"[^"]+""#, r#""umiak":"VERSION""#),
        ("OMP_NUM_THREADS=[0-9]+", "OMP_NUM_THREADS=COUNT"),
        // The loss depends on the order in which trainers reach the servers.
        (r"\b(trainer \d/\d .*loss) .*", "$1 LOSS"),
    ]
    .into_iter()
    .fold(text.to_owned(), |text, (what, neutral)| regex(what).replace_all(&text, neutral).into_owned())
}

fn is_anything(line: &str) -> bool {
    line.chars().eq([ANYTHING])
}

/// Returns a pattern for the lines of the guide.
fn pattern(lines: &[String]) -> Regex {
    let line = |line: &String| {
        if is_anything(line) {
            return r"(?:.*\n)*".to_owned();
        }
        let known: Vec<String> = line.split(ANYTHING).map(|part| regex::escape(part.trim_end())).collect();
        known.join(".*") + r"\n"
    };
    let lines: String = lines.iter().map(line).collect();
    regex(&format!(r"\A{lines}\z"))
}

fn regex(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
