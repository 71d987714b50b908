//! The variables of a role's replicas, divided by how a pod template can have them.
//!
//! All pods of a role have one template. A variable that all replicas have with the same value is in it. For the others a
//! rule is looked for that gives the value from the index of the replica; what has none is in a table. Rules are found by
//! comparing values, so they do not depend on which contract made a variable, and each is checked against all values.

use std::collections::BTreeMap;

/// A part of a value that follows from the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// The index and this number.
    Index(i64),
}

/// A value for each replica, by index; `None` where a replica does not have the variable.
type Column = Vec<Option<String>>;

/// The variables of a role.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Divided {
    pub(super) common: Vec<(String, String)>,
    pub(super) ruled: Vec<(String, Vec<Piece>)>,
    pub(super) table: Vec<(String, Column)>,
}

/// Divides the variables of replicas, which are in the order of their indexes. Of equal values one is kept.
pub(super) fn divide(replicas: impl IntoIterator<Item = BTreeMap<String, String>>) -> Divided {
    let mut replicas = replicas.into_iter();
    let Some(mut first) = replicas.next() else { return Divided::default() };
    let mut varied: BTreeMap<String, Column> = BTreeMap::new();
    for (index, mut replica) in (1usize..).zip(replicas) {
        let differs = |(name, value): &(&String, &String)| replica.get(*name) != Some(*value);
        let gone: Vec<String> = first.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        for name in gone {
            let value = first.remove(&name);
            varied.insert(name, vec![value; index]);
        }
        for (name, column) in &mut varied {
            column.push(replica.remove(name));
        }
        replica.retain(|name, _| !first.contains_key(name));
        for (name, value) in replica {
            let mut column = vec![None; index];
            column.push(Some(value));
            varied.insert(name, column);
        }
    }
    let mut divided = Divided { common: first.into_iter().collect(), ..Divided::default() };
    for (name, column) in varied {
        let whole: Option<Vec<&str>> = column.iter().map(Option::as_deref).collect();
        match whole.and_then(|values| rule(&values)) {
            Some(pieces) => divided.ruled.push((name, pieces)),
            None => divided.table.push((name, column)),
        }
    }
    divided
}

/// The rule of these values by index, if there is one.
pub(super) fn rule(values: &[&str]) -> Option<Vec<Piece>> {
    let first = tokens(values.first()?);
    let mut pieces: Vec<Piece> = Vec::new();
    let others: Vec<Vec<&str>> = values[1..].iter().map(|value| tokens(value)).collect();
    if others.iter().any(|other| other.len() != first.len()) {
        return None;
    }
    for (position, token) in first.iter().enumerate() {
        let is_same = others.iter().all(|other| other[position] == *token);
        pieces.push(if is_same { Piece::Text((*token).to_owned()) } else { Piece::Index(number(token)?) });
    }
    pieces.dedup_by(|next, text| match (text, next) {
        (Piece::Text(text), Piece::Text(next)) => {
            text.push_str(next);
            true
        }
        _ => false,
    });
    let holds = values.iter().enumerate().all(|(index, value)| filled(&pieces, index as i64) == **value);
    holds.then_some(pieces)
}

/// The value for this index.
pub(super) fn filled(pieces: &[Piece], index: i64) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Index(offset) => index.saturating_add(*offset).to_string(),
    };
    pieces.iter().map(text).collect()
}

/// Numbers, and what is between them. A shell would compute with no more digits.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number).unwrap_or(rest.len());
        tokens.push(&rest[..end]);
        rest = &rest[end..];
    }
    tokens
}

/// A number as the shell prints it: without zeros in front.
fn number(token: &str) -> Option<i64> {
    let is_plain = token == "0" || token.starts_with(|c: char| ('1'..='9').contains(&c));
    // Dash computes with 32 bits on some hosts.
    token.parse::<i32>().ok().filter(|_| is_plain).map(i64::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Piece {
        Piece::Text(text.to_owned())
    }

    #[test]
    fn rules() {
        let index = Piece::Index;
        for (values, expected) in [
            (vec!["a", "a"], Some(vec![text("a")])),
            (vec!["0", "1", "2"], Some(vec![index(0)])),
            (vec!["ctr-9.ctr:6170", "ctr-10.ctr:6170"], Some(vec![text("ctr-"), index(9), text(".ctr:6170")])),
            (vec!["3/3", "4/4"], Some(vec![index(3), text("/"), index(3)])),
            (vec!["", ""], Some(vec![])),
            (vec!["01", "02"], None),
            (vec!["0", "2"], None),
            (vec!["19", "110"], None),
            (vec!["a", "b"], None),
            (vec!["1a", "2"], None),
            (vec!["4294967295", "4294967296"], None),
        ] {
            assert_eq!(rule(&values), expected, "{values:?}");
        }
    }

    #[test]
    fn what_is_common_ruled_and_in_a_table() {
        let of = |index: u32| {
            let mut all = BTreeMap::from([
                ("HOST".to_owned(), format!("h-{index}")),
                ("MODE".to_owned(), "sync".to_owned()),
                ("ODD".to_owned(), if index == 1 { "x" } else { "y" }.to_owned()),
            ]);
            if index == 2 {
                all.insert("LAST".to_owned(), "1".to_owned());
            }
            all
        };
        let divided = divide((0..3).map(of));
        assert_eq!(divided.common, [("MODE".to_owned(), "sync".to_owned())]);
        assert_eq!(divided.ruled, [("HOST".to_owned(), vec![text("h-"), Piece::Index(0)])]);
        let some = |value: &str| Some(value.to_owned());
        let table = [
            ("LAST".to_owned(), vec![None, None, some("1")]),
            ("ODD".to_owned(), vec![some("y"), some("x"), some("y")]),
        ];
        assert_eq!(divided.table, table);
    }

    /// The variables that a replica gets.
    fn joined(divided: &Divided, index: usize) -> BTreeMap<String, String> {
        let ruled = divided.ruled.iter().map(|(name, pieces)| (name.clone(), filled(pieces, index as i64)));
        let table = divided.table.iter().filter_map(|(name, column)| Some((name.clone(), column[index].clone()?)));
        divided.common.iter().cloned().chain(ruled).chain(table).collect()
    }

    proptest! {
        #[test]
        fn nothing_is_lost(
            replicas in proptest::collection::vec(
                proptest::collection::btree_map("[A-C]", "[a0-2-]{0,4}", 0..4), 1..5,
            ),
        ) {
            let divided = divide(replicas.clone());
            for (index, replica) in replicas.into_iter().enumerate() {
                prop_assert_eq!(joined(&divided, index), replica);
            }
        }
    }
}
