//! Injected faults: real jobs in which one rank fails in a known way, and umiak must name that rank.
//!
//! | file | in one sentence |
//! |---|---|
//! | `kinds` | the table: one row for each kind of fault |
//! | `trial` | one repetition: starts the job, injects the fault, reads the verdict |
//! | `judge` | whether the verdict is right |
//! | `scripts/` | the training scripts; `fault.py` has what the culprit does |
//!
//! By default each quick kind is one test with one repetition. `UMIAK_FAULTS=all` runs every kind with all repetitions
//! and prints a table. Any other value selects the kinds whose names contain it: `torch/hang`, or `torch/hang:1` for one
//! repetition of each.

mod judge;
mod kinds;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use umiak_testkit::components::Component;
use umiak_testkit::suite::Suite;

use judge::Judgement;
use kinds::{KINDS, Kind};

pub(crate) fn register(suite: &mut Suite) {
    suite.test("faults::the_table_is_sound", &[], table_is_sound);
    match std::env::var("UMIAK_FAULTS") {
        Ok(selected) => {
            suite.test("faults::campaign", &[], move || campaign(&selected));
        }
        Err(_) => {
            for (number, kind) in KINDS.iter().enumerate().filter(|(_, kind)| kind.is_quick) {
                suite.test(&format!("faults::{}", kind.name()), &kind.needs(), move || try_once(kind, number));
            }
        }
    }
}

fn table_is_sound() {
    let names: BTreeSet<String> = KINDS.iter().map(Kind::name).collect();
    assert_eq!(names.len(), KINDS.len(), "two kinds have the same name");
    let several = KINDS.iter().filter(|kind| kind.nodes > 1).count();
    assert!(several * 3 >= KINDS.len(), "only {several} of {} kinds run on two nodes", KINDS.len());
    let quick = KINDS.iter().filter(|kind| kind.is_quick).count();
    assert_eq!(quick, 20, "kinds in the default run");
}

/// The number of the kind selects the culprit, so that the tests together cover all ranks.
fn try_once(kind: &Kind, number: usize) {
    let (judgement, story) = trial::run(kind, number);
    assert!(judgement == Judgement::Right, "{}: {judgement}\n{story}", kind.name());
}

/// The share of all repetitions that must be right, in percent.
const GOAL: usize = 98;

fn campaign(asked: &str) {
    let (selected, trials) = match asked.split_once(':') {
        Some((selected, trials)) => {
            (selected, Some(trials.parse::<usize>().expect("a number of repetitions after `:`")))
        }
        None => (asked, None),
    };
    let mut present: BTreeMap<Component, bool> = BTreeMap::new();
    let mut table = String::from("kind                                      right  named instead\n");
    let mut stories = String::new();
    let (mut right, mut all, mut misled) = (0, 0, 0);
    for (number, kind) in KINDS.iter().enumerate() {
        let name = kind.name();
        if selected != "all" && !name.contains(selected) {
            continue;
        }
        let mut is_missing =
            |component: &Component| !*present.entry(*component).or_insert_with(|| component.version().is_some());
        if let Some(missing) = kind.needs().into_iter().find(|component| is_missing(component)) {
            let _ = writeln!(table, "{name:<40}  skipped: {} is missing", missing.name());
            continue;
        }
        let started = Instant::now();
        let mut wrong = Vec::new();
        let repetitions = trials.unwrap_or_else(|| kind.repetitions());
        for repetition in 0..repetitions {
            let (judgement, story) = trial::run(kind, number + repetition);
            if judgement != Judgement::Right {
                misled += usize::from(matches!(judgement, Judgement::Misled { .. }));
                let _ = writeln!(stories, "=== {name}, repetition {repetition}: {judgement}\n{story}");
                wrong.push(judgement.to_string());
            }
        }
        let fine = repetitions - wrong.len();
        (right, all) = (right + fine, all + repetitions);
        let line = format!("{name:<40}  {fine:>2}/{repetitions:<2}  {}", wrong.join("; "));
        say(&format!("{line}  ({:.1} s each)\n", started.elapsed().as_secs_f64() / repetitions as f64));
        table += line.trim_end();
        table.push('\n');
    }
    say(&format!("\n{stories}\n{table}right: {right} of {all}, a victim as the only cause: {misled}\n"));
    assert!(all > 0, "no kind of fault matches {selected:?}");
    assert!(right * 100 >= all * GOAL, "{right} of {all} is less than {GOAL} %");
    assert!(misled == 0, "a victim was the only cause in {misled} of {all}");
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}
