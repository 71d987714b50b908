//! The mock engine: no process runs. Replicas are [actors](super::actors) on a thread, so that policies can be tried
//! without processes, and so that the conformance suite has a second engine to compare with.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::{debug, info};
use umiak_core::diag::Diagnostic;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Device, Instance, StepIndex, StopHow};
use umiak_core::plan::Plan;
use umiak_sys::files::{self, Contents};
use umiak_sys::ports::{LeaseRequest, Leased};

use super::actors::{Entry, Stage, steps};
use super::inbox::Inbox;
use super::{Common, Engine, EngineKind, EngineNews, NotLeased, Start, Swept};

#[derive(Debug)]
pub(crate) struct Mock {
    sender: Sender<Order>,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
    /// Directories to remove at the end.
    remove: Vec<PathBuf>,
    paper: Paper,
}

#[derive(Debug)]
enum Order {
    /// Started together: no actor acts before all of them have entered.
    Start(Vec<Start>),
    Stop(StopHow, Vec<AttemptId>),
    AwaitReady(AttemptId),
    End,
}

impl Mock {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let inbox = Arc::new(Inbox::new()?);
        let own = Arc::clone(&inbox);
        let theatre = Theatre { inbox: own, stage: Stage::default(), logs: BTreeMap::new(), pids: 100_000 };
        let thread = std::thread::Builder::new().name("mock".into()).spawn(move || theatre.play(&receiver))?;
        info!(engine = EngineKind::Mock.word(), "engine started");
        Ok(Self { sender, inbox, thread: Some(thread), remove: Vec::new(), paper: Paper::default() })
    }
}

/// Simulated leases: always as many as requested, and the same for every supervisor of a run.
#[derive(Debug, Default)]
pub(super) struct Paper {
    ports: u16,
}

impl Paper {
    pub(super) fn ports(&mut self, count: u16) -> Leased {
        let ports = (self.ports..).take(count as usize).map(|number| 20_000 + number % 40_000).collect();
        self.ports = self.ports.wrapping_add(count) % 40_000;
        Leased { ports, inside_ephemeral: false }
    }

    pub(super) fn devices(count: u32) -> Vec<Device> {
        (0..count).map(|position| Device { label: position.to_string(), position }).collect()
    }
}

impl Engine for Mock {
    fn kind(&self) -> EngineKind {
        EngineKind::Mock
    }

    fn lease_addresses(&mut self, _: StepIndex, count: u32) -> Result<Vec<IpAddr>, Diagnostic> {
        Ok((0..count).map(|number| IpAddr::V4(Ipv4Addr::from(0x7f00_0100 + number))).collect())
    }

    fn lease_ports(&mut self, _: StepIndex, request: LeaseRequest) -> Result<Leased, NotLeased> {
        Ok(self.paper.ports(request.count))
    }

    fn lease_devices(&mut self, _: StepIndex, _: &[(u32, Device)], count: u32) -> Result<Vec<Device>, Diagnostic> {
        Ok(Paper::devices(count))
    }

    fn remove_at_end(&mut self, directories: &[PathBuf]) {
        self.remove = directories.to_vec();
    }

    fn share(&mut self, _: Common) {}

    fn start(&mut self, _: &Plan, starts: Vec<Start>) {
        debug!(attempts = starts.len(), "start");
        // The thread lives as long as this engine.
        let _ = self.sender.send(Order::Start(starts));
    }

    fn stop(&mut self, targets: &[AttemptId], how: StopHow) {
        let _ = self.sender.send(Order::Stop(how, targets.to_vec()));
    }

    fn await_ready(&mut self, id: AttemptId) -> bool {
        let _ = self.sender.send(Order::AwaitReady(id));
        true
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.watch())
    }

    fn news(&mut self) -> Vec<EngineNews> {
        self.inbox.take()
    }

    fn clear(&mut self, _: bool) {
        self.inbox.tell(EngineNews::Cleared(Swept::default()));
    }

    fn end(&mut self, _: bool) {
        let _ = self.sender.send(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for directory in &self.remove {
            let _ = std::fs::remove_dir_all(directory);
        }
        self.inbox.tell(EngineNews::Swept(Swept::default()));
    }
}

/// The thread on which the actors run.
struct Theatre {
    inbox: Arc<Inbox>,
    stage: Stage,
    logs: BTreeMap<AttemptId, PathBuf>,
    pids: u32,
}

impl Theatre {
    fn play(mut self, orders: &Receiver<Order>) {
        loop {
            let wakes = self.stage.wakes();
            let wait = wakes.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
            let mut news = match orders.recv_timeout(wait) {
                Ok(Order::Start(starts)) => starts.into_iter().flat_map(|start| self.enter(start)).collect(),
                Ok(Order::Stop(how, targets)) => targets.into_iter().flat_map(|id| self.stage.stop(id, how)).collect(),
                Ok(Order::AwaitReady(id)) => self.stage.await_ready(id),
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
            };
            news.extend(self.stage.act(Instant::now()));
            for news in news {
                self.tell(news);
            }
        }
    }

    fn enter(&mut self, start: Start) -> Vec<EngineNews> {
        self.pids += 1;
        let Start { id, process, .. } = start;
        let (steps, instance) = (steps(&process.argv, id), Instance::of_pid(self.pids));
        self.logs.insert(id, process.log.path);
        self.stage.enter(Entry { id, steps, instance, starts: 0, written: 0 })
    }

    /// Writes output to the attempt's log, as a real process would, and passes on other news.
    fn tell(&self, news: EngineNews) {
        match news {
            EngineNews::Output { id, bytes, .. } => {
                if let Some(log) = self.logs.get(&id) {
                    print(log, &bytes);
                }
            }
            news => self.inbox.tell(news),
        }
    }
}

/// Ignores write errors, as for a real replica.
fn print(log: &Path, bytes: &[u8]) {
    if let Ok(mut file) = files::open(log, Contents::Append, files::READABLE) {
        let _ = file.write_all(bytes);
    }
}
