//! From a checked command line to a plan that is ready to be performed: everything that can go wrong before
//! the first rank starts goes wrong here.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::launch::{LaunchSpec, PortRequest};
use umiak_core::model::Port;
use umiak_core::plan::files::FilePlan;
use umiak_core::plan::{self, Inventory, Plan, Ports, Run, command};
use umiak_sys::guardian::describe_errno;
use umiak_sys::ports::{LeaseError, LeaseRequest, Leased, Place};

use super::inventory;

/// Leases ports, here or in the guardian.
pub(super) type Lease<'a> = dyn FnMut(LeaseRequest) -> Result<Leased, LeaseError> + 'a;

/// The plan. Nothing is written yet, but for the scratch directory that `make_scratch` may make.
pub(super) fn plan(
    spec: &LaunchSpec,
    inventory: &Inventory,
    lease: &mut Lease<'_>,
    make_scratch: impl FnOnce(&Path) -> Result<PathBuf, Diagnostic>,
) -> Result<Plan, Diagnostic> {
    let files = inventory::look_up(spec, &inventory.env);
    let command = command::resolve(spec, &files)?;
    let layout = plan::layout(spec, inventory)?;
    let log_dir = std::path::absolute(&spec.log_dir).map_err(|error| log_dir_error(&spec.log_dir, &error))?;
    let mut notices = Vec::new();
    let ports = lease_ports(spec, layout.endpoints, layout.stores, lease, &mut notices)?;
    let scratch = make_scratch(&log_dir)?;
    let run = Run { pod_name: pod_name(), scratch, log_dir, command, attempt: 0 };
    let mut plan = plan::finish(spec, inventory, layout, &ports, &run);
    plan.notices.extend(notices);
    Ok(plan)
}

/// Six letters, as Paddle names its pods.
fn pod_name() -> String {
    std::iter::repeat_with(fastrand::lowercase).take(6).collect()
}

fn lease_ports(
    spec: &LaunchSpec,
    endpoints: u16,
    stores: u16,
    lease: &mut Lease<'_>,
    notices: &mut Vec<Diagnostic>,
) -> Result<Ports, Diagnostic> {
    let place = match spec.ports {
        PortRequest::Free => Place::Anywhere,
        PortRequest::Range { low, high, .. } => Place::Within { low, high },
        PortRequest::Fixed { start, .. } => Place::Exactly { start },
    };
    let mut take = |count: u16, place: Place| {
        let leased = lease(LeaseRequest { count, place, seed: fastrand::u64(..) }).map_err(|error| {
            error.refused.map_or_else(
                || plan::too_few_ports(&spec.ports, error.wanted, error.found, (error.low, error.high), &error.taken),
                |errno| no_sockets(error.wanted, errno),
            )
        })?;
        if leased.inside_ephemeral && notices.is_empty() {
            notices.push(Diagnostic::notice(
                Code::L0022,
                "the kernel's ephemeral range leaves no room below it: ports were chosen inside it",
            ));
        }
        Ok::<_, Diagnostic>(leased.ports.into_iter().filter_map(Port::new).collect::<Vec<_>>())
    };
    match place {
        // A fixed start is for the endpoints; the stores' ports are nobody's business.
        Place::Exactly { .. } => {
            Ok(Ports { endpoints: take(endpoints, place)?, stores: take(stores, Place::Anywhere)? })
        }
        Place::Anywhere | Place::Within { .. } => {
            let mut endpoints_and_stores = take(endpoints + stores, place)?;
            let stores = endpoints_and_stores.split_off(endpoints as usize);
            Ok(Ports { endpoints: endpoints_and_stores, stores })
        }
    }
}

fn no_sockets(wanted: u16, errno: i32) -> Diagnostic {
    Diagnostic::error(Code::L0010, "the kernel gives this process no more sockets to hold ports with")
        .row("needed", wanted.to_string())
        .row("reason", describe_errno(errno))
        .hint("raise the limit of open files with `ulimit -n`, or start fewer processes")
}

/// A directory of this run: in the temporary directory, else in the log directory.
pub(super) fn make_scratch(log_dir: &Path) -> Result<PathBuf, Diagnostic> {
    let make = |parent: &Path| {
        let directory = tempfile::Builder::new()
            .prefix("umiak-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(parent)?
            .keep();
        std::fs::create_dir(directory.join("gloo"))?;
        Ok::<_, std::io::Error>(directory)
    };
    make(&std::env::temp_dir()).or_else(|_| make(log_dir)).map_err(|error| {
        Diagnostic::error(Code::L0016, "no scratch directory could be made")
            .row("tried", format!("{}\n{}", std::env::temp_dir().display(), log_dir.display()))
            .row("reason", error.to_string())
            .hint("set `TMPDIR` to a directory that can be written")
    })
}

pub(super) fn make_log_dir(path: &Path) -> Result<(), Diagnostic> {
    std::fs::create_dir_all(path).map_err(|error| log_dir_error(path, &error))
}

/// Why the log directory takes no more, if it does not: a rank's output has then nowhere to go.
pub(super) fn why_full(log_dir: &Path) -> Option<Diagnostic> {
    let probe = || tempfile::tempfile_in(log_dir)?.write_all(&[0; 4096]);
    let error = probe().err()?;
    Some(
        Diagnostic::notice(Code::L0026, format!("nothing can be written to `{}` any more", log_dir.display()))
            .row("reason", error.to_string())
            .hint("this may be why the rank ended; free space there, or choose another directory with `--log_dir`"),
    )
}

fn log_dir_error(path: &Path, error: &std::io::Error) -> Diagnostic {
    let in_the_way = path.ancestors().find(|ancestor| ancestor.exists()).filter(|ancestor| !ancestor.is_dir());
    let reason = match in_the_way {
        Some(file) => format!("`{}` is a file, not a directory", file.display()),
        None => error.to_string(),
    };
    Diagnostic::error(Code::L0014, format!("the log directory `{}` cannot be used", path.display()))
        .row("reason", reason)
        .hint("choose another one with `--log_dir`")
}

/// Writes what must be there before the first rank; returns where this run's part of each log begins.
pub(super) fn write_files(spec: &LaunchSpec, plan: &Plan) -> Result<Vec<u64>, Diagnostic> {
    for file in plan.files.iter().filter(|file| !file.late) {
        write_file(file).map_err(|error| file_error(&file.path, &error))?;
    }
    plan.replicas
        .iter()
        .enumerate()
        .map(|(position, replica)| {
            // The mirror needs its file to be there; the others are made by the ranks that write them.
            let start = if position == 0 || spec.log_overwrite {
                open_log(&replica.log, spec.log_overwrite)
            } else {
                Ok(std::fs::metadata(&replica.log).map_or(0, |metadata| metadata.len()))
            };
            start.map_err(|error| file_error(&replica.log, &error))
        })
        .collect()
}

/// Writes the rest, on a thread of its own, while the ranks start. Losing one is no reason to stop a job.
pub(super) fn write_late_files(plan: &Plan) -> Option<JoinHandle<()>> {
    let files: Vec<FilePlan> = plan.files.iter().filter(|file| file.late).cloned().collect();
    let write = move || {
        for file in &files {
            let _ = write_file(file);
        }
    };
    std::thread::Builder::new().name("files".into()).stack_size(128 << 10).spawn(write).ok()
}

fn file_error(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::L0014, format!("`{}` cannot be written", path.display()))
        .row("reason", error.to_string())
        .hint("choose another directory with `--log_dir`, or free space there")
}

fn write_file(file: &FilePlan) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).mode(if file.private { 0o600 } else { 0o644 });
    if file.append {
        options.append(true);
    } else {
        options.write(true).truncate(true);
    }
    options.open(&file.path)?.write_all(file.content.as_bytes())
}

/// Opening it here, as the rank will, finds out before the start whether it can.
fn open_log(path: &Path, overwrite: bool) -> std::io::Result<u64> {
    let file: File = OpenOptions::new().append(true).create(true).open(path)?;
    if overwrite {
        file.set_len(0)?;
    }
    Ok(file.metadata()?.len())
}
