//! One repetition of one kind: starts the job, injects the fault, and reads the verdict of every node.

use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;

use umiak_sys::descend;
use umiak_testkit::sandbox::{Outcome, Run, Running, Sandbox};

use super::judge::{Judgement, causes};
use super::kinds::{Act, Kind, Right};
use crate::nodes::Cluster;

const SIGKILL: i32 = 9;

/// Returns the judgement, and consoles and logs for a reader who wants to know why.
pub(super) fn run(kind: &Kind, repetition: usize) -> (Judgement, String) {
    // Hosts are removed after the sandboxes that use them.
    let cluster = (kind.nodes > 1).then(|| Cluster::new(kind.nodes));
    let own = [Sandbox::new()];
    let sandboxes = cluster.as_ref().map_or(&own[..], |cluster| &cluster.sandboxes);
    let mut trial = Trial { kind, repetition, cluster: cluster.as_ref(), sandboxes, consoles: Vec::new() };
    let judgement = std::panic::catch_unwind(AssertUnwindSafe(|| trial.judge())).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        Judgement::Broken(words.unwrap_or_else(|| "panicked".to_owned()))
    });
    let story = trial.story();
    (judgement, story)
}

struct Trial<'a> {
    kind: &'a Kind,
    repetition: usize,
    cluster: Option<&'a Cluster>,
    sandboxes: &'a [Sandbox],
    consoles: Vec<String>,
}

impl Trial<'_> {
    fn judge(&mut self) -> Judgement {
        let runs: Vec<Running<'_>> =
            self.sandboxes.iter().enumerate().map(|(node, sandbox)| self.launch(node, sandbox).start()).collect();
        self.act(&runs);
        let outcomes: Vec<Outcome> = runs.into_iter().map(Running::finish).collect();
        self.consoles = outcomes.iter().map(Outcome::err).collect();
        let (right, node) = (self.kind.right, self.kind.node_of_culprit(self.repetition).unwrap_or_default());
        let judgements = outcomes.iter().enumerate().map(|(here, outcome)| match right {
            _ if outcome.status.success() => Judgement::Broken("umiak exited with 0".to_owned()),
            Right::Culprit if here == 0 => {
                Judgement::of(&explanation(&self.sandboxes[0]), &self.kind.culprits(self.repetition))
            }
            // Only the coordinator's node has a record; the others must show the same cause.
            Right::Culprit if cause_shown(outcome).is_some_and(|cause| Some(cause) == cause_shown(&outcomes[0])) => {
                Judgement::Right
            }
            Right::Culprit => Judgement::Broken(format!("node {here} shows {:?}", cause_shown(outcome))),
            Right::Node | Right::Refusal if here == node => Judgement::Right,
            Right::Node => self.judge_node(here, outcome, node, "was lost"),
            Right::Refusal => self.judge_node(here, outcome, node, "cannot continue"),
        });
        judgements.fold(Judgement::Right, Judgement::worse)
    }

    /// The node must be named, and no rank of another node may be a cause.
    fn judge_node(&self, here: usize, outcome: &Outcome, node: usize, words: &str) -> Judgement {
        let mut named: Vec<String> = cause_shown(outcome).into_iter().collect();
        if here == 0 && self.kind.right == Right::Node {
            match causes(&explanation(&self.sandboxes[0])) {
                Ok(causes) => named = causes,
                Err(error) => return Judgement::Broken(error),
            }
        }
        let of_the_node = self.kind.replicas_of(node);
        named.retain(|replica| !of_the_node.contains(replica));
        let address = self.cluster.expect("a node of several").network.host(node).ip();
        let said = outcome.err();
        let is_named = |line: &str| {
            let is_it = line.contains(&format!("node {address} ")) || (node == 0 && line.contains("the coordinator"));
            is_it && line.contains(words)
        };
        match (named.is_empty(), said.lines().any(is_named)) {
            (true, true) => Judgement::Right,
            (true, false) => Judgement::Silent,
            (false, _) => Judgement::Misled { named },
        }
    }

    fn launch<'s>(&self, node: usize, sandbox: &'s Sandbox) -> Run<'s> {
        self.kind.work.prepare(self.kind, node, self.repetition, sandbox);
        let ips = self.cluster.map(|cluster| cluster.network.ips());
        let words = self.kind.words(self.repetition, ips.as_deref());
        let (home, temporary) = (sandbox.path().join("home"), sandbox.path().join("caches"));
        std::fs::create_dir(&temporary).expect("the sandbox can be written");
        // Frameworks keep caches in the home and temporary directories.
        let mut run =
            sandbox.umiak(&words).env("HOME", home).env("TMPDIR", temporary).env("PYTHONDONTWRITEBYTECODE", "1");
        for (name, value) in self.kind.work.variables() {
            run = run.env(name, value);
        }
        match self.cluster {
            Some(cluster) => run.on(cluster.network.host(node)),
            None => run,
        }
    }

    /// What the suite does from outside, when the culprit asks for it.
    fn act(&self, runs: &[Running<'_>]) {
        if self.kind.act == Act::None {
            return;
        }
        let mut asked = None;
        runs[0].wait_until("the culprit asks for its fault", || {
            let mut files = self.sandboxes.iter().filter_map(|sandbox| sandbox.read_if_there("victim"));
            asked = files.next().and_then(|bytes| String::from_utf8_lossy(&bytes).trim().parse::<u32>().ok());
            asked.is_some()
        });
        let pid = asked.expect("it was waited for");
        let node = self.kind.node_of_culprit(self.repetition).unwrap_or_default();
        match self.kind.act {
            Act::None => {}
            Act::Signal(signal) => descend::signal(pid, signal),
            Act::KillParent => descend::signal(parent(pid), SIGKILL),
            Act::KillUmiak => runs[node].signal(SIGKILL),
            Act::CutLink => self.cluster.expect("links are between nodes").network.host(node).link_down(),
        }
    }

    fn story(&self) -> String {
        let mut story = String::new();
        let culprits = self.kind.culprits(self.repetition).join(", ");
        let _ = writeln!(story, "culprit: {culprits}");
        for (node, sandbox) in self.sandboxes.iter().enumerate() {
            let console = self.consoles.get(node).map_or("", String::as_str);
            let _ = writeln!(story, "--- console of node {node}\n{}", last_lines(console, 40));
            for entry in std::fs::read_dir(sandbox.path().join("log")).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.contains("log.") && !name.starts_with("envlog") {
                    let text = std::fs::read(entry.path()).unwrap_or_default();
                    let _ =
                        writeln!(story, "--- node {node}, {name}\n{}", last_lines(&String::from_utf8_lossy(&text), 6));
                }
            }
        }
        story
    }
}

fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it waits for its signal");
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("every process has a parent");
    line.trim().parse().expect("a process id")
}

fn explanation(sandbox: &Sandbox) -> String {
    sandbox.umiak(["explain", "--output", "json"]).start().finish_unchecked().out()
}

/// The replicas in the first line of the report: `✗ rank 2 on host (pid 7) …`.
fn cause_shown(outcome: &Outcome) -> Option<String> {
    let said = outcome.err();
    let line = said.lines().find_map(|line| line.strip_prefix("✗ "))?;
    line.split_once(" on ").map(|(replicas, _)| replicas.to_owned())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let cut = |line: &&str| line.chars().take(300).collect::<String>();
    lines[lines.len().saturating_sub(count)..].iter().map(cut).collect::<Vec<_>>().join("\n")
}
