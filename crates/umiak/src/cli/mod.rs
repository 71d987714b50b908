//! The command line: which front door, which command, which exit code.

mod commands;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use umiak_core::diag::Diagnostic;
use umiak_core::formats::launch::{Parsed, parse};
use umiak_core::formats::prefix::{Front, recognise};

use crate::runtime;
use crate::screen::Style;

pub use commands::{command, facts_schema, man_page};

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
    let style = Style::detect(false, false);
    let mut stderr = std::io::stderr().lock();
    for diagnostic in diagnostics {
        let _ = stderr.write_all(runtime::render(&style, diagnostic).as_bytes());
    }
    ExitCode::from(diagnostics.iter().map(Diagnostic::exit_code).max().unwrap_or(2))
}
