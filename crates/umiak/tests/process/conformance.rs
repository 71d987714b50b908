//! Compares umiak with the launchers that it replaces: one probe runs under each with the same command line. Every
//! variable, process property, file, console line and the exit code are compared. Each difference must be in the list of
//! that launcher, and each entry of the list must still be a difference.

mod compare;
mod names;
mod observe;
mod paddle;
mod torchrun;

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use umiak_core::contract::differences::{Difference, Jobs, Surface};
use umiak_core::model::Generation;
use umiak_testkit::components::Component;
use umiak_testkit::suite::Suite;

use compare::{Seen, compare};
use observe::{Launcher, Observation, observe};

pub(crate) fn register(suite: &mut Suite) {
    paddle::register(suite);
    torchrun::register(suite);
}

/// A launcher that umiak replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Original {
    /// Paddle's launcher. If it is handed over, the line calls the current launcher, which calls the legacy one.
    Paddle { generation: Generation, is_handed_over: bool },
    /// `torchrun`.
    Torchrun,
    /// `python -m torch.distributed.launch`.
    TorchLaunch,
}

impl Original {
    fn generation(self) -> Option<Generation> {
        match self {
            Self::Paddle { generation, .. } => Some(generation),
            Self::Torchrun | Self::TorchLaunch => None,
        }
    }

    fn is_torch(self) -> bool {
        self.generation().is_none()
    }
}

/// One command line and its environment.
struct Case {
    name: &'static str,
    original: Original,
    jobs: Jobs,
    /// Flags in front of the script.
    flags: &'static [&'static str],
    script: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// Number of runs in the same directory.
    runs: usize,
    /// A signal that the launcher gets once both ranks have reported.
    signal: Option<i32>,
}

impl Case {
    const fn new(name: &'static str, original: Original, flags: &'static [&'static str]) -> Self {
        Self { name, original, jobs: Jobs::All, flags, script: "probe.py", env: &[], runs: 1, signal: None }
    }

    const fn of(self, jobs: Jobs) -> Self {
        Self { jobs, ..self }
    }

    const fn script(self, script: &'static str) -> Self {
        Self { script, ..self }
    }

    const fn with(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    const fn twice(self) -> Self {
        Self { runs: 2, ..self }
    }

    const fn signalled(self, signal: i32) -> Self {
        Self { signal: Some(signal), ..self }
    }

    /// Prefix of the lines that Paddle copies from a log to its console.
    fn copied(&self) -> Option<&'static str> {
        match (self.jobs, self.original.generation()?) {
            (Jobs::All | Jobs::SeveralNodes | Jobs::Elastic, _) => Some("probe rank 0"),
            (Jobs::Servers, Generation::Current) => Some("probe rank pserver-0"),
            (Jobs::Servers, Generation::Legacy) => None,
        }
    }
}

type Result = std::result::Result<Vec<Seen>, String>;

/// The cases of a launcher.
struct Table {
    cases: &'static [Case],
    /// Computed once, on first use.
    results: &'static [OnceLock<Result>],
    list: &'static [Difference],
}

impl Table {
    fn register(&'static self, name: &str, suite: &mut Suite, needs: &[Component]) {
        for (index, case) in self.cases.iter().enumerate() {
            let nodes = (case.original.is_torch() && case.jobs == Jobs::SeveralNodes).then_some(Component::Netns);
            let needs: Vec<Component> = needs.iter().copied().chain(nodes).collect();
            suite.test(&format!("{name}::{}", case.name), &needs, move || self.check(index));
        }
        suite.test(&format!("{name}::no_entry_is_stale"), needs, || self.no_entry_is_stale());
    }

    fn check(&self, index: usize) {
        let case = &self.cases[index];
        let is_listed = |seen: &Seen| self.list.iter().any(|entry| covers(entry, case, seen));
        let unlisted: Vec<String> =
            self.seen(index).iter().filter(|seen| !is_listed(seen)).map(ToString::to_string).collect();
        assert!(unlisted.is_empty(), "{} unlisted differences:\n{}", unlisted.len(), unlisted.join("\n"));
    }

    /// Checks each pattern on its own. Console entries are checked as a whole, because some lines depend on installed
    /// packages.
    fn no_entry_is_stale(&self) {
        let is_compared = |case: &&(usize, &Case)| case.1.jobs != Jobs::SeveralNodes || has_hosts();
        let indexed: Vec<(usize, &Case)> = self.cases.iter().enumerate().collect();
        let all: Vec<(&Case, &[Seen])> =
            indexed.iter().filter(is_compared).map(|(index, case)| (*case, self.seen(*index).as_slice())).collect();
        let single = |entry: &Difference| match entry.surface {
            Surface::Console => vec![*entry],
            _ => entry.patterns.chunks(1).map(|patterns| Difference { patterns, ..*entry }).collect(),
        };
        let has_cases = |entry: &&Difference| {
            let is_apart = matches!(entry.jobs, Jobs::SeveralNodes | Jobs::Elastic);
            !is_apart || all.iter().any(|(case, _)| case.jobs == entry.jobs)
        };
        let stale: Vec<String> = self
            .list
            .iter()
            .filter(has_cases)
            .flat_map(single)
            .filter(|entry| !all.iter().any(|(case, seen)| seen.iter().any(|seen| covers(entry, case, seen))))
            .map(|entry| format!("{entry:?}"))
            .collect();
        assert!(stale.is_empty(), "entries that no longer differ:\n{}", stale.join("\n"));
    }

    fn seen(&self, index: usize) -> &'static Vec<Seen> {
        // The legacy launcher mostly sleeps, so its cases run in parallel.
        let sleeps = |case: &Case| case.original.generation() == Some(Generation::Legacy);
        if sleeps(&self.cases[index]) {
            std::thread::scope(|scope| {
                for (other, _) in self.cases.iter().enumerate().filter(|(_, case)| sleeps(case)) {
                    scope.spawn(move || self.result(other));
                }
            });
        }
        self.result(index).as_ref().unwrap_or_else(|message| panic!("{message}"))
    }

    fn result(&self, index: usize) -> &'static Result {
        self.results[index].get_or_init(|| {
            std::panic::catch_unwind(AssertUnwindSafe(|| {
                let case = &self.cases[index];
                let theirs = observe_original(case);
                let ours = observe(case, Launcher::Umiak { flags: &[] });
                theirs.iter().zip(&ours).flat_map(|(theirs, ours)| compare(case, self.list, theirs, ours)).collect()
            }))
            .map_err(|panic| {
                panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "the observation panicked".to_owned())
            })
        })
    }
}

fn covers(entry: &Difference, case: &Case, seen: &Seen) -> bool {
    entry.covers(seen.surface, case.original.generation(), case.jobs, seen.kind, &seen.name)
}

fn has_hosts() -> bool {
    Component::Netns.version().is_some()
}

/// Retries when Paddle's launcher exits before it has copied the rank's last lines to the console, which happens on a
/// busy machine.
fn observe_original(case: &Case) -> Vec<Observation> {
    let is_whole =
        |seen: &Observation| case.copied().is_none_or(|start| seen.console.iter().any(|line| line.starts_with(start)));
    (0..4)
        .map(|_| observe(case, Launcher::Original))
        .find(|seen| seen.iter().all(is_whole))
        .unwrap_or_else(|| observe(case, Launcher::Original))
}
