//! The end of a job on several nodes. With `--gather-logs` this node's logs go to the coordinator, or those of other nodes
//! come here: both are waited for, until a signal gives that up.

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

/// What is over sooner is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the coordinator may take to hear that we give up.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How far this node is with leaving the job.
#[derive(Debug, Default)]
pub(super) enum Leaving {
    #[default]
    NotYet,
    /// The coordinator gets the rest of our logs.
    SendingLogs,
    /// Logs of other nodes are still to come: of so many of them.
    AwaitingLogs {
        nodes: usize,
    },
    Done,
}

impl LaunchDoor {
    /// The job begins: its logs are sent, or expected.
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

    /// What sends our logs may have ended.
    pub(super) fn hear_logs(&mut self, core: &mut Core) {
        if let Some(ended) = self.logs.as_ref().and_then(Logs::ended) {
            self.logs = None;
            Self::tell_logs(core, ended);
        }
    }

    fn tell_logs(core: &mut Core, ended: LogsEnded) {
        let not_complete = "this node's logs are not complete at the coordinator";
        let new = |message: &str| Diagnostic::notice(Code::R0010, message);
        let notice = match ended {
            LogsEnded::Complete => return,
            LogsEnded::NotWanted => {
                new("this node's logs are not gathered: the coordinator runs without `--gather-logs`")
                    .hint("give it on every node")
            }
            LogsEnded::Shared => new("nothing has to be gathered: the log directory is the coordinator's too")
                .row("shared", core.plan.logs.dir().display().to_string()),
            LogsEnded::Refused(why) => new("the coordinator does not take this node's logs").row("reason", why),
            LogsEnded::Lost => new(not_complete).row("reason", "it could not be reached any more"),
            LogsEnded::GivenUp => new(not_complete).row("reason", "it was not waited for"),
        };
        core.notice(&notice);
    }

    /// All ranks are over: goes as far as it can go now. True while something is waited for.
    pub(super) fn is_leaving(&mut self, core: &mut Core) -> bool {
        loop {
            match &self.leaving {
                Leaving::NotYet => {
                    self.tell_why_not_restarted(core);
                    if let Some(logs) = &self.logs {
                        let is_alone = matches!(self.why, Some(Why::CoordinatorLost { .. }));
                        if is_alone { logs.give_up() } else { logs.finish() }
                    }
                    (self.leaving, self.tell_at) = (Leaving::SendingLogs, Some(core.clock.now() + PATIENCE));
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

    /// Says what is waited for, once it has lasted.
    pub(super) fn tell_leaving(&mut self, core: &mut Core) {
        let now = core.clock.now();
        if self.tell_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let what = match self.leaving {
            Leaving::NotYet | Leaving::Done => return,
            Leaving::SendingLogs => "sending logs to the coordinator".to_owned(),
            Leaving::AwaitingLogs { nodes: 1 } => "waiting for the logs of one node".to_owned(),
            Leaving::AwaitingLogs { nodes } => format!("waiting for the logs of {nodes} nodes"),
        };
        core.say(|style| words::nodes(style, &format!("{what}; Ctrl-C gives that up")));
    }

    /// The other nodes have nothing more to say.
    pub(super) fn peers_ended(&mut self) {
        if matches!(self.leaving, Leaving::AwaitingLogs { .. }) {
            self.leaving = Leaving::Done;
        }
    }

    pub(super) fn give_up_leaving(&mut self, core: &mut Core) {
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
                core.notice(&notice.row("reason", "they were not waited for"));
                // Nodes that are not through see that this one is gone.
                self.peers = None;
                self.leaving = Leaving::Done;
            }
            Leaving::NotYet | Leaving::Done => {}
        }
    }

    pub(super) fn hear_gatherer(&mut self, core: &mut Core, news: &GatherNews) {
        let notice = match news {
            GatherNews::Waiting { nodes } => {
                if let Leaving::AwaitingLogs { nodes: missing } = &mut self.leaving {
                    (*missing, self.tell_at) = (*nodes, Some(core.clock.now() + PATIENCE));
                }
                return;
            }
            GatherNews::NotWritten { path, reason } => {
                Diagnostic::notice(Code::R0010, format!("`{}` cannot be gathered", path.display()))
                    .row("reason", reason)
                    .hint("the job goes on; each node has the logs of its own ranks")
            }
            GatherNews::Incomplete { ranks } => {
                let (log, verb) = if ranks.len() == 1 { ("log of rank", "is") } else { ("logs of ranks", "are") };
                Diagnostic::notice(Code::R0010, format!("the {log} {} {verb} not complete here", ranges(ranks)))
            }
        };
        core.notice(&notice);
    }

    /// Where the log of another node's rank is, or will be, on this one.
    pub(super) fn gathered(&self, plan: &Plan, rank: u32) -> Option<String> {
        let elsewhere = plan.replicas.iter().all(|replica| replica.rank.0 != rank);
        let path = self.spec.request.logs.dir.join(plan.topology().members.get(rank as usize)?.log_name());
        let is_here = elsewhere && self.peers.as_ref().is_some_and(|peers| peers.gathers) && path.exists();
        is_here.then(|| shown(&path))
    }

    /// Between two attempts there are no ranks whose end could be reported together with it.
    fn tell_why_not_restarted(&mut self, core: &mut Core) {
        // What ended the last attempt has been told.
        let told = matches!(self.why, Some(Why::RankFailed { .. }));
        if !told
            && core.machine.is_pausing()
            && matches!(core.now.end, Some((Outcome::Failed, _)))
            && let Some(why) = self.tell_why(core)
        {
            core.screen.status(None);
            core.screen.alert(why);
        }
    }
}
