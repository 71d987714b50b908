//! One attempt of one replica, from the request to start it to its end.

use crate::facts::{Limit, Usage};
use crate::model::{Classed, Exit, ExitClass, Instance, StopHow, StopSent, Timestamp};

/// The state of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// Not requested yet.
    Waiting,
    /// Requested; no answer yet.
    Starting { since: Timestamp },
    /// The process exists.
    Running { since: Timestamp },
    /// Being stopped. The start notification may still arrive.
    Stopping { since: Timestamp, started: bool, sent: StopSent },
    /// Ended, with a known exit.
    Ended(End),
    /// Still alive after SIGKILL; no longer waited for.
    Abandoned,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub exit: Exit,
    pub classed: Option<Classed>,
    /// Ended by our stop: a victim, never a cause.
    pub by_us: bool,
    /// Ended before any stop was sent.
    pub before_stop: bool,
    /// The time limit that caused the stop. Set by the job, not by this machine.
    pub timed_out: Option<Limit>,
    pub order: u64,
    pub usage: Option<Usage>,
    pub started: Timestamp,
    pub ended: Timestamp,
}

impl End {
    /// True if it completed its work: a replica that exits with 0 because it was stopped has not.
    pub fn is_success(&self) -> bool {
        self.exit.is_success() && self.timed_out.is_none() && !self.by_us
    }

    /// True if it ended badly for a reason other than our stop.
    pub fn is_failure(&self) -> bool {
        self.timed_out.is_some() || (!self.exit.is_success() && !self.by_us)
    }

    /// Whether it may be repeated.
    pub fn class(&self) -> ExitClass {
        self.exit.class(self.classed.as_ref())
    }
}

/// What can happen to an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Start,
    Started(Instance),
    Exited { exit: Exit, classed: Option<Classed>, order: u64, usage: Option<Usage> },
    Stop(StopHow),
    GiveUp,
}

/// What the job does for an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Spawn,
    /// The process exists: record its instance.
    NoteStarted(Instance),
    Stop(StopHow),
    /// It ended: record how.
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
            Self::Stopping { sent, .. } => match sent.last {
                StopHow::Interrupt => "Interrupting",
                StopHow::Terminate => "Stopping",
                StopHow::Kill => "Killing",
            },
            Self::Ended(_) => "Ended",
            Self::Abandoned => "Abandoned",
        }
    }

    /// One of each state, for diagrams and coverage.
    pub fn samples() -> Vec<Self> {
        let since = Timestamp::default();
        let end = End {
            exit: Exit::Code { code: 0 },
            classed: None,
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
            Self::Running { since },
            Self::Stopping { since, started: true, sent: StopSent::new(StopHow::Interrupt) },
            Self::Stopping { since, started: true, sent: StopSent::new(StopHow::Terminate) },
            Self::Stopping { since, started: true, sent: StopSent::new(StopHow::Kill) },
            Self::Ended(end),
            Self::Abandoned,
        ]
    }
}

impl Event {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Started(_) => "Started",
            Self::Exited { .. } => "Exited",
            Self::Stop(StopHow::Interrupt) => "Interrupt",
            Self::Stop(StopHow::Terminate) => "Stop",
            Self::Stop(StopHow::Kill) => "Kill",
            Self::GiveUp => "GiveUp",
        }
    }

    /// One of each event, for diagrams and coverage.
    pub fn samples() -> Vec<Self> {
        vec![
            Self::Start,
            Self::Started(Instance::default()),
            Self::Exited { exit: Exit::Code { code: 0 }, classed: None, order: 0, usage: None },
            Self::Stop(StopHow::Interrupt),
            Self::Stop(StopHow::Terminate),
            Self::Stop(StopHow::Kill),
            Self::GiveUp,
        ]
    }
}

/// The transition function: pure and total.
pub fn step(state: Attempt, event: Event, now: Timestamp) -> (Attempt, Vec<Effect>) {
    use Attempt as S;
    match (state, event) {
        (S::Waiting, Event::Start) => (S::Starting { since: now }, vec![Effect::Spawn]),
        // Stopped before it was requested: there is no process to signal.
        (S::Waiting, Event::Stop(_)) => (S::Waiting, vec![]),

        // Until then it may have waited for nodes.
        (S::Starting { .. }, Event::Started(instance)) => {
            (S::Running { since: now }, vec![Effect::NoteStarted(instance)])
        }
        // The start notification may arrive after the stop.
        (S::Stopping { started: false, sent, .. }, Event::Started(instance)) => {
            (S::Stopping { since: now, started: true, sent }, vec![Effect::NoteStarted(instance)])
        }

        (S::Starting { since } | S::Running { since }, Event::Exited { exit, classed, order, usage }) => {
            let (by_us, before_stop) = (false, true);
            ended(End { exit, classed, by_us, before_stop, timed_out: None, order, usage, started: since, ended: now })
        }
        (S::Stopping { since, sent, .. }, Event::Exited { exit, classed, order, usage }) => {
            let (by_us, before_stop) = (sent.caused(&exit), false);
            // Our own signal says nothing about the program.
            let classed = classed.filter(|_| !by_us);
            ended(End { exit, classed, by_us, before_stop, timed_out: None, order, usage, started: since, ended: now })
        }

        (S::Starting { since }, Event::Stop(how)) => {
            (S::Stopping { since, started: false, sent: StopSent::new(how) }, vec![Effect::Stop(how)])
        }
        (S::Running { since }, Event::Stop(how)) => {
            (S::Stopping { since, started: true, sent: StopSent::new(how) }, vec![Effect::Stop(how)])
        }
        (S::Stopping { since, started, sent }, Event::Stop(how)) if how > sent.last => {
            (S::Stopping { since, started, sent: sent.and(how) }, vec![Effect::Stop(how)])
        }
        // Each signal is sent once, and an attempt that is over cannot be stopped.
        (state @ S::Stopping { .. }, Event::Stop(_))
        | (state @ (S::Ended(_) | S::Abandoned), Event::Stop(_) | Event::GiveUp) => (state, vec![]),

        (S::Stopping { sent: StopSent { last: StopHow::Kill, .. }, .. }, Event::GiveUp) => {
            (S::Abandoned, vec![Effect::NoteAbandoned])
        }

        (state, Event::Start | Event::Started(_) | Event::Exited { .. } | Event::GiveUp) => {
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
        Event::Exited { exit, classed: None, order: 0, usage: None }
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
        use StopHow::{Interrupt, Kill, Terminate};
        let stopping = |hows: &[StopHow]| {
            let running = Attempt::Running { since: at(0) };
            hows.iter().fold(running, |state, how| step(state, Event::Stop(*how), at(1)).0)
        };
        let signal = |signal| Exit::Signal { signal, core_dumped: false };
        let code = |code| Exit::Code { code };
        for (stops, exit, by_us) in [
            (&[Terminate][..], signal(15), true),
            (&[Terminate], signal(9), false),
            (&[Terminate, Kill], signal(9), true),
            (&[Terminate, Kill], signal(11), false),
            (&[Terminate], code(1), false),
            (&[Terminate], signal(2), false),
            (&[], signal(15), false),
            (&[], signal(2), false),
            // A signal handler may choose any exit code.
            (&[Interrupt], signal(2), true),
            (&[Interrupt], code(1), true),
            (&[Interrupt, Terminate], code(1), true),
            (&[Interrupt, Terminate], signal(15), true),
            (&[Interrupt, Kill], signal(9), true),
            // So may a program that saves its state.
            (&[Interrupt], code(0), true),
            (&[Terminate], code(0), true),
            (&[], code(0), false),
            (&[Interrupt], Exit::Lost, false),
            // A weaker signal changes nothing.
            (&[Terminate, Interrupt], code(1), false),
        ] {
            let (next, _) = step(stopping(stops), exited(exit.clone()), at(9));
            let Attempt::Ended(end) = next else { panic!("not ended") };
            assert_eq!(end.by_us, by_us, "{stops:?} {exit:?}");
        }
    }

    #[test]
    fn a_late_start_notice_is_kept_while_stopping() {
        let (state, effects) = step(Attempt::Starting { since: at(0) }, Event::Stop(StopHow::Terminate), at(1));
        assert_eq!(effects, [Effect::Stop(StopHow::Terminate)]);
        let (state, effects) = step(state, Event::Started(Instance::of_pid(7)), at(2));
        assert_eq!(effects, [Effect::NoteStarted(Instance::of_pid(7))]);
        let sent = StopSent::new(StopHow::Terminate);
        assert_eq!(state, Attempt::Stopping { since: at(2), started: true, sent });
    }
}
