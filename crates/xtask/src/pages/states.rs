//! `docs/design/attempt-states.md`: the states of an attempt, found by stepping the machine through every pair of state
//! and event.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use umiak_core::machine::attempt::{Attempt, Effect, Event, step};
use umiak_core::model::{StopHow, Timestamp};

use super::HEADER;
use crate::markdown::table;

/// One pair and its result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Transition {
    from: &'static str,
    event: &'static str,
    to: &'static str,
    effects: String,
}

pub(super) fn page() -> String {
    let transitions = transitions();
    format!("{HEADER}{INTRODUCTION}```mermaid\n{}```\n{TABLE}{}", diagram(&transitions), matrix(&transitions))
}

const INTRODUCTION: &str = "# States of an attempt

One attempt of one replica, from the request to start it to its end. An arrow is labelled with the event and its
effects. Pairs that change nothing are not drawn.

";

const TABLE: &str = "
## Every pair

Rows are states, columns are events. A dash: no change and no effect. *ignored*: the event does not fit
the state; it is recorded and has no effect. Two lines in a cell: the result depends on whether the start was reported.

";

/// All pairs of a reachable state and an event.
fn transitions() -> BTreeSet<Transition> {
    let mut found = BTreeSet::new();
    let mut states = Attempt::samples();
    let mut next = 0;
    // The samples have one of each state; stepping finds the rest, such as a stop before the start was reported.
    while next < states.len() {
        let state = states[next].clone();
        next += 1;
        for event in Event::samples() {
            let (after, effects) = step(state.clone(), event.clone(), Timestamp::default());
            found.insert(Transition {
                from: state.name(),
                event: event.name(),
                to: after.name(),
                effects: effects.iter().map(words).collect::<Vec<_>>().join(", "),
            });
            if !states.contains(&after) {
                states.push(after);
            }
        }
    }
    found
}

fn words(effect: &Effect) -> String {
    match effect {
        Effect::Spawn => "spawn".to_owned(),
        Effect::Stop(StopHow::Interrupt) => "send SIGINT".to_owned(),
        Effect::Stop(StopHow::Terminate) => "send SIGTERM".to_owned(),
        Effect::Stop(StopHow::Kill) => "send SIGKILL".to_owned(),
        Effect::NoteStarted(_) => "record the start".to_owned(),
        Effect::NoteEnded(_) => "record the end".to_owned(),
        Effect::NoteAbandoned => "record that it was abandoned".to_owned(),
        Effect::Ignore => IGNORED.to_owned(),
    }
}

const IGNORED: &str = "ignored";

fn diagram(transitions: &BTreeSet<Transition>) -> String {
    let mut text = "stateDiagram-v2\n    [*] --> Waiting\n".to_owned();
    let is_drawn = |transition: &&Transition| {
        transition.from != transition.to || !matches!(transition.effects.as_str(), "" | IGNORED)
    };
    // In the order of the samples, which is the order of a lifetime.
    for state in names() {
        for transition in transitions.iter().filter(|transition| transition.from == state).filter(is_drawn) {
            let Transition { from, event, to, effects } = transition;
            let done = if effects.is_empty() { String::new() } else { format!(" / {effects}") };
            let _ = writeln!(text, "    {from} --> {to}: {event}{done}");
        }
    }
    for state in Attempt::samples().iter().filter(|state| state.is_over()) {
        let _ = writeln!(text, "    {} --> [*]", state.name());
    }
    text
}

fn matrix(transitions: &BTreeSet<Transition>) -> String {
    let events: Vec<&str> = Event::samples().iter().map(Event::name).collect();
    let cell = |state: &str, event: &str| {
        let of_pair = transitions.iter().filter(|t| t.from == state && t.event == event);
        of_pair.map(outcome).collect::<Vec<_>>().join("<br>")
    };
    let head: Vec<&str> = std::iter::once("").chain(events.iter().copied()).collect();
    let row = |state: &str| -> Vec<String> {
        std::iter::once(format!("**{state}**")).chain(events.iter().map(|event| cell(state, event))).collect()
    };
    table(&head, names().into_iter().map(row))
}

fn outcome(transition: &Transition) -> String {
    let Transition { from, to, effects, .. } = transition;
    match (from == to, effects.as_str()) {
        (true, "") => "–".to_owned(),
        (true, IGNORED) => format!("*{IGNORED}*"),
        (true, effects) => effects.to_owned(),
        (false, "") => format!("→ {to}"),
        (false, effects) => format!("→ {to}: {effects}"),
    }
}

fn names() -> Vec<&'static str> {
    Attempt::samples().iter().map(Attempt::name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_can_be_read_off_the_diagram() {
        let text = diagram(&transitions());
        for line in [
            "Waiting --> Starting: Start / spawn",
            "Starting --> Running: Started / record the start",
            "Running --> Ended: Exited / record the end",
            "Running --> Stopping: Stop / send SIGTERM",
            "Stopping --> Killing: Kill / send SIGKILL",
            "Killing --> Abandoned: GiveUp / record that it was abandoned",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains(IGNORED), "{text}");
    }

    #[test]
    fn every_pair_is_in_the_table() {
        let transitions = transitions();
        for state in names() {
            for event in Event::samples() {
                assert!(transitions.iter().any(|t| t.from == state && t.event == event.name()), "{state} {event:?}");
            }
        }
    }
}
