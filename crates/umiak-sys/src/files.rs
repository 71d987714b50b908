//! Files that umiak writes where others can see them: logs and what lies beside them.
//!
//! Neither the group nor others can write them, whatever the umask and whatever the mode of a file that exists already.
//! A file that another user owns is not written. In a directory that another user can change, neither symbolic links nor
//! files with several names are followed: a link planted there would send our output to any file that we may write.
//! Named pipes and devices are not opened at all ([`regular`]).

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::host;
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

/// Opens a file for writing, and creates it with this mode if it is missing. A file that exists loses permissions that
/// the mode does not have.
pub fn open(path: &Path, contents: Contents, mode: u32) -> io::Result<File> {
    let exposed = has_foreign_directory(path);
    let mut options = OpenOptions::new();
    options.create(true).mode(mode);
    match contents {
        Contents::Append => options.append(true),
        // Contents are removed only after the checks.
        Contents::Keep | Contents::Replace => options.write(true).truncate(false),
    };
    let flags = if exposed { libc::O_NOFOLLOW } else { 0 };
    let file = regular::open_with(&mut options, flags, path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) if exposed => linked(),
        _ => error,
    })?;
    let found = file.metadata()?;
    check_found(path, &found)?;
    if let Some(tight) = tightened(found.mode(), mode) {
        // File systems without modes refuse.
        let _ = file.set_permissions(Permissions::from_mode(tight));
    }
    if contents == Contents::Replace {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Fails if [`open`] would refuse the file that exists. Returns its length; 0 if it does not exist yet.
pub fn check(path: &Path) -> io::Result<u64> {
    let Ok(mut found) = fs::symlink_metadata(path) else { return Ok(0) };
    if found.is_symlink() {
        if has_foreign_directory(path) {
            return Err(linked());
        }
        let Ok(target) = fs::metadata(path) else { return Ok(0) };
        found = target;
    }
    regular::check(&found)?;
    check_found(path, &found)?;
    Ok(found.len())
}

fn check_found(path: &Path, found: &Metadata) -> io::Result<()> {
    if !is_trusted(found.uid()) && !has_usual_owner(path, found.uid()) {
        return Err(io::Error::other(format!("it belongs to {}", user(found.uid()))));
    }
    if found.nlink() > 1 && has_foreign_directory(path) {
        return Err(io::Error::other("it has other names (hard links), in a directory that another user can change"));
    }
    Ok(())
}

/// True if files of this owner are expected beside `path`. The owner of a directory can replace the files in it anyway,
/// so root writes them; and file systems that map users (sshfs, NFS for root) show our own files under another one.
fn has_usual_owner(path: &Path, owner: u32) -> bool {
    let of_directory = || fs::metadata(parent(path)).is_ok_and(|parent| parent.uid() == owner);
    let of_new_file = || tempfile::tempfile_in(parent(path))?.metadata();
    us() == 0 && of_directory() || of_new_file().is_ok_and(|new| new.uid() == owner)
}

/// The checks of [`open`] that a forked child can make, with the file open and whether its directory is exposed. The
/// owner is not among them: [`check`] has seen it before.
///
/// Makes system calls only. On failure errno is set.
pub(crate) fn settle(file: RawFd, exposed: bool) -> bool {
    // SAFETY: plain system calls; `found` is valid when `fstat` succeeds; errno is our own.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        if libc::fstat(file, &raw mut found) != 0 {
            return false;
        }
        if exposed && found.st_nlink > 1 {
            *libc::__errno_location() = libc::EMLINK;
            return false;
        }
        if let Some(tight) = tightened(found.st_mode, READABLE) {
            libc::fchmod(file, tight);
        }
    }
    true
}

/// The mode of a file that exists, without the permissions of others that `wanted` lacks. `None` if it has none of them.
fn tightened(found: u32, wanted: u32) -> Option<u32> {
    let excess = found & 0o066 & !wanted;
    (excess != 0).then_some(found & 0o777 & !excess)
}

fn linked() -> io::Error {
    io::Error::other("it is a symbolic link in a directory that another user can change, and is not followed")
}

fn user(id: u32) -> String {
    host::user_name(id).map_or_else(|| format!("user {id}"), |name| format!("user `{name}`"))
}

fn us() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::geteuid() }
}

fn is_trusted(user: u32) -> bool {
    user == us() || user == 0
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// True if another user can add files to the directory of this file.
pub(crate) fn has_foreign_directory(path: &Path) -> bool {
    fs::metadata(parent(path)).is_ok_and(|parent| !is_trusted(parent.uid()) || parent.mode() & 0o022 != 0)
}

/// True if the file system of a directory has no room for a block. A quota is not seen.
pub fn is_full(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path ends with null, and `found` is valid if the call succeeds.
    unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        libc::statvfs(path.as_ptr(), &raw mut found) == 0 && found.f_blocks > 0 && found.f_bavail == 0
    }
}

/// Creates a directory and its parents, writable only by us. Fails if the path is a link that another user planted.
pub fn make_directory(path: &Path) -> io::Result<()> {
    check_links(path)?;
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Follows the links at the end of a path. Those of another user fail in directories that another user can change.
fn check_links(path: &Path) -> io::Result<()> {
    // A slash at the end would follow the link.
    let mut path: PathBuf = path.components().collect();
    for _ in 0..MOST_LINKS {
        let Ok(found) = fs::symlink_metadata(&path) else { return Ok(()) };
        if !found.is_symlink() {
            return Ok(());
        }
        if !is_trusted(found.uid()) && has_foreign_directory(&path) {
            let owner = user(found.uid());
            let message = format!("`{}` is a symbolic link of {owner}, and is not followed", path.display());
            return Err(io::Error::other(message));
        }
        path = parent(&path).join(fs::read_link(&path)?).components().collect();
    }
    Ok(())
}

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

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
                assert_eq!(check(&link).is_ok(), is_followed, "{mode:o}");
                assert_eq!(target.exists(), is_followed, "{mode:o} {contents:?}");
                let _ = fs::remove_file(&target);
            }
            assert!(open(&directory.path().join("plain"), Contents::Append, READABLE).is_ok());
        }
        assert!(make_own_directory(&link).is_err());
    }

    #[test]
    fn only_permissions_of_others_are_removed() {
        for (found, wanted, expected) in [
            (0o100_644, READABLE, None),
            (0o100_600, READABLE, None),
            (0o100_755, READABLE, None),
            (0o100_666, READABLE, Some(0o644)),
            (0o100_620, READABLE, Some(0o600)),
            (0o100_777, READABLE, Some(0o755)),
            (0o100_644, 0o600, Some(0o600)),
        ] {
            assert_eq!(tightened(found, wanted), expected, "{found:o}");
        }
    }
}
