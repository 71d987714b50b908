//! Umiak's own commands, each in its module. Clap's generators show the launcher's flags from the same table that
//! parses them.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches};
use tracing::debug;
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::formats::launch::flags::{FLAGS, Flag, ValueKind};
use umiak_core::formats::launch::torchrun::TORCH_FLAGS;

use crate::log;

use super::schemas::{self, SCHEMAS};
use super::{
    again, attach, complete, convert, events, explain, fail, gc, keep, lint, logs, ls, mounted, pages, plan, print,
    remote, rm, run as runner, runs, show, stacks, stop, store, submit, wait,
};

/// Planned commands. They get a message of their own instead of "there is no command".
const LATER: &[&str] = &["doctor", "top", "serve", "report", "rerun", "bugreport"];

/// The whole command line for clap: parses our own commands, and generates help and man pages of all.
pub fn command() -> Command {
    with_verbose(internal(commands()))
}

/// The command line that parses this one. Umiak starts itself for every replica on some engines: it does not make the tables
/// of all commands then.
fn command_for(first: Option<&str>) -> Command {
    let own = internal(Command::new("umiak").bin_name("umiak"));
    let is_own = first.is_some_and(|first| own.get_subcommands().any(|command| command.get_name() == first));
    if is_own { with_verbose(own) } else { command() }
}

/// Adds the commands that umiak itself calls.
fn internal(command: Command) -> Command {
    command
        .subcommand(
            runner::Supervise::augment_args(Command::new("supervise")).about("Supervise a detached run").hide(true),
        )
        .subcommand(Command::new("guardian").about("Run replicas for the process that executed it").hide(true))
        .subcommand(
            mounted::Mounted::augment_args(Command::new("mounted"))
                .about("Run a program that sees directories at other paths")
                .hide(true),
        )
        .subcommand(
            remote::Rsh::augment_args(Command::new("rsh"))
                .about("Run a command on a worker, as `mpirun` asks for it")
                .hide(true),
        )
        .subcommand(
            remote::Rshd::augment_args(Command::new("rshd"))
                .about("Run a worker, and the commands that `rsh` sends to it")
                .hide(true),
        )
        .subcommand(
            keep::Keep::augment_args(Command::new("keep"))
                .about("Run a program that must not outlive the process at the other end of stdin")
                .hide(true),
        )
        .subcommand(
            Command::new("agent").about("Run replicas on a node of a cluster").hide(true).arg(
                Arg::new("directory")
                    .required(true)
                    .value_name("DIR")
                    .value_parser(clap::value_parser!(std::path::PathBuf)),
            ),
        )
        .subcommand(
            Command::new("mock-cluster").about("Run the cluster of `--engine mock-cluster`").hide(true).arg(
                Arg::new("directory")
                    .required(true)
                    .value_name("DIR")
                    .value_parser(clap::value_parser!(std::path::PathBuf)),
            ),
        )
        .subcommand(
            Command::new("complete")
                .about("Print the completions of a word")
                .hide(true)
                .disable_help_flag(true)
                .arg(Arg::new("word").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true)),
        )
}

/// The command line without the commands that umiak itself calls. Clap generates completions of hidden ones, too.
pub(super) fn public() -> Command {
    with_verbose(commands())
}

fn with_verbose(command: Command) -> Command {
    command.mut_subcommands(|command| match command.get_name() {
        "launch" | "torchrun" | "complete" => command,
        name => {
            let is_hidden = SILENT.contains(&name);
            command.arg(verbose().hide(is_hidden))
        }
    })
}

fn commands() -> Command {
    Command::new("umiak")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Launches and supervises distributed training jobs")
        .after_help(
            "The launch commands of Paddle and torch work with `umiak` in front:\n  umiak python -m paddle.distributed.launch --gpus 0,1 train.py\n  umiak fleetrun train.py\n  umiak torchrun --nproc-per-node 2 train.py\n  umiak python -m paddlerec.run -m config.yaml -b backend.yaml",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .bin_name("umiak")
        .subcommand(launcher(
            "launch",
            "Start a distributed job on this node, with the flags of paddle.distributed.launch",
            FLAGS,
        ))
        .subcommand(launcher("torchrun", "Start a distributed job on this node, with the flags of torchrun", &TORCH_FLAGS))
        .subcommand(runner::Arguments::augment_args(Command::new("run")).about("Run a job from a document"))
        .subcommand(
            submit::Arguments::augment_args(Command::new("submit"))
                .about("Submit a training of PaddleRec, with the flags of paddlerec.run"),
        )
        .subcommand(plan::Arguments::augment_args(Command::new("plan")).about("Print the plan of a document"))
        .subcommand(lint::command())
        .subcommand(
            convert::Arguments::augment_args(Command::new("convert"))
                .about("Print the native document that does the same as a document of another format"),
        )
        .subcommand(stop::Arguments::augment_args(Command::new("stop")).about("Stop runs"))
        .subcommand(again::Resume::augment_args(Command::new("resume")).about("Resume a run whose supervisor died"))
        .subcommand(again::Retry::augment_args(Command::new("retry")).about("Rerun the replicas that have not succeeded in a run"))
        .subcommand(ls::Arguments::augment_args(Command::new("ls")).about("List runs, past and present"))
        .subcommand(show::Arguments::augment_args(Command::new("show")).about("Show the state of a run"))
        .subcommand(logs::Arguments::augment_args(Command::new("logs")).about("Show the output of replicas"))
        .subcommand(events::Arguments::augment_args(Command::new("events")).about("Show the recorded events of a run"))
        .subcommand(
            wait::Arguments::augment_args(Command::new("wait"))
                .about("Wait until runs have ended; exits with the run's code, or the highest of several"),
        )
        .subcommand(
            attach::Arguments::augment_args(Command::new("attach"))
                .about("Follow the output and the status of a live run; Ctrl-C detaches"),
        )
        .subcommand(
            stacks::Arguments::augment_args(Command::new("stacks"))
                .about("Show what the replicas of a live run are doing: Python stacks, grouped"),
        )
        .subcommand(
            store::Arguments::augment_args(Command::new("store"))
                .about("Run a key-value store for torch ranks, with the protocol of torch's TCPStore"),
        )
        .subcommand(rm::Arguments::augment_args(Command::new("rm")).about("Remove runs that have ended"))
        .subcommand(gc::Arguments::augment_args(Command::new("gc")).about("Remove old runs"))
        .subcommand(
            explain::Arguments::augment_args(Command::new("explain"))
                .about("Explain an error code, or why a run ended as it did"),
        )
        .subcommand(
            Command::new("schema").about("Print the JSON schema of a format, or the names of all formats").arg(
                Arg::new("format").value_name("FORMAT").value_parser(PossibleValuesParser::new(SCHEMAS.iter().map(|schema| schema.name))),
            ),
        )
        .subcommand(
            Command::new("completions").about("Print completions for a shell").arg(
                Arg::new("shell").required(true).value_parser(clap::value_parser!(clap_complete::Shell)),
            ),
        )
        .subcommand(Command::new("man").about("Print a man page").arg(
            Arg::new("command").value_name("COMMAND").help("Command whose page to print; the overview when omitted"),
        ))
}

/// Commands that stop what killed runs have left on this host. Those that start runs do too.
const CLEANS_LEFTOVERS: &[&str] =
    &["ls", "show", "logs", "events", "wait", "attach", "stacks", "stop", "rm", "gc", "explain"];

/// Commands that only read and print: `--verbose` is not in their help.
const SILENT: &[&str] = &["ls", "show", "explain", "schema", "completions", "man"];

/// `--verbose` of every command but `launch`, which has it in its own table.
fn verbose() -> Arg {
    Arg::new("verbose")
        .short('v')
        .long("verbose")
        .action(ArgAction::Count)
        .help("Log what umiak does to stderr; `-vv` logs more. When omitted, `UMIAK_LOG`")
}

/// `launch` and `torchrun` as clap shows them. `formats::launch` parses them, by the rules of the launchers that they
/// replace.
fn launcher(name: &'static str, about: &'static str, table: &'static [Flag]) -> Command {
    let mut command = Command::new(name)
        .about(about)
        .disable_help_flag(true)
        .arg(Arg::new("help").short('h').long("help").action(ArgAction::Help).help("Show the flags and exit"));
    for flag in table {
        command = command.arg(argument(flag));
    }
    command
        .arg(Arg::new("training_script").required(true).value_name("training_script").help("Script or program to run"))
        .arg(
            Arg::new("training_script_args")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_name("training_script_args")
                .help("Arguments of the script, passed unchanged"),
        )
}

fn argument(flag: &'static Flag) -> Arg {
    let mut argument = Arg::new(flag.name).help(StyledStr::from(flag.help)).help_heading(flag.heading.title());
    for name in flag.names() {
        argument = match name.strip_prefix("--") {
            Some(long) if argument.get_long().is_none() => argument.long(long),
            Some(long) => argument.visible_alias(long),
            None => argument.short(name.chars().nth(1)),
        };
    }
    argument = match flag.value {
        ValueKind::Switch => argument.action(ArgAction::SetTrue),
        ValueKind::Count => argument.action(ArgAction::Count),
        ValueKind::Choice(choices) => argument.value_parser(PossibleValuesParser::new(choices)),
        _ => argument.value_name(flag.metavar),
    };
    argument
}

/// Command names of other tools, and the ones here.
const ELSEWHERE: &[(&str, &str)] =
    &[("status", "show"), ("kill", "stop"), ("ps", "ls"), ("list", "ls"), ("describe", "show"), ("validate", "lint")];

/// Runs one of our own commands.
pub(super) fn run(argv: &[OsString]) -> ExitCode {
    let first = argv.get(1).and_then(|word| word.to_str());
    if let Some((word, name)) = ELSEWHERE.iter().find(|(word, _)| Some(*word) == first) {
        let rest: Vec<_> = argv[2..].iter().map(|word| word.to_string_lossy()).collect();
        let line = std::iter::once(*name).chain(rest.iter().map(|word| &**word)).collect::<Vec<_>>().join(" ");
        return fail(&[
            Diagnostic::error(Code::L0001, format!("there is no command `{word}`")).hint(format!("use `umiak {line}`"))
        ]);
    }
    if let Some(word) = argv.get(1).and_then(|word| word.to_str()).filter(|word| LATER.contains(word)) {
        let diagnostic = Diagnostic::error(Code::L0003, format!("`umiak {word}` is not supported yet"))
            .hint("`umiak --help` lists the commands");
        return fail(&[diagnostic]);
    }
    let matches = match command_for(first).try_get_matches_from(argv) {
        Ok(matches) => matches,
        Err(error) => return refuse(argv, &error),
    };
    if let Some((name, matches)) =
        matches.subcommand().filter(|(name, _)| !["launch", "torchrun", "complete"].contains(name))
    {
        if let Err(diagnostic) = log::start(matches.get_count("verbose")) {
            return fail(&[diagnostic]);
        }
        debug!(command = name, "started");
        if CLEANS_LEFTOVERS.contains(&name) {
            umiak_sys::cgroup::clean_orphans();
        }
    }
    match matches.subcommand() {
        Some(("run", matches)) => runner::run(&arguments(matches)),
        Some(("plan", matches)) => plan::run(&arguments(matches)),
        Some(("stop", matches)) => finish(stop::run(&arguments(matches))),
        Some(("resume", matches)) => again::resume(&arguments(matches)),
        Some(("retry", matches)) => again::retry(&arguments(matches)),
        Some(("supervise", matches)) => runner::supervise(&arguments(matches)),
        Some(("guardian", _)) => match umiak_sys::guardian::serve_executed() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&[Diagnostic::failed("run the guardian", &error)]),
        },
        Some(("mounted", matches)) => mounted::run(&arguments(matches)),
        Some(("rsh", matches)) => remote::rsh(&arguments(matches)),
        Some(("rshd", matches)) => remote::rshd(&arguments(matches)),
        Some(("keep", matches)) => finish(keep::run(&arguments(matches))),
        Some(("agent", matches)) => {
            let directory: &std::path::PathBuf = matches.get_one("directory").expect("the argument is required");
            match crate::front::agent::run(directory) {
                Ok(code) => ExitCode::from(code),
                Err(error) => fail(&[error]),
            }
        }
        Some(("mock-cluster", matches)) => {
            let directory: &std::path::PathBuf = matches.get_one("directory").expect("the argument is required");
            match crate::engine::mock_cluster::serve(directory) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&[Diagnostic::failed("run the mock cluster", &error)]),
            }
        }
        Some(("ls", matches)) => finish(ls::run(&arguments(matches))),
        Some(("show", matches)) => finish(show::run(&arguments(matches))),
        Some(("logs", matches)) => finish(logs::run(&arguments(matches))),
        Some(("events", matches)) => finish(events::run(&arguments(matches))),
        Some(("stacks", matches)) => finish(stacks::run(&arguments(matches))),
        Some(("wait", matches)) => finish(wait::run(&arguments(matches))),
        Some(("attach", matches)) => finish(attach::run(&arguments(matches))),
        Some(("store", matches)) => finish(store::run(&arguments(matches))),
        Some(("rm", matches)) => finish(rm::run(&arguments(matches))),
        Some(("gc", matches)) => finish(gc::run(&arguments(matches))),
        Some(("explain", matches)) => finish(explain::run(&arguments(matches))),
        Some(("schema", matches)) => match matches.get_one::<String>("format") {
            Some(name) => print(&schemas::named(name).expect("clap knows the names")),
            None => print(&SCHEMAS.iter().flat_map(|schema| [schema.name, "\n"]).collect::<String>()),
        },
        Some(("lint", matches)) => lint::run(matches),
        Some(("convert", matches)) => convert::run(&arguments(matches)),
        Some(("completions", matches)) => {
            print(&complete::script(*matches.get_one("shell").expect("the argument is required")))
        }
        Some(("complete", matches)) => {
            let words: Vec<&String> = matches.get_many("word").into_iter().flatten().collect();
            print(&complete::candidates(&words).iter().fold(String::new(), |text, word| text + word + "\n"))
        }
        Some(("man", matches)) => {
            let name = matches.get_one::<String>("command").map(String::as_str);
            pages::man_page(name).map_or_else(|| fail(&[no_command(name.unwrap_or(""))]), |page| print(&page))
        }
        _ => ExitCode::from(2),
    }
}

/// Parses `umiak submit` and these words, which are written in full.
pub(super) fn submission(words: impl IntoIterator<Item = OsString>) -> Result<submit::Arguments, ExitCode> {
    let argv: Vec<OsString> = ["umiak".into(), "submit".into()].into_iter().chain(words).collect();
    let matches = command().try_get_matches_from(&argv).map_err(|error| refuse(&argv, &error))?;
    let (_, matches) = matches.subcommand().expect("the command is named");
    log::start(matches.get_count("verbose")).map_err(|diagnostic| fail(&[diagnostic]))?;
    Ok(arguments(matches))
}

/// Prints clap's help on stdout, or its error as a diagnostic.
fn refuse(argv: &[OsString], error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(&error.to_string());
    }
    let first = argv.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidSubcommand => match error.get(ContextKind::InvalidSubcommand) {
            Some(ContextValue::String(word)) => fail(&[no_command(word)]),
            _ => fail(&[no_command(&first)]),
        },
        ErrorKind::UnknownArgument if first.starts_with('-') => {
            fail(&[Diagnostic::error(Code::L0001, format!("`umiak` has no flag `{first}`"))
                .hint("flags of the launcher go after its name: `umiak launch --gpus 0,1 train.py`")])
        }
        // The text of this error is the whole help.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => fail(&[usage_error(&error.to_string())]),
    }
}

/// Clap's message in our form: the first paragraph says what is wrong, the others are tips and the usage.
fn usage_error(text: &str) -> Diagnostic {
    let paragraphs = text.split("\n\n").map(|lines| lines.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut paragraphs = paragraphs.filter(|text| !text.is_empty() && !text.starts_with("For more information"));
    let first = paragraphs.next().unwrap_or_default();
    let error = Diagnostic::error(Code::L0001, first.trim_start_matches("error: "));
    paragraphs.fold(error, |error, text| match text.strip_prefix("Usage: ") {
        Some(usage) => error.hint(format!("usage: `{usage}`")),
        None => error.hint(text.trim_start_matches("tip: ")),
    })
}

/// The error for an unknown command: a typo, or a script or document without its command.
fn no_command(word: &str) -> Diagnostic {
    let error = Diagnostic::error(Code::L0001, format!("there is no command `{word}`"));
    let command = public();
    let names = command.get_subcommands().map(Command::get_name).chain(["fleetrun", "torchrun"]);
    let is_document = Path::new(word).extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    let is_script = Path::new(word).extension().is_some_and(|extension| extension == "py") || Path::new(word).is_file();
    match nearest(word, names) {
        _ if is_document => error.hint(format!("to run a document, write `umiak run {word}`")),
        _ if is_script => error.hint(format!("to start a script, write `umiak launch {word}`")),
        Some(near) => error.hint(format!("did you mean `umiak {near}`?")),
        None => error.hint("`umiak --help` lists the commands"),
    }
}

/// The parsed arguments of a command.
fn arguments<T: FromArgMatches>(matches: &ArgMatches) -> T {
    T::from_arg_matches(matches).expect("clap has checked them by the same definition")
}

fn finish(done: runs::Done) -> ExitCode {
    done.unwrap_or_else(|diagnostic| fail(&[diagnostic]))
}
