//! The run directory: journal, index, finding a run, and whether it lives. Files below `$UMIAK_HOME`, no deciding
//! (`docs/design/0003-runs.md`).
//!
//! | module | in one sentence |
//! |---|---|
//! | [`home`] | where runs are kept |
//! | [`run_dir`] | one run: its number, its files, who supervises it |
//! | [`find`] | what a person calls a run |
//! | [`journal`] | facts: one writer, any number of readers and followers |
//! | [`index`] | what `ls` reads; derived from the journals |
//! | [`life`](life()) | whether anybody supervises a run |
//! | [`remove`] | taking runs away |

mod error;
pub mod find;
pub mod home;
pub mod index;
pub mod journal;
mod life;
pub mod remove;
pub mod run_dir;

pub use error::Error;
pub use find::{find, find_whole, newest, only_live};
pub use home::Home;
pub use life::{Life, is_held, life, life_of, tidy};
pub(crate) use run_dir::cannot_write;
pub use run_dir::{RunDir, RunId, Supervisor, ids, replace};
