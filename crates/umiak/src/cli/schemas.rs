//! The schemas of everything that is printed as JSON or read as a document: `umiak schema`, `schemas/`.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use umiak_core::facts::Record;
use umiak_core::formats::native;
use umiak_core::plan::{PipelinePlan, Plan};

use crate::views::codes::ExplainedCode;
use crate::views::ends::{DetachedRun, RemovedRuns, StoppedRuns, WaitedRuns};
use crate::views::errors::ReportedError;
use crate::views::explanation::ExplainedRun;
use crate::views::listing::RunListing;
use crate::views::logs::LogLine;
use crate::views::pai::PaiJob;
use crate::views::run::ShownRun;
use crate::views::stacks::SeenRun;

/// A format, and its schema.
#[derive(Debug, Clone, Copy)]
pub struct FormatSchema {
    /// The argument of `umiak schema`.
    pub name: &'static str,
    /// From the root of the repository; the number is the format's `v`.
    pub path: &'static str,
    pub text: fn() -> String,
}

/// All of them, by name.
pub const SCHEMAS: &[FormatSchema] = &[
    FormatSchema { name: "cloud-plan", path: "schemas/cloud-plan.v1.json", text: of::<super::cloud::CloudPlan> },
    FormatSchema { name: "code", path: "schemas/code.v1.json", text: of::<ExplainedCode> },
    FormatSchema { name: "detached", path: "schemas/detached.v1.json", text: of::<DetachedRun> },
    FormatSchema { name: "error", path: "schemas/error.v1.json", text: of::<ReportedError<'_>> },
    FormatSchema { name: "explain", path: "schemas/explain.v2.json", text: of::<ExplainedRun> },
    FormatSchema { name: "facts", path: "schemas/facts.v1.json", text: of::<Record> },
    FormatSchema { name: "job", path: "schemas/job.v1.json", text: job },
    FormatSchema { name: "lint", path: "schemas/lint.v1.json", text: of::<super::lint::Report> },
    FormatSchema { name: "logs", path: "schemas/logs.v1.json", text: of::<LogLine<'_>> },
    FormatSchema { name: "ls", path: "schemas/ls.v1.json", text: of::<RunListing> },
    FormatSchema { name: "pipeline-plan", path: "schemas/pipeline-plan.v1.json", text: of::<PipelinePlan> },
    FormatSchema { name: "plan", path: "schemas/plan.v1.json", text: of::<Plan> },
    FormatSchema { name: "removed", path: "schemas/removed.v1.json", text: of::<RemovedRuns> },
    FormatSchema { name: "show", path: "schemas/show.v3.json", text: of::<ShownRun> },
    FormatSchema { name: "show-pai", path: "schemas/show-pai.v1.json", text: of::<PaiJob> },
    FormatSchema { name: "stacks", path: "schemas/stacks.v1.json", text: of::<SeenRun> },
    FormatSchema { name: "stop", path: "schemas/stop.v2.json", text: of::<StoppedRuns> },
    FormatSchema { name: "store", path: "schemas/store.v1.json", text: of::<super::store::ListeningStore> },
    FormatSchema { name: "wait", path: "schemas/wait.v1.json", text: of::<WaitedRuns> },
];

/// The schema of this name.
pub(super) fn named(name: &str) -> Option<String> {
    SCHEMAS.iter().find(|schema| schema.name == name).map(|schema| (schema.text)())
}

/// The schema of the output: fields that are omitted when empty are not required.
fn of<T: JsonSchema>() -> String {
    text(&SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>())
}

/// The schema of the native document, generated from its table of keys.
fn job() -> String {
    text(&native::schema::schema())
}

fn text(schema: &impl serde::Serialize) -> String {
    format!("{}\n", serde_json::to_string_pretty(schema).expect("a schema is JSON"))
}
