//! The state machines: `(state, event, now)` in, new state and effects out. Nothing is performed here.
//!
//! * [`attempt`]: one start of one replica, from "asked to start" to "we know how it ended".
//! * [`role`]: what a role's completion policy says about its counts.
//! * [`job`]: all of it together: gang start, first failure, stop, settle, verdict, end.
//! * [`restart`]: whether a failed group may start again, and after how long.
//! * [`exit_code`]: the number the command ends with.
//!
//! Rules they all keep: every (state, event) pair has an arm; a pair that makes no sense is recorded as
//! [`Fact::Ignored`](crate::facts::Fact::Ignored) and changes nothing; an event speaks of one attempt and
//! older attempts' events are dropped; a fact stands before the effect it announces.

pub mod attempt;
pub mod exit_code;
pub mod job;
pub mod restart;
pub mod role;
pub mod round;
