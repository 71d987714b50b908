//! Ports that have to answer before others start. They are asked on the network's thread: the driver must hear of failures
//! meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::Timestamp;
use umiak_core::plan::Awaited;
use umiak_sys::wait::Waker;

/// Between two tries: at first, and after many of them.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// For one try.
const PATIENCE: Duration = Duration::from_secs(2);
/// What answers sooner is not worth a line.
const WORTH_A_LINE: Duration = Duration::from_secs(5);

/// Which replicas have answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whom {
    /// This attempt, with all its ports.
    Own(AttemptId),
    /// One of this role on other nodes: what is still missing there.
    Elsewhere { role: u16, attempt: u32, missing: Vec<String> },
}

/// What is asked for: an attempt of ours, or the position among those elsewhere.
type Key = (Option<AttemptId>, usize);

/// Everything that is waited for. Dropping it ends the asking.
pub(super) struct Prober {
    /// What has not answered yet: its names, and the task that asks.
    asked: BTreeMap<Key, (Vec<String>, AbortHandle)>,
    /// Of those elsewhere.
    role: (u16, u32),
    tell_at: Option<Timestamp>,
    answers: (Sender<Key>, Receiver<Key>),
    waker: Arc<Waker>,
}

impl Prober {
    pub(super) fn start(now: Timestamp) -> io::Result<Self> {
        let (asked, tell_at) = (BTreeMap::new(), Some(now + WORTH_A_LINE));
        Ok(Self { asked, role: (0, 0), tell_at, answers: mpsc::channel(), waker: Arc::new(Waker::new()?) })
    }

    /// All of these have to answer.
    pub(super) fn await_own(&mut self, id: AttemptId, at: Vec<Awaited>) {
        self.ask((Some(id), 0), at);
    }

    /// Each of these is told by itself.
    pub(super) fn await_elsewhere(&mut self, role: u16, attempt: u32, awaited: Vec<Awaited>) {
        self.role = (role, attempt);
        for (position, awaited) in awaited.into_iter().enumerate() {
            self.ask((None, position), vec![awaited]);
        }
    }

    fn ask(&mut self, key: Key, at: Vec<Awaited>) {
        let names = at.iter().map(|awaited| awaited.name.clone()).collect();
        let (answers, waker) = (self.answers.0.clone(), Arc::clone(&self.waker));
        let Ok(network) = crate::network::handle() else { return };
        let task = network.spawn(async move {
            for awaited in &at {
                answer(awaited).await;
            }
            let _ = answers.send(key);
            waker.wake();
        });
        self.asked.insert(key, (names, task.abort_handle()));
    }

    /// This attempt is over.
    pub(super) fn forget(&mut self, id: AttemptId) {
        if let Some((_, task)) = self.asked.remove(&(Some(id), 0)) {
            task.abort();
        }
    }

    /// What has answered since.
    pub(super) fn answered(&mut self) -> Vec<Whom> {
        self.waker.clear();
        let keys: Vec<Key> = self.answers.1.try_iter().filter(|key| self.asked.remove(key).is_some()).collect();
        let mut answered: Vec<Whom> = keys.iter().filter_map(|(own, _)| own.map(Whom::Own)).collect();
        if keys.iter().any(|(own, _)| own.is_none()) {
            let missing = self.asked.iter().filter(|((own, _), _)| own.is_none());
            let missing = missing.flat_map(|(_, (names, _))| names.clone()).collect();
            let (role, attempt) = self.role;
            answered.push(Whom::Elsewhere { role, attempt, missing });
        }
        answered
    }

    pub(super) fn is_done(&self) -> bool {
        self.asked.is_empty()
    }

    pub(super) fn awaited_at(&self, id: AttemptId) -> Option<&str> {
        self.asked.get(&(Some(id), 0)).and_then(|(names, _)| names.first()).map(String::as_str)
    }

    /// When to say that something still waits.
    pub(super) fn tell_at(&self) -> Option<Timestamp> {
        self.tell_at
    }

    /// What is late, once: it is mostly busy.
    pub(super) fn late(&mut self, now: Timestamp) -> Option<Vec<String>> {
        self.tell_at.take_if(|at| *at <= now)?;
        let names: Vec<String> = self.asked.values().flat_map(|(names, _)| names.clone()).collect();
        (!names.is_empty()).then_some(names)
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        for (_, task) in self.asked.values() {
            task.abort();
        }
    }
}

impl AsFd for Prober {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// Returns when any of its addresses has answered.
async fn answer(awaited: &Awaited) {
    let mut pause = PAUSES.0;
    loop {
        for address in &awaited.at {
            // What is connected is closed at once: to be let in is all that is asked for.
            if let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, TcpStream::connect(address.as_str())).await {
                return;
            }
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

    #[test]
    fn any_address_of_each_port_is_an_answer_and_all_ports_are_waited_for() {
        let mut prober = Prober::start(Timestamp::default()).unwrap();
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let open_at = open.local_addr().unwrap().to_string();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        prober.await_own(id(0), vec![awaited(&[&open_at]), awaited(&[&closed])]);
        prober.await_own(id(1), vec![awaited(&[&closed, &open_at])]);
        prober.await_own(id(2), vec![awaited(&[&closed])]);
        assert_eq!(readable(&[prober.as_fd()], None).unwrap(), [true]);
        assert_eq!(prober.answered(), [Whom::Own(id(1))]);
        prober.forget(id(2));
        let _late = TcpListener::bind(&closed).unwrap();
        assert_eq!(readable(&[prober.as_fd()], None).unwrap(), [true]);
        assert_eq!(prober.answered(), [Whom::Own(id(0))]);
        assert!(prober.is_done());
    }

    #[test]
    fn those_elsewhere_are_told_one_by_one() {
        let mut prober = Prober::start(Timestamp::default()).unwrap();
        let open = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let _listens = TcpListener::bind(&open).unwrap();
        prober.await_elsewhere(0, 3, vec![awaited(&[&closed]), awaited(&[&open])]);
        assert_eq!(readable(&[prober.as_fd()], None).unwrap(), [true]);
        let missing = vec![closed.clone()];
        assert_eq!(prober.answered(), [Whom::Elsewhere { role: 0, attempt: 3, missing }]);
        assert_eq!(prober.late(Timestamp::from_micros(10_000_000)), Some(vec![closed]));
        assert!(!prober.is_done());
    }
}
