//! Makes a run directory from a document. Finds all errors that can be found before anything is started.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::document::Document;
use umiak_core::formats::pai;
use umiak_core::mask::{Known, MASK};
use umiak_core::model::{ClusterOptions, EngineChoice, EngineKind, Job, Role, Workload};
use umiak_core::plan::document::{Chosen, SUBMISSION_VERSION as VERSION, Submission};
use umiak_core::plan::{self, MAX_VARIABLE, PipelinePlan, Plan, Wishes};

use super::mounts::check_mounts;
use crate::engine::{self, Capabilities, cluster};
use crate::front::preparing;
use crate::history::{Home, RunDir, replace};
use crate::host::inventory;

/// A document with the directory and the environment of this process, and the paths of its programs.
pub(crate) fn submission(
    document: &Document,
    file: &Path,
    params: &[(String, String)],
    engine: &EngineChoice,
) -> Result<Submission, Diagnostic> {
    let directory = directory()?;
    let (work, known) = (document.work.clone(), document.secrets.clone());
    let environment = inventory::environment();
    check_mounts(&work, engine.kind, &directory)?;
    check_clusters(&work, engine.kind, &engine.cluster)?;
    let programs = match &work {
        Workload::Job(job) => programs(job, engine.kind.capabilities(), &directory, &environment)?,
        Workload::Pipeline(_) => Vec::new(),
    };
    let (engine, wishes, cluster) = (engine.kind.word().to_owned(), Wishes::default(), engine.cluster.clone());
    let params = params.to_vec();
    let document = directory.join(file);
    Ok(Submission {
        v: VERSION,
        work,
        params,
        chosen: Chosen::default(),
        repeats: None,
        engine,
        wishes,
        cluster,
        known,
        directory,
        document,
        environment,
        programs,
    })
}

/// Fails if the programs of a scheduler are missing that a run needs, and a plan does not.
pub(crate) fn check_programs(submission: &Submission) -> Result<(), Diagnostic> {
    let used = submission.work.engines(engine::kind(&submission.engine)?);
    used.into_iter().try_for_each(cluster::check_programs)
}

fn check_clusters(work: &Workload, usual: EngineKind, options: &ClusterOptions) -> Result<(), Diagnostic> {
    match work {
        Workload::Job(job) => cluster::check(usual, job, options),
        Workload::Pipeline(pipeline) => pipeline.iter_steps().try_for_each(|step| match &step.engine {
            Some(own) => cluster::check(own.kind, &step.job, &own.cluster),
            None => cluster::check(usual, &step.job, options),
        }),
    }
}

/// The directory where a document is submitted.
pub(crate) fn directory() -> Result<PathBuf, Diagnostic> {
    std::env::current_dir().map_err(|error| {
        Diagnostic::error(Code::J0029, "the current directory does not exist")
            .row("reason", error.to_string())
            .hint("change to another directory: replicas start in it")
    })
}

/// Makes the run's directory, with everything that a supervisor needs, and the document without its secrets.
pub(crate) fn record(submission: &Submission, document: &str, home: &Home) -> Result<RunDir, Diagnostic> {
    preparing::at(home.path());
    let run = RunDir::create(home).map_err(|error| error.diagnostic())?;
    preparing::made(run.path());
    let written = replace(&run.document(), document.as_bytes()).and_then(|()| write(submission, &run));
    written.map_err(|error| {
        // An incomplete run is removed.
        let _ = std::fs::remove_dir_all(run.path());
        Diagnostic::error(Code::J0001, format!("`{}` cannot be written", run.path().display()))
            .row("reason", error.to_string())
            .hint("free space there, or set `UMIAK_HOME` to another directory")
    })?;
    Ok(run)
}

pub(crate) fn write(submission: &Submission, run: &RunDir) -> std::io::Result<()> {
    replace(&run.secrets(), &serde_json::to_vec(submission)?)
}

/// The submission of a run that has not ended. `None` if it has ended, or was not started from a document.
pub(crate) fn read(run: &RunDir) -> Result<Option<Submission>, Diagnostic> {
    read_versioned(run, &run.secrets(), VERSION)
}

/// The submission of a run that has ended. Its secrets are not kept: they come from the environment of this process.
pub(crate) fn again(run: &RunDir) -> Result<Option<Submission>, Diagnostic> {
    let Some(plan) = read_versioned::<Plan>(run, &run.plan(), plan::VERSION)? else { return Ok(None) };
    let Plan { mut job, params, engine, wishes, cluster, directory, document, commands, whole, .. } = plan;
    let Some(document) = document else { return Ok(None) };
    let environment = inventory::environment();
    let known = if whole { Known::default() } else { unmask(&mut job, &environment)? };
    let programs = commands.into_iter().map(|command| command.program).collect();
    let work = Workload::Job(Box::new(job));
    Ok(Some(Submission {
        v: VERSION,
        work,
        params,
        chosen: Chosen::default(),
        repeats: None,
        engine,
        wishes,
        cluster,
        known,
        directory,
        document,
        environment,
        programs,
    }))
}

/// How the document of a run was given.
pub(crate) struct Recorded<'a> {
    pub(crate) file: &'a Path,
    pub(crate) params: &'a [(String, String)],
    pub(crate) chosen: &'a Chosen,
    /// Where it was submitted.
    pub(crate) directory: &'a Path,
}

/// The submission of a pipeline whose run has ended, and the text of its document, for a new run. `None` if it was not a
/// pipeline. `parse` reads the document: with other parameters, or if secrets are missing in the plan.
pub(crate) fn pipeline_again(
    run: &RunDir,
    given: &[(String, String)],
    parse: impl FnOnce(&Recorded<'_>) -> Result<Document, Diagnostic>,
) -> Result<Option<(Submission, String)>, Diagnostic> {
    #[derive(Deserialize)]
    struct Kind {
        pipeline: Option<IgnoredAny>,
    }
    match read_versioned::<Kind>(run, &run.plan(), plan::VERSION)? {
        Some(Kind { pipeline: Some(_) }) => {}
        _ => return Ok(None),
    }
    let Some(plan) = read_versioned::<PipelinePlan>(run, &run.plan(), plan::VERSION)? else { return Ok(None) };
    let PipelinePlan { params, chosen, engine, cluster, directory, document, wishes, pipeline, whole, .. } = plan;
    let params = with_params(params, given)?;
    let bytes = umiak_sys::regular::read(&run.document()).map_err(|error| {
        Diagnostic::error(Code::J0027, "the document of the run cannot be read").row("reason", error.to_string())
    })?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (work, known) = if whole && given.is_empty() {
        (Workload::Pipeline(Box::new(pipeline)), Known::default())
    } else {
        let recorded = Recorded { file: &document, params: &params, chosen: &chosen, directory: &directory };
        let Document { mut work, secrets, .. } = parse(&recorded)?;
        // The recorded document is masked; what is given may replace all of that.
        if serde_json::to_string(&work).is_ok_and(|text| text.contains(MASK)) {
            let error = "the secrets of an ended run are not kept and must be given again";
            return Err(Diagnostic::error(Code::J0025, error)
                .hint("give those that are parameters with `-p NAME=VALUE`, or run the document again"));
        }
        let (name, labels) = work.head();
        (*name, *labels) = (pipeline.name, pipeline.labels);
        (work, secrets)
    };
    let (environment, programs) = (inventory::environment(), Vec::new());
    let repeats = Some(run.id().to_string());
    let v = VERSION;
    let submission = Submission {
        v,
        work,
        params,
        chosen,
        repeats,
        engine,
        wishes,
        cluster,
        known,
        directory,
        document,
        environment,
        programs,
    };
    Ok(Some((submission, text)))
}

/// Recorded parameters, changed by given ones. Fails if one of them is a secret, which is not recorded.
fn with_params(
    mut params: Vec<(String, String)>,
    given: &[(String, String)],
) -> Result<Vec<(String, String)>, Diagnostic> {
    for (name, value) in given {
        params.retain(|(other, _)| other != name);
        params.push((name.clone(), value.clone()));
    }
    match params.iter().find(|(_, value)| value.contains(MASK)) {
        None => Ok(params),
        Some((name, _)) => {
            let error = "the secrets of an ended run are not kept and must be given again";
            Err(Diagnostic::error(Code::J0025, error).row("parameter", name.clone()).hint(format!("add `-p {name}=…`")))
        }
    }
}

/// The same with other parameters. `parse` reads the document with them. Its roles must stay the same, because replicas
/// that have succeeded are kept.
pub(crate) fn again_with(
    run: &RunDir,
    given: &[(String, String)],
    parse: impl FnOnce(&Recorded<'_>) -> Result<Document, Diagnostic>,
) -> Result<Option<Submission>, Diagnostic> {
    let Some(plan) = read_versioned::<Plan>(run, &run.plan(), plan::VERSION)? else { return Ok(None) };
    let Plan { job: old, params, engine, wishes, cluster, directory, document, .. } = plan;
    let Some(document) = document else { return Ok(None) };
    let params = with_params(params, given)?;
    let chosen = Chosen::default();
    let recorded = Recorded { file: &document, params: &params, chosen: &chosen, directory: &directory };
    let Document { work, secrets: mut known, .. } = parse(&recorded)?;
    let Workload::Job(mut job) = work else { return Ok(None) };
    let shape = |job: &Job| job.roles.iter().map(|role| (role.name.clone(), role.replicas)).collect::<Vec<_>>();
    if shape(&job) != shape(&old) {
        return Err(Diagnostic::error(
            Code::J0025,
            "these parameters change the roles of the run or their numbers of replicas",
        )
        .hint("run the document again, with these parameters"));
    }
    if pai::is_strict(&old) {
        pai::make_strict(&mut job);
    }
    (job.name, job.labels) = (old.name, old.labels);
    let environment = inventory::environment();
    known.extend(&unmask(&mut job, &environment)?);
    let programs = programs(&job, engine::kind(&engine)?.capabilities(), &directory, &environment)?;
    let work = Workload::Job(job);
    Ok(Some(Submission {
        v: VERSION,
        work,
        params,
        chosen: Chosen::default(),
        repeats: None,
        engine,
        wishes,
        cluster,
        known,
        directory,
        document,
        environment,
        programs,
    }))
}

/// Reads a versioned file of a run, if this umiak knows the version; `None` if it does not exist.
fn read_versioned<T: DeserializeOwned>(run: &RunDir, path: &Path, known: u32) -> Result<Option<T>, Diagnostic> {
    #[derive(Deserialize)]
    struct Head {
        v: u32,
    }
    let bytes = match umiak_sys::regular::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| {
            let message = format!("`{}` cannot be read", path.display());
            Diagnostic::error(Code::J0004, message).row("reason", error.to_string())
        })?,
    };
    let damaged = |error: serde_json::Error| {
        Diagnostic::error(Code::J0004, format!("`{}` is damaged", path.display()))
            .row("reason", error.to_string())
            .hint(format!("`umiak stop {}` records its end if it has none; then run the document again", run.id()))
    };
    let head: Head = serde_json::from_slice(&bytes).map_err(damaged)?;
    if head.v > known {
        return Err(Diagnostic::error(Code::J0005, format!("`{}` was written by a newer umiak", path.display()))
            .row("file", format!("version {}", head.v))
            .row("this umiak", format!("{}, up to version {known}", env!("CARGO_PKG_VERSION")))
            .hint("use the version of umiak that wrote it"));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// Restores masked variables in the plan of an ended run from the environment. Other masked values are an error.
/// Returns the secrets.
fn unmask(job: &mut Job, environment: &BTreeMap<String, String>) -> Result<Known, Diagnostic> {
    let mut known = Known::default();
    let (mut variables, mut others) = (Vec::new(), Vec::new());
    for role in &mut job.roles {
        let work = &mut role.work;
        for (name, value) in work.env.iter_mut().filter(|(_, value)| value.contains(MASK)) {
            match environment.get(name) {
                Some(given) => {
                    value.clone_from(given);
                    // Others are masked anyway, by their name or form.
                    if !Known::default().masked(name, given).contains(MASK) {
                        known.add(given);
                    }
                }
                None => variables.push(format!("{name} (role {})", role.name)),
            }
        }
        let is_masked = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(MASK));
        let dir = work.dir.as_ref().map(|dir| dir.to_string_lossy().into_owned());
        for (key, found) in [
            ("command", work.command.iter().any(|word| word.contains(MASK))),
            ("dir", is_masked(&dir)),
            ("image", is_masked(&work.image)),
            ("queue", is_masked(&work.queue)),
            ("priority", is_masked(&work.priority)),
        ] {
            if found {
                others.push(format!("{key} (role {})", role.name));
            }
        }
    }
    if variables.is_empty() && others.is_empty() {
        return Ok(known);
    }
    let mut error = Diagnostic::error(Code::J0025, "the secrets of an ended run are not kept and must be given again");
    if !variables.is_empty() {
        error = error.row("variables", variables.join(", "));
    }
    Err(if others.is_empty() {
        error.hint("set them in the environment of this command, or run the document again")
    } else {
        error.row("secret in", others.join(", ")).hint(
            "give them with `-p NAME=VALUE` (`-p secrets.NAME=VALUE` in an OpenPAI job), or run the document again",
        )
    })
}

/// Checks that no variable is too long: every start would fail.
pub(crate) fn check_variables(can: Capabilities, plan: &Plan) -> Result<(), Diagnostic> {
    let Some((name, bytes)) = plan.too_long().filter(|_| can.here) else { return Ok(()) };
    let is_own = plan.job.roles.iter().any(|role| role.work.env.iter().any(|(own, _)| *own == name));
    let hint = if is_own { "put its value into a file" } else { "start fewer replicas: it lists them all" };
    Err(Diagnostic::error(Code::J0020, format!("the environment variable `{name}` is too long"))
        .row("size", format!("{bytes} bytes"))
        .row("limit", format!("{MAX_VARIABLE} bytes (kernel)"))
        .hint(hint))
}

/// The program of each role. Engines that do not run on this host need no lookup.
pub(super) fn programs(
    job: &Job,
    can: Capabilities,
    directory: &Path,
    environment: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, Diagnostic> {
    if !can.here {
        return Ok(job.roles.iter().map(|role| PathBuf::from(&role.work.command[0])).collect());
    }
    job.roles.iter().map(|role| program(role, directory, environment)).collect()
}

fn program(role: &Role, directory: &Path, environment: &BTreeMap<String, String>) -> Result<PathBuf, Diagnostic> {
    let word = &role.work.command[0];
    let start = role.work.dir.as_ref().map_or_else(|| directory.to_owned(), |dir| directory.join(dir));
    let on_host = |path: &Path| role.work.on_host(path, directory);
    if !on_host(&start).is_dir() {
        let what = if on_host(&start).exists() { "is not a directory" } else { "does not exist" };
        return Err(Diagnostic::error(Code::J0021, format!("the directory of role `{}` {what}", role.name))
            .row("dir", start.display().to_string())
            .hint("`dir` is relative to the directory where the run is submitted"));
    }
    let not_found = || {
        Diagnostic::error(Code::J0021, format!("the command of role `{}` was not found", role.name))
            .row("command", word.clone())
    };
    if word.contains('/') {
        let path = start.join(word);
        return match std::fs::metadata(on_host(&path)) {
            Err(_) => Err(not_found().row("looked for", path.display().to_string())),
            Ok(metadata) if metadata.is_dir() => {
                Err(not_executable(role, &path, "it is a directory").hint("name a program in this directory"))
            }
            Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
                let hint = format!("`chmod +x {word}`, or put its interpreter in front: `command: [sh, {word}]`");
                Err(not_executable(role, &path, "it has no executable bit").hint(hint))
            }
            Ok(_) => Ok(path),
        };
    }
    // The role's own `PATH` wins.
    let own = role.work.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
    let path = own.or(environment.get("PATH").map(String::as_str)).unwrap_or("/usr/bin:/bin");
    inventory::on_path(word.as_ref(), path.as_ref()).ok_or_else(|| {
        let error = not_found().row("PATH", path.to_owned());
        if let Ok(metadata) = std::fs::metadata(on_host(&start.join(word)))
            && metadata.is_file()
        {
            let mode = if metadata.permissions().mode() & 0o111 == 0 {
                format!("`chmod +x {word}` and ")
            } else {
                String::new()
            };
            return error.hint(format!(
                "there is a file of that name: {mode}write `./{word}`, or put its interpreter in front: `[sh, {word}]`"
            ));
        }
        error.hint("check the spelling; the `PATH` is the one this command was started with, or the role's own")
    })
}

fn not_executable(role: &Role, path: &Path, why: &str) -> Diagnostic {
    Diagnostic::error(Code::J0022, format!("the command of role `{}` cannot be executed", role.name))
        .row("command", path.display().to_string())
        .row("reason", why)
}
