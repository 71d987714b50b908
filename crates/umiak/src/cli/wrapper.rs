//! Commands in front of a launcher: `uv run`, `poetry run`, `conda run -n x`, `coverage run`.
//!
//! Such a program chooses an interpreter and an environment. It runs once to find both, not once for every rank: umiak
//! then executes itself with that environment, and with that interpreter in its command line.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::prefix::Wrapper;

use crate::host::inventory;

/// One line without `$`, `"` and backquotes: some of these programs pass it to a shell.
const PROBE: &str = "import os,sys;print();print('umiak-probe',os.fsencode(sys.executable).hex(),bytes(1).join(k+b'='+v for k,v in os.environb.items()).hex())";
const MARK: &str = "umiak-probe ";

/// Puts the interpreter in place of the wrapper. If the environment changes, umiak restarts in it and this does not
/// return.
pub(super) fn resolve(wrapper: &Wrapper, rest: &[OsString]) -> Result<Vec<OsString>, Diagnostic> {
    let with = |interpreter: OsString| ["umiak".into(), interpreter].into_iter().chain(rest.iter().cloned()).collect();
    match wrapper {
        Wrapper::Script(script) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let interpreter = inventory::of_script(script, &path).ok_or_else(|| no_interpreter(script))?;
            Ok(with(interpreter.into()))
        }
        Wrapper::Runner(words) => {
            let (interpreter, environment) = ask(words)?;
            let argv: Vec<OsString> = with(interpreter);
            become_umiak(&argv, environment).map(|never| match never {})
        }
    }
}

type Variables = Vec<(OsString, OsString)>;

/// Runs the wrapper with a script that prints its interpreter and environment. The wrapper's stderr is shown.
fn ask(words: &[OsString]) -> Result<(OsString, Variables), Diagnostic> {
    let shown = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["-c", PROBE]).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| {
        Diagnostic::error(Code::L0013, format!("`{}` could not be run", words[0].to_string_lossy()))
            .row("command", &shown)
            .row("reason", error.to_string())
            .hint("install it, or name the interpreter: `umiak /path/to/python -m paddle.distributed.launch …`")
    })?;
    let said = String::from_utf8_lossy(&output.stdout);
    if let Some(answer) = said.lines().find_map(|line| line.strip_prefix(MARK)).and_then(read) {
        return Ok(answer);
    }
    let error = if output.status.success() {
        let error = Diagnostic::error(Code::L0013, format!("`{shown}` did not start a Python interpreter"));
        let first = said.lines().find(|line| !line.trim().is_empty());
        first.into_iter().fold(error, |error, line| error.row("it printed", line))
    } else {
        Diagnostic::error(Code::L0013, format!("`{shown}` failed")).row("status", output.status.to_string())
    };
    Err(error.hint("umiak runs it once to find its interpreter; try it by hand with `-c 'print(1)'`"))
}

/// The interpreter and the variables, both in hexadecimal.
fn read(answer: &str) -> Option<(OsString, Variables)> {
    let (interpreter, environment) = answer.split_once(' ')?;
    let interpreter = bytes(interpreter).filter(|path| !path.is_empty())?;
    let variables = bytes(environment)?
        .split(|byte| *byte == 0)
        .filter_map(|variable| {
            let at = variable.iter().position(|byte| *byte == b'=')?;
            let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Some((text(&variable[..at]), text(&variable[at + 1..])))
        })
        .collect();
    Some((OsString::from_vec(interpreter), variables))
}

fn bytes(hexadecimal: &str) -> Option<Vec<u8>> {
    let pairs = Some(hexadecimal.trim_end().as_bytes()).filter(|digits| digits.len() % 2 == 0)?.chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Executes umiak again in this process.
fn become_umiak(argv: &[OsString], environment: Variables) -> Result<Infallible, Diagnostic> {
    let own = std::env::current_exe();
    let failed = |error: std::io::Error| {
        Diagnostic::error(Code::L0016, "umiak could not be restarted in the environment of the wrapper")
            .row("reason", error.to_string())
    };
    let mut command = Command::new(own.map_err(failed)?);
    command.arg0("umiak").args(&argv[1..]).env_clear().envs(environment);
    Err(failed(command.exec()))
}

fn no_interpreter(script: &OsStr) -> Diagnostic {
    Diagnostic::error(Code::L0013, format!("no Python interpreter found for `{}`", script.to_string_lossy()))
        .hint("it must be on `PATH`, and its `#!` line must name a Python interpreter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_byte_for_byte() {
        let (interpreter, variables) = read("2f70 413d6200ff3d633d6400").expect("an answer");
        assert_eq!(interpreter, "/p");
        let odd = OsString::from_vec(vec![0xff]);
        assert_eq!(variables, [("A".into(), "b".into()), (odd, "c=d".into())]);
        for junk in ["", "2f70", " 41", "zz 41", "2f7 41", "2f70 4x"] {
            assert!(read(junk).is_none(), "{junk:?}");
        }
    }
}
