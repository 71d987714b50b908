//! Diagnostics: what is wrong, where, what we saw, and what to do.
//!
//! A diagnostic has a code from one register ([`codes`]), one sentence, labelled places in documents, rows of facts
//! and hints. Rendering is here; the caller chooses the stream and the colours.

pub mod codes;
mod collected;
mod shown;
mod snippet;
mod source;

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use codes::Code;
pub use collected::{Collected, MAX_KEPT};
pub use shown::{shown, shown_json, visible};
pub use source::{Label, Position, Source, Span};

/// An error stops the command before anything starts; a notice is printed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Error,
    Notice,
}

/// One message to the user. A deserialised one has no labels: their lines are not serialised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    #[schemars(with = "String")]
    pub code: Code,
    pub severity: Severity,
    /// One sentence, names in backticks, no full stop.
    pub message: String,
    /// Places in documents; the first is the place of the error.
    #[serde(default, skip_serializing_if = "Vec::is_empty", skip_deserializing)]
    #[schemars(with = "Vec<source::LabelFields>")]
    pub labels: Vec<Label>,
    /// `name  value` rows below the sentence: what was seen, what was expected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<(String, String)>,
    /// What to do, each on its own line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
}

impl Diagnostic {
    /// The same with all its texts rewritten.
    #[must_use]
    pub fn rewritten(mut self, rewrite: &dyn Fn(&str) -> String) -> Self {
        self.message = rewrite(&self.message);
        self.labels = self.labels.into_iter().map(|label| label.rewritten(rewrite)).collect();
        let texts = self.rows.iter_mut().map(|(_, text)| text).chain(&mut self.hints);
        texts.for_each(|text| *text = rewrite(text));
        self
    }

    /// A failure of umiak itself: the operation and the reason.
    pub fn failed(doing: &str, error: &dyn std::fmt::Display) -> Self {
        Self::error(Code::L0016, format!("umiak could not {doing}")).row("reason", error.to_string())
    }

    pub fn error(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: Severity::Error,
            message: message.into(),
            labels: Vec::new(),
            rows: Vec::new(),
            hints: Vec::new(),
        }
    }

    pub fn notice(code: Code, message: impl Into<String>) -> Self {
        Self { severity: Severity::Notice, ..Self::error(code, message) }
    }

    #[must_use]
    pub fn label(mut self, label: Label) -> Self {
        self.labels.push(label);
        self
    }

    #[must_use]
    pub fn row(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.rows.push((name.into(), value.into()));
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The exit code of a command that ends because of this diagnostic.
    pub fn exit_code(&self) -> u8 {
        self.code.entry().exit
    }

    /// Renders plain text that ends with a line feed. `paint` may colour the head.
    pub fn render(&self, paint: impl Fn(Severity, &str) -> String) -> String {
        let word = match self.severity {
            Severity::Error => "error",
            Severity::Notice => "notice",
        };
        let mut text =
            format!("{}: {}\n", paint(self.severity, &format!("{word}[{}]", self.code)), shown(&self.message));
        text += &snippet::render(&self.labels);
        let width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in &self.rows {
            let mut lines = value.lines().map(shown);
            let _ = writeln!(text, "  {name:<width$}  {}", lines.next().unwrap_or_default());
            for line in lines {
                let _ = writeln!(text, "  {:<width$}  {line}", "");
            }
        }
        for hint in &self.hints {
            let _ = writeln!(text, "hint: {}", shown(hint));
        }
        text
    }

    pub fn to_plain(&self) -> String {
        self.render(|_, head| head.to_owned())
    }
}

/// Returns the name in `candidates` nearest to `word`, if one is near enough. Long words and the end of a long list are
/// not compared: the time is bounded whatever a document contains.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().take(65).count();
    if length > 64 {
        return None;
    }
    let limit = (length / 3).max(1);
    candidates
        .into_iter()
        .take(1000)
        // Each character more or less costs one change.
        .filter(|candidate| candidate.chars().take(length + limit + 1).count().abs_diff(length) <= limit)
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edit distance: a character changed, removed or added, or two neighbours swapped.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut earlier: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in right.iter().enumerate() {
            let mut cost = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == right[j - 1] && left[i - 1] == *b {
                cost = cost.min(earlier[j - 1] + 1);
            }
            row.push(cost);
        }
        earlier = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_rows_aligned_and_hints_last() {
        let text = Diagnostic::error(Code::L0004, "this host is not in `--ips`")
            .row("listed", "192.168.0.1, 192.168.0.2")
            .row("this host", "10.0.0.7 (eth0)\n10.1.0.7 (eth1)")
            .hint("name this node's entry with `--host 192.168.0.1`")
            .to_plain();
        assert_eq!(
            text,
            "error[L0004]: this host is not in `--ips`\n  listed     192.168.0.1, 192.168.0.2\n  this host  10.0.0.7 (eth0)\n             10.1.0.7 (eth1)\nhint: name this node's entry with `--host 192.168.0.1`\n"
        );
    }

    #[test]
    fn nearest_name() {
        assert_eq!(nearest("--log_dirs", ["--log_dir", "--log_level"]), Some("--log_dir"));
        assert_eq!(nearest("--gpu", ["--gpus", "--xpus"]), Some("--gpus"));
        assert_eq!(nearest("nmae", ["name", "roles"]), Some("name"));
        assert_eq!(nearest("--frobnicate", ["--gpus", "--xpus"]), None);
    }
}
