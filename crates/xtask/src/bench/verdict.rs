//! Umiak's numbers against requirements and goals.

use serde::Serialize;

use super::elastic::{FEW, MANY};
use super::lint::MEGABYTES;
use super::machine::{SIZES, Story};
use super::model::{Metric, Series, floor, median_of};
use super::pipeline::{PLANNED, STEPS};
use super::rendezvous::{CRASH_RANKS, START_RANKS};
use super::rows::cluster::Engine;
use super::rows::elastic::Change;
use super::run::{LOG_GIGABYTES, REPLICAS, RUNS};
use super::statistics::median;
use super::store::{CONNECTIONS, CROWD, RANKS, RESTARTED};

/// Sizes in the requirements.
pub(crate) const MOST_RANKS: u32 = 1000;

pub(crate) const UMIAK: &str = "umiak";
pub(crate) const UMIAK_IPS: &str = "umiak, --ips";
pub(crate) const UMIAK_MASTER: &str = "umiak, --master";
pub(crate) const UMIAK_AT_ONCE: &str = "umiak, all at the same moment";
pub(crate) const UMIAK_LOGS: &str = "umiak logs";
pub(crate) const UMIAK_TAIL: &str = "umiak logs -n 10";
pub(crate) const LIBUV: &str = "torch's store (libuv)";
pub(crate) const HTTP_MASTER: &str = "Paddle's HTTP master";
pub(crate) const TORCHRUN: &str = "torchrun";

/// One requirement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: &'static str,
    pub(crate) measured: String,
    pub(crate) must: Option<Bound>,
    pub(crate) goal: Option<Bound>,
}

/// A bound, and whether it is met.
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

/// Verdicts on one node, in the order of the table of requirements.
pub(crate) fn verdicts(series: &[Series]) -> Vec<Verdict> {
    let ours = |metric, ranks| median_of(series, metric, ranks, UMIAK);
    let with_floor = |metric, ranks| Some((ours(metric, ranks)?, floor(series, metric, ranks)?));
    let mut found = Vec::new();
    for (ranks, what, goal, text) in [
        (64, "start of 64 ranks and end", 1.3, "≤ 1.3 × floor"),
        (256, "start of 256 ranks and end", 1.5, "≤ 1.5 × floor"),
        (MOST_RANKS, "start of 1 000 ranks and end", 1.5, "≤ 1.5 × floor"),
    ] {
        if let Some((ours, floor)) = with_floor(Metric::Start, ranks) {
            let ratio = ours / floor;
            found.push(Verdict {
                what,
                measured: format!("{ratio:.2} × floor ({ours:.1} ms, floor {floor:.1} ms)"),
                must: Some(at_most(ratio, 2.0, "≤ 2 × floor")),
                goal: Some(at_most(ratio, goal, text)),
            });
        }
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
    if let Some(ours) = ours(Metric::Memory, MOST_RANKS) {
        found.push(Verdict {
            what: "memory beside 1 000 ranks",
            measured: format!("{ours:.1} MB"),
            must: Some(at_most(ours, 40.0, "≤ 40 MB")),
            goal: None,
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
        let broken = series.iter().filter(|one| one.metric == Metric::Log && one.contestant == UMIAK && !one.is_old);
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
            what: "rank with a 1 MB/s reader",
            measured: format!("{ours:.2} × its time with a fast one"),
            must: None,
            goal: Some(at_most(ours, 1.1, "≤ 1.1 ×")),
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

/// Verdicts on documents and recorded runs.
pub(crate) fn of_runs(series: &[Series]) -> Vec<Verdict> {
    let ours = |metric, size| median_of(series, metric, size, UMIAK);
    let with_floor = |metric, size| Some((ours(metric, size)?, floor(series, metric, size)?));
    let mut found = Vec::new();
    if let Some((ours, floor)) = with_floor(Metric::Replicas, REPLICAS) {
        let rate = floor / ours;
        found.push(Verdict {
            what: "1 000 replicas of one command each, journal and logs on",
            measured: format!("{rate:.2} × the floor's rate ({ours:.0} ms, floor {floor:.0} ms)"),
            must: Some(at_least(rate, 0.4, "≥ 0.4 × the floor's rate")),
            goal: None,
        });
    }
    if let Some(ours) = ours(Metric::Listing, RUNS) {
        found.push(Verdict {
            what: "`umiak ls` of 10 000 runs, warm",
            measured: format!("{ours:.1} ms"),
            must: Some(at_most(ours, 100.0, "≤ 100 ms")),
            goal: None,
        });
    }
    for (name, what) in
        [(UMIAK_LOGS, "first bytes of a whole log of 10 GB"), (UMIAK_TAIL, "first bytes of `-n 10` of a log of 10 GB")]
    {
        if let Some(ours) = median_of(series, Metric::LogFirst, LOG_GIGABYTES, name) {
            let must = Some(at_most(ours, 50.0, "≤ 50 ms"));
            found.push(Verdict { what, measured: format!("{ours:.1} ms"), must, goal: None });
        }
    }
    if let Some((ours, floor)) = with_floor(Metric::RunLine, 1) {
        let over = ours - floor;
        found.push(Verdict {
            what: "`run` of one command: first line, over the bare command",
            measured: format!("{over:+.1} ms"),
            must: Some(at_most(over, 40.0, "≤ 40 ms")),
            goal: Some(at_most(over, 15.0, "≤ 15 ms")),
        });
    }
    found
}

/// Verdicts on the store.
pub(crate) fn of_store(series: &[Series]) -> Vec<Verdict> {
    let ratio = |metric, size| {
        let (ours, theirs) = (median_of(series, metric, size, UMIAK)?, median_of(series, metric, size, LIBUV)?);
        Some((ours, theirs, if metric.is_better_when_small() { theirs / ours } else { ours / theirs }))
    };
    let mut found = Vec::new();
    for (metric, size, what, goal) in [
        (Metric::StoreAdd, CONNECTIONS, "additions per second", 5.0),
        (Metric::StoreAddTime, CONNECTIONS, "CPU time per addition", 5.0),
        (Metric::StoreGet, CONNECTIONS, "reads per second", 5.0),
        (Metric::StoreGetTime, CONNECTIONS, "CPU time per request of a read", 5.0),
        (Metric::StoreBarrier, CROWD, "4 096 clients join and meet at a barrier", 5.0),
        (Metric::StoreGloo, RANKS, "256 gloo ranks exchange addresses", 5.0),
    ] {
        if let Some((ours, theirs, ratio)) = ratio(metric, size) {
            let unit = metric.unit();
            found.push(Verdict {
                what,
                measured: format!("{ratio:.2} × better ({ours:.1} {unit}, libuv {theirs:.1} {unit})"),
                must: Some(at_least(ratio, 2.0, "2 × better than libuv")),
                goal: Some(at_least(ratio, goal, "5 × better than libuv")),
            });
        }
    }
    let restart = median_of(series, Metric::Restart, RESTARTED, UMIAK);
    if let (Some(ours), Some(floor)) = (restart, floor(series, Metric::Restart, RESTARTED)) {
        found.push(Verdict {
            what: "restart of 64 ranks",
            measured: format!("floor {:+.1} ms ({ours:.1} ms, floor {floor:.1} ms)", ours - floor),
            must: Some(at_most(ours - floor, 30.0, "≤ spawn floor + 30 ms")),
            goal: None,
        });
    }
    found
}

/// Verdicts on several nodes.
pub(crate) fn of_nodes(series: &[Series]) -> Vec<Verdict> {
    let over_floor = |metric, ranks, name| {
        let (ours, floor) = (median_of(series, metric, ranks, name)?, floor(series, metric, ranks)?);
        Some((ours - floor, format!("floor {:+.1} ms ({ours:.1} ms, floor {floor:.1} ms)", ours - floor)))
    };
    let mut found = Vec::new();
    for (name, what) in
        [(UMIAK_IPS, "first line of two nodes, `--ips`"), (UMIAK_MASTER, "first line of two nodes, `--master`")]
    {
        if let Some((over, measured)) = over_floor(Metric::NodesStart, START_RANKS, name) {
            let must = Some(at_most(over, 200.0, "≤ one node + 200 ms"));
            found.push(Verdict { what, measured: measured.replace("floor", "one node"), must, goal: None });
        }
    }
    for (name, what) in [
        (UMIAK_IPS, "crash on one of two nodes, `--ips`, everything stopped"),
        (UMIAK_MASTER, "crash on one of two nodes, `--master`, everything stopped"),
    ] {
        if let Some((over, measured)) = over_floor(Metric::NodesCrash, CRASH_RANKS, name) {
            let must = Some(at_most(over, 100.0, "≤ floor + 100 ms"));
            found.push(Verdict { what, measured, must, goal: Some(at_most(over, 20.0, "≤ floor + 20 ms")) });
        }
    }
    for (name, what) in
        [(UMIAK, "rendezvous of 1 000 agents"), (UMIAK_AT_ONCE, "rendezvous of 1 000 agents, all at the same moment")]
    {
        if let Some(ours) = median_of(series, Metric::Agents, 1000, name) {
            let paddle = median_of(series, Metric::Agents, 1000, HTTP_MASTER);
            let ratio = paddle.map_or_else(String::new, |paddle| format!(" ({HTTP_MASTER}: {:.0} ×)", paddle / ours));
            found.push(Verdict {
                what,
                measured: format!("{ours:.0} ms{ratio}"),
                must: Some(at_most(ours, 2000.0, "≤ 2 s")),
                goal: Some(at_most(ours, 300.0, "≤ 0.3 s")),
            });
        }
    }
    if let Some(ours) = median_of(series, Metric::Agents, 4096, UMIAK) {
        let goal = Some(at_most(ours, 1000.0, "< 1 s"));
        found.push(Verdict { what: "rendezvous of 4 096 agents", measured: format!("{ours:.0} ms"), must: None, goal });
    }
    found
}

/// Verdicts on elastic jobs.
pub(crate) fn of_elastic(series: &[Series]) -> Vec<Verdict> {
    let torchrun = |change: Change, ours: f64| {
        let is_it = |one: &&Series| one.metric == change.metric() && one.contestant == TORCHRUN;
        let theirs = series.iter().find(is_it);
        theirs.map_or_else(String::new, |theirs| match median(&theirs.values) {
            Some(theirs) => format!(" (torchrun: {:.1} ×)", theirs / ours),
            None => format!(" (torchrun: {})", theirs.remarks.first().map_or("not measured", String::as_str)),
        })
    };
    let mut found = Vec::new();
    for (change, what, bound, text) in [
        (Change::Failure, "a rank fails, two nodes with four ranks each", 100.0, "≤ spawn floor + 100 ms"),
        (Change::Killed, "one of three launchers is killed, its loss is announced", 1000.0, "≤ 1 s"),
        (Change::Vanished, "all processes of one of three nodes are killed", 3000.0, "≤ 3 s"),
        (Change::Silent, "one of three hosts is cut off", 4000.0, "≤ node time-out (3 s) + 1 s"),
        (Change::Joined, "a third node joins", 2000.0, "≤ window (1 s) + 1 s"),
    ] {
        let (metric, ranks) = (change.metric(), change.ranks());
        let Some(ours) = median_of(series, metric, ranks, UMIAK) else { continue };
        let beside = torchrun(change, ours);
        let (value, measured) = match (change, floor(series, metric, ranks)) {
            (Change::Failure, None) => continue,
            (Change::Failure, Some(floor)) => {
                (ours - floor, format!("floor {:+.1} ms ({ours:.1} ms, floor {floor:.1} ms){beside}", ours - floor))
            }
            _ => (ours, format!("{ours:.0} ms{beside}")),
        };
        found.push(Verdict { what, measured, must: Some(at_most(value, bound, text)), goal: None });
    }
    let agents = |metric, nodes| median_of(series, metric, nodes, UMIAK);
    if let (Some(ours), Some(attempts)) = (agents(Metric::ElasticAgents, MANY), agents(Metric::ElasticAttempts, MANY)) {
        let is_kept = ours <= 2000.0 && attempts <= 1.0;
        found.push(Verdict {
            what: "100 of 1 000 agents leave and 100 join",
            measured: format!("{ours:.0} ms, {attempts} attempts").replace(" 1 attempts", " one attempt"),
            must: Some(Bound { text: "≤ 2 s, one attempt", is_kept }),
            goal: None,
        });
    }
    if let (Some(few), Some(many)) = (agents(Metric::ElasticMessages, FEW), agents(Metric::ElasticMessages, MANY)) {
        let ratio = many / few;
        found.push(Verdict {
            what: "messages per node of 1 000 agents",
            measured: format!("{ratio:.2} × ({many:.1}, with 100 {few:.1})"),
            must: Some(at_most(ratio, 1.5, "≤ 1.5 × that of 100")),
            goal: None,
        });
    }
    found
}

/// Verdicts on the engines of clusters. In each part only that counts which the launcher alone does not take; a part in
/// which umiak is faster makes up for nothing.
pub(crate) fn of_clusters(series: &[Series], ranks: u32) -> Vec<Verdict> {
    let mut found = Vec::new();
    for (engine, what, must, goal) in [
        (Engine::Slurm, "Slurm: our own parts", (100.0, "≤ 100 ms together"), (30.0, "≤ 30 ms together")),
        (Engine::Mpi, "MPI: our own parts", (50.0, "≤ 50 ms together"), (20.0, "≤ 20 ms together")),
    ] {
        let [before, start, end, _] = engine.parts();
        let over = |metric| Some(median_of(series, metric, ranks, UMIAK)? - floor(series, metric, ranks)?);
        if let (Some(before), Some(start), Some(end)) = (over(before), over(start), over(end)) {
            let own: f64 = [before, start, end].into_iter().map(|over| over.max(0.0)).sum();
            found.push(Verdict {
                what,
                measured: format!("{own:.1} ms (before {before:+.1}, start {start:+.1}, end {end:+.1})"),
                must: Some(at_most(own, must.0, must.1)),
                goal: Some(at_most(own, goal.0, goal.1)),
            });
        }
    }
    for (engine, what) in [
        (Engine::Slurm, "Slurm: a rank fails, until its cause is named"),
        (Engine::Mpi, "MPI: a rank fails, until its cause is named"),
    ] {
        let [cause, gone] = engine.failure();
        if let Some(ours) = median_of(series, cause, ranks, UMIAK) {
            let left = median_of(series, gone, ranks, UMIAK);
            let left = left.map_or_else(String::new, |left| format!(" (nothing left: {left:.0} ms)"));
            let must = Some(at_most(ours, 1000.0, "≤ 1 s"));
            found.push(Verdict { what, measured: format!("{ours:.0} ms{left}"), must, goal: None });
        }
    }
    found
}

/// Verdicts on pipelines.
pub(crate) fn of_pipelines(series: &[Series]) -> Vec<Verdict> {
    let ours = |metric, steps| median_of(series, metric, steps, UMIAK);
    let mut found = Vec::new();
    if let (Some(ours), Some(ninja)) = (ours(Metric::Steps, STEPS), floor(series, Metric::Steps, STEPS)) {
        let ratio = ours / ninja;
        found.push(Verdict {
            what: "10 000 steps that do nothing, two at a time",
            measured: format!("{ratio:.2} × ninja ({:.1} s, ninja {:.1} s)", ours / 1e3, ninja / 1e3),
            must: Some(at_most(ratio, 2.0, "≤ 2 × ninja")),
            goal: Some(at_most(ratio, 1.3, "≤ 1.3 × ninja")),
        });
    }
    if let Some(ours) = ours(Metric::StepMemory, STEPS) {
        let must = Some(at_most(ours, 300.0, "≤ 300 bytes"));
        found.push(Verdict {
            what: "memory per finished step",
            measured: format!("{ours:.0} bytes"),
            must,
            goal: None,
        });
    }
    if let Some(ours) = ours(Metric::Planning, PLANNED) {
        let must = Some(at_most(ours, 3000.0, "≤ 3 s"));
        let measured = format!("{:.2} s", ours / 1e3);
        found.push(Verdict { what: "a document of 100 000 steps, read and planned", measured, must, goal: None });
    }
    let slowest = series.iter().filter(|one| one.metric == Metric::Scheduling && !one.is_old);
    let slowest = slowest.filter_map(|one| Some((median(&one.values)?, &one.contestant)));
    if let Some((micros, shape)) = slowest.max_by(|one, other| one.0.total_cmp(&other.0)) {
        found.push(Verdict {
            what: "the scheduler alone, per step",
            measured: format!("{micros:.2} µs ({shape})"),
            must: Some(at_most(micros, 20.0, "≤ 20 µs")),
            goal: None,
        });
    }
    found
}

/// The verdict on hostile documents: the slowest of them.
pub(crate) fn of_lint(series: &[Series]) -> Vec<Verdict> {
    let of =
        |one: &Series| Some((median_of(series, Metric::Lint, MEGABYTES, &one.contestant)?, one.contestant.clone()));
    let slowest = series.iter().filter_map(of).max_by(|one, other| one.0.total_cmp(&other.0));
    let verdict = slowest.map(|(ours, name)| Verdict {
        what: "the slowest hostile document of 1 MB",
        measured: format!("{ours:.0} ms ({name})"),
        must: Some(at_most(ours, 1000.0 * f64::from(MEGABYTES), "≤ 1 s per MB")),
        goal: None,
    });
    verdict.into_iter().collect()
}

/// Verdicts on the state machine of a job.
pub(crate) fn of_machine(series: &[Series]) -> Vec<Verdict> {
    let [few, .., many] = SIZES;
    let one = |(story, what): (Story, &'static str)| {
        let at = |replicas| median_of(series, Metric::Event, replicas, story.name());
        let (at_few, at_many) = (at(few)?, at(many)?);
        let ratio = at_many / at_few;
        Some(Verdict {
            what,
            measured: format!("{ratio:.2} × ({at_many:.2} µs, with 100 {at_few:.2} µs)"),
            must: Some(at_most(ratio, 2.0, "≤ 2 × that of 100")),
            goal: None,
        })
    };
    [
        (Story::Well, "time per event with 10 000 replicas that succeed"),
        (Story::Failure, "time per event with 10 000 replicas, one of which fails"),
    ]
    .into_iter()
    .filter_map(one)
    .collect()
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
    fn nodes_are_held_against_one_node_and_agents_against_the_clock() {
        let all = [
            series(Metric::NodesStart, "umiak, one node", START_RANKS, true, &[10.0]),
            series(Metric::NodesStart, UMIAK_IPS, START_RANKS, false, &[40.0]),
            series(Metric::NodesCrash, "posix_spawn", CRASH_RANKS, true, &[2.0]),
            series(Metric::NodesCrash, UMIAK_IPS, CRASH_RANKS, false, &[152.0]),
            series(Metric::Agents, UMIAK, 1000, false, &[500.0]),
            series(Metric::Agents, HTTP_MASTER, 1000, false, &[20_000.0]),
        ];
        let found = of_nodes(&all);
        assert_eq!(
            found.iter().map(kept).collect::<Vec<_>>(),
            [(Some(true), None), (Some(false), Some(false)), (Some(true), Some(false))]
        );
        assert_eq!(found[0].measured, "one node +30.0 ms (40.0 ms, one node 10.0 ms)");
        assert_eq!(found[2].measured, "500 ms (Paddle's HTTP master: 40 ×)");
    }

    #[test]
    fn replicas_are_held_against_the_floors_rate_and_the_rest_against_the_clock() {
        let all = [
            series(Metric::Replicas, "posix_spawn", REPLICAS, true, &[600.0]),
            series(Metric::Replicas, UMIAK, REPLICAS, false, &[1200.0]),
            series(Metric::Listing, UMIAK, RUNS, false, &[120.0]),
            series(Metric::LogFirst, UMIAK_TAIL, LOG_GIGABYTES, false, &[8.0]),
            series(Metric::RunLine, "bare command", 1, true, &[1.0]),
            series(Metric::RunLine, UMIAK, 1, false, &[21.0]),
        ];
        let found = of_runs(&all);
        assert_eq!(
            found.iter().map(kept).collect::<Vec<_>>(),
            [(Some(true), None), (Some(false), None), (Some(true), None), (Some(true), Some(false))]
        );
        assert_eq!(found[0].measured, "0.50 × the floor's rate (1200 ms, floor 600 ms)");
    }

    #[test]
    fn pipelines_are_held_against_ninja() {
        let all = [
            series(Metric::Steps, "ninja -j 2", STEPS, true, &[10_000.0]),
            series(Metric::Steps, UMIAK, STEPS, false, &[15_000.0]),
            series(Metric::StepMemory, UMIAK, STEPS, false, &[301.0]),
            series(Metric::Planning, UMIAK, PLANNED, false, &[2900.0]),
            series(Metric::Scheduling, "loop", STEPS, false, &[0.5]),
            series(Metric::Scheduling, "chained", STEPS, false, &[30.0]),
        ];
        let found = of_pipelines(&all);
        assert_eq!(
            found.iter().map(kept).collect::<Vec<_>>(),
            [(Some(true), Some(false)), (Some(false), None), (Some(true), None), (Some(false), None)]
        );
        assert_eq!(found[0].measured, "1.50 × ninja (15.0 s, ninja 10.0 s)");
        assert_eq!(found[3].measured, "30.00 µs (chained)");
    }

    #[test]
    fn many_replicas_are_held_against_few() {
        let (well, failure) = (Story::Well.name(), Story::Failure.name());
        let all = [
            series(Metric::Event, well, 100, false, &[0.5]),
            series(Metric::Event, well, 10_000, false, &[0.8]),
            series(Metric::Event, failure, 100, false, &[0.5]),
            series(Metric::Event, failure, 10_000, false, &[50.0]),
        ];
        let found = of_machine(&all);
        assert_eq!(found.iter().map(kept).collect::<Vec<_>>(), [(Some(true), None), (Some(false), None)]);
        assert_eq!(found[0].measured, "1.60 × (0.80 µs, with 100 0.50 µs)");
    }

    #[test]
    fn the_store_is_held_against_libuv() {
        let all = [
            series(Metric::StoreAdd, UMIAK, CONNECTIONS, false, &[100.0]),
            series(Metric::StoreAdd, LIBUV, CONNECTIONS, false, &[40.0]),
            series(Metric::StoreBarrier, UMIAK, CROWD, false, &[100.0]),
            series(Metric::StoreBarrier, LIBUV, CROWD, false, &[150.0]),
        ];
        let found = of_store(&all);
        assert_eq!(found.iter().map(kept).collect::<Vec<_>>(), [(Some(true), Some(false)), (Some(false), Some(false))]);
        assert_eq!(found[0].measured, "2.50 × better (100.0 /s, libuv 40.0 /s)");
    }

    #[test]
    fn elastic_jobs_are_held_against_the_clock_and_torchrun() {
        let (failure, killed) = (Change::Failure, Change::Killed);
        let all = [
            series(failure.metric(), "fork + exec", failure.ranks(), true, &[10.0]),
            series(failure.metric(), UMIAK, failure.ranks(), false, &[50.0]),
            series(failure.metric(), TORCHRUN, failure.ranks(), false, &[500.0]),
            series(killed.metric(), UMIAK, killed.ranks(), false, &[1200.0]),
            Series {
                remarks: vec!["no new attempt within 60 s".to_owned(); 2],
                ..series(killed.metric(), TORCHRUN, killed.ranks(), false, &[])
            },
            series(Metric::ElasticAgents, UMIAK, MANY, false, &[1000.0]),
            series(Metric::ElasticAttempts, UMIAK, MANY, false, &[2.0]),
            series(Metric::ElasticMessages, UMIAK, FEW, false, &[5.0]),
            series(Metric::ElasticMessages, UMIAK, MANY, false, &[6.0]),
        ];
        let found = of_elastic(&all);
        assert_eq!(
            found.iter().map(kept).collect::<Vec<_>>(),
            [(Some(true), None), (Some(false), None), (Some(false), None), (Some(true), None)]
        );
        assert_eq!(found[0].measured, "floor +40.0 ms (50.0 ms, floor 10.0 ms) (torchrun: 10.0 ×)");
        assert_eq!(found[1].measured, "1200 ms (torchrun: no new attempt within 60 s)");
        assert_eq!(found[2].measured, "1000 ms, 2 attempts");
    }

    #[test]
    fn clusters_are_held_against_their_launchers() {
        let all = [
            series(Metric::SlurmBefore, "sbatch + srun", 16, true, &[3.0]),
            series(Metric::SlurmBefore, UMIAK, 16, false, &[13.0]),
            series(Metric::SlurmStart, "sbatch + srun", 16, true, &[100.0]),
            series(Metric::SlurmStart, UMIAK, 16, false, &[80.0]),
            series(Metric::SlurmEnd, "sbatch + srun", 16, true, &[10.0]),
            series(Metric::SlurmEnd, UMIAK, 16, false, &[50.0]),
            series(Metric::MpiBefore, UMIAK, 16, false, &[13.0]),
            series(Metric::SlurmCause, UMIAK, 16, false, &[1200.0]),
            series(Metric::SlurmGone, UMIAK, 16, false, &[3000.0]),
        ];
        let found = of_clusters(&all, 16);
        assert_eq!(found.iter().map(kept).collect::<Vec<_>>(), [(Some(true), Some(false)), (Some(false), None)]);
        assert_eq!(found[0].measured, "50.0 ms (before +10.0, start -20.0, end +40.0)");
        assert_eq!(found[1].measured, "1200 ms (nothing left: 3000 ms)");
    }

    #[test]
    fn a_broken_log_breaks_a_requirement() {
        let mut ours = series(Metric::Log, UMIAK, 1, false, &[100.0]);
        ours.remarks.push("the mirror lost bytes".to_owned());
        let found = verdicts(&[series(Metric::Log, "cat", 1, true, &[100.0]), ours]);
        assert_eq!(found.iter().map(kept).collect::<Vec<_>>(), [(Some(true), Some(true)), (Some(false), None)]);
    }
}
