//! From a failed attempt to the next one: nothing of the old one stays but its logs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use umiak_core::diag::Diagnostic;
use umiak_core::facts::Fact;
use umiak_core::formats::launch::OutputMode;
use umiak_core::machine::job::Event;
use umiak_core::machine::round::messages::{Stage, Start};
use umiak_core::plan::{self, Layout, Ports, Run, Share, paddle_lines};
use umiak_sys::protocol::Command;

use super::{Front, servers};
use crate::runtime::launch::lease;
use crate::runtime::{console, prepare};

/// Why there is no next attempt.
enum NotReady {
    /// Too few ports, no room for files.
    Refused(Diagnostic),
    GuardianLost,
}

impl Front<'_> {
    /// `attempt 1 of 3`, where there can be several.
    pub(super) fn attempt_words(&self) -> Option<String> {
        let policy = self.plan.job.policy.restart;
        let attempt = self.machine.attempt() + 1;
        match policy.attempts() {
            Some(1) => None,
            Some(attempts) => Some(format!("attempt {attempt} of {attempts}")),
            None => Some(format!("attempt {attempt}")),
        }
    }

    /// A line of the report.
    pub(super) fn which_attempt(&self) -> String {
        self.attempt_words().map(|words| format!("  {words}\n")).unwrap_or_default()
    }

    /// The failed attempt is over and told; `attempt` will follow.
    pub(super) fn tell_restarting(&mut self, attempt: u32, delay: Duration) {
        let failed = self.attempt_words().unwrap_or_default();
        self.talk(|style| console::restarting(style, &failed, delay));
        if let Some(line) = paddle_lines::at_restart(&self.spec.request, &self.plan, attempt + 1) {
            self.pod_log.line(&line);
        }
        self.stopping = None;
        self.verdict = None;
        self.timers.clear();
    }

    /// Has the guardian stop what the old attempt left behind, and give its ports back.
    pub(super) fn clear(&mut self) {
        let command = Command::Clear { keep_ports: prepare::keeps_ports(&self.spec.request) };
        // A guardian that is gone shows itself at its socket.
        let _ = self.guardian.send(&command);
    }

    /// Nobody is left: plans the next attempt, writes its files, and notes where its part of each log begins.
    pub(super) fn prepare_next(&mut self, stopped: &[u32], remaining: &[u32]) -> Option<Event> {
        self.tell_swept(stopped, remaining);
        let attempt = self.machine.attempt() + 1;
        // What does not go even after SIGKILL may hold devices and write into logs.
        if !remaining.is_empty() {
            self.stand_unable("processes of the last attempt are still there");
            return Some(Event::Prepared { attempt, ready: false });
        }
        let prepared = self.outline_next().and_then(|(layout, ports)| match &self.peers {
            None => {
                let share = Share::alone(&self.spec.request, &self.inventory, &layout, &ports);
                self.plan_next(attempt, layout, share).map(|()| true).map_err(NotReady::Refused)
            }
            // The others are waited for.
            Some(peers) => {
                peers.stand(attempt, Stage::Ready(plan::offer(&layout, &ports)));
                self.next = Some(layout);
                Ok(false)
            }
        });
        match prepared {
            Ok(true) => Some(Event::Prepared { attempt, ready: true }),
            Ok(false) => None,
            Err(NotReady::GuardianLost) => Some(self.lose_guardian()),
            Err(NotReady::Refused(diagnostic)) => {
                self.screen.alert(console::diagnostic(&self.style, &diagnostic));
                self.stand_unable(&diagnostic.message);
                Some(Event::Prepared { attempt, ready: false })
            }
        }
    }

    fn stand_unable(&self, why: &str) {
        if let Some(peers) = &self.peers {
            peers.stand(self.machine.attempt() + 1, Stage::Unable { why: why.to_owned() });
        }
    }

    fn outline_next(&mut self) -> Result<(Layout, Ports), NotReady> {
        let mut broken = None;
        let guardian = &mut self.guardian;
        let outline = prepare::outline_again(&self.spec.request, &self.inventory, &self.plan, &mut |request| {
            lease(guardian, request, &mut broken)
        });
        if broken.is_some() {
            return Err(NotReady::GuardianLost);
        }
        outline.map_err(NotReady::Refused)
    }

    /// All nodes are ready for the next attempt.
    pub(super) fn plan_with(&mut self, start: &Start) -> Result<(), Diagnostic> {
        let Some(layout) = self.next.take() else { return Ok(()) };
        let share = Share::of(&self.spec.request, &layout, start)?;
        self.plan_next(start.attempt, layout, share)
    }

    fn plan_next(&mut self, attempt: u32, layout: Layout, share: Share) -> Result<(), Diagnostic> {
        self.join_late_files();
        let run = Run { attempt, ..self.run.clone() };
        let mut plan = plan::finish(&self.spec.request, &self.inventory, layout, share, &run);
        plan.notices.clear();
        prepare::write_files(&self.spec.request, &self.inventory, &mut plan)?;
        let plan = Arc::new(plan);
        self.late_files = prepare::write_late_files(&self.inventory, &plan);
        (self.plan, self.run) = (plan, run);
        (self.knocker, self.awaits) = (None, None);
        servers::expect_elsewhere(&mut self.machine, &self.plan);
        self.pids.clear();
        self.ends.clear();
        self.log_at_stop.clear();
        self.killed = false;
        self.told_while_going = false;
        self.told_started = false;
        self.record(&Fact::Planned(self.planned()));
        Ok(())
    }

    pub(super) fn join_late_files(&mut self) {
        if let Some(thread) = self.late_files.take() {
            let _ = thread.join();
        }
    }

    /// The next attempt is about to be started.
    pub(super) fn begin_attempt(&mut self) {
        if self.run.attempt == 0 {
            return;
        }
        self.attempt_started = Instant::now();
        if self.spec.own.output == OutputMode::Human {
            let log_dir = super::tell::shown(&self.spec.request.logs.dir);
            self.screen.talk(console::planned(&self.style, &self.plan, &log_dir, None));
        }
    }
}
