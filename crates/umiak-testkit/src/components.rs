//! Real components that some tests need. Tests of a missing component are *skipped*, unless `UMIAK_E2E` names it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use umiak_core::cluster::mpi::LauncherKind;

use crate::freezer::Freezer;
use crate::kube;
use crate::mpi::Installed;
use crate::net;
use crate::podman;
use crate::programs::find_on_path;
use crate::slurm;

/// Something outside this workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// PaddlePaddle in the test environment.
    Paddle,
    /// PaddlePaddle with parameter servers, in a separate environment.
    PaddlePs,
    /// PyTorch in the test environment.
    Torch,
    /// The oldest PyTorch that the store serves, in a separate environment.
    Torch22,
    /// uv, poetry and coverage, in a separate environment.
    Runners,
    /// Open MPI 4's `mpirun` on `PATH`.
    OpenMpi,
    /// Open MPI 5, in a separate environment.
    OpenMpi5,
    /// MPICH, in a separate environment.
    Mpich,
    /// `etcd` on `PATH`, and `openssl` to make certificates for it.
    Etcd,
    /// Slurm's daemons and clients, and `munged`, on `PATH`. Needs root.
    Slurm,
    /// A cluster of real Kubernetes: containerd, runc, etcd, static busybox and CNI plug-ins from packages; the rest from
    /// the cache, or to be compiled by Go. Needs root.
    Kube,
    /// Any Python 3 on `PATH`.
    Python,
    /// An NVIDIA GPU. Never required in CI.
    Gpu,
    /// User and mount namespaces without root. Never required in CI.
    Namespaces,
    /// Named network namespaces with virtual cables and a packet filter: several hosts. Needs root.
    Netns,
    /// Podman containers with a network between them. Needs root.
    Podman,
    /// A memory cgroup below our own that can be limited. Never required in CI.
    MemoryCgroup,
    /// The kernel log, if it records crashes. Never required in CI.
    KernelLog,
    /// A usable freezer (cgroup version 1): it puts a process into a sleep that no signal ends. Never required in CI.
    Freezer,
    /// The corpus of real documents beside the checkout. Never required in CI.
    Corpus,
}

impl Component {
    pub const ALL: [Self; 20] = [
        Self::Paddle,
        Self::PaddlePs,
        Self::Torch,
        Self::Torch22,
        Self::Runners,
        Self::OpenMpi,
        Self::OpenMpi5,
        Self::Mpich,
        Self::Etcd,
        Self::Slurm,
        Self::Kube,
        Self::Python,
        Self::Gpu,
        Self::Namespaces,
        Self::Netns,
        Self::Podman,
        Self::MemoryCgroup,
        Self::KernelLog,
        Self::Freezer,
        Self::Corpus,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Paddle => "paddle",
            Self::PaddlePs => "paddle-ps",
            Self::Torch => "torch",
            Self::Torch22 => "torch22",
            Self::Runners => "runners",
            Self::OpenMpi => "mpi",
            Self::OpenMpi5 => "openmpi5",
            Self::Mpich => "mpich",
            Self::Etcd => "etcd",
            Self::Slurm => "slurm",
            Self::Kube => "kube",
            Self::Python => "python",
            Self::Gpu => "gpu",
            Self::Namespaces => "namespaces",
            Self::Netns => "netns",
            Self::Podman => "podman",
            Self::MemoryCgroup => "memory-cgroup",
            Self::KernelLog => "kernel-log",
            Self::Freezer => "freezer",
            Self::Corpus => "corpus",
        }
    }

    /// The installed version, if any.
    pub fn version(self) -> Option<String> {
        match self {
            Self::Paddle => distribution(&environment()?, "paddlepaddle"),
            Self::PaddlePs => distribution(&ps_environment()?, "paddlepaddle"),
            Self::Torch => distribution(&environment()?, "torch"),
            Self::Torch22 => distribution(&torch22_environment()?, "torch"),
            Self::Runners => distribution(&runners()?, "uv"),
            Self::OpenMpi | Self::OpenMpi5 | Self::Mpich => self.launcher().map(|found| found.launcher.version),
            Self::Etcd => etcd(),
            Self::Slurm => slurm::version(),
            Self::Kube => kube::version(),
            Self::Python => find_on_path("python3").map(|path| path.display().to_string()),
            Self::Gpu => {
                let gpus = umiak_sys::devices::nvidia(Path::new(umiak_sys::devices::NVIDIA_PROC));
                gpus.first().map(|gpu| format!("{} × {}", gpus.len(), gpu.name))
            }
            Self::Namespaces => namespaces().then(|| "unshare".to_owned()),
            Self::Netns => net::version(),
            Self::Podman => podman::version(),
            Self::MemoryCgroup => limited_cgroup("umiak-probe", 64 << 20).map(|cgroup| cgroup.kind().to_owned()),
            Self::KernelLog => {
                let traces = std::fs::read_to_string("/proc/sys/debug/exception-trace").ok()?.trim() == "1";
                (traces && umiak_sys::kernel::KernelLog::from_now().is_some()).then(|| "/dev/kmsg".to_owned())
            }
            Self::Freezer => Freezer::new("probe").map(|_| "cgroup v1".to_owned()),
            Self::Corpus => corpus().map(|path| path.display().to_string()),
        }
    }
}

impl Component {
    /// The launcher of MPI, if the component is one and is there.
    pub fn launcher(self) -> Option<Installed> {
        let (program, kind) = match self {
            Self::OpenMpi => (find_on_path("mpirun")?, LauncherKind::OpenMpi4),
            Self::OpenMpi5 => {
                (virtual_environment("UMIAK_OPENMPI_VENV", "openmpi")?.join("bin/mpirun"), LauncherKind::OpenMpi5)
            }
            Self::Mpich => (virtual_environment("UMIAK_MPICH_VENV", "mpich")?.join("bin/mpiexec"), LauncherKind::Hydra),
            _ => return None,
        };
        Installed::find(program, kind)
    }
}

/// True if the component is there. For tests without a [`crate::suite::Suite`]: says that they are skipped otherwise, and
/// fails if it is required.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
pub fn is_present(component: Component) -> bool {
    let is_there = component.version().is_some();
    if !is_there {
        assert!(!required().contains(component.name()), "`{}` is required but missing", component.name());
        eprintln!("skipped: {} is missing", component.name());
    }
    is_there
}

/// Required components: a missing one is a failure.
pub fn required() -> BTreeSet<String> {
    std::env::var("UMIAK_E2E")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// How often a repeated trial runs: `UMIAK_TRIALS`, or `usual`.
pub fn trials(usual: usize) -> usize {
    std::env::var("UMIAK_TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The virtual environment with the frameworks.
pub fn environment() -> Option<PathBuf> {
    virtual_environment("UMIAK_E2E_VENV", "e2e")
}

/// The virtual environment with the Paddle that has parameter servers.
pub fn ps_environment() -> Option<PathBuf> {
    virtual_environment("UMIAK_PS_VENV", "ps")
}

/// The virtual environment with the oldest torch that the store serves.
pub fn torch22_environment() -> Option<PathBuf> {
    virtual_environment("UMIAK_TORCH22_VENV", "torch22")
}

/// The virtual environment with programs that start Python in environments of their own.
pub fn runners() -> Option<PathBuf> {
    virtual_environment("UMIAK_RUNNERS_VENV", "runners")
}

/// The path in `variable`, or `name` in our part of the user's cache.
fn virtual_environment(variable: &str, name: &str) -> Option<PathBuf> {
    let directory = match (std::env::var_os(variable), std::env::var_os("XDG_CACHE_HOME")) {
        (Some(directory), _) => PathBuf::from(directory),
        (None, Some(cache)) => PathBuf::from(cache).join("umiak").join(name),
        (None, None) => PathBuf::from(std::env::var_os("HOME")?).join(".cache/umiak").join(name),
    };
    directory.join("bin/python").exists().then_some(directory)
}

/// Reads the version from the file system: importing a framework takes seconds.
fn distribution(environment: &Path, name: &str) -> Option<String> {
    let library = environment.join("lib");
    let prefix = format!("{name}-");
    std::fs::read_dir(library).ok()?.flatten().find_map(|python| {
        let packages = std::fs::read_dir(python.path().join("site-packages")).ok()?;
        packages.flatten().find_map(|package| {
            let file = package.file_name().into_string().ok()?;
            Some(file.strip_prefix(&prefix)?.strip_suffix(".dist-info")?.to_owned())
        })
    })
}

/// `etcd Version: 3.4.23`
fn etcd() -> Option<String> {
    find_on_path("openssl")?;
    let output = Command::new("etcd").arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.strip_prefix("etcd Version: ")?.to_owned())
}

/// Tries it: the result depends on the kernel's build and settings, and on the container around us.
fn namespaces() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A memory cgroup with a limit, removed when dropped.
#[derive(Debug)]
pub struct LimitedCgroup {
    path: PathBuf,
    kind: &'static str,
}

impl LimitedCgroup {
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Writing a process id to this file moves the process into the cgroup.
    pub fn members(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for LimitedCgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Creates a memory cgroup with this limit below our own; `None` if that is not permitted.
pub fn limited_cgroup(name: &str, bytes: u64) -> Option<LimitedCgroup> {
    let own = umiak_sys::kernel::memory_cgroup()?;
    let path = own.join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir(&path).ok()?;
    let limit = |file: &str| {
        std::fs::metadata(path.join(file)).is_ok() && std::fs::write(path.join(file), bytes.to_string()).is_ok()
    };
    let kind = if limit("memory.limit_in_bytes") {
        Some("version 1")
    } else if limit("memory.max") {
        let _ = std::fs::write(path.join("memory.swap.max"), "0");
        Some("version 2")
    } else {
        None
    };
    let Some(kind) = kind else {
        let _ = std::fs::remove_dir(&path);
        return None;
    };
    Some(LimitedCgroup { path, kind })
}

/// Real documents of the systems that umiak replaces, beside the checkout.
pub fn corpus() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    path.is_dir().then_some(path)
}
