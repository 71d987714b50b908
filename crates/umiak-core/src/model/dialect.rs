//! Whose habits to keep where the launchers we stand in for differ.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Whose;

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

/// `--show`: whose output is on the console.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Show {
    /// Every replica of a document with several roles, else the first.
    #[default]
    Usual,
    First,
    All,
    None,
    Some(Whose),
}

impl Show {
    pub fn parse(text: &str) -> Self {
        match text {
            "first" => Self::First,
            "all" => Self::All,
            "none" => Self::None,
            words => Self::Some(Whose::parse([words])),
        }
    }
}
