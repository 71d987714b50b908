//! The command line: which front door, which command, which exit code.

mod again;
mod attach;
mod cloud;
mod commands;
mod complete;
mod convert;
mod document;
mod elastic;
mod engine;
mod events;
mod explain;
mod files;
mod gc;
mod keep;
mod lint;
mod logs;
mod ls;
mod mounted;
mod pages;
mod plan;
mod remote;
mod rm;
mod run;
mod runs;
mod schemas;
mod show;
mod stacks;
mod stop;
mod store;
mod submit;
mod values;
mod wait;
mod wrapper;

use std::ffi::OsString;
use std::process::ExitCode;

use tracing::{debug, info};
use umiak_core::diag::Diagnostic;
use umiak_core::formats::launch::{LaunchSpec, Parsed, parse};
use umiak_core::formats::prefix::{Front, recognise};
use umiak_core::plan::{DETACHED, ETCD_PASSWORD, TOKEN};

use crate::log;
use crate::screen::Style;
use crate::secrets;

pub use commands::command;
pub use pages::man_page;
pub use schemas::SCHEMAS;

/// The flag with a secret.
const TOKEN_FLAG: &str = "--token";

/// Everything `main` does.
pub fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    // First of all: every process of this host can read it.
    if argv.iter().any(|word| word.as_encoded_bytes().starts_with(TOKEN_FLAG.as_bytes())) {
        umiak_sys::exposed::hide_argument(TOKEN_FLAG);
    }
    match recognise(&argv) {
        Front::Wrapped { wrapper, rest } => match wrapper::resolve(&wrapper, &rest) {
            Ok(argv) => enter(recognise(&argv), &argv),
            Err(diagnostic) => fail(&[diagnostic]),
        },
        front => enter(front, &argv),
    }
}

/// Runs the launcher, or one of our own commands.
fn enter(front: Front, argv: &[OsString]) -> ExitCode {
    if let Some(diagnostic) = front.diagnostic() {
        return fail(&[diagnostic]);
    }
    match front {
        Front::Launch(spelling, words) => {
            let env = crate::host::environment();
            let is_detached = env.contains_key(DETACHED);
            match parse(spelling, &words, &env) {
                Ok(Parsed::Help(text)) => print(&text),
                Ok(Parsed::Launch(spec)) => {
                    if let Err(diagnostic) = log::start(spec.own.verbose) {
                        return fail(&[diagnostic]);
                    }
                    options(&spec);
                    if spec.own.detach && !spec.own.dry_run && !is_detached {
                        return run::launch_detached(&spec.own, argv);
                    }
                    hide_secrets();
                    ExitCode::from(crate::front::launch::launch(*spec, env))
                }
                Err(diagnostics) => fail(&diagnostics),
            }
        }
        Front::Elastic(words) => elastic::run(&words),
        Front::Submit { interpreter, rest } => submit::run(interpreter, &rest),
        Front::Refused(_) | Front::Wrapped { .. } | Front::Other => commands::run(argv),
    }
}

/// Overwrites secrets in the environment that other processes can read. What needs them has a copy by now. A launch that
/// detaches passes them on first.
fn hide_secrets() {
    for name in [TOKEN, ETCD_PASSWORD] {
        if std::env::var_os(name).is_some() {
            // From here on the environment has stars in its place.
            secrets::read_environment();
            umiak_sys::exposed::hide_variable(name);
        }
    }
}

/// Logs the options of the command line.
fn options(spec: &LaunchSpec) {
    let request = &spec.request;
    info!(job = %request.job_id, script = ?request.command.script, nodes = request.nodes.count(), by = ?request.placement, "launch");
    debug!(spelling = ?spec.spelling, mode = ?request.mode, devices = ?request.devices, logs = ?request.logs, own = ?spec.own, "options");
}

fn print(text: &str) -> ExitCode {
    match crate::screen::write_data(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(diagnostic) => fail(&[diagnostic]),
    }
}

fn fail(diagnostics: &[Diagnostic]) -> ExitCode {
    tell(diagnostics);
    ExitCode::from(diagnostics.iter().map(Diagnostic::exit_code).max().unwrap_or(2))
}

/// Diagnostics on stderr.
fn tell(diagnostics: &[Diagnostic]) {
    let style = Style::detect(false, false);
    for diagnostic in diagnostics {
        say(&style.diagnostic(diagnostic));
    }
}

fn say(text: &str) {
    crate::screen::say(text);
}
