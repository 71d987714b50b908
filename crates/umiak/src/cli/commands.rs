//! Our own commands: those about runs, each in its module, `lint`, and `schema`, `completions`, `man`. The launcher's flags are shown by clap's
//! generators from the same table that parses them.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, StyledStr};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches};
use tracing::debug;
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::facts::Record;
use umiak_core::formats::launch::flags::{FLAGS, Flag, ValueKind};

use crate::log;
use crate::views;

use super::{events, explain, fail, gc, lint, logs, ls, plan, print, rm, run as runner, runs, show, wait};

/// Commands of the design that are not built yet: they answer so, and do not look like typing errors.
const LATER: &[&str] = &["submit", "store", "doctor", "top", "serve", "report", "rerun", "bugreport"];

/// The whole command line for clap: parsing of our own commands, and help, man pages and completions of all.
pub fn command() -> Command {
    Command::new("umiak")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Launches and supervises distributed training jobs")
        .after_help(
            "Any documented command works with `umiak` in front:\n  umiak python -m paddle.distributed.launch --gpus 0,1 train.py\n  umiak fleetrun train.py",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .bin_name("umiak")
        .subcommand(launch())
        .subcommand(runner::Arguments::augment_args(Command::new("run")).about("Run a document"))
        .subcommand(plan::Arguments::augment_args(Command::new("plan")).about("Print what a document would run"))
        .subcommand(lint::command())
        .subcommand(runner::Stop::augment_args(Command::new("stop")).about("Stop runs"))
        .subcommand(runner::Resume::augment_args(Command::new("resume")).about("Go on with a run whose supervisor was lost"))
        .subcommand(runner::Retry::augment_args(Command::new("retry")).about("Try again what has not succeeded of a run"))
        .subcommand(runner::Supervise::augment_args(Command::new("supervise")).about("Supervise a detached run").hide(true))
        .subcommand(
            Command::new("mock-cluster").about("Be the cluster of `--engine mock-cluster`").hide(true).arg(
                Arg::new("directory").required(true).value_name("DIR").value_parser(clap::value_parser!(std::path::PathBuf)),
            ),
        )
        .subcommand(ls::Arguments::augment_args(Command::new("ls")).about("List runs, past and present"))
        .subcommand(show::Arguments::augment_args(Command::new("show")).about("Show how a run stands, or how it went"))
        .subcommand(logs::Arguments::augment_args(Command::new("logs")).about("Show what replicas have written"))
        .subcommand(events::Arguments::augment_args(Command::new("events")).about("Show the facts of a run"))
        .subcommand(
            wait::Arguments::augment_args(Command::new("wait"))
                .about("Wait until runs have ended; the exit code is theirs, of several the worst"),
        )
        .subcommand(rm::Arguments::augment_args(Command::new("rm")).about("Remove runs that nobody supervises"))
        .subcommand(gc::Arguments::augment_args(Command::new("gc")).about("Remove old runs"))
        .subcommand(
            explain::Arguments::augment_args(Command::new("explain"))
                .about("Explain an error code, or why a run ended as it did"),
        )
        .subcommand(
            Command::new("schema").about("Print the JSON schema of a format").arg(
                Arg::new("format").required(true).value_name("FORMAT").value_parser(PossibleValuesParser::new(["facts", "job", "ls", "plan", "show"])),
            ),
        )
        .subcommand(
            Command::new("completions").about("Print completions for a shell").arg(
                Arg::new("shell").required(true).value_parser(clap::value_parser!(clap_complete::Shell)),
            ),
        )
        .subcommand(Command::new("man").about("Print a man page").arg(
            Arg::new("command").value_name("COMMAND").help("Its page; the overview when omitted"),
        ))
        .mut_subcommands(|command| if command.get_name() == "launch" { command } else { command.arg(verbose()) })
}

/// Of every command but `launch`, which has it in its table.
fn verbose() -> Arg {
    Arg::new("verbose")
        .short('v')
        .long("verbose")
        .action(ArgAction::Count)
        .help("Log what umiak does, on stderr; `-vv` logs more. Else `UMIAK_LOG`")
}

/// `launch` as clap shows it. Parsing is `formats::launch`, which keeps to Paddle's rules.
fn launch() -> Command {
    let mut command = Command::new("launch")
        .about("Start a distributed job on this node, with the flags of paddle.distributed.launch")
        .disable_help_flag(true)
        .arg(Arg::new("help").short('h').long("help").action(ArgAction::Help).help("Show the flags and exit"));
    for flag in FLAGS {
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
                .help("Its arguments, untouched"),
        )
}

fn argument(flag: &'static Flag) -> Arg {
    let mut argument = Arg::new(flag.name)
        .long(flag.name.trim_start_matches("--"))
        .help(StyledStr::from(flag.help))
        .help_heading(flag.heading.title());
    for alias in flag.aliases {
        argument = match alias.strip_prefix("--") {
            Some(long) => argument.visible_alias(long),
            None => argument.short(alias.chars().nth(1)),
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

/// Runs one of our own commands.
pub(super) fn run(argv: &[OsString]) -> ExitCode {
    if let Some(word) = argv.get(1).and_then(|word| word.to_str()).filter(|word| LATER.contains(word)) {
        let diagnostic = Diagnostic::error(Code::L0003, format!("`umiak {word}` is not in this version"))
            .hint("`umiak --help` lists what is");
        return fail(&[diagnostic]);
    }
    let matches = match command().try_get_matches_from(argv) {
        Ok(matches) => matches,
        Err(error) => return refuse(argv, &error),
    };
    if let Some((name, matches)) = matches.subcommand().filter(|(name, _)| *name != "launch") {
        if let Err(diagnostic) = log::start(matches.get_count("verbose")) {
            return fail(&[diagnostic]);
        }
        debug!(command = name, "started");
    }
    match matches.subcommand() {
        Some(("run", matches)) => runner::run(&arguments(matches)),
        Some(("plan", matches)) => plan::run(&arguments(matches)),
        Some(("stop", matches)) => finish(runner::stop(&arguments(matches))),
        Some(("resume", matches)) => runner::resume(&arguments(matches)),
        Some(("retry", matches)) => runner::retry(&arguments(matches)),
        Some(("supervise", matches)) => runner::supervise(&arguments(matches)),
        Some(("mock-cluster", matches)) => {
            let directory: &std::path::PathBuf = matches.get_one("directory").expect("the argument is required");
            match crate::engine::mock_cluster::serve(directory) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&[Diagnostic::failed("be a cluster", &error)]),
            }
        }
        Some(("ls", matches)) => finish(ls::run(&arguments(matches))),
        Some(("show", matches)) => finish(show::run(&arguments(matches))),
        Some(("logs", matches)) => finish(logs::run(&arguments(matches))),
        Some(("events", matches)) => finish(events::run(&arguments(matches))),
        Some(("wait", matches)) => finish(wait::run(&arguments(matches))),
        Some(("rm", matches)) => finish(rm::run(&arguments(matches))),
        Some(("gc", matches)) => finish(gc::run(&arguments(matches))),
        Some(("explain", matches)) => finish(explain::run(&arguments(matches))),
        Some(("schema", matches)) => print(&match matches.get_one::<String>("format").map(String::as_str) {
            Some("job") => job_schema(),
            Some("ls") => views::listing_schema(),
            Some("plan") => plan::schema(),
            Some("show") => views::run_schema(),
            _ => facts_schema(),
        }),
        Some(("lint", matches)) => lint::run(matches),
        Some(("completions", matches)) => completions(*matches.get_one("shell").expect("the argument is required")),
        Some(("man", matches)) => man(matches.get_one::<String>("command").map(String::as_str)),
        _ => ExitCode::from(2),
    }
}

/// What clap has to say: help on stdout, or why the line is none of ours.
fn refuse(argv: &[OsString], error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return print(&error.to_string());
    }
    let first = argv.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
    match error.kind() {
        ErrorKind::InvalidSubcommand => fail(&[no_command(&first)]),
        ErrorKind::UnknownArgument if first.starts_with('-') => {
            fail(&[Diagnostic::error(Code::L0001, format!("`umiak` itself has no flag `{first}`"))
                .hint("flags of the launcher stand behind its name: `umiak launch --gpus 0,1 train.py`")])
        }
        _ => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

/// A first word that is no command: misspelt, or a script without the command that starts it.
fn no_command(word: &str) -> Diagnostic {
    let error = Diagnostic::error(Code::L0001, format!("there is no command `{word}`"));
    let command = command();
    let names = command.get_subcommands().map(Command::get_name).chain(["fleetrun", "torchrun"]);
    let is_script = Path::new(word).extension().is_some_and(|extension| extension == "py") || Path::new(word).is_file();
    match nearest(word, names) {
        _ if is_script => error.hint(format!("to start a script, write `umiak launch {word}`")),
        Some(near) => error.hint(format!("did you mean `umiak {near}`?")),
        None => error.hint("`umiak --help` lists the commands"),
    }
}

/// The arguments of a command, as it wants them.
fn arguments<T: FromArgMatches>(matches: &ArgMatches) -> T {
    T::from_arg_matches(matches).expect("clap has checked them by the same definition")
}

fn finish(done: runs::Done) -> ExitCode {
    done.unwrap_or_else(|diagnostic| fail(&[diagnostic]))
}

/// The schema of one line of `--output json`, which is one line of the journal.
pub fn facts_schema() -> String {
    let schema = schemars::schema_for!(Record);
    format!("{}\n", serde_json::to_string_pretty(&schema).expect("a schema is JSON"))
}

/// The schema of a native document.
pub fn job_schema() -> String {
    let schema = umiak_core::formats::native::schema::schema();
    format!("{}\n", serde_json::to_string_pretty(&schema).expect("a schema is JSON"))
}

fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut command(), "umiak", &mut bytes);
    print(&String::from_utf8_lossy(&bytes))
}

fn man(name: Option<&str>) -> ExitCode {
    match man_page(name) {
        Some(page) => print(&page),
        None => fail(&[no_command(name.unwrap_or(""))]),
    }
}

/// A man page in roff.
pub fn man_page(name: Option<&str>) -> Option<String> {
    let mut command = command();
    command.build();
    let command = match name {
        None => command,
        Some(name) => command.find_subcommand(name)?.clone(),
    };
    let title = name.map_or("umiak".to_owned(), |name| format!("umiak-{name}"));
    let mut bytes = Vec::new();
    clap_mangen::Man::new(command.version(env!("CARGO_PKG_VERSION"))).title(title).render(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
