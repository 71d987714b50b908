//! The text of `-h`, made from the table of flags.

use std::fmt::Write as _;

use super::Spelling;
use super::flags::{FLAGS, Flag, Heading, Support, ValueKind};
use super::torchrun::TORCH_FLAGS;

const LAUNCH: &str = "Start a distributed training job on this node: one process for each device, with the flags of both \
     generations of paddle.distributed.launch. Words in flags may be joined by `_` or `-`. Flags of Paddle may \
     be abbreviated if the result is unambiguous.";
const TORCHRUN: &str = "Start a distributed training job on this node, with the flags of torchrun. Umiak hosts the store \
     at which ranks meet. Words in flags may be joined by `_` or `-`. Flags of torchrun may be abbreviated if the \
     result is unambiguous, and have variables; a flag wins over its variable.";
const WIDTH: usize = 80;
/// Where descriptions begin.
const COLUMN: usize = 26;

/// The output of `-h` for this spelling of the command.
pub fn help(spelling: &Spelling) -> String {
    let mut text = format!("usage: {} [flags] training_script ...\n\n", spelling.program());
    let (about, table): (&str, &[Flag]) = if spelling.is_torch() { (TORCHRUN, &TORCH_FLAGS) } else { (LAUNCH, FLAGS) };
    for line in wrap(about, WIDTH) {
        let _ = writeln!(text, "{line}");
    }
    text.push('\n');
    entry(&mut text, "-h, --help", "Show this text.");
    entry(&mut text, "training_script", "The program to start, followed by its own arguments.");
    for heading in Heading::ALL {
        let mut rows = table.iter().filter(|flag| flag.heading == heading).peekable();
        if rows.peek().is_some() {
            let _ = write!(text, "\n{}:\n", heading.title());
        }
        for flag in rows {
            entry(&mut text, &left(flag), &description(flag));
        }
    }
    text
}

/// `--gpus LIST, --devices, --npus`
fn left(flag: &Flag) -> String {
    let names: Vec<&str> = flag.names().collect();
    let (first, aliases) = names.split_first().expect("a flag has a name");
    let mut text = (*first).to_owned();
    if !flag.metavar.is_empty() {
        let _ = write!(text, " {}", flag.metavar);
    }
    for alias in aliases {
        let _ = write!(text, ", {alias}");
    }
    text
}

fn description(flag: &Flag) -> String {
    let mut text = flag.help.to_owned();
    if let ValueKind::Choice(words) = flag.value {
        let _ = write!(text, " One of: {}.", words.join(", "));
    }
    // A default means nothing for a flag without effect; those of Paddle that umiak does not use are not shown.
    let is_paddles = matches!(flag.name, "--start_port" | "--enable_gpu_log" | "--max_restart" | "--elastic_level");
    let is_ours = flag.support == Support::Full && !is_paddles;
    if is_ours && !matches!(flag.default, "None" | "" | "False" | "0") {
        let _ = write!(text, " Default: {}.", flag.default);
    }
    if let Some(variable) = flag.variable {
        // A no-break space prevents a line break; `wrap` replaces it by a space.
        let _ = write!(text, " [env:\u{a0}{}]", variable.name);
    }
    match flag.support {
        Support::Full => {}
        Support::NoEffect(why) => {
            let _ = write!(text, " (no effect: {why})");
        }
        Support::NotYet(_) => text.push_str(" (not supported yet)"),
    }
    text
}

/// Description beside the flag, or below it when the flag is long.
fn entry(text: &mut String, left: &str, description: &str) {
    let mut lines = wrap(description, WIDTH - COLUMN).into_iter();
    if left.len() + 4 > COLUMN {
        let _ = writeln!(text, "  {left}");
    } else {
        let _ = writeln!(text, "  {left:<width$}{}", lines.next().unwrap_or_default(), width = COLUMN - 2);
    }
    for line in lines {
        let _ = writeln!(text, "{:COLUMN$}{line}", "");
    }
}

/// Breaks lines at spaces; a word longer than the line gets its own line.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.into_iter().map(|line| line.replace('\u{a0}', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_a_terminal_and_names_every_flag() {
        every_flag(&help(&Spelling::Launch), "umiak launch", FLAGS);
        every_flag(&help(&Spelling::Torchrun { program: "torchrun".into() }), "umiak torchrun", &TORCH_FLAGS);
    }

    fn every_flag(text: &str, program: &str, table: &[Flag]) {
        assert!(text.starts_with(&format!("usage: {program} [flags] training_script ...\n")));
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
            assert_eq!(line, line.trim_end());
        }
        for flag in table {
            for name in flag.names() {
                assert!(text.contains(name), "{name}");
            }
        }
        for heading in Heading::ALL.into_iter().filter(|heading| table.iter().any(|flag| flag.heading == *heading)) {
            assert!(text.contains(&format!("\n{}:\n", heading.title())));
        }
    }

    #[test]
    fn entries_are_aligned_and_marked() {
        let text = help(&Spelling::Fleetrun { program: "fleetrun".into() });
        assert!(text.contains(
            "
  --log_dir DIR           Directory of the log files. Default: log.
                          [env: PADDLE_LOG_DIR]
"
        ));
        assert!(text.contains(
            "
  --worker_num N          Number of trainers on each node.
"
        ));
        assert!(text.contains("(not supported yet)\n"));
        assert!(text.contains("\n  --gpus LIST, --devices, --npus, --xpus\n                          Devices of"));
    }
}
