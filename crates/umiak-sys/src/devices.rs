//! Accelerators, from the driver's files: no library is loaded, so nothing can hang.

use std::fs::{self, File};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

/// One GPU of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number in PCI address order, as with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub index: u32,
    pub pci: String,
    pub name: String,
    pub uuid: String,
    /// The number of its device node, `/dev/nvidia3`.
    pub minor: u32,
}

/// Where the NVIDIA driver lists its devices.
pub const NVIDIA_PROC: &str = "/proc/driver/nvidia/gpus";

/// The GPUs below `root` (normally [`NVIDIA_PROC`]), by PCI address, without excluded ones.
pub fn nvidia(root: &Path) -> Vec<Gpu> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let mut found: Vec<(String, String)> = entries
        .flatten()
        .filter_map(|entry| {
            let information = fs::read_to_string(entry.path().join("information")).ok()?;
            Some((entry.file_name().to_string_lossy().into_owned(), information))
        })
        .collect();
    // Addresses are fixed-width hexadecimal, so text order is bus order.
    found.sort();
    found
        .into_iter()
        .filter(|(_, information)| field(information, "GPU Excluded").is_none_or(|value| value != "Yes"))
        .enumerate()
        .map(|(index, (pci, information))| Gpu {
            index: index as u32,
            pci,
            name: field(&information, "Model").unwrap_or_default().to_owned(),
            uuid: field(&information, "GPU UUID").unwrap_or_default().to_owned(),
            minor: field(&information, "Device Minor").and_then(|text| text.parse().ok()).unwrap_or(index as u32),
        })
        .collect()
}

/// A GPU that the NVIDIA driver does not list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleGpu {
    pub pci: String,
    /// The kernel driver bound to it, if any.
    pub driver: Option<String>,
}

/// Where the kernel lists PCI devices.
pub const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// NVIDIA GPUs on the bus below `root` (normally [`PCI_DEVICES`]) with any driver, by address.
pub fn nvidia_on_the_bus(root: &Path) -> Vec<IdleGpu> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let is_gpu = |path: &Path| {
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        // Display controllers, with or without an output; not the vendor's audio devices and switches.
        read("vendor").trim() == "0x10de" && read("class").trim().starts_with("0x03")
    };
    let idle = |path: &Path| IdleGpu {
        pci: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        driver: fs::read_link(path.join("driver")).ok().and_then(|link| Some(link.file_name()?.to_str()?.to_owned())),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<IdleGpu> = paths.filter(|path| is_gpu(path)).map(|path| idle(&path)).collect();
    found.sort_by(|one, other| one.pci.cmp(&other.pci));
    found
}

/// Holds one GPU until dropped: a lock on its device node, shared by all containers that see it. Without a node, an
/// abstract socket name as for ports.
#[derive(Debug)]
pub struct GpuLease {
    minor: u32,
    _hold: Hold,
}

#[derive(Debug)]
enum Hold {
    Node(#[expect(dead_code, reason = "held, not used")] Flock<File>),
    Name(#[expect(dead_code, reason = "held, not used")] UnixDatagram),
}

impl GpuLease {
    pub fn minor(&self) -> u32 {
        self.minor
    }
}

/// Leases the first free ones of these candidates, at most `count`.
pub fn lease(candidates: &[u32], count: u32) -> Vec<GpuLease> {
    let holds = candidates.iter().filter_map(|minor| hold(*minor).map(|hold| GpuLease { minor: *minor, _hold: hold }));
    holds.take(count as usize).collect()
}

fn hold(minor: u32) -> Option<Hold> {
    if let Ok(node) = File::open(format!("/dev/nvidia{minor}")) {
        return Flock::lock(node, FlockArg::LockExclusiveNonblock).ok().map(Hold::Node);
    }
    let name = SocketAddr::from_abstract_name(format!("umiak-gpu-{minor}")).ok()?;
    UnixDatagram::bind_addr(&name).ok().map(Hold::Name)
}

fn field<'a>(information: &'a str, name: &str) -> Option<&'a str> {
    information
        .lines()
        .find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name))
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_by_address_without_excluded_ones() {
        let root = tempfile::tempdir().unwrap();
        for (pci, excluded) in [("0000:3b:00.0", "No"), ("0000:1a:00.0", "No"), ("0000:2b:00.0", "Yes")] {
            let directory = root.path().join(pci);
            fs::create_dir(&directory).unwrap();
            let text = format!(
                "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{pci}\nDevice Minor: \t 0\nGPU Excluded:\t {excluded}\n"
            );
            fs::write(directory.join("information"), text).unwrap();
        }
        let gpus = nvidia(root.path());
        let seen: Vec<(u32, &str, &str)> =
            gpus.iter().map(|gpu| (gpu.index, gpu.pci.as_str(), gpu.name.as_str())).collect();
        assert_eq!(seen, [(0, "0000:1a:00.0", "NVIDIA H200"), (1, "0000:3b:00.0", "NVIDIA H200")]);
    }

    #[test]
    fn no_driver_is_no_gpu() {
        assert_eq!(nvidia(Path::new("/nonexistent")), []);
    }
}
