//! The summary of a failed job: the ABORT line, then the cause.

use std::fmt::Write as _;
use std::time::Duration;

use umiak_core::diagnose::kernel::size;
use umiak_core::facts::{Clue, Finding, Limit, Verdict};
use umiak_core::model::{Exit, replica_parts};

use super::doing::{doing, waits};
use super::style::{Mark, Style, duration, ranges};

/// Number of causes shown in full; the rest are only named.
const IN_FULL: usize = 3;
/// Number of lines of a traceback, or of last lines, per cause.
const TRACEBACK: usize = 24;

/// The flag that limits the wait for the servers of a launched job.
pub const SERVER_TIMEOUT: &str = "--server-timeout";

/// What the summary needs about a rank besides the finding.
#[derive(Debug, Clone, Default)]
pub struct ReplicaPlace {
    pub host: String,
    /// It is a node of a cluster, not this host.
    pub is_elsewhere: bool,
    pub pid: Option<u32>,
    /// `gpu 2`, empty on CPU.
    pub devices: String,
    /// The path as the user would type it.
    pub log: String,
    /// The name to show instead of the rank, with several roles.
    pub name: Option<String>,
    /// The name of the run, if it is recorded.
    pub run: Option<String>,
    /// The flag that limits the time until it listens, if it has one.
    pub start_limit: Option<&'static str>,
    /// The console has shown its output.
    pub is_shown: bool,
}

/// The ranks that umiak stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Others {
    Nobody,
    /// All have exited: which, by what signal, after what time.
    Gone {
        who: Crowd,
        by: &'static str,
        after: Duration,
    },
    /// Being stopped; not all have exited yet.
    Going {
        who: Crowd,
        grace: Duration,
    },
}

/// A set of ranks, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crowd {
    pub count: usize,
    /// `ranks 0-3`, `trainer 0-3, pserver-1`.
    pub names: String,
}

impl Crowd {
    pub fn ranks(ranks: &[u32]) -> Self {
        Self { count: ranks.len(), names: format!("{} {}", noun(ranks.len()), ranges(ranks)) }
    }

    /// By role and index, in the order of the roles.
    pub fn replicas<'a>(replicas: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let mut roles: Vec<(&str, Vec<u32>)> = Vec::new();
        for (role, index) in replicas {
            match roles.iter_mut().find(|(other, _)| *other == role) {
                Some((_, indices)) => indices.push(index),
                None => roles.push((role, vec![index])),
            }
        }
        let count = roles.iter().map(|(_, indices)| indices.len()).sum();
        let names: Vec<String> = roles
            .iter_mut()
            .map(|(role, indices)| {
                indices.sort_unstable();
                let list = ranges(indices);
                if indices.len() > 1 { format!("{role} {list}") } else { format!("{role}-{list}") }
            })
            .collect();
        Self { count, names: names.join(", ") }
    }
}

/// Paddle's ABORT line. `what` is the part, as `trainer`; `ranks` are the causes.
pub fn abort(what: &str, world: u32, ranks: &[u32]) -> String {
    let list = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    format!(
        "ABORT!!! Out of all {world} {what}s, the {what} process with rank=[{list}] was aborted. Please check its log."
    )
}

/// The explanation that follows the ABORT line.
pub fn failure(style: &Style, verdict: &Verdict, others: &Others, place: impl Fn(&Finding) -> ReplicaPlace) -> String {
    let mut text = String::new();
    let groups = alike(&verdict.causes);
    for (position, group) in groups.iter().take(IN_FULL).enumerate() {
        let first = position == 0 && groups.len() + verdict.victims.len() > 1;
        tell(&mut text, style, group, &place, Told::All { first });
    }
    if groups.len() > IN_FULL {
        let rest = groups[IN_FULL..].iter().flatten().copied();
        let _ = writeln!(text, "  and {} likewise", crowd(rest, &place).names);
    }
    let (mut hung, lost): (Vec<&Finding>, Vec<&Finding>) =
        verdict.victims.iter().partition(|victim| victim.timed_out == Some(Limit::Hang));
    // Those without a clue: none of them is the odd one.
    hung.extend(verdict.causes.iter().filter(|cause| cause.timed_out == Some(Limit::Hang) && cause.clue.is_none()));
    for (at, group) in waiting(&hung) {
        let _ = writeln!(text, "  {}  {} {at}", style.dim("waited       "), crowd(group, &place).names);
    }
    if let Some(victims) = victims(&lost, &place) {
        let _ = writeln!(text, "  {}  {victims}", style.dim("followed     "));
    }
    match others {
        Others::Nobody => {}
        Others::Gone { who, by, after } => {
            let all = if who.count == 1 { "gone" } else { "all gone" };
            let (head, after) = (style.dim("stopped by us"), duration(*after));
            let _ = writeln!(text, "  {head}  {} ({by}, {all} within {after})", who.names);
        }
        Others::Going { who, grace } => {
            let (head, grace) = (style.dim("stopping     "), duration(*grace));
            let _ = writeln!(text, "  {head}  {} (SIGTERM, then SIGKILL after {grace})", who.names);
        }
    }
    text
}

/// Only the causes: which ranks failed, how, and the errors.
pub fn cause(style: &Style, verdict: &Verdict, place: impl Fn(&Finding) -> ReplicaPlace) -> String {
    let mut text = String::new();
    for group in alike(&verdict.causes).iter().take(IN_FULL) {
        tell(&mut text, style, group, &place, Told::Error);
    }
    text
}

/// Groups findings with the same end and the same evidence: ranks that run the same program often fail alike.
fn alike(causes: &[Finding]) -> Vec<Vec<&Finding>> {
    let mut groups: Vec<(String, Vec<&Finding>)> = Vec::new();
    for finding in causes {
        let key = words_of(finding);
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, findings)) => findings.push(finding),
            None => groups.push((key, vec![finding])),
        }
    }
    groups.into_iter().map(|(_, findings)| findings).collect()
}

/// The end and the evidence as text, without memory addresses, which differ between processes.
fn words_of(finding: &Finding) -> String {
    let evidence = finding.evidence.clone().unwrap_or_default();
    let headline = evidence.headline.map(|line| line.text);
    let quoted = if evidence.traceback.is_empty() { evidence.last_lines } else { evidence.traceback };
    let code = evidence.signature.map(|signature| signature.code);
    let end = (&finding.exit, finding.timed_out, finding.stopped_while_ending, &finding.clue);
    let words =
        format!("{end:?} {headline:?} {code:?} {:?} {:?}\n{}", evidence.place, evidence.kernel, quoted.join("\n"));
    let mut parts = words.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "0x" + part.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()))
}

/// How much of a cause is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// With its traceback and its log; `first` of several.
    All {
        first: bool,
    },
    Error,
}

fn noun(count: usize) -> &'static str {
    if count == 1 { "rank" } else { "ranks" }
}

fn rank(finding: &Finding) -> u32 {
    finding.subject.rank.map_or(0, |rank| rank.0)
}

/// Shows the first finding of a group, for all of them.
fn tell(
    text: &mut String,
    style: &Style,
    group: &[&Finding],
    place_of: &impl Fn(&Finding) -> ReplicaPlace,
    told: Told,
) {
    let Some(finding) = group.first() else { return };
    let place = &place_of(finding);
    let mut where_it_ran = Vec::new();
    if !place.devices.is_empty() && group.len() == 1 {
        where_it_ran.push(place.devices.clone());
    }
    if let Some(pid) = place.pid.filter(|_| group.len() == 1) {
        where_it_ran.push(format!("pid {pid}"));
    }
    let details = if where_it_ran.is_empty() { String::new() } else { format!(" ({})", where_it_ran.join(", ")) };
    let ran = duration(Duration::from_micros(finding.ran_micros));
    let how = match &finding.exit {
        _ if finding.clue.is_some() => finding.clue.as_ref().map(Clue::describe).unwrap_or_default(),
        _ if finding.stopped_while_ending => format!("failed after {ran}"),
        exit @ (Exit::Spawn(_) | Exit::Unmet { .. } | Exit::NoRoom { .. }) => exit.describe(),
        _ if finding.timed_out == Some(Limit::Hang) => format!("was stopped: the job made no progress, after {ran}"),
        _ if finding.timed_out == Some(Limit::Run) => {
            format!("was stopped: it ran longer than its `timeout`, for {ran}")
        }
        _ if finding.timed_out == Some(Limit::Start) => {
            let limit = place.start_limit.unwrap_or("start_timeout");
            format!("was stopped: it did not listen on its ports within its `{limit}`, after {ran}")
        }
        exit => format!("{} after {ran}", described(exit, group.len())),
    };
    let how = match how.strip_prefix("was ").filter(|_| group.len() > 1) {
        Some(rest) => format!("were {rest}"),
        None => how,
    };
    let who = match &place.name {
        _ if group.len() > 1 => several(group, place_of),
        Some(name) if place.is_elsewhere => format!("{name} on {}", place.host),
        Some(name) => name.clone(),
        None => format!("rank {} on {}", rank(finding), place.host),
    };
    let head = format!("{} {who}{details} {how}", style.mark(Mark::Failed));
    // The end of a lost replica says nothing about causes.
    let is_first = told == Told::All { first: true } && finding.exit != Exit::Lost;
    let which = if finding.clue.is_some() { "probable cause" } else { "the first cause" };
    let first = if is_first { format!("{}{which}", style.separator()) } else { String::new() };
    let _ = writeln!(text, "{}{first}", style.red(&head));
    let evidence = finding.evidence.as_ref();
    if let Some(classed) = &finding.classed {
        let _ = writeln!(text, "  {}", classed.describe());
    }
    if let Some(snapshot) = finding.snapshot.as_ref().filter(|_| finding.clue.is_some()) {
        let _ = writeln!(text, "  {}", style.bold(&doing(snapshot)));
    }
    for fact in evidence.into_iter().flat_map(|evidence| &evidence.kernel) {
        let _ = writeln!(text, "  {}", style.bold(&fact.describe()));
    }
    if let Some(line) = evidence.and_then(|evidence| evidence.headline.as_ref()) {
        let _ = writeln!(text, "  {}", style.bold(&line.text));
    }
    if let Some(place) = evidence.and_then(|evidence| evidence.place.as_ref()) {
        let _ = writeln!(text, "    {place}");
    }
    if told == Told::Error {
        return;
    }
    if let Some(signature) = evidence.and_then(|evidence| evidence.signature.as_ref()) {
        if let Some(hint) = &signature.hint {
            let _ = writeln!(text, "  {} {hint}  [{}]", style.yellow("hint:"), signature.code);
        } else {
            let _ = writeln!(text, "  {}  [{}]", signature.title, signature.code);
        }
    }
    if let Some(hint) = spawn_hint(&finding.exit) {
        let _ = writeln!(text, "  {} {hint}", style.yellow("hint:"));
    }
    let quoted =
        evidence.map(|evidence| if evidence.traceback.is_empty() { &evidence.last_lines } else { &evidence.traceback });
    let bar = if style.ascii { "|" } else { "│" };
    let number = evidence.and_then(|evidence| evidence.headline.as_ref()).and_then(|line| line.number);
    // The console already has the output of a shown rank. Torch's error file is not in a log.
    let shown = group.iter().find(|finding| place_of(finding).is_shown).filter(|_| number.is_some());
    match (shown, evidence.is_some_and(|evidence| !evidence.traceback.is_empty())) {
        (Some(shown), true) => {
            let whose = crowd([*shown], place_of).names;
            let is_line = evidence.is_some_and(|evidence| evidence.traceback.len() == 1);
            let what = if is_line { "error" } else { "traceback" };
            let _ = writeln!(text, "  {}", style.dim(&format!("the {what} is above, in the output of {whose}")));
        }
        (Some(_), false) => {}
        (None, _) => {
            for line in quoted.into_iter().flatten().take(TRACEBACK) {
                let _ = writeln!(text, "  {} {line}", style.dim(bar));
            }
        }
    }
    let number = number.map(|number| format!(":{number}"));
    if let Some(usage) = finding.usage.as_ref().filter(|_| group.len() == 1) {
        let cpu = duration(Duration::from_micros(usage.user_micros + usage.system_micros));
        let _ = writeln!(text, "  used {cpu} CPU, {} peak", size(usage.max_rss_kib));
    }
    let more = place.run.as_ref().map(|run| format!("{}umiak explain {run}", style.separator()));
    // The journal does not have the logs of other nodes.
    if !place.log.is_empty() {
        let _ = writeln!(text, "  log {}{}{}", place.log, number.unwrap_or_default(), more.unwrap_or_default());
    }
}

/// `was lost`, or `were lost` for several.
fn described(exit: &Exit, count: usize) -> String {
    let words = exit.describe();
    match words.strip_prefix("was ").filter(|_| count > 1) {
        Some(rest) => format!("were {}", rest.replacen(" with its node", " with their node", 1)),
        None => words,
    }
}

/// `ranks 0-3 on gpu-a`, `trainer 0-3`.
fn several(group: &[&Finding], place_of: &impl Fn(&Finding) -> ReplicaPlace) -> String {
    let names = crowd(group.iter().copied(), place_of).names;
    let places: Vec<ReplicaPlace> = group.iter().map(|finding| place_of(finding)).collect();
    if places[0].name.is_some() {
        return names;
    }
    let mut hosts: Vec<&str> = places.iter().map(|place| place.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    match hosts[..] {
        [_, _, _, _, ..] => format!("{names} on {} nodes", hosts.len()),
        _ => format!("{names} on {}", hosts.join(", ")),
    }
}

/// A hint for a start that the kernel refused.
fn spawn_hint(exit: &Exit) -> Option<&'static str> {
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    const ENOEXEC: i32 = 8;
    const E2BIG: i32 = 7;
    let Exit::Spawn(error) = exit else { return None };
    match error.errno {
        ENOEXEC => Some("this machine cannot execute it: a script needs a first line like `#!/usr/bin/env python3`"),
        EAGAIN => Some("the process limit is reached: check `ulimit -u` and the pids cgroup"),
        ENOMEM => Some("there is not enough memory to start another process"),
        E2BIG => Some("environment and arguments are too large: check `getconf ARG_MAX` and `PADDLE_ENV_LIMIT_LEN`"),
        _ => None,
    }
}

/// The ranks of a job that hung, by the place where they waited.
fn waiting<'a>(hung: &[&'a Finding]) -> Vec<(String, Vec<&'a Finding>)> {
    let mut groups: Vec<(String, Vec<&Finding>)> = Vec::new();
    for finding in hung {
        let Some(snapshot) = &finding.snapshot else { continue };
        let at = match snapshot.place() {
            Some(place) => format!("at {}", place.describe()),
            None => format!("without a known stack: {}", waits(snapshot)),
        };
        match groups.iter_mut().find(|(other, _)| *other == at) {
            Some((_, findings)) => findings.push(finding),
            None => groups.push((at, vec![finding])),
        }
    }
    groups
}

/// `ranks 0-1 exited with 1 (a peer closed the connection); rank 3 …`, grouped by exit.
fn victims(victims: &[&Finding], place: &impl Fn(&Finding) -> ReplicaPlace) -> Option<String> {
    let mut groups: Vec<(String, Vec<&Finding>)> = Vec::new();
    for finding in victims {
        let why = finding.evidence.as_ref().and_then(|evidence| evidence.signature.as_ref());
        let why = why.map(|signature| format!(" ({})", signature.title)).unwrap_or_default();
        let is_same = |other: &Finding| other.exit.describe() == finding.exit.describe();
        match groups.iter_mut().find(|(other, findings)| *other == why && is_same(findings[0])) {
            Some((_, findings)) => findings.push(finding),
            None => groups.push((why, vec![finding])),
        }
    }
    let told = groups.into_iter().map(|(why, findings)| {
        let how = described(&findings[0].exit, findings.len());
        format!("{} {how}{why}", crowd(findings, place).names)
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

/// By name if they have names, else by rank.
fn crowd<'a>(findings: impl IntoIterator<Item = &'a Finding>, place: &impl Fn(&Finding) -> ReplicaPlace) -> Crowd {
    let findings: Vec<&Finding> = findings.into_iter().collect();
    if findings.first().is_some_and(|finding| place(finding).name.is_some()) {
        let parts = findings.iter().map(|finding| replica_parts(&finding.subject.replica));
        return Crowd::replicas(parts);
    }
    let mut ranks: Vec<u32> = findings.into_iter().map(rank).collect();
    ranks.sort_unstable();
    Crowd::ranks(&ranks)
}

/// Why an attempt failed, for a replica that is restarted.
pub fn attempt_failed(style: &Style, finding: &Finding, place: &ReplicaPlace) -> String {
    let mut text = String::new();
    tell(&mut text, style, &[finding], &|_: &Finding| place.clone(), Told::All { first: false });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use umiak_core::facts::{Evidence, KernelFact, Line, OomScope, SignatureMatch, Subject, Usage, Weight};
    use umiak_core::model::Rank;

    fn finding(rank: u32, exit: Exit, evidence: Evidence) -> Finding {
        Finding {
            subject: Subject { replica: format!("trainer-{rank}"), rank: Some(Rank(rank)), attempt: 1 },
            exit,
            classed: None,
            ran_micros: 192_000_000,
            weight: Weight::Certain,
            timed_out: None,
            stopped_while_ending: false,
            clue: None,
            snapshot: None,
            evidence: Some(evidence),
            usage: None,
        }
    }

    #[test]
    fn what_the_kernel_says_comes_first() {
        let fact = KernelFact::OomKilled {
            scope: OomScope::Cgroup,
            named: true,
            resident_kib: Some(2_000_000),
            limit_kib: Some(2 << 20),
            cgroup: None,
        };
        let exit = Exit::Signal { signal: 9, core_dumped: false };
        let mut cause = finding(
            0,
            exit,
            Evidence { kernel: vec![fact], last_lines: vec!["epoch 1".into()], ..Evidence::default() },
        );
        cause.usage = Some(Usage { user_micros: 12_000_000, system_micros: 300_000, max_rss_kib: 2_000_000 });
        let verdict = Verdict { causes: vec![cause], victims: vec![] };
        let place = ReplicaPlace { host: "node-a".into(), log: "./log/workerlog.0".into(), ..ReplicaPlace::default() };
        let text = failure(&Style::default(), &verdict, &Others::Nobody, |_| place.clone());
        insta::assert_snapshot!(text, @r"
        ✗ rank 0 on node-a was killed by SIGKILL (killed) after 3m12s
          the OOM killer killed it (it used 1.9 GiB; its cgroup limit is 2.0 GiB)
          │ epoch 1
          used 12 s CPU, 1.9 GiB peak
          log ./log/workerlog.0
        ");
    }

    fn failed(rank: u32, address: &str) -> Finding {
        let evidence = Evidence {
            headline: Some(Line { text: "ValueError: bad batch".into(), number: Some(7) }),
            place: Some("train.py:3 in step  raise ValueError".into()),
            traceback: vec!["Traceback (most recent call last):".into(), format!("  <Batch at {address}>")],
            ..Evidence::default()
        };
        finding(rank, Exit::Code { code: 1 }, evidence)
    }

    fn told(causes: Vec<Finding>, shown: Option<u32>) -> String {
        let verdict = Verdict { causes, victims: vec![] };
        failure(&Style::default(), &verdict, &Others::Nobody, |finding| ReplicaPlace {
            host: "node-a".into(),
            pid: Some(4000 + rank(finding)),
            log: format!("./log/workerlog.{}", rank(finding)),
            is_shown: Some(rank(finding)) == shown,
            ..ReplicaPlace::default()
        })
    }

    #[test]
    fn tracebacks_that_are_alike_are_told_once() {
        insta::assert_snapshot!(told(vec![failed(1, "0x7f01"), failed(0, "0x7fa2"), failed(3, "0x7f01")], None), @r"
        ✗ ranks 0-1, 3 on node-a exited with 1 after 3m12s
          ValueError: bad batch
            train.py:3 in step  raise ValueError
          │ Traceback (most recent call last):
          │   <Batch at 0x7f01>
          log ./log/workerlog.1:7
        ");
        let mut other = failed(2, "0x7f01");
        other.exit = Exit::Code { code: 2 };
        assert_eq!(told(vec![failed(0, "0x1"), other], None).matches("Traceback").count(), 2);
    }

    #[test]
    fn what_the_console_has_shown_is_not_told_again() {
        insta::assert_snapshot!(told(vec![failed(1, "0x1"), failed(0, "0x2")], Some(0)), @r"
        ✗ ranks 0-1 on node-a exited with 1 after 3m12s
          ValueError: bad batch
            train.py:3 in step  raise ValueError
          the traceback is above, in the output of rank 0
          log ./log/workerlog.1:7
        ");
        let mut line = failed(0, "0x1");
        line.evidence.as_mut().unwrap().traceback = vec!["ValueError: bad batch".into()];
        assert!(told(vec![line], Some(0)).contains("  the error is above, in the output of rank 0\n"));
        let mut from_file = failed(0, "0x1");
        from_file.evidence.as_mut().unwrap().headline.as_mut().unwrap().number = None;
        assert!(told(vec![from_file], Some(0)).contains("Traceback"), "torch's error file is in no log");
    }

    #[test]
    fn several_were_lost() {
        let lost = |rank| finding(rank, Exit::Lost, Evidence::default());
        assert!(told(vec![lost(0), lost(1)], None).starts_with("✗ ranks 0-1 on node-a were lost after 3m12s\n"));
        assert!(told(vec![lost(0)], None).starts_with("✗ rank 0 on node-a (pid 4000) was lost after 3m12s\n"));
        let verdict = Verdict { causes: vec![failed(2, "0x1")], victims: vec![lost(0), lost(1)] };
        let text = failure(&Style::default(), &verdict, &Others::Nobody, |_| ReplicaPlace::default());
        assert!(text.contains("ranks 0-1 were lost"), "{text}");
    }

    #[test]
    fn the_guides_line_has_no_spaces_in_the_list() {
        assert_eq!(
            abort("trainer", 8, &[2, 3]),
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
                stderr: false,
                signature: Some(SignatureMatch {
                    code: "U3102".into(),
                    title: "out of GPU memory".into(),
                    victim: false,
                    hint: Some("use a smaller batch".into()),
                }),
                kernel: vec![],
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
        let others = Others::Gone { who: Crowd::ranks(&[3]), by: "SIGTERM", after: Duration::from_millis(4) };
        let text = failure(&Style::default(), &verdict, &others, |_| ReplicaPlace {
            host: "node-a".into(),
            pid: Some(4121),
            devices: "gpu 2".into(),
            log: "./log/workerlog.2".into(),
            ..ReplicaPlace::default()
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
