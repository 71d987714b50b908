//! Error codes, and the signatures of the user's program: `explain CODE`.

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::codes::Entry;
use umiak_core::diagnose::{Kind, Signature};

/// What `umiak explain CODE --output json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExplainedCode {
    v: u32,
    code: &'static str,
    pub title: &'static str,
    /// Exit code of a command that ends because of it. Absent for notices and for signatures (`U…`).
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    text: &'static str,
    /// Only of a signature: what its message says about the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    /// Only of a signature: the regular expression for a line of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<&'static str>,
}

impl From<&'static Entry> for ExplainedCode {
    fn from(entry: &'static Entry) -> Self {
        let Entry { code, title, text, exit } = entry;
        let exit_code = Some(*exit).filter(|exit| *exit != 0);
        Self { v: 1, code: code.as_str(), title, exit_code, text, kind: None, hint: None, pattern: None }
    }
}

impl From<&'static Signature> for ExplainedCode {
    fn from(signature: &'static Signature) -> Self {
        let Signature { code, kind, title, pattern, hint, text, .. } = signature;
        let (kind, hint, pattern) = (Some(*kind), Some(*hint), Some(*pattern));
        Self { v: 1, code, title, exit_code: None, text, kind, hint, pattern }
    }
}

impl ExplainedCode {
    pub(crate) fn human(&self) -> String {
        let Self { code, title, text, .. } = self;
        if let (Some(kind), Some(hint), Some(pattern)) = (self.kind, self.hint, self.pattern) {
            return format!("{code}: {title}\n\n{}. {text}\n\nhint: {hint}\npattern: {pattern}\n", kind.title());
        }
        let exit = self.exit_code.map_or_else(|| "none (a notice)".to_owned(), |exit| exit.to_string());
        format!("{code}: {title}\nexit code {exit}\n\n{text}\n")
    }
}
