//! The end of a job on several nodes. With `--gather-logs`, this node sends its logs to the coordinator or receives
//! those of other nodes. It waits until that is done, or until a signal.

use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::Outcome;
use umiak_core::machine::round::messages::Why;
use umiak_core::plan::Plan;
use umiak_sys::wait::readable;

use super::door::{LaunchDoor, shown};
use super::pod_log::pod_log_name;
use super::words;
use crate::driver::Core;
use crate::rendezvous::GatherNews;
use crate::rendezvous::logs::{Logs, LogsEnded};
use crate::screen::style::ranges;

/// Shorter waits are not shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time to tell the coordinator that we give up.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How far this node is in leaving the job.
#[derive(Debug, Default)]
pub(super) enum Leaving {
    #[default]
    NotYet,
    /// Sending the rest of our logs to the coordinator.
    SendingLogs,
    /// Waiting for the logs of this number of other nodes.
    AwaitingLogs {
        nodes: usize,
    },
    Done,
}

impl LaunchDoor {
    /// Starts to send logs, or to receive them.
    pub(super) fn start_logs(&mut self, plan: &Plan) -> Option<Diagnostic> {
        let peers = self.peers.as_mut()?;
        if peers.gathers {
            peers.mark_log_dir(pod_log_name(plan), plan);
        }
        match peers.send_logs(plan) {
            Ok(logs) => {
                self.logs = logs;
                None
            }
            Err(error) => {
                let notice = Diagnostic::notice(Code::R0010, "this node's logs are not sent to the coordinator");
                Some(notice.row("reason", error.to_string()))
            }
        }
    }

    /// Checks whether sending our logs has ended.
    pub(super) fn hear_logs(&mut self, core: &mut Core<'_>) {
        if let Some(ended) = self.logs.as_ref().and_then(Logs::ended) {
            self.logs = None;
            Self::tell_logs(core, ended);
        }
    }

    fn tell_logs(core: &mut Core<'_>, ended: LogsEnded) {
        let not_complete = "this node's logs are not complete at the coordinator";
        let new = |message: &str| Diagnostic::notice(Code::R0010, message);
        let notice = match ended {
            LogsEnded::Complete => return,
            LogsEnded::NotWanted => {
                new("this node's logs are not gathered: the coordinator runs without `--gather-logs`")
                    .hint("use `--gather-logs` on every node")
            }
            LogsEnded::Shared => new("this node's logs are not copied: the coordinator uses the same log directory")
                .row("shared", core.job.plan.logs.dir().display().to_string()),
            LogsEnded::Refused(why) => new("the coordinator refused this node's logs").row("reason", why),
            LogsEnded::Lost => new(not_complete).row("reason", "the connection to the coordinator was lost"),
            LogsEnded::GivenUp => new(not_complete).row("reason", "the wait was interrupted"),
        };
        core.notice(&notice);
    }

    /// All ranks have ended: continues to leave the job. True while it waits for something.
    pub(super) fn is_leaving(&mut self, core: &mut Core<'_>) -> bool {
        loop {
            match &self.leaving {
                Leaving::NotYet => {
                    self.tell_why_not_restarted(core);
                    if let Some(logs) = &self.logs {
                        let is_alone = matches!(self.why, Some(Why::CoordinatorLost { .. }));
                        if is_alone { logs.give_up() } else { logs.finish() }
                    }
                    (self.leaving, self.tell_at) = (Leaving::SendingLogs, Some(core.run.clock.now() + PATIENCE));
                }
                Leaving::SendingLogs if self.logs.is_some() => return true,
                Leaving::SendingLogs => {
                    self.tell_at = None;
                    self.leaving = match self.peers.as_ref().filter(|peers| peers.gathers) {
                        Some(peers) => {
                            peers.leave();
                            Leaving::AwaitingLogs { nodes: 0 }
                        }
                        None => Leaving::Done,
                    };
                }
                Leaving::AwaitingLogs { .. } => return true,
                Leaving::Done => return false,
            }
        }
    }

    /// Shows what is awaited, after a while.
    pub(super) fn tell_leaving(&mut self, core: &mut Core<'_>) {
        let now = core.run.clock.now();
        if self.tell_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let what = match self.leaving {
            Leaving::NotYet | Leaving::Done => return,
            Leaving::SendingLogs => "sending logs to the coordinator".to_owned(),
            Leaving::AwaitingLogs { nodes: 1 } => "waiting for the logs of one node".to_owned(),
            Leaving::AwaitingLogs { nodes } => format!("waiting for the logs of {nodes} nodes"),
        };
        core.say(|style| words::nodes(style, &format!("{what}; press Ctrl-C to skip this")));
    }

    /// The network thread has ended: no more logs come.
    pub(super) fn peers_ended(&mut self) {
        if matches!(self.leaving, Leaving::AwaitingLogs { .. }) {
            self.leaving = Leaving::Done;
        }
    }

    pub(super) fn give_up_leaving(&mut self, core: &mut Core<'_>) {
        match self.leaving {
            Leaving::SendingLogs => {
                if let Some(logs) = self.logs.take() {
                    logs.give_up();
                    let _ = readable(&[std::os::fd::AsFd::as_fd(&logs)], Some(LAST_WORDS));
                    Self::tell_logs(core, LogsEnded::GivenUp);
                }
            }
            Leaving::AwaitingLogs { .. } => {
                let notice = Diagnostic::notice(Code::R0010, "the logs of other nodes are not complete here");
                core.notice(&notice.row("reason", "the wait was interrupted"));
                // Nodes that still send notice the closed connection.
                self.peers = None;
                self.leaving = Leaving::Done;
            }
            Leaving::NotYet | Leaving::Done => {}
        }
    }

    pub(super) fn hear_gatherer(&mut self, core: &mut Core<'_>, news: &GatherNews) {
        let notice = match news {
            GatherNews::Waiting { nodes } => {
                if let Leaving::AwaitingLogs { nodes: missing } = &mut self.leaving {
                    (*missing, self.tell_at) = (*nodes, Some(core.run.clock.now() + PATIENCE));
                }
                return;
            }
            GatherNews::NotWritten { path, reason } => {
                Diagnostic::notice(Code::R0010, format!("`{}` cannot be gathered", path.display()))
                    .row("reason", reason)
                    .hint("the job continues; each node has the logs of its own ranks")
            }
            GatherNews::Incomplete { ranks } => {
                let (log, verb) = if ranks.len() == 1 { ("log of rank", "is") } else { ("logs of ranks", "are") };
                Diagnostic::notice(Code::R0010, format!("the {log} {} {verb} not complete here", ranges(ranks)))
            }
        };
        core.notice(&notice);
    }

    /// The copy on this node of the log of another node's rank.
    pub(super) fn gathered(&self, plan: &Plan, rank: u32) -> Option<String> {
        let elsewhere = plan.replicas.iter().all(|replica| replica.rank.0 != rank);
        let path = self.spec.request.logs.dir.join(plan.topology().members.get(rank as usize)?.log_name());
        let is_here = elsewhere && self.peers.as_ref().is_some_and(|peers| peers.gathers) && path.exists();
        is_here.then(|| shown(&path))
    }

    /// Shows why there was no restart. Between two attempts, no failure of a rank is reported that could show it.
    fn tell_why_not_restarted(&mut self, core: &mut Core<'_>) {
        // The failure of the last attempt has been shown.
        let told = matches!(self.why, Some(Why::RankFailed { .. }));
        if !told
            && core.job.machine.is_pausing()
            && matches!(core.job.now.end, Some((Outcome::Failed, _)))
            && let Some(why) = self.tell_why(core)
        {
            core.run.screen.status(None);
            core.run.screen.alert(why);
        }
    }
}
