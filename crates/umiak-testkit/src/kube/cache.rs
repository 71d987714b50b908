//! The programs of a cluster, compiled from Go modules into the user's cache.
//!
//! A directory of the cache belongs to the versions in `kube/go.sum`, to the compiler and to the flags, so it is never
//! updated: other versions get another directory. An old one may be removed at any time.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::hex;

/// What `kubectl version` and the nodes report.
pub const VERSION: &str = "v1.34.3";

/// Longest wait for another process that builds.
const PATIENCE: Duration = Duration::from_secs(45 * 60);

/// The beginning of the names of incomplete directories.
const PARTIAL: &str = "partial-";

/// Each program, and its package.
const PROGRAMS: [(&str, &str); 10] = [
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("vc-scheduler", "volcano.sh/volcano/cmd/scheduler"),
    ("vc-controller-manager", "volcano.sh/volcano/cmd/controller-manager"),
    ("vc-webhook-manager", "volcano.sh/volcano/cmd/webhook-manager"),
    ("jobset", "sigs.k8s.io/jobset"),
    ("coredns", "./coredns"),
];

/// Files of modules that a cluster needs beside the programs: module, file or directory in it, name in the cache.
const FILES: [(&str, &str, &str); 5] = [
    ("volcano.sh/volcano", "config/crd/volcano/bases", "crds/volcano"),
    // Without these types the controllers of Volcano report that they are healthy, and do nothing.
    ("volcano.sh/volcano", "config/crd/jobflow/bases", "crds/jobflow"),
    ("volcano.sh/volcano", "installer/helm/chart/volcano/config/volcano-scheduler.conf", "volcano-scheduler.conf"),
    ("sigs.k8s.io/jobset", "config/components/crd/bases", "crds/jobset"),
    ("sigs.k8s.io/jobset", "config/components/webhook/manifests.yaml", "jobset-webhooks.yaml"),
];

/// The compiler uses less CPU time with a lazy garbage collector and without debug information, which `-s -w` drops.
const ENVIRONMENT: [(&str, &str); 3] =
    [("CGO_ENABLED", "0"), ("GOFLAGS", "-buildvcs=false -modcacherw -trimpath -mod=readonly"), ("GOGC", "400")];
const COMPILER_FLAGS: &str = "-gcflags=all=-dwarf=false";

/// Published modules name no version of their own: clients fail to parse what a server then reports.
fn linker_flags() -> String {
    let (base, client) = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version");
    format!(
        "-s -w -X {base}.gitVersion={VERSION} -X {base}.gitMajor=1 -X {base}.gitMinor=34 -X {client}.gitVersion={VERSION}"
    )
}

/// A complete directory of the cache.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// The directory, if it is there. Without Go any compiler's will do.
    pub fn find() -> Option<Self> {
        let (root, sources) = (root()?, sources());
        let directory = match compiler() {
            Some(compiler) => root.join(format!("{sources}-{compiler}")),
            None => fs::read_dir(root).ok()?.flatten().find_map(|entry| {
                entry.file_name().to_str()?.starts_with(&format!("{sources}-")).then(|| entry.path())
            })?,
        };
        directory.is_dir().then_some(Self { directory })
    }

    /// True if [`Cache::fill`] can do its work.
    pub fn can_be_filled() -> bool {
        root().is_some() && compiler().is_some()
    }

    /// Compiles what is missing, which takes minutes; one process at a time.
    pub fn fill() -> io::Result<Self> {
        let root = root().ok_or_else(|| io::Error::other("neither `XDG_CACHE_HOME` nor `HOME` is set"))?;
        fs::create_dir_all(&root)?;
        let lock = File::options().create(true).append(true).open(root.join("lock"))?;
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = lock.try_lock() {
            match error {
                TryLockError::Error(error) => return Err(error),
                TryLockError::WouldBlock if Instant::now() >= deadline => {
                    return Err(io::Error::other(format!(
                        "another process has built in {} for too long",
                        root.display()
                    )));
                }
                TryLockError::WouldBlock => std::thread::sleep(Duration::from_millis(200)),
            }
        }
        if let Some(cache) = Self::find() {
            return Ok(cache);
        }
        let compiler = compiler().ok_or_else(|| io::Error::other("no Go compiler on `PATH`"))?;
        // Of processes that were killed.
        for entry in fs::read_dir(&root)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let partial = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(&root)?;
        build(partial.path())?;
        let directory = root.join(format!("{}-{compiler}", sources()));
        fs::rename(partial.keep(), &directory)?;
        Ok(Self { directory })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    /// A file of [`FILES`].
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// `umiak/kube` in the user's cache.
fn root() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("umiak/kube"))
}

/// The module that names all versions.
fn module() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kube")
}

/// `go1.26.8`
fn compiler() -> Option<String> {
    let output = Command::new("go").arg("version").current_dir(module()).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().find(|word| word.starts_with("go1")).map(str::to_owned)
}

/// A hash of everything but the compiler that decides what is built.
fn sources() -> String {
    let mut hash = Sha256::new();
    for name in ["go.mod", "go.sum", "coredns/main.go"] {
        hash.update(fs::read(module().join(name)).expect("a file of the working tree"));
    }
    hash.update(format!("{PROGRAMS:?} {FILES:?} {ENVIRONMENT:?} {COMPILER_FLAGS} {}", linker_flags()));
    hex(&hash.finalize()[..6])
}

/// Compiles all programs with one command, so that they share what they have in common.
fn build(directory: &Path) -> io::Result<()> {
    let programs = directory.join("bin");
    fs::create_dir(&programs)?;
    let mut out = programs.clone().into_os_string();
    out.push("/");
    let linker = linker_flags();
    let words = ["build", COMPILER_FLAGS, "-ldflags", linker.as_str(), "-o"].map(OsStr::new);
    let packages = PROGRAMS.iter().map(|(_, package)| OsStr::new(package));
    go(words.into_iter().chain([out.as_os_str()]).chain(packages), Stdio::inherit())?;
    for (name, package) in PROGRAMS {
        let made = package.rsplit('/').next().expect("one word at least");
        if made != name {
            fs::rename(programs.join(made), programs.join(name))?;
        }
    }
    for (module, from, to) in FILES {
        let found = go(["list", "-m", "-f", "{{.Dir}}", module].map(OsStr::new), Stdio::piped())?;
        copy(&Path::new(found.trim()).join(from), &directory.join(to))?;
    }
    Ok(())
}

/// Runs the Go command in the module, and returns what it prints.
fn go<'a>(arguments: impl IntoIterator<Item = &'a OsStr>, stdout: Stdio) -> io::Result<String> {
    let mut command = Command::new("go");
    command.args(arguments).envs(ENVIRONMENT).current_dir(module()).stdin(Stdio::null()).stdout(stdout);
    let output = command.stderr(Stdio::inherit()).spawn()?.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(io::Error::other(format!("`go` failed ({}); its messages are above", output.status)))
}

/// Copies a file, or the files of a directory. Modules are read-only, their copies are not.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to.parent().expect("below the cache"))?;
    if !from.is_dir() {
        return fs::write(to, fs::read(from)?);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            fs::write(to.join(path.file_name().expect("an entry has a name")), fs::read(&path)?)?;
        }
    }
    Ok(())
}
