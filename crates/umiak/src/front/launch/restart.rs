//! From a failed attempt to the next one: only the logs of the old one are kept.

use std::sync::Arc;

use umiak_core::diag::Diagnostic;
use umiak_core::machine::job::{Event, Machine};
use umiak_core::machine::round::messages::{LastAttempt, Stage, Start};
use umiak_core::model::{Part, StepIndex};
use umiak_core::plan::{self, Layout, Plan, Run, Share};

use super::door::LaunchDoor;
use super::hook::Hook;
use super::relay::Waiting;
use super::{hook, prepare, relay};
use crate::driver::Core;
use crate::engine::{Engine, NotLeased, Swept};

impl LaunchDoor {
    /// Plans the next attempt, writes its files, and records where it begins in each log.
    pub(super) fn prepare_next(&mut self, core: &mut Core<'_>, engine: &mut dyn Engine, attempt: u32, swept: &Swept) {
        // Processes that survive SIGKILL may hold devices and write to logs.
        if !swept.remaining.is_empty() {
            self.stand_unable(attempt, "processes of the last attempt are still running");
            return core.job.queue(Event::Prepared { attempt, ready: false });
        }
        // Connections of the last attempt end.
        (self.relay, self.next) = (None, None);
        let hook = hook::command(&self.spec).map(|command| Hook::start(command, core.job.plan.logs.dir(), attempt));
        match hook {
            Some(Ok(hook)) => self.hook = Some((hook, attempt)),
            Some(Err(error)) => {
                core.notice(&hook::failed(&error.to_string()));
                self.offer_next(core, engine, attempt);
            }
            None => self.offer_next(core, engine, attempt),
        }
    }

    /// Goes on once the command before the round has ended.
    pub(super) fn hear_hook(&mut self, core: &mut Core<'_>, engine: &mut dyn Engine) {
        let Some((ended, attempt)) = self.hook.as_ref().and_then(|(hook, attempt)| Some((hook.ended()?, *attempt)))
        else {
            return;
        };
        self.hook = None;
        if let Err(notice) = ended {
            core.notice(&notice);
        }
        // A signal may have ended the job meanwhile.
        if core.job.now.end.is_none() {
            self.offer_next(core, engine, attempt);
        }
    }

    /// Leases the ports of the next attempt. With other nodes, it begins when all are ready.
    fn offer_next(&mut self, core: &mut Core<'_>, engine: &mut dyn Engine, attempt: u32) {
        let mut is_lost = false;
        let mut lease = |request| {
            let leased = engine.lease_ports(StepIndex::default(), request);
            leased.inspect_err(|error| is_lost = matches!(error, NotLeased::Lost(_)))
        };
        let outline = prepare::outline_again(&self.spec.request, &self.inventory, &core.job.plan, &mut lease);
        let prepared = outline.and_then(|(layout, mut ports)| {
            let relay = relay::open(&self.spec.request, layout.address, &mut ports)?;
            match &mut self.peers {
                None => {
                    let share = Share::without_others(&self.spec.request, &self.inventory, &layout, &ports)?;
                    self.plan_next(core, (attempt, None), (layout, relay), share).map(|()| true)
                }
                // Wait for the other nodes.
                Some(peers) => {
                    peers.stand(attempt, Stage::Ready(plan::offer(&layout, &ports)));
                    self.next = Some((layout, relay));
                    Ok(false)
                }
            }
        });
        match prepared {
            Ok(true) => core.job.queue(Event::Prepared { attempt, ready: true }),
            // Continues when all nodes are ready.
            Ok(false) => {}
            // The engine reports its loss. If it can be started again, the preparation begins again.
            Err(_) if is_lost => core.job.now.preparing = Some(attempt),
            Err(diagnostic) => {
                core.run.screen.alert(core.run.style.diagnostic(&diagnostic));
                self.stand_unable(attempt, &diagnostic.message);
                core.job.queue(Event::Prepared { attempt, ready: false });
            }
        }
    }

    /// Plans the next attempt once all nodes are ready.
    pub(super) fn plan_with(&mut self, core: &mut Core<'_>, start: &Start) -> Result<(), Diagnostic> {
        let Some((layout, relay)) = self.next.take() else { return Ok(()) };
        let share = Share::of(&self.spec.request, &layout, start)?;
        self.plan_next(core, (start.attempt, start.last), (layout, relay), share)
    }

    fn plan_next(
        &mut self,
        core: &mut Core<'_>,
        (attempt, last): (u32, Option<LastAttempt>),
        (layout, relay): (Layout, Option<Waiting>),
        share: Share,
    ) -> Result<(), Diagnostic> {
        self.join_late_files();
        let (share, relay) = relay::begin(relay, share)?;
        let run = Run { attempt, last, ..self.run.clone() };
        let mut plan = plan::finish(&self.spec.request, &self.inventory, layout, share, &run);
        plan.notices.clear();
        prepare::write_files(&self.spec.request, &self.inventory, &mut plan)?;
        (core.job.plan, self.run, self.relay) = (Arc::new(plan), run, relay);
        self.late_files = prepare::write_late_files(&self.inventory, &core.job.plan);
        core.job.machine.rename(core.job.plan.first_rank(), core.job.plan.numbers());
        core.job.machine.set_changes(core.job.plan.topology().changes);
        expect_elsewhere(&mut core.job.machine, &core.job.plan);
        core.job.now.begin_attempt();
        (self.why, self.places) = (None, Vec::new());
        core.fact(core.job.planned());
        Ok(())
    }
}

/// Makes trainers of this node wait for servers on other nodes too.
pub(super) fn expect_elsewhere(machine: &mut Machine, plan: &Plan) {
    if let Some(role) = server_role(plan).filter(|_| !plan.awaited.is_empty()) {
        machine.expect_elsewhere(role, plan.awaited.iter().map(|server| server.name.clone()).collect());
    }
}

pub(super) fn server_role(plan: &Plan) -> Option<u16> {
    plan.topology().parts().iter().position(|part| *part == Part::Server).map(|role| role as u16)
}
