//! `umiak run FILE`, `submit`, `resume`, `retry`, `stop`, `plan`, and the supervisor that `run -d` starts.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tracing::info;
use umiak_core::diag::{Code, Diagnostic, Severity};
use umiak_core::facts::Began;
use umiak_core::formats::launch::OwnFlags;
use umiak_core::formats::paddlerec::cloud::Cloud;
use umiak_core::formats::{self, Given, document::Document, pai};
use umiak_core::mask::Known;
use umiak_core::model::{EngineKind, Exits, JobId, OutputMode, Show, Whose, Workload};
use umiak_core::plan::Wishes;
use umiak_core::plan::document::{Chosen, Submission};

use crate::driver::{Talk, short_signal, stop};
use crate::engine::only_planned;
use crate::front::document::begin::{self, Beginning, Early};
use crate::front::document::detach::{self, NotBegun, Said};
use crate::front::document::submit;
use crate::history::find::{is_live, live};
use crate::history::{Home, RunDir, find, journal};
use crate::views::ends::DetachedRun;
use crate::views::{Output, errors};

use super::again::not_a_document;
use super::cloud::meaningless;
use super::document;
use super::engine::Engines;
use super::fail;
use super::files::{Files, python};
use super::runs::{Done, Format, print_json, print_text, talk};

/// Console flags of a supervisor.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Talking {
    #[command(flatten)]
    pub(super) format: Format,
    /// With `--output json`, show the first replica's output on stderr
    #[arg(long)]
    mirror: bool,
    /// Hide the status line
    #[arg(long)]
    no_progress: bool,
}

/// Console flags about single replicas.
#[derive(Debug, Args)]
pub(super) struct Showing {
    /// Replicas whose output is shown: `first`, `all`, `none`, a role, a replica, or ranks as in `0-3`. With several
    /// replicas, each line starts with the replica's name. When omitted, `all` for several roles, else `first`
    #[arg(long, value_name = "REPLICAS", value_parser = |text: &str| Ok::<Show, String>(Show::parse(text)))]
    show: Option<Show>,
    /// Connect the caller's stdin to this replica, given by name or rank, for `breakpoint()` and `input()`. A single
    /// replica always has stdin
    #[arg(long, value_name = "REPLICA", value_parser = |text: &str| Ok::<Whose, String>(Whose::parse([text])))]
    stdin: Option<Whose>,
}

impl Talking {
    pub(super) fn talk(self, showing: &Showing, detached: bool) -> Talk {
        Talk {
            output: match self.format.output {
                Output::Human => OutputMode::Human,
                Output::Json => OutputMode::Json,
                Output::Quiet => OutputMode::Quiet,
            },
            mirror: self.mirror,
            show: showing.show.clone().unwrap_or_default(),
            stdin: showing.stdin.clone(),
            ascii: self.format.ascii,
            no_progress: self.no_progress,
            detached,
        }
    }
}

/// The document, and what the command line adds to it.
#[derive(Debug, Args)]
pub(super) struct What {
    /// Document; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Set a parameter of the document
    #[arg(short = 'p', long = "param", value_name = "NAME=VALUE", value_parser = document::parameter)]
    param: Vec<(String, String)>,
    #[command(flatten)]
    placing: Placing,
    /// Directory of a file system that the document names
    #[arg(long, value_name = "NAME=DIR", value_parser = document::parameter)]
    fs: Vec<(String, String)>,
    /// Resources of a flavour that the document names: `--flavour large=cpu=8,mem=32Gi,gpu=2`
    #[arg(long, value_name = "NAME=RESOURCES", value_parser = document::parameter)]
    flavour: Vec<(String, String)>,
    /// Skip a step of a pipeline, or a DAG with all its steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    disable: Vec<String>,
    /// Treat an OpenPAI job as OpenPAI does: it succeeds even if all instances failed, and transient failures are
    /// repeated at once and without a limit
    #[arg(long)]
    pai_strict: bool,
    /// What `umiak submit` adds.
    #[arg(skip)]
    submitted: Option<Submitted>,
}

impl What {
    /// The document of `umiak submit`.
    pub(super) fn submitted(file: PathBuf, placing: Placing, submitted: Submitted) -> Self {
        Self {
            file,
            param: Vec::new(),
            placing,
            fs: Vec::new(),
            flavour: Vec::new(),
            disable: Vec::new(),
            pai_strict: false,
            submitted: Some(submitted),
        }
    }
}

/// What `umiak submit` says about a document.
#[derive(Debug, Clone)]
pub(super) struct Submitted {
    /// The `backend.yaml`.
    pub(super) backend: Option<PathBuf>,
    pub(super) interpreter: Option<OsString>,
}

/// Where a job runs, and what it is called.
#[derive(Debug, Args)]
pub(super) struct Placing {
    #[command(flatten)]
    engines: Engines,
    /// Name of the run, instead of the document's
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Add a label, for `ls --label`
    #[arg(long, value_name = "NAME=VALUE", value_parser = document::parameter)]
    label: Vec<(String, String)>,
}

/// How a job is run.
#[derive(Debug, Args)]
pub(super) struct Running {
    /// Return at once; the run continues without this terminal
    #[arg(short, long)]
    detach: bool,
    /// Print the plan and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Stop live runs of the same name first
    #[arg(long)]
    replace: bool,
    /// Run the replicas in a PID namespace: when their guardian exits, the kernel kills all their processes
    #[arg(long)]
    isolate: bool,
    /// Bind each replica to its own CPUs; fail if `cpu` or `memory` cannot be enforced
    #[arg(long)]
    strict_resources: bool,
    #[command(flatten)]
    talking: Talking,
    #[command(flatten)]
    showing: Showing,
}

impl Running {
    /// A flag that has a meaning only for runs of umiak.
    fn of_a_run(&self) -> Option<&'static str> {
        let flags = [
            ("--detach", self.detach),
            ("--replace", self.replace),
            ("--isolate", self.isolate),
            ("--strict-resources", self.strict_resources),
            ("--mirror", self.talking.mirror),
            ("--show", self.showing.show.is_some()),
            ("--stdin", self.showing.stdin.is_some()),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }
}

/// `--cache-policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    Conservative,
    Aggressive,
}

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    running: Running,
    /// Run every step of a pipeline, also those with a cached result
    #[arg(long)]
    no_cache: bool,
    /// What must be equal for a cached result of a step to be used: `conservative` compares the contents of its inputs,
    /// `aggressive` only their paths
    #[arg(long, value_name = "POLICY", default_value = "conservative")]
    cache_policy: Policy,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let wishes = Wishes {
        no_cache: arguments.no_cache,
        aggressive_cache: arguments.cache_policy == Policy::Aggressive,
        ..Wishes::default()
    };
    run_with(&arguments.what, &arguments.running, wishes)
}

/// Runs a document, or submits it to a platform.
pub(super) fn run_with(what: &What, running: &Running, wishes: Wishes) -> ExitCode {
    let talking = running.talking;
    let ready = match ready(what) {
        Ok(ready) => ready,
        Err(diagnostics) => return wrong(talking, &diagnostics),
    };
    if let Ready::Cloud(_) = &ready
        && let Some(flag) = running.of_a_run()
    {
        return wrong(talking, &[meaningless(flag)]);
    }
    if running.dry_run {
        return ended(talking, super::plan::show(&ready, None, talking.format));
    }
    let (mut submission, Document { masked, notices, target, .. }) = match ready {
        Ready::Run(ready) if on_kubernetes(&ready.0) => return wrong(talking, &[only_planned()]),
        Ready::Run(ready) => *ready,
        Ready::Cloud(ready) => return ended(talking, super::cloud::submit(&ready, talking.format)),
    };
    submission.wishes = Wishes { isolate: running.isolate, strict_resources: running.strict_resources, ..wishes };
    let result = Home::from_environment().map_err(Diagnostic::from).and_then(|home| {
        let is_identity = target.is_some_and(|target| target.is_named);
        submit::check_programs(&submission)?;
        make_room(&home, submission.work.name().as_str(), is_identity, running)?;
        start(&home, submission, &masked, notices, running.detach, (talking, &running.showing))
    });
    ended(talking, result)
}

/// True if a job of it is for Kubernetes.
fn on_kubernetes(submission: &Submission) -> bool {
    let usual = EngineKind::named(&submission.engine).unwrap_or(EngineKind::Local);
    submission.work.engines(usual).contains(&EngineKind::Kubernetes)
}

/// Stops live runs of documents of this name, with `--replace`. Without it, they are an error if the name identifies the job.
fn make_room(home: &Home, name: &str, is_identity: bool, running: &Running) -> Result<(), Diagnostic> {
    if !is_identity && !running.replace {
        return Ok(());
    }
    // Those with a command line are launches: a script of the same name is another job.
    for entry in live(home)?.into_iter().filter(|entry| entry.name == name && entry.command.is_empty()) {
        let run = RunDir::at(home, entry.run);
        if !running.replace {
            return Err(Diagnostic::error(Code::J0035, format!("a job `{name}` is running"))
                .row("run", run.id().to_string())
                .hint("`--replace` stops it first; `--name NAME` gives this one another name"));
        }
        match stop::stop(home, &run, false, true) {
            Err(error) if is_live(home, &entry) => return Err(error),
            _ if running.talking.format.output == Output::Human => {
                super::say(&format!("stopped {}, which had the same name\n", run.id()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes a run, and supervises it here or detached.
pub(super) fn start(
    home: &Home,
    submission: Submission,
    document: &str,
    notices: Vec<Diagnostic>,
    detach: bool,
    (talking, showing): (Talking, &Showing),
) -> Done {
    let (why, talk) = (Began::Submitted, talking.talk(showing, false));
    // Before the run is made: a signal must not leave one that never began.
    let early = Early::new(&talk)?;
    let run = submit::record(&submission, document, home)?;
    if detach {
        if let Some(code) = early.end() {
            let _ = std::fs::remove_dir_all(run.path());
            return Ok(ExitCode::from(code));
        }
        return detached(home, &run, why, notices, talking);
    }
    let beginning = Beginning { home, run, submission, notices, why, talk, early };
    begin::supervise(beginning, |_| {}).map(ExitCode::from)
}

/// A document that can be run.
pub(super) enum Ready {
    Run(Box<(Submission, Document)>),
    /// A submission to PaddleCloud.
    Cloud(Box<CloudSubmission>),
}

/// What is submitted to PaddleCloud.
pub(super) struct CloudSubmission {
    pub(super) cloud: Cloud,
    /// The path of `config.yaml`.
    pub(super) config: PathBuf,
    pub(super) notices: Vec<Diagnostic>,
    pub(super) known: Known,
}

/// Reads and parses the document.
pub(super) fn ready(what: &What) -> Result<Ready, Vec<Diagnostic>> {
    let one = |diagnostic| vec![diagnostic];
    let (files, python) = if let Some(Submitted { backend, interpreter }) = &what.submitted {
        let python = python(interpreter.as_deref()).map_err(one)?;
        (Files::submitted(&what.file, backend.as_deref(), python.as_ref())?, python)
    } else {
        let files = Files::read(&what.file)?;
        let python = if files.is_submission { python(None).map_err(one)? } else { String::new() };
        (files, python)
    };
    let mut settings = document::settings(&files.path).map_err(|(_, diagnostics)| diagnostics)?;
    let dir = submit::directory().map_err(one)?;
    let chosen =
        Chosen { disabled: what.disable.clone(), filesystems: what.fs.clone(), flavours: what.flavour.clone() };
    document::choose(&mut settings, &chosen, &dir).map_err(one)?;
    let named = what.placing.engines.named(&settings).map_err(one)?;
    let given = Given {
        disabled: &chosen.disabled,
        dir: &dir,
        python: &python,
        engine: named.as_ref().map(|named| named.kind),
        ..files.given(&what.param, &settings)
    };
    let mut document = formats::parse(&files.source, &given)?;
    if what.pai_strict {
        let job = match &mut document.work {
            Workload::Job(job) => Some(job).filter(|job| job.policy.exits == Some(Exits::Pai)),
            Workload::Pipeline(_) => None,
        };
        let Some(job) = job else {
            let error =
                Diagnostic::error(Code::L0001, "`--pai-strict` needs an OpenPAI document, or `policy.exits: pai`");
            return Err(one(error.row("document", what.file.display().to_string())));
        };
        pai::make_strict(job);
    }
    let (own_name, labels) = document.work.head();
    if let Some(name) = &what.placing.name {
        *own_name = JobId::new(name.clone()).map_err(|error| {
            vec![Diagnostic::error(Code::L0001, "`--name` is not a valid name").row("reason", error.to_string())]
        })?;
    }
    labels.extend(what.placing.label.iter().cloned());
    if let (None, Some(target)) = (&named, &mut document.target) {
        match (target.refused.take(), target.cloud.take()) {
            // Its label shows the whole line.
            (Some(refused), _) => return Err(one(refused.rewritten(&|text| document.secrets.text(text)))),
            (None, Some(cloud)) => {
                if !what.placing.label.is_empty() {
                    return Err(one(meaningless("--label")));
                }
                let cloud = match &what.placing.name {
                    Some(name) => cloud.renamed(name),
                    None => cloud,
                };
                let Document { notices, secrets: known, .. } = document;
                let config = files.config().to_owned();
                return Ok(Ready::Cloud(Box::new(CloudSubmission { cloud, config, notices, known })));
            }
            (None, None) => {}
        }
    }
    let mut engine = what.placing.engines.assign(named, &mut document, &settings, &dir)?;
    if engine.kind == EngineKind::Kubernetes && files.is_submission {
        // A file of the command line with the same name replaces it.
        engine.cluster.kubernetes.ship.insert(0, files.config().to_owned());
    }
    info!(name = %document.work.name(), engine = engine.name, jobs = document.work.jobs().count(), "document");
    let submission = submit::submission(&document, &files.path, &what.param, &engine).map_err(one)?;
    Ok(Ready::Run(Box::new((Submission { chosen, ..submission }, document))))
}

fn inode(run: &RunDir) -> Option<u64> {
    std::fs::metadata(run.path()).ok().map(|metadata| metadata.ino())
}

/// Removes the directory of a run that has recorded nothing, unless another process has made it anew since.
fn forget_unborn(run: &RunDir, made: Option<u64>) {
    let is_ours = made.is_some() && inode(run) == made;
    if is_ours && journal::replay(run).is_ok_and(|replay| replay.status.next_seq == 0 && replay.seen.damage.is_none()) {
        let _ = std::fs::remove_dir_all(run.path());
    }
}

pub(super) fn detached(home: &Home, run: &RunDir, why: Began, mut notices: Vec<Diagnostic>, talking: Talking) -> Done {
    let made = inode(run);
    notices.extend(detach::ends_at_logout());
    match detach::start(home, run, why, &notices) {
        Ok(noticed) => notices.extend(noticed),
        Err(why) => {
            forget_unborn(run, made);
            return not_begun(why);
        }
    }
    if talking.format.output == Output::Human {
        notices.iter().for_each(talk);
    }
    tell_detached(run, talking.format.output)
}

/// `umiak launch -d`.
pub(super) fn launch_detached(own: &OwnFlags, argv: &[OsString]) -> ExitCode {
    let output = match own.output {
        OutputMode::Human => Output::Human,
        OutputMode::Json => Output::Json,
        OutputMode::Quiet => Output::Quiet,
    };
    let format = Format { output, ascii: own.ascii };
    let talking = Talking { format, mirror: false, no_progress: true };
    if own.no_record {
        let error = Diagnostic::error(Code::L0001, "`--detach` cannot be used with `--no-record`");
        return wrong(talking, &[error.hint("commands find a detached run by its record")]);
    }
    let result = detach::launch(argv).map_or_else(not_begun, |launched| {
        if output == Output::Human {
            detach::ends_at_logout().iter().chain(&launched.notices).for_each(talk);
        }
        let Some(run) = launched.run else {
            super::say(&format!(
                "detached; the first node records the run, this node logs to {}\n",
                launched.log.display()
            ));
            return Ok(ExitCode::SUCCESS);
        };
        tell_detached(&run, output)
    });
    ended(talking, result)
}

fn not_begun(why: NotBegun) -> Done {
    match why {
        NotBegun::Failed(diagnostic) => Err(*diagnostic),
        NotBegun::Interrupted { signal } => {
            super::say(&format!("stopped by {} before it was detached\n", short_signal(signal)));
            Ok(ExitCode::from(128u8.wrapping_add(signal as u8)))
        }
    }
}

/// Prints the id of a detached run, and how to follow it.
pub(super) fn tell_detached(run: &RunDir, output: Output) -> Done {
    let id = run.id();
    match output {
        Output::Json => print_json(&DetachedRun { v: 1, run: id }),
        Output::Quiet => print_text(&format!("{id}\n")),
        Output::Human => {
            super::say(&format!(
                "detached; `umiak attach {id}` and `umiak logs -f {id}` follow it, `umiak stop {id}` stops it\n"
            ));
            print_text(&format!("{id}\n"))
        }
    }
}

/// Hidden: the supervisor that `run -d` starts. Its stdin and stdout lead to the process that waits for it, its stderr
/// is a file.
#[derive(Debug, Args)]
pub(super) struct Supervise {
    run: String,
    #[arg(long)]
    resumed: bool,
    #[arg(long)]
    retried: bool,
    #[arg(long)]
    retried_all: bool,
}

impl Supervise {
    fn why(&self) -> Began {
        match self {
            Self { resumed: true, .. } => Began::Resumed,
            Self { retried: true, .. } => Began::Retried,
            Self { retried_all: true, .. } => Began::RetriedAll,
            _ => Began::Submitted,
        }
    }
}

pub(super) fn supervise(arguments: &Supervise) -> ExitCode {
    let talk = Talk {
        output: OutputMode::Human,
        mirror: false,
        show: Show::None,
        stdin: None,
        ascii: false,
        no_progress: true,
        detached: true,
    };
    let begun = std::cell::Cell::new(false);
    let result = Home::from_environment().map_err(Diagnostic::from).and_then(|home| {
        let run = find(&home, &arguments.run)?;
        let submission = submit::read(&run)?.ok_or_else(|| not_a_document(&run, &run.secrets()))?;
        let (notices, why) = (detach::notices(), arguments.why());
        let early = Early::new(&talk)?;
        let beginning = Beginning { home: &home, run, submission, notices, why, talk, early };
        begin::supervise(beginning, |noticed| {
            begun.set(true);
            noticed.iter().cloned().map(Said::Notice).chain([Said::Ready]).for_each(|said| said.say());
            umiak_sys::helper::silence_stdout();
        })
    });
    match result {
        Ok(code) => ExitCode::from(code),
        // The parent waits until the run has begun, and reads this.
        Err(diagnostic) if !begun.get() => {
            let code = diagnostic.exit_code();
            Said::Failed(diagnostic).say();
            ExitCode::from(code)
        }
        Err(diagnostic) => fail(&[diagnostic]),
    }
}

/// Prints an error, or passes the exit code on.
pub(super) fn ended(talking: Talking, result: Done) -> ExitCode {
    result.unwrap_or_else(|diagnostic| wrong(talking, &[diagnostic]))
}

fn wrong(talking: Talking, diagnostics: &[Diagnostic]) -> ExitCode {
    if talking.format.output == Output::Json {
        let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
        for error in errors {
            let _ = crate::screen::write_json(&errors::line(error));
        }
    }
    fail(diagnostics)
}
