//! Every visible difference between umiak and the launchers that it replaces, with the reason: one list for Paddle's
//! launchers and one for torchrun.
//!
//! The conformance test runs one probe under the real launcher and under umiak, and compares every variable, file and
//! console line. It fails on a difference that is not listed here, and on an entry that no longer differs.

mod paddle;
mod torchrun;

pub use paddle::FROM_PADDLE;
pub use torchrun::FROM_TORCHRUN;

use crate::model::Generation;

/// Where a difference can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Surface {
    Variable,
    /// A property of the rank's process: its parent, its standard input.
    Process,
    File,
    /// A line of stdout, stderr or the pod log.
    Console,
    /// The keys of a job in etcd, and their leases.
    Etcd,
    Exit,
}

impl Surface {
    /// Every surface, in the order of the reference page.
    pub const ALL: [Self; 6] = [Self::Variable, Self::Process, Self::File, Self::Console, Self::Etcd, Self::Exit];
}

/// How it differs from the original launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Only in umiak.
    Added,
    /// In both, with different values.
    Changed,
    /// Only in the original.
    Absent,
}

/// The jobs that an entry applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Jobs {
    All,
    /// Parameter-server jobs: `ps` and `ps-heter`.
    Servers,
    /// Jobs on several nodes. The comparison with Paddle is on one node; tests with several nodes check its entries.
    SeveralNodes,
    /// Jobs whose nodes come and go. The comparison does not run them.
    Elastic,
}

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    pub surface: Surface,
    /// Names of variables, properties or files, or console lines; `*` stands for anything. Names that change from
    /// run to run are written as the conformance test writes them: `<ts>`, `<pod 1>`.
    pub patterns: &'static [&'static str],
    /// The generation of Paddle's launcher; `None` for both, and for torchrun.
    pub generation: Option<Generation>,
    pub jobs: Jobs,
    pub kind: Kind,
    pub reason: &'static str,
}

impl Difference {
    pub fn covers(&self, surface: Surface, generation: Option<Generation>, jobs: Jobs, kind: Kind, name: &str) -> bool {
        self.surface == surface
            && self.kind == kind
            && (self.generation.is_none() || self.generation == generation)
            && (self.jobs == Jobs::All || self.jobs == jobs)
            && self.patterns.iter().any(|pattern| matches(pattern, name))
    }
}

/// `*` matches any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            tail.is_empty()
                || rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Additions are harmless to a drop-in replacement; changes and omissions must stay few.
    #[test]
    fn few_changes_and_each_with_its_reason() {
        for list in [FROM_PADDLE, FROM_TORCHRUN] {
            let taken = |is_elastic: bool| {
                let is_taken = |entry: &&Difference| entry.kind != Kind::Added;
                list.iter().filter(is_taken).filter(|entry| (entry.jobs == Jobs::Elastic) == is_elastic).count()
            };
            for (count, most) in [(taken(false), 25), (taken(true), 12)] {
                assert!(count <= most, "{count} entries change something or leave it out");
            }
            for entry in list {
                assert!(!entry.patterns.is_empty() && !entry.reason.is_empty(), "{entry:?}");
            }
        }
    }

    #[test]
    fn patterns() {
        assert!(matches("TORCHELASTIC_*", "TORCHELASTIC_RUN_ID"));
        assert!(matches("*.gpu.log", "default.gpu.log"));
        assert!(matches("envlog.*", "envlog."));
        assert!(!matches("PADDLE_MASTER", "PADDLE_MASTERS"));
        assert!(!matches("*.gpu.log", "gpu.txt"));
    }
}
