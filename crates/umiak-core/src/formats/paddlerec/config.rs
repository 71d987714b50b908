//! `config.yaml` as written, in any generation.

use super::keys::{self, CLASSES, DEVICES, ENGINES, FLEET_MODES, MAX_THREADS, STRATEGIES};
use super::section::{Others, Section, choice};
use crate::diag::{Code, Span};
use crate::formats::document::limits::MAX_REPLICAS;
use crate::formats::document::reader::{At, Reader, did_you_mean};
use crate::formats::document::tree::{Node, Scalar, Value, shortened};

/// What runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    /// One process on this host.
    Single,
    /// Servers and trainers on this host.
    LocalCluster,
    /// What `backend.yaml` says.
    Cluster,
}

#[derive(Debug)]
pub(super) struct RawConfig {
    pub(super) workspace: Option<At<String>>,
    pub(super) runs: Vec<RawRun>,
    /// True for the first generation.
    pub(super) is_first: bool,
}

/// One way to run the program: `train`, or a runner that `mode` names.
#[derive(Debug)]
pub(super) struct RawRun {
    /// The name of the runner; the first generation has none.
    pub(super) name: Option<At<String>>,
    pub(super) engine: At<Engine>,
    pub(super) epochs: Option<u32>,
    pub(super) strategy: Option<&'static str>,
    pub(super) threads: Option<u32>,
    /// Cards of `selected_gpus`; 0 on CPU.
    pub(super) gpus: u32,
    pub(super) is_collective: bool,
    pub(super) servers: Option<u32>,
    pub(super) workers: Option<u32>,
}

pub(super) fn config(reader: &mut Reader<'_>, root: &Node) -> Option<RawConfig> {
    if root.child("train").is_some() { first(reader, root) } else { lists(reader, root) }
}

fn first(reader: &mut Reader<'_>, root: &Node) -> Option<RawConfig> {
    let root = Section::open(reader, "", root, &keys::CONFIG, Others::OfModel)?;
    let train = root.section(reader, "train", &keys::TRAIN, Others::OfModel)?;
    let engine = train.read(reader, "engine", |reader, what, node| {
        choice(reader, what, &without_prefix(node), ENGINES).map(|word| At {
            value: match word.value {
                "cluster" => Engine::Cluster,
                "local_cluster" => Engine::LocalCluster,
                _ => Engine::Single,
            },
            at: word.at,
        })
    });
    let workspace = workspace(reader, &train);
    let trainer = train.section(reader, "trainer", &keys::TRAINER, Others::Ignored);
    let trainer = trainer.as_ref();
    let run = RawRun {
        name: None,
        engine: engine.unwrap_or(At { value: Engine::Single, at: train.at() }),
        epochs: train.number(reader, "epochs", 0, u32::MAX).map(|epochs| epochs.value),
        strategy: trainer.and_then(|it| it.choice(reader, "strategy", STRATEGIES)).map(|word| word.value),
        threads: trainer.and_then(|it| it.number(reader, "threads", 1, MAX_THREADS)).map(|count| count.value),
        gpus: 0,
        is_collective: false,
        servers: None,
        workers: None,
    };
    Some(RawConfig { workspace, runs: vec![run], is_first: true })
}

/// `tdm_cluster` is a `cluster` whose trainers build an index first, which is the program's own matter.
fn without_prefix(node: &Node) -> Node {
    let mut node = node.clone();
    if let Value::Scalar(Scalar { text, .. }) = &mut node.value
        && let Some(rest) = text.get(..4).filter(|start| start.eq_ignore_ascii_case("tdm_")).and(text.get(4..))
    {
        *text = rest.to_owned();
    }
    node
}

fn workspace(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<At<String>> {
    section.required(reader, "workspace");
    section.read(reader, "workspace", Reader::word)
}

fn lists(reader: &mut Reader<'_>, root: &Node) -> Option<RawConfig> {
    let root = Section::open(reader, "", root, &keys::LISTS, Others::OfModel)?;
    let workspace = workspace(reader, &root);
    for name in ["runner", "phase"] {
        root.required(reader, name);
    }
    let modes = root.required(reader, "mode").map_or(Vec::new(), |node| words(reader, "`mode`", node));
    let phases = root.items(reader, "phase", &keys::PHASE);
    let threads: Option<Vec<(String, Option<u32>)>> = phases.map(|phases| {
        let threads = |(name, phase): &(At<String>, Section<'_>)| {
            let count = phase.number(reader, "thread_num", 1, MAX_THREADS);
            (name.value.clone(), count.map(|count| count.value))
        };
        phases.iter().map(threads).collect()
    });
    let runners = root.items(reader, "runner", &keys::RUNNER)?;
    let mut read: Vec<(String, Option<RawRun>)> = Vec::new();
    for (name, runner) in &runners {
        read.push((name.value.clone(), run(reader, name, runner, threads.as_deref())));
    }
    let mut runs: Vec<RawRun> = Vec::new();
    for mode in modes {
        let Some((_, run)) = read.iter_mut().find(|(name, _)| *name == mode.value) else {
            let near = reader.nearest(&mode.value, runners.iter().map(|(name, _)| name.value.as_str()));
            let label = did_you_mean(near, "not in `runner`");
            reader.error(Code::F0017, mode.at, format!("unknown runner `{}`", shortened(&mode.value)), label);
            continue;
        };
        if runs.iter().any(|run| run.name.as_ref().is_some_and(|name| name.value == mode.value)) {
            reader.error(Code::F0018, mode.at, format!("`mode` names runner `{}` twice", mode.value), "");
            continue;
        }
        runs.extend(run.take());
    }
    Some(RawConfig { workspace, runs, is_first: false })
}

/// A word, or a list of words.
fn words(reader: &mut Reader<'_>, what: &str, node: &Node) -> Vec<At<String>> {
    let words: Vec<At<String>> = node.one_or_many().iter().filter_map(|node| reader.word(what, node)).collect();
    if matches!(&node.value, Value::List(items) if items.is_empty()) {
        reader.error(Code::F0013, node.at, format!("{what} is empty"), "");
    }
    words
}

fn run(
    reader: &mut Reader<'_>,
    name: &At<String>,
    runner: &Section<'_>,
    phases: Option<&[(String, Option<u32>)]>,
) -> Option<RawRun> {
    let class = runner.required(reader, "class").is_some();
    let class = runner.choice(reader, "class", CLASSES).filter(|_| class);
    let is_gpu = runner.choice(reader, "device", DEVICES).is_some_and(|word| word.value == "gpu");
    let cards = runner.word(reader, "selected_gpus");
    let cards = cards.map_or(1, |cards| cards.value.split(',').filter(|card| !card.trim().is_empty()).count());
    let gpus = if is_gpu { u32::try_from(cards.max(1)).unwrap_or(u32::MAX) } else { 0 };
    let fleet = runner.choice(reader, "fleet_mode", FLEET_MODES);
    let class = class?;
    let engine = match class.value {
        "cluster" | "cluster_train" => Engine::Cluster,
        // As PaddleRec does, whatever was written.
        _ if gpus > 1 => Engine::LocalCluster,
        "local_cluster" | "local_cluster_train" => Engine::LocalCluster,
        _ => Engine::Single,
    };
    let is_collective = match &fleet {
        Some(word) => word.value == "collective",
        None => engine == Engine::LocalCluster && gpus > 1,
    };
    if let Some(fleet) = fleet.filter(|_| is_collective && gpus == 0) {
        let message = format!("`{}` is `collective`, which needs GPUs", runner.path("fleet_mode"));
        reader.error(Code::F0018, fleet.at, message, "add `device: gpu`");
    }
    Some(RawRun {
        name: Some(name.clone()),
        engine: At { value: engine, at: class.at },
        epochs: None,
        strategy: runner.choice(reader, "distribute_strategy", STRATEGIES).map(|word| word.value),
        threads: phases.and_then(|phases| threads(reader, runner, phases)),
        gpus,
        is_collective,
        servers: runner.number(reader, "server_num", 1, MAX_REPLICAS).map(|count| count.value),
        workers: runner.number(reader, "worker_num", 1, MAX_REPLICAS).map(|count| count.value),
    })
}

/// The maximum over the phases of a runner.
fn threads(reader: &mut Reader<'_>, runner: &Section<'_>, phases: &[(String, Option<u32>)]) -> Option<u32> {
    let Some(node) = runner.get("phases") else { return phases.iter().filter_map(|(_, count)| *count).max() };
    let what = format!("`{}`", runner.path("phases"));
    let mut most = None;
    for name in words(reader, &what, node) {
        match phases.iter().find(|(phase, _)| *phase == name.value) {
            Some((_, count)) => most = most.max(*count),
            None => unknown_phase(reader, &name.value, name.at, phases),
        }
    }
    most
}

fn unknown_phase(reader: &mut Reader<'_>, name: &str, at: Span, phases: &[(String, Option<u32>)]) {
    let near = reader.nearest(name, phases.iter().map(|(phase, _)| phase.as_str()));
    let label = did_you_mean(near, "not in `phase`");
    reader.error(Code::F0017, at, format!("unknown phase `{}`", shortened(name)), label);
}
