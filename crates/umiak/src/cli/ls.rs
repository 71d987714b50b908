//! `umiak ls`: runs, past and present.

use std::collections::BTreeMap;

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::Diagnostic;

use crate::history::index::{self, Entry, RoleSize};
use crate::history::{Home, RunId};
use crate::screen::Style;

use super::runs::{
    Cell, Done, Format, Output, Standing, ago, between, matches, now, point, print_json, print_text, table,
};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only runs that are so: `running`, `lost`, `succeeded`, `failed`, …
    #[arg(long, value_name = "WORD", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(Standing::WORDS), hide_possible_values = true)]
    status: Vec<String>,
    /// Only jobs with such a name; `*` and `?` stand for others
    #[arg(long, value_name = "GLOB")]
    name: Option<String>,
    /// Only runs with this label, or with this value of it
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Vec<String>,
    /// Only runs that began after this: `2d` ago, or a date
    #[arg(long, value_name = "WHEN", value_parser = point)]
    since: Option<u64>,
    /// Only runs that began before this
    #[arg(long, value_name = "WHEN", value_parser = point)]
    until: Option<u64>,
    /// At most so many, the newest
    #[arg(short = 'n', long = "limit", value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    format: Format,
}

/// What `umiak ls --output json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listing {
    /// The version of this format.
    pub v: u32,
    /// Newest first.
    pub runs: Vec<Listed>,
}

/// One run.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    pub run: RunId,
    /// Of the job.
    pub name: String,
    pub engine: String,
    /// `pending`, `running`, `stopping`, `restarting`, `succeeded`, `failed`, `interrupted`, `stopped`; `lost` when
    /// nobody supervises it; `elsewhere` when that cannot be seen from here.
    pub status: String,
    /// Where its supervisor is, when that is elsewhere.
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
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub user: String,
}

impl Listed {
    fn new(entry: Entry, standing: &Standing) -> Self {
        let Entry { run, name, engine, created, ended, code, roles, labels, user, .. } = entry;
        let host = match standing {
            Standing::Elsewhere(host) => Some(host.clone()),
            _ => None,
        };
        Self { run, name, engine, status: standing.word().to_owned(), host, created, ended, code, roles, labels, user }
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let home = Home::from_environment()?;
    let chosen = choose(&home, arguments)?;
    match arguments.format.output {
        Output::Quiet => {
            print_text(&chosen.iter().fold(String::new(), |text, (entry, _)| text + &format!("{}\n", entry.run)))
        }
        Output::Json => print_json(&Listing {
            v: 1,
            runs: chosen.into_iter().map(|(entry, standing)| Listed::new(entry, &standing)).collect(),
        }),
        Output::Human if chosen.is_empty() => print_text(""),
        Output::Human => print_text(&human(&arguments.format.style(), &chosen, now())),
    }
}

/// Newest first.
fn choose(home: &Home, arguments: &Arguments) -> Result<Vec<(Entry, Standing)>, Diagnostic> {
    let wanted = |entry: &Entry| {
        let has = |label: &String| match label.split_once('=') {
            Some((key, value)) => entry.labels.get(key).is_some_and(|found| found == value),
            None => entry.labels.contains_key(label),
        };
        arguments.name.as_ref().is_none_or(|pattern| matches(pattern, &entry.name))
            && arguments.label.iter().all(has)
            && arguments.since.is_none_or(|since| entry.created >= since)
            && arguments.until.is_none_or(|until| entry.created < until)
    };
    let entries = index::entries(home)?;
    let chosen = entries.into_iter().rev().filter(wanted).filter_map(|entry| {
        let standing = Standing::of_entry(home, &entry);
        let is_wanted = arguments.status.is_empty() || arguments.status.iter().any(|word| word == standing.word());
        is_wanted.then_some((entry, standing))
    });
    Ok(chosen.take(arguments.limit.unwrap_or(usize::MAX)).collect())
}

fn human(style: &Style, chosen: &[(Entry, Standing)], now: u64) -> String {
    let rows: Vec<Vec<Cell>> = chosen
        .iter()
        .map(|(entry, standing)| {
            let mark = standing.mark();
            let status = match standing {
                Standing::Elsewhere(host) => format!("{} on {host}", style.mark(mark)),
                _ => format!("{} {}", style.mark(mark), standing.word()),
            };
            let end = entry.ended.or((!standing.is_over() && *standing != Standing::Lost).then_some(now));
            vec![
                entry.run.to_string().into(),
                Cell { text: status, mark: Some(mark) },
                entry.name.clone().into(),
                ago(entry.created, now).into(),
                end.map(|end| between(entry.created, end)).unwrap_or_default().into(),
                roles(&entry.roles).into(),
                entry.code.map(|code| code.to_string()).unwrap_or_default().into(),
            ]
        })
        .collect();
    if style.width() < 60 {
        let short: Vec<Vec<Cell>> = rows.iter().map(|row| row[..3].to_vec()).collect();
        return table(style, &["run", "status", "name"], &short, 2);
    }
    table(style, &["run", "status", "name", "started", "took", "roles", "code"], &rows, 2)
}

/// `pserver 2, trainer 4`.
pub(super) fn roles(roles: &[RoleSize]) -> String {
    roles.iter().map(|role| format!("{} {}", role.role, role.replicas)).collect::<Vec<_>>().join(", ")
}

/// The schema of `--output json`.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Listing);
    format!("{}\n", serde_json::to_string_pretty(&schema).expect("a schema is JSON"))
}
