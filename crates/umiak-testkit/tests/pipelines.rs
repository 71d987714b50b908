//! Thousands of simulated runs of pipelines, with supervisors that are lost, stops, and runs that repeat others.
//!
//! `UMIAK_PIPELINES` sets how many (4000), `UMIAK_SEED` replays one and prints its timeline.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use umiak_core::facts::{Fact, Outcome, Planned, Record, VERSION};
use umiak_core::machine::pipeline::{Effect, Event, Machine, Resolution};
use umiak_core::model::{Body, Items, Job, JobId, Node, NodeId, OnFailure, Pipeline, Policy, Step, StepName, Value};
use umiak_core::status::RunStatus;
use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate_pipeline::{self, Pair, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_PIPELINES",
    usual: 4000,
    noun: "pipelines",
    run: simulate_pipeline::run,
    assert_valid: Run::assert_valid,
};

/// Stops before the start have a test of their own.
const UNREACHABLE: &[Pair] = &[("Waiting", "StopAsked")];

/// What a campaign of the usual size must meet, with the minimum number of runs.
const MET: &[(&str, u64)] = &[
    ("DAG failed", 200),
    ("DAG repeated", 300),
    ("DAG stopped", 400),
    ("DAG succeeded", 900),
    ("asked to stop", 500),
    ("cached", 300),
    ("cancelled", 900),
    ("cancelled by the next supervisor", 10),
    ("closed", 400),
    ("failed", 600),
    ("interrupted", 400),
    ("kept", 400),
    ("killed", 300),
    ("loop in a loop", 70),
    ("loop repeated", 300),
    ("loop without items", 200),
    ("looped", 800),
    ("lost between effects", 400),
    ("post step", 900),
    ("refused", 200),
    ("repeated", 800),
    ("resumed", 400),
    ("resumed while stopping", 160),
    ("run again", 200),
    ("run only to stop it", 50),
    ("skipped", 500),
    ("stale event", 1500),
    ("stopped", 400),
    ("succeeded", 1500),
];

#[test]
fn every_pipeline_keeps_the_rules() {
    let Some(seeds) = CAMPAIGN.seeds() else { return };
    let summary = simulate_pipeline::campaign(&seeds);
    CAMPAIGN.assert_none_fails(&seeds, &summary.failing);
    if CAMPAIGN.is_whole(&seeds) {
        let missing: Vec<Pair> = simulate_pipeline::pairs().difference(&summary.taken).copied().collect();
        assert_eq!(missing, UNREACHABLE, "transitions that no pipeline has taken");
        CAMPAIGN.assert_met(&summary.met, MET);
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..50 {
        assert_eq!(simulate_pipeline::run(seed).to_string(), simulate_pipeline::run(seed).to_string(), "seed {seed}");
    }
}

#[test]
fn broken_drivers_are_noticed() {
    let broken: &[(Sabotage, &[Rule])] = &[
        (Sabotage::LoseLeft, &[Rule::Replay]),
        (Sabotage::LoseLooping, &[Rule::Replay]),
        (Sabotage::LoseFinished, &[Rule::Replay]),
        (Sabotage::Forget, &[Rule::Replay, Rule::Begin]),
        (Sabotage::Repeat, &[Rule::Kept]),
    ];
    for (sabotage, rules) in broken {
        let runs = (0..200).map(|seed| simulate_pipeline::run_sabotaged(seed, *sabotage));
        let noticed: Vec<Rule> = runs.flat_map(|run| run.violations()).map(|violation| violation.rule).collect();
        for rule in *rules {
            let count = noticed.iter().filter(|other| *other == rule).count();
            assert!(count >= 3, "{sabotage:?} broke {rule:?} {count} times");
        }
    }
}

/// Replaying the start of a journal and then adding the rest equals replaying all of it, and records survive writing
/// and reading.
#[test]
fn a_journal_adds_up_wherever_it_is_cut() {
    for journal in (0..60).flat_map(|seed| simulate_pipeline::run(seed).journals) {
        let whole = RunStatus::replay(&journal);
        let lines: Vec<String> =
            journal.iter().map(|record| serde_json::to_string(record).expect("plain data")).collect();
        let read: Vec<Record> =
            lines.iter().map(|line| serde_json::from_str(line).expect("what was written")).collect();
        assert_eq!(read, journal);
        for cut in (0..journal.len()).step_by(1 + journal.len() / 8) {
            let (first, rest) = journal.split_at(cut);
            let mut status = RunStatus::replay(first);
            for record in rest {
                status.add(record);
            }
            assert_eq!(status, whole, "cut at {cut}");
        }
    }
}

const STEPS: u32 = 10_000;

/// The steps before each step, by position; a loop has none.
type Deps = Option<fn(u32) -> Vec<u32>>;

fn shape(deps: Deps) -> Pipeline {
    let name = JobId::new("large").expect("a plain name");
    let job = Job {
        name: name.clone(),
        labels: BTreeMap::new(),
        contracts: vec![],
        roles: vec![],
        policy: Policy::default(),
    };
    let node = |name: String, deps: Vec<u32>, body| Node {
        name,
        parent: Pipeline::ROOT,
        deps: deps.into_iter().map(|dep| NodeId(dep + 1)).collect(),
        parameters: vec![],
        inputs: vec![],
        outputs: vec![],
        condition: None,
        items: None,
        disabled: false,
        body,
    };
    let count = if deps.is_some() { STEPS } else { 1 };
    let children = (1..=count).map(NodeId).collect();
    let mut nodes = vec![node(String::new(), vec![], Body::Dag { children })];
    for position in 0..count {
        let step = Step { job: job.clone(), texts: vec![], cache: None };
        let deps = deps.map(|deps| deps(position)).unwrap_or_default();
        nodes.push(node(format!("step-{position}"), deps, Body::Step(Box::new(step))));
    }
    if deps.is_none() {
        nodes[1].items = Some(Items::List(vec![]));
    }
    Pipeline {
        name,
        labels: BTreeMap::new(),
        nodes,
        post: None,
        parallelism: 64,
        on_failure: OnFailure::FailFast,
        store: None,
        paddleflow: false,
    }
}

/// Resident memory, in bytes.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("a number of pages") * 4096.0
}

/// Prints what a step costs: `cargo test --release -p umiak-testkit --test pipelines -- --ignored --nocapture`.
#[test]
#[ignore = "it measures"]
#[expect(clippy::print_stdout, reason = "its result is for the reader")]
fn what_a_step_costs() {
    let chain = |at: u32| at.checked_sub(1).into_iter().collect();
    let diamond = |at: u32| match at % 4 {
        0 => at.checked_sub(1).into_iter().collect(),
        3 => vec![at - 2, at - 1],
        other => vec![at - other],
    };
    let shapes: [(&str, Deps); 4] =
        [("independent", Some(|_| vec![])), ("chained", Some(chain)), ("diamonds", Some(diamond)), ("loop", None)];
    for (name, deps) in shapes {
        let pipeline = Arc::new(shape(deps));
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..5 {
            let begin = Instant::now();
            let mut machine = Machine::new(Arc::clone(&pipeline));
            let mut queue = VecDeque::from([Event::Start]);
            let (mut names, mut naming) = (0, 0.0);
            while let Some(event) = queue.pop_front() {
                for effect in machine.step(event) {
                    match effect {
                        Effect::Resolve(id) => {
                            let what = if deps.is_none() && id.0 == 1 {
                                Resolution::Loop { items: vec![Value::Int(1); STEPS as usize] }
                            } else {
                                Resolution::Run
                            };
                            queue.push_back(Event::Resolved { id, values: Box::default(), what });
                        }
                        Effect::Run { id, .. } => {
                            let begin = Instant::now();
                            names += machine.name(id).map_or(0, |name| name.as_str().len());
                            naming += begin.elapsed().as_secs_f64();
                            queue.push_back(Event::Ended { id, outcome: Outcome::Succeeded });
                        }
                        Effect::Record { .. } | Effect::Close(_) | Effect::Stop { .. } | Effect::Finish(_) => {}
                    }
                }
            }
            assert!(machine.is_finished() && names > 0);
            let whole = begin.elapsed().as_secs_f64();
            best = (best.0.min(whole), best.1.min(naming));
        }
        let each = |seconds: f64| seconds * 1e6 / f64::from(STEPS);
        println!("{name}: {:.2} us per step, {:.2} us of it for its name", each(best.0), each(best.1));
    }
    let before = resident();
    let mut status = RunStatus::default();
    let mut seq = 0;
    let mut add = |step: Option<&str>, fact| {
        let step = step.map(|step| StepName::new(step).expect("a plain name"));
        status.add(&Record { run: None, v: VERSION, seq, at: seq + 1, epoch: 0, step, fact });
        seq += 1;
    };
    add(None, Fact::Pipeline(Box::default()));
    let count = 200_000;
    let begin = Instant::now();
    for position in 0..count {
        let name = format!("step-{position}");
        let planned = Planned {
            job: name.clone(),
            name: String::new(),
            command: String::new(),
            attempt: 1,
            umiak: "0".into(),
            world_size: 0,
            log_dir: String::new(),
            roles: vec![],
            replicas: vec![],
            nodes: vec![],
        };
        add(Some(&name), Fact::Planned(planned));
        add(Some(&name), Fact::Finished { outcome: Outcome::Succeeded, exit_code: 0 });
    }
    let micros = begin.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    let bytes = (resident() - before) / f64::from(count);
    let nodes = status.pipeline.map_or(0, |pipeline| pipeline.nodes().count());
    println!("read model: {micros:.2} us and {bytes:.0} bytes per finished step, of {nodes}");
}
