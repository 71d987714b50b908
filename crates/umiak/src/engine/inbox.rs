//! Passes news from another thread to the driver.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use tracing::trace;
use umiak_sys::wait::Waker;

use super::EngineNews;

#[derive(Debug)]
pub(super) struct Inbox {
    news: Mutex<Vec<EngineNews>>,
    waker: Waker,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { news: Mutex::default(), waker: Waker::new()? })
    }

    pub(super) fn tell(&self, news: EngineNews) {
        trace!(?news);
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        self.waker.wake();
    }

    pub(super) fn take(&self) -> Vec<EngineNews> {
        self.waker.clear();
        std::mem::take(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Readable when there is news.
    pub(super) fn watch(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
