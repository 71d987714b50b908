//! Engines that give jobs to a scheduler of another system.
#![allow(dead_code, reason = "the engines that use it follow")]

pub(crate) mod files;
pub(crate) mod scheduler;
