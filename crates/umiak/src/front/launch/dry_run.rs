//! `--dry-run`: the plan that a run would execute, printed.

use std::fmt::Write as _;

use serde_json::{Value, json};
use umiak_core::diag::Diagnostic;
use umiak_core::formats::launch::OutputMode;
use umiak_core::plan::{Plan, ReplicaPlan, files, mask};

use super::words::has_parts;
use crate::screen::write_data;

pub(super) fn print(plan: &Plan, output: OutputMode) -> Result<(), Diagnostic> {
    let text = match output {
        OutputMode::Json => format!("{}\n", to_json(plan)),
        OutputMode::Human => to_text(plan),
        OutputMode::Quiet => return Ok(()),
    };
    write_data(&text)
}

fn to_text(plan: &Plan) -> String {
    let mut text = format!("job {}\nlogs {}\n", plan.job.name, plan.log_dir.display());
    let first = &plan.replicas[0];
    let _ = writeln!(text, "command {}", words(first));
    let width = plan.replicas.iter().map(|replica| name(plan, replica).len()).max().unwrap_or(0).max(4);
    let head = if has_parts(plan) { "replica" } else { "rank" };
    let _ = writeln!(text, "\n{head:<width$}  endpoint               devices  log");
    for replica in &plan.replicas {
        let _ = writeln!(
            text,
            "{:<width$}  {:<21}  {:<7}  {}",
            name(plan, replica),
            replica.endpoint.to_string(),
            devices(replica, ","),
            replica.log.display()
        );
    }
    text += "\nenvironment, all ranks\n";
    for name in &plan.unset {
        let _ = writeln!(text, "  unset {name}");
    }
    for line in files::shown(&plan.common) {
        let _ = writeln!(text, "  {line}");
    }
    for replica in &plan.replicas {
        let who = if has_parts(plan) { name(plan, replica) } else { format!("rank {}", replica.rank.0) };
        let _ = writeln!(text, "\nenvironment, {who}");
        for line in files::shown(&replica.env) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// A number says enough where all are alike.
fn name(plan: &Plan, replica: &ReplicaPlan) -> String {
    if has_parts(plan) { replica_name(replica) } else { replica.rank.0.to_string() }
}

fn replica_name(replica: &ReplicaPlan) -> String {
    format!("{}-{}", replica.part.role(), replica.index)
}

fn devices(replica: &ReplicaPlan, separator: &str) -> String {
    if replica.devices.is_empty() {
        return "-".to_owned();
    }
    replica.devices.iter().map(|device| device.label.as_str()).collect::<Vec<_>>().join(separator)
}

fn words(replica: &ReplicaPlan) -> String {
    replica.argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn to_json(plan: &Plan) -> Value {
    let variables = |variables: &[(String, String)]| -> Value {
        variables.iter().map(|(name, value)| (name.clone(), json!(mask::masked(name, value)))).collect()
    };
    json!({
        "v": 1,
        "job": plan.job.name,
        "log_dir": plan.log_dir,
        "unset": plan.unset,
        "env": variables(&plan.common),
        "replicas": plan.replicas.iter().map(|replica| json!({
            "replica": replica_name(replica),
            "rank": replica.rank,
            "node": replica.node,
            "endpoint": replica.endpoint.to_string(),
            "devices": replica.devices,
            "program": replica.program.to_string_lossy(),
            "argv": replica.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>(),
            "env": variables(&replica.env),
            "log": replica.log,
        })).collect::<Vec<_>>(),
        "files": plan.files.iter().map(|file| &file.path).collect::<Vec<_>>(),
    })
}
