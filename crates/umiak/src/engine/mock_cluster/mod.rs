//! The engine `mock-cluster`: a simulated cluster in its own process.
//!
//! It simulates what is specific to clusters: gangs wait in a queue, replicas have names and nodes instead of pids,
//! output is streamed, pre-empted gangs restart on their own, and everything continues when the supervisor dies. The
//! next supervisor adopts it. Its replicas are [actors](super::actors).
//!
//! | part | in one sentence |
//! |---|---|
//! | [`render`] | turns starts into a manifest, pure |
//! | this file | the engine: submits, and passes on reports |
//! | [`link`] | connects to the cluster, or starts it |
//! | [`wire`] | the messages of both sides |
//! | [`cluster`] | the process: queue, nodes, retries, and all state to replay |

mod cluster;
mod link;
mod render;
mod wire;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Device, Exit, SpawnError, SpawnStage, StepIndex, StopHow};
use umiak_core::plan::Plan;
use umiak_sys::ports::{LeaseRequest, Leased};

use super::actors::ended;
use super::inbox::Inbox;
use super::mock::Paper;
use super::{Common, Engine, EngineKind, EngineNews, NotLeased, Start, Swept};

pub(crate) use cluster::serve;
use link::Link;
use render::render;
use wire::Order;

/// Time for a cluster to answer.
const ANSWER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct MockCluster {
    /// Directory of the run, which contains the cluster's socket.
    directory: PathBuf,
    run: String,
    inbox: Arc<Inbox>,
    link: Option<Link>,
    common: Common,
    /// Directories to remove at the end.
    remove: Vec<PathBuf>,
    paper: Paper,
}

impl MockCluster {
    /// Starts nothing; the cluster is started when it is needed.
    pub(crate) fn new(directory: &Path, run: String) -> std::io::Result<Self> {
        info!(engine = EngineKind::MockCluster.word(), "engine started");
        Ok(Self {
            directory: directory.to_owned(),
            run,
            inbox: Arc::new(Inbox::new()?),
            link: None,
            common: Common::default(),
            remove: Vec::new(),
            paper: Paper::default(),
        })
    }

    fn send(&self, order: &Order) {
        // The end of the cluster is reported as news.
        if let Some(link) = &self.link {
            link.send(order);
        }
    }

    /// Connects to a cluster for new units. Units of an existing cluster belong to no supervisor any more and are
    /// dropped.
    fn connect(&mut self) -> std::io::Result<()> {
        if self.link.is_some() {
            return Ok(());
        }
        let link = match Link::connect(&self.directory, &self.inbox)? {
            Some(link) => {
                link.send(&Order::Forget {});
                link
            }
            None => Link::start(&self.directory, &self.inbox)?,
        };
        self.link = Some(link);
        Ok(())
    }
}

impl Engine for MockCluster {
    fn kind(&self) -> EngineKind {
        EngineKind::MockCluster
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

    fn share(&mut self, common: Common) {
        self.common = common;
    }

    /// The first attempt of a unit belongs to no other unit, so it identifies the unit.
    fn handle(&self, attempts: &[AttemptId]) -> Option<String> {
        let AttemptId { step, slot, attempt } = attempts.first()?;
        let (word, run) = (EngineKind::MockCluster.word(), &self.run);
        Some(format!("{word}:{run}/{}.{}.{}.{attempt}", step.0, slot.role, slot.index))
    }

    fn adopt(&mut self, handle: &str, live: &[AttemptId]) -> Result<Vec<AttemptId>, Diagnostic> {
        let failed = |error: std::io::Error| {
            Diagnostic::error(Code::J0026, "the run's cluster does not respond")
                .row("reason", error.to_string())
                .hint("its process, `umiak mock-cluster`, may be suspended; resume it with `kill -CONT`")
        };
        if self.link.is_none() {
            self.link = Link::connect(&self.directory, &self.inbox).map_err(failed)?;
        }
        let Some(link) = &self.link else { return Ok(Vec::new()) };
        let adopted = link.ask(&Order::Adopt { unit: handle.to_owned(), live: live.to_vec() }).map_err(failed)?;
        debug!(handle, ?adopted, "adopt");
        Ok(adopted.unwrap_or_default())
    }

    fn start(&mut self, plan: &Plan, starts: Vec<Start>) {
        debug!(attempts = starts.len(), "start");
        let ids: Vec<AttemptId> = starts.iter().map(|start| start.id).collect();
        if let Err(error) = self.connect() {
            let (errno, reason) = (error.raw_os_error().unwrap_or(0), error.to_string());
            let refused = SpawnError { doing: SpawnStage::Fork, errno, reason };
            for id in ids {
                self.inbox.tell(ended(id, Exit::Spawn(refused.clone())));
            }
            return;
        }
        let unit = self.handle(&ids).unwrap_or_default();
        self.send(&Order::Submit(render(unit, plan, &self.common, &starts)));
    }

    fn stop(&mut self, targets: &[AttemptId], how: StopHow) {
        self.send(&Order::Stop { how, targets: targets.to_vec() });
    }

    fn await_ready(&mut self, id: AttemptId) -> bool {
        self.send(&Order::AwaitReady { id });
        true
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.watch())
    }

    fn news(&mut self) -> Vec<EngineNews> {
        let news = self.inbox.take();
        if let Some(link) = &mut self.link
            && news.iter().any(|news| matches!(news, EngineNews::Swept(_) | EngineNews::Lost { .. }))
        {
            link.reap();
        }
        news
    }

    fn clear(&mut self, _: bool) {
        self.send(&Order::Forget {});
        self.inbox.tell(EngineNews::Cleared(Swept::default()));
    }

    fn leave(&mut self) {
        self.end(false);
    }

    fn end(&mut self, _: bool) {
        for directory in &self.remove {
            let _ = std::fs::remove_dir_all(directory);
        }
        match &self.link {
            Some(link) => link.end(),
            None => self.inbox.tell(EngineNews::Swept(Swept::default())),
        }
    }
}

/// Ends what a dead supervisor left in its cluster, and waits for it.
pub(super) fn end_orphans(directory: &Path) -> std::io::Result<()> {
    let inbox = Arc::new(Inbox::new()?);
    let Some(link) = Link::connect(directory, &inbox)? else { return Ok(()) };
    link.end();
    umiak_sys::wait::readable(&[inbox.watch()], Some(ANSWER)).map(drop)
}
