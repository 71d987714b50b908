//! A selection of a job's replicas, as written on a command line.

use super::Rank;

/// Roles (`trainer`), replicas (`trainer-3`, `trainer-0-3`), ranks (`3`, `0-3`, `0,2`), or `all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whose(Vec<Word>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    All,
    Ranks(u32, u32),
    /// A role, one of its replicas, or a range of them.
    Name(String),
}

impl Whose {
    /// Words may be lists with commas. `rank` and `ranks` before a number are ignored.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let pieces = words.into_iter().flat_map(|word| word.split(',')).map(str::trim);
        let word = |piece: &str| match (piece, range(piece)) {
            ("all", _) => Word::All,
            (_, Some((first, last))) => Word::Ranks(first, last),
            _ => Word::Name(piece.to_owned()),
        };
        Self(pieces.filter(|piece| !matches!(*piece, "" | "rank" | "ranks")).map(word).collect())
    }

    /// True if no word was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if one of the words names this replica.
    pub fn is_of(&self, replica: &str, rank: Option<Rank>) -> bool {
        self.0.iter().any(|word| word.is_of(replica, rank))
    }

    /// True if one of the words is this name.
    pub fn names(&self, name: &str) -> bool {
        self.0.iter().any(|word| matches!(word, Word::All) || matches!(word, Word::Name(other) if other == name))
    }

    /// The first word that matches none of these replicas.
    pub fn unknown<'a>(&self, replicas: &(impl Iterator<Item = (&'a str, Option<Rank>)> + Clone)) -> Option<String> {
        let is_unknown = |word: &&Word| !replicas.clone().any(|(replica, rank)| word.is_of(replica, rank));
        self.0.iter().find(is_unknown).map(|word| match word {
            Word::All => "all".to_owned(),
            Word::Ranks(first, last) if first == last => format!("rank {first}"),
            Word::Ranks(first, last) => format!("ranks {first}-{last}"),
            Word::Name(name) => name.clone(),
        })
    }
}

impl Word {
    fn is_of(&self, replica: &str, rank: Option<Rank>) -> bool {
        match self {
            Self::All => true,
            Self::Ranks(first, last) => rank.is_some_and(|Rank(rank)| (*first..=*last).contains(&rank)),
            Self::Name(name) => {
                let (role, index) = replica_parts(replica);
                let indices = name.strip_prefix(role).and_then(|rest| rest.strip_prefix('-')).and_then(range);
                let has_index = |(first, last): (u32, u32)| (first..=last).contains(&index);
                name == role || name == replica || indices.is_some_and(has_index)
            }
        }
    }
}

/// `("trainer", 3)` of `trainer-3`.
pub fn replica_parts(replica: &str) -> (&str, u32) {
    let (role, index) = replica.rsplit_once('-').unwrap_or((replica, ""));
    (role, index.parse().unwrap_or(0))
}

/// `3` or `0-3`.
fn range(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    match text.split_once('-') {
        None => number(text).map(|number| (number, number)),
        Some((first, last)) => Some((number(first)?, number(last)?)).filter(|(first, last)| first <= last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: [(&str, Option<Rank>); 5] = [
        ("pserver-0", Some(Rank(0))),
        ("trainer-0", Some(Rank(1))),
        ("trainer-1", Some(Rank(2))),
        ("trainer-2", Some(Rank(3))),
        ("eval-set-0", None),
    ];

    #[test]
    fn words_name_replicas() {
        for (words, expected) in [
            ("trainer", "trainer-0 trainer-1 trainer-2"),
            ("trainer-1 pserver", "pserver-0 trainer-1"),
            ("trainer-1-2", "trainer-1 trainer-2"),
            ("0", "pserver-0"),
            ("1-2", "trainer-0 trainer-1"),
            ("0,3", "pserver-0 trainer-2"),
            ("rank 3", "trainer-2"),
            ("ranks 0,3", "pserver-0 trainer-2"),
            ("eval-set", "eval-set-0"),
            ("eval-set-0 0-1", "pserver-0 trainer-0 eval-set-0"),
            ("all", "pserver-0 trainer-0 trainer-1 trainer-2 eval-set-0"),
            ("2-1", ""),
            ("train", ""),
        ] {
            let whose = Whose::parse(words.split(' '));
            let named = JOB.iter().filter(|(name, rank)| whose.is_of(name, *rank)).map(|(name, _)| *name);
            assert_eq!(named.collect::<Vec<_>>().join(" "), expected, "{words}");
        }
    }

    #[test]
    fn a_word_that_names_none_is_known() {
        for (words, unknown) in [
            ("trainer 9", Some("rank 9")),
            ("trainer-0-7", None),
            ("trainer-7", Some("trainer-7")),
            ("7-9", Some("ranks 7-9")),
            ("eval", Some("eval")),
            ("all", None),
        ] {
            assert_eq!(Whose::parse(words.split(' ')).unknown(&JOB.into_iter()).as_deref(), unknown, "{words}");
        }
    }
}
