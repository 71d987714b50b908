//! Umiak's numbers against what is required and what we go for.

use serde::Serialize;

use super::model::{Metric, Series, floor, median_of};

pub(crate) const UMIAK: &str = "umiak";

/// One requirement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: &'static str,
    pub(crate) measured: String,
    pub(crate) must: Option<Bound>,
    pub(crate) goal: Option<Bound>,
}

/// A bound, and whether it is kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Bound {
    pub(crate) text: &'static str,
    pub(crate) is_kept: bool,
}

fn at_most(value: f64, bound: f64, text: &'static str) -> Bound {
    Bound { text, is_kept: value <= bound }
}

fn at_least(value: f64, bound: f64, text: &'static str) -> Bound {
    Bound { text, is_kept: value >= bound }
}

/// For what was measured, in the order of the table of requirements.
pub(crate) fn verdicts(series: &[Series]) -> Vec<Verdict> {
    let ours = |metric, ranks| median_of(series, metric, ranks, UMIAK);
    let with_floor = |metric, ranks| Some((ours(metric, ranks)?, floor(series, metric, ranks)?));
    let mut found = Vec::new();
    if let Some((ours, floor)) = with_floor(Metric::Start, 64) {
        let ratio = ours / floor;
        found.push(Verdict {
            what: "start of 64 ranks and end",
            measured: format!("{ratio:.2} × floor ({ours:.1} ms, floor {floor:.1} ms)"),
            must: Some(at_most(ratio, 2.0, "≤ 2 × floor")),
            goal: Some(at_most(ratio, 1.3, "≤ 1.3 × floor")),
        });
    }
    if let Some(ours) = ours(Metric::Start, 1) {
        found.push(Verdict {
            what: "start of one rank and end",
            measured: format!("{ours:.1} ms"),
            must: None,
            goal: Some(at_most(ours, 6.0, "≤ 6 ms")),
        });
    }
    if let Some((ours, floor)) = with_floor(Metric::Crash, 64) {
        let over = ours - floor;
        found.push(Verdict {
            what: "crash of one of 64 ranks, everything stopped",
            measured: format!("floor {over:+.1} ms ({ours:.1} ms, floor {floor:.1} ms)"),
            must: Some(at_most(over, 10.0, "≤ floor + 10 ms")),
            goal: Some(at_most(over, 3.0, "≤ floor + 3 ms")),
        });
    }
    if let Some(ours) = ours(Metric::Memory, 64) {
        found.push(Verdict {
            what: "memory beside 64 ranks",
            measured: format!("{ours:.1} MB"),
            must: Some(at_most(ours, 12.0, "≤ 12 MB")),
            goal: Some(at_most(ours, 6.0, "≤ 6 MB")),
        });
    }
    if let Some(ours) = ours(Metric::WakeUps, 64) {
        found.push(Verdict {
            what: "wake-ups in 10 s beside 64 ranks",
            measured: format!("{ours:.0}"),
            must: Some(at_most(ours, 0.0, "0")),
            goal: None,
        });
    }
    if let Some((ours, floor)) = with_floor(Metric::Log, 1) {
        let ratio = ours / floor;
        found.push(Verdict {
            what: "log with mirror",
            measured: format!("{ratio:.2} × `writer \u{7c} cat > file` ({ours:.0} MB/s)"),
            must: Some(at_least(ratio, 0.6, "≥ 0.6 ×")),
            goal: Some(at_least(ratio, 0.95, "≥ 0.95 ×")),
        });
        let broken = series.iter().filter(|one| one.metric == Metric::Log && one.contestant == UMIAK);
        let remarks: Vec<&str> = broken.flat_map(|one| &one.remarks).map(String::as_str).collect();
        let is_equal = remarks.is_empty();
        found.push(Verdict {
            what: "log and mirror complete",
            measured: if is_equal { "sha256 equal".to_owned() } else { remarks.join("; ") },
            must: Some(Bound { text: "sha256 equal", is_kept: is_equal }),
            goal: None,
        });
    }
    if let Some(ours) = ours(Metric::SlowReader, 1) {
        found.push(Verdict {
            what: "rank behind a 1 MB/s reader",
            measured: format!("{ours:.2} × its time behind a fast one"),
            must: None,
            goal: Some(at_most(ours, 1.1, "slows nobody: ≤ 1.1 ×")),
        });
    }
    if let Some((ours, floor)) = with_floor(Metric::FirstLine, 1) {
        let over = ours - floor;
        found.push(Verdict {
            what: "first line, over the bare command",
            measured: format!("{over:+.1} ms"),
            must: Some(at_most(over, 40.0, "≤ 40 ms")),
            goal: Some(at_most(over, 15.0, "≤ 15 ms")),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::series;
    use super::*;

    fn kept(verdict: &Verdict) -> (Option<bool>, Option<bool>) {
        (verdict.must.as_ref().map(|bound| bound.is_kept), verdict.goal.as_ref().map(|bound| bound.is_kept))
    }

    #[test]
    fn what_was_not_measured_has_no_verdict() {
        assert_eq!(verdicts(&[]), []);
        assert_eq!(verdicts(&[series(Metric::Start, UMIAK, 64, false, &[80.0])]), [], "without a floor");
    }

    #[test]
    fn ratios_and_differences_are_held_against_the_bounds() {
        let all = [
            series(Metric::Start, "posix_spawn", 64, true, &[50.0]),
            series(Metric::Start, UMIAK, 64, false, &[80.0]),
            series(Metric::Crash, "posix_spawn", 64, true, &[5.0]),
            series(Metric::Crash, UMIAK, 64, false, &[20.0]),
            series(Metric::WakeUps, UMIAK, 64, false, &[0.0]),
        ];
        let found = verdicts(&all);
        assert_eq!(
            found.iter().map(kept).collect::<Vec<_>>(),
            [(Some(true), Some(false)), (Some(false), Some(false)), (Some(true), None)]
        );
        assert_eq!(found[0].measured, "1.60 × floor (80.0 ms, floor 50.0 ms)");
        assert_eq!(found[1].measured, "floor +15.0 ms (20.0 ms, floor 5.0 ms)");
    }

    #[test]
    fn a_broken_log_breaks_a_requirement() {
        let mut ours = series(Metric::Log, UMIAK, 1, false, &[100.0]);
        ours.remarks.push("the mirror lost bytes".to_owned());
        let found = verdicts(&[series(Metric::Log, "cat", 1, true, &[100.0]), ours]);
        assert_eq!(found.iter().map(kept).collect::<Vec<_>>(), [(Some(true), Some(true)), (Some(false), None)]);
    }
}
