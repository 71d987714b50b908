//! The command of each rank: the script itself, or an interpreter with the script.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::diag::{Code, Diagnostic, nearest};
use crate::model::{Command, CommandRequest, Interpreter, ScriptKind};

/// The state of the script and the interpreters in the file system, looked up by the caller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files {
    pub script: ScriptFile,
    /// The executable with this bare name on `PATH`, if any.
    pub script_on_path: Option<PathBuf>,
    /// The `#!` line of the script, if it has one.
    pub first_line: Option<FirstLine>,
    /// The current directory, for messages.
    pub directory: PathBuf,
    /// Names of the files in the directory of a missing script.
    pub neighbours: Vec<String>,
    /// The candidate interpreters in order of preference, with the path of each that was found.
    pub interpreters: Vec<(String, Option<PathBuf>)>,
}

/// The kind of file at the script's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScriptFile {
    #[default]
    Missing,
    Directory,
    File {
        executable: bool,
        readable: bool,
    },
}

/// The interpreter that the kernel would start for the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstLine {
    /// `/usr/bin/env`, as written.
    pub interpreter: String,
    pub is_there: bool,
    /// True if the line names Python, directly or through `env`.
    pub is_python: bool,
    /// True if the line ends in a carriage return, which the kernel treats as part of the name.
    pub has_carriage_return: bool,
}

/// Names of the interpreters to look for, in order. A word with a slash is a path.
pub fn interpreter_names(asked: Option<&Interpreter>, virtual_env: Option<&str>) -> Vec<String> {
    match asked {
        Some(Interpreter::Named(interpreter)) => vec![interpreter.to_string_lossy().into_owned()],
        // A launcher given by its path uses only its own interpreter.
        Some(Interpreter::OfScript(script)) if script.as_encoded_bytes().contains(&b'/') => Vec::new(),
        Some(Interpreter::OfScript(_)) | None => virtual_env
            .filter(|directory| !directory.is_empty())
            .map(|directory| format!("{directory}/bin/python"))
            .into_iter()
            .chain(["python3".to_owned(), "python".to_owned()])
            .collect(),
    }
}

/// The program to execute and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resolved {
    pub program: PathBuf,
    #[serde(with = "words")]
    #[schemars(with = "Vec<String>")]
    pub argv: Command,
}

/// Serializes the words of a command as text. Bytes that are not UTF-8 are replaced.
mod words {
    use std::ffi::OsString;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(words: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(words.iter().map(|word| word.to_string_lossy()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().map(OsString::from).collect())
    }
}

/// Finds the program to execute: an interpreter for `.py` and other plain files, otherwise the executable itself.
pub fn resolve(command: &CommandRequest, files: &Files) -> Result<Resolved, Diagnostic> {
    let script = &command.script;
    let shown = script.to_string_lossy();
    let extension = Path::new(script).extension().and_then(OsStr::to_str).unwrap_or("");
    match command.kind {
        ScriptKind::ByName => {}
        ScriptKind::Module => return by_python(&["-u", "-m"], command, files),
        ScriptKind::Python => {
            return match files.script {
                ScriptFile::Missing => Err(missing(command, false, files)),
                ScriptFile::File { readable: false, .. } => Err(unreadable(&shown)),
                // A directory may be a package with `__main__.py`.
                ScriptFile::Directory | ScriptFile::File { .. } => by_python(&["-u"], command, files),
            };
        }
        // As `execvp` looks for it: a name without a slash only on `PATH`.
        ScriptKind::Program => {
            let is_path = script.as_encoded_bytes().contains(&b'/');
            let found = if is_path { Some(PathBuf::from(script)) } else { files.script_on_path.clone() };
            let found = found.filter(|_| !is_path || matches!(files.script, ScriptFile::File { .. }));
            let program = found.ok_or_else(|| missing(command, true, files))?;
            check_first_line(&shown, files)?;
            return Ok(Resolved { program, argv: with_args(vec![script.clone()], command) });
        }
    }
    match files.script {
        ScriptFile::Missing if extension == "py" || extension == "pyxes" => Err(missing(command, false, files)),
        ScriptFile::Missing | ScriptFile::Directory if files.script_on_path.is_some() => {
            let program = files.script_on_path.clone().expect("checked by the guard");
            check_first_line(&shown, files)?;
            Ok(Resolved { program, argv: with_args(vec![script.clone()], command) })
        }
        ScriptFile::Missing => Err(missing(command, true, files)),
        ScriptFile::Directory => {
            Err(Diagnostic::error(Code::L0012, format!("`{shown}` is a directory, not a training script"))
                .hint("name the script inside it, as in `umiak launch train.py`"))
        }
        ScriptFile::File { readable: false, .. } if extension == "py" => Err(unreadable(&shown)),
        ScriptFile::File { executable: true, .. } if extension != "py" && extension != "pyxes" => {
            check_first_line(&shown, files)?;
            // `exec` needs a path for a file in the current directory; `argv[0]` stays as written.
            let program = PathBuf::from(script);
            let program = if program.components().count() == 1 { Path::new(".").join(program) } else { program };
            Ok(Resolved { program, argv: with_args(vec![script.clone()], command) })
        }
        ScriptFile::File { executable: false, .. } if extension == "yaml" || extension == "yml" => {
            Err(Diagnostic::error(Code::L0012, format!("`{shown}` is a document, not a training script"))
                .hint(format!("to run a document, write `umiak run {shown}`")))
        }
        // Python would run it as a Python program and report a syntax error.
        ScriptFile::File { executable: false, .. }
            if extension != "py" && files.first_line.as_ref().is_some_and(|line| !line.is_python) =>
        {
            let line = files.first_line.as_ref().expect("checked by the guard");
            let interpreter = Path::new(&line.interpreter).file_name().map_or("sh".into(), OsStr::to_string_lossy);
            let interpreter = if interpreter == "env" { "sh".into() } else { interpreter };
            Err(Diagnostic::error(Code::L0012, format!("`{shown}` has no executable bit"))
                .row("first line", format!("#!{} …", line.interpreter.escape_debug()))
                .hint(format!(
                    "`chmod +x {shown}`, or put its interpreter in front: `umiak launch {interpreter} {shown}`"
                )))
        }
        ScriptFile::File { .. } => {
            // The full path, as Paddle passes `sys.executable`: Python finds its own environment by it.
            let program = interpreter(&files.interpreters)?;
            let mut argv: Command = vec![program.clone().into()];
            if extension != "pyxes" {
                argv.push("-u".into());
            }
            if command.with_coverage && extension == "py" {
                argv.extend(["-m", "coverage", "run", "--branch", "-p"].map(OsString::from));
            }
            argv.push(script.clone());
            Ok(Resolved { program, argv: with_args(argv, command) })
        }
    }
}

/// The script behind an interpreter with these options.
fn by_python(options: &[&str], command: &CommandRequest, files: &Files) -> Result<Resolved, Diagnostic> {
    let program = interpreter(&files.interpreters)?;
    let options = options.iter().map(OsString::from);
    let argv = [program.clone().into()].into_iter().chain(options).chain([command.script.clone()]).collect();
    Ok(Resolved { program, argv: with_args(argv, command) })
}

fn unreadable(shown: &str) -> Diagnostic {
    Diagnostic::error(Code::L0012, format!("`{shown}` cannot be read")).hint("check the file's permissions")
}

fn with_args(mut argv: Command, command: &CommandRequest) -> Command {
    argv.extend(command.args.iter().cloned());
    argv
}

/// The first interpreter that was found.
pub fn interpreter(interpreters: &[(String, Option<PathBuf>)]) -> Result<PathBuf, Diagnostic> {
    interpreters.iter().find_map(|(_, path)| path.clone()).ok_or_else(|| {
        let tried = interpreters.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        Diagnostic::error(Code::L0013, "no Python interpreter was found")
            .row("tried", tried)
            .hint("install Python, activate a virtual environment, or name one: `umiak /path/to/python -m paddle.distributed.launch …`")
    })
}

/// Checks the `#!` line, because the kernel reports a missing interpreter as "not found" for the script.
fn check_first_line(shown: &str, files: &Files) -> Result<(), Diagnostic> {
    let Some(line) = &files.first_line else { return Ok(()) };
    let interpreter = line.interpreter.escape_debug();
    if line.has_carriage_return {
        return Err(Diagnostic::error(Code::L0012, format!("the first line of `{shown}` ends in a carriage return"))
            .row("first line", format!("#!{interpreter} …"))
            .hint("the file has Windows line endings; convert it with `dos2unix`"));
    }
    if !line.is_there {
        return Err(Diagnostic::error(
            Code::L0012,
            format!("`{shown}` needs the interpreter `{interpreter}`, which does not exist"),
        )
        .hint("correct its first line, or install the interpreter"));
    }
    Ok(())
}

fn missing(command: &CommandRequest, is_sought_on_path: bool, files: &Files) -> Diagnostic {
    let script = &command.script;
    let shown = script.to_string_lossy();
    let error = Diagnostic::error(Code::L0011, format!("the training script `{shown}` was not found"));
    let is_bare = Path::new(script).components().count() == 1;
    let error = match (is_bare, is_sought_on_path) {
        (true, true) => error.row("looked in", format!("{}\nPATH", files.directory.display())),
        (true, false) => error.row("looked in", files.directory.display().to_string()),
        (false, _) => {
            // Without `.` in the middle.
            let path: PathBuf = files.directory.join(script).components().collect();
            error.row("looked for", path.display().to_string())
        }
    };
    if let Some(misread) = &command.misread {
        return error.hint(misread.as_str());
    }
    // `--gpus 0 1 train.py` makes `1` the script.
    if !shown.is_empty() && shown.chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ') {
        return error.hint("write lists without spaces: `--gpus 0,1`; the first word that is not a flag is the script");
    }
    let name = Path::new(script).file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    if files.neighbours.iter().any(|neighbour| *neighbour == name) {
        return error.hint("a broken symbolic link has that name");
    }
    match nearest(&name, files.neighbours.iter().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean `{}`?", Path::new(script).with_file_name(near).display())),
        None if is_bare => error.hint("change to the script's directory, or give its path"),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::tests::request;

    fn files(script: ScriptFile, on_path: Option<&str>, python: Option<&str>) -> Files {
        Files {
            script,
            script_on_path: on_path.map(PathBuf::from),
            interpreters: vec![("python3".into(), python.map(PathBuf::from)), ("python".into(), None)],
            ..Files::default()
        }
    }

    fn words(resolved: &Resolved) -> (String, String) {
        let argv = resolved.argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        (resolved.program.display().to_string(), argv)
    }

    #[test]
    fn which_program() {
        let plain = ScriptFile::File { executable: false, readable: true };
        let executable = ScriptFile::File { executable: true, readable: true };
        let py = Some("/usr/bin/python3");
        for (script, files, expected) in [
            ("train.py", files(plain, None, py), Ok(("/usr/bin/python3", "/usr/bin/python3 -u train.py --lr 0.1"))),
            (
                "train.py",
                files(executable, None, py),
                Ok(("/usr/bin/python3", "/usr/bin/python3 -u train.py --lr 0.1")),
            ),
            ("train.pyxes", files(plain, None, py), Ok(("/usr/bin/python3", "/usr/bin/python3 train.pyxes --lr 0.1"))),
            (
                "hostname",
                files(ScriptFile::Missing, Some("/bin/hostname"), py),
                Ok(("/bin/hostname", "hostname --lr 0.1")),
            ),
            ("run", files(executable, None, None), Ok(("./run", "run --lr 0.1"))),
            ("./run", files(executable, None, None), Ok(("./run", "./run --lr 0.1"))),
            (
                "train_script",
                files(plain, None, py),
                Ok(("/usr/bin/python3", "/usr/bin/python3 -u train_script --lr 0.1")),
            ),
            ("train.py", files(ScriptFile::Missing, None, py), Err(Code::L0011)),
            ("nothing", files(ScriptFile::Missing, None, py), Err(Code::L0011)),
            ("src", files(ScriptFile::Directory, None, py), Err(Code::L0012)),
            ("job.yaml", files(plain, None, py), Err(Code::L0012)),
            ("job.yml", files(executable, None, None), Ok(("./job.yml", "job.yml --lr 0.1"))),
            ("train.py", files(plain, None, None), Err(Code::L0013)),
            ("train.py", files(ScriptFile::File { executable: false, readable: false }, None, py), Err(Code::L0012)),
        ] {
            let mut command = request().command;
            command.script = script.into();
            command.args = vec!["--lr".into(), "0.1".into()];
            let seen = resolve(&command, &files);
            let seen = seen.as_ref().map(words).map_err(|diagnostic| diagnostic.code);
            let expected = expected.map(|(program, argv): (&str, &str)| (program.to_owned(), argv.to_owned()));
            assert_eq!(seen, expected, "{script}");
        }
    }

    #[test]
    fn where_a_missing_script_was_sought() {
        let neighbours = vec!["train.py".to_owned(), "data".to_owned()];
        let files = Files { directory: "/home/li".into(), neighbours, ..Files::default() };
        for (script, expected) in [
            ("trian.py", "  looked in  /home/li\nhint: did you mean `train.py`?\n"),
            ("data", "  looked in  /home/li\n             PATH\nhint: a broken symbolic link has that name\n"),
            ("src/trian.py", "  looked for  /home/li/src/trian.py\nhint: did you mean `src/train.py`?\n"),
            ("src/other.py", "  looked for  /home/li/src/other.py\n"),
            ("./src/other.py", "  looked for  /home/li/src/other.py\n"),
            ("/x/other", "  looked for  /x/other\n"),
            (
                "worker",
                "  looked in  /home/li\n             PATH\nhint: change to the script's directory, or give its path\n",
            ),
            (
                "1",
                "  looked in  /home/li\n             PATH\nhint: write lists without spaces: `--gpus 0,1`; the first word that is not a flag is the script\n",
            ),
        ] {
            let mut command = request().command;
            command.script = script.into();
            let text = resolve(&command, &files).unwrap_err().to_plain();
            assert_eq!(text, format!("error[L0011]: the training script `{script}` was not found\n{expected}"));
        }
    }

    #[test]
    fn first_lines() {
        let line = |interpreter: &str, is_there, has_carriage_return| {
            Some(FirstLine { interpreter: interpreter.to_owned(), is_there, is_python: false, has_carriage_return })
        };
        for (first_line, expected) in [
            (None, ""),
            (line("/bin/sh", true, false), ""),
            (
                line("/no/sh", false, false),
                "error[L0012]: `run` needs the interpreter `/no/sh`, which does not exist\nhint: correct its first line, or install the interpreter\n",
            ),
            (
                line("/usr/bin/env", true, true),
                "error[L0012]: the first line of `run` ends in a carriage return\n  first line  #!/usr/bin/env …\nhint: the file has Windows line endings; convert it with `dos2unix`\n",
            ),
        ] {
            let mut command = request().command;
            command.script = "run".into();
            let executable = ScriptFile::File { executable: true, readable: true };
            let files = Files { first_line, ..files(executable, None, None) };
            let seen = resolve(&command, &files).err().map(|diagnostic| diagnostic.to_plain()).unwrap_or_default();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn interpreters_in_order() {
        assert_eq!(interpreter_names(None, Some("/venv")), ["/venv/bin/python", "python3", "python"]);
        assert_eq!(interpreter_names(None, None), ["python3", "python"]);
        let named = Interpreter::Named("python3.11".into());
        assert_eq!(interpreter_names(Some(&named), Some("/venv")), ["python3.11"]);
        let on_path = Interpreter::OfScript("fleetrun".into());
        assert_eq!(interpreter_names(Some(&on_path), None), ["python3", "python"]);
        let by_path = Interpreter::OfScript("/v/bin/fleetrun".into());
        assert_eq!(interpreter_names(Some(&by_path), Some("/venv")), [""; 0]);
    }
}
