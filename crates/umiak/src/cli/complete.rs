//! Completion of runs, their replicas, and documents. The scripts call `umiak complete`, and fall back to what clap
//! generates.

use clap_complete::Shell;
use umiak_core::status::ReplicaStatus;

use super::commands::public;
use super::runs::load;
use crate::history::find::is_live;
use crate::history::index::IndexEntry;
use crate::history::{Home, find, index};

/// Commands whose arguments are runs.
const OF_RUNS: &[&str] =
    &["show", "logs", "events", "wait", "attach", "stacks", "stop", "resume", "retry", "rm", "explain"];
/// Commands whose arguments are documents.
const OF_DOCUMENTS: &[&str] = &["run", "plan", "lint", "convert"];
/// Number of runs offered, the newest.
const RUNS: usize = 50;

/// The script for a shell.
pub(super) fn script(shell: Shell) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut public(), "umiak", &mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match shell {
        Shell::Bash => text + BASH,
        Shell::Zsh => text.replace("compdef _umiak umiak", "compdef _umiak_runs umiak").replace(
            "if [ \"$funcstack[1]\" = \"_umiak\" ]; then\n    _umiak \"$@\"",
            &format!("{ZSH}\nif [ \"$funcstack[1]\" = \"_umiak\" ]; then\n    _umiak_runs \"$@\""),
        ),
        Shell::Fish => {
            let commands = OF_RUNS.join(" ");
            format!(
                "{text}\ncomplete -c umiak -n \"__fish_seen_subcommand_from {commands}\" -f -a \"(umiak complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)\"\n"
            )
        }
        _ => text,
    }
}

const BASH: &str = r#"
_umiak_runs() {
    local word="${COMP_WORDS[COMP_CWORD]}" found
    if [[ $COMP_CWORD -ge 2 && $word != -* ]]; then
        found=$(umiak complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
        if [[ -n $found ]]; then
            local line
            COMPREPLY=()
            while IFS= read -r line; do
                COMPREPLY+=("$(printf %q "$line")")
            done <<< "$found"
            return 0
        fi
    fi
    _umiak "$@"
}
complete -F _umiak_runs -o nosort -o bashdefault -o default umiak
"#;

const ZSH: &str = r#"
_umiak_runs() {
    if (( CURRENT > 2 )) && [[ ${words[CURRENT]} != -* ]]; then
        local -a found
        found=(${(f)"$(umiak complete ${words[2,CURRENT]} 2>/dev/null)"})
        if (( $#found )); then
            compadd -a found
            return
        fi
    fi
    _umiak "$@"
}
"#;

/// Completions of the last word; empty where clap completes it. The words begin with the command.
pub(super) fn candidates(words: &[&String]) -> Vec<String> {
    let [name, before @ .., last] = words else { return Vec::new() };
    let name = name.as_str();
    if before.last().is_some_and(|word| takes_value(name, word)) {
        return Vec::new();
    }
    let plain: Vec<&str> = before.iter().map(|word| word.as_str()).filter(|word| !word.starts_with('-')).collect();
    let found = match plain.as_slice() {
        _ if OF_DOCUMENTS.contains(&name) => documents(last),
        [run, ..] if matches!(name, "logs" | "attach") => replicas(run),
        [] if OF_RUNS.contains(&name) => runs(name),
        [..] if ["wait", "stop", "rm"].contains(&name) => runs(name),
        _ => Vec::new(),
    };
    found.into_iter().filter(|word| word.starts_with(last.as_str())).collect()
}

/// True if this word is a flag whose value is the next word.
fn takes_value(name: &str, word: &str) -> bool {
    let command = public();
    let Some(command) = command.find_subcommand(name) else { return false };
    let is_it = |argument: &&clap::Arg| {
        let long = argument.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        let short = argument.get_short().is_some_and(|short| word.strip_prefix('-') == Some(&short.to_string()));
        long || short
    };
    command.get_arguments().find(is_it).is_some_and(|argument| argument.get_action().takes_values())
}

/// Names and ids of the runs that a command applies to, newest first, without duplicates. The shells read one word a
/// line, so names with control characters are left out.
fn runs(command: &str) -> Vec<String> {
    let Ok(home) = Home::from_environment() else { return Vec::new() };
    let entries = index::entries(&home).unwrap_or_default();
    let newest = entries.iter().rev().filter(|entry| is_for(command, &home, entry)).take(RUNS);
    let newest: Vec<&IndexEntry> = newest.collect();
    let newest = || newest.iter();
    let mut found: Vec<String> = Vec::new();
    let is_word = |name: &String| !name.is_empty() && !name.contains(char::is_control);
    let names = newest().map(|entry| entry.name.clone()).filter(is_word);
    for word in names.chain(newest().map(|entry| entry.run.to_string())) {
        if !found.contains(&word) {
            found.push(word);
        }
    }
    found
}

/// True if the command applies to a run in this state.
fn is_for(command: &str, home: &Home, entry: &IndexEntry) -> bool {
    let is_finished = entry.state.is_finished();
    match command {
        "stop" | "attach" => is_live(home, entry),
        "resume" => !is_finished && !is_live(home, entry),
        "retry" => is_finished,
        "rm" => !is_live(home, entry),
        _ => true,
    }
}

/// Roles and replicas of a run.
fn replicas(run: &str) -> Vec<String> {
    let loaded = Home::from_environment().and_then(|home| find(&home, run)).ok().and_then(|run| load(run).ok());
    let Some(loaded) = loaded else { return Vec::new() };
    let mut found: Vec<String> = Vec::new();
    let replicas = || loaded.status.replicas.iter();
    for word in replicas().map(ReplicaStatus::role).chain(replicas().map(|replica| replica.replica.as_str())) {
        if !found.iter().any(|other| other == word) {
            found.push(word.to_owned());
        }
    }
    found
}

/// Documents and directories beside the one that the word begins.
fn documents(word: &str) -> Vec<String> {
    let (directory, prefix) = word.rsplit_once('/').map_or(("", ""), |(directory, _)| (directory, "/"));
    let place = match (directory, prefix) {
        ("", "") => ".",
        ("", _) => "/",
        (directory, _) => directory,
    };
    let mut found: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_directory = entry.path().is_dir();
        let path = entry.path();
        let is_document = path.extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml");
        if (is_directory || is_document) && !name.starts_with('.') {
            found.push(format!("{directory}{prefix}{name}{}", if is_directory { "/" } else { "" }));
        }
    }
    found.sort();
    found
}
