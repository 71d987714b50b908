//! The end of a node of a job over etcd: its keys go, and with the last node those of the job.
//!
//! | key | value | lease |
//! |---|---|---|
//! | `ROOT/left/LAUNCH` | empty: this node has ended, and its ranks are gone | the longest time for which ranks of a lost node may run |

use std::time::Duration;

use umiak_core::machine::round::election::{LastWord, last_word};
use umiak_core::machine::round::known::End;
use umiak_core::wire::etcd::{KeyValue, LeaseId};

use crate::etcd::{Etcd, EtcdError};

/// How long etcd remembers that a job is over, for nodes that have not heard it.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What a node knows when it ends.
pub(super) struct Farewell<'a> {
    pub(super) etcd: &'a Etcd,
    /// The parent of the job's keys.
    pub(super) root: &'a str,
    pub(super) launch: u64,
    /// The lease of its keys.
    pub(super) lease: Option<LeaseId>,
    /// How long ranks of a lost node may run.
    pub(super) linger: Duration,
    /// The launch ids of the nodes of the last attempt; `None` if this node has heard of none.
    pub(super) members: Option<Vec<u64>>,
    /// True if a job of this name was there before this node, and has not ended.
    pub(super) has_past: bool,
}

impl Farewell<'_> {
    /// The job is over for all nodes.
    pub(super) async fn end(self, end: End) -> Result<(), EtcdError> {
        let remembered = self.remember(end).await;
        self.revoke().await?;
        remembered
    }

    async fn remember(&self, end: End) -> Result<(), EtcdError> {
        let lease = self.etcd.grant(REMEMBERED).await?;
        let value = serde_json::to_vec(&end).unwrap_or_default();
        self.etcd.put(&self.key("end"), &value, Some(lease)).await?;
        self.etcd.put(self.root, b"1", Some(lease)).await?;
        self.etcd.delete(&self.key("np")).await.map(drop)
    }

    /// This node leaves; the job may go on. Of several last ones that leave together, one finds no other.
    pub(super) async fn leave(self) -> Result<(), EtcdError> {
        let said = self.say_left().await;
        // Whatever etcd has refused, other nodes need not wait for this one.
        self.revoke().await?;
        let lease = said?;
        // Before the list: a job that begins later changes it.
        let root = self.etcd.get(self.root).await?;
        let entries = self.etcd.list(&self.key("")).await?.entries;
        let below = |name: &str| {
            let prefix = self.key(name);
            entries.iter().filter_map(move |entry| entry.key.strip_prefix(&prefix))
        };
        let is_alone = below("nodes/").count() == 0 && below("coordinator").count() == 0;
        let left: Vec<u64> = below("left/").filter_map(|launch| u64::from_str_radix(launch, 16).ok()).collect();
        let word = last_word(self.members.as_deref(), &left, is_alone, self.has_past);
        let np = entries.iter().find(|entry| entry.key == self.key("np"));
        for entry in np.into_iter().chain(&root) {
            self.part(word, entry, lease).await?;
        }
        Ok(())
    }

    async fn say_left(&self) -> Result<LeaseId, EtcdError> {
        let lease = self.etcd.grant(self.linger).await?;
        self.etcd.put(&self.key(&format!("left/{:016x}", self.launch)), b"", Some(lease)).await?;
        Ok(lease)
    }

    /// Deletes a key, or lets it expire, if it is still the one that was seen: another job may begin.
    async fn part(&self, word: LastWord, entry: &KeyValue, lease: LeaseId) -> Result<(), EtcdError> {
        match word {
            LastWord::Stay => {}
            LastWord::Forget => drop(self.etcd.delete_unchanged(&entry.key, entry.modified).await?),
            LastWord::Expire => {
                self.etcd.replace(&entry.key, entry.modified, &entry.value, Some(lease)).await?;
            }
        }
        Ok(())
    }

    /// Deletes the keys of this node.
    pub(super) async fn revoke(&self) -> Result<(), EtcdError> {
        match self.lease {
            Some(lease) => self.etcd.revoke(lease).await,
            None => Ok(()),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }
}
