//! `umiak convert FILE`: prints the native document that does the same.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::shown;
use umiak_core::formats::{self, Given, document::Format};

use super::document;
use super::files::Files;
use super::{fail, print, say};

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
    let files = match Files::read(path) {
        Ok(files) => files,
        Err(diagnostics) => return fail(&diagnostics),
    };
    let settings = match document::settings(path) {
        Ok(settings) => settings,
        Err((_, diagnostics)) => return fail(&diagnostics),
    };
    let dir = std::env::current_dir().unwrap_or_default();
    let given = Given { dir: &dir, ..files.given(&arguments.param, &settings) };
    match formats::convert(&files.source, &given) {
        Ok(converted) => {
            if converted.format == Format::Native {
                say(&format!("{} is a native document already; it is printed unchanged\n", shown(&files.source.name)));
            }
            print(&converted.text)
        }
        Err(diagnostics) => fail(&diagnostics),
    }
}
