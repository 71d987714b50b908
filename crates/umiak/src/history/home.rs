//! Where runs are recorded.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::Error;

/// The directory that holds all runs of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    path: PathBuf,
}

impl Home {
    /// `$UMIAK_HOME`, else `$XDG_STATE_HOME/umiak`, else `~/.local/state/umiak`. Does not access the file system.
    pub fn from_environment() -> Result<Self, Error> {
        Self::locate(|name| std::env::var_os(name))
    }

    fn locate(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let path_of = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let path = path_of("UMIAK_HOME")
            // The XDG specification says to ignore relative paths.
            .or_else(|| path_of("XDG_STATE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("umiak")))
            .or_else(|| path_of("HOME").map(|path| path.join(".local/state/umiak")))
            .ok_or(Error::NoHome)?;
        Ok(Self::at(std::path::absolute(&path).unwrap_or(path)))
    }

    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn runs(&self) -> PathBuf {
        self.path.join("runs")
    }

    pub fn index(&self) -> PathBuf {
        self.path.join("index.jsonl")
    }

    /// Creates missing directories, readable only by this user.
    pub fn make(&self) -> Result<(), Error> {
        let runs = self.runs();
        DirBuilder::new().recursive(true).mode(0o700).create(&runs).map_err(|source| self.unusable("create", source))
    }

    /// Returns an error that names the part of the path that cannot be used.
    pub(super) fn unusable(&self, doing: &'static str, source: io::Error) -> Error {
        let in_the_way = self.path.ancestors().find(|path| path.symlink_metadata().is_ok());
        let path = match in_the_way {
            Some(path) if !path.is_dir() => path.to_owned(),
            Some(path) if path == self.path => self.runs(),
            _ => self.path.clone(),
        };
        Error::Home { doing, path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locate(variables: &[(&str, &str)]) -> Option<String> {
        let home = Home::locate(|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
        });
        home.ok().map(|home| home.path.to_string_lossy().into_owned())
    }

    #[test]
    fn the_first_that_is_set_wins() {
        let all = [("UMIAK_HOME", "/a"), ("XDG_STATE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(locate(&all).as_deref(), Some("/a"));
        assert_eq!(locate(&all[1..]).as_deref(), Some("/b/umiak"));
        assert_eq!(locate(&all[2..]).as_deref(), Some("/c/.local/state/umiak"));
        assert_eq!(locate(&[("XDG_STATE_HOME", "b"), ("HOME", "/c")]).as_deref(), Some("/c/.local/state/umiak"));
        assert_eq!(locate(&[("UMIAK_HOME", ""), ("HOME", "/c")]).as_deref(), Some("/c/.local/state/umiak"));
        assert_eq!(locate(&[]), None);
    }
}
