//! Fake files of the NVIDIA driver, with any number of GPUs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Writes the kernel's PCI bus listing with one GPU per entry, bound to that driver or to none. Pass its path to umiak
/// as `UMIAK_PCI_DEVICES`.
pub fn fake_bus(parent: &Path, drivers: &[Option<&str>]) -> PathBuf {
    let root = parent.join("pci-devices");
    let device = |address: &str, vendor: &str, class: &str, driver: Option<&str>| {
        let directory = root.join(address);
        std::fs::create_dir_all(&directory).expect("the sandbox can be written");
        std::fs::write(directory.join("vendor"), format!("{vendor}\n")).expect("the sandbox can be written");
        std::fs::write(directory.join("class"), format!("{class}\n")).expect("the sandbox can be written");
        if let Some(driver) = driver {
            let target = format!("../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(target, directory.join("driver")).expect("the sandbox can be written");
        }
    };
    // Other devices: a network card, and the audio function of a GPU.
    device("0000:00:03.0", "0x1af4", "0x020000", Some("virtio-pci"));
    device("0000:10:00.1", "0x10de", "0x040300", None);
    for (index, driver) in drivers.iter().enumerate() {
        device(&format!("0000:{:02x}:00.0", 0x10 + index), "0x10de", "0x030200", *driver);
    }
    root
}

/// Writes the driver's directory below `parent`. Pass its path to umiak as `UMIAK_NVIDIA_PROC`. The device nodes have
/// numbers that no other test uses: GPUs are leased by them on the whole host.
pub fn fake(parent: &Path, count: u32) -> PathBuf {
    let root = parent.join("driver-gpus");
    let first = 1024 * (1 + std::process::id()) + NEXT.fetch_add(count, Ordering::Relaxed) % 1024;
    for index in 0..count {
        let directory = root.join(format!("0000:{:02x}:00.0", 0x10 + index));
        std::fs::create_dir_all(&directory).expect("the sandbox can be written");
        let information = format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 24\nGPU UUID: \t GPU-00000000-0000-0000-0000-{index:012}\nVideo BIOS: \t 96.00\nBus Type: \t PCIe\nDevice Minor: \t {}\nGPU Excluded:\t No\n",
            first + index
        );
        std::fs::write(directory.join("information"), information).expect("the sandbox can be written");
    }
    root
}
