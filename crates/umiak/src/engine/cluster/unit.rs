//! A unit from submission to end, seen from its supervisor. Two threads serve it: one follows the files of the agents, the
//! other one calls the scheduler, which may not answer for long.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};
use umiak_core::cluster::{Asked, Beat, Order, Placement, Told, UnitFile};
use umiak_core::facts::Usage;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, Instance, SpawnError, SpawnStage, StepIndex, StopHow};
use umiak_core::plan::{Address, Plan, nodes};
use umiak_sys::wait::{Waker, readable};

use super::super::inbox::Inbox;
use super::super::{EngineNews, Swept};
use super::files::{self, Lines, Tail};
use super::scheduler::{Look, Over, Scheduler, UnitPlace};

/// Interval at which files are read that nothing has announced.
const EVERY: Duration = Duration::from_millis(200);
/// Interval of signs of life.
const BEAT: Duration = Duration::from_secs(5);
/// Intervals at which the scheduler is asked.
const WAITING: Duration = Duration::from_secs(1);
const RUNNING: Duration = Duration::from_secs(5);
const URGENT: Duration = Duration::from_millis(100);
/// How long a scheduler may take to say why it asked a unit to end.
const REASON: Duration = Duration::from_secs(5);
/// How long agents may take to leave, in addition to the grace of their replicas, before their unit is cancelled; and how
/// long the scheduler may take then.
const LEAVING: Duration = Duration::from_secs(10);

const SIGTERM: i32 = 15;

/// A submitted unit.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) handle: String,
    orders: Lines,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    place: UnitPlace,
    step: StepIndex,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
    /// Wakes the thread that calls the scheduler.
    changed: Condvar,
    /// Wakes the thread that reads files.
    waker: Waker,
    socket: UdpSocket,
    /// True if nothing may be left of the unit in its scheduler when a run ends.
    is_awaited: bool,
    grace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// Not accepted by the scheduler yet.
    #[default]
    Submitting,
    /// It waits for its allocation.
    Waiting,
    Running,
    /// The scheduler has ended it.
    Over,
}

/// The end of an attempt that the scheduler caused: told once it says why.
#[derive(Debug)]
struct Held {
    id: AttemptId,
    exit: Exit,
    usage: Option<Usage>,
    after: Asked,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    job: Option<String>,
    /// Attempts that were ordered and whose end was not told.
    live: BTreeSet<AttemptId>,
    started: BTreeSet<AttemptId>,
    placement: Option<Placement>,
    tails: Vec<Tail>,
    left: BTreeSet<usize>,
    cleared: BTreeSet<usize>,
    /// What agents have cleared so far, if that was asked.
    clearing: Option<Swept>,
    held: Vec<Held>,
    held_since: Option<Instant>,
    /// Asked of the scheduler: true to kill.
    cancel: Option<bool>,
    is_cancelled: bool,
    /// When the end was ordered.
    ending: Option<Instant>,
    swept: Swept,
    /// Tells the engine once nothing is left.
    ended: Option<Arc<Ending>>,
    is_done: bool,
}

/// Counts the units that have not ended yet; the last one reports.
#[derive(Debug)]
pub(super) struct Ending {
    left: Mutex<(usize, Swept)>,
    inbox: Arc<Inbox>,
}

impl Ending {
    /// For so many units, at least one.
    pub(super) fn new(units: usize, inbox: Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new((units, Swept::default())), inbox })
    }

    fn one_less(&self, swept: &Swept) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.0 = left.0.saturating_sub(1);
        left.1.stopped.extend(&swept.stopped);
        left.1.remaining.extend(&swept.remaining);
        if left.0 == 0 {
            self.inbox.tell(EngineNews::Swept(std::mem::take(&mut left.1)));
        }
    }
}

/// Whether a unit is submitted or taken over from another supervisor.
pub(super) enum Begin {
    Submit(Box<Plan>, Vec<AttemptId>),
    Adopt { job: Option<String>, live: Vec<AttemptId> },
}

impl Unit {
    /// Starts the threads of a unit whose files are written.
    pub(super) fn begin(
        handle: String,
        step: StepIndex,
        place: UnitPlace,
        grace: Duration,
        inbox: &Arc<Inbox>,
        scheduler: Box<dyn Scheduler>,
        begin: Begin,
    ) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.set_nonblocking(true)?;
        let orders = Lines::new(place.directory.join(files::ORDERS));
        let mut state = State::default();
        let plan = match begin {
            Begin::Submit(plan, live) => {
                state.live = live.into_iter().collect();
                Some(plan)
            }
            Begin::Adopt { job, live } => {
                state.job = job;
                state.live = live.into_iter().collect();
                state.stage = Stage::Waiting;
                None
            }
        };
        let shared = Arc::new(Shared {
            place,
            step,
            inbox: Arc::clone(inbox),
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker: Waker::new()?,
            socket,
            is_awaited: scheduler.is_awaited(),
            grace,
        });
        shared.beat(0);
        let follower = Arc::clone(&shared);
        std::thread::Builder::new().name("agents".into()).spawn(move || follower.follow())?;
        let watcher = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("scheduler".into())
            .spawn(move || watcher.watch(scheduler, plan.as_deref()))?;
        Ok(Self { handle, orders, shared })
    }

    /// True if it takes orders to start attempts.
    pub(super) fn is_open(&self) -> bool {
        let state = self.shared.lock();
        state.stage != Stage::Over && state.ending.is_none()
    }

    /// Orders agents to start attempts. False if the unit takes none any more.
    pub(super) fn start(&mut self, order: &Order, ids: &[AttemptId]) -> bool {
        let mut state = self.shared.lock();
        if state.stage == Stage::Over || state.ending.is_some() {
            return false;
        }
        state.live.extend(ids);
        drop(state);
        self.order(order);
        true
    }

    pub(super) fn order(&mut self, order: &Order) {
        self.orders.add(order);
        if !self.orders.write() {
            return;
        }
        let state = self.shared.lock();
        for place in state.placement.iter().flat_map(|placement| &placement.places) {
            let _ = self.shared.socket.send_to(b"look", place.wake);
        }
    }

    pub(super) fn stop(&mut self, targets: &[AttemptId], how: StopHow) {
        let mut state = self.shared.lock();
        let targets: Vec<AttemptId> = targets.iter().filter(|id| state.live.contains(id)).copied().collect();
        if targets.is_empty() {
            return;
        }
        // Without an allocation, nobody would follow the order.
        if matches!(state.stage, Stage::Submitting | Stage::Waiting) && targets.len() == state.live.len() {
            state.cancel = Some(how == StopHow::Kill);
            self.shared.changed.notify_all();
        }
        drop(state);
        self.order(&Order::Stop { how, targets });
    }

    /// Clears what attempts left behind. Told at once if there are no agents.
    pub(super) fn clear(&mut self) -> bool {
        let mut state = self.shared.lock();
        if state.stage != Stage::Running || state.placement.is_none() {
            return false;
        }
        state.cleared.clear();
        state.clearing = Some(Swept::default());
        drop(state);
        self.order(&Order::Clear {});
        true
    }

    /// Ends the unit. `ending` is told when nothing is left of it.
    pub(super) fn end(&mut self, patient: bool, ending: Option<&Arc<Ending>>) {
        let mut state = self.shared.lock();
        if let Some(ending) = ending {
            if state.is_done {
                return ending.one_less(&state.swept);
            }
            state.ended = Some(Arc::clone(ending));
        }
        let is_first = state.ending.is_none();
        state.ending.get_or_insert_with(Instant::now);
        if state.placement.is_none() || !patient {
            state.cancel = Some(!patient);
        }
        drop(state);
        if is_first || !patient {
            self.order(&Order::End { patient });
        }
        self.shared.changed.notify_all();
        self.shared.waker.wake();
    }

    /// Waits until the scheduler was asked to end the unit.
    pub(super) fn wait_for_cancel(&self, limit: Duration) {
        let begun = Instant::now();
        let mut state = self.shared.lock();
        while !state.is_done && !state.is_cancelled && begun.elapsed() < limit {
            let waited = self.shared.changed.wait_timeout(state, URGENT);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: EngineNews) {
        self.inbox.tell(news);
    }

    fn beat(&self, count: u64) {
        let port = self.socket.local_addr().map_or(0, |local| local.port());
        let own: Vec<Address> = umiak_sys::host::addresses()
            .into_iter()
            .map(|address| Address { interface: address.interface, ip: address.ip })
            .collect();
        let likely = nodes::likely_address(&own);
        let mut wake = vec![SocketAddr::new(likely, port)];
        if !likely.is_loopback() {
            wake.push(SocketAddr::from(([127, 0, 0, 1], port)));
        }
        // What cannot be written now is written with the next beat.
        let _ = files::replace(&self.place.directory.join(files::SUPERVISOR), &Beat { count, wake });
    }

    /// The thread that follows the files of the agents.
    fn follow(&self) {
        let (mut count, mut beat_at) = (0, Instant::now() + BEAT);
        loop {
            let _ = readable(&[self.waker.as_fd(), self.socket.as_fd()], Some(EVERY));
            self.waker.clear();
            let mut bytes = [0; 16];
            while self.socket.recv_from(&mut bytes).is_ok() {}
            if beat_at <= Instant::now() {
                (count, beat_at) = (count + 1, Instant::now() + BEAT);
                self.beat(count);
            }
            let mut state = self.lock();
            if state.is_done {
                return;
            }
            state.read(self);
            state.check_end(self);
            if state.is_done {
                self.changed.notify_all();
                return;
            }
        }
    }

    /// The thread that calls the scheduler.
    fn watch(&self, mut scheduler: Box<dyn Scheduler>, plan: Option<&Plan>) {
        if let Some(plan) = plan {
            let submitted = scheduler.submit(&self.place, plan);
            let mut state = self.lock();
            match submitted {
                Ok(job) => {
                    info!(job, "submitted");
                    state.job = Some(job);
                    state.stage = Stage::Waiting;
                }
                Err(reason) => {
                    warn!(reason, "not submitted");
                    let refused = SpawnError { doing: SpawnStage::Submit, errno: 0, reason };
                    state.end_all(self, |_| Exit::Spawn(refused.clone()));
                    state.over(self);
                }
            }
        }
        let mut next = URGENT;
        loop {
            let mut state = self.lock();
            let is_due = |state: &State| state.is_done || state.cancel.is_some() || state.held_since.is_some();
            if !is_due(&state) && state.stage != Stage::Over {
                state = self.changed.wait_timeout(state, next).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.is_done || state.stage == Stage::Over && state.ended.is_some() {
                state.check_end(self);
                self.waker.wake();
                return;
            }
            if state.stage == Stage::Over {
                // Until the run ends.
                drop(self.changed.wait_timeout(state, RUNNING));
                continue;
            }
            let Some(job) = state.job.clone() else { return state.over(self) };
            let cancel = state.cancel.take();
            drop(state);
            if let Some(kill) = cancel {
                scheduler.cancel(&job, kill);
                self.lock().is_cancelled = true;
                self.changed.notify_all();
            }
            let look = scheduler.look(&job);
            debug!(?look);
            let mut state = self.lock();
            state.apply(self, look);
            next = state.patience();
            if cancel.is_some() || state.held_since.is_some() {
                state = self.changed.wait_timeout(state, URGENT).unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(state);
        }
    }
}

impl State {
    /// The time until the scheduler is asked again.
    fn patience(&self) -> Duration {
        let is_urgent = self.is_cancelled || self.ending.is_some() || !self.held.is_empty() || self.have_all_left();
        match self.stage {
            _ if is_urgent => URGENT,
            Stage::Running => RUNNING,
            _ => WAITING,
        }
    }

    fn have_all_left(&self) -> bool {
        self.placement.as_ref().is_some_and(|placement| self.left.len() >= placement.places.len())
    }

    /// Reads what agents have told.
    fn read(&mut self, shared: &Shared) {
        let directory = &shared.place.directory;
        if self.placement.is_none()
            && let Ok(placement) = files::read::<Placement>(&directory.join(files::PLACEMENT))
        {
            info!(agents = placement.places.len(), again = placement.again, "placed");
            for agent in self.tails.len()..placement.places.len() {
                self.tails.push(Tail::new(files::of_agent(directory, agent)));
            }
            self.placement = Some(placement);
            self.stage = if self.stage == Stage::Over { Stage::Over } else { Stage::Running };
        }
        for agent in 0..self.tails.len() {
            for told in self.tails[agent].read::<Told>() {
                self.hear(shared, agent, told);
            }
        }
    }

    fn hear(&mut self, shared: &Shared, agent: usize, told: Told) {
        match told {
            Told::Place(place) => {
                // The scheduler has started the unit again.
                if self.placement.as_ref().is_some_and(|placement| placement.again < place.again) {
                    self.placement = None;
                    self.left.clear();
                    self.held.clear();
                    self.held_since = None;
                }
            }
            Told::Started { id, pid } if self.live.contains(&id) => {
                self.started.insert(id);
                let node = self.placement.as_ref().and_then(|placement| placement.places.get(agent));
                let node = node.map(|place| place.node.clone());
                shared.tell(EngineNews::Started { id, instance: Instance { pid: Some(pid), name: None, node } });
            }
            Told::Ready { id } if self.live.contains(&id) => shared.tell(EngineNews::Ready { id }),
            Told::Started { .. } | Told::Ready { .. } => {}
            Told::Ended { id, exit, usage, over_limit, after } => match after.filter(|_| self.ending.is_none()) {
                Some(after) if self.live.contains(&id) => {
                    self.held.push(Held { id, exit, usage, after });
                    self.held_since.get_or_insert_with(Instant::now);
                    shared.changed.notify_all();
                }
                _ => self.end(shared, id, exit, usage, over_limit),
            },
            Told::Cleared { stopped, remaining } => {
                self.cleared.insert(agent);
                if let Some(swept) = &mut self.clearing {
                    swept.stopped.extend(stopped);
                    swept.remaining.extend(remaining);
                }
                if self.placement.as_ref().is_some_and(|placement| self.cleared.len() >= placement.places.len()) {
                    self.cleared(shared);
                }
            }
            Told::Left { stopped, remaining } => {
                self.left.insert(agent);
                self.swept.stopped.extend(stopped);
                self.swept.remaining.extend(remaining);
                if self.have_all_left() {
                    shared.changed.notify_all();
                }
            }
        }
    }

    fn cleared(&mut self, shared: &Shared) {
        if let Some(swept) = self.clearing.take() {
            shared.tell(EngineNews::Cleared(swept));
        }
    }

    fn end(&mut self, shared: &Shared, id: AttemptId, exit: Exit, usage: Option<Usage>, over_limit: bool) {
        if self.live.remove(&id) {
            shared.tell(EngineNews::Ended { id, exit, usage, over_limit });
        }
    }

    /// Ends all attempts whose end was not told.
    fn end_all(&mut self, shared: &Shared, exit: impl Fn(AttemptId) -> Exit) {
        for id in std::mem::take(&mut self.live) {
            shared.tell(EngineNews::Ended { id, exit: exit(id), usage: None, over_limit: false });
        }
    }

    fn release(&mut self, shared: &Shared, exit: impl Fn(&Held) -> Option<Exit>) {
        self.held_since = None;
        for held in std::mem::take(&mut self.held) {
            let exit = exit(&held).unwrap_or_else(|| held.exit.clone());
            self.end(shared, held.id, exit, held.usage, false);
        }
    }

    /// Applies what the scheduler says.
    fn apply(&mut self, shared: &Shared, look: Look) {
        match look {
            Look::Pending { reason } => {
                if self.stage == Stage::Running {
                    // Started again: what has ended because of that will run again.
                    self.held.clear();
                    self.held_since = None;
                    self.placement = None;
                    self.left.clear();
                }
                self.stage = Stage::Waiting;
                shared.tell(EngineNews::Pending { step: shared.step, reason });
            }
            Look::Hopeless { reason } => {
                self.cancel = Some(true);
                // Another try would wait for the same.
                let refused = SpawnError { doing: SpawnStage::Submit, errno: 0, reason };
                self.end_all(shared, |_| Exit::Spawn(refused.clone()));
            }
            Look::Running => {
                if self.stage == Stage::Waiting {
                    self.stage = Stage::Running;
                }
                if self.held_since.is_some_and(|since| since.elapsed() > REASON) && self.have_all_left() {
                    self.release(shared, |_| None);
                }
            }
            Look::Unknown { reason } => {
                if self.stage == Stage::Waiting {
                    shared.tell(EngineNews::Pending { step: shared.step, reason });
                }
            }
            Look::Over(over) => {
                info!(?over, "unit over");
                self.read(shared);
                let is_ours = self.is_cancelled || self.ending.is_some();
                if let Over::Cancelled { by } = &over
                    && !is_ours
                    && (!self.live.is_empty() || !self.held.is_empty())
                {
                    shared.tell(EngineNews::Cancelled { by: by.clone().unwrap_or_else(|| "its cluster".to_owned()) });
                }
                self.release(shared, |held| ended_by(&over, Some(held.after)).filter(|_| !is_ours));
                let log = last_words(&shared.place.directory);
                let started = std::mem::take(&mut self.started);
                self.end_all(shared, |id| match ended_by(&over, None) {
                    _ if is_ours || matches!(over, Over::Cancelled { .. }) => {
                        Exit::Signal { signal: SIGTERM, core_dumped: false }
                    }
                    Some(exit) => exit,
                    None if started.contains(&id) => Exit::Lost,
                    None => {
                        let why =
                            log.clone().or_else(|| reason(&over)).unwrap_or_else(|| "it ended at once".to_owned());
                        Exit::Spawn(SpawnError { doing: SpawnStage::Agent, errno: 0, reason: why })
                    }
                });
                self.over(shared);
            }
        }
        self.check_end(shared);
    }

    fn over(&mut self, shared: &Shared) {
        self.stage = Stage::Over;
        self.cleared(shared);
        self.check_end(shared);
        shared.changed.notify_all();
    }

    /// Ends the unit once nothing is left of it; cancels it if its agents do not leave.
    fn check_end(&mut self, shared: &Shared) {
        let Some(since) = self.ending.filter(|_| !self.is_done) else { return };
        let have_left = self.have_all_left();
        let is_over = self.stage == Stage::Over || have_left && !shared.is_awaited;
        let limit = if have_left { LEAVING } else { LEAVING + shared.grace };
        if !is_over && since.elapsed() > limit && !self.is_cancelled && self.cancel.is_none() {
            warn!("the unit does not end, and is cancelled");
            self.cancel = Some(true);
            shared.changed.notify_all();
        }
        let is_given_up = since.elapsed() > limit + LEAVING;
        if is_over || is_given_up {
            self.is_done = true;
            // It has secrets.
            let _ = std::fs::remove_file(shared.place.directory.join(files::UNIT));
            if let Some(ended) = self.ended.take() {
                ended.one_less(&self.swept);
            }
            shared.changed.notify_all();
        }
    }
}

/// How attempts ended that a scheduler has ended.
fn ended_by(over: &Over, after: Option<Asked>) -> Option<Exit> {
    match over {
        Over::Preempted { reason } => Some(Exit::Preempted { reason: reason.clone() }),
        Over::TimeLimit { reason } => Some(Exit::TimeLimit { reason: reason.clone() }),
        Over::NodeLost { node } => Some(Exit::NodeLost { node: node.clone() }),
        Over::Done | Over::Cancelled { .. } | Over::Failed { .. } | Over::Forgotten => {
            (after == Some(Asked::Limit)).then(|| Exit::TimeLimit { reason: "that of its allocation".to_owned() })
        }
    }
}

fn reason(over: &Over) -> Option<String> {
    match over {
        Over::Failed { reason } => Some(reason.clone()),
        Over::Forgotten => Some("the scheduler no longer knows it".to_owned()),
        _ => None,
    }
}

/// The last lines that the scheduler's own log of a unit has.
fn last_words(directory: &Path) -> Option<String> {
    const LINES: usize = 6;
    let logs = ["slurm.log", "mpirun.log"].map(|name| directory.join(name));
    let text = logs.iter().find_map(|path: &PathBuf| std::fs::read(path).ok())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    (!last.is_empty()).then_some(last)
}

/// The attempts that agents were ever ordered to start.
pub(super) fn ordered(directory: &Path) -> BTreeSet<AttemptId> {
    let orders = Tail::new(directory.join(files::ORDERS)).read::<Order>().into_iter();
    orders
        .flat_map(|order| if let Order::Start(starts) = order { starts } else { Vec::new() })
        .map(|start| start.id)
        .collect()
}

/// The unit that another supervisor has written.
pub(super) fn read(directory: &Path) -> Option<UnitFile> {
    files::read(&directory.join(files::UNIT)).ok()
}
