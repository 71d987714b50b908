//! Where an agent is: its number, its node, its leases; and how it learns where the others are.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use umiak_core::cluster::agent::Seen;
use umiak_core::cluster::mpi::RANK_VARIABLES;
use umiak_core::cluster::seats::seats;
use umiak_core::cluster::slurm::LIMIT_FILE;
use umiak_core::cluster::{Order, Place, Placement, Seating, Told, UnitFile};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, Slot};
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Plan, nodes};
use umiak_sys::memory::MemoryCgroup;
use umiak_sys::ports::{LeaseRequest, PortRange};
use umiak_sys::wait::{Signals, readable};

use super::Posted;
use crate::engine::cluster::files::{self, Tail};
use crate::engine::local::Local;
use crate::engine::{Engine as _, NotLeased};
use crate::front::document::needs::too_few_ports;
use crate::front::document::site::candidates;
use crate::host::inventory::{self, Extras};

/// The tasks on each node of the allocation, from the script of Slurm.
pub(super) const TASKS: &str = "UMIAK_TASKS";
/// How long an agent tries to write that it is there.
const UNWRITTEN: Duration = Duration::from_secs(60);
/// The time in which most agents are there.
const SOON: Duration = Duration::from_millis(500);
/// Pauses between two looks for the others: at first, and at most.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));

/// The name of this node in its cluster.
pub(super) fn node() -> String {
    std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| umiak_sys::host::name())
}

/// The number of an agent, and the replicas of all, by rank.
pub(super) struct Site {
    pub(super) number: usize,
    pub(super) seats: Vec<Vec<u32>>,
    /// How often the scheduler has started the unit again.
    pub(super) again: u32,
}

impl Site {
    pub(super) fn own(&self) -> &[u32] {
        self.seats.get(self.number).map_or(&[], Vec::as_slice)
    }
}

fn number_in<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.trim().parse().ok()
}

pub(super) fn site(unit: &UnitFile) -> Result<Site, Diagnostic> {
    let names: &[&str] = match (unit.engine.as_str(), &unit.seating) {
        // Over all parts of the allocation.
        ("slurm", Seating::Nodes { .. }) => &["SLURM_NODEID"],
        ("slurm", Seating::Replicas) => &["SLURM_PROCID"],
        _ => &RANK_VARIABLES,
    };
    let tasks = std::env::var(TASKS).unwrap_or_default();
    let number = names.iter().find_map(|name| number_in(name));
    let number = number.ok_or_else(|| {
        Diagnostic::error(Code::E0204, "an agent is started by its engine, not by hand")
            .row("variable", names.join(", "))
    })?;
    let seats = seats(&unit.job, &unit.seating, &tasks).map_err(|reason| {
        Diagnostic::error(Code::E0204, "the allocation does not fit the job").row("reason", reason)
    })?;
    // An `mpirun` that runs in an allocation is not started again with it.
    let again = if unit.engine == "slurm" { number_in("SLURM_RESTART_COUNT") } else { None };
    Ok(Site { number, seats, again: again.unwrap_or(0) })
}

/// The cgroup for memory limits, if a role has one and they can be set here.
pub(super) fn memory(unit: &UnitFile) -> Option<MemoryCgroup> {
    let is_wanted = unit.job.roles.iter().any(|role| role.work.resources.memory_bytes.is_some());
    is_wanted.then(|| MemoryCgroup::create(&unit.place.run).ok()).flatten()
}

/// Leases what its replicas need on this node.
pub(super) fn lease(
    engine: &mut Local,
    unit: &UnitFile,
    site: &Site,
    socket: &UdpSocket,
) -> Result<(Place, Pool), Diagnostic> {
    let inventory = inventory::gather(inventory::environment(), Extras::default());
    let count = u16::try_from(unit.ports(site.own())).unwrap_or(u16::MAX);
    let ports = if count == 0 {
        Vec::new()
    } else {
        let request = LeaseRequest { count, range: PortRange::Anywhere, address: None, seed: fastrand::u64(..) };
        let leased = engine.lease_ports(unit.step, request).map_err(|error| match error {
            NotLeased::TooFew(error) => too_few_ports(&error),
            NotLeased::Lost(diagnostic) => *diagnostic,
        })?;
        leased.ports
    };
    let mut rank = 0;
    let mut gpus = 0;
    for role in &unit.job.roles {
        let own = (rank..rank + role.replicas).filter(|rank| site.own().contains(rank)).count() as u32;
        gpus += own * role.work.resources.gpus;
        rank += role.replicas;
    }
    let devices = if gpus > 0 { engine.lease_devices(unit.step, &candidates(&inventory), gpus)? } else { Vec::new() };
    let node = node();
    let address = address(&node, &inventory.addresses);
    let wake = SocketAddr::new(address, socket.local_addr().map_or(0, |local| local.port()));
    Ok((Place { again: site.again, node, address, ports, wake }, Pool::new(devices, None)))
}

/// The address at which the others reach this node: that of its name, else the most likely one.
fn address(node: &str, own: &[umiak_core::plan::Address]) -> IpAddr {
    let of_name = (node, 0).to_socket_addrs().ok().into_iter().flatten().map(|address| address.ip());
    let mut usable = of_name.filter(|ip| !ip.is_loopback() && own.iter().any(|own| own.ip == *ip));
    usable.next().unwrap_or_else(|| nodes::likely_address(own))
}

/// The wait for all agents.
pub(super) struct Meeting<'a, 'b> {
    pub(super) directory: &'a Path,
    /// Where agent 0 finds the files of all.
    pub(super) gathered: &'a Path,
    pub(super) site: &'a Site,
    pub(super) signals: &'a Signals,
    pub(super) posted: &'a mut Posted<'b>,
}

impl Meeting<'_, '_> {
    /// The pause before the next look. Agent 0 wakes the others; nothing wakes agent 0, whose looks cost more the more agents
    /// there are.
    fn pause(&self, elapsed: Duration) -> Duration {
        if self.site.number > 0 {
            return (elapsed / 4).clamp(10 * LOOKS.0, LOOKS.1);
        }
        let often = if elapsed < SOON { 3 * LOOKS.0 } else { LOOKS.1 };
        (elapsed / 8).clamp(LOOKS.0, often)
    }

    /// Returns `None` if the unit ends before all are there.
    pub(super) fn wait(self) -> Result<Option<Placement>, Diagnostic> {
        let mut orders = Tail::new(self.directory.join(files::ORDERS));
        let mut tails: Vec<Tail> =
            (0..self.site.seats.len()).map(|agent| Tail::new(files::of_agent(self.gathered, agent))).collect();
        let mut places: Vec<Option<Place>> = vec![None; tails.len()];
        let begun = Instant::now();
        loop {
            if self.site.number == 0 {
                for (place, tail) in places.iter_mut().zip(&mut tails).filter(|(place, _)| place.is_none()) {
                    let told = tail.read::<Told>().into_iter();
                    *place = told.fold(None, |last, told| match told {
                        Told::Place(place) if place.again == self.site.again => Some(place),
                        _ => last,
                    });
                }
                if places.iter().all(Option::is_some) {
                    let places = places.into_iter().flatten().collect();
                    let ended = ends(self.gathered).into_keys().collect();
                    let placement = Placement { again: self.site.again, seats: self.site.seats.clone(), places, ended };
                    files::replace(&self.directory.join(files::PLACEMENT), &placement)
                        .map_err(|error| Diagnostic::failed("write the places of all agents", &error))?;
                    self.posted.wake(placement.places.iter().skip(1).map(|place| place.wake));
                    return Ok(Some(placement));
                }
            } else if let Ok(placement) = files::read::<Placement>(&self.directory.join(files::PLACEMENT))
                && placement.again == self.site.again
            {
                return Ok(Some(placement));
            }
            let is_ended = orders.read::<Order>().iter().any(|order| matches!(order, Order::End { .. }));
            let heard = readable(&[self.signals.as_fd(), self.posted.as_fd()], Some(self.pause(begun.elapsed())));
            let heard = heard.map_err(|error| Diagnostic::failed("wait for events", &error))?;
            self.posted.drain();
            if is_ended || heard[0] || self.posted.is_forsaken() {
                return Ok(None);
            }
            self.posted.flush();
            if !self.posted.is_written() && begun.elapsed() > UNWRITTEN {
                return Err(Diagnostic::error(Code::E0204, "the agent cannot write its report")
                    .row("node", node())
                    .row("directory", self.directory.display().to_string())
                    .hint("free some space where `UMIAK_HOME` is"));
            }
        }
    }
}

/// True if the script of the unit says that the time limit of this start is near.
pub(super) fn is_limit(directory: &Path, again: u32) -> bool {
    let text = std::fs::read_to_string(directory.join(LIMIT_FILE)).unwrap_or_default();
    text.trim().parse() == Ok(again)
}

/// The directory of an agent on its node, for what it cannot share with the others. It is removed with the value.
pub(super) struct OwnDirectory {
    /// That of the unit on this node, which the script of Slurm has made on the first one.
    pub(super) unit: PathBuf,
    pub(super) path: PathBuf,
}

impl OwnDirectory {
    /// Several agents may be on a node: the number of the task tells them apart.
    pub(super) fn make(unit: &Path) -> std::io::Result<Self> {
        let task = std::env::var("SLURM_PROCID").unwrap_or_default();
        let path = unit.join(format!("agent-{task}"));
        umiak_sys::files::make_own_directory(unit)?;
        let _ = std::fs::remove_dir_all(&path);
        umiak_sys::files::make_own_directory(&path)?;
        Ok(Self { unit: unit.to_owned(), path })
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        // If it was the last one, and not that of the script.
        let _ = std::fs::remove_dir(&self.unit);
    }
}

/// The plan with the places of all agents. Threads are those of this node.
pub(super) fn plan(unit: &UnitFile, placement: &Placement, site: &Site) -> Option<Plan> {
    let mut plan = unit.placed(placement)?;
    placement.places.get(site.number)?;
    let own = site.own().len().max(1);
    plan.threads = plan.threads.map(|_| (umiak_sys::host::cpus() / own).max(1) as u32);
    Some(plan)
}

/// The program of a replica, looked up on this node.
pub(super) fn program(plan: &Plan, slot: Slot, environment: &BTreeMap<String, String>) -> Result<PathBuf, String> {
    let work = &plan.role(slot).work;
    let word = &work.command[0];
    if word.contains('/') {
        let start = work.dir.as_ref().map_or_else(|| plan.directory.clone(), |dir| plan.directory.join(dir));
        return Ok(start.join(word));
    }
    let own = work.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
    let path = own.or(environment.get("PATH").map(String::as_str)).unwrap_or("/usr/bin:/bin");
    inventory::on_path(word.as_ref(), path.as_ref())
        .ok_or_else(|| format!("`{word}` is not on the `PATH` of {}", node()))
}

/// True if all agents of this start of the unit have left.
pub(super) fn have_all_left(directory: &Path, agents: usize, again: u32) -> bool {
    let has_left = |agent: usize| {
        let told = Tail::new(files::of_agent(directory, agent)).read::<Told>();
        let own = told.iter().skip_while(|told| !matches!(told, Told::Place(place) if place.again == again));
        own.into_iter().any(|told| matches!(told, Told::Left { .. }))
    };
    (0..agents).all(has_left)
}

/// What the agents of this start of the unit have reported, and successes of earlier starts.
pub(super) fn seen(directory: &Path, again: u32) -> Seen {
    let mut seen = Seen::default();
    for agent in 0..files::agents(directory) {
        let mut is_current = false;
        for told in Tail::new(files::of_agent(directory, agent)).read::<Told>() {
            if let Told::Place(place) = &told {
                is_current = place.again == again;
            }
            if is_current || matches!(told, Told::Ended { .. }) {
                seen.add(&told);
            }
        }
    }
    seen
}

/// The ends that agents have reported, as far as their files are in a directory: those of all starts of the unit.
pub(super) fn ends(directory: &Path) -> BTreeMap<AttemptId, Exit> {
    let agents = 0..files::agents(directory);
    let told = agents.flat_map(|agent| Tail::new(files::of_agent(directory, agent)).read::<Told>());
    told.filter_map(|told| match told {
        Told::Ended { id, exit, after: None, .. } => Some((id, exit)),
        _ => None,
    })
    .collect()
}
