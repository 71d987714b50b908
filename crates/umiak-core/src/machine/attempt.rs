//! One attempt of one replica, from "asked to start" to "we know how it ended".

use crate::facts::{Limit, Usage};
use crate::model::{Exit, Timestamp};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// Not asked for yet.
    Waiting,
    /// Asked for; no answer yet.
    Starting { since: Timestamp },
    /// The process exists.
    Running { since: Timestamp, pid: u32 },
    /// We sent SIGTERM, and SIGKILL too if `killed`.
    Stopping { since: Timestamp, pid: Option<u32>, killed: bool },
    /// It is over and we know how.
    Ended(End),
    /// It did not go even after SIGKILL; we no longer wait for it.
    Abandoned,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub exit: Exit,
    /// Ended by the signal we sent: a victim, never a cause.
    pub by_us: bool,
    /// Ended before we sent anything.
    pub before_stop: bool,
    /// It took too long, and that is why we sent something. The job knows; this machine does not.
    pub timed_out: Option<Limit>,
    pub order: u64,
    pub usage: Option<Usage>,
    pub started: Timestamp,
    pub ended: Timestamp,
}

impl End {
    pub fn is_success(&self) -> bool {
        self.exit.is_success() && self.timed_out.is_none()
    }

    /// Badly, and not because we stopped it for others.
    pub fn is_failure(&self) -> bool {
        self.timed_out.is_some() || (!self.exit.is_success() && !self.by_us)
    }
}

/// What can happen to an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Start,
    Spawned { pid: u32 },
    Exited { exit: Exit, order: u64, usage: Option<Usage> },
    Terminate,
    Kill,
    GiveUp,
}

/// What is to be done for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Spawn,
    /// The process exists: record its id.
    NoteStarted {
        pid: u32,
    },
    Signal(i32),
    /// It is over: record how.
    NoteEnded(End),
    NoteAbandoned,
    /// The event does not fit the state.
    Ignore,
}

impl Attempt {
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Starting { .. } | Self::Running { .. } | Self::Stopping { .. })
    }

    pub fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Abandoned)
    }

    /// The state's name, for facts and diagrams.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Starting { .. } => "Starting",
            Self::Running { .. } => "Running",
            Self::Stopping { killed: false, .. } => "Stopping",
            Self::Stopping { killed: true, .. } => "Killing",
            Self::Ended(_) => "Ended",
            Self::Abandoned => "Abandoned",
        }
    }

    /// One of each state, for diagrams and coverage.
    pub fn samples() -> Vec<Self> {
        let since = Timestamp::default();
        let end = End {
            exit: Exit::Code { code: 0 },
            by_us: false,
            before_stop: true,
            timed_out: None,
            order: 0,
            usage: None,
            started: since,
            ended: since,
        };
        vec![
            Self::Waiting,
            Self::Starting { since },
            Self::Running { since, pid: 1 },
            Self::Stopping { since, pid: Some(1), killed: false },
            Self::Stopping { since, pid: Some(1), killed: true },
            Self::Ended(end),
            Self::Abandoned,
        ]
    }
}

impl Event {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Spawned { .. } => "Spawned",
            Self::Exited { .. } => "Exited",
            Self::Terminate => "Terminate",
            Self::Kill => "Kill",
            Self::GiveUp => "GiveUp",
        }
    }

    /// One of each event, for diagrams and coverage.
    pub fn samples() -> Vec<Self> {
        vec![
            Self::Start,
            Self::Spawned { pid: 1 },
            Self::Exited { exit: Exit::Code { code: 0 }, order: 0, usage: None },
            Self::Terminate,
            Self::Kill,
            Self::GiveUp,
        ]
    }
}

/// The transition function: pure and total.
pub fn step(state: Attempt, event: Event, now: Timestamp) -> (Attempt, Vec<Effect>) {
    use Attempt as S;
    match (state, event) {
        (S::Waiting, Event::Start) => (S::Starting { since: now }, vec![Effect::Spawn]),
        // Stopped before it was asked for: it never ran, and there is nobody to signal.
        (S::Waiting, Event::Terminate | Event::Kill) => (S::Waiting, vec![]),

        (S::Starting { since }, Event::Spawned { pid }) => {
            (S::Running { since, pid }, vec![Effect::NoteStarted { pid }])
        }
        // The notice of the start may come after the order to stop.
        (S::Stopping { since, pid: None, killed }, Event::Spawned { pid }) => {
            (S::Stopping { since, pid: Some(pid), killed }, vec![Effect::NoteStarted { pid }])
        }

        (S::Starting { since } | S::Running { since, .. }, Event::Exited { exit, order, usage }) => {
            let (by_us, before_stop) = (false, true);
            ended(End { exit, by_us, before_stop, timed_out: None, order, usage, started: since, ended: now })
        }
        (S::Stopping { since, killed, .. }, Event::Exited { exit, order, usage }) => {
            let by_us = match exit {
                Exit::Signal { signal: SIGTERM, .. } => true,
                Exit::Signal { signal: SIGKILL, .. } => killed,
                _ => false,
            };
            let before_stop = false;
            ended(End { exit, by_us, before_stop, timed_out: None, order, usage, started: since, ended: now })
        }

        (S::Starting { since }, Event::Terminate) => {
            (S::Stopping { since, pid: None, killed: false }, vec![Effect::Signal(SIGTERM)])
        }
        (S::Running { since, pid }, Event::Terminate) => {
            (S::Stopping { since, pid: Some(pid), killed: false }, vec![Effect::Signal(SIGTERM)])
        }
        (S::Starting { since }, Event::Kill) => {
            (S::Stopping { since, pid: None, killed: true }, vec![Effect::Signal(SIGKILL)])
        }
        (S::Running { since, pid }, Event::Kill) => {
            (S::Stopping { since, pid: Some(pid), killed: true }, vec![Effect::Signal(SIGKILL)])
        }
        (S::Stopping { since, pid, killed: false }, Event::Kill) => {
            (S::Stopping { since, pid, killed: true }, vec![Effect::Signal(SIGKILL)])
        }
        // One of each is enough, and what is over cannot be signalled.
        (state @ S::Stopping { .. }, Event::Terminate | Event::Kill)
        | (state @ (S::Ended(_) | S::Abandoned), Event::Terminate | Event::Kill | Event::GiveUp) => (state, vec![]),

        (S::Stopping { killed: true, .. }, Event::GiveUp) => (S::Abandoned, vec![Effect::NoteAbandoned]),

        (state, Event::Start | Event::Spawned { .. } | Event::Exited { .. } | Event::GiveUp) => {
            (state, vec![Effect::Ignore])
        }
    }
}

fn ended(end: End) -> (Attempt, Vec<Effect>) {
    (Attempt::Ended(end.clone()), vec![Effect::NoteEnded(end)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    fn exited(exit: Exit) -> Event {
        Event::Exited { exit, order: 0, usage: None }
    }

    #[test]
    fn every_pair_has_an_arm_and_ended_stays_ended() {
        for state in Attempt::samples() {
            for event in Event::samples() {
                let over = state.is_over();
                let (next, _) = step(state.clone(), event.clone(), at(1));
                assert!(!over || next == state, "{state:?} left its end by {event:?}");
            }
        }
    }

    #[test]
    fn a_signal_of_ours_makes_a_victim_and_nothing_else_does() {
        let stopping = |killed| Attempt::Stopping { since: at(0), pid: Some(1), killed };
        let signal = |signal| Exit::Signal { signal, core_dumped: false };
        for (state, exit, by_us) in [
            (stopping(false), signal(SIGTERM), true),
            (stopping(false), signal(SIGKILL), false),
            (stopping(true), signal(SIGKILL), true),
            (stopping(true), signal(11), false),
            (stopping(false), Exit::Code { code: 1 }, false),
            (Attempt::Running { since: at(0), pid: 1 }, signal(SIGTERM), false),
        ] {
            let (next, _) = step(state, exited(exit.clone()), at(9));
            let Attempt::Ended(end) = next else { panic!("not ended") };
            assert_eq!(end.by_us, by_us, "{exit:?}");
        }
    }

    #[test]
    fn a_late_start_notice_is_kept_while_stopping() {
        let (state, effects) = step(Attempt::Starting { since: at(0) }, Event::Terminate, at(1));
        assert_eq!(effects, [Effect::Signal(SIGTERM)]);
        let (state, effects) = step(state, Event::Spawned { pid: 7 }, at(2));
        assert_eq!(effects, [Effect::NoteStarted { pid: 7 }]);
        assert_eq!(state, Attempt::Stopping { since: at(0), pid: Some(7), killed: false });
    }
}
