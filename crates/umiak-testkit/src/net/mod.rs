//! Several hosts on one machine: network namespaces connected to a bridge in its own namespace. The root namespace only
//! gets their names.
//!
//! | item | in one sentence |
//! |---|---|
//! | [`Network`] | hosts with the guide's addresses, 192.168.0.1 and up, and fd00::1 and up |
//! | [`Host`] | starts programs, drops packets, can be cut off, lists what runs and listens on it |
//! | [`Relay`] | a TCP relay on a host that adds a delay in each direction |
//! | [`Echo`] | an unrelated program that holds a port and echoes |
//! | [`Junk`] | thousands of hostile connections |
//! | [`Spam`] | thousands of joins by a process that knows the job id |
//! | [`Snapshot`] | the state before a test, for comparison with the state after it |
//!
//! Code that has to run inside a namespace is this test binary again: entering one from a thread needs `unsafe`.

mod echo;
mod helper;
mod host;
mod junk;
mod kernel;
mod relay;
mod rules;
mod snapshot;
mod spam;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::programs::find_on_path;

pub use echo::Echo;
pub use host::Host;
pub use junk::{Junk, Report};
pub use relay::Relay;
pub use snapshot::Snapshot;
pub use spam::{Spam, Stranger};

static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEPT: Once = Once::new();

/// Addresses of a /24 without those of network and broadcast.
const MOST: usize = 254;

/// Hosts that reach each other through one switch; removed when dropped.
#[derive(Debug)]
pub struct Network {
    switch: String,
    hosts: Vec<Host>,
}

impl Network {
    /// Makes this many hosts.
    pub fn new(hosts: usize) -> Self {
        Self::try_new(hosts).unwrap_or_else(|error| panic!("no network of {hosts} hosts: {error}"))
    }

    fn try_new(count: usize) -> Result<Self, String> {
        assert!(count <= MOST, "{count} hosts do not fit into a /24");
        SWEPT.call_once(sweep);
        let prefix = format!("umiak-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // Complete before anything is created: if a step below fails, all of it is removed.
        let network = Self {
            switch: format!("{prefix}-switch"),
            hosts: (0..count).map(|index| Host::new(index, format!("{prefix}-{index}"))).collect(),
        };
        ip(None, network.names().map(|name| format!("netns add {name}")))?;
        let bridge = ["link add br0 type bridge mcast_snooping 0".to_owned(), "link set br0 up".to_owned()];
        let cables = network.hosts.iter().map(|host| {
            let (index, name, mac) = (host.index(), host.name(), host.mac());
            format!("link add port{index} type veth peer name eth0 address {mac} netns {name}")
        });
        ip(Some(&network.switch), bridge.into_iter().chain(cables))?;
        for host in &network.hosts {
            host.set_up()?;
        }
        // Last, so that the other end of each port is up.
        let ports = network.hosts.iter().map(|host| format!("link set port{} master br0 up", host.index()));
        ip(Some(&network.switch), ports)?;
        network.await_ports()?;
        Ok(network)
    }

    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The hosts' IPv4 addresses in the format of `--ips`.
    pub fn ips(&self) -> String {
        let addresses: Vec<String> = self.hosts.iter().map(|host| host.ip().to_string()).collect();
        addresses.join(",")
    }

    /// The current state: processes, listening ports and leases of every host, files below these directories.
    pub fn snapshot(&self, directories: &[&Path]) -> Snapshot<'_> {
        Snapshot::take(self, directories)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(Host::name).chain([self.switch.as_str()])
    }

    /// The kernel may take a second to detect that a link is up; until then packets are lost.
    fn await_ports(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let states = Command::new(tool("bridge")).args(["-n", &self.switch, "link", "show"]).output();
            let states = states.map_err(|error| format!("`bridge`: {error}"))?;
            let text = String::from_utf8_lossy(&states.stdout);
            if text.lines().filter(|line| line.contains("state forwarding")).count() == self.hosts.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("ports of the switch do not come up:\n{text}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Links are removed with the switch. A namespace with running processes stays, without a name.
        remove(self.names().map(str::to_owned));
    }
}

/// The version of iproute2, if hosts can be created.
pub fn version() -> Option<String> {
    for name in ["ip", "bridge", "nsenter", "prlimit", "iptables-restore", "ip6tables-restore"] {
        find_tool(name)?;
    }
    let network = Network::try_new(1).ok()?;
    network.host(0).apply().ok()?;
    let output = Command::new(tool("ip")).arg("-V").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split([' ', ',']).find(|word| word.starts_with("iproute2")).map(str::to_owned)
}

/// Runs as a helper if this process was started as one, and returns the exit code.
pub fn run_if_asked() -> Option<u8> {
    let arguments: Vec<String> = std::env::args().collect();
    let rest = arguments.get(2..).unwrap_or_default();
    match arguments.get(1)?.as_str() {
        relay::MODE => Some(relay::run(rest)),
        junk::MODE => Some(junk::run(rest)),
        spam::MODE => Some(spam::run(rest)),
        echo::MODE => Some(echo::run(rest)),
        echo::ASK => Some(echo::ask(rest)),
        _ => None,
    }
}

/// Removes the namespaces of suites that were killed.
fn sweep() {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let stale = entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| {
        let owner = name.strip_prefix("umiak-").and_then(|rest| rest.split('-').next());
        owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists())
    });
    remove(stale);
}

fn remove(names: impl Iterator<Item = String>) {
    let text: String = names.flat_map(|name| ["netns del ".to_owned(), name, "\n".to_owned()]).collect();
    let mut command = Command::new(tool("ip"));
    command.args(["-force", "-batch", "-"]);
    // Removing one that was never created fails, which is fine.
    let _ = feed(&mut command, &text);
}

/// Runs these `ip` commands, in a namespace or in the current one.
fn ip(namespace: Option<&str>, commands: impl IntoIterator<Item = String>) -> Result<(), String> {
    let text: String = commands.into_iter().map(|line| line + "\n").collect();
    let mut command = Command::new(tool("ip"));
    command.args(namespace.into_iter().flat_map(|name| ["-n", name])).args(["-batch", "-"]);
    feed(&mut command, &text)
}

/// Runs a command with this text as its stdin.
fn feed(command: &mut Command, text: &str) -> Result<(), String> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    // The command's own error says more than a broken pipe.
    let _ = child.stdin.take().expect("a pipe").write_all(text.as_bytes());
    let output = child.wait_with_output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}\n{text}", String::from_utf8_lossy(&output.stderr).trim_end()))
}

/// Also searches root's directories.
fn find_tool(name: &str) -> Option<PathBuf> {
    let of_root = ["/usr/sbin", "/sbin"].map(|directory| Path::new(directory).join(name));
    find_on_path(name).or_else(|| of_root.into_iter().find(|path| path.is_file()))
}

fn tool(name: &str) -> PathBuf {
    find_tool(name).unwrap_or_else(|| name.into())
}
