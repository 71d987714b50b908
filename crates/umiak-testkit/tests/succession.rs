//! Thousands of simulated jobs over etcd: coordinators are elected, lost, fenced and followed by others.
//!
//! `UMIAK_SUCCESSION` sets how many (5000), `UMIAK_SEED` replays one and prints its log.

use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate_succession::{self as simulate, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_SUCCESSION",
    usual: 5000,
    noun: "jobs over etcd",
    run: simulate::run,
    assert_valid: Run::assert_valid,
};

/// What a whole campaign must have met, with the minimum number of jobs.
const MET: &[(&str, u64)] = &[
    ("a second coordinator", 500),
    ("a third coordinator", 250),
    ("decided: fenced", 600),
    ("decided: handed over", 100),
    ("decided: node lost", 300),
    ("decided: nodes join", 600),
    ("decided: rank failed", 100),
    ("decided: restart", 400),
    ("decided: scaled", 30),
    ("decided: success", 1500),
    ("decided: time is up", 200),
    ("failed", 500),
    ("fault: answers of etcd lost", 300),
    ("fault: break", 300),
    ("fault: cut", 1000),
    ("fault: etcd away", 300),
    ("fault: front killed", 500),
    ("fault: host lost", 300),
    ("fault: requests to etcd lost", 300),
    ("fault: scaled", 300),
    ("fault: signal", 500),
    ("fault: without etcd", 500),
    ("four coordinators", 200),
    ("interrupted", 300),
    ("six attempts", 150),
    ("succeeded", 1500),
];

#[test]
fn every_job_keeps_the_rules() {
    let Some(seeds) = CAMPAIGN.seeds() else { return };
    let summary = simulate::campaign(&seeds);
    CAMPAIGN.assert_none_fails(&seeds, &summary.failing);
    if CAMPAIGN.is_whole(&seeds) {
        CAMPAIGN.assert_met(&summary.met, MET);
    }
}

#[test]
fn a_seed_gives_the_same_job_again() {
    for seed in 0..50 {
        assert!(simulate::run(seed).journal == simulate::run(seed).journal, "seed {seed}");
    }
}

#[test]
fn broken_drivers_are_noticed() {
    for (sabotage, rule) in [
        (Sabotage::NeverFence, Rule::OneCoordinator),
        (Sabotage::LateFence, Rule::OneSide),
        (Sabotage::NoPatience, Rule::OneSide),
        (Sabotage::ForgetPast, Rule::Budget),
        (Sabotage::FalseAnswers, Rule::OneSide),
        (Sabotage::NeverLook, Rule::Ends),
        (Sabotage::NoSignals, Rule::NoRank),
        (Sabotage::MoreRestarts, Rule::Budget),
    ] {
        let breaks = |seed: &u64| {
            let run = simulate::run_sabotaged(*seed, sabotage);
            run.violations().iter().any(|violation| violation.rule == rule)
        };
        let noticed = (0..2000).filter(breaks).take(3).count();
        assert!(noticed >= 3, "{sabotage:?} broke {rule:?} in {noticed} of 2000 jobs");
    }
}
