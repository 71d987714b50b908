//! The variables that the operator of Kubernetes sets for the launcher of an MPIJob: where `mpirun` finds the workers, and
//! the remote shell with which it starts its daemons on them.
//!
//! All workers are on one host here, which MPI does not expect: files of shared memory have the host's name, so each
//! worker has a directory of its own for them. This and other files are removed with the run's scratch directory.
//!
//! Open MPI 4, Open MPI 5 (PRRTE), and Hydra (MPICH, Intel MPI) have their own names for the same things, and two formats
//! of host files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Member, RolePlaces, Variable, View};
use crate::model::{Host, Job, Part, Role};

/// The launcher's files, in the directory of its attempt.
pub const HOST_FILE: &str = "hostfile";
pub const HYDRA_HOST_FILE: &str = "hostfile.hydra";
pub const REMOTE_SHELL: &str = "rsh";

/// A host on which processes are started, and how many by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    pub host: Host,
    pub count: u32,
}

/// The directory for the shared memory of the processes on a worker, below the one where launcher and workers meet.
pub fn worker_dir(meeting: &Path, host: &Host) -> PathBuf {
    meeting.join(format!("{host}.tmp"))
}

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    match member.part {
        Part::Leader => launcher(view),
        _ => worker(&worker_dir(view.gloo_dir, &member.endpoint.address).to_string_lossy()),
    }
}

fn worker(dir: &str) -> Vec<Variable> {
    let names = ["OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"];
    names.iter().map(|name| ((*name).to_owned(), dir.to_owned())).collect()
}

fn launcher(view: &View<'_>) -> Vec<Variable> {
    let meeting = view.gloo_dir.to_string_lossy();
    let path = |name: &str| view.log_dir.join(name).to_string_lossy().into_owned();
    let (hosts, hydra, shell) = (path(HOST_FILE), path(HYDRA_HOST_FILE), path(REMOTE_SHELL));
    let pairs = [
        ("OMPI_MCA_orte_default_hostfile", hosts.as_str()),
        ("OMPI_MCA_plm_rsh_agent", &shell),
        ("OMPI_MCA_orte_tmpdir_base", &meeting),
        // Each daemon would bind its processes to the same CPUs as the others of this host.
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
        // The daemons would share files of this host; two that write the topology at once end with SIGSEGV.
        ("PMIX_MCA_gds", "hash"),
        ("OMPI_MCA_rtc_hwloc_vmhole", "none"),
        ("PRTE_MCA_prte_default_hostfile", &hosts),
        ("PRTE_MCA_plm_ssh_agent", &shell),
        ("PRTE_MCA_prte_tmpdir_base", &meeting),
        ("PRTE_MCA_hwloc_default_binding_policy", "none"),
        ("HYDRA_HOST_FILE", &hydra),
        ("HYDRA_LAUNCHER", "ssh"),
        ("HYDRA_LAUNCHER_EXEC", &shell),
        ("I_MPI_HYDRA_HOST_FILE", &hydra),
        ("I_MPI_HYDRA_BOOTSTRAP", "ssh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", &shell),
        ("I_MPI_PIN", "0"),
    ];
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The workers by index: a process for each GPU, else for each CPU that a worker asks for.
pub fn slots(job: &Job, roles: &[RolePlaces]) -> Vec<Slots> {
    let workers = job.roles.iter().zip(roles).filter(|(role, _)| role.part == Some(Part::Trainer));
    let of_role = |(role, places): (&Role, &RolePlaces)| {
        let resources = role.work.resources;
        let count = if resources.gpus > 0 { resources.gpus } else { resources.whole_cpus().max(1) };
        places.hosts.iter().map(move |host| Slots { host: host.clone(), count }).collect::<Vec<_>>()
    };
    workers.flat_map(of_role).collect()
}

/// The host files: Open MPI's and Hydra's.
pub fn host_files(slots: &[Slots]) -> [(&'static str, String); 2] {
    let (mut open, mut hydra) = (String::new(), String::new());
    for Slots { host, count } in slots {
        let _ = writeln!(open, "{host} slots={count}");
        let _ = writeln!(hydra, "{host}:{count}");
    }
    [(HOST_FILE, open), (HYDRA_HOST_FILE, hydra)]
}
