//! Messages between this node and the others.

use std::os::fd::AsFd;
use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::diagnose::End;
use umiak_core::facts::{Evidence, Fact, Subject};
use umiak_core::machine::job::{Event, Stand};
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::limits::ANSWER;
use umiak_core::machine::round::messages::{
    Answer, Decision, Loss, NodeName, RankPlace, Refusal, Servers, Stage, Start, Told, Waiting, Why,
};

use super::door::{LaunchDoor, missing};
use super::peers::Peers;
use super::restart::server_role;
use super::{peer_words, words};
use crate::driver::Core;
use crate::engine::Engine;
use crate::rendezvous::NetReport;
use crate::screen::{Activity, StatusLine};

/// Nodes that come sooner are not mentioned.
const SOON: Duration = Duration::from_millis(900);

impl LaunchDoor {
    pub(super) fn hear_peers(&mut self, core: &mut Core<'_>, engine: &mut dyn Engine) {
        let reports = self.peers.as_mut().map(Peers::reports).unwrap_or_default();
        for report in reports {
            match report {
                NetReport::News(news) => self.hear_news(core, news),
                NetReport::Refused { address, host, refusal } => {
                    core.notice(&peer_words::has_refused(address, &host, &refusal));
                }
                NetReport::RefusedMore { count } => core.notice(&peer_words::refused_more(count)),
                NetReport::Lifeline { socket, frame } => {
                    if self.peers.as_ref().is_some_and(Peers::has_lifeline) {
                        engine.hold(socket.as_fd(), frame);
                    }
                }
                NetReport::Started { node, pids } => {
                    if let Some(store) = core.job.stores.first_mut() {
                        store.know(node, pids);
                    }
                }
                NetReport::Spares(nodes) => {
                    core.fact(Fact::Spares { nodes: nodes.iter().map(NodeName::to_string).collect() });
                }
                NetReport::Gather(news) => self.hear_gatherer(core, &news),
                NetReport::Ended => self.peers_ended(),
                NetReport::Broken(_) => self.lose_coordinator(core, Loss::Killed),
            }
        }
        // After what the coordinator has said.
        self.hear_election(core, engine);
    }

    fn hear_news(&mut self, core: &mut Core<'_>, news: News) {
        match news {
            News::Start(start) => {
                (self.awaits, self.is_spare) = (None, false);
                if let Some(peers) = &mut self.peers {
                    peers.knows(&start);
                    for notice in peers.other_commands(&start) {
                        core.notice(&notice);
                    }
                }
                self.start_next(core, &start);
            }
            News::Stop(stop) => {
                core.job.now.waited_elsewhere = matches!(stop.why, Why::RankFailed { waited: true, .. });
                core.job.queue(Event::StoppedElsewhere(stop.reason()));
                (self.why, self.places) = (Some(stop.why), Vec::new());
            }
            News::Decision(decision) => {
                if let Some(peers) = self.peers.as_mut().filter(|_| decision.restart.is_none() && !decision.alone) {
                    peers.ends();
                }
                let decided = decision.decided();
                let Decision { why, places, .. } = *decision;
                (self.why, self.places) = (why.or(self.why.take()), places);
                core.job.queue(Event::Decided(Box::new(decided)));
            }
            News::Moved(decision) => self.move_on(core, *decision),
            News::Alone { .. } => self.lose_coordinator(core, Loss::Silent { after: ANSWER }),
            News::Lost(how) => self.lose_coordinator(core, how),
            News::Refused(refusal) if refusal.is_contradiction() => {
                self.end_with(core, peer_words::refused(&refusal));
            }
            News::TurnedAway(answer) => {
                let at = self.peers.as_ref().map(|peers| peers.at.clone()).unwrap_or_default();
                self.end_with(core, peer_words::turned_away(&answer, &at));
            }
            News::Refused(Refusal::GivenUp) => self.lose_coordinator(core, Loss::GaveUp),
            News::Refused(_) | News::TimeUp(_) => self.lose_coordinator(core, Loss::Refused),
            News::Servers(servers) => self.hear_servers(core, servers),
            News::Suspects(nodes) => suspect(core, &nodes),
            News::Quiet => {
                let message = "no messages from the coordinator; ranks keep running";
                core.notice(&Diagnostic::notice(Code::R0009, message));
            }
            News::Back => {
                if let Some(peers) = &self.peers {
                    peers.settled();
                }
                core.say(|style| words::nodes(style, "the coordinator is reachable again"));
            }
            News::Waiting(waiting) => {
                if let Some(peers) = &self.peers {
                    peers.settled();
                }
                self.tell_waiting(core, &waiting);
                Self::show_waiting(core, peer_words::waiting(&waiting));
            }
            News::Spare(start) => {
                if let Some(peers) = &mut self.peers {
                    peers.knows(&start);
                }
                let text = peer_words::spare(start.nodes.len());
                if core.job.machine.is_pausing() && !std::mem::replace(&mut self.is_spare, true) {
                    core.fact(Fact::Pending { reason: text.clone() });
                    core.say(|style| words::nodes(style, &text));
                }
                Self::show_waiting(core, text);
            }
            News::Unreached(answer) => {
                if let Some(peers) = &self.peers {
                    peers.missed();
                }
                // It has been there: nothing listens because it has ended.
                let how = if answer == Answer::Refused { "refused" } else { peer_words::short(&answer) };
                let text = format!("no connection to the coordinator ({how})");
                core.say(|style| words::nodes(style, &text));
            }
        }
    }

    /// Handles news about servers of other nodes. It is kept for an attempt that begins later on this node.
    fn hear_servers(&mut self, core: &mut Core<'_>, servers: Servers) {
        let role = server_role(&core.job.plan).filter(|_| servers.attempt == core.job.machine.attempt());
        if let Some(role) = role.filter(|role| !core.job.machine.missing_elsewhere(*role).is_empty()) {
            core.job.listen_elsewhere(role, servers.attempt, missing(&core.job.plan, &servers));
        }
        self.servers = Some(servers);
    }

    /// Between two attempts, says once which nodes are awaited: at once if there are too few, else if it takes a while.
    fn tell_waiting(&mut self, core: &mut Core<'_>, waiting: &Waiting) {
        if core.run.style.live || !core.job.machine.is_pausing() {
            return;
        }
        let now = core.run.clock.now();
        let (since, is_told) = *self.awaits.get_or_insert((now, false));
        let is_due = match waiting.window {
            None => waiting.joined < waiting.of,
            Some(_) => !waiting.missing.is_empty() && now >= since + SOON,
        };
        if is_due && !is_told {
            self.awaits = Some((since, true));
            core.say(|style| words::nodes(style, &peer_words::waiting(waiting)));
        }
    }

    /// Shows the status line between two attempts.
    fn show_waiting(core: &Core<'_>, text: String) {
        if core.run.style.live && core.job.machine.is_pausing() {
            let job = core.job.plan.job.name.to_string();
            core.run.screen.status(Some(StatusLine {
                job,
                since: core.run.clock.started(),
                doing: Activity::Waiting(text),
            }));
        }
    }

    /// Tells the other nodes the state of this one.
    pub(super) fn tell_peers(&mut self, core: &Core<'_>, stand: Stand) {
        let stage = match stand {
            Stand::Serving => Stage::Serving,
            Stand::Succeeded => Stage::Succeeded,
            Stand::Hung => Stage::Hung,
            Stand::Moves => Stage::Running,
            Stand::Failed => Stage::Failed { waited: core.job.has_waited() },
            Stand::Interrupted { signal, kill } => Stage::Interrupted { signal, kill },
            Stand::Told(ends) => {
                let place = |end: &End| self.rank_place(core, &end.subject, end.evidence.as_ref());
                let told = ends.into_iter().map(|end| Told { place: place(&end), end });
                Stage::Told(told.collect())
            }
        };
        // Between two attempts, messages are about the next one.
        let attempt = core.job.machine.attempt() + u32::from(core.job.machine.is_pausing());
        if let Some(peers) = &mut self.peers {
            peers.stand(attempt, stage);
        }
    }

    fn rank_place(&self, core: &Core<'_>, subject: &Subject, evidence: Option<&Evidence>) -> RankPlace {
        let place = self.own_place(core, subject, evidence);
        RankPlace {
            rank: subject.rank.map_or(0, |rank| rank.0),
            host: place.host,
            pid: place.pid,
            devices: place.devices,
            log: place.log,
        }
    }

    /// All nodes are ready for the next attempt. Does nothing if the job has ended in the meantime.
    fn start_next(&mut self, core: &mut Core<'_>, start: &Start) {
        if core.job.now.end.is_some() {
            return;
        }
        let attempt = start.attempt;
        let ready = self.next.is_some();
        let ready = match self.plan_with(core, start) {
            Ok(()) => ready,
            Err(refused) => {
                core.notice(&refused);
                self.stand_unable(attempt, &refused.message);
                false
            }
        };
        core.job.queue(Event::Prepared { attempt, ready });
    }

    pub(super) fn stand_unable(&mut self, attempt: u32, why: &str) {
        if let Some(peers) = &mut self.peers {
            peers.stand(attempt, Stage::Unable { why: why.to_owned() });
        }
    }

    /// Why a job on several nodes ended, if no rank is the cause.
    pub(super) fn tell_why(&self, core: &mut Core<'_>) -> Option<String> {
        let at = self.peers.as_ref().map(|peers| peers.at.clone()).unwrap_or_default();
        let why = || self.why.as_ref().and_then(|why| peer_words::why(why, &at));
        let diagnostic = self.error.as_deref().cloned().or_else(why)?;
        core.fact(Fact::Noticed { code: diagnostic.code.to_string(), message: diagnostic.message.clone() });
        Some(core.run.style.diagnostic(&diagnostic))
    }
}

fn suspect(core: &mut Core<'_>, nodes: &[NodeName]) {
    if nodes.is_empty() {
        return core.say(|style| words::nodes(style, "all nodes are reachable again"));
    }
    let names: Vec<String> = nodes.iter().map(peer_words::node).collect();
    let message = format!("no messages from {}; ranks keep running", names.join(", "));
    core.notice(&Diagnostic::notice(Code::R0009, message));
}
