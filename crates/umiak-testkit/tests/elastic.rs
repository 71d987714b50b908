//! Thousands of simulated elastic jobs: nodes come and go, and the coordinator, the agents and the jobs of all nodes
//! follow.
//!
//! `UMIAK_ELASTIC` sets how many (5000), `UMIAK_SEED` replays one and prints its log.

use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate_round::{self as simulate, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_ELASTIC",
    usual: 5_000,
    noun: "elastic jobs",
    run: simulate::run_elastic,
    assert_valid: Run::assert_valid,
};

/// What a campaign of the usual size must meet, with the minimum number of jobs.
const MET: &[(&str, u64)] = &[
    ("64 nodes", 1),
    ("Alone", 100),
    ("Lost", 100),
    ("Refused", 100),
    ("a member skips an attempt", 5),
    ("a node comes again", 300),
    ("a spare dies", 50),
    ("a spare hears of failure", 100),
    ("a spare hears of success", 300),
    ("a spare is stopped", 50),
    ("a spare takes part", 300),
    ("another range", 50),
    ("decided: interrupted", 100),
    ("decided: node lost", 300),
    ("decided: nodes join", 300),
    ("decided: rank failed", 200),
    ("decided: refused", 30),
    ("decided: restart", 200),
    ("decided: stopped", 50),
    ("decided: success", 1000),
    ("decided: time is up", 40),
    ("decided: unable", 100),
    ("ended: the coordinator's node was lost", 20),
    ("fault: break", 200),
    ("fault: break, stale messages", 100),
    ("fault: front and guardian killed", 100),
    ("fault: front killed", 100),
    ("fault: guardian lost", 100),
    ("fault: host lost", 100),
    ("fault: partition", 100),
    ("fault: partition of one direction", 200),
    ("fault: pause", 200),
    ("fault: signal", 200),
    ("fault: stop", 100),
    ("joined a later attempt", 500),
    ("left out: cannot start", 40),
    ("left out: fails", 30),
    ("ranks ignore SIGTERM", 500),
    ("refused: given up", 30),
    ("refused: other", 50),
    ("six attempts", 30),
    ("started with max nodes", 500),
    ("started with min nodes", 500),
    ("started with some nodes", 300),
    ("stop: disconnected", 20),
    ("stop: interrupted", 30),
    ("stop: joined", 300),
    ("stop: killed", 50),
    ("stop: left", 100),
    ("stop: rank failed", 300),
    ("stop: silent", 80),
    ("stop: unable", 20),
];

#[test]
fn every_elastic_job_keeps_the_rules() {
    let Some(seeds) = CAMPAIGN.seeds() else { return };
    let summary = simulate::elastic_campaign(&seeds);
    CAMPAIGN.assert_none_fails(&seeds, &summary.failing);
    if CAMPAIGN.is_whole(&seeds) {
        CAMPAIGN.assert_met(&summary.met, MET);
    }
}

#[test]
fn a_seed_gives_the_same_job_again() {
    for seed in 0..50 {
        let (first, second) = (simulate::run_elastic(seed), simulate::run_elastic(seed));
        assert!(first.nodes == second.nodes && first.journal == second.journal, "seed {seed}");
    }
}

#[test]
fn broken_drivers_are_noticed() {
    for (sabotage, rule) in [
        (Sabotage::ForgetRanks, Rule::OneSide),
        (Sabotage::TurnStarts, Rule::Start),
        (Sabotage::SortStarts, Rule::Places),
        (Sabotage::ForgetLast, Rule::Last),
        (Sabotage::NoSignals, Rule::NoRank),
        (Sabotage::NeverAlone, Rule::Ends),
        (Sabotage::MoreRestarts, Rule::Budget),
        (Sabotage::NoRename, Rule::LeftOut),
        (Sabotage::LongWindow, Rule::Prompt),
        (Sabotage::HideLosses, Rule::LostNode),
        (Sabotage::DropBeats, Rule::LostNode),
        (Sabotage::DropReady, Rule::Forms),
        (Sabotage::DropSpares, Rule::Spares),
        (Sabotage::RepeatStarts, Rule::Traffic),
    ] {
        let breaks = |seed: &u64| {
            let run = simulate::run_elastic_sabotaged(*seed, sabotage);
            run.violations().iter().any(|violation| violation.rule == rule)
        };
        let noticed = (0..2000).filter(breaks).take(3).count();
        assert!(noticed >= 3, "{sabotage:?} broke {rule:?} in {noticed} of 2000 jobs");
    }
}
