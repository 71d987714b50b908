//! What only `torchrun` has: a random id, its directory of logs, its report of a failure.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use umiak_core::diag::Diagnostic;
use umiak_core::facts::{Finding, Verdict};
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::model::{JobId, Request, TorchLogs};
use umiak_core::plan::torch_summary::{Failure, recorded, report};
use umiak_core::plan::{Log, Plan};
use umiak_sys::files;

use super::prepare::{Outline, log_dir_error};
use super::{Around, Taken};
use crate::clock::torch_stamp;
use crate::driver::Core;
use crate::front::preparing;
use crate::history::Home;
use crate::host::evidence::error_of;
use crate::screen::summary::ReplicaPlace;
use crate::secrets;

/// The variable that names the file for the error of a process, and of the launcher.
const OWN_ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// Gives the job its random id, as torchrun does: a UUID of version 4.
pub(super) fn complete(spec: &mut LaunchSpec) {
    if spec.request.torch.as_ref().is_some_and(|torch| torch.random_id) {
        let random = fastrand::u128(..) & !(0xf << 76) & !(3 << 62) | 4 << 76 | 2 << 62;
        let digits = format!("{random:032x}");
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        spec.request.job_id = JobId::new(parts.join("-")).expect("digits are a job id");
    }
}

/// Makes the directory of this job's logs: below `--log-dir`, in the recorded run, or in the scratch directory, which is
/// removed at the end.
pub(super) fn choose_logs(around: &Around<'_>, mut taken: Taken) -> Result<Taken, Diagnostic> {
    let Some(torch) = &around.spec.request.torch else { return Ok(taken) };
    let run = around.journal.as_ref().and_then(|journal| journal.as_ref().ok());
    let base = match &torch.logs {
        TorchLogs::Dir(dir) => std::path::absolute(dir).map_err(|error| log_dir_error(dir, &error))?,
        TorchLogs::InRun => run.map_or_else(|| taken.directory.clone(), |journal| journal.run.path().join("logs")),
        TorchLogs::Dropped => taken.directory.clone(),
    };
    preparing::at(&base);
    secrets::show(&base);
    files::make_directory(&base).map_err(|error| log_dir_error(&base, &error))?;
    taken.outline.log_dir = make_own(&base, &around.spec.request.job_id)?;
    Ok(taken)
}

/// The directory of logs in a plan that is only shown.
pub(super) fn suppose_logs(request: &Request, outline: &mut Outline) {
    let Some(torch) = &request.torch else { return };
    let base = match &torch.logs {
        TorchLogs::Dir(dir) => std::path::absolute(dir).unwrap_or_else(|_| dir.clone()),
        TorchLogs::InRun => {
            let home = Home::from_environment().map(|home| home.path().to_owned()).unwrap_or_default();
            home.join("runs/run-XXXXXX/logs")
        }
        TorchLogs::Dropped => std::env::temp_dir().join("umiak-XXXXXX"),
    };
    outline.log_dir = base.join(format!("{}_XXXXXXXX", request.job_id));
}

/// `none_x3k9a2bq`, as torchrun names it.
fn make_own(base: &Path, id: &JobId) -> Result<PathBuf, Diagnostic> {
    loop {
        let random: String = std::iter::repeat_with(fastrand::lowercase).take(8).collect();
        let dir = base.join(format!("{id}_{random}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(log_dir_error(&dir, &error)),
        }
    }
}

/// Makes the directory of one attempt of one rank anew, as torchrun does: a rank of the attempt before may have left
/// something there.
pub(super) fn make_attempt(log: &Log) -> std::io::Result<()> {
    let Some(dir) = log.path.parent() else { return Ok(()) };
    for path in [dir.parent(), Some(dir)].into_iter().flatten() {
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_dir()) {
            std::fs::remove_file(path)?;
        }
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => files::make_directory(dir),
    }
}

/// A path as the user would type it: relative to the current directory, if it is below it.
pub(super) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    match path.strip_prefix(&here) {
        Ok(below) if here.parent().is_some() => Path::new(".").join(below).display().to_string(),
        _ => path.display().to_string(),
    }
}

/// torchrun's report of a failed attempt, shown once it is known to be the last.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) text: String,
    /// The error file of the cause, and its exit code.
    error: Option<(PathBuf, i32)>,
}

impl Summary {
    /// If the launcher has an error file of its own, it gets a copy of the cause's.
    pub(super) fn copy_error(&self) {
        let own = std::env::var_os(OWN_ERROR_FILE).filter(|path| !path.is_empty());
        if let (Some((path, code)), Some(own)) = (&self.error, own) {
            copy_error(path, *code, Path::new(&own));
        }
    }
}

pub(super) fn summary(
    core: &Core<'_>,
    spec: &LaunchSpec,
    verdict: &Verdict,
    place: impl Fn(&Finding) -> ReplicaPlace,
) -> Summary {
    let plan = &core.job.plan;
    let found: Vec<(&Finding, ReplicaPlace)> = failed(verdict).map(|finding| (finding, place(finding))).collect();
    let failures: Vec<Failure<'_>> = found.iter().map(|(finding, place)| failure(plan, finding, place)).collect();
    let error = failures.first().and_then(|first| Some((first.error_file.as_ref()?.into(), first.code())));
    Summary { text: report(&spec.request.command.script.to_string_lossy(), &failures, &torch_stamp()), error }
}

/// The cause, and the ranks that failed by themselves.
fn failed(verdict: &Verdict) -> impl Iterator<Item = &Finding> {
    let by_itself = |finding: &&Finding| finding.timed_out.is_none() && !finding.stopped_while_ending;
    let (first, others) = verdict.causes.split_at(1.min(verdict.causes.len()));
    first.iter().chain(others.iter().chain(&verdict.victims).filter(by_itself))
}

fn failure<'a>(plan: &Plan, finding: &'a Finding, place: &'a ReplicaPlace) -> Failure<'a> {
    let rank = finding.subject.rank.map_or(0, |rank| rank.0);
    let member = plan.topology().members.get(rank as usize);
    let replica = finding.subject.rank.and_then(|rank| plan.replica(rank));
    let error_file = replica.map(|replica| plan.error_file(replica, finding.subject.attempt));
    let error_file = error_file.filter(|path| path.exists());
    let recorded = error_file.as_deref().and_then(error_of).and_then(|file| recorded(&file));
    let evidence = finding.evidence.as_ref();
    // The traceback is in the report above, and usually on the console.
    let headline = || evidence.and_then(|evidence| Some(evidence.headline.as_ref()?.text.clone()));
    let limit = || finding.timed_out.map(|_| "stopped by the launcher: it exceeded a time limit".to_owned());
    Failure {
        rank,
        local_rank: member.map_or(0, |member| member.local_rank),
        host: &place.host,
        pid: place.pid,
        exit: &finding.exit,
        error_file: error_file.map(|path| path.display().to_string()),
        error: recorded.or_else(headline).or_else(limit),
    }
}

/// Copies the error of a rank, with its exit code. A file that cannot be read or written is not worth another error.
fn copy_error(from: &Path, code: i32, to: &Path) {
    let Some(text) = error_of(from) else { return };
    let Ok(mut error) = serde_json::from_slice::<Value>(&text) else { return };
    if let Some(message) = error.get_mut("message").and_then(Value::as_object_mut)
        && code != 0
    {
        message.insert("errorCode".to_owned(), code.into());
    }
    let _ = std::fs::write(to, secrets::masked(&error.to_string()));
}
