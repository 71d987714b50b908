//! Names and numbers that are validated when they are created.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number of ranks in the job, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorldSize(u32);

impl WorldSize {
    pub fn new(size: u32) -> Option<Self> {
        (size > 0).then_some(Self(size))
    }

    pub fn get(self) -> u32 {
        self.0
    }
}

/// Position of a replica among the ranks of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Rank(pub u32);

/// Position of a node in the list of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct NodeIndex(pub u32);

/// Global rank = processes of all lower nodes + local rank. Computed only here.
pub fn global_rank(local_sizes: &[u32], node: NodeIndex, local: u32) -> Rank {
    Rank(local_sizes[..node.0 as usize].iter().sum::<u32>() + local)
}

/// A TCP port of a process: never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u16", into = "u16")]
#[schemars(with = "u16")]
pub struct Port(u16);

impl TryFrom<u16> for Port {
    type Error = &'static str;

    fn try_from(port: u16) -> Result<Self, Self::Error> {
        Self::new(port).ok_or("port 0 is not a valid port")
    }
}

impl From<Port> for u16 {
    fn from(port: Port) -> Self {
        port.0
    }
}

impl Port {
    pub fn new(port: u16) -> Option<Self> {
        (port != 0).then_some(Self(port))
    }

    pub fn get(self) -> u16 {
        self.0
    }
}

/// The host of a replica: an address, or a name that a cluster resolves once the replica runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Host {
    Address(IpAddr),
    Name(String),
}

impl Host {
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Name(_) => None,
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
    }
}

impl From<[u8; 4]> for Host {
    fn from(octets: [u8; 4]) -> Self {
        Self::Address(octets.into())
    }
}

impl From<String> for Host {
    fn from(text: String) -> Self {
        text.parse().map_or(Self::Name(text), Self::Address)
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.to_string()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// `host:port` of one process; IPv6 addresses in brackets. A launcher has addresses; a plan may have names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint<H = IpAddr> {
    pub address: H,
    pub port: Port,
}

impl From<Endpoint> for Endpoint<Host> {
    fn from(endpoint: Endpoint) -> Self {
        Self { address: endpoint.address.into(), port: endpoint.port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}:{}", self.port.get()),
            IpAddr::V6(address) => write!(f, "[{address}]:{}", self.port.get()),
        }
    }
}

impl fmt::Display for Endpoint<Host> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Host::Address(address) => Endpoint { address: *address, port: self.port }.fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port.get()),
        }
    }
}

/// An invalid name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{name}` cannot be used as {what}: {why}")]
pub struct InvalidName {
    pub what: &'static str,
    pub name: String,
    pub why: &'static str,
}

/// Checks that a name is one path component: names become file names (`<job_id>.<pod>.log`, `tasks/trainer-3`).
fn check_component(what: &'static str, name: &str) -> Result<(), InvalidName> {
    if name.len() > 200 {
        return Err(InvalidName { what, name: name.to_owned(), why: "it is longer than 200 bytes" });
    }
    check_characters(what, name)
}

fn check_characters(what: &'static str, name: &str) -> Result<(), InvalidName> {
    let fail = |why| Err(InvalidName { what, name: name.to_owned(), why });
    if name.is_empty() {
        fail("it is empty")
    } else if name == "." || name == ".." || name.contains('/') {
        fail("it would be a path")
    } else if name.chars().any(char::is_control) {
        fail("it contains a control character")
    } else {
        Ok(())
    }
}

/// The job's name in logs and stores (`--job_id`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct JobId(String);

impl JobId {
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        check_component("a job id", &name)?;
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a role: `trainer`, `pserver`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct RoleName(String);

impl RoleName {
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        check_component("a role name", &name)?;
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a role in OpenPAI's controller, and in the variables of addresses and ports: lower-case letters and digits.
pub fn pai_name(name: &str) -> String {
    name.chars().map(|c| c.to_ascii_lowercase()).filter(char::is_ascii_alphanumeric).collect()
}

/// The name of an instance of a node of a pipeline: the path from the root, `dag.3.child`. It is as long as nodes are
/// nested; whatever needs a file name shortens it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct StepName(String);

impl StepName {
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        check_characters("a step name", &name)?;
        Ok(Self(name))
    }

    /// The name with this path, whose parts were checked when the pipeline was read. Characters that no name has are
    /// replaced.
    pub(crate) fn of_path(path: &str) -> Self {
        Self::new(path).unwrap_or_else(|_| {
            let is_bad = |c: char| c == '/' || c.is_control();
            Self(format!("-{}", path.replace(is_bad, "-")))
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for StepName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::new(name)
    }
}

impl From<StepName> for String {
    fn from(name: StepName) -> Self {
        name.0
    }
}

impl fmt::Display for StepName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Position of a step among the jobs of a run; a run of one job has only the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepIndex(pub u32);

/// The number of the first attempt of a replica or job. Contracts that count from another number convert it.
pub const FIRST_ATTEMPT: u32 = 1;

/// One replica of one role, by position: role in the job, index in the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Slot {
    pub role: u16,
    pub index: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_is_lower_nodes_plus_local() {
        let sizes = [2, 3, 1];
        let ranks: Vec<u32> = (0..3u32)
            .flat_map(|node| (0..sizes[node as usize]).map(move |local| global_rank(&sizes, NodeIndex(node), local).0))
            .collect();
        assert_eq!(ranks, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn names_are_one_path_component() {
        for bad in ["", ".", "..", "a/b", "a\nb", "/etc", &"x".repeat(201)] {
            assert!(JobId::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(JobId::new("default").unwrap().as_str(), "default");
        assert!(serde_json::from_str::<StepName>("\"a/b\"").is_err());
        assert_eq!(serde_json::from_str::<StepName>("\"train\"").unwrap().as_str(), "train");
        assert!(StepName::new("dag.".repeat(500) + "train").is_ok(), "nested as deep as it may be");
        for bad in ["", ".", "..", "a/b", "../../etc"] {
            assert!(StepName::new(StepName::of_path(bad).as_str()).is_ok(), "{bad:?}");
        }
    }

    #[test]
    fn endpoints_bracket_ipv6() {
        let endpoint =
            |text: &str| Endpoint { address: text.parse::<IpAddr>().unwrap(), port: Port::new(6170).unwrap() };
        assert_eq!(endpoint("127.0.0.1").to_string(), "127.0.0.1:6170");
        assert_eq!(endpoint("::1").to_string(), "[::1]:6170");
        assert_eq!(Endpoint::<Host>::from(endpoint("::1")).to_string(), "[::1]:6170");
    }

    #[test]
    fn hosts_are_addresses_or_names() {
        for (text, address) in [("\"127.0.1.5\"", true), ("\"fd00::1\"", true), ("\"ctr-trainer-0\"", false)] {
            let host: Host = serde_json::from_str(text).unwrap();
            assert_eq!(host.address().is_some(), address, "{text}");
            assert_eq!(serde_json::to_string(&host).unwrap(), text);
        }
        let endpoint = Endpoint { address: Host::Name("ctr-trainer-0".into()), port: Port::new(6170).unwrap() };
        assert_eq!(endpoint.to_string(), "ctr-trainer-0:6170");
    }
}
