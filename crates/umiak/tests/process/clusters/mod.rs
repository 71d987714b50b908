//! Jobs on real schedulers of other systems.
//!
//! | file | in one sentence |
//! |---|---|
//! | `apart` | nodes of Slurm that do not see the directory of the run |
//! | `both` | what Slurm and mpirun do alike |
//! | `slurm` | limits, requeues, lost nodes, and cancelled jobs of Slurm |

mod apart;
mod both;
mod slurm;

use std::cell::RefCell;

use umiak_testkit::components::Component;
use umiak_testkit::sandbox::{Run, Sandbox};
use umiak_testkit::slurm::Slurm;
use umiak_testkit::suite::Suite;

pub(super) fn register(suite: &mut Suite) {
    apart::register(suite);
    both::register(suite);
    slurm::register(suite);
}

/// A scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Slurm,
    Mpi,
}

impl Engine {
    const ALL: [Self; 2] = [Self::Slurm, Self::Mpi];

    fn word(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Mpi => "mpi",
        }
    }

    fn needs(self) -> Component {
        match self {
            Self::Slurm => Component::Slurm,
            Self::Mpi => Component::OpenMpi,
        }
    }
}

/// A directory, and a scheduler with several nodes.
struct Site {
    sandbox: Sandbox,
    slurm: Option<RefCell<Slurm>>,
    engine: Engine,
}

impl Site {
    fn new(engine: Engine) -> Self {
        let slurm = (engine == Engine::Slurm).then(|| RefCell::new(Slurm::start(3)));
        Self { sandbox: Sandbox::new(), slurm, engine }
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

    /// Runs a document on this engine, with its replicas spread over two nodes where there are several.
    fn run(&self, document: &str) -> Run<'_> {
        self.run_with(document, if self.engine == Engine::Slurm { "--slurm nodes=2" } else { "" })
    }

    fn run_with(&self, document: &str, flags: &str) -> Run<'_> {
        self.sandbox.write("job.yaml", document);
        self.umiak(&format!("run job.yaml --engine {} {flags}", self.engine.word()))
    }

    /// The log of a replica's attempt in the first run.
    fn log(&self, replica: &str, attempt: u32) -> String {
        let path = format!("state/runs/run-000001/tasks/{replica}/attempt-{attempt}/log");
        String::from_utf8_lossy(&self.sandbox.read_if_there(&path).unwrap_or_default()).into_owned()
    }

    /// Fails if processes, files with secrets or jobs are left.
    fn assert_nothing_left(&self) {
        if let Some(slurm) = &self.slurm {
            let slurm = slurm.borrow();
            slurm.wait("no job is left", || slurm.ask("squeue", &["-h"]).is_empty());
        }
        self.sandbox.assert_nothing_left();
        for run in self.sandbox.list("state/runs") {
            for unit in self.sandbox.list(&format!("state/runs/{run}/units")) {
                let files = self.sandbox.list(&format!("state/runs/{run}/units/{unit}"));
                assert!(!files.contains(&"unit.json".to_owned()), "secrets are left: {files:?}");
            }
        }
    }
}
