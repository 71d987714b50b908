//! Runs, past and present: `umiak ls`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::facts::plural;
use super::standing::RunStanding;
use super::table::{Giving, TableCell, table};
use super::time::{ago, between};
use crate::history::RunId;
use crate::history::index::{IndexEntry, RoleSize};
use crate::screen::Style;

/// What `umiak ls --output json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunListing {
    /// The version of this format.
    pub v: u32,
    /// Newest first.
    pub runs: Vec<ListedRun>,
}

/// One run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ListedRun {
    pub run: RunId,
    /// The name of the job; for a launch, its `--job_id` or the stem of its script.
    pub name: String,
    /// The command line of a launch, secrets masked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    pub engine: String,
    /// `pending`, `running`, `stopping`, `restarting`, `spare`, `succeeded`, `failed`, `interrupted`, `stopped`; `lost` if
    /// its supervisor died; `elsewhere` if its supervisor is on another host.
    pub status: String,
    /// The host of its supervisor, with status `elsewhere`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// In microseconds since the Unix epoch.
    pub created: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// The exit code of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u8>,
    pub roles: Vec<RoleSize>,
    /// The number of steps of a pipeline; each loop counts once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub user: String,
}

impl ListedRun {
    pub(crate) fn new(entry: IndexEntry, standing: &RunStanding) -> Self {
        let IndexEntry { run, name, command, engine, created, ended, code, roles, steps, labels, user, .. } = entry;
        let host = match standing {
            RunStanding::Elsewhere(host) => Some(host.clone()),
            _ => None,
        };
        let status = standing.word().to_owned();
        Self { run, name, command, engine, status, host, created, ended, code, roles, steps, labels, user }
    }
}

pub(crate) fn human(style: &Style, chosen: &[(IndexEntry, RunStanding)], now: u64) -> String {
    let rows: Vec<Vec<TableCell>> = chosen
        .iter()
        .map(|(entry, standing)| {
            let mark = standing.mark();
            let status = match standing {
                RunStanding::Elsewhere(host) => format!("{} on {host}", style.mark(mark)),
                _ => format!("{} {}", style.mark(mark), standing.word()),
            };
            let end = entry.ended.or((!standing.is_over() && !standing.is_lost()).then_some(now));
            vec![
                entry.run.to_string().into(),
                TableCell::marked(status, mark),
                entry.name.clone().into(),
                ago(entry.created, now).into(),
                end.map(|end| between(entry.created, end)).unwrap_or_default().into(),
                size(entry).into(),
                entry.code.map(|code| code.to_string()).unwrap_or_default().into(),
                entry.command.clone().into(),
            ]
        })
        .collect();
    let heads = ["run", "status", "name", "started", "took", "roles", "code", "command"];
    table(style, &heads, &rows, Giving { cut: &[7, 5, 2], drop: &[7, 5, 4, 6, 3], last: &[1] })
}

/// `pserver 2, trainer 4`; of a pipeline, `5 steps`.
pub(crate) fn size(entry: &IndexEntry) -> String {
    match entry.steps {
        Some(steps) => format!("{steps} step{}", plural(steps as usize)),
        None => roles(&entry.roles),
    }
}

fn roles(roles: &[RoleSize]) -> String {
    roles.iter().map(|role| format!("{} {}", role.role, role.replicas)).collect::<Vec<_>>().join(", ")
}
