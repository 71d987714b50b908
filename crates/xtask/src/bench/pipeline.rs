//! `cargo xtask bench pipeline`: pipelines beside ninja and `make`, memory per step, large documents, and the scheduler
//! alone.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use umiak_core::facts::Outcome;
use umiak_core::machine::pipeline::{Effect, Event, Machine, Resolution};
use umiak_core::model::{Body, Items, Job, JobId, Node, NodeId, OnFailure, Pipeline, Policy, Step, StepIndex, Value};

use super::crowd::cpu_micros;
use super::floor::WORD;
use super::model::{Metric, Sample, Series};
use super::options::{Field, Shared};
use super::peers::{Kind, Peer};
use super::rounds::{Contestant, Rounds, say};
use super::rows::pipelines::{self, Tool};
use super::rows::{Setting, directory};
use super::{beside, of_peer, publish, verdict};

const NAME: &str = "pipeline";
/// Sizes in the requirements.
pub(crate) const STEPS: u32 = 10_000;
pub(crate) const PLANNED: u32 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    Steps,
    Memory,
    Plan,
    Schedule,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    shared: Shared<Row>,
    /// Numbers of steps for `steps`
    #[arg(long, value_delimiter = ',', default_values_t = [STEPS])]
    n: Vec<u32>,
}

/// Measures and reports. Fails if something could not be measured at all or is worse than with `--against`, not if it
/// is slow.
pub(crate) fn pipeline(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let shared = &options.shared;
    let Field { floor, peers, .. } = shared.field(root, |kind| kind == Kind::Umiak)?;
    let setting = Setting::new(floor, Duration::from_secs(shared.limit));
    // Every row takes seconds.
    let rounds = Rounds { slow: shared.rounds().slow, fast: shared.rounds().fast.min(5) };
    let mut absent = Vec::new();
    let mut series = Vec::new();
    if shared.wants(&Row::Steps) {
        let (tools, missing) = tools(&peers);
        absent = missing;
        let contestants: Vec<_> = tools.iter().map(|(tool, is_old)| competing(tool, *is_old)).collect();
        for &steps in &options.n {
            say(&format!("{steps} steps"))?;
            series.extend(
                rounds.run(&contestants, &[Metric::Steps], steps, |tool, _| pipelines::run(&setting, tool, steps))?,
            );
        }
    }
    let umiaks: Vec<Contestant<'_, Peer>> = peers.iter().map(|peer| of_peer(peer, peer)).collect();
    if shared.wants(&Row::Memory) {
        say("memory")?;
        series.extend(
            rounds.run(&umiaks, &[Metric::StepMemory], STEPS, |peer, _| pipelines::memory(&setting, peer, STEPS))?,
        );
    }
    if shared.wants(&Row::Plan) {
        say(&format!("plan of {PLANNED} steps"))?;
        let home = directory()?;
        let file = home.path().join("large.yaml");
        std::fs::write(&file, large(PLANNED))?;
        series.extend(
            rounds.run(&umiaks, &[Metric::Planning], PLANNED, |peer, _| pipelines::plan(&setting, peer, &file))?,
        );
    }
    if shared.wants(&Row::Schedule) {
        say("schedule")?;
        series.extend(measure_schedule(&setting.floor, rounds)?);
    }
    let settings = format!("{} rounds; a limit of {} s", rounds.fast, shared.limit);
    let verdicts = verdict::of_pipelines(&series);
    let report = super::report(&peers, absent, settings, series, verdicts);
    publish(root, NAME, &report, shared.json.as_deref(), shared.write)
}

/// What runs the same steps, and what is not installed.
fn tools(peers: &[Peer]) -> (Vec<(Tool, bool)>, Vec<String>) {
    let mut found: Vec<(Tool, bool)> =
        peers.iter().map(|peer| (Tool::Umiak(peer.program().to_owned()), peer.is_old)).collect();
    let mut absent = Vec::new();
    for (name, tool) in [("ninja", Tool::Ninja), ("make", Tool::Make)] {
        if Command::new(name).arg("--version").output().is_ok_and(|said| said.status.success()) {
            found.push((tool, false));
        } else {
            absent.push(name.to_owned());
        }
    }
    (found, absent)
}

/// Ninja's time is what the others are compared with.
fn competing(tool: &Tool, is_old: bool) -> Contestant<'_, Tool> {
    Contestant { is_old, ..beside(tool.name(), *tool == Tool::Ninja, tool) }
}

/// A document whose steps have what steps usually have: a dependency, a parameter, a variable, and templates.
fn large(steps: u32) -> String {
    let mut text = "name: large\nentry_points:\n".to_owned();
    for step in 0..steps {
        let deps = if step % 10 == 0 { String::new() } else { format!("    deps: step{}\n", step - 1) };
        let _ = write!(
            text,
            "  step{step}:\n{deps}    parameters: {{rate: {step}}}\n    env: {{RATE: '{{{{rate}}}}'}}\n    command: echo {{{{rate}}}} $RATE\n"
        );
    }
    text
}

/// How the steps of a pipeline depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Independent,
    Chained,
    Diamonds,
    /// One step with many items.
    Loop,
}

impl Shape {
    const ALL: [Self; 4] = [Self::Independent, Self::Chained, Self::Diamonds, Self::Loop];

    fn name(self) -> &'static str {
        match self {
            Self::Independent => "independent",
            Self::Chained => "chained",
            Self::Diamonds => "diamonds",
            Self::Loop => "loop",
        }
    }

    /// The positions of the steps before this one.
    fn deps(self, at: u32) -> Vec<u32> {
        match (self, at % 4) {
            (Self::Independent | Self::Loop, _) => Vec::new(),
            (Self::Chained, _) | (Self::Diamonds, 0) => at.checked_sub(1).into_iter().collect(),
            (Self::Diamonds, 3) => vec![at - 2, at - 1],
            (Self::Diamonds, place) => vec![at - place],
        }
    }
}

fn measure_schedule(program: &Path, rounds: Rounds) -> anyhow::Result<Vec<Series>> {
    let contestants = Shape::ALL.each_ref().map(|shape| beside(shape.name(), false, shape));
    rounds.run(&contestants, &[Metric::Scheduling], STEPS, |shape, _| {
        let said = Command::new(program).args([WORD, "schedule", shape.name(), &STEPS.to_string()]).output()?;
        ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let micros = String::from_utf8_lossy(&said.stdout).trim().parse()?;
        Ok(Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Scheduling, micros, 0.0) }))
    })
}

/// Prints the CPU time per step in microseconds, in a process of its own.
pub(crate) fn schedule(shape: &OsStr, steps: u32) -> anyhow::Result<ExitCode> {
    let shape = Shape::ALL.into_iter().find(|known| shape == known.name()).context("no such shape")?;
    let mut machine = Machine::new(Arc::new(pipeline_of(shape, steps)?));
    let before = cpu_micros()?;
    let mut queue = VecDeque::from([Event::Start]);
    let mut letters = 0;
    while let Some(event) = queue.pop_front() {
        for effect in machine.step(event) {
            match effect {
                Effect::Resolve(id) => {
                    let what = if shape == Shape::Loop && id == StepIndex(1) {
                        Resolution::Loop { items: vec![Value::Int(1); steps as usize] }
                    } else {
                        Resolution::Run
                    };
                    queue.push_back(Event::Resolved { id, values: Box::default(), what });
                }
                Effect::Run { id, .. } => {
                    // Its directory has this name.
                    letters += machine.name(id).map_or(0, |name| name.as_str().len());
                    queue.push_back(Event::Ended { id, outcome: Outcome::Succeeded });
                }
                Effect::Record { .. } | Effect::Close(_) | Effect::Stop { .. } | Effect::Finish(_) => {}
            }
        }
    }
    let micros = cpu_micros()? - before;
    ensure!(machine.is_finished() && letters > 0, "the pipeline has not ended");
    writeln!(std::io::stdout(), "{}", micros as f64 / f64::from(steps))?;
    Ok(ExitCode::SUCCESS)
}

fn pipeline_of(shape: Shape, steps: u32) -> anyhow::Result<Pipeline> {
    let name = JobId::new("large")?;
    let labels = BTreeMap::new();
    let policy = Policy::default();
    let job = Job {
        name: name.clone(),
        labels: labels.clone(),
        agent_store: false,
        contracts: vec![],
        roles: vec![],
        policy,
    };
    let node = |name: String, deps: Vec<u32>, items, body| Node {
        name,
        parent: Pipeline::ROOT,
        deps: deps.into_iter().map(|dep| NodeId(dep + 1)).collect(),
        parameters: vec![],
        inputs: vec![],
        outputs: vec![],
        condition: None,
        items,
        disabled: false,
        body,
    };
    let count = if shape == Shape::Loop { 1 } else { steps };
    let items = (shape == Shape::Loop).then(|| Items::List(vec![]));
    let mut nodes = vec![node(String::new(), vec![], None, Body::Dag { children: (1..=count).map(NodeId).collect() })];
    nodes.extend((0..count).map(|position| {
        let step = Step { job: job.clone(), texts: vec![], cache: None, engine: None };
        node(format!("step-{position}"), shape.deps(position), items.clone(), Body::Step(Box::new(step)))
    }));
    let on_failure = OnFailure::FailFast;
    Ok(Pipeline { name, labels, nodes, post: None, parallelism: 64, on_failure, store: None, paddleflow: false })
}
