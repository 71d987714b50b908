//! Knocks at servers until they answer, on a thread of its own: the front must hear of failures meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use umiak_core::machine::job::AttemptId;
use umiak_core::plan::Awaited;
use umiak_sys::wait::Waker;

/// Between two tries: at first, and after many of them.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// For one try.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whom {
    Own(AttemptId),
    Elsewhere { role: u16, attempt: u32, name: String },
}

/// The thread that knocks. It ends when this is dropped.
pub(super) struct Knocker {
    orders: UnboundedSender<(Whom, Awaited)>,
    answers: Receiver<Whom>,
    waker: Arc<Waker>,
}

impl Knocker {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let waker = Arc::new(Waker::new()?);
        let (orders, orders_in) = unbounded_channel();
        let (answers_out, answers) = mpsc::channel();
        let tell = Tell { answers: answers_out, waker: Arc::clone(&waker) };
        std::thread::Builder::new().name("knock".into()).stack_size(256 << 10).spawn(move || {
            runtime.block_on(take(orders_in, tell));
            // A name that is still being looked up is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { orders, answers, waker })
    }

    pub(super) fn wait_for(&self, whom: Whom, awaited: Awaited) {
        let _ = self.orders.send((whom, awaited));
    }

    /// Who has answered since.
    pub(super) fn answered(&self) -> Vec<Whom> {
        self.waker.clear();
        self.answers.try_iter().collect()
    }
}

impl AsFd for Knocker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

#[derive(Clone)]
struct Tell {
    answers: Sender<Whom>,
    waker: Arc<Waker>,
}

async fn take(mut orders: UnboundedReceiver<(Whom, Awaited)>, tell: Tell) {
    while let Some((whom, awaited)) = orders.recv().await {
        tokio::spawn(knock(whom, awaited, tell.clone()));
    }
}

async fn knock(whom: Whom, awaited: Awaited, tell: Tell) {
    let mut pause = PAUSES.0;
    loop {
        for address in &awaited.at {
            // What is connected is closed at once: to be let in is all that is asked for.
            if let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, TcpStream::connect(address.as_str())).await {
                let _ = tell.answers.send(whom);
                return tell.waker.wake();
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

    #[test]
    fn any_of_its_ports_is_an_answer_and_others_are_waited_for() {
        let knocker = Knocker::start().unwrap();
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let id = |index| AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt: 0 };
        let awaited = |at: Vec<String>| Awaited { name: at[0].clone(), at };
        knocker.wait_for(Whom::Own(id(0)), awaited(vec![closed.clone()]));
        let either = vec![closed.clone(), open.local_addr().unwrap().to_string()];
        knocker.wait_for(Whom::Own(id(1)), awaited(either));
        assert_eq!(readable(&[knocker.as_fd()], None).unwrap(), [true]);
        assert_eq!(knocker.answered(), [Whom::Own(id(1))]);
        let _late = TcpListener::bind(closed).unwrap();
        assert_eq!(readable(&[knocker.as_fd()], None).unwrap(), [true]);
        assert_eq!(knocker.answered(), [Whom::Own(id(0))]);
    }
}
