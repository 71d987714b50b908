//! Where replicas run.
//!
//! An engine starts attempts, signals them and tells how they ended; it decides nothing and records nothing. Every
//! engine passes the same conformance suite (`tests/process/run/conformance.rs`). What only some can do is a
//! capability.
//!
//! | engine | what it is |
//! |---|---|
//! | [`local`] | processes of this host, held by the guardian |
//! | [`mock`] | replicas that only exist on paper, to try a document's policies without running anything |
//! | [`mock_cluster`] | the same as a cluster: a process of its own, gangs, names, queues, and a life after the supervisor's |

mod actors;
mod inbox;
pub(crate) mod local;
pub(crate) mod mock;
pub(crate) mod mock_cluster;

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::facts::Usage;
use umiak_core::machine::job::AttemptId;
pub use umiak_core::model::Capabilities;
use umiak_core::model::{Device, Exit, Hosts, Instance, OutputSource, StepIndex, StopHow, Unit};
use umiak_core::plan::{Plan, Process};
use umiak_sys::logger::Rotate;
use umiak_sys::ports::{LeaseError, LeaseRequest, Leased};

/// What all attempts of a job have in common.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// Taken out of every environment.
    pub(crate) unset: Vec<String>,
    /// Put into every environment.
    pub(crate) set: Vec<(String, String)>,
    /// Cuts logs by size.
    pub(crate) rotate: Option<Rotate>,
    /// From a graceful stop to a kill, for the end of a job whose supervisor is gone.
    pub(crate) grace: Duration,
}

/// An attempt to be started.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) id: AttemptId,
    pub(crate) process: Process,
    /// It runs on its CPUs and on no others; elsewhere they are preferred, and one that is gone does not prevent the start.
    pub(crate) bound: bool,
}

/// What an engine tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineNews {
    Started {
        id: AttemptId,
        instance: Instance,
    },
    /// Nothing runs yet, or no longer, for this reason: a queue, too few nodes, pre-emption. An engine that starts
    /// attempts again by itself tells them as started again, under the same number.
    Pending {
        reason: String,
    },
    /// What an attempt has written, from this byte of its output on, where its output is streamed. All of it comes before
    /// its end; of an attempt that was adopted it comes from the beginning again.
    Output {
        id: AttemptId,
        at: u64,
        bytes: Vec<u8>,
    },
    /// The answer to [`Engine::await_ready`].
    Ready {
        id: AttemptId,
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

/// Why ports could not be leased.
#[derive(Debug)]
pub(crate) enum NotLeased {
    TooFew(LeaseError),
    /// The engine is gone.
    Lost(Box<Diagnostic>),
}

/// An engine that is gone, and what it held.
pub(crate) fn lost(held: &str) -> Diagnostic {
    Diagnostic::error(Code::L0017, format!("the process that held the {held} was killed from outside"))
        .hint("look for who sent SIGKILL: the kernel's log tells of memory, `last` and `ps` of people")
}

/// Ports need a socket each to be held, and the kernel gives no more. `of` is what could be fewer.
pub(crate) fn no_sockets(code: Code, wanted: u16, errno: i32, of: &str) -> Diagnostic {
    Diagnostic::error(code, "the kernel gives this process no more sockets to hold ports with")
        .row("needed", wanted.to_string())
        .row("reason", umiak_sys::guardian::describe_errno(errno))
        .hint(format!("raise the limit of open files with `ulimit -n`, or start fewer {of}"))
}

/// A port that a document names, on the address of one of its replicas.
#[derive(Debug)]
pub(crate) struct FixedPort<'a> {
    pub(crate) role: &'a str,
    pub(crate) name: &'a str,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

pub(crate) trait Engine {
    fn kind(&self) -> EngineKind;

    /// Leases loopback addresses, one for each replica of this job: where [`Capabilities::hosts`] says so.
    fn lease_addresses(&mut self, _: StepIndex, _count: u32) -> Result<Vec<IpAddr>, Diagnostic> {
        Ok(Vec::new())
    }

    fn lease_ports(&mut self, step: StepIndex, request: LeaseRequest) -> Result<Leased, NotLeased>;

    /// Of these devices, those that no other run uses; at most so many.
    fn lease_devices(
        &mut self,
        step: StepIndex,
        candidates: &[(u32, Device)],
        count: u32,
    ) -> Result<Vec<Device>, Diagnostic>;

    /// The job is over: what was leased for it is given back.
    fn release(&mut self, _: StepIndex) {}

    /// An error where a replica cannot have a port that the document names.
    fn check_ports(&self, _: &[FixedPort<'_>]) -> Result<(), Diagnostic> {
        Ok(())
    }

    /// Directories that are removed at the very end, also when the supervisor is killed before.
    fn remove_at_end(&mut self, directories: &[PathBuf]);

    /// Holds for all attempts that are started from now on.
    fn share(&mut self, common: Common);

    /// What the unit of these attempts will be called, where it survives its supervisor. It is recorded before they are
    /// started, so it follows from the run and the attempts alone.
    fn handle(&self, _: &[AttemptId]) -> Option<String> {
        None
    }

    /// Takes over the unit of this handle from a supervisor that is gone. Returns which of these attempts, whose end is not
    /// recorded, it still knows; what has become of them is told as news, from their start on. What the unit has beside
    /// them is ended.
    fn adopt(&mut self, _handle: &str, _live: &[AttemptId]) -> Result<Vec<AttemptId>, Diagnostic> {
        Ok(Vec::new())
    }

    /// Starts these of the plan, in order. How that went is told as news.
    fn start(&mut self, plan: &Plan, starts: Vec<Start>);

    /// Ends these, and all that they started.
    fn stop(&mut self, targets: &[AttemptId], how: StopHow);

    /// Pauses these, or lets them go on: where [`Capabilities::suspend`] says so.
    fn suspend(&mut self, _targets: &[AttemptId], _pause: bool) {}

    /// These have ended and will start again while others go on: nothing that they left behind may be there by then.
    fn forsake(&mut self, _: &[AttemptId]) {}

    /// True where the engine itself tells when this attempt is ready; elsewhere its ports are probed.
    fn await_ready(&mut self, _: AttemptId) -> bool {
        false
    }

    /// What to send over this connection should the supervisor die.
    fn hold(&mut self, _connection: BorrowedFd<'_>, _last_words: Vec<u8>) {}

    /// Readable when there is news; nothing where there will be none.
    fn watch(&self) -> Option<BorrowedFd<'_>>;

    fn news(&mut self) -> Vec<EngineNews>;

    /// The supervisor goes before the end, and none will take over: what runs is to end by itself.
    fn leave(&mut self) {}

    /// All are over, and others will follow: stops what they left behind and gives their ports back, unless the next
    /// attempt has the same. Told as news; an end that is asked for meanwhile hurries it.
    fn clear(&mut self, keep_ports: bool);

    /// Stops what replicas left behind. The engine is finished with, and what was leased is given back. Told as news; to
    /// ask again, without patience, hurries it.
    fn end(&mut self, patient: bool);
}

/// `--engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Local,
    Mock,
    MockCluster,
}

/// Engines of the design that are not built yet.
const LATER: &[&str] = &["container", "slurm", "mpi", "kubernetes", "paddlecloud"];

impl EngineKind {
    /// Every engine that there is.
    pub const ALL: [Self; 3] = [Self::Local, Self::Mock, Self::MockCluster];

    pub(crate) fn parse(word: &str) -> Result<Self, Diagnostic> {
        match word {
            "local" => Ok(Self::Local),
            "mock" => Ok(Self::Mock),
            "mock-cluster" => Ok(Self::MockCluster),
            _ if LATER.contains(&word) => {
                Err(Diagnostic::error(Code::L0003, format!("the engine `{word}` is not in this version"))
                    .hint("`--engine local` runs on this host"))
            }
            _ => {
                let error = Diagnostic::error(Code::L0001, format!("there is no engine `{word}`"));
                Err(match nearest(word, Self::ALL.map(Self::word).into_iter().chain(LATER.iter().copied())) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint("there are `local` (this host), `mock` and `mock-cluster` (on paper)"),
                })
            }
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Mock => "mock",
            Self::MockCluster => "mock-cluster",
        }
    }

    pub fn capabilities(self) -> Capabilities {
        let here = Capabilities {
            unit: Unit::Replica,
            hosts: Hosts::Addresses,
            output: OutputSource::Files,
            adoption: false,
            suspend: true,
            stdin: true,
            here: true,
        };
        match self {
            Self::Local => here,
            Self::Mock => Capabilities { suspend: false, here: false, ..here },
            Self::MockCluster => Capabilities {
                unit: Unit::Gang,
                hosts: Hosts::Names,
                output: OutputSource::Streams,
                adoption: true,
                suspend: false,
                stdin: false,
                here: false,
            },
        }
    }
}

/// Ends what a supervisor that is gone has left running at these handles, for a run that nothing will go on with.
pub(crate) fn end_orphans(directory: &Path, handles: &[String]) -> Result<(), Diagnostic> {
    let is_cluster = |handle: &String| handle.starts_with(EngineKind::MockCluster.word());
    if handles.iter().any(is_cluster) {
        mock_cluster::end_orphans(directory)
            .map_err(|error| Diagnostic::failed("end what runs in the cluster", &error))?;
    }
    Ok(())
}
