//! Many seeds at once, for the simulators, and how a simulator's test goes through them.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
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
    pub fn assert_met<Thing: Borrow<str> + Ord + Debug>(&self, met: &BTreeMap<Thing, u64>, expected: &[(&str, u64)]) {
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

/// Tries all these seeds, on all processors: `add` takes one of them into a part's summary, `merge` puts two together.
pub(crate) fn spread<T: Default + Send>(seeds: Range<u64>, add: fn(&mut T, u64), merge: fn(&mut T, T)) -> T {
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let part = |thread: u64| {
        let mut summary = T::default();
        seeds.clone().filter(|seed| seed % threads == thread).for_each(|seed| add(&mut summary, seed));
        summary
    };
    let part = &part;
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let mut whole = T::default();
        for part in parts {
            merge(&mut whole, part.join().expect("a simulated run does not panic"));
        }
        whole
    })
}
