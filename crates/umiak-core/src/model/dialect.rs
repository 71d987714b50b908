//! Options that select the behaviour where the replaced launchers differ.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Whose;

/// The launcher of Paddle's two that the command line would have started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// `python -m paddle.distributed.fleet.launch`, or a legacy-only flag.
    Legacy,
    /// `python -m paddle.distributed.launch`, `fleetrun`.
    #[default]
    Current,
}

/// `--exit-codes`: umiak's, or those of Paddle or torch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCodes {
    Umiak,
    Paddle,
    Torch,
}

/// `--output`: for users, for programs, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    Human,
    Json,
    Quiet,
}

/// `--show`: the replicas whose output is on the console.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Show {
    /// Every replica of a document with several roles, otherwise the first replica.
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
