//! File systems: directories of this host by name, and what steps see of them.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use super::raw::{RawMount, RawPipeline};
use crate::diag::{Code, Span};
use crate::formats::document::reader::{At, Reader};
use crate::formats::document::tree::shortened;
use crate::formats::settings::Settings;
use crate::model::{Mount, Store};

/// File systems of one step.
const MAX_MOUNTS: usize = 100;

pub(super) struct Files<'a> {
    settings: &'a Settings,
    /// The directory of file systems that are not in the settings.
    dir: &'a Path,
    /// Those, once they are mentioned.
    said: HashSet<String>,
}

/// What a step sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) mounts: Vec<Mount>,
    /// The working directory.
    pub(super) dir: Option<PathBuf>,
}

impl<'a> Files<'a> {
    pub(super) fn new(settings: &'a Settings, dir: &'a Path) -> Self {
        Self { settings, dir, said: HashSet::new() }
    }

    /// The directory of a file system.
    fn dir(&mut self, reader: &mut Reader<'_>, mount: &RawMount) -> PathBuf {
        match &mount.host_path {
            Some(path) => self.dir.join(path),
            None => self.named(reader, &mount.name),
        }
    }

    fn named(&mut self, reader: &mut Reader<'_>, name: &At<String>) -> PathBuf {
        if let Some(dir) = self.settings.filesystems.get(&name.value) {
            return self.dir.join(dir);
        }
        if self.said.insert(name.value.clone()) {
            let name_shown = shortened(&name.value);
            let message = format!("file system `{name_shown}` is not defined: it is the current directory");
            reader.notice(Code::F0120, name.at, message, "");
            reader.notice_hint(format!(
                "define it with `--fs {name_shown}=DIR`, or as `[fs.{name_shown}]` in `umiak.toml`"
            ));
        }
        self.dir.to_owned()
    }

    /// What a step with these file systems sees, the first of which is its working directory.
    pub(super) fn seen<'m>(&mut self, reader: &mut Reader<'_>, mounts: impl IntoIterator<Item = &'m RawMount>) -> Seen {
        let mut seen = Seen::default();
        for mount in mounts {
            let mut dir = self.dir(reader, mount);
            if let Some(path) = &mount.sub_path {
                dir = dir.join(relative(&path.value));
            }
            let path = mount.mount_path.as_ref().map(|path| PathBuf::from(&path.value));
            seen.dir.get_or_insert_with(|| path.clone().unwrap_or_else(|| dir.clone()));
            if let Some(path) = path {
                let read_only = mount.read_only.as_ref().is_some_and(|only| only.value);
                let mount = Mount { name: mount.name.value.clone(), dir, path, read_only };
                // The same by a step and by the pipeline is one.
                if !seen.mounts.contains(&mount) {
                    seen.mounts.push(mount);
                }
            }
        }
        seen
    }

    /// Where artifacts are kept.
    pub(super) fn store(&mut self, reader: &mut Reader<'_>, mount: &RawMount) -> Store {
        Store {
            name: mount.name.value.clone(),
            dir: self.dir(reader, mount),
            sub_path: mount.sub_path.as_ref().map(|path| relative(&path.value)),
            mount_path: mount.mount_path.as_ref().map(|path| PathBuf::from(&path.value)),
        }
    }

    /// A path on a file system.
    pub(super) fn path(&mut self, reader: &mut Reader<'_>, name: &At<String>, path: &str) -> PathBuf {
        self.named(reader, name).join(relative(path))
    }
}

/// A path below a directory, without what leads out of it or stays in it.
fn relative(path: &str) -> PathBuf {
    Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

pub(super) fn leads_out(path: &str) -> bool {
    Path::new(path).components().any(|part| part == Component::ParentDir)
}

/// The rules of every file system of a pipeline.
pub(super) fn check(reader: &mut Reader<'_>, raw: &RawPipeline<'_>) {
    if let Some(main) = &raw.main_fs {
        if let Some(only) = main.read_only.as_ref().filter(|only| only.value) {
            reader.error(Code::F0118, only.at, "`main_fs` cannot be read-only", "artifacts are written to it");
        }
        mount(reader, main);
    }
    raw.extra_fs.iter().for_each(|one| mount(reader, one));
    // A clash of these is the same in every step.
    clash(reader, raw.main_fs.iter().chain(&raw.extra_fs));
}

pub(super) fn mount(reader: &mut Reader<'_>, mount: &RawMount) {
    if let Some(path) = &mount.sub_path {
        if path.value.starts_with('/') {
            reader.error(Code::F0118, path.at, "`sub_path` must not begin with `/`", "relative to the file system");
        } else if leads_out(&path.value) {
            reader.error(Code::F0118, path.at, "`sub_path` must not contain `..`", "leads out of the file system");
        }
    }
    if let Some(path) = &mount.mount_path {
        let is_somewhere = Path::new(&path.value).components().any(|part| matches!(part, Component::Normal(_)));
        if !path.value.starts_with('/') {
            reader.error(Code::F0118, path.at, "`mount_path` must begin with `/`", "");
        } else if !is_somewhere || leads_out(&path.value) {
            reader.error(Code::F0118, path.at, "`mount_path` must be a directory below `/`", "");
        }
    }
}

/// Two directories at one path. One directory there twice is fine.
pub(super) fn clash<'m>(reader: &mut Reader<'_>, mounts: impl Iterator<Item = &'m RawMount>) {
    let mut seen: HashMap<PathBuf, &RawMount> = HashMap::new();
    for (count, mount) in mounts.enumerate() {
        if count == MAX_MOUNTS {
            let message = format!("more than {MAX_MOUNTS} file systems in one step");
            return reader.error(Code::F0118, mount.name.at, message, "");
        }
        let Some(path) = &mount.mount_path else { continue };
        let Some(other) = seen.insert(relative(&path.value), mount) else { continue };
        let sub = |mount: &RawMount| mount.sub_path.as_ref().map(|path| relative(&path.value)).unwrap_or_default();
        let same = |mount: &RawMount| (mount.name.value.clone(), mount.host_path.clone(), sub(mount));
        if same(other) != same(mount) {
            let message = format!("two file systems at `{}`", shortened(&path.value));
            reader.error(Code::F0118, path.at, message, "the second");
            let (source, at) = (reader.source, other.mount_path.as_ref().map_or(Span::default(), |path| path.at));
            reader.errors.complete_last(|error| error.label(source.label(at, "the first")));
        }
    }
}
