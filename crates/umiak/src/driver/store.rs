//! Torch's store, if this process hosts it: a new one for each attempt, and what its clients tell about the ranks.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::diagnose;
use umiak_core::diagnose::store::{StoreClient, judge};
use umiak_core::facts::{Fact, StoreWaits};
use umiak_core::model::Rank;
use umiak_core::plan::{Plan, Replica};
use umiak_sys::descend::parent;
use umiak_sys::observe::processes;

use super::{Driver, JobDriver, JobRun};
use crate::host::{evidence, observe};
use crate::screen::style::duration;
use crate::store::{Client, StoreId, StoreNews, Stores, bind};
use crate::views::store::named;

/// Missing ranks whose last lines are shown.
const SHOWN: usize = 4;
/// Generations of processes between a rank and the client: a shell, a wrapper.
const GENERATIONS: usize = 8;
/// Time to look for the sockets of ranks.
const LOOK: Duration = Duration::from_millis(200);

/// The store of one group of ranks. All jobs of a run share the thread.
pub(crate) struct JobStore {
    pub(crate) stores: Arc<Stores>,
    id: StoreId,
    group: u16,
    /// Nodes meet where the store is, and the coordinator makes it anew when all of them are ready.
    is_shared: bool,
    /// The processes of ranks on other nodes.
    elsewhere: HashMap<u32, Vec<u32>>,
    /// The missing ranks that were shown last.
    told: Vec<Rank>,
    /// Ranks that wait here.
    pub(super) waits: Option<StoreWaits>,
    /// Ranks that have been clients in this attempt.
    seen: BTreeSet<Rank>,
}

impl JobStore {
    pub(crate) fn new(stores: Arc<Stores>, id: StoreId, is_shared: bool) -> Self {
        Self {
            stores,
            id,
            group: 0,
            is_shared,
            elsewhere: HashMap::new(),
            told: Vec::new(),
            waits: None,
            seen: BTreeSet::new(),
        }
    }

    /// Opens the stores of a plan whose replicas all run here. `stores` is the thread, started if needed.
    pub(crate) fn open(plan: &Plan, stores: &mut Option<Arc<Stores>>) -> Result<Vec<Self>, Diagnostic> {
        let mut opened = Vec::new();
        for (group, topology) in plan.groups.iter().enumerate().filter(|(_, group)| group.agent_store) {
            let failed = |error: &std::io::Error| Diagnostic::failed("start the store of torch's ranks", error);
            let stores = match stores {
                Some(stores) => Arc::clone(stores),
                None => Arc::clone(stores.insert(Arc::new(Stores::start().map_err(|error| failed(&error))?))),
            };
            let at = &topology.torch_store;
            let listener = bind(at.address.address(), at.port.get()).map_err(|error| failed(&error))?;
            let id = stores.open();
            stores.listen(id, listener);
            let mut store = Self::new(stores, id, false);
            store.group = group as u16;
            opened.push(store);
        }
        Ok(opened)
    }

    /// Gives the next attempt an empty store: nothing of the last one is seen, and no client of it is left.
    pub(super) fn renew(&mut self) {
        self.told.clear();
        self.elsewhere.clear();
        self.waits = None;
        self.seen.clear();
        if !self.is_shared {
            self.stores.renew(self.id);
        }
    }

    /// The ranks of another node are these processes, by local rank.
    pub(crate) fn know(&mut self, node: u32, pids: Vec<u32>) {
        self.elsewhere.insert(node, pids);
    }

    /// The rank of another node with this process. The address decides which node; it is not known to be a node's only if
    /// that has several.
    fn rank_elsewhere(&self, plan: &Plan, pid: u32, address: IpAddr) -> Option<Rank> {
        let topology = plan.groups.get(self.group as usize)?;
        let members = topology.members.iter().filter(|member| {
            let pids = self.elsewhere.get(&member.node.0);
            pids.and_then(|pids| pids.get(member.local_rank as usize)) == Some(&pid)
        });
        let members: Vec<_> = members.collect();
        let is_there = |node: u32| topology.nodes[node as usize].address.address() == Some(address);
        let is_known = (0..topology.nodes.len() as u32).any(is_there);
        match members[..] {
            [only] if !is_known => Some(only.rank),
            _ => members.iter().find(|member| is_there(member.node.0)).map(|member| member.rank),
        }
    }
}

impl Drop for JobStore {
    /// Closed last: the job that owns it has ended.
    fn drop(&mut self) {
        self.stores.close(self.id);
    }
}

impl Driver {
    pub(super) fn hear_stores(&mut self) {
        let stores = self.jobs.values().find_map(|job| job.stores.first()).map(|store| Arc::clone(&store.stores));
        for news in stores.iter().flat_map(|stores| stores.news()) {
            let of = |job: &JobRun| job.stores.iter().position(|store| store.id == news.store());
            let found = self.jobs.iter().find_map(|(step, job)| Some((*step, of(job)?)));
            if let Some((step, store)) = found {
                self.with(step, |job| job.hear_store(store, news));
            }
        }
    }
}

impl JobDriver<'_> {
    fn hear_store(&mut self, store: usize, news: StoreNews) {
        match news {
            StoreNews::Waiting { connected, waiting, keys, .. } => {
                self.hear_waiting(store, &connected, &waiting, &keys);
            }
            StoreNews::Flowing { .. } => {
                if self.core.job.stores[store].waits.take().is_some() {
                    // Of another group, if that still waits.
                    self.core.fact(Fact::StoreWaits(self.core.job.store_waits().cloned().unwrap_or_default()));
                }
            }
            StoreNews::ExceptionDump { client, .. } => {
                let rank = self.core.job.ranks_of(store, &[client]).remove(&client.peer);
                self.core.fact(Fact::CollectiveTimeout { rank });
                let subject = rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {}", rank.0));
                let message = format!("{subject} reports that a collective operation timed out");
                let hint = "it was the first to notice; the cause is usually a rank that did not take part";
                self.core.say(|style| style.diagnostic(&Diagnostic::notice(Code::R0023, message).hint(hint)));
            }
            StoreNews::Refused { client, why, .. } => {
                let message = format!("a client of the store was refused: {why}");
                self.core.notice(&Diagnostic::notice(Code::R0021, message).row("client", client.peer.to_string()));
            }
        }
    }

    fn hear_waiting(
        &mut self,
        store: usize,
        connected: &[Client],
        waiting: &[(Client, Duration)],
        keys: &[(Vec<u8>, usize)],
    ) {
        let job = &mut *self.core.job;
        if job.now.stopping.is_some() || job.now.end.is_some() {
            return;
        }
        let ranks = job.ranks_of(store, connected);
        let since: HashMap<SocketAddr, Duration> = waiting.iter().map(|(client, wait)| (client.peer, *wait)).collect();
        let client = |client: &Client| StoreClient {
            rank: ranks.get(&client.peer).copied(),
            waits: since.get(&client.peer).copied(),
        };
        let clients: Vec<StoreClient> = connected.iter().map(client).collect();
        let group = job.plan.groups.get(job.stores[store].group as usize);
        let world = group.map_or(0, |group| group.world_size().get());
        let mut waits = judge(world, &clients, keys);
        let of = &mut job.stores[store];
        of.seen.extend(clients.iter().filter_map(|client| client.rank));
        // A rank that was there and has left is not on its way.
        if waits.absent {
            waits.missing.retain(|rank| !of.seen.contains(rank));
        }
        let before = of.waits.replace(waits.clone());
        // Only the time has passed.
        if before.is_some_and(|before| StoreWaits { longest_micros: waits.longest_micros, ..before } == waits) {
            return;
        }
        self.core.fact(Fact::StoreWaits(waits.clone()));
        let told = &self.core.job.stores[store].told;
        let is_new = waits.missing.iter().any(|rank| !told.contains(rank));
        if waits.absent && is_new {
            self.tell_missing(store, &waits);
        }
    }

    /// Shows which ranks have not reached the store, and what those of this node wrote last.
    fn tell_missing(&mut self, store: usize, waits: &StoreWaits) {
        self.core.job.stores[store].told.clone_from(&waits.missing);
        let (subject, verb) = (named(&waits.missing), if waits.missing.len() == 1 { "has" } else { "have" });
        let mut notice =
            Diagnostic::notice(Code::R0022, format!("{subject} {verb} not reached the store; others wait"));
        if !waits.waiting.is_empty() {
            notice = notice.row("waiting", named(&waits.waiting));
        }
        let keys: Vec<&str> = waits.keys.iter().map(|key| key.key.as_str()).collect();
        if !keys.is_empty() {
            notice = notice.row("for", keys.join("\n"));
        }
        for rank in waits.missing.iter().take(SHOWN) {
            notice = match self.core.job.last_line(store, *rank) {
                Some(line) => notice.row(format!("rank {}", rank.0), line),
                None => notice,
            };
        }
        let hint = match self.core.run.recorder.run_name() {
            Some(run) => format!("the job continues once all have; `umiak stacks {run}` shows where each rank is"),
            None => "the job continues once all have".to_owned(),
        };
        // Recorded as the fact that it shows.
        self.core.say(|style| style.diagnostic(&notice.hint(hint)));
    }
}

impl JobRun {
    /// The ranks that wait at one of the stores, if any do.
    pub(super) fn store_waits(&self) -> Option<&StoreWaits> {
        self.stores.iter().find_map(|store| store.waits.as_ref())
    }

    /// The replicas of this node that are ranks of a store's group.
    fn members(&self, store: usize) -> impl Iterator<Item = (Rank, &Replica)> {
        let group = self.stores[store].group;
        let is_of = move |replica: &&Replica| replica.member.is_some_and(|member| member.group == group);
        let replicas = self.plan.replicas.iter().filter(is_of);
        replicas.filter_map(|replica| Some((self.plan.member(replica)?.1.rank, replica)))
    }

    /// The last line of a rank of this node, and its age.
    fn last_line(&self, store: usize, rank: Rank) -> Option<String> {
        let (_, replica) = self.members(store).find(|(member, _)| *member == rank)?;
        let log = self.log(self.machine.id(replica.slot))?;
        let line = diagnose::last_lines(&evidence::glance(&log, None)).pop();
        let Some(line) = line else { return Some("no output".to_owned()) };
        let quiet = observe::quiet(&log).map(|quiet| format!(", {} ago", duration(quiet))).unwrap_or_default();
        Some(format!("last line: {line}{quiet}"))
    }

    /// The ranks of these clients, as far as they can be told: by the process that a client names, or by its socket.
    fn ranks_of(&self, store: usize, clients: &[Client]) -> HashMap<SocketAddr, Rank> {
        let own: Vec<(u32, Rank)> =
            self.members(store).filter_map(|(rank, replica)| Some((self.pid(replica.slot)?, rank))).collect();
        let of_pid = |pid: u32| own.iter().find(|(own, _)| *own == pid).map(|(_, rank)| *rank);
        let is_shared = self.stores[store].is_shared;
        let here: Vec<IpAddr> =
            if is_shared { umiak_sys::host::addresses().into_iter().map(|it| it.ip).collect() } else { Vec::new() };
        let is_here = |address: IpAddr| !is_shared || address.is_loopback() || here.contains(&address);
        let mut ranks = HashMap::new();
        let mut unknown = Vec::new();
        for client in clients {
            let address = client.peer.ip().to_canonical();
            let found = client.pid.and_then(|pid| {
                if is_here(address)
                    && let Some(rank) = ancestors(pid).find_map(of_pid)
                {
                    return Some(rank);
                }
                self.stores[store].rank_elsewhere(&self.plan, pid, address)
            });
            match found {
                Some(rank) => drop(ranks.insert(client.peer, rank)),
                None if is_here(address) => unknown.push(client.peer),
                None => {}
            }
        }
        if !unknown.is_empty() {
            let pids: Vec<u32> = own.iter().map(|(pid, _)| *pid).collect();
            for (pid, process) in processes(&pids, Instant::now() + LOOK) {
                let locals: Vec<SocketAddr> = process.sockets.iter().flatten().map(|it| canonical(it.local)).collect();
                let found = unknown.iter().filter(|peer| locals.contains(&canonical(**peer)));
                ranks.extend(found.filter_map(|peer| Some((*peer, of_pid(pid)?))));
            }
        }
        ranks
    }
}

/// A process, its parent, and so on.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(pid), |pid| parent(*pid)).take(GENERATIONS)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
