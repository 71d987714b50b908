//! `umiak mounted`: runs a program that sees directories at other paths. The `command` of such an attempt uses it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use umiak_core::diag::Diagnostic;
use umiak_sys::mounts::{self, BoundDirectory};

use super::fail;

#[derive(Debug, Args)]
pub(super) struct Mounted {
    /// The working directory
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A directory, and the path at which the program sees it
    #[arg(long, num_args = 2, value_names = ["DIRECTORY", "PATH"])]
    bind: Vec<PathBuf>,
    /// The same, read-only
    #[arg(long, num_args = 2, value_names = ["DIRECTORY", "PATH"])]
    read_only: Vec<PathBuf>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

pub(super) fn run(arguments: &Mounted) -> ExitCode {
    let bound =
        |pair: &[PathBuf], read_only| BoundDirectory { source: pair[0].clone(), target: pair[1].clone(), read_only };
    let directories = arguments.bind.chunks(2).map(|pair| bound(pair, false));
    let directories: Vec<_> = directories.chain(arguments.read_only.chunks(2).map(|pair| bound(pair, true))).collect();
    if let Err(error) = mounts::enter(&directories) {
        return fail(&[Diagnostic::failed("mount the directories", &error)]);
    }
    let mut command = std::process::Command::new(&arguments.words[0]);
    command.args(&arguments.words[1..]);
    if let Some(dir) = &arguments.dir {
        command.current_dir(dir);
    }
    let error = command.exec();
    fail(&[Diagnostic::failed("run the program", &error)])
}
