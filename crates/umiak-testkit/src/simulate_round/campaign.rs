//! Many rounds at once, and what they met: a campaign that meets nothing proves nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::Why as Reason;

use crate::seeds::{Seen, Summary, spread};
use crate::simulate::Why;

use super::world::Run;

/// Runs all these seeds, on all CPUs.
pub fn campaign(seeds: &Range<u64>) -> Summary {
    spread(seeds, |seed| {
        let run = super::run(seed);
        Seen { things: things(&run), is_valid: run.violations().is_empty(), taken: BTreeSet::new() }
    })
}

/// What happened in a round, by name.
fn things(run: &Run) -> BTreeSet<String> {
    let mut things = BTreeSet::new();
    let mut met = |name: &str| {
        things.insert(name.to_owned());
    };
    met(&format!("{:?}", run.scenario.kind));
    for node in &run.nodes {
        if let Some((_, outcome, _)) = node.finished {
            met(match outcome {
                Outcome::Succeeded => "succeeded",
                Outcome::Failed => "failed",
                Outcome::Interrupted => "interrupted",
                Outcome::Stopped => "stopped",
            });
        }
        for (_, decision) in &node.decisions {
            met(match &decision.why {
                None => "decided: success",
                Some(Reason::RankFailed { .. }) if decision.restart.is_some() => "decided: restart",
                Some(Reason::RankFailed { .. }) => "decided: rank failed",
                Some(Reason::Hung) => "decided: hung",
                Some(Reason::NodeLost { .. }) => "decided: node lost",
                Some(Reason::Interrupted { signal: Some(_), .. }) => "decided: interrupted",
                Some(Reason::Interrupted { signal: None, .. }) => "decided: stopped",
                Some(Reason::Unable { .. }) => "decided: unable",
                Some(Reason::TimeUp { .. }) => "decided: time is up",
                Some(Reason::Refused { .. }) => "decided: refused",
                Some(Reason::CoordinatorLost { .. }) => "decided: coordinator lost",
            });
        }
        if let Some(end) = &node.other_end {
            met(end.split(['(', ' ']).next().unwrap_or_default());
        }
        match node.starts.len() {
            0 => {}
            1 => met("started"),
            _ => met("started again"),
        }
    }
    if run.scenario.server_timeout.is_some() {
        servers(run, &mut met);
    }
    if run.refusals > 0 {
        met("turned away");
    }
    if run.nodes.len() > 60 {
        met("64 nodes");
    }
    things
}

/// The same for servers.
fn servers(run: &Run, met: &mut impl FnMut(&str)) {
    met("servers");
    for (script, node) in run.scenario.nodes.iter().zip(&run.nodes) {
        let succeeded = node.finished.is_some_and(|(_, outcome, _)| outcome == Outcome::Succeeded);
        if !node.served.is_empty() {
            met(if script.servers == script.ranks[0].len() { "served, without trainers" } else { "served" });
        }
        if node.late > 0 {
            met("a server was late");
        }
        let servers = node.deaths.last().map_or(&[][..], |(_, deaths)| &deaths[..script.servers]);
        for death in servers.iter().flatten().filter(|death| death.why == Why::Own) {
            met(match (death.exit.is_success(), succeeded) {
                (true, true) => "a server ended by itself, and the round succeeded",
                (true, false) => "a server ended by itself",
                (false, true) => "a server died, and the round succeeded",
                (false, false) => "a server died",
            });
        }
        if node.unready > 0 {
            met("trainers stopped waiting");
        }
    }
}
