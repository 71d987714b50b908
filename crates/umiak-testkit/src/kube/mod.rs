//! Clusters of real Kubernetes on one machine, each in namespaces and in a directory of its own, and removed with it:
//! a control plane, up to two nodes with containerd and kubelet, DNS, Volcano and JobSet.
//!
//! | module | in one sentence |
//! |---|---|
//! | `cluster` | a cluster: its start, its end, and what tests do with it |
//! | `cache` | the programs, compiled from Go modules |
//! | `space` | the namespaces, and a way into their network |
//! | `relay` | the API server's port on this machine |
//! | `api` | a client for the harness itself |
//! | `daemon` | daemons that can be killed and started again |
//! | `control`, `node`, `dns`, `volcano`, `jobset` | the parts of a cluster |
//! | `image` | images without a registry |
//! | `fake` | nodes without machines, and pods that run nowhere |

mod api;
mod cache;
mod cluster;
mod control;
mod daemon;
mod dns;
mod fake;
mod image;
mod jobset;
mod node;
mod relay;
mod space;
mod volcano;

use std::fmt::Write as _;
use std::path::Path;

pub use self::api::Api;
pub use self::cache::{Cache, VERSION};
pub use self::cluster::{Kube, Options};
pub use self::daemon::Daemon;
pub use self::fake::{EXIT as FAKE_EXIT, SECONDS as FAKE_SECONDS};
pub use self::image::IMAGE;
pub use self::node::name as node_name;
pub use self::relay::Relay;
pub use self::space::Door;
use crate::programs::find_on_path;

/// The version, if a cluster can be started: as root, with all programs that are not compiled here.
pub fn version() -> Option<String> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let programs = ["etcd", "containerd", "ctr", "runc", "iptables", "ip", "unshare", "nsenter", "mount", "openssl"];
    let has_plugins =
        ["bridge", "host-local", "loopback"].iter().all(|name| Path::new(node::PLUGINS).join(name).exists());
    if !is_root || !has_plugins || programs.iter().any(|program| find_on_path(program).is_none()) {
        return None;
    }
    image::busybox()?;
    let state = if Cache::find().is_some() {
        ""
    } else if Cache::can_be_filled() {
        " (to be compiled)"
    } else {
        return None;
    };
    Some(format!("{}{state}", VERSION.trim_start_matches('v')))
}

/// Hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}
