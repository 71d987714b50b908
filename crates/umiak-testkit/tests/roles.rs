//! Thousands of simulated runs of jobs with roles, with supervisors that are lost.
//!
//! `UMIAK_ROLE_SCHEDULES` sets how many (1500), `UMIAK_SEED` replays one and prints its timeline.

use umiak_core::facts::Record;
use umiak_core::status::Status;
use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate_roles::{self, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_ROLE_SCHEDULES",
    usual: 1500,
    noun: "schedules",
    run: simulate_roles::run,
    assert_valid: Run::assert_valid,
};

/// What a campaign of the usual size must meet, with the minimum number of runs.
const MET: &[(&str, u64)] = &[
    ("abandoned", 30),
    ("adopted", 100),
    ("all retried", 50),
    ("attempt timed out", 100),
    ("attempt reported", 100),
    ("closed as lost", 200),
    ("failed", 200),
    ("guardian lost", 30),
    ("guardian replaced", 30),
    ("interrupted", 100),
    ("job restarted", 100),
    ("job restarted after a conflict", 5),
    ("job restarted for the platform", 10),
    ("killed", 200),
    ("lost between record and effect", 20),
    ("ready", 100),
    ("refused", 30),
    ("replica restarted", 100),
    ("replica restarted for the platform", 30),
    ("restarted after a conflict", 10),
    ("resumed", 300),
    ("resumed three times", 50),
    ("retried", 100),
    ("role restarted", 100),
    ("role restarted for the platform", 20),
    ("run timed out", 50),
    ("stale event", 200),
    ("start timed out", 30),
    ("stopped", 50),
    ("stopped without blame", 30),
    ("succeeded", 200),
];

#[test]
fn every_schedule_keeps_the_rules() {
    let Some(seeds) = CAMPAIGN.seeds() else { return };
    let summary = simulate_roles::campaign(&seeds);
    CAMPAIGN.assert_none_fails(&seeds, &summary.failing);
    if CAMPAIGN.is_whole(&seeds) {
        CAMPAIGN.assert_met(&summary.met, MET);
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..50 {
        assert_eq!(simulate_roles::run(seed).to_string(), simulate_roles::run(seed).to_string(), "seed {seed}");
    }
}

#[test]
fn broken_drivers_are_noticed() {
    let broken: &[(Sabotage, &[Rule])] = &[
        (Sabotage::HastyBackoff, &[Rule::Backoff, Rule::Restart]),
        (Sabotage::HastyGrace, &[Rule::Kill]),
        (Sabotage::ForgetLimits, &[Rule::Limits]),
        (Sabotage::WrongFence, &[Rule::Kill, Rule::Finish]),
        (Sabotage::SpawnFirst, &[Rule::FactFirst, Rule::Numbers]),
        (Sabotage::LoseRetrying, &[Rule::Replay]),
        (Sabotage::LoseEnded, &[Rule::Replay]),
        (Sabotage::LoseRestarting, &[Rule::Replay]),
        (Sabotage::Unprobed, &[Rule::Order]),
        (Sabotage::Disown, &[Rule::OneEnd]),
    ];
    for (sabotage, rules) in broken {
        let runs = (0..100).map(|seed| simulate_roles::run_sabotaged(seed, *sabotage));
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
    for seed in 0..60 {
        let journal = simulate_roles::run(seed).journal;
        let whole = Status::replay(&journal);
        let lines: Vec<String> =
            journal.iter().map(|record| serde_json::to_string(record).expect("plain data")).collect();
        let read: Vec<Record> =
            lines.iter().map(|line| serde_json::from_str(line).expect("what was written")).collect();
        assert_eq!(read, journal, "seed {seed}");
        for cut in (0..journal.len()).step_by(1 + journal.len() / 8) {
            let (first, rest) = journal.split_at(cut);
            let mut status = Status::replay(first);
            for record in rest {
                status.add(record);
            }
            assert_eq!(status, whole, "seed {seed}, cut at {cut}");
        }
    }
}
