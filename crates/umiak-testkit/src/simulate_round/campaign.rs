//! Many rounds at once, and what they met: a campaign that meets nothing proves nothing.

use std::collections::BTreeSet;
use std::ops::Range;

use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::{Loss, Start, Why as Reason};
use umiak_core::model::FIRST_ATTEMPT;

use crate::seeds::{Seen, Summary, spread};
use crate::simulate::Why;

use super::journal::Entry;
use super::scenario::{Fault, Way};
use super::world::Run;

/// Runs all these seeds, on all CPUs.
pub fn campaign(seeds: &Range<u64>) -> Summary {
    spread(seeds, |seed| {
        let run = super::run(seed);
        Seen { things: things(&run), is_valid: run.violations().is_empty(), taken: BTreeSet::new() }
    })
}

/// Runs the elastic jobs of all these seeds, on all CPUs.
pub fn elastic_campaign(seeds: &Range<u64>) -> Summary {
    spread(seeds, |seed| {
        let run = super::run_elastic(seed);
        let mut things = things(&run);
        elastic(&run, &mut |name: &str| {
            things.insert(name.to_owned());
        });
        Seen { things, is_valid: run.violations().is_empty(), taken: BTreeSet::new() }
    })
}

/// What happened in an elastic job.
fn elastic(run: &Run, met: &mut impl FnMut(&str)) {
    let (min, max) = run.scenario.range();
    let mut starts = 0;
    for (_, entry) in &run.journal {
        match entry {
            Entry::Fault(fault) => met(match fault {
                Fault::Break { .. } => "fault: break",
                Fault::BreakLate { .. } => "fault: break, stale messages",
                Fault::Partition { way: Way::Both, .. } => "fault: partition",
                Fault::Partition { .. } => "fault: partition of one direction",
                Fault::Pause { .. } => "fault: pause",
                Fault::KillFront { .. } => "fault: front killed",
                Fault::KillBoth { .. } => "fault: front and guardian killed",
                Fault::Vanish { .. } => "fault: host lost",
                Fault::Signal { .. } => "fault: signal",
                Fault::Stop { .. } => "fault: stop",
                Fault::GuardianLost { .. } => "fault: guardian lost",
            }),
            Entry::Stop(stop, _) => met(match &stop.why {
                Reason::Joined { .. } => "stop: joined",
                Reason::NodeLost { how: Loss::Killed, .. } => "stop: killed",
                Reason::NodeLost { how: Loss::Vanished { .. }, .. } => "stop: vanished",
                Reason::NodeLost { how: Loss::Silent { .. }, .. } => "stop: silent",
                Reason::NodeLost { how: Loss::Disconnected { .. }, .. } => "stop: disconnected",
                Reason::NodeLost { how: Loss::Left, .. } => "stop: left",
                Reason::RankFailed { .. } => "stop: rank failed",
                Reason::Interrupted { .. } => "stop: interrupted",
                Reason::Unable { .. } => "stop: unable",
                _ => "stop: other",
            }),
            Entry::Decision(decision, _) => {
                if let Some(Reason::NodeLost { how: Loss::LeftOut { failures }, .. }) = &decision.why {
                    met(if *failures >= 3 { "left out: fails" } else { "left out: cannot start" });
                }
                if let (Some(Reason::NodeLost { .. }), None) = (&decision.why, decision.restart) {
                    met("ended: the coordinator's node was lost");
                }
            }
            Entry::Refused { node } if !run.nodes[*node].starts.is_empty() => met("refused: given up"),
            Entry::Refused { .. } => met("refused: other"),
            Entry::Start(start, _) if start.attempt > starts => {
                starts = start.attempt;
                met(match start.nodes.len() {
                    size if size == max => "started with max nodes",
                    size if size == min => "started with min nodes",
                    _ => "started with some nodes",
                });
            }
            _ => {}
        }
    }
    if starts >= 6 {
        met("six attempts");
    }
    for (script, node) in run.scenario.nodes.iter().zip(&run.nodes) {
        let first = node.starts.first().map(|(_, start)| start.attempt);
        if node.spare > 0 {
            met(match (first, node.finished.map(|(_, outcome, _)| outcome)) {
                (Some(_), _) => "a spare takes part",
                (None, Some(Outcome::Succeeded)) => "a spare hears of success",
                (None, Some(Outcome::Failed)) => "a spare hears of failure",
                (None, Some(_)) => "a spare is stopped",
                (None, None) => "a spare dies",
            });
        }
        if first.is_some_and(|first| first > FIRST_ATTEMPT) {
            met("joined a later attempt");
        }
        let skips = |pair: &[(_, Start)]| pair[1].1.attempt > pair[0].1.attempt + 1;
        if node.starts.windows(2).any(skips) {
            met("a member skips an attempt");
        }
        let again = run.scenario.nodes.iter().filter(|other| other.address == script.address).count() > 1;
        if again && first.is_some() {
            met("a node comes again");
        }
        if script.expects != run.scenario.expects {
            met("another range");
        }
        if node.deaths.iter().flat_map(|(_, deaths)| deaths).flatten().any(|death| death.why == Why::Ours)
            && script.ranks.iter().flatten().any(|rank| rank.on_term.is_none())
        {
            met("ranks ignore SIGTERM");
        }
    }
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
                Some(Reason::Joined { .. }) => "decided: nodes join",
                Some(Reason::Scaled { .. }) => "decided: scaled",
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
