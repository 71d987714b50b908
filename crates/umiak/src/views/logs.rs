//! What replicas have written: whose it is before each line, or as JSON. Bytes that are no text pass as they are.

use anstyle::AnsiColor;

use super::Output;
use crate::screen::Style;

/// How lines are told apart.
#[derive(Debug)]
pub(crate) struct LogPrinter {
    output: Output,
    style: Style,
    is_named: bool,
    width: usize,
    names: Vec<String>,
}

/// In a stable order, so that a replica keeps its colour.
const COLOURS: [AnsiColor; 6] =
    [AnsiColor::Cyan, AnsiColor::Yellow, AnsiColor::Green, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::Red];

impl LogPrinter {
    pub(crate) fn new(output: Output, style: Style, is_named: bool, names: Vec<String>) -> Self {
        let width = names.iter().map(String::len).max().unwrap_or(0);
        Self { output, style, is_named, width, names }
    }

    pub(crate) fn lines(&self, replica: &str, attempt: u32) -> LogLines {
        let form = match self.output {
            Output::Json => LineForm::Json { replica: replica.to_owned(), attempt },
            Output::Human if self.is_named => {
                let name = format!("{replica:<width$} |", width = self.width);
                let place = self.names.iter().position(|other| other == replica).unwrap_or(0);
                let colour = COLOURS[place % COLOURS.len()].on_default();
                let painted = if self.style.colour { format!("{colour}{name}{colour:#} ") } else { format!("{name} ") };
                LineForm::Named(painted.into_bytes())
            }
            Output::Human | Output::Quiet => LineForm::Raw,
        };
        LogLines { form, partial: Vec::new() }
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
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
}

/// A line without an end is shown in pieces of this size.
const PIECE: usize = 64 << 10;

impl LogLines {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        if matches!(self.form, LineForm::Raw) {
            return bytes.to_vec();
        }
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if self.partial.ends_with(b"\n") || self.partial.len() >= PIECE {
                self.emit(&mut out);
            }
        }
        out
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.partial.is_empty() {
            self.emit(&mut out);
        }
        out
    }

    fn emit(&mut self, out: &mut Vec<u8>) {
        let line = self.partial.strip_suffix(b"\n").unwrap_or(&self.partial);
        match &self.form {
            LineForm::Raw => {}
            LineForm::Named(name) => {
                out.extend_from_slice(name);
                out.extend_from_slice(line);
            }
            LineForm::Json { replica, attempt } => {
                let text = String::from_utf8_lossy(line);
                let line = serde_json::json!({ "v": 1, "replica": replica, "attempt": attempt, "text": text });
                out.extend_from_slice(line.to_string().as_bytes());
            }
        }
        out.push(b'\n');
        self.partial.clear();
    }
}
