//! Several nodes, seen from a front: what it hears of the others, and what it tells them.

use std::os::fd::AsFd;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Fact, Outcome, Subject};
use umiak_core::machine::job::{Event, Stand};
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::limits::ANSWER;
use umiak_core::machine::round::messages::{Decision, Loss, RankPlace, Stage, Start, Told, Why};

use super::Front;
use crate::rendezvous::NetReport;
use crate::runtime::console;
use crate::runtime::several::{self, words};
use crate::screen::{Activity, StatusLine};

impl Front<'_> {
    pub(super) fn hear_peers(&mut self) {
        let reports = self.peers.as_mut().map(several::Peers::reports).unwrap_or_default();
        for report in reports {
            match report {
                NetReport::News(news) => self.hear_news(news),
                NetReport::Refused { address, host, refusal } => {
                    self.notice(&words::has_refused(address, &host, &refusal));
                }
                NetReport::Lifeline { socket, frame } => {
                    let _ = self.guardian.hold(socket.as_fd(), frame);
                }
                NetReport::Gather(news) => self.hear_gatherer(&news),
                NetReport::Ended => {}
                NetReport::Broken(_) => self.lose_coordinator(Loss::Killed),
            }
        }
    }

    fn hear_news(&mut self, news: News) {
        match news {
            News::Start(start) => self.start_next(&start),
            News::Stop(stop) => {
                let reason = stop.reason();
                self.note_why(Some(stop.why), Vec::new());
                self.dispatch(Event::StoppedElsewhere(reason));
            }
            News::Decision(decision) => {
                let decided = decision.decided();
                let Decision { why, places, .. } = *decision;
                self.note_why(why, places);
                self.dispatch(Event::Decided(Box::new(decided)));
            }
            News::Alone { .. } => self.lose_coordinator(Loss::Silent { after: ANSWER }),
            News::Lost(how) => self.lose_coordinator(how),
            News::Refused(_) | News::TurnedAway(_) | News::TimeUp(_) => self.lose_coordinator(Loss::Refused),
            News::Suspects(nodes) => self.suspect(&nodes),
            News::Quiet => {
                let message = "the coordinator is not heard; ranks run on";
                self.notice(&Diagnostic::notice(Code::R0009, message));
            }
            News::Back => self.talk(|style| console::nodes(style, "the coordinator is heard again")),
            News::Waiting(waiting) => self.show_waiting(words::waiting(&waiting)),
            News::Unreached(answer) => {
                let text = format!("no connection to the coordinator ({})", words::short(&answer));
                self.talk(|style| console::nodes(style, &text));
            }
        }
    }

    fn suspect(&mut self, nodes: &[umiak_core::machine::round::messages::NodeName]) {
        if nodes.is_empty() {
            return self.talk(|style| console::nodes(style, "all nodes are heard"));
        }
        let names: Vec<String> = nodes.iter().map(words::node).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        let message = format!("{} {verb} not heard; ranks run on", names.join(", "));
        self.notice(&Diagnostic::notice(Code::R0009, message));
    }

    /// Between two attempts.
    fn show_waiting(&mut self, text: String) {
        if self.style.live && self.machine.is_pausing() {
            let job = self.plan.job.name.to_string();
            self.screen.status(Some(StatusLine { job, since: self.clock.started(), doing: Activity::Waiting(text) }));
        }
    }

    fn note_why(&mut self, why: Option<Why>, places: Vec<RankPlace>) {
        if let Some(peers) = &mut self.peers {
            if why.is_some() {
                peers.why = why;
            }
            peers.places = places;
        }
    }

    fn lose_coordinator(&mut self, how: Loss) {
        self.note_why(Some(Why::CoordinatorLost { how }), Vec::new());
        self.dispatch(Event::Alone);
    }

    /// Tells the other nodes how things stand here.
    pub(super) fn stand(&mut self, stand: Stand) {
        let stage = match stand {
            Stand::Serving => Stage::Serving,
            Stand::Succeeded => Stage::Succeeded,
            Stand::Failed => Stage::Failed,
            Stand::Interrupted { signal } => Stage::Interrupted { signal },
            Stand::Told(ends) => {
                let told = ends.into_iter().map(|end| Told { place: self.rank_place(&end.subject), end });
                Stage::Told(told.collect())
            }
        };
        // Between two attempts it is the next one that all nodes speak of.
        let attempt = self.machine.attempt() + u32::from(self.machine.is_pausing());
        if let Some(peers) = &self.peers {
            peers.stand(attempt, stage);
        }
    }

    fn rank_place(&self, subject: &Subject) -> RankPlace {
        let place = self.own_place(subject);
        RankPlace {
            rank: subject.rank.map_or(0, |rank| rank.0),
            host: place.host,
            pid: place.pid,
            devices: place.devices,
            log: place.log,
        }
    }

    /// All nodes are ready for the next attempt.
    fn start_next(&mut self, start: &Start) {
        let attempt = start.attempt;
        let ready = self.next.is_some();
        let event = match self.plan_with(start) {
            Ok(()) => Event::Prepared { attempt, ready },
            Err(refused) => {
                self.notice(&refused);
                if let Some(peers) = &self.peers {
                    peers.stand(attempt, Stage::Unable { why: refused.message.clone() });
                }
                Event::Prepared { attempt, ready: false }
            }
        };
        self.dispatch(event);
    }

    /// Between two attempts there are no ranks whose end could be reported together with it.
    pub(super) fn tell_why_not_restarted(&mut self) {
        // What ended the last attempt has been told.
        let told = matches!(self.peers.as_ref().and_then(|peers| peers.why.as_ref()), Some(Why::RankFailed { .. }));
        if !told
            && self.machine.is_pausing()
            && matches!(self.end, Some((Outcome::Failed, _)))
            && let Some(why) = self.tell_why()
        {
            self.screen.status(None);
            self.screen.alert(why);
        }
    }

    /// `SIGINT on node 192.168.0.2 (gpu-b)`.
    pub(super) fn interrupted_elsewhere(&self) -> Option<String> {
        match self.peers.as_ref()?.why.as_ref()? {
            Why::Interrupted { node, signal } => {
                Some(format!("{} on node {}", super::short_signal(*signal), words::node(node)))
            }
            _ => None,
        }
    }

    /// The end of a job on several nodes, where no rank is to blame.
    pub(super) fn tell_why(&mut self) -> Option<String> {
        let why = self.peers.as_ref()?.why.as_ref()?;
        let diagnostic = words::why(why)?;
        let fact = Fact::Noticed { code: diagnostic.code.to_string(), message: diagnostic.message.clone() };
        let text = console::diagnostic(&self.style, &diagnostic);
        self.record(&fact);
        Some(text)
    }
}
