//! `--gather-logs`, seen from a front: its ranks' logs go to the coordinator, or those of others come here.

use std::os::fd::AsFd;
use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::round::messages::Why;
use umiak_sys::wait::{readable, stop_ourselves};

use super::tell::shown;
use super::{Front, SIGTSTP};
use crate::rendezvous::logs::LogsEnded;
use crate::rendezvous::{GatherNews, NetReport};
use crate::runtime::console;
use crate::runtime::pod_log::pod_log_name;
use crate::runtime::several::Peers;
use crate::screen::style::ranges;

/// What is over sooner is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the coordinator may take to hear that we give up.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Front<'_> {
    pub(super) fn start_logs(&mut self) {
        let Some(peers) = &self.peers else { return };
        if peers.gathers() {
            peers.mark_log_dir(pod_log_name(self.spec, &self.plan), &self.plan);
        }
        match peers.send_logs(self.spec, &self.plan, &self.log_starts) {
            Ok(logs) => self.logs = logs,
            Err(error) => {
                let notice = Diagnostic::notice(Code::R0010, "this node's logs are not sent to the coordinator");
                self.notice(&notice.row("reason", error.to_string()));
            }
        }
    }

    /// The thread that sends logs has ended.
    pub(super) fn hear_logs(&mut self) {
        if let Some(ended) = self.logs.as_ref().and_then(crate::rendezvous::logs::Logs::ended) {
            self.logs = None;
            self.tell_logs(ended);
        }
    }

    fn tell_logs(&mut self, ended: LogsEnded) {
        let not_complete = "this node's logs are not complete at the coordinator";
        let new = |message: &str| Diagnostic::notice(Code::R0010, message);
        let notice = match ended {
            LogsEnded::Complete => return,
            LogsEnded::NotWanted => {
                new("this node's logs are not gathered: the coordinator runs without `--gather-logs`")
                    .hint("give it on every node")
            }
            LogsEnded::Shared => new("nothing has to be gathered: the log directory is the coordinator's too")
                .row("shared", self.plan.log_dir.display().to_string()),
            LogsEnded::Refused(why) => new("the coordinator does not take this node's logs").row("reason", why),
            LogsEnded::Lost => new(not_complete).row("reason", "it could not be reached any more"),
            LogsEnded::GivenUp => new(not_complete).row("reason", "it was not waited for"),
        };
        self.notice(&notice);
    }

    /// Our ranks have ended: the coordinator gets the rest of their logs. Ctrl-C gives that up.
    pub(super) fn finish_logs(&mut self) {
        let is_lost = |peers: &Peers| matches!(peers.why, Some(Why::CoordinatorLost { .. }));
        let nobody_there = self.peers.as_ref().is_some_and(is_lost);
        let mut said = false;
        if let Some(logs) = &self.logs {
            if nobody_there { logs.give_up() } else { logs.finish() }
        }
        while let Some(logs) = &self.logs {
            let Ok(ready) = readable(&[logs.as_fd(), self.signals.as_fd()], (!said).then_some(PATIENCE)) else {
                return;
            };
            if ready[0] {
                self.hear_logs();
            } else if ready[1] && self.is_asked_to_go() {
                logs.give_up();
                let _ = readable(&[logs.as_fd()], Some(LAST_WORDS));
                self.logs = None;
                return self.tell_logs(LogsEnded::GivenUp);
            } else if !said {
                said = true;
                self.talk(|style| console::nodes(style, "sending logs to the coordinator; Ctrl-C gives that up"));
            }
        }
    }

    /// Ctrl-Z is obeyed here.
    fn is_asked_to_go(&self) -> bool {
        let signals = self.signals.read();
        if signals.contains(&SIGTSTP) {
            stop_ourselves();
        }
        signals.iter().any(|signal| *signal != SIGTSTP)
    }

    /// Says goodbye to the other nodes. Where logs are gathered they are waited for, until Ctrl-C gives that up.
    pub(super) fn finish_peers(&mut self) {
        if self.peers.as_ref().is_some_and(Peers::gathers) && !self.wait_for_logs() {
            // Those that are not through see that nobody is here.
            self.peers = None;
        }
        if let Some(peers) = self.peers.take() {
            peers.finish();
        }
    }

    /// False when somebody does not want to wait.
    fn wait_for_logs(&mut self) -> bool {
        let mut waiting = None;
        if let Some(peers) = &self.peers {
            peers.leave();
        }
        while let Some(peers) = &mut self.peers {
            let patience = waiting.is_some().then_some(PATIENCE);
            let Ok(ready) = readable(&[peers.as_fd(), self.signals.as_fd()], patience) else { return false };
            if ready[0] {
                for report in peers.reports() {
                    match report {
                        NetReport::Gather(GatherNews::Waiting { nodes }) => waiting = Some(nodes),
                        NetReport::Gather(news) => self.hear_gatherer(&news),
                        NetReport::Ended => return true,
                        _ => {}
                    }
                }
            } else if ready[1] && self.is_asked_to_go() {
                let notice = Diagnostic::notice(Code::R0010, "the logs of other nodes are not complete here");
                self.notice(&notice.row("reason", "they were not waited for"));
                return false;
            } else if let Some(nodes) = waiting.take() {
                let nodes = if nodes == 1 { "one node".to_owned() } else { format!("{nodes} nodes") };
                let text = format!("waiting for the logs of {nodes}; Ctrl-C gives that up");
                self.talk(|style| console::nodes(style, &text));
            }
        }
        true
    }

    pub(super) fn hear_gatherer(&mut self, news: &GatherNews) {
        let notice = match news {
            GatherNews::Waiting { .. } => return,
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
        self.notice(&notice);
    }

    /// Where the log of another node's rank is, or will be, on this one.
    pub(super) fn gathered(&self, rank: u32) -> Option<String> {
        let elsewhere = self.plan.replicas.iter().all(|replica| replica.rank.0 != rank);
        let path = self.spec.log_dir.join(self.plan.topology.members.get(rank as usize)?.log_name());
        let is_here = elsewhere && self.peers.as_ref().is_some_and(Peers::gathers) && path.exists();
        is_here.then(|| shown(&path))
    }
}
