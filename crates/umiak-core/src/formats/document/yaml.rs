//! YAML as a tree with positions: a thin layer over `serde-saphyr`, so that the choice of parser stays in one file.
//!
//! Formats read the tree instead of deserializing into their own types, because one run reports every error of a
//! document, and `Deserialize` stops at the first. A scalar keeps its text as written (`0.10` stays `0.10`) and its YAML
//! type. Duplicate keys are collected with both positions. Anchors and merge keys are resolved; a value from an anchor
//! has the position where it is used and the position where it is written.
//!
//! Any bytes are safe: size, depth, nodes and replayed aliases are limited.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Location, Spanned};

use super::expansion::{MAX_EXPANSION, too_far};
use super::tree::{Node, ScalarKind, Value, shortened};
use crate::diag::{Code, Collected, Diagnostic, Source, Span};

/// The largest document: a pipeline of 100 000 steps has room.
pub const MAX_BYTES: usize = 32 << 20;
const MAX_DEPTH: usize = 48;
const MAX_NODES: usize = 2_000_000;
/// Nodes that aliases may add. They take memory that the size of a document does not show.
const MAX_REPLAYED: usize = 200_000;

/// The tree of a source that is one YAML document, and its errors: duplicate keys.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: Node,
    pub(crate) errors: Collected,
}

/// The tree, or the error of the parser.
pub(crate) fn parse(source: &Source) -> Result<Tree, Diagnostic> {
    if source.text.len() > MAX_BYTES {
        return Err(Diagnostic::error(Code::F0005, format!("`{}` is too large", source.name))
            .row("size", format!("{} bytes", source.text.len()))
            .row("limit", format!("{MAX_BYTES} bytes")));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_anchors: 1_000,
            max_aliases: 10_000,
            max_documents: 2,
            // Counted after aliases are resolved.
            max_total_scalar_bytes: source.text.len() + MAX_EXPANSION,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED,
            max_replay_stack_depth: 16,
        },
        // The visitor must see both occurrences of a duplicate key to report them.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        strict_booleans: true,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
        ignore_binary_tag_for_string: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(&source.text, options) {
        Ok(raw) => {
            let mut errors = Collected::default();
            let root = node(source, raw, &mut errors);
            Ok(Tree { root, errors })
        }
        Err(error) => Err(refused(source, &error)),
    }
}

/// What the deserializer returns, before positions are computed.
enum Raw {
    Null,
    Bool(bool),
    /// The text comes from the source: `1e3` and `1000` are the same number.
    Number(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_bytes<E: serde::de::Error>(self, value: &[u8]) -> Result<Raw, E> {
        std::str::from_utf8(value)
            .map(|text| Raw::Text(text.to_owned()))
            .map_err(|_| E::custom("bytes that are not UTF-8"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
            if items.len() > MAX_NODES {
                return Err(A::Error::custom("too many entries"));
            }
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
            if entries.len() > MAX_NODES {
                return Err(A::Error::custom("too many entries"));
            }
        }
        Ok(Raw::Map(entries))
    }
}

fn node(source: &Source, raw: Spanned<Raw>, errors: &mut Collected) -> Node {
    let written = span(source, &raw.defined);
    let at = span(source, &raw.referenced);
    let is_alias = at.start != written.start;
    let as_written = |value: String| {
        let text = source.slice(written).trim();
        if text.is_empty() || text.starts_with(['!', '&', '"', '\'', '|', '>']) { value } else { text.to_owned() }
    };
    let (value, written) = match raw.value {
        Raw::Null => (Value::scalar(String::new(), ScalarKind::Null), written),
        Raw::Bool(value) => (Value::scalar(as_written(value.to_string()), ScalarKind::Bool), written),
        Raw::Number(value) => (Value::scalar(as_written(value), ScalarKind::Number), written),
        Raw::Text(text) => (Value::scalar(text, ScalarKind::Text), written),
        Raw::List(items) => {
            let items: Vec<Node> = items.into_iter().map(|item| node(source, item, errors)).collect();
            let end = closed(source, written, items.last().map(|item| item.at), ']');
            (Value::List(items), end)
        }
        Raw::Map(entries) => {
            let entries: Vec<(Node, Node)> = entries
                .into_iter()
                .map(|(key, value)| (node(source, key, errors), node(source, value, errors)))
                .collect();
            twice(source, &entries, errors);
            let last = entries.iter().flat_map(|(key, value)| [key.at, value.at]).max_by_key(|span| span.end);
            let end = closed(source, written, last, '}');
            (Value::Map(entries), end)
        }
    };
    Node { value, at: if is_alias { at } else { written }, written }
}

/// The parser gives only the start of a list or mapping: it extends to its last entry and the closing bracket after it.
fn closed(source: &Source, start: Span, last: Option<Span>, bracket: char) -> Span {
    let end = last.map_or(start.end, |last| last.end).max(start.end);
    if !source.slice(Span::new(start.start, start.end.max(start.start + 1))).starts_with(['{', '[']) {
        return Span::new(start.start, end);
    }
    let from = end.max(start.start + 1);
    let close = source.text.get(from..).and_then(|rest| rest.find(bracket)).map_or(end, |at| from + at + 1);
    Span::new(start.start, close)
}

/// The keys of a mapping so far. Most have few, which are compared faster than hashed.
#[derive(Default)]
struct Seen<'n> {
    few: Vec<(&'n str, Span)>,
    many: HashMap<&'n str, Span>,
}

impl<'n> Seen<'n> {
    const FEW: usize = 8;

    /// Where this key was before. `count` is the number of all keys.
    fn insert(&mut self, key: &'n str, at: Span, count: usize) -> Option<Span> {
        if count > Self::FEW {
            return self.many.insert(key, at);
        }
        if let Some((_, known)) = self.few.iter_mut().find(|(other, _)| *other == key) {
            return Some(std::mem::replace(known, at));
        }
        self.few.push((key, at));
        None
    }
}

/// Reports duplicate keys in one mapping.
fn twice(source: &Source, entries: &[(Node, Node)], errors: &mut Collected) {
    let mut seen = Seen::default();
    for (key, _) in entries {
        let Value::Scalar(scalar) = &key.value else { continue };
        if let Some(first) = seen.insert(&scalar.text, key.at, entries.len()) {
            errors.add(|| {
                Diagnostic::error(Code::F0006, format!("duplicate key `{}`", shortened(&scalar.text)))
                    .label(source.label(key.at, "again here"))
                    .label(source.label(first, "first here"))
            });
        }
    }
}

fn span(source: &Source, location: &Location) -> Span {
    let span = location.span();
    // Errors of the scanner have a line and a column only.
    let start = span.byte_offset().map_or_else(|| byte(source, location), |start| start as usize);
    let end = start.saturating_add(span.byte_len().unwrap_or(0) as usize);
    let end = end.min(source.text.len());
    let start = start.min(end);
    // A block scalar and an empty value extend into the next line.
    let text = source.text.get(start..end).unwrap_or("");
    Span::new(start, start + text.trim_end().len())
}

/// The byte offset of a line and a column, which count from 1.
fn byte(source: &Source, location: &Location) -> usize {
    let line = (location.line() as usize).saturating_sub(1);
    let before: usize = source.text.split_inclusive('\n').take(line).map(str::len).sum();
    let column = (location.column() as usize).saturating_sub(1);
    let rest = &source.text[before..];
    before + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
}

/// The parser's error, reworded where it is a limit.
fn refused(source: &Source, error: &serde_saphyr::Error) -> Diagnostic {
    use serde_saphyr::Error;
    let at = error.location().map(|location| {
        let at = span(source, &location);
        // At the end of an incomplete document, its last character is a better position than an empty line.
        if at.start >= source.text.trim_end().len() {
            let end = source.text.trim_end().len();
            let start = source.text[..end].char_indices().next_back().map_or(0, |(start, _)| start);
            Span::new(start, end)
        } else {
            at
        }
    });
    let said = error_text(error);
    let said = said.lines().next().unwrap_or_default();
    // The label shows the position.
    let said = said.split(" at line ").next().unwrap_or(said).trim_end_matches(['.', ':', ',']).to_owned();
    let diagnostic = match error.without_snippet() {
        _ if said.contains("ScalarBytes") => return expanded(source, error, at),
        // The parser reports limits as several variants, some nested in others.
        _ if ["budget", "alias replay", "alias expansion"].iter().any(|word| said.contains(word)) => Diagnostic::error(
            Code::F0005,
            "the document is too large or nested too deep, or its aliases expand too far",
        )
        .row("the parser said", said),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            Diagnostic::error(Code::F0005, "an alias contains itself").row("the parser said", said)
        }
        _ if said.contains("recursion limit") => {
            Diagnostic::error(Code::F0005, "the document is nested too deep").row("the parser said", said)
        }
        Error::MultipleDocuments { .. } => Diagnostic::error(Code::F0002, "more than one YAML document in one file")
            .hint("put each document in its own file"),
        _ => Diagnostic::error(Code::F0002, "this is not valid YAML").row("the parser said", said),
    };
    let Some(at) = at else { return diagnostic.row("file", source.name.clone()) };
    let label = source.label(at, "");
    let line = source.text.lines().nth(label.start.line - 1).unwrap_or("");
    let mut diagnostic = diagnostic.label(label);
    if diagnostic.code != Code::F0002 {
        return diagnostic;
    }
    let is_bracket =
        ["illegal placement of ':'", "flow", "unclosed"].iter().any(|words| error_text(error).contains(words));
    if let Some(open) = open_bracket(&source.text[..at.start]).filter(|open| is_bracket && *open != at.start) {
        diagnostic = diagnostic.label(source.label(Span::new(open, open + 1), "not closed"));
    }
    if line.contains("{{") {
        diagnostic.hint("put the template in quotes: \"{{ name }}\"")
    } else if line.contains('\t') {
        diagnostic.hint("indent with spaces, not tabs")
    } else {
        diagnostic
    }
}

/// The error about the alias with which aliases expand the document too far.
fn expanded(source: &Source, error: &serde_saphyr::Error, at: Option<Span>) -> Diagnostic {
    let written = error.locations().map(|locations| span(source, &locations.defined_location));
    let error = at.into_iter().fold(too_far(), |error, at| error.label(source.label(at, "resolved here, too often")));
    let written = written.filter(|written| at.is_none_or(|at| at.start != written.start));
    written.into_iter().fold(error, |error, written| error.label(source.label(written, "written here")))
}

fn error_text(error: &serde_saphyr::Error) -> String {
    error.without_snippet().to_string()
}

/// The innermost unclosed bracket, approximately: quotes and comments are skipped, block scalars are not.
fn open_bracket(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    let mut quote = None;
    let mut before = '\n';
    let mut is_comment = false;
    for (at, c) in text.char_indices() {
        match c {
            '\n' => is_comment = false,
            _ if is_comment => {}
            '"' | '\'' if quote == Some(c) => quote = None,
            _ if quote.is_some() => {}
            '"' | '\'' if !before.is_alphanumeric() => quote = Some(c),
            '#' if before.is_whitespace() => is_comment = true,
            '[' | '{' => open.push(at),
            ']' | '}' => {
                open.pop();
            }
            _ => {}
        }
        before = c;
    }
    open.pop()
}

/// Values as documents of one YAML stream, each of which other programs read as the same value.
pub fn printed(values: &[serde_json::Value]) -> String {
    // A folded line is no shorter for a reader who copies it.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let documents = values.iter().map(|value| {
        serde_saphyr::to_string_with_options(value, options.clone()).expect("any JSON is a YAML document")
    });
    documents.collect::<Vec<_>>().join("---\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tree::Scalar;
    use super::*;

    fn tree(text: &str) -> Node {
        parse(&Source::new("x.yaml", text)).unwrap_or_else(|error| panic!("{}", error.to_plain())).root
    }

    fn refused(text: &str) -> String {
        match parse(&Source::new("x.yaml", text)) {
            Ok(tree) => tree.errors.into_vec().iter().map(Diagnostic::to_plain).collect(),
            Err(error) => error.to_plain(),
        }
    }

    /// `key=text(kind)` of the entries of the root.
    fn entries(text: &str) -> Vec<(String, Scalar, String)> {
        let source = Source::new("x.yaml", text);
        let Value::Map(entries) = tree(text).value else { panic!("no mapping") };
        let scalar = |node: &Node| match &node.value {
            Value::Scalar(scalar) => scalar.clone(),
            other => panic!("{other:?}"),
        };
        entries.iter().map(|(k, v)| (scalar(k).text, scalar(v), source.slice(v.at).to_owned())).collect()
    }

    #[test]
    fn scalars_keep_their_text_and_place() {
        for (written, text, kind) in [
            ("plain", "plain", ScalarKind::Text),
            ("\"quo ted\"", "quo ted", ScalarKind::Text),
            ("'it''s'", "it's", ScalarKind::Text),
            ("0.10", "0.10", ScalarKind::Number),
            ("1e3", "1e3", ScalarKind::Number),
            ("0x10", "0x10", ScalarKind::Number),
            (".nan", ".nan", ScalarKind::Number),
            ("-5", "-5", ScalarKind::Number),
            ("TRUE", "TRUE", ScalarKind::Bool),
            ("yes", "yes", ScalarKind::Text),
            ("\"5\"", "5", ScalarKind::Text),
            ("~", "", ScalarKind::Null),
            ("色", "色", ScalarKind::Text),
        ] {
            let found = entries(&format!("键: {written} # comment\r\n"));
            assert_eq!(found, [("键".to_owned(), Scalar { text: text.to_owned(), kind }, written.to_owned())]);
        }
    }

    #[test]
    fn brackets_belong_to_the_span() {
        let text = "d: {x: 1, y: [1, 2] }\n";
        let Value::Map(entries) = tree(text).value else { panic!() };
        assert_eq!(Source::new("", text).slice(entries[0].1.at), "{x: 1, y: [1, 2] }");
    }

    #[test]
    fn aliases_and_merges_are_resolved() {
        let text = "a: &a {k: 0.10}\nb: *a\nc: {<<: *a, l: 1}\nd: {k: own, <<: *a}\n";
        let source = Source::new("x.yaml", text);
        let Value::Map(entries) = tree(text).value else { panic!() };
        assert_eq!(source.slice(entries[1].1.at), "*a");
        let Value::Map(merged) = &entries[2].1.value else { panic!() };
        assert_eq!(merged.len(), 2);
        let Value::Map(own) = &entries[3].1.value else { panic!() };
        assert_eq!(own.len(), 1);
    }

    #[test]
    fn what_is_refused() {
        insta::assert_snapshot!(refused("a: [1, 2\nb: 3\n"));
        insta::assert_snapshot!(refused("a: 1\nb: {{x}}-1\n"));
        insta::assert_snapshot!(refused("a:\n\tb: 1"));
        insta::assert_snapshot!(refused("a: &x [*x]"));
        insta::assert_snapshot!(refused("a: 1\n---\nb: 2"));
        insta::assert_snapshot!(refused("a: 1\na: 2\nb: {c: 1, c: 2}"));
        insta::assert_snapshot!(refused("a: *nope"));
        insta::assert_snapshot!(refused(&"{".repeat(60)));
        insta::assert_snapshot!(refused("a: \"x\n"));
        insta::assert_snapshot!(refused("角色: 甲: 乙\n"));
    }

    #[test]
    fn alias_bombs_are_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&["a", &level.to_string(), ": &a", &level.to_string(), " [", &aliases, "]\n"].concat());
        }
        assert!(refused(&text).starts_with("error[F0005]"), "{}", refused(&text));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_as_the_same(
            texts in proptest::collection::vec("[a1\\- :#'\"|>&*{}\\[\\],!%@~\\\\ \n\t$角]{0,24}|yes|null|1e3|0x1|2001-01-01|<<|=", 1..6),
        ) {
            let value = serde_json::json!({"texts": texts, "by": {(&texts[0]): [{}, [], 1, null, true, {"a": texts}]}});
            let text = printed(std::slice::from_ref(&value));
            let read: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(&read, &value, "{}", text);
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&Source::new("x", String::from_utf8_lossy(&bytes)));
        }

        #[test]
        fn never_panics_on_signs(text in "[a-z0-9:{}\\[\\],&*!|>'\"%@#?\\-<~ \\n\\t\\r角]{0,80}") {
            let _ = parse(&Source::new("x", text));
        }
    }
}
