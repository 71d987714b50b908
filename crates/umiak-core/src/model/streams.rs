//! Which output of a rank the console shows: the rules of `torchrun`, whose ranks write stdout and stderr apart.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One of the two streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Both, if they have one log.
    Out,
    Err,
}

/// Streams: `-r 3` names both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Streams {
    pub out: bool,
    pub err: bool,
}

impl Streams {
    /// `0` is none, `1` stdout, `2` stderr, `3` both.
    pub fn parse(text: &str) -> Option<Self> {
        let (out, err) = match text {
            "0" => (false, false),
            "1" => (true, false),
            "2" => (false, true),
            "3" => (true, true),
            _ => return None,
        };
        Some(Self { out, err })
    }

    fn has(self, stream: Stream) -> bool {
        match stream {
            Stream::Out => self.out,
            Stream::Err => self.err,
        }
    }
}

/// Streams of each local rank: `3`, or `0:1,1:2`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StreamMap {
    /// Of the local ranks that are not listed.
    #[serde(default)]
    pub all: Streams,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub listed: BTreeMap<u32, Streams>,
}

impl StreamMap {
    /// Local ranks that a list omits have none.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(all) = Streams::parse(text) {
            return Some(Self { all, listed: BTreeMap::new() });
        }
        let entry = |entry: &str| {
            let (rank, streams) = entry.split_once(':')?;
            Some((rank.parse().ok()?, Streams::parse(streams)?))
        };
        let listed = text.split(',').map(entry).collect::<Option<_>>()?;
        Some(Self { all: Streams::default(), listed })
    }

    fn has(&self, local_rank: u32, stream: Stream) -> bool {
        self.listed.get(&local_rank).unwrap_or(&self.all).has(stream)
    }
}

/// Which streams the console shows, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StreamRules {
    /// `--redirects`: in the log only.
    #[serde(default)]
    pub redirects: StreamMap,
    /// `--tee`: in the log and, with a prefix, on the console.
    #[serde(default)]
    pub tee: StreamMap,
    /// `--local-ranks-filter`: the console shows only these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<BTreeSet<u32>>,
    /// `--log-line-prefix-template`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// How the console shows a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConsole {
    Hidden,
    Plain,
    Prefixed,
}

/// The rank whose lines get a prefix.
#[derive(Debug, Clone, Copy)]
pub struct PrefixOf<'a> {
    pub role: &'a str,
    pub local_rank: u32,
    pub rank: u32,
    pub host: &'a str,
}

impl StreamRules {
    pub fn on_console(&self, local_rank: u32, stream: Stream) -> OnConsole {
        if self.filter.as_ref().is_some_and(|filter| !filter.contains(&local_rank)) {
            OnConsole::Hidden
        } else if self.tee.has(local_rank, stream) {
            OnConsole::Prefixed
        } else if self.redirects.has(local_rank, stream) {
            OnConsole::Hidden
        } else {
            OnConsole::Plain
        }
    }

    /// `[default0]:`, or as the template says.
    pub fn prefix(&self, of: PrefixOf<'_>) -> String {
        let template = self.template.as_deref().filter(|template| !template.is_empty());
        let value = |name: &str| match name {
            "role_name" => Some(of.role.to_owned()),
            "local_rank" => Some(of.local_rank.to_string()),
            "rank" => Some(of.rank.to_string()),
            "hostname" => Some(of.host.to_owned()),
            _ => None,
        };
        substituted(template.unwrap_or("[${role_name}${local_rank}]:"), value)
    }
}

/// Replaces `$name` and `${name}` as Python's `string.Template.safe_substitute` does: unknown names stay, and `$$` is one
/// dollar sign.
pub fn substituted(template: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            text.push('$');
            rest = after;
            continue;
        }
        let (name, length) = match rest[1..].strip_prefix('{') {
            Some(inside) => {
                let name = identifier(inside);
                (if inside[name.len()..].starts_with('}') { name } else { "" }, name.len() + 3)
            }
            None => (identifier(&rest[1..]), identifier(&rest[1..]).len() + 1),
        };
        if let Some(value) = value(name).filter(|_| !name.is_empty()) {
            text.push_str(&value);
            rest = &rest[length..];
        } else {
            text.push('$');
            rest = &rest[1..];
        }
    }
    text + rest
}

/// The identifier at the beginning.
fn identifier(text: &str) -> &str {
    let is_part = |(at, c): (usize, char)| c == '_' || c.is_ascii_alphabetic() || at > 0 && c.is_ascii_digit();
    let end = text.char_indices().find(|part| !is_part(*part)).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_by_rank() {
        for (redirects, tee, filter, expected) in [
            ("0", "0", None, "plain plain"),
            ("3", "0", None, "hidden hidden"),
            ("1", "0", None, "hidden plain"),
            ("0", "3", None, "prefixed prefixed"),
            ("3", "1", None, "prefixed hidden"),
            ("0:3,1:1", "0", None, "hidden plain"),
            ("12:3", "0", None, "plain plain"),
            ("0", "3", Some(0), "hidden hidden"),
            ("0", "0", Some(1), "plain plain"),
        ] {
            let rules = StreamRules {
                redirects: StreamMap::parse(redirects).unwrap(),
                tee: StreamMap::parse(tee).unwrap(),
                filter: filter.map(|rank| BTreeSet::from([rank])),
                template: None,
            };
            let shown = |stream| match rules.on_console(1, stream) {
                OnConsole::Hidden => "hidden",
                OnConsole::Plain => "plain",
                OnConsole::Prefixed => "prefixed",
            };
            let case = format!("-r {redirects} -t {tee} {filter:?}");
            assert_eq!(format!("{} {}", shown(Stream::Out), shown(Stream::Err)), expected, "{case}");
        }
        for wrong in ["", "4", "x", "0:4", "0:1,", "0", "1:", "a:1"].iter().filter(|text| **text != "0") {
            assert_eq!(StreamMap::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn prefixes_and_macros() {
        let of = PrefixOf { role: "default", local_rank: 1, rank: 3, host: "node-a" };
        assert_eq!(StreamRules::default().prefix(of), "[default1]:");
        let rules = StreamRules { template: Some("${hostname}:$rank: ".to_owned()), ..StreamRules::default() };
        assert_eq!(rules.prefix(of), "node-a:3: ");
        let rank = |name: &str| (name == "local_rank").then(|| "7".to_owned());
        for (template, expected) in [
            ("--r=${local_rank}", "--r=7"),
            ("$local_rank.", "7."),
            ("$local_rank0 ${other} $", "$local_rank0 ${other} $"),
            ("$$local_rank ${local_rank", "$local_rank ${local_rank"),
            ("a$b", "a$b"),
        ] {
            assert_eq!(substituted(template, rank), expected, "{template}");
        }
    }
}
