//! The coordinator, the agents and the jobs of several nodes in thousands of simulated rounds.
//!
//! `UMIAK_ROUNDS` says how many (20000), `UMIAK_SEED` replays one and prints its story.

use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate_round::{self as simulate, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_ROUNDS",
    usual: 20_000,
    noun: "rounds",
    run: simulate::run,
    assert_valid: Run::assert_valid,
};

/// What a campaign of the usual size must have met, and in how many rounds at least.
const MET: &[(&str, u64)] = &[
    ("64 nodes", 20),
    ("Alone", 100),
    ("Lost", 200),
    ("Refused", 200),
    ("TimeUp", 20),
    ("decided: interrupted", 500),
    ("decided: node lost", 1000),
    ("decided: rank failed", 2000),
    ("decided: restart", 2000),
    ("decided: success", 2000),
    ("decided: time is up", 200),
    ("decided: unable", 500),
    ("failed", 5000),
    ("interrupted", 500),
    ("started again", 2000),
    ("succeeded", 2000),
    ("turned away", 500),
];

#[test]
fn every_round_keeps_the_rules() {
    let Some(seeds) = CAMPAIGN.seeds() else { return };
    let summary = simulate::campaign(&seeds);
    CAMPAIGN.assert_none_fails(&seeds, &summary.failing);
    if CAMPAIGN.is_whole(&seeds) {
        CAMPAIGN.assert_met(&summary.met, MET);
    }
}

#[test]
fn a_seed_gives_the_same_round_again() {
    for seed in 0..100 {
        let (first, second) = (simulate::run(seed), simulate::run(seed));
        assert!(first.nodes == second.nodes && first.steps == second.steps, "seed {seed}");
    }
    assert_ne!(simulate::run(1).to_string(), simulate::run(2).to_string());
}

#[test]
fn broken_drivers_are_noticed() {
    for (sabotage, rule) in [
        (Sabotage::DropStops, Rule::Stop),
        (Sabotage::DropDecisions, Rule::Gentle),
        (Sabotage::DropBeats, Rule::Gentle),
        (Sabotage::NoTicks, Rule::Ends),
        (Sabotage::TurnStarts, Rule::Start),
        (Sabotage::Hasty, Rule::Start),
        (Sabotage::SwapEvidence, Rule::Cause),
        (Sabotage::NoSignals, Rule::NoRank),
        (Sabotage::NeverAlone, Rule::Ends),
    ] {
        let breaks = |seed: &u64| {
            simulate::run_sabotaged(*seed, sabotage).violations().iter().any(|violation| violation.rule == rule)
        };
        let noticed = (0..400).filter(breaks).count();
        assert!(noticed >= 5, "{sabotage:?} broke {rule:?} in {noticed} of 400 rounds");
    }
}
