//! The prefix rule: any documented command works with `umiak` in front of it.
//!
//! Reads the whole command line, including the program's own name, and recognises the launcher. The interpreter's own
//! options are parsed only far enough to find `-m MODULE`. Programs that start another one in their own environment
//! (`uv run`, `conda run -n x`) may precede the interpreter; which interpreter they use is found by running them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::launch::Spelling;
use crate::diag::{Code, Diagnostic};

/// What a command line starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Front {
    /// A launcher that umiak replaces, and the arguments after its name.
    Launch(Spelling, Vec<OsString>),
    /// A launcher started through `wrapper`, and the arguments after the interpreter's name.
    Wrapped { wrapper: Wrapper, rest: Vec<OsString> },
    /// `python -m paddle.distributed.elastic`, and the arguments after it.
    Elastic(Vec<OsString>),
    /// `submit` or `python -m paddlerec.run`: the interpreter, if it is named, and the arguments after it.
    Submit { interpreter: Option<OsString>, rest: Vec<OsString> },
    /// `umiak python …` without a launcher that umiak replaces.
    Refused(Box<Diagnostic>),
    /// One of umiak's own commands.
    Other,
}

/// The program that precedes a launcher and chooses its interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrapper {
    /// `uv run …`, `conda run -n x …`: its arguments, ending with the interpreter's name.
    Runner(Vec<OsString>),
    /// `coverage run …`: a Python script; its first line names the interpreter.
    Script(OsString),
}

impl Front {
    /// The error for a command that cannot be started.
    pub fn diagnostic(&self) -> Option<Diagnostic> {
        match self {
            Self::Refused(diagnostic) => Some((**diagnostic).clone()),
            Self::Launch(..) | Self::Wrapped { .. } | Self::Elastic(_) | Self::Submit { .. } | Self::Other => None,
        }
    }
}

/// Recognises a whole command line; `argv[0]` is the name that umiak was called by.
pub fn recognise(argv: &[OsString]) -> Front {
    let Some((called, words)) = argv.split_first() else { return Front::Other };
    if let Some(front) = by_name(base_name(called), base_name(called), words) {
        return front;
    }
    let Some((first, rest)) = words.split_first() else { return Front::Other };
    match first.to_str() {
        Some("launch") => Front::Launch(Spelling::Launch, rest.to_vec()),
        Some("submit") => Front::Submit { interpreter: None, rest: rest.to_vec() },
        _ if is_interpreter(base_name(first)) => behind_interpreter(first, rest),
        _ if is_runner(base_name(first)) => behind_runner(words),
        _ => by_name(base_name(first), first, rest).unwrap_or(Front::Other),
    }
}

/// Programs whose `run` starts another program in an environment that they choose.
const RUNNERS: [&str; 11] =
    ["uv", "poetry", "conda", "mamba", "micromamba", "pdm", "pipenv", "hatch", "rye", "pixi", "coverage"];

fn is_runner(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| RUNNERS.contains(&name))
}

/// `uv run --with x python -m paddle.distributed.launch …`: finds where the launcher begins; the runner's own options
/// are not parsed.
fn behind_runner(words: &[OsString]) -> Front {
    let runs = words.iter().position(|word| word == "run").map_or(words.len(), |run| run + 1);
    let launcher = (runs..words.len()).find_map(|at| {
        let (word, rest) = (&words[at], &words[at + 1..]);
        if is_interpreter(base_name(word)) && find_module(rest).is_some_and(|(module, _)| is_launcher(&module)) {
            return Some((at, word.clone(), rest.to_vec()));
        }
        let program = match base_name(word).to_str() {
            Some("fleetrun") => Some("paddle.distributed.launch"),
            Some("torchrun") => Some("torch.distributed.run"),
            _ => None,
        };
        if let Some(module) = program {
            let rest = ["-m", module].map(OsString::from).into_iter().chain(rest.iter().cloned());
            return Some((at, "python".into(), rest.collect()));
        }
        // `uv run -m`, `coverage run -m`: the interpreter is implied.
        let is_module = word == "-m" && rest.first().is_some_and(|module| is_launcher(module));
        is_module.then(|| (at, "python".into(), words[at..].to_vec()))
    });
    let Some((at, interpreter, rest)) = launcher else {
        let shown: Vec<_> = words[..runs].iter().map(|word| word.to_string_lossy()).collect();
        return refuse(OsStr::new(&shown.join(" ")), words.get(runs));
    };
    let wrapper = if base_name(&words[0]) == "coverage" {
        Wrapper::Script(words[0].clone())
    } else {
        Wrapper::Runner(words[..at].iter().cloned().chain([interpreter]).collect())
    };
    Front::Wrapped { wrapper, rest }
}

/// Modules that are launchers, supported or not.
fn is_launcher(module: &OsStr) -> bool {
    module.to_str().is_some_and(|module| {
        module.starts_with("paddle.distributed.")
            || module.starts_with("torch.distributed.")
            || matches!(module, "paddle.fleet.launch" | "paddlerec.run")
    })
}

/// The interpreter that the first line of a Python script names, by path or by name. `head` is how the script begins.
pub fn script_interpreter(head: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.strip_prefix("#!")?.lines();
    let mut words = lines.next()?.split_whitespace();
    let program = words.next()?;
    let name = |word: &str| Path::new(word).file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let interpreter = match name(program).as_str() {
        "env" => words.find(|word| !word.starts_with('-') && !word.contains('='))?.to_owned(),
        // pip writes this where the path is too long for a first line or contains a space.
        "sh" => {
            let line = lines.next()?.strip_prefix("'''exec' ")?;
            match line.strip_prefix('"') {
                Some(quoted) => quoted.split('"').next()?.to_owned(),
                None => line.split_whitespace().next()?.to_owned(),
            }
        }
        _ => program.to_owned(),
    };
    is_interpreter(OsStr::new(&name(&interpreter))).then_some(interpreter)
}

/// Launchers that are separate programs, with or without a path.
fn by_name(name: &OsStr, word: &OsStr, rest: &[OsString]) -> Option<Front> {
    match name.to_str()? {
        "fleetrun" => Some(Front::Launch(Spelling::Fleetrun { program: word.to_owned() }, rest.to_vec())),
        "torchrun" => Some(Front::Launch(Spelling::Torchrun { program: word.to_owned() }, rest.to_vec())),
        _ => None,
    }
}

fn base_name(word: &OsStr) -> &OsStr {
    Path::new(word).file_name().unwrap_or(word)
}

/// `python`, `python3`, `python3.11`, `python3.13t`, `pypy3`.
fn is_interpreter(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let Some(version) = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy")) else { return false };
    let version = version.strip_suffix(['t', 'd']).unwrap_or(version);
    version.is_empty()
        || version.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn behind_interpreter(interpreter: &OsStr, words: &[OsString]) -> Front {
    let Some((module, rest)) = find_module(words) else { return refuse(interpreter, words.first()) };
    let interpreter = interpreter.to_owned();
    match module.to_str() {
        // `paddle.distributed.run` was the current launcher's name while it was being written.
        Some("paddle.distributed.launch" | "paddle.distributed.launch.main" | "paddle.distributed.run") => {
            Front::Launch(Spelling::PaddleModule { interpreter }, rest.to_vec())
        }
        Some("paddle.distributed.fleet.launch" | "paddle.fleet.launch") => {
            Front::Launch(Spelling::FleetModule { interpreter }, rest.to_vec())
        }
        // Paddle 1.x, with its defaults.
        Some("paddle.distributed.launch_ps") => {
            let defaults = ["--server_num", "2", "--worker_num", "2", "--log_dir", "logs"].map(OsString::from);
            let words = defaults.into_iter().chain(rest.iter().cloned()).collect();
            Front::Launch(Spelling::FleetModule { interpreter }, words)
        }
        Some("torch.distributed.run") => Front::Launch(Spelling::TorchModule { interpreter }, rest.to_vec()),
        Some("torch.distributed.launch") => Front::Launch(Spelling::TorchLaunch { interpreter }, rest.to_vec()),
        Some("paddle.distributed.elastic") => Front::Elastic(rest.to_vec()),
        Some("paddlerec.run") => Front::Submit { interpreter: Some(interpreter), rest: rest.to_vec() },
        _ => refuse(&interpreter, Some(&module)),
    }
}

/// The module of `-m` and the arguments after it, which the interpreter does not parse.
fn find_module(words: &[OsString]) -> Option<(OsString, &[OsString])> {
    let mut position = 0;
    while let Some(word) = words.get(position) {
        position += 1;
        let bytes = word.as_bytes();
        if bytes == b"--check-hash-based-pycs" {
            position += 1;
            continue;
        }
        let letters = bytes.strip_prefix(b"-").filter(|letters| !letters.is_empty() && letters[0] != b'-')?;
        // Options of one letter may share a dash, and the last may have its value attached: `-um paddle…`.
        for (at, letter) in letters.iter().enumerate() {
            let attached = &letters[at + 1..];
            match letter {
                b'm' if attached.is_empty() => {
                    return words.get(position).map(|module| (module.clone(), &words[position + 1..]));
                }
                b'm' => return Some((OsString::from_vec(attached.to_vec()), &words[position..])),
                b'c' => return None,
                b'W' | b'X' => {
                    position += usize::from(attached.is_empty());
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

fn refuse(interpreter: &OsStr, what: Option<&OsString>) -> Front {
    let interpreter = interpreter.to_string_lossy();
    let message = match what {
        Some(what) => {
            format!("`umiak {interpreter}` starts launchers, and `{}` is not one", what.to_string_lossy())
        }
        None => format!("`umiak {interpreter}` needs a launcher to start"),
    };
    let diagnostic = Diagnostic::error(Code::L0001, message)
        .hint(format!("write `umiak {interpreter} -m paddle.distributed.launch SCRIPT`, or `umiak launch SCRIPT`"));
    Front::Refused(Box::new(diagnostic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(line: &str) -> Front {
        recognise(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    fn show(line: &str) -> String {
        let join = |rest: &[OsString]| rest.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        match front(line) {
            Front::Launch(Spelling::Launch, rest) => format!("launch: {}", join(&rest)),
            Front::Launch(Spelling::Fleetrun { program } | Spelling::Torchrun { program }, rest) => {
                format!("{}: {}", program.to_string_lossy(), join(&rest))
            }
            Front::Wrapped { wrapper: Wrapper::Runner(words), rest } => format!("[{}] {}", join(&words), join(&rest)),
            Front::Wrapped { wrapper: Wrapper::Script(program), rest } => {
                format!("<{}> {}", program.to_string_lossy(), join(&rest))
            }
            Front::Launch(Spelling::PaddleModule { interpreter }, rest) => {
                format!("paddle by {}: {}", interpreter.to_string_lossy(), join(&rest))
            }
            Front::Launch(Spelling::FleetModule { interpreter }, rest) => {
                format!("fleet by {}: {}", interpreter.to_string_lossy(), join(&rest))
            }
            Front::Launch(Spelling::TorchModule { interpreter }, rest) => {
                format!("torch by {}: {}", interpreter.to_string_lossy(), join(&rest))
            }
            Front::Launch(Spelling::TorchLaunch { interpreter }, rest) => {
                format!("old torch by {}: {}", interpreter.to_string_lossy(), join(&rest))
            }
            Front::Elastic(rest) => format!("elastic: {}", join(&rest)),
            Front::Submit { interpreter, rest } => {
                let interpreter = interpreter.map(|interpreter| interpreter.to_string_lossy().into_owned());
                format!("submit by {}: {}", interpreter.as_deref().unwrap_or("any"), join(&rest))
            }
            Front::Refused(_) => "refused".to_owned(),
            Front::Other => "other".to_owned(),
        }
    }

    #[test]
    fn every_documented_command() {
        for (line, expected) in [
            ("umiak launch --gpus 2,3 train.py", "launch: --gpus 2,3 train.py"),
            ("umiak fleetrun --gpus 2,3 train.py", "fleetrun: --gpus 2,3 train.py"),
            ("/usr/local/bin/fleetrun train.py", "fleetrun: train.py"),
            ("umiak python -m paddle.distributed.launch t.py -m x", "paddle by python: t.py -m x"),
            ("umiak python -m paddle.distributed.elastic --np 2 scale", "elastic: --np 2 scale"),
            ("umiak python3.11 -u -m paddle.distributed.launch t.py", "paddle by python3.11: t.py"),
            ("umiak python -um paddle.distributed.launch t.py", "paddle by python: t.py"),
            ("umiak python -mpaddle.distributed.launch t.py", "paddle by python: t.py"),
            ("umiak python -W ignore -X dev -Bm paddle.distributed.launch t.py", "paddle by python: t.py"),
            ("umiak python -Wignore -Xdev -m paddle.distributed.run t.py", "paddle by python: t.py"),
            ("umiak /usr/bin/python3 -m paddle.distributed.fleet.launch t.py", "fleet by /usr/bin/python3: t.py"),
            ("umiak /v/bin/fleetrun t.py", "/v/bin/fleetrun: t.py"),
            ("umiak python -m paddle.fleet.launch t.py", "fleet by python: t.py"),
            (
                "umiak python -m paddle.distributed.launch_ps --worker_num 4 t.py",
                "fleet by python: --server_num 2 --worker_num 2 --log_dir logs --worker_num 4 t.py",
            ),
            (
                "umiak uv run --with x python -u -m paddle.distributed.launch t.py",
                "[uv run --with x python] -u -m paddle.distributed.launch t.py",
            ),
            ("umiak uv run -m paddle.distributed.launch t.py", "[uv run python] -m paddle.distributed.launch t.py"),
            (
                "umiak conda run -n python3 python -m paddle.distributed.launch t.py",
                "[conda run -n python3 python] -m paddle.distributed.launch t.py",
            ),
            (
                "umiak poetry run fleetrun --gpus 0 t.py",
                "[poetry run python] -m paddle.distributed.launch --gpus 0 t.py",
            ),
            ("umiak coverage run -p -m paddle.distributed.launch t.py", "<coverage> -m paddle.distributed.launch t.py"),
            ("umiak uv run train.py", "refused"),
            ("umiak uv", "refused"),
            ("umiak torchrun t.py", "torchrun: t.py"),
            ("/usr/local/bin/torchrun t.py", "torchrun: t.py"),
            ("umiak /v/bin/torchrun t.py", "/v/bin/torchrun: t.py"),
            ("umiak python -m torch.distributed.run t.py", "torch by python: t.py"),
            ("umiak python3 -m torch.distributed.launch t.py", "old torch by python3: t.py"),
            ("umiak uv run torchrun t.py", "[uv run python] -m torch.distributed.run t.py"),
            ("umiak python -m paddlerec.run -m c.yaml -b b.yaml", "submit by python: -m c.yaml -b b.yaml"),
            ("umiak submit -m c.yaml -b b.yaml", "submit by any: -m c.yaml -b b.yaml"),
            ("umiak uv run python -m paddlerec.run -m c.yaml", "[uv run python] -m paddlerec.run -m c.yaml"),
            ("umiak python train.py", "refused"),
            ("umiak python", "refused"),
            ("umiak python -m", "refused"),
            ("umiak python -c pass -m paddle.distributed.launch", "refused"),
            ("umiak python -m http.server", "refused"),
            ("umiak python3.x -m paddle.distributed.launch", "other"),
            ("umiak run pipeline.yaml", "other"),
            ("umiak", "other"),
        ] {
            assert_eq!(show(line), expected, "{line}");
        }
        assert_eq!(recognise(&[]), Front::Other);
    }

    #[test]
    fn first_lines_of_scripts() {
        for (head, expected) in [
            ("#!/v/bin/python3\nimport", Some("/v/bin/python3")),
            ("#!/usr/bin/env python3.11\n", Some("python3.11")),
            ("#!/usr/bin/env -S X=1 python -I\n", Some("python")),
            ("#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n", Some("/a b/python")),
            ("#!/bin/sh\n'''exec' /a/python3 \"$0\" \"$@\"\n", Some("/a/python3")),
            ("#!/bin/sh\necho\n", None),
            ("#!/usr/bin/perl\n", None),
            ("\u{7f}ELF", None),
            ("", None),
        ] {
            assert_eq!(script_interpreter(head.as_bytes()).as_deref(), expected, "{head}");
        }
    }

    #[test]
    fn says_what_to_write_instead() {
        let text = front("umiak python3 train.py").diagnostic().map(|d| d.to_plain()).unwrap_or_default();
        assert_eq!(
            text,
            "error[L0001]: `umiak python3` starts launchers, and `train.py` is not one\nhint: write `umiak python3 -m paddle.distributed.launch SCRIPT`, or `umiak launch SCRIPT`\n"
        );
    }
}
