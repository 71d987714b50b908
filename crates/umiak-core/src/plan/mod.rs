//! From a job and an inventory to a plan: what runs where, with which devices, endpoints, variables and files.
//!
//! There is one [`Plan`], built in two ways. For a launched job, [`layout`] counts the processes and ports; the caller
//! leases the ports; a [`Share`] lists the ranks of all nodes, with several nodes as the coordinator decides from each
//! node's [`offer`]; [`finish`] does the rest. For a document there is [`document`]. [`Plan::process`] is one attempt of
//! a replica, ready to start. `--dry-run` prints the same value that a run executes.

mod capable;
pub mod command;
mod console;
pub mod devices;
pub mod document;
pub mod files;
mod launch;
mod masked;
pub mod nodes;
mod numa;
pub mod paddle_lines;
mod pipeline;
pub mod pool;
mod ports;
mod process;
mod script;
mod seats;
mod share;
pub mod torch_summary;
mod value;

pub use capable::capable;
pub use console::Console;
pub use launch::{DETACHED, ETCD_PASSWORD, Layout, Run, TOKEN, finish, layout};
pub use masked::by_name;
pub use pipeline::PipelinePlan;
pub use ports::{Ports, STORES, too_few_ports};
pub use process::{Attempt, MAX_VARIABLE, Memory, Process, Remote};
pub use script::ClusterScript;
pub use seats::Seat;
pub use share::{Share, offer};
pub use value::{Awaited, AwaitedElsewhere, Log, LogLayout, Membership, Plan, Replica, VERSION, Wishes};

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Facts about this host, gathered before planning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    pub gpus: Vec<Gpu>,
    /// NVIDIA GPUs on the PCI bus, looked up only if devices are named and the driver lists none.
    pub idle_gpus: Vec<IdleGpu>,
    /// CPUs that umiak may use.
    pub cpus: usize,
    pub addresses: Vec<Address>,
    pub hostname: String,
    /// The CPUs of each NUMA node, in order; empty on a host without NUMA nodes.
    pub numa_nodes: Vec<(u32, Vec<u32>)>,
    /// The launcher's own environment, without values that are not UTF-8.
    pub env: BTreeMap<String, String>,
}

/// One GPU, numbered by PCI address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    pub index: u32,
    pub name: String,
    pub uuid: String,
    /// The number of its device node.
    pub minor: u32,
    /// The NUMA node it is attached to, if known.
    pub numa_node: Option<u32>,
}

/// One GPU that the NVIDIA driver does not list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleGpu {
    /// Its address on the PCI bus.
    pub pci: String,
    /// The kernel driver bound to it, if any: `nouveau`, `vfio-pci`.
    pub driver: Option<String>,
}

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
}
