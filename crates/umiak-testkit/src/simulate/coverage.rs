//! Which transitions of [`Attempt`] were taken.

use std::cell::RefCell;
use std::collections::BTreeSet;

use umiak_core::machine::attempt::{Attempt, Event};

/// Names of a state and of an event.
pub type Pair = (&'static str, &'static str);

thread_local! {
    // An observer is a plain function, so that the machine stays a value; it writes here.
    static TAKEN: RefCell<BTreeSet<Pair>> = const { RefCell::new(BTreeSet::new()) };
}

pub(super) fn observe(state: &Attempt, event: &Event) {
    TAKEN.with_borrow_mut(|taken| taken.insert((state.name(), event.name())));
}

/// What was observed on this thread since the last call.
pub(super) fn take() -> BTreeSet<Pair> {
    TAKEN.take()
}

/// Every state with every event.
pub fn pairs() -> BTreeSet<Pair> {
    let events = Event::samples();
    Attempt::samples().iter().flat_map(|state| events.iter().map(|event| (state.name(), event.name()))).collect()
}
