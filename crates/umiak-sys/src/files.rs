//! Files that umiak writes where others can see them: logs and what lies beside them.
//!
//! The mode is always given, so that neither the group nor others can write, whatever the umask. In a directory that
//! another user can change, symbolic links are not followed: a link planted there would send our output to any file
//! that we may write. Named pipes and devices are not opened at all ([`regular`]).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::regular;

/// Mode of files that others may read.
pub const READABLE: u32 = 0o644;

/// What happens to the contents of a file that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Kept; every write goes to the end.
    Append,
    /// Kept; writes begin at the start.
    Keep,
    /// Removed.
    Replace,
}

/// Opens a file for writing, and creates it with this mode if it is missing.
pub fn open(path: &Path, contents: Contents, mode: u32) -> io::Result<File> {
    let foreign = has_foreign_directory(path);
    let mut options = OpenOptions::new();
    options.create(true).mode(mode);
    match contents {
        Contents::Append => options.append(true),
        Contents::Keep => options.write(true).truncate(false),
        Contents::Replace => options.write(true).truncate(true),
    };
    let flags = if foreign { libc::O_NOFOLLOW } else { 0 };
    regular::open_with(&mut options, flags, path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) if foreign => linked(),
        _ => error,
    })
}

/// Fails if the file is a symbolic link that [`open`] does not follow.
pub fn check_link(path: &Path) -> io::Result<()> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if is_link && has_foreign_directory(path) { Err(linked()) } else { Ok(()) }
}

fn linked() -> io::Error {
    io::Error::other("it is a symbolic link in a directory that another user can change, and is not followed")
}

/// True if another user can add files to the directory of this file.
pub(crate) fn has_foreign_directory(path: &Path) -> bool {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // SAFETY: no arguments, no failure.
    let us = unsafe { libc::geteuid() };
    fs::metadata(parent).is_ok_and(|parent| parent.uid() != us || parent.mode() & 0o022 != 0)
}

/// Creates a directory and its parents, writable only by us.
pub fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Creates a directory, or finds one that is not behind a link.
pub fn make_own_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
            if is_directory { Ok(()) } else { Err(error) }
        }
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn links_are_followed_only_where_no_other_user_can_plant_them() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let ours = |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
        for (mode, is_followed) in [(0o700, true), (0o755, true), (0o775, false), (0o1777, false)] {
            ours(mode);
            for contents in [Contents::Append, Contents::Keep, Contents::Replace] {
                assert_eq!(open(&link, contents, READABLE).is_ok(), is_followed, "{mode:o} {contents:?}");
                assert_eq!(check_link(&link).is_ok(), is_followed, "{mode:o}");
                assert_eq!(target.exists(), is_followed, "{mode:o} {contents:?}");
                let _ = fs::remove_file(&target);
            }
            assert!(open(&directory.path().join("plain"), Contents::Append, READABLE).is_ok());
        }
        assert!(make_own_directory(&link).is_err());
    }
}
