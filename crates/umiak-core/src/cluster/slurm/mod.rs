//! Slurm: what is submitted, and what it says about a job.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`parts`] | which roles share a part of the allocation, and what its tasks need |
//! | [`native`] | options of `sbatch` that are passed on, and those that are refused |
//! | [`render`] | the script for `sbatch` |
//! | [`status`] | what `squeue`, `scontrol` and `sacct` print about a job |
//! | [`reasons`] | why a job waits, in words |

pub mod native;
pub mod parts;
pub mod reasons;
pub mod render;
pub mod status;
#[cfg(test)]
mod tests;

pub use native::check;
pub use parts::{parts, seating};
pub use render::{COPY_FILE, LIMIT_FILE, LOG_FILE, Script, render};
