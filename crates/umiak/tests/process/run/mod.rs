//! Documents through the real binary: common behaviour of engines, decisions of policies, and output for users.

mod addresses;
mod chaos;
mod cluster;
mod conformance;
mod control;
mod damage;
mod detach;
mod disk;
mod examples;
mod first_steps;
mod house;
mod members;
mod mounts;
mod nested;
mod orders;
mod pipelines;
mod policies;
mod resources;
mod retry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use umiak::history::{Home, RunDir, is_held};
use umiak_testkit::sandbox::{Outcome, Run, Running, Sandbox};
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;
use umiak_testkit::toy::actor;

pub(crate) fn register(suite: &mut Suite) {
    conformance::register(suite);
    policies::register(suite);
    resources::register(suite);
    addresses::register(suite);
    members::register(suite);
    mounts::register(suite);
    first_steps::register(suite);
    examples::register(suite);
    nested::register(suite);
    chaos::register(suite);
    pipelines::register(suite);
    cluster::register(suite);
    disk::register(suite);
    damage::register(suite);
    detach::register(suite);
    control::register(suite);
    orders::register(suite);
    retry::register(suite);
}

/// Waits until no supervisor holds the first run: the lock of a killed one is released slightly after its exit.
pub(crate) fn wait_until_free(sandbox: &Sandbox) {
    let run = RunDir::at(&Home::at(sandbox.path().join("state")), "run-000001".parse().expect("an id"));
    house::wait_for("the run's lock to be free", || !is_held(&run).expect("the lock can be checked"));
}

/// One engine, a directory, and the actor on `PATH`.
#[derive(Debug)]
struct Stage {
    sandbox: Sandbox,
    engine: &'static str,
    path: String,
    /// `SLURM_CONF`.
    slurm: Option<PathBuf>,
}

impl Stage {
    fn new(engine: &'static str) -> Self {
        let sandbox = Sandbox::new();
        let programs = sandbox.path().join("bin");
        actor::install(&programs);
        // Found on `PATH`, but not executable by the kernel.
        program(&programs.join("broken"), "#!/no/such/interpreter\n");
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        Self { sandbox, engine, path, slurm: None }
    }

    /// In this cluster.
    fn on(engine: &'static str, slurm: Option<&Slurm>) -> Self {
        Self { slurm: slurm.map(Slurm::conf), ..Self::new(engine) }
    }

    /// Another directory, for the same engine and cluster.
    fn another(&self) -> Self {
        Self { slurm: self.slurm.clone(), ..Self::new(self.engine) }
    }

    /// Runs the line, split at spaces.
    fn umiak(&self, line: &str) -> Run<'_> {
        let run = self.sandbox.umiak(line.split_whitespace()).env("PATH", &self.path);
        match &self.slurm {
            Some(conf) => run.env("SLURM_CONF", conf),
            None => run,
        }
    }

    /// Runs `umiak run` on this document, with facts on stdout.
    fn run(&self, document: &str) -> Run<'_> {
        self.sandbox.write("job.yaml", document);
        self.umiak(&format!("run job.yaml --output json --engine {}", self.engine))
    }

    fn run_dir(&self) -> PathBuf {
        self.sandbox.path().join("state/runs/run-000001")
    }

    /// Returns the journal's records so far, without their checksums, and without a record that is still being written.
    fn journal(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.run_dir().join("journal.jsonl")).unwrap_or_default();
        let record = |line| {
            let mut record: Value = serde_json::from_str(line).ok()?;
            record.as_object_mut()?.shift_remove("sum");
            Some(record)
        };
        text.split_inclusive('\n').filter_map(record).collect()
    }

    fn wait_until_free(&self) {
        wait_until_free(&self.sandbox);
    }

    fn log(&self, replica: &str, attempt: u32) -> String {
        let path = self.run_dir().join(format!("tasks/{replica}/attempt-{attempt}/log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// Waits until a replica's log contains the text and its start is recorded, which may come later.
    fn wait_for_log(&self, running: &Running<'_>, replica: &str, attempt: u32, text: &str) {
        let is_start = |fact: &Value| {
            fact["type"] == "started" && fact["subject"]["replica"] == replica && fact["subject"]["attempt"] == attempt
        };
        running.wait_until(&format!("{replica} says {text}"), || {
            self.log(replica, attempt).contains(text) && self.journal().iter().any(is_start)
        });
    }

    /// Fails if an ended run has left files, addresses or sockets of a live one.
    fn assert_nothing_left(&self) {
        self.sandbox.assert_nothing_left();
        for name in ["scratch", "control.sock", "cluster.sock", "secrets.json"] {
            assert!(!self.run_dir().join(name).exists(), "{name} is left in the run's directory");
        }
        let Ok(plan) = std::fs::read(self.run_dir().join("plan.json")) else { return };
        let plan: Value = serde_json::from_slice(&plan).expect("a plan is JSON");
        let names = std::fs::read_to_string("/proc/net/unix").expect("the kernel's list of sockets");
        let listening = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's list of sockets");
        for replica in plan["replicas"].as_array().expect("replicas").iter().filter(|_| self.engine == "local") {
            let host: std::net::Ipv4Addr = replica["host"].as_str().expect("an address").parse().expect("an address");
            let [_, high, low, _] = host.octets();
            let lease = format!("@umiak-address-127.{high}.{low}");
            assert!(!names.lines().any(|line| line.ends_with(&lease)), "{lease} is still held");
            let hex = format!(" {:08X}:", u32::from_be_bytes(host.octets()).swap_bytes());
            let open =
                |line: &str| line.split_whitespace().nth(1).is_some_and(|own| format!(" {own}").starts_with(&hex));
            let state = |line: &str| line.split_whitespace().nth(3) == Some("0A");
            assert!(!listening.lines().any(|line| open(line) && state(line)), "{host} still listens");
        }
    }
}

fn program(path: &Path, text: &str) {
    std::fs::write(path, text).expect("the sandbox can be written");
    let done = Command::new("chmod").arg("+x").arg(path).status().expect("chmod can be started");
    assert!(done.success());
}

/// Summarises the facts of each replica in order, and those of the run under `run`.
///
/// `starting@1` is attempt 1. `ended@1=3` is an exit code, `=SIG9` a signal, `=spawn` a failed start; `/us` means that
/// umiak sent the signal.
fn stories(facts: &[Value]) -> BTreeMap<String, String> {
    let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for fact in facts {
        let kind = fact["type"].as_str().expect("a fact has a type");
        let subject = &fact["subject"];
        let attempt = || format!("{kind}@{}", subject["attempt"]);
        let mut tell = |who: &str, what: String| stories.entry(who.to_owned()).or_default().push(what);
        match kind {
            "supervised" => tell("run", fact["why"].as_str().expect("a reason").to_owned()),
            "starting" | "started" | "ready" | "attempt_failed" => tell(name(subject), attempt()),
            "timed_out" => tell(name(subject), format!("{}:{}", attempt(), text(&fact["what"]))),
            "ended" => {
                let by_us = if fact["by_us"] == true { "/us" } else { "" };
                tell(name(subject), format!("{}={}{by_us}", attempt(), exit(&fact["exit"])));
            }
            "retrying" => {
                for subject in fact["subjects"].as_array().expect("subjects") {
                    tell(name(subject), format!("retrying@{}:{}", subject["attempt"], text(&fact["blame"])));
                }
            }
            "stopping" => tell("run", format!("stopping:{}", text(&fact["reason"]["why"]))),
            "diagnosed" => {
                let causes = fact["causes"].as_array().expect("causes").iter();
                let causes = causes.map(|cause| format!("{}={}", name(&cause["subject"]), exit(&cause["exit"])));
                tell("run", format!("diagnosed:{}", causes.collect::<Vec<_>>().join(",")));
            }
            "restarting" => tell("run", format!("restarting@{}", fact["attempt"])),
            "finished" => tell("run", format!("finished:{}={}", text(&fact["status"]), fact["code"])),
            "noticed" => tell("run", format!("noticed:{}", text(&fact["code"]))),
            "ignored" | "abandoned" | "paused" | "continued" => tell("run", kind.to_owned()),
            // The plan has its own tests, signals are sent in groups, mocks have no processes to look at and leave none
            // behind, and only clusters have handles and queues.
            "planned" | "stop_sent" | "observed" | "swept" | "submitted" | "accepted" | "pending" | "cancelled" => {}
            other => panic!("a fact that the suite does not know: {other}"),
        }
    }
    stories.into_iter().map(|(who, story)| (who, story.join(" "))).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text: {value}"))
}

fn name(subject: &Value) -> &str {
    text(&subject["replica"])
}

fn exit(exit: &Value) -> String {
    match text(&exit["kind"]) {
        "code" => exit["code"].to_string(),
        "signal" => format!("SIG{}", exit["signal"]),
        other => other.to_owned(),
    }
}

/// Returns how many attempts were started.
fn attempts(facts: &[Value], replica: &str) -> usize {
    facts.iter().filter(|fact| fact["type"] == "starting" && fact["subject"]["replica"] == replica).count()
}

/// Returns the printed facts, which must equal the journal apart from the field `run`.
fn facts(stage: &Stage, outcome: &Outcome) -> Vec<Value> {
    let mut facts = outcome.facts();
    for fact in facts.iter_mut().filter_map(Value::as_object_mut) {
        assert!(fact.shift_remove("run").is_some(), "{fact:?}");
    }
    assert_eq!(facts, stage.journal(), "stdout and journal differ");
    facts
}

/// Runs the trials in parallel, because they mostly wait, and reports all that failed.
fn together<T: FnOnce() + Send>(trials: Vec<(String, T)>) {
    let failures: Vec<String> = std::thread::scope(|scope| {
        let start = |(name, trial): (String, T)| {
            (name, scope.spawn(move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(trial))))
        };
        let threads: Vec<_> = trials.into_iter().map(start).collect();
        let failed = |(name, thread): (String, std::thread::ScopedJoinHandle<'_, std::thread::Result<()>>)| {
            let panic = thread.join().expect("panics are caught").err()?;
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("{name}: {}", text.unwrap_or_default()))
        };
        threads.into_iter().filter_map(failed).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
