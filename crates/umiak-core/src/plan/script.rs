//! What a scheduler of another system gets for a job, as printed plans have it.

use std::ffi::OsString;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mask::Known;
use crate::model::EngineKind;
use crate::quote::shell::quoted;

/// A script for the scheduler of an engine, and the command line that submits it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterScript {
    /// The step of a pipeline; that of a loop is submitted for each item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    pub engine: EngineKind,
    /// The command line that submits it. Without one, the script itself is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    pub text: String,
}

impl ClusterScript {
    /// A script that these words submit; that is run, if there are none.
    pub fn new(engine: EngineKind, words: &[OsString], text: String) -> Self {
        let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        Self { step: None, engine, command: (!words.is_empty()).then(|| quoted.join(" ")), text }
    }

    #[must_use]
    pub fn masked(&self, known: &Known) -> Self {
        let command = self.command.as_ref().map(|command| known.text(command));
        Self { command, text: known.text(&self.text), ..self.clone() }
    }
}
