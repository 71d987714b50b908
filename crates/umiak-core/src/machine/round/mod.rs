//! Jobs on several nodes: the coordinator's machine and the agent's, and the election of a coordinator. See `docs/design/rendezvous.md`.

pub mod agent;
pub mod bounds;
pub mod coordinator;
pub mod election;
pub mod known;
pub mod limits;
pub mod logs;
pub mod messages;
pub mod vigil;

#[cfg(test)]
mod tests;
