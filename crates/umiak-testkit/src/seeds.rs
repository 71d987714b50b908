//! Campaigns over many seeds, for the tests of the simulators.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::Write as _;
use std::ops::Range;
use std::thread;

/// Names one seed to replay and print.
const SEED: &str = "UMIAK_SEED";

/// How many seeds the test of a simulator tries, and what happens to those that break a rule.
#[derive(Debug)]
pub struct Campaign<Run> {
    /// The variable that sets the number.
    pub variable: &'static str,
    pub usual: u64,
    /// What a seed produces, in the plural.
    pub noun: &'static str,
    pub run: fn(u64) -> Run,
    pub assert_valid: fn(&Run),
}

impl<Run: Display> Campaign<Run> {
    /// The seeds to try; `None` if one was named, which has then been replayed and checked.
    pub fn seeds(&self) -> Option<Range<u64>> {
        if let Some(seed) = number(SEED) {
            let run = (self.run)(seed);
            say(&run.to_string());
            (self.assert_valid)(&run);
            return None;
        }
        Some(0..number(self.variable).unwrap_or(self.usual))
    }

    /// Fails with the timeline of the first of these.
    pub fn assert_none_fails(&self, seeds: &Range<u64>, failing: &[u64]) {
        let Some(first) = failing.first() else { return };
        let some: Vec<_> = failing.iter().take(20).collect();
        say(&format!("{} of {} {} break a rule: {some:?}\n", failing.len(), seeds.end, self.noun));
        (self.assert_valid)(&(self.run)(*first));
    }

    /// True for a campaign of at least the usual size: only that covers everything.
    pub fn is_whole(&self, seeds: &Range<u64>) -> bool {
        seeds.end >= self.usual
    }

    /// Fails unless each of these occurred at least this often.
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
    // Bypasses the harness, which hides the output of a passing test.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The result of one seed.
#[derive(Debug)]
pub(crate) struct Seen<Pair = ()> {
    /// What happened, by name.
    pub(crate) things: BTreeSet<String>,
    /// Transitions that were taken, if they are observed.
    pub(crate) taken: BTreeSet<Pair>,
    pub(crate) is_valid: bool,
}

/// Results of a campaign: one that meets nothing proves nothing.
#[derive(Debug)]
pub struct Summary<Pair = ()> {
    pub taken: BTreeSet<Pair>,
    /// For how many seeds each kind of event happened.
    pub met: BTreeMap<String, u64>,
    /// Seeds that broke a rule.
    pub failing: Vec<u64>,
}

/// Tries all these seeds, on all CPUs.
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
