//! The side of an agent: a thread that copies its files to the supervisor, and the supervisor's to it. The agent itself
//! works on its own directory, as if that were shared.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncWrite, ReadHalf, WriteHalf, split};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::{debug, warn};
use umiak_core::cluster::post::{Header, MAX_BODY, WINDOW};
use umiak_core::cluster::{Beat, VERSION};
use umiak_core::diag::{Code, Diagnostic};

use super::super::files::{self, Version};
use super::office::{add, piece, replace};
use super::{ADDRESSES, ARRIVED, EVERY, GREETING, KEY, broken, connecting, unhex};

/// Time for one address to answer.
const DIAL: Duration = Duration::from_secs(5);
/// Pauses between two connections: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long a supervisor that does not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same, once everything was sent and only the answer is missing.
const ANSWER: Duration = Duration::from_secs(3);
/// The pause after something could not be stored.
const AGAIN: Duration = Duration::from_secs(1);
/// Larger files beside the log of an attempt are not sent.
const MOST: u64 = 16 << 20;

/// Where the supervisor is, and what proves that it is the one.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    addresses: Vec<String>,
    config: Arc<ClientConfig>,
    token: String,
}

impl Call {
    /// `None` if this agent shares the directory of its supervisor.
    pub(crate) fn of_environment() -> Result<Option<Self>, Diagnostic> {
        let Ok(addresses) = std::env::var(ADDRESSES) else { return Ok(None) };
        Self::new(&addresses, &std::env::var(KEY).unwrap_or_default()).map(Some)
    }

    pub(super) fn new(addresses: &str, key: &str) -> Result<Self, Diagnostic> {
        let call = key.split_once(':').and_then(|(public, token)| Some((unhex(public)?, token.to_owned())));
        let (public, token) = call.ok_or_else(|| {
            Diagnostic::error(Code::E0204, "the variables of the supervisor cannot be read").row("variable", KEY)
        })?;
        let config = connecting(public).map_err(|error| Diagnostic::failed("prepare the connection", &error))?;
        Ok(Self { addresses: addresses.split(' ').map(str::to_owned).collect(), config, token })
    }

    /// Fetches the file of the unit, before this process has another thread. Returns it.
    pub(crate) fn fetch(&self) -> Result<Vec<u8>, Diagnostic> {
        self.fetch_within(PATIENCE)
    }

    pub(super) fn fetch_within(&self, patience: Duration) -> Result<Vec<u8>, Diagnostic> {
        let failed = |error: io::Error| {
            Diagnostic::error(Code::E0204, "the agent cannot reach the host that submitted the job")
                .row("addresses", self.addresses.join(" "))
                .row("reason", error.to_string())
                .hint("name an address that the nodes reach, and that no firewall blocks: `--slurm-connect=HOST:PORT`")
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let begun = Instant::now();
        let mut pause = PAUSES.0;
        loop {
            let end = runtime.block_on(async {
                let (mut reader, _writer) = self.dial(false).await?;
                loop {
                    let frame = timeout(PATIENCE, super::read(&mut reader, MAX_BODY)).await??;
                    if matches!(&frame.0, Header::Whole { name } if name == files::UNIT) {
                        return Ok(frame.1);
                    }
                }
            });
            match end {
                Ok(bytes) => return Ok(bytes),
                Err(error) if begun.elapsed() > patience => return Err(failed(error)),
                Err(error) => debug!(%error, "not fetched"),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// A connection whose greeting was sent.
    async fn dial(
        &self,
        gathers: bool,
    ) -> io::Result<(ReadHalf<TlsStream<TcpStream>>, WriteHalf<TlsStream<TcpStream>>)> {
        let mut last = io::Error::other("no address is known");
        for address in &self.addresses {
            match self.dial_one(address).await {
                Ok(stream) => {
                    let (reader, mut writer) = split(stream);
                    let hello = Header::Hello { v: VERSION, token: self.token.clone(), gathers };
                    super::write(&mut writer, &hello, &[]).await?;
                    return Ok((reader, writer));
                }
                Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
        Err(last)
    }

    async fn dial_one(&self, address: &str) -> io::Result<TlsStream<TcpStream>> {
        let mut last = io::Error::other("the name has no address");
        // Names are looked up in this thread: there may be no other yet.
        for address in address.to_socket_addrs()? {
            match timeout(DIAL, TcpStream::connect(address)).await? {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let connector = TlsConnector::from(Arc::clone(&self.config));
                    let name = ServerName::IpAddress(address.ip().into());
                    return timeout(GREETING, connector.connect(name, stream)).await?;
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Copies files until it is told to finish.
#[derive(Debug)]
pub(crate) struct Courier {
    finish: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Courier {
    /// `directory` is the agent's, `node` that of its node, `number` the agent's, and `agent` where a datagram wakes it.
    pub(crate) fn start(
        call: Call,
        directory: &Path,
        node: Option<&Path>,
        number: usize,
        agent: u16,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (finish, told) = watch::channel(false);
        let mut round = Round {
            call,
            directory: directory.to_owned(),
            node: node.map(Path::to_owned),
            number,
            agent: SocketAddr::from((Ipv4Addr::LOCALHOST, agent)),
            added: BTreeMap::new(),
            whole: BTreeMap::new(),
            report: None,
            again_at: None,
            on_the_way: 0,
            heard: Instant::now(),
        };
        let thread =
            std::thread::Builder::new().name("post".into()).spawn(move || runtime.block_on(round.run(told)))?;
        Ok(Self { finish, thread })
    }

    /// Returns once everything has arrived, or the supervisor has not answered for long.
    pub(crate) fn finish(self) {
        self.finish.send_replace(true);
        let _ = self.thread.join();
    }
}

/// A file to which is only added.
#[derive(Debug, Default)]
struct Added {
    path: PathBuf,
    /// What the supervisor had of it when this agent began: from an earlier start of the unit. `None`: it was asked.
    base: Option<u64>,
    sent: u64,
    arrived: u64,
    /// The supervisor could not store it: when it is sent again.
    again_at: Option<Instant>,
}

/// A file that is sent whole.
#[derive(Debug)]
struct Whole {
    sent: Version,
    has_arrived: bool,
}

struct Round {
    call: Call,
    directory: PathBuf,
    node: Option<PathBuf>,
    number: usize,
    agent: SocketAddr,
    added: BTreeMap<String, Added>,
    whole: BTreeMap<String, Whole>,
    report: Option<Report>,
    /// The supervisor could not store a file: when files are sent again.
    again_at: Option<Instant>,
    /// Bytes that were sent and not answered.
    on_the_way: usize,
    heard: Instant,
}

/// What the agent had reported at a moment, and the lengths that the logs had then. They are sent first: who reads that an
/// attempt has ended finds all of its log.
struct Report {
    reported: u64,
    logs: BTreeMap<String, u64>,
}

type Writer = WriteHalf<TlsStream<TcpStream>>;

impl Round {
    async fn run(&mut self, mut told: watch::Receiver<bool>) {
        let Ok(wake) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await else {
            return warn!("no socket for the agent's news");
        };
        let mut pause = PAUSES.0;
        loop {
            let begun = Instant::now();
            match self.connected(&wake, &mut told).await {
                Ok(()) => return,
                Err(error) => debug!(%error, "the connection to the supervisor has ended"),
            }
            self.forget();
            let is_over = *told.borrow();
            let patience = if is_over && self.is_all_sent() { ANSWER } else { PATIENCE };
            if is_over && self.heard.elapsed() > patience {
                return warn!("the supervisor did not get everything");
            }
            pause = if begun.elapsed() > PAUSES.1 { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
            tokio::time::sleep(pause).await;
        }
    }

    /// What was on its way is sent again.
    fn forget(&mut self) {
        self.on_the_way = 0;
        for file in self.added.values_mut() {
            file.sent = file.arrived;
        }
        self.whole.retain(|_, file| file.has_arrived);
    }

    /// Serves one connection. Ends well when it was told to finish, and everything has arrived.
    async fn connected(&mut self, wake: &UdpSocket, told: &mut watch::Receiver<bool>) -> io::Result<()> {
        let (mut reader, mut writer) = self.call.dial(self.number == 0).await?;
        let (sender, mut frames) = mpsc::channel(ARRIVED);
        let reading = tokio::spawn(async move {
            while let Ok(frame) = super::read(&mut reader, MAX_BODY).await {
                if sender.send(frame).await.is_err() {
                    break;
                }
            }
        });
        let end = loop {
            let is_over = *told.borrow();
            if let Err(error) = self.send(&mut writer).await {
                break Err(error);
            }
            if is_over && self.on_the_way == 0 && self.is_all_sent() {
                break Ok(());
            }
            let mut bytes = [0; 16];
            tokio::select! {
                frame = frames.recv() => match frame {
                    None => break Err(io::ErrorKind::UnexpectedEof.into()),
                    Some((header, body)) => if let Err(error) = self.receive(header, &body, wake).await {
                        break Err(error);
                    },
                },
                _ = wake.recv(&mut bytes) => {}
                _ = told.changed() => {}
                () = tokio::time::sleep(EVERY) => {}
            }
        };
        reading.abort();
        end
    }

    async fn receive(&mut self, header: Header, body: &[u8], wake: &UdpSocket) -> io::Result<()> {
        self.heard = Instant::now();
        let mut is_news = false;
        match header {
            Header::Whole { name } if name == files::SUPERVISOR => {
                let beat: Beat = serde_json::from_slice(body)?;
                // The agent wakes this thread instead of the supervisor.
                let beat = Beat { wake: vec![wake.local_addr()?], ..beat };
                files::replace(&self.directory.join(name), &beat)?;
            }
            // It was fetched before.
            Header::Whole { name } if name == files::UNIT => {}
            Header::Whole { name } if [files::PLACEMENT, LIMIT].contains(&name.as_str()) => {
                let path = self.directory.join(name);
                if std::fs::read(&path).ok().as_deref() != Some(body) {
                    replace(&path, body)?;
                    is_news = true;
                }
            }
            Header::More { name, at } if is_expected(&name) => {
                let path = self.directory.join(&name);
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                is_news = add(&path, at, body)?;
            }
            Header::Have { name, length } => self.answered(&name, length),
            _ => return Err(broken("a frame that a supervisor does not send")),
        }
        if is_news {
            let _ = wake.send_to(b"look", self.agent).await;
        }
        Ok(())
    }

    fn answered(&mut self, name: &str, length: u64) {
        if let Some(file) = self.whole.get_mut(name) {
            self.on_the_way = self.on_the_way.saturating_sub(1);
            file.has_arrived = file.sent.length == length;
            if !file.has_arrived {
                self.whole.remove(name);
                self.again_at = Some(Instant::now() + AGAIN);
            }
            return;
        }
        let Some(file) = self.added.get_mut(name) else { return };
        let Some(base) = file.base else {
            file.base = Some(length);
            return;
        };
        let arrived = length.saturating_sub(base);
        if arrived > file.arrived {
            self.on_the_way = self.on_the_way.saturating_sub((arrived - file.arrived) as usize);
        } else if arrived < file.sent {
            // It could not be stored.
            self.on_the_way = self.on_the_way.saturating_sub((file.sent - arrived) as usize);
            (file.sent, file.again_at) = (arrived, Some(Instant::now() + AGAIN));
        }
        file.arrived = arrived;
    }

    /// Sends what is new.
    async fn send(&mut self, to: &mut Writer) -> io::Result<()> {
        let own = files::of_agent(&self.directory, self.number);
        let own_name = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let reported = length(&own);
        let attempts = attempts(&self.directory);
        if self.report.is_none() && self.added.get(&own_name).is_none_or(|file| file.sent < reported) {
            let logs = attempts.iter().filter(|(name, _)| is_log(name));
            let logs = logs.map(|(name, path)| (name.clone(), length(path))).collect();
            self.report = Some(Report { reported, logs });
        }
        for (name, path) in attempts {
            if is_log(&name) {
                self.add(to, name, path, u64::MAX).await?;
            } else if length(&path) <= MOST {
                self.whole(to, name, &path).await?;
            }
        }
        if self.number == 0 {
            self.whole(to, files::PLACEMENT.to_owned(), &self.directory.join(files::PLACEMENT)).await?;
        }
        if let Some(node) = self.node.clone() {
            self.whole(to, LIMIT.to_owned(), &node.join(LIMIT)).await?;
            self.add(to, LOG.to_owned(), node.join(LOG), u64::MAX).await?;
        }
        let sent = |name: &String| self.added.get(name).map_or(0, |file| file.sent);
        if let Some(report) = &self.report
            && report.logs.iter().all(|(name, length)| sent(name) >= *length)
        {
            let reported = report.reported;
            self.add(to, own_name.clone(), own, reported).await?;
            self.report.take_if(|report| self.added.get(&own_name).is_some_and(|file| file.sent >= report.reported));
        }
        Ok(())
    }

    async fn add(&mut self, to: &mut Writer, name: String, path: PathBuf, most: u64) -> io::Result<()> {
        let file = match self.added.entry(name.clone()) {
            std::collections::btree_map::Entry::Occupied(file) => file.into_mut(),
            std::collections::btree_map::Entry::Vacant(file) => {
                super::write(to, &Header::Ask { name }, &[]).await?;
                file.insert(Added { path, ..Added::default() });
                return Ok(());
            }
        };
        let Some(base) = file.base.filter(|_| file.again_at.is_none_or(|at| at <= Instant::now())) else {
            return Ok(());
        };
        while self.on_the_way < WINDOW && file.sent < most {
            let mut bytes = piece(&file.path, file.sent);
            bytes.truncate(usize::try_from(most - file.sent).unwrap_or(usize::MAX));
            if bytes.is_empty() {
                break;
            }
            super::write(to, &Header::More { name: name.clone(), at: base + file.sent }, &bytes).await?;
            file.sent += bytes.len() as u64;
            self.on_the_way += bytes.len();
        }
        Ok(())
    }

    async fn whole(&mut self, to: &mut (impl AsyncWrite + Unpin), name: String, path: &Path) -> io::Result<()> {
        let Ok((version, _)) = Version::of(path) else { return Ok(()) };
        let must_wait = self.on_the_way >= WINDOW || self.again_at.is_some_and(|at| at > Instant::now());
        if must_wait || self.whole.get(&name).is_some_and(|file| file.sent == version) {
            return Ok(());
        }
        let Ok(bytes) = std::fs::read(path) else { return Ok(()) };
        super::write(to, &Header::Whole { name: name.clone() }, &bytes).await?;
        self.whole.insert(name, Whole { sent: version, has_arrived: false });
        self.on_the_way += 1;
        Ok(())
    }

    /// True if nothing of this agent is left to send.
    fn is_all_sent(&self) -> bool {
        self.added.values().all(Added::is_sent)
    }
}

impl Added {
    fn is_sent(&self) -> bool {
        self.base.is_some() && length(&self.path) <= self.sent
    }
}

/// The file that the script of Slurm writes before the time limit, and its log.
const LIMIT: &str = umiak_core::cluster::slurm::LIMIT_FILE;
const LOG: &str = umiak_core::cluster::slurm::LOG_FILE;

fn is_log(name: &str) -> bool {
    name.ends_with("/log")
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |data| data.len())
}

fn is_expected(name: &str) -> bool {
    let other = name.strip_prefix(files::OTHERS).and_then(|rest| rest.strip_prefix('/'));
    name == files::ORDERS || other.is_some_and(|file| umiak_core::cluster::post::agent(file).is_some())
}

/// The files of all attempts: `tasks/trainer-0/attempt-1/log`, in a pipeline below the name of the step.
fn attempts(directory: &Path) -> Vec<(String, PathBuf)> {
    fn search(path: &Path, name: &str, depth: u32, found: &mut Vec<(String, PathBuf)>) {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let (Ok(kind), Ok(own)) = (entry.file_type(), entry.file_name().into_string()) else { continue };
            let name = format!("{name}/{own}");
            let is_attempt = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("attempt-"));
            if kind.is_dir() && depth > 0 && !is_attempt {
                search(&entry.path(), &name, depth - 1, found);
            } else if kind.is_file() && is_attempt && umiak_core::cluster::post::place(&name).is_some() {
                found.push((name, entry.path()));
            }
        }
    }
    let mut found = Vec::new();
    search(&directory.join("tasks"), "tasks", 3, &mut found);
    found
}
