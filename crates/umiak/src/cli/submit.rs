//! `umiak submit` and `python -m paddlerec.run`: PaddleRec's command line, with the flags of `umiak run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use umiak_core::formats::paddlerec::line::{Parsed, parse};
use umiak_core::plan::Wishes;

use super::run::{Placing, Running, Submitted, What, run_with};
use super::{commands, fail, print};

/// As clap shows them. `formats::paddlerec::line` parses the line first, by the rules of PaddleRec's parser.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What is trained: a `config.yaml`, or a model of the package such as `paddlerec.models.rank.dnn`
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Where it is trained: a `backend.yaml`. Cluster engines need it
    #[arg(short, long, value_name = "FILE", visible_alias = "backend_yaml")]
    backend: Option<PathBuf>,
    /// `MASTER`, as the first generation of PaddleRec wrote it
    #[arg(short, long, value_name = "ROLE")]
    role: Option<String>,
    #[command(flatten)]
    placing: Placing,
    #[command(flatten)]
    running: Running,
}

pub(super) fn run(interpreter: Option<OsString>, words: &[OsString]) -> ExitCode {
    let words = match parse(words) {
        Ok(Parsed::Help) => return print(&help()),
        Ok(Parsed::Line(words)) => words,
        Err(diagnostics) => return fail(&diagnostics),
    };
    let Arguments { model, backend, placing, running, .. } = match commands::submission(words) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let what = What::submitted(model, placing, Submitted { backend, interpreter });
    run_with(&what, &running, Wishes::default())
}

fn help() -> String {
    let mut command = commands::command();
    command.build();
    command.find_subcommand_mut("submit").map(|submit| submit.render_help().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, Command};
    use umiak_core::formats::argparse::Takes;
    use umiak_core::formats::paddlerec::line;

    use super::*;

    #[test]
    fn both_parsers_know_the_same_flags() {
        let command = commands::command();
        let submit: &Command = command.find_subcommand("submit").expect("it is a command");
        let mut known: Vec<(String, &str)> = Vec::new();
        for argument in submit
            .get_arguments()
            .filter(|argument| !["help", "model", "backend", "role"].contains(&argument.get_id().as_str()))
        {
            let takes = match argument.get_action() {
                ArgAction::SetTrue | ArgAction::Count => "nothing",
                _ if argument.is_require_equals_set() => "after `=`",
                _ => "a value",
            };
            known.extend(argument.get_long().map(|long| (format!("--{long}"), takes)));
            known.extend(argument.get_short().map(|short| (format!("-{short}"), takes)));
        }
        let takes = |takes: Takes| match takes {
            Takes::Nothing => "nothing",
            Takes::Attached => "after `=`",
            Takes::Value | Takes::Truth => "a value",
        };
        let mut table: Vec<(String, &str)> =
            line::own().map(|option| (option.name.to_owned(), takes(option.takes))).collect();
        known.sort();
        table.sort();
        assert_eq!(known, table);
    }
}
