//! What the thread of the stores reports, and how it reaches the driver.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::debug;
use umiak_core::wire::store::Violation;
use umiak_sys::wait::Waker;

use super::StoreId;

/// How many refused clients may be reported at once.
const MAX_REFUSED: usize = 16;

/// A client of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Client {
    /// Its process id, as it sees it. Torch 2.5 and later send it when they connect.
    pub(crate) pid: Option<u32>,
    pub(crate) peer: SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreNews {
    /// Clients have waited for [`PATIENCE`](super::patience::PATIENCE), or who waits for what has changed since. At most
    /// one a second for each store.
    Waiting {
        store: StoreId,
        connected: Vec<Client>,
        /// All that wait now, also those that have not waited that long; the longest first.
        waiting: Vec<(Client, Duration)>,
        /// The most wanted keys with the number of clients that wait for each.
        keys: Vec<(Vec<u8>, usize)>,
    },
    /// No client has been waiting that long any more.
    Flowing { store: StoreId },
    /// A client set `exception_dump`: a collective timed out in that process. Only the first one of a store until it is
    /// renewed.
    ExceptionDump { store: StoreId, client: Client },
    /// A client of a version that is not supported was refused.
    Refused { store: StoreId, client: Client, why: Violation },
}

impl StoreNews {
    pub(crate) fn store(&self) -> StoreId {
        match self {
            Self::Waiting { store, .. }
            | Self::Flowing { store }
            | Self::ExceptionDump { store, .. }
            | Self::Refused { store, .. } => *store,
        }
    }

    /// True for the two that describe a state: a later one makes an earlier one obsolete.
    fn is_state(&self) -> bool {
        matches!(self, Self::Waiting { .. } | Self::Flowing { .. })
    }
}

/// News for the driver. It stays small if it is not read.
#[derive(Debug)]
pub(super) struct Inbox {
    news: Mutex<Vec<StoreNews>>,
    waker: Waker,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { news: Mutex::default(), waker: Waker::new()? })
    }

    pub(super) fn tell(&self, new: StoreNews) {
        debug!(?new);
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if new.is_state() {
            news.retain(|old| !(old.is_state() && old.store() == new.store()));
        }
        let refused = news.iter().filter(|old| matches!(old, StoreNews::Refused { .. })).count();
        if refused < MAX_REFUSED || !matches!(new, StoreNews::Refused { .. }) {
            news.push(new);
        }
        drop(news);
        self.waker.wake();
    }

    pub(super) fn take(&self) -> Vec<StoreNews> {
        self.waker.clear();
        std::mem::take(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Discards what was said about a store that has been renewed or closed.
    pub(super) fn retract(&self, store: StoreId) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).retain(|old| old.store() != store);
    }

    /// Readable when there is news.
    pub(super) fn watch(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
