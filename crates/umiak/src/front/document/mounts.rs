//! Directories that replicas see at other paths, checked before anything starts.

use std::path::Path;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::{Mount, Workload};
use umiak_sys::mounts::{self, Obstacle};

use crate::engine::EngineKind;
use crate::engine::local::bound;

/// Fails if a directory cannot be mounted where a replica expects it. `directory` is where the work was submitted.
pub(crate) fn check_mounts(work: &Workload, engine: EngineKind, directory: &Path) -> Result<(), Diagnostic> {
    // Most steps of a pipeline have the same.
    let mut last: &[Mount] = &[];
    let here = work.placed(engine).filter(|(_, kind)| kind.capabilities().here);
    for role in here.flat_map(|(job, _)| &job.roles) {
        if role.work.mounts != last {
            last = &role.work.mounts;
            let all: Vec<Mount> = last.iter().map(|mount| mount.below(directory)).collect();
            let directories: Vec<_> = all.iter().map(bound).collect();
            mounts::check(&directories).map_err(|(position, obstacle)| refused(&all[position], &obstacle))?;
        }
    }
    Ok(())
}

fn refused(mount: &Mount, obstacle: &Obstacle) -> Diagnostic {
    let (dir, path) = (mount.dir.display(), mount.path.display());
    let error = Diagnostic::error(Code::J0031, format!("file system `{}` cannot be mounted at `{path}`", mount.name))
        .row("directory", dir.to_string())
        .row("reason", obstacle.to_string());
    match obstacle {
        Obstacle::NoSource(..) => error.hint(format!("create `{dir}`, or name another directory")),
        Obstacle::NoDirectory(_) => error.hint("both the directory and the path must be directories"),
        Obstacle::Root | Obstacle::Relative(_) => error.hint("use an absolute path below `/`"),
        Obstacle::NotThere { path, .. } => error.hint(format!("create it: `mkdir -p {}`", path.display())),
        Obstacle::NotPermitted(_) if mount.read_only => error.hint("run as root, or allow user namespaces"),
        Obstacle::NotPermitted(_) => {
            error.hint(format!("run as root, allow user namespaces, or make a link: `ln -s {dir} {path}`"))
        }
    }
}
