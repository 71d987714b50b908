//! `cargo xtask bench machine`: the state machine of a job, without processes. The cost of an event must not grow with
//! the number of replicas.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use clap::Args;
use umiak_core::machine::exit_code::CodeStyle;
use umiak_core::machine::job::{AttemptId, Effect, Event, Machine};
use umiak_core::model::{Exit, ExitCodes, Generation, Instance, Job, JobId, Policy, Role, RoleName, Timestamp};

use super::crowd::cpu_micros;
use super::floor::{FAILURE, WORD};
use super::model::{Metric, Sample};
use super::rounds::{Rounds, say};
use super::{beside, build, publish, verdict};

const NAME: &str = "machine";
const SIGTERM: i32 = 15;

/// Numbers of replicas; the requirement uses the first and the last.
pub(crate) const SIZES: [u32; 3] = [100, 1000, 10_000];
/// Minimum number of events in a sample: a job with few replicas takes too little time.
const EVENTS: u32 = 20_000;

/// What happens to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Story {
    /// All start, run and exit with 0.
    Well,
    /// All start, one fails, the others are stopped.
    Failure,
}

impl Story {
    const ALL: [Self; 2] = [Self::Well, Self::Failure];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Well => "all succeed",
            Self::Failure => "one fails",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of rounds
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Write all measurements to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Update the tables in docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// Measures and reports.
pub(crate) fn machine(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let program = build(root)?.join("xtask");
    let rounds = Rounds { fast: options.rounds, slow: options.rounds };
    let mut series = Vec::new();
    for replicas in SIZES {
        say(&format!("{replicas} replicas"))?;
        let contestants = Story::ALL.each_ref().map(|story| beside(story.name(), false, story));
        series.extend(rounds.run(&contestants, &[Metric::Event], replicas, |story, _| {
            let micros = ask(&program, *story, replicas)?;
            Ok(Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Event, micros, 0.0) }))
        })?);
    }
    let verdicts = verdict::of_machine(&series);
    let report = super::report(&[], Vec::new(), format!("{} rounds", options.rounds), series, verdicts);
    publish(root, NAME, &report, options.json.as_deref(), options.write)
}

/// Runs the measurement in a separate process, built like umiak.
fn ask(program: &Path, story: Story, replicas: u32) -> anyhow::Result<f64> {
    let said = Command::new(program).args([WORD, NAME, story.name(), &replicas.to_string()]).output()?;
    ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Ok(String::from_utf8_lossy(&said.stdout).trim().parse()?)
}

/// Prints the CPU time per event in microseconds, so that other processes do not count.
pub(crate) fn perform(story: &OsStr, replicas: u32) -> anyhow::Result<ExitCode> {
    let story = Story::ALL.into_iter().find(|known| story == known.name()).context("no such story")?;
    let style = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: true, etcd: None };
    let mut machines = Vec::new();
    // Each replica starts and ends: two events.
    for _ in 0..EVENTS.div_ceil(2 * replicas) {
        machines.push(Machine::new(job(replicas)?, style, 1));
    }
    let before = cpu_micros()?;
    let events: usize = machines.iter_mut().map(|machine| play(machine, story)).sum();
    let micros = cpu_micros()? - before;
    ensure!(machines.iter().all(Machine::is_finished), "a job has not ended");
    writeln!(std::io::stdout(), "{}", micros as f64 / events as f64)?;
    Ok(ExitCode::SUCCESS)
}

fn job(replicas: u32) -> anyhow::Result<Job> {
    let role = Role::new(RoleName::new("trainer")?, replicas);
    let (labels, contracts, policy) = (BTreeMap::new(), Vec::new(), Policy::default());
    Ok(Job { name: JobId::new("bench")?, labels, contracts, agent_store: false, roles: vec![role], policy })
}

/// Answers the effects of the machine until there are none, and returns the number of events.
fn play(machine: &mut Machine, story: Story) -> usize {
    let now = Timestamp::from_micros(1);
    let mut queue = VecDeque::from([Event::Start]);
    let mut count = 0;
    while let Some(event) = queue.pop_front() {
        count += 1;
        for effect in machine.step(event, now) {
            match effect {
                Effect::Spawn(attempts) => {
                    queue.extend(attempts.iter().map(|id| started(*id)));
                    match (story, attempts.get(attempts.len() / 2)) {
                        (Story::Failure, Some(id)) => queue.push_back(exited(*id, code(i32::from(FAILURE)))),
                        _ => queue.extend(attempts.iter().map(|id| exited(*id, code(0)))),
                    }
                }
                Effect::Stop { targets, .. } => {
                    queue.extend(
                        targets.iter().map(|id| exited(*id, Exit::Signal { signal: SIGTERM, core_dumped: false })),
                    );
                }
                Effect::Gather { .. } => queue.push_back(Event::Gathered(Vec::new())),
                _ => {}
            }
        }
    }
    count
}

fn started(id: AttemptId) -> Event {
    Event::Started { id, instance: Instance::of_pid(1) }
}

fn exited(id: AttemptId, exit: Exit) -> Event {
    Event::Exited { id, exit, classed: None, usage: None }
}

fn code(code: i32) -> Exit {
    Exit::Code { code }
}
