//! The coordinator, the agents and the jobs of several nodes in thousands of simulated rounds.
//!
//! `UMIAK_ROUNDS` says how many (20000), `UMIAK_SEED` replays one and prints its story.

use std::io::Write as _;

use umiak_testkit::simulate_round::{self as simulate, Rule, Sabotage};

const ROUNDS: u64 = 20_000;

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

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not `{text}`")))
}

fn say(text: &str) {
    // Past the harness, which hides what a passing test prints.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[test]
fn every_round_keeps_the_rules() {
    if let Some(seed) = number("UMIAK_SEED") {
        let run = simulate::run(seed);
        say(&run.to_string());
        return run.assert_valid();
    }
    let rounds = number("UMIAK_ROUNDS").unwrap_or(ROUNDS);
    let summary = simulate::campaign(0..rounds);
    if let Some(seed) = summary.failing.first() {
        say(&format!("{} of {rounds} rounds break a rule: {:?}\n", summary.failing.len(), {
            summary.failing.iter().take(20).collect::<Vec<_>>()
        }));
        simulate::run(*seed).assert_valid();
    }
    if rounds >= ROUNDS {
        for (thing, least) in MET {
            let count = summary.met.get(*thing).copied().unwrap_or_default();
            assert!(count >= *least, "only {count} of {rounds} rounds have met: {thing}\n{:?}", summary.met);
        }
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
