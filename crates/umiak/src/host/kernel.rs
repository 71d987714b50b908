//! Asks the kernel about ranks that were ended by a signal: once per failure, after all replicas were told to stop.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use umiak_core::diagnose::kernel::{self, Account, Death, LogRecord};
use umiak_core::facts::{Evidence, KernelFact};
use umiak_core::model::{Exit, Slot};
use umiak_sys::kernel::{KernelLog, core_pattern, memory_limit, now_micros, oom_kills, room};

use super::evidence::of_slot;

const SIGBUS: i32 = 7;
const SIGTERM: i32 = 15;
const SHARED_MEMORY: &str = "/dev/shm";
/// Signature of a failed write for lack of space.
const NO_SPACE: &str = "U1203";
/// Signatures of a rank that lost a child process.
const LOST_CHILD: [&str; 2] = ["U2402", "U3103"];

/// A rank that ended badly.
#[derive(Debug)]
pub(crate) struct EndedProcess {
    pub(crate) slot: Slot,
    pub(crate) pid: u32,
    pub(crate) exit: Exit,
    /// True if we had sent it a signal.
    pub(crate) stopped: bool,
}

/// Position of log and counters when the run began: earlier entries are not about this run.
#[derive(Debug)]
pub(crate) struct Kernel {
    log: Option<KernelLog>,
    memory_kills: Option<u64>,
    since: SystemTime,
}

impl Kernel {
    pub(crate) fn from_now() -> Self {
        // File timestamps lag behind the system clock by up to one tick.
        let since = SystemTime::now() - Duration::from_millis(20);
        Self { log: KernelLog::from_now(), memory_kills: oom_kills(), since }
    }

    /// Adds the kernel's information to the evidence.
    pub(crate) fn explain(&mut self, ended: &[EndedProcess], log_dir: &Path, evidence: &mut Vec<(Slot, Evidence)>) {
        // The kernel has no information about SIGTERM.
        let is_odd = |end: &&EndedProcess| end.exit.signal().is_some_and(|signal| signal != SIGTERM);
        let signalled: Vec<&EndedProcess> = ended.iter().filter(is_odd).collect();
        let code = |evidence: &Evidence| evidence.signature.as_ref().map(|signature| signature.code.clone());
        let told = |codes: &[&str]| -> Vec<Slot> {
            let hit = |(slot, evidence): &(Slot, Evidence)| {
                code(evidence).filter(|code| codes.contains(&&**code)).map(|_| *slot)
            };
            evidence.iter().filter_map(hit).collect()
        };
        let (no_space, lost_child) = (told(&[NO_SPACE]), told(&LOST_CHILD));
        let mut found: Vec<(Slot, KernelFact)> = Vec::new();
        if !signalled.is_empty() || !lost_child.is_empty() {
            let account = self.account();
            let deaths: Vec<Death<'_>> =
                signalled.iter().map(|end| Death { pid: end.pid, exit: &end.exit, stopped: end.stopped }).collect();
            for (end, facts) in signalled.iter().zip(kernel::attribute(&deaths, &account)) {
                found.extend(facts.into_iter().map(|fact| (end.slot, fact)));
            }
            let count = account.memory_kills;
            if count > 0 && found.iter().all(|(_, fact)| !matches!(fact, KernelFact::OomKilled { .. })) {
                found.extend(lost_child.iter().map(|slot| (*slot, KernelFact::MemoryKills { count })));
            }
        }
        for end in &signalled {
            if matches!(end.exit, Exit::Signal { core_dumped: true, .. }) {
                found.extend(self.core(end.pid).map(|fact| (end.slot, fact)));
            }
        }
        let bus = signalled.iter().filter(|end| end.exit.signal() == Some(SIGBUS)).map(|end| end.slot);
        let short_of_room: Vec<Slot> = bus.chain(no_space).collect();
        if !short_of_room.is_empty() {
            let full = full_file_systems(log_dir);
            found.extend(short_of_room.iter().flat_map(|slot| full.iter().map(|fact| (*slot, fact.clone()))));
        }
        for (slot, fact) in found {
            kernel::add(of_slot(evidence, slot), fact);
        }
    }

    /// Returns what was logged since the run began, or since the last failure.
    fn account(&mut self) -> Account {
        let log = self.log.as_mut().map(|log| log.read(kernel::is_of_interest)).unwrap_or_default();
        let log = log.into_iter().map(|(micros, message)| LogRecord { micros, message }).collect();
        let kills = oom_kills();
        let memory_kills = kills.zip(self.memory_kills).map_or(0, |(now, before)| now.saturating_sub(before));
        self.memory_kills = kills.or(self.memory_kills);
        Account { log, now_micros: now_micros(), memory_kills, limit_kib: memory_limit().map(|bytes| bytes >> 10) }
    }

    fn core(&self, pid: u32) -> Option<KernelFact> {
        let pattern = core_pattern()?;
        let path = find_core(&pattern, pid, self.since).map(|path| path.display().to_string());
        Some(KernelFact::CoreDumped { pattern, path })
    }
}

/// Returns each full file system once, with the first of our directories on it.
fn full_file_systems(log_dir: &Path) -> Vec<KernelFact> {
    let mut places = vec![PathBuf::from(SHARED_MEMORY), log_dir.to_path_buf(), std::env::temp_dir()];
    places.extend(std::env::current_dir());
    let mut seen = Vec::new();
    let full = places.into_iter().filter_map(|place| {
        let device = place.metadata().ok()?.dev();
        if seen.contains(&device) {
            return None;
        }
        seen.push(device);
        let free_bytes = room(&place).filter(|room| room.is_full())?.free_bytes;
        let path = place.display().to_string();
        Some(if path == SHARED_MEMORY {
            KernelFact::SharedMemoryFull { path, free_bytes }
        } else {
            KernelFact::DiskFull { path, free_bytes }
        })
    });
    full.collect()
}

/// Finds the newest file since the run began that matches the core pattern for this process.
fn find_core(pattern: &str, pid: u32, since: SystemTime) -> Option<PathBuf> {
    if pattern.starts_with('|') {
        return None;
    }
    let pattern = PathBuf::from(expand(pattern, pid));
    let name = pattern.file_name().and_then(OsStr::to_str)?;
    let directory = match pattern.parent() {
        Some(parent) if parent != Path::new("") => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let newest = std::fs::read_dir(&directory).ok()?.flatten().filter_map(|entry| {
        let fits = entry.file_name().to_str().is_some_and(|file| matches(name, file));
        let modified = entry.metadata().ok().filter(|_| fits)?.modified().ok()?;
        (modified >= since).then(|| (modified, entry.path()))
    });
    newest.max().map(|(_, path)| path)
}

/// Expands a core pattern: the process id, and `*` for unknown fields.
fn expand(pattern: &str, pid: u32) -> String {
    let mut text = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match (character, (character == '%').then(|| characters.next()).flatten()) {
            ('%', Some('p' | 'P')) => text.push_str(&pid.to_string()),
            ('%', Some('%')) => text.push('%'),
            ('%', Some(_)) => text.push('*'),
            ('%', None) => {}
            (other, _) => text.push(other),
        }
    }
    text
}

/// True if a name matches a pattern with `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, rest)) => name.strip_prefix(before).is_some_and(|name| {
            name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| matches(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_patterns() {
        for (pattern, name, fits) in [
            ("core", "core", true),
            ("core.%p", "core.4121", true),
            ("core.%p", "core.4122", false),
            ("core.%e.%p.%t", "core.python3.4121.1763179200", true),
            ("core.%e.%p.%t", "core.python3.5000.1763179200", false),
            ("100%%-%P", "100%-4121", true),
        ] {
            assert_eq!(matches(&expand(pattern, 4121), name), fits, "{pattern} {name}");
        }
    }
}
