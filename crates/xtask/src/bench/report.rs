//! The printed report, and the tables in `docs/benchmarks.md`.

use std::fmt::Write as _;

use serde::Serialize;

use crate::markdown::table;

use super::against::Comparison;
use super::model::{Metric, Relation, Series, floor, title};
use super::statistics::{Summary, median, summarise};
use super::verdict::{Bound, Verdict};

/// The markers around the part that `--write` of a benchmark replaces.
fn marks(bench: &str) -> [String; 2] {
    ["begin", "end"].map(|which| format!("<!-- {which}: cargo xtask bench {bench} --write -->"))
}

/// All data of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) date: String,
    pub(crate) machine: String,
    pub(crate) kernel: String,
    pub(crate) peers: Vec<String>,
    pub(crate) absent: Vec<String>,
    /// Settings of the run: rounds, sizes.
    pub(crate) settings: String,
    pub(crate) series: Vec<Series>,
    pub(crate) verdicts: Vec<Verdict>,
    /// With `--against`: the comparison with the old binary.
    pub(crate) against: Vec<Comparison>,
}

pub(crate) fn markdown(report: &Report) -> String {
    let mut text = format!("{}, {}, {}.\n\n", report.date, report.machine, report.kernel);
    if !report.peers.is_empty() {
        let _ = writeln!(text, "Measured side by side: {}.", report.peers.join(", "));
    }
    if !report.absent.is_empty() {
        let _ = writeln!(text, "Not available, so not measured: {}.", report.absent.join(", "));
    }
    let _ = writeln!(text, "{}.\n", report.settings);
    text += &table(
        &["umiak", "measured", "must", "goal"],
        report.verdicts.iter().map(|verdict| {
            let measured = verdict.measured.clone();
            [verdict.what.to_owned(), measured, bound(verdict.must.as_ref()), bound(verdict.goal.as_ref())]
        }),
    );
    text += &against(&report.against);
    for metric in Metric::ALL {
        let rows: Vec<Vec<String>> =
            report.series.iter().filter(|series| series.metric == metric).map(|one| row(one, &report.series)).collect();
        if rows.is_empty() {
            continue;
        }
        let unit = metric.unit();
        let against = match metric.relation() {
            Relation::Times => "× floor",
            Relation::Over => "over floor",
            Relation::None => "",
        };
        let measured = if unit.is_empty() { "median".to_owned() } else { format!("median, {unit}") };
        let head = ["N", "", &measured, "p10–p90", against, "CPU-ms per rank", "rounds", "remarks"];
        let _ = write!(text, "\n### {}\n\n{}", metric.title(), without_empty_columns(&head, &rows));
    }
    text
}

/// The rows of both binaries: medians, their ratio round by round, and whether the new one is worse.
fn against(rows: &[Comparison]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let middle = |summary: Option<Summary>| summary.map_or_else(|| "–".to_owned(), |summary| number(summary.median));
    let table = table(
        &["row", "N", "", "new", "old", "new / old", "p10–p90", "not worse"],
        rows.iter().map(|row| {
            let unit = row.metric.unit();
            let with_unit = |text: String| if unit.is_empty() { text } else { format!("{text} {unit}") };
            [
                row.metric.title().to_owned(),
                row.ranks.to_string(),
                row.contestant.clone(),
                with_unit(middle(row.new)),
                with_unit(middle(row.old)),
                middle(row.ratio),
                spread(row.ratio),
                if row.is_not_worse { "✓" } else { "✗" }.to_owned(),
            ]
        }),
    );
    format!("\n### New and old binary, in the same rounds\n\n{table}")
}

fn spread(summary: Option<Summary>) -> String {
    summary.map_or_else(String::new, |summary| format!("{}–{}", number(summary.p10), number(summary.p90)))
}

fn bound(bound: Option<&Bound>) -> String {
    bound.map_or_else(String::new, |bound| format!("{} {}", if bound.is_kept { "✓" } else { "✗" }, bound.text))
}

fn row(series: &Series, all: &[Series]) -> Vec<String> {
    let summary = summarise(&series.values);
    let name = title(&series.contestant, series.is_old);
    let name = if series.is_floor { format!("*{name}*") } else { name };
    let against = summary.zip(floor(all, series.metric, series.ranks)).map_or_else(String::new, |(ours, floor)| {
        match series.metric.relation() {
            Relation::Times => format!("{:.2}", ours.median / floor),
            Relation::Over => format!("{:+.1}", ours.median - floor),
            Relation::None => String::new(),
        }
    });
    vec![
        series.ranks.to_string(),
        name,
        summary.map_or_else(|| "–".to_owned(), |summary| number(summary.median)),
        spread(summary),
        against,
        median(&series.cpu_ms_per_rank).map_or_else(String::new, number),
        series.values.len().to_string(),
        remarks(&series.remarks),
    ]
}

/// Each remark once, with its count.
fn remarks(remarks: &[String]) -> String {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for remark in remarks {
        match counted.iter_mut().find(|(text, _)| text == remark) {
            Some((_, count)) => *count += 1,
            None => counted.push((remark, 1)),
        }
    }
    let words =
        counted.into_iter().map(|(text, count)| if count == 1 { text.to_owned() } else { format!("{count} × {text}") });
    words.collect::<Vec<_>>().join("; ")
}

/// A number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn without_empty_columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let keeps = |column: usize| rows.iter().any(|row| !row[column].is_empty());
    let kept: Vec<usize> = (0..head.len()).filter(|column| keeps(*column)).collect();
    let head: Vec<&str> = kept.iter().map(|column| head[*column]).collect();
    table(&head, rows.iter().map(|row| kept.iter().map(|column| row[*column].clone()).collect::<Vec<_>>()))
}

/// `page` with the marked part replaced, or appended if it has none.
pub(crate) fn replaced(page: &str, bench: &str, part: &str) -> String {
    let [first, last] = marks(bench);
    let marked = format!("{first}\n\n{part}\n{last}");
    match (page.find(&first), page.find(&last)) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{marked}{}", &page[..begin], &page[end + last.len()..])
        }
        _ => format!("{}\n\n{marked}\n", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::series;
    use super::*;

    #[test]
    fn floors_are_set_apart_and_columns_without_content_left_out() {
        let mut hung = series(Metric::Start, "mpirun", 4, false, &[]);
        hung.remarks = vec!["did not finish within 60 s".to_owned(); 2];
        let report = Report {
            date: "2026-11-15".to_owned(),
            machine: "2 cores".to_owned(),
            kernel: "Linux 6.1".to_owned(),
            peers: vec!["umiak 0.1.0".to_owned()],
            absent: vec!["torchrun".to_owned()],
            settings: "15 rounds".to_owned(),
            series: vec![
                series(Metric::Start, "posix_spawn", 4, true, &[10.0]),
                series(Metric::Start, "umiak", 4, false, &[12.0, 16.0]),
                hung,
            ],
            verdicts: vec![Verdict {
                what: "start",
                measured: "1.40 × floor".to_owned(),
                must: Some(Bound { text: "≤ 2 ×", is_kept: true }),
                goal: Some(Bound { text: "≤ 1.3 ×", is_kept: false }),
            }],
            against: Vec::new(),
        };
        let text = markdown(&report);
        assert_eq!(
            text,
            "2026-11-15, 2 cores, Linux 6.1.\n\n\
             Measured side by side: umiak 0.1.0.\n\
             Not available, so not measured: torchrun.\n\
             15 rounds.\n\n\
             | umiak | measured | must | goal |\n|---|---|---|---|\n\
             | start | 1.40 × floor | ✓ ≤ 2 × | ✗ ≤ 1.3 × |\n\n\
             ### Start N × `/bin/true` and end\n\n\
             | N |  | median, ms | p10–p90 | × floor | rounds | remarks |\n|---|---|---|---|---|---|---|\n\
             | 4 | *posix_spawn* | 10.0 | 10.0–10.0 | 1.00 | 1 |  |\n\
             | 4 | umiak | 14.0 | 12.4–15.6 | 1.40 | 2 |  |\n\
             | 4 | mpirun | – |  |  | 0 | 2 × did not finish within 60 s |\n"
        );
    }

    #[test]
    fn both_binaries_stand_in_one_row() {
        let now = series(Metric::Start, "umiak", 4, false, &[12.0, 16.0]);
        let before = Series { is_old: true, values: vec![8.0, 10.0], ..now.clone() };
        let rows = super::super::against::comparisons(&[now, before]);
        assert_eq!(
            against(&rows),
            "\n### New and old binary, in the same rounds\n\n\
             | row | N |  | new | old | new / old | p10–p90 | not worse |\n|---|---|---|---|---|---|---|---|\n\
             | Start N × `/bin/true` and end | 4 | umiak | 14.0 ms | 9.00 ms | 1.55 | 1.51–1.59 | ✗ |\n"
        );
        assert_eq!(against(&[]), "");
    }

    #[test]
    fn the_marked_part_is_replaced_and_the_rest_stays() {
        let [begin, end] = marks("launch");
        let first = replaced("# Page\n", "launch", "one\n");
        assert_eq!(first, format!("# Page\n\n{begin}\n\none\n\n{end}\n"));
        let second = replaced(&format!("{first}\nafter\n"), "launch", "two\n");
        assert_eq!(second, format!("# Page\n\n{begin}\n\ntwo\n\n{end}\n\nafter\n"));
        assert!(
            replaced(&second, "rendezvous", "three\n").starts_with(second.trim_end()),
            "each benchmark has its own part"
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            ["3214.6", "53.21", "1.234", "0.004"].map(|text| number(text.parse().unwrap())),
            ["3215", "53.2", "1.23", "0.00"]
        );
    }
}
