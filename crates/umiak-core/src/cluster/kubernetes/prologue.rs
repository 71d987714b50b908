//! The script that is the first process of each pod.
//!
//! It sets the variables that differ between the replicas of a role, waits for other roles, runs its arguments as a child,
//! passes signals on, and exits with the child's code. It needs a POSIX `sh` and, for variables whose names the shell does
//! not take, `env`. Nothing of it comes from a document without quotes, and the words of the command are its arguments.

use std::fmt::Write as _;

use super::variables::{Divided, Piece, rule};

/// The exit code if the script itself fails, as of umiak elsewhere.
const FAILED: u8 = 125;

/// What a script does.
#[derive(Debug, Clone, Default)]
pub(super) struct Prologue<'a> {
    /// The variable that has the index of the replica. Not read if all replicas have the same values.
    pub(super) index: &'a str,
    pub(super) replicas: u32,
    pub(super) variables: Divided,
    /// Variables whose values are in other ones: the name, and that of the other.
    pub(super) aliases: Vec<(String, String)>,
    /// Words of the command that are in variables: the position, and the name.
    pub(super) words: Vec<(usize, String)>,
    /// Number of words of the command.
    pub(super) count: usize,
    /// Directories to make, for each replica.
    pub(super) directories: Vec<Vec<String>>,
    /// The files that are copied, and where to.
    pub(super) files: Option<(&'a str, &'a str)>,
    /// Working directory.
    pub(super) dir: Option<&'a str>,
    pub(super) waits: Vec<Wait>,
}

/// What the script waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wait {
    /// Hosts, and with them ports that must be open.
    pub(super) targets: Vec<(String, Option<u16>)>,
    /// After so many seconds the command is started anyway.
    pub(super) patience: Option<u64>,
}

const BEGIN: &str = r#"# Made by umiak: sets the variables of this replica, and runs the command, which is in the arguments.
umiak_say() { echo "umiak: $*" >&2; }
umiak_fail() { umiak_say "$*"; exit 125; }
umiak_signal= umiak_child= umiak_early=
umiak_catch() {
  umiak_signal=$1
  if [ -n "$umiak_child" ]; then kill -s "$1" "$umiak_child" 2>/dev/null; else umiak_early=$1; fi
}
for umiak_name in TERM INT HUP QUIT USR1 USR2; do trap "umiak_catch $umiak_name" "$umiak_name"; done
"#;

const WAIT: &str = r#"umiak_has() { command -v "$1" >/dev/null 2>&1; }
umiak_resolves() {
  if umiak_has getent; then getent hosts "$1"
  elif umiak_has python3; then python3 -c 'import socket, sys; socket.getaddrinfo(sys.argv[1], None)' "$1"
  elif umiak_has nslookup; then nslookup "$1"
  fi
}
umiak_accepts() {
  if umiak_has python3; then
    python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)' "$1" "$2"
  elif umiak_has bash; then bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2"
  elif umiak_has nc; then nc -w 5 "$1" "$2" </dev/null
  else umiak_resolves "$1"
  fi
}
umiak_await() {
  until "$@" >/dev/null 2>&1; do
    [ -z "$umiak_signal" ] || exit 143
    if [ -n "$umiak_patience" ] && [ "$umiak_waited" -ge "$umiak_patience" ]; then
      umiak_say "no longer waiting for $2${3:+:$3}"
      return
    fi
    [ $((umiak_waited % 30)) -ne 0 ] || umiak_say "waiting for $2${3:+:$3}"
    sleep 1
    umiak_waited=$((umiak_waited + 1))
  done
}
"#;

/// A command in the background does not have SIGINT and SIGQUIT, unless `env` gives them back.
const RUN: &str = r#"[ -z "$umiak_signal" ] || exit 143
if env --default-signal=INT,QUIT true 2>/dev/null; then set -- env --default-signal=INT,QUIT "$@"; fi
"$@" &
umiak_child=$!
[ -z "$umiak_early" ] || kill -s "$umiak_early" "$umiak_child" 2>/dev/null
wait "$umiak_child"
umiak_code=$?
while [ -n "$umiak_signal" ]; do
  umiak_signal=
  wait "$umiak_child" 2>/dev/null
  umiak_again=$?
  [ "$umiak_again" -eq 127 ] || umiak_code=$umiak_again
done
exit "$umiak_code"
"#;

impl Prologue<'_> {
    /// The script.
    pub(super) fn text(&self) -> String {
        let directories: Vec<_> = self.directories.iter().map(|column| (column, rule_of(column))).collect();
        let mut text = BEGIN.to_owned();
        let is_varied = !self.variables.ruled.is_empty()
            || !self.variables.table.is_empty()
            || directories.iter().any(|(_, rule)| rule.as_deref().is_none_or(has_index));
        if is_varied {
            self.read_index(&mut text);
        }
        self.rebuild(&mut text);
        self.set(&mut text);
        for (column, rule) in directories {
            let make = |path: &str| format!("mkdir -p {path} || exit {FAILED}");
            match rule {
                Some(pieces) => text += &(make(&word(&pieces)) + "\n"),
                None => self.each(&mut text, |index| make(&quoted(&column[index]))),
            }
        }
        if let Some((from, to)) = self.files {
            let (from, to) = (quoted(from), quoted(to));
            let _ = writeln!(text, "mkdir -p {to} || exit {FAILED}\nfor umiak_name in {from}/* {from}/.[!.]*; do");
            let _ = writeln!(text, "  [ ! -e \"$umiak_name\" ] || cp -RL \"$umiak_name\" {to} || exit {FAILED}\ndone");
            let _ = writeln!(text, "cd {to} || exit {FAILED}");
        }
        if let Some(dir) = self.dir {
            let _ = writeln!(text, "cd {} || exit {FAILED}", quoted(dir));
        }
        self.wait(&mut text);
        text + RUN
    }

    fn read_index(&self, text: &mut String) {
        let Self { index, replicas, .. } = self;
        let _ = writeln!(text, "umiak_index=${{{index}-}}");
        let _ = writeln!(text, "case $umiak_index in");
        let _ = writeln!(text, "'' | *[!0-9]*) umiak_fail \"{index} is not a number: '$umiak_index'\" ;;\nesac");
        let _ = writeln!(
            text,
            "[ \"$umiak_index\" -lt {replicas} ] || umiak_fail \"{index} is $umiak_index of {replicas}\""
        );
    }

    /// Puts words of the command that are in variables into their places.
    fn rebuild(&self, text: &mut String) {
        if self.words.is_empty() {
            return;
        }
        let words = (0..self.count).map(|position| {
            let other = self.words.iter().find(|(own, _)| *own == position);
            other.map_or_else(|| format!("\"${{{}}}\"", position + 1), |(_, name)| format!("\"${name}\""))
        });
        let _ = writeln!(text, "set -- {}", words.collect::<Vec<_>>().join(" "));
        let _ =
            writeln!(text, "unset {}", self.words.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(" "));
    }

    fn set(&self, text: &mut String) {
        let Divided { common, ruled, table } = &self.variables;
        let names = common.iter().map(|(name, _)| name).chain(ruled.iter().map(|(name, _)| name));
        let mut names =
            names.chain(table.iter().map(|(name, _)| name)).chain(self.aliases.iter().map(|(name, _)| name));
        if names.any(|name| !is_identifier(name)) {
            *text += "set -- env \"$@\"\n";
        }
        for (name, value) in common {
            let _ = writeln!(text, "{}", assigned(name, &quoted(value)));
        }
        for (name, pieces) in ruled {
            let _ = writeln!(text, "{}", assigned(name, &word(pieces)));
        }
        if !table.is_empty() {
            self.each(text, |index| {
                let own = table.iter().filter_map(|(name, column)| Some((name, column.get(index)?.as_ref()?)));
                own.map(|(name, value)| assigned(name, &quoted(value))).collect::<Vec<_>>().join("\n  ")
            });
        }
        for (name, other) in &self.aliases {
            let _ = writeln!(text, "{}\nunset {other}", assigned(name, &format!("\"${other}\"")));
        }
    }

    /// Commands for each replica.
    fn each(&self, text: &mut String, commands: impl Fn(usize) -> String) {
        *text += "case $umiak_index in\n";
        for index in 0..self.replicas {
            let commands = commands(index as usize);
            if !commands.is_empty() {
                let _ = writeln!(text, "{index})\n  {commands} ;;");
            }
        }
        *text += "esac\n";
    }

    fn wait(&self, text: &mut String) {
        if self.waits.is_empty() {
            return;
        }
        *text += WAIT;
        for Wait { targets, patience } in &self.waits {
            let patience = patience.map(|seconds| seconds.to_string()).unwrap_or_default();
            let _ = writeln!(text, "umiak_patience={patience} umiak_waited=0");
            let shown = |(host, port): &(String, Option<u16>)| match port {
                Some(port) => format!("{host} {port}"),
                None => host.clone(),
            };
            let call = |port: Option<u16>| if port.is_some() { "umiak_accepts" } else { "umiak_resolves" };
            let all: Vec<String> = targets.iter().map(shown).collect();
            let rule = rule(&all.iter().map(String::as_str).collect::<Vec<_>>()).filter(|_| all.len() > 1);
            let is_same = targets.iter().all(|(_, port)| *port == targets[0].1);
            match (rule, targets.first()) {
                (Some(pieces), Some((_, port))) if is_same => {
                    let host = match port {
                        Some(port) => without(&pieces, &format!(" {port}")),
                        None => pieces,
                    };
                    let port = port.map(|port| format!(" {port}")).unwrap_or_default();
                    let call = call(targets[0].1);
                    let host = word(&host).replace("umiak_index", "umiak_other");
                    let _ = writeln!(text, "umiak_other=0\nwhile [ \"$umiak_other\" -lt {} ]; do", targets.len());
                    let _ = writeln!(text, "  umiak_await {call} {host}{port}");
                    *text += "  umiak_other=$((umiak_other + 1))\ndone\n";
                }
                _ => {
                    for target in targets {
                        let port = target.1.map(|port| format!(" {port}")).unwrap_or_default();
                        let _ = writeln!(text, "umiak_await {} {}{port}", call(target.1), quoted(&target.0));
                    }
                }
            }
        }
    }
}

/// The pieces without this end of the last one.
fn without(pieces: &[Piece], end: &str) -> Vec<Piece> {
    let mut pieces = pieces.to_vec();
    if let Some(Piece::Text(last)) = pieces.last_mut() {
        last.truncate(last.len().saturating_sub(end.len()));
    }
    pieces
}

fn rule_of(column: &[String]) -> Option<Vec<Piece>> {
    rule(&column.iter().map(String::as_str).collect::<Vec<_>>())
}

fn has_index(pieces: &[Piece]) -> bool {
    pieces.iter().any(|piece| matches!(piece, Piece::Index(_)))
}

/// Variables that shells set themselves, or do not take from outside.
const OF_SHELLS: [&str; 22] = [
    "_",
    "DIRSTACK",
    "EUID",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "IFS",
    "LINENO",
    "OLDPWD",
    "OPTARG",
    "OPTERR",
    "OPTIND",
    "PPID",
    "PS1",
    "PS2",
    "PS4",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "UID",
];

/// True for a name that a shell takes for a variable, and passes on as it is.
pub(super) fn is_identifier(name: &str) -> bool {
    let is_free = !OF_SHELLS.contains(&name) && !name.starts_with("BASH") && !name.starts_with("umiak_");
    is_free
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Sets a variable to a quoted value. One whose name the shell does not take is a word of `env`, the first argument.
fn assigned(name: &str, value: &str) -> String {
    if is_identifier(name) {
        return format!("export {name}={value}");
    }
    format!("shift; set -- env {}{value} \"$@\"", quoted(&format!("{name}=")))
}

/// A text that the shell reads as one word.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,+@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The same of a value by index.
fn word(pieces: &[Piece]) -> String {
    let shown = |piece: &Piece| match piece {
        Piece::Text(text) => quoted(text),
        Piece::Index(0) => "\"$umiak_index\"".to_owned(),
        Piece::Index(offset) if *offset < 0 => format!("\"$((umiak_index - {}))\"", offset.unsigned_abs()),
        Piece::Index(offset) => format!("\"$((umiak_index + {offset}))\""),
    };
    let word: String = pieces.iter().map(shown).collect();
    if word.is_empty() { "''".to_owned() } else { word }
}
