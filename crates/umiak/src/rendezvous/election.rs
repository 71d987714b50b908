//! Jobs over etcd: the task that keeps this node's lease, and the key of the coordinator in view. `machine::round::election`
//! decides.
//!
//! | key | value | lease |
//! |---|---|---|
//! | `ROOT/coordinator` | [`Leader`] | of its node |
//! | `ROOT/nodes/LAUNCH` | address of the node, and the number of the job once it is known | of the node |
//! | `ROOT/np` | the number of nodes, or the range | – |
//! | `ROOT` | 0 while the job runs, 1 once it is over | 10 minutes from then on |
//! | `ROOT/end` | [`End`] | 10 minutes |
//!
//! [Farewell](super::farewell) has what a node that ends leaves behind.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};
use tracing::{debug, info};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Outcome;
use umiak_core::machine::round::election::{self, Effect, Event, Leader, Reign};
use umiak_core::machine::round::known::{
    Agreement, End, Known, RangeKey, Takeover, agree, node_value, range_words, read_range,
};
use umiak_core::machine::round::messages::Loss;
use umiak_core::model::{EtcdOptions, EtcdPlace, Port, Timestamp, shown};
use umiak_core::wire::etcd::{self as wire, KeyValue, LeaseId, Revision, request};
use umiak_sys::protocol::LastWords;
use umiak_sys::wait::Waker;

use super::farewell::Farewell;
use super::vigil::{self, Task};
use super::{bind, door};
use crate::clock::Clock;
use crate::etcd::{Created, Etcd, EtcdError, Lease, Limits, Replaced, Watch, WatchNews};

/// Time between two attempts to watch the keys again, or to end a lease.
const AGAIN: Duration = Duration::from_secs(1);
/// A coordinator that lives renews its lease this often.
const RENEWED: Duration = Duration::from_secs(1);
/// How often a lease is read, every tenth of that, until it is clear whether it is renewed.
const WITNESS: u32 = 12;
/// Wait when nothing is due.
const LONG: Duration = Duration::from_secs(3600);

/// Settings of the election on one node.
#[derive(Debug)]
pub(crate) struct ElectionOptions {
    pub(crate) place: EtcdPlace,
    /// Time without a sign of life after which etcd forgets this node.
    pub(crate) lease: Duration,
    /// Where other nodes reach this one, should it become the coordinator; a port, if the user chose one.
    pub(crate) address: IpAddr,
    pub(crate) port: Option<u16>,
    /// A port that is open as long as umiak or its guardian runs on this node.
    pub(crate) alive: Option<Port>,
    /// The fewest and the most nodes, by the command line.
    pub(crate) range: (u32, u32),
    /// Longest wait for a coordinator.
    pub(crate) patience: Duration,
    /// How long ranks of a node may run after it was lost.
    pub(crate) linger: Duration,
    pub(crate) clock: Clock,
}

/// A message to the front.
#[derive(Debug)]
pub(crate) enum ElectionReport {
    /// This node is the coordinator, on this port.
    Lead {
        reign: Reign,
        listener: TcpListener,
        takeover: Takeover,
    },
    Follow(Reign),
    /// The node that is followed is no longer the coordinator.
    Vacated,
    /// This node must no longer be the coordinator.
    Fence(Loss),
    /// A connection to etcd for the guardian, and the request that ends the lease of this coordinator when it is killed.
    Lifeline {
        socket: OwnedFd,
        frame: LastWords,
    },
    /// The number of nodes was changed in etcd.
    Scaled {
        min: u32,
        max: u32,
    },
    /// The job is over.
    Over(End),
    /// etcd is not reached, for this reason; ranks keep running.
    Trouble(Box<Diagnostic>),
    /// etcd is reached again.
    Regained,
    /// There will be no coordinator.
    Failed(Box<Diagnostic>),
}

/// What the task waits for.
enum Input {
    Look {
        launch: u64,
        lost: Option<u64>,
    },
    /// A coordinator has been found.
    Settled,
    /// The coordinator is not reached.
    Missed,
    /// The port of the coordinator of this revision accepted a connection.
    Knocked(u64),
    /// Nothing of the coordinator of this revision runs anymore.
    Vanished(u64),
    /// The last order.
    Finish(Ending),
    /// The front is gone without a word; the lease expires.
    Gone,
    Watched(WatchNews),
    Claimed(Result<(Created, LeaseId), EtcdError>, Leader, Timestamp),
    /// The lease that was renewed, if it is no new one.
    Renewed(Option<LeaseId>, Result<(LeaseId, Lease), EtcdError>, Timestamp),
}

/// What a node knows when it ends.
#[derive(Debug)]
pub(crate) struct Ending {
    /// How the job has ended, if it has for all nodes.
    pub(crate) end: Option<(Outcome, u8)>,
    /// The launch ids of the nodes of the last attempt; `None` if this node has heard of none.
    pub(crate) members: Option<Vec<u64>>,
}

/// The front's handle.
#[derive(Debug)]
pub(crate) struct Election {
    inputs: UnboundedSender<Input>,
    reports: Receiver<ElectionReport>,
    waker: Arc<Waker>,
    ended: Receiver<()>,
}

impl Election {
    pub(crate) fn start(options: ElectionOptions) -> Result<Self, Diagnostic> {
        let second = Duration::from_secs(1);
        let limits = Limits {
            request: (options.lease / 6).clamp(second / 2, second * 2),
            call: (options.lease / 2).clamp(second * 2, second * 10),
            quiet: (options.lease / 3).clamp(second, second * 5),
        };
        let etcd = Etcd::with_limits(options.place.etcd.clone(), limits).map_err(|error| error.diagnostic())?;
        let failed = |error: io::Error| Diagnostic::failed("start its network thread", &error);
        let waker = Arc::new(Waker::new().map_err(failed)?);
        let (inputs, inbox) = unbounded_channel();
        let (to_front, reports) = channel();
        let (alive, ended) = channel();
        let now = options.clock.now();
        let candidate = Candidate {
            machine: election::Election::new(options.lease, now),
            etcd,
            reporter: Reporter { reports: to_front, waker: Arc::clone(&waker) },
            inputs: inputs.clone(),
            lease: None,
            renewing: false,
            renew_at: now,
            listener: None,
            launch: 0,
            known: Known::default(),
            looking: None,
            is_leading: false,
            claim_due: false,
            trouble: None,
            followed: None,
            vigil: None,
            options,
        };
        crate::network::handle().map_err(failed)?.spawn(async move {
            let _alive: Sender<()> = alive;
            candidate.run(inbox).await;
        });
        Ok(Self { inputs, reports, waker, ended })
    }

    /// Asks for a coordinator, other than the one of the revision `lost` if possible.
    pub(crate) fn look(&self, launch: u64, lost: Option<u64>) {
        let _ = self.inputs.send(Input::Look { launch, lost });
    }

    /// The coordinator has accepted this node: the wait for one is over.
    pub(crate) fn settled(&self) {
        let _ = self.inputs.send(Input::Settled);
    }

    /// The connection to the coordinator broke, and is not restored at once.
    pub(crate) fn missed(&self) {
        let _ = self.inputs.send(Input::Missed);
    }

    /// Returns the reports since the last call; never blocks.
    pub(crate) fn reports(&self) -> Vec<ElectionReport> {
        self.waker.clear();
        self.reports.try_iter().collect()
    }

    /// Leaves the job in etcd: its keys go at once.
    pub(crate) fn finish(self, ending: Ending, patience: Duration) {
        let _ = self.inputs.send(Input::Finish(ending));
        let _ = self.ended.recv_timeout(patience);
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        let _ = self.inputs.send(Input::Gone);
    }
}

/// Readable when reports are waiting.
impl AsFd for Election {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

#[derive(Debug, Clone)]
struct Reporter {
    reports: Sender<ElectionReport>,
    waker: Arc<Waker>,
}

impl Reporter {
    fn tell(&self, report: ElectionReport) {
        let _ = self.reports.send(report);
        self.waker.wake();
    }
}

struct Candidate {
    options: ElectionOptions,
    machine: election::Election,
    etcd: Etcd,
    reporter: Reporter,
    inputs: UnboundedSender<Input>,
    lease: Option<LeaseId>,
    /// True while a request for the lease is under way: there is one at a time.
    renewing: bool,
    renew_at: Timestamp,
    /// Bound for the next claim; given away with it.
    listener: Option<TcpListener>,
    launch: u64,
    known: Known,
    /// Since when a coordinator is looked for.
    looking: Option<Timestamp>,
    is_leading: bool,
    /// A claim waits until a request for the lease has been answered.
    claim_due: bool,
    /// Why the last request failed; `None` once etcd has answered.
    trouble: Option<EtcdError>,
    /// The coordinator that was followed last, and whether its port accepted a connection.
    followed: Option<(Reign, bool)>,
    /// Whether anything of it still runs, while it is not reached.
    vigil: Option<Task>,
}

impl Candidate {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.options.place.root)
    }

    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    async fn run(mut self, mut inbox: UnboundedReceiver<Input>) {
        let mut watch = match self.begin().await {
            Ok(watch) => watch,
            Err(diagnostic) => {
                self.reporter.tell(ElectionReport::Failed(Box::new(diagnostic)));
                return;
            }
        };
        let (etcd, prefix, inputs) = (self.etcd.clone(), self.key(""), self.inputs.clone());
        let watching = tokio::spawn(async move {
            loop {
                while let Some(news) = watch.next().await {
                    let _ = inputs.send(Input::Watched(news));
                }
                watch = watch_again(&etcd, &prefix, &inputs).await;
            }
        });
        let ending = loop {
            match timeout(self.wait(), inbox.recv()).await {
                Ok(Some(Input::Look { launch, lost })) => {
                    self.launch = launch;
                    self.looking.get_or_insert(self.options.clock.now());
                    self.step(Event::Look { launch, lost });
                    if lost.is_some() && lost == self.followed.map(|(reign, _)| reign.revision) {
                        self.keep_vigil();
                    }
                }
                Ok(Some(Input::Settled)) => {
                    (self.looking, self.vigil) = (None, None);
                    self.step(Event::Settled);
                }
                Ok(Some(Input::Missed)) => self.keep_vigil(),
                Ok(Some(Input::Knocked(revision))) => {
                    if let Some((_, is_proven)) = self.followed.as_mut().filter(|(reign, _)| reign.revision == revision)
                    {
                        *is_proven = true;
                    }
                }
                Ok(Some(Input::Vanished(revision))) => self.step(Event::Vanished { revision }),
                Ok(Some(Input::Finish(ending))) => break Some(ending),
                Ok(Some(Input::Gone) | None) => break None,
                Ok(Some(Input::Watched(news))) => self.watched(news),
                Ok(Some(Input::Claimed(claimed, leader, asked))) => self.claimed(claimed, leader, asked),
                Ok(Some(Input::Renewed(lease, renewed, asked))) => self.renewed(lease, renewed, asked),
                Err(_) => {}
            }
            self.renew();
            self.step(Event::Tick);
            self.lose_patience();
        };
        watching.abort();
        if let Some(ending) = ending {
            self.finish(ending).await;
        }
    }

    fn wait(&self) -> Duration {
        let patience = self.looking.map(|since| since + self.options.patience);
        let renew = (!self.renewing && self.launch != 0).then_some(self.renew_at);
        let times = [self.machine.deadline(), patience, renew];
        let next = times.into_iter().flatten().min();
        next.map_or(LONG, |time| time.since(self.now()).max(Duration::from_millis(1)))
    }

    /// Reads what is there, and checks the number of nodes.
    async fn begin(&mut self) -> Result<Watch, Diagnostic> {
        let prefix = self.key("");
        let listing = self.etcd.list(&prefix).await.map_err(|error| error.diagnostic())?;
        let find = |name: &str| {
            let key = self.key(name);
            listing.entries.iter().find(move |entry| entry.key == key)
        };
        let (reign, np, end) = (find("coordinator").and_then(reign), find("np"), find("end"));
        let nodes = self.key("nodes/");
        let nodes = listing.entries.iter().filter(|entry| entry.key.starts_with(&nodes));
        let end = end.and_then(|entry| serde_json::from_slice(&entry.value).ok());
        self.known = Known::found(np.map(range_key), nodes.map(|entry| &*entry.value), end);
        // Otherwise, what is there belongs to an earlier one.
        if let (Some(entry), true) = (np, reign.is_some() || self.known.job().is_some()) {
            self.compare(entry).await?;
        }
        self.step(Event::Seen { key: reign, at: listing.revision.0 });
        self.etcd.watch(&prefix, listing.revision.next()).map_err(|error| error.diagnostic())
    }

    /// The number of nodes on the command line and the one in etcd must agree, or one of them changes.
    async fn compare(&self, entry: &KeyValue) -> Result<(), Diagnostic> {
        let mut entry = entry.clone();
        loop {
            let Some(found) = read_range(&entry.value) else { return Ok(()) };
            let wanted = match agree(found, self.options.range, self.options.place.scaling) {
                Agreement::Agreed => return Ok(()),
                Agreement::Replace(wanted) => wanted,
                Agreement::Differs => {
                    let message = "the job in etcd has another number of nodes than this command line";
                    return Err(Diagnostic::error(Code::R0040, message)
                        .row("here", range_words(self.options.range))
                        .row("in etcd", range_words(found))
                        .hint("use the same number on every node; `--force true` replaces the one in etcd, and `umiak python -m paddle.distributed.elastic scale` changes it"));
                }
            };
            let value = range_words(wanted);
            let replaced = self.etcd.replace(&entry.key, entry.modified, value.as_bytes(), entry.lease).await;
            match replaced.map_err(|error| error.diagnostic())? {
                Replaced::Replaced(_) | Replaced::Changed(None) => return Ok(()),
                Replaced::Changed(Some(found)) => entry = found,
            }
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.now();
        for effect in self.machine.step(event, now) {
            debug!(?event, ?effect, "election");
            match effect {
                Effect::Claim => self.claim(),
                Effect::Resign => self.resign(),
                Effect::Lead(reign) => self.lead(reign),
                Effect::Follow(reign) => {
                    self.belong(reign.leader.job);
                    self.reporter.tell(ElectionReport::Follow(reign));
                    self.know(reign);
                }
                Effect::Evict(reign) => self.evict(reign),
                Effect::Vacated => self.reporter.tell(ElectionReport::Vacated),
                Effect::Fence(how) => {
                    info!(%how, "no longer the coordinator");
                    self.is_leading = false;
                    self.reporter.tell(ElectionReport::Fence(how));
                }
            }
        }
    }

    /// Tries the port of a coordinator. A firewall may refuse connections too, so that one which never accepted any proves
    /// nothing.
    fn know(&mut self, reign: Reign) {
        if self.followed.is_some_and(|(last, _)| last.revision == reign.revision) {
            return;
        }
        (self.followed, self.vigil) = (Some((reign, false)), None);
        let Some(at) = door_of(&reign) else { return };
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            if door::knock(at).await.is_ok() {
                let _ = inputs.send(Input::Knocked(reign.revision));
            }
        });
    }

    /// The coordinator is not reached: finds out whether anything of it still runs.
    fn keep_vigil(&mut self) {
        let Some((reign, true)) = self.followed else { return };
        let Some(at) = door_of(&reign).filter(|_| self.vigil.is_none()) else { return };
        let (inputs, clock) = (self.inputs.clone(), self.options.clock);
        self.vigil = Some(Task::spawn(async move {
            vigil::until_gone(at, clock).await;
            let _ = inputs.send(Input::Vanished(reign.revision));
        }));
    }

    /// Frees the key of a coordinator that is dead: connections to it are refused, and its lease is not renewed.
    fn evict(&self, reign: Reign) {
        info!(revision = reign.revision, at = %reign.leader.at, "connections to the coordinator are refused");
        let (etcd, key, lease) = (self.etcd.clone(), self.key("coordinator"), self.options.lease);
        tokio::spawn(async move {
            match evict(&etcd, &key, Revision(reign.revision), lease).await {
                Ok(is_free) => info!(is_free, "the key of the coordinator"),
                Err(error) => debug!(?error, "the key of the coordinator is not freed"),
            }
        });
    }

    /// Nodes that look for a coordinator in vain give up.
    fn lose_patience(&mut self) {
        let since = self.looking.filter(|since| self.now() >= *since + self.options.patience);
        if since.is_some() {
            self.looking = None;
            let diagnostic = no_coordinator(
                self.options.patience,
                self.key("coordinator"),
                self.trouble.as_ref().map(EtcdError::diagnostic),
                self.followed.map(|(reign, _)| reign.leader.at),
            );
            self.reporter.tell(ElectionReport::Failed(Box::new(diagnostic)));
        }
    }

    /// Asks etcd for the key, unless the job is over.
    fn claim(&mut self) {
        if let Some(end) = self.known.over() {
            self.looking = None;
            return self.reporter.tell(ElectionReport::Over(end));
        }
        if self.renewing {
            self.claim_due = true;
            return;
        }
        let port = match &self.listener {
            Some(listener) => listener.local_addr().map(|address| address.port()),
            None => bind(self.options.port.unwrap_or(0)).and_then(|listener| {
                let port = listener.local_addr()?.port();
                self.listener = Some(listener);
                Ok(port)
            }),
        };
        let port = match port {
            Ok(port) => port,
            // The port may be that of this node's last time as coordinator, which ends soon.
            Err(error) => {
                debug!(%error, "no port for the coordinator");
                return self.step(Event::NotClaimed);
            }
        };
        let leader = Leader {
            at: SocketAddr::new(self.options.address, port),
            launch: self.launch,
            job: self.known.job().unwrap_or(self.launch),
            // Behind a translation of addresses, that port of the address belongs to another host.
            alive: self.options.alive.filter(|_| umiak_sys::net::is_own(self.options.address)),
        };
        self.renewing = true;
        let (etcd, inputs, asked) = (self.etcd.clone(), self.inputs.clone(), self.now());
        let (key, node, lease, time) = (self.key("coordinator"), self.node_key(), self.lease, self.options.lease);
        let value = self.node_value();
        // Other nodes see both or neither.
        let range = self.known.brings(self.options.range);
        let with: Vec<_> = range.map(|range| (self.key("np"), range_words(range).into_bytes())).into_iter().collect();
        tokio::spawn(async move {
            let claim = async {
                let lease = match lease {
                    Some(lease) if matches!(etcd.keep_alive(lease).await?, Lease::Alive(_)) => lease,
                    _ => register(&etcd, &node, &value, time).await?,
                };
                let leader = serde_json::to_vec(&leader).unwrap_or_default();
                etcd.create(&key, &leader, Some(lease), &with).await.map(|created| (created, lease))
            };
            let _ = inputs.send(Input::Claimed(claim.await, leader, asked));
        });
    }

    fn node_key(&self) -> String {
        self.key(&format!("nodes/{:016x}", self.launch))
    }

    fn node_value(&self) -> String {
        node_value(self.options.address, self.known.job())
    }

    /// Says which job this node belongs to, for a newcomer that becomes the coordinator.
    fn belong(&mut self, job: u64) {
        if self.known.belong(job) {
            self.sign();
        }
    }

    fn sign(&self) {
        let (Some(lease), Some(_)) = (self.lease, self.known.job()) else { return };
        let (etcd, key, value) = (self.etcd.clone(), self.node_key(), self.node_value());
        tokio::spawn(async move {
            if let Err(error) = etcd.put(&key, value.as_bytes(), Some(lease)).await {
                debug!(?error, "the job of this node is not in etcd");
            }
        });
    }

    fn claimed(&mut self, claimed: Result<(Created, LeaseId), EtcdError>, leader: Leader, asked: Timestamp) {
        self.renewing = false;
        match claimed {
            Ok((created, lease)) => {
                self.trouble = None;
                let is_new = self.lease.replace(lease) != Some(lease);
                self.renew_at = self.now() + self.options.lease / 6;
                if is_new {
                    self.sign();
                }
                match created {
                    Created::Created(Revision(revision)) => {
                        self.step(Event::Claimed { reign: Reign { leader, revision }, asked });
                    }
                    Created::Taken(entry) => match reign(&entry) {
                        Some(reign) => self.step(Event::Taken(reign)),
                        None => self.step(Event::NotClaimed),
                    },
                }
            }
            Err(error) => {
                debug!(?error, "not claimed");
                self.trouble = Some(error);
                self.step(Event::NotClaimed);
            }
        }
    }

    fn renewed(&mut self, old: Option<LeaseId>, renewed: Result<(LeaseId, Lease), EtcdError>, asked: Timestamp) {
        self.renewing = false;
        self.trouble = renewed.as_ref().err().cloned();
        match renewed {
            // The lease may have been given up meanwhile.
            Ok((lease, Lease::Alive(_))) if self.lease == old => {
                self.lease = Some(lease);
                if old.is_none() {
                    self.sign();
                }
                self.step(Event::Renewed { asked });
            }
            Ok((lease, Lease::Expired)) if self.lease == Some(lease) => {
                self.lease = None;
                self.step(Event::Expired);
            }
            Ok(_) => {}
            Err(error) => debug!(?error, "lease not renewed"),
        }
        if std::mem::take(&mut self.claim_due) {
            self.claim();
        }
    }

    /// Renews the lease, whether this node leads or not. A node that follows shows by it that it lives.
    fn renew(&mut self) {
        let now = self.now();
        let is_due = !self.renewing && now >= self.renew_at && self.launch != 0;
        if !is_due {
            return;
        }
        // Other nodes see soon that a coordinator is dead.
        let interval = self.options.lease / 6;
        let interval = if self.is_leading { interval.min(RENEWED) } else { interval };
        (self.renewing, self.renew_at) = (true, now + interval);
        let (etcd, inputs, asked) = (self.etcd.clone(), self.inputs.clone(), now);
        let (node, lease, time) = (self.node_key(), self.lease, self.options.lease);
        let value = self.node_value();
        tokio::spawn(async move {
            let renewed = match lease {
                Some(lease) => etcd.keep_alive(lease).await.map(|state| (lease, state)),
                None => register(&etcd, &node, &value, time).await.map(|lease| (lease, Lease::Alive(time))),
            };
            let _ = inputs.send(Input::Renewed(lease, renewed, asked));
        });
    }

    /// Ends the lease; the next claim has another.
    fn resign(&mut self) {
        self.is_leading = false;
        if let Some(lease) = self.lease.take() {
            let etcd = self.etcd.clone();
            // etcd that was away gives a lease its whole time again: until then no node could lead.
            let until = self.now() + self.options.patience;
            let clock = self.options.clock;
            tokio::spawn(async move {
                while let Err(error) = etcd.revoke(lease).await {
                    debug!(?error, "lease not revoked");
                    if clock.now() >= until {
                        break;
                    }
                    sleep(AGAIN).await;
                }
            });
        }
    }

    fn lead(&mut self, reign: Reign) {
        info!(revision = reign.revision, at = %reign.leader.at, "coordinator");
        (self.looking, self.is_leading) = (None, true);
        self.renew_at = self.renew_at.min(self.now() + RENEWED);
        let takeover = self.known.lead();
        self.belong(reign.leader.job);
        let listener = self.listener.take().expect("it was bound for the claim");
        self.reporter.tell(ElectionReport::Lead { reign, listener, takeover });
        self.prepare_for_death();
        let (etcd, root, end) = (self.etcd.clone(), self.options.place.root.clone(), self.key("end"));
        tokio::spawn(async move {
            let write = async {
                if takeover.is_new {
                    etcd.delete(&end).await?;
                }
                etcd.put(&root, b"0", None).await
            };
            if let Err(error) = write.await {
                debug!(?error, "the state of the job is not in etcd");
            }
        });
    }

    /// Gives the guardian what it needs to free the key at once if this process is killed. Without that, and with TLS or
    /// a user, the key is free when the lease has expired.
    fn prepare_for_death(&self) {
        let EtcdOptions { endpoints, tls, user } = &self.options.place.etcd;
        let plain = endpoints.iter().find(|member| !member.is_secure.unwrap_or(tls.is_some()));
        let (Some(member), None, Some(lease)) = (plain, user, self.lease) else { return };
        let (at, host, port) = (member.at.to_string(), member.at.address.to_string(), member.at.port.get());
        let request = request::revoke(lease);
        let frame = format!(
            "POST {} HTTP/1.1\r\nHost: {at}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
            request.path,
            request.body.len(),
            request.body
        );
        let reporter = self.reporter.clone();
        tokio::spawn(async move {
            let stream = TcpStream::connect((host, port)).await;
            if let Ok(stream) = stream.and_then(TcpStream::into_std) {
                // Until the ranks of this node are gone, no other node leads.
                let frame = LastWords { bytes: frame.into_bytes(), after_ranks: true };
                reporter.tell(ElectionReport::Lifeline { socket: stream.into(), frame });
            }
        });
    }

    fn watched(&mut self, news: WatchNews) {
        match news {
            WatchNews::Changed(events) => {
                for event in events {
                    match event {
                        wire::Event::Put(entry) => self.changed(&entry.key.clone(), Some(&entry), entry.modified),
                        wire::Event::Deleted { key, modified } => self.changed(&key, None, modified),
                    }
                }
            }
            WatchNews::Resync(listing) => {
                self.machine.resync(listing.revision.0);
                for name in ["coordinator", "np", "end"] {
                    let key = self.key(name);
                    let entry = listing.entries.iter().find(|entry| entry.key == key);
                    self.changed(&key, entry, listing.revision);
                }
            }
            // A password or a permission may be restored: it is tried again, as long as the lease or the patience lasts.
            WatchNews::Lost(error) | WatchNews::Failed(error) => {
                self.reporter.tell(ElectionReport::Trouble(Box::new(error.diagnostic())));
                self.trouble = Some(error);
            }
            WatchNews::Regained => {
                self.trouble = None;
                self.reporter.tell(ElectionReport::Regained);
            }
        }
    }

    fn changed(&mut self, key: &str, entry: Option<&KeyValue>, at: Revision) {
        if key == self.key("coordinator") {
            self.step(Event::Seen { key: entry.and_then(reign), at: at.0 });
        } else if key == self.key("end") {
            self.known.ended(entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()));
        } else if key == self.key("np") {
            let range = self.known.scaled(entry.map(range_key));
            if let Some((min, max)) = range.filter(|_| self.is_leading) {
                self.reporter.tell(ElectionReport::Scaled { min, max });
            }
        }
    }

    /// The last thing: what this node has in etcd is deleted.
    async fn finish(mut self, Ending { end, members }: Ending) {
        let farewell = Farewell {
            etcd: &self.etcd,
            root: &self.options.place.root,
            launch: self.launch,
            lease: self.lease.take(),
            linger: self.options.linger,
            members,
            has_past: self.known.has_past(),
        };
        let said = match (end, self.known.job()) {
            (Some((outcome, code)), Some(job)) if self.is_leading => farewell.end(End { job, outcome, code }).await,
            (Some(_), _) => farewell.revoke().await,
            (None, _) => farewell.leave().await,
        };
        if let Err(error) = said {
            debug!(?error, "keys are left in etcd until their leases expire");
        }
    }
}

/// Deletes the key that was created at this revision, unless its lease is renewed: then it is this node that does not
/// reach the coordinator. Returns whether it is gone.
async fn evict(etcd: &Etcd, key: &str, created: Revision, lease: Duration) -> Result<bool, EtcdError> {
    for _ in 0..WITNESS {
        let Some(entry) = etcd.get(key).await?.filter(|entry| entry.created == created) else { return Ok(true) };
        let left = match entry.lease {
            Some(lease) => etcd.time_left(lease).await?,
            None => None,
        };
        // Whole seconds are left, rounded down.
        if left.is_none_or(|left| left + 3 * RENEWED <= lease) {
            return etcd.delete_unchanged(key, entry.modified).await;
        }
        sleep(RENEWED / 10).await;
    }
    Ok(false)
}

/// A lease for this node, with its key.
async fn register(etcd: &Etcd, key: &str, value: &str, time: Duration) -> Result<LeaseId, EtcdError> {
    let lease = etcd.grant(time).await?;
    etcd.put(key, value.as_bytes(), Some(lease)).await?;
    Ok(lease)
}

/// etcd has refused to go on with a watch: the next one, once it accepts one.
async fn watch_again(etcd: &Etcd, prefix: &str, inputs: &UnboundedSender<Input>) -> Watch {
    loop {
        sleep(AGAIN).await;
        let listed = etcd.list(prefix).await;
        let watched = listed.and_then(|listing| Ok((etcd.watch(prefix, listing.revision.next())?, listing)));
        match watched {
            Ok((watch, listing)) => {
                let _ = inputs.send(Input::Watched(WatchNews::Regained));
                let _ = inputs.send(Input::Watched(WatchNews::Resync(listing)));
                return watch;
            }
            Err(error) => debug!(?error, "not watched"),
        }
    }
}

/// The error if there was no coordinator for so long: etcd has failed, the node that holds the key is not reached, or no
/// node has claimed it.
fn no_coordinator(
    patience: Duration,
    key: String,
    trouble: Option<Diagnostic>,
    holder: Option<SocketAddr>,
) -> Diagnostic {
    let message = format!("no coordinator was elected within {}", shown(patience));
    match (trouble, holder) {
        (Some(why), _) => {
            let diagnostic = Diagnostic::error(Code::R0041, message).row("reason", why.message);
            let diagnostic = why.rows.iter().fold(diagnostic, |diagnostic, (name, text)| diagnostic.row(name, text));
            why.hints.into_iter().fold(diagnostic, Diagnostic::hint)
        }
        (None, Some(holder)) => {
            let message = format!("the coordinator was not reached within {}", shown(patience));
            Diagnostic::error(Code::R0041, message)
                .row("coordinator", holder.to_string())
                .row("key", key)
                .hint("etcd answers; check the network between the nodes, and firewalls")
        }
        (None, None) => Diagnostic::error(Code::R0041, message)
            .row("key", key)
            .hint("etcd answers, but no node has claimed the key; `-v` shows more"),
    }
}

/// The port that is open as long as anything of the coordinator runs.
fn door_of(reign: &Reign) -> Option<SocketAddr> {
    Some(SocketAddr::new(reign.leader.at.ip(), reign.leader.alive?.get()))
}

fn range_key(entry: &KeyValue) -> RangeKey<'_> {
    RangeKey { value: &entry.value, expires: entry.lease.is_some() }
}

fn reign(entry: &KeyValue) -> Option<Reign> {
    let leader = serde_json::from_slice(&entry.value).ok()?;
    Some(Reign { leader, revision: entry.created.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_there_is_no_coordinator() {
        let told = |trouble, holder| {
            no_coordinator(Duration::from_secs(12), "/paddle/j/coordinator".to_owned(), trouble, holder).to_plain()
        };
        let trouble =
            Diagnostic::error(Code::R0030, "etcd cannot be reached").row("e:2379", "no answer").hint("check it");
        assert_eq!(
            told(Some(trouble), None),
            "error[R0041]: no coordinator was elected within 12 s\n  reason  etcd cannot be reached\n  e:2379  no answer\nhint: check it\n"
        );
        let holder = SocketAddr::from(([10, 0, 0, 1], 7));
        assert!(
            told(None, Some(holder))
                .starts_with("error[R0041]: the coordinator was not reached within 12 s\n  coordinator  10.0.0.1:7\n")
        );
        assert!(told(None, None).contains("no node has claimed the key"));
    }
}
