//! Podman containers as nodes: each program runs as PID 1 of a container with the usual capabilities and its own
//! address from the guide. Images and containers are stored in a directory of the test, networks and packet filters in
//! a separate network namespace. Both are removed with it.
//!
//! No image is pulled: the one built here is almost empty and mounts `/usr` of the host read-only.

use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::programs::{find_on_path, toy};
use crate::sandbox::Run;

const IMAGE: &str = "umiak-test";
/// Where Debian and Fedora install the program that connects containers.
const NETAVARK: [&str; 2] = ["/usr/lib/podman/netavark", "/usr/libexec/podman/netavark"];

/// The version, if containers can be created: as root, with a runtime and a network.
pub fn version() -> Option<String> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let has_network = NETAVARK.iter().any(|path| Path::new(path).exists());
    if !is_root || !has_network || ["runc", "ip", "nsenter"].iter().any(|program| find_on_path(program).is_none()) {
        return None;
    }
    let output = Command::new(find_on_path("podman")?).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("podman version ").to_owned())
}

/// A network of containers.
#[derive(Debug)]
pub struct Podman {
    directory: TempDir,
    /// The name of its network namespace, and of the network in it: addresses are allocated by that name.
    host: String,
}

impl Podman {
    /// # Panics
    ///
    /// If Podman is installed but does not work.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("umiak-podman-").tempdir().expect("a temporary directory");
        let host = format!("umiak-podman-{}-{:06x}", std::process::id(), fastrand::u32(..0x0100_0000));
        let podman = Self { directory, host };
        expect(Command::new("ip").args(["netns", "add", &podman.host]));
        podman.import();
        let network =
            ["network", "create", "--disable-dns", "--subnet", "192.168.0.0/24", "--gateway", "192.168.0.254"];
        expect(podman.command().args(network).arg(&podman.host));
        podman
    }

    /// Imports an empty file system with the directories for mounts.
    fn import(&self) {
        let root = self.directory.path().join("image");
        for directory in ["usr", "tmp", "proc", "sys", "dev", "etc", "root"] {
            std::fs::create_dir_all(root.join(directory)).expect("our own directory");
        }
        for directory in ["bin", "lib", "lib64"] {
            symlink(Path::new("usr").join(directory), root.join(directory)).expect("our own directory");
        }
        std::fs::set_permissions(root.join("tmp"), PermissionsExt::from_mode(0o1777)).expect("our own directory");
        let tar = self.directory.path().join("image.tar");
        let status = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status();
        assert!(status.is_ok_and(|status| status.success()), "tar packs the image");
        expect(self.command().arg("import").arg("--quiet").arg(&tar).arg(IMAGE));
    }

    /// The address of a node, from 0.
    pub fn ip(node: usize) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, 0, 1 + node as u8)
    }

    /// The addresses of this many nodes, in the format of `--ips`.
    pub fn ips(nodes: usize) -> String {
        (0..nodes).map(|node| Self::ip(node).to_string()).collect::<Vec<_>>().join(",")
    }

    /// Wraps a run to be PID 1 of the container of this node. The sandbox has the same path there.
    #[must_use]
    pub fn run<'a>(&self, node: usize, mut run: Run<'a>) -> Run<'a> {
        let program = run.command.get_program().to_owned();
        let directory = run.command.get_current_dir().expect("a sandbox has one").to_owned();
        let mut command = self.command();
        command.args(["run", "--rm", "--name", &name(node), "--network", &self.host]);
        command.args(["--ip", &Self::ip(node).to_string()]);
        // A container may not have higher limits than this process.
        command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        for path in [Path::new("/usr"), Path::new(&program), Path::new(&toy())] {
            command.arg("--volume").arg(format!("{0}:{0}:ro", path.display()));
        }
        command.arg("--volume").arg(format!("{0}:{0}", directory.display())).arg("--workdir").arg(&directory);
        for (name, value) in run.command.get_envs() {
            if let Some(value) = value {
                command.arg("--env").arg(format!("{}={}", name.display(), value.display()));
            }
        }
        command.arg(IMAGE).arg(program).args(run.command.get_args());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        run.command = command;
        run
    }

    /// Sends a signal to PID 1 of a node, as `podman kill` does.
    pub fn signal(&self, node: usize, signal: &str) {
        expect(self.command().args(["kill", "--signal", signal, &name(node)]));
    }

    /// Fails if a container is left.
    pub fn assert_nothing_left(&self) {
        let output = expect(self.command().args(["ps", "--all", "--quiet"]));
        assert!(output.stdout.is_empty(), "containers left behind: {}", String::from_utf8_lossy(&output.stdout));
    }

    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.host)).arg("podman");
        let below = |name: &str| self.directory.path().join(name);
        command.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "vfs"]);
        command.arg("--root").arg(below("root")).arg("--runroot").arg(below("run"));
        command.arg("--network-config-dir").arg(below("networks"));
        command.stdin(Stdio::null());
        command
    }
}

/// The name of a node's container.
fn name(node: usize) -> String {
    format!("node{node}")
}

fn expect(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

impl Default for Podman {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        for words in [["rm", "--all", "--force"], ["rmi", "--all", "--force"], ["network", "rm", &self.host]] {
            let _ = self.command().args(words).output();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.host]).status();
    }
}
