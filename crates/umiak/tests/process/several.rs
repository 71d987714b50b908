//! Several hosts on one machine: checks the network that the tests of several nodes rely on.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use umiak_testkit::components::Component::Netns;
use umiak_testkit::net::{Echo, Host, Junk, Network, Relay};
use umiak_testkit::sandbox::Sandbox;
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("several::hosts_reach_each_other_in_both_families", &[Netns], reach_each_other)
        .test("several::hosts_can_be_cut_and_joined", &[Netns], cut_and_joined)
        .test("several::links_go_down_and_up", &[Netns], links_go_down_and_up)
        .test("several::packets_are_lost", &[Netns], packets_are_lost)
        .test("several::relay_delays_each_way_and_keeps_the_order", &[Netns], relay_delays)
        .test("several::relay_passes_closes_on", &[Netns], relay_passes_closes_on)
        .test("several::junk_is_counted", &[Netns], junk_is_counted)
        .test("several::leftovers_are_found", &[Netns], leftovers_are_found)
        .test("several::nothing_is_left_of_a_network", &[Netns], nothing_is_left)
        .test("several::each_host_has_its_own_ports", &[Netns], own_ports);
}

const SOON: Duration = Duration::from_secs(30);
/// Timeout where no answer is expected.
const BRIEFLY: Duration = Duration::from_millis(300);

fn reach_each_other() {
    let network = Network::new(3);
    assert_eq!(network.ips(), "192.168.0.1,192.168.0.2,192.168.0.3");
    let (first, last) = (network.host(0), network.host(2));
    last.add_address("192.168.0.77".parse().unwrap());
    for address in [last.ip(), last.ip6(), "192.168.0.77".parse().unwrap()] {
        let echo = Echo::start(last, SocketAddr::new(address, 0));
        assert_eq!(first.ask(echo.address(), b"hello", SOON).unwrap(), b"hello", "{address}");
        assert_eq!(last.listening_ports(), BTreeSet::from([echo.address().port()]));
        assert_eq!(first.listening_ports(), BTreeSet::new());
        assert_eq!(last.processes().len(), 1);
    }
}

fn cut_and_joined() {
    let network = Network::new(3);
    let [a, b, c] = network.hosts() else { unreachable!() };
    b.add_address("fd00::77".parse().unwrap());
    let echo = Echo::start(b, "[::]:7000".parse().unwrap());
    let all = [b.at(7000), (b.ip6(), 7000).into(), "[fd00::77]:7000".parse().unwrap()];
    a.cut(b);
    for to in all {
        a.ask(to, b"hello", BRIEFLY).expect_err("cut off");
        c.ask(to, b"hello", SOON).expect("the third host is not affected");
    }
    assert!(b.dropped() > 0, "the receiving host drops the packets");
    b.join(a);
    for to in all {
        assert_eq!(a.ask(to, b"hello", SOON).unwrap(), b"hello", "{to}");
    }
    drop(echo);
}

fn links_go_down_and_up() {
    let network = Network::new(2);
    let (a, b) = (network.host(0), network.host(1));
    let _echo = Echo::start(b, "[::]:7000".parse().unwrap());
    for _ in 0..2 {
        b.link_down();
        a.ask(b.at(7000), b"hello", BRIEFLY).expect_err("the link is down");
        b.link_up();
        for to in [b.at(7000), (b.ip6(), 7000).into()] {
            let deadline = Instant::now() + SOON;
            // Right after it comes up, an interface may not have found its neighbours.
            while let Err(error) = a.ask(to, b"hello", Duration::from_secs(5)) {
                assert!(Instant::now() < deadline, "{error}");
            }
        }
    }
}

fn packets_are_lost() {
    let network = Network::new(2);
    let (a, b) = (network.host(0), network.host(1));
    let _echo = Echo::start(b, b.at(7000));
    b.lose(100);
    a.ask(b.at(7000), b"hello", BRIEFLY).expect_err("nothing gets through");
    b.lose(20);
    let mut asked = 0;
    while b.dropped() == 0 {
        asked += 1;
        assert!(asked < 200, "nothing was lost");
        assert_eq!(a.ask(b.at(7000), b"hello", SOON).expect("TCP retransmits"), b"hello");
    }
    b.lose(0);
    assert_eq!(a.ask(b.at(7000), b"hello", SOON).unwrap(), b"hello");
    assert_eq!(b.dropped(), 0);
}

fn relay_delays() {
    let network = Network::new(2);
    let (a, b) = (network.host(0), network.host(1));
    let echo = Echo::start(b, b.at(0));
    let delay = Duration::from_millis(200);
    let relay = Relay::start(b, b.at(0), echo.address(), delay);
    let started = Instant::now();
    assert_eq!(a.ask(relay.address(), b"hello", SOON).unwrap(), b"hello");
    assert!(started.elapsed() >= 2 * delay, "{:?}", started.elapsed());
    // Far more than fits into buffers, on several connections at once: delayed, but not limited to one window per
    // delay.
    let message: Vec<u8> = (0..4_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let answer = a.ask(relay.address(), &message, SOON).unwrap();
                assert!(answer == message, "the order of bytes is kept");
            });
        }
    });
}

fn relay_passes_closes_on() {
    let network = Network::new(2);
    let (a, b) = (network.host(0), network.host(1));
    let relay = Relay::start(b, b.at(0), b.at(7000), Duration::from_millis(10));
    // No server behind the relay: an empty answer or a reset.
    let nobody = a.ask(relay.address(), b"hello", SOON);
    assert!(nobody.as_ref().map_or(true, Vec::is_empty), "{nobody:?}");
    // The server dies while the connection is open: the client notices long before its timeout.
    let echo = Echo::start(b, b.at(7000));
    let idle = Junk::start(a, relay.address(), 1, Duration::from_secs(60));
    await_connections(b, 1);
    drop(echo);
    assert_eq!(idle.finish().closed_by_peer, 1);
    // The client disconnects: the relay closes its connection to the server.
    let _echo = Echo::start(b, b.at(7000));
    let idle = Junk::start(a, relay.address(), 1, Duration::from_secs(60));
    await_connections(b, 1);
    drop(idle);
    await_connections(b, 0);
}

/// Waits until the server at port 7000 has this many connections.
fn await_connections(host: &Host, wanted: usize) {
    let deadline = Instant::now() + SOON;
    loop {
        let output = host.command("cat").arg("/proc/net/tcp").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let sockets = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let seen = sockets.filter(|fields| fields[1].ends_with(":1B58") && fields[3] == "01").count();
        if seen == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{seen} connections instead of {wanted}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn junk_is_counted() {
    let network = Network::new(2);
    let (a, b) = (network.host(0), network.host(1));
    let echo = Echo::start(b, b.at(0));
    let junk = Junk::start(a, echo.address(), 1_000, Duration::from_millis(500));
    assert_eq!(a.ask(echo.address(), b"hello", SOON).unwrap(), b"hello");
    let report = junk.finish();
    assert_eq!((report.made, report.failed), (1_000, 0));
    let port = echo.address().port();
    drop(echo);
    let refused = Junk::start(a, b.at(port), 10, BRIEFLY).finish();
    assert_eq!((refused.made, refused.failed), (0, 10));
}

fn leftovers_are_found() {
    let network = Network::new(2);
    let sandbox = Sandbox::new();
    let snapshot = network.snapshot(&[sandbox.path()]);
    snapshot.assert_as_before();
    let echo = Echo::start(network.host(1), network.host(1).at(7000));
    sandbox.write("tmp/forgotten", "");
    let left = snapshot.left(Duration::ZERO);
    let has = |text: &str| left.iter().any(|line| line.contains(text));
    assert!(has("192.168.0.2: process ") && has("192.168.0.2: port 7000 is listening"), "{left:?}");
    assert!(has("tmp/forgotten") && !has("192.168.0.1"), "{left:?}");
    std::fs::remove_file(sandbox.path().join("tmp/forgotten")).unwrap();
    drop(echo);
    snapshot.assert_as_before();
}

fn nothing_is_left() {
    let network = Network::new(2);
    let prefix = network.host(0).name().strip_suffix('0').unwrap().to_owned();
    let names = || {
        let output = Command::new("ip").args(["netns", "list"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.starts_with(&prefix)).count()
    };
    // The hosts and their switch.
    assert_eq!(names(), 3);
    let links = || std::fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.file_name()).collect();
    let before: BTreeSet<_> = links();
    // The network must not kill processes started by others.
    let mut sleep = network.host(1).command("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    // The process must have entered its host before the host is removed.
    let deadline = Instant::now() + SOON;
    while network.host(1).processes().is_empty() {
        assert!(Instant::now() < deadline, "the process never entered its host");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(network);
    assert_eq!(names(), 0);
    assert_eq!(links(), before, "no link moved to the root namespace");
    assert!(sleep.try_wait().unwrap().is_none());
    sleep.kill().and_then(|()| sleep.wait()).unwrap();
    assert!(!Path::new("/run/netns").join(format!("{prefix}1")).exists());
}

/// The same job on two hosts at once: a port leased on one is free on the other.
fn own_ports() {
    let network = Network::new(2);
    let sandboxes = [Sandbox::new(), Sandbox::new()];
    let snapshot = network.snapshot(&[&sandboxes[0].path().join("tmp"), &sandboxes[1].path().join("tmp")]);
    let runs: Vec<_> = sandboxes
        .iter()
        .zip(network.hosts())
        .map(|(sandbox, host)| sandbox.launch_toy("--nproc_per_node 2", &["0:touch up", "*:await go"]).on(host).start())
        .collect();
    for run in &runs {
        run.wait_for_file("up");
    }
    for (run, host) in runs.iter().zip(network.hosts()) {
        assert!(host.processes().iter().any(|(pid, _)| *pid == run.pid()), "nsenter became umiak");
        let sockets = host.abstract_sockets();
        assert!(sockets.iter().any(|name| name.starts_with("@umiak-port-")), "{sockets:?}");
    }
    for sandbox in &sandboxes {
        sandbox.write("go", "");
    }
    for run in runs {
        run.finish().expect_code(0);
    }
    snapshot.assert_as_before();
}
