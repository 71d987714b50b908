//! `--dry-run`: the plan that a run would execute, printed.

use std::fmt::Write as _;

use serde_json::{Value, json};
use umiak_core::diag::Diagnostic;
use umiak_core::formats::launch::OutputMode;
use umiak_core::plan::{Plan, ReplicaPlan, files, mask};

use super::console::write_data;

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
    text += "\nrank  endpoint               devices  log\n";
    for replica in &plan.replicas {
        let _ = writeln!(
            text,
            "{:<4}  {:<21}  {:<7}  {}",
            replica.rank.0,
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
        let _ = writeln!(text, "\nenvironment, rank {}", replica.rank.0);
        for line in files::shown(&replica.env) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
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
            "replica": format!("{}-{}", plan.job.roles[replica.slot.role as usize].name, replica.rank.0),
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
