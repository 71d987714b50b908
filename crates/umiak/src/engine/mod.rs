//! Where replicas run.
//!
//! An engine starts attempts, signals them and tells how they ended; it decides nothing and records nothing. Every
//! engine passes the same conformance suite (`tests/process/run/conformance.rs`). What only some can do is a
//! capability.
//!
//! | engine | what it is |
//! |---|---|
//! | [`local`] | processes of this host, held by the guardian |
//! | [`mock`] | nobody: replicas that only exist on paper, to try a document's policies without running anything |

pub(crate) mod local;
pub(crate) mod mock;

use std::os::fd::BorrowedFd;

use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::facts::Usage;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Device, Endpoint, Exit};
use umiak_core::plan::document::{Granted, Needs};
use umiak_core::plan::{Plan, Process};

/// What an engine may be able to do beside what all can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What runs survives its supervisor, and a new one can take it over.
    pub adoption: bool,
    /// What runs can be paused and continued.
    pub suspend: bool,
}

/// An attempt to be started.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) id: AttemptId,
    pub(crate) process: Process,
}

/// What an engine tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    Started {
        id: AttemptId,
        pid: u32,
    },
    Ended {
        id: AttemptId,
        exit: Exit,
        usage: Option<Usage>,
        /// Something of it was killed, because it was at its limit of memory.
        over_limit: bool,
    },
    /// What [`Engine::clear`] did.
    Cleared(Swept),
    /// What [`Engine::end`] did: the last news.
    Swept(Swept),
    /// The engine can no longer be reached, and what it ran is gone.
    Lost,
}

/// What replicas had left behind at the end and was stopped, and what did not go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Swept {
    pub(crate) stopped: Vec<u32>,
    pub(crate) remaining: Vec<u32>,
}

pub(crate) trait Engine {
    fn kind(&self) -> Kind;

    /// Takes what a job needs, until the engine is finished with.
    fn lease(&mut self, needs: &Needs) -> Result<Granted, Diagnostic>;

    /// Tells what all attempts have in common. The plan's scratch directory is removed at the very end, by whichever
    /// process is left. An error where replicas cannot have what the document promises them.
    fn prepare(&mut self, plan: &Plan) -> Result<(), Diagnostic>;

    /// Of these devices, those that nobody else uses; at most so many.
    fn lease_devices(&mut self, candidates: &[(u32, Device)], count: u32) -> Vec<Device>;

    /// Starts these, in order. How that went is told as news.
    fn start(&mut self, starts: Vec<Start>);

    /// Sends a signal to these, and to all that they started.
    fn signal(&mut self, signal: i32, targets: &[AttemptId]);

    /// These have ended and will start again while others go on: nothing that they left behind may be there by then.
    fn forsake(&mut self, _: &[AttemptId]) {}

    /// Readable when there is news.
    fn watch(&self) -> BorrowedFd<'_>;

    fn news(&mut self) -> Vec<News>;

    /// Whether all these have answered. Asked again and again, so it waits for nobody.
    fn answers(&mut self, id: AttemptId, endpoints: &[Endpoint]) -> bool;

    /// All are over, and others will follow: stops what they left behind. Told as news; an end that is asked for meanwhile
    /// hurries it.
    fn clear(&mut self);

    /// Stops what replicas left behind. The engine is finished with, and what was leased is given back. Told as news; to
    /// ask again, without patience, hurries it.
    fn end(&mut self, patient: bool);
}

/// `--engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Local,
    Mock,
}

/// Engines of the design that are not built yet.
const LATER: &[&str] = &["container", "slurm", "mpi", "kubernetes", "paddlecloud"];

impl Kind {
    /// Every engine that there is.
    pub const ALL: [Self; 2] = [Self::Local, Self::Mock];

    pub(crate) fn parse(word: &str) -> Result<Self, Diagnostic> {
        match word {
            "local" => Ok(Self::Local),
            "mock" => Ok(Self::Mock),
            _ if LATER.contains(&word) => {
                Err(Diagnostic::error(Code::L0003, format!("the engine `{word}` is not in this version"))
                    .hint("`--engine local` runs on this host"))
            }
            _ => {
                let error = Diagnostic::error(Code::L0001, format!("there is no engine `{word}`"));
                Err(match nearest(word, Self::ALL.map(Self::word).into_iter().chain(LATER.iter().copied())) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint("`--engine local` runs on this host"),
                })
            }
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Mock => "mock",
        }
    }

    pub fn capabilities(self) -> Capabilities {
        match self {
            Self::Local => Capabilities { adoption: false, suspend: true },
            Self::Mock => Capabilities { adoption: false, suspend: false },
        }
    }
}
