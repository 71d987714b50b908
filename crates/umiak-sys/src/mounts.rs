//! Directories that a process sees at other paths: a mount namespace of its own, whose mounts end with its last process.
//!
//! The new root is a copy of the old one, with the directories bound on top. A path that does not exist on the host does
//! not come to exist there: the directories above it are then ones of the namespace, in memory and read-only, with all
//! entries of the real ones bound into them. That is possible only where nothing could be written anyway, or in the
//! root and the directories right below it; see [`check`].
//!
//! Everything is prepared before the fork. The child only makes system calls.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::fork::UserMap;

/// A directory, and the path at which a process sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundDirectory {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

impl BoundDirectory {
    /// True if the path leads to the directory already.
    fn is_there(&self) -> bool {
        let id = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
        !self.read_only && id(&self.target).is_ok_and(|target| id(&self.source).is_ok_and(|source| source == target))
    }
}

/// Why a directory cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    #[error("`{0}` is not a directory: {1}")]
    NoSource(PathBuf, io::Error),
    #[error("`{0}` is not a directory")]
    NoDirectory(PathBuf),
    #[error("the root cannot be replaced")]
    Root,
    #[error("`{0}` is not an absolute path without `..`")]
    Relative(PathBuf),
    /// The path does not exist, and what a process writes to the directory that should contain it must not be lost.
    #[error("`{path}` does not exist in `{above}`")]
    NotThere { path: PathBuf, above: PathBuf },
    #[error("mount namespaces are not permitted: {0}")]
    NotPermitted(io::Error),
}

/// Checks the directories of one process, in order. Returns the position of the first that cannot be bound.
pub fn check(bound: &[BoundDirectory]) -> Result<(), (usize, Obstacle)> {
    let sorted = in_order(bound);
    for (position, directory) in &sorted {
        let source = &directory.source;
        let refused = |obstacle| Err((*position, obstacle));
        match fs::metadata(source) {
            Ok(file) if file.is_dir() => {}
            Ok(_) => return refused(Obstacle::NoDirectory(source.clone())),
            Err(error) => return refused(Obstacle::NoSource(source.clone(), error)),
        }
        if !directory.target.is_absolute() || directory.target.components().any(|part| part == Component::ParentDir) {
            return refused(Obstacle::Relative(directory.target.clone()));
        }
        if directory.is_there() {
            continue;
        }
        if let Err(obstacle) = check_target(*position, &directory.target, &sorted) {
            return refused(obstacle);
        }
        if let Err(error) = are_permitted() {
            return refused(Obstacle::NotPermitted(error));
        }
    }
    Ok(())
}

/// Checks that the path exists, or that nothing is lost if the directory above it is replaced.
fn check_target(position: usize, target: &Path, sorted: &[(usize, &BoundDirectory)]) -> Result<(), Obstacle> {
    // Below another one of them, the path is in its directory.
    let above = sorted.iter().take_while(|(other, _)| *other != position);
    let around = above.filter(|(_, other)| is_below(target, &other.target)).last();
    if let Some((_, other)) = around {
        let inside = other.source.join(target.strip_prefix(&other.target).unwrap_or(target));
        let is_there = inside.is_dir();
        let above = other.source.clone();
        return if is_there { Ok(()) } else { Err(Obstacle::NotThere { path: inside, above }) };
    }
    let (existing, rest) = existing_part(target);
    if existing == Path::new("/") && rest.as_os_str().is_empty() {
        return Err(Obstacle::Root);
    }
    if !existing.is_dir() {
        return Err(Obstacle::NoDirectory(existing));
    }
    if rest.as_os_str().is_empty() || can_be_replaced(&existing) {
        return Ok(());
    }
    Err(Obstacle::NotThere { path: target.to_owned(), above: existing })
}

/// True if a process cannot write to this directory, or would hardly do so.
fn can_be_replaced(directory: &Path) -> bool {
    let is_shared = fs::metadata(directory).is_ok_and(|file| file.mode() & 0o002 != 0);
    let is_high = directory.parent().is_none_or(|parent| parent == Path::new("/"));
    let home = std::env::var_os("HOME").is_some_and(|home| Path::new(&home) == directory);
    !is_writable(directory) || (is_high && !is_shared && !home)
}

fn is_writable(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    // SAFETY: a terminated string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
}

/// The longest part of a path that exists, without links, and the rest.
fn existing_part(path: &Path) -> (PathBuf, PathBuf) {
    for existing in path.ancestors() {
        if let Ok(real) = fs::canonicalize(existing) {
            return (real, path.strip_prefix(existing).unwrap_or(Path::new("")).to_owned());
        }
    }
    (PathBuf::from("/"), path.strip_prefix("/").unwrap_or(path).to_owned())
}

fn is_below(path: &Path, other: &Path) -> bool {
    path != other && path.starts_with(other)
}

/// Those above others first; otherwise in the order given. With their positions.
fn in_order(bound: &[BoundDirectory]) -> Vec<(usize, &BoundDirectory)> {
    let mut sorted: Vec<_> = bound.iter().enumerate().collect();
    sorted.sort_by_key(|(_, directory)| directory.target.components().count());
    sorted
}

/// Fails if this process may not have mounts of its own. Tried once.
pub fn are_permitted() -> io::Result<()> {
    static ERRNO: OnceLock<i32> = OnceLock::new();
    match *ERRNO.get_or_init(|| tried().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EPERM))) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Makes a mount namespace in a child.
fn tried() -> io::Result<()> {
    let prepared = Prepared::everything();
    // SAFETY: the child only makes system calls, on memory prepared before, and ends by `_exit`.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = if prepared.enter() { 0 } else { last_errno() };
            // SAFETY: no return.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for our own child.
            while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
                if last_errno() != libc::EINTR {
                    return Err(io::Error::last_os_error());
                }
            }
            match libc::WEXITSTATUS(status) {
                0 if libc::WIFEXITED(status) => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }
}

/// Moves this process, which has one thread, into a mount namespace with these directories. The working directory becomes
/// the root.
pub fn enter(bound: &[BoundDirectory]) -> io::Result<()> {
    match Prepared::new(bound)? {
        Some(prepared) if !prepared.enter() => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn last_errno() -> i32 {
    // SAFETY: always valid.
    unsafe { *libc::__errno_location() }
}

/// The old root, and the new one, while the namespace is made.
const OLD: &str = "/old";
const NEW: &str = "/new";

/// A step in the making of a root, with paths as they are at that time.
#[derive(Debug)]
enum Step {
    Directory(CString),
    File(CString),
    Link {
        to: CString,
        path: CString,
    },
    Bind {
        from: CString,
        to: CString,
    },
    /// With all that is mounted below it, if `deep`.
    ReadOnly {
        path: CString,
        deep: bool,
    },
}

/// A mount namespace to enter.
#[derive(Debug)]
pub(crate) struct Prepared {
    user: UserMap,
    /// An empty file system is mounted here first, from where the old root can be seen as a whole.
    base: CString,
    old: CString,
    /// Each with what to say if it fails.
    steps: Vec<(Step, Vec<u8>)>,
}

impl Prepared {
    /// `None` if every path leads to its directory already.
    pub(crate) fn new(bound: &[BoundDirectory]) -> io::Result<Option<Self>> {
        let needed: Vec<BoundDirectory> = bound.iter().filter(|directory| !directory.is_there()).cloned().collect();
        if needed.is_empty() {
            return Ok(None);
        }
        let sorted = in_order(&needed);
        let mut prepared = Self::nothing();
        let is_inner =
            |one: &&(usize, &BoundDirectory)| sorted.iter().any(|(_, other)| is_below(&one.1.target, &other.target));
        let outer = sorted.iter().filter(|one| !is_inner(one));
        let missing: Vec<(PathBuf, PathBuf)> = outer
            .map(|(_, directory)| existing_part(&directory.target))
            .filter(|(_, rest)| !rest.as_os_str().is_empty())
            .collect();
        prepared.copy_root(&missing)?;
        for (_, directory) in sorted {
            let (source, target) = (directory.source.display(), directory.target.display());
            let note = format!("umiak: cannot mount `{source}` at `{target}`");
            // Without links: they would lead out of the new root.
            let (existing, rest) = existing_part(&directory.target);
            let to = path(NEW, &existing.join(rest))?;
            let from = path(OLD, &fs::canonicalize(&directory.source).unwrap_or_else(|_| directory.source.clone()))?;
            prepared.add(Step::Bind { from, to: to.clone() }, &note);
            if directory.read_only {
                prepared.add(Step::ReadOnly { path: to, deep: true }, &format!("{note} as read-only"));
            }
        }
        Ok(Some(prepared))
    }

    /// A copy of the root.
    fn everything() -> Self {
        let mut prepared = Self::nothing();
        let [from, to] = [OLD, NEW].map(|path| CString::new(path).expect("a constant without null"));
        prepared.add(Step::Bind { from, to }, "");
        prepared
    }

    fn nothing() -> Self {
        let is_directory = |path: &&&str| fs::symlink_metadata(path).is_ok_and(|file| file.is_dir());
        let base = ["/tmp", "/usr", "/etc", "/var"].iter().find(is_directory).unwrap_or(&"/tmp");
        let text = |text: String| CString::new(text).expect("a constant without null");
        Self {
            user: UserMap::of_this_process(),
            base: text((*base).to_owned()),
            old: text(format!("{base}{OLD}")),
            steps: Vec::new(),
        }
    }

    fn add(&mut self, step: Step, note: &str) {
        self.steps.push((step, format!("{note}\n").into_bytes()));
    }

    /// Makes the new root look like the old one. Directories above missing paths become ones of the namespace.
    fn copy_root(&mut self, missing: &[(PathBuf, PathBuf)]) -> io::Result<()> {
        const NOTE: &str = "umiak: cannot make a root with new directories";
        if missing.is_empty() {
            let [from, to] = [OLD, NEW].map(|path| CString::new(path).expect("a constant without null"));
            self.add(Step::Bind { from, to }, NOTE);
            return Ok(());
        }
        let replaced: BTreeSet<&Path> = missing.iter().flat_map(|(existing, _)| existing.ancestors()).collect();
        // Parents come first.
        for directory in &replaced {
            if directory.parent().is_some() {
                self.add(Step::Directory(path(NEW, directory)?), NOTE);
            }
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let (real, kind) = (entry.path(), entry.file_type()?);
                if replaced.contains(real.as_path()) {
                    continue;
                }
                let (from, to) = (path(OLD, &real)?, path(NEW, &real)?);
                if kind.is_symlink() {
                    let target = CString::new(fs::read_link(&real)?.into_os_string().into_encoded_bytes())?;
                    self.add(Step::Link { to: target, path: to }, NOTE);
                    continue;
                }
                let make = if kind.is_dir() { Step::Directory } else { Step::File };
                self.add(make(to.clone()), NOTE);
                self.add(Step::Bind { from, to }, &format!("{NOTE}: `{}`", real.display()));
            }
        }
        let mut made = BTreeSet::new();
        for (existing, rest) in missing {
            let mut at = existing.clone();
            for component in rest.components() {
                at.push(component);
                if made.insert(at.clone()) {
                    self.add(Step::Directory(path(NEW, &at)?), NOTE);
                }
            }
        }
        // What a process writes to these directories would be lost: it must fail instead.
        self.add(Step::ReadOnly { path: path(NEW, Path::new("/"))?, deep: false }, NOTE);
        Ok(())
    }

    /// Enters the namespace; on failure errno says why, and a line has been written to stderr. Only makes system calls.
    pub(crate) fn enter(&self) -> bool {
        // SAFETY: system calls on our own namespaces, with terminated strings.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                // A user namespace grants the right to create the other.
                if last_errno() != libc::EPERM || libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) != 0 {
                    return false;
                }
                self.user.keep();
            }
            let none = ptr::null();
            let private = libc::MS_REC | libc::MS_PRIVATE;
            let empty = |at: &CStr| {
                let flags = libc::MS_NOSUID | libc::MS_NODEV;
                libc::mount(c"tmpfs".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), flags, c"mode=755".as_ptr().cast()) == 0
            };
            libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
                && empty(&self.base)
                && libc::mkdir(self.old.as_ptr(), 0o755) == 0
                && libc::syscall(libc::SYS_pivot_root, self.base.as_ptr(), self.old.as_ptr()) == 0
                && libc::chdir(c"/".as_ptr()) == 0
                && libc::mkdir(c"/new".as_ptr(), 0o755) == 0
                && empty(c"/new")
                && self.steps.iter().all(|(step, note)| step.perform() || complain(note))
                && libc::chdir(c"/new".as_ptr()) == 0
                // The old root ends up below the new one, and goes with all that was needed to make it.
                && libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) == 0
                && libc::umount2(c".".as_ptr(), libc::MNT_DETACH) == 0
                && libc::chdir(c"/".as_ptr()) == 0
        }
    }
}

impl Step {
    /// Only makes system calls.
    fn perform(&self) -> bool {
        // SAFETY: terminated strings; the descriptor is closed where it was opened.
        unsafe {
            match self {
                Self::Directory(path) => libc::mkdir(path.as_ptr(), 0o755) == 0,
                Self::File(path) => {
                    let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC, 0o444);
                    file >= 0 && libc::close(file) == 0
                }
                Self::Link { to, path } => libc::symlink(to.as_ptr(), path.as_ptr()) == 0,
                Self::Bind { from, to } => {
                    let flags = libc::MS_BIND | libc::MS_REC;
                    libc::mount(from.as_ptr(), to.as_ptr(), ptr::null(), flags, ptr::null()) == 0
                }
                Self::ReadOnly { path, deep } => {
                    let mut attributes: libc::mount_attr = std::mem::zeroed();
                    attributes.attr_set = libc::MOUNT_ATTR_RDONLY;
                    let (at, size) = (libc::AT_FDCWD, size_of::<libc::mount_attr>());
                    let depth = if *deep { libc::AT_RECURSIVE } else { 0 };
                    libc::syscall(libc::SYS_mount_setattr, at, path.as_ptr(), depth, &raw const attributes, size) == 0
                        || (last_errno() == libc::ENOSYS && remount_read_only(path))
                }
            }
        }
    }
}

/// The same before Linux 5.12, without what is mounted below. The other flags of the mount may be locked: they are kept.
///
/// SAFETY: only makes system calls.
unsafe fn remount_read_only(path: &CStr) -> bool {
    // SAFETY: a terminated string; plain data.
    unsafe {
        let mut now: libc::statvfs = std::mem::zeroed();
        let kept = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_NOATIME | libc::MS_NODIRATIME;
        let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
        libc::statvfs(path.as_ptr(), &raw mut now) == 0
            && libc::mount(ptr::null(), path.as_ptr(), ptr::null(), flags | (now.f_flag & kept), ptr::null()) == 0
    }
}

/// Writes to stderr, keeping errno. Returns false.
fn complain(note: &[u8]) -> bool {
    let errno = last_errno();
    // SAFETY: our own data; errno is ours to set.
    unsafe {
        libc::write(2, note.as_ptr().cast(), note.len());
        *libc::__errno_location() = errno;
    }
    false
}

/// A path below `/old` or `/new`.
fn path(root: &str, path: &Path) -> io::Result<CString> {
    let mut bytes = root.as_bytes().to_vec();
    if path.is_absolute() {
        bytes.extend(path.as_os_str().as_bytes());
    }
    while bytes.len() > root.len() && bytes.ends_with(b"/") {
        bytes.pop();
    }
    Ok(CString::new(bytes)?)
}
