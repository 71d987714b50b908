//! Several nodes: this one finds the others, offers its ports, and waits until all have joined.

use std::collections::HashSet;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::rendezvous::logs::{LogFile, Logs, LogsOptions};
use crate::rendezvous::{self, Gather, Host, LogDirMark, Net, NetOptions, NetOrder, NetReport, StoreDoor, Target};
use crate::screen::{Activity, StatusLine};
use umiak_core::contract::Member;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Outcome;
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::exit_code::{self, STOPPED};
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::coordinator;
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::messages::{
    Expects, JobKind, Join, NodeCommand, NodeName, Refusal, Stage, Standing, Start, Why,
};
use umiak_core::model::{Endpoint, FIRST_ATTEMPT, Nodes, OutputMode, Port, StoreHost, Timestamp};
use umiak_core::plan::paddle_lines::copy_to_others;
use umiak_core::plan::{self, Inventory, Log, Plan, Share, nodes};
use umiak_core::wire::auth::Key;

use super::prepare::Outline;
use super::succession::{self, Candidacy};
use super::{Around, NotRun, code_style, meeting, peer_words};
use crate::driver::short_signal;
use crate::engine::{self, Engine as _, EngineNews};

/// A shorter rendezvous is not shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// The shortest and the longest time between two lines about missing nodes, without a status line.
const LINES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long a node that cannot start tries to reach the coordinator.
const TELLING: Duration = Duration::from_secs(3);
/// Time for the last messages to other nodes.
const GOODBYE: Duration = Duration::from_secs(6);

/// The connection to the other nodes.
pub(super) struct Peers {
    /// `None` while a job over etcd has no coordinator.
    pub(super) net: Option<Net>,
    pub(super) recipe: Recipe,
    /// The address of the coordinator, for messages.
    pub(super) at: String,
    /// True on the coordinator's node.
    pub(super) is_host: bool,
    /// True if this node receives the logs of all nodes.
    pub(super) gathers: bool,
    /// For sending this node's logs to the coordinator.
    logs: Option<LogsOptions>,
    /// Where ranks of all nodes find the coordinator.
    meets_at: (String, Option<Port>),
    /// For jobs over etcd.
    pub(super) candidacy: Option<Candidacy>,
    /// Reports that came together with the first start: they are about the attempt that begins with it.
    pub(super) left: Vec<NetReport>,
    /// Commands of other nodes that were shown.
    told: HashSet<(IpAddr, String)>,
}

/// What this node needs to join the others. With etcd, it may join them again, at another coordinator.
pub(super) struct Recipe {
    pub(super) spec: Arc<LaunchSpec>,
    key: Key,
    pub(super) limits: Limits,
    address: IpAddr,
    hostname: String,
    pub(super) expects: Expects,
    pub(super) store: Option<StoreDoor>,
    /// In an elastic job, open as long as this process or its guardian runs. No connection is accepted.
    pub(super) alive: Option<TcpListener>,
    pub(super) clock: Clock,
}

impl Recipe {
    fn new(around: &mut Around<'_>, inventory: &Inventory, key: Key, address: IpAddr, expects: Expects) -> Self {
        let own = &around.spec.own;
        let limits =
            Limits { rendezvous: own.rdzv_timeout, silence: own.node_timeout, reconnect: own.reconnect_window };
        // Without it, other nodes need longer to notice that this one was killed.
        let is_elastic = matches!(expects, Expects::Range { .. });
        let alive = is_elastic.then(|| rendezvous::bind(0).ok()).flatten();
        let alive = alive.filter(|listener| around.engine.keep(listener.as_fd()));
        Self {
            spec: Arc::clone(&around.spec),
            alive,
            key,
            limits,
            address,
            hostname: inventory.hostname.clone(),
            expects,
            store: around.store.clone(),
            clock: around.clock,
        }
    }

    /// The port that is open as long as anything of this node runs.
    pub(super) fn alive_port(&self) -> Option<Port> {
        Port::new(self.alive.as_ref()?.local_addr().ok()?.port())
    }

    /// How long ranks of a node that is cut off may run.
    pub(super) fn linger(&self) -> Duration {
        self.limits.fence() + self.spec.request.policy.stop.grace
    }

    /// Begins to join at this coordinator, which is this node's own if there is a host.
    pub(super) fn connect(
        &self,
        target: Target,
        host: Option<Host>,
        launch: u64,
        standing: Standing,
    ) -> Result<Net, Diagnostic> {
        let request = &self.spec.request;
        let join = Join {
            launch,
            connected: Timestamp::default(),
            command: nodes::command_hash(&request.command),
            line: nodes::command_line(&request.command),
            address: self.address,
            host: self.hostname.clone(),
            expects: self.expects.clone(),
            kind: JobKind::of(request),
            rank: request.node_rank,
            uneven: request.may_be_uneven(),
            logs: self.spec.own.gather_logs,
            alive: self.alive_port(),
            standing,
        };
        let options = NetOptions {
            coordinator: target,
            host,
            join,
            limits: self.limits,
            job_id: request.job_id.clone(),
            key: self.key.clone(),
            clock: self.clock,
        };
        Net::start(options).map_err(|error| Diagnostic::failed("start its network thread", &error))
    }

    pub(super) fn host(
        &self,
        listener: TcpListener,
        launch: u64,
        gather: Option<Gather>,
        succession: Option<coordinator::Succession>,
    ) -> Host {
        let request = &self.spec.request;
        let elastic = request.elastic.as_ref();
        let (time, pid) = (crate::clock::time_of_day(), std::process::id());
        Host {
            listener,
            options: coordinator::Options {
                expects: self.expects.clone(),
                launch,
                uneven: request.may_be_uneven(),
                limits: self.limits,
                settle: request.policy.settle,
                hang: request.policy.hang,
                restart: request.policy.restart,
                window: elastic.map(|elastic| elastic.window).unwrap_or_default(),
                level: elastic.map(|elastic| elastic.level).unwrap_or_default(),
                succession,
                seed: fastrand::u64(..),
            },
            describe: format!("job `{}` since {time}, pid {pid}", request.job_id),
            gather,
            store: self.store.clone(),
        }
    }
}

impl Peers {
    /// Finds the coordinator, or becomes it, and begins to join.
    fn join(around: &mut Around<'_>, inventory: &Inventory, stage: Stage, log_dir: &Path) -> Result<Self, Diagnostic> {
        let spec = &Arc::clone(&around.spec);
        let key = match &spec.own.token {
            Some(token) => Key::from_token(token.expose()),
            None => Key::from_job_id(&spec.request.job_id),
        };
        let standing = Standing::new(FIRST_ATTEMPT, stage);
        if let Nodes::Etcd { at, nodes, .. } = &spec.request.nodes {
            let address = succession::address(spec, at, inventory);
            warn_about_token(around, address.is_loopback());
            let min = spec.request.elastic.as_ref().map_or(*nodes, |elastic| elastic.min);
            let recipe = Recipe::new(around, inventory, key, address, Expects::Range { min, max: *nodes });
            let candidacy = Candidacy::begin(spec, at, address, (min, *nodes), standing, &recipe)?;
            return Ok(Self {
                net: None,
                recipe,
                at: format!("etcd ({})", at.root),
                is_host: false,
                gathers: false,
                logs: None,
                meets_at: (address.to_string(), None),
                candidacy: Some(candidacy),
                left: Vec::new(),
                told: HashSet::new(),
            });
        }
        let place = meeting::place(spec, inventory, &key)?;
        if let (Nodes::Auto { .. }, Some(listener)) = (&spec.request.nodes, &place.host)
            && let Some(port) = listener.local_addr().ok().and_then(|address| Port::new(address.port()))
        {
            let command = spec.command_for_others(Endpoint { address: place.address, port });
            around.screen.talk(format!("{}\n", copy_to_others(&command)));
        }
        let meets_at = place.reached_at(&spec.request.nodes);
        if matches!(standing.stage, Stage::Ready(_)) {
            warn_about_token(around, place.is_loopback());
        }
        let recipe = Recipe::new(around, inventory, key, place.address, place.expects);
        let launch = fastrand::u64(..);
        let is_host = place.host.is_some();
        let gathers = is_host && spec.own.gather_logs;
        let gather = gathers.then(|| Gather { log_dir: log_dir.to_owned(), overwrite: spec.request.logs.overwrite });
        let logs = (!is_host && spec.own.gather_logs).then(|| LogsOptions {
            coordinator: place.target.clone(),
            job_id: spec.request.job_id.clone(),
            key: recipe.key.clone(),
            limits: recipe.limits,
            launch,
            log_dir: log_dir.to_owned(),
            files: Vec::new(),
        });
        let host = place.host.map(|listener| recipe.host(listener, launch, gather, None));
        let net = Some(recipe.connect(place.target, host, launch, standing)?);
        Ok(Self {
            net,
            recipe,
            at: place.at,
            is_host,
            gathers,
            logs,
            meets_at,
            candidacy: None,
            left: Vec::new(),
            told: HashSet::new(),
        })
    }

    /// Waits until all nodes have joined. A signal ends the wait on all nodes.
    fn wait(mut self, around: &mut Around<'_>) -> Result<(Self, Box<Start>), NotRun> {
        let mut shown = Shown::new(around.clock.started());
        let ended = loop {
            match self.turn(around, &mut shown) {
                Ok(None) => {}
                Ok(Some(start)) => {
                    around.screen.status(None);
                    return Ok((self, start));
                }
                Err(ended) => break ended,
            }
        };
        around.screen.status(None);
        self.finish();
        Err(ended)
    }

    fn turn(&mut self, around: &mut Around<'_>, shown: &mut Shown) -> Result<Option<Box<Start>>, NotRun> {
        shown.show(around);
        let (own, engine) = (self.watch(), around.engine.watch());
        let count = own.len();
        let fds: Vec<BorrowedFd<'_>> = own.into_iter().chain(engine).collect();
        let arrived = around.sources.wait(&fds, shown.due())?;
        if arrived.ready[..count].contains(&true)
            && let Some(start) = self.hear(around, shown)?
        {
            return Ok(Some(start));
        }
        if arrived.pause {
            around.screen.status(None);
            umiak_sys::wait::stop_ourselves();
        }
        if let Some(signal) = arrived.signals.first().copied() {
            self.stand(FIRST_ATTEMPT, Stage::Interrupted { signal: Some(signal), kill: false });
            around.say(&format!("stopped by {} while waiting for nodes", short_signal(signal)));
            return Err(NotRun::Code(exit_code::interrupted(code_style(&around.spec), signal)));
        }
        if arrived.ready[count..].contains(&true) && around.engine.news().iter().any(EngineNews::is_lost) {
            return Err(engine::lost("ranks").into());
        }
        Ok(None)
    }

    /// Handles reports of the network thread during the wait.
    fn hear(&mut self, around: &mut Around<'_>, shown: &mut Shown) -> Result<Option<Box<Start>>, NotRun> {
        self.hear_election(around, shown)?;
        let mut reports = self.reports().into_iter();
        while let Some(report) = reports.next() {
            let news = match report {
                NetReport::News(news) => news,
                NetReport::Refused { address, host, refusal } => {
                    around.notice_and_record(peer_words::has_refused(address, &host, &refusal));
                    continue;
                }
                NetReport::RefusedMore { count } => {
                    around.notice_and_record(peer_words::refused_more(count));
                    continue;
                }
                NetReport::Lifeline { socket, frame } => {
                    if self.has_lifeline() {
                        around.engine.hold(socket.as_fd(), frame);
                    }
                    continue;
                }
                NetReport::Started { .. } | NetReport::Spares(_) | NetReport::Gather(_) | NetReport::Ended => continue,
                NetReport::Broken(why) => {
                    let error = Diagnostic::error(Code::L0016, "the connection to the other nodes failed");
                    return Err(error.row("reason", why).into());
                }
            };
            match news {
                News::Unreached(answer) => {
                    self.missed();
                    shown.text = match peer_words::short(&answer) {
                        "" => format!("connecting to {}", self.at),
                        answer => format!("connecting to {} ({answer})", self.at),
                    };
                }
                News::Waiting(waiting) => {
                    self.settled();
                    shown.text = peer_words::waiting(&waiting);
                }
                News::Spare(start) => {
                    shown.text = peer_words::spare(start.nodes.len());
                    self.knows(&start);
                }
                News::Start(start) => {
                    self.knows(&start);
                    for notice in self.other_commands(&start) {
                        around.notice_and_record(notice);
                    }
                    let own = around.spec.request.policy.restart.max;
                    if let Some(restarts) = start.restarts.filter(|restarts| *restarts != own) {
                        around.notice(&peer_words::other_restarts(restarts, own));
                    }
                    self.left = reports.collect();
                    return Ok(Some(start));
                }
                // Another coordinator may be elected.
                News::Moved(_)
                | News::Lost(_)
                | News::TimeUp(_)
                | News::Refused(Refusal::TooLate | Refusal::GivenUp)
                    if self.candidacy.is_some() =>
                {
                    self.look();
                    "looking for a coordinator".clone_into(&mut shown.text);
                }
                News::Refused(refusal) => return Err(peer_words::refused(&refusal).into()),
                News::TurnedAway(answer) => return Err(peer_words::turned_away(&answer, &self.at).into()),
                News::TimeUp(answer) => return Err(peer_words::not_reached(&answer, &self.at).into()),
                News::Decision(decision) if decision.outcome == Outcome::Succeeded => {
                    around.say("the job has succeeded on other nodes");
                    return Err(NotRun::Code(0));
                }
                News::Decision(decision) => return Err(ended_before(around, decision.why.as_ref(), &self.at)),
                News::Lost(how) => return Err(ended_before(around, Some(&Why::CoordinatorLost { how }), &self.at)),
                News::Stop(_)
                | News::Moved(_)
                | News::Alone { .. }
                | News::Servers(_)
                | News::Suspects(_)
                | News::Quiet
                | News::Back => {}
            }
        }
        Ok(None)
    }

    /// Notices about nodes that were started with another command: on the coordinator's node about all of them, on
    /// another one about itself. Each is given once.
    pub(super) fn other_commands(&mut self, start: &Start) -> Vec<Diagnostic> {
        let Some((first, others)) = start.commands.split_first() else { return Vec::new() };
        let name = |command: &NodeCommand| {
            let node = start.nodes.get(command.node as usize)?;
            Some(NodeName { node: command.node, address: node.address, host: node.host.clone() })
        };
        let mut notices = Vec::new();
        for other in others.iter().filter(|other| self.is_host || other.node == start.you) {
            let about = if self.is_host { other } else { first };
            let Some(name) = name(about) else { continue };
            if self.told.insert((name.address, about.line.clone())) {
                let own = if self.is_host { first } else { other };
                notices.push(peer_words::other_command(&name, &own.line, &about.line, self.is_host));
            }
        }
        notices
    }

    /// Reports the state of this node to the coordinator. A node that is ready looks for one, if there is none.
    pub(super) fn stand(&mut self, attempt: u32, stage: Stage) {
        let standing = Standing::new(attempt, stage);
        if let (Some(candidacy), Stage::Ready(_)) = (&mut self.candidacy, &standing.stage) {
            candidacy.ready = standing.clone();
            if self.net.is_none() {
                return self.look();
            }
        }
        self.order(NetOrder::Standing(standing));
    }

    /// Sends an order, if there is a coordinator.
    pub(super) fn order(&self, order: NetOrder) {
        if let Some(net) = &self.net {
            net.order(order);
        }
    }

    /// Reports of the network since the last call.
    pub(super) fn reports(&mut self) -> Vec<NetReport> {
        let mut reports = std::mem::take(&mut self.left);
        reports.extend(self.net.as_mut().map(Net::reports).unwrap_or_default());
        reports
    }

    /// Descriptors that are readable when there are reports.
    pub(super) fn watch(&self) -> Vec<BorrowedFd<'_>> {
        let net = self.net.as_ref().map(Net::as_fd);
        net.into_iter().chain(self.candidacy.as_ref().map(Candidacy::as_fd)).collect()
    }

    /// Names a file in the log directory that only this node has written. A node that sees it there too uses the same
    /// directory, and sends no logs.
    pub(super) fn mark_log_dir(&self, marker: String, plan: &Plan) {
        let names = plan.topology().members.iter().map(Member::log_name).collect();
        self.order(NetOrder::Mark(LogDirMark { marker, names }));
    }

    /// Starts to send the logs of this node's ranks to the coordinator, if enabled.
    pub(super) fn send_logs(&mut self, plan: &Plan) -> std::io::Result<Option<Logs>> {
        let Some(options) = self.logs.take() else { return Ok(None) };
        let files = plan.replicas.iter().map(|replica| {
            let Log { path, start, .. } = plan.log(replica, plan.attempt);
            LogFile { rank: replica.rank.0, path, start }
        });
        Logs::start(LogsOptions { files: files.collect(), ..options }).map(Some)
    }

    /// The job has ended on this node; messages from other nodes still arrive.
    pub(super) fn leave(&self) {
        self.order(NetOrder::Leave);
    }

    /// All nodes have met, and this one cannot start: they end with its reason.
    pub(super) fn give_up(mut self, attempt: u32, why: Diagnostic) -> Diagnostic {
        self.stand(attempt, Stage::Unable { why: why.message.clone() });
        self.finish();
        why
    }

    /// Leaves the job. The coordinator waits until all nodes have its decision.
    pub(super) fn finish(self) {
        self.finish_as(None);
    }

    /// The same; the job has ended so.
    pub(super) fn finish_as(self, end: Option<(Outcome, u8)>) {
        if let Some(net) = self.net {
            net.order(NetOrder::Leave);
            net.finish(GOODBYE);
        }
        if let Some(candidacy) = self.candidacy {
            candidacy.finish(end, GOODBYE);
        }
    }
}

/// Warns that other processes can join, unless the nodes are all on this host.
fn warn_about_token(around: &Around<'_>, is_loopback: bool) {
    if around.spec.own.token.is_none() && !is_loopback {
        let notice =
            Diagnostic::notice(Code::R0007, "without a token, any process that knows the job id can join this job")
                .hint("on a shared network, give every node the same `--token-file` or `UMIAK_TOKEN`");
        around.notice(&notice);
    }
}

/// The round ended before it began on this node; other nodes may have begun.
fn ended_before(around: &Around<'_>, why: Option<&Why>, coordinator: &str) -> NotRun {
    if let Some(Why::Interrupted { node, signal, .. }) = why {
        around.say(&format!("stopped by {}", peer_words::interrupted(node, *signal)));
        return NotRun::Code(signal.map_or(STOPPED, |signal| exit_code::interrupted(code_style(&around.spec), signal)));
    }
    let told = why.and_then(|why| peer_words::why(why, coordinator));
    told.unwrap_or_else(|| peer_words::refused(&Refusal::TooLate)).into()
}

/// Joins the other nodes, and returns when all have joined, with the attempt that begins.
pub(super) fn meet(
    around: &mut Around<'_>,
    inventory: &Inventory,
    outline: &Outline,
) -> Result<(Share, Peers, Box<Start>), NotRun> {
    let offer = plan::offer(&outline.layout, &outline.ports);
    let (peers, start) = Peers::join(around, inventory, Stage::Ready(offer), &outline.log_dir)?.wait(around)?;
    // With etcd, each start says it.
    let is_fixed = !matches!(around.spec.request.nodes, Nodes::Etcd { .. });
    if let (true, StoreHost::Agent { host: None, port: None }) = (is_fixed, &around.spec.request.store) {
        let mut spec = (*around.spec).clone();
        let (host, port) = peers.meets_at.clone();
        spec.request.store = StoreHost::Agent { host: Some(host), port };
        around.spec = Arc::new(spec);
    }
    match Share::of(&around.spec.request, &outline.layout, &start) {
        Ok(share) => Ok((share, peers, start)),
        Err(diagnostic) => Err(peers.give_up(start.attempt, diagnostic).into()),
    }
}

/// This node cannot start: the others end with its reason instead of waiting for it.
pub(super) fn tell_unable(around: &mut Around<'_>, inventory: &Inventory, why: &Diagnostic) {
    let stage = Stage::Unable { why: why.message.clone() };
    // Logs are not sent.
    let Ok(mut peers) = Peers::join(around, inventory, stage, Path::new("")) else { return };
    let mut shown = Shown::new(around.clock.started());
    let until = Instant::now() + TELLING;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let is_over = match around.sources.wait(&peers.watch(), Some(left)) {
            Ok(arrived) => !arrived.signals.is_empty() || peers.hear(around, &mut shown).is_err(),
            Err(_) => true,
        };
        if is_over || left.is_zero() {
            return peers.finish();
        }
    }
}

/// The console lines about missing nodes.
pub(super) struct Shown {
    text: String,
    since: Instant,
    /// The last line and its time, without a status line.
    said: Option<(String, Instant)>,
    /// Shortest time to the next line.
    interval: Duration,
}

impl Shown {
    fn new(since: Instant) -> Self {
        Self { text: "connecting".to_owned(), since, said: None, interval: LINES.0 }
    }

    pub(super) fn say(&mut self, text: String) {
        self.text = text;
    }

    fn show(&mut self, around: &Around<'_>) {
        if around.spec.own.output != OutputMode::Human {
            return;
        }
        if around.style.is_live() {
            let job = around.spec.request.job_id.to_string();
            let doing = Activity::Waiting(self.text.clone());
            return around.screen.status(Some(StatusLine { job, since: self.since, doing }));
        }
        if self.due().is_some_and(|due| due.is_zero()) {
            around.say(&self.text);
            if self.said.replace((self.text.clone(), Instant::now())).is_some() {
                self.interval = (self.interval * 2).min(LINES.1);
            }
        }
    }

    /// Time until the next line; `None` if nothing has changed.
    fn due(&self) -> Option<Duration> {
        match &self.said {
            None => Some(PATIENCE.saturating_sub(self.since.elapsed())),
            Some((text, at)) if *text != self.text => Some(self.interval.saturating_sub(at.elapsed())),
            Some(_) => None,
        }
    }
}
