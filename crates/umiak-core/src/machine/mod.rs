//! The state machines: `(state, event, now)` in, new state and effects out. Nothing is executed here.
//!
//! * [`attempt`]: one start of one replica, from the request to its end.
//! * [`role`]: the outcome of a role, from its completion policy and its counts.
//! * [`job`]: the whole job: gang start, first failure, stop, settle, verdict, end.
//! * [`pipeline`]: which node of a pipeline runs when, above the machines of its jobs.
//! * [`hang`]: whether a job hangs.
//! * [`restart`]: whether a failed group may start again, and after how long.
//! * [`exit_code`]: the exit code of the command.
//! * [`store`]: the key-value store of torch's ranks.
//!
//! Rules for all of them: every (state, event) pair has an arm; a pair that makes no sense is recorded as
//! [`Fact::Ignored`](crate::facts::Fact::Ignored) and changes nothing; an event belongs to one attempt, and events of
//! older attempts are dropped; a fact precedes the effect it announces.

pub mod attempt;
pub mod exit_code;
pub mod hang;
pub mod job;
pub mod pipeline;
pub mod restart;
pub mod role;
pub mod round;
pub mod store;
