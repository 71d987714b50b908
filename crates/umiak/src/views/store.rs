//! Ranks that wait at torch's store, in words.

use umiak_core::facts::StoreWaits;
use umiak_core::model::Rank;

use crate::screen::style::ranges;

/// `ranks 5, 7 not at the store; ranks 0-4, 6 wait for default_pg/0//cpu//0/5`.
pub(crate) fn missing(waits: &StoreWaits) -> String {
    let which = match (&waits.missing[..], waits.absent) {
        ([], _) => String::new(),
        (missing, true) => format!("{} not at the store; ", named(missing)),
        (missing, false) => format!("{} connected but not waiting; ", named(missing)),
    };
    let key = waits.keys.first().map(|key| format!(" for {}", key.key)).unwrap_or_default();
    let (count, verb) = match waits.clients {
        1 => ("1 client".to_owned(), "waits"),
        count => (format!("{count} clients"), "wait"),
    };
    let waiting = if waits.waiting.len() == waits.clients as usize { named(&waits.waiting) } else { count };
    format!("{which}{waiting} {verb}{key}")
}

/// `rank 5`, `ranks 0-4, 6`.
pub(crate) fn named(ranks: &[Rank]) -> String {
    let numbers: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, ranges(&numbers))
}

#[cfg(test)]
mod tests {
    use umiak_core::facts::StoreKey;

    use super::*;

    #[test]
    fn in_words() {
        let ranks = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        let mut waits = StoreWaits {
            clients: 6,
            waiting: ranks(&[0, 1, 2, 3, 4, 6]),
            missing: ranks(&[5, 7]),
            absent: true,
            keys: vec![StoreKey { key: "default_pg/0//cpu//0/5".to_owned(), clients: 6 }],
            longest_micros: 0,
        };
        assert_eq!(missing(&waits), "ranks 5, 7 not at the store; ranks 0-4, 6 wait for default_pg/0//cpu//0/5");
        (waits.missing, waits.absent) = (ranks(&[3]), false);
        assert_eq!(missing(&waits), "rank 3 connected but not waiting; ranks 0-4, 6 wait for default_pg/0//cpu//0/5");
        let unknown = StoreWaits { clients: 1, ..StoreWaits::default() };
        assert_eq!(missing(&unknown), "1 client waits");
    }
}
