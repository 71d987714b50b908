//! Real nodes: a containerd and a kubelet each, on one bridge.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::daemon::Daemon;
use super::image::PAUSE;
use super::space::BRIDGE;
use super::{Kube, image, words};
use crate::sandbox::find_processes;

/// More would need further addresses and users.
pub(super) const MOST: usize = 2;

/// Where Debian installs the plug-ins for networks of containers.
pub(super) const PLUGINS: &str = "/usr/lib/cni";

const CGROUPS: &str = "/sys/fs/cgroup";

/// The name of a node.
pub fn name(node: usize) -> String {
    format!("node{}", node + 1)
}

/// The cgroup of all pods of a node, in every hierarchy.
fn cgroup(kube: &Kube, node: usize) -> String {
    format!("{}/{}", kube.name(), name(node))
}

/// Where containerd listens. A directory of the machine would do as well, but the paths of sockets must be short.
fn socket(node: usize) -> String {
    format!("/run/containerd-{}/socket", node + 1)
}

impl Kube {
    /// Starts containerd and gives it the images; needs no API server.
    pub(super) fn start_containerd(&self, node: usize) {
        let (at, number) = (self.path(&name(node)), node + 1);
        fs::create_dir_all(at.join("cni")).expect("our own directory");
        if node > 0 {
            let address = format!("10.244.0.{number}/24");
            self.expect(self.space.command("ip").args(["address", "add", &address, "dev", BRIDGE]));
        }
        let (socket, below) = (socket(node), at.display());
        let configuration = format!(
            r#"version = 2
root = "{below}/containerd"
state = "/run/containerd-{number}"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
# Lower scores need a capability that this machine may lack: no container would start.
restrict_oom_score_adj = true
sandbox_image = "{PAUSE}"
disable_tcp_service = true
stream_server_address = "127.0.0.1"
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{below}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#
        );
        let write = |name: &str, text: &str| fs::write(at.join(name), text).expect("our own directory");
        write("containerd.toml", &configuration);
        let (first, last) = (10 + 120 * node, 120 + 120 * node);
        let network = json!({
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [{
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": node == 0,
                "hairpinMode": true,
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": at.join("addresses"),
                    "ranges": [[{
                        "subnet": "10.244.0.0/24",
                        "rangeStart": format!("10.244.0.{first}"),
                        "rangeEnd": format!("10.244.0.{last}"),
                        "gateway": "10.244.0.1",
                    }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        write("cni/pods.conflist", &network.to_string());
        let configuration = at.join("containerd.toml").display().to_string();
        self.start_daemon(Daemon::Containerd(node), "containerd", words(&format!("--config={configuration}")));
        let images = self.path("images.tar");
        if !images.exists() {
            image::write(&images).expect("our own directory");
        }
        self.wait("containerd imports the images", || {
            let mut command = self.space.command("ctr");
            command.args(["--address", &socket, "--namespace", "k8s.io", "images", "import"]).arg(&images);
            command.output().is_ok_and(|output| output.status.success())
        });
    }

    pub(super) fn wait_for_containerd(&self, node: usize) {
        self.wait("containerd answers", || {
            let mut command = self.space.command("ctr");
            command.args(["--address", &socket(node), "version"]);
            command.output().is_ok_and(|output| output.status.success())
        });
    }

    pub(super) fn start_kubelet(&self, node: usize) {
        let (at, number, name) = (self.path(&name(node)), node + 1, name(node));
        let address = format!("10.244.0.{number}");
        let cgroup = cgroup(self, node);
        for hierarchy in hierarchies() {
            fs::create_dir_all(hierarchy.join(&cgroup)).expect("a cgroup of our own");
        }
        fs::write(at.join("resolv.conf"), "").expect("our own directory");
        let configuration = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{}", socket(node)),
            "address": address,
            "port": 10250,
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": 10260 + number,
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": false },
                "x509": { "clientCAFile": self.path("ca.pem") },
            },
            "authorization": { "mode": "AlwaysAllow" },
            "tlsCertFile": self.path("kubelet.pem"),
            "tlsPrivateKeyFile": self.path("kubelet.key"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{cgroup}"),
            "cgroupsPerQOS": true,
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            "failCgroupV1": false,
            "makeIPTablesUtilChains": false,
            "oomScoreAdj": 0,
            "evictionHard": {},
            "localStorageCapacityIsolation": false,
            "imageGCHighThresholdPercent": 100,
            "clusterDNS": ["10.244.0.1"],
            "clusterDomain": "cluster.local",
            "resolvConf": at.join("resolv.conf"),
            "podLogsDir": at.join("logs"),
            "volumePluginDir": at.join("plugins"),
            "nodeStatusUpdateFrequency": "1s",
            "nodeLeaseDurationSeconds": 4,
        });
        fs::write(at.join("kubelet.json"), configuration.to_string()).expect("our own directory");
        let below = at.display();
        let arguments = format!(
            "--config={below}/kubelet.json --kubeconfig={}/{name}.kubeconfig --root-dir={below}/kubelet \
             --cert-dir={below}/certificates --hostname-override={name} --node-ip={address}",
            self.directory.path().display()
        );
        self.start_program(Daemon::Kubelet(node), "kubelet", words(&arguments));
    }

    pub(super) fn wait_for_node(&self, name: &str) {
        let path = format!("/api/v1/nodes/{name}");
        self.wait(&format!("{name} is ready"), || self.condition(&path, "Ready").as_deref() == Some("True"));
    }

    /// Ends a node as a power failure does: its daemons and all its containers.
    pub fn lose_node(&self, node: usize) {
        self.kill(Daemon::Kubelet(node));
        self.kill(Daemon::Containerd(node));
        let socket = socket(node);
        for (pid, command) in find_processes(|_, _| true) {
            // The shims of other clusters have the same names.
            if command.contains("containerd-shim") && command.contains(&socket) && self.space.holds(pid) {
                let mut all = umiak_sys::descend::descendants(pid);
                all.push(pid);
                for pid in all {
                    umiak_sys::descend::signal(pid, 9);
                }
            }
        }
    }
}

/// The roots of the hierarchies of cgroups: one with version 2, several with version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(CGROUPS);
    if root.join("cgroup.procs").exists() {
        return vec![root];
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("cgroup.procs").exists()).collect()
}

/// Removes the cgroups of a cluster, which are empty now, and returns those that cannot be removed.
pub(super) fn remove_cgroups(name: &str) -> Vec<PathBuf> {
    fn remove(path: PathBuf, left: &mut Vec<PathBuf>) {
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().is_dir()).for_each(|entry| remove(entry.path(), left));
        if fs::remove_dir(&path).is_err() && path.exists() {
            left.push(path);
        }
    }
    let mut left = Vec::new();
    for hierarchy in hierarchies() {
        remove(hierarchy.join(name), &mut left);
    }
    left
}
