//! The job's state machine in thousands of simulated runs.
//!
//! `UMIAK_SCHEDULES` says how many (5000), `UMIAK_SEED` replays one with its timeline.

use std::io::Write as _;

use umiak_testkit::simulate;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not `{text}`")))
}

fn say(text: &str) {
    // Past the harness, which hides what a passing test prints.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[test]
fn schedules() {
    if let Some(seed) = number("UMIAK_SEED") {
        let run = simulate::run(seed);
        say(&run.to_string());
        return run.assert_valid();
    }
    let schedules = number("UMIAK_SCHEDULES").unwrap_or(5000);
    let summary = simulate::campaign(0..schedules);
    let met: Vec<String> = summary.met.iter().map(|(thing, count)| format!("  {count:>7} {thing}\n")).collect();
    say(&format!("{} runs, {} events\n{}", summary.runs, summary.steps, met.concat()));
    if let Some(seed) = summary.failing.first() {
        say(&format!(
            "{} of {schedules} seeds fail: {:?}\n",
            summary.failing.len(),
            &summary.failing[..summary.failing.len().min(20)]
        ));
        simulate::run(*seed).assert_valid();
    }
    let missing: Vec<_> = simulate::pairs().difference(&summary.taken).copied().collect();
    say(&format!("{missing:?}\n"));
}
