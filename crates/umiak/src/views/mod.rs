//! Runs and plans as people and programs see them: tables, words and versioned JSON. A view is made of a status, a
//! record, an entry of the index or a plan; it decides nothing and prints nothing.
//!
//! | module | in one sentence |
//! |---|---|
//! | `standing` | how a run stands, and a run whose journal was read |
//! | `listing` | runs, past and present: `ls` |
//! | `run` | one run: `show` |
//! | `facts` | facts in words: `events` |
//! | `explanation` | why a run ended as it did: `explain` |
//! | `logs` | what replicas have written: `logs` |
//! | `plan` | what would run: `plan`, `--dry-run` |
//! | `ends` | runs that were waited for or removed: `wait`, `rm`, `gc` |
//! | `table`, `time` | columns, moments and durations |

pub(crate) mod ends;
pub(crate) mod explanation;
pub(crate) mod facts;
pub(crate) mod listing;
pub(crate) mod logs;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod standing;
pub(crate) mod table;
pub(crate) mod time;
pub(crate) mod times;

use clap::ValueEnum;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Human,
    Json,
    Quiet,
}
