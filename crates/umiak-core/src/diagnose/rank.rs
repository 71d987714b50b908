//! Finds the rank that failed first: bad ends are ranked by their evidence, and only then by the order of exits.
//!
//! The order alone is misleading. When a rank on a GPU is killed, its sockets close a tenth of a second
//! before the kernel reports its exit, and its peers can fail in between. The log of a rank and the
//! signal that ended it are better evidence.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::elsewhere;
use super::signatures::{self, Kind};
use crate::facts::{Evidence, Finding, KernelFact, Limit, Snapshot, Subject, Usage, Verdict, Weight};
use crate::model::{Classed, Exit};

const SIGINT: i32 = 2;
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

/// Causes that a clue may name, and frames that are kept of the stack of a victim: the verdict is sent to every node.
const CAUSES: usize = 16;
const FRAMES: usize = 8;

/// The end of one attempt, with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub subject: Subject,
    pub exit: Exit,
    /// What the job's table of exits says about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classed: Option<Classed>,
    /// Run time.
    pub ran: Duration,
    /// Position in the kernel's order of exits.
    pub order: u64,
    /// Our stop ended it.
    pub by_us: bool,
    /// It ended before our first signal.
    pub before_stop: bool,
    /// Other roles decide the end of the job: it waits for their requests.
    #[serde(default)]
    pub serves: bool,
    /// The time limit that it exceeded and was stopped for.
    #[serde(default)]
    pub timed_out: Option<Limit>,
    pub evidence: Option<Evidence>,
    /// What it was doing before our first signal, if it was still running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// Its endpoint, and the local addresses of its sockets before our first signal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
    pub usage: Option<Usage>,
}

/// Ranks the ends that belong to one failure.
///
/// Successful ends and ends caused by our stop are neither causes nor victims, except for ranks that had failed
/// before our stop and were slow to exit, and for those that a clue points to when every failed rank blames a peer.
/// All others are in the verdict: the causes are those with the highest weight, in the kernel's order.
pub fn rank(mut ends: Vec<End>) -> Verdict {
    ends.sort_by_key(|end| end.order);
    let mut findings: Vec<(Weight, &End)> =
        ends.iter().filter(|end| end.is_bad()).map(|end| (end.weight(), end)).collect();
    // A rank can take so long to exit after its own error that its peers lose it and end first, and our signal
    // reaches it before it exits. Its log has the error already; it counts only if no other cause is certain.
    if findings.iter().all(|(weight, _)| *weight != Weight::Certain) {
        let slow = ends.iter().filter(|end| end.is_stopped() && end.had_failed());
        findings.extend(slow.map(|end| (Weight::Certain, end)));
    }
    findings.sort_by_key(|(weight, end)| (*weight, end.order));
    let Some(best) = findings.first().map(|(weight, _)| *weight) else {
        return Verdict { causes: Vec::new(), victims: Vec::new() };
    };
    let points_elsewhere = |(weight, end): &(Weight, &End)| *weight >= Weight::Possible && end.blames_peer();
    let clue = if findings.iter().all(|(_, end)| end.timed_out == Some(Limit::Hang)) {
        elsewhere::odd(&ends)
    } else if findings.iter().all(points_elsewhere) {
        elsewhere::find(&ends)
    } else {
        None
    };
    if let Some((mut causes, clue)) = clue {
        causes.truncate(CAUSES);
        let is_cause = |end: &End| causes.iter().any(|&at| ends[at].subject == end.subject);
        let victim = |end: &End| {
            let mut finding = end.finding(Weight::Victim);
            if let Some(snapshot) = &mut finding.snapshot {
                snapshot.stack.truncate(FRAMES);
            }
            finding
        };
        let victims = findings.iter().filter(|(_, end)| !is_cause(end)).map(|(_, end)| victim(end)).collect();
        let cause = |at: usize| Finding { clue: Some(clue.clone()), ..ends[at].finding(Weight::Possible) };
        return Verdict { causes: causes.into_iter().map(cause).collect(), victims };
    }
    let mut causes = findings.iter().take_while(|(weight, _)| *weight == best).count();
    if best == Weight::Victim {
        // Each blames a peer, and there is no other rank. A rank that was stopped from outside comes before
        // those that lost a connection, because a lost connection is a consequence.
        findings.sort_by_key(|(_, end)| (!end.was_stopped(), end.order));
        findings[0].0 = Weight::Possible;
        causes = 1;
    }
    let doubted = if best == Weight::Victim { elsewhere::doubted(&ends) } else { None };
    let mut findings = findings.into_iter().map(|(weight, end)| end.finding(weight));
    let mut causes: Vec<Finding> = findings.by_ref().take(causes).collect();
    causes.extend(doubted.map(|(at, clue)| Finding { clue: Some(clue), ..ends[at].finding(Weight::Possible) }));
    Verdict { causes, victims: findings.collect() }
}

impl End {
    /// It failed, and not by our stop.
    fn is_bad(&self) -> bool {
        !self.is_stopped() && (self.timed_out.is_some() || (!self.exit.is_success() && !self.is_our_doing()))
    }

    /// Our signal ended it because of other ranks.
    fn is_stopped(&self) -> bool {
        self.by_us && self.timed_out.is_none() && !self.was_oom_killed()
    }

    /// Ended by our signal, or after handling it: shells and frameworks catch SIGTERM and exit with
    /// their own code.
    fn is_our_doing(&self) -> bool {
        // Both umiak and the kernel send SIGKILL, and the kernel's log shows that this one was not ours.
        if self.was_oom_killed() {
            return false;
        }
        let answers = self.signal() == Some(SIGTERM)
            || matches!(self.exit, Exit::Code { code: 130 | 137 | 143 })
            || self.signature_code() == Some(signatures::TERMINATED);
        self.by_us || (!self.before_stop && answers)
    }

    /// For an end caused by our stop: its log, up to our signal, contains its own error.
    fn had_failed(&self) -> bool {
        match self.kind() {
            Some(kind) => kind == Kind::Cause,
            None => self.has_own_error(),
        }
    }

    fn weight(&self) -> Weight {
        // The only evidence is the time.
        let silent = if self.before_stop { Weight::Likely } else { Weight::Possible };
        let words = match self.kind() {
            Some(Kind::Victim) => Weight::Victim,
            Some(Kind::Waiting) => Weight::Possible,
            // Our signal reaches loader workers too, and a consequence of that is not an error.
            Some(Kind::Consequence) if !self.before_stop => Weight::Possible,
            Some(Kind::Cause | Kind::Consequence) => Weight::Certain,
            None if self.has_own_error() => Weight::Certain,
            None => silent,
        };
        if self.was_oom_killed() || self.timed_out.is_some() {
            return Weight::Certain;
        }
        match (&self.exit, self.signal()) {
            // A process does not end itself with SIGKILL, whatever the log says.
            (Exit::Spawn(_) | Exit::Unmet { .. } | Exit::NodeLost { .. }, _) | (_, Some(SIGKILL)) => Weight::Certain,
            // The platform gives the reason; what it removes after our stop was ending anyway.
            (Exit::Evicted { .. } | Exit::Preempted { .. } | Exit::TimeLimit { .. } | Exit::NoRoom { .. }, _)
                if self.before_stop =>
            {
                Weight::Certain
            }
            // The exit is unknown, so the log decides if it has an error.
            (Exit::Lost, _) if self.kind().is_some() || self.has_own_error() => words,
            (
                Exit::Evicted { .. }
                | Exit::Preempted { .. }
                | Exit::TimeLimit { .. }
                | Exit::NoRoom { .. }
                | Exit::Lost,
                _,
            ) => Weight::Possible,
            // SIGPIPE is evidence about the reader, not about the writer.
            (_, None | Some(SIGPIPE)) => words,
            // An abort or a handled signal is worth as much as the message that came with it.
            (_, Some(SIGABRT | SIGTERM | SIGINT)) if self.kind().is_some() => words,
            // A crash after losing a peer may be a crash during clean-up.
            (_, Some(_)) if matches!(self.kind(), Some(Kind::Victim | Kind::Waiting)) => silent,
            (_, Some(_)) => Weight::Certain,
        }
    }

    fn signal(&self) -> Option<i32> {
        self.exit.signal()
    }

    fn was_oom_killed(&self) -> bool {
        let facts = self.evidence.as_ref().map_or(&[][..], |evidence| &evidence.kernel);
        facts.iter().any(|fact| matches!(fact, KernelFact::OomKilled { .. }))
    }

    pub(super) fn signature_code(&self) -> Option<&str> {
        self.evidence.as_ref()?.signature.as_ref().map(|signature| signature.code.as_str())
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        let signature = self.evidence.as_ref()?.signature.as_ref()?;
        // Evidence may come from a node with a newer table than ours.
        let unknown = if signature.victim { Kind::Victim } else { Kind::Cause };
        Some(signatures::explain(&signature.code).map_or(unknown, |signature| signature.kind))
    }

    fn has_own_error(&self) -> bool {
        self.evidence.as_ref().is_some_and(|evidence| !evidence.traceback.is_empty())
    }

    /// It was told to end before our first signal, and not by us. The log of a rank that we stopped counts up to that
    /// signal.
    pub(super) fn was_signalled(&self) -> bool {
        let says_so = self.signature_code().is_some_and(|code| code.starts_with(signatures::STOPPED));
        if self.is_stopped() { says_so } else { self.before_stop && self.was_stopped() }
    }

    /// Stopped from outside, not by us, rather than failed because of a lost peer.
    fn was_stopped(&self) -> bool {
        let says_so = self.signature_code().is_some_and(|code| code.starts_with(signatures::STOPPED));
        says_so || matches!(self.signal(), Some(SIGTERM | SIGINT))
    }

    fn finding(&self, weight: Weight) -> Finding {
        Finding {
            subject: self.subject.clone(),
            exit: self.exit.clone(),
            classed: self.classed.clone(),
            ran_micros: u64::try_from(self.ran.as_micros()).unwrap_or(u64::MAX),
            weight,
            timed_out: self.timed_out,
            stopped_while_ending: self.is_stopped(),
            clue: None,
            evidence: self.evidence.clone(),
            snapshot: self.snapshot.clone(),
            usage: self.usage,
        }
    }
}

#[cfg(test)]
mod tests;
