//! Whether anybody supervises a run.

use std::fs::File;
use std::io;

use super::{Error, RunDir, Supervisor, journal};

/// What is known about who looks after a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Life {
    /// Somebody holds it: this one, where it could say so already.
    Live {
        supervisor: Option<Supervisor>,
    },
    /// Nobody here, but its supervisor was on another host, whose locks may not be seen from this one.
    Elsewhere {
        host: String,
    },
    /// Nobody, and it has not ended.
    Lost,
    Finished,
}

/// Of a run whose journal was not read yet.
pub fn life(run: &RunDir) -> Result<Life, Error> {
    life_of(run, journal::replay(run)?.status.is_finished())
}

/// Of a run whose journal says whether it has ended. A supervisor that has written the end and is about to go counts
/// as gone.
pub fn life_of(run: &RunDir, is_finished: bool) -> Result<Life, Error> {
    if is_finished {
        return Ok(Life::Finished);
    }
    let supervisor = run.read_supervisor();
    if is_held(run)? {
        return Ok(Life::Live { supervisor });
    }
    Ok(match supervisor {
        // One kernel: its locks are ours. One name: the same host, before it was started again.
        Some(supervisor) if !supervisor.is_of_this_boot() && supervisor.host != umiak_sys::host::name() => {
            Life::Elsewhere { host: supervisor.host }
        }
        _ => Life::Lost,
    })
}

/// Whether a supervisor, or its guardian, holds the journal.
pub fn is_held(run: &RunDir) -> Result<bool, Error> {
    let path = run.journal();
    let held = match File::open(&path) {
        // Made a moment ago, or never completed: nobody holds what is not there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(file) => umiak_sys::hold::is_held(&file),
    };
    held.map_err(|source| Error::Journal { doing: "look at the lock of", path, source })
}

/// Takes away what only a living run needs, of one that has ended: its supervisor may have been killed right after it
/// had written the end.
pub fn tidy(run: &RunDir) {
    if !is_held(run).is_ok_and(|held| !held) {
        return;
    }
    for path in [run.secrets(), run.control()] {
        let _ = std::fs::remove_file(path);
    }
    let _ = std::fs::remove_dir_all(run.scratch());
    run.drop_unfinished();
}
