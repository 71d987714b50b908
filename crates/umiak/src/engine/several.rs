//! Several engines in one run: each step of a pipeline is on one of them.
//!
//! Orders go to the engine of their step, news come from all. Before a step leases anything, [`Engine::place`] says where
//! it is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use umiak_core::diag::Diagnostic;
use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Device, StepIndex, StopHow};
use umiak_core::plan::Plan;
use umiak_sys::ports::{LeaseRequest, Leased};
use umiak_sys::wait::{Together, readable};

use super::{Capabilities, Common, Engine, EngineKind, EngineNews, FixedPort, NotLeased, Start, Swept};

pub(crate) struct Several {
    /// The one that holds locks and directories is first.
    engines: Vec<Part>,
    places: HashMap<StepIndex, EngineKind>,
    /// The descriptors of all engines. It is made anew when they may have changed.
    together: Together,
}

/// One of the engines.
struct Part {
    engine: Box<dyn Engine>,
    cleared: Answer,
    swept: Answer,
}

/// The answer of an engine to a request that all of them got.
#[derive(Default)]
enum Answer {
    #[default]
    NotAsked,
    Awaited,
    Is(Swept),
}

impl Several {
    pub(crate) fn new(engines: Vec<Box<dyn Engine>>) -> std::io::Result<Self> {
        let part = |engine| Part { engine, cleared: Answer::NotAsked, swept: Answer::NotAsked };
        let engines: Vec<Part> = engines.into_iter().map(part).collect();
        let together = together(&engines)?;
        Ok(Self { engines, places: HashMap::new(), together })
    }

    /// The position of a step's engine.
    fn position(&self, step: StepIndex) -> usize {
        let kind = self.places.get(&step);
        self.engines.iter().position(|part| Some(&part.engine.kind()) == kind).unwrap_or(0)
    }

    fn of(&mut self, step: StepIndex) -> &mut dyn Engine {
        let position = self.position(step);
        self.engines[position].engine.as_mut()
    }

    fn each(&mut self, mut f: impl FnMut(&mut dyn Engine)) {
        self.engines.iter_mut().for_each(|part| f(part.engine.as_mut()));
        self.watch_again();
    }

    /// Passes attempts on, those of each engine together.
    fn divide(&mut self, targets: &[AttemptId], mut f: impl FnMut(&mut dyn Engine, &[AttemptId])) {
        for position in 0..self.engines.len() {
            let own: Vec<AttemptId> = targets.iter().copied().filter(|id| self.position(id.step) == position).collect();
            if !own.is_empty() {
                f(self.engines[position].engine.as_mut(), &own);
            }
        }
    }

    /// An engine that starts again has another descriptor, and one that has ended has none.
    fn watch_again(&mut self) {
        if let Ok(together) = together(&self.engines) {
            self.together = together;
        }
    }
}

fn together(engines: &[Part]) -> std::io::Result<Together> {
    let watched: Vec<BorrowedFd<'_>> = engines.iter().filter_map(|part| part.engine.watch()).collect();
    Together::new(&watched)
}

impl Engine for Several {
    /// That of the first: this host, if one of them is.
    fn kind(&self) -> EngineKind {
        self.engines[0].engine.kind()
    }

    fn capabilities(&self, step: StepIndex) -> Capabilities {
        self.engines[self.position(step)].engine.capabilities(step)
    }

    fn place(&mut self, step: StepIndex, kind: EngineKind) {
        self.places.insert(step, kind);
    }

    fn lease_addresses(&mut self, step: StepIndex, count: u32) -> Result<Vec<IpAddr>, Diagnostic> {
        self.of(step).lease_addresses(step, count)
    }

    fn lease_ports(&mut self, step: StepIndex, request: LeaseRequest) -> Result<Leased, NotLeased> {
        self.of(step).lease_ports(step, request)
    }

    fn lease_devices(
        &mut self,
        step: StepIndex,
        candidates: &[(u32, Device)],
        count: u32,
    ) -> Result<Vec<Device>, Diagnostic> {
        self.of(step).lease_devices(step, candidates, count)
    }

    fn release(&mut self, step: StepIndex) {
        self.of(step).release(step);
    }

    fn check_ports(&self, ports: &[FixedPort<'_>]) -> Result<(), Diagnostic> {
        self.engines.iter().try_for_each(|part| part.engine.check_ports(ports))
    }

    fn remove_at_end(&mut self, directories: &[PathBuf]) {
        self.engines[0].engine.remove_at_end(directories);
    }

    fn share(&mut self, common: Common) {
        self.each(|engine| engine.share(common.clone()));
    }

    fn handle(&self, attempts: &[AttemptId]) -> Option<String> {
        let step = attempts.first()?.step;
        self.engines[self.position(step)].engine.handle(attempts)
    }

    fn adopt(&mut self, handle: &str, live: &[AttemptId]) -> Result<Vec<AttemptId>, Diagnostic> {
        let kind = EngineKind::of_handle(handle);
        let part = self.engines.iter_mut().find(|part| Some(part.engine.kind()) == kind);
        let adopted = part.map_or(Ok(Vec::new()), |part| part.engine.adopt(handle, live));
        self.watch_again();
        adopted
    }

    fn start(&mut self, plan: &Plan, starts: Vec<Start>) {
        let Some(first) = starts.first() else { return };
        self.of(first.id.step).start(plan, starts);
        self.watch_again();
    }

    fn stop(&mut self, targets: &[AttemptId], how: StopHow) {
        self.divide(targets, |engine, own| engine.stop(own, how));
    }

    fn suspend(&mut self, targets: &[AttemptId], pause: bool) {
        self.divide(targets, |engine, own| engine.suspend(own, pause));
    }

    fn forsake(&mut self, targets: &[AttemptId]) {
        self.divide(targets, |engine, own| engine.forsake(own));
    }

    fn retire(&mut self, step: StepIndex) {
        self.of(step).retire(step);
    }

    fn await_ready(&mut self, id: AttemptId) -> bool {
        self.of(id.step).await_ready(id)
    }

    fn keep(&mut self, held: BorrowedFd<'_>) -> bool {
        self.engines[0].engine.keep(held)
    }

    fn hold(&mut self, connection: BorrowedFd<'_>, last_words: umiak_sys::protocol::LastWords) {
        self.engines[0].engine.hold(connection, last_words);
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.together.as_fd())
    }

    fn news(&mut self) -> Vec<EngineNews> {
        let mut all = Vec::new();
        for part in &mut self.engines {
            // Some wait for news when asked for them.
            let is_ready = |fd| readable(&[fd], Some(Duration::ZERO)).is_ok_and(|ready| ready[0]);
            if !part.engine.watch().is_some_and(is_ready) {
                continue;
            }
            let kind = part.engine.kind();
            for news in part.engine.news() {
                match news {
                    EngineNews::Cleared(swept) => part.cleared = Answer::Is(swept),
                    EngineNews::Swept(swept) => part.swept = Answer::Is(swept),
                    EngineNews::Lost { pid, again, why } => all.push(EngineNews::OneLost { kind, pid, again, why }),
                    news => all.push(news),
                }
            }
        }
        all.extend(answered(&mut self.engines, |part| &mut part.cleared).map(EngineNews::Cleared));
        all.extend(answered(&mut self.engines, |part| &mut part.swept).map(EngineNews::Swept));
        self.watch_again();
        all
    }

    fn leave(&mut self) {
        self.each(|engine| engine.leave());
    }

    fn clear(&mut self, keep_ports: bool) {
        self.engines.iter_mut().for_each(|part| part.cleared = Answer::Awaited);
        self.each(|engine| engine.clear(keep_ports));
    }

    fn end(&mut self, patient: bool) {
        for part in &mut self.engines {
            if !matches!(part.swept, Answer::Is(_)) {
                part.swept = Answer::Awaited;
                part.engine.end(patient);
            }
        }
        self.watch_again();
    }
}

/// The answers of all engines as one, when the last of them is there.
fn answered(engines: &mut [Part], of: impl Fn(&mut Part) -> &mut Answer) -> Option<Swept> {
    if !engines.iter_mut().all(|part| matches!(of(part), Answer::Is(_))) {
        return None;
    }
    let mut all = Swept::default();
    for part in engines {
        if let Answer::Is(Swept { stopped, remaining }) = std::mem::take(of(part)) {
            all.stopped.extend(stopped);
            all.remaining.extend(remaining);
        }
    }
    Some(all)
}
