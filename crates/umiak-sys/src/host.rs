//! This host: its addresses, its CPUs, its name.

use std::net::IpAddr;

use crate::wait::read_small;

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAddress {
    pub interface: String,
    pub ip: IpAddr,
}

/// Every address of every interface, loopback included.
pub fn addresses() -> Vec<HostAddress> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => IpAddr::V4(v4.ip()),
                (_, Some(v6)) => IpAddr::V6(v6.ip()),
                _ => return None,
            };
            Some(HostAddress { interface: interface.interface_name, ip })
        })
        .collect()
}

/// The hostname.
pub fn name() -> String {
    read_small("/proc/sys/kernel/hostname").map_or_else(|| "localhost".to_owned(), |name| name.trim().to_owned())
}

/// The name of the current user, from /etc/passwd.
pub fn user() -> Option<String> {
    user_name(std::fs::metadata("/proc/self").ok().map(|own| std::os::unix::fs::MetadataExt::uid(&own))?)
}

/// The id of the user of this process.
pub fn user_id() -> u32 {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// The name of a user, from /etc/passwd.
pub fn user_name(id: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    })
}

/// The CPUs of each NUMA node that this process may use, in node order.
pub fn numa_nodes() -> Vec<(u32, Vec<u32>)> {
    let mut nodes: Vec<(u32, Vec<u32>)> = std::fs::read_dir("/sys/devices/system/node")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = parse_cpus(&read_small(entry.path().join("cpulist"))?);
            (!cpus.is_empty()).then_some((number, cpus))
        })
        .collect();
    nodes.sort();
    let allowed = allowed_cpus();
    for (_, cpus) in &mut nodes {
        cpus.retain(|cpu| allowed.contains(cpu));
    }
    nodes.retain(|(_, cpus)| !cpus.is_empty());
    nodes
}

/// The CPUs in our affinity mask.
pub fn allowed_cpus() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(parse_cpus).unwrap_or_default()
}

/// The NUMA node of a PCI device, if the firmware reports it.
pub fn numa_node_of(pci: &str) -> Option<u32> {
    read_small(format!("/sys/bus/pci/devices/{}/numa_node", pci.to_ascii_lowercase()))?.trim().parse().ok()
}

/// Parses a list such as `0-3,8`.
fn parse_cpus(text: &str) -> Vec<u32> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?)
        })
        .flatten()
        .collect()
}

/// Number of usable CPUs: by affinity and cgroup quota (std reads both, v1 and v2).
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpus(""), [0; 0]);
    }
}
