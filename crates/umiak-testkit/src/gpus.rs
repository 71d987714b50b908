//! The NVIDIA driver's files, faked: as many GPUs as a test wants.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Writes the driver's directory below `parent`; give its path to umiak as `UMIAK_NVIDIA_PROC`. Their device nodes have
/// numbers that no other test uses: GPUs are leased by them, for the whole host.
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
