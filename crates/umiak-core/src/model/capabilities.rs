//! What an engine can do beside what all can. The planner reads it: what an engine cannot do is refused before anything
//! starts, with the reason.

/// What an engine can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What it starts together.
    pub unit: Unit,
    /// How replicas reach each other.
    pub hosts: Hosts,
    /// How their output is had.
    pub output: OutputSource,
    /// What runs survives its supervisor, and the next one can take it over.
    pub adoption: bool,
    /// What runs can be paused and continued.
    pub suspend: bool,
    /// A replica can be given the caller's stdin.
    pub stdin: bool,
    /// Replicas are processes of this host: their programs are looked up here, and limits are set here.
    pub here: bool,
}

/// What an engine starts, and starts again, as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Each replica by itself.
    Replica,
    /// All replicas that start together: a part of them cannot start again while the rest goes on.
    Gang,
}

/// What stands for the host of a replica before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// An address that is leased.
    Addresses,
    /// A name, which the cluster resolves once the replica runs.
    Names,
}

/// Where the output of a replica goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputSource {
    /// Into a file, which the replica writes itself.
    Files,
    /// To the supervisor, piece by piece.
    Streams,
}
