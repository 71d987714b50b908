//! Many seeds at once, and what they met: a campaign that meets nothing proves nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use umiak_core::facts::{Began, Fact, NodeEnd, Outcome, SkipReason};

use super::coverage::{self, Pair};
use super::timeline::{Done, Moment, Run, What};
use crate::seeds::{Seen, Summary, spread};

/// Runs all these seeds, on all CPUs.
pub fn campaign(seeds: &Range<u64>) -> Summary<Pair> {
    spread(seeds, |seed| {
        let run = super::run(seed);
        Seen {
            things: things(&run).into_iter().map(str::to_owned).collect(),
            is_valid: run.violations().is_empty(),
            taken: coverage::take(),
        }
    })
}

/// What happened in a run, by name.
fn things(run: &Run) -> BTreeSet<&'static str> {
    let mut things = BTreeSet::new();
    let mut is_stopped = false;
    for moment in &run.moments {
        match &moment.what {
            What::Began(Began::Resumed) => {
                things.insert(if is_stopped { "resumed while stopping" } else { "resumed" });
            }
            What::Began(Began::Retried) => {
                things.insert("repeated");
            }
            What::StopAsked { .. } => is_stopped = true,
            _ => {}
        }
        if moment.lost && !moment.done.is_empty() {
            things.insert("lost between effects");
        }
        things.extend(moment.done.iter().filter_map(|done| thing(moment, done)));
    }
    let nested = run.moments.iter().flat_map(|moment| &moment.done).any(|done| {
        matches!(done, Done::Run { name, .. } if name.split('.').filter(|part| part.parse::<u32>().is_ok()).count() > 1)
    });
    if nested {
        things.insert("loop in a loop");
    }
    things
}

fn thing(moment: &Moment, done: &Done) -> Option<&'static str> {
    let is_resumed = moment.what == What::Began(Began::Resumed);
    let is_repeated = moment.what == What::Began(Began::Retried);
    Some(match done {
        Done::Run { stopping: true, .. } => "run only to stop it",
        Done::Run { .. } if is_resumed => "run again",
        Done::Stop { force: true, .. } => "killed",
        Done::Stop { .. } => "asked to stop",
        Done::Finish(Outcome::Succeeded) => "succeeded",
        Done::Finish(Outcome::Failed) => "failed",
        Done::Finish(Outcome::Stopped) => "stopped",
        Done::Finish(Outcome::Interrupted) => "interrupted",
        Done::Close(_) => "closed",
        Done::Fact(_, fact) => match fact {
            Fact::Skipped { why: SkipReason::NoItems } => "loop without items",
            Fact::Skipped { .. } => "skipped",
            Fact::Cached { .. } if is_repeated => "kept",
            Fact::Looping { .. } if is_repeated => "loop repeated",
            Fact::Entered if is_repeated => "DAG repeated",
            Fact::Cached { .. } => "cached",
            Fact::Refused { .. } => "refused",
            Fact::Looping { .. } => "looped",
            Fact::Left { end: NodeEnd::Cancelled } if is_resumed => "cancelled by the next supervisor",
            Fact::Left { end: NodeEnd::Cancelled } => "cancelled",
            Fact::Left { end: NodeEnd::Stopped } => "DAG stopped",
            Fact::Left { end: NodeEnd::Failed } => "DAG failed",
            Fact::Left { .. } => "DAG succeeded",
            Fact::Ignored { .. } => "stale event",
            _ => return None,
        },
        Done::Resolve(name) if name == "post" => "post step",
        Done::Resolve(_) | Done::Run { .. } => return None,
    })
}
