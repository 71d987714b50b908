//! Several nodes: the coordinator's machine and the agent's. `docs/design/rendezvous.md` tells what they are for.

pub mod agent;
pub mod coordinator;
pub mod limits;
pub mod logs;
pub mod messages;

#[cfg(test)]
mod tests;
