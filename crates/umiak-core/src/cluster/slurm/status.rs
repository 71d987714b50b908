//! What `squeue`, `scontrol` and `sacct` print about a job.
//!
//! A heterogeneous job has a report for each part. What can be read differs between versions: `squeue --json` of 22.05
//! ignores `--jobs` and prints the whole queue, with numbers where later versions have objects; `scontrol` prints no
//! JSON there; `sacct` needs a database that many sites do not have.

use serde_json::Value;

use super::super::look::{Look, Over};
use super::reasons::explain;

/// Arguments of `squeue` for [`text`]. The comment is last, as it may contain the separator.
pub const FORMAT: &str = "--format=%i|%T|%r|%N|%k";
/// Arguments of `sacct` for [`accounting`].
pub const FIELDS: &str = "--format=JobID,State,ExitCode,NodeList,Reason";

/// A part of a job, as Slurm says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The number of the job; of a heterogeneous one, that of its first part.
    pub id: String,
    /// In capitals, such as `RUNNING`.
    pub state: String,
    pub reason: String,
    /// A list of nodes in Slurm's form.
    pub nodes: String,
    /// Code and signal.
    pub exit: Option<(u32, u32)>,
    pub restarts: Option<u32>,
    /// The number of the user that cancelled it.
    pub cancelled_by: Option<String>,
    pub comment: String,
}

/// Reads `squeue --json`: the parts of all jobs in it.
pub fn json(text: &str) -> Option<Vec<Report>> {
    let value: Value = serde_json::from_str(text).ok()?;
    value.get("jobs")?.as_array()?.iter().map(of_json).collect()
}

fn of_json(job: &Value) -> Option<Report> {
    let word = |name: &str| job.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let state = match job.get("job_state")? {
        Value::Array(words) => state_of(&words.iter().filter_map(Value::as_str).collect::<Vec<_>>())?.to_owned(),
        state => state.as_str()?.to_owned(),
    };
    let het = job.get("het_job_id").and_then(number).filter(|id| *id > 0);
    Some(Report {
        id: het.or_else(|| number(job.get("job_id")?))?.to_string(),
        state,
        reason: word("state_reason"),
        nodes: word("nodes"),
        exit: job.get("exit_code").and_then(exit_of_json),
        restarts: job.get("restart_cnt").and_then(number).and_then(|count| u32::try_from(count).ok()),
        cancelled_by: None,
        comment: match job.get("comment") {
            Some(Value::Object(comments)) => comments.get("job").and_then(Value::as_str).unwrap_or_default().to_owned(),
            _ => word("comment"),
        },
    })
}

/// Flags that say more than the state that they follow. The first one of this list counts.
const FLAGS: &[&str] = &[
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "REQUEUE_FED",
    "REQUEUED",
    "RESV_DEL_HOLD",
    "CONFIGURING",
    "POWER_UP_NODE",
    "STOPPED",
    "COMPLETING",
    "STAGE_OUT",
    "REVOKED",
    "LAUNCH_FAILED",
    "RECONFIG_FAIL",
];

/// Newer versions print a state and its flags, such as `["CANCELLED", "COMPLETING"]`. Other flags than [`FLAGS`], also
/// those of later versions, leave the state as it is.
fn state_of<'a>(words: &[&'a str]) -> Option<&'a str> {
    let (state, flags) = words.split_first()?;
    Some(FLAGS.iter().find(|flag| flags.contains(flag)).unwrap_or(state))
}

/// A number, or an object with one.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.get("number")?.as_u64())
}

/// A status as `wait` returns it, or an object.
fn exit_of_json(value: &Value) -> Option<(u32, u32)> {
    if let Some(status) = value.as_u64() {
        return Some(((status >> 8 & 0xff) as u32, (status & 0x7f) as u32));
    }
    let code = value.get("return_code").and_then(number).unwrap_or(0);
    let signal = value.get("signal").and_then(|signal| number(signal.get("id").or_else(|| signal.get("signal_id"))?));
    Some((u32::try_from(code).ok()?, u32::try_from(signal.unwrap_or(0)).ok()?))
}

/// Reads lines of `squeue` in [`FORMAT`].
pub fn text(text: &str) -> Vec<Report> {
    let line = |line: &str| {
        let mut fields = line.splitn(5, '|').map(|field| if field == "(null)" { "" } else { field }.to_owned());
        let id = fields.next()?;
        let mut next = || fields.next();
        let (state, reason, nodes, comment) = (next()?, next()?, next()?, next()?);
        Some(Report { id: first_part(&id), state, reason, nodes, comment, ..Report::default() })
    };
    text.lines().filter_map(line).collect()
}

/// `7` of `7+1`.
fn first_part(id: &str) -> String {
    id.split('+').next().unwrap_or(id).to_owned()
}

/// Reads lines of `scontrol --oneliner show job`.
pub fn details(text: &str) -> Vec<Report> {
    let line = |line: &str| {
        // The name may contain blanks; nothing that follows it is written by the user but the comment, near the end.
        let start = line.find(" UserId=")?;
        let before = &line[..start];
        let field = |name: &str| line[start..].split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let id = before.split(' ').find_map(|word| word.strip_prefix("HetJobId="));
        let id = id.or_else(|| before.split(' ').find_map(|word| word.strip_prefix("JobId=")))?;
        let known = |name: &str| field(name).filter(|value| *value != "(null)").unwrap_or_default().to_owned();
        Some(Report {
            id: id.to_owned(),
            state: field("JobState")?.to_owned(),
            reason: known("Reason"),
            nodes: known("NodeList"),
            exit: field("ExitCode").and_then(exit),
            restarts: field("Restarts").and_then(|count| count.parse().ok()),
            ..Report::default()
        })
    };
    text.lines().filter_map(line).collect()
}

/// Reads lines of `sacct --parsable2 --noheader --allocations` with [`FIELDS`]. The states end with who cancelled it:
/// `CANCELLED by 1000`.
pub fn accounting(text: &str) -> Vec<Report> {
    let line = |line: &str| {
        let mut fields = line.splitn(5, '|');
        let id = first_part(fields.next()?);
        let state = fields.next()?;
        let (state, by) = state.split_once(" by ").map_or((state, None), |(state, by)| (state, Some(by.to_owned())));
        let code = fields.next().and_then(exit);
        let nodes = fields.next().unwrap_or_default().to_owned();
        let reason = fields.next().unwrap_or_default().to_owned();
        let state = state.trim_end_matches('+').to_owned();
        Some(Report { id, state, reason, nodes, exit: code, cancelled_by: by, ..Report::default() })
    };
    text.lines().filter_map(line).collect()
}

/// `code:signal`.
fn exit(text: &str) -> Option<(u32, u32)> {
    let (code, signal) = text.split_once(':')?;
    Some((code.parse().ok()?, signal.parse().ok()?))
}

/// What the reports about the parts of a job mean for the unit. The part that is worst decides.
pub fn look(reports: &[Report]) -> Look {
    let rank = |look: &Look| match look {
        Look::Hopeless { .. } => 0,
        Look::Pending { .. } => 1,
        Look::Over(over) if *over != Over::Done => 2,
        Look::Unknown { .. } => 3,
        Look::Running | Look::Suspended { .. } => 4,
        Look::Over(_) => 5,
    };
    let is_over = reports.iter().all(|report| matches!(look_at(report), Look::Over(_)));
    let looks = reports.iter().map(look_at);
    // While a part still runs, the end of another is not that of the unit.
    let looks = looks.filter(|look| is_over || !matches!(look, Look::Over(_)));
    looks.min_by_key(rank).unwrap_or(Look::Over(Over::Forgotten))
}

fn look_at(report: &Report) -> Look {
    let Report { state, reason, nodes, .. } = report;
    match state.as_str() {
        "PENDING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
            let wait = explain(reason);
            let reason = wait.words;
            if wait.is_hopeless { Look::Hopeless { reason } } else { Look::Pending { reason } }
        }
        "CONFIGURING" | "POWER_UP_NODE" => Look::Pending { reason: "its nodes are being started".to_owned() },
        "SUSPENDED" | "STOPPED" => Look::Suspended { reason: "it is suspended".to_owned() },
        "RUNNING" | "COMPLETING" | "STAGE_OUT" | "SIGNALING" | "RESIZING" | "UPDATE_DB" => Look::Running,
        "COMPLETED" => Look::Over(Over::Done),
        "CANCELLED" => Look::Over(Over::Cancelled { by: report.cancelled_by.clone() }),
        "PREEMPTED" => Look::Over(Over::Preempted { reason: "preempted by a job with a higher priority".to_owned() }),
        "TIMEOUT" => Look::Over(Over::TimeLimit { reason: "it reached its time limit".to_owned() }),
        "DEADLINE" => Look::Over(Over::TimeLimit { reason: "it reached its deadline".to_owned() }),
        "NODE_FAIL" => Look::Over(Over::NodeLost { node: nodes.clone() }),
        "FAILED" | "BOOT_FAIL" | "OUT_OF_MEMORY" | "REVOKED" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => {
            Look::Over(Over::Failed { reason: failed(report) })
        }
        "" => Look::Unknown { reason: "Slurm shows no state".to_owned() },
        other => Look::Unknown { reason: format!("Slurm shows an unknown state, {other}") },
    }
}

fn failed(report: &Report) -> String {
    let what = match report.state.as_str() {
        "BOOT_FAIL" => "a node did not boot",
        "OUT_OF_MEMORY" => "it needed more memory than it was given",
        "REVOKED" => "another cluster of the federation runs it",
        _ if report.reason == "JobLaunchFailure" && report.exit.is_none() => "it could not be started",
        _ => "its script failed",
    };
    match report.exit {
        // Slurm's own number for it.
        Some((_, 53)) => "its node cannot write into the directory of the run: use one that all nodes share, or \
                          `--slurm-connect`"
            .to_owned(),
        Some((_, signal)) if signal > 0 => format!("{what}: signal {signal} ({})", report.state),
        Some((code, _)) if code > 0 => format!("{what}: exit code {code} ({})", report.state),
        _ => format!("{what} ({})", report.state),
    }
}

/// The names of the nodes that are down, of lines `name|state` of `sinfo`.
pub fn down(text: &str) -> Vec<String> {
    let is_down = |state: &str| ["down", "fail", "unk", "power"].iter().any(|word| state.starts_with(word));
    let lines = text.lines().filter_map(|line| line.split_once('|'));
    let mut names: Vec<String> =
        lines.filter(|(_, state)| is_down(state) || state.ends_with('*')).map(|(name, _)| name.to_owned()).collect();
    names.dedup();
    names
}
