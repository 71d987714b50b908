//! The command line: which front door, which command, which exit code.

mod commands;
mod document;
mod events;
mod explain;
mod gc;
mod lint;
mod logs;
mod ls;
mod plan;
mod rm;
mod run;
mod runs;
mod show;
mod wait;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use umiak_core::diag::Diagnostic;
use umiak_core::formats::launch::{Parsed, parse};
use umiak_core::formats::prefix::{Front, recognise};

use crate::runtime;
use crate::screen::Style;

pub use commands::{command, facts_schema, job_schema, man_page};
pub use ls::schema as ls_schema;
pub use plan::schema as plan_schema;
pub use show::schema as show_schema;

/// Everything `main` does.
pub fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let front = recognise(&argv);
    if let Some(diagnostic) = front.diagnostic() {
        return fail(&[diagnostic]);
    }
    match front {
        Front::Launch(spelling, words) => {
            let env = runtime::environment();
            match parse(spelling, &words, &env) {
                Ok(Parsed::Help(text)) => print(&text),
                Ok(Parsed::Launch(spec)) => ExitCode::from(runtime::launch::launch(&spec, env)),
                Err(diagnostics) => fail(&diagnostics),
            }
        }
        Front::NotInThisVersion { .. } | Front::Refused(_) | Front::Other => commands::run(&argv),
    }
}

fn print(text: &str) -> ExitCode {
    match runtime::write_data(text) {
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
        say(&runtime::render(&style, diagnostic));
    }
}

fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
