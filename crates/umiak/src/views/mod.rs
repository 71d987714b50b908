//! Runs and plans for people and programs: tables, text and versioned JSON. A view is made from a status, a record, an
//! entry of the index or a plan; it decides nothing and prints nothing.
//!
//! | module | in one sentence |
//! |---|---|
//! | `standing` | the state of a run, and a run whose journal was read |
//! | `listing` | runs, past and present: `ls` |
//! | `run`, `pai` | one run: `show`, `show --as pai` |
//! | `facts` | facts as text: `events` |
//! | `pipeline`, `graph` | a pipeline with what has happened, and its DAG: `show`, `plan`, `--graph` |
//! | `progress` | a pipeline while it runs: rows on a terminal, lines in a log |
//! | `codes` | an error code: `explain` |
//! | `errors` | an error of `launch` and `run` as JSON |
//! | `explanation` | why a run ended as it did: `explain` |
//! | `logs` | the output of replicas: `logs` |
//! | `plan` | a plan as text: `plan`, `--dry-run` |
//! | `ends` | runs that were waited for, stopped or removed: `wait`, `stop`, `rm`, `gc` |
//! | `table`, `time`, `times` | columns, moments and durations, times of log lines |

pub(crate) mod codes;
pub(crate) mod ends;
pub(crate) mod errors;
pub(crate) mod explanation;
pub(crate) mod facts;
pub(crate) mod graph;
pub(crate) mod listing;
pub(crate) mod logs;
pub(crate) mod pai;
pub(crate) mod pipeline;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod stacks;
pub(crate) mod standing;
pub(crate) mod store;
pub(crate) mod table;
pub(crate) mod time;
pub(crate) mod times;

use clap::ValueEnum;

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Human,
    Json,
    Quiet,
}
