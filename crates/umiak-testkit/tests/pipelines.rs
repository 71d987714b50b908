//! Thousands of simulated runs of pipelines, with supervisors that are lost, stops, and runs that repeat others.
//!
//! `UMIAK_PIPELINES` sets how many (4000), `UMIAK_SEED` replays one and prints its timeline.

use umiak_core::facts::Record;
use umiak_core::status::RunStatus;
use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate_pipeline::{self, Pair, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_PIPELINES",
    usual: 4000,
    noun: "pipelines",
    run: simulate_pipeline::run,
    assert_valid: Run::assert_valid,
};

/// Stops before the start have a test of their own.
const UNREACHABLE: &[Pair] = &[("Waiting", "StopAsked")];

/// What a campaign of the usual size must meet, with the minimum number of runs.
const MET: &[(&str, u64)] = &[
    ("DAG failed", 200),
    ("DAG repeated", 300),
    ("DAG stopped", 400),
    ("DAG succeeded", 900),
    ("asked to stop", 500),
    ("cached", 300),
    ("cancelled", 900),
    ("cancelled by the next supervisor", 10),
    ("closed", 400),
    ("failed", 600),
    ("interrupted", 400),
    ("kept", 400),
    ("killed", 300),
    ("loop in a loop", 70),
    ("loop repeated", 300),
    ("loop without items", 200),
    ("looped", 800),
    ("lost between effects", 400),
    ("post step", 900),
    ("refused", 200),
    ("repeated", 800),
    ("resumed", 400),
    ("resumed while stopping", 160),
    ("run again", 200),
    ("run only to stop it", 50),
    ("skipped", 500),
    ("stale event", 1500),
    ("stopped", 400),
    ("succeeded", 1500),
];

#[test]
fn every_pipeline_keeps_the_rules() {
    let Some(seeds) = CAMPAIGN.seeds() else { return };
    let summary = simulate_pipeline::campaign(&seeds);
    CAMPAIGN.assert_none_fails(&seeds, &summary.failing);
    if CAMPAIGN.is_whole(&seeds) {
        let missing: Vec<Pair> = simulate_pipeline::pairs().difference(&summary.taken).copied().collect();
        assert_eq!(missing, UNREACHABLE, "transitions that no pipeline has taken");
        CAMPAIGN.assert_met(&summary.met, MET);
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..50 {
        assert_eq!(simulate_pipeline::run(seed).to_string(), simulate_pipeline::run(seed).to_string(), "seed {seed}");
    }
}

#[test]
fn broken_drivers_are_noticed() {
    let broken: &[(Sabotage, &[Rule])] = &[
        (Sabotage::LoseLeft, &[Rule::Replay]),
        (Sabotage::LoseLooping, &[Rule::Replay]),
        (Sabotage::LoseFinished, &[Rule::Replay]),
        (Sabotage::Forget, &[Rule::Replay, Rule::Begin]),
        (Sabotage::Repeat, &[Rule::Kept]),
    ];
    for (sabotage, rules) in broken {
        let runs = (0..200).map(|seed| simulate_pipeline::run_sabotaged(seed, *sabotage));
        let noticed: Vec<Rule> = runs.flat_map(|run| run.violations()).map(|violation| violation.rule).collect();
        for rule in *rules {
            let count = noticed.iter().filter(|other| *other == rule).count();
            assert!(count >= 3, "{sabotage:?} broke {rule:?} {count} times");
        }
    }
}

/// Replaying the start of a journal and then adding the rest equals replaying all of it, and records survive writing
/// and reading.
#[test]
fn a_journal_adds_up_wherever_it_is_cut() {
    for journal in (0..60).flat_map(|seed| simulate_pipeline::run(seed).journals) {
        let whole = RunStatus::replay(&journal);
        let lines: Vec<String> =
            journal.iter().map(|record| serde_json::to_string(record).expect("plain data")).collect();
        let read: Vec<Record> =
            lines.iter().map(|line| serde_json::from_str(line).expect("what was written")).collect();
        assert_eq!(read, journal);
        for cut in (0..journal.len()).step_by(1 + journal.len() / 8) {
            let (first, rest) = journal.split_at(cut);
            let mut status = RunStatus::replay(first);
            for record in rest {
                status.add(record);
            }
            assert_eq!(status, whole, "cut at {cut}");
        }
    }
}
