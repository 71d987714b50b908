//! The local engine: processes of this host, run by the guardian.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{debug, info, trace, warn};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Usage;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Device, Exit, Instance, Mount, Slot, SpawnError, SpawnStage, StepIndex, StopHow};
use umiak_core::plan::{Plan, Process, Remote};
use umiak_sys::addresses;
use umiak_sys::cgroup::Cgroup;
use umiak_sys::descend;
use umiak_sys::guardian::{self, Guardian, GuardianOptions};
use umiak_sys::memory::MemoryCgroup;
use umiak_sys::mounts::BoundDirectory;
use umiak_sys::ports::{LeaseRequest, Leased, PortRange};
use umiak_sys::protocol::LastWords;
use umiak_sys::protocol::{
    Batch, Command, MemoryLimit, Notice, ProcessKey, ProcessLimits, ProcessSpec, SCRIPT, SpawnAction,
};

use super::{Common, Engine, EngineKind, EngineNews, FixedPort, NotLeased, Start, Swept, lost, reserved_by};

const SIGKILL: i32 = 9;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
/// The kernel drops SIGTSTP for groups without a parent in their session.
const SIGSTOP: i32 = 19;

/// Time for leftovers to end after SIGKILL, before they are reported and abandoned.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Local {
    guardian: Guardian,
    /// The guardian has exited, and its processes with it.
    gone: bool,
    /// The end was requested, and not reported yet.
    ending: bool,
    isolated: bool,
    /// Notices that arrived while waiting for an answer.
    early: Vec<Notice>,
    /// Why another guardian could not be started; not reported yet.
    not_revived: Option<String>,
    common: Common,
    /// What the guardian was told last.
    told_grace: Option<Duration>,
    remove: Vec<PathBuf>,
    /// What another guardian gets if this one is killed.
    held: Held,
}

/// What the guardian holds besides processes. The locks and the connection are duplicates.
#[derive(Debug, Default)]
struct Held {
    leases: BTreeMap<u32, Leases>,
    pool: Pool,
    locks: Vec<OwnedFd>,
    connection: Option<(OwnedFd, LastWords)>,
}

/// Addresses for the steps of a pipeline, each given once. A block is leased at a time: most steps need one address, and
/// each would wait for the guardian otherwise.
#[derive(Debug, Default)]
struct Pool {
    /// Those of the newest block that no step has had, the next one last.
    free: Vec<Ipv4Addr>,
    /// Number of blocks so far.
    blocks: u32,
    /// How many hold each block: steps, and the pool the newest one.
    holders: BTreeMap<u32, u32>,
    of_step: BTreeMap<u32, u32>,
}

impl Pool {
    /// The number under which the newest block is leased; steps have small ones.
    fn newest(&self) -> u32 {
        u32::MAX - self.blocks
    }
}

/// The leases of a job.
#[derive(Debug, Default)]
struct Leases {
    ports: Vec<(Option<IpAddr>, u16)>,
    addresses: Vec<Ipv4Addr>,
    gpus: Vec<u32>,
}

impl Local {
    /// Forks the guardian. Must be called while this process has one thread.
    pub(crate) fn start(isolate: bool, room: Option<MemoryCgroup>) -> Result<Self, Diagnostic> {
        let options = GuardianOptions { cgroup: Cgroup::create(), isolate };
        let guardian = Guardian::start_with(options, room).map_err(|error| not_started(isolate, &error))?;
        info!(engine = EngineKind::Local.word(), guardian = guardian.pid, isolate, "engine started");
        let common = Common { grace: Duration::from_secs(5), ..Common::default() };
        Ok(Self {
            guardian,
            gone: false,
            ending: false,
            isolated: isolate,
            early: Vec::new(),
            not_revived: None,
            common,
            told_grace: None,
            remove: Vec::new(),
            held: Held::default(),
        })
    }

    /// Ignores errors: the end of the guardian is seen at its socket.
    fn send(&mut self, command: &Command) {
        let _ = self.guardian.send(command);
    }

    /// Sends a command and waits for its answer.
    fn ask<T>(&mut self, command: &Command, answer: impl Fn(&Notice) -> Option<T>) -> Option<T> {
        if !self.revive() {
            return None;
        }
        self.send(command);
        loop {
            // The end of the guardian is reported as news: its socket stays readable.
            let Ok(Some(notices)) = self.guardian.receive() else { return None };
            let mut found = None;
            for notice in notices {
                match answer(&notice) {
                    Some(it) => found = Some(it),
                    None => self.early.push(notice),
                }
            }
            if found.is_some() {
                return found;
            }
        }
    }

    /// `outer` are the process ids in our namespace, if the guardian has another.
    fn tell(notice: &Notice, outer: &HashMap<u32, u32>) -> Option<EngineNews> {
        match *notice {
            Notice::Spawned { key, pid } => {
                let instance = Instance::of_pid(outer.get(&pid).copied().unwrap_or(pid));
                Some(EngineNews::Started { id: attempt(key), instance })
            }
            Notice::Exited { key, status, usage, over_limit, .. } => {
                let exit = match descend::decode(status) {
                    descend::WaitStatus::Code(code) => Exit::Code { code },
                    descend::WaitStatus::Signal { signal, core_dumped } => Exit::Signal { signal, core_dumped },
                };
                let usage = Usage {
                    user_micros: usage.user_micros,
                    system_micros: usage.system_micros,
                    max_rss_kib: usage.max_rss_kib,
                };
                Some(EngineNews::Ended { id: attempt(key), exit, usage: Some(usage), over_limit })
            }
            Notice::SpawnFailed { key, doing, errno } => {
                let reason = guardian::describe_errno(errno);
                let error = SpawnError { doing: stage(doing), errno, reason };
                Some(EngineNews::Ended { id: attempt(key), exit: Exit::Spawn(error), usage: None, over_limit: false })
            }
            Notice::Cleared { ref stopped, ref remaining } => {
                Some(EngineNews::Cleared(Swept { stopped: stopped.clone(), remaining: remaining.clone() }))
            }
            Notice::Swept { ref stopped, ref remaining } => {
                Some(EngineNews::Swept(Swept { stopped: stopped.clone(), remaining: remaining.clone() }))
            }
            Notice::Leased(_) | Notice::Addresses(_) | Notice::Gpus(_) => None,
        }
    }

    /// Cleans up after the guardian's end: the kernel has killed the replicas with it, and their children are ours now.
    fn lose(&mut self) -> EngineNews {
        self.gone = true;
        if self.ending {
            self.guardian.wait();
        }
        let grace = if self.ending { self.common.grace } else { Duration::ZERO };
        let sweep = descend::sweep(grace, PATIENCE);
        warn!(ending = self.ending, stopped = sweep.stopped.len(), remaining = sweep.remaining.len(), "guardian gone");
        self.guardian.wait();
        self.guardian.empty_cgroups();
        if self.ending {
            self.tidy();
            return EngineNews::Swept(Swept { stopped: sweep.stopped, remaining: sweep.remaining });
        }
        EngineNews::Lost { pid: Some(self.guardian.pid), again: true, why: None }
    }

    /// Does what a killed guardian would have done at its end.
    fn tidy(&mut self) {
        for directory in self.remove.drain(..) {
            let _ = std::fs::remove_dir_all(directory);
        }
        self.guardian.remove_cgroups();
        self.held = Held::default();
    }

    /// Starts another guardian if this one was killed, with everything that it held. True if there is one.
    fn revive(&mut self) -> bool {
        if !self.gone || self.ending {
            return !self.gone;
        }
        if self.not_revived.is_some() {
            return false;
        }
        let started = self.guardian.start_again(&[c"umiak", c"guardian"], self.isolated);
        self.gone = started.is_err();
        let restored = started.map_err(|error| error.to_string()).and_then(|()| self.restore());
        if let Err(why) = restored {
            warn!(why, "guardian not started again");
            if !self.gone {
                // Without its socket it exits by itself.
                self.gone = true;
                self.guardian.hang_up();
                self.guardian.wait();
                self.guardian.empty_cgroups();
            }
            self.not_revived = Some(why);
            return false;
        }
        info!(guardian = self.guardian.pid, "guardian started again");
        true
    }

    fn tell_grace(&mut self, grace: Duration) {
        self.told_grace = Some(grace);
        self.send(&Command::Grace { millis: grace.as_millis() as u64 });
    }

    /// Gives a new guardian what the last one held.
    fn restore(&mut self) -> Result<(), String> {
        self.tell_grace(self.common.grace);
        self.send(&Command::RemoveAtEnd(self.remove.iter().map(|path| bytes(path)).collect()));
        let held = std::mem::take(&mut self.held);
        for lock in &held.locks {
            let _ = self.guardian.keep(lock.as_fd());
        }
        if let Some((connection, last_words)) = &held.connection {
            let _ = self.guardian.hold(connection.as_fd(), last_words.clone());
        }
        let restored = held.leases.iter().try_for_each(|(job, leases)| self.lease_again(StepIndex(*job), leases));
        self.held = held;
        restored
    }

    fn lease_again(&mut self, step: StepIndex, leases: &Leases) -> Result<(), String> {
        for (address, port) in &leases.ports {
            let range = PortRange::Exactly { start: *port };
            let request = LeaseRequest { count: 1, range, address: *address, seed: 0 };
            self.lease_ports(step, request).map_err(|_| format!("port {port} was taken meanwhile"))?;
        }
        for block in leases.addresses.chunk_by(|one, other| one.octets()[..3] == other.octets()[..3]) {
            let [_, high, low, _] = block[0].octets();
            let seed = (u64::from(high) - 1) * 256 + u64::from(low);
            let again = self.ask_addresses(step, block.len() as u32, seed).unwrap_or_default();
            if again != block {
                return Err(format!("address {} was taken meanwhile", block[0]));
            }
        }
        if !leases.gpus.is_empty()
            && self.ask_gpus(step, leases.gpus.clone(), leases.gpus.len() as u32).as_ref() != Some(&leases.gpus)
        {
            return Err("a GPU was taken meanwhile".to_owned());
        }
        Ok(())
    }

    /// Starts processes; how they end is news.
    pub(crate) fn spawn(&mut self, starts: Vec<Start>) {
        debug!(attempts = starts.len(), "start");
        if !self.revive() {
            return;
        }
        let variables = |variables: &[(String, String)]| {
            variables.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
        };
        let alike = alike(&starts);
        let is_own = |position: &usize| !alike.get(*position).copied().unwrap_or(false);
        let own = |env: &[(String, String)]| {
            let own = (0..env.len()).filter(is_own).map(|position| env[position].clone());
            variables(&own.collect::<Vec<_>>())
        };
        let first = starts.first().map_or(&[][..], |start| &start.process.env);
        let shared = (0..first.len()).filter(|position| !is_own(position)).map(|position| first[position].clone());
        let set: Vec<(String, String)> = self.common.set.iter().cloned().chain(shared).collect();
        let processes = starts
            .iter()
            .map(|start| (start, line_of(&start.process)))
            .map(|(start, (program, argv, script))| ProcessSpec {
                key: key(start.id),
                program: bytes(&program),
                argv,
                script,
                env: own(&start.process.env),
                dir: start.process.dir.as_deref().map(bytes).unwrap_or_default(),
                log: bytes(&start.process.log.path),
                stderr: start.process.log.stderr.as_deref().map(bytes).unwrap_or_default(),
                cpus: if start.bound { Vec::new() } else { start.process.cpus.clone() },
                inherit_stdin: start.process.inherit_stdin,
                mounts: start.process.mounts.iter().map(bound).collect(),
            })
            .collect();
        let limits: Vec<ProcessLimits> = starts.into_iter().filter_map(limits).collect();
        if !limits.is_empty() {
            self.send(&Command::Limit(limits));
        }
        let unset = self.common.unset.iter().map(|name| name.as_bytes().to_vec()).collect();
        let batch = Batch { unset, set: variables(&set), rotate: self.common.rotate, processes };
        self.send(&Command::Spawn(batch));
    }

    fn ask_addresses(&mut self, step: StepIndex, count: u32, seed: u64) -> Option<Vec<Ipv4Addr>> {
        let addresses = self.ask(&Command::LeaseAddresses { job: step.0, count, seed }, |notice| match notice {
            Notice::Addresses(addresses) => Some(addresses.clone()),
            _ => None,
        })?;
        self.leases(step).addresses.extend(&addresses);
        Some(addresses)
    }

    /// An address of the pool for each replica of a step.
    fn pooled_addresses(&mut self, step: StepIndex, count: u32) -> Option<Vec<Ipv4Addr>> {
        let count = count as usize;
        if self.held.pool.free.len() < count {
            let before = self.held.pool.newest();
            self.held.pool.blocks += 1;
            let newest = self.held.pool.newest();
            let mut free = self.ask_addresses(StepIndex(newest), addresses::SIZE, fastrand::u64(..))?;
            free.reverse();
            self.held.pool.free = free;
            self.held.pool.holders.insert(newest, 1);
            self.let_go(before);
        }
        let pool = &mut self.held.pool;
        let newest = pool.newest();
        pool.of_step.insert(step.0, newest);
        *pool.holders.entry(newest).or_default() += 1;
        let rest = pool.free.len().saturating_sub(count);
        Some(pool.free.split_off(rest))
    }

    /// One holder less of a block of addresses.
    fn let_go(&mut self, block: u32) {
        let Some(holders) = self.held.pool.holders.get_mut(&block) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.held.pool.holders.remove(&block);
            self.give_back(block);
        }
    }

    fn give_back(&mut self, job: u32) {
        if self.held.leases.remove(&job).is_some() {
            self.send(&Command::Release { job });
        }
    }

    fn ask_gpus(&mut self, step: StepIndex, candidates: Vec<u32>, count: u32) -> Option<Vec<u32>> {
        let held = self.ask(&Command::LeaseGpus { job: step.0, candidates, count }, |notice| match notice {
            Notice::Gpus(minors) => Some(minors.clone()),
            _ => None,
        })?;
        self.leases(step).gpus.extend(&held);
        Some(held)
    }

    fn leases(&mut self, step: StepIndex) -> &mut Leases {
        self.held.leases.entry(step.0).or_default()
    }
}

impl Engine for Local {
    fn kind(&self) -> EngineKind {
        EngineKind::Local
    }

    fn lease_addresses(&mut self, step: StepIndex, count: u32) -> Result<Vec<IpAddr>, Diagnostic> {
        debug!(step = step.0, addresses = count, "lease");
        let is_pooled = step != StepIndex::default() && count < addresses::SIZE;
        let addresses = if is_pooled {
            self.pooled_addresses(step, count)
        } else {
            self.ask_addresses(step, count, fastrand::u64(..))
        };
        let addresses = addresses.ok_or_else(|| lost("replicas"))?;
        if (addresses.len() as u32) < count {
            return Err(too_few_addresses(count, addresses.len()));
        }
        Ok(addresses.into_iter().map(IpAddr::V4).collect())
    }

    fn lease_ports(&mut self, step: StepIndex, request: LeaseRequest) -> Result<Leased, NotLeased> {
        debug!(step = step.0, ?request, "lease");
        let address = request.address.filter(|_| matches!(request.range, PortRange::Exactly { .. }));
        let leased = self.ask(&Command::Lease { job: step.0, request }, |notice| match notice {
            Notice::Leased(leased) => Some(leased.clone()),
            _ => None,
        });
        match leased {
            Some(Ok(leased)) => {
                self.leases(step).ports.extend(leased.ports.iter().map(|port| (address, *port)));
                Ok(leased)
            }
            Some(Err(error)) => Err(NotLeased::TooFew(error)),
            None => Err(NotLeased::Lost(Box::new(lost("replicas")))),
        }
    }

    fn lease_devices(
        &mut self,
        step: StepIndex,
        candidates: &[(u32, Device)],
        count: u32,
    ) -> Result<Vec<Device>, Diagnostic> {
        let minors = candidates.iter().map(|(minor, _)| *minor).collect();
        let held = self.ask_gpus(step, minors, count).ok_or_else(|| lost("replicas"))?;
        debug!(step = step.0, candidates = candidates.len(), wanted = count, held = held.len(), "lease devices");
        let is_held = |(minor, _): &&(u32, Device)| held.contains(minor);
        Ok(candidates.iter().filter(is_held).map(|(_, device)| device.clone()).collect())
    }

    fn release(&mut self, step: StepIndex) {
        self.give_back(step.0);
        if let Some(block) = self.held.pool.of_step.remove(&step.0) {
            self.let_go(block);
        }
    }

    /// Fails if a port that the document names is not free on the replica's own address. If another process listens on
    /// it on all addresses, the replica could not bind it, and that process would make the replica look ready.
    fn check_ports(&self, ports: &[FixedPort<'_>]) -> Result<(), Diagnostic> {
        let mut held = Vec::new();
        for fixed in ports {
            match TcpListener::bind((fixed.address, fixed.port)) {
                Ok(listener) => held.push(listener),
                Err(error) => return Err(not_free(fixed, &error)),
            }
        }
        Ok(())
    }

    fn remove_at_end(&mut self, directories: &[PathBuf]) {
        self.remove = directories.to_vec();
        self.send(&Command::RemoveAtEnd(directories.iter().map(|path| bytes(path)).collect()));
    }

    fn share(&mut self, common: Common) {
        if self.told_grace != Some(common.grace) {
            self.tell_grace(common.grace);
        }
        self.common = common;
    }

    fn start(&mut self, _: &Plan, starts: Vec<Start>) {
        self.spawn(starts);
    }

    fn stop(&mut self, targets: &[AttemptId], how: StopHow) {
        debug!(?how, targets = targets.len(), "stop");
        let signal = match how {
            StopHow::Interrupt => SIGINT,
            StopHow::Terminate => SIGTERM,
            StopHow::Kill => SIGKILL,
        };
        self.send(&Command::Signal { signal, keys: keys(targets) });
    }

    fn suspend(&mut self, targets: &[AttemptId], pause: bool) {
        // Any command sent while the guardian sweeps makes it kill at once.
        if !targets.is_empty() {
            let signal = if pause { SIGSTOP } else { SIGCONT };
            self.send(&Command::Signal { signal, keys: keys(targets) });
        }
    }

    fn forsake(&mut self, targets: &[AttemptId]) {
        self.send(&Command::Forsake(keys(targets)));
    }

    fn retire(&mut self, step: StepIndex) {
        self.send(&Command::Retire { job: step.0 });
    }

    fn keep(&mut self, lock: BorrowedFd<'_>) -> bool {
        let own = lock.try_clone_to_owned();
        let is_held = own.is_ok();
        self.held.locks.extend(own);
        self.guardian.keep(lock).is_ok() && is_held
    }

    fn hold(&mut self, connection: BorrowedFd<'_>, last_words: LastWords) {
        self.held.connection = connection.try_clone_to_owned().ok().map(|held| (held, last_words.clone()));
        let _ = self.guardian.hold(connection, last_words);
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        // The closed socket of a lost guardian stays readable.
        (!self.gone || !self.early.is_empty() || self.not_revived.is_some()).then(|| self.guardian.as_fd())
    }

    fn news(&mut self) -> Vec<EngineNews> {
        let mut notices = std::mem::take(&mut self.early);
        let mut lost = false;
        if !self.gone {
            match self.guardian.receive() {
                Ok(Some(more)) => notices.extend(more),
                Ok(None) | Err(_) => lost = true,
            }
        }
        // A pid namespace has its own numbers; users need the ones that `ps` shows.
        let has_started = || notices.iter().any(|notice| matches!(notice, Notice::Spawned { .. }));
        let is_needed = self.isolated && has_started();
        let outer = if is_needed { descend::outer_pids(self.guardian.pid) } else { HashMap::new() };
        let mut news: Vec<EngineNews> = notices.iter().filter_map(|notice| Self::tell(notice, &outer)).collect();
        trace!(?news);
        if self.ending && !self.gone && news.iter().any(|news| matches!(news, EngineNews::Swept(_))) {
            self.gone = true;
            self.guardian.wait();
            self.tidy();
            return news;
        }
        if lost {
            news.push(self.lose());
        }
        let why = self.not_revived.take();
        news.extend(why.map(|why| EngineNews::Lost { pid: None, again: false, why: Some(why) }));
        news
    }

    fn clear(&mut self, keep_ports: bool) {
        debug!(keep_ports, "clear");
        if !keep_ports {
            self.held.leases.values_mut().for_each(|leases| leases.ports.clear());
        }
        if self.revive() {
            self.send(&Command::Clear { keep_ports });
        }
    }

    fn end(&mut self, patient: bool) {
        debug!(patient, "end");
        self.ending = true;
        if self.gone {
            // The guardian cannot report any more.
            self.tidy();
            self.early.push(Notice::Swept { stopped: Vec::new(), remaining: Vec::new() });
        } else {
            self.send(&Command::Finish { patient });
        }
    }
}

impl Drop for Local {
    /// If the guardian is alive, it cleans up when its socket closes.
    fn drop(&mut self) {
        if !self.gone && self.guardian.has_exited() {
            self.lose();
        }
        if self.gone && !self.ending {
            self.tidy();
        }
    }
}

/// Shorter values are not worth sharing.
const LONG: usize = 64;

/// Returns, by position, which long variables have the same value in all starts: those are sent once instead of copied
/// to every process. Lists of endpoints are most of a rank's environment. Only if all starts have the same names in the
/// same order, each once: otherwise a later value of a name would lose to an earlier one.
fn alike(starts: &[Start]) -> Vec<bool> {
    let [first, others @ ..] = starts else { return Vec::new() };
    let env = &first.process.env;
    let same_names = |other: &Start| {
        let names = other.process.env.iter().map(|(name, _)| name);
        names.eq(env.iter().map(|(name, _)| name))
    };
    let mut names: Vec<&String> = env.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    let is_unique = names.windows(2).all(|pair| pair[0] != pair[1]);
    if others.is_empty() || !is_unique || !others.iter().all(same_names) {
        return Vec::new();
    }
    let is_alike = |(position, (_, value)): (usize, &(String, String))| {
        value.len() > LONG && others.iter().all(|other| other.process.env[position].1 == *value)
    };
    env.iter().enumerate().map(is_alike).collect()
}

/// Returns the limits of an attempt, if it has any. The guardian skips memory limits on hosts that cannot set them.
fn limits(start: Start) -> Option<ProcessLimits> {
    let cpus = if start.bound { start.process.cpus } else { Vec::new() };
    let memory = start.process.memory.map(|memory| MemoryLimit { name: memory.name, bytes: memory.bytes });
    (memory.is_some() || !cpus.is_empty()).then(|| ProcessLimits { key: key(start.id), cpus, memory })
}

fn not_started(isolate: bool, error: &std::io::Error) -> Diagnostic {
    if !isolate {
        return Diagnostic::failed("start the guardian", error);
    }
    Diagnostic::error(Code::L0028, "`--isolate` is not permitted here")
        .row("reason", error.to_string())
        .hint("run as root, allow user namespaces, or omit `--isolate`")
}

fn not_free(fixed: &FixedPort<'_>, error: &std::io::Error) -> Diagnostic {
    let FixedPort { role, name, port, .. } = fixed;
    let text = format!("port {port} (`{name}` of role `{role}`) is not available on this host");
    let hint = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "another process listens on it (`ss -ltnp sport = :{port}` shows which), or the role names it twice"
        ),
        ErrorKind::PermissionDenied => format!("port {port} is privileged; use a port above 1023"),
        _ => "use another port, or omit it to get a free one".to_owned(),
    };
    Diagnostic::error(Code::J0020, text).row("reason", error.to_string()).hint(hint)
}

fn stage(doing: SpawnAction) -> SpawnStage {
    match doing {
        SpawnAction::Fork => SpawnStage::Fork,
        SpawnAction::OpenLog => SpawnStage::OpenLog,
        SpawnAction::OpenStdin => SpawnStage::OpenStdin,
        SpawnAction::ChangeDirectory => SpawnStage::ChangeDirectory,
        SpawnAction::LimitMemory => SpawnStage::LimitMemory,
        SpawnAction::BindCpus => SpawnStage::BindCpus,
        SpawnAction::Mount => SpawnStage::Mount,
        SpawnAction::Execute => SpawnStage::Execute,
    }
}

/// A mount for the kernel.
pub(crate) fn bound(mount: &Mount) -> BoundDirectory {
    BoundDirectory { source: mount.dir.clone(), target: mount.path.clone(), read_only: mount.read_only }
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

fn attempt(key: ProcessKey) -> AttemptId {
    let slot = Slot { role: key.role, index: key.index };
    AttemptId { step: StepIndex(key.job), slot, attempt: key.attempt }
}

fn key(id: AttemptId) -> ProcessKey {
    ProcessKey { job: id.step.0, role: id.slot.role, index: id.slot.index, attempt: id.attempt }
}

fn keys(ids: &[AttemptId]) -> Vec<ProcessKey> {
    ids.iter().copied().map(key).collect()
}

pub(crate) fn too_few_addresses(needed: u32, free: usize) -> Diagnostic {
    let error = Diagnostic::error(Code::J0020, "not enough free loopback addresses")
        .row("needed", needed.to_string())
        .row("free", free.to_string());
    reserved_by(error, &umiak_sys::addresses::holders()).hint("stop other runs on this host, or start fewer replicas")
}

/// The arguments of a process, and what it reads from a descriptor: the line of a shell, if it is a secret.
fn line_of(process: &Process) -> (PathBuf, Vec<Vec<u8>>, Vec<u8>) {
    let mut argv: Vec<Vec<u8>> = process.argv.iter().map(|word| word.as_bytes().to_vec()).collect();
    let mut script = Vec::new();
    if let Some(line) = process.shell_line().filter(|_| process.is_secret) {
        script = [format!("exec {SCRIPT}<&-;").as_bytes(), line.as_bytes()].concat();
        argv.truncate(2);
        argv.push(format!(". /proc/self/fd/{SCRIPT}").into_bytes());
    }
    let mut program = process.program.clone();
    if let Some(Remote::Worker { sockets, host }) = &process.remote {
        argv[0] = bytes(&program);
        program = std::env::current_exe().unwrap_or_else(|_| "umiak".into());
        let words = ["umiak", "rshd", "--host", &host.to_string(), "--sockets"].map(|word| word.as_bytes().to_vec());
        argv.splice(0..0, words.into_iter().chain([bytes(sockets), b"--".to_vec()]));
    }
    (program, argv, script)
}

#[cfg(test)]
mod tests {
    use umiak_core::plan::Log;

    use super::*;

    fn start(index: u32, env: &[(&str, &str)]) -> Start {
        let process = Process {
            program: PathBuf::new(),
            argv: Vec::new(),
            is_secret: false,
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            dir: None,
            linked: None,
            log: Log::new(PathBuf::new()),
            error_file: PathBuf::new(),
            inherit_stdin: false,
            cpus: Vec::new(),
            memory: None,
            mounts: Vec::new(),
            remote: None,
        };
        let id = AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt: 1 };
        Start { id, of_job: 1, retries: 0, process, bound: false }
    }

    #[test]
    fn what_all_have_alike_is_sent_once() {
        let list = "127.0.0.1:6170,".repeat(8);
        let list = list.as_str();
        let ranks =
            |second: &[(&str, &str)]| vec![start(0, &[("ALL", list), ("RANK", "0"), ("SIZE", "2")]), start(1, second)];
        assert_eq!(alike(&ranks(&[("ALL", list), ("RANK", "1"), ("SIZE", "2")])), [true, false, false]);
        assert_eq!(alike(&ranks(&[("RANK", "1"), ("ALL", list), ("SIZE", "2")])), Vec::<bool>::new(), "other order");
        assert_eq!(alike(&ranks(&[("ALL", list)])), Vec::<bool>::new(), "fewer");
        assert_eq!(alike(&ranks(&[("ALL", list)])[..1]), Vec::<bool>::new(), "one alone");
        let twice = [("X", "1"), ("X", list)];
        assert_eq!(alike(&[start(0, &twice), start(1, &twice)]), Vec::<bool>::new(), "the later one counts");
    }
}
