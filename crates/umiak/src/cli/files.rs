//! The files of a document. A submission of PaddleRec has two, and umiak is given either or both.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use umiak_core::diag::{Code, Diagnostic, Source};
use umiak_core::formats::Given;
use umiak_core::formats::paddlerec::{File, expect, is_cluster};
use umiak_core::formats::settings::Settings;

use super::document::{name, read};
use crate::host::inventory;

/// Larger documents are parsed only once, unless they look like a submission.
const MAX_SUBMISSION: usize = 1 << 20;

/// Names of models that are parts of the package.
const PACKAGE: &str = "paddlerec";

pub(super) struct Files {
    /// The document that the command line names.
    pub(super) path: PathBuf,
    pub(super) source: Source,
    /// The other file of a submission.
    companion: Option<(PathBuf, Source)>,
    /// True if it is one of the files of a submission.
    pub(super) is_submission: bool,
}

impl Files {
    /// A document, and the other file of a submission if that is beside it and needed.
    pub(super) fn read(path: &Path) -> Result<Self, Vec<Diagnostic>> {
        let source = read(path).map_err(|error| vec![error])?;
        let is_likely = source.text.len() <= MAX_SUBMISSION || File::is_likely(&source.text);
        let file = if is_likely { File::of(&source) } else { None };
        let other = match file {
            Some(File::Config) if !is_cluster(&source) => None,
            Some(file) => Some(path.with_file_name(file.other().name())),
            None => None,
        };
        let other = other.filter(|other| other != path && path != Path::new("-") && other.is_file());
        let companion = match other {
            Some(other) => Some((other.clone(), read(&other).map_err(|error| vec![error])?)),
            None => None,
        };
        Ok(Self { path: path.to_owned(), source, companion, is_submission: file.is_some() })
    }

    /// The files that `umiak submit` names. The model may be a part of the package `paddlerec`.
    pub(super) fn submitted(model: &Path, backend: Option<&Path>, python: &OsStr) -> Result<Self, Vec<Diagnostic>> {
        let is_dotted = |model: &&str| model.starts_with("paddlerec.") && !Path::new(model).exists();
        let path = match model.to_str().filter(is_dotted) {
            Some(model) => of_package(model, python).map_err(|error| vec![error])?,
            None => model.to_owned(),
        };
        let (mut errors, mut sources) = (Vec::new(), Vec::new());
        let files = [(Some(path.as_path()), File::Config), (backend, File::Backend)];
        for (path, file) in files.into_iter().filter_map(|(path, file)| Some((path?, file))) {
            match read(path).and_then(|source| expect(&source, file).map(|()| source)) {
                Ok(source) => sources.push((path.to_owned(), source)),
                Err(error) => errors.push(error),
            }
        }
        let mut sources = sources.into_iter();
        match sources.next().filter(|_| errors.is_empty()) {
            Some((path, source)) => Ok(Self { path, source, companion: sources.next(), is_submission: true }),
            None => Err(errors),
        }
    }

    pub(super) fn given<'a>(&'a self, params: &'a [(String, String)], settings: &'a Settings) -> Given<'a> {
        let companion = self.companion.as_ref().map(|(_, source)| source);
        Given { companion, ..Given::new(params, settings) }
    }

    /// The `config.yaml` of a submission.
    pub(super) fn config(&self) -> &Path {
        match &self.companion {
            Some((path, source)) if File::of(source) == Some(File::Config) => path,
            _ => &self.path,
        }
    }
}

/// The interpreter of a document that names a module: the one of the command line, or else the usual one.
pub(super) fn python(named: Option<&OsStr>) -> Result<String, Diagnostic> {
    match named {
        Some(named) => Ok(named.to_string_lossy().into_owned()),
        None => inventory::python(&crate::host::environment()).map(|path| path.to_string_lossy().into_owned()),
    }
}

/// The `config.yaml` of a model in the package `paddlerec`, which the interpreter finds.
fn of_package(model: &str, python: &OsStr) -> Result<PathBuf, Diagnostic> {
    const FIND: &str = "import importlib.util as u, sys; s = u.find_spec(sys.argv[1]); print(s.submodule_search_locations[0] if s else '')";
    let answer = Command::new(python).args(["-c", FIND, PACKAGE]).stdin(Stdio::null()).output();
    let refused = |reason: String| {
        Diagnostic::error(Code::F0001, format!("the model `{model}` was not found"))
            .row("reason", reason)
            .hint("name the `config.yaml` of the model: `-m DIR/config.yaml`")
    };
    let interpreter = python.to_string_lossy();
    let output = answer.map_err(|error| refused(format!("`{interpreter}` cannot be run: {error}")))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().lines().last().unwrap_or_default().to_owned();
    if !output.status.success() {
        return Err(refused(format!("`{interpreter}` failed ({}): {}", output.status, said(&output.stderr))));
    }
    let package = said(&output.stdout);
    if package.is_empty() {
        return Err(refused(format!("`{interpreter}` has no package `{PACKAGE}`")));
    }
    let parts = model.split('.').skip(1).filter(|part| !part.is_empty());
    let path = parts.fold(PathBuf::from(package), |path, part| path.join(part)).join(File::Config.name());
    if path.is_file() { Ok(path) } else { Err(refused(format!("there is no file `{}`", name(&path)))) }
}
