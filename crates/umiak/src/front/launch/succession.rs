//! Jobs over etcd: this node finds the elected coordinator or becomes it, and again whenever the coordinator is lost.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Outcome;
use umiak_core::formats::launch::LaunchSpec;
use umiak_core::machine::job::{Decided, Event};
use umiak_core::machine::round::coordinator::{Past, Succession};
use umiak_core::machine::round::election::Reign;
use umiak_core::machine::round::known::Takeover;
use umiak_core::machine::round::messages::{AttemptEnd, Decision, Expects, Loss, NodeName, Standing, Start, Why};
use umiak_core::model::{ElasticLevel, Endpoint, EtcdPlace, Port};
use umiak_core::plan::{Inventory, nodes};

use super::door::LaunchDoor;
use super::peers::{Peers, Recipe, Shown};
use super::{Around, NotRun, meeting, peer_words, words};
use crate::driver::Core;
use crate::engine::Engine;
use crate::rendezvous::election::{Election, ElectionOptions, ElectionReport, Ending};
use crate::rendezvous::{Net, NetOrder, Target};

/// The shortest lease: etcd extends shorter ones.
const SHORTEST: Duration = Duration::from_secs(2);

/// What this node knows of the coordinators of its job.
pub(super) struct Candidacy {
    election: Election,
    /// The id under which this node joins.
    launch: u64,
    /// The current coordinator, or the last.
    reign: Option<Reign>,
    /// The state in which this node joins the next one.
    pub(super) ready: Standing,
    /// The last start of the job that this node has heard of.
    start: Option<Box<Start>>,
    /// The connections of the last coordinator, until their messages are delivered.
    old: Option<Net>,
    /// How the time of the last coordinator ended.
    end: AttemptEnd,
    /// True once the job has ended for all nodes.
    is_over: bool,
}

impl Candidacy {
    /// Begins to look for a coordinator.
    pub(super) fn begin(
        spec: &LaunchSpec,
        place: &EtcdPlace,
        address: IpAddr,
        range: (u32, u32),
        ready: Standing,
        recipe: &Recipe,
    ) -> Result<Self, Diagnostic> {
        if spec.own.gather_logs {
            let message = "`--gather-logs` cannot be used with etcd";
            return Err(Diagnostic::error(Code::L0002, message)
                .hint("the coordinator may change; let all nodes use one `--log_dir` on a shared file system"));
        }
        // Ranks of a coordinator that loses its lease have a third of it to stop.
        let usual = (spec.own.node_timeout / 3).max(spec.request.policy.stop.grace * 3);
        let election = Election::start(ElectionOptions {
            place: place.clone(),
            lease: place.lease.unwrap_or(usual).max(SHORTEST),
            address,
            port: spec.own.rdzv_port.map(Port::get),
            range,
            patience: spec.own.rdzv_timeout,
            alive: recipe.alive_port(),
            linger: recipe.linger(),
            clock: recipe.clock,
        })?;
        let launch = fastrand::u64(1..);
        election.look(launch, None);
        Ok(Self {
            election,
            launch,
            reign: None,
            ready,
            start: None,
            old: None,
            end: AttemptEnd::NodeLost,
            is_over: false,
        })
    }

    /// The name of the current or last coordinator.
    fn coordinator(&self) -> NodeName {
        let leader = self.reign.map(|reign| reign.leader);
        let nodes = self.start.iter().flat_map(|start| (0..).zip(&start.nodes));
        let known = nodes.into_iter().find(|(_, node)| leader.is_some_and(|leader| leader.launch == node.launch));
        let address = leader.map_or(IpAddr::from([0, 0, 0, 0]), |leader| leader.at.ip());
        match known {
            Some((node, share)) => NodeName { node, address: share.address, host: share.host.clone() },
            None => NodeName { node: 0, address, host: "coordinator".to_owned() },
        }
    }

    /// Leaves the job in etcd.
    pub(super) fn finish(self, end: Option<(Outcome, u8)>, patience: Duration) {
        if let Some(old) = self.old {
            old.finish(patience);
        }
        let members = self.start.map(|start| start.nodes.iter().map(|node| node.launch).collect());
        self.election.finish(Ending { end: end.filter(|_| self.is_over), members }, patience);
    }
}

impl AsFd for Candidacy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.election.as_fd()
    }
}

/// This node's address for the others: as given, or the one from which it reaches etcd.
pub(super) fn address(spec: &LaunchSpec, place: &EtcdPlace, inventory: &Inventory) -> IpAddr {
    let local = |to: SocketAddr| {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Sends nothing.
        socket.connect(to).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
    };
    let towards_etcd = || {
        let members = place.etcd.endpoints.iter().map(|member| (member.at.address.to_string(), member.at.port.get()));
        members.flat_map(|at| at.to_socket_addrs().into_iter().flatten().collect::<Vec<_>>()).find_map(local)
    };
    let given = spec.request.host;
    given.or_else(towards_etcd).unwrap_or_else(|| nodes::likely_address(&inventory.addresses))
}

impl Peers {
    /// True if another coordinator can be elected.
    pub(super) fn may_move(&self) -> bool {
        self.candidacy.is_some()
    }

    /// The coordinator has accepted this node.
    pub(super) fn settled(&self) {
        if let Some(candidacy) = &self.candidacy {
            candidacy.election.settled();
        }
    }

    /// The connection to the coordinator broke, and is not restored at once.
    pub(super) fn missed(&self) {
        if let Some(candidacy) = &self.candidacy {
            candidacy.election.missed();
        }
    }

    /// Keeps a start of the job, for the case that this node becomes the coordinator.
    pub(super) fn knows(&mut self, start: &Start) {
        self.settled();
        if let Some(candidacy) = &mut self.candidacy {
            candidacy.start = Some(Box::new(start.clone()));
        }
    }

    /// The job has ended for all nodes.
    pub(super) fn ends(&mut self) {
        if let Some(candidacy) = &mut self.candidacy {
            candidacy.is_over = true;
        }
    }

    /// The coordinator is lost, or has left. Messages to other nodes are still delivered.
    fn lose_coordinator(&mut self, how: Option<Loss>) {
        let Some(candidacy) = &mut self.candidacy else { return };
        candidacy.end = if how == Some(Loss::Left) { AttemptEnd::NodeLeft } else { AttemptEnd::NodeLost };
        if let Some(net) = self.net.take() {
            net.order(NetOrder::Leave);
            candidacy.old = Some(net);
            self.left.clear();
        }
        self.is_host = false;
    }

    /// True if other nodes learn from the coordinator that this one was killed. One that leads is its own coordinator.
    pub(super) fn has_lifeline(&self) -> bool {
        !(self.is_host && self.may_move())
    }

    /// Looks for a coordinator.
    pub(super) fn look(&mut self) {
        if self.net.is_some() {
            self.lose_coordinator(None);
        }
        if let Some(candidacy) = &self.candidacy {
            candidacy.election.look(candidacy.launch, candidacy.reign.map(|reign| reign.revision));
        }
    }

    fn election_reports(&self) -> Vec<ElectionReport> {
        self.candidacy.as_ref().map(|candidacy| candidacy.election.reports()).unwrap_or_default()
    }

    /// This node is the coordinator.
    fn lead(&mut self, reign: Reign, listener: TcpListener, job: Takeover) -> Result<(), Diagnostic> {
        let Some(candidacy) = &mut self.candidacy else { return Ok(()) };
        let at = reign.leader.at;
        let port = Port::new(at.port()).ok_or_else(|| Diagnostic::error(Code::R0041, "the port of this node is 0"))?;
        let recipe = &mut self.recipe;
        if let Some((min, max)) = job.range {
            recipe.expects = Expects::Range { min, max };
        }
        let patience = recipe.linger();
        let past = candidacy.start.clone().map(|start| Past {
            start,
            coordinator: candidacy.reign.map_or(0, |reign| reign.leader.launch),
            end: candidacy.end,
            patience,
        });
        // There was another coordinator, and its ranks are unknown here.
        let is_unknown = past.is_none() && (job.is_unknown || candidacy.reign.is_some());
        let unknown = is_unknown.then_some(patience);
        let reached = Endpoint { address: at.ip(), port };
        let succession = Succession { at: reached, has_store: recipe.store.is_some(), past, unknown };
        let host = recipe.host(listener, candidacy.launch, None, Some(succession));
        let target = Target::Address(meeting::beside(at.port()));
        self.net = Some(recipe.connect(target, Some(host), candidacy.launch, candidacy.ready.clone())?);
        candidacy.reign = Some(reign);
        (self.is_host, self.at) = (true, at.to_string());
        Ok(())
    }

    /// Another node is the coordinator.
    fn follow(&mut self, reign: Reign) -> Result<(), Diagnostic> {
        let Some(candidacy) = &mut self.candidacy else { return Ok(()) };
        candidacy.reign = Some(reign);
        let target = Target::Address(reign.leader.at);
        self.net = Some(self.recipe.connect(target, None, candidacy.launch, candidacy.ready.clone())?);
        (self.is_host, self.at) = (false, reign.leader.at.to_string());
        Ok(())
    }

    /// Handles reports about the election before the first start.
    pub(super) fn hear_election(&mut self, around: &mut Around<'_>, shown: &mut Shown) -> Result<(), NotRun> {
        for report in self.election_reports() {
            match report {
                ElectionReport::Lead { reign, listener, takeover } => {
                    self.lead(reign, listener, takeover)?;
                    shown.say("waiting for nodes".to_owned());
                }
                ElectionReport::Follow(reign) => {
                    self.follow(reign)?;
                    shown.say(format!("connecting to {}", reign.leader.at));
                }
                ElectionReport::Vacated => {
                    self.look();
                    shown.say("looking for a coordinator".to_owned());
                }
                ElectionReport::Fence(how) => {
                    self.order(NetOrder::Fence(how));
                    self.look();
                    shown.say("looking for a coordinator".to_owned());
                }
                ElectionReport::Lifeline { socket, frame } => around.engine.hold(socket.as_fd(), frame),
                ElectionReport::Scaled { min, max } => self.order(NetOrder::Scaled { min, max }),
                ElectionReport::Over(end) => {
                    around.say("the job has ended on other nodes");
                    return Err(NotRun::Code(end.code));
                }
                ElectionReport::Trouble(diagnostic) => shown.say(diagnostic.message.clone()),
                ElectionReport::Regained => shown.say("looking for a coordinator".to_owned()),
                ElectionReport::Failed(diagnostic) => return Err((*diagnostic).into()),
            }
        }
        Ok(())
    }
}

impl LaunchDoor {
    /// Handles reports about the election while the job runs.
    pub(super) fn hear_election(&mut self, core: &mut Core<'_>, engine: &mut dyn Engine) {
        let reports = self.peers.as_ref().map(Peers::election_reports).unwrap_or_default();
        for report in reports {
            let Some(peers) = &mut self.peers else { return };
            let result = match report {
                ElectionReport::Lead { reign, listener, takeover } => {
                    core.say(|style| words::nodes(style, "this node is the coordinator now"));
                    peers.lead(reign, listener, takeover)
                }
                ElectionReport::Follow(reign) => peers.follow(reign),
                // Without its key it must not go on, and another one may begin.
                ElectionReport::Vacated if peers.net.is_some() => {
                    self.lose_coordinator(core, Loss::Deposed);
                    continue;
                }
                ElectionReport::Vacated => Ok(()),
                ElectionReport::Fence(how) => {
                    peers.order(NetOrder::Fence(how));
                    self.lose_coordinator(core, how);
                    continue;
                }
                ElectionReport::Lifeline { socket, frame } => {
                    engine.hold(socket.as_fd(), frame);
                    Ok(())
                }
                ElectionReport::Scaled { min, max } => {
                    peers.order(NetOrder::Scaled { min, max });
                    Ok(())
                }
                ElectionReport::Over(end) => {
                    let attempt = core.job.machine.attempt() + u32::from(core.job.machine.is_pausing());
                    core.job.queue(Event::Decided(Box::new(Decided {
                        attempt,
                        outcome: end.outcome,
                        verdict: None,
                        signal: None,
                        kill: false,
                        code: Some(end.code),
                        restart: None,
                        change: None,
                    })));
                    Ok(())
                }
                ElectionReport::Trouble(diagnostic) => {
                    let has_ranks = peers.net.is_some() && !core.job.machine.is_pausing();
                    core.notice(&peer_words::etcd_trouble(*diagnostic, has_ranks));
                    Ok(())
                }
                ElectionReport::Regained => {
                    core.say(|style| words::nodes(style, "etcd answers again"));
                    Ok(())
                }
                ElectionReport::Failed(diagnostic) => Err(*diagnostic),
            };
            if let Err(diagnostic) = result {
                self.end_with(core, diagnostic);
            }
        }
    }

    /// The coordinator was lost. With etcd, the job goes on under another one.
    pub(super) fn lose_coordinator(&mut self, core: &mut Core<'_>, how: Loss) {
        let is_off = self.spec.request.elastic.as_ref().is_some_and(|elastic| elastic.level == ElasticLevel::Off);
        let candidacy = self.peers.as_ref().and_then(|peers| peers.candidacy.as_ref()).filter(|_| !is_off);
        match candidacy.map(Candidacy::coordinator) {
            Some(coordinator) => {
                self.move_on(core, Decision::coordinator_lost(core.job.machine.attempt(), coordinator, how));
            }
            None => self.end_alone(core, how),
        }
    }

    /// The job goes on under another coordinator: ranks are stopped, and this node looks for it when it is ready.
    pub(super) fn move_on(&mut self, core: &mut Core<'_>, mut decision: Decision) {
        let Some(peers) = &mut self.peers else { return };
        peers.lose_coordinator(match decision.why {
            Some(Why::NodeLost { how, .. }) => Some(how),
            _ => None,
        });
        decision.attempt = core.job.machine.attempt();
        if core.job.machine.is_pausing() {
            // It was ready for the next attempt already,
            if self.next.is_some() {
                return peers.look();
            }
            // will be soon,
            if self.run.attempt <= decision.attempt {
                return;
            }
            // or has been told to start it, and waits for the end of the back-off.
            decision.attempt += 1;
        }
        core.job.queue(Event::Decided(Box::new(decision.decided())));
        (self.why, self.places) = (decision.why, Vec::new());
    }

    /// The job ends on this node, with this error.
    pub(super) fn end_with(&mut self, core: &mut Core<'_>, error: Diagnostic) {
        self.error = Some(Box::new(error));
        self.end_alone(core, Loss::Refused);
    }

    pub(super) fn end_alone(&mut self, core: &mut Core<'_>, how: Loss) {
        (self.why, self.places) = (Some(Why::CoordinatorLost { how }), Vec::new());
        core.job.queue(Event::Alone);
    }
}
