//! The side of a supervisor: agents connect to it, fetch what is ordered, and leave what they report.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};
use umiak_core::cluster::post::{Fit, Header, MAX_BODY, PIECE, Sent, agent, fit, place};
use umiak_core::model::Connect;
use umiak_core::plan::{Address, nodes};
use umiak_sys::ports::{LeaseRequest, PortLease, PortRange, lease};
use umiak_sys::wait::Waker;

use super::super::files::{self, Version};
use super::{ARRIVED, EVERY, GREETING, accepting, broken, hex, key_pair, new_key_pair, public, unhex};

/// The keys of a unit, in its directory, for the next supervisor.
const KEYS: &str = "post.json";
/// Files that agents are sent whole whenever they change, in this order.
const WHOLE: [&str; 4] = [files::UNIT, files::SUPERVISOR, files::PLACEMENT, "limit"];
/// A file of an agent is sent as the body of a frame of this length at most.
const MOST: usize = 64 << 20;
/// Interval at which the directory of the unit is searched for news that nothing has announced.
const SEARCH: Duration = Duration::from_secs(1);
/// Addresses that agents try.
const ADDRESSES: usize = 6;

#[derive(Serialize, Deserialize)]
struct Keys {
    port: u16,
    /// In hexadecimal digits.
    key: String,
    token: String,
}

/// Listens for the agents of a unit as long as it lives.
#[derive(Debug)]
pub(crate) struct Office {
    variables: [(&'static str, String); 2],
    desk: Arc<Desk>,
    _end: oneshot::Sender<()>,
    _lease: Vec<PortLease>,
}

/// What the connections of a unit share.
#[derive(Debug)]
struct Desk {
    /// The directories of the unit and of the run.
    unit: PathBuf,
    run: PathBuf,
    token: [u8; 32],
    /// Wakes the connections.
    news: watch::Sender<()>,
    /// Wakes the supervisor.
    heard: Arc<Waker>,
}

/// The names and addresses of this host for agents. `None` if it has only those of loopback.
pub(crate) fn hosts(connect: &Connect) -> Option<Vec<String>> {
    if let Some(host) = &connect.host {
        return Some(vec![host.clone()]);
    }
    let own: Vec<Address> = umiak_sys::host::addresses()
        .into_iter()
        .map(|address| Address { interface: address.interface, ip: address.ip })
        .collect();
    let likely = nodes::likely_address(&own);
    if likely.is_loopback() {
        return None;
    }
    let is_usable = |ip: &std::net::IpAddr| !ip.is_loopback() && !ip.is_multicast() && *ip != likely;
    let others = own.iter().map(|address| address.ip).filter(is_usable);
    // An address of the link has no meaning elsewhere.
    let others = others.filter(|ip| !matches!(ip, std::net::IpAddr::V6(ip) if ip.is_unicast_link_local()));
    Some(std::iter::once(likely).chain(others).take(ADDRESSES).map(|ip| ip.to_string()).collect())
}

impl Office {
    /// Opens the office of a unit, with the keys and the port that it had. `heard` is woken when agents have sent something.
    pub(crate) fn open(unit: &Path, run: &Path, connect: &Connect, heard: Arc<Waker>) -> io::Result<Self> {
        let path = unit.join(KEYS);
        let known: Option<Keys> = files::read(&path).ok();
        let wanted = known.as_ref().map(|keys| keys.port).or(connect.port);
        let range = wanted.map_or(PortRange::Anywhere, |start| PortRange::Exactly { start });
        let request = LeaseRequest { count: 1, range, address: None, seed: fastrand::u64(..) };
        let (leased, held) = lease(&request).map_err(|_| match wanted {
            Some(port) => {
                io::Error::other(format!("port {port}, where agents connect, is used by another process of this host"))
            }
            None => io::Error::other("this host has no free port for agents to connect"),
        })?;
        let port = leased.ports[0];
        let keys = match known {
            Some(keys) => keys,
            None => Keys { port, key: hex(&new_key_pair()?), token: hex(&umiak_sys::net::random::<32>()?) },
        };
        files::replace(&path, &keys)?;
        let key = key_pair(&unhex(&keys.key).ok_or_else(|| broken("the key of the unit cannot be read"))?)?;
        let given = format!("{}:{}", hex(&public(&key)?), keys.token);
        let acceptor = TlsAcceptor::from(accepting(key)?);
        let listener = umiak_sys::net::listen_promptly(None, port)?;
        listener.set_nonblocking(true)?;
        let desk = Arc::new(Desk {
            unit: unit.to_owned(),
            run: run.to_owned(),
            token: Sha256::digest(&keys.token).into(),
            news: watch::Sender::new(()),
            heard,
        });
        let (end, ended) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let served = Arc::clone(&desk);
        std::thread::Builder::new().name("post".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, acceptor, served) => {}
                    _ = ended => {}
                }
            });
        })?;
        let address = |host: String| match host.parse::<std::net::Ipv6Addr>() {
            Ok(ip) => SocketAddr::from((ip, port)).to_string(),
            Err(_) => format!("{host}:{port}"),
        };
        let addresses: Vec<String> = hosts(connect).unwrap_or_default().into_iter().map(address).collect();
        info!(?addresses, "agents connect here");
        let variables = [(super::ADDRESSES, addresses.join(" ")), (super::KEY, given)];
        Ok(Self { variables, desk, _end: end, _lease: held })
    }

    /// What agents need, as variables of the job.
    pub(crate) fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }

    /// There is something new for agents.
    pub(crate) fn look(&self) {
        self.desk.news.send_replace(());
    }

    /// Removes the keys of a unit that has ended.
    pub(crate) fn forget(unit: &Path) {
        let _ = std::fs::remove_file(unit.join(KEYS));
    }
}

async fn serve(listener: std::net::TcpListener, acceptor: TlsAcceptor, desk: Arc<Desk>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let (acceptor, desk) = (acceptor.clone(), Arc::clone(&desk));
                tokio::spawn(async move {
                    let end = desk.attend(stream, &acceptor).await;
                    debug!(%from, ?end, "an agent's connection has ended");
                });
            }
            // Without descriptors; connections wait in the kernel meanwhile.
            Err(error) => {
                debug!(%error, "not accepted");
                tokio::time::sleep(EVERY).await;
            }
        }
    }
}

/// What a connection was sent.
#[derive(Default)]
struct Outgoing {
    whole: BTreeMap<&'static str, Version>,
    more: BTreeMap<String, u64>,
    gathers: bool,
}

impl Desk {
    async fn attend(&self, stream: TcpStream, acceptor: &TlsAcceptor) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let stream = timeout(GREETING, acceptor.accept(stream)).await??;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let hello = timeout(GREETING, super::read(&mut reader, 0)).await??.0;
        let Header::Hello { v, token, gathers } = hello else { return Err(broken("no greeting")) };
        if v != umiak_core::cluster::VERSION || Sha256::digest(&token)[..] != self.token {
            return Err(broken("a wrong token"));
        }
        let (sender, mut frames) = mpsc::channel(ARRIVED);
        let reading = tokio::spawn(async move {
            while let Ok(frame) = super::read(&mut reader, MOST).await {
                if sender.send(frame).await.is_err() {
                    break;
                }
            }
        });
        let mut news = self.news.subscribe();
        let mut out = Outgoing { gathers, ..Outgoing::default() };
        let end = loop {
            if let Err(error) = self.push(&mut writer, &mut out).await {
                break Err(error);
            }
            tokio::select! {
                frame = frames.recv() => match frame {
                    None => break Ok(()),
                    Some((header, body)) => if let Err(error) = self.take(&mut writer, header, &body).await {
                        break Err(error);
                    },
                },
                _ = news.changed() => {}
                () = tokio::time::sleep(SEARCH) => {}
            }
        };
        reading.abort();
        end
    }

    /// Sends what is new.
    async fn push(&self, to: &mut (impl AsyncWrite + Unpin), out: &mut Outgoing) -> io::Result<()> {
        for name in WHOLE {
            let Ok((version, mut file)) = Version::of(&self.unit.join(name)) else { continue };
            if out.whole.get(name) == Some(&version) || version.length > MAX_BODY as u64 {
                continue;
            }
            let mut bytes = Vec::new();
            if file.read_to_end(&mut bytes).is_ok() {
                super::write(to, &Header::Whole { name: name.to_owned() }, &bytes).await?;
                out.whole.insert(name, version);
            }
        }
        self.push_more(to, out, files::ORDERS, files::ORDERS.to_owned()).await?;
        if out.gathers {
            let entries = std::fs::read_dir(&self.unit).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            for name in names.filter(|name| agent(name).is_some()).collect::<Vec<_>>() {
                self.push_more(to, out, &name, format!("{}/{name}", files::OTHERS)).await?;
            }
        }
        Ok(())
    }

    async fn push_more(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        out: &mut Outgoing,
        file: &str,
        name: String,
    ) -> io::Result<()> {
        let sent = out.more.entry(name.clone()).or_default();
        loop {
            let bytes = piece(&self.unit.join(file), *sent);
            if bytes.is_empty() {
                return Ok(());
            }
            super::write(to, &Header::More { name: name.clone(), at: *sent }, &bytes).await?;
            *sent += bytes.len() as u64;
        }
    }

    /// Stores what an agent sends, and answers.
    async fn take(&self, to: &mut (impl AsyncWrite + Unpin), header: Header, body: &[u8]) -> io::Result<()> {
        let (name, is_new) = match &header {
            Header::Whole { name } => self.store(name, |path| replace(path, body).map(|()| true))?,
            Header::More { name, at } => self.store(name, |path| add(path, *at, body))?,
            Header::Ask { name } => self.store(name, |_| Ok(false))?,
            Header::Hello { .. } | Header::Have { .. } => return Err(broken("a frame that agents do not send")),
        };
        let path = self.path(name)?;
        let length = std::fs::metadata(path).map_or(0, |data| data.len());
        super::write(to, &Header::Have { name: name.to_owned(), length }, &[]).await?;
        // After the answer: what is heard may end this process.
        if is_new {
            self.heard.wake();
            if matches!(header, Header::Whole { .. }) {
                self.news.send_replace(());
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        match place(name).ok_or_else(|| broken("a file that agents do not have"))? {
            Sent::OfUnit(path) => Ok(self.unit.join(path)),
            Sent::OfRun(path) => Ok(self.run.join(path)),
        }
    }

    /// A file that cannot be written is sent again: its length tells the agent.
    fn store<'a>(&self, name: &'a str, write: impl FnOnce(&Path) -> io::Result<bool>) -> io::Result<(&'a str, bool)> {
        let path = self.path(name)?;
        if let Some(parent) = path.parent() {
            let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        }
        let is_new = write(&path).inspect_err(|error| debug!(name, %error, "not stored")).unwrap_or(false);
        Ok((name, is_new))
    }
}

/// The next bytes of a file.
pub(super) fn piece(path: &Path, at: u64) -> Vec<u8> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        file.take(PIECE as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().unwrap_or_default()
}

/// Adds bytes at a position. True if some are new.
pub(super) fn add(path: &Path, at: u64, bytes: &[u8]) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    match fit(file.metadata()?.len(), at, bytes.len()) {
        Fit::Known | Fit::Gap => Ok(false),
        Fit::New(from) => file.write_all(&bytes[from..]).map(|()| true),
    }
}

pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mode = if path.file_name().is_some_and(|name| name == "command") { 0o700 } else { 0o600 };
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new)?;
    file.write_all(bytes)?;
    std::fs::rename(new, path)
}

/// Checks that a host that was named has an address.
pub(crate) fn check(connect: &Connect) -> Result<(), String> {
    let hosts = hosts(connect).ok_or("this host has no address but those of loopback")?;
    let Some(name) = connect.host.as_ref().filter(|name| name.parse::<std::net::IpAddr>().is_err()) else {
        return if hosts.is_empty() { Err("it has no address".to_owned()) } else { Ok(()) };
    };
    let found = (name.as_str(), 0).to_socket_addrs();
    found.map(drop).map_err(|error| format!("`{name}` is not a name of a host: {error}"))
}
