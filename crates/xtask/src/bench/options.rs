//! What every benchmark can be asked for, and what follows from it before anything is measured.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::build;
use super::peers::{self, Kind, Peer};
use super::rounds::{Rounds, say};

#[derive(Debug, Args)]
pub(crate) struct Shared<Row: ValueEnum + Send + Sync + 'static> {
    /// Rows to measure; all when omitted
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Row>,
    /// Rounds
    #[arg(long)]
    rounds: Option<usize>,
    /// Rounds for peers that need more than two seconds
    #[arg(long)]
    slow_rounds: Option<usize>,
    /// A smoke run: few rounds, and for one node 1 and 64 ranks and a short log
    #[arg(long)]
    pub(crate) quick: bool,
    /// Seconds before something that does not end is killed and reported
    #[arg(long, default_value_t = 60)]
    pub(crate) limit: u64,
    /// Leave out these peers, by the beginning of their names
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Measure this binary instead of building one
    #[arg(long)]
    umiak: Option<PathBuf>,
    /// Measure this older binary too, in the same rounds; a row in which umiak is worse is a failure
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Write everything that was measured to this file
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Put the tables into docs/benchmarks.md
    #[arg(long)]
    pub(crate) write: bool,
}

/// Who is there to be measured.
#[derive(Debug)]
pub(crate) struct Field {
    /// The program of the floors: this one, built as umiak is.
    pub(crate) floor: PathBuf,
    pub(crate) peers: Vec<Peer>,
    pub(crate) absent: Vec<String>,
}

impl<Row: ValueEnum + PartialEq + Send + Sync + 'static> Shared<Row> {
    pub(crate) fn wants(&self, row: &Row) -> bool {
        self.only.is_empty() || self.only.contains(row)
    }

    pub(crate) fn rounds(&self) -> Rounds {
        Rounds {
            fast: self.rounds.unwrap_or(if self.quick { 3 } else { 15 }),
            slow: self.slow_rounds.unwrap_or(if self.quick { 1 } else { 3 }),
        }
    }

    /// Builds what is needed and looks for everybody who takes part. From here on orphans are ours.
    pub(crate) fn field(&self, root: &Path, takes_part: fn(Kind) -> bool) -> anyhow::Result<Field> {
        let binaries = build(root)?;
        let umiak = self.umiak.as_ref().map_or_else(|| Ok(binaries.join("umiak")), std::path::absolute)?;
        let floor = binaries.join("xtask");
        let (mut peers, mut absent) = peers::find(&umiak, &floor, env!("CARGO_PKG_VERSION"));
        let is_unwanted = |kind: Kind| self.without.iter().any(|name| kind.name().starts_with(name.as_str()));
        peers.retain(|peer| takes_part(peer.kind) && !is_unwanted(peer.kind));
        if let Some(old) = &self.against {
            let beside = peers.iter().position(|peer| peer.kind == Kind::Umiak).context("umiak is left out")?;
            peers.insert(beside + 1, Peer::old(old)?);
        }
        absent.retain(|kind| takes_part(*kind));
        let absent: Vec<String> = absent.iter().map(|kind| kind.name().to_owned()).collect();
        for name in &absent {
            say(&format!("{name} is not here, and is left out"))?;
        }
        umiak_sys::descend::become_subreaper()?;
        Ok(Field { floor, peers, absent })
    }
}
