//! Waits for ports that must be open before other replicas start. Reads the kernel's socket tables on the network's
//! thread, so that the driver can handle failures meanwhile. Does not connect, because some servers accept only a fixed
//! number of connections. Servers on other nodes are checked there and reported by the rendezvous.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::Timestamp;
use umiak_core::plan::Awaited;
use umiak_sys::net::{Listeners, is_own};
use umiak_sys::wait::Waker;

/// Interval between two checks: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// Minimum wait that is reported.
const WORTH_A_LINE: Duration = Duration::from_secs(5);

/// All awaited attempts. Dropping it ends the checks.
pub(super) struct Prober {
    asked: Arc<Mutex<BTreeMap<AttemptId, Asked>>>,
    /// Servers on other nodes that do not listen yet.
    elsewhere: Vec<String>,
    task: Option<AbortHandle>,
    tell_at: Option<Timestamp>,
    waker: Arc<Waker>,
}

/// One attempt.
struct Asked {
    /// Its ports, as shown to the user.
    names: Vec<String>,
    /// All of these must listen, each at any of its places.
    at: Vec<Vec<Place>>,
    listens: bool,
}

/// A port at an address, or at any address of this host (`None`).
type Place = (Option<IpAddr>, u16);

impl Prober {
    pub(super) fn start(now: Timestamp) -> io::Result<Self> {
        let (asked, elsewhere, task) = (Arc::default(), Vec::new(), None);
        Ok(Self { asked, elsewhere, task, tell_at: Some(now + WORTH_A_LINE), waker: Arc::new(Waker::new()?) })
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<AttemptId, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all these ports of an attempt listen.
    pub(super) fn await_own(&mut self, id: AttemptId, awaited: Vec<Awaited>) {
        let at = awaited.iter().map(|port| port.at.iter().filter_map(|at| place(at)).collect()).collect();
        let names = awaited.into_iter().map(|port| port.name).collect();
        self.asked().insert(id, Asked { names, at, listens: false });
        let Ok(network) = crate::network::handle() else { return };
        // A new task checks at once, and often.
        let task = network.spawn(look(Arc::clone(&self.asked), Arc::clone(&self.waker)));
        if let Some(old) = self.task.replace(task.abort_handle()) {
            old.abort();
        }
    }

    /// Sets the servers on other nodes that do not listen yet.
    pub(super) fn await_elsewhere(&mut self, missing: Vec<String>) {
        self.elsewhere = missing;
    }

    /// Removes an attempt that has ended.
    pub(super) fn forget(&mut self, id: AttemptId) {
        self.asked().remove(&id);
    }

    /// Removes and returns the attempts that listen by now.
    pub(super) fn listening(&mut self) -> Vec<AttemptId> {
        self.waker.clear();
        let mut listening = Vec::new();
        self.asked().retain(|id, asked| {
            if asked.listens {
                listening.push(*id);
            }
            !asked.listens
        });
        listening
    }

    pub(super) fn is_done(&self) -> bool {
        self.asked().is_empty() && self.elsewhere.is_empty()
    }

    /// Returns the first port of this attempt, if it is still awaited.
    pub(super) fn awaited_at(&self, id: AttemptId) -> Option<String> {
        self.asked().get(&id).and_then(|asked| asked.names.first().cloned())
    }

    /// Returns every port that is still awaited.
    pub(super) fn missing(&self) -> Vec<String> {
        let own: Vec<String> = self.asked().values().flat_map(|asked| asked.names.clone()).collect();
        own.into_iter().chain(self.elsewhere.iter().cloned()).collect()
    }

    /// Time when a late port is reported.
    pub(super) fn tell_at(&self) -> Option<Timestamp> {
        self.tell_at
    }

    /// Returns the awaited ports once they are late; only once.
    pub(super) fn late(&mut self, now: Timestamp) -> Option<Vec<String>> {
        self.tell_at.take_if(|at| *at <= now)?;
        Some(self.missing()).filter(|missing| !missing.is_empty())
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl AsFd for Prober {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// Parses `host:port`. A host name, or an address of another host (a container behind its host's address), does not
/// determine the address at which the process listens.
fn place(at: &str) -> Option<Place> {
    if let Ok(address) = at.parse::<SocketAddr>() {
        return Some((Some(address.ip()).filter(|ip| is_own(*ip)), address.port()));
    }
    at.rsplit_once(':').and_then(|(_, port)| Some((None, port.parse().ok()?)))
}

/// Checks until all attempts listen.
async fn look(asked: Arc<Mutex<BTreeMap<AttemptId, Asked>>>, waker: Arc<Waker>) {
    let mut pause = PAUSES.0;
    loop {
        let listeners = Listeners::read();
        let listens = |places: &Vec<Place>| places.iter().any(|(address, port)| listeners.accepts(*address, *port));
        let (mut found, mut missing) = (false, false);
        for asked in asked.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
            asked.listens = asked.listens || asked.at.iter().all(listens);
            (found, missing) = (found || asked.listens, missing || !asked.listens);
        }
        if found {
            waker.wake();
        }
        if !missing {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use umiak_core::model::{FIRST_ATTEMPT, Slot, StepIndex};
    use umiak_sys::wait::readable;

    use super::*;

    fn id(index: u32) -> AttemptId {
        AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt: FIRST_ATTEMPT }
    }

    fn awaited(at: &[&str]) -> Awaited {
        Awaited { name: at[0].to_owned(), at: at.iter().map(|&at| at.to_owned()).collect() }
    }

    fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        (listener, at)
    }

    #[test]
    fn any_address_of_each_port_will_do_and_all_ports_are_waited_for() {
        let mut prober = Prober::start(Timestamp::default()).unwrap();
        let ((_open, open_at), (_, closed)) = (listener(), listener());
        prober.await_own(id(0), vec![awaited(&[&open_at]), awaited(&[&closed])]);
        prober.await_own(id(1), vec![awaited(&[&closed, &open_at])]);
        prober.await_own(id(2), vec![awaited(&[&closed])]);
        assert_eq!(readable(&[prober.as_fd()], None).unwrap(), [true]);
        assert_eq!(prober.listening(), [id(1)]);
        assert_eq!(prober.awaited_at(id(2)), Some(closed.clone()));
        prober.forget(id(2));
        let _late = TcpListener::bind(&closed).unwrap();
        assert_eq!(readable(&[prober.as_fd()], None).unwrap(), [true]);
        assert_eq!(prober.listening(), [id(0)]);
        assert!(prober.is_done());
    }

    #[test]
    fn a_host_that_is_a_name_or_elsewhere_leaves_the_port() {
        let own = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(place("127.0.0.1:6170"), Some((Some(own), 6170)));
        assert_eq!(place("192.0.2.1:6170"), Some((None, 6170)));
        assert_eq!(place("ps-0.train:6170"), Some((None, 6170)));
        assert_eq!(place("ps-0"), None);
    }

    #[test]
    fn what_is_late_is_named_once_here_and_elsewhere() {
        let mut prober = Prober::start(Timestamp::default()).unwrap();
        let (_, closed) = listener();
        prober.await_own(id(0), vec![awaited(&[&closed])]);
        prober.await_elsewhere(vec!["10.0.0.2:6170".to_owned()]);
        let late = vec![closed, "10.0.0.2:6170".to_owned()];
        assert_eq!(prober.late(Timestamp::from_micros(10_000_000)), Some(late));
        assert_eq!(prober.late(Timestamp::from_micros(10_000_000)), None);
        prober.forget(id(0));
        assert!(!prober.is_done());
        prober.await_elsewhere(Vec::new());
        assert!(prober.is_done());
    }
}
