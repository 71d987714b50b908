//! External events: signals, orders of other processes, and descriptors whose owners read them. Signals are read only
//! here, in every stage of a run.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umiak_core::diag::Diagnostic;
use umiak_sys::wait::{Signals, readable};

use super::control::{Control, Order};
use crate::history::RunDir;
use crate::screen::Screen;

/// Sent by the terminal on Ctrl-Z.
pub(crate) const SIGTSTP: i32 = 20;

/// Signals that ask us to stop (SIGHUP, SIGINT, SIGQUIT, SIGTERM) or to pause.
const HANDLED: [i32; 5] = [1, 2, 3, 15, SIGTSTP];

pub(crate) struct Sources {
    signals: Arc<Signals>,
    control: Option<Control>,
}

/// The result of one round of waiting.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// One for each descriptor passed in.
    pub(crate) ready: Vec<bool>,
    /// Signals that ask umiak to end.
    pub(crate) signals: Vec<i32>,
    pub(crate) pause: bool,
    pub(crate) orders: Vec<Order>,
}

impl Sources {
    /// Blocks the handled signals, so that they are read instead of ending this process.
    pub(crate) fn new() -> Result<Self, Diagnostic> {
        let signals = Signals::block(&HANDLED).map_err(|error| Diagnostic::failed("block signals", &error))?;
        Ok(Self { signals: Arc::new(signals), control: None })
    }

    /// For the thread that reads them while a job is prepared.
    pub(crate) fn signals(&self) -> Arc<Signals> {
        Arc::clone(&self.signals)
    }

    /// Accepts orders on a socket in the run's directory.
    pub(crate) fn listen(&mut self, run: &RunDir) -> std::io::Result<()> {
        self.control = Some(Control::listen(run)?);
        Ok(())
    }

    /// Stops accepting orders.
    pub(crate) fn hush(&mut self) {
        self.control = None;
    }

    /// Waits until something arrives, or until the timeout.
    pub(crate) fn wait(&mut self, fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<Arrived, Diagnostic> {
        let silent = self.control.as_ref().and_then(Control::deadline);
        let silent = silent.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.into_iter().chain(silent).min();
        let mut all = fds.to_vec();
        all.push(self.signals.as_fd());
        all.extend(self.control.iter().flat_map(Control::watch));
        let mut ready = readable(&all, timeout).map_err(|error| Diagnostic::failed("wait for events", &error))?;
        let own = ready.split_off(fds.len());
        let mut arrived = Arrived { ready, ..Arrived::default() };
        if own[0] {
            let (pauses, signals) = self.signals.read().into_iter().partition(|signal| *signal == SIGTSTP);
            let pauses: Vec<i32> = pauses;
            (arrived.pause, arrived.signals) = (!pauses.is_empty(), signals);
        }
        if let Some(control) = &mut self.control
            && (own[1..].contains(&true) || control.deadline().is_some_and(|at| at <= Instant::now()))
        {
            arrived.orders = control.orders();
        }
        Ok(arrived)
    }

    /// Flushes the screen, for as long as its readers accept output; a signal ends the wait. Returns an error if data
    /// was lost.
    pub(crate) fn finish(&mut self, screen: Screen) -> Option<std::io::Error> {
        screen.close();
        loop {
            let arrived = self.wait(&[screen.done().as_fd()], None).ok()?;
            if arrived.ready[0] {
                return screen.join();
            }
            if !arrived.signals.is_empty() {
                return None;
            }
            if arrived.pause {
                umiak_sys::wait::stop_ourselves();
            }
        }
    }
}
