//! Real components that some tests need. An absent one makes its tests *skipped*, unless `UMIAK_E2E` names it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Something outside this workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// PaddlePaddle in the test environment.
    Paddle,
    /// PyTorch in the test environment.
    Torch,
    /// Any Python 3 on `PATH`.
    Python,
    /// An NVIDIA GPU. Never required in CI.
    Gpu,
    /// Namespaces of users and mounts, as an ordinary user may make them. Never required in CI.
    Namespaces,
    /// The corpus of real documents beside the checkout. Never required in CI.
    Corpus,
}

impl Component {
    pub const ALL: [Self; 6] = [Self::Paddle, Self::Torch, Self::Python, Self::Gpu, Self::Namespaces, Self::Corpus];

    pub fn name(self) -> &'static str {
        match self {
            Self::Paddle => "paddle",
            Self::Torch => "torch",
            Self::Python => "python",
            Self::Gpu => "gpu",
            Self::Namespaces => "namespaces",
            Self::Corpus => "corpus",
        }
    }

    /// The version that is here, if any.
    pub fn version(self) -> Option<String> {
        match self {
            Self::Paddle => distribution("paddlepaddle"),
            Self::Torch => distribution("torch"),
            Self::Python => find_on_path("python3").map(|path| path.display().to_string()),
            Self::Gpu => {
                let gpus = umiak_sys::devices::nvidia(Path::new(umiak_sys::devices::NVIDIA_PROC));
                gpus.first().map(|gpu| format!("{} × {}", gpus.len(), gpu.name))
            }
            Self::Namespaces => namespaces().then(|| "unshare".to_owned()),
            Self::Corpus => corpus().map(|path| path.display().to_string()),
        }
    }
}

/// Components that must be here: absent is a failure.
pub fn required() -> BTreeSet<String> {
    std::env::var("UMIAK_E2E")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// How often a repeated trial is repeated: `UMIAK_TRIALS`, else `usual`.
pub fn trials(usual: usize) -> usize {
    std::env::var("UMIAK_TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The virtual environment that holds the frameworks.
pub fn environment() -> Option<PathBuf> {
    let directory = match (std::env::var_os("UMIAK_E2E_VENV"), std::env::var_os("XDG_CACHE_HOME")) {
        (Some(directory), _) => PathBuf::from(directory),
        (None, Some(cache)) => PathBuf::from(cache).join("umiak/e2e"),
        (None, None) => PathBuf::from(std::env::var_os("HOME")?).join(".cache/umiak/e2e"),
    };
    directory.join("bin/python").exists().then_some(directory)
}

/// Read from the file system: importing a framework only to ask its version takes seconds.
fn distribution(name: &str) -> Option<String> {
    let library = environment()?.join("lib");
    let prefix = format!("{name}-");
    std::fs::read_dir(library).ok()?.flatten().find_map(|python| {
        let packages = std::fs::read_dir(python.path().join("site-packages")).ok()?;
        packages.flatten().find_map(|package| {
            let file = package.file_name().into_string().ok()?;
            Some(file.strip_prefix(&prefix)?.strip_suffix(".dist-info")?.to_owned())
        })
    })
}

/// Asked of the kernel: whether they may be made is a matter of its build, its settings and the container around us.
fn namespaces() -> bool {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

pub fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

/// Real documents of the systems we stand in for, beside the checkout.
pub fn corpus() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    path.is_dir().then_some(path)
}
