//! Slurm: submits units, asks about them, and cancels them. What is submitted and what answers mean is in
//! [`umiak_core::cluster::slurm`].

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tracing::{debug, info};
use umiak_core::cluster::slurm::status::{self, Report};
use umiak_core::cluster::slurm::{Script, render};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::SLURM_VARIABLES;
use umiak_core::plan::Plan;

use super::command::{Answer, Client, NoAnswer};
use super::files::UNIT;
use super::scheduler::{Look, Over, Scheduler, UnitPlace};
use crate::host::inventory;

/// The script, in the directory of the unit.
const SCRIPT: &str = "script";
/// The number of the job, in the directory of the unit.
const JOB: &str = "job";
/// Variables that choose the cluster, which submissions inside an allocation keep.
const KEPT: &[&str] = &["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SBATCH_CLUSTERS"];
/// Defaults that users have in their profiles, and the options that replace them. A variable would replace an option in
/// the script.
const DEFAULTS: &[(&str, &str)] = &[
    ("SBATCH_ACCOUNT", "account"),
    ("SBATCH_PARTITION", "partition"),
    ("SBATCH_QOS", "qos"),
    ("SBATCH_RESERVATION", "reservation"),
    ("SBATCH_TIMELIMIT", "time"),
];

/// How long `sbatch` may take: a busy controller answers late, and `sbatch` itself tries again.
const SUBMISSION: Duration = Duration::from_secs(60);
/// How long a job is looked for that `sbatch` may have submitted, and the pauses between two looks.
const SEARCH: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);
/// What `sbatch` prints if the controller may have accepted the job all the same.
const UNCLEAR: &[&str] =
    &["timed out", "Zero Bytes", "send failure", "receive failure", "shutdown failure", "Unexpected message"];

/// What `scancel` prints if there is nothing to cancel any more.
const ENDED: &[&str] = &["Invalid job id", "already completing or completed"];

/// True once `squeue --json` has printed something else than the job that was asked for, or has not answered. It depends
/// on the version that is installed, and is the same for all units.
static IS_WITHOUT_JSON: AtomicBool = AtomicBool::new(false);

/// The Slurm cluster that its clients find.
#[derive(Debug)]
pub(crate) struct Slurm {
    /// Variables of the clients that differ from our own.
    variables: Vec<(&'static str, OsString)>,
    search: Duration,
}

/// What came of a submission.
#[derive(Debug, PartialEq, Eq)]
enum Submitted {
    /// The number of the job.
    Accepted(String),
    Refused(String),
    /// There may be a job.
    Unclear(String),
}

impl Submitted {
    fn of(answer: Result<Answer, NoAnswer>) -> Self {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.has_begun() => return Self::Unclear(error.to_string()),
            Err(error) => return Self::Refused(error.to_string()),
        };
        if !answer.is_success {
            let is_unclear = UNCLEAR.iter().any(|words| answer.error.contains(words));
            let error = if answer.error.is_empty() { "sbatch failed".to_owned() } else { answer.error };
            return if is_unclear { Self::Unclear(error) } else { Self::Refused(error) };
        }
        let job = answer.out.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number(number(job)) {
            Self::Accepted(job.to_owned())
        } else {
            Self::Unclear(format!("sbatch printed no job number: {}", answer.out.trim()))
        }
    }
}

impl Slurm {
    pub(crate) fn new() -> Self {
        Self { variables: Vec::new(), search: SEARCH }
    }

    fn client(&self, program: &str) -> Client {
        let names = std::env::vars_os().map(|(name, _)| name).filter(is_of_answers);
        let client = names.fold(Client::new(program), |client, name| client.unset(&name));
        self.variables.iter().fold(client, |client, (name, value)| client.set(name, value.clone()))
    }

    fn sbatch(&mut self, unit: &UnitPlace, script: &Script, plan: &Plan) -> Result<String, String> {
        let path = unit.directory.join(SCRIPT);
        let has_log = plan.cluster.slurm.connect.is_none();
        if has_log && path.to_string_lossy().contains('\\') {
            let message = "Slurm cannot write a log to a path with a backslash";
            return Err(format!("{message}: {}", path.display()));
        }
        std::fs::write(&path, &script.text)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        let mut client = self.client("sbatch").directory(plan.directory.clone());
        for name in foreign(std::env::vars_os().map(|(name, _)| name), plan) {
            client = client.unset(&name);
        }
        for (name, value) in &unit.variables {
            client = client.set(name, value.into());
        }
        let client = client.args(script.arguments.clone()).args([format!("--comment={}", comment(unit))]).args([path]);
        let job = match Submitted::of(client.limit(SUBMISSION).ask()) {
            Submitted::Accepted(job) => job,
            // There is no job, unless what it printed is not what had happened.
            Submitted::Refused(reason) => self.find(unit).ok().flatten().ok_or(reason)?,
            Submitted::Unclear(reason) => self.search(unit, reason)?,
        };
        // Without the file the job is found by its comment.
        if let Err(error) = std::fs::write(unit.directory.join(JOB), format!("{job}\n")) {
            debug!(%error, "the number of the job could not be written");
        }
        Ok(job)
    }

    /// Looks for the job of a submission that was cut short. If there is none, one that appears later finds no unit to
    /// run.
    fn search(&mut self, unit: &UnitPlace, reason: String) -> Result<String, String> {
        info!(reason, "the outcome of the submission is not known");
        let begun = Instant::now();
        while begun.elapsed() < self.search {
            if let Ok(Some(job)) = self.find(unit) {
                return Ok(job);
            }
            std::thread::sleep(PAUSE);
        }
        let _ = std::fs::remove_file(unit.directory.join(UNIT));
        if let Ok(Some(job)) = self.find(unit) {
            let _ = self.cancel(&job, true);
        }
        Err(reason)
    }

    /// Finds a unit that another supervisor has submitted. `None` if there is certainly none.
    pub(super) fn find(&mut self, unit: &UnitPlace) -> Result<Option<String>, String> {
        match std::fs::read_to_string(unit.directory.join(JOB)) {
            Ok(text) if !text.trim().is_empty() => return Ok(Some(text.trim().to_owned())),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("the number of the job cannot be read: {error}")),
        }
        let queue = self.client("squeue").args(["--noheader", "--me", "--states=all", status::FORMAT]).ask();
        match queue {
            Ok(answer) if answer.is_success => {
                let comment = comment(unit);
                Ok(status::text(&answer.out).into_iter().find(|job| job.comment == comment).map(|job| job.id))
            }
            other => Err(said(other)),
        }
    }

    /// The reports about a job. `Ok(None)`: Slurm does not know it.
    fn reports(&self, job: &str) -> Result<Option<Vec<Report>>, String> {
        if !IS_WITHOUT_JSON.load(Ordering::Relaxed)
            && let Some(reports) = self.json(job)
        {
            return Ok(Some(reports));
        }
        let id = number(job);
        let details = self.client("scontrol").args(cluster(job)).args(["--oneliner", "show", "job", id]).ask();
        let is_unknown = |answer: &Answer| answer.error.contains("Invalid job id");
        if let Ok(answer) = &details {
            let reports = status::details(&answer.out);
            if answer.is_success && !reports.is_empty() {
                return Ok(Some(reports));
            }
        }
        let jobs = format!("--jobs={id}");
        let queue = self.client("squeue").args(cluster(job));
        let queue = queue.args(["--noheader", "--states=all", status::FORMAT, &jobs]).ask();
        match &queue {
            Ok(answer) if answer.is_success => {
                let reports = status::text(&answer.out);
                return Ok((!reports.is_empty()).then_some(reports));
            }
            Ok(answer) if is_unknown(answer) => return Ok(None),
            _ if details.as_ref().is_ok_and(is_unknown) => return Ok(None),
            _ => {}
        }
        Err(said(queue))
    }

    /// By `squeue --json`, if the version has it, and only as long as it prints the job alone: 22.05 prints the whole queue.
    fn json(&self, job: &str) -> Option<Vec<Report>> {
        let jobs = format!("--jobs={}", number(job));
        let answer = self.client("squeue").args(cluster(job)).args(["--json", "--states=all", &jobs]).ask();
        let answer = answer.inspect_err(|_| IS_WITHOUT_JSON.store(true, Ordering::Relaxed)).ok()?;
        let reports = status::json(&answer.out);
        let is_without = match &reports {
            Some(reports) => reports.iter().any(|report| report.id != number(job)),
            None => answer.is_success || answer.error.contains("--json"),
        };
        IS_WITHOUT_JSON.fetch_or(is_without, Ordering::Relaxed);
        let own: Vec<Report> = reports?.into_iter().filter(|report| report.id == number(job)).collect();
        (!own.is_empty()).then_some(own)
    }

    /// The job in the accounting database, if there is one.
    fn accounted(&self, job: &str) -> Vec<Report> {
        let jobs = format!("--jobs={}", number(job));
        let client = self.client("sacct").args(cluster(job));
        let client = client.args(["--noheader", "--allocations", "--parsable2", status::FIELDS, &jobs]);
        client.ask().ok().filter(|answer| answer.is_success).map(|it| status::accounting(&it.out)).unwrap_or_default()
    }

    /// The nodes of a list that are down now, or else the list.
    fn lost(&self, job: &str, nodes: &str) -> String {
        let list = format!("--nodes={nodes}");
        let client = self.client("sinfo").args(cluster(job)).args(["--noheader", "--Node", "--format=%N|%T", &list]);
        let down = client.ask().map(|answer| status::down(&answer.out)).unwrap_or_default();
        if down.is_empty() { nodes.to_owned() } else { down.join(",") }
    }
}

impl Scheduler for Slurm {
    fn submit(&mut self, unit: &UnitPlace, plan: &Plan) -> Result<String, String> {
        let script = script(plan, &unit.directory);
        let script = script.map_err(|error| format!("the path of umiak is not known: {error}"))?;
        self.sbatch(unit, &script, plan)
    }

    fn name(&self, job: &str) -> Option<String> {
        Some(match job.split_once(';') {
            Some((number, cluster)) => format!("Slurm job {number} of cluster {cluster}"),
            None => format!("Slurm job {job}"),
        })
    }

    fn look(&mut self, job: &str) -> Look {
        let reports = match self.reports(job) {
            Ok(Some(reports)) => reports,
            Ok(None) => self.accounted(job),
            Err(reason) => return Look::Unknown { reason },
        };
        match status::look(&reports) {
            Look::Over(Over::NodeLost { node }) => Look::Over(Over::NodeLost { node: self.lost(job, &node) }),
            Look::Over(Over::Cancelled { by: None }) => {
                let by = self.accounted(job).into_iter().find_map(|report| report.cancelled_by);
                let by = by.map_or_else(|| "`scancel`".to_owned(), |user| format!("`scancel` of {user}"));
                Look::Over(Over::Cancelled { by: Some(by) })
            }
            look => look,
        }
    }

    /// Slurm sends SIGTERM, and SIGKILL after the `KillWait` of the site.
    fn cancel(&mut self, job: &str, kill: bool) -> Result<(), String> {
        let mut cancels = vec![vec![number(job)]];
        if kill {
            // The batch shell too, which plain signals leave out.
            cancels.insert(0, vec!["--signal=KILL", "--full", number(job)]);
        }
        let mut accepted = Ok(());
        for words in cancels {
            accepted = match self.client("scancel").args(cluster(job)).args(words).ask() {
                Ok(answer) if answer.is_success || ENDED.iter().any(|words| answer.error.contains(words)) => Ok(()),
                other => Err(said(other)),
            };
        }
        accepted
    }

    /// Slurm ends the job when its script has ended, which may take longer than a user wants to wait.
    fn is_awaited(&self) -> bool {
        false
    }
}

/// The script of a unit with this directory.
pub(in crate::engine) fn script(plan: &Plan, directory: &Path) -> std::io::Result<Script> {
    let options = &plan.cluster.slurm;
    let umiak = options.umiak.clone().map_or_else(std::env::current_exe, Ok)?;
    Ok(render(plan, options, &umiak, directory))
}

/// Fails if there are no clients of Slurm.
pub(super) fn check() -> Result<(), Diagnostic> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match ["sbatch", "squeue"].into_iter().find(|client| inventory::find_program(client, &path).is_none()) {
        None => Ok(()),
        Some(missing) => Err(Diagnostic::error(Code::E0208, format!("`{missing}` was not found"))
            .row("PATH", path.to_string_lossy())
            .hint("run umiak where Slurm's commands are; `umiak plan --engine slurm` works without them")),
    }
}

/// By which a job is found: names for readers, and a part of the digest of the unit's path, which may have any bytes.
fn comment(unit: &UnitPlace) -> String {
    let plain = |name: &OsStr| {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        name.to_string_lossy().replace(|letter| !is_plain(letter), "_")
    };
    let unit_name = plain(unit.directory.file_name().unwrap_or_default());
    // `RUN/units/UNIT`
    let run = plain(unit.directory.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default());
    let digest = Sha256::digest(unit.directory.as_os_str().as_bytes());
    let digest = digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    let digest = format!("{digest:016x}");
    debug!(unit = %unit.directory.display(), digest, "comment");
    format!("umiak:{run}/{unit_name}:{digest}")
}

/// `12` of `12;cluster`.
fn number(job: &str) -> &str {
    job.split(';').next().unwrap_or(job)
}

/// The option that names the cluster of a job, if it is not the usual one.
fn cluster(job: &str) -> Option<String> {
    job.split_once(';').map(|(_, cluster)| format!("--clusters={cluster}"))
}

/// True for a variable that filters or formats what clients print, or what they cancel.
fn is_of_answers(name: &OsString) -> bool {
    const FAMILIES: [&str; 5] = ["SQUEUE_", "SCANCEL_", "SACCT_", "SCONTROL_", "SINFO_"];
    const OTHERS: [&str; 3] = ["SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SLURM_DEBUG_FLAGS"];
    let name = name.to_string_lossy();
    FAMILIES.iter().any(|family| name.starts_with(family)) || OTHERS.contains(&&*name)
}

/// What a client said instead of an answer.
fn said(answer: Result<Answer, NoAnswer>) -> String {
    match answer {
        Ok(Answer { error, .. }) if !error.is_empty() => error,
        Ok(_) => "Slurm gave no answer".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// The variables of an enclosing allocation, and of options that the script sets.
fn foreign(names: impl Iterator<Item = OsString>, plan: &Plan) -> Vec<OsString> {
    let has_queue = plan.job.roles.iter().any(|role| role.work.queue.is_some());
    let native = &plan.cluster.slurm.native;
    let is_given = |option: &str| native.iter().any(|(name, _)| name == option) || option == "partition" && has_queue;
    let is_default = |name: &str| DEFAULTS.iter().any(|(variable, option)| *variable == name && !is_given(option));
    let is_foreign = |name: &OsString| {
        name.to_str().is_some_and(|name| {
            let is_theirs = SLURM_VARIABLES.iter().any(|beginning| name.starts_with(beginning));
            is_theirs && !KEPT.contains(&name) && !is_default(name)
        })
    };
    names.filter(is_foreign).collect()
}
