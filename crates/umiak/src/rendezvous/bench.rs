//! For `cargo xtask bench rendezvous` and `elastic`: a coordinator in one process, and many agents on one thread of
//! another. Both run the code of a launch; only the fronts are missing. Those of an elastic job are replaced by answers.

use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::coordinator;
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::{Expects, JobKind, Join, NodeProcess, Offer, Stage, Standing};
use umiak_core::model::{Device, DeviceKind, FIRST_ATTEMPT, JobId, Port, Timestamp};
use umiak_core::wire::auth::Key;
use umiak_sys::wait::{Waker, readable};

use super::thread::member;
use super::{Host, Net, NetOptions, NetOrder, NetReport, Reporter, Target};
use crate::clock::Clock;

/// Launch id of the coordinator's node; the others follow.
const FIRST: u64 = 1;
const JOB: &str = "bench";
/// How long an elastic job with enough nodes waits for others.
const WINDOW: Duration = Duration::from_secs(1);
const SIGTERM: i32 = 15;

/// A simulated job, on loopback.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    pub port: u16,
    /// Includes the coordinator's node.
    pub nodes: u32,
    /// Per node.
    pub ranks: u16,
    /// The fewest nodes of an elastic job.
    pub fewest: Option<u32>,
}

/// The coordinator and the agent in its process.
#[derive(Debug)]
pub struct Coordinator {
    job: Job,
    net: Net,
}

/// Listens as a coordinator does.
pub fn bind(port: u16) -> io::Result<TcpListener> {
    super::bind(port)
}

impl Coordinator {
    pub fn start(job: Job, listener: TcpListener) -> io::Result<Self> {
        let mut options = job.options(FIRST);
        options.host = Some(Host {
            listener,
            gather: None,
            store: None,
            options: coordinator::Options {
                expects: options.join.expects.clone(),
                launch: options.join.launch,
                uneven: false,
                limits: options.limits,
                settle: Duration::from_millis(500),
                hang: None,
                restart: umiak_core::model::Restart::default(),
                window: if job.fewest.is_some() { WINDOW } else { Duration::ZERO },
                level: umiak_core::model::ElasticLevel::Ranks,
                succession: None,
                seed: 1,
            },
            describe: "a benchmark".to_owned(),
        });
        Ok(Self { job, net: Net::start(options)? })
    }

    /// Answers for the node beside the coordinator until `end` is readable.
    pub fn serve(&mut self, end: impl AsFd) -> io::Result<()> {
        while !readable(&[end.as_fd(), self.net.as_fd()], None)?[0] {
            for report in self.net.reports() {
                if let NetReport::News(news) = report {
                    self.job
                        .answer(&news)
                        .into_iter()
                        .for_each(|standing| self.net.order(NetOrder::Standing(standing)));
                }
            }
        }
        Ok(())
    }

    /// Returns true if its own agent is told to start within this time.
    pub fn await_start(&mut self, patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        loop {
            if self.net.reports().iter().any(is_start) {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            readable(&[self.net.as_fd()], Some(left))?;
        }
    }
}

/// The agents of all nodes but the first.
#[derive(Debug)]
pub struct Agents {
    reports: Receiver<NetReport>,
    count: usize,
}

impl Agents {
    /// Starts the agents of all nodes but the first. They live as long as the process.
    pub fn start(job: Job) -> io::Result<Self> {
        umiak_sys::limits::raise();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (to_front, reports) = channel();
        let waker = Arc::new(Waker::new()?);
        let launches = FIRST + 1..=u64::from(job.nodes);
        let count = launches.clone().count();
        std::thread::Builder::new().name("agents".to_owned()).spawn(move || {
            runtime.block_on(async {
                // An agent ends when its front is dropped.
                let mut fronts = Vec::new();
                for launch in launches {
                    let (orders, from_front) = unbounded_channel();
                    let reporter = Reporter { reports: to_front.clone(), waker: Arc::clone(&waker) };
                    // An agent without a coordinator opens no socket here, so it cannot fail.
                    if let Ok(member) = member(job.options(launch), from_front, reporter) {
                        tokio::spawn(member);
                    }
                    fronts.push(orders);
                }
                pending::<()>().await;
                drop(fronts);
            });
        })?;
        Ok(Self { reports, count })
    }

    /// Returns how many agents are not told to start within this time.
    pub fn await_start(&self, patience: Duration) -> usize {
        let until = Instant::now() + patience;
        let mut waiting = self.count;
        while waiting > 0 {
            match self.reports.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(report) => waiting -= usize::from(is_start(&report)),
                Err(_) => break,
            }
        }
        waiting
    }
}

/// Agents of an elastic job, which join and leave.
#[derive(Debug)]
pub struct Members {
    job: Job,
    nodes: Vec<Node>,
    waker: Arc<Waker>,
    last_launch: u64,
    messages: u64,
}

/// A node without ranks.
#[derive(Debug)]
struct Node {
    orders: UnboundedSender<NetOrder>,
    reports: Receiver<NetReport>,
    /// The attempt that it was last told to start.
    started: u32,
    leaves: bool,
    /// Why its agent has ended although it stays.
    ended: Option<String>,
}

impl Members {
    /// Starts the agents of all nodes but the first.
    pub fn start(job: Job) -> io::Result<Self> {
        umiak_sys::limits::raise();
        let waker = Arc::new(Waker::new()?);
        let mut members = Self { job, nodes: Vec::new(), waker, last_launch: FIRST, messages: 0 };
        members.join(job.nodes - 1)?;
        Ok(members)
    }

    /// Starts this many more.
    pub fn join(&mut self, count: u32) -> io::Result<()> {
        let network = crate::network::handle()?;
        for _ in 0..count {
            self.last_launch += 1;
            let (orders, from_front) = unbounded_channel();
            let (to_front, reports) = channel();
            let reporter = Reporter { reports: to_front, waker: Arc::clone(&self.waker) };
            let _context = network.enter();
            network.spawn(member(self.job.options(self.last_launch), from_front, reporter)?);
            self.nodes.push(Node { orders, reports, started: 0, leaves: false, ended: None });
            self.messages += 1;
        }
        Ok(())
    }

    /// Lets this many of them leave, as after a signal.
    pub fn leave(&mut self, count: usize) {
        for node in self.nodes.iter_mut().filter(|node| !node.leaves).take(count) {
            node.leaves = true;
            let stage = Stage::Interrupted { signal: Some(SIGTERM), kill: false };
            let _ = node.orders.send(NetOrder::Standing(Standing::new(node.started, stage)));
            self.messages += 1;
        }
    }

    /// Waits until all that stay have been told to start the same attempt, later than this one. Returns it, or `None` if
    /// it takes too long.
    pub fn await_start(&mut self, after: u32, patience: Duration) -> io::Result<Option<u32>> {
        let until = Instant::now() + patience;
        loop {
            self.hear();
            let mut staying = self.nodes.iter().filter(|node| !node.leaves).map(|node| node.started);
            let attempt = staying.next().filter(|attempt| *attempt > after);
            if attempt.is_some_and(|attempt| staying.all(|other| other == attempt)) {
                return Ok(attempt);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            readable(&[self.waker.as_fd()], Some(left))?;
            self.waker.clear();
        }
    }

    /// The messages between these agents and the coordinator so far, without handshakes and heartbeats.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// How many are not in the newest attempt, and what is known of it.
    pub fn missing(&self) -> String {
        let staying = || self.nodes.iter().filter(|node| !node.leaves);
        let newest = staying().map(|node| node.started).max().unwrap_or_default();
        let missing = staying().filter(|node| node.started != newest).count();
        let ended: Vec<&str> = staying().filter_map(|node| node.ended.as_deref()).collect();
        let first = ended.first().map_or_else(String::new, |first| format!(", the first: {first}"));
        format!("{missing} of {} are not in attempt {newest}, {} have ended{first}", staying().count(), ended.len())
    }

    fn hear(&mut self) {
        for node in &mut self.nodes {
            for report in node.reports.try_iter() {
                let NetReport::News(news) = report else { continue };
                self.messages += u64::from(is_message(&news));
                match &news {
                    News::Start(start) => node.started = start.attempt,
                    News::Refused(_) | News::TurnedAway(_) | News::TimeUp(_) | News::Alone { .. } | News::Lost(_) => {
                        node.ended.get_or_insert_with(|| format!("{news:?}"));
                    }
                    _ => {}
                }
                if let Some(standing) = self.job.answer(&news).filter(|_| !node.leaves) {
                    let _ = node.orders.send(NetOrder::Standing(standing));
                    self.messages += 1;
                }
            }
        }
    }
}

/// True if it was sent by the coordinator, false for observations of the agent itself.
fn is_message(news: &News) -> bool {
    match news {
        News::Waiting(_)
        | News::Refused(_)
        | News::Start(_)
        | News::Spare { .. }
        | News::Stop(_)
        | News::Decision(_)
        | News::Moved(_)
        | News::Servers(_)
        | News::Suspects(_) => true,
        News::Unreached(_)
        | News::TurnedAway(_)
        | News::TimeUp(_)
        | News::Alone { .. }
        | News::Quiet
        | News::Back
        | News::Lost(_) => false,
    }
}

fn is_start(report: &NetReport) -> bool {
    matches!(report, NetReport::News(News::Start(_)))
}

impl Job {
    fn offer(self) -> Offer {
        let port = |port| Port::new(port).expect("not 0");
        let device = |number: u16| Device { label: number.to_string(), position: number.into() };
        let processes =
            (0..self.ranks).map(|number| NodeProcess::trainer(port(6170 + number), vec![device(number)])).collect();
        Offer { processes, stores: [port(6168), port(6169)], device_kind: Some(DeviceKind::Gpu) }
    }

    /// The answer of a front whose ranks stop at once.
    fn answer(self, news: &News) -> Option<Standing> {
        match news {
            News::Stop(stop) => Some(Standing::new(stop.attempt, Stage::Told(Vec::new()))),
            News::Decision(decision) => {
                decision.restart.map(|next| Standing::new(next.attempt, Stage::Ready(self.offer())))
            }
            _ => None,
        }
    }

    fn expects(self) -> Expects {
        match self.fewest {
            Some(min) => Expects::Range { min, max: self.nodes },
            None => Expects::Count { nodes: self.nodes, sort_ip: false },
        }
    }

    fn options(self, launch: u64) -> NetOptions {
        let [.., high, low] = launch.to_be_bytes();
        NetOptions {
            coordinator: Target::Address(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))),
            host: None,
            join: Join {
                // As long as random values.
                launch: launch.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                connected: Timestamp::default(),
                command: 0x9e37_79b9_7f4a_7c15,
                line: String::new(),
                address: IpAddr::V4(Ipv4Addr::new(10, 128, high, low)),
                host: format!("node-{launch:05}.cluster"),
                expects: self.expects(),
                kind: JobKind::Collective,
                rank: None,
                uneven: false,
                logs: false,
                alive: None,
                standing: Standing::new(FIRST_ATTEMPT, Stage::Ready(self.offer())),
            },
            limits: Limits::default(),
            job_id: JobId::new(JOB).expect("a valid name"),
            key: Key::from_token(JOB),
            clock: Clock::start(),
        }
    }
}
