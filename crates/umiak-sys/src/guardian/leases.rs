//! Ports, loopback addresses and GPUs that the guardian holds for jobs. Dropping a lease releases it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use crate::addresses::{self, AddressLease};
use crate::devices::{self, GpuLease};
use crate::ports::{self, LeaseError, LeaseRequest, Leased, PortLease};

/// By job.
#[derive(Debug, Default)]
pub(super) struct Leases(BTreeMap<u32, Held>);

#[derive(Debug, Default)]
struct Held {
    ports: Vec<PortLease>,
    addresses: Vec<AddressLease>,
    gpus: Vec<GpuLease>,
}

impl Leases {
    pub(super) fn ports(&mut self, job: u32, request: &LeaseRequest) -> Result<Leased, LeaseError> {
        let (leased, leases) = ports::lease(request)?;
        self.of(job).ports.extend(leases);
        Ok(leased)
    }

    /// Returns fewer than requested if no more are free.
    pub(super) fn addresses(&mut self, job: u32, count: u32, seed: u64) -> Vec<Ipv4Addr> {
        let (addresses, blocks) = addresses::lease(count, seed);
        self.of(job).addresses.extend(blocks);
        addresses
    }

    /// Returns the minor numbers of the leased GPUs.
    pub(super) fn gpus(&mut self, job: u32, candidates: &[u32], count: u32) -> Vec<u32> {
        let gpus = devices::lease(candidates, count);
        let minors = gpus.iter().map(GpuLease::minor).collect();
        self.of(job).gpus.extend(gpus);
        minors
    }

    /// Releases everything that this job holds.
    pub(super) fn release(&mut self, job: u32) {
        self.0.remove(&job);
    }

    /// Releases the ports of every job.
    pub(super) fn release_ports(&mut self) {
        for held in self.0.values_mut() {
            held.ports.clear();
        }
    }

    fn of(&mut self, job: u32) -> &mut Held {
        self.0.entry(job).or_default()
    }
}
