//! Real sockets on loopback; each test uses its own port.

mod vigil;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use umiak_core::diagnose::End;
use umiak_core::facts::{Outcome, Subject};
use umiak_core::machine::round::agent::News;
use umiak_core::machine::round::coordinator;
use umiak_core::machine::round::limits::Limits;
use umiak_core::machine::round::logs::{Have, Hello, ToSender};
use umiak_core::machine::round::messages::{
    Answer, Decision, Expects, FromAgent, JobKind, Join, Loss, NodeProcess, Offer, RankPlace, Refusal, Stage, Standing,
    Start, Told, Why,
};
use umiak_core::model::{Exit, FIRST_ATTEMPT, JobId, Port, Rank, Timestamp};
use umiak_core::wire::Session;
use umiak_core::wire::auth::Key;
use umiak_core::wire::frame::{Frame, Payload, read_message};
use umiak_core::wire::handshake::AgentHandshake;
use umiak_sys::wait::readable;

use super::events::NetEvent;
use super::link::{Ear, Outgoing, Parts, PeerLink};
use super::logs::{self, LogFile, Logs};
use super::{Gather, Host, Net, NetOptions, NetOrder, NetReport, Target, bind};
use crate::clock::Clock;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);

/// One node: its task, and reports that the test has not consumed yet.
struct Node {
    launch: u64,
    net: Net,
    heard: Vec<NetReport>,
}

/// What the nodes of a test share.
#[derive(Clone)]
struct Job {
    port: u16,
    name: &'static str,
    token: &'static str,
    expects: Expects,
    limits: Limits,
}

fn limits() -> Limits {
    let (silence, reconnect) = (Duration::from_secs(20), Duration::from_secs(20));
    Limits { rendezvous: Duration::from_secs(60), silence, reconnect }
}

/// Returns a job of so many nodes and the listener of its coordinator.
fn job(nodes: u32) -> (Job, TcpListener) {
    let listener = bind(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let expects = Expects::Count { nodes, sort_ip: false };
    (Job { port, name: "ctr", token: "secret", expects, limits: limits() }, listener)
}

fn ready() -> Stage {
    let port = |port| Port::new(port).unwrap();
    let processes = vec![NodeProcess::trainer(port(6170), Vec::new())];
    Stage::Ready(Offer { processes, stores: [port(6171), port(6172)], device_kind: None })
}

impl Job {
    fn options(&self, launch: u64) -> NetOptions {
        let job_id = JobId::new(self.name).unwrap();
        NetOptions {
            coordinator: Target::Address(SocketAddr::from((LOCALHOST, self.port))),
            host: None,
            join: Join {
                launch,
                connected: Timestamp::default(),
                command: 7,
                line: String::new(),
                address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                host: format!("node-{launch}"),
                expects: self.expects.clone(),
                kind: JobKind::Collective,
                rank: None,
                uneven: false,
                logs: false,
                alive: None,
                standing: Standing::new(FIRST_ATTEMPT, ready()),
            },
            limits: self.limits,
            job_id,
            key: Key::from_token(self.token),
            clock: Clock::start(),
        }
    }

    fn agent(&self, launch: u64) -> Node {
        Node::start(self.options(launch))
    }

    fn host(&self, launch: u64, listener: TcpListener) -> Node {
        self.host_with(launch, listener, None)
    }

    fn host_with(&self, launch: u64, listener: TcpListener, gather: Option<Gather>) -> Node {
        let mut options = self.options(launch);
        options.join.address = "10.0.0.1".parse().unwrap();
        options.host = Some(Host {
            listener,
            options: coordinator::Options {
                expects: self.expects.clone(),
                launch,
                uneven: false,
                limits: self.limits,
                settle: Duration::from_millis(500),
                hang: None,
                restart: umiak_core::model::Restart::default(),
                window: Duration::ZERO,
                level: umiak_core::model::ElasticLevel::Ranks,
                succession: None,
                seed: 1,
            },
            describe: "job `ctr` since 12:03, pid 4121".to_owned(),
            gather,
            store: None,
        });
        Node::start(options)
    }
}

impl Node {
    fn start(options: NetOptions) -> Self {
        Self { launch: options.join.launch, net: Net::start(options).unwrap(), heard: Vec::new() }
    }

    /// Waits for a report that `want` accepts. Discards earlier ones.
    fn wait<T>(&mut self, what: &str, mut want: impl FnMut(&NetReport) -> Option<T>) -> T {
        use std::os::fd::AsFd;
        let until = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            while !self.heard.is_empty() {
                let report = self.heard.remove(0);
                if let Some(found) = want(&report) {
                    return found;
                }
                seen.push(report);
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "node {} waits for {what} and has heard {seen:?}", self.launch);
            readable(&[self.net.as_fd()], Some(left)).unwrap();
            self.heard.extend(self.net.reports());
        }
    }

    fn news<T>(&mut self, what: &str, mut want: impl FnMut(&News) -> Option<T>) -> T {
        self.wait(what, |report| match report {
            NetReport::News(news) => want(news),
            _ => None,
        })
    }

    fn started(&mut self) -> Start {
        self.news("the start", |news| match news {
            News::Start(start) => Some((**start).clone()),
            _ => None,
        })
    }

    fn stopped(&mut self) -> Why {
        self.news("the stop", |news| match news {
            News::Stop(stop) => Some(stop.why.clone()),
            _ => None,
        })
    }

    fn decided(&mut self) -> Decision {
        self.news("the decision", |news| match news {
            News::Decision(decision) => Some((**decision).clone()),
            _ => None,
        })
    }

    fn joined(&mut self, count: u32) {
        self.news("others", |news| match news {
            News::Waiting(waiting) => (waiting.joined >= count).then_some(()),
            _ => None,
        });
    }

    fn say(&self, stage: Stage) {
        self.net.order(NetOrder::Standing(Standing::new(FIRST_ATTEMPT, stage)));
    }

    /// Ends in good order, long before the timeout.
    fn finish(self) {
        let began = Instant::now();
        self.net.finish(PATIENCE);
        assert!(began.elapsed() < PATIENCE, "node {} does not come to an end", self.launch);
    }
}

fn succeed(mut nodes: Vec<Node>) {
    for node in &nodes {
        node.say(Stage::Running);
        node.say(Stage::Succeeded);
    }
    for node in &mut nodes {
        assert_eq!(node.decided().outcome, Outcome::Succeeded);
    }
    for node in nodes.into_iter().rev() {
        node.finish();
    }
}

fn told(rank: u32) -> Stage {
    let end = End {
        subject: Subject { replica: format!("trainer-{rank}"), attempt: FIRST_ATTEMPT, rank: Some(Rank(rank)) },
        exit: Exit::Code { code: 3 },
        classed: None,
        ran: Duration::from_secs(1),
        order: 0,
        by_us: false,
        before_stop: true,
        serves: false,
        timed_out: None,
        evidence: None,
        snapshot: None,
        addresses: Vec::new(),
        usage: None,
    };
    Stage::Told(vec![Told { end, place: RankPlace { rank, host: "node-2".to_owned(), ..RankPlace::default() } }])
}

#[test]
fn three_nodes_gather_start_succeed_and_say_goodbye() {
    let (job, listener) = job(3);
    let mut nodes = vec![job.host(1, listener), job.agent(2), job.agent(3)];
    let starts: Vec<Start> = nodes.iter_mut().map(Node::started).collect();
    for (start, launch) in starts.iter().zip(1..) {
        assert_eq!(start.nodes[start.you as usize].launch, launch);
        assert_eq!(start.nodes, starts[0].nodes);
    }
    // The configured address on the coordinator's node, elsewhere the local address of the connection.
    assert_eq!(starts[0].nodes[0].address.to_string(), "10.0.0.1");
    assert_eq!(starts[0].nodes[1].address, LOCALHOST);
    succeed(nodes);
}

#[test]
fn a_hundred_nodes_come_at_once() {
    let (job, listener) = job(100);
    let mut nodes = vec![job.host(1, listener)];
    nodes.extend((2..=100).map(|launch| job.agent(launch)));
    for node in &mut nodes {
        assert_eq!(node.started().nodes.len(), 100);
    }
    succeed(nodes);
}

#[test]
fn every_node_hands_out_a_lifeline() {
    let (job, listener) = job(2);
    let (mut first, mut second) = (job.host(1, listener), job.agent(2));
    first.started();
    let (socket, frame) = second.wait("a lifeline", |report| match report {
        NetReport::Lifeline { socket, frame } => Some((socket.try_clone().unwrap(), frame.bytes.clone())),
        _ => None,
    });
    second.started();
    // As the guardian does. The front is still alive here, so it receives the stop as well.
    TcpStream::from(socket).write_all(&frame).unwrap();
    let why = first.stopped();
    assert!(matches!(&why, Why::NodeLost { node, how: Loss::Killed } if node.host == "node-2"), "{why:?}");
    first.say(Stage::Told(Vec::new()));
    assert_eq!(first.decided().outcome, Outcome::Failed);
    first.finish();
    second.finish();
}

#[test]
fn a_failure_on_one_node_stops_all_and_is_decided_for_all() {
    let (job, listener) = job(3);
    let mut nodes = vec![job.host(1, listener), job.agent(2), job.agent(3)];
    for node in &mut nodes {
        node.started();
        node.say(Stage::Running);
    }
    nodes[1].say(Stage::Failed { waited: false });
    for node in &mut nodes {
        assert!(matches!(node.stopped(), Why::RankFailed { node, .. } if node.host == "node-2"));
    }
    for (node, stage) in nodes.iter().zip([Stage::Told(Vec::new()), told(1), Stage::Told(Vec::new())]) {
        node.say(stage);
    }
    for node in &mut nodes {
        let decision = node.decided();
        assert_eq!((decision.outcome, decision.restart), (Outcome::Failed, None));
        assert_eq!(decision.verdict.unwrap().causes[0].subject.rank, Some(Rank(1)));
        assert_eq!(decision.places[0].host, "node-2");
    }
    nodes.into_iter().for_each(Node::finish);
}

#[test]
fn who_leaves_early_tells_the_others() {
    let (job, listener) = job(3);
    let mut nodes = vec![job.host(1, listener), job.agent(2), job.agent(3)];
    for node in &mut nodes {
        node.started();
    }
    nodes.remove(1).finish();
    for node in &mut nodes {
        assert!(matches!(node.stopped(), Why::Unable { node, .. } if node.host == "node-2"));
        node.say(Stage::Told(Vec::new()));
    }
    for node in &mut nodes {
        assert_eq!(node.decided().outcome, Outcome::Failed);
    }
    nodes.into_iter().for_each(Node::finish);
}

#[test]
fn a_coordinator_that_leaves_early_tells_the_others() {
    let (job, listener) = job(2);
    let (mut first, mut second) = (job.host(1, listener), job.agent(2));
    first.started();
    second.started();
    let leaving = thread::spawn(move || first.finish());
    assert!(matches!(second.stopped(), Why::Unable { node, .. } if node.host == "node-1"));
    second.say(Stage::Told(Vec::new()));
    assert_eq!(second.decided().outcome, Outcome::Failed);
    second.finish();
    leaving.join().unwrap();
}

#[test]
fn another_token_is_turned_away_and_shown() {
    let (job, listener) = job(2);
    let mut first = job.host(1, listener);
    let mut stranger = Job { token: "guess", ..job.clone() }.agent(2);
    stranger.news("a closed door", |news| (*news == News::TurnedAway(Answer::OtherToken)).then_some(()));
    stranger.finish();
    first.news("the stranger", |news| match news {
        News::Waiting(waiting) => waiting
            .missing
            .iter()
            .any(|missing| missing.address == LOCALHOST && missing.answer == Answer::OtherToken)
            .then_some(()),
        _ => None,
    });
    let mut second = job.agent(2);
    first.started();
    second.started();
    succeed(vec![first, second]);
}

#[test]
fn another_job_is_told_whose_port_it_is() {
    let (job, listener) = job(2);
    let first = job.host(1, listener);
    let mut stranger = Job { name: "wide", ..job.clone() }.agent(2);
    let text = stranger.news("a closed door", |news| match news {
        News::TurnedAway(Answer::OtherJob { text }) => Some(text.clone()),
        _ => None,
    });
    assert_eq!(text, "job `ctr` since 12:03, pid 4121");
    stranger.finish();
    drop(first);
}

#[test]
fn another_version_is_answered_with_ours_and_shown() {
    let (job, listener) = job(2);
    let mut first = job.host(1, listener);
    let mut peer = TcpStream::connect((LOCALHOST, job.port)).unwrap();
    peer.write_all(b"UMIAK\0\x63\x00 and whatever that version says").unwrap();
    let mut answer = Vec::new();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[..9], *b"UMIAK\0\x0a\x00\x01");
    first.news("the other version", |news| match news {
        News::Waiting(waiting) => {
            waiting.missing.iter().any(|missing| missing.answer == Answer::OtherVersion { version: 99 }).then_some(())
        }
        _ => None,
    });
}

#[test]
fn an_agent_of_another_version_says_which() {
    let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let (mut job, _) = job(2);
    job.port = listener.local_addr().unwrap().port();
    let mut node = job.agent(2);
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(b"UMIAK\0\x63\x00\x01\x02\x0099").unwrap();
    let other = News::TurnedAway(Answer::OtherVersion { version: 99 });
    node.news("a closed door", |news| (*news == other).then_some(()));
    node.finish();
}

#[test]
fn lists_that_differ_are_shown_on_both_sides() {
    let (mut job, listener) = job(2);
    let list = |last: &str| Expects::List(vec!["10.0.0.1".parse().unwrap(), last.parse().unwrap()]);
    job.expects = list("10.0.0.2");
    let mut first = job.host(1, listener);
    let mut options = job.options(2);
    (options.join.expects, options.join.address) = (list("10.0.0.3"), "10.0.0.3".parse().unwrap());
    let mut second = Node::start(options);
    let wanted = Refusal::OtherNodes { ours: list("10.0.0.2"), theirs: list("10.0.0.3") };
    second.news("a refusal", |news| (*news == News::Refused(wanted.clone())).then_some(()));
    first.news("the end of the job, for the same reason", |news| match news {
        News::Decision(decision) => match &decision.why {
            Some(Why::Refused { node, refusal }) => (node.host == "node-2" && *refusal == wanted).then_some(()),
            _ => None,
        },
        _ => None,
    });
    second.finish();
}

#[test]
fn who_comes_too_late_is_told() {
    let (job, listener) = job(1);
    let mut first = job.host(1, listener);
    first.started();
    let mut late = job.agent(2);
    late.news("a refusal", |news| (*news == News::Refused(Refusal::TooLate)).then_some(()));
    late.finish();
    succeed(vec![first]);
}

#[test]
fn missing_nodes_are_looked_for() {
    let (mut job, listener) = job(2);
    // The coordinator itself listens at this address.
    job.expects = Expects::List(vec!["10.0.0.1".parse().unwrap(), LOCALHOST]);
    let mut first = job.host(1, listener);
    let why = first.news("an answer", |news| match news {
        News::Waiting(waiting) => waiting.missing.first().and_then(|missing| match &missing.answer {
            Answer::Failed { why } => Some(why.clone()),
            _ => None,
        }),
        _ => None,
    });
    assert!(why.contains("is open, but the node has not joined"), "{why}");
}

#[test]
fn junk_is_silent_and_hinders_nobody() {
    let (job, listener) = job(3);
    let mut first = job.host(1, listener);
    first.joined(1);
    let connect = || TcpStream::connect((LOCALHOST, job.port)).unwrap();
    let mut preamble = Vec::new();
    let job_id = JobId::new(job.name).unwrap();
    drop(AgentHandshake::new(job_id, [1; 16], Key::from_token("guess"), &mut preamble));
    let kinds: [Vec<u8>; 5] = [
        b"GET / HTTP/1.1\r\nHost: umiak\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        b"UMIAK".to_vec(),
        preamble[..preamble.len() - 1].to_vec(),
        preamble,
    ];
    let mut held = Vec::new();
    for round in 0..20 {
        for kind in &kinds {
            let mut stream = connect();
            let _ = stream.write_all(kind);
            if round % 2 == 0 {
                held.push(stream);
            }
        }
    }
    // A wrong preamble is closed without an answer.
    let mut web = connect();
    web.write_all(&kinds[0]).unwrap();
    web.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let _ = web.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    // A peer with the token that does not join, or sends invalid data, is disconnected too.
    let beat = |session: &mut Session| session.sealer.seal(&Payload::message(&FromAgent::Bye).unwrap());
    for kind in 0..3 {
        let (mut stream, mut session) = shake_hands(&job);
        let bytes = match kind {
            0 => b"rubbish after the handshake".to_vec(),
            // Announces a gigabyte.
            1 => vec![0, 0, 0, 0x40, 0],
            _ => beat(&mut session),
        };
        stream.write_all(&bytes).unwrap();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    let mut nodes = vec![first, job.agent(2), job.agent(3)];
    for node in &mut nodes {
        node.started();
    }
    drop(held);
    succeed(nodes);
}

/// Performs the agent's handshake by hand.
fn shake_hands(job: &Job) -> (TcpStream, Session) {
    let mut stream = TcpStream::connect((LOCALHOST, job.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut send = Vec::new();
    let job_id = JobId::new(job.name).unwrap();
    let mut handshake = AgentHandshake::new(job_id, [1; 16], Key::from_token(job.token), &mut send);
    loop {
        stream.write_all(&std::mem::take(&mut send)).unwrap();
        let mut buffer = [0; 512];
        let count = stream.read(&mut buffer).unwrap();
        if let Some(session) = handshake.feed(&mut &buffer[..count], &mut send).unwrap() {
            return (stream, session);
        }
    }
}

#[test]
fn a_peer_that_does_not_read_is_dropped() {
    let (job, listener) = job(1);
    let _host = job.host(1, listener);
    let (stream, session) = shake_hands(&job);
    stream.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let halves = tokio::net::TcpStream::from_std(stream).unwrap().into_split();
        let (events, _keep) = tokio::sync::mpsc::channel(1);
        let ear = Ear { id: 1, wrap: NetEvent::ToAgent, accepts: |_| true, events };
        let link = PeerLink::open(Parts { halves, session, rest: Vec::new() }, ear);
        let payload = Arc::new(Payload::log(0, 0, &vec![0; 1 << 20]).unwrap());
        let taken = (0..40).take_while(|_| link.send(Outgoing::Payload(Arc::clone(&payload)))).count();
        assert_eq!(taken, 23);
    });
}

/// Returns the coordinator's answer to a connection that sends logs.
fn bring_logs(job: &Job, hello: Hello) -> ToSender {
    let (mut stream, mut session) = shake_hands(job);
    stream.write_all(&session.sealer.seal(&Payload::message(&FromAgent::Logs(hello)).unwrap())).unwrap();
    loop {
        let mut buffer = [0; 512];
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "an answer");
        if let Some(Frame::Message(payload)) = session.decoder.next(&mut &buffer[..count]).unwrap() {
            return read_message(&payload).unwrap();
        }
    }
}

#[test]
fn logs_are_taken_from_nodes_that_bring_their_own() {
    let (without, listener) = job(1);
    let _host = without.host(1, listener);
    assert_eq!(bring_logs(&without, Hello { launch: 2, ranks: vec![1] }), ToSender::NotWanted);

    let directory = tempfile::tempdir().unwrap();
    let (job, listener) = job(3);
    let gather = Gather { log_dir: directory.path().to_owned(), overwrite: false };
    let mut first = job.host_with(1, listener, Some(gather));
    first.net.order(NetOrder::Mark(super::LogDirMark { marker: "ctr.abcdef.log".to_owned(), names: Vec::new() }));
    let mut options = job.options(2);
    options.join.logs = true;
    let mut second = Node::start(options);
    second.joined(2);
    let mut third = job.agent(3);
    let places = first.started();
    second.started();
    third.started();
    let rank = |launch: u64| places.nodes.iter().position(|node| node.launch == launch).unwrap() as u32;
    for (launch, rank) in [(9, rank(2)), (1, rank(1)), (3, rank(3)), (2, rank(1)), (2, rank(3)), (2, 77)] {
        let answer = bring_logs(&job, Hello { launch, ranks: vec![rank] });
        assert!(matches!(answer, ToSender::Refused { .. }), "{launch} {rank}: {answer:?}");
    }
    let answer = bring_logs(&job, Hello { launch: 2, ranks: vec![rank(2)] });
    let have = Have { rank: rank(2), bytes: 0 };
    assert_eq!(answer, ToSender::Have { marker: "ctr.abcdef.log".to_owned(), ranks: vec![have] });
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was written");

    // A real sender: earlier content is kept, and all new content is present at the end.
    let log = tempfile::tempdir().unwrap();
    let name = format!("workerlog.{}", rank(2));
    std::fs::write(log.path().join(&name), b"old\xffnew").unwrap();
    std::fs::write(directory.path().join(&name), "before ").unwrap();
    let target = Target::Address(SocketAddr::from((LOCALHOST, job.port)));
    let sender = Logs::start(logs::LogsOptions {
        coordinator: target,
        job_id: JobId::new(job.name).unwrap(),
        key: Key::from_token(job.token),
        limits: job.limits,
        launch: 2,
        log_dir: log.path().to_owned(),
        files: vec![LogFile { rank: rank(2), path: log.path().join(&name), start: 3 }],
    });
    let sender = sender.unwrap();
    sender.finish();
    assert!(readable(&[std::os::fd::AsFd::as_fd(&sender)], Some(PATIENCE)).unwrap()[0]);
    assert_eq!(sender.ended(), Some(logs::LogsEnded::Complete));
    assert_eq!(std::fs::read(directory.path().join(&name)).unwrap(), b"before \xffnew");
    succeed(vec![first, second, third]);
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Memory is measured for the whole process, so the limit allows for the other tests in it.
#[test]
fn ten_thousand_connections_of_junk_cost_little() {
    let (job, listener) = job(3);
    let mut first = job.host(1, listener);
    first.joined(1);
    let before = resident();
    let mut silent = Vec::new();
    let (mut refused, mut most) = (0, before);
    let mut nodes = Vec::new();
    for number in 0..10_000 {
        let Ok(mut stream) = TcpStream::connect((LOCALHOST, job.port)) else {
            refused += 1;
            continue;
        };
        if number % 2 == 0 {
            silent.push(stream);
        } else {
            let _ = stream.write_all(b"\x16\x03\x01 not for us");
        }
        match number {
            5_000 => nodes.push(job.agent(2)),
            9_000 => nodes.push(job.agent(3)),
            _ => {}
        }
        if number % 500 == 0 {
            most = most.max(resident());
        }
    }
    nodes.insert(0, first);
    for node in &mut nodes {
        node.started();
    }
    most = most.max(resident());
    assert!(most - before < 20 << 20, "{} KiB more", (most - before) >> 10);
    assert!(refused < 100, "{refused} connections were refused");
    succeed(nodes);
}

const FEW_FILES: &str = "UMIAK_TEST_FEW_FILES";

/// Helper of the next test: a coordinator in its own process, with a low limit on open files.
#[test]
fn coordinator_with_few_files() {
    let Some(port) = std::env::var(FEW_FILES).ok().and_then(|port| port.parse().ok()) else { return };
    let listener = bind(port).unwrap();
    let (mut job, _) = job(2);
    job.port = port;
    let mut first = job.host(1, listener);
    first.started();
    succeed(vec![first]);
}

#[test]
fn a_crowd_beyond_our_open_files_keeps_nobody_out() {
    let (job, listener) = job(2);
    drop(listener);
    let mut coordinator = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 100; exec \"$0\" --exact rendezvous::tests::coordinator_with_few_files"])
        .arg(std::env::current_exe().unwrap())
        .env(FEW_FILES, job.port.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect((LOCALHOST, job.port)).is_err() {
        assert!(Instant::now() < until, "it does not come up");
        thread::sleep(Duration::from_millis(10));
    }
    let crowd: Vec<TcpStream> = (0..500).map(|_| TcpStream::connect((LOCALHOST, job.port)).unwrap()).collect();
    let mut second = job.agent(2);
    second.started();
    succeed(vec![second]);
    assert!(coordinator.wait().unwrap().success());
    drop(crowd);
}

/// A proxy between an agent and the coordinator: cuts connections, and can reject new ones.
struct Proxy {
    port: u16,
    is_open: Arc<AtomicBool>,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    fn before(port: u16) -> Self {
        let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            is_open: Arc::new(AtomicBool::new(true)),
            cut: Arc::new(AtomicBool::new(false)),
        };
        let (is_open, cut) = (Arc::clone(&proxy.is_open), Arc::clone(&proxy.cut));
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if !is_open.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect((LOCALHOST, port)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let cut = Arc::clone(&cut);
                    thread::spawn(move || relay(from, to, &cut));
                }
            }
        });
        proxy
    }

    fn close(&self) {
        self.is_open.store(false, Ordering::SeqCst);
        self.cut.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.cut.store(false, Ordering::SeqCst);
        self.is_open.store(true, Ordering::SeqCst);
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = [0; 4096];
    while !cut.load(Ordering::SeqCst) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) if to.write_all(&buffer[..count]).is_ok() => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_node_that_comes_back_hears_what_it_has_missed() {
    let (job, listener) = job(2);
    let proxy = Proxy::before(job.port);
    let mut first = job.host(1, listener);
    let mut options = job.options(2);
    options.coordinator = Target::Name { host: "localhost".to_owned(), port: proxy.port };
    let mut second = Node::start(options);
    first.started();
    second.started();
    second.say(Stage::Running);
    proxy.close();
    second.news("the loss of its connection", |news| matches!(news, News::Unreached(_)).then_some(()));
    first.news("a suspicion", |news| match news {
        News::Suspects(nodes) => nodes.iter().any(|node| node.host == "node-2").then_some(()),
        _ => None,
    });
    first.say(Stage::Failed { waited: false });
    first.stopped();
    proxy.open();
    second.news("the coordinator again", |news| matches!(news, News::Back).then_some(()));
    // The stop, or the decision if the coordinator did not wait for this node.
    second.news("the end", |news| matches!(news, News::Stop(_) | News::Decision(_)).then_some(()));
    first.say(told(0));
    second.say(Stage::Told(Vec::new()));
    assert_eq!(first.decided().outcome, Outcome::Failed);
    second.finish();
    first.finish();
}

#[test]
fn a_coordinator_that_is_gone_is_lost() {
    let (job, listener) = job(2);
    let (mut first, mut second) = (job.host(1, listener), job.agent(2));
    first.started();
    second.started();
    // As after SIGKILL.
    drop(first);
    second.news("the loss", |news| (*news == News::Lost(Loss::Refused)).then_some(()));
    second.finish();
}

#[test]
fn a_job_that_nobody_coordinates_is_waited_for() {
    let (job, listener) = job(2);
    drop(listener);
    let mut second = job.agent(2);
    second.news("no answer", |news| (*news == News::Unreached(Answer::Refused)).then_some(()));
    let Ok(listener) = bind(job.port) else { return };
    let mut first = job.host(1, listener);
    first.started();
    second.started();
    succeed(vec![first, second]);
}

#[test]
fn a_name_that_does_not_exist_is_told() {
    let (job, _listener) = job(2);
    let mut options = job.options(2);
    options.coordinator = Target::Name { host: "no-such-host.invalid".to_owned(), port: job.port };
    let mut node = Node::start(options);
    let why = node.news("no answer", |news| match news {
        News::Unreached(Answer::Failed { why }) => Some(why.clone()),
        _ => None,
    });
    assert!(why.starts_with("`no-such-host.invalid` cannot be resolved"), "{why}");
    node.finish();
}

#[test]
fn finish_does_not_hang_in_any_state() {
    let (job, listener) = job(2);
    // No node has joined, and none will.
    let first = job.host(1, listener);
    let began = Instant::now();
    first.net.finish(Duration::from_millis(500));
    // A peer that accepts and is silent.
    let silent = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let mut options = job.options(2);
    options.coordinator = Target::Address(silent.local_addr().unwrap());
    Node::start(options).net.finish(Duration::from_secs(10));
    assert!(began.elapsed() < Duration::from_secs(8));
}
