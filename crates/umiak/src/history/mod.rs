//! Recorded runs: directories, journals, index, lookup and supervision. Files below `$UMIAK_HOME`; decides nothing
//! (`docs/design/0003-runs.md`).
//!
//! | module | in one sentence |
//! |---|---|
//! | [`home`] | where runs are recorded |
//! | [`run_dir`] | one run: its number, its files, its supervisor |
//! | [`find`] | finds the run that a user names |
//! | [`journal`] | facts: one writer, any number of readers and followers |
//! | [`index`] | the index that `ls` reads; derived from the journals |
//! | [`life`](life()) | whether a run has a supervisor |
//! | [`remove`] | removes runs |
//! | [`cache`] | results of steps that later runs may use |
//! | [`artifact`] | reads and hashes artifacts of steps |

pub mod artifact;
pub mod cache;
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
