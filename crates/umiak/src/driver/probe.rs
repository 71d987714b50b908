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

/// What is asked for: a key, and the position in its list.
type Key = (Option<AttemptId>, usize);

/// Everything that is waited for. Dropping it ends the asking.
pub(super) struct Prober {
    own: BTreeMap<AttemptId, Vec<String>>,
    elsewhere: Option<Elsewhere>,
    tasks: Vec<(Key, AbortHandle)>,
    tell_at: Option<Timestamp>,
    answers: (Sender<Key>, Receiver<Key>),
    waker: Arc<Waker>,
}

struct Elsewhere {
    role: u16,
    attempt: u32,
    names: Vec<String>,
    answered: Vec<bool>,
}

impl Elsewhere {
    fn missing(&self) -> Vec<String> {
        self.names
            .iter()
            .zip(&self.answered)
            .filter(|(_, answered)| !**answered)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

impl Prober {
    pub(super) fn start(now: Timestamp) -> io::Result<Self> {
        Ok(Self {
            own: BTreeMap::new(),
            elsewhere: None,
            tasks: Vec::new(),
            tell_at: Some(now + WORTH_A_LINE),
            answers: mpsc::channel(),
            waker: Arc::new(Waker::new()?),
        })
    }

    /// All of these have to answer.
    pub(super) fn await_own(&mut self, id: AttemptId, at: Vec<Awaited>) {
        self.own.insert(id, at.iter().map(|awaited| awaited.name.clone()).collect());
        self.ask((Some(id), 0), at);
    }

    /// Each of these is told by itself.
    pub(super) fn await_elsewhere(&mut self, role: u16, attempt: u32, awaited: Vec<Awaited>) {
        let names: Vec<String> = awaited.iter().map(|awaited| awaited.name.clone()).collect();
        self.elsewhere = Some(Elsewhere { role, attempt, answered: vec![false; names.len()], names });
        for (position, awaited) in awaited.into_iter().enumerate() {
            self.ask((None, position), vec![awaited]);
        }
    }

    fn ask(&mut self, key: Key, at: Vec<Awaited>) {
        let (answers, waker) = (self.answers.0.clone(), Arc::clone(&self.waker));
        let Ok(network) = crate::network::handle() else { return };
        let task = network.spawn(async move {
            for awaited in &at {
                answer(awaited).await;
            }
            let _ = answers.send(key);
            waker.wake();
        });
        self.tasks.push((key, task.abort_handle()));
    }

    /// This attempt is over.
    pub(super) fn forget(&mut self, id: AttemptId) {
        if self.own.remove(&id).is_some() {
            self.tasks.retain(|((own, _), task)| {
                let is_it = *own == Some(id);
                if is_it {
                    task.abort();
                }
                !is_it
            });
        }
    }

    /// What has answered since.
    pub(super) fn answered(&mut self) -> Vec<Whom> {
        self.waker.clear();
        let keys: Vec<Key> = self.answers.1.try_iter().collect();
        let mut answered = Vec::new();
        for key in keys {
            self.tasks.retain(|(other, _)| *other != key);
            match key {
                (Some(id), _) => answered.extend(self.own.remove(&id).map(|_| Whom::Own(id))),
                (None, position) => {
                    let Some(elsewhere) = &mut self.elsewhere else { continue };
                    elsewhere.answered[position] = true;
                    let (role, attempt, missing) = (elsewhere.role, elsewhere.attempt, elsewhere.missing());
                    answered.push(Whom::Elsewhere { role, attempt, missing });
                }
            }
        }
        answered
    }

    pub(super) fn is_done(&self) -> bool {
        self.own.is_empty() && self.elsewhere.as_ref().is_none_or(|elsewhere| elsewhere.answered.iter().all(|it| *it))
    }

    pub(super) fn awaited_at(&self, id: AttemptId) -> Option<&str> {
        self.own.get(&id).and_then(|names| names.first()).map(String::as_str)
    }

    /// When to say that something still waits.
    pub(super) fn tell_at(&self) -> Option<Timestamp> {
        self.tell_at
    }

    /// Who is late, once: what is late is mostly busy.
    pub(super) fn late(&mut self, now: Timestamp) -> Option<Vec<String>> {
        self.tell_at.take_if(|at| *at <= now)?;
        let elsewhere = self.elsewhere.iter().flat_map(Elsewhere::missing);
        let names: Vec<String> = self.own.values().flatten().cloned().chain(elsewhere).collect();
        (!names.is_empty()).then_some(names)
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        for (_, task) in &self.tasks {
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

    use umiak_core::model::{Slot, StepIndex};
    use umiak_sys::wait::readable;

    use super::*;

    fn id(index: u32) -> AttemptId {
        AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt: 0 }
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
