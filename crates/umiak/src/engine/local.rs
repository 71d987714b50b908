//! The local engine: processes of this host, which the guardian holds.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Usage;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Device, Endpoint, Exit, Port, Role, Slot, SpawnError};
use umiak_core::plan::document::{Granted, Needs};
use umiak_core::plan::{self, Plan};
use umiak_sys::descend;
use umiak_sys::guardian::{self, Guardian};
use umiak_sys::net::Connecting;
use umiak_sys::ports::{LeaseError, LeaseRequest, Place};
use umiak_sys::protocol::{Batch, Command, Key, Limits, Memory, Notice, Process};

use super::{Engine, Kind, News, Start, Swept};

/// How long what is left may resist SIGKILL before it is reported and left.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a port may take to say yes or no before it is asked anew: it is on this host.
const CONNECT: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Local {
    guardian: Guardian,
    /// It has ended; what it held is gone.
    gone: bool,
    /// Its end has been asked for, and has not been told yet.
    ending: bool,
    grace: Duration,
    isolated: bool,
    /// News that came while something else was waited for.
    early: Vec<Notice>,
    /// Of those whose ports do not all answer yet.
    knocks: BTreeMap<AttemptId, Knock>,
    /// Put into every environment.
    common: Vec<(String, String)>,
    unset: Vec<String>,
}

/// How far the ports of one attempt have answered. One is asked at a time, and nobody waits for what it says.
#[derive(Debug, Default)]
struct Knock {
    answered: usize,
    asking: Option<(Connecting, Instant)>,
}

impl Knock {
    fn answers(&mut self, endpoints: &[Endpoint]) -> bool {
        while let Some(endpoint) = endpoints.get(self.answered) {
            let address = SocketAddr::new(endpoint.address, endpoint.port.get());
            let begin = || Some((Connecting::begin(address).ok()?, Instant::now()));
            let Some((connection, since)) = self.asking.take().or_else(begin) else { return false };
            match connection.is_made() {
                Ok(true) => self.answered += 1,
                Ok(false) if since.elapsed() < CONNECT => {
                    self.asking = Some((connection, since));
                    return false;
                }
                Ok(false) | Err(_) => return false,
            }
        }
        true
    }
}

impl Local {
    /// `environment` is what replicas are given on top of, which need not be ours: a run that is taken up again has the
    /// one it was submitted with.
    pub(crate) fn new(guardian: Guardian, isolated: bool, environment: &BTreeMap<String, String>) -> Self {
        let ours = crate::runtime::environment();
        let unset = ours.keys().filter(|name| !environment.contains_key(*name)).cloned().collect();
        let differs = |(name, value): &(&String, &String)| ours.get(*name) != Some(*value);
        let common = environment.iter().filter(differs).map(|(name, value)| (name.clone(), value.clone())).collect();
        let grace = Duration::from_secs(5);
        let (early, knocks) = (Vec::new(), BTreeMap::new());
        Self { guardian, gone: false, ending: false, grace, isolated, early, knocks, common, unset }
    }

    /// A guardian that is gone shows itself at its socket.
    fn send(&mut self, command: &Command) {
        let _ = self.guardian.send(command);
    }

    /// Sends a command and waits for its answer.
    fn ask<T>(&mut self, command: &Command, answer: impl Fn(&Notice) -> Option<T>) -> Option<T> {
        self.send(command);
        loop {
            let Ok(Some(notices)) = self.guardian.receive() else {
                self.gone = true;
                return None;
            };
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

    fn tell(&self, notice: &Notice) -> Option<News> {
        match *notice {
            Notice::Spawned { key, pid } => {
                // A namespace has numbers of its own; people want the ones that `ps` shows them.
                let outer = self.isolated.then(|| descend::outer_pid(self.guardian.pid, pid)).flatten();
                Some(News::Started { id: attempt(key), pid: outer.unwrap_or(pid) })
            }
            Notice::Exited { .. } | Notice::SpawnFailed { .. } => {
                let over_limit = matches!(notice, Notice::Exited { over_limit: true, .. });
                ended(notice).map(|(id, exit, usage)| News::Ended { id, exit, usage, over_limit })
            }
            Notice::Cleared { ref stopped, ref remaining } => {
                Some(News::Cleared(Swept { stopped: stopped.clone(), remaining: remaining.clone() }))
            }
            Notice::Swept { ref stopped, ref remaining } => {
                Some(News::Swept(Swept { stopped: stopped.clone(), remaining: remaining.clone() }))
            }
            Notice::Leased(_) | Notice::Addresses(_) | Notice::Gpus(_) => None,
        }
    }

    fn lose(&mut self) -> News {
        self.gone = true;
        if self.ending {
            self.guardian.wait();
        }
        // What replicas had started has come to us.
        let sweep = descend::sweep(self.grace, PATIENCE, &[]);
        self.guardian.remove_cgroups();
        if self.ending {
            return News::Swept(Swept { stopped: sweep.stopped, remaining: sweep.remaining });
        }
        News::Lost
    }
}

impl Engine for Local {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn lease(&mut self, needs: &Needs) -> Result<Granted, Diagnostic> {
        let count = u16::try_from(needs.ports).map_err(|_| too_many_ports(needs.ports))?;
        let addresses = Command::LeaseAddresses { count: needs.addresses, seed: fastrand::u64(..) };
        let addresses = self.ask(&addresses, |notice| match notice {
            Notice::Addresses(addresses) => Some(addresses.clone()),
            _ => None,
        });
        let addresses = addresses.ok_or_else(lost)?;
        if (addresses.len() as u32) < needs.addresses {
            return Err(too_few_addresses(needs.addresses, addresses.len()));
        }
        let addresses = addresses.into_iter().map(IpAddr::V4).collect();
        if count == 0 {
            return Ok(Granted { addresses, ports: Vec::new() });
        }
        let request = LeaseRequest { count, place: Place::Anywhere, seed: fastrand::u64(..) };
        let leased = self.ask(&Command::Lease(request), |notice| match notice {
            Notice::Leased(leased) => Some(leased.clone()),
            _ => None,
        });
        match leased.ok_or_else(lost)? {
            Ok(leased) => Ok(Granted { addresses, ports: leased.ports.into_iter().filter_map(Port::new).collect() }),
            Err(error) => Err(too_few_ports(&error)),
        }
    }

    fn prepare(&mut self, plan: &Plan) -> Result<(), Diagnostic> {
        check_fixed_ports(plan)?;
        self.common.extend(plan.common.iter().cloned());
        let graces = plan.job.roles.iter().filter_map(|role| role.grace);
        self.grace = graces.chain([plan.job.policy.stop.grace]).max().unwrap_or(self.grace);
        self.send(&Command::Grace { millis: self.grace.as_millis() as u64 });
        self.send(&Command::RemoveAtEnd(vec![bytes(&plan.scratch)]));
        Ok(())
    }

    fn lease_devices(&mut self, candidates: &[(u32, Device)], count: u32) -> Vec<Device> {
        let minors = candidates.iter().map(|(minor, _)| *minor).collect();
        let held = self.ask(&Command::LeaseGpus { candidates: minors, count }, |notice| match notice {
            Notice::Gpus(minors) => Some(minors.clone()),
            _ => None,
        });
        let held = held.unwrap_or_default();
        candidates.iter().filter(|(minor, _)| held.contains(minor)).map(|(_, device)| device.clone()).collect()
    }

    fn start(&mut self, starts: Vec<Start>) {
        let variables = |variables: &[(String, String)]| {
            variables.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
        };
        let processes = starts
            .iter()
            .map(|start| Process {
                key: key(start.id),
                program: bytes(&start.process.program),
                argv: start.process.argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
                env: variables(&start.process.env),
                dir: start.process.dir.as_deref().map(bytes).unwrap_or_default(),
                log: bytes(&start.process.log.path),
                cpus: Vec::new(),
                inherit_stdin: start.process.inherit_stdin,
            })
            .collect();
        let limits: Vec<Limits> = starts.into_iter().filter_map(limits).collect();
        if !limits.is_empty() {
            self.send(&Command::Limit(limits));
        }
        let unset = self.unset.iter().map(|name| name.as_bytes().to_vec()).collect();
        let batch = Batch { unset, set: variables(&self.common), rotate: None, processes };
        self.send(&Command::Spawn(batch));
    }

    fn signal(&mut self, signal: i32, targets: &[AttemptId]) {
        self.send(&Command::Signal { signal, keys: targets.iter().map(|id| key(*id)).collect() });
    }

    fn forsake(&mut self, targets: &[AttemptId]) {
        self.send(&Command::Forsake(targets.iter().map(|id| key(*id)).collect()));
    }

    fn watch(&self) -> BorrowedFd<'_> {
        self.guardian.as_fd()
    }

    fn news(&mut self) -> Vec<News> {
        let mut notices = std::mem::take(&mut self.early);
        let mut lost = false;
        if !self.gone {
            match self.guardian.receive() {
                Ok(Some(more)) => notices.extend(more),
                Ok(None) | Err(_) => lost = true,
            }
        }
        let mut news: Vec<News> = notices.iter().filter_map(|notice| self.tell(notice)).collect();
        for news in &news {
            if let News::Ended { id, .. } = news {
                self.knocks.remove(id);
            }
        }
        if self.ending && !self.gone && news.iter().any(|news| matches!(news, News::Swept(_))) {
            self.gone = true;
            self.guardian.wait();
            return news;
        }
        if lost {
            news.push(self.lose());
        }
        news
    }

    fn answers(&mut self, id: AttemptId, endpoints: &[Endpoint]) -> bool {
        let answers = self.knocks.entry(id).or_default().answers(endpoints);
        if answers {
            self.knocks.remove(&id);
        }
        answers
    }

    fn clear(&mut self) {
        self.send(&Command::Clear { keep_ports: true });
    }

    fn end(&mut self, patient: bool) {
        self.ending = true;
        if self.gone {
            // Nobody is left to say so. The socket's end stays readable.
            self.early.push(Notice::Swept { stopped: Vec::new(), remaining: Vec::new() });
        } else {
            self.send(&Command::Finish { patient });
        }
    }
}

/// What it is held to, if to anything. Where no limits of memory can be set, the guardian sets none.
fn limits(start: Start) -> Option<Limits> {
    let plan::Process { memory, cpus, .. } = start.process;
    let memory = memory.map(|memory| Memory { name: memory.name, bytes: memory.bytes });
    (memory.is_some() || !cpus.is_empty()).then(|| Limits { key: key(start.id), cpus, memory })
}

/// A port that the document names is free on the replica's own address, unless somebody has it on all addresses. Then the
/// replica could not have it, and worse: that one would answer in its place, and it would be taken for ready.
fn check_fixed_ports(plan: &Plan) -> Result<(), Diagnostic> {
    for replica in &plan.replicas {
        let role = plan.role(replica.slot);
        let fixed = role.work.ports.iter().zip(&replica.ports).filter(|(need, _)| need.fixed.is_some());
        let mut held = Vec::new();
        for (need, (_, ports)) in fixed {
            for port in ports.iter().map(|port| port.get()) {
                match TcpListener::bind((replica.host, port)) {
                    Ok(listener) => held.push(listener),
                    Err(error) => return Err(not_free(role, &need.name, port, &error)),
                }
            }
        }
    }
    Ok(())
}

fn not_free(role: &Role, name: &str, port: u16, error: &std::io::Error) -> Diagnostic {
    let text = format!("port {port} (`{name}` of role `{}`) cannot be had on this host", role.name);
    let hint = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "somebody listens on it on all addresses (`ss -ltnp sport = :{port}` shows who), or two names of the role have it"
        ),
        ErrorKind::PermissionDenied => "ports below 1024 are not for everybody: name another".to_owned(),
        _ => "name another, or none to be given a free one".to_owned(),
    };
    Diagnostic::error(Code::J0020, text).row("reason", error.to_string()).hint(hint)
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Who has ended, and how, where the guardian says so.
pub(crate) fn ended(notice: &Notice) -> Option<(AttemptId, Exit, Option<Usage>)> {
    match *notice {
        Notice::Exited { key, status, usage, .. } => {
            let exit = match guardian::decode(status) {
                guardian::Status::Code(code) => Exit::Code { code },
                guardian::Status::Signal { signal, core_dumped } => Exit::Signal { signal, core_dumped },
            };
            let usage = Usage {
                user_micros: usage.user_micros,
                system_micros: usage.system_micros,
                max_rss_kib: usage.max_rss_kib,
            };
            Some((attempt(key), exit, Some(usage)))
        }
        Notice::SpawnFailed { key, doing, errno } => {
            let reason = guardian::describe_errno(errno);
            let error = SpawnError { doing: doing.words().to_owned(), errno, reason };
            Some((attempt(key), Exit::Spawn(error), None))
        }
        _ => None,
    }
}

pub(crate) fn attempt(key: Key) -> AttemptId {
    AttemptId { slot: Slot { role: key.role, index: key.index }, attempt: key.attempt }
}

pub(crate) fn key(id: AttemptId) -> Key {
    Key { role: id.slot.role, index: id.slot.index, attempt: id.attempt }
}

fn lost() -> Diagnostic {
    Diagnostic::error(Code::L0017, "the process that was to hold the replicas was killed from outside")
        .hint("look for who sent SIGKILL: the kernel's log tells of memory, `last` and `ps` of people")
}

pub(crate) fn too_few_addresses(needed: u32, free: usize) -> Diagnostic {
    Diagnostic::error(Code::J0020, "too few loopback addresses are free")
        .row("needed", needed.to_string())
        .row("free", free.to_string())
        .hint("end other runs on this host, or start fewer replicas")
}

pub(crate) fn too_many_ports(ports: u32) -> Diagnostic {
    Diagnostic::error(Code::J0020, format!("{ports} ports on one host are more than there are"))
        .hint("start fewer replicas, or name fewer ports")
}

pub(crate) fn too_few_ports(error: &LeaseError) -> Diagnostic {
    let diagnostic = match error.refused {
        Some(errno) => {
            Diagnostic::error(Code::J0020, "the kernel gives this process no more sockets to hold ports with")
                .row("reason", guardian::describe_errno(errno))
                .hint("raise the limit of open files with `ulimit -n`, or start fewer replicas")
        }
        None => Diagnostic::error(Code::J0020, "too few free ports on this host")
            .row("free", format!("{} between {} and {}", error.found, error.low, error.high))
            .hint("end what uses them, or start fewer replicas"),
    };
    diagnostic.row("needed", error.wanted.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn ports_answer_one_after_the_other() {
        let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let (first, second) = (listen(0), listen(0));
        let endpoint = |listener: &TcpListener| Endpoint {
            address: Ipv4Addr::LOCALHOST.into(),
            port: Port::new(listener.local_addr().unwrap().port()).unwrap(),
        };
        let endpoints = [endpoint(&first), endpoint(&second)];
        drop(second);
        let mut knock = Knock::default();
        let deadline = Instant::now() + Duration::from_secs(10);
        while knock.answered == 0 && Instant::now() < deadline {
            assert!(!knock.answers(&endpoints));
        }
        // Who has answered is not asked again.
        first.accept().unwrap();
        first.set_nonblocking(true).unwrap();
        assert!(!knock.answers(&endpoints) && !knock.answers(&endpoints));
        assert_eq!(first.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let _second = listen(endpoints[1].port.get());
        while !knock.answers(&endpoints) {
            assert!(Instant::now() < deadline, "it never answers");
        }
    }
}
