//! Where replicas run.
//!
//! An engine starts attempts, signals them and reports how they ended; it decides nothing and records nothing. Every
//! engine passes the same conformance suite (`tests/process/run/conformance.rs`). What only some engines support is a
//! capability.
//!
//! | engine | what it is |
//! |---|---|
//! | [`local`] | processes of this host, run by the guardian |
//! | [`mock`] | simulated replicas, to try a document's policies without running anything |
//! | [`several`] | several of these in one run, each for its own steps |
//! | [`kubernetes`] | pods of Kubernetes; this version renders them only |
//! | [`mock_cluster`] | a simulated cluster in its own process, with gangs, names and queues; outlives its supervisor |

mod actors;
pub(crate) mod cluster;
mod inbox;
pub(crate) mod kubernetes;
pub(crate) mod local;
pub(crate) mod mock;
pub(crate) mod mock_cluster;
pub(crate) mod script;
pub(crate) mod several;

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use umiak_core::cluster::unit::Swept;
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::facts::Usage;
use umiak_core::machine::job::AttemptId;
pub use umiak_core::model::{Capabilities, EngineKind};
use umiak_core::model::{Device, Exit, Instance, StepIndex, StopHow};
use umiak_core::plan::{Plan, Process};
use umiak_sys::holders::LeaseHolder;
use umiak_sys::logger::Rotate;
use umiak_sys::ports::{LeaseError, LeaseRequest, Leased};

/// Settings that all attempts of a job share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Common {
    /// Removed from every environment.
    pub(crate) unset: Vec<String>,
    /// Added to every environment.
    pub(crate) set: Vec<(String, String)>,
    /// Rotates logs by size.
    pub(crate) rotate: Option<Rotate>,
    /// Time from SIGTERM to SIGKILL when a job ends after its supervisor died.
    pub(crate) grace: Duration,
}

/// An attempt to start.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) id: AttemptId,
    /// The attempt of the whole job.
    pub(crate) of_job: u32,
    /// Restarts of the replica in this attempt of the job.
    pub(crate) retries: u32,
    pub(crate) process: Process,
    /// True: it runs only on its CPUs. False: its CPUs are preferred, and a missing one does not prevent the start.
    pub(crate) bound: bool,
}

/// A report of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineNews {
    Started {
        id: AttemptId,
        instance: Instance,
    },
    /// Nothing runs yet, or any more, for this reason: a queue, too few nodes, pre-emption. An engine that restarts
    /// attempts on its own reports them as started again, under the same number.
    Pending {
        step: StepIndex,
        reason: String,
    },
    /// Output of an attempt from this byte on, if the engine streams output. All of it arrives before the attempt's
    /// end; for an adopted attempt it is sent again from the beginning.
    Output {
        id: AttemptId,
        at: u64,
        bytes: Vec<u8>,
    },
    /// The job was cancelled in the cluster itself.
    Cancelled {
        /// What did: `scancel`.
        by: String,
    },
    /// The scheduler has accepted the unit of a job, under this name: `Slurm job 73`.
    Accepted {
        step: StepIndex,
        name: String,
    },
    /// For the user.
    Notice(Box<Diagnostic>),
    /// The answer to [`Engine::await_ready`].
    Ready {
        id: AttemptId,
    },
    Ended {
        id: AttemptId,
        exit: Exit,
        usage: Option<Usage>,
        /// One of its processes was killed at its memory limit.
        over_limit: bool,
    },
    /// Result of [`Engine::clear`].
    Cleared(Swept),
    /// Result of [`Engine::end`]: the last news.
    Swept(Swept),
    /// The engine can no longer be reached, and its replicas are gone.
    Lost {
        /// The process that was lost, if it ran on this host.
        pid: Option<u32>,
        /// True if the engine starts again when it is next used.
        again: bool,
        /// Why it could not be started again.
        why: Option<String>,
    },
    /// The same of one of several engines.
    OneLost {
        kind: EngineKind,
        pid: Option<u32>,
        again: bool,
        why: Option<String>,
    },
}

impl EngineNews {
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}

/// Why ports could not be leased.
#[derive(Debug)]
pub(crate) enum NotLeased {
    TooFew(LeaseError),
    /// The engine has exited.
    Lost(Box<Diagnostic>),
}

/// The error for an engine that was killed, with the noun for its replicas.
pub(crate) fn lost(held: &str) -> Diagnostic {
    Diagnostic::error(Code::L0017, format!("the process that runs the {held} was killed from outside"))
        .hint("find what sent SIGKILL: `dmesg` shows out-of-memory kills, `last` shows logins")
}

/// The error if no more sockets can be opened to reserve ports. `of` names what could be fewer.
pub(crate) fn no_sockets(code: Code, wanted: u16, errno: i32, of: &str) -> Diagnostic {
    Diagnostic::error(code, "cannot open enough sockets to reserve ports")
        .row("needed", wanted.to_string())
        .row("reason", umiak_sys::guardian::describe_errno(errno))
        .hint(format!("raise the open-file limit with `ulimit -n`, or start fewer {of}"))
}

/// Adds the users whose jobs hold leases to an error about too few of them.
pub(crate) fn reserved_by(error: Diagnostic, holders: &[LeaseHolder]) -> Diagnostic {
    const SHOWN: usize = 3;
    // What our own jobs hold can be seen with `umiak ls`.
    let others: Vec<&LeaseHolder> = holders.iter().filter(|holder| holder.user != umiak_sys::host::user_id()).collect();
    if others.is_empty() {
        return error;
    }
    let named = others.into_iter().take(SHOWN).map(|holder| {
        let name = umiak_sys::host::user_name(holder.user).map_or_else(String::new, |name| format!("{name}, "));
        format!("{} by {name}uid {}", holder.leases, holder.user)
    });
    error.row("reserved", named.collect::<Vec<_>>().join("\n"))
}

/// A port that a document names, at the address of one of its replicas.
#[derive(Debug)]
pub(crate) struct FixedPort<'a> {
    pub(crate) role: &'a str,
    pub(crate) name: &'a str,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

pub(crate) trait Engine {
    fn kind(&self) -> EngineKind;

    /// What the engine of this job can do.
    fn capabilities(&self, _: StepIndex) -> Capabilities {
        self.kind().capabilities()
    }

    /// Says which engine this job is on, before anything is leased for it.
    fn place(&mut self, _: StepIndex, _: EngineKind) {}

    /// Leases loopback addresses, one per replica of this job, if [`Capabilities::hosts`] asks for them.
    fn lease_addresses(&mut self, _: StepIndex, _count: u32) -> Result<Vec<IpAddr>, Diagnostic> {
        Ok(Vec::new())
    }

    fn lease_ports(&mut self, step: StepIndex, request: LeaseRequest) -> Result<Leased, NotLeased>;

    /// Leases at most `count` of these devices, leaving out those that other runs use.
    fn lease_devices(
        &mut self,
        step: StepIndex,
        candidates: &[(u32, Device)],
        count: u32,
    ) -> Result<Vec<Device>, Diagnostic>;

    /// Returns what was leased for a job that has ended.
    fn release(&mut self, _: StepIndex) {}

    /// Fails if a replica cannot bind a port that the document names.
    fn check_ports(&self, _: &[FixedPort<'_>]) -> Result<(), Diagnostic> {
        Ok(())
    }

    /// Directories to remove at the very end, even if the supervisor is killed before.
    fn remove_at_end(&mut self, directories: &[PathBuf]);

    /// Applies to all attempts that are started from now on.
    fn share(&mut self, common: Common);

    /// Returns the name of the unit of these attempts, if it survives its supervisor. It is recorded before they are
    /// started, so it depends only on the run and the attempts.
    fn handle(&self, _: &[AttemptId]) -> Option<String> {
        None
    }

    /// Takes over the unit with this handle from a supervisor that died. Returns which of these attempts, whose end is
    /// not recorded, still exist; their state follows as news, from their start on. Other attempts of the unit are
    /// ended.
    fn adopt(&mut self, _handle: &str, _live: &[AttemptId]) -> Result<Vec<AttemptId>, Diagnostic> {
        Ok(Vec::new())
    }

    /// Starts attempts of the plan, in order. The results are reported as news.
    fn start(&mut self, plan: &Plan, starts: Vec<Start>);

    /// Ends these attempts and all processes that they started.
    fn stop(&mut self, targets: &[AttemptId], how: StopHow);

    /// Suspends or resumes these attempts, if [`Capabilities::suspend`] is set.
    fn suspend(&mut self, _targets: &[AttemptId], _pause: bool) {}

    /// Clears leftovers of attempts that have ended and will restart while others run.
    fn forsake(&mut self, _: &[AttemptId]) {}

    /// Clears leftovers of a job that has ended, while other jobs run.
    fn retire(&mut self, _: StepIndex) {}

    /// Returns true if the engine reports when this attempt is ready; otherwise its ports are probed.
    fn await_ready(&mut self, _: AttemptId) -> bool {
        false
    }

    /// Holds a lock or a socket until the last replica is gone, even if the supervisor is killed. Returns false if it
    /// cannot.
    fn keep(&mut self, _held: BorrowedFd<'_>) -> bool {
        false
    }

    /// Sets the last message to send over this connection if the supervisor dies.
    fn hold(&mut self, _connection: BorrowedFd<'_>, _last_words: umiak_sys::protocol::LastWords) {}

    /// Readable when there is news; `None` if there will be none.
    fn watch(&self) -> Option<BorrowedFd<'_>>;

    fn news(&mut self) -> Vec<EngineNews>;

    /// The supervisor exits early and no other takes over: running attempts must end on their own.
    fn leave(&mut self) {}

    /// Stops leftovers between two attempts of the job, and releases ports unless the next attempt uses the same ones.
    /// Reported as news; a request to end the engine meanwhile makes it kill at once.
    fn clear(&mut self, keep_ports: bool);

    /// Stops leftovers, returns all leases and shuts the engine down. Reported as news; a second call with `patient`
    /// false makes it kill at once.
    fn end(&mut self, patient: bool);
}

/// The engine of this kind.
pub(crate) fn kind(word: &str) -> Result<EngineKind, Diagnostic> {
    if let Some(kind) = EngineKind::named(word) {
        return Ok(kind);
    }
    if EngineKind::LATER.contains(&word) {
        return Err(Diagnostic::error(Code::L0003, format!("the engine `{word}` is not supported yet"))
            .hint("`--engine local` runs on this host"));
    }
    let error = Diagnostic::error(Code::L0001, format!("unknown engine `{word}`"));
    Err(match nearest(word, EngineKind::ALL.map(EngineKind::word).into_iter().chain(EngineKind::LATER)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint(
            "the engines are `local` (this host), `slurm`, `mpi`, `kubernetes`, `mock` and `mock-cluster` (simulated)",
        ),
    })
}

/// The error about a job for Kubernetes, which this version renders only.
pub(crate) fn only_planned() -> Diagnostic {
    Diagnostic::error(Code::L0003, "jobs on the engine `kubernetes` are not supported yet")
        .hint("`umiak plan --engine kubernetes` prints the manifests; `--engine local` runs on this host")
}

/// Ends what a dead supervisor left running under these handles, for a run that will not be resumed.
pub(crate) fn end_orphans(directory: &Path, handles: &[String]) -> Result<(), Diagnostic> {
    let of = |kind| handles.iter().filter(move |handle| EngineKind::of_handle(handle) == Some(kind));
    if of(EngineKind::MockCluster).next().is_some() {
        mock_cluster::end_orphans(directory)
            .map_err(|error| Diagnostic::failed("stop the replicas in the cluster", &error))?;
    }
    let in_slurm: Vec<&String> = of(EngineKind::Slurm).collect();
    cluster::end_orphans(directory, &in_slurm)?;
    cluster::end_kept(directory);
    Ok(())
}
