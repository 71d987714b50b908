//! Trials that kill umiak itself, and the search for leftovers.
//!
//! Each trial runs below a subreaper. Processes that outlive front and guardian are reparented to it, so none gets lost
//! by forking twice, leaving a session or clearing an environment. The subreaper is this test binary again, started
//! with `kill-trials`; several run in parallel.

mod census;
mod corner;
mod trial;

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::sandbox::{Sandbox, binary};

pub use trial::Victim;

/// Parallel trials: most of a trial is waiting.
const WORKERS: usize = 6;

/// What is checked after each kill.
pub const CHECKED: [&str; 3] = ["rank", "grandchild in its group", "daemonised grandchild"];

/// The result of one trial.
#[derive(Debug, Clone)]
pub struct Report {
    pub index: usize,
    pub victim: Victim,
    /// The trial in words, with enough detail to repeat it.
    pub described: String,
    /// A rank was between fork and exec.
    pub before_exec: bool,
    /// In the order of [`CHECKED`]: how many were seen.
    pub seen: [usize; 3],
    /// In the order of [`CHECKED`]: which ones survived.
    pub left: [Vec<u32>; 3],
    /// Fronts and guardians that survived.
    pub umiak_left: Vec<u32>,
    /// Files left in the temporary directory.
    pub files_left: Vec<String>,
    /// The front's exit code, unless a signal ended it.
    pub code: Option<i32>,
    pub said: String,
}

impl Report {
    fn to_json(&self) -> Value {
        json!({
            "index": self.index, "victim": self.victim.name(), "described": self.described,
            "before_exec": self.before_exec, "seen": self.seen,
            "left": self.left, "umiak_left": self.umiak_left, "files_left": self.files_left, "code": self.code,
            "said": self.said,
        })
    }

    fn from_json(value: &Value) -> Self {
        let pids = |value: &Value| -> Vec<u32> {
            value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|pid| pid as u32).collect()
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            index: value["index"].as_u64().unwrap_or_default() as usize,
            victim: Victim::from_name(value["victim"].as_str().unwrap_or_default()),
            described: text(&value["described"]),
            before_exec: value["before_exec"] == true,
            seen: [0, 1, 2].map(|place| value["seen"][place].as_u64().unwrap_or_default() as usize),
            left: [0, 1, 2].map(|place| pids(&value["left"][place])),
            umiak_left: pids(&value["umiak_left"]),
            files_left: value["files_left"].as_array().into_iter().flatten().map(text).collect(),
            code: value["code"].as_i64().map(|code| code as i32),
            said: text(&value["said"]),
        }
    }

    /// True if any process survived.
    pub fn left_any(&self) -> bool {
        !self.umiak_left.is_empty() || self.left.iter().any(|left| !left.is_empty())
    }
}

/// Runs `count` trials, the victims in turn.
pub fn run(sandbox: &Sandbox, seed: u64, victims: &[Victim], count: usize) -> Vec<Report> {
    let names: Vec<&str> = victims.iter().map(|victim| victim.name()).collect();
    let workers: Vec<_> = (0..WORKERS.min(count))
        .map(|first| {
            let mut command = Command::new(std::env::current_exe().expect("the test binary has a path"));
            command.arg("kill-trials").arg(binary()).arg(names.join(","));
            command.args([seed.to_string(), first.to_string(), count.to_string()]);
            command.current_dir(sandbox.path()).env_clear().envs(sandbox.environment());
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            command.spawn().expect("the test binary can be started")
        })
        .collect();
    // Read all at once: a worker with a full pipe would block.
    let readers: Vec<_> = workers.into_iter().map(|worker| std::thread::spawn(move || read(worker))).collect();
    let mut reports: Vec<Report> = readers.into_iter().flat_map(|reader| reader.join().expect("a reader")).collect();
    assert_eq!(reports.len(), count, "every trial has a report");
    reports.sort_by_key(|report| report.index);
    reports
}

fn read(mut worker: Child) -> Vec<Report> {
    let lines = BufReader::new(worker.stdout.take().expect("a pipe")).lines();
    let parse = |line: String| {
        Report::from_json(&serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    };
    let reports = lines.map_while(Result::ok).map(parse).collect();
    assert!(worker.wait().expect("our own child").success(), "a worker failed");
    reports
}

/// Counts per cell: trials in which the checked process was seen, and in which one survived.
pub fn table(reports: &[Report]) -> String {
    let mut text = format!("{:<20} {:<24} {:>7} {:>7} {:>7}\n", "killed", "checked", "trials", "seen in", "left in");
    let mut victims: Vec<Victim> = reports.iter().map(|report| report.victim).collect();
    victims.sort_unstable();
    victims.dedup();
    for victim in victims {
        let of_victim = || reports.iter().filter(|report| report.victim == victim);
        let mut row = |checked: &str, seen: usize, left: usize| {
            let trials = of_victim().count();
            let _ = writeln!(text, "{:<20} {checked:<24} {trials:>7} {seen:>7} {left:>7}", victim.name());
        };
        let between = || of_victim().filter(|report| report.before_exec);
        row("rank before its exec", between().count(), between().filter(|report| !report.left[0].is_empty()).count());
        for (place, checked) in CHECKED.iter().enumerate() {
            let seen = of_victim().filter(|report| report.seen[place] > 0).count();
            row(checked, seen, of_victim().filter(|report| !report.left[place].is_empty()).count());
        }
        row("umiak itself", of_victim().count(), of_victim().filter(|report| !report.umiak_left.is_empty()).count());
        let files = of_victim().filter(|report| !report.files_left.is_empty()).count();
        row("scratch directory", of_victim().count(), files);
    }
    text
}

/// Runs as a worker if this process was started as one, and returns the exit code.
pub fn run_if_asked() -> Option<u8> {
    let arguments: Vec<String> = std::env::args().collect();
    (arguments.get(1).map(String::as_str) == Some("kill-trials")).then(|| work(&arguments[2..]))
}

fn work(arguments: &[String]) -> u8 {
    let [binary, victims, seed, first, count] = arguments else { panic!("BINARY VICTIMS SEED FIRST COUNT") };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let victims: Vec<Victim> = victims.split(',').map(Victim::from_name).collect();
    umiak_sys::descend::become_subreaper().expect("a subreaper");
    let _corner = corner::Corner::enter();
    let binary = PathBuf::from(binary);
    let here = std::env::current_dir().expect("the sandbox is there");
    for index in (number(first)..number(count)).step_by(WORKERS) {
        let plan = trial::Plan::new(number(seed) as u64, index, &victims);
        let report = trial::run(&plan, index, &binary, &here);
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{}", report.to_json()).and_then(|()| stdout.flush()).expect("the suite reads");
    }
    0
}
