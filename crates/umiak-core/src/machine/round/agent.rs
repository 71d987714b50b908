//! One node's side of the round: connects to the coordinator, reports the state of this node, and forwards messages.
//! While the coordinator cannot be reached the ranks keep running; when it is lost, this node decides alone, or in a job
//! over etcd looks for another coordinator.

use std::time::Duration;

use super::limits::{ANSWER, CONNECT, Limits, REFUSED, RETRY};
use super::messages::{
    Answer, Decision, Expects, FromAgent, Join, Loss, NodeName, Refusal, Servers, Stage, Standing, Start, Stop,
    ToAgent, Waiting,
};
use crate::model::Timestamp;

/// Input of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The answer to [`Effect::Connect`]: both sides are authenticated. It replaces a connection that is up.
    Connected,
    /// The other answer to [`Effect::Connect`].
    NotConnected(Answer),
    /// The connection broke.
    Closed,
    Heard(Box<ToAgent>),
    /// The state of this node's own ranks.
    Standing(Standing),
    /// All servers of this node listen in this attempt, or have ended well.
    Listening {
        attempt: u32,
    },
    /// This node's own job is over: outstanding reports are sent soon or not at all.
    Ended,
    /// The time of [`Agent::deadline`] has come.
    Tick,
}

/// Output of the machine, to be performed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Connects; the address must accept within this time. While a connection is up, that one stays until
    /// [`Event::Connected`].
    Connect {
        within: Duration,
    },
    Disconnect,
    Send(FromAgent),
    Tell(News),
}

/// Messages for the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The coordinator cannot be reached; this is how its address answers.
    Unreached(Answer),
    /// Which nodes have joined, and which are missing.
    Waiting(Waiting),
    /// The coordinator refused this node.
    Refused(Refusal),
    /// The coordinator rejects the connection, permanently.
    TurnedAway(Answer),
    /// The coordinator was not reached in time.
    TimeUp(Answer),
    Start(Box<Start>),
    /// The job runs on other nodes; this one waits for its turn.
    Spare(Box<Start>),
    Stop(Stop),
    Decision(Box<Decision>),
    /// The job goes on under another coordinator. If ranks run, this decides about them.
    Moved(Box<Decision>),
    /// No other node can decide: judge by the ends of this node.
    Alone {
        attempt: u32,
    },
    Servers(Servers),
    Suspects(Vec<NodeName>),
    /// The coordinator has been silent for a moment.
    Quiet,
    /// The coordinator is heard again.
    Back,
    /// The coordinator is lost.
    Lost(Loss),
}

/// The state of an agent.
#[derive(Debug, Clone)]
pub struct Agent {
    join: Join,
    limits: Limits,
    began: Timestamp,
    link: Link,
    /// True once the coordinator has accepted this node.
    welcomed: bool,
    /// The delay before the next connection attempt, which grows.
    pause: Duration,
    /// Since when the coordinator cannot be reached, and since when its address refuses connections.
    down: Option<Timestamp>,
    refused: Option<Timestamp>,
    answer: Answer,
    quiet: bool,
    /// When the last message was sent that the coordinator has answered. It has heard of this node since then.
    answered: Timestamp,
    /// While the coordinator is silent, a second connection is tried. After a cut, TCP repeats what was lost only after
    /// a pause as long as the cut, and a node that waits for that is lost although it could be reached.
    second: Second,
    /// Time of the last step.
    stepped: Timestamp,
    next_beat: Timestamp,
    /// The attempt in which ranks were last started, stopped, decided.
    started: Option<u32>,
    stopped: Option<u32>,
    decided: Option<u32>,
    /// The attempt in which all servers of this node listened.
    listened: Option<u32>,
    /// Since when an answer to the last report is awaited.
    told: Option<Timestamp>,
    ended: bool,
    over: bool,
}

#[derive(Debug, Clone, Copy)]
enum Second {
    Waiting { until: Timestamp },
    Trying { next: Timestamp },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Until the next connection attempt.
    Waiting {
        until: Timestamp,
    },
    Trying,
    Up {
        heard: Timestamp,
        /// True once the coordinator has accepted this node on this connection.
        welcome: bool,
    },
}

impl Agent {
    /// `join` holds the initial state of this node. The first tick is due at once and connects.
    pub fn new(join: Join, limits: Limits, now: Timestamp) -> Self {
        Self {
            join,
            limits,
            began: now,
            link: Link::Waiting { until: now },
            welcomed: false,
            pause: RETRY.0,
            down: None,
            refused: None,
            answer: Answer::Unknown,
            quiet: false,
            answered: now,
            second: Second::Waiting { until: now },
            stepped: now,
            next_beat: now,
            started: None,
            stopped: None,
            decided: None,
            listened: None,
            told: None,
            ended: false,
            over: false,
        }
    }

    /// The transition function: synchronous, pure but for `self`, total.
    pub fn step(&mut self, event: Event, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.over {
            return effects;
        }
        self.wake(now);
        match event {
            Event::Connected => self.connected(now, &mut effects),
            Event::NotConnected(answer) => self.not_connected(answer, now, &mut effects),
            Event::Closed => {
                if let Link::Up { .. } = self.link {
                    self.lost_link(now);
                }
            }
            Event::Heard(message) => {
                if let Link::Up { heard, .. } = &mut self.link {
                    *heard = now;
                    self.heard(*message, now, &mut effects);
                }
            }
            Event::Standing(standing) => self.standing(standing, now, &mut effects),
            Event::Listening { attempt } => self.listening(attempt, &mut effects),
            Event::Ended => self.ended(now, &mut effects),
            Event::Tick => {}
        }
        self.watch(now, &mut effects);
        effects
    }

    /// While connected, steps come at least with every heartbeat. After a longer gap this process itself was suspended,
    /// and messages sent meanwhile are still unread.
    fn wake(&mut self, now: Timestamp) {
        let slept = now.since(self.stepped);
        self.stepped = now;
        if let Link::Up { heard, .. } = &mut self.link
            && slept >= self.limits.suspect()
        {
            *heard = (*heard + slept).min(now);
            // What is unread is read within a few heartbeats; ranks do not wait for longer.
            let least = self.limits.beat() * 3;
            let fence = self.limits.fence();
            if now + least > self.answered + fence {
                self.answered = Timestamp::from_micros(
                    (now + least).as_micros().saturating_sub(fence.as_micros() as u64).max(self.answered.as_micros()),
                );
            }
            self.told = self.told.map(|told| (told + slept).min(now));
        }
    }

    /// When [`Event::Tick`] is due at the latest; `None` if nothing is left to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.over {
            return None;
        }
        let mut times = vec![self.time_up()];
        match self.link {
            Link::Waiting { until } => times.push(Some(until)),
            Link::Trying => {}
            Link::Up { heard, .. } => {
                times.push(Some(self.next_beat));
                times.push(Some(heard + if self.quiet { self.limits.silence } else { self.limits.suspect() }));
                times.push(self.second_due());
            }
        }
        times.push(self.down.filter(|_| self.welcomed).map(|down| down + self.limits.reconnect));
        times.push(self.refused.filter(|_| self.welcomed).map(|refused| refused + REFUSED));
        times.push(self.told.map(|told| told + ANSWER));
        times.push(self.fence());
        times.into_iter().flatten().min()
    }

    /// When this node stops its ranks, because the coordinator of an elastic job may not hear it: that gives it up soon
    /// after that and starts other ranks.
    fn fence(&self) -> Option<Timestamp> {
        self.join.standing.stage.has_ranks().then(|| self.fenced_at()).flatten()
    }

    fn fenced_at(&self) -> Option<Timestamp> {
        matches!(self.join.expects, Expects::Range { .. }).then(|| self.answered + self.limits.fence())
    }

    /// True if nothing is left to send or receive in this round.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The limit for being accepted. After that only the coordinator's limit applies: two clocks could disagree.
    fn time_up(&self) -> Option<Timestamp> {
        (!self.welcomed).then(|| self.began + self.limits.rendezvous + ANSWER)
    }

    fn is_up(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// When another connection may reach the coordinator sooner than this one. A merely slow one is kept: what is on its
    /// way would be lost with it.
    fn second_due(&self) -> Option<Timestamp> {
        let (Link::Up { heard, welcome: true }, Second::Waiting { until }) = (self.link, self.second) else {
            return None;
        };
        Some(until.max(heard + self.limits.second()))
    }

    /// Ends the attempt at a second connection, if there is one.
    fn end_second(&mut self) -> bool {
        let Second::Trying { next } = self.second else { return false };
        self.second = Second::Waiting { until: next };
        true
    }

    fn connected(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.end_second() && self.link != Link::Trying {
            return;
        }
        self.link = Link::Up { heard: now, welcome: false };
        self.join.connected = now;
        self.next_beat = now + self.limits.beat();
        self.refused = None;
        effects.push(Effect::Send(FromAgent::Join(Box::new(self.join.clone()))));
    }

    fn not_connected(&mut self, answer: Answer, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.end_second() || self.link != Link::Trying {
            return;
        }
        let closed_to_us = matches!(answer, Answer::OtherToken | Answer::OtherVersion { .. } | Answer::OtherJob { .. });
        if closed_to_us {
            // After the start another process has taken the coordinator's address.
            let news = if self.welcomed { News::Lost(Loss::Refused) } else { News::TurnedAway(answer) };
            return self.finish(news, effects);
        }
        self.down.get_or_insert(now);
        match answer {
            Answer::Refused => {
                self.refused.get_or_insert(now);
            }
            _ => self.refused = None,
        }
        self.link = Link::Waiting { until: now + self.pause };
        self.pause = (self.pause * 2).min(RETRY.1);
        if self.answer != answer {
            self.answer = answer.clone();
            effects.push(Effect::Tell(News::Unreached(answer)));
        }
    }

    /// Reconnects at once, since most connections break only for a moment; with a growing delay if not yet accepted.
    fn lost_link(&mut self, now: Timestamp) {
        self.end_second();
        if let Link::Up { welcome: true, .. } = self.link {
            self.link = Link::Waiting { until: now };
            self.pause = RETRY.0;
        } else {
            self.link = Link::Waiting { until: now + self.pause };
            self.pause = (self.pause * 2).min(RETRY.1);
        }
        self.down.get_or_insert(now);
    }

    fn heard(&mut self, message: ToAgent, now: Timestamp, effects: &mut Vec<Effect>) {
        let was_quiet = std::mem::take(&mut self.quiet);
        let mut was_down = false;
        if message == ToAgent::Welcome {
            was_down = self.down.take().is_some() && self.welcomed;
        }
        if was_quiet || was_down {
            effects.push(Effect::Tell(News::Back));
        }
        match message {
            ToAgent::Welcome => {
                if let Link::Up { welcome, .. } = &mut self.link {
                    *welcome = true;
                    self.answered = self.answered.max(self.join.connected);
                }
                self.welcomed = true;
                self.pause = RETRY.0;
                self.answer = Answer::Unknown;
            }
            ToAgent::Refused(refusal) => {
                effects.push(Effect::Disconnect);
                self.finish(News::Refused(refusal), effects);
            }
            ToAgent::Waiting(waiting) => effects.push(Effect::Tell(News::Waiting(waiting))),
            ToAgent::Start(start) => self.start(start, now, effects),
            ToAgent::Stop(stop) => {
                if stop.attempt == self.join.standing.attempt && self.stopped != Some(stop.attempt) {
                    self.stopped = Some(stop.attempt);
                    effects.push(Effect::Tell(News::Stop(stop)));
                }
            }
            ToAgent::Decision(decision) => self.decide(decision, now, effects),
            ToAgent::Servers(servers) => {
                if Some(servers.attempt) == self.started {
                    effects.push(Effect::Tell(News::Servers(servers)));
                }
            }
            ToAgent::Suspects { nodes } => effects.push(Effect::Tell(News::Suspects(nodes))),
            ToAgent::Beat { sent } => self.answered = self.answered.max(sent.min(now)),
        }
    }

    fn start(&mut self, mut start: Start, now: Timestamp, effects: &mut Vec<Effect>) {
        let ready = matches!(self.join.standing.stage, Stage::Ready(_));
        if !ready || !self.is_next(start.attempt) || self.started == Some(start.attempt) {
            return;
        }
        let Some(you) = start.nodes.iter().position(|node| node.launch == self.join.launch) else {
            return effects.push(Effect::Tell(News::Spare(Box::new(start))));
        };
        // One that was on its way for so long may be over: a new connection shows what is true now.
        if self.fenced_at().is_some_and(|fence| now >= fence) {
            effects.push(Effect::Disconnect);
            return self.lost_link(now);
        }
        start.you = you as u32;
        self.started = Some(start.attempt);
        self.join.standing = Standing::new(start.attempt, Stage::Running);
        effects.push(Effect::Tell(News::Start(Box::new(start))));
    }

    /// True for the attempt that this node is ready for. A guest of an elastic job has not counted those before.
    fn is_next(&self, attempt: u32) -> bool {
        let own = self.join.standing.attempt;
        attempt == own || attempt > own && matches!(self.join.expects, Expects::Range { .. })
    }

    /// The attempt that is decided next: while the ranks of one are still ending, the next may be decided already.
    fn undecided(&self) -> u32 {
        let attempt = self.join.standing.attempt;
        self.decided.filter(|decided| *decided >= attempt).map_or(attempt, |decided| decided + 1)
    }

    fn decide(&mut self, decision: Box<Decision>, now: Timestamp, effects: &mut Vec<Effect>) {
        if decision.moves() {
            effects.push(Effect::Send(FromAgent::Bye));
            return self.finish(News::Moved(decision), effects);
        }
        // The end of the job reaches guests too, and that of an attempt a member that missed its start.
        let is_ready = matches!(self.join.standing.stage, Stage::Ready(_));
        if decision.attempt != self.undecided() && !(is_ready && self.is_next(decision.attempt)) {
            return;
        }
        self.decided = Some(decision.attempt);
        self.told = None;
        if decision.restart.is_none() {
            effects.push(Effect::Send(FromAgent::Bye));
            return self.finish(News::Decision(decision), effects);
        }
        // A newcomer of an elastic job missed its first start: it is as ready for the next one.
        if let (None, Expects::Range { .. }, Stage::Ready(offer)) =
            (self.started, &self.join.expects, &self.join.standing.stage)
        {
            let ready = Stage::Ready(offer.clone());
            return self.say(Standing::new(self.undecided(), ready), now, effects);
        }
        effects.push(Effect::Tell(News::Decision(decision)));
        // Our last report crossed the decision, and applies to the next attempt too.
        let stage = self.join.standing.stage.clone();
        if matches!(stage, Stage::Interrupted { .. } | Stage::Unable { .. }) {
            self.say(Standing::new(self.undecided(), stage), now, effects);
        } else if self.ended {
            self.leave(now, effects);
        }
    }

    fn standing(&mut self, mut standing: Standing, now: Timestamp, effects: &mut Vec<Effect>) {
        let leaves = matches!(standing.stage, Stage::Interrupted { .. } | Stage::Unable { .. });
        if leaves {
            standing.attempt = standing.attempt.max(self.undecided());
        }
        // Reports about a decided attempt are no longer needed.
        if standing.attempt >= self.undecided() {
            self.say(standing, now, effects);
        }
    }

    /// Recorded in every later report of this attempt, so that it survives a lost connection.
    fn listening(&mut self, attempt: u32, effects: &mut Vec<Effect>) {
        self.listened = Some(attempt);
        let standing = &mut self.join.standing;
        if standing.attempt == attempt && !std::mem::replace(&mut standing.listens, true) && self.is_up() {
            effects.push(Effect::Send(FromAgent::Standing(self.join.standing.clone())));
        }
    }

    fn say(&mut self, mut standing: Standing, now: Timestamp, effects: &mut Vec<Effect>) {
        standing.listens = self.listened == Some(standing.attempt);
        let is_last = matches!(standing.stage, Stage::Told(_) | Stage::Interrupted { .. } | Stage::Unable { .. });
        self.join.standing = standing.clone();
        if self.is_up() {
            effects.push(Effect::Send(FromAgent::Standing(standing)));
        }
        if !is_last {
            return;
        }
        // If the address refuses connections, no answer will come; a broken connection gets a moment to come back.
        let hopeless = !self.is_up() && (self.refused.is_some() || !self.welcomed);
        if hopeless {
            self.decide_alone(effects);
        } else {
            self.told.get_or_insert(now);
        }
    }

    /// The job of this node is over. Reports that, unless a report is already waiting for its answer.
    fn ended(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.ended = true;
        self.leave(now, effects);
    }

    fn leave(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let is_told = self.told.is_some();
        if !is_told {
            let stage = Stage::Unable { why: "umiak has exited on that node".to_owned() };
            self.say(Standing::new(self.undecided(), stage), now, effects);
        }
    }

    /// No answer came. Reports that this node has left, so that the coordinator does not wait for it.
    fn decide_alone(&mut self, effects: &mut Vec<Effect>) {
        let attempt = self.undecided();
        if self.is_up() {
            let stage = Stage::Unable { why: "it got no answer from the coordinator and exited".to_owned() };
            effects.push(Effect::Send(FromAgent::Standing(Standing::new(attempt, stage))));
        }
        self.decided = Some(attempt);
        self.finish(News::Alone { attempt }, effects);
    }

    fn finish(&mut self, news: News, effects: &mut Vec<Effect>) {
        self.over = true;
        effects.push(Effect::Tell(news));
    }

    /// Handles everything that is due by time.
    fn watch(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.over {
            return;
        }
        if self.fence().is_some_and(|fence| now >= fence) {
            effects.push(Effect::Disconnect);
            return self.finish(News::Lost(Loss::Silent { after: self.limits.fence() }), effects);
        }
        if let Link::Up { heard, .. } = self.link {
            if now >= heard + self.limits.silence {
                effects.push(Effect::Disconnect);
                self.lost_link(now);
            } else if !self.quiet && now >= heard + self.limits.suspect() {
                self.quiet = true;
                effects.push(Effect::Tell(News::Quiet));
            }
        }
        if self.second_due().is_some_and(|due| now >= due) {
            let within = self.limits.attempt();
            self.second = Second::Trying { next: now + within };
            effects.push(Effect::Connect { within });
        }
        if self.is_up() && now >= self.next_beat {
            self.next_beat = now + self.limits.beat();
            effects.push(Effect::Send(FromAgent::Beat { sent: now }));
        }
        let unheard = self.told.is_some() && !self.is_up() && self.refused.is_some();
        if unheard || self.told.is_some_and(|told| now >= told + ANSWER) {
            return self.decide_alone(effects);
        }
        if self.welcomed && self.refused.is_some_and(|refused| now >= refused + REFUSED) {
            return self.finish(News::Lost(Loss::Refused), effects);
        }
        if let Some(down) = self.down.filter(|_| self.welcomed)
            && now >= down + self.limits.reconnect
        {
            return self.finish(News::Lost(Loss::Disconnected { after: self.limits.reconnect }), effects);
        }
        if self.time_up().is_some_and(|time| now >= time) {
            let answer = self.answer.clone();
            return self.finish(News::TimeUp(answer), effects);
        }
        if let Link::Waiting { until } = self.link
            && now >= until
        {
            self.link = Link::Trying;
            let within =
                if self.welcomed { self.limits.suspect().clamp(self.limits.attempt(), CONNECT) } else { CONNECT };
            effects.push(Effect::Connect { within });
        }
    }
}
