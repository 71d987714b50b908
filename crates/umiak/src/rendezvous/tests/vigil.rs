//! Ports that nodes keep open: what becomes of a node whose connection broke.

use super::*;

const RANGE: Expects = Expects::Range { min: 2, max: 2 };

/// An elastic job of two nodes, the second with this port, both running.
fn running(alive: u16, change: impl FnOnce(&mut NetOptions)) -> (Node, Node) {
    let (mut job, listener) = job(2);
    job.expects = RANGE;
    let mut options = job.options(2);
    options.join.alive = Port::new(alive);
    change(&mut options);
    let (mut first, mut second) = (job.host(1, listener), Node::start(options));
    first.started();
    second.started();
    first.say(Stage::Running);
    second.say(Stage::Running);
    (first, second)
}

fn open() -> (TcpListener, u16) {
    let listener = TcpListener::bind((LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Why the attempt was stopped, if it was within this time.
fn stop_within(node: &mut Node, time: Duration) -> Option<Why> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
        node.heard.extend(node.net.reports());
        for report in node.heard.drain(..) {
            if let NetReport::News(News::Stop(stop)) = report {
                return Some(stop.why);
            }
        }
    }
    None
}

#[test]
fn a_node_whose_port_is_closed_is_lost_after_two_seconds() {
    let (listener, port) = open();
    let (mut first, second) = running(port, |_| {});
    listener.accept().unwrap();
    drop(second);
    // As when its guardian lives on.
    listener.accept().unwrap();
    assert_eq!(stop_within(&mut first, Duration::from_millis(2500)), None);
    drop(listener);
    let began = Instant::now();
    let why = first.stopped();
    assert!(matches!(&why, Why::NodeLost { how: Loss::Vanished { .. }, node } if node.host == "node-2"), "{why:?}");
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(why_text(&why).contains("umiak is no longer running there (connections refused for 2.0 s)"));
    first.finish();
}

fn why_text(why: &Why) -> String {
    match why {
        Why::NodeLost { how, .. } => how.to_string(),
        _ => String::new(),
    }
}

#[test]
fn a_port_that_was_never_reached_proves_nothing() {
    let (listener, port) = open();
    drop(listener);
    let (mut first, second) = running(port, |_| {});
    drop(second);
    assert_eq!(stop_within(&mut first, Duration::from_secs(4)), None);
    first.finish();
}

#[test]
fn only_the_address_of_the_peer_itself_is_tried() {
    let (listener, port) = open();
    let (mut first, second) = running(port, |options| options.join.address = "10.9.9.9".parse().unwrap());
    listener.set_nonblocking(true).unwrap();
    drop(second);
    assert_eq!(stop_within(&mut first, Duration::from_secs(1)), None);
    assert_eq!(listener.accept().map_err(|error| error.kind()).err(), Some(io::ErrorKind::WouldBlock));
    first.finish();
}

#[test]
fn a_node_that_comes_back_is_not_lost() {
    let (listener, port) = open();
    let mut proxy = None;
    let (mut first, mut second) = running(port, |options| {
        let Target::Address(at) = options.coordinator else { panic!("an address") };
        let before = proxy.insert(Proxy::before(at.port()));
        options.coordinator = Target::Address(SocketAddr::from((LOCALHOST, before.port)));
    });
    let proxy = proxy.unwrap();
    listener.accept().unwrap();
    drop(listener);
    proxy.close();
    second.news("the loss of its connection", |news| matches!(news, News::Unreached(_)).then_some(()));
    thread::sleep(Duration::from_millis(500));
    proxy.open();
    second.news("the coordinator again", |news| matches!(news, News::Back).then_some(()));
    assert_eq!(stop_within(&mut first, Duration::from_secs(3)), None);
    succeed(vec![first, second]);
}
