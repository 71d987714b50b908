//! Medians and spread.

use serde::Serialize;

/// Three quantiles of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) p10: f64,
    pub(crate) p90: f64,
    pub(crate) count: usize,
}

/// `None` for an empty sample.
pub(crate) fn summarise(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(Summary {
        median: quantile(&sorted, 0.5)?,
        p10: quantile(&sorted, 0.1)?,
        p90: quantile(&sorted, 0.9)?,
        count: sorted.len(),
    })
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    summarise(values).map(|summary| summary.median)
}

/// Linear interpolation between the two nearest values.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(summarise(&[]), None);
    }

    #[test]
    fn one_value_is_everything() {
        assert_eq!(summarise(&[3.0]), Some(Summary { median: 3.0, p10: 3.0, p90: 3.0, count: 1 }));
    }

    #[test]
    fn order_does_not_matter_and_quantiles_lie_between_values() {
        let summary = summarise(&[5.0, 1.0, 4.0, 2.0]).unwrap();
        assert!((summary.median - 3.0).abs() < 1e-9);
        assert!((summary.p10 - 1.3).abs() < 1e-9);
        assert!((summary.p90 - 4.7).abs() < 1e-9);
        assert_eq!(summary.count, 4);
    }
}
