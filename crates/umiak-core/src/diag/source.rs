//! Sources, spans and labels: places in documents.

use std::fmt;
use std::ops::Range;

use schemars::JsonSchema;
use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};

/// Bytes of a line that a label keeps before and after the start of its mark.
const BEFORE: usize = 512;
const AFTER: usize = 1024;

/// A document: its name in messages, and its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    pub name: String,
    pub text: String,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({}, {} bytes)", self.name, self.text.len())
    }
}

/// Bytes `start..end` of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Self {
        Self { start, end: end.max(start) }
    }

    /// From the start of this one to the end of the other.
    #[must_use]
    pub fn to(self, other: Self) -> Self {
        Self::new(self.start, other.end)
    }
}

/// Line and column, both from 1; columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Source {
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// The text of a span; empty if the span is not inside the source.
    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or("")
    }

    /// The position of a byte. A byte inside a character, or after the end, is moved back to the start of a character.
    pub fn position(&self, byte: usize) -> Position {
        let before = &self.text[..self.boundary(byte)];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Position { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
    }

    /// A label at a span, with the line in which it starts. Only that line is underlined.
    pub fn label(&self, span: Span, label: impl Into<String>) -> Label {
        let start = self.boundary(span.start);
        let end = self.boundary(span.end).max(start);
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |at| start + at);
        // A line may be the whole document: only the part that can be shown is copied.
        let from = line_start.max(self.boundary(start.saturating_sub(BEFORE)));
        let to = line_end.min(self.boundary(start + AFTER));
        let part = self.text[from..to].trim_end_matches('\r');
        let left = if from > line_start { "…" } else { "" };
        let right = if to < line_end { "…" } else { "" };
        let inside = |byte: usize| left.len() + (byte.clamp(from, to) - from).min(part.len());
        Label {
            file: self.name.clone(),
            start: self.position(start),
            end: self.position(end),
            label: label.into(),
            marked: inside(start)..inside(end),
            line: [left, part, right].concat(),
        }
    }

    fn boundary(&self, byte: usize) -> usize {
        let mut byte = byte.min(self.text.len());
        while !self.text.is_char_boundary(byte) {
            byte -= 1;
        }
        byte
    }
}

/// A place in a document, with a message. It contains its line, so that it can be shown without the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub file: String,
    pub start: Position,
    /// After the last character.
    pub end: Position,
    pub label: String,
    /// The line that contains `start`, without its line ending; a long one is cut around the mark.
    pub(super) line: String,
    /// Byte range in `line`.
    pub(super) marked: Range<usize>,
}

impl Label {
    /// The same with its texts rewritten. The mark stays at its words.
    #[must_use]
    pub(super) fn rewritten(mut self, rewrite: &dyn Fn(&str) -> String) -> Self {
        let Range { start, end } = self.marked;
        let parts = [&self.line[..start], &self.line[start..end], &self.line[end..]].map(rewrite);
        self.marked = parts[0].len()..parts[0].len() + parts[1].len();
        (self.line, self.label) = (parts.concat(), rewrite(&self.label));
        self
    }
}

/// The serialised form of a label.
#[derive(JsonSchema)]
#[schemars(rename = "Label")]
#[expect(dead_code, reason = "describes the serialised form of `Label`")]
pub(super) struct LabelFields {
    file: String,
    line: usize,
    column: usize,
    end: Position,
    label: String,
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Label", 5)?;
        object.serialize_field("file", &self.file)?;
        object.serialize_field("line", &self.start.line)?;
        object.serialize_field("column", &self.start.column)?;
        object.serialize_field("end", &self.end)?;
        object.serialize_field("label", &self.label)?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters() {
        let source = Source::new("a.yaml", "甲: 乙\r\nb: c\n");
        assert_eq!(source.position(0), Position { line: 1, column: 1 });
        assert_eq!(source.position(5), Position { line: 1, column: 4 });
        assert_eq!(source.position(4), Position { line: 1, column: 3 });
        assert_eq!(source.position(10), Position { line: 2, column: 1 });
        assert_eq!(source.position(999), Position { line: 3, column: 1 });
    }

    #[test]
    fn labels_end_with_their_line() {
        let source = Source::new("a.yaml", "a:\r\n  b: 1\r\n  c: 2\r\n");
        let label = source.label(Span::new(6, 18), "here");
        assert_eq!((label.line.as_str(), label.marked.clone()), ("  b: 1", 2..6));
        assert_eq!(label.end, Position { line: 3, column: 7 });
    }
}
