//! This host: its addresses, its CPUs, its name.

use std::net::IpAddr;

use crate::wait::read_small;

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
}

/// Every address of every interface, loopback included.
pub fn addresses() -> Vec<Address> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => IpAddr::V4(v4.ip()),
                (_, Some(v6)) => IpAddr::V6(v6.ip()),
                _ => return None,
            };
            Some(Address { interface: interface.interface_name, ip })
        })
        .collect()
}

/// The kernel's name of this host.
pub fn name() -> String {
    read_small("/proc/sys/kernel/hostname").map_or_else(|| "localhost".to_owned(), |name| name.trim().to_owned())
}

/// CPUs we may use: affinity, and the quota of our cgroup (std reads both, v1 and v2).
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
