//! Which transitions of an instance were taken.

use std::cell::RefCell;
use std::collections::BTreeSet;

use umiak_core::facts::NodeEnd;
use umiak_core::machine::pipeline::{Event, Resolution, State};

/// Names of a state and of an event.
pub type Pair = (&'static str, &'static str);

thread_local! {
    // An observer is a plain function, so that the machine stays a value; it writes here.
    static TAKEN: RefCell<BTreeSet<Pair>> = const { RefCell::new(BTreeSet::new()) };
}

pub(super) fn observe(state: State, event: &Event) {
    TAKEN.with_borrow_mut(|taken| taken.insert((of_state(state), of_event(event))));
}

/// What was observed on this thread since the last call.
pub(super) fn take() -> BTreeSet<Pair> {
    TAKEN.take()
}

/// Every state with every event; events for the run with the states of the root.
pub fn pairs() -> BTreeSet<Pair> {
    let each = |states: &[&'static str], events: &[&'static str]| {
        states.iter().flat_map(|state| events.iter().map(|event| (*state, *event))).collect::<Vec<_>>()
    };
    let roots = ["Failed", "Open", "Stopped", "Succeeded", "Waiting"];
    each(&STATES, &EVENTS).into_iter().chain(each(&roots, &["Start", "StopAsked"])).collect()
}

const STATES: [&str; 14] = [
    "Cached",
    "Cancelled",
    "Closing",
    "Failed",
    "Killing",
    "Open",
    "Ready",
    "Resolving",
    "Running",
    "Skipped",
    "Stopped",
    "Stopping",
    "Succeeded",
    "Waiting",
];

const EVENTS: [&str; 7] = ["Cached", "Closed", "Ended", "Loop", "Refused", "Run", "Skip"];

fn of_state(state: State) -> &'static str {
    match state {
        State::Waiting => "Waiting",
        State::Ready => "Ready",
        State::Resolving => "Resolving",
        State::Open => "Open",
        State::Closing => "Closing",
        State::Running => "Running",
        State::Stopping => "Stopping",
        State::Killing => "Killing",
        State::Ended(NodeEnd::Succeeded) => "Succeeded",
        State::Ended(NodeEnd::Failed) => "Failed",
        State::Ended(NodeEnd::Stopped) => "Stopped",
        State::Ended(NodeEnd::Cancelled) => "Cancelled",
        State::Ended(NodeEnd::Skipped) => "Skipped",
        State::Ended(NodeEnd::Cached) => "Cached",
    }
}

fn of_event(event: &Event) -> &'static str {
    match event {
        Event::Start => "Start",
        Event::Ended { .. } => "Ended",
        Event::Closed { .. } => "Closed",
        Event::StopAsked { .. } => "StopAsked",
        Event::Resolved { what, .. } => match what {
            Resolution::Run => "Run",
            Resolution::Loop { .. } => "Loop",
            Resolution::Skip { .. } => "Skip",
            Resolution::Cached { .. } => "Cached",
            Resolution::Failed { .. } => "Refused",
        },
    }
}
