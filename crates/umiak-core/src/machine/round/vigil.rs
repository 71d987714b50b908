//! Whether anything of a node still runs after its connection broke without a word.
//!
//! umiak and its guardian hold the same listening socket. A refused connection is the word of that host's kernel that
//! both are dead, and ranks die with the guardian. Any other answer, and none, proves nothing: the time-outs apply.

use std::time::Duration;

use super::limits::{KNOCK, REFUSED};
use super::messages::Answer;
use crate::model::Timestamp;

/// The answers so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vigil {
    /// Since when every connection was refused.
    refused: Option<Timestamp>,
    /// The time to the next connection after one that was not, which grows. The first one often comes when the kernel has
    /// closed the connection of a dying process, and not yet its other sockets.
    pause: Duration,
}

impl Default for Vigil {
    fn default() -> Self {
        Self { refused: None, pause: KNOCK.0 }
    }
}

/// What follows from an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Connect again after this time.
    Knock { after: Duration },
    /// Nothing of the node runs anymore.
    Gone,
}

impl Vigil {
    /// The port answered at this time; `Ok` if it accepted a connection.
    pub fn answered(&mut self, answer: &Result<(), Answer>, now: Timestamp) -> Next {
        if *answer != Err(Answer::Refused) {
            self.refused = None;
            let after = self.pause;
            self.pause = (after * 2).min(KNOCK.1);
            return Next::Knock { after };
        }
        self.pause = KNOCK.0;
        let until = *self.refused.get_or_insert(now) + REFUSED;
        if now >= until {
            return Next::Gone;
        }
        Next::Knock { after: until.since(now).min(KNOCK.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(millis * 1000)
    }

    #[test]
    fn a_node_is_gone_when_connections_were_refused_throughout() {
        let (mut vigil, refused) = (Vigil::default(), Err(Answer::Refused));
        assert_eq!(vigil.answered(&refused, at(50)), Next::Knock { after: Duration::from_millis(100) });
        assert_eq!(vigil.answered(&refused, at(1990)), Next::Knock { after: Duration::from_millis(60) }, "not later");
        assert_eq!(vigil.answered(&refused, at(2049)), Next::Knock { after: Duration::from_millis(1) });
        assert_eq!(vigil.answered(&refused, at(2050)), Next::Gone);
    }

    #[test]
    fn any_other_answer_begins_anew() {
        let refused = Err(Answer::Refused);
        let failed = Answer::Failed { why: String::new() };
        for other in [Ok(()), Err(Answer::Silent), Err(Answer::NoRoute), Err(failed)] {
            let mut vigil = Vigil::default();
            vigil.answered(&refused, at(0));
            for pause in [100, 200, 400, 800, 1000, 1000] {
                let after = Duration::from_millis(pause);
                assert_eq!(vigil.answered(&other, at(1900)), Next::Knock { after }, "{other:?}");
            }
            assert_ne!(vigil.answered(&refused, at(2500)), Next::Gone, "{other:?}");
            assert_ne!(vigil.answered(&refused, at(4499)), Next::Gone, "{other:?}");
            assert_eq!(vigil.answered(&refused, at(4500)), Next::Gone, "{other:?}");
        }
    }
}
