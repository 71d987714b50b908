//! Looks further when every failed rank blames a peer: the cause is a rank that was stopped by us, or that ended with 0.
//!
//! Strongest clue first: a suspended process; a termination signal from outside; a rank that the messages name, by number
//! or by the address of one of its sockets; an exit with 0 while others ran; an address that no rank has; a rank that the
//! job does not have; an endpoint without a listener; no open connection; the only rank that lost no peer; another line
//! of code than where the others timed out; no time-out of its own. If all ranks timed out, the rank that most missed.

use std::net::SocketAddr;

use super::peers::{self, Peer};
use super::python;
use super::rank::End;
use super::signatures::{self, Kind};
use crate::facts::{Clue, ProcessState, Snapshot};

/// Returns the positions of the causes in `ends`, and the clue. All failed ends blame a peer.
pub(super) fn find(ends: &[End]) -> Option<(Vec<usize>, Clue)> {
    let scene = Scene { ends };
    scene
        .suspended()
        .or_else(|| scene.signalled())
        .or_else(|| scene.named(false))
        .or_else(|| scene.ended_early())
        .or_else(|| scene.wrong_address())
        .or_else(|| scene.wrong_rank())
        .or_else(|| scene.not_listening())
        .or_else(|| scene.not_connected())
        .or_else(|| scene.remaining())
        .or_else(|| scene.elsewhere())
        .or_else(|| scene.unresponsive())
        .or_else(|| scene.named(true))
}

/// Returns a rank that only one message names, though the kernel shows its connections open. All failed ends blame a
/// peer, and there is no better clue.
pub(super) fn doubted(ends: &[End]) -> Option<(usize, Clue)> {
    let (at, votes) = Scene { ends }.most_named(false)?;
    Some((at, named_by(votes)))
}

/// Returns the ranks of a job that hangs which are not where most of the others wait.
pub(super) fn odd(ends: &[End]) -> Option<(Vec<usize>, Clue)> {
    let scene = Scene { ends };
    scene.suspended().or_else(|| scene.apart())
}

struct Scene<'a> {
    ends: &'a [End],
}

impl Scene<'_> {
    fn filter(&self, keep: impl Fn(&End) -> bool) -> Vec<usize> {
        (0..self.ends.len()).filter(|&at| keep(&self.ends[at])).collect()
    }

    fn suspended(&self) -> Option<(Vec<usize>, Clue)> {
        let is_suspended = |end: &End| end.state() == Some(ProcessState::Suspended);
        some(self.filter(is_suspended), Clue::Suspended)
    }

    fn signalled(&self) -> Option<(Vec<usize>, Clue)> {
        some(self.filter(End::was_signalled), Clue::Signalled)
    }

    /// The rank that most messages name. A rank that blames a peer itself is a candidate only if `all` are, and then
    /// most of the others must miss it. A single message about a lost connection is not enough if the kernel shows open
    /// connections.
    fn named(&self, all: bool) -> Option<(Vec<usize>, Clue)> {
        let (best, votes) = self.most_named(all)?;
        let connections = self.ends[best].snapshot.as_ref().and_then(|snapshot| snapshot.connections);
        let is_doubted = matches!(votes[..], [(_, Peer::At(_))]) && connections.is_some_and(|count| count > 0);
        let enough = if all { 2 * votes.len() >= self.ends.len() } else { !is_doubted };
        enough.then(|| (vec![best], named_by(votes)))
    }

    /// The rank that most messages name, with the replicas that name it, and how.
    fn most_named(&self, all: bool) -> Option<(usize, Vec<(String, Peer)>)> {
        let mut votes: Vec<Vec<(String, Peer)>> = vec![Vec::new(); self.ends.len()];
        for end in self.ends {
            let is_relevant = |peer: &Peer| all == matches!(peer, Peer::Missing(_)) || matches!(peer, Peer::Sought(_));
            for peer in end.names().into_iter().filter(is_relevant) {
                let Some(at) = self.resolve(peer).filter(|&at| self.ends[at].subject != end.subject) else { continue };
                let has_voted = votes[at].iter().any(|(replica, _)| *replica == end.subject.replica);
                if (all || !self.ends[at].blames_peer()) && !has_voted {
                    votes[at].push((end.subject.replica.clone(), peer));
                }
            }
        }
        let best = (0..votes.len()).rev().max_by_key(|&at| votes[at].len())?;
        let votes = votes.swap_remove(best);
        (!votes.is_empty()).then_some((best, votes))
    }

    fn resolve(&self, peer: Peer) -> Option<usize> {
        match peer {
            Peer::Rank(rank) | Peer::Missing(rank) => {
                self.ends.iter().position(|end| end.subject.rank.is_some_and(|it| it.0 == rank))
            }
            Peer::At(address) | Peer::Sought(address) => self.owner(address),
        }
    }

    fn owner(&self, address: SocketAddr) -> Option<usize> {
        self.ends.iter().position(|end| end.addresses.contains(&address))
    }

    fn ended_early(&self) -> Option<(Vec<usize>, Clue)> {
        let early = self.filter(|end| end.exit.is_success() && end.before_stop && !end.by_us);
        let running = (self.ends.len() - early.len()) as u32;
        let first = early.into_iter().min_by_key(|&at| self.ends[at].order)?;
        Some((vec![first], Clue::EndedEarly { running }))
    }

    /// An address that a minority of the ranks seeks, and that is not an address of this job.
    fn wrong_address(&self) -> Option<(Vec<usize>, Clue)> {
        let sought = |end: &End| {
            end.names().into_iter().find_map(|peer| match peer {
                Peer::Sought(address) if self.owner(address).is_none() => Some(address),
                _ => None,
            })
        };
        let address = self.ends.iter().find_map(sought)?;
        let seekers = self.filter(|end| sought(end) == Some(address));
        (2 * seekers.len() < self.ends.len()).then(|| (seekers, Clue::WrongAddress { address: address.to_string() }))
    }

    /// A minority that waits for a rank that does not exist.
    fn wrong_rank(&self) -> Option<(Vec<usize>, Clue)> {
        let missing = |end: &End| {
            end.names().into_iter().find_map(|peer| match peer {
                Peer::Missing(rank) if self.resolve(peer).is_none() => Some(rank),
                _ => None,
            })
        };
        let rank = self.ends.iter().find_map(missing)?;
        let waiting = self.filter(|end| missing(end) == Some(rank));
        (2 * waiting.len() < self.ends.len()).then_some((waiting, Clue::WrongRank { rank }))
    }

    /// A running rank that peers cannot connect to, although they can connect to the others; or a minority that listens,
    /// but not where its peers expect it. They may no longer listen themselves once they have met.
    fn not_listening(&self) -> Option<(Vec<usize>, Clue)> {
        let is_refused = self.ends.iter().any(|end| end.signature_code() == Some(signatures::REFUSED));
        let is_explicit = self.ends.iter().flat_map(End::names).any(|peer| matches!(peer, Peer::Sought(_)));
        let of = |listens| self.filter(|end| end.snapshot.as_ref().and_then(|it| it.listens) == Some(listens));
        let (mut deaf, listening) = (of(false), of(true));
        if deaf.len() >= listening.len() {
            let listeners = |at: usize| self.ends[at].snapshot.as_ref().and_then(|snapshot| snapshot.listeners);
            deaf.retain(|&at| listeners(at) > Some(0));
            if is_explicit || 2 * deaf.len() >= self.ends.len() {
                return None;
            }
        }
        let clue = Clue::NotListening { listening: listening.len() as u32 };
        if is_refused { some(deaf, clue) } else { None }
    }

    /// A running rank that has no connection, although the others had some: those that failed lost theirs.
    fn not_connected(&self) -> Option<(Vec<usize>, Clue)> {
        let connections = |end: &End| end.snapshot.as_ref().and_then(|snapshot| snapshot.connections);
        let without = self.filter(|end| connections(end) == Some(0) && !end.blames_peer());
        let connected = self.filter(|end| connections(end).is_some_and(|count| count > 0) || end.blames_peer());
        let clue = Clue::NotConnected { connected: connected.len() as u32 };
        if without.len() < connected.len() { some(without, clue) } else { None }
    }

    /// The only rank that did not lose a peer, if all others did: one of them closed its connections first. It may be
    /// about to exit, so that its sockets could not be read.
    fn remaining(&self) -> Option<(Vec<usize>, Clue)> {
        let lost = self.filter(|end| end.kind() == Some(Kind::Victim));
        // A server loses no peer: it waits for the next request.
        let rest = self.filter(|end| end.kind() != Some(Kind::Victim) && !end.serves);
        let is_one = rest.len() == 1 && lost.len() > 1 && !self.ends[rest[0]].blames_peer();
        is_one.then_some((rest, Clue::Remaining { lost: lost.len() as u32 }))
    }

    /// The ranks at another place than those that timed out; if all timed out, those at a place of the minority.
    fn elsewhere(&self) -> Option<(Vec<usize>, Clue)> {
        let places: Vec<Option<String>> = self.ends.iter().map(End::doing).collect();
        let waited = self.filter(End::waited);
        let shared: Vec<&String> = waited.iter().filter_map(|&at| places[at].as_ref()).collect();
        let is_apart = |at: &usize| match &places[*at] {
            Some(_) if shared.is_empty() => !self.ends[*at].communicates(),
            Some(place) => !shared.contains(&place),
            None => false,
        };
        let mut apart: Vec<usize> = self.filter(|end| !end.blames_peer()).into_iter().filter(is_apart).collect();
        if apart.iter().any(|&at| !self.ends[at].communicates()) {
            apart.retain(|&at| !self.ends[at].communicates());
        }
        if !apart.is_empty() {
            return (!waited.is_empty()).then_some((apart, Clue::Elsewhere));
        }
        let count = |place: &String| shared.iter().filter(|other| **other == place).count();
        let most = shared.iter().copied().max_by_key(|place| count(place))?;
        let differs = |at: &usize| places[*at].as_ref().is_some_and(|place| place != most);
        let minority: Vec<usize> = waited.into_iter().filter(differs).collect();
        if minority.len() < count(most) { some(minority, Clue::Elsewhere) } else { None }
    }

    /// The ranks outside an operation with their peers if others are in one; otherwise those at a place of the minority.
    /// Servers wait for requests at a place of their own, which does not make them the odd ones.
    fn apart(&self) -> Option<(Vec<usize>, Clue)> {
        let places: Vec<Option<String>> = self.ends.iter().map(End::doing).collect();
        let known: Vec<usize> = (0..places.len()).filter(|&at| places[at].is_some() && !self.ends[at].serves).collect();
        let (within, outside): (Vec<usize>, Vec<usize>) = known.iter().partition(|&&at| self.ends[at].communicates());
        if !within.is_empty() && !outside.is_empty() {
            return Some((outside, Clue::Elsewhere));
        }
        let count = |at: usize| known.iter().filter(|&&other| places[other] == places[at]).count();
        let most = known.iter().copied().max_by_key(|&at| count(at))?;
        let minority: Vec<usize> = known.iter().copied().filter(|&at| places[at] != places[most]).collect();
        if minority.len() < count(most) { some(minority, Clue::Elsewhere) } else { None }
    }

    /// The ranks that had not timed out: those that do not wait for another process first, then those without output
    /// for longest.
    fn unresponsive(&self) -> Option<(Vec<usize>, Clue)> {
        let mut rest = self.filter(|end| !end.blames_peer());
        let key = |snapshot: &Snapshot| (!snapshot.waits_for_others(), snapshot.quiet_micros);
        rest.sort_by_key(|&at| std::cmp::Reverse(self.ends[at].snapshot.as_ref().map(key)));
        if self.ends.iter().any(End::waited) { some(rest, Clue::Unresponsive) } else { None }
    }
}

fn named_by(votes: Vec<(String, Peer)>) -> Clue {
    Clue::Named { by: votes.into_iter().map(|(replica, _)| replica).collect() }
}

fn some(found: Vec<usize>, clue: Clue) -> Option<(Vec<usize>, Clue)> {
    (!found.is_empty()).then_some((found, clue))
}

impl Snapshot {
    /// It waits for a lock or for data, as in an operation with its peers.
    fn waits_for_others(&self) -> bool {
        let function = self.waits_in.as_deref().unwrap_or_default();
        self.state == ProcessState::Sleeping
            && ["futex", "poll", "wait_woken", "recv", "sk_wait", "select"].iter().any(|name| function.contains(name))
    }
}

impl End {
    /// Its message says that a peer failed or did not respond.
    pub(super) fn blames_peer(&self) -> bool {
        matches!(self.kind(), Some(Kind::Victim | Kind::Waiting))
    }

    fn waited(&self) -> bool {
        self.kind() == Some(Kind::Waiting)
    }

    fn state(&self) -> Option<ProcessState> {
        self.snapshot.as_ref().map(|snapshot| snapshot.state)
    }

    fn names(&self) -> Vec<Peer> {
        self.evidence.as_ref().filter(|_| self.blames_peer()).map(peers::named).unwrap_or_default()
    }

    /// Its stack shows an operation with its peers, or a backward pass, which may contain one.
    fn communicates(&self) -> bool {
        let mut stack = self.snapshot.iter().flat_map(|snapshot| &snapshot.stack);
        stack.any(|frame| {
            let is_installed = !python::is_users(&frame.file);
            let is_part = ["/distributed/", "/autograd/"].iter().any(|part| frame.file.contains(part));
            is_installed && (is_part || frame.function.ends_with("backward"))
        })
    }

    /// The line of the user's code in which it failed or was running: `train.py:88`.
    fn doing(&self) -> Option<String> {
        let failed = self.evidence.as_ref().and_then(|evidence| evidence.place.as_deref());
        let place = failed.map(|place| place.split(" in ").next().unwrap_or(place).to_owned());
        let stack = self.snapshot.iter().flat_map(|snapshot| &snapshot.stack);
        let running = stack.into_iter().find(|frame| python::is_users(&frame.file));
        let place = place.or_else(|| running.map(|frame| format!("{}:{}", frame.file, frame.line)))?;
        place.rsplit('/').next().map(str::to_owned)
    }
}
