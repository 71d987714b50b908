//! `cargo xtask bench lint`: documents made to exhaust time. The time must not grow faster than the document.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use umiak_testkit::hostile::{Hostile, documents};

use super::harness::{Running, millis};
use super::model::{Metric, Sample};
use super::rounds::{Rounds, say};
use super::rows::directory;
use super::{beside, build, publish, verdict};

const NAME: &str = "lint";
const MEGABYTE: usize = 1_000_000;
const LIMIT: Duration = Duration::from_secs(60);

/// Size of the documents in megabytes.
pub(crate) const MEGABYTES: u32 = 1;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure this binary instead of building one
    #[arg(long)]
    umiak: Option<PathBuf>,
    /// Write all measurements to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Update the tables in docs/benchmarks.md
    #[arg(long)]
    write: bool,
}

/// Measures and reports.
pub(crate) fn lint(root: &Path, options: &Options) -> anyhow::Result<ExitCode> {
    let umiak = match &options.umiak {
        Some(umiak) => std::path::absolute(umiak)?,
        None => build(root)?.join("umiak"),
    };
    umiak_sys::descend::become_subreaper()?;
    let home = directory()?;
    let file = home.path().join("job.yaml");
    let rounds = Rounds { fast: options.rounds, slow: options.rounds };
    say(&format!("documents of {MEGABYTES} MB"))?;
    let all = documents(MEGABYTES as usize * MEGABYTE);
    let contestants: Vec<_> = all.iter().map(|document| beside(document.name, false, document)).collect();
    let series = rounds.run(&contestants, &[Metric::Lint], MEGABYTES, |document: &Hostile, _| {
        std::fs::write(&file, &document.text)?;
        let mut command = Command::new(&umiak);
        command.arg("lint").arg(&file).current_dir(home.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let running = Running::start(&mut command, LIMIT)?;
        let began = running.began;
        let ended = running.end()?;
        Ok(match ended.trouble(LIMIT, |code| matches!(code, 0 | 2)) {
            Some(trouble) => Err(trouble),
            None => Ok(Sample { cpu_ms: None, ..Sample::new(Metric::Lint, millis(began, ended.gone), 0.0) }),
        })
    })?;
    let verdicts = verdict::of_lint(&series);
    let report = super::report(&[], Vec::new(), format!("{} rounds", options.rounds), series, verdicts);
    publish(root, NAME, &report, options.json.as_deref(), options.write)
}
