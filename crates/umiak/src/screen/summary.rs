//! What remains in the scrollback when a job has failed: the ABORT line, then the cause as a person needs it.

use std::fmt::Write as _;
use std::time::Duration;

use umiak_core::facts::{Finding, Verdict};

use super::style::{Mark, Style, duration, ranges};

/// How many causes are told in full; the rest are named.
const IN_FULL: usize = 3;
/// Lines of a traceback, or last lines, for each cause.
const TRACEBACK: usize = 24;

/// What the summary needs to know of a rank besides the finding.
#[derive(Debug, Clone, Default)]
pub struct Place {
    pub host: String,
    pub pid: Option<u32>,
    /// `gpu 2`, empty on CPU.
    pub devices: String,
    /// As the user would type it.
    pub log: String,
}

/// The ranks that we stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Others {
    Nobody,
    /// All gone: which, by what, how soon.
    Gone {
        ranks: Vec<u32>,
        by: &'static str,
        after: Duration,
    },
    /// Asked to go, not all gone yet.
    Going {
        ranks: Vec<u32>,
        grace: Duration,
    },
}

/// The guide's line. `ranks` are the causes.
pub fn abort(world: u32, ranks: &[u32]) -> String {
    let list = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    format!(
        "ABORT!!! Out of all {world} trainers, the trainer process with rank=[{list}] was aborted. Please check its log."
    )
}

/// The explanation that follows the ABORT line.
pub fn failure(style: &Style, verdict: &Verdict, others: &Others, place: impl Fn(&Finding) -> Place) -> String {
    let mut text = String::new();
    for (position, finding) in verdict.causes.iter().take(IN_FULL).enumerate() {
        let first = position == 0 && verdict.causes.len() + verdict.victims.len() > 1;
        tell(&mut text, style, finding, &place(finding), first);
    }
    if verdict.causes.len() > IN_FULL {
        let rest: Vec<u32> = verdict.causes[IN_FULL..].iter().map(rank).collect();
        let _ = writeln!(text, "  and ranks {} likewise", ranges(&rest));
    }
    if let Some(victims) = victims(&verdict.victims) {
        let _ = writeln!(text, "  {}  {victims}", style.dim("followed     "));
    }
    match others {
        Others::Nobody => {}
        Others::Gone { ranks, by, after } => {
            let all = if ranks.len() == 1 { "gone" } else { "all gone" };
            let _ = writeln!(
                text,
                "  {}  {} {} ({by}, {all} within {})",
                style.dim("stopped by us"),
                noun(ranks.len()),
                ranges(ranks),
                duration(*after)
            );
        }
        Others::Going { ranks, grace } => {
            let _ = writeln!(
                text,
                "  {}  {} {} (SIGTERM, then SIGKILL after {})",
                style.dim("stopping     "),
                noun(ranks.len()),
                ranges(ranks),
                duration(*grace)
            );
        }
    }
    text
}

fn noun(count: usize) -> &'static str {
    if count == 1 { "rank" } else { "ranks" }
}

fn rank(finding: &Finding) -> u32 {
    finding.subject.rank.map_or(0, |rank| rank.0)
}

fn tell(text: &mut String, style: &Style, finding: &Finding, place: &Place, first: bool) {
    let mut where_it_ran = Vec::new();
    if !place.devices.is_empty() {
        where_it_ran.push(place.devices.clone());
    }
    if let Some(pid) = place.pid {
        where_it_ran.push(format!("pid {pid}"));
    }
    let details = if where_it_ran.is_empty() { String::new() } else { format!(" ({})", where_it_ran.join(", ")) };
    let head = format!(
        "{} rank {} on {}{details} {} after {}",
        style.mark(Mark::Failed),
        rank(finding),
        place.host,
        if finding.stopped_while_ending { "failed".to_owned() } else { finding.exit.describe() },
        duration(Duration::from_micros(finding.ran_micros)),
    );
    let first = if first { format!("{}the first cause", style.separator()) } else { String::new() };
    let _ = writeln!(text, "{}{first}", style.red(&head));
    let evidence = finding.evidence.as_ref();
    if let Some(line) = evidence.and_then(|evidence| evidence.headline.as_ref()) {
        let _ = writeln!(text, "  {}", style.bold(&line.text));
    }
    if let Some(place) = evidence.and_then(|evidence| evidence.place.as_ref()) {
        let _ = writeln!(text, "    {place}");
    }
    if let Some(signature) = evidence.and_then(|evidence| evidence.signature.as_ref()) {
        if let Some(hint) = &signature.hint {
            let _ = writeln!(text, "  {} {hint}  [{}]", style.yellow("hint:"), signature.code);
        } else {
            let _ = writeln!(text, "  {}  [{}]", signature.title, signature.code);
        }
    }
    let quoted =
        evidence.map(|evidence| if evidence.traceback.is_empty() { &evidence.last_lines } else { &evidence.traceback });
    let bar = if style.ascii { "|" } else { "│" };
    for line in quoted.into_iter().flatten().take(TRACEBACK) {
        let _ = writeln!(text, "  {} {line}", style.dim(bar));
    }
    let number =
        evidence.and_then(|evidence| evidence.headline.as_ref()).and_then(|line| line.number).map(|n| format!(":{n}"));
    let _ = writeln!(text, "  log {}{}", place.log, number.unwrap_or_default());
}

/// `ranks 0-1 exited with 1 (a peer closed the connection); rank 3 …`, grouped by what happened.
fn victims(victims: &[Finding]) -> Option<String> {
    let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
    for finding in victims {
        let why = finding.evidence.as_ref().and_then(|evidence| evidence.signature.as_ref());
        let what = match why {
            Some(signature) => format!("{} ({})", finding.exit.describe(), signature.title),
            None => finding.exit.describe(),
        };
        match groups.iter_mut().find(|(other, _)| *other == what) {
            Some((_, ranks)) => ranks.push(rank(finding)),
            None => groups.push((what, vec![rank(finding)])),
        }
    }
    let told = groups.into_iter().map(|(what, mut ranks)| {
        ranks.sort_unstable();
        format!("{} {} {what}", noun(ranks.len()), ranges(&ranks))
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use umiak_core::facts::{Evidence, Line, SignatureMatch, Subject, Weight};
    use umiak_core::model::{Exit, Rank};

    fn finding(rank: u32, exit: Exit, evidence: Evidence) -> Finding {
        Finding {
            subject: Subject { replica: format!("trainer-{rank}"), rank: Some(Rank(rank)), attempt: 0 },
            exit,
            ran_micros: 192_000_000,
            weight: Weight::Certain,
            stopped_while_ending: false,
            evidence: Some(evidence),
        }
    }

    #[test]
    fn the_guides_line_has_no_spaces_in_the_list() {
        assert_eq!(
            abort(8, &[2, 3]),
            "ABORT!!! Out of all 8 trainers, the trainer process with rank=[2,3] was aborted. Please check its log."
        );
    }

    #[test]
    fn a_failure_reads_from_cause_to_consequence() {
        let cause = finding(
            2,
            Exit::Code { code: 1 },
            Evidence {
                headline: Some(Line {
                    text: "torch.OutOfMemoryError: CUDA out of memory".into(),
                    number: Some(18_231),
                }),
                place: Some("train.py:88 in step  loss.backward()".into()),
                traceback: vec!["Traceback (most recent call last):".into(), "  …".into()],
                last_lines: vec![],
                signature: Some(SignatureMatch {
                    code: "U3102".into(),
                    title: "out of GPU memory".into(),
                    victim: false,
                    hint: Some("use a smaller batch".into()),
                }),
            },
        );
        let victim = |rank| {
            let signature = SignatureMatch {
                code: "U9001".into(),
                title: "a peer closed the connection".into(),
                victim: true,
                hint: None,
            };
            finding(rank, Exit::Code { code: 1 }, Evidence { signature: Some(signature), ..Evidence::default() })
        };
        let verdict = Verdict { causes: vec![cause], victims: vec![victim(1), victim(0)] };
        let others = Others::Gone { ranks: vec![3], by: "SIGTERM", after: Duration::from_millis(4) };
        let text = failure(&Style::default(), &verdict, &others, |_| Place {
            host: "node-a".into(),
            pid: Some(4121),
            devices: "gpu 2".into(),
            log: "./log/workerlog.2".into(),
        });
        insta::assert_snapshot!(text, @r"
        ✗ rank 2 on node-a (gpu 2, pid 4121) exited with 1 after 3m12s · the first cause
          torch.OutOfMemoryError: CUDA out of memory
            train.py:88 in step  loss.backward()
          hint: use a smaller batch  [U3102]
          │ Traceback (most recent call last):
          │   …
          log ./log/workerlog.2:18231
          followed       ranks 0-1 exited with 1 (a peer closed the connection)
          stopped by us  rank 3 (SIGTERM, gone within 4 ms)
        ");
    }
}
