//! Finds the patterns of the table that match a line.
//!
//! Most lines match none, and one automaton for all patterns is slow to build and to run. So each
//! pattern is reduced to substrings that every match contains, and is compiled only when a line
//! contains one of them. A failure compiles only a few.

use std::sync::{LazyLock, OnceLock};

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

use super::SIGNATURES;

struct Pattern {
    source: &'static str,
    /// Every matching line contains one of these.
    needles: Vec<String>,
    compiled: OnceLock<Regex>,
}

static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let pattern = |source| Pattern {
        source,
        needles: needles(source).expect("a test finds needles for every pattern"),
        compiled: OnceLock::new(),
    };
    SIGNATURES.iter().map(|signature| pattern(signature.pattern)).collect()
});

/// The indices of the rows whose pattern matches, in table order.
pub(super) fn matches(line: &str) -> impl Iterator<Item = usize> {
    let hits = move |pattern: &Pattern| {
        pattern.needles.iter().any(|needle| line.contains(needle)) && pattern.compiled().is_match(line.as_bytes())
    };
    PATTERNS.iter().enumerate().filter(move |(_, pattern)| hits(pattern)).map(|(index, _)| index)
}

impl Pattern {
    fn compiled(&self) -> &Regex {
        // The patterns are ASCII; without Unicode tables the compiled programs are much smaller.
        let compile = || RegexBuilder::new(self.source).unicode(false).build().expect("a test compiles every pattern");
        self.compiled.get_or_init(compile)
    }
}

/// The needles of one pattern, if it has any.
fn needles(source: &str) -> Option<Vec<String>> {
    let parsed = ParserBuilder::new().unicode(false).utf8(false).build().parse(source);
    parsed.ok().and_then(|pattern| required(&pattern))
}

/// Substrings of which every match contains at least one; `None` if there are none.
fn required(pattern: &Hir) -> Option<Vec<String>> {
    match pattern.kind() {
        HirKind::Literal(literal) => String::from_utf8(literal.0.to_vec()).ok().map(|word| vec![word]),
        HirKind::Capture(capture) => required(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => required(&repetition.sub),
        HirKind::Alternation(parts) => {
            let needles: Option<Vec<_>> = parts.iter().map(required).collect();
            needles.map(|needles| needles.concat())
        }
        // Any part would do; the one with the longest shortest needle is the rarest.
        HirKind::Concat(parts) => parts.iter().filter_map(required).max_by_key(|needles| shortest(needles)),
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) | HirKind::Repetition(_) => None,
    }
}

fn shortest(needles: &[String]) -> usize {
    needles.iter().map(String::len).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pattern_requires() {
        let cases: [(&str, &[&str]); 5] = [
            (r"^(Module|Import)Error\b", &["Module", "Import"]),
            (r"[Cc]onnection refused|ECONNREFUSED", &["onnection refused", "ECONNREFUSED"]),
            (r"wait timeout after [0-9]+ ?ms", &["wait timeout after "]),
            (r"(x )?Killed$", &["Killed"]),
            (r"a(bc)+", &["bc"]),
        ];
        for (source, expected) in cases {
            assert_eq!(needles(source).unwrap(), expected, "{source}");
        }
        for source in ["[0-9]+", "x*", "(?i)word", "word|[0-9]"] {
            assert_eq!(needles(source), None, "{source}");
        }
    }

    /// Short needles would occur in every line.
    #[test]
    fn every_pattern_has_needles() {
        for pattern in PATTERNS.iter() {
            assert!(shortest(&pattern.needles) >= 4, "{}: {:?}", pattern.source, pattern.needles);
            pattern.compiled();
        }
    }
}
