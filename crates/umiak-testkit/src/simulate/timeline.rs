//! The timeline of a run, and how it is displayed for debugging.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use umiak_core::machine::job::{Effect, Event};
use umiak_core::model::{Exit, Timestamp};

use super::coverage::Pair;
use super::invariants::{self, Violation};
use super::scenario::{Scenario, Words};

/// One event and its effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub at: Timestamp,
    pub event: Event,
    pub effects: Vec<Effect>,
    /// If the event was ignored: whether the machine is unchanged.
    pub unchanged: bool,
}

/// How a process really ended. Only the judge has this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    pub at: Timestamp,
    pub exit: Exit,
    pub why: Why,
    pub words: Words,
}

/// Why a process really died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// By itself, well or badly.
    Own,
    /// Because of a peer's death.
    Peer,
    /// Because of our signal.
    Ours,
    /// With the guardian.
    Guardian,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Run {
    pub scenario: Scenario,
    pub steps: Vec<Step>,
    /// By attempt, in rank order.
    pub deaths: BTreeMap<u32, Vec<Option<Death>>>,
    /// Transitions that attempts took.
    pub taken: BTreeSet<Pair>,
}

impl Run {
    /// Everything that is wrong with the run.
    pub fn violations(&self) -> Vec<Violation> {
        invariants::check(self)
    }

    /// Panics with the whole timeline if anything is wrong.
    pub fn assert_valid(&self) {
        let violations = self.violations();
        let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{self}\n{}\nreplay with UMIAK_SEED={}", list.join("\n"), self.scenario.seed);
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { seed, job, style, gather, late, .. } = &self.scenario;
        writeln!(
            f,
            "seed {seed}: {:?}, {style:?}, gathering takes {gather:?}, timers up to {late:?} late",
            job.policy
        )?;
        for role in &job.roles {
            writeln!(f, "  {} × {}: {:?}", role.name, role.replicas, role.completion)?;
        }
        for (attempt, deaths) in &self.deaths {
            for (name, death) in self.scenario.names().iter().zip(deaths) {
                if let Some(Death { at, exit, why, words }) = death {
                    let end = exit.describe();
                    writeln!(f, "  in truth {name}, attempt {attempt}, {end} at {}: {why:?}, {words:?}", Millis(*at))?;
                }
            }
        }
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{index:>4} {:>14} {:?}", Millis(step.at), step.event)?;
            for effect in &step.effects {
                writeln!(f, "                       └ {effect:?}")?;
            }
        }
        Ok(())
    }
}

/// A time in milliseconds.
struct Millis(Timestamp);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        f.pad(&format!("{}.{:03} ms", micros / 1000, micros % 1000))
    }
}
