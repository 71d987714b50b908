//! Results of earlier runs that a step may use. Hashing what a step reads may take long, so a thread does it.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use umiak_core::model::{Pipeline, StepIndex};
use umiak_core::pipeline::fingerprint::{self, CachePolicy, Content};
use umiak_core::pipeline::{Scope, Tree};
use umiak_sys::wait::Waker;

use crate::history::Home;
use crate::history::artifact::{self, Limits};
use crate::history::cache::{self, Cached};

/// The fingerprints of a step that may be recorded when it has succeeded.
struct Fingerprints {
    first: String,
    second: Option<String>,
}

/// What became of a lookup.
pub(super) enum Found {
    Result(Cached),
    Nothing,
    /// The cache is not used, for this reason.
    Unusable(String),
}

pub(super) struct Results {
    home: Home,
    policy: CachePolicy,
    /// Paths whose contents never count.
    skipped: Vec<PathBuf>,
    known: HashMap<StepIndex, Fingerprints>,
    sender: Sender<(StepIndex, String, Result<String, String>)>,
    receiver: Receiver<(StepIndex, String, Result<String, String>)>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
}

impl Results {
    pub(super) fn new(home: Home, policy: CachePolicy, pipeline: &Pipeline) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let skipped = fingerprint::artifacts(pipeline).into_iter().chain([home.path().to_owned()]).collect();
        let (known, waker, stop) = (HashMap::new(), Arc::new(Waker::new()?), Arc::default());
        Ok(Self { home, policy, skipped, known, sender, receiver, waker, stop })
    }

    /// Looks for a result of a step. `None`: the answer comes later, with [`Results::hear`].
    pub(super) fn look(
        &mut self,
        scope: &Scope,
        pipeline: &Pipeline,
        tree: &dyn Tree,
        id: StepIndex,
        now: u64,
    ) -> Option<Found> {
        let first = match fingerprint::first(scope, pipeline, tree, id, self.policy) {
            Ok(first) => first,
            Err(reason) => return Some(Found::Unusable(reason)),
        };
        if self.policy == CachePolicy::Aggressive {
            return Some(self.found(id, first, None, now));
        }
        let contents = match fingerprint::contents(scope, pipeline, tree, id) {
            Ok(contents) => contents,
            Err(reason) => return Some(Found::Unusable(reason)),
        };
        self.hash(id, first, contents).err().map(|error| Found::Unusable(error.to_string()))
    }

    fn hash(&self, id: StepIndex, first: String, contents: Vec<Content>) -> std::io::Result<()> {
        let (skipped, stop) = (self.skipped.clone(), Arc::clone(&self.stop));
        let (sender, waker) = (self.sender.clone(), Arc::clone(&self.waker));
        let work = move || {
            let second = artifact::fingerprint(contents, &skipped, Limits::default(), &stop);
            let _ = sender.send((id, first, second));
            waker.wake();
        };
        std::thread::Builder::new().name("contents".into()).spawn(work).map(drop)
    }

    fn found(&mut self, id: StepIndex, first: String, second: Option<String>, now: u64) -> Found {
        if let Some(cached) = cache::lookup(&self.home, &first, second.as_deref(), now) {
            return Found::Result(cached);
        }
        self.known.insert(id, Fingerprints { first, second });
        Found::Nothing
    }

    pub(super) fn watch(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    /// The answers that have come.
    pub(super) fn hear(&mut self, now: u64) -> Vec<(StepIndex, Found)> {
        self.waker.clear();
        let heard: Vec<_> = self.receiver.try_iter().collect();
        let answer = |(id, first, second): (StepIndex, String, Result<String, String>)| match second {
            Ok(second) => (id, self.found(id, first, Some(second), now)),
            Err(reason) => (id, Found::Unusable(reason)),
        };
        heard.into_iter().map(answer).collect()
    }

    /// Records the result of a step that has ended, if it succeeded.
    pub(super) fn record(&mut self, id: StepIndex, result: Option<Cached>) -> std::io::Result<()> {
        match (self.known.remove(&id), result) {
            (Some(Fingerprints { first, second }), Some(result)) => {
                cache::record(&self.home, &first, &Cached { second, ..result })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
