//! The output of replicas: lines with the replica's name and the time in front, or JSON. Text lines may have any bytes.

use std::collections::HashMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::model::StepName;

use super::Output;
use super::time::moment;
use super::times::{LineTime, stamp};
use crate::screen::Style;
use crate::screen::lines::{Lines, prefix};

/// A line as `umiak logs --output json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LogLine<'a> {
    v: u32,
    run: &'a str,
    /// The step, if the run is a pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a StepName>,
    replica: &'a str,
    attempt: u32,
    /// Bytes that are not UTF-8 are replaced.
    text: &'a str,
    /// With `--timestamps`: when it was written, in microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<u64>,
    /// With `--timestamps`: false if the line may have been written later than `at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<bool>,
}

/// A replica that writes a log: of the run's only job, or of one of its steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LogOwner {
    pub(crate) step: Option<StepName>,
    pub(crate) replica: String,
}

impl fmt::Display for LogOwner {
    /// `trainer-0`, `train/trainer-0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some(step) => write!(f, "{step}/{}", self.replica),
            None => f.write_str(&self.replica),
        }
    }
}

/// How lines are printed.
#[derive(Debug)]
pub(crate) struct LogPrinter {
    run: String,
    output: Output,
    style: Style,
    is_named: bool,
    has_times: bool,
    width: usize,
    /// Ranks, which select colours.
    ranks: HashMap<LogOwner, u32>,
}

impl LogPrinter {
    pub(crate) fn new(
        run: String,
        output: Output,
        style: Style,
        is_named: bool,
        has_times: bool,
        ranks: HashMap<LogOwner, u32>,
    ) -> Self {
        let width = ranks.keys().map(|owner| owner.to_string().len()).max().unwrap_or(0);
        Self { run, output, style, is_named, has_times, width, ranks }
    }

    /// True if bytes are copied unchanged, without a prefix.
    pub(crate) fn is_raw(&self) -> bool {
        !self.has_times && (self.output == Output::Quiet || self.output == Output::Human && !self.is_named)
    }

    pub(crate) fn lines(&self, owner: &LogOwner, attempt: u32) -> LogLines {
        let form = match self.output {
            Output::Json => LineForm::Json { run: self.run.clone(), owner: owner.clone(), attempt },
            Output::Human if self.is_named => {
                let rank = self.ranks.get(owner).copied().unwrap_or_default();
                LineForm::Named(prefix(&owner.to_string(), self.width, rank, self.style.colour).into_bytes())
            }
            Output::Human | Output::Quiet => LineForm::Named(Vec::new()),
        };
        LogLines { form, is_raw: self.is_raw(), has_times: self.has_times, lines: Lines::default() }
    }
}

#[derive(Debug)]
enum LineForm {
    Named(Vec<u8>),
    Json { run: String, owner: LogOwner, attempt: u32 },
}

/// The output of one replica while it is printed.
#[derive(Debug)]
pub(crate) struct LogLines {
    form: LineForm,
    is_raw: bool,
    has_times: bool,
    lines: Lines,
}

impl LogLines {
    /// Formats more bytes. They have this time, unless a line has one itself.
    pub(crate) fn feed(&mut self, bytes: &[u8], time: LineTime) -> Vec<u8> {
        if self.is_raw {
            return bytes.to_vec();
        }
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4);
        let Self { form, has_times, lines, .. } = self;
        lines.feed(bytes, |line| form.write(line, has_times.then_some(time), &mut out));
        out
    }

    /// Formats the unfinished last line.
    pub(crate) fn finish(&mut self, time: LineTime) -> Vec<u8> {
        let mut out = Vec::new();
        let Self { form, has_times, lines, .. } = self;
        lines.finish(|line| form.write(line, has_times.then_some(time), &mut out));
        out
    }
}

impl LineForm {
    fn write(&self, line: &[u8], time: Option<LineTime>, out: &mut Vec<u8>) {
        let time = time.map(|time| match stamp(line, umiak_sys::clock::local(time.at / 1_000_000).year) {
            Some(at) => LineTime { at, is_exact: true },
            None => time,
        });
        match self {
            Self::Named(name) => {
                out.extend_from_slice(name);
                if let Some(LineTime { at, is_exact }) = time {
                    out.extend_from_slice(format!("{}{} ", moment(at), if is_exact { " " } else { "~" }).as_bytes());
                }
                out.extend_from_slice(line);
            }
            Self::Json { run, owner: LogOwner { step, replica }, attempt } => {
                let text = &String::from_utf8_lossy(line);
                let (at, exact) = (time.map(|time| time.at), time.map(|time| time.is_exact));
                let line = LogLine { v: 1, run, step: step.as_ref(), replica, attempt: *attempt, text, at, exact };
                serde_json::to_writer(&mut *out, &line).expect("a line is JSON");
            }
        }
        out.push(b'\n');
    }
}
