//! `umiak show RUN`: the state of a run, from its facts.

use clap::{Args, ValueEnum};
use umiak_sys::regular;

use crate::history::index::{self, IndexEntry};
use crate::views::Output;
use crate::views::pai::{self, PaiJob};
use crate::views::run::{ShownRun, human};

use super::runs::{Done, Format, load, print_json, print_text, shown, the_run_or_newest};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Run id, last digits of its number, or name (live runs first); the newest run when omitted
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// List every replica, also of large runs
    #[arg(long)]
    all: bool,
    /// Show it as another system would: `pai` has the states, retries and exit codes of OpenPAI
    #[arg(long = "as", value_name = "SYSTEM")]
    system: Option<System>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    Pai,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (home, run) = the_run_or_newest(arguments.run.as_deref())?;
    let loaded = load(run)?;
    let entry = index::entries(&home)?.into_iter().find(|entry| entry.run == loaded.run.id());
    let entry = entry.unwrap_or_else(|| IndexEntry::new(loaded.run.id(), &loaded.status));
    let damage = loaded.damage.clone();
    if arguments.system == Some(System::Pai) {
        let plan = regular::read(&loaded.run.plan()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let job = PaiJob::new(&loaded, &entry, plan.as_ref());
        let code = match arguments.format.output {
            Output::Quiet => print_text(&format!("{}\n", job.job_status.state.word())),
            Output::Human => print_text(&pai::human(&arguments.format.style(), &job)),
            Output::Json => print_json(&job),
        };
        return shown(code?, damage.as_deref());
    }
    let code = match arguments.format.output {
        Output::Quiet => print_text(&format!("{}\n", loaded.standing.word())),
        Output::Human => print_text(&human(&arguments.format.style(), &loaded, &entry, arguments.all)),
        Output::Json => print_json(&ShownRun::new(loaded, entry)),
    };
    shown(code?, damage.as_deref())
}
