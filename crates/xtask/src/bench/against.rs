//! Umiak compared with an older binary of itself: the same rows, the same rounds, and whether any row got worse.

use serde::Serialize;

use super::model::{Metric, Series};
use super::statistics::{Summary, summarise};

/// One row for both binaries.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) metric: Metric,
    pub(crate) contestant: String,
    pub(crate) ranks: u32,
    /// `None` if it could not be measured.
    pub(crate) new: Option<Summary>,
    pub(crate) old: Option<Summary>,
    /// New over old, round by round.
    pub(crate) ratio: Option<Summary>,
    pub(crate) is_not_worse: bool,
}

/// All rows that were measured for both binaries, in order.
pub(crate) fn comparisons(series: &[Series]) -> Vec<Comparison> {
    let pairs = series.iter().filter(|old| old.is_old).filter_map(|old| {
        let is_same = |new: &&Series| {
            !new.is_old && (new.metric, new.ranks, &new.contestant) == (old.metric, old.ranks, &old.contestant)
        };
        Some((series.iter().find(is_same)?, old))
    });
    pairs.map(|(new, old)| compare(new, old)).collect()
}

fn compare(new: &Series, old: &Series) -> Comparison {
    let (now, before) = (summarise(&new.values), summarise(&old.values));
    let ratios: Vec<f64> = new.values.iter().zip(&old.values).map(|(new, old)| ratio(*new, *old)).collect();
    let is_not_worse = match (now, before) {
        (Some(now), Some(before)) => is_not_worse(new.metric, now, before),
        // A row that neither can do has not become worse.
        (now, before) => now.is_some() || before.is_none(),
    };
    Comparison {
        metric: new.metric,
        contestant: new.contestant.clone(),
        ranks: new.ranks,
        new: now,
        old: before,
        ratio: summarise(&ratios),
        is_not_worse,
    }
}

/// New over old; zero over zero is 1.
pub(crate) fn ratio(new: f64, old: f64) -> f64 {
    if new.total_cmp(&old).is_eq() { 1.0 } else { new / old }
}

/// True if better, or if the median of one lies within the spread of the other.
fn is_not_worse(metric: Metric, new: Summary, old: Summary) -> bool {
    if metric.is_better_when_small() {
        new.median <= old.p90 || new.p10 <= old.median
    } else {
        new.median >= old.p10 || new.p90 >= old.median
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::series;
    use super::*;

    fn old(metric: Metric, ranks: u32, values: &[f64]) -> Series {
        Series { is_old: true, ..series(metric, "umiak", ranks, false, values) }
    }

    fn new(metric: Metric, ranks: u32, values: &[f64]) -> Series {
        series(metric, "umiak", ranks, false, values)
    }

    #[test]
    fn rows_of_both_are_held_against_each_other() {
        let all = [
            new(Metric::Start, 64, &[10.0, 12.0, 14.0]),
            old(Metric::Start, 64, &[10.0, 11.0, 14.0]),
            new(Metric::Start, 256, &[30.0, 31.0, 32.0]),
            old(Metric::Start, 256, &[20.0, 21.0, 22.0]),
            new(Metric::Log, 1, &[100.0]),
            old(Metric::Log, 1, &[200.0]),
            new(Metric::WakeUps, 64, &[0.0]),
            old(Metric::WakeUps, 64, &[0.0]),
            new(Metric::Crash, 64, &[1.0]),
        ];
        let found = comparisons(&all);
        let words: Vec<_> = found.iter().map(|row| (row.metric, row.ranks, row.is_not_worse)).collect();
        assert_eq!(
            words,
            [
                (Metric::Start, 64, true),
                (Metric::Start, 256, false),
                (Metric::Log, 1, false),
                (Metric::WakeUps, 64, true)
            ]
        );
        assert!((found[1].ratio.unwrap().median - 31.0 / 21.0).abs() < 1e-9);
        assert!((found[3].ratio.unwrap().median - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_only_the_old_one_can_do_is_worse() {
        let verdict = |now: &[f64], before: &[f64]| {
            comparisons(&[new(Metric::Start, 1, now), old(Metric::Start, 1, before)])[0].is_not_worse
        };
        assert!(!verdict(&[], &[1.0]));
        assert!(verdict(&[1.0], &[]));
        assert!(verdict(&[], &[]));
    }
}
