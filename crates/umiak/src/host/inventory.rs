//! Gathers facts about this host for the plan.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tracing::debug;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::prefix::script_interpreter;
use umiak_core::model::{CommandRequest, Interpreter, Request};
use umiak_core::plan::command::{self, Files, FirstLine, ScriptFile};
use umiak_core::plan::{Address, Gpu, IdleGpu, Inventory};

use crate::variables;

/// Returns the variables that are valid text; others are passed to ranks unchanged.
pub(crate) fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Parts of the inventory that cost extra and are not always needed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Extras {
    numa: bool,
    idle_gpus: bool,
}

impl Extras {
    pub(crate) fn of(request: &Request) -> Self {
        Self { numa: request.numa, idle_gpus: request.devices.is_some() }
    }
}

pub(crate) fn gather(env: BTreeMap<String, String>, extras: Extras) -> Inventory {
    let root = env.get(variables::NVIDIA_PROC).map_or(umiak_sys::devices::NVIDIA_PROC, String::as_str);
    let gpus = umiak_sys::devices::nvidia(Path::new(root));
    let idle_gpus = if gpus.is_empty() && extras.idle_gpus {
        let root = env.get(variables::PCI_DEVICES).map_or(umiak_sys::devices::PCI_DEVICES, String::as_str);
        umiak_sys::devices::nvidia_on_the_bus(Path::new(root))
    } else {
        Vec::new()
    };
    let inventory = Inventory {
        gpus: gpus
            .into_iter()
            .map(|gpu| Gpu {
                index: gpu.index,
                numa_node: if extras.numa { umiak_sys::host::numa_node_of(&gpu.pci) } else { None },
                name: gpu.name,
                uuid: gpu.uuid,
                minor: gpu.minor,
            })
            .collect(),
        idle_gpus: idle_gpus.into_iter().map(|gpu| IdleGpu { pci: gpu.pci, driver: gpu.driver }).collect(),
        cpus: umiak_sys::host::cpus(),
        addresses: umiak_sys::host::addresses()
            .into_iter()
            .map(|address| Address { interface: address.interface, ip: address.ip })
            .collect(),
        hostname: umiak_sys::host::name(),
        numa_nodes: if extras.numa { umiak_sys::host::numa_nodes() } else { Vec::new() },
        env,
    };
    let (gpus, addresses) = (inventory.gpus.len(), inventory.addresses.len());
    debug!(gpus, cpus = inventory.cpus, addresses, host = inventory.hostname, "inventory");
    inventory
}

/// Looks up the script and the interpreters in the file system.
pub(crate) fn look_up(asked: &CommandRequest, env: &BTreeMap<String, String>) -> Files {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let bare = Path::new(&asked.script).components().count() == 1 && !asked.script.as_encoded_bytes().contains(&b'/');
    let script_on_path = if bare { on_path(&asked.script, &path) } else { None };
    let script = Path::new(&asked.script);
    let program = if script.is_file() { Some(script) } else { script_on_path.as_deref() };
    Files {
        script: script_file(script),
        first_line: program.and_then(first_line),
        script_on_path,
        directory: std::env::current_dir().unwrap_or_default(),
        neighbours: neighbours(script),
        interpreters: interpreters(asked.interpreter.as_ref(), env, &path),
    }
}

/// Returns the candidate interpreters in order of preference, each with its path if found.
fn interpreters(
    asked: Option<&Interpreter>,
    env: &BTreeMap<String, String>,
    path: &OsStr,
) -> Vec<(String, Option<PathBuf>)> {
    let own = match asked {
        Some(Interpreter::OfScript(script)) => Some((script.to_string_lossy().into_owned(), of_script(script, path))),
        Some(Interpreter::Named(_)) | None => None,
    };
    let names = command::interpreter_names(asked, env.get("VIRTUAL_ENV").map(String::as_str)).into_iter();
    let named = names.map(|name| {
        let found = find_program(&name, path);
        (name, found)
    });
    own.into_iter().chain(named).collect()
}

/// The usual interpreter.
pub(crate) fn python(env: &BTreeMap<String, String>) -> Result<PathBuf, Diagnostic> {
    command::interpreter(&interpreters(None, env, &std::env::var_os("PATH").unwrap_or_default()))
}

/// Finds the interpreter of a Python script, by path or on `PATH`. Programs of that name without one are skipped:
/// umiak itself may be installed as `fleetrun`.
pub(crate) fn of_script(script: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = if script.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::from(script)]
    } else {
        std::env::split_paths(path).map(|directory| directory.join(script)).collect()
    };
    candidates.iter().filter(|candidate| is_executable(candidate)).find_map(|candidate| {
        let mut head = Vec::new();
        File::open(candidate).ok()?.take(4096).read_to_end(&mut head).ok()?;
        find_program(&script_interpreter(&head)?, path)
    })
}

/// Finds the script behind `run_check`: the check that Paddle ships, located by the interpreter without importing
/// Paddle.
pub(crate) fn paddle_check(asked: &CommandRequest, env: &BTreeMap<String, String>) -> Result<PathBuf, Diagnostic> {
    const FIND: &str =
        "import importlib.util as u; s = u.find_spec('paddle'); print(s.submodule_search_locations[0] if s else '')";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let interpreter = command::interpreter(&interpreters(asked.interpreter.as_ref(), env, &path))?;
    let answer = Command::new(&interpreter).args(["-c", FIND]).stdin(Stdio::null()).output();
    let said = answer.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let check = Path::new(said.lines().last().unwrap_or_default()).join("distributed/launch/plugins/test.py");
    if !said.is_empty() && check.is_file() {
        return Ok(check);
    }
    Err(Diagnostic::error(Code::L0011, "`run_check` needs Paddle, which was not found")
        .row("interpreter", interpreter.display().to_string())
        .hint("use an interpreter that has Paddle: `umiak /path/to/python -m paddle.distributed.launch run_check`"))
}

/// Lists the directory of a missing script; empty if the script exists.
fn neighbours(script: &Path) -> Vec<String> {
    /// Enough to suggest a similar name; a data directory may have millions of entries.
    const MOST: usize = 10_000;
    if script.exists() {
        return Vec::new();
    }
    let directory = script.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().take(MOST);
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn script_file(path: &Path) -> ScriptFile {
    match std::fs::metadata(path) {
        Err(_) => ScriptFile::Missing,
        Ok(metadata) if metadata.is_dir() => ScriptFile::Directory,
        Ok(metadata) => {
            // Opening a pipe would block until it has a writer, and consume data meant for the rank.
            let readable = !metadata.is_file() || File::open(path).is_ok();
            ScriptFile::File { executable: is_executable(path), readable }
        }
    }
}

/// Parses the `#!` line of a file, up to the length that the kernel reads.
fn first_line(path: &Path) -> Option<FirstLine> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let (line, has_carriage_return) = match line.strip_suffix(b"\r") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let word = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    let is_there = Path::new(OsStr::from_bytes(word)).exists();
    let is_python = String::from_utf8_lossy(line).contains("python");
    Some(FirstLine {
        interpreter: String::from_utf8_lossy(word).into_owned(),
        is_there,
        is_python,
        has_carriage_return,
    })
}

pub(crate) fn find_program(name: &str, path: &OsStr) -> Option<PathBuf> {
    if name.contains('/') {
        let program = PathBuf::from(name);
        return is_executable(&program).then_some(program);
    }
    on_path(&OsString::from(name), path)
}

pub(crate) fn on_path(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path).map(|directory| directory.join(name)).find(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
