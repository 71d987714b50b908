//! The job's side of the round.
