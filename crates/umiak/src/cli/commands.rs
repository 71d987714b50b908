//! Our own commands: `explain`, `schema`, `completions`, `man`. The launcher's flags are shown by clap's
//! generators from the same table that parses them.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, StyledStr};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::diagnose;
use umiak_core::facts::Record;
use umiak_core::formats::launch::flags::{FLAGS, Flag, ValueKind};

use super::{fail, print};

/// Commands of the design that are not built yet: they answer so, and do not look like typing errors.
const LATER: &[&str] = &[
    "run",
    "submit",
    "plan",
    "lint",
    "ls",
    "show",
    "logs",
    "events",
    "wait",
    "stop",
    "resume",
    "retry",
    "rm",
    "gc",
    "store",
    "doctor",
    "top",
    "serve",
    "report",
    "rerun",
    "bugreport",
];

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
        .subcommand(
            Command::new("explain")
                .about("Explain an error code: `umiak explain L0004`")
                .arg(Arg::new("code").required(true).value_name("CODE")),
        )
        .subcommand(
            Command::new("schema").about("Print the JSON schema of a format").arg(
                Arg::new("format").required(true).value_name("FORMAT").value_parser(PossibleValuesParser::new(["facts"])),
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
        .help_heading(flag.heading.title())
        .visible_aliases(flag.aliases.iter().map(|alias| alias.trim_start_matches("--")));
    argument = match flag.value {
        ValueKind::Switch => argument.action(ArgAction::SetTrue),
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
    match matches.subcommand() {
        Some(("explain", matches)) => explain(matches.get_one::<String>("code").map_or("", String::as_str)),
        Some(("schema", _)) => print(&facts_schema()),
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

fn explain(code: &str) -> ExitCode {
    if let Some(code) = Code::parse(code) {
        let entry = code.entry();
        let exit = if entry.exit == 0 { "none: a notice".to_owned() } else { entry.exit.to_string() };
        return print(&format!("{code}: {}\nexit code {exit}\n\n{}\n", entry.title, entry.text));
    }
    if let Some(signature) = diagnose::explain(code) {
        return print(&format!("{}: {}\n\n{}\n", signature.code, signature.title, signature.text));
    }
    fail(&[Diagnostic::error(Code::L0001, format!("there is no error code `{code}`"))
        .hint("codes stand in brackets in messages, as in `error[L0004]`")])
}

/// The schema of one line of `--output json`, which is one line of the journal.
pub fn facts_schema() -> String {
    let schema = schemars::schema_for!(Record);
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
