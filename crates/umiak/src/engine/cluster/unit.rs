//! Performs what [`umiak_core::cluster::unit`] decides. Two threads serve a unit. One follows the files of the agents and
//! writes orders: it is the only one that waits for the file system. The other calls the scheduler, which may not answer
//! for long.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{debug, info};
use umiak_core::cluster::Asked;
use umiak_core::cluster::unit::{Effect, Event, Unit as Machine};
use umiak_core::cluster::{Beat, Order, Placement, Told, UnitFile, mpi, slurm};
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Connect, StepIndex, StopHow};
use umiak_core::plan::{Address, Plan, nodes};
use umiak_sys::wait::{Waker, readable};

use super::super::inbox::Inbox;
use super::super::{EngineNews, Swept};
use super::files::{self, Lines, Tail, Version};
use super::post::office::Office;
use super::scheduler::{Look, Over, Scheduler, UnitPlace};

/// Interval at which files are read that nothing has announced.
const EVERY: Duration = Duration::from_millis(200);
/// Interval of signs of life.
const BEAT: Duration = Duration::from_secs(5);
/// The pause between two looks at a unit that is being cancelled.
const URGENT: Duration = Duration::from_millis(100);

/// A submitted unit.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) handle: String,
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
    /// Wakes the thread that reads and writes files.
    waker: Arc<Waker>,
    socket: UdpSocket,
    office: Option<Office>,
    /// The unit is a program of this host.
    is_program: bool,
    begun: Instant,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    job: Option<String>,
    orders: Lines,
    /// What the scheduler said, for the thread that reads files: what agents have written before comes first.
    looks: Vec<Event>,
    /// Told once nothing is left.
    ending: Option<Arc<Ending>>,
    /// True once nothing is left, not even files with secrets.
    is_finished: bool,
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
        left.1.add(swept);
        if left.0 == 0 {
            self.inbox.tell(EngineNews::Swept(std::mem::take(&mut left.1)));
        }
    }
}

/// Whether a unit is submitted or taken over from another supervisor.
pub(super) enum Begin {
    Submit(Box<Plan>, Vec<AttemptId>),
    Adopt { job: String, live: Vec<AttemptId> },
}

/// What a unit needs to begin.
pub(super) struct Beginning<'a> {
    pub(super) handle: String,
    pub(super) step: StepIndex,
    pub(super) place: UnitPlace,
    pub(super) run: &'a Path,
    pub(super) grace: Duration,
    pub(super) inbox: &'a Arc<Inbox>,
    pub(super) scheduler: Box<dyn Scheduler>,
    pub(super) connect: Option<&'a Connect>,
    pub(super) begin: Begin,
    /// Orders for the agents that are already there.
    pub(super) orders: Lines,
}

impl Unit {
    /// Starts the threads of a unit whose files are written.
    pub(super) fn begin(beginning: Beginning<'_>) -> std::io::Result<Self> {
        let Beginning { handle, step, mut place, run, grace, inbox, scheduler, connect, begin, orders } = beginning;
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.set_nonblocking(true)?;
        let is_adopted = matches!(begin, Begin::Adopt { .. });
        let (plan, job, live) = match begin {
            Begin::Submit(plan, live) => (Some(plan), None, live),
            Begin::Adopt { job, live } => (None, Some(job), live),
        };
        let is_program = scheduler.is_awaited();
        let machine = Machine::new(live, grace, is_program, is_adopted);
        let waker = Arc::new(Waker::new()?);
        let open = |connect| Office::open(&place.directory, run, connect, Arc::clone(&waker));
        let office = connect.map(open).transpose()?;
        if let Some(office) = &office {
            place.variables = office.variables().to_vec();
        }
        let shared = Arc::new(Shared {
            place,
            step,
            inbox: Arc::clone(inbox),
            state: Mutex::new(State { machine, job, orders, looks: Vec::new(), ending: None, is_finished: false }),
            changed: Condvar::new(),
            waker,
            socket,
            office,
            is_program,
            begun: Instant::now(),
        });
        shared.beat(0);
        let mut reading = Reading::default();
        if is_adopted {
            // What is asked of it depends on whether its agents are there.
            let events = reading.read(&shared.place.directory);
            let mut state = shared.lock();
            for event in events {
                shared.step(&mut state, event);
            }
        }
        let follower = Arc::clone(&shared);
        std::thread::Builder::new().name("agents".into()).spawn(move || follower.follow(reading))?;
        let watcher = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("scheduler".into())
            .spawn(move || watcher.watch(scheduler, plan.as_deref()))?;
        Ok(Self { handle, shared })
    }

    /// True if attempts can be started in it.
    pub(super) fn is_open(&self) -> bool {
        self.shared.lock().machine.is_open()
    }

    /// Orders agents to start attempts. False if the unit takes none any more.
    pub(super) fn start(&self, order: &Order, ids: &[AttemptId]) -> bool {
        let mut state = self.shared.lock();
        let is_open = state.machine.is_open();
        if is_open {
            self.shared.step(&mut state, Event::Start { order: order.clone(), ids: ids.to_vec() });
        }
        is_open
    }

    pub(super) fn order(&self, order: Order) {
        self.shared.perform(&mut self.shared.lock(), vec![Effect::Order(order)]);
    }

    pub(super) fn stop(&self, targets: &[AttemptId], how: StopHow) {
        self.shared.step(&mut self.shared.lock(), Event::Stop { how, targets: targets.to_vec() });
    }

    /// Clears what attempts left behind.
    pub(super) fn clear(&self) {
        self.shared.step(&mut self.shared.lock(), Event::Clear);
    }

    pub(super) fn end(&self, patient: bool) {
        self.shared.step(&mut self.shared.lock(), Event::End { patient });
    }

    /// `ending` is told once nothing is left of the unit.
    pub(super) fn report_to(&self, ending: &Arc<Ending>) {
        let mut state = self.shared.lock();
        if state.is_finished {
            return ending.one_less(state.machine.swept());
        }
        state.ending = Some(Arc::clone(ending));
    }

    /// Waits until the scheduler was asked to end the unit, for a process that exits early.
    pub(super) fn wait_for_cancel(&self, until: Instant) {
        let mut state = self.shared.lock();
        while !state.machine.is_done() && !state.machine.is_cancelled() && Instant::now() < until {
            state = self.shared.wait(state, URGENT);
        }
        drop(state);
        // The process exits now. A job that begins all the same has nothing to run.
        forget(&self.shared.place.directory);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn step(&self, state: &mut State, event: Event) {
        let effects = state.machine.step(event, self.begun.elapsed());
        self.perform(state, effects);
    }

    fn perform(&self, state: &mut State, effects: Vec<Effect>) {
        for effect in effects {
            let news = match effect {
                Effect::Order(order) => {
                    state.orders.add(&order);
                    self.waker.wake();
                    continue;
                }
                Effect::Done { gave_up } => {
                    if let Some(job) = state.job.as_ref().filter(|_| gave_up) {
                        self.inbox.tell(EngineNews::Notice(Box::new(unended(job, self.is_program))));
                    }
                    // The thread that writes files reports the end.
                    self.waker.wake();
                    continue;
                }
                Effect::Requeued { why } => EngineNews::Notice(Box::new(requeued(why))),
                Effect::Started { id, instance } => EngineNews::Started { id, instance },
                Effect::Ready { id } => EngineNews::Ready { id },
                Effect::Ended { id, exit, usage, over_limit } => EngineNews::Ended { id, exit, usage, over_limit },
                Effect::Pending { reason } => EngineNews::Pending { step: self.step, reason },
                Effect::Cancelled { by } => EngineNews::Cancelled { by },
                Effect::Cleared(swept) => EngineNews::Cleared(swept),
            };
            self.inbox.tell(news);
        }
        self.changed.notify_all();
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
        // What cannot be written now is written with the next beat, unless the directory was removed.
        let written = files::replace(&self.place.directory.join(files::SUPERVISOR), &Beat { count, wake });
        if written.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            let reason = format!("its directory was removed: {}", self.place.directory.display());
            self.lock().looks.push(Event::Unreachable { reason });
        }
        self.announce();
    }

    /// Says to all agents that there is something new.
    fn announce(&self) {
        if let Some(office) = &self.office {
            return office.look();
        }
        let places = self.lock().machine.placement().map(|placement| placement.places.clone());
        for place in places.into_iter().flatten() {
            let _ = self.socket.send_to(b"look", place.wake);
        }
    }

    /// The thread that reads and writes the unit's files.
    fn follow(&self, mut reading: Reading) {
        let (mut count, mut beat_at) = (0, Instant::now() + BEAT);
        loop {
            self.write_orders();
            let _ = readable(&[self.waker.as_fd(), self.socket.as_fd()], Some(EVERY));
            self.waker.clear();
            let mut bytes = [0; 16];
            while self.socket.recv_from(&mut bytes).is_ok() {}
            if beat_at <= Instant::now() {
                (count, beat_at) = (count + 1, Instant::now() + BEAT);
                self.beat(count);
            }
            let mut looks = std::mem::take(&mut self.lock().looks);
            let is_over = looks.iter().any(|event| matches!(event, Event::Looked { look: Look::Over(_), .. }));
            let last_words = if is_over { last_words(&self.place.directory) } else { None };
            for event in &mut looks {
                if let Event::Looked { log, .. } = event {
                    log.clone_from(&last_words);
                }
            }
            let events = reading.read(&self.place.directory);
            let mut state = self.lock();
            for event in events.into_iter().chain(looks).chain([Event::Tick]) {
                self.step(&mut state, event);
            }
            let is_done = state.machine.is_done();
            drop(state);
            if is_done {
                self.write_orders();
                forget(&self.place.directory);
                let mut state = self.lock();
                state.is_finished = true;
                if let Some(ending) = state.ending.take() {
                    ending.one_less(state.machine.swept());
                }
                return;
            }
        }
    }

    /// What cannot be written is tried again with the next turn.
    fn write_orders(&self) {
        let mut orders = {
            let mut state = self.lock();
            if state.orders.is_written() {
                return;
            }
            state.orders.take()
        };
        let is_written = orders.write();
        self.lock().orders.put_back(orders);
        if is_written {
            self.announce();
        }
    }

    /// The thread that calls the scheduler.
    fn watch(&self, mut scheduler: Box<dyn Scheduler>, plan: Option<&Plan>) {
        if let Some(plan) = plan {
            let submitted = scheduler.submit(&self.place, plan);
            debug!(?submitted);
            let mut state = self.lock();
            state.job = submitted.clone().ok();
            if let Some(name) = submitted.as_ref().ok().and_then(|job| scheduler.name(job)) {
                self.inbox.tell(EngineNews::Accepted { step: self.step, name });
            }
            self.step(&mut state, Event::Submitted(submitted.map(drop)));
        }
        loop {
            let mut state = self.lock();
            if !state.machine.must_cancel() && !state.machine.is_over() && !state.machine.is_done() {
                let asked = self.begun.elapsed();
                let time = state.machine.patience(asked);
                let until = Instant::now() + time;
                while !state.machine.must_cancel() && !state.machine.is_done() && Instant::now() < until {
                    state = self.wait(state, until.saturating_duration_since(Instant::now()));
                    // Something may depend on the answer now.
                    if state.machine.patience(self.begun.elapsed()) < time {
                        break;
                    }
                }
            }
            if state.machine.is_done() || state.machine.is_over() {
                return self.waker.wake();
            }
            let Some(job) = state.job.clone() else { return };
            let cancel = state.machine.take_cancel();
            drop(state);
            if let Some(kill) = cancel {
                info!(job, kill, "cancel");
                if let Err(reason) = scheduler.cancel(&job, kill) {
                    info!(job, reason, "the request to cancel was not accepted");
                    self.step(&mut self.lock(), Event::NotCancelled { kill });
                }
                self.changed.notify_all();
            }
            let asked = self.begun.elapsed();
            let look = scheduler.look(&job);
            debug!(?look);
            // It may be known again with the next answer.
            let is_over = matches!(&look, Look::Over(over) if *over != Over::Forgotten);
            self.lock().looks.push(Event::Looked { asked, look, log: None });
            self.waker.wake();
            if is_over {
                return;
            }
        }
    }
}

/// What was read of the agents' files.
#[derive(Debug, Default)]
struct Reading {
    placed: Option<Version>,
    tails: Vec<Tail>,
}

impl Reading {
    /// Reads what is new.
    fn read(&mut self, directory: &Path) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(placement) = files::read_new::<Placement>(&directory.join(files::PLACEMENT), &mut self.placed) {
            // Agents of an earlier start may have more files than there are agents now.
            let agents = placement.places.len().max(files::agents(directory));
            for agent in self.tails.len()..agents {
                self.tails.push(Tail::new(files::of_agent(directory, agent)));
            }
            events.push(Event::Placed(placement));
        }
        for (agent, tail) in self.tails.iter_mut().enumerate() {
            events.extend(tail.read::<Told>().into_iter().map(|told| Event::Told { agent, told }));
        }
        events
    }
}

/// Removes what has secrets, and what only agents need, from the directory of a unit that has ended.
pub(super) fn forget(directory: &Path) {
    for name in [files::UNIT, slurm::COPY_FILE] {
        let _ = std::fs::remove_file(directory.join(name));
    }
    Office::forget(directory);
}

/// A notice about a unit that was not ended in time: a job, or a program of this host.
fn unended(job: &str, is_program: bool) -> Diagnostic {
    if is_program {
        return Diagnostic::notice(Code::E0206, format!("`{job}` may still run on this host"))
            .row("reason", "it did not end in time");
    }
    Diagnostic::notice(Code::E0206, format!("job {job} may be left in the cluster"))
        .row("reason", "its scheduler did not end it in time, or does not answer")
        .hint(format!("`squeue --job={job}` shows whether it runs, `scancel {job}` ends it"))
}

/// A notice about a unit that its scheduler will start again.
fn requeued(why: Option<Asked>) -> Diagnostic {
    let reason = match why {
        Some(Asked::Limit) => "its time limit was near",
        Some(Asked::End) | None => "the scheduler has taken its nodes away",
    };
    Diagnostic::notice(Code::E0207, "the job waits to be started again").row("reason", reason)
}

/// What the scheduler's own log of a unit says.
fn last_words(directory: &Path) -> Option<String> {
    let logs = [slurm::LOG_FILE, mpi::LOG].map(|name| directory.join(name));
    let (path, text) = logs.iter().find_map(|path| Some((path, files::beginning_and_end(path).ok()?)))?;
    let said = mpi::said(&text);
    (!said.is_empty()).then(|| format!("{said}\n(from {})", path.display()))
}

/// The attempts that agents were ever ordered to start.
pub(super) fn ordered(directory: &Path) -> BTreeSet<AttemptId> {
    let orders = Tail::new(directory.join(files::ORDERS)).read::<Order>().into_iter();
    orders
        .flat_map(|order| if let Order::Start(starts) = order { starts } else { Vec::new() })
        .map(|start| start.id)
        .collect()
}

/// The unit that another supervisor has written; `None` if it has ended.
pub(super) fn read(directory: &Path) -> std::io::Result<Option<UnitFile>> {
    match files::read(&directory.join(files::UNIT)) {
        Ok(unit) => Ok(Some(unit)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
