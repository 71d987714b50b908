//! Tasks of this repository: `cargo xtask generate [--check]`, `cargo xtask bench` and `cargo xtask kube`.
//!
//! | module | in one sentence |
//! |---|---|
//! | `tree` | generated files: write them, or list those that are stale |
//! | `pages` | the generated pages, one module each |
//! | `markdown` | tables and cells |
//! | `bench` | umiak compared with its peers and the kernel's floor |
//! | `kube` | a cluster of real Kubernetes that stays |

mod bench;
mod kube;
mod markdown;
mod pages;
mod tree;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Generate the schemas, the reference pages, the diagrams and the man pages from the code
    Generate {
        /// Write nothing; list the files that are stale, and exit with 1 if there are any
        #[arg(long)]
        check: bool,
    },
    /// Measure umiak, its peers and the kernel's floor
    Bench {
        #[command(subcommand)]
        what: Box<Bench>,
    },
    /// A cluster of real Kubernetes on this machine, as tests use it; needs root
    Kube {
        #[command(subcommand)]
        task: kube::Task,
    },
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// One node: start, crash, memory, logs
    Launch(bench::Options),
    /// Several nodes: start, crash, a thousand agents
    Rendezvous(bench::rendezvous::Options),
    /// Documents and recorded runs: replicas, first line, `ls`, `logs`
    Run(bench::run::Options),
    /// The state machine of a job: time per event, by number of replicas
    Machine(bench::machine::Options),
    /// Documents made to exhaust time: time of `umiak lint`
    Lint(bench::lint::Options),
    /// Pipelines: many steps, memory, large documents, the scheduler
    Pipeline(bench::pipeline::Options),
    /// The store: requests, CPU time, many clients
    Store(bench::store::Options),
    /// Elastic jobs: failures, lost nodes and new ones, until the next attempt
    Elastic(bench::elastic::Options),
    /// The engines of Slurm and MPI: our own parts, failures, beside their launchers alone
    Cluster(bench::cluster::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    if let Some(code) = bench::floor::main()? {
        return Ok(code);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("xtask lies in `crates/`");
    match Arguments::parse().task {
        Task::Generate { check } => generate(root, check),
        Task::Kube { task } => kube::kube(root, &task),
        Task::Bench { what } => match *what {
            Bench::Launch(options) => bench::launch(root, &options),
            Bench::Rendezvous(options) => bench::rendezvous::rendezvous(root, &options),
            Bench::Run(options) => bench::run::run(root, &options),
            Bench::Machine(options) => bench::machine::machine(root, &options),
            Bench::Lint(options) => bench::lint::lint(root, &options),
            Bench::Pipeline(options) => bench::pipeline::pipeline(root, &options),
            Bench::Store(options) => bench::store::store(root, &options),
            Bench::Elastic(options) => bench::elastic::elastic(root, &options),
            Bench::Cluster(options) => bench::cluster::cluster(root, &options),
        },
    }
}

fn generate(root: &Path, check: bool) -> anyhow::Result<ExitCode> {
    let files = pages::all();
    let mut stdout = std::io::stdout().lock();
    if check {
        let stale = tree::stale(root, &files)?;
        for file in &stale {
            writeln!(stdout, "{file}")?;
        }
        if !stale.is_empty() {
            writeln!(stdout, "run `cargo xtask generate` and commit the result")?;
            return Ok(ExitCode::FAILURE);
        }
    } else {
        for path in tree::write(root, &files)? {
            writeln!(stdout, "wrote {path}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
