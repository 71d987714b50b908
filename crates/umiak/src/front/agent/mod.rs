//! `umiak agent DIRECTORY`: runs replicas of a unit on a node of a cluster. It is the local engine with another source of
//! orders: a file instead of a machine. It decides only while there is no supervisor.
//!
//! | part | in one sentence |
//! |---|---|
//! | this file | the loop: orders, ends, signals |
//! | [`place`] | where the agent is, and where the others are |

mod place;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use umiak_core::cluster::agent::{Act, Agent};
use umiak_core::cluster::{Asked, Beat, Order, Place, Placement, StartOrder, Told, UnitFile, VERSION};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::job::AttemptId;
use umiak_core::mask::Known;
use umiak_core::model::{Exit, FIRST_ATTEMPT, SpawnError, SpawnStage, StopHow, is_of_node, is_of_scheduler};
use umiak_core::plan::pool::Pool;
use umiak_core::plan::{Attempt, Plan};
use umiak_sys::net::Listeners;
use umiak_sys::wait::{Signals, readable};

use super::document::tasks;
use crate::engine::cluster::files::{self, Lines, Tail};
use crate::engine::cluster::post::{self, courier::Call, courier::Courier};
use crate::engine::local::Local;
use crate::engine::{Common, Engine as _, EngineNews, Start, Swept};
use crate::secrets;
use place::{OwnDirectory, Site};

/// Interval at which files are read that nothing has announced.
const EVERY: Duration = Duration::from_millis(200);
/// Intervals at which ports are checked: at first, and at most.
const CHECKS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// Time without a sign of the supervisor after which an agent does not wait for it.
fn forsaken() -> Duration {
    umiak_sys::hooks::forsaken()
}

/// How long the last report of an agent is tried to be written.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// Time between SIGTERM of the scheduler at a replica and at its agent: for replicas that have ended by it, and for others,
/// which may have handled it.
const SIGNALLED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(20));

/// SIGHUP, SIGINT, SIGQUIT, SIGTERM: the unit is to end.
const HANDLED: [i32; 4] = [1, 2, 3, 15];

/// The program of the agent, if it was copied to its node for the job.
const COPY: &str = "UMIAK_COPY";

/// The exit code after the time limit, if the unit is to be started again.
pub(crate) const AGAIN: u8 = 75;

/// The copy of umiak that was made for the job, in a directory of its own. Both are removed with the value.
struct Copied(Option<PathBuf>);

impl Drop for Copied {
    fn drop(&mut self) {
        if let Some(program) = &self.0 {
            let _ = std::fs::remove_file(program);
            // The agent of another node may be on this host.
            let _ = program.parent().map(std::fs::remove_dir);
        }
    }
}

/// Runs an agent to its end. The process must have only one thread.
pub(crate) fn run(directory: &Path) -> Result<u8, Diagnostic> {
    let _copied = Copied(std::env::var_os(COPY).map(PathBuf::from));
    let signals = Signals::block(&HANDLED).map_err(|error| Diagnostic::failed("block signals", &error))?;
    let Some(call) = Call::of_environment()? else {
        let unit: UnitFile = files::read(&directory.join(files::UNIT)).map_err(|error| {
            Diagnostic::error(Code::E0204, format!("`{}` cannot be read on this node", directory.display()))
                .row("node", place::node())
                .row("reason", error.to_string())
                .hint("`UMIAK_HOME` must be on a file system that all nodes see at the same path; with Slurm, `--slurm-connect` works without one")
        })?;
        return serve(directory, &unit, signals, None);
    };
    let text = call.fetch()?;
    let mut unit: UnitFile = serde_json::from_slice(&text).map_err(|error| {
        Diagnostic::error(Code::E0204, "what the supervisor sent is of another version of umiak")
            .row("node", place::node())
            .row("reason", error.to_string())
    })?;
    let own =
        OwnDirectory::make(directory).map_err(|error| Diagnostic::failed("make a directory for the agent", &error))?;
    for path in [&mut unit.place.tasks, &mut unit.place.scratch] {
        *path = own.path.join(&path);
    }
    serve(&own.path, &unit, signals, Some((call, &own)))
}

/// Starts the guardian, and only then the thread of the connection.
fn serve(
    directory: &Path,
    unit: &UnitFile,
    signals: Signals,
    connection: Option<(Call, &OwnDirectory)>,
) -> Result<u8, Diagnostic> {
    if unit.v != VERSION {
        let message = "umiak on this node has another version than the one that submitted the job";
        return Err(Diagnostic::error(Code::E0204, message).row("node", place::node()));
    }
    let known = secrets::learn(&unit.submission);
    let site = place::site(unit)?;
    info!(agent = site.number, seats = ?site.own(), "agent");
    let room = place::memory(unit);
    let engine = Local::start(unit.submission.wishes.isolate, room)?;
    let socket = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
    let socket = socket.map_err(|error| Diagnostic::failed("open a socket", &error))?;
    let gathered = if connection.is_some() { directory.join(files::OTHERS) } else { directory.to_owned() };
    let apart = connection.as_ref().map(|(_, own)| own.unit.clone());
    let courier = connection.map(|(call, own)| {
        let node = (site.number == 0).then_some(own.unit.as_path());
        Courier::start(call, directory, node, site.number, socket.local_addr()?.port())
    });
    let courier = courier.transpose().map_err(|error| Diagnostic::failed("connect to the supervisor", &error))?;
    let code = Stage { directory, gathered: &gathered, apart, unit, signals, site, engine, socket, known }.run();
    if let Some(courier) = courier {
        courier.finish();
    }
    code
}

/// An agent that is ready to meet the others.
struct Stage<'a> {
    directory: &'a Path,
    /// Where agent 0 finds the files of all.
    gathered: &'a Path,
    /// The directory of the unit on this node, if this agent does not see the files of the others.
    apart: Option<PathBuf>,
    unit: &'a UnitFile,
    signals: Signals,
    site: Site,
    engine: Local,
    socket: UdpSocket,
    known: Known,
}

impl Stage<'_> {
    fn run(self) -> Result<u8, Diagnostic> {
        let Self { directory, gathered, apart, unit, signals, site, mut engine, socket, known } = self;
        let (own, pool) = place::lease(&mut engine, unit, &site, &socket)?;
        let lines = Lines::new(files::of_agent(directory, site.number));
        let (beat, now) = (Beat::default(), Instant::now());
        let mut posted = Posted { directory, socket, lines, beat, beat_at: now, looked_at: now, number: site.number };
        posted.tell(&Told::Place(own));
        posted.flush();
        let meeting = place::Meeting { directory, gathered, site: &site, signals: &signals, posted: &mut posted };
        let Some(placement) = meeting.wait()? else {
            engine.end(true);
            posted.leave(&mut engine);
            return Ok(0);
        };
        let plan = place::plan(unit, &placement, &site).ok_or_else(|| {
            Diagnostic::error(Code::E0204, "the places of the agents do not fit the job")
                .row("agent", site.number.to_string())
        })?;
        let seats = site.own().iter().filter_map(|rank| Some(plan.replicas.get(*rank as usize)?.slot));
        let agent = Agent::new(seats, placement.ended.clone());
        let agent = if site.again > 0 && apart.is_none() { agent.again(&unit.job) } else { agent };
        engine.share(common(unit, &plan));
        let mut running = Running {
            agent,
            orders: Tail::new(directory.join(files::ORDERS)),
            plan,
            pool,
            known,
            unit,
            apart,
            begun: Instant::now(),
            engine,
            posted,
            signals,
            placement,
            awaited: BTreeMap::new(),
            kill_at: None,
            has_failed: false,
            has_stopped: false,
            listened_at: None,
            is_over: false,
        };
        running.run()?;
        Ok(running.code(gathered))
    }
}

/// What every attempt gets in addition to the agent's own environment, in which the scheduler's variables are those of this
/// node.
fn common(unit: &UnitFile, plan: &Plan) -> Common {
    let given = unit.submission.environment.iter().filter(|(name, _)| !is_of_scheduler(name) && !is_of_node(name));
    let given = given.map(|(name, value)| (name.clone(), value.clone()));
    Common {
        unset: [place::TASKS, post::ADDRESSES, post::KEY, COPY].map(str::to_owned).to_vec(),
        set: given.chain(plan.common.iter().cloned()).collect(),
        rotate: None,
        grace: plan.job.longest_grace(),
    }
}

/// What an agent tells its supervisor, and what it knows of it.
pub(super) struct Posted<'a> {
    directory: &'a Path,
    socket: UdpSocket,
    lines: Lines,
    beat: Beat,
    /// When the supervisor was last seen to be alive, and when that was last checked.
    beat_at: Instant,
    looked_at: Instant,
    number: usize,
}

impl Posted<'_> {
    pub(super) fn tell(&mut self, told: &Told) {
        self.lines.add(told);
    }

    /// Writes what was told, and wakes the supervisor.
    pub(super) fn flush(&mut self) {
        if self.lines.is_written() {
            return;
        }
        self.look();
        if self.lines.write() {
            for address in &self.beat.wake {
                let _ = self.socket.send_to(&(self.number as u32).to_le_bytes(), address);
            }
        }
    }

    pub(super) fn is_written(&self) -> bool {
        self.lines.is_written()
    }

    /// Reads the sign of the supervisor.
    fn look(&mut self) {
        self.looked_at = Instant::now();
        if let Ok(beat) = files::read::<Beat>(&self.directory.join(files::SUPERVISOR))
            && beat != self.beat
        {
            (self.beat, self.beat_at) = (beat, Instant::now());
        }
    }

    /// True if there has been no sign of the supervisor for long. Looked at only now and then.
    pub(super) fn is_forsaken(&mut self) -> bool {
        if self.looked_at.elapsed() < forsaken() / 4 {
            return false;
        }
        self.look();
        self.beat_at.elapsed() >= forsaken()
    }

    fn is_directory_gone(&self) -> bool {
        let found = std::fs::symlink_metadata(self.directory);
        found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    /// Where datagrams of the others arrive.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn wake(&self, agents: impl Iterator<Item = SocketAddr>) {
        for address in agents {
            let _ = self.socket.send_to(b"look", address);
        }
    }

    pub(super) fn drain(&self) {
        let mut bytes = [0; 16];
        while self.socket.recv_from(&mut bytes).is_ok() {}
    }

    /// Writes the last line. A file system that is full for a moment does not lose the ends of replicas.
    fn left(&mut self, swept: Swept) {
        self.tell(&Told::Left { stopped: swept.stopped, remaining: swept.remaining });
        let begun = Instant::now();
        loop {
            self.flush();
            if self.lines.is_written() || begun.elapsed() > LAST_WORDS {
                return;
            }
            std::thread::sleep(EVERY);
        }
    }

    /// Waits until nothing is left of the engine, and says so.
    fn leave(&mut self, engine: &mut Local) {
        while let Some(watched) = engine.watch() {
            let _ = readable(&[watched], Some(EVERY));
            for news in engine.news() {
                if let EngineNews::Swept(swept) = news {
                    return self.left(swept);
                }
            }
        }
    }
}

struct Running<'a> {
    agent: Agent,
    orders: Tail,
    plan: Plan,
    pool: Pool,
    known: Known,
    unit: &'a UnitFile,
    apart: Option<PathBuf>,
    begun: Instant,
    engine: Local,
    posted: Posted<'a>,
    signals: Signals,
    placement: Placement,
    /// Attempts whose ports are awaited, the next check, and the pause after it.
    awaited: BTreeMap<AttemptId, (Instant, Duration)>,
    kill_at: Option<Instant>,
    /// True if it left because a replica had failed and there was no supervisor.
    has_failed: bool,
    /// True if it was ordered to stop replicas since it last started some.
    has_stopped: bool,
    /// When it last waited for a signal that may explain an end.
    listened_at: Option<Instant>,
    is_over: bool,
}

impl Running<'_> {
    /// The exit code of an agent that has left.
    fn code(&mut self, gathered: &Path) -> u8 {
        if self.has_failed {
            // Slurm ends the others, which may not know.
            return 1;
        }
        // The supervisor may have ended the unit while the agent was leaving.
        let late = self.orders.read();
        self.agent.follow(late);
        if !self.agent.is_to_begin_again() || !self.unit.submission.cluster.slurm.requeue {
            return 0;
        }
        // Slurm ends the others as soon as one exits with another code than 0: the first agent does, as the last one.
        if self.posted.number > 0 {
            return 0;
        }
        let (agents, again, begun) = (self.placement.places.len(), self.placement.again, Instant::now());
        let limit = self.plan.job.longest_grace() + Duration::from_secs(5);
        while !place::have_all_left(gathered, agents, again) && begun.elapsed() < limit {
            std::thread::sleep(EVERY);
        }
        AGAIN
    }

    fn run(&mut self) -> Result<(), Diagnostic> {
        while !self.is_over {
            let orders: Vec<Order> = self.orders.read();
            let acts = self.agent.follow(orders);
            self.act(acts);
            self.release();
            self.check_ports();
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.kill_at = None;
                let targets: Vec<AttemptId> = self.agent.live().collect();
                self.engine.stop(&targets, StopHow::Kill);
            }
            self.check_supervisor();
            self.posted.flush();
            self.wait()?;
        }
        Ok(())
    }

    /// Starts roles whose turn it is, in a unit that was started again.
    fn release(&mut self) {
        if !self.agent.is_waiting() {
            return;
        }
        let seen = place::seen(self.posted.directory, self.placement.again);
        let (job, elapsed) = (&self.unit.job, self.begun.elapsed());
        let is_late = |role: u16| job.roles[usize::from(role)].timeouts.patience.is_some_and(|limit| elapsed > limit);
        let acts = self.agent.release(|after| seen.is_met(job, after) || is_late(after.role));
        self.act(acts);
    }

    fn wait(&mut self) -> Result<(), Diagnostic> {
        let next = self.awaited.values().map(|(at, _)| *at).chain(self.kill_at).min();
        let timeout = next.map_or(EVERY, |at| at.saturating_duration_since(Instant::now()).min(EVERY));
        let has_news = {
            let mut fds = vec![self.signals.as_fd(), self.posted.socket.as_fd()];
            fds.extend(self.engine.watch());
            let ready = readable(&fds, Some(timeout)).map_err(|error| Diagnostic::failed("wait for events", &error))?;
            ready.get(2).copied().unwrap_or(false)
        };
        self.posted.drain();
        // First: Slurm signals the replicas too, and their ends are its doing.
        self.hear_signals();
        let limits = [Some(self.posted.directory), self.apart.as_deref()];
        let is_limit = |directory: &Path| place::is_limit(directory, self.placement.again);
        if self.agent.asked().is_none() && limits.into_iter().flatten().any(is_limit) {
            self.ask(Asked::Limit);
        }
        if has_news {
            for news in self.engine.news() {
                self.hear(news);
            }
        }
        Ok(())
    }

    fn hear_signals(&mut self) {
        for signal in self.signals.read() {
            info!(signal, "signal");
            self.ask(Asked::End);
        }
    }

    /// A replica that has failed without an order may have had SIGTERM from Slurm, which signals the agent a moment later.
    fn check_signals(&mut self, exit: &Exit) {
        // Replicas that fail together have one reason.
        let has_listened = self.listened_at.is_some_and(|at| at.elapsed() < 2 * SIGNALLED.0);
        if exit.is_success() || self.has_stopped || self.agent.asked().is_some() || has_listened {
            return;
        }
        let has_ended_by_it = matches!(exit, Exit::Signal { signal: 15, .. } | Exit::Code { code: 143 });
        let patience = if has_ended_by_it { SIGNALLED.0 } else { SIGNALLED.1 };
        let _ = readable(&[self.signals.as_fd()], Some(patience));
        self.listened_at = Some(Instant::now());
        self.hear_signals();
    }

    fn ask(&mut self, asked: Asked) {
        let acts = self.agent.ask(asked);
        self.kill_at.get_or_insert(Instant::now() + self.plan.job.longest_grace());
        self.act(acts);
    }

    /// Leaves if there is no supervisor and nothing to wait for. A job that trains goes on.
    fn check_supervisor(&mut self) {
        if self.agent.asked().is_some() || !self.posted.is_forsaken() {
            return;
        }
        let ends = place::ends(self.posted.directory);
        // Without its directory the unit is not adopted by another supervisor.
        let is_gone = self.posted.is_directory_gone();
        if let Some(has_failed) =
            self.agent.verdict(&self.plan.job, &ends, self.apart.is_none()).or(is_gone.then_some(true))
        {
            warn!(has_failed, "no supervisor, and nothing to wait for");
            self.has_failed = has_failed;
            self.ask(Asked::End);
        }
    }

    fn act(&mut self, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Start(starts) => {
                    self.has_stopped = false;
                    self.start(&starts);
                }
                Act::Stop { how, targets } => {
                    self.has_stopped = true;
                    self.engine.stop(&targets, how);
                }
                Act::Await(id) => {
                    self.awaited.insert(id, (Instant::now(), CHECKS.0));
                }
                Act::Forsake(targets) => self.engine.forsake(&targets),
                Act::Clear => self.engine.clear(true),
                Act::Tell(told) => self.posted.tell(&told),
                Act::End { patient } => self.engine.end(patient),
            }
        }
    }

    fn hear(&mut self, news: EngineNews) {
        match news {
            EngineNews::Started { id, instance } => {
                self.posted.tell(&Told::Started { id, pid: instance.pid.unwrap_or_default() });
            }
            EngineNews::Ended { id, exit, usage, over_limit } => {
                self.check_signals(&exit);
                self.awaited.remove(&id);
                self.pool.give_back(id.slot);
                let acts = self.agent.end(id, exit, usage, over_limit);
                self.act(acts);
            }
            EngineNews::Cleared(swept) => {
                self.posted.tell(&Told::Cleared { stopped: swept.stopped, remaining: swept.remaining });
            }
            EngineNews::Swept(swept) => {
                self.posted.left(swept);
                self.is_over = true;
            }
            EngineNews::Lost { why, .. } | EngineNews::OneLost { why, .. } => {
                warn!(?why, "the guardian was killed");
                let live: Vec<AttemptId> = self.agent.live().collect();
                for id in live {
                    self.hear(EngineNews::Ended { id, exit: Exit::Lost, usage: None, over_limit: false });
                }
            }
            EngineNews::Ready { .. }
            | EngineNews::Notice(_)
            | EngineNews::Accepted { .. }
            | EngineNews::Output { .. }
            | EngineNews::Pending { .. }
            | EngineNews::Cancelled { .. } => {}
        }
    }

    fn start(&mut self, starts: &[StartOrder]) {
        let mut ready = Vec::new();
        for start in starts {
            match self.prepared(start) {
                Ok(start) => ready.push(start),
                Err(exit) => {
                    self.pool.give_back(start.id.slot);
                    let acts = self.agent.end(start.id, exit, None, false);
                    self.act(acts);
                }
            }
        }
        if !ready.is_empty() {
            self.engine.start(&self.plan, ready);
        }
    }

    /// An attempt with its directories.
    fn prepared(&mut self, start: &StartOrder) -> Result<Start, Exit> {
        let StartOrder { id, of_job, retries } = *start;
        let resources = self.plan.role(id.slot).work.resources;
        let given = self
            .pool
            .take(id.slot, resources)
            .ok_or_else(|| Exit::NoRoom { reason: format!("{} has too few free GPUs", self.place().node) })?;
        let attempt = Attempt { slot: id.slot, number: id.attempt, of_job, retries, given: &given };
        let mut process = self.plan.process(&attempt);
        process.is_secret = process.shell_line().is_some_and(|line| secrets::are_in(&line.to_string_lossy()));
        process.inherit_stdin = false;
        let environment = &self.unit.submission.environment;
        process.program = place::program(&self.plan, id.slot, environment).map_err(|reason| {
            const ENOENT: i32 = 2;
            Exit::Spawn(SpawnError { doing: SpawnStage::Execute, errno: ENOENT, reason })
        })?;
        let replica = self.plan.at(id.slot).expect("a replica of the plan");
        let failed = |error: std::io::Error| {
            let (errno, reason) = (error.raw_os_error().unwrap_or(0), error.to_string());
            Exit::Spawn(SpawnError { doing: SpawnStage::MakeDirectory, errno, reason })
        };
        if let Some(dir) = self.plan.attempt_dir(replica, id.attempt) {
            tasks::make(&dir, &process, Some(&self.plan.common), &self.known).map_err(failed)?;
        }
        if let Some(membership) = replica.member {
            umiak_sys::files::make_directory(&self.plan.meeting_dir(membership.group, of_job)).map_err(failed)?;
            if of_job > FIRST_ATTEMPT && id.slot.index == 0 {
                let _ = std::fs::remove_dir_all(self.plan.meeting_dir(membership.group, of_job - 1));
            }
        }
        Ok(Start { id, of_job, retries, process, bound: false })
    }

    fn place(&self) -> &Place {
        &self.placement.places[self.posted.number]
    }

    /// Reports attempts that listen on all their ports.
    fn check_ports(&mut self) {
        let now = Instant::now();
        if self.awaited.values().all(|(at, _)| *at > now) {
            return;
        }
        let listeners = Listeners::read();
        let mut ready = Vec::new();
        for (id, (at, pause)) in &mut self.awaited {
            let Some(replica) = self.plan.at(id.slot) else { continue };
            let mut ports = replica.ports.iter().flat_map(|(_, ports)| ports);
            // They are leased to it, whatever address it listens on.
            if ports.all(|port| listeners.accepts(None, port.get())) {
                ready.push(*id);
            }
            (*at, *pause) = (now + *pause, (*pause * 2).min(CHECKS.1));
        }
        for id in ready {
            self.awaited.remove(&id);
            self.posted.tell(&Told::Ready { id });
        }
    }
}
