//! `umiak convert FILE`: prints the native document that does the same.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::shown;
use umiak_core::formats::{self, document::Format};

use super::{document, fail, print, say};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Document; `-` reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Set the default of a parameter
    #[arg(short = 'p', long = "param", value_name = "NAME=VALUE", value_parser = document::parameter)]
    param: Vec<(String, String)>,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let path = &arguments.file;
    let source = match document::read(path) {
        Ok(source) => source,
        Err(diagnostic) => return fail(&[diagnostic]),
    };
    let settings = match document::settings(path) {
        Ok(settings) => settings,
        Err((_, diagnostics)) => return fail(&diagnostics),
    };
    match formats::convert(&source, &arguments.param, &settings) {
        Ok(converted) => {
            if converted.format == Format::Native {
                say(&format!("{} is a native document already; it is printed unchanged\n", shown(&source.name)));
            }
            print(&converted.text)
        }
        Err(diagnostics) => fail(&diagnostics),
    }
}
