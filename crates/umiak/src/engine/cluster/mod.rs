//! Engines that give jobs to a scheduler of another system.
#![expect(dead_code, reason = "the engines that use it follow")]

pub(crate) mod scheduler;
