//! Jobs on real schedulers of other systems.
//!
//! | file | in one sentence |
//! |---|---|
//! | `apart` | nodes of Slurm that do not see the directory of the run |
//! | `both` | what Slurm and mpirun do alike |
//! | `documents` | the documents of the guides and of `examples/jobs` |
//! | `mpi` | several hosts of mpirun: lost ones, a killed umiak, a launcher that does not end |
//! | `slurm` | limits, requeues, lost nodes, and cancelled jobs of Slurm |

mod apart;
mod both;
mod documents;
mod mpi;
mod slurm;

use std::cell::RefCell;

use umiak_testkit::components::Component;
use umiak_testkit::mpi::Hosts;
use umiak_testkit::sandbox::{Run, Sandbox};
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    apart::register(suite);
    both::register(suite);
    documents::register(suite);
    mpi::register(suite);
    slurm::register(suite);
}

/// A scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Slurm,
    /// Open MPI 4, the `mpirun` of the `PATH`.
    Mpi,
    OpenMpi5,
    Mpich,
}

impl Engine {
    const USUAL: [Self; 2] = [Self::Slurm, Self::Mpi];
    const OTHERS: [Self; 2] = [Self::OpenMpi5, Self::Mpich];

    /// The engine of umiak.
    fn word(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Mpi | Self::OpenMpi5 | Self::Mpich => "mpi",
        }
    }

    fn needs(self) -> Component {
        match self {
            Self::Slurm => Component::Slurm,
            Self::Mpi => Component::OpenMpi,
            Self::OpenMpi5 => Component::OpenMpi5,
            Self::Mpich => Component::Mpich,
        }
    }

    /// The variable that tells nodes apart.
    fn node_variable(self) -> &'static str {
        if self == Self::Slurm { "SLURMD_NODENAME" } else { umiak_testkit::mpi::HOST }
    }
}

/// A directory, and a scheduler with several nodes.
struct Site {
    sandbox: Sandbox,
    slurm: Option<RefCell<Slurm>>,
    hosts: Option<Hosts>,
    engine: Engine,
}

impl Site {
    fn new(engine: Engine) -> Self {
        let sandbox = Sandbox::new();
        let slurm = (engine == Engine::Slurm).then(|| RefCell::new(Slurm::start(3)));
        let hosts = (engine != Engine::Slurm).then(|| Hosts::start(&sandbox));
        Self { sandbox, slurm, hosts, engine }
    }

    fn slurm(&self) -> &RefCell<Slurm> {
        self.slurm.as_ref().expect("a cluster")
    }

    /// `umiak WORDS…`, split at spaces.
    fn umiak(&self, words: &str) -> Run<'_> {
        let run = self.sandbox.umiak(words.split_whitespace());
        match &self.slurm {
            Some(slurm) => run.env("SLURM_CONF", slurm.borrow().conf()),
            None => run,
        }
    }

    /// Runs a document on this engine, with its replicas spread over two nodes.
    fn run(&self, document: &str) -> Run<'_> {
        self.run_with(document, &self.two_nodes())
    }

    fn run_with(&self, document: &str, flags: &str) -> Run<'_> {
        self.sandbox.write("job.yaml", document);
        self.umiak(&format!("run job.yaml --engine {} {flags}", self.engine.word()))
    }

    /// Flags for two nodes; with mpirun, the first one has room for two replicas.
    fn two_nodes(&self) -> String {
        match self.engine {
            Engine::Slurm => "--slurm nodes=2".to_owned(),
            Engine::Mpi | Engine::OpenMpi5 | Engine::Mpich => self.mpi_hosts("a:2,b:62"),
        }
    }

    /// Flags for two replicas on each of two nodes.
    fn two_by_two(&self) -> String {
        match self.engine {
            Engine::Slurm => "--slurm nodes=2 --slurm ntasks-per-node=2".to_owned(),
            Engine::Mpi | Engine::OpenMpi5 | Engine::Mpich => self.mpi_hosts("a:2,b:2"),
        }
    }

    fn mpi_hosts(&self, hosts: &str) -> String {
        let installed = self.engine.needs().launcher().expect("the suite has found it");
        let words = self.hosts.as_ref().expect("hosts of mpirun").arguments(&installed.launcher);
        let words: Vec<String> = words.iter().map(|word| format!("--mpi-arg={word}")).collect();
        format!("--mpi-hosts {hosts} --mpi-launcher {} {}", installed.program.display(), words.join(" "))
    }

    /// The log of a replica's attempt in the first run.
    fn log(&self, replica: &str, attempt: u32) -> String {
        self.log_of(1, replica, attempt)
    }

    fn log_of(&self, run: usize, replica: &str, attempt: u32) -> String {
        let path = format!("state/runs/run-{run:06}/tasks/{replica}/attempt-{attempt}/log");
        String::from_utf8_lossy(&self.sandbox.read_if_there(&path).unwrap_or_default()).into_owned()
    }

    /// Fails if processes, files with secrets or jobs are left.
    fn assert_nothing_left(&self) {
        if let Some(slurm) = &self.slurm {
            let slurm = slurm.borrow();
            slurm.wait("no job is left", || slurm.ask("squeue", &["-h"]).is_empty());
        }
        self.sandbox.assert_nothing_left();
        if !self.sandbox.path().join("state/runs").exists() {
            return;
        }
        for run in self.sandbox.list("state/runs") {
            for unit in self.sandbox.list(&format!("state/runs/{run}/units")) {
                let files = self.sandbox.list(&format!("state/runs/{run}/units/{unit}"));
                assert!(!files.contains(&"unit.json".to_owned()), "secrets are left: {files:?}");
            }
        }
    }
}
