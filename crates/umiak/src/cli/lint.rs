//! `umiak lint FILE…`: all errors of documents, with positions.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::{Code, Diagnostic, MAX_KEPT, Severity, shown};
use umiak_core::formats;
use umiak_core::formats::document::Checked;
use umiak_core::formats::paddleflow::Dialect;
use umiak_core::model::Workload;

use super::document;
use super::files::Files;
use super::runs::{print_json, print_text};
use super::{fail, tell};

pub(super) fn command() -> Command {
    Command::new("lint")
        .about("Check documents and report all errors, with positions")
        .arg(
            Arg::new("file")
                .required(true)
                .num_args(1..)
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Documents to check; `-` reads standard input"),
        )
        .arg(
            Arg::new("param")
                .short('p')
                .long("param")
                .value_name("NAME=VALUE")
                .action(ArgAction::Append)
                .value_parser(document::parameter)
                .help("Set a parameter of the documents"),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .value_name("MODE")
                .default_value("human")
                .value_parser(PossibleValuesParser::new(["human", "json", "quiet"]))
                .help("`human`, `json` (everything on stdout) or `quiet` (only the exit code)"),
        )
}

/// The result for one file.
#[derive(Serialize, JsonSchema)]
pub(super) struct CheckedFile {
    file: String,
    ok: bool,
    /// Parameters that `run` requires.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    needed: Vec<String>,
    diagnostics: Vec<Diagnostic>,
    /// Which versions of PaddleFlow accept a pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    dialect: Option<Dialect>,
    #[serde(skip)]
    work: Option<Workload>,
}

/// What `umiak lint --output json` prints.
#[derive(Serialize, JsonSchema)]
pub(super) struct Report {
    v: u32,
    files: Vec<CheckedFile>,
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let params: Vec<(String, String)> = matches.get_many("param").into_iter().flatten().cloned().collect();
    let mut settings_told = Vec::new();
    let all: Vec<PathBuf> = matches.get_many("file").into_iter().flatten().cloned().collect();
    let files: Vec<CheckedFile> = all.iter().map(|path| check(path, &all, &params, &mut settings_told)).collect();
    let wrong = files.iter().filter(|file| !file.ok).count();
    let code = if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(Code::F0010.entry().exit) };
    let printed = match matches.get_one::<String>("output").map(String::as_str) {
        Some("json") => print_json(&Report { v: 1, files }).unwrap_or_else(|diagnostic| fail(&[diagnostic])),
        Some("quiet") => ExitCode::SUCCESS,
        _ => human(&files),
    };
    if printed == ExitCode::SUCCESS { code } else { printed }
}

fn check(path: &Path, all: &[PathBuf], params: &[(String, String)], settings_told: &mut Vec<PathBuf>) -> CheckedFile {
    let file = document::name(path);
    let refused = |diagnostics| CheckedFile {
        file: document::name(path),
        ok: false,
        needed: Vec::new(),
        diagnostics,
        dialect: None,
        work: None,
    };
    let files = match Files::read(path) {
        Ok(files) => files,
        Err(diagnostics) => return refused(diagnostics),
    };
    let settings = match document::settings(path) {
        Ok(settings) => settings,
        // Several documents share one settings file: its errors are reported once.
        Err((settings, _)) if settings_told.contains(&settings) => return refused(Vec::new()),
        Err((settings, diagnostics)) => {
            settings_told.push(settings);
            return refused(diagnostics);
        }
    };
    let Checked { work, needed, mut diagnostics, dialect } =
        formats::check(&files.source, &files.given(params, &settings));
    // Those of the other file of a submission are reported there.
    let is_other = |file: &str| file != files.source.name && all.iter().any(|path| document::name(path) == file);
    diagnostics.retain(|diagnostic| !diagnostic.labels.first().is_some_and(|label| is_other(&label.file)));
    let ok = diagnostics.iter().all(|diagnostic| diagnostic.severity != Severity::Error);
    CheckedFile { file, ok, needed, diagnostics, dialect, work }
}

/// `1 role, 4 replicas`, `5 steps, accepted by every version of PaddleFlow`.
fn size(work: &Workload, dialect: Option<Dialect>) -> String {
    let plural = |count: u32, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
    match work {
        Workload::Job(job) => {
            let replicas: u32 = job.roles.iter().map(|role| role.replicas).sum();
            format!("{}, {}", plural(job.roles.len() as u32, "role"), plural(replicas, "replica"))
        }
        Workload::Pipeline(pipeline) => {
            let accepted = match dialect {
                None => "",
                Some(Dialect::Develop) => ", accepted by PaddleFlow's develop branch",
                Some(Dialect::PullRequest) => ", accepted by PaddleFlow with pull request #1164",
                Some(Dialect::PullRequestEarly) => ", written for an early version of PaddleFlow's pull request #1164",
                Some(Dialect::Umiak) => ", not accepted by PaddleFlow",
            };
            format!("{}{accepted}", plural(pipeline.steps() as u32, "step"))
        }
    }
}

fn human(files: &[CheckedFile]) -> ExitCode {
    let mut fine = String::new();
    for file in files {
        tell(&file.diagnostics);
        if let Some(work) = &file.work {
            let _ = writeln!(fine, "{}: ok, {}", shown(&file.file), size(work, file.dialect));
        } else if file.ok {
            let first = file.needed.iter().take(MAX_KEPT);
            let needed: Vec<String> = first.map(|name| format!("`-p {name}=…`")).collect();
            let more = match file.needed.len() - needed.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let _ = writeln!(fine, "{}: ok, requires {}{more}", shown(&file.file), needed.join(" "));
        }
    }
    let errors = files.iter().flat_map(|file| &file.diagnostics);
    let errors: Vec<_> = errors.filter(|diagnostic| diagnostic.severity == Severity::Error).collect();
    let printed = print_text(&fine).unwrap_or_else(|diagnostic| fail(&[diagnostic]));
    if errors.len() > 1 {
        let uncounted = errors.iter().filter(|error| error.code == Code::F0007).count();
        let (more, count) = (if uncounted > 0 { "more than " } else { "" }, errors.len() - uncounted);
        let wrong = files.iter().filter(|file| !file.ok).count();
        super::say(&format!("{more}{count} errors in {wrong} of {} files\n", files.len()));
    }
    printed
}
