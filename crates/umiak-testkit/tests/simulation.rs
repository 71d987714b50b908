//! Thousands of simulated runs of the job's state machine.
//!
//! `UMIAK_SCHEDULES` sets how many (5000), `UMIAK_SEED` replays one and prints its timeline.

use std::time::Duration;

use umiak_core::facts::{Fact, Outcome, StopReason};
use umiak_core::machine::job::{Effect, Event, Timer};
use umiak_core::model::{StopHow, Timestamp};
use umiak_testkit::seeds::Campaign;
use umiak_testkit::simulate::{self, Pair, Rule, Run, Sabotage};

const CAMPAIGN: Campaign<Run> = Campaign {
    variable: "UMIAK_SCHEDULES",
    usual: 20000,
    noun: "schedules",
    run: simulate::run,
    assert_valid: Run::assert_valid,
};

/// Transitions that the job's machine never requests. An attempt starts once, with all others; SIGKILL follows another
/// signal; an attempt is abandoned only after SIGKILL, and only once.
const UNREACHABLE: &[Pair] = &[
    ("Abandoned", "GiveUp"),
    ("Abandoned", "Kill"),
    ("Abandoned", "Start"),
    ("Ended", "Start"),
    ("Interrupting", "GiveUp"),
    ("Interrupting", "Start"),
    ("Killing", "Start"),
    ("Running", "GiveUp"),
    ("Running", "Kill"),
    ("Running", "Start"),
    ("Starting", "GiveUp"),
    ("Starting", "Kill"),
    ("Starting", "Start"),
    ("Stopping", "GiveUp"),
    ("Stopping", "Start"),
    ("Waiting", "GiveUp"),
    ("Waiting", "Kill"),
];

/// What a campaign of the usual size must meet, with the minimum number of runs.
const MET: &[(&str, u64)] = &[
    ("abandoned", 100),
    ("causes only", 500),
    ("evident cause heard after its victims", 100),
    ("evident cause heard first", 500),
    ("evident cause heard too late", 30),
    ("failed", 1000),
    ("guardian lost", 100),
    ("interrupted", 500),
    ("killed", 500),
    ("stale event", 1000),
    ("stopped without blame", 100),
    ("failed for good", 100),
    ("interrupted between attempts", 20),
    ("recovered by a restart", 150),
    ("restart given up", 20),
    ("restarted", 500),
    ("restarted beyond the number, by its window", 20),
    ("restarted twice", 100),
    ("succeeded", 300),
    ("terminal returned", 20),
    ("victims", 200),
];

#[test]
fn every_schedule_keeps_the_rules() {
    let Some(seeds) = CAMPAIGN.seeds() else { return };
    let summary = simulate::campaign(&seeds);
    CAMPAIGN.assert_none_fails(&seeds, &summary.failing);
    if CAMPAIGN.is_whole(&seeds) {
        let missing: Vec<Pair> = simulate::pairs().difference(&summary.taken).copied().collect();
        assert_eq!(missing, UNREACHABLE, "transitions that no schedule has taken");
        CAMPAIGN.assert_met(&summary.met, MET);
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..200 {
        let (first, second) = (simulate::run(seed), simulate::run(seed));
        assert_eq!(first.to_string(), second.to_string(), "seed {seed}");
        assert!(first.steps == second.steps && first.deaths == second.deaths, "seed {seed}");
    }
    assert_ne!(simulate::run(1).to_string(), simulate::run(2).to_string());
}

#[test]
fn a_failing_run_shows_its_timeline_and_how_to_replay_it() {
    let mut run = simulate::run(7);
    let last = run.steps.iter().position(|step| finish(&step.effects).is_some()).expect("it ends");
    run.steps.truncate(last);
    let message = std::panic::catch_unwind(|| run.assert_valid()).expect_err("a run without an end is not valid");
    let message = message.downcast_ref::<String>().expect("a formatted message");
    for part in ["seed 7: ", "Start", "└ Record(Starting", "Bounded", "replay with UMIAK_SEED=7"] {
        assert!(message.contains(part), "no `{part}` in\n{message}");
    }
}

#[test]
fn broken_drivers_are_noticed() {
    for (sabotage, rule) in [
        (Sabotage::ForgetGrace, Rule::Bounded),
        (Sabotage::HastyGrace, Rule::Kill),
        (Sabotage::HastyBackoff, Rule::Restart),
        (Sabotage::SlowSettle, Rule::Report),
        (Sabotage::SwapEvidence, Rule::Truth),
    ] {
        let noticed = (0..500).filter(|seed| breaks(&simulate::run_sabotaged(*seed, sabotage), rule)).count();
        assert!(noticed >= 10, "{sabotage:?} broke {rule:?} in {noticed} of 500 runs");
    }
}

fn breaks(run: &Run, rule: Rule) -> bool {
    run.violations().iter().any(|violation| violation.rule == rule)
}

fn finish(effects: &[Effect]) -> Option<usize> {
    effects.iter().position(|effect| matches!(effect, Effect::Finish { .. }))
}

/// The first effect of this kind: its step and its place there.
fn find(run: &Run, wanted: impl Fn(&Effect) -> bool) -> Option<(usize, usize)> {
    let places = run.steps.iter().enumerate();
    places.into_iter().find_map(|(step, entry)| Some((step, entry.effects.iter().position(&wanted)?)))
}

/// Removes the first effect of this kind.
fn remove(run: &mut Run, wanted: impl Fn(&Effect) -> bool) -> Option<Effect> {
    let (step, place) = find(run, wanted)?;
    Some(run.steps[step].effects.remove(place))
}

/// Changes the first effect of this kind.
fn alter(run: &mut Run, change: impl Fn(&mut Effect) -> bool) -> Option<()> {
    run.steps.iter_mut().flat_map(|step| &mut step.effects).find_map(|effect| change(effect).then_some(()))
}

fn is_fact(effect: &Effect, wanted: impl Fn(&Fact) -> bool) -> bool {
    matches!(effect, Effect::Record(fact) if wanted(fact))
}

fn is_restart(fact: &Fact) -> bool {
    matches!(fact, Fact::Restarting { .. })
}

/// A way to corrupt a timeline; `None` if it does not apply.
type Spoil = fn(&mut Run) -> Option<()>;

/// Timelines that no correct machine can produce.
const SPOILS: &[(&str, Rule, Spoil)] = &[
    ("a signal without its fact", Rule::FactFirst, |run| {
        remove(run, |effect| is_fact(effect, |fact| matches!(fact, Fact::StopSent { .. }))).map(drop)
    }),
    ("a start without its fact", Rule::FactFirst, |run| {
        find(run, |effect| matches!(effect, Effect::Spawn(_)))?;
        remove(run, |effect| is_fact(effect, |fact| matches!(fact, Fact::Starting { .. }))).map(drop)
    }),
    ("a fact after its effect", Rule::FactFirst, |run| {
        let (step, place) = find(run, |effect| matches!(effect, Effect::Spawn(_)))?;
        let spawn = run.steps[step].effects.remove(place);
        run.steps[step].effects.insert(0, spawn);
        Some(())
    }),
    ("an end that is missing", Rule::OneEnd, |run| {
        remove(run, |effect| is_fact(effect, |fact| matches!(fact, Fact::Ended { .. }))).map(drop)
    }),
    ("an end that comes twice", Rule::OneEnd, |run| {
        let (step, place) = find(run, |effect| is_fact(effect, |fact| matches!(fact, Fact::Ended { .. })))?;
        let end = run.steps[step].effects[place].clone();
        run.steps[step].effects.insert(place, end);
        Some(())
    }),
    ("an order with a gap", Rule::Numbering, |run| {
        alter(run, |effect| match effect {
            Effect::Record(Fact::Ended { order, .. }) => {
                *order += 1;
                true
            }
            _ => false,
        })
    }),
    ("time that runs backwards", Rule::Numbering, |run| {
        run.steps.first_mut()?.at = Timestamp::from_micros(u64::MAX);
        (run.steps.len() > 1).then_some(())
    }),
    ("blame taken away", Rule::OurDoing, |run| {
        alter(run, |effect| match effect {
            Effect::Record(Fact::Ended { by_us, exit, .. }) if !exit.is_success() => {
                *by_us = !*by_us;
                true
            }
            _ => false,
        })
    }),
    ("a stop for another reason", Rule::Decision, |run| {
        alter(run, |effect| match effect {
            Effect::Record(Fact::Stopping { reason }) => {
                *reason = match reason {
                    StopReason::Completed => StopReason::PeerFailed,
                    _ => StopReason::Completed,
                };
                true
            }
            _ => false,
        })
    }),
    ("a rank that is not asked to end", Rule::Terminate, |run| {
        alter(run, |effect| match effect {
            Effect::Stop { how: StopHow::Terminate, targets } => targets.pop().is_some(),
            _ => false,
        })
    }),
    ("a kill in place of a request", Rule::Kill, |run| {
        alter(run, |effect| match effect {
            Effect::Stop { how, .. } if *how == StopHow::Terminate => {
                *how = StopHow::Kill;
                true
            }
            _ => false,
        })
    }),
    ("a timer for another time", Rule::Timers, |run| {
        alter(run, |effect| match effect {
            Effect::ArmTimer { at, .. } => {
                *at = *at + Duration::from_millis(1);
                true
            }
            _ => false,
        })
    }),
    ("a second start", Rule::Spawn, |run| {
        let (step, place) = find(run, |effect| matches!(effect, Effect::Spawn(_)))?;
        let spawn = run.steps[step].effects[place].clone();
        let (stop, _) = find(run, |effect| is_fact(effect, |fact| matches!(fact, Fact::Stopping { .. })))?;
        run.steps[stop].effects.push(spawn);
        Some(())
    }),
    ("a stale event that is acted on", Rule::Stale, |run| {
        remove(run, |effect| is_fact(effect, |fact| matches!(fact, Fact::Ignored { .. }))).map(drop)
    }),
    ("a stale event that changes something", Rule::Stale, |run| {
        let step = run.steps.iter_mut().find(|step| step.unchanged)?;
        step.unchanged = false;
        Some(())
    }),
    ("a report too late", Rule::Report, |run| {
        let (step, _) = find(run, |effect| matches!(effect, Effect::Gather { .. }))?;
        run.steps[step].at = run.steps[step].at + Duration::from_secs(9);
        // If all ended at once, the window opened and closed in one step.
        let failed = Effect::Record(Fact::Stopping { reason: StopReason::PeerFailed });
        (!run.steps[step].effects.contains(&failed)).then_some(())
    }),
    ("a report that is missing", Rule::Report, |run| {
        remove(run, |effect| matches!(effect, Effect::Report(_))).map(drop)
    }),
    ("a cause that is not named", Rule::Causes, |run| {
        alter(run, |effect| match effect {
            Effect::Record(Fact::Diagnosed(verdict)) => verdict.causes.pop().is_some(),
            _ => false,
        })
    }),
    ("another code", Rule::Code, |run| {
        alter(run, |effect| match effect {
            Effect::Finish { code, .. } => {
                *code ^= 64;
                true
            }
            _ => false,
        })
    }),
    ("another outcome", Rule::Code, |run| {
        alter(run, |effect| match effect {
            Effect::Finish { outcome, .. } => {
                *outcome = if *outcome == Outcome::Failed { Outcome::Succeeded } else { Outcome::Failed };
                true
            }
            _ => false,
        })
    }),
    ("a restart that is not allowed", Rule::Restart, |run| {
        find(run, |effect| is_fact(effect, is_restart))?;
        run.scenario.job.policy.restart.max = 0;
        Some(())
    }),
    ("a restart that is owed", Rule::Restart, |run| {
        let failed = |effect: &Effect| matches!(effect, Effect::Finish { outcome: Outcome::Failed, .. });
        let (end, _) = find(run, failed)?;
        let last = run.steps.iter().rposition(|step| step.effects.iter().any(|effect| is_fact(effect, is_restart)));
        // Only if the budget was the only reason to end.
        let budget = run.scenario.job.policy.restart.max;
        let hopeless = run.steps[..=end].iter().any(|step| {
            matches!(
                step.event,
                Event::EngineLost { .. } | Event::Signalled { .. } | Event::Prepared { ready: false, .. }
            ) || step.effects.iter().any(|effect| {
                is_fact(effect, |fact| match fact {
                    Fact::Abandoned { .. } => true,
                    Fact::Ended { exit, .. } => matches!(exit, umiak_core::model::Exit::Spawn(_)),
                    _ => false,
                })
            })
        });
        run.scenario.job.policy.restart.max = budget + 9;
        (!hopeless && last.is_none()).then_some(())
    }),
    ("a restart without its fact", Rule::Restart, |run| {
        find(run, |effect| matches!(effect, Effect::Spawn(ids) if ids[0].attempt == 2))?;
        remove(run, |effect| is_fact(effect, is_restart)).map(drop)
    }),
    ("a restart with another delay", Rule::Restart, |run| {
        alter(run, |effect| match effect {
            Effect::Record(Fact::Restarting { delay_micros, .. }) => {
                *delay_micros = *delay_micros * 2 + 1;
                true
            }
            _ => false,
        })
    }),
    ("a restart before the back-off is over", Rule::Restart, |run| {
        let (start, _) = find(run, |effect| is_fact(effect, is_restart))?;
        let fired = run.steps.iter().position(|step| matches!(step.event, Event::Timer(Timer::Backoff, 1)))?;
        let spawned = find(run, |effect| matches!(effect, Effect::Spawn(ids) if ids[0].attempt == 2))?.0;
        let at = run.steps[start].at;
        let waits = !run.scenario.job.policy.restart.backoff.is_zero();
        (waits && run.steps[spawned].at > at && fired == spawned).then(|| run.steps[spawned].at = at)
    }),
    ("a preparation that is missing", Rule::Restart, |run| {
        remove(run, |effect| matches!(effect, Effect::Prepare { .. })).map(drop)
    }),
    ("the end twice", Rule::Finish, |run| {
        let (step, place) = find(run, |effect| matches!(effect, Effect::Finish { .. }))?;
        let end = run.steps[step].effects[place].clone();
        run.steps[step].effects.push(end);
        Some(())
    }),
    ("the end while a rank is live", Rule::Finish, |run| {
        let (step, place) = find(run, |effect| matches!(effect, Effect::Finish { .. }))?;
        let end = run.steps[step].effects[place].clone();
        let (start, _) = find(run, |effect| matches!(effect, Effect::Spawn(_)))?;
        run.steps[start].effects.push(end);
        Some(())
    }),
    ("an end that never comes", Rule::Bounded, |run| {
        let (step, _) = find(run, |effect| matches!(effect, Effect::Finish { .. }))?;
        run.steps.truncate(step);
        Some(())
    }),
    ("an end after hours", Rule::Bounded, |run| {
        let (step, _) = find(run, |effect| matches!(effect, Effect::Finish { .. }))?;
        let stop = |effect: &Effect| is_fact(effect, |fact| matches!(fact, Fact::Stopping { .. }));
        let restart = |effect: &Effect| is_fact(effect, is_restart);
        let last =
            |wanted: &dyn Fn(&Effect) -> bool| run.steps.iter().rposition(|step| step.effects.iter().any(wanted));
        let stopped = last(&stop)?;
        let is_last = last(&restart).is_none_or(|restart| restart < stopped) && stopped < step;
        run.steps[step].at = Timestamp::from_micros(u64::MAX / 2);
        is_last.then_some(())
    }),
    ("SIGKILL before the grace is over", Rule::Kill, |run| {
        run.scenario.job.policy.stop.grace += Duration::from_secs(60);
        let grace = |step: &simulate::Step| matches!(step.event, Event::Timer(Timer::Grace, _));
        let kills = |effect: &Effect| matches!(effect, Effect::Stop { how: StopHow::Kill, .. });
        run.steps.iter().any(|step| grace(step) && step.effects.iter().any(kills)).then_some(())
    }),
];

#[test]
fn bad_timelines_are_noticed() {
    let good: Vec<Run> = (0..200).map(simulate::run).collect();
    for (what, rule, spoil) in SPOILS {
        let mut spoiled = 0;
        for run in &good {
            let mut run = run.clone();
            if spoil(&mut run).is_some() {
                spoiled += 1;
                assert!(breaks(&run, *rule), "{what}: {rule:?} does not notice it\n{run}\n{:?}", run.violations());
            }
        }
        assert!(spoiled >= 10, "{what}: tried in {spoiled} runs only");
    }
    let untested = [Rule::Truth]; // Broken by a driver that swaps the evidence.
    for rule in simulate::invariants::RULES.iter().filter(|rule| !untested.contains(rule)) {
        assert!(SPOILS.iter().any(|(_, other, _)| other == rule), "nothing breaks {rule:?}");
    }
}
