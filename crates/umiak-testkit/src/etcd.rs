//! Clusters of real etcd on loopback or on hosts of a network, each in a directory of its own and removed with it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use umiak_sys::ports::{LeaseRequest, PortLease, PortRange, lease};

use crate::net::Host;
use crate::pem;

const PATIENCE: Duration = Duration::from_secs(60);
const READY: &str = "ready to serve client requests";
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

/// What differs from plain members.
#[derive(Debug, Clone, Default)]
pub struct Setup<'a> {
    pub certificates: Option<&'a Certificates>,
    /// Further arguments of every member.
    pub arguments: Vec<String>,
    /// Where each member runs; without hosts, all run on loopback.
    pub hosts: &'a [&'a Host],
    /// The first member has a disk of its own, which [`Cluster::fill`] fills. Needs root.
    pub is_small: bool,
}

/// A cluster; its members end with it.
#[derive(Debug)]
pub struct Cluster<'a> {
    directory: TempDir,
    members: Vec<Member>,
    hosts: Vec<&'a Host>,
    _leases: Vec<PortLease>,
}

#[derive(Debug)]
struct Member {
    ip: IpAddr,
    port: u16,
    arguments: Vec<String>,
    is_small: bool,
    child: Option<Child>,
}

impl Cluster<'static> {
    pub fn start(count: usize) -> Self {
        Self::with(count, &Setup::default())
    }
}

impl<'a> Cluster<'a> {
    /// One member on each host.
    pub fn on(hosts: &'a [&'a Host]) -> Self {
        Self::with(hosts.len(), &Setup { hosts, ..Setup::default() })
    }

    /// Starts members and waits until all of them serve.
    pub fn with(count: usize, setup: &Setup<'a>) -> Self {
        let directory = tempfile::Builder::new().prefix("umiak-etcd-").tempdir().expect("a temporary directory");
        let wanted = LeaseRequest { count: 2 * count as u16, range: PortRange::Anywhere, address: None, seed: seed() };
        let (leased, leases) = lease(&wanted).expect("free ports");
        let (clients, peers) = leased.ports.split_at(count);
        let scheme = if setup.certificates.is_some() { "https" } else { "http" };
        let ip = |index: usize| setup.hosts.get(index).map_or(Ipv4Addr::LOCALHOST.into(), |host| host.ip());
        let peer = |index: usize| format!("http://{}:{}", ip(index), peers[index]);
        let cluster: Vec<String> = (0..count).map(|index| format!("m{index}={}", peer(index))).collect();
        let members = (0..count).map(|index| {
            let client = format!("{scheme}://{}:{}", ip(index), clients[index]);
            let peer = peer(index);
            let pairs = [
                ("--name", format!("m{index}")),
                ("--data-dir", directory.path().join(format!("m{index}")).display().to_string()),
                ("--listen-client-urls", client.clone()),
                ("--advertise-client-urls", client),
                ("--listen-peer-urls", peer.clone()),
                ("--initial-advertise-peer-urls", peer),
                ("--initial-cluster", cluster.join(",")),
                ("--heartbeat-interval", "50".to_owned()),
                ("--election-timeout", "500".to_owned()),
            ];
            let mut arguments: Vec<String> =
                pairs.into_iter().flat_map(|(flag, text)| [flag.to_owned(), text]).collect();
            if let Some(certificates) = setup.certificates {
                let path = |name: &str| certificates.path(name).display().to_string();
                arguments.extend([
                    "--cert-file".to_owned(),
                    path("server.pem"),
                    "--key-file".to_owned(),
                    path("server.key"),
                ]);
            }
            arguments.extend(setup.arguments.iter().cloned());
            let is_small = setup.is_small && index == 0;
            Member { ip: ip(index), port: clients[index], arguments, is_small, child: None }
        });
        let hosts = setup.hosts.to_vec();
        let mut cluster = Self { members: members.collect(), directory, hosts, _leases: leases };
        (0..count).for_each(|index| cluster.spawn(index));
        (0..count).for_each(|index| cluster.wait(index));
        cluster
    }

    pub fn port(&self, index: usize) -> u16 {
        self.members[index].port
    }

    pub fn address(&self, index: usize) -> String {
        format!("{}:{}", self.members[index].ip, self.port(index))
    }

    /// All of them, separated by commas.
    pub fn addresses(&self) -> String {
        (0..self.members.len()).map(|index| self.address(index)).collect::<Vec<_>>().join(",")
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Fills the disk of the first member, and writes until that has ended it.
    pub fn fill(&mut self) {
        let mut child = self.members[0].child.take().expect("a member that runs");
        let inside = format!("/proc/{}/root{}", child.id(), self.directory.path().join("m0/filler").display());
        let mut file = File::create(inside).expect("the disk of the member");
        while file.write_all(&[0; 4096]).is_ok() {}
        let value = "QUFB".repeat(4096);
        let deadline = Instant::now() + PATIENCE;
        let mut count = 0;
        while child.try_wait().expect("a child of ours").is_none() {
            assert!(Instant::now() < deadline, "the member runs on");
            count += 1;
            let body = format!(r#"{{"key":"ZmlsbGVy{count:04}","value":"{value}"}}"#);
            let _ = self.ask(1 + count % (self.members.len() - 1), "/v3/kv/put", &body, None);
        }
    }

    /// Starts a killed member again, with its data.
    pub fn restart(&mut self, index: usize) {
        self.spawn(index);
        self.wait(index);
    }

    /// Stops a member without closing its connections.
    pub fn pause(&self, index: usize) {
        self.signal(index, SIGSTOP);
    }

    pub fn resume(&self, index: usize) {
        self.signal(index, SIGCONT);
    }

    /// The index of the leader.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for index in (0..self.members.len()).filter(|index| self.members[*index].child.is_some()) {
                let status = self.ask(index, "/v3/maintenance/status", "{}", None).1;
                if status["leader"].is_string() && status["leader"] == status["header"]["member_id"] {
                    return index;
                }
            }
            assert!(Instant::now() < deadline, "no leader");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes another member the leader.
    pub fn move_leader(&self, to: usize) {
        let id = self.ask(to, "/v3/maintenance/status", "{}", None).1["header"]["member_id"].clone();
        let body = serde_json::json!({ "targetID": id }).to_string();
        let (status, answer) = self.ask(self.leader(), "/v3/maintenance/transfer-leadership", &body, None);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(self.leader(), to);
    }

    /// Posts to a member without TLS; fails unless it agrees.
    pub fn post(&self, index: usize, path: &str, body: &str, token: Option<&str>) -> Value {
        let (status, answer) = self.ask(index, path, body, token);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Enables authentication: `root`, and `ann` with the password `hunter2-ann`, who may use keys below `/paddle/` only.
    pub fn authenticate(&self) {
        let range = r#""key":"L3BhZGRsZS8=","range_end":"L3BhZGRsZTA=""#;
        for (path, body) in [
            ("user/add", r#"{"name":"root","password":"hunter2-root"}"#.to_owned()),
            ("role/add", r#"{"name":"root"}"#.to_owned()),
            ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            ("user/add", r#"{"name":"ann","password":"hunter2-ann"}"#.to_owned()),
            ("role/add", r#"{"name":"jobs"}"#.to_owned()),
            ("role/grant", format!(r#"{{"name":"jobs","perm":{{"permType":"READWRITE",{range}}}}}"#)),
            ("user/grant", r#"{"user":"ann","role":"jobs"}"#.to_owned()),
            ("enable", "{}".to_owned()),
        ] {
            self.post(0, &format!("/v3/auth/{path}"), &body, None);
        }
    }

    fn signal(&self, index: usize, signal: i32) {
        let child = self.members[index].child.as_ref().expect("a member that runs");
        umiak_sys::descend::signal(child.id(), signal);
    }

    fn ask(&self, index: usize, path: &str, body: &str, token: Option<&str>) -> (u16, Value) {
        let token = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n{token}\r\n", body.len());
        let message = format!("{head}{body}");
        let text = if let Some(host) = self.hosts.get(index) {
            let answer = host.request(host.at(self.port(index)), message.as_bytes(), PATIENCE).expect("an answer");
            String::from_utf8(answer).expect("text")
        } else {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port(index))).expect("the member listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.write_all(message.as_bytes()).expect("the member reads");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("an answer");
            text
        };
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer of HTTP");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned())))
    }

    fn spawn(&mut self, index: usize) {
        let log = File::create(self.log(index)).expect("the directory can be written");
        let program = if self.members[index].is_small { "unshare" } else { "etcd" };
        let mut command = self.hosts.get(index).map_or_else(|| Command::new(program), |host| host.command(program));
        if self.members[index].is_small {
            let directory = self.directory.path().join(format!("m{index}"));
            std::fs::create_dir_all(&directory).expect("the directory can be written");
            // More than the first two files of the log, of 64 MB each: the second is made while the member starts.
            let mount = r#"mount -t tmpfs -o size=200m,mode=700 none "$0" && exec etcd "$@""#;
            command.args(["-m", "sh", "-c", mount]).arg(directory);
        }
        let child = command
            .args(&self.members[index].arguments)
            .current_dir(self.directory.path())
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.members[index].child = Some(child);
    }

    fn wait(&mut self, index: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = std::fs::read_to_string(self.log(index)).unwrap_or_default();
            if log.contains(READY) {
                return;
            }
            let child = self.members[index].child.as_mut().expect("a member that runs");
            let ended = child.try_wait().expect("our own child");
            assert!(ended.is_none() && Instant::now() < deadline, "etcd does not serve ({ended:?}):\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self, index: usize) -> PathBuf {
        self.directory.path().join(format!("m{index}.log"))
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|index| self.kill(index));
    }
}

/// Files in PEM format: `ca.pem`; `server.pem` for `127.0.0.1` and `client.pem`, both signed by it; `other.pem`, which
/// is not signed by it; and `NAME.key` of each.
#[derive(Debug)]
pub struct Certificates {
    directory: TempDir,
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificates {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("umiak-pem-").tempdir().expect("a temporary directory");
        let certificates = Self { directory };
        certificates.make("ca", None, "basicConstraints=critical,CA:TRUE");
        // The gateway is a client of its own server, with the same certificate.
        certificates.make("server", Some("ca"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth");
        certificates.make("client", Some("ca"), "extendedKeyUsage=clientAuth");
        certificates.make("other", None, "extendedKeyUsage=clientAuth");
        certificates
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make(&self, name: &str, authority: Option<&str>, extensions: &str) {
        pem::make(self.directory.path(), name, &format!("/CN={name}"), authority, extensions);
    }
}

fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}
