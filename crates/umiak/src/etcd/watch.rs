//! Changes of keys, as long as anyone wants them: over lost connections, members and leaders, and over compaction.

use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use umiak_core::wire::etcd::answer::{self, WatchLine};
use umiak_core::wire::etcd::{Event, Listing, Refusal, Remedy, Revision, request};

use super::error::Trouble;
use super::member::{Lines, Member};
use super::{Etcd, EtcdError};
use crate::network;

/// News that wait to be read. Beyond it, etcd waits.
const WAITING: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What a watch reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WatchNews {
    /// Changes, in order, each of them once.
    Changed(Vec<Event>),
    /// Changes were missed, and this is the state after them. What is not in the list is gone.
    Resync(Listing),
    /// No member answers. The watch goes on trying.
    Lost(EtcdError),
    /// A member answers again; changes since are reported.
    Regained,
    /// The last news: trying again would not help.
    Failed(EtcdError),
}

/// A watch; ends when dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    news: Receiver<WatchNews>,
    task: JoinHandle<()>,
}

impl Watch {
    pub(super) fn start(etcd: Etcd, prefix: String, from: Revision) -> Result<Self, EtcdError> {
        let (sender, news) = channel(WAITING);
        let task = network::handle()?.spawn(async move {
            let mut follower = Follower { etcd, prefix, next: from, sender, is_lost: false, is_refused: false };
            // `None` if nothing reads the news any more.
            if let Some(error) = follower.run().await {
                let _ = follower.sender.send(WatchNews::Failed(error)).await;
            }
        });
        Ok(Self { news, task })
    }

    /// The next news; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<WatchNews> {
        self.news.recv().await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Follower {
    etcd: Etcd,
    prefix: String,
    /// The first revision that has not been reported.
    next: Revision,
    sender: Sender<WatchNews>,
    is_lost: bool,
    /// True after a refusal that a new session may end.
    is_refused: bool,
}

/// Why a stream ended.
enum End {
    /// Nothing reads the news.
    Unread,
    /// Changes from `next` on are no longer known.
    Compacted,
    /// The member has an older state than the one that was reported: it is late, or the cluster was reset.
    Behind,
    Trouble(Trouble),
}

impl Follower {
    async fn run(&mut self) -> Option<EtcdError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut answers = vec![None; self.etcd.cluster.members.len()];
            let etcd = self.etcd.clone();
            for index in etcd.order() {
                let member = &etcd.cluster.members[index];
                let before = self.next;
                let trouble = match self.follow(member).await {
                    End::Unread => return None,
                    end @ (End::Compacted | End::Behind) => {
                        if let Err(error) = self.list_again(matches!(end, End::Compacted)).await? {
                            return Some(error);
                        }
                        pause = FIRST_PAUSE;
                        continue;
                    }
                    End::Trouble(trouble) => trouble,
                };
                tracing::debug!(member = member.name(), prefix = self.prefix, %trouble, "watch");
                match trouble.remedy() {
                    Remedy::TryAgain { .. } => answers[index] = Some(trouble),
                    // The session has been forgotten.
                    Remedy::Authenticate if self.has_user() => answers[index] = Some(trouble),
                    Remedy::GiveUp | Remedy::Authenticate => return Some(etcd.last(member, trouble, &self.prefix)),
                }
                if self.next != before {
                    pause = FIRST_PAUSE;
                }
            }
            // Elections end soon: only what lasts is told.
            let is_told = pause > FIRST_PAUSE * 4;
            if answers.iter().all(Option::is_some) && is_told && !self.is_lost {
                self.is_lost = true;
                let error = self.etcd.failed(answers).await;
                self.sender.send(WatchNews::Lost(error)).await.ok()?;
            }
            sleep(pause.mul_f32(0.75 + fastrand::f32() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Reports changes until the stream ends.
    async fn follow(&mut self, member: &Member) -> End {
        let mut lines = match self.open(member).await {
            Ok(lines) => lines,
            Err(trouble) => return End::Trouble(trouble),
        };
        loop {
            let line = self.next_line(member, &mut lines).await;
            let read =
                line.and_then(|line: Vec<u8>| Ok(answer::watch_line(&answer::read_line(lines.status(), &line)?)?));
            let news = match read {
                Ok(WatchLine::Opened(revision)) if revision.next() < self.next => return End::Behind,
                Ok(WatchLine::Opened(_)) => {
                    self.is_refused = false;
                    if !std::mem::take(&mut self.is_lost) {
                        continue;
                    }
                    WatchNews::Regained
                }
                Ok(WatchLine::Idle(revision)) => {
                    self.next = self.next.max(revision.next());
                    continue;
                }
                Ok(WatchLine::Changed(events)) => {
                    let last = events.iter().map(modified).max().unwrap_or(self.next);
                    self.next = self.next.max(last.next());
                    WatchNews::Changed(events)
                }
                // A line that is too long: the state is shorter than its changes.
                Ok(WatchLine::Compacted(_)) | Err(Trouble::TooLong | Trouble::Etcd(Refusal::Compacted)) => {
                    return End::Compacted;
                }
                // Older versions say the second of a session that has expired, too.
                Err(Trouble::Etcd(Refusal::Token | Refusal::Permission)) if self.has_user() && !self.is_refused => {
                    self.is_refused = true;
                    self.etcd.forget_session();
                    return End::Trouble(Trouble::Etcd(Refusal::Token));
                }
                Err(trouble) => return End::Trouble(trouble),
            };
            if self.sender.send(news).await.is_err() {
                return End::Unread;
            }
        }
    }

    async fn open(&self, member: &Member) -> Result<Lines, Trouble> {
        let token = self.etcd.token(member).await?;
        let limit = self.etcd.cluster.limits.request;
        member.open(&request::watch(&self.prefix, self.next), token.as_deref(), limit).await
    }

    fn has_user(&self) -> bool {
        self.etcd.cluster.user.is_some()
    }

    /// The next line. A quiet member is asked whether it still responds: a connection to a host that is gone says nothing.
    async fn next_line(&self, member: &Member, lines: &mut Lines) -> Result<Vec<u8>, Trouble> {
        loop {
            if let Ok(line) = timeout(self.etcd.cluster.limits.quiet, lines.next()).await {
                return line;
            }
            self.etcd.ask(member, &request::probe(&self.prefix), self.etcd.cluster.limits.request).await?;
        }
    }

    /// Lists all keys and goes on from there. `None` if nothing reads the news. Without `is_sure`, the list is reported
    /// only if it shows that the cluster lost the changes that were reported.
    async fn list_again(&mut self, is_sure: bool) -> Option<Result<(), EtcdError>> {
        loop {
            match self.etcd.list(&self.prefix).await {
                Ok(listing) => {
                    if is_sure || listing.revision.next() < self.next {
                        self.next = listing.revision.next();
                        self.sender.send(WatchNews::Resync(listing)).await.ok()?;
                    }
                    self.is_lost = false;
                    return Some(Ok(()));
                }
                Err(error @ EtcdError::Members { .. }) => {
                    if !self.is_lost {
                        self.is_lost = true;
                        self.sender.send(WatchNews::Lost(error)).await.ok()?;
                    }
                    if self.sender.is_closed() {
                        return None;
                    }
                    sleep(LONGEST_PAUSE).await;
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn modified(event: &Event) -> Revision {
    match event {
        Event::Put(entry) => entry.modified,
        Event::Deleted { modified, .. } => *modified,
    }
}
