//! A client of etcd for elastic jobs: keys, leases and watches, through the JSON gateway of etcd 3.4 and later.
//!
//! A request goes to one member after the other until one answers, and in rounds while the members elect a leader. A
//! request that may have been performed is repeated only in ways that do not perform it twice: a conditional put that
//! finds its own value has succeeded, and the client chooses the numbers of leases. `umiak_core::wire::etcd` has requests
//! and answers as text; here are connections, repetitions and errors.
//!
//! HTTP is hyper's, without a layer above it: one host, no redirects, cookies or proxies. A proxy for the web, which
//! other clients take from the environment, must not see these requests.

mod call;
mod error;
mod member;
#[cfg(test)]
mod tests;
mod tls;
mod watch;

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use umiak_core::model::{EtcdOptions, EtcdTls, EtcdUser};
use umiak_core::wire::etcd::{KeyValue, LeaseId, Listing, Refusal, Request, Revision, Written, answer, request};

use call::Done;
pub(crate) use error::EtcdError;
use member::Member;
pub(crate) use watch::{Watch, WatchNews};

/// Times of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For the answer of one member in the first round; twice as long in the second, and so on.
    pub(crate) request: Duration,
    /// For a call, with all its repetitions. Beyond it, only a request under way is waited for.
    pub(crate) call: Duration,
    /// Silence of a watch, after which its member is asked whether it still responds.
    pub(crate) quiet: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(2), call: Duration::from_secs(10), quiet: Duration::from_secs(5) }
    }
}

/// A client. Clones share its connections.
#[derive(Clone)]
pub(crate) struct Etcd {
    cluster: Arc<Cluster>,
}

struct Cluster {
    members: Vec<Member>,
    /// The member that answered last.
    preferred: AtomicUsize,
    user: Option<EtcdUser>,
    token: Mutex<Token>,
    limits: Limits,
}

/// The session of the user.
#[derive(Clone)]
enum Token {
    Unknown,
    Known(Arc<str>),
    /// The cluster does not authenticate.
    Needless,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("members", &self.cluster.members).finish_non_exhaustive()
    }
}

/// The result of [`Etcd::create`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Created {
    Created(Revision),
    /// The key exists.
    Taken(KeyValue),
}

/// The result of [`Etcd::replace`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Replaced {
    Replaced(Revision),
    /// The key has changed since, or is gone.
    Changed(Option<KeyValue>),
}

/// The result of [`Etcd::keep_alive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// The time that is left now.
    Alive(Duration),
    Expired,
}

impl Etcd {
    /// Reads the files of TLS, and connects to nothing.
    pub(crate) fn new(options: EtcdOptions) -> Result<Self, EtcdError> {
        Self::with_limits(options, Limits::default())
    }

    pub(crate) fn with_limits(options: EtcdOptions, limits: Limits) -> Result<Self, EtcdError> {
        let EtcdOptions { endpoints, tls, user } = options;
        let by_default = tls.is_some();
        let mut configuration = None;
        let mut members = Vec::new();
        for endpoint in endpoints {
            let security = if endpoint.is_secure.unwrap_or(by_default) {
                if configuration.is_none() {
                    configuration = Some(tls::configuration(tls.as_ref().unwrap_or(&EtcdTls::default()))?);
                }
                configuration.clone()
            } else {
                None
            };
            members.push(Member::new(endpoint, security).map_err(|endpoint| EtcdError::Name(endpoint.to_string()))?);
        }
        // Clients spread over the members.
        let preferred = AtomicUsize::new(fastrand::usize(..members.len().max(1)));
        let token = Mutex::new(Token::Unknown);
        Ok(Self { cluster: Arc::new(Cluster { members, preferred, user, token, limits }) })
    }

    /// A key, if it exists.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<KeyValue>, EtcdError> {
        let listing = self.call(&request::get(key), key).await?.read(answer::listing)?;
        Ok(listing.entries.into_iter().next())
    }

    /// All keys with the prefix, sorted, and the revision of this list: a watch continues from the next.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Listing, EtcdError> {
        self.call(&request::list(prefix), prefix).await?.read(answer::listing)
    }

    /// Sets a key. A repetition may overwrite what another client has put in between.
    pub(crate) async fn put(&self, key: &str, value: &[u8], lease: Option<LeaseId>) -> Result<Revision, EtcdError> {
        self.call(&request::put(key, value, lease), key).await?.read(answer::revision)
    }

    /// Deletes a key; false if it did not exist, or if a repetition found it deleted.
    pub(crate) async fn delete(&self, key: &str) -> Result<bool, EtcdError> {
        Ok(self.call(&request::delete(key), key).await?.read(answer::deleted)? > 0)
    }

    /// Deletes a key that has not changed since `expected`; false if it has, or is gone.
    pub(crate) async fn delete_unchanged(&self, key: &str, expected: Revision) -> Result<bool, EtcdError> {
        Ok(self.call(&request::delete_unchanged(key, expected), key).await?.read(answer::deleted)? > 0)
    }

    /// Deletes a key and all keys below it, and returns their number.
    pub(crate) async fn delete_tree(&self, key: &str) -> Result<u64, EtcdError> {
        self.call(&request::delete_tree(key), key).await?.read(answer::deleted)
    }

    /// Puts a key that does not exist, and others together with it. Clients that compete for a key need different values or leases: they tell whose
    /// request a repetition has found.
    pub(crate) async fn create(
        &self,
        key: &str,
        value: &[u8],
        lease: Option<LeaseId>,
        with: &[(String, Vec<u8>)],
    ) -> Result<Created, EtcdError> {
        let done = self.call(&request::create(key, value, lease, with), key).await?;
        match done.read(answer::written)? {
            Written::Done(revision) => Ok(Created::Created(revision)),
            Written::Other(Some(found)) if done.maybe_earlier && is_ours(&found, value, lease) => {
                Ok(Created::Created(found.modified))
            }
            Written::Other(Some(found)) => Ok(Created::Taken(found)),
            // The condition and the list are one transaction, so this is not an answer of etcd.
            Written::Other(None) => Err(done.not_etcd()),
        }
    }

    /// Puts a key that has not changed since `expected`.
    pub(crate) async fn replace(
        &self,
        key: &str,
        expected: Revision,
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<Replaced, EtcdError> {
        let done = self.call(&request::replace(key, expected, value, lease), key).await?;
        Ok(match done.read(answer::written)? {
            Written::Done(revision) => Replaced::Replaced(revision),
            Written::Other(Some(found)) if done.maybe_earlier && is_ours(&found, value, lease) => {
                Replaced::Replaced(found.modified)
            }
            Written::Other(found) => Replaced::Changed(found),
        })
    }

    /// A new lease. etcd may extend times that are shorter than its elections.
    pub(crate) async fn grant(&self, time: Duration) -> Result<LeaseId, EtcdError> {
        // Rounded up: 0 is refused.
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        loop {
            let lease = LeaseId::from_random(fastrand::u64(..));
            let mut maybe_earlier = false;
            match self.call_noting(&request::grant(lease, seconds), "", &mut maybe_earlier).await {
                Ok(_) => return Ok(lease),
                Err(EtcdError::Refused { refusal: Refusal::LeaseExists, .. }) if maybe_earlier => return Ok(lease),
                Err(EtcdError::Refused { refusal: Refusal::LeaseExists, .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives a lease its whole time again.
    pub(crate) async fn keep_alive(&self, lease: LeaseId) -> Result<Lease, EtcdError> {
        let done = self.call(&request::keep_alive(lease), "").await?;
        Ok(done.read(answer::seconds)?.map_or(Lease::Expired, |left| Lease::Alive(Duration::from_secs(left))))
    }

    /// Whole seconds that are left to a lease, which is not extended; `None` if it has expired.
    pub(crate) async fn time_left(&self, lease: LeaseId) -> Result<Option<Duration>, EtcdError> {
        let done = self.call(&request::time_left(lease), "").await?;
        Ok(done.read(answer::seconds)?.map(Duration::from_secs))
    }

    /// Ends a lease and deletes its keys; one that is gone is no error.
    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        match self.call(&request::revoke(lease), "").await {
            Ok(_) | Err(EtcdError::Refused { refusal: Refusal::NoLease, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Follows all keys with the prefix, from a revision on, until the watch is dropped.
    pub(crate) fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, EtcdError> {
        Watch::start(self.clone(), prefix.to_owned(), from)
    }

    async fn call(&self, request: &Request, key: &str) -> Result<Done<'_>, EtcdError> {
        self.call_noting(request, key, &mut false).await
    }
}

fn is_ours(found: &KeyValue, value: &[u8], lease: Option<LeaseId>) -> bool {
    found.value == value && found.lease == lease
}
