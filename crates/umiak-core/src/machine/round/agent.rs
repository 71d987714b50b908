//! One node's side of the round.
