//! `docs/reference/engines.md`: the engines and their capabilities.

use umiak_core::model::{Capabilities, EngineKind, Hosts, OutputSource, Unit};

use super::HEADER;
use crate::markdown::{code, table};

pub(super) fn page() -> String {
    let mut text = format!("{HEADER}{INTRODUCTION}");
    text += &table(
        &["engine", "where replicas run"],
        EngineKind::ALL.map(|kind| [code(kind.word()), kind.summary().to_owned()]),
    );
    text += CAPABILITIES;
    let engines = EngineKind::ALL.map(|kind| code(kind.word()));
    let head: Vec<&str> = [""].into_iter().chain(engines.iter().map(String::as_str)).collect();
    text += &table(&head, ROWS.iter().map(row));
    text += REFUSED;
    text
}

const INTRODUCTION: &str = "# Engines

The engine determines where the replicas of a document run. The first of these selects it: `--engine NAME`, `engine` of a step, `engine` of the \
document, the engine of the queue, `local`. NAME is one of the table, or an `[engine.NAME]` of [`umiak.toml`](job.md#umiaktoml). Guides: \
[Slurm](../guide/slurm.md), [MPI](../guide/mpi.md). `umiak launch` and `umiak torchrun` use `local`.

";

const CAPABILITIES: &str = "
## What each engine can do

";

const REFUSED: &str = "
A job that needs what its engine cannot do is refused before anything starts, with the reason (J0030):

| in the document | refused by |
|---|---|
| `gang: false` | `mock-cluster`, `slurm`, `mpi`, `kubernetes` |
| `restarts` of a role | `mock-cluster`, `kubernetes` |
| `store: agent` | all but `local` |
| `policy.hang` | `mock-cluster`, `slurm`, `mpi`, `kubernetes` |
| `contracts: mpi`, `framework: mpi` | `slurm`, `mpi`, `kubernetes` |
| `start_after` with `when: succeeded`; roles in different queues | `kubernetes` |
";

/// A capability in words, and its value.
type Row = (&'static str, fn(Capabilities) -> &'static str);

const ROWS: [Row; 7] = [
    ("started as one", |can| match can.unit {
        Unit::Replica => "each replica",
        Unit::Gang => "all replicas that start together",
        Unit::Allocation => "one job of the scheduler for all replicas",
    }),
    ("restarted", |can| match can.unit {
        Unit::Replica => "replicas, roles, the job",
        Unit::Gang => "the job",
        Unit::Allocation => "replicas, roles, the job; the job of the scheduler remains",
    }),
    ("hosts are known", |can| match can.hosts {
        Hosts::Addresses => "before the start, as addresses",
        Hosts::Names => "before the start, as names",
        Hosts::Placed => "once the allocation exists",
    }),
    ("output", |can| match can.output {
        OutputSource::Files => "written to its log by the replica",
        OutputSource::Streams => "sent to the supervisor",
    }),
    ("`resume` continues what still runs", |can| yes(can.adoption)),
    ("Ctrl-Z suspends replicas", |can| yes(can.suspend)),
    ("`--stdin`", |can| yes(can.stdin)),
];

fn yes(can: bool) -> &'static str {
    if can { "yes" } else { "no" }
}

fn row((words, value): &Row) -> Vec<String> {
    let values = EngineKind::ALL.map(|kind| value(kind.capabilities()).to_owned());
    [(*words).to_owned()].into_iter().chain(values).collect()
}
