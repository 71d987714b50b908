//! What replicas have written: whose it is before each line, or as JSON. Bytes that are no text pass as they are.

use super::Output;
use crate::screen::Style;
use crate::screen::lines::{Lines, prefix};

/// How lines are told apart.
#[derive(Debug)]
pub(crate) struct LogPrinter {
    output: Output,
    style: Style,
    is_named: bool,
    width: usize,
    /// With their ranks, which have colours.
    names: Vec<(String, u32)>,
}

impl LogPrinter {
    pub(crate) fn new(output: Output, style: Style, is_named: bool, names: Vec<(String, u32)>) -> Self {
        let width = names.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        Self { output, style, is_named, width, names }
    }

    pub(crate) fn lines(&self, replica: &str, attempt: u32) -> LogLines {
        let form = match self.output {
            Output::Json => LineForm::Json { replica: replica.to_owned(), attempt },
            Output::Human if self.is_named => {
                let rank = self.names.iter().find(|(name, _)| name == replica).map_or(0, |(_, rank)| *rank);
                LineForm::Named(prefix(replica, self.width, rank, self.style.colour).into_bytes())
            }
            Output::Human | Output::Quiet => LineForm::Raw,
        };
        LogLines { form, lines: Lines::default() }
    }
}

#[derive(Debug)]
enum LineForm {
    Raw,
    Named(Vec<u8>),
    Json { replica: String, attempt: u32 },
}

/// Bytes of one replica on their way out.
#[derive(Debug)]
pub(crate) struct LogLines {
    form: LineForm,
    lines: Lines,
}

impl LogLines {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        if matches!(self.form, LineForm::Raw) {
            return bytes.to_vec();
        }
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
        self.lines.feed(bytes, |line| self.form.write(line, &mut out));
        out
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.lines.finish(|line| self.form.write(line, &mut out));
        out
    }
}

impl LineForm {
    fn write(&self, line: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Raw => out.extend_from_slice(line),
            Self::Named(name) => {
                out.extend_from_slice(name);
                out.extend_from_slice(line);
            }
            Self::Json { replica, attempt } => {
                let text = String::from_utf8_lossy(line);
                let line = serde_json::json!({ "v": 1, "replica": replica, "attempt": attempt, "text": text });
                out.extend_from_slice(line.to_string().as_bytes());
            }
        }
        out.push(b'\n');
    }
}
