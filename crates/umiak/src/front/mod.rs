//! The ways a job comes in: each prepares a job and hands it to the [`driver`](crate::driver).
//!
//! | door | input |
//! |---|---|
//! | [`launch`] | a launch command line: ranks of this node, and its peers |
//! | [`document`] | a document: a recorded run with task directories, in the foreground or detached |
//! | [`agent`] | a unit's directory: replicas on a node of a cluster, for a supervisor elsewhere |
//! | [`cloud`] | a submission of PaddleRec to PaddleCloud, which runs the job itself |
//!
//! [`preparing`] serves both: signals, and file systems that hang, until the driver runs.

pub(crate) mod agent;
pub(crate) mod cloud;
pub(crate) mod document;
pub(crate) mod glob;
pub(crate) mod launch;
pub(crate) mod preparing;
