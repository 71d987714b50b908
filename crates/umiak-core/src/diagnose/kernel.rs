//! What the kernel's log and counters say about processes that have ended.
//!
//! The caller reads them; this module parses lines and assigns them to processes. OOM kills name the process. Faults
//! name the *thread*: the id of a main thread is the rank's pid, and other threads are matched by the time and kind of
//! the fault.

use super::signatures::{self, Signature};
use crate::facts::{Evidence, FaultKind, KernelFact, OomScope};
use crate::model::Exit;

const SIGILL: i32 = 4;
const SIGBUS: i32 = 7;
const SIGFPE: i32 = 8;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;

/// A fault of a thread that is not a main thread is assigned to a rank only if it is this recent.
const RECENT_MICROS: u64 = 10_000_000;
/// "No limit" is written as a number near this one.
const UNLIMITED_KIB: u64 = 1 << 50;

/// One record of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// The kernel's time stamp.
    pub micros: u64,
    pub message: String,
}

/// Kernel data that could be read since the run began.
#[derive(Debug, Clone, Default)]
pub struct Account {
    pub log: Vec<LogRecord>,
    /// The kernel's time when the log was read.
    pub now_micros: u64,
    /// How many processes of our cgroup the OOM killer has killed; 0 if unknown.
    pub memory_kills: u64,
    /// The limit of our cgroup: the kernel does not log every kill.
    pub limit_kib: Option<u64>,
}

/// A rank that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Death<'a> {
    pub pid: u32,
    pub exit: &'a Exit,
    /// We had sent it a signal.
    pub stopped: bool,
}

/// Adds a fact to a rank's evidence. If the evidence has no signature, it gets that of the fact, with a hint.
pub fn add(evidence: &mut Evidence, fact: KernelFact) {
    let code = match fact {
        KernelFact::OomKilled { .. } => Some("U3103"),
        KernelFact::SharedMemoryFull { .. } => Some("U3104"),
        KernelFact::DiskFull { .. } => Some("U1203"),
        KernelFact::MemoryKills { .. } | KernelFact::Fault { .. } | KernelFact::CoreDumped { .. } => None,
    };
    // A full device causes a bus error; the fact is the more specific signature.
    if evidence.signature.as_ref().is_none_or(|known| code.is_some() && known.code == signatures::BUS_ERROR) {
        evidence.signature = code.and_then(signatures::explain).map(Signature::to_match);
    }
    evidence.kernel.push(fact);
}

/// Records an OOM kill by the limit of the replica's own cgroup. A fact about a kill by a cgroup's limit describes the
/// same kill.
pub fn add_over_limit(evidence: &mut Evidence, limit_kib: u64) {
    for fact in &mut evidence.kernel {
        if let KernelFact::OomKilled { scope: scope @ OomScope::Cgroup, limit_kib: limit, resident_kib, .. } = fact {
            (*scope, *limit) = (OomScope::Replica, Some(limit_kib));
            // All processes of a replica are killed together, and the number may be that of a shell, which uses little.
            *resident_kib = resident_kib.filter(|held| held.saturating_mul(2) >= limit_kib);
            return;
        }
    }
    let (scope, limit_kib) = (OomScope::Replica, Some(limit_kib));
    evidence.kernel.retain(|fact| !matches!(fact, KernelFact::MemoryKills { .. }));
    add(evidence, KernelFact::OomKilled { scope, named: false, resident_kib: None, limit_kib, cgroup: None });
}

/// Returns the facts about each of `deaths`, in their order.
pub fn attribute(deaths: &[Death<'_>], account: &Account) -> Vec<Vec<KernelFact>> {
    let log = parse(&account.log);
    let mut facts: Vec<Vec<KernelFact>> = deaths
        .iter()
        .map(|death| {
            let kills = log.kills.iter().filter(|(pid, _)| *pid == death.pid && death.signal() == Some(SIGKILL));
            let faults = log.faults.iter().filter(|fault| fault.task == death.pid && death.fits(fault.kind));
            kills.map(|(_, kill)| kill.clone()).chain(faults.map(|fault| fault.fact(None))).collect()
        })
        .collect();
    count_kills(deaths, account.memory_kills, &log, &mut facts);
    find_thread(deaths, account.now_micros, &log, &mut facts);
    for fact in facts.iter_mut().flatten() {
        if let KernelFact::OomKilled { scope: OomScope::Cgroup, limit_kib, .. } = fact {
            *limit_kib = limit_kib.or(account.limit_kib);
        }
    }
    facts
}

/// If the log does not name a process that ended by SIGKILL, the cgroup's counter may still show the kill: the log may
/// be unreadable, or a shell may pass on the exit of its child.
fn count_kills(deaths: &[Death<'_>], memory_kills: u64, log: &Log, facts: &mut [Vec<KernelFact>]) {
    let named = facts.iter().filter(|facts| !facts.is_empty()).count() as u64;
    let left = memory_kills.saturating_sub(named);
    let candidates: Vec<usize> = (0..deaths.len())
        .filter(|index| facts[*index].is_empty() && deaths[*index].signal() == Some(SIGKILL) && !deaths[*index].stopped)
        .collect();
    if left == 0 {
        return;
    }
    let strangers: Vec<&KernelFact> = log
        .kills
        .iter()
        .filter(|(pid, _)| deaths.iter().all(|death| death.pid != *pid))
        .map(|(_, kill)| kill)
        .collect();
    for index in &candidates {
        let fact = match (candidates.len() as u64 <= left, candidates.len(), strangers.as_slice()) {
            (false, ..) => KernelFact::MemoryKills { count: left },
            // One process was killed and one rank ended: the numbers belong together.
            (true, 1, [KernelFact::OomKilled { scope, resident_kib, limit_kib, cgroup, .. }]) => {
                let (scope, cgroup) = (*scope, cgroup.clone());
                KernelFact::OomKilled {
                    scope,
                    named: false,
                    resident_kib: *resident_kib,
                    limit_kib: *limit_kib,
                    cgroup,
                }
            }
            (true, ..) => KernelFact::OomKilled {
                scope: OomScope::Cgroup,
                named: false,
                resident_kib: None,
                limit_kib: None,
                cgroup: None,
            },
        };
        facts[*index].push(fact);
    }
}

/// Assigns a fault of another thread, only if there is one such fault and one rank that it can belong to.
fn find_thread(deaths: &[Death<'_>], now_micros: u64, log: &Log, facts: &mut [Vec<KernelFact>]) {
    for kind in [FaultKind::Segmentation, FaultKind::GeneralProtection, FaultKind::InvalidOpcode, FaultKind::Divide] {
        let faults: Vec<&Fault> = log
            .faults
            .iter()
            .filter(|fault| fault.kind == kind && deaths.iter().all(|death| death.pid != fault.task))
            .filter(|fault| fault.micros + RECENT_MICROS >= now_micros)
            .collect();
        let candidates: Vec<usize> =
            (0..deaths.len()).filter(|index| facts[*index].is_empty() && deaths[*index].fits(kind)).collect();
        if let ([fault], [index]) = (faults.as_slice(), candidates.as_slice()) {
            facts[*index].push(fault.fact(Some(fault.task)));
        }
    }
}

impl Death<'_> {
    fn signal(&self) -> Option<i32> {
        self.exit.signal()
    }

    /// True if the signal that ended it is the one that such a fault causes.
    fn fits(&self, kind: FaultKind) -> bool {
        match kind {
            FaultKind::Segmentation | FaultKind::GeneralProtection => self.signal() == Some(SIGSEGV),
            FaultKind::InvalidOpcode => self.signal() == Some(SIGILL),
            FaultKind::Divide => self.signal() == Some(SIGFPE),
            FaultKind::HardwareMemory => self.signal() == Some(SIGBUS),
            FaultKind::Other => self.signal().is_some_and(|signal| signal != SIGKILL),
        }
    }
}

/// The parsed lines, by the pid or thread id that they name.
#[derive(Debug, Default)]
struct Log {
    kills: Vec<(u32, KernelFact)>,
    faults: Vec<Fault>,
}

#[derive(Debug)]
struct Fault {
    task: u32,
    micros: u64,
    kind: FaultKind,
    address: Option<String>,
    instruction: Option<String>,
    object: Option<String>,
}

impl Fault {
    fn fact(&self, thread: Option<u32>) -> KernelFact {
        let (address, instruction, object) = (self.address.clone(), self.instruction.clone(), self.object.clone());
        KernelFact::Fault { kind: self.kind, address, instruction, object, thread }
    }
}

/// True if [`attribute`] may need this line. Most lines are not needed and are not kept.
pub fn is_of_interest(message: &str) -> bool {
    const WORDS: [&str; 8] = [
        "Killed process ",
        "oom-kill:",
        "invoked oom-killer",
        "memory: usage ",
        "]: segfault at ",
        "traps: ",
        "hardware memory corruption",
        "Kill process ",
    ];
    WORDS.iter().any(|word| message.contains(word))
}

fn parse(records: &[LogRecord]) -> Log {
    let mut log = Log::default();
    // The limit is between `invoked oom-killer` and the line that names the victim.
    let mut limit = None;
    let mut announced = "";
    for record in records {
        let message = record.message.as_str();
        if message.contains("invoked oom-killer") {
            limit = None;
        } else if let Some(rest) = message.strip_prefix("memory: usage ") {
            limit = rest.split_once("limit ").and_then(|(_, rest)| kib(rest)).filter(|limit| *limit < UNLIMITED_KIB);
        } else if let Some(rest) = message.strip_prefix("oom-kill:") {
            log.summary(rest, limit.take());
        } else if let Some((before, _)) = message.split_once("Kill process ") {
            // Before Linux 5.1 the reason was on a separate line.
            announced = before;
        } else if let Some((before, rest)) = message.split_once("Killed process ") {
            let reason = if before.is_empty() { std::mem::take(&mut announced) } else { before };
            log.killed(reason, rest);
        } else if let Some(fault) = fault(message, record.micros) {
            log.faults.push(fault);
        }
    }
    log
}

impl Log {
    /// `constraint=CONSTRAINT_MEMCG,…,oom_memcg=/job,task_memcg=/job,task=python3,pid=16556,uid=0`, since Linux 5.0.
    fn summary(&mut self, rest: &str, limit_kib: Option<u64>) {
        // The task's name may contain anything, so the number is searched from the end.
        let Some(pid) = rest.rsplit_once(",pid=").and_then(|(_, rest)| number(rest)) else { return };
        let scope = match rest.strip_prefix("constraint=").and_then(|rest| rest.split(',').next()) {
            Some("CONSTRAINT_MEMCG") => OomScope::Cgroup,
            Some("CONSTRAINT_CPUSET" | "CONSTRAINT_MEMORY_POLICY") => OomScope::Nodes,
            _ => OomScope::Host,
        };
        let cgroup = rest.split_once("oom_memcg=").and_then(|(_, rest)| rest.split(',').next()).map(str::to_owned);
        let limit_kib = limit_kib.filter(|_| scope == OomScope::Cgroup);
        self.kills.push((pid, KernelFact::OomKilled { scope, named: true, resident_kib: None, limit_kib, cgroup }));
    }

    /// `16556 (python3) total-vm:118956kB, anon-rss:20224kB, file-rss:6628kB, shmem-rss:0kB, …`, with the reason before.
    fn killed(&mut self, before: &str, rest: &str) {
        let Some(pid) = number(rest) else { return };
        let parts = ["anon-rss:", "file-rss:", "shmem-rss:"];
        let parts: Vec<u64> =
            parts.iter().filter_map(|part| rest.rsplit_once(part).and_then(|(_, rest)| kib(rest))).collect();
        let resident = (!parts.is_empty()).then(|| parts.iter().sum());
        if let Some((_, KernelFact::OomKilled { resident_kib, .. })) =
            self.kills.iter_mut().rev().find(|(other, _)| *other == pid)
        {
            *resident_kib = resident;
            return;
        }
        let scope = if before.contains("Memory cgroup") { OomScope::Cgroup } else { OomScope::Host };
        let kill = KernelFact::OomKilled { scope, named: true, resident_kib: resident, limit_kib: None, cgroup: None };
        self.kills.push((pid, kill));
    }
}

fn fault(message: &str, micros: u64) -> Option<Fault> {
    // `python3[4121]: segfault at 10 ip 00007f… sp 00007f… error 4 in libfoo.so[7f…+1000] likely on CPU 1 …`
    if let Some((before, rest)) = message.split_once("]: segfault at ") {
        let task = number(before.rsplit_once('[')?.1)?;
        let mut words = rest.split(' ');
        let address = words.next().and_then(hexadecimal);
        let instruction = rest.split_once(" ip ").and_then(|(_, rest)| rest.split(' ').next()).and_then(hexadecimal);
        let kind = FaultKind::Segmentation;
        return Some(Fault { task, micros, kind, address, instruction, object: object(rest) });
    }
    // `traps: python3[16528] trap invalid opcode ip:557b… sp:7ffc… error:0 in libfoo.so[113a,557b…+1000]`
    if let Some(rest) = message.strip_prefix("traps: ") {
        let (before, rest) = rest.split_once("] ")?;
        let task = number(before.rsplit_once('[')?.1)?;
        let (what, rest) = rest.split_once(" ip:")?;
        let kind = match what.trim_start_matches("trap ") {
            "general protection fault" | "general protection" => FaultKind::GeneralProtection,
            "invalid opcode" => FaultKind::InvalidOpcode,
            "divide error" => FaultKind::Divide,
            _ => FaultKind::Other,
        };
        let instruction = rest.split(' ').next().and_then(hexadecimal);
        return Some(Fault { task, micros, kind, address: None, instruction, object: object(rest) });
    }
    // `MCE: Killing python3:4121 due to hardware memory corruption fault at 7f…`
    let (before, rest) = message.split_once(" due to hardware memory corruption")?;
    let task = number(before.rsplit_once(':')?.1)?;
    let address = rest.strip_prefix(" fault at ").and_then(hexadecimal);
    Some(Fault { task, micros, kind: FaultKind::HardwareMemory, address, instruction: None, object: None })
}

/// `libfoo.so` of `… in libfoo.so[7f00+1000] …`.
fn object(rest: &str) -> Option<String> {
    let (_, rest) = rest.split_once(" in ")?;
    let (name, _) = rest.split_once('[')?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The digits that the text begins with.
fn number(text: &str) -> Option<u32> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// `20480kB, …`
fn kib(text: &str) -> Option<u64> {
    text.split_once("kB")?.0.parse().ok()
}

/// `00007f12` as `0x7f12`.
fn hexadecimal(text: &str) -> Option<String> {
    let end = text.find(|character: char| !character.is_ascii_hexdigit()).unwrap_or(text.len());
    u64::from_str_radix(&text[..end], 16).ok().map(|value| format!("{value:#x}"))
}

/// `1.5 GiB`, `12 MiB`, `4 KiB`.
pub fn size(kib: u64) -> String {
    const STEP: u64 = 1 << 10;
    let tenths = |unit: u64| format!("{}.{}", kib / unit, kib % unit * 10 / unit);
    match kib {
        0..STEP => format!("{kib} KiB"),
        STEP..0x10_0000 => format!("{} MiB", kib / STEP),
        _ => format!("{} GiB", tenths(STEP * STEP)),
    }
}

impl KernelFact {
    /// A description for users.
    pub fn describe(&self) -> String {
        match self {
            Self::OomKilled { scope, named, resident_kib, limit_kib, .. } => {
                let mut details: Vec<String> = Vec::new();
                details.extend(resident_kib.map(|held| format!("it used {}", size(held))));
                match (scope, limit_kib) {
                    (OomScope::Cgroup, Some(limit)) => {
                        details.push(format!("its cgroup limit is {}", size(*limit)));
                    }
                    (OomScope::Cgroup, None) => details.push("its cgroup limit was reached".to_owned()),
                    (OomScope::Replica, Some(limit)) => {
                        details.push(format!("it exceeded its limit of {}", size(*limit)));
                    }
                    (OomScope::Replica, None) => details.push("it exceeded its limit".to_owned()),
                    (OomScope::Host, _) => details.push("the host was out of memory".to_owned()),
                    (OomScope::Nodes, _) => details.push("the NUMA nodes it may use were out of memory".to_owned()),
                }
                let killed = if *named { "it" } else { "it or one of its processes" };
                format!("the OOM killer killed {killed} ({})", details.join("; "))
            }
            Self::MemoryKills { count } => {
                let processes = if *count == 1 { "process" } else { "processes" };
                format!("the OOM killer killed {count} {processes} of this cgroup during the run")
            }
            Self::Fault { kind, address, instruction, object, thread } => {
                let kind = match kind {
                    FaultKind::Segmentation => "segmentation fault",
                    FaultKind::GeneralProtection => "general protection fault",
                    FaultKind::InvalidOpcode => "illegal instruction",
                    FaultKind::Divide => "division error",
                    FaultKind::HardwareMemory => "hardware memory error",
                    FaultKind::Other => "fault",
                };
                let part = |word: &str, value: &Option<String>| {
                    value.as_ref().map(|value| format!(" {word} {value}")).unwrap_or_default()
                };
                let instruction = if address.is_some() { &None } else { instruction };
                let thread = thread.map(|thread| format!(", thread {thread}")).unwrap_or_default();
                format!(
                    "{kind}{}{}{}{thread}",
                    part("at", address),
                    part("at instruction", instruction),
                    part("in", object)
                )
            }
            Self::CoreDumped { path: Some(path), .. } => format!("core dumped: {path}"),
            Self::CoreDumped { pattern, path: None } => match pattern.strip_prefix('|') {
                Some(handler) => {
                    let program = handler.split(' ').next().unwrap_or(handler);
                    format!("core dumped, passed to `{program}`")
                }
                None => format!("core dumped, with `core_pattern` `{pattern}`"),
            },
            Self::SharedMemoryFull { path, free_bytes } => {
                format!(
                    "{path} is full ({} free): writing to shared memory there causes SIGBUS",
                    size(free_bytes / 1024)
                )
            }
            Self::DiskFull { path, free_bytes } => {
                format!("the file system of {path} is full ({} free)", size(free_bytes / 1024))
            }
        }
    }
}

#[cfg(test)]
mod tests;
