//! The optional features of an engine. The planner refuses a job that needs a missing feature before anything starts,
//! with the reason.

/// The features of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What it starts as one unit.
    pub unit: Unit,
    /// How replicas reach each other.
    pub hosts: Hosts,
    /// How their output is read.
    pub output: OutputSource,
    /// Running replicas outlive the supervisor, and the next supervisor can adopt them.
    pub adoption: bool,
    /// Replicas can be suspended and continued.
    pub suspend: bool,
    /// A replica can have the caller's stdin.
    pub stdin: bool,
    /// Replicas are processes of this host: programs are looked up and limits are set here.
    pub here: bool,
}

/// What an engine starts and restarts as one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Each replica separately.
    Replica,
    /// All replicas that start together: some of them cannot restart while the rest keeps running.
    Gang,
    /// Each replica separately, inside an allocation that has room for all.
    Allocation,
}

/// How the host of a replica is written before the replica runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// A leased address.
    Addresses,
    /// A name, which the cluster resolves once the replica runs.
    Names,
    /// Known once the allocation exists.
    Placed,
}

/// The destination of a replica's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputSource {
    /// A file that the replica writes itself.
    Files,
    /// The supervisor, piece by piece.
    Streams,
}
