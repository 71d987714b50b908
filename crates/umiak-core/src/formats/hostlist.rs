//! Slurm's short forms: lists of nodes (`n[01-03,7],gpu1`) and counts for each node (`2,1(x2)`).
//!
//! A list is bounded before it is expanded: `n[1-99999999]` costs nothing.

use thiserror::Error;

/// Longer names are not host names.
const MAX_NAME: usize = 255;

/// What is wrong with a list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ListError {
    #[error("it is empty")]
    Empty,
    #[error("a bracket is not closed in `{0}`")]
    Unclosed(String),
    #[error("`{0}` is not a number or a range such as `1-4`")]
    Range(String),
    #[error("`{0}` is not the name of a node")]
    Name(String),
    #[error("`{0}` is not a count such as `2` or `2(x3)`")]
    Count(String),
    #[error("it has more than {0} entries")]
    TooMany(usize),
}

/// The names of a list of nodes, in Slurm's order. Names that appear twice are kept.
pub fn expand(text: &str, limit: usize) -> Result<Vec<String>, ListError> {
    let mut names = Vec::new();
    for item in items(text)? {
        let pattern = Pattern::parse(item)?;
        if pattern.count().is_none_or(|count| count > limit - names.len()) {
            return Err(ListError::TooMany(limit));
        }
        pattern.expand(&mut names);
    }
    if names.is_empty() { Err(ListError::Empty) } else { Ok(names) }
}

/// A count for each node, from `SLURM_TASKS_PER_NODE`.
pub fn counts(text: &str, limit: usize) -> Result<Vec<u32>, ListError> {
    let mut counts = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let wrong = || ListError::Count(shown(item));
        let (count, times) = match item.split_once("(x") {
            Some((count, rest)) => (count, rest.strip_suffix(')').ok_or_else(wrong)?),
            None => (item, "1"),
        };
        let count: u32 = digits(count).and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
        let times: usize = digits(times).and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
        if times > limit - counts.len() {
            return Err(ListError::TooMany(limit));
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    if counts.is_empty() { Err(ListError::Empty) } else { Ok(counts) }
}

/// The parts between commas outside brackets.
fn items(text: &str) -> Result<Vec<&str>, ListError> {
    let mut items = Vec::new();
    let (mut start, mut is_inside) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => is_inside = true,
            b']' => is_inside = false,
            b',' if !is_inside => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    if is_inside {
        return Err(ListError::Unclosed(shown(items.last().copied().unwrap_or_default())));
    }
    Ok(items.into_iter().map(str::trim).filter(|item| !item.is_empty()).collect())
}

/// `rack[1-2]n[01-16]`: the text before each group, and the text after the last.
struct Pattern<'a> {
    groups: Vec<(&'a str, Vec<Span>)>,
    end: &'a str,
}

/// Numbers from `low` to `high`, with at least so many digits.
struct Span {
    low: u64,
    high: u64,
    width: usize,
}

impl<'a> Pattern<'a> {
    fn parse(item: &'a str) -> Result<Self, ListError> {
        let mut groups = Vec::new();
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, end) = after.split_once(']').ok_or_else(|| ListError::Unclosed(shown(item)))?;
            let spans = inside.split(',').map(Span::parse).collect::<Result<Vec<_>, _>>()?;
            groups.push((before, spans));
            rest = end;
        }
        let pattern = Self { groups, end: rest };
        let texts = pattern.groups.iter().map(|(text, _)| *text).chain([rest]);
        let longest = pattern.groups.iter().map(|(_, spans)| spans.iter().map(Span::digits).max().unwrap_or(0));
        let length = texts.clone().map(str::len).chain(longest).sum::<usize>();
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ']' | '(' | ')' | '/' | '"' | '\\');
        if length > MAX_NAME || texts.into_iter().any(|text| text.contains(is_odd)) {
            return Err(ListError::Name(shown(item)));
        }
        Ok(pattern)
    }

    /// `None` if there are too many to count.
    fn count(&self) -> Option<usize> {
        self.groups.iter().try_fold(1_usize, |product, (_, spans)| {
            let sum = spans.iter().try_fold(0_usize, |sum, span| sum.checked_add(span.count()?))?;
            product.checked_mul(sum)
        })
    }

    /// The last group varies fastest, as one would count. The others follow in the order of Slurm's own expansion, in
    /// which the first varies faster than the second.
    fn expand(&self, names: &mut Vec<String>) {
        let numbers: Vec<Vec<String>> =
            self.groups.iter().map(|(_, spans)| spans.iter().flat_map(Span::numbers).collect()).collect();
        let fastest: Vec<usize> = match self.groups.len() {
            0 => Vec::new(),
            count => std::iter::once(count - 1).chain(0..count - 1).collect(),
        };
        let total: usize = numbers.iter().map(Vec::len).product();
        for index in 0..total {
            let mut left = index;
            let mut chosen = vec![0; numbers.len()];
            for group in &fastest {
                chosen[*group] = left % numbers[*group].len();
                left /= numbers[*group].len();
            }
            let mut name = String::new();
            for ((text, _), (numbers, chosen)) in self.groups.iter().zip(numbers.iter().zip(chosen)) {
                name.push_str(text);
                name.push_str(&numbers[chosen]);
            }
            name.push_str(self.end);
            names.push(name);
        }
    }
}

impl Span {
    fn parse(text: &str) -> Result<Self, ListError> {
        let wrong = || ListError::Range(shown(text));
        let text = text.trim();
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let width = low.len();
        let number = |text| digits(text).and_then(|text| text.parse::<u64>().ok());
        let (low, high) = number(low).zip(number(high)).filter(|(low, high)| low <= high).ok_or_else(wrong)?;
        Ok(Self { low, high, width })
    }

    fn count(&self) -> Option<usize> {
        usize::try_from(self.high - self.low).ok()?.checked_add(1)
    }

    fn digits(&self) -> usize {
        self.width.max(self.high.to_string().len())
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let width = self.width;
        (self.low..=self.high).map(move |number| format!("{number:0width$}"))
    }
}

/// Digits and nothing else: no sign, no spaces.
fn digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

/// The beginning of a text, for a message.
fn shown(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn names(text: &str) -> String {
        expand(text, 1000).unwrap_or_else(|error| panic!("{text}: {error}")).join(" ")
    }

    #[test]
    fn lists_have_the_order_and_the_digits_of_slurm() {
        for (text, expected) in [
            ("n1", "n1"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[01-03,7]", "n01 n02 n03 n7"),
            ("n[9-11]", "n9 n10 n11"),
            ("n[001-10]", "n001 n002 n003 n004 n005 n006 n007 n008 n009 n010"),
            ("n[1-010]", "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10"),
            ("n[5,3,4],m,n[2]", "n5 n3 n4 m n2"),
            ("n1,,n1,", "n1 n1"),
            ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
            ("a[1-2][3-4]", "a13 a14 a23 a24"),
            ("n[1-2]n[1-2]n[1-2]", "n1n1n1 n1n1n2 n2n1n1 n2n1n2 n1n2n1 n1n2n2 n2n2n1 n2n2n2"),
            ("n[1-2]-ib0.site", "n1-ib0.site n2-ib0.site"),
            ("[1-2]", "1 2"),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn wrong_lists_are_named() {
        for (text, expected) in [
            ("", "it is empty"),
            (",", "it is empty"),
            ("n[1-3", "a bracket is not closed in `n[1-3`"),
            ("n[3-1]", "`3-1` is not a number or a range such as `1-4`"),
            ("n[]", "`` is not a number or a range such as `1-4`"),
            ("n[a-b]", "`a-b` is not a number or a range such as `1-4`"),
            ("n[1-3-5]", "`1-3-5` is not a number or a range such as `1-4`"),
            ("n[+1]", "`+1` is not a number or a range such as `1-4`"),
            ("n1]", "`n1]` is not the name of a node"),
            ("n1 n2", "`n1 n2` is not the name of a node"),
            ("(null)", "`(null)` is not the name of a node"),
            ("n[1-1001]", "it has more than 1000 entries"),
            ("n[1-600],m[1-600]", "it has more than 1000 entries"),
            ("n[0-18446744073709551615]", "it has more than 1000 entries"),
            ("a[1-99999]b[1-99999]c[1-99999]d[1-99999]e[1-99999]", "it has more than 1000 entries"),
        ] {
            assert_eq!(expand(text, 1000).unwrap_err().to_string(), expected, "{text}");
        }
        let long = format!("n[{}1]", "0".repeat(300));
        assert!(matches!(expand(&long, 1000), Err(ListError::Name(_))), "a name of 300 digits");
    }

    #[test]
    fn counts_of_tasks() {
        assert_eq!(counts("2,1(x2)", 10), Ok(vec![2, 1, 1]));
        assert_eq!(counts("4", 10), Ok(vec![4]));
        assert_eq!(counts("", 10), Err(ListError::Empty));
        assert_eq!(counts("1(x4000000000)", 10), Err(ListError::TooMany(10)));
        for text in ["x", "2(", "2(x", "2(x)", "2(x-1)", "-2", "2(3)"] {
            assert_eq!(counts(text, 10), Err(ListError::Count(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_or_grows_without_bound(text in r"[nA\-0-9\[\],() x]{0,60}") {
            if let Ok(names) = expand(&text, 100) {
                prop_assert!((1..=100).contains(&names.len()));
                prop_assert!(names.iter().all(|name| name.len() <= MAX_NAME));
            }
            if let Ok(counts) = counts(&text, 100) {
                prop_assert!((1..=100).contains(&counts.len()));
            }
        }

        #[test]
        fn names_without_brackets_stay_as_they_are(names in prop::collection::vec("[a-z][a-z0-9.-]{0,10}", 1..20)) {
            prop_assert_eq!(expand(&names.join(","), 100).unwrap(), names);
        }
    }
}
