//! Generated files: write them, or list those that are stale.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;

/// A file generated from the code.
#[derive(Debug)]
pub(crate) struct Generated {
    /// Relative to the root of the repository.
    pub(crate) path: &'static str,
    pub(crate) content: String,
}

/// A file that differs from the generated content.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stale {
    path: &'static str,
    /// The first line that differs, from 1; `None` if the file is missing.
    line: Option<usize>,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "stale: {}:{line}", self.path),
            None => write!(f, "missing: {}", self.path),
        }
    }
}

/// Writes the files that differ, and returns their paths.
pub(crate) fn write(root: &Path, files: &[Generated]) -> anyhow::Result<Vec<&'static str>> {
    let mut written = Vec::new();
    for file in files {
        if difference(root, file)?.is_none() {
            continue;
        }
        let path = root.join(file.path);
        let directory = path.parent().expect("a generated file lies in a directory");
        fs::create_dir_all(directory).with_context(|| format!("cannot create `{}`", directory.display()))?;
        fs::write(&path, &file.content).with_context(|| format!("cannot write `{}`", path.display()))?;
        written.push(file.path);
    }
    Ok(written)
}

/// The files that [`write`] would write.
pub(crate) fn stale(root: &Path, files: &[Generated]) -> anyhow::Result<Vec<Stale>> {
    files.iter().filter_map(|file| difference(root, file).transpose()).collect()
}

fn difference(root: &Path, file: &Generated) -> anyhow::Result<Option<Stale>> {
    let path = root.join(file.path);
    let found = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Stale { path: file.path, line: None })),
        Err(error) => return Err(error).with_context(|| format!("cannot read `{}`", path.display())),
    };
    Ok(first_difference(&found, &file.content).map(|line| Stale { path: file.path, line: Some(line) }))
}

fn first_difference(found: &str, wanted: &str) -> Option<usize> {
    if found == wanted {
        return None;
    }
    let same = found.split('\n').zip(wanted.split('\n')).take_while(|(found, wanted)| found == wanted).count();
    Some(same + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &str) -> Vec<Generated> {
        vec![Generated { path: "docs/reference/page.md", content: content.to_owned() }]
    }

    fn said(root: &Path, files: &[Generated]) -> Vec<String> {
        stale(root, files).unwrap().iter().map(Stale::to_string).collect()
    }

    #[test]
    fn a_missing_file_is_named_written_and_then_fresh() {
        let root = tempfile::tempdir().unwrap();
        let files = file("one\n");
        assert_eq!(said(root.path(), &files), ["missing: docs/reference/page.md"]);
        assert_eq!(write(root.path(), &files).unwrap(), ["docs/reference/page.md"]);
        assert_eq!(said(root.path(), &files), [""; 0]);
        assert_eq!(write(root.path(), &files).unwrap(), [""; 0], "an up-to-date file is not written");
    }

    #[test]
    fn a_stale_file_is_named_with_its_first_line_and_not_touched() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &file("one\ntwo\n")).unwrap();
        for (wanted, line) in [("one\n2\n", 2), ("one\ntwo\nthree\n", 3), ("one\ntwo", 3)] {
            assert_eq!(said(root.path(), &file(wanted)), [format!("stale: docs/reference/page.md:{line}")]);
        }
        assert_eq!(fs::read_to_string(root.path().join("docs/reference/page.md")).unwrap(), "one\ntwo\n");
    }
}
