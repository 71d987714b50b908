//! Facts on their way to the journal, and to stdout for programs.

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::facts::{Began, Fact, Outcome, Record, Supervised, VERSION};
use umiak_core::formats::launch::OutputMode;

use super::Front;
use crate::runtime::console;
use crate::runtime::record::Recorder;

impl Front<'_> {
    /// The run has a number from here on, if it is to have one. Of several nodes only the coordinator's records it.
    pub(super) fn begin_recording(&mut self) {
        let is_host = self.peers.as_ref().is_none_or(crate::runtime::several::Peers::is_host);
        if !self.spec.own.no_record && is_host {
            match Recorder::begin() {
                Ok(recorder) => self.recorder = Some(recorder),
                Err(error) => {
                    let mut notice = error.diagnostic();
                    notice = Diagnostic::notice(Code::J0001, "this run is not recorded")
                        .row("reason", notice.message.clone())
                        .hint("name a directory that can be written with `UMIAK_HOME`, or say `--no-record`");
                    self.talk(|style| console::diagnostic(style, &notice));
                }
            }
        }
        self.facts.push(Fact::Supervised(Supervised {
            why: Began::Submitted,
            host: umiak_sys::host::name(),
            pid: std::process::id(),
            umiak: env!("CARGO_PKG_VERSION").to_owned(),
        }));
    }

    /// `run-000032`, where the run is recorded.
    pub(super) fn run_name(&self) -> Option<String> {
        self.recorder.as_ref().map(|recorder| recorder.id().to_string())
    }

    /// Writes the facts that wait.
    pub(super) fn flush(&mut self) {
        if self.facts.is_empty() {
            return;
        }
        let facts = std::mem::take(&mut self.facts);
        let at = self.clock.now();
        let records = match &mut self.recorder {
            Some(recorder) => {
                let records = recorder.number(at, facts);
                recorder.append(&records);
                records
            }
            None if self.spec.own.output != OutputMode::Json => return,
            None => {
                let first = self.seq;
                self.seq += facts.len() as u64;
                let record = |(seq, fact)| Record { v: VERSION, seq, at: at.as_micros(), epoch: 0, step: None, fact };
                (first..).zip(facts).map(record).collect()
            }
        };
        if self.spec.own.output == OutputMode::Json {
            for line in records.iter().filter_map(|record| serde_json::to_string(record).ok()) {
                self.screen.data(format!("{line}\n"));
            }
        }
    }

    /// The third signal: who does not go is not waited for, and the record ends here.
    pub(super) fn leave_recording(&mut self, code: u8) {
        let live = self.live_ids();
        if !live.is_empty() {
            let replicas = live.iter().map(|id| self.machine.replica_name(id.slot)).collect();
            self.facts.push(Fact::Abandoned { replicas });
        }
        self.facts.push(Fact::Finished { outcome: Outcome::Interrupted, exit_code: code });
        self.finish_recording();
    }

    pub(super) fn finish_recording(&mut self) {
        self.flush();
        let took = self.clock.started().elapsed();
        if let Some(notice) = self.recorder.take().and_then(|recorder| recorder.finish(took)) {
            self.screen.alert(console::diagnostic(&self.style, &notice));
        }
    }
}
