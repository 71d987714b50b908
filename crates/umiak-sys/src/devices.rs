//! Accelerators, from the driver's files: no library is loaded, nothing can hang.

use std::fs;
use std::path::Path;

/// One GPU of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number when all are sorted by PCI address, as `CUDA_DEVICE_ORDER=PCI_BUS_ID` counts.
    pub index: u32,
    pub pci: String,
    pub name: String,
    pub uuid: String,
}

/// Where the NVIDIA driver tells about its devices.
pub const NVIDIA_PROC: &str = "/proc/driver/nvidia/gpus";

/// The GPUs below `root` (normally [`NVIDIA_PROC`]), by PCI address, excluded ones left out.
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
        })
        .collect()
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
