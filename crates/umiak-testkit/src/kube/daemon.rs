//! The daemons of a cluster, which tests kill and start again one by one.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use super::space::Space;

/// A daemon; nodes are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Daemon {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Containerd(usize),
    Kubelet(usize),
    Dns,
    VolcanoScheduler,
    VolcanoControllers,
    VolcanoAdmission,
    JobSet,
}

impl Daemon {
    /// The name of its program, and of its log.
    pub fn name(self) -> String {
        match self {
            Self::Etcd => "etcd".to_owned(),
            Self::ApiServer => "kube-apiserver".to_owned(),
            Self::ControllerManager => "kube-controller-manager".to_owned(),
            Self::Scheduler => "kube-scheduler".to_owned(),
            Self::Containerd(node) => format!("containerd-{}", node + 1),
            Self::Kubelet(node) => format!("kubelet-{}", node + 1),
            Self::Dns => "coredns".to_owned(),
            Self::VolcanoScheduler => "vc-scheduler".to_owned(),
            Self::VolcanoControllers => "vc-controller-manager".to_owned(),
            Self::VolcanoAdmission => "vc-webhook-manager".to_owned(),
            Self::JobSet => "jobset".to_owned(),
        }
    }
}

/// How a daemon is started.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
}

/// A daemon that has been started.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) command: Command,
    /// `nsenter`, which waits for the daemon.
    child: Child,
    is_killed: bool,
}

impl Process {
    pub(super) fn start(space: &Space, directory: &Path, daemon: Daemon, command: Command) -> io::Result<Self> {
        let log = directory.join("log").join(daemon.name());
        let log = File::options().append(true).create(true).open(log)?;
        let mut entering = space.command(&command.program);
        entering.args(&command.arguments).env_clear().env("HOME", directory);
        entering.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        let child = entering.stdout(log.try_clone()?).stderr(log).spawn()?;
        Ok(Self { command, child, is_killed: false })
    }

    /// Sends a signal; false if the daemon has ended.
    pub(super) fn signal(&mut self, signal: i32) -> bool {
        let found = umiak_sys::descend::children(self.child.id());
        for pid in &found {
            umiak_sys::descend::signal(*pid, signal);
        }
        !found.is_empty()
    }

    /// Kills it and waits for its end.
    pub(super) fn kill(&mut self) {
        self.is_killed = true;
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.is_running() {
            self.signal(9);
            assert!(Instant::now() < deadline, "{} cannot be killed", self.command.program.display());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// True if it ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        !self.is_killed && !self.is_running()
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_none()
    }
}
