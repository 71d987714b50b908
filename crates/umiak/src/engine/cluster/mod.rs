//! Engines that give jobs to a scheduler of another system.
#![allow(dead_code, reason = "the engines that use it follow")]

pub(crate) mod files;
mod command;
pub(crate) mod mpi;
pub(crate) mod scheduler;
pub(crate) mod slurm;
