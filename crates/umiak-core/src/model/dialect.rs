//! Whose habits to keep where the launchers we stand in for differ.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of Paddle's two launchers the command line would have reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// `python -m paddle.distributed.fleet.launch`, or a legacy-only flag.
    Legacy,
    /// `python -m paddle.distributed.launch`, `fleetrun`.
    #[default]
    Current,
}

/// `--exit-codes`: ours, or the old values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCodes {
    Umiak,
    Paddle,
    Torch,
}

/// `--output`: for people, for programs, or for neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    Human,
    Json,
    Quiet,
}
