//! Thousands of simulated rounds with the coordinator, the agents and the jobs of several nodes.
//!
//! `UMIAK_ROUNDS` sets how many (20000), `UMIAK_SEED` replays one and prints its log.

use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate_round::{self as simulate, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_ROUNDS",
    usual: 20_000,
    noun: "rounds",
    run: simulate::run,
    assert_valid: Run::assert_valid,
};

/// What a campaign of the usual size must meet, with the minimum number of rounds.
const MET: &[(&str, u64)] = &[
    ("64 nodes", 20),
    ("Alone", 100),
    ("a server died", 500),
    ("a server died, and the round succeeded", 50),
    ("a server ended by itself", 50),
    ("a server ended by itself, and the round succeeded", 50),
    ("a server was late", 100),
    ("Lost", 200),
    ("Refused", 200),
    ("TimeUp", 20),
    ("decided: interrupted", 500),
    ("decided: node lost", 1000),
    ("decided: rank failed", 2000),
    ("decided: refused", 100),
    ("decided: restart", 2000),
    ("decided: success", 2000),
    ("decided: time is up", 200),
    ("decided: unable", 500),
    ("failed", 5000),
    ("interrupted", 500),
    ("served", 2000),
    ("served, without trainers", 1000),
    ("servers", 5000),
    ("started again", 2000),
    ("succeeded", 2000),
    ("trainers stopped waiting", 100),
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
    for (sabotage, rule, rounds) in [
        (Sabotage::DropStops, Rule::Stop, 400),
        (Sabotage::DropDecisions, Rule::Gentle, 400),
        (Sabotage::DropBeats, Rule::Gentle, 400),
        (Sabotage::NoTicks, Rule::Ends, 400),
        (Sabotage::TurnStarts, Rule::Start, 400),
        (Sabotage::Hasty, Rule::Start, 400),
        (Sabotage::SwapEvidence, Rule::Cause, 400),
        (Sabotage::NoSignals, Rule::NoRank, 400),
        (Sabotage::NeverAlone, Rule::Ends, 400),
        (Sabotage::OneForAll, Rule::Waits, 400),
        (Sabotage::HideServers, Rule::Needed, 4000),
        (Sabotage::OwnEnds, Rule::Serves, 400),
    ] {
        let breaks = |seed: &u64| {
            simulate::run_sabotaged(*seed, sabotage).violations().iter().any(|violation| violation.rule == rule)
        };
        let noticed = (0..rounds).filter(breaks).take(5).count();
        assert!(noticed >= 5, "{sabotage:?} broke {rule:?} in {noticed} of {rounds} rounds");
    }
}
