//! The connection of an engine to its cluster.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{debug, warn};
use umiak_core::machine::job::AttemptId;
use umiak_sys::net::in_directory;

use super::super::inbox::Inbox;
use super::super::{EngineNews, Swept};
use super::ANSWER;
use super::cluster::SOCKET;
use super::wire::{self, Order, Told};

#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
    answers: Receiver<Vec<AttemptId>>,
    stage: Arc<Mutex<Stage>>,
    inbox: Arc<Inbox>,
    /// Set if this supervisor has started the cluster.
    child: Option<Child>,
}

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// The cluster was asked to end.
    Ending,
    Gone,
}

impl Link {
    /// Connects to a running cluster; `None` if there is none, or if it is about to exit.
    pub(super) fn connect(directory: &Path, inbox: &Arc<Inbox>) -> io::Result<Option<Self>> {
        match in_directory(directory, SOCKET, |path| UnixStream::connect(path)) {
            Ok(stream) => {
                let link = Self::over(stream, directory, inbox, None)?;
                let is_there = link.ask(&Order::Hello {})?.is_some();
                if !is_there {
                    // Its end is not news, because it had reported nothing.
                    inbox.take();
                }
                Ok(is_there.then_some(link))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Starts a cluster in its own session. Its stdin is the listening socket, so no wait is needed.
    pub(super) fn start(directory: &Path, inbox: &Arc<Inbox>) -> io::Result<Self> {
        let _ = std::fs::remove_file(directory.join(SOCKET));
        let listener = in_directory(directory, SOCKET, |path| UnixListener::bind(path))?;
        let stream = in_directory(directory, SOCKET, |path| UnixStream::connect(path))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("mock-cluster").arg(directory).current_dir("/");
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = umiak_sys::helper::in_own_session(&mut command).spawn().inspect_err(|_| {
            let _ = std::fs::remove_file(directory.join(SOCKET));
        })?;
        debug!(pid = child.id(), "cluster started");
        Self::over(stream, directory, inbox, Some(child))
    }

    fn over(stream: UnixStream, directory: &Path, inbox: &Arc<Inbox>, child: Option<Child>) -> io::Result<Self> {
        let (sender, answers) = mpsc::channel();
        let stage = Arc::new(Mutex::new(Stage::Open));
        let reader = Reader {
            stream: stream.try_clone()?,
            answers: sender,
            stage: Arc::clone(&stage),
            inbox: Arc::clone(inbox),
            socket: directory.join(SOCKET),
        };
        std::thread::Builder::new().name("cluster".into()).spawn(move || reader.read())?;
        Ok(Self { stream, answers, stage, inbox: Arc::clone(inbox), child })
    }

    pub(super) fn send(&self, order: &Order) {
        // The reader notices a closed connection.
        let _ = (&self.stream).write_all(wire::line(order).as_bytes());
    }

    /// Returns `None` if the cluster is gone; fails if it does not answer in time.
    pub(super) fn ask(&self, order: &Order) -> io::Result<Option<Vec<AttemptId>>> {
        self.send(order);
        match self.answers.recv_timeout(ANSWER) {
            Ok(attempts) => Ok(Some(attempts)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// Asks the cluster to end; its end is reported as news.
    pub(super) fn end(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        match *stage {
            Stage::Open => {
                *stage = Stage::Ending;
                drop(stage);
                self.send(&Order::End {});
            }
            Stage::Ending => {}
            Stage::Gone => self.inbox.tell(EngineNews::Swept(Swept::default())),
        }
    }

    /// Reaps the process of a cluster that has exited.
    pub(super) fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

/// The thread that reads from the cluster.
struct Reader {
    stream: UnixStream,
    answers: Sender<Vec<AttemptId>>,
    stage: Arc<Mutex<Stage>>,
    inbox: Arc<Inbox>,
    socket: std::path::PathBuf,
}

impl Reader {
    fn read(self) {
        for line in BufReader::new(&self.stream).lines().map_while(Result::ok) {
            match wire::read::<Told>(&line).map(Told::news) {
                Some(Ok(news)) => self.inbox.tell(news),
                Some(Err(attempts)) => drop(self.answers.send(attempts)),
                None => {
                    warn!(line, "invalid message from the cluster");
                    break;
                }
            }
        }
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asked = std::mem::replace(&mut *stage, Stage::Gone) == Stage::Ending;
        drop(stage);
        let _ = std::fs::remove_file(self.socket);
        let lost = EngineNews::Lost { pid: None, again: false, why: None };
        self.inbox.tell(if is_asked { EngineNews::Swept(Swept::default()) } else { lost });
    }
}
