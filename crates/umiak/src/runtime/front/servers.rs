//! Servers that trainers wait for.

use std::time::Duration;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::machine::job::{AttemptId, Event, Machine};
use umiak_core::model::{Part, Timestamp};
use umiak_core::plan::{Awaited, Plan};

use super::Front;
use crate::runtime::console;
use crate::runtime::knock::{Knocker, Whom};

/// Servers that answer sooner are not worth a line.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who is waited for, in words.
pub(super) struct Awaits {
    tell_at: Option<Timestamp>,
    names: Vec<String>,
}

/// Trainers here wait for servers on other nodes too.
pub(super) fn expect_elsewhere(machine: &mut Machine, plan: &Plan) {
    if let Some(role) = servers(plan).filter(|_| !plan.awaited.is_empty()) {
        machine.expect_elsewhere(role, plan.awaited.iter().map(|server| server.name.clone()).collect());
    }
}

fn servers(plan: &Plan) -> Option<u16> {
    plan.topology().parts().iter().position(|part| *part == Part::Server).map(|role| role as u16)
}

impl Front<'_> {
    pub(super) fn await_server(&mut self, id: AttemptId) {
        for awaited in self.plan.at(id.slot).map(|replica| self.plan.answers(replica)).unwrap_or_default() {
            self.knock(Whom::Own(id), awaited);
        }
    }

    pub(super) fn await_elsewhere(&mut self, role: u16, attempt: u32) {
        self.missing = self.plan.awaited.iter().map(|server| server.name.clone()).collect();
        for server in self.plan.awaited.clone() {
            self.knock(Whom::Elsewhere { role, attempt, name: server.name.clone() }, server);
        }
    }

    fn knock(&mut self, whom: Whom, awaited: Awaited) {
        self.awaits.get_or_insert_with(|| Awaits { tell_at: Some(self.clock.now() + PATIENCE), names: Vec::new() });
        if let Some(awaits) = &mut self.awaits {
            awaits.names.push(awaited.name.clone());
        }
        if self.knocker.is_none() {
            // Without a thread nobody answers, and the time-out tells so.
            self.knocker = Knocker::start().ok();
        }
        if let Some(knocker) = &self.knocker {
            knocker.wait_for(whom, awaited);
        }
    }

    /// Some servers have answered.
    pub(super) fn hear_servers(&mut self) {
        for whom in self.knocker.as_ref().map(Knocker::answered).unwrap_or_default() {
            match whom {
                Whom::Own(id) => {
                    for Awaited { name, .. } in
                        self.plan.at(id.slot).map(|it| self.plan.answers(it)).unwrap_or_default()
                    {
                        self.has_answered(&name);
                    }
                    self.dispatch(Event::Ready { id });
                }
                Whom::Elsewhere { role, attempt, name } => {
                    self.has_answered(&name);
                    if let Some(place) = self.missing.iter().position(|other| *other == name) {
                        self.missing.remove(place);
                    }
                    self.dispatch(Event::AnsweredElsewhere { role, attempt, missing: self.missing.clone() });
                }
            }
        }
        if self.awaits.is_none() {
            self.knocker = None;
        }
    }

    /// A server that has ended well answers nobody any more. Trainers do not wait for it, and who asked for it should know.
    pub(super) fn tell_early_ends(&mut self) {
        let Some(awaits) = self.awaits.as_ref().filter(|_| self.stopping.is_none()) else { return };
        let early = self.plan.replicas.iter().filter_map(|replica| {
            self.ends.get(&replica.slot).filter(|(exit, _)| exit.is_success())?;
            let Awaited { name, .. } = self.plan.answers(replica).pop()?;
            awaits.names.contains(&name).then_some((replica.slot, name))
        });
        for (slot, name) in early.collect::<Vec<_>>() {
            self.has_answered(&name);
            let message = format!("{} has ended with 0 before it answered at {name}", self.machine.replica_name(slot));
            let hint = "trainers on this node start without it; its log may say why it ended";
            self.notice(&Diagnostic::notice(Code::L0031, message).hint(hint));
        }
    }

    fn has_answered(&mut self, name: &str) {
        if let Some(awaits) = &mut self.awaits {
            awaits.names.retain(|other| other != name);
            if awaits.names.is_empty() {
                self.awaits = None;
            }
        }
    }

    /// When to say that trainers still wait.
    pub(super) fn tell_awaits_at(&self) -> Option<Timestamp> {
        self.awaits.as_ref().and_then(|awaits| awaits.tell_at)
    }

    /// Said once: who is late is mostly busy.
    pub(super) fn tell_awaits(&mut self) {
        let now = self.clock.now();
        let Some(awaits) = self.awaits.as_mut().filter(|awaits| awaits.tell_at.is_some_and(|at| at <= now)) else {
            return;
        };
        awaits.tell_at = None;
        let names = awaits.names.clone();
        if self.stopping.is_none() {
            self.talk(|style| console::awaiting(style, &names));
        }
    }
}
