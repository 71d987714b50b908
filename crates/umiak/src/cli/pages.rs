//! Man pages: clap's, with examples and exit codes.

use std::fmt::Write as _;

use super::commands::command;

/// A term, and what it means.
type Term = (&'static str, &'static str);

/// Examples of each command: command lines, and what each does.
const EXAMPLES: &[(&str, &[Term])] = &[
    (
        "launch",
        &[
            ("umiak launch --gpus 0,1,2,3 train.py --lr 0.1", "Four ranks on this node, one for each GPU"),
            ("umiak launch --nproc_per_node 2 train.py", "Two ranks on CPUs"),
            ("umiak launch --ips 10.0.0.1,10.0.0.2 train.py", "Two nodes; the same command on each"),
            ("umiak launch -d train.py", "Return at once; `umiak attach` follows the run"),
            ("umiak launch --dry-run --output json train.py", "Print the plan as JSON"),
        ],
    ),
    (
        "torchrun",
        &[
            ("umiak torchrun --nproc-per-node 4 train.py --lr 0.1", "Four ranks on this node"),
            (
                "umiak torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node-a:29400 train.py",
                "Two nodes; the same command on each",
            ),
            ("umiak torchrun --nproc-per-node 2 --max-restarts 3 train.py", "Restart all ranks up to three times"),
        ],
    ),
    (
        "run",
        &[
            ("umiak run job.yaml -p epochs=3", "Run a document with a parameter"),
            ("umiak run -d job.yaml", "Return at once; `umiak attach` follows the run"),
        ],
    ),
    ("plan", &[("umiak plan job.yaml --output json", "Print the plan as JSON")]),
    ("lint", &[("umiak lint jobs/*.yaml", "Report all errors of all documents")]),
    ("convert", &[("umiak convert openpai.yaml", "Make a native document of an OpenPAI job")]),
    (
        "ls",
        &[
            ("umiak ls --status running", "Runs that are running now"),
            (
                "umiak ls --since 2d --status failed,lost",
                "Runs of the last two days that failed or lost their supervisor",
            ),
        ],
    ),
    ("show", &[("umiak show", "The newest run"), ("umiak show train --output json", "A run by its name, as JSON")]),
    (
        "logs",
        &[
            ("umiak logs -f train", "Follow the live run `train`"),
            ("umiak logs 32 trainer-3", "The output of one replica of run-000032"),
        ],
    ),
    ("events", &[("umiak events -f --output json 32", "Events of a run as they are recorded, as JSON")]),
    ("stacks", &[("umiak stacks train", "Show where the replicas of a run are")]),
    ("wait", &[("umiak wait train --timeout 10min", "Wait at most ten minutes for its end")]),
    ("attach", &[("umiak attach", "Follow the only live run; Ctrl-C detaches")]),
    ("stop", &[("umiak stop train", "Stop one run"), ("umiak stop --all --kill", "Kill every live run")]),
    ("resume", &[("umiak resume 32", "Continue a run whose supervisor died")]),
    (
        "retry",
        &[
            ("umiak retry 32", "Rerun the replicas that have not succeeded"),
            ("umiak retry -d -p lr=0.01 32", "The same with another parameter, detached"),
        ],
    ),
    ("rm", &[("umiak rm 30 31", "Remove two runs")]),
    ("gc", &[("umiak gc --older-than 30d --dry-run", "List the runs that would be removed")]),
    ("explain", &[("umiak explain", "Why the newest run ended as it did"), ("umiak explain L0004", "An error code")]),
];

/// Exit codes beyond those of all commands.
const CODES: &[(&[&str], &[Term])] = &[
    (
        &["launch", "torchrun", "run", "resume", "retry"],
        &[
            ("N", "the code of the rank that caused a failure, 128 + n for a signal n; 1 with several roles"),
            ("3", "stopped by `umiak stop`"),
            ("123", "the rendezvous failed, or a node was lost"),
            ("124", "a time limit ran out"),
            ("126, 127", "a command could not be executed, or was not found"),
            ("128 + n", "stopped by signal n: Ctrl-C is 130"),
        ],
    ),
    (&["wait"], &[("N", "the code of the run; with several runs, the highest"), ("124", "`--timeout` ran out")]),
    (&["attach"], &[("N", "the code of the run"), ("130", "detached with Ctrl-C; the run continues")]),
    (&["lint"], &[("2", "a document has errors")]),
];

const EVERYWHERE: &[Term] =
    &[("0", "success"), ("2", "wrong usage, or a document with errors"), ("125", "umiak itself failed")];

/// The man page of a command, or the overview, in roff.
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
    let mut page = String::from_utf8_lossy(&bytes).into_owned();
    let of = |command: &str| EXAMPLES.iter().find(|(name, _)| *name == command).map_or(&[][..], |(_, lines)| lines);
    let examples: Vec<Term> = match name {
        Some(name) => of(name).to_vec(),
        None => {
            ["launch", "run", "ls", "attach", "stop"].into_iter().filter_map(|name| of(name).first()).copied().collect()
        }
    };
    section(&mut page, "EXAMPLES", &examples);
    let own = CODES.iter().find(|(names, _)| name.is_some_and(|name| names.contains(&name)));
    let codes: Vec<Term> = EVERYWHERE.iter().chain(own.map_or(&[][..], |(_, codes)| codes)).copied().collect();
    section(&mut page, "EXIT STATUS", &codes);
    Some(page)
}

/// Appends a section of terms and their meanings.
fn section(page: &mut String, title: &str, lines: &[Term]) {
    if lines.is_empty() {
        return;
    }
    let escaped = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let _ = writeln!(page, ".SH \"{title}\"");
    for (term, meaning) in lines {
        let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(term), escaped(meaning));
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    #[test]
    fn every_command_about_runs_has_examples_and_codes() {
        let command = command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
        for name in shown.filter(|name| !["schema", "completions", "man"].contains(name)) {
            let page = man_page(Some(name)).expect("a page");
            assert!(page.contains(&format!("\\fBumiak {name}")), "{name} has no examples");
            assert!(page.contains(".SH \"EXIT STATUS\""), "{name}");
        }
    }

    #[test]
    fn examples_are_command_lines() {
        for (_, lines) in EXAMPLES.iter().filter(|(name, _)| !["launch", "torchrun"].contains(name)) {
            for (line, _) in *lines {
                let words = line.split(' ');
                assert!(command().try_get_matches_from(words).is_ok(), "{line}");
            }
        }
    }
}
