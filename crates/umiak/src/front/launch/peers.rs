//! Several nodes: this one finds the others, offers its ports, waits until all are there, and hears of them from then
//! on.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::rendezvous::logs::{self, LogFile, Logs};
use crate::rendezvous::{self, Gather, Host, LogDirMark, Net, NetOrder, NetReport, Target};
use crate::screen::{Activity, Screen, StatusLine};
use umiak_core::contract::Member;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::exit_code::STOPPED;
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::coordinator;
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::{
    Decision, Join, NodeShare, Offer, RankPlace, Refusal, Stage, Standing, Start, Why,
};
use umiak_core::model::{Endpoint, Nodes, OutputMode, Port, Request};
use umiak_core::plan::paddle_lines::copy_to_others;
use umiak_core::plan::{self, Inventory, Log, Plan, Share, nodes};
use umiak_core::wire::auth::Key;

use super::prepare::Outline;
use super::{Around, NotRun, meeting, peer_words, words};
use crate::driver::short_signal;
use crate::engine::{Engine as _, News as EngineNews};

/// A rendezvous that is over sooner is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two lines about who is missing, where there is no status line: at first, and after many of them.
const LINES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long the last words to other nodes may take.
const GOODBYE: Duration = Duration::from_secs(6);

/// The other nodes, as far as this one hears of them.
pub(super) struct Peers {
    net: Net,
    /// The coordinator, as it is shown.
    at: String,
    /// Why this attempt was stopped for all, and where the ranks of its verdict were.
    pub(super) why: Option<Why>,
    pub(super) places: Vec<RankPlace>,
    sender: Sender,
    /// Logs of all nodes come here.
    gathers: bool,
}

/// What this node needs in order to send its logs.
struct Sender {
    coordinator: Target,
    key: Key,
    limits: Limits,
    launch: u64,
    /// This node is the coordinator's, and has nothing to send.
    is_host: bool,
}

impl Peers {
    /// Whether this node is the coordinator's.
    pub(super) fn is_host(&self) -> bool {
        self.sender.is_host
    }

    /// Finds out who and where the coordinator is, becomes it where that is us, and begins to join.
    fn join(
        around: &Around<'_>,
        screen: &Screen,
        inventory: &Inventory,
        offer: Offer,
        log_dir: &Path,
    ) -> Result<Self, NotRun> {
        let spec = around.spec;
        let key = key(spec);
        let place = meeting::place(spec, inventory, &key)?;
        if let (Nodes::Auto { .. }, Some(listener)) = (&spec.request.nodes, &place.host)
            && let Some(port) = listener.local_addr().ok().and_then(|address| Port::new(address.port()))
        {
            let command = spec.command_for_others(Endpoint { address: place.address, port });
            screen.talk(format!("{}\n", copy_to_others(&command)));
        }
        if spec.own.token.is_none() && !place.is_loopback() {
            let notice = Diagnostic::notice(Code::R0007, "nodes prove themselves by the job id only")
                .hint("in a network that others use too, give every node the same `--token` or `UMIAK_TOKEN`");
            talk(around, screen, &notice);
        }
        let limits = Limits {
            rendezvous: spec.own.rdzv_timeout,
            silence: spec.own.node_timeout,
            reconnect: spec.own.reconnect_window,
        };
        let launch = fastrand::u64(..);
        let gathers = place.host.is_some() && spec.own.gather_logs;
        let gather = gathers.then(|| Gather { log_dir: log_dir.to_owned(), overwrite: spec.request.logs.overwrite });
        let sender = Sender {
            coordinator: place.target.clone(),
            key: key.clone(),
            limits,
            launch,
            is_host: place.host.is_some(),
        };
        let job = spec.request.policy;
        let host = place.host.map(|listener| Host {
            listener,
            options: coordinator::Options {
                expects: place.expects.clone(),
                launch,
                uneven: spec.request.may_be_uneven(),
                limits,
                settle: job.settle,
                restart: job.restart,
                seed: fastrand::u64(..),
            },
            describe: format!(
                "job `{}` since {}, pid {}",
                spec.request.job_id,
                crate::clock::time_of_day(),
                std::process::id()
            ),
            gather,
        });
        let join = Join {
            launch,
            command: nodes::command_hash(&spec.request.command),
            address: place.address,
            host: inventory.hostname.clone(),
            expects: place.expects,
            rank: spec.request.node_rank,
            uneven: spec.request.may_be_uneven(),
            logs: spec.own.gather_logs,
            standing: Standing { attempt: 0, stage: Stage::Ready(offer) },
        };
        let options = rendezvous::NetOptions {
            coordinator: place.target,
            host,
            join,
            limits,
            job_id: spec.request.job_id.clone(),
            key,
            clock: around.clock,
        };
        let net = Net::start(options).map_err(|error| Diagnostic::failed("start its network thread", &error))?;
        Ok(Self { net, at: place.at, why: None, places: Vec::new(), sender, gathers })
    }

    /// Waits until all nodes are there. A signal ends the wait for everybody.
    fn wait(mut self, around: &mut Around<'_>, screen: &Screen) -> Result<(Self, Box<Start>), NotRun> {
        let mut shown = Shown::new(around.clock.started());
        let ended = loop {
            shown.show(around, screen);
            let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.net.as_fd()).chain(around.engine.watch()).collect();
            let arrived = match around.sources.wait(&fds, shown.timeout()) {
                Ok(arrived) => arrived,
                Err(error) => break error.into(),
            };
            if arrived.ready[0] {
                match self.hear(around, screen, &mut shown) {
                    Some(Ok(start)) => {
                        screen.status(None);
                        return Ok((self, start));
                    }
                    Some(Err(ended)) => break ended,
                    None => {}
                }
            }
            if arrived.pause {
                screen.status(None);
                umiak_sys::wait::stop_ourselves();
            }
            if let Some(signal) = arrived.signals.first().copied() {
                self.stand(0, Stage::Interrupted { signal: Some(signal), kill: false });
                say(around, screen, &format!("stopped by {}, while nodes were missing", short_signal(signal)));
                break NotRun::Code(128u8.wrapping_add(signal as u8));
            }
            if arrived.ready[1..].contains(&true) && around.engine.news().contains(&EngineNews::Lost) {
                break Diagnostic::error(Code::L0017, "the process that was to hold the ranks was killed from outside")
                    .into();
            }
        };
        screen.status(None);
        self.finish();
        Err(ended)
    }

    /// What has come in while we wait.
    fn hear(
        &mut self,
        around: &mut Around<'_>,
        screen: &Screen,
        shown: &mut Shown,
    ) -> Option<Result<Box<Start>, NotRun>> {
        for report in self.net.reports() {
            let news = match report {
                NetReport::News(news) => news,
                NetReport::Refused { address, host, refusal } => {
                    talk(around, screen, &peer_words::has_refused(address, &host, &refusal));
                    continue;
                }
                NetReport::Lifeline { socket, frame } => {
                    around.engine.hold(socket.as_fd(), frame);
                    continue;
                }
                NetReport::Gather(_) | NetReport::Ended => continue,
                NetReport::Broken(why) => {
                    let error =
                        Diagnostic::error(Code::L0016, "the connection to the other nodes failed").row("reason", why);
                    return Some(Err(error.into()));
                }
            };
            match news {
                News::Unreached(answer) => {
                    let answer = peer_words::short(&answer);
                    shown.text = if answer.is_empty() {
                        format!("connecting to {}", self.at)
                    } else {
                        format!("connecting to {} ({answer})", self.at)
                    };
                }
                News::Waiting(waiting) => shown.text = peer_words::waiting(&waiting),
                News::Start(start) => return Some(Ok(start)),
                News::Refused(refusal) => return Some(Err(peer_words::refused(&refusal).into())),
                News::TurnedAway(answer) => return Some(Err(peer_words::turned_away(&answer, &self.at).into())),
                News::TimeUp(answer) => return Some(Err(peer_words::not_reached(&answer, &self.at).into())),
                News::Decision(decision) => {
                    let ended = ended_before(around, screen, &decision);
                    return Some(Err(ended.unwrap_or_else(|| peer_words::refused(&Refusal::TooLate).into())));
                }
                News::Lost(how) => {
                    let why = Why::CoordinatorLost { how };
                    return peer_words::why(&why).map(|diagnostic| Err(diagnostic.into()));
                }
                News::Stop(_) | News::Alone { .. } | News::Suspects(_) | News::Quiet | News::Back => {}
            }
        }
        None
    }

    pub(super) fn stand(&self, attempt: u32, stage: Stage) {
        self.net.order(NetOrder::Standing(Standing { attempt, stage }));
    }

    pub(super) fn reports(&mut self) -> Vec<NetReport> {
        self.net.reports()
    }

    /// Whether logs of all nodes come to this one.
    pub(super) fn gathers(&self) -> bool {
        self.gathers
    }

    /// The job has a file of this name in its log directory here, and nowhere else: who sees it there too need not send
    /// logs.
    pub(super) fn mark_log_dir(&self, marker: String, plan: &Plan) {
        let names = plan.topology().members.iter().map(Member::log_name).collect();
        self.net.order(NetOrder::Mark(LogDirMark { marker, names }));
    }

    /// Begins to send the logs of this node's ranks to the coordinator, unless it is here.
    pub(super) fn send_logs(&self, spec: &LaunchSpec, plan: &Plan) -> std::io::Result<Option<Logs>> {
        let Sender { coordinator, key, limits, launch, is_host } = &self.sender;
        if *is_host || !spec.own.gather_logs {
            return Ok(None);
        }
        let files = plan.replicas.iter().map(|replica| {
            let Log { path, start } = plan.log(replica, plan.attempt);
            LogFile { rank: replica.rank.0, path, start }
        });
        let options = logs::LogsOptions {
            coordinator: coordinator.clone(),
            job_id: spec.request.job_id.clone(),
            key: key.clone(),
            limits: *limits,
            launch: *launch,
            log_dir: plan.logs.dir().to_owned(),
            files: files.collect(),
        };
        Logs::start(options).map(Some)
    }

    /// The job is over here; what comes from other nodes still comes.
    pub(super) fn leave(&self) {
        self.net.order(NetOrder::Leave);
    }

    /// Says goodbye; the coordinator waits until all nodes know how it ended.
    pub(super) fn finish(self) {
        self.net.order(NetOrder::Leave);
        self.net.finish(GOODBYE);
    }
}

impl AsFd for Peers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.net.as_fd()
    }
}

fn talk(around: &Around<'_>, screen: &Screen, notice: &Diagnostic) {
    if around.spec.own.output == OutputMode::Human {
        screen.talk(around.style.diagnostic(notice));
    }
}

fn say(around: &Around<'_>, screen: &Screen, text: &str) {
    if around.spec.own.output == OutputMode::Human {
        screen.talk(words::nodes(around.style, text));
    }
}

/// The round ended before it began; nothing where others had begun without us.
fn ended_before(around: &Around<'_>, screen: &Screen, decision: &Decision) -> Option<NotRun> {
    match decision.why.as_ref()? {
        Why::Interrupted { node, signal, .. } => {
            say(around, screen, &format!("stopped by {}", peer_words::interrupted(node, *signal)));
            Some(NotRun::Code(signal.map_or(STOPPED, |signal| 128u8.wrapping_add(signal as u8))))
        }
        why => peer_words::why(why).map(Into::into),
    }
}

fn key(spec: &LaunchSpec) -> Key {
    match &spec.own.token {
        Some(token) => Key::from_token(token.expose()),
        None => Key::from_job_id(&spec.request.job_id),
    }
}

/// Joins the other nodes, and comes back when all are there.
pub(super) fn meet(
    around: &mut Around<'_>,
    screen: &Screen,
    inventory: &Inventory,
    outline: &Outline,
) -> Result<(Share, Peers), NotRun> {
    let offer = plan::offer(&outline.layout, &outline.ports);
    let peers = Peers::join(around, screen, inventory, offer, outline.log_dir())?;
    let (peers, start) = peers.wait(around, screen)?;
    let share = Share::of(&around.spec.request, &outline.layout, &start)?;
    Ok((share, peers))
}

/// For `--dry-run`: nobody is asked, and the other nodes are taken to be like this one.
pub(super) fn rehearse(request: &Request, inventory: &Inventory, outline: &Outline) -> Result<Share, Diagnostic> {
    let own = nodes::likely_address(&inventory.addresses);
    let (addresses, you) = match &request.nodes {
        Nodes::List { addresses, source } => {
            (addresses.clone(), nodes::own_index(addresses, source, &inventory.addresses, request.host)?)
        }
        Nodes::Master { nodes, .. } | Nodes::Auto { nodes, .. } => {
            (vec![request.host.unwrap_or(own); *nodes as usize], request.node_rank.unwrap_or(0) as usize)
        }
        Nodes::One => (vec![own], 0),
    };
    let offer = plan::offer(&outline.layout, &outline.ports);
    let share = |address: &IpAddr| NodeShare {
        launch: 0,
        address: *address,
        host: inventory.hostname.clone(),
        processes: plan::rehearsed(request, *address, &offer),
        device_kind: offer.device_kind,
    };
    let store = |port| Endpoint { address: addresses[0], port };
    let start = Start {
        attempt: 0,
        nodes: addresses.iter().map(share).collect(),
        paddle_store: store(offer.stores[0]),
        torch_store: store(offer.stores[1]),
        you: you as u32,
    };
    Share::of(request, &outline.layout, &start)
}

/// Who is missing, as the console shows it.
struct Shown {
    text: String,
    since: Instant,
    /// The last line, where there is no status line, and when it was said.
    said: Option<(String, Instant)>,
    /// How long the next one has to wait.
    interval: Duration,
}

impl Shown {
    fn new(since: Instant) -> Self {
        Self { text: "connecting".to_owned(), since, said: None, interval: LINES.0 }
    }

    fn show(&mut self, around: &Around<'_>, screen: &Screen) {
        if around.spec.own.output != OutputMode::Human {
            return;
        }
        if around.style.live {
            let job = around.spec.request.job_id.to_string();
            let doing = Activity::Waiting(self.text.clone());
            return screen.status(Some(StatusLine { job, since: self.since, doing }));
        }
        if self.due().is_some_and(|due| due.is_zero()) {
            say(around, screen, &self.text);
            if self.said.replace((self.text.clone(), Instant::now())).is_some() {
                self.interval = (self.interval * 2).min(LINES.1);
            }
        }
    }

    /// How long until a line is to be said.
    fn due(&self) -> Option<Duration> {
        match &self.said {
            None => Some(PATIENCE.saturating_sub(self.since.elapsed())),
            Some((text, at)) if *text != self.text => Some(self.interval.saturating_sub(at.elapsed())),
            Some(_) => None,
        }
    }

    fn timeout(&self) -> Option<Duration> {
        self.due()
    }
}
