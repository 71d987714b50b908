//! Many seeds at once, for the simulators, and how a simulator's test goes through them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::Write as _;
use std::ops::Range;
use std::thread;

/// Names one seed to be replayed and told.
const SEED: &str = "UMIAK_SEED";

/// How many seeds the test of a simulator tries, and what becomes of those that break a rule.
#[derive(Debug)]
pub struct Campaign<Run> {
    /// The variable that says how many.
    pub variable: &'static str,
    pub usual: u64,
    /// What a seed gives, in the plural.
    pub noun: &'static str,
    pub run: fn(u64) -> Run,
    pub assert_valid: fn(&Run),
}

impl<Run: Display> Campaign<Run> {
    /// The seeds to try; nothing more is to be done where one was named, which has been told and judged then.
    pub fn seeds(&self) -> Option<Range<u64>> {
        if let Some(seed) = number(SEED) {
            let run = (self.run)(seed);
            say(&run.to_string());
            (self.assert_valid)(&run);
            return None;
        }
        Some(0..number(self.variable).unwrap_or(self.usual))
    }

    /// Fails with the story of the first of these.
    pub fn assert_none_fails(&self, seeds: &Range<u64>, failing: &[u64]) {
        let Some(first) = failing.first() else { return };
        let some: Vec<_> = failing.iter().take(20).collect();
        say(&format!("{} of {} {} break a rule: {some:?}\n", failing.len(), seeds.end, self.noun));
        (self.assert_valid)(&(self.run)(*first));
    }

    /// Only a campaign of the usual size has met everything.
    pub fn is_whole(&self, seeds: &Range<u64>) -> bool {
        seeds.end >= self.usual
    }

    /// Fails unless each of these was met so often at least.
    pub fn assert_met(&self, met: &BTreeMap<String, u64>, expected: &[(&str, u64)]) {
        for (thing, least) in expected {
            let count = met.get(*thing).copied().unwrap_or_default();
            assert!(count >= *least, "only {count} {} have met: {thing}\n{met:?}", self.noun);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not `{text}`")))
}

fn say(text: &str) {
    // Past the harness, which hides what a passing test prints.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// What one seed gave.
#[derive(Debug)]
pub(crate) struct Seen<Pair = ()> {
    /// What happened, by name.
    pub(crate) things: BTreeSet<String>,
    /// Transitions that were taken, where those are watched.
    pub(crate) taken: BTreeSet<Pair>,
    pub(crate) is_valid: bool,
}

/// What a campaign has seen: one that meets nothing proves nothing.
#[derive(Debug)]
pub struct Summary<Pair = ()> {
    pub taken: BTreeSet<Pair>,
    /// For how many seeds each kind of thing happened.
    pub met: BTreeMap<String, u64>,
    /// Seeds for which something was wrong.
    pub failing: Vec<u64>,
}

/// Tries all these seeds, on all processors.
pub(crate) fn spread<Pair: Ord + Send>(seeds: &Range<u64>, see: fn(u64) -> Seen<Pair>) -> Summary<Pair> {
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let part = |thread: u64| {
        let mut part = Summary { taken: BTreeSet::new(), met: BTreeMap::new(), failing: Vec::new() };
        for seed in seeds.clone().filter(|seed| seed % threads == thread) {
            let seen = see(seed);
            part.taken.extend(seen.taken);
            for thing in seen.things {
                *part.met.entry(thing).or_default() += 1;
            }
            part.failing.extend((!seen.is_valid).then_some(seed));
        }
        part
    };
    let part = &part;
    thread::scope(|scope| {
        let parts: Vec<_> = (1..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let mut whole = part(0);
        for part in parts {
            let part = part.join().expect("a simulated run does not panic");
            whole.taken.extend(part.taken);
            for (thing, count) in part.met {
                *whole.met.entry(thing).or_default() += count;
            }
            whole.failing.extend(part.failing);
        }
        whole.failing.sort_unstable();
        whole
    })
}
