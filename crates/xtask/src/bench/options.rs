//! Options of all benchmarks, and the preparation before a measurement.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::build;
use super::peers::{self, Kind, Peer};
use super::rounds::{Rounds, say};

#[derive(Debug, Args)]
pub(crate) struct Shared<Row: ValueEnum + Send + Sync + 'static> {
    /// Rows to measure; all if omitted
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Row>,
    /// Number of rounds
    #[arg(long)]
    rounds: Option<usize>,
    /// Number of rounds for peers that take more than two seconds
    #[arg(long)]
    slow_rounds: Option<usize>,
    /// Smoke test: few rounds, and for one node 1 and 64 ranks and a short log
    #[arg(long)]
    pub(crate) quick: bool,
    /// Kill a command after this many seconds and report it
    #[arg(long, default_value_t = 60)]
    pub(crate) limit: u64,
    /// Exclude these peers, by name prefix
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Measure this binary instead of building one
    #[arg(long)]
    umiak: Option<PathBuf>,
    /// Also measure this older binary in the same rounds; fail if umiak is worse in a row
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Write all measurements to this file
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Update the tables in docs/benchmarks.md
    #[arg(long)]
    pub(crate) write: bool,
}

/// The contestants.
#[derive(Debug)]
pub(crate) struct Field {
    /// The program of the floors: this one, built like umiak.
    pub(crate) floor: PathBuf,
    pub(crate) peers: Vec<Peer>,
    pub(crate) absent: Vec<String>,
}

impl<Row: ValueEnum + PartialEq + Send + Sync + 'static> Shared<Row> {
    pub(crate) fn wants(&self, row: &Row) -> bool {
        self.only.is_empty() || self.only.contains(row)
    }

    pub(crate) fn rounds(&self) -> Rounds {
        self.rounds_or(15)
    }

    /// The same, with another number of rounds unless the options have one.
    pub(crate) fn rounds_or(&self, usual: usize) -> Rounds {
        Rounds {
            fast: self.rounds.unwrap_or(if self.quick { 3 } else { usual }),
            slow: self.slow_rounds.unwrap_or(if self.quick { 1 } else { 3 }),
        }
    }

    /// Builds the binaries and finds all contestants. From here on this process is a subreaper.
    pub(crate) fn field(&self, root: &Path, takes_part: fn(Kind) -> bool) -> anyhow::Result<Field> {
        let binaries = build(root)?;
        let umiak = self.umiak.as_ref().map_or_else(|| Ok(binaries.join("umiak")), std::path::absolute)?;
        let floor = binaries.join("xtask");
        let (mut peers, mut absent) = peers::find(&umiak, &floor, env!("CARGO_PKG_VERSION"));
        let is_unwanted = |kind: Kind| self.without.iter().any(|name| kind.name().starts_with(name.as_str()));
        peers.retain(|peer| takes_part(peer.kind) && !is_unwanted(peer.kind));
        if let Some(old) = &self.against {
            let beside = peers.iter().position(|peer| peer.kind == Kind::Umiak).context("umiak is excluded")?;
            peers.insert(beside + 1, Peer::old(old)?);
        }
        absent.retain(|kind| takes_part(*kind));
        let absent: Vec<String> = absent.iter().map(|kind| kind.name().to_owned()).collect();
        for name in &absent {
            say(&format!("{name} is not installed; skipping it"))?;
        }
        umiak_sys::descend::become_subreaper()?;
        Ok(Field { floor, peers, absent })
    }
}
