//! One host: a network namespace with a loopback, an interface and addresses of both families.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use super::rules::Rules;
use super::{echo, feed, ip, kernel, tool};

/// A host of a [`super::Network`].
#[derive(Debug)]
pub struct Host {
    index: usize,
    name: String,
    rules: Mutex<Rules>,
}

impl Host {
    pub(super) fn new(index: usize, name: String) -> Self {
        Self { index, name, rules: Mutex::default() }
    }

    /// Its place in the network, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The name of its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// 192.168.0.1 for the first.
    pub fn ip(&self) -> IpAddr {
        Ipv4Addr::new(192, 168, 0, self.index as u8 + 1).into()
    }

    /// `fd00::1` for the first.
    pub fn ip6(&self) -> IpAddr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, self.index as u16 + 1).into()
    }

    /// A port at its IPv4 address.
    pub fn at(&self, port: u16) -> SocketAddr {
        (self.ip(), port).into()
    }

    pub(super) fn mac(&self) -> String {
        format!("02:00:00:00:00:{:02x}", self.index + 1)
    }

    pub(super) fn set_up(&self) -> Result<(), String> {
        let commands =
            ["link set lo up".to_owned(), address(self.ip()), address(self.ip6()), "link set eth0 up".into()];
        ip(Some(&self.name), commands)
    }

    /// Gives it one more address.
    pub fn add_address(&self, extra: IpAddr) {
        self.ip_commands([address(extra)]);
    }

    /// A command that will run on this host; its process id is the child's.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(tool("nsenter"));
        command.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(program);
        command
    }

    /// Sends a message from this host to an address, and returns everything received until the other side closes.
    pub fn ask(&self, to: SocketAddr, message: &[u8], timeout: Duration) -> Result<Vec<u8>, String> {
        echo::ask_from(self, to, message, timeout, true)
    }

    /// The same, for servers that take a half-closed connection for a closed one.
    pub fn request(&self, to: SocketAddr, message: &[u8], timeout: Duration) -> Result<Vec<u8>, String> {
        echo::ask_from(self, to, message, timeout, false)
    }

    /// Takes its interface down; addresses stay.
    pub fn link_down(&self) {
        // Otherwise the kernel drops the IPv6 addresses.
        self.shell("echo 1 > /proc/sys/net/ipv6/conf/eth0/keep_addr_on_down");
        self.ip_commands(["link set eth0 down".to_owned()]);
    }

    /// Takes its interface up again.
    pub fn link_up(&self) {
        self.ip_commands(["link set eth0 up".to_owned()]);
    }

    /// Drops every packet between this host and another: both sides see silence.
    pub fn cut(&self, other: &Self) {
        self.change(|rules| rules.silence(other.mac()));
        other.change(|rules| rules.silence(self.mac()));
    }

    /// Ends a [`Self::cut`].
    pub fn join(&self, other: &Self) {
        self.change(|rules| rules.hear(&other.mac()));
        other.change(|rules| rules.hear(&self.mac()));
    }

    /// Drops this share of the packets that arrive from others; 0 stops it.
    pub fn lose(&self, percent: u8) {
        assert!(percent <= 100, "{percent} % of all packets");
        self.change(|rules| rules.loss = percent);
    }

    /// Drops all packets from others to this TCP port, as a firewall does.
    pub fn filter(&self, port: u16) {
        self.change(|rules| rules.filter(port));
    }

    /// Packets dropped by [`Self::cut`] and [`Self::lose`] since either was last changed.
    pub fn dropped(&self) -> u64 {
        ["iptables-save", "ip6tables-save"]
            .map(|program| Rules::dropped(&self.say(tool(program), &["-c"])))
            .iter()
            .sum()
    }

    /// Listening TCP ports, in either family.
    pub fn listening_ports(&self) -> BTreeSet<u16> {
        kernel::listening_ports(&self.say("cat", &["/proc/net/tcp", "/proc/net/tcp6"]))
    }

    /// Names of abstract Unix sockets, such as `@umiak-port-6170` for a leased port.
    pub fn abstract_sockets(&self) -> BTreeSet<String> {
        kernel::abstract_sockets(&self.say("cat", &["/proc/net/unix"]))
    }

    /// Processes on this host: id and command line.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let Ok(namespace) = std::fs::metadata(format!("/run/netns/{}", self.name)) else { return Vec::new() };
        kernel::processes(namespace.ino())
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules.lock().expect("the lock is not poisoned"));
        self.apply().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Passes the current rules to the kernel.
    pub(super) fn apply(&self) -> Result<(), String> {
        let text = self.rules.lock().expect("the lock is not poisoned").to_string();
        // One after the other: both may share a lock.
        feed(self.command(tool("iptables-restore")).arg("-w"), &text)?;
        feed(self.command(tool("ip6tables-restore")).arg("-w"), &text)
    }

    fn ip_commands<const N: usize>(&self, commands: [String; N]) {
        ip(Some(&self.name), commands).unwrap_or_else(|error| panic!("{error}"));
    }

    fn shell(&self, line: &str) {
        self.say("sh", &["-c", line]);
    }

    fn say(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> String {
        let mut command = self.command(program);
        let output = command.args(arguments).stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Without duplicate address detection, during which the address is not usable.
fn address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("address add {address}/24 dev eth0"),
        IpAddr::V6(address) => format!("address add {address}/64 dev eth0 nodad"),
    }
}
