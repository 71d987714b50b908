//! Whether a run has a supervisor.

use std::fs::File;
use std::io;

use super::{Error, RunDir, Supervisor, journal};

/// The supervision of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Life {
    /// A process holds the lock: this supervisor, if it has already written its file.
    Live {
        supervisor: Option<Supervisor>,
    },
    /// No process here holds the lock, but the supervisor was on another host, whose locks may not be visible here.
    Elsewhere {
        host: String,
    },
    /// No supervisor, and the run has not ended.
    Lost,
    Finished,
}

/// Returns the life of a run whose journal was not read yet.
pub fn life(run: &RunDir) -> Result<Life, Error> {
    life_of(run, journal::replay(run)?.is_finished())
}

/// Returns the life of a run whose journal was read. A supervisor that has recorded the end and is about to exit does
/// not count.
pub fn life_of(run: &RunDir, is_finished: bool) -> Result<Life, Error> {
    if is_finished {
        return Ok(Life::Finished);
    }
    let supervisor = run.read_supervisor();
    if is_held(run)? {
        return Ok(Life::Live { supervisor });
    }
    Ok(match supervisor {
        // It holds the lock of a file that was replaced or removed.
        Some(supervisor) if supervisor.is_alive() => Life::Live { supervisor: Some(supervisor) },
        // Same boot: its locks are visible here. Same name: this host, before a reboot.
        Some(supervisor) if !supervisor.is_of_this_boot() && supervisor.host != umiak_sys::host::name() => {
            Life::Elsewhere { host: supervisor.host }
        }
        _ => Life::Lost,
    })
}

/// True if a supervisor or its guardian holds the journal's lock.
pub fn is_held(run: &RunDir) -> Result<bool, Error> {
    let path = run.journal();
    let held = match journal::open(run, File::options().read(true)) {
        // No journal yet, so no lock.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
        Ok(file) => umiak_sys::hold::is_held(&file),
    };
    held.map_err(|source| Error::Journal { doing: "check the lock of", path, source })
}

/// Removes what only a live run needs from a run that has ended: its supervisor may have been killed right after it
/// recorded the end. Holds the lock meanwhile, so that no process resumes the run and loses new files, and then checks
/// again that it has ended: it may have been resumed before.
pub fn tidy(run: &RunDir) {
    let Ok(file) = journal::open(run, File::options().write(true)) else { return };
    let is_ours = umiak_sys::hold::try_exclusive(&file).unwrap_or(false);
    if !is_ours || !journal::replay(run).is_ok_and(|replay| replay.is_finished()) {
        return;
    }
    for path in [run.secrets(), run.control()] {
        let _ = std::fs::remove_file(path);
    }
    let _ = std::fs::remove_dir_all(run.scratch(None));
    run.drop_unfinished();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use umiak_core::facts::{Began, Fact, Outcome, Supervised};
    use umiak_core::model::Timestamp;

    use super::*;
    use crate::history::Home;
    use crate::history::journal::Writer;

    fn write(writer: &mut Writer, fact: Fact) {
        let records = writer.number(Timestamp::from_micros(7), [(None, fact)]);
        writer.append(&records).unwrap();
    }

    const END: Fact = Fact::Finished { outcome: Outcome::Failed, exit_code: 1 };

    #[test]
    fn what_is_taken_up_again_keeps_its_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunDir::create(&Home::at(directory.path())).unwrap();
        write(&mut Writer::create(&run).unwrap(), END);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        tidy(&run);
                        std::thread::sleep(Duration::from_micros(500));
                    }
                });
            }
            // A thread in `tidy` may hold the lock.
            let open = || std::iter::repeat_with(|| Writer::open(&run)).find_map(Result::ok).unwrap();
            for _ in 0..100 {
                let mut writer = open();
                std::fs::write(run.secrets(), "{}").unwrap();
                let (why, host, umiak) = (Began::Retried, String::new(), String::new());
                write(&mut writer, Fact::Supervised(Supervised { why, host, pid: 1, umiak }));
                drop(writer);
                std::thread::yield_now();
                assert!(run.secrets().exists());
                write(&mut open(), END);
            }
        });
        tidy(&run);
        assert!(!run.secrets().exists());
    }
}
