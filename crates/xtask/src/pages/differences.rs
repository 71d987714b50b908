//! `docs/reference/differences.md`: how umiak differs from the launchers that it replaces.

use std::fmt::Write as _;

use umiak_core::contract::differences::{Difference, FROM_PADDLE, FROM_TORCHRUN, Jobs, Kind, Surface};
use umiak_core::model::Generation;

use super::HEADER;
use crate::markdown::{codes, table};

pub(super) fn page() -> String {
    let mut text = format!("{HEADER}{INTRODUCTION}");
    text += PADDLE;
    for (title, entries) in sections(FROM_PADDLE) {
        let _ = write!(text, "\n### {title}\n\n");
        let rows = entries.map(|entry| {
            let [name, jobs, how, why] = row(entry);
            [name, generation(entry.generation).to_owned(), jobs, how, why]
        });
        text += &table(&["name", "generation", "jobs", "how", "why"], rows);
    }
    text += TORCHRUN;
    for (title, entries) in sections(FROM_TORCHRUN) {
        let _ = write!(text, "\n### {title}\n\n");
        text += &table(&["name", "jobs", "how", "why"], entries.map(row));
    }
    text
}

const INTRODUCTION: &str = "# Differences from Paddle's launcher and torchrun

Every way in which a rank or a user can tell umiak from the launcher that it replaces. The conformance test runs one
probe under the real launcher and under umiak and compares variables, processes, files, console lines and exit codes. It
fails on a difference that is not in this list, and on an entry that no longer differs. `*` stands for anything. The test
does not run elastic jobs, so it does not check their entries.
";

const PADDLE: &str = "
## Paddle

`umiak launch` and `umiak python -m paddle.distributed.launch`, compared with both generations of Paddle's launcher.

Flags that only umiak has may change more. With `--store-relay`, `PADDLE_MASTER` of rank 0 is another endpoint than that of
the other ranks.

Inside a step of Slurm, a command line that names no nodes runs on the nodes of the step, with the job id `slurm-JOB.STEP`. Paddle's launcher
runs on each of them alone, with the job id `default` ([Slurm](../guide/slurm.md)).
";

const TORCHRUN: &str = "
## torchrun

`umiak torchrun` and `umiak python -m torch.distributed.launch`, compared with torch's.

Inside a step of Slurm, a command line that names no nodes runs on the nodes of the step; torchrun runs on each of them alone
([Slurm](../guide/slurm.md)).
";

/// The entries of each surface that has any, with its title.
fn sections(
    list: &'static [Difference],
) -> impl Iterator<Item = (&'static str, impl Iterator<Item = &'static Difference>)> {
    let of = move |surface: Surface| list.iter().filter(move |entry| entry.surface == surface);
    Surface::ALL.into_iter().filter(move |surface| of(*surface).next().is_some()).map(move |surface| {
        let title = match surface {
            Surface::Variable => "Variables of the ranks",
            Surface::Process => "Processes of the ranks",
            Surface::File => "Files",
            Surface::Console => "Console",
            Surface::Etcd => "Keys in etcd",
            Surface::Exit => "Exit code",
        };
        (title, of(surface))
    })
}

fn row(entry: &Difference) -> [String; 4] {
    [
        codes(entry.patterns.iter().copied()),
        jobs(entry.jobs).to_owned(),
        how(entry.kind).to_owned(),
        entry.reason.to_owned(),
    ]
}

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
        Jobs::Elastic => "elastic",
    }
}

fn how(kind: Kind) -> &'static str {
    match kind {
        Kind::Added => "added",
        Kind::Changed => "changed",
        Kind::Absent => "absent",
    }
}
