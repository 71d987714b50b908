//! `docs/reference/cli.md`: the flags of `umiak launch` and `umiak torchrun` from their tables, and the other commands from clap.

use std::fmt::Write as _;

use clap::Command;
use umiak_core::formats::launch::flags::{FLAGS, Flag, Heading, Owner, Support, ValueKind};
use umiak_core::formats::launch::torchrun::TORCH_FLAGS;
use umiak_core::model::Generation;

use super::HEADER;
use crate::markdown::{code, codes, table};

pub(super) fn page() -> String {
    let mut text = format!("{HEADER}# Command line\n\n");
    text += "| command | does |\n|---|---|\n";
    let command = umiak::cli::command();
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let _ = writeln!(text, "| `{}` | {} |", usage(subcommand), about(subcommand));
    }
    text += "\nThe flags of `umiak launch` and `umiak torchrun` are below. `umiak COMMAND -h` shows the arguments of the other commands.\n";
    text += PREFIX;
    text += LAUNCH;
    for (heading, rows) in by_heading(FLAGS) {
        let _ = write!(text, "\n### {}\n\n", heading.title());
        text += &table(
            &["flag", "meaning", "default", "variable", "generation"],
            rows.into_iter().map(|flag| {
                [names(flag), meaning(flag), default(flag), variable(flag), generation(flag.owner).to_owned()]
            }),
        );
    }
    text += TORCHRUN;
    for (heading, rows) in by_heading(&TORCH_FLAGS) {
        let title = if heading == Heading::Umiak { "Of umiak" } else { heading.title() };
        let _ = write!(text, "\n### {title}\n\n");
        let row = |flag| [names(flag), meaning(flag), default(flag), variable(flag)];
        text += &table(&["flag", "meaning", "default", "variable"], rows.into_iter().map(row));
    }
    text
}

/// The rows under each heading that has any.
fn by_heading(table: &'static [Flag]) -> impl Iterator<Item = (Heading, Vec<&'static Flag>)> {
    let rows = |heading: Heading| table.iter().filter(move |flag| flag.heading == heading).collect::<Vec<_>>();
    Heading::ALL.into_iter().map(move |heading| (heading, rows(heading))).filter(|(_, rows)| !rows.is_empty())
}

const PREFIX: &str = "
## Alternative command lines

| command line | meaning |
|---|---|
| `umiak launch …` | the launcher |
| `umiak python -m paddle.distributed.launch …` | the same; the word before `-m` is the interpreter of the ranks |
| `umiak python -m paddle.distributed.fleet.launch …` | the same, legacy generation |
| `umiak fleetrun …` | the same |
| the binary under the name `fleetrun` | the same |
| `umiak torchrun …`, `umiak python -m torch.distributed.run …`, the binary under the name `torchrun` | the launcher with the flags of torchrun |
| `umiak python -m torch.distributed.launch …` | the same; adds `--local-rank=N` to the script's arguments, unless `--use-env` is given |
| `umiak python -m paddlerec.run …` | `umiak submit …`; the word before `-m` is the interpreter of servers and trainers |
";

const TORCHRUN: &str = "
## `umiak torchrun [flags] training_script …`

The flags of torchrun up to version 2.15. Words may be joined by `_` or `-`, and flags of torchrun may be abbreviated as long as that is unambiguous. A flag wins over its variable. A variable of a switch is a number; any but 0 is on.
";

const LAUNCH: &str = "
## `umiak launch [flags] training_script …`

Words in flags may be joined by `_` or `-`. A flag of Paddle may be abbreviated as long as it is unambiguous; flags under
*Umiak* are written in full. The first argument that is not a flag is the script; all later arguments belong to the script.
An unknown flag is an error, with the closest match as a hint. In Paddle's own command lines, and with `--compat paddle`, it is ignored with a notice, as in Paddle.

*Variable* is the environment variable that overrides the flag in the current generation, as in Paddle.
*Generation* says which of Paddle's launchers has the flag. A flag that only the legacy launcher has selects that one.
";

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// `umiak explain CODE`
fn usage(command: &Command) -> String {
    let mut text = format!("umiak {}", command.get_name());
    if ["launch", "torchrun"].contains(&command.get_name()) {
        return text + " [flags] training_script …";
    }
    for argument in command.get_positionals() {
        let name = argument.get_id().as_str().to_uppercase();
        let _ = if argument.is_required_set() { write!(text, " {name}") } else { write!(text, " [{name}]") };
    }
    text
}

/// `--gpus LIST`, then the aliases.
fn names(flag: &Flag) -> String {
    let first = if flag.metavar.is_empty() { flag.name.to_owned() } else { format!("{} {}", flag.name, flag.metavar) };
    codes(std::iter::once(first.as_str()).chain(flag.aliases.iter().copied()))
}

fn meaning(flag: &Flag) -> String {
    let mut text = flag.help.to_owned();
    if let ValueKind::Choice(words) = flag.value {
        let _ = write!(text, " One of {}.", codes(words.iter().copied()));
    }
    match flag.support {
        Support::Full => {}
        Support::NoEffect(why) => {
            let _ = write!(text, " **No effect:** {why}.");
        }
        Support::NotYet(what) => {
            let _ = write!(text, " **Not supported yet:** {what}.");
        }
    }
    text
}

/// The default: umiak's own if there is one; Paddle's `None` is an empty cell.
fn default(flag: &Flag) -> String {
    // If omitted, these do not mean what Paddle's own default says.
    let is_ours =
        flag.support == Support::Full && !matches!(flag.name, "--start_port" | "--enable_gpu_log" | "--max_restart");
    if !is_ours || !flag.takes_value() {
        return String::new();
    }
    let shown = |generation| match flag.default_in(generation) {
        "None" | "" => "",
        value => value,
    };
    let (current, legacy) = (shown(Generation::Current), shown(Generation::Legacy));
    if current == legacy || flag.owner != Owner::Both {
        return code(current);
    }
    let or_none = |value: &str| if value.is_empty() { "none".to_owned() } else { code(value) };
    format!("{}; legacy: {}", or_none(current), or_none(legacy))
}

fn variable(flag: &Flag) -> String {
    flag.variable.map(|variable| code(variable.name)).unwrap_or_default()
}

fn generation(owner: Owner) -> &'static str {
    match owner {
        Owner::Legacy => "legacy",
        Owner::Current => "current",
        Owner::Both => "both",
        Owner::Old => "before 2.0",
        Owner::Torch => "torchrun",
        Owner::Umiak => "ours",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_every_flag_and_every_command() {
        let page = page();
        for flag in FLAGS.iter().chain(TORCH_FLAGS.iter()) {
            for name in flag.names() {
                assert!(page.contains(&format!("`{name}")), "{name}");
            }
        }
        for command in umiak::cli::command().get_subcommands() {
            let is_named = page.contains(&format!("`umiak {}", command.get_name()));
            assert_eq!(is_named, !command.is_hide_set(), "{}", command.get_name());
        }
    }
}
