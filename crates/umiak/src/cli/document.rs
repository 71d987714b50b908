//! Reads documents and settings from files; `umiak-core` parses them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use tracing::debug;
use umiak_core::diag::{Code, Diagnostic, Source};
use umiak_core::formats::document;
use umiak_core::formats::settings::{self, Settings};
use umiak_core::plan::document::Chosen;
use umiak_sys::regular;

/// The document of a path; `-` is standard input. A pipe is read too: `umiak run <(generate)`.
pub(super) fn read(path: &Path) -> Result<Source, Diagnostic> {
    let name = name(path);
    let result = if is_stdin(path) { bytes(std::io::stdin().lock()) } else { File::open(path).and_then(bytes) };
    match result {
        Ok(bytes) => {
            debug!(file = name, bytes = bytes.len(), "document read");
            document::decode(&name, &bytes)
        }
        Err(error) => Err(unreadable(&name, &error)),
    }
}

/// A device may have no end: no more than the largest document is read.
fn bytes(from: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(document::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Adds what the command line says to the settings. Paths start at `dir`.
pub(super) fn choose(settings: &mut Settings, chosen: &Chosen, dir: &Path) -> Result<(), Diagnostic> {
    for (name, path) in &chosen.filesystems {
        // `.` and the directory's own name are the same place, also for the cache.
        let place: PathBuf = dir.join(path).components().collect();
        settings.filesystems.insert(name.clone(), place);
    }
    for (name, resources) in &chosen.flavours {
        let resources = settings::flavour(resources).map_err(|reason| {
            let message = format!("`--flavour {name}` is not valid");
            Diagnostic::error(Code::L0001, message).row("reason", reason).hint("write `cpu=1,mem=1Gi,gpu=1`")
        })?;
        settings.flavours.insert(name.clone(), resources);
    }
    Ok(())
}

/// The settings for a document: `umiak.toml` beside it, else the user's `umiak/config.toml`, else the defaults. Errors
/// come with the path of the file.
pub(super) fn settings(document: &Path) -> Result<Settings, (PathBuf, Vec<Diagnostic>)> {
    let beside = if is_stdin(document) { Path::new("") } else { document.parent().unwrap_or(Path::new("")) };
    let own = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".config")))
        .map(|folder| folder.join("umiak/config.toml"));
    for path in std::iter::once(beside.join("umiak.toml")).chain(own) {
        match regular::open_to_read(&path).and_then(bytes) {
            Ok(bytes) => {
                debug!(file = ?path, "settings read");
                let source = document::decode(&name(&path), &bytes).map_err(|error| (path.clone(), vec![error]))?;
                return settings::parse(&source).map_err(|errors| (path, errors));
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => {
                let diagnostic = unreadable(&name(&path), &error);
                return Err((path, vec![diagnostic]));
            }
        }
    }
    Ok(Settings::default())
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The name of the file in messages.
pub(super) fn name(path: &Path) -> String {
    if is_stdin(path) { "<stdin>".to_owned() } else { path.display().to_string() }
}

fn unreadable(name: &str, error: &std::io::Error) -> Diagnostic {
    match error.kind() {
        ErrorKind::NotFound => Diagnostic::error(Code::F0001, format!("there is no file `{name}`")),
        ErrorKind::IsADirectory => {
            Diagnostic::error(Code::F0001, format!("`{name}` is a directory")).hint("name a document in this directory")
        }
        _ => Diagnostic::error(Code::F0001, format!("`{name}` cannot be read")).row("reason", error.to_string()),
    }
}

/// `name=value` of `-p`.
pub(super) fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_name() {
        let mut settings = Settings::default();
        let filesystems = [("a", "."), ("b", "/here"), ("c", "./x/.")].map(|(name, path)| (name.into(), path.into()));
        let chosen = Chosen { filesystems: filesystems.into(), ..Chosen::default() };
        choose(&mut settings, &chosen, Path::new("/here")).unwrap();
        let names = ["a", "b", "c"].map(|name| settings.filesystems[name].as_os_str().to_owned());
        assert_eq!(names, ["/here", "/here", "/here/x"]);
    }
}
