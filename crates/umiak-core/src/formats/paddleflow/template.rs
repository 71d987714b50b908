//! `{{ name }}` and `{{ owner.name }}` in texts. Anything else between braces is text.

use std::ops::Range;

use crate::diag::{Source, Span};
use crate::formats::document::template::{Templates, Unfilled};
use crate::formats::document::tree::Node;

/// The owner that stands for the DAG around a component.
pub(super) const PARENT: &str = "PF_PARENT";

/// A template in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template<'t> {
    /// Where it is in the text.
    pub(super) range: Range<usize>,
    pub(super) owner: Option<&'t str>,
    pub(super) name: &'t str,
}

/// The templates of a text, in their order.
pub(super) fn templates(text: &str) -> impl Iterator<Item = Template<'_>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        while let Some(at) = text.get(from..).and_then(|rest| rest.find("{{")) {
            let start = from + at;
            if let Some(template) = template(text, start) {
                from = template.range.end;
                return Some(template);
            }
            from = start + 1;
        }
        None
    })
}

/// The template that begins here.
fn template(text: &str, start: usize) -> Option<Template<'_>> {
    let inner = text[start + 2..].trim_start();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (first, rest) = split(inner, |c| is_word(c) || c == '-');
    let (owner, name, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let (name, rest) = split(rest, is_word);
            (Some(first), name, rest)
        }
        None => (None, first, rest),
    };
    let rest = rest.trim_start().strip_prefix("}}")?;
    let is_whole = !name.is_empty() && name.chars().all(is_word) && owner.is_none_or(|owner| !owner.is_empty());
    is_whole.then(|| Template { range: start..text.len() - rest.len(), owner, name })
}

fn split(text: &str, is_part: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()))
}

/// The template that a whole text consists of.
pub(super) fn whole(text: &str) -> Option<Template<'_>> {
    let text = text.trim();
    templates(text).next().filter(|template| template.range == (0..text.len()))
}

/// The position of a part of a leaf; the whole leaf where escapes make that unclear.
pub(super) fn place(source: &Source, node: &Node, part: &Range<usize>) -> Span {
    let text = node.text().unwrap_or_default();
    let (Some(before), Some(wanted)) = (text.get(..part.start), text.get(part.clone())) else { return node.at };
    if node.at.start != node.written.start || wanted.is_empty() {
        return node.at;
    }
    // Indentation and folded lines change what is between, so the same part is counted.
    let count = before.matches(wanted).count();
    let found = source.slice(node.written).match_indices(wanted).nth(count);
    found.map_or(node.at, |(at, _)| Span::new(node.written.start + at, node.written.start + at + wanted.len()))
}

/// The braces, for what all formats share.
pub(super) struct Braces;

impl Templates for Braces {
    const OPEN: &'static str = "{{";
    const CLOSE: &'static str = "}}";
    const LITERAL: &'static str = "";

    fn value(&self, _: &str) -> Result<&str, Unfilled> {
        Err(Unfilled::Kept)
    }

    fn unknown(&self, _: &str) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_template() {
        let found = |text: &'static str| {
            templates(text).map(|one| (one.owner.unwrap_or(""), one.name, &text[one.range])).collect::<Vec<_>>()
        };
        assert_eq!(found("a {{ x }} {{\tb-c.y_1}}"), [("", "x", "{{ x }}"), ("b-c", "y_1", "{{\tb-c.y_1}}")]);
        assert_eq!(found("{{{x}}}"), [("", "x", "{{x}}")]);
        assert_eq!(found("{{ {{x}}"), [("", "x", "{{x}}")]);
        for text in
            ["{{}}", "{{ }}", "{{a-b}}", "{{a.b-c}}", "{{a.b.c}}", "{{.a}}", "{{a.}}", "{{a b}}", "{{ä}}", "{{a", "{a}"]
        {
            assert_eq!(found(text), [], "{text}");
        }
        assert!(whole(" {{a.b}} ").is_some() && whole("{{a.b}}x").is_none() && whole("{{a}}{{b}}").is_none());
    }
}
