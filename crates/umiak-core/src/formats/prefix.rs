//! The prefix rule: any documented command works with `umiak` in front of it.
//!
//! Looks at the words of the whole command line, the program's own name first, and says which front door
//! they mean. It reads the interpreter's own options just far enough to find `-m MODULE`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::launch::Spelling;
use crate::diag::{Code, Diagnostic};

/// What to use until torch's own flags are here.
const TORCH: &str =
    "`umiak launch --nproc_per_node N SCRIPT` starts torch scripts too: ranks have torch's variables beside Paddle's";

/// Where a command line leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Front {
    /// Paddle's launcher, and the words behind its name.
    Launch(Spelling, Vec<OsString>),
    /// Known, and not built yet: `torchrun`, `paddlerec.run`.
    NotInThisVersion { what: String },
    /// `umiak python …` that starts nothing we stand in for.
    Refused(Box<Diagnostic>),
    /// Our own commands.
    Other,
}

impl Front {
    /// What to say when this front cannot be entered.
    pub fn diagnostic(&self) -> Option<Diagnostic> {
        match self {
            Self::NotInThisVersion { what } => {
                let error = Diagnostic::error(Code::L0003, format!("`{what}` is not in this version"));
                let is_torch = what.contains("torch");
                Some(if is_torch { error.hint(TORCH) } else { error })
            }
            Self::Refused(diagnostic) => Some((**diagnostic).clone()),
            Self::Launch(..) | Self::Other => None,
        }
    }
}

/// Reads a whole command line: `argv[0]` is the name that umiak was called by.
pub fn recognise(argv: &[OsString]) -> Front {
    let Some((called, words)) = argv.split_first() else { return Front::Other };
    if let Some(front) = by_name(base_name(called), words) {
        return front;
    }
    let Some((first, rest)) = words.split_first() else { return Front::Other };
    match first.to_str() {
        Some("launch") => Front::Launch(Spelling::Launch, rest.to_vec()),
        _ if is_interpreter(base_name(first)) => behind_interpreter(first, rest),
        _ => by_name(base_name(first), rest).unwrap_or(Front::Other),
    }
}

/// The launchers that are programs of their own, by path or not.
fn by_name(name: &OsStr, rest: &[OsString]) -> Option<Front> {
    match name.to_str()? {
        "fleetrun" => Some(Front::Launch(Spelling::Fleetrun, rest.to_vec())),
        "torchrun" => Some(Front::NotInThisVersion { what: "torchrun".to_owned() }),
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
        Some("paddle.distributed.fleet.launch") => Front::Launch(Spelling::FleetModule { interpreter }, rest.to_vec()),
        Some(
            known @ ("torch.distributed.run"
            | "torch.distributed.launch"
            | "paddlerec.run"
            | "paddle.distributed.elastic"),
        ) => Front::NotInThisVersion { what: format!("python -m {known}") },
        _ => refuse(&interpreter, Some(&module)),
    }
}

/// The module of `-m`, and what follows it: the interpreter reads no further than that.
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
            format!("`umiak {interpreter}` starts launchers, and `{}` is none it knows", what.to_string_lossy())
        }
        None => format!("`umiak {interpreter}` needs the launcher to start"),
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
            Front::Launch(Spelling::Fleetrun, rest) => format!("fleetrun: {}", join(&rest)),
            Front::Launch(Spelling::PaddleModule { interpreter }, rest) => {
                format!("paddle by {}: {}", interpreter.to_string_lossy(), join(&rest))
            }
            Front::Launch(Spelling::FleetModule { interpreter }, rest) => {
                format!("fleet by {}: {}", interpreter.to_string_lossy(), join(&rest))
            }
            Front::NotInThisVersion { what } => format!("later: {what}"),
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
            ("umiak python3.11 -u -m paddle.distributed.launch t.py", "paddle by python3.11: t.py"),
            ("umiak python -um paddle.distributed.launch t.py", "paddle by python: t.py"),
            ("umiak python -mpaddle.distributed.launch t.py", "paddle by python: t.py"),
            ("umiak python -W ignore -X dev -Bm paddle.distributed.launch t.py", "paddle by python: t.py"),
            ("umiak python -Wignore -Xdev -m paddle.distributed.run t.py", "paddle by python: t.py"),
            ("umiak /usr/bin/python3 -m paddle.distributed.fleet.launch t.py", "fleet by /usr/bin/python3: t.py"),
            ("umiak torchrun t.py", "later: torchrun"),
            ("torchrun t.py", "later: torchrun"),
            ("umiak python -m torch.distributed.run t.py", "later: python -m torch.distributed.run"),
            ("umiak python -m torch.distributed.launch t.py", "later: python -m torch.distributed.launch"),
            ("umiak python -m paddlerec.run -m c.yaml -b b.yaml", "later: python -m paddlerec.run"),
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
    fn says_what_to_write_instead() {
        let text = front("umiak python3 train.py").diagnostic().map(|d| d.to_plain()).unwrap_or_default();
        assert_eq!(
            text,
            "error[L0001]: `umiak python3` starts launchers, and `train.py` is none it knows\nhint: write `umiak python3 -m paddle.distributed.launch SCRIPT`, or `umiak launch SCRIPT`\n"
        );
        let text = front("umiak torchrun t.py").diagnostic().map(|d| d.to_plain()).unwrap_or_default();
        assert_eq!(
            text,
            "error[L0003]: `torchrun` is not in this version\nhint: `umiak launch --nproc_per_node N SCRIPT` starts torch scripts too: ranks have torch's variables beside Paddle's\n"
        );
    }
}
