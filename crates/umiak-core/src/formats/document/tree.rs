//! A document as a tree with positions, for YAML and TOML.

use crate::diag::Span;

/// A node: its value, where it is used, and where it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    /// Where it is used; for an alias, the position of the alias.
    pub(crate) at: Span,
    /// Where its text is.
    pub(crate) written: Span,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// A scalar as written, without quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) kind: ScalarKind,
}

/// The type of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScalarKind {
    Null,
    Bool,
    Number,
    Text,
    /// Filled from a template: any type that its text can be parsed as.
    Filled,
    /// A template that cannot be filled. It is already reported; readers report nothing more.
    Broken,
}

impl Value {
    pub(crate) fn scalar(text: impl Into<String>, kind: ScalarKind) -> Self {
        Self::Scalar(Scalar { text: text.into(), kind })
    }
}

impl Node {
    /// For messages: `a list`, `the number 5`.
    pub(crate) fn found(&self) -> String {
        match &self.value {
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
            Value::Scalar(scalar) => match scalar.kind {
                ScalarKind::Null | ScalarKind::Broken => "empty".to_owned(),
                ScalarKind::Bool => format!("`{}`", scalar.text),
                ScalarKind::Number => format!("the number `{}`", scalar.text),
                ScalarKind::Text | ScalarKind::Filled if scalar.text.is_empty() => "an empty string".to_owned(),
                ScalarKind::Text | ScalarKind::Filled => format!("the string `{}`", shortened(&scalar.text)),
            },
        }
    }

    fn is(&self, kind: ScalarKind) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.kind == kind)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.is(ScalarKind::Null)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is(ScalarKind::Broken)
    }

    /// The text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// The entries of a mapping; empty for other nodes.
    pub(crate) fn entries(&self) -> &[(Node, Node)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The value of a key of a mapping; `None` if it is empty.
    pub(crate) fn child(&self, name: &str) -> Option<&Node> {
        let found = self.entries().iter().find(|(key, _)| key.text() == Some(name));
        found.map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// Calls `take` with every scalar below this node and its text, keys excluded.
    pub(crate) fn each_leaf(&self, take: &mut dyn FnMut(&Self, &str)) {
        match &self.value {
            Value::Scalar(scalar) => take(self, &scalar.text),
            Value::List(items) => items.iter().for_each(|item| item.each_leaf(take)),
            Value::Map(entries) => entries.iter().for_each(|(_, value)| value.each_leaf(take)),
        }
    }

    /// The items of a list, or the node itself.
    pub(crate) fn one_or_many(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }
}

/// For messages: the first line, at most forty characters.
pub(crate) fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or("");
    let mut short: String = line.chars().take(40).collect();
    if short.len() < text.trim_end().len() {
        short.push('…');
    }
    short
}
