//! `docs/reference/differences.md`: how umiak differs from Paddle's launcher.

use std::fmt::Write as _;

use umiak_core::contract::differences::{DIFFERENCES, Jobs, Kind, Surface};
use umiak_core::model::Generation;

use super::HEADER;
use crate::markdown::{codes, table};

pub(super) fn page() -> String {
    let mut text = format!("{HEADER}{INTRODUCTION}");
    if DIFFERENCES.is_empty() {
        return text + "\nThe list is empty.\n";
    }
    for surface in Surface::ALL {
        let title = match surface {
            Surface::Variable => "Variables of the ranks",
            Surface::Process => "Processes of the ranks",
            Surface::File => "Files",
            Surface::Console => "Console",
            Surface::Exit => "Exit code",
        };
        let mut entries = DIFFERENCES.iter().filter(|entry| entry.surface == surface).peekable();
        if entries.peek().is_none() {
            continue;
        }
        let _ = write!(text, "\n## {title}\n\n");
        text += &table(
            &["name", "generation", "jobs", "how", "why"],
            entries.map(|entry| {
                [
                    codes(entry.patterns.iter().copied()),
                    generation(entry.generation).to_owned(),
                    jobs(entry.jobs).to_owned(),
                    how(entry.kind).to_owned(),
                    entry.reason.to_owned(),
                ]
            }),
        );
    }
    text
}

const INTRODUCTION: &str = "# Differences from Paddle's launcher

Every way in which a rank or a user can tell umiak from `paddle.distributed.launch`. The conformance test runs one probe
under real Paddle and under umiak and compares variables, processes, files, console lines and exit codes. It fails on a
difference that is not in this list, and on an entry that no longer differs. `*` stands for anything.
";

fn generation(generation: Option<Generation>) -> &'static str {
    match generation {
        None => "both",
        Some(Generation::Current) => "current",
        Some(Generation::Legacy) => "legacy",
    }
}

fn jobs(jobs: Jobs) -> &'static str {
    match jobs {
        Jobs::All => "all",
        Jobs::Servers => "with servers",
        Jobs::SeveralNodes => "on several nodes",
    }
}

fn how(kind: Kind) -> &'static str {
    match kind {
        Kind::Added => "added",
        Kind::Changed => "changed",
        Kind::Absent => "absent",
    }
}
