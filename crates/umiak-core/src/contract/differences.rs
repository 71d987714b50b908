//! Every way in which a rank or a user can tell umiak from Paddle's launcher, and why.
//!
//! The conformance test runs one probe under real Paddle, in both generations, and under umiak, and compares
//! every variable, file and console line. A difference that is not listed here fails it, and so does an
//! entry that no longer differs.

use crate::formats::launch::Generation;

/// Where a difference can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Surface {
    Variable,
    /// A property of the rank's process: its parent, its standard input.
    Process,
    File,
    /// A line of stdout, stderr or the pod log.
    Console,
    Exit,
}

/// How it differs from Paddle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Ours, not Paddle's.
    Added,
    /// In both, with another value.
    Changed,
    /// Paddle's, not ours.
    Absent,
}

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    pub surface: Surface,
    /// Names of variables, properties or files, or console lines; `*` stands for anything.
    pub patterns: &'static [&'static str],
    /// `None` for both.
    pub generation: Option<Generation>,
    pub kind: Kind,
    pub reason: &'static str,
}

impl Difference {
    pub fn covers(&self, surface: Surface, generation: Generation, kind: Kind, name: &str) -> bool {
        self.surface == surface
            && self.kind == kind
            && self.generation.is_none_or(|only| only == generation)
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

/// The list.
pub const DIFFERENCES: &[Difference] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("TORCHELASTIC_*", "TORCHELASTIC_RUN_ID"));
        assert!(matches("*.gpu.log", "default.gpu.log"));
        assert!(matches("envlog.*", "envlog."));
        assert!(!matches("PADDLE_MASTER", "PADDLE_MASTERS"));
        assert!(!matches("*.gpu.log", "gpu.txt"));
    }
}
