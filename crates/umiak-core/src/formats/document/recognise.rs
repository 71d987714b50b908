//! From the bytes of a file to its text and the name of its format.

use super::tree::Node;
use super::yaml::{self, Tree};
use crate::diag::{Code, Diagnostic, Source, Span};
use crate::formats::paddlerec::File;

/// A format of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Native,
    PaddleFlow,
    OpenPai,
    PaddleRec,
}

impl Format {
    /// The format of a text, if it is known.
    pub fn of(source: &Source) -> Option<Self> {
        recognise(source).0
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "umiak",
            Self::PaddleFlow => "PaddleFlow",
            Self::OpenPai => "OpenPAI",
            Self::PaddleRec => "PaddleRec",
        }
    }
}

/// A source from the bytes of a file. `name` is for messages.
pub fn decode(name: &str, bytes: &[u8]) -> Result<Source, Diagnostic> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(Diagnostic::error(Code::F0001, format!("`{name}` is UTF-16")).hint("save it as UTF-8"));
    }
    if bytes.contains(&0) {
        return Err(Diagnostic::error(Code::F0001, format!("`{name}` is not a text file"))
            .row("found", "a NUL byte")
            .row("expected", "YAML in UTF-8"));
    }
    if bytes.len() > yaml::MAX_BYTES {
        return Err(Diagnostic::error(Code::F0005, format!("`{name}` is too large"))
            .row("limit", format!("{} bytes", yaml::MAX_BYTES)));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Source::new(name, text.trim_start_matches('\u{feff}'))),
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let line = before.matches('\n').count() + 1;
            Err(Diagnostic::error(Code::F0001, format!("`{name}` is not UTF-8"))
                .row("line", line.to_string())
                .row("byte", error.valid_up_to().to_string())
                .hint("save it as UTF-8"))
        }
    }
}

/// The format of a text, recognised by keys that only it has, and its tree. A text that is not YAML is recognised by its
/// lines, so that its errors are those of its format.
pub(crate) fn recognise(source: &Source) -> (Option<Format>, Result<Tree, Diagnostic>) {
    let tree = yaml::parse(source);
    let keys: Vec<&str> = match &tree {
        Ok(tree) => tree.root.entries().iter().filter_map(|(key, _)| key.text()).collect(),
        Err(_) => source
            .text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(key, _)| key.trim_start_matches('{').trim_end().trim_matches(['"', '\'']))
            .collect(),
    };
    let is_paddlerec = match &tree {
        Ok(tree) => File::of_tree(&tree.root),
        Err(_) => File::of_lines(&source.text),
    }
    .is_some();
    let has = |name: &str| keys.contains(&name);
    let format = if has("umiak") {
        Some(Format::Native)
    } else if has("entry_points") || has("entryPoints") {
        Some(Format::PaddleFlow)
    } else if has("taskRoles") || has("protocolVersion") {
        Some(Format::OpenPai)
    } else if is_paddlerec {
        Some(Format::PaddleRec)
    } else {
        None
    };
    (format, tree)
}

/// Objects of OpenPAI's controller: alone, in a list of Kubernetes, or one of several documents in a file.
pub(crate) fn framework(source: &Source, tree: &Result<Tree, Diagnostic>) -> Option<Diagnostic> {
    let is_framework = |node: &Node| node.child("kind").and_then(Node::text) == Some("Framework");
    let kind = |node: &Node| node.child("kind").map_or(node.at, |kind| kind.at);
    let at = if let Ok(Tree { root, .. }) = tree {
        let items = root.child("items").map_or(&[][..], Node::one_or_many);
        std::iter::once(root).chain(items).find(|node| is_framework(node)).map(kind)?
    } else {
        let is_kind = |line: &str| {
            let value = line.strip_prefix("kind:").map(|value| value.trim().trim_matches(['"', '\'']));
            value == Some("Framework")
        };
        let mut start = 0;
        let mut lines = source.text.split_inclusive('\n').map(|line| {
            start += line.len();
            (start - line.len(), line)
        });
        let (start, line) = lines.find(|(_, line)| is_kind(line))?;
        Span::new(start, start + line.trim_end().len())
    };
    let message = "a `Framework` of frameworkcontroller is not a job document";
    Some(Diagnostic::error(Code::F0004, message).label(source.label(at, "")).hint(
        "write the job as an OpenPAI document (`protocolVersion: 2`): the pods of its task roles become `taskRoles`",
    ))
}

/// True for a program instead of a document, by its name or its first line.
pub(crate) fn is_script(source: &Source) -> bool {
    let extension = source.name.rsplit_once('.').map_or("", |(_, extension)| extension);
    extension == "py" || source.text.starts_with("#!")
}

pub(crate) fn not_a_script(source: &Source) -> Diagnostic {
    let name = &source.name;
    Diagnostic::error(Code::F0003, format!("`{name}` is a script, not a document"))
        .hint(format!("run it with `umiak launch {name}`"))
}

pub(crate) fn not_recognised(source: &Source, root: &Node) -> Diagnostic {
    if root.is_null() {
        return Diagnostic::error(Code::F0003, format!("`{}` is empty", source.name))
            .hint("a native document starts with `umiak: v1`");
    }
    let first = root.entries().first().map_or(root.at, |(key, _)| key.at);
    let error =
        Diagnostic::error(Code::F0003, "the format of this document is not recognised").label(source.label(first, ""));
    if root.child("roles").is_some() {
        error.hint("add `umiak: v1` as its first line")
    } else if root.child("apiVersion").is_some() && root.child("kind").is_some() {
        error.hint("this is a Kubernetes manifest; umiak runs documents that start with `umiak: v1`")
    } else {
        error.hint("a native document starts with `umiak: v1`; `umiak schema job` prints its schema")
    }
}
