//! The exit code of the command.

use crate::facts::{Finding, Outcome, Verdict};
use crate::model::{Exit, ExitCodes, Generation};

/// The run, or the replica that caused the failure, exceeded a time limit: the code of coreutils `timeout`.
pub const TIMED_OUT: u8 = 124;

/// Stopped by `umiak stop`.
pub const STOPPED: u8 = 3;

/// Which convention for exit codes applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeStyle {
    pub codes: ExitCodes,
    pub generation: Generation,
    /// With several roles no replica's code stands for the whole run: a failed run of a document exits with 1.
    pub document: bool,
    /// Set if the nodes meet in etcd.
    pub etcd: Option<NodeCount>,
}

/// How many nodes a job over etcd has. Paddle's legacy launcher ends a failed job with a code of its own for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCount {
    Fixed,
    /// From a minimum to a larger maximum.
    Range,
}

impl NodeCount {
    /// Paddle's code after the failure of a rank: 101 asks a supervisor to start the launcher again, 3 does not.
    fn legacy_code(self) -> u8 {
        match self {
            Self::Fixed => 101,
            Self::Range => 3,
        }
    }
}

/// The exit code of a run. `ends` are all exits in rank order; `signal` is the signal that stopped the run.
pub fn of(style: CodeStyle, outcome: Outcome, signal: Option<i32>, verdict: Option<&Verdict>, ends: &[Exit]) -> u8 {
    match (style.codes, outcome) {
        (_, Outcome::Succeeded) => 0,
        (ExitCodes::Umiak | ExitCodes::Paddle, Outcome::Stopped) => STOPPED,
        (_, Outcome::Interrupted) => interrupted(style, signal.unwrap_or(15)),
        (ExitCodes::Umiak, Outcome::Failed) => {
            let cause = verdict.and_then(|verdict| verdict.causes.first());
            if cause.is_some_and(|cause| cause.timed_out.is_some()) {
                return TIMED_OUT;
            }
            // The number of our own signal is not the cause's code, and a cause that exits with 0 (too early, too few
            // successes) must not read as success: then the next cause, or the first victim, has the code.
            let has_code = |found: &&Finding| !found.stopped_while_ending && found.exit.shell_code() != 0;
            let mut findings = verdict.into_iter().flat_map(|verdict| verdict.causes.iter().chain(&verdict.victims));
            findings.find(has_code).map_or(1, |found| found.exit.shell_code())
        }
        (ExitCodes::Paddle, Outcome::Failed) => match style.generation {
            // The first nonzero process by rank, with -signal as a byte: hence 241 for SIGTERM.
            Generation::Current => ends.iter().find(|exit| !exit.is_success()).map_or(1, |exit| match exit {
                Exit::Signal { signal, .. } => (256 - signal) as u8,
                other => other.shell_code(),
            }),
            Generation::Legacy => style.etcd.map_or(1, NodeCount::legacy_code),
        },
        (ExitCodes::Torch, _) => 1,
    }
}

/// The exit code after this signal to umiak.
pub fn interrupted(style: CodeStyle, signal: i32) -> u8 {
    match (style.codes, style.generation) {
        (ExitCodes::Torch, _) => 1,
        // Paddle's current launcher exits with the bare signal number; the legacy one is killed by the signal.
        (ExitCodes::Paddle, Generation::Current) => signal as u8,
        (ExitCodes::Umiak, _) | (ExitCodes::Paddle, Generation::Legacy) => 128u8.wrapping_add(signal as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Subject, Weight};

    #[test]
    fn styles() {
        let killed = Exit::Signal { signal: 15, core_dumped: false };
        let cause = Exit::Code { code: 7 };
        let verdict = Verdict { causes: vec![finding(cause.clone(), false)], victims: vec![] };
        let ends = [killed, cause];
        let (fixed, range) = (Some(NodeCount::Fixed), Some(NodeCount::Range));
        for (codes, generation, etcd, failed, interrupted) in [
            (ExitCodes::Umiak, Generation::Current, None, 7, 130),
            (ExitCodes::Paddle, Generation::Current, None, 241, 2),
            (ExitCodes::Paddle, Generation::Legacy, None, 1, 130),
            (ExitCodes::Torch, Generation::Current, None, 1, 1),
            (ExitCodes::Umiak, Generation::Legacy, fixed, 7, 130),
            (ExitCodes::Umiak, Generation::Legacy, range, 7, 130),
            (ExitCodes::Paddle, Generation::Current, fixed, 241, 2),
            (ExitCodes::Paddle, Generation::Current, range, 241, 2),
            (ExitCodes::Paddle, Generation::Legacy, fixed, 101, 130),
            (ExitCodes::Paddle, Generation::Legacy, range, 3, 130),
            (ExitCodes::Torch, Generation::Legacy, range, 1, 1),
        ] {
            let style = CodeStyle { codes, generation, document: false, etcd };
            assert_eq!(of(style, Outcome::Succeeded, None, None, &[]), 0);
            assert_eq!(of(style, Outcome::Failed, None, Some(&verdict), &ends), failed, "{style:?}");
            assert_eq!(of(style, Outcome::Interrupted, Some(2), None, &ends), interrupted, "{style:?}");
        }
    }

    fn finding(exit: Exit, stopped_while_ending: bool) -> Finding {
        Finding {
            subject: Subject { replica: "trainer-1".into(), rank: None, attempt: 1 },
            exit,
            classed: None,
            ran_micros: 0,
            weight: Weight::Likely,
            timed_out: None,
            stopped_while_ending,
            clue: None,
            snapshot: None,
            evidence: None,
            usage: None,
        }
    }

    #[test]
    fn causes_without_a_code_of_their_own() {
        let style = CodeStyle { codes: ExitCodes::Umiak, generation: Generation::Current, document: false, etcd: None };
        let of = |cause, victims| {
            let verdict = Verdict { causes: vec![cause], victims };
            super::of(style, Outcome::Failed, None, Some(&verdict), &[])
        };
        let code = |code| finding(Exit::Code { code }, false);
        let stopped = || finding(Exit::Signal { signal: 15, core_dumped: false }, true);
        assert_eq!(of(stopped(), vec![code(7), code(1)]), 7);
        assert_eq!(of(code(0), vec![stopped(), code(9)]), 9);
        assert_eq!(of(code(5), vec![code(7)]), 5);
        assert_eq!(of(stopped(), vec![]), 1);
        assert_eq!(of(code(0), vec![]), 1);
    }
}
