//! Which patterns of the table match a line.
//!
//! Most lines match none, and an automaton for all patterns at once is slow to build and slow to run.
//! So each pattern is reduced to the words without which it cannot match; it is compiled when a line
//! with such a word comes up, which in one failure happens to a few of them.

use std::sync::{LazyLock, OnceLock};

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

use super::SIGNATURES;

struct Pattern {
    source: &'static str,
    /// A line that matches holds one of these.
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

/// The rows of the table whose pattern matches, in its order.
pub(super) fn matches(line: &str) -> impl Iterator<Item = usize> {
    let hits = move |pattern: &Pattern| {
        pattern.needles.iter().any(|needle| line.contains(needle)) && pattern.compiled().is_match(line.as_bytes())
    };
    PATTERNS.iter().enumerate().filter(move |(_, pattern)| hits(pattern)).map(|(index, _)| index)
}

impl Pattern {
    fn compiled(&self) -> &Regex {
        // The words are ASCII; without the tables of Unicode the programs are a fraction of the size.
        let compile = || RegexBuilder::new(self.source).unicode(false).build().expect("a test compiles every pattern");
        self.compiled.get_or_init(compile)
    }
}

/// The needles of one pattern, where it has some.
fn needles(source: &str) -> Option<Vec<String>> {
    let parsed = ParserBuilder::new().unicode(false).utf8(false).build().parse(source);
    parsed.ok().and_then(|pattern| required(&pattern))
}

/// Words of which one is in everything that matches; none where that cannot be said.
fn required(pattern: &Hir) -> Option<Vec<String>> {
    match pattern.kind() {
        HirKind::Literal(literal) => String::from_utf8(literal.0.to_vec()).ok().map(|word| vec![word]),
        HirKind::Capture(capture) => required(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => required(&repetition.sub),
        HirKind::Alternation(parts) => {
            let needles: Option<Vec<_>> = parts.iter().map(required).collect();
            needles.map(|needles| needles.concat())
        }
        // Any part will do; the one whose shortest word is longest is the rarest.
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

    /// Short needles would be in every line.
    #[test]
    fn every_pattern_has_needles() {
        for pattern in PATTERNS.iter() {
            assert!(shortest(&pattern.needles) >= 4, "{}: {:?}", pattern.source, pattern.needles);
            pattern.compiled();
        }
    }
}
