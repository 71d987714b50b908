//! For `cargo xtask bench rendezvous`: a coordinator in one process, and many agents on one thread of another. Both run
//! the code of a launch; only the fronts are missing.

use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::unbounded_channel;
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::coordinator;
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::{Expects, JobKind, Join, NodeProcess, Offer, Stage, Standing};
use umiak_core::model::{Device, DeviceKind, FIRST_ATTEMPT, JobId, Port};
use umiak_core::wire::auth::Key;
use umiak_sys::wait::{Waker, readable};

use super::thread::member;
use super::{Host, Net, NetOptions, NetReport, Reporter, Target};
use crate::clock::Clock;

/// Launch id of the coordinator's node; the others follow.
const FIRST: u64 = 1;
const JOB: &str = "bench";

/// A simulated job, on loopback.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    pub port: u16,
    /// Includes the coordinator's node.
    pub nodes: u32,
    /// Per node.
    pub ranks: u16,
}

/// The coordinator and the agent in its process.
#[derive(Debug)]
pub struct Coordinator {
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
                window: Duration::ZERO,
                level: umiak_core::model::ElasticLevel::Ranks,
                succession: None,
                seed: 1,
            },
            describe: "a benchmark".to_owned(),
        });
        Ok(Self { net: Net::start(options)? })
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

fn is_start(report: &NetReport) -> bool {
    matches!(report, NetReport::News(News::Start(_)))
}

impl Job {
    fn options(self, launch: u64) -> NetOptions {
        let port = |port| Port::new(port).expect("not 0");
        let device = |number: u16| Device { label: number.to_string(), position: number.into() };
        let processes =
            (0..self.ranks).map(|number| NodeProcess::trainer(port(6170 + number), vec![device(number)])).collect();
        let offer = Offer { processes, stores: [port(6168), port(6169)], device_kind: Some(DeviceKind::Gpu) };
        let [.., high, low] = launch.to_be_bytes();
        NetOptions {
            coordinator: Target::Address(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))),
            host: None,
            join: Join {
                // As long as random values.
                launch: launch.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                command: 0x9e37_79b9_7f4a_7c15,
                address: IpAddr::V4(Ipv4Addr::new(10, 128, high, low)),
                host: format!("node-{launch:05}.cluster"),
                expects: Expects::Count { nodes: self.nodes, sort_ip: false },
                kind: JobKind::Collective,
                rank: None,
                uneven: false,
                logs: false,
                standing: Standing::new(FIRST_ATTEMPT, Stage::Ready(offer)),
            },
            limits: Limits::default(),
            job_id: JobId::new(JOB).expect("a valid name"),
            key: Key::from_token(JOB),
            clock: Clock::start(),
        }
    }
}
