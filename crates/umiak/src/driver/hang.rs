//! Looks for progress, and reads stacks, as [`umiak_core::machine::hang`] asks. Stacks are read by a thread: it may take
//! seconds, and the run goes on.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use umiak_core::machine::hang::{self, Counters, Effect, Progress, Watch};
use umiak_core::machine::job;
use umiak_core::model::{Slot, Timestamp};
use umiak_sys::observe::{awaits_input, moved, worker};
use umiak_sys::wait::Waker;

use super::{JobDriver, JobRun};
use crate::host::evidence::LogSize;
use crate::host::observe::{self, Seen};

/// The watch over one attempt of the job.
#[derive(Default)]
pub(super) struct Watching {
    watch: Option<Watch>,
    reader: Option<Reader>,
    /// The last sample.
    seen: Vec<(Slot, Seen)>,
    /// True once the fact is recorded.
    pub(super) is_declared: bool,
}

/// A thread that reads stacks. One whose result is no longer wanted ends by itself.
struct Reader {
    seen: Receiver<Vec<(Slot, Seen)>>,
    waker: Arc<Waker>,
}

impl Watching {
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.watch.as_ref().and_then(Watch::next)
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().map(|reader| reader.waker.as_fd())
    }

    /// What the replicas of a hung job are doing. Nothing has moved since.
    pub(super) fn take_seen(&mut self) -> Option<Vec<(Slot, Seen)>> {
        let is_hung = self.is_declared && self.watch.as_ref().is_some_and(Watch::is_hung);
        Some(std::mem::take(&mut self.seen)).filter(|seen| is_hung && !seen.is_empty())
    }
}

impl JobDriver<'_> {
    /// Looks for progress, if it is time.
    pub(super) fn watch_progress(&mut self) {
        let Some(limit) = self.core.job.plan.job.policy.hang else { return };
        let watching = &mut self.core.job.now.watching;
        let watch = watching.watch.get_or_insert_with(|| Watch::new(limit));
        let is_early = watch.next().is_some_and(|at| at > self.core.run.clock.now());
        if is_early || !self.engine.capabilities(self.core.job.machine.step_index()).here {
            return;
        }
        let progress = self.core.job.progress();
        self.step_watch(hang::Event::Looked(progress));
    }

    /// The thread has read the stacks.
    pub(super) fn hear_stacks(&mut self) {
        let reader = self.core.job.now.watching.reader.take();
        // A thread that ended without a result has read nothing.
        let seen = reader.and_then(|reader| reader.seen.try_recv().ok()).unwrap_or_default();
        let stacks = seen.iter().filter(|(_, seen)| !seen.snapshot.stack.is_empty());
        let stacks = stacks.map(|(slot, seen)| (*slot, seen.snapshot.stack.clone())).collect();
        self.core.job.now.watching.seen = seen;
        self.step_watch(hang::Event::Read(stacks));
    }

    /// Replicas were suspended and resumed.
    pub(super) fn watch_again(&mut self) {
        self.step_watch(hang::Event::Resumed);
    }

    fn step_watch(&mut self, event: hang::Event) {
        let now = self.core.run.clock.now();
        match self.core.job.now.watching.watch.as_mut().and_then(|watch| watch.step(event, now)) {
            None => {}
            Some(Effect::Hung(hung)) => self.dispatch(job::Event::Hung(hung)),
            Some(Effect::ReadStacks) => match read(self.core.job.running()) {
                Ok(reader) => self.core.job.now.watching.reader = Some(reader),
                Err(_) => self.hear_stacks(),
            },
        }
    }
}

impl JobRun {
    /// The replicas that run on this host, with their processes.
    fn running(&self) -> Vec<(Slot, u32)> {
        self.machine.live_ids().iter().filter_map(|id| Some((id.slot, self.pid(id.slot)?))).collect()
    }

    /// Empty during a stop: what does not end then is killed.
    fn progress(&self) -> Progress {
        let length = |slot: Slot| self.log(self.machine.id(slot)).map_or(0, |log| LogSize::of(&log).total());
        let running = if self.now.stopping.is_some() { Vec::new() } else { self.running() };
        let counters = |(slot, pid)| {
            let (bytes, awaits_input) = (moved(pid), awaits_input(worker(pid)));
            (slot, Counters { pid, log: length(slot), bytes, awaits_input })
        };
        running.into_iter().map(counters).collect()
    }
}

fn read(ranks: Vec<(Slot, u32)>) -> std::io::Result<Reader> {
    let (sender, seen) = channel();
    let waker = Arc::new(Waker::new()?);
    let wakes = Arc::clone(&waker);
    std::thread::Builder::new().name("stacks".to_owned()).spawn(move || {
        let _ = sender.send(observe::look(&ranks, observe::UNHURRIED, true));
        wakes.wake();
    })?;
    Ok(Reader { seen, waker })
}
