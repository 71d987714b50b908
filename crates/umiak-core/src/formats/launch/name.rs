//! The name of a launched run without `--job_id`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::model::JobId;

/// Programs whose first plain argument is a better name.
const INTERPRETERS: &[&str] = &["python", "bash", "sh", "env", "coverage"];

/// The stem of the script: `train` for `tools/train.py`, `python3 -u train.py` and `python3 -m tools.train`. An invalid
/// name becomes `default`.
pub(super) fn of(script: &OsStr, args: &[OsString]) -> String {
    let named = if is_interpreter(script) { behind(args).unwrap_or_else(|| stem(script)) } else { stem(script) };
    JobId::new(named).map_or_else(|_| "default".to_owned(), |name| name.to_string())
}

fn is_interpreter(script: &OsStr) -> bool {
    let stem = stem(script);
    INTERPRETERS.contains(&stem.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.'))
}

/// The script or module after an interpreter's flags; `None` with `-c`.
fn behind(args: &[OsString]) -> Option<String> {
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-c") => return None,
            Some("-m") => return words.next()?.to_str()?.rsplit('.').next().map(str::to_owned),
            Some(flag) if flag.starts_with('-') => {}
            _ => return Some(stem(word)),
        }
    }
    None
}

fn stem(word: &OsStr) -> String {
    let path = Path::new(word);
    // A version is not a suffix: `python3.11`.
    let is_script = path.extension().is_some_and(|suffix| !suffix.as_encoded_bytes().iter().all(u8::is_ascii_digit));
    let stem = if is_script { path.file_stem() } else { path.file_name() };
    stem.unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (line, name) in [
            ("train.py", "train"),
            ("tools/bert.train.py --lr 1", "bert.train"),
            ("./run", "run"),
            ("/usr/bin/python3.11 -u a/b.py x.py", "b"),
            ("python3 -m tools.train -x", "train"),
            ("python3 -c pass", "python3"),
            ("bash", "bash"),
            ("训练.py", "训练"),
            ("..", "default"),
            ("/", "default"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(of(&words[0], &words[1..]), name, "{line}");
        }
    }
}
