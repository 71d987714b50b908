//! A plan as people and programs read it: `--dry-run`, `umiak plan`. Secrets are masked.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::contract::Variable;
use crate::mask::Known;
use crate::model::{Role, Scope, When};

use super::{Plan, Replica};

/// The plan as JSON, with each replica's variables.
pub fn json(plan: &Plan, known: &Known) -> String {
    let mut plan = plan.masked(known);
    for position in 0..plan.replicas.len() {
        let env = sorted(&plan.known_variables(&plan.replicas[position]), known);
        plan.replicas[position].env = env.into_iter().collect();
    }
    serde_json::to_string(&plan).expect("a plan is JSON") + "\n"
}

/// The plan as text.
pub fn text(plan: &Plan, known: &Known) -> String {
    let plan = &plan.masked(known);
    let mut text = format!("job {}\nengine {}\n", plan.job.name, plan.engine);
    if !plan.is_document() {
        let _ = writeln!(text, "logs {}", plan.logs.dir().display());
    }
    for (position, role) in plan.job.roles.iter().enumerate() {
        role_lines(&mut text, plan, position, role);
    }
    if plan.job.policy.restart.max > 0 {
        let _ = writeln!(text, "\nthe whole job restarts {} times at most", plan.job.policy.restart.max);
    }
    text.push('\n');
    table(&mut text, plan);
    text += "\nenvironment, all replicas\n";
    for name in &plan.unset {
        let _ = writeln!(text, "  unset {name}");
    }
    variables(&mut text, &plan.common, known);
    // A document may have thousands of replicas: the first of each role stands for the others.
    for replica in plan.replicas.iter().filter(|replica| !plan.is_document() || replica.slot.index == 0) {
        let _ = writeln!(text, "\nenvironment, {}", replica.name);
        variables(&mut text, &plan.known_variables(replica), known);
    }
    text
}

fn role_lines(text: &mut String, plan: &Plan, position: usize, role: &Role) {
    let plural = if role.replicas == 1 { "" } else { "s" };
    let _ = writeln!(text, "\nrole {}, {} replica{plural}", role.name, role.replicas);
    let words: Vec<_> = plan.commands[position].argv.iter().map(|word| word.to_string_lossy()).collect();
    let _ = writeln!(text, "  command  {}", words.join(" "));
    if !role.completion.decides {
        let _ = writeln!(text, "  does not decide the job's end: it is stopped when the others have ended");
    }
    for after in &role.start_after {
        let when = match after.when {
            When::Started => "it has started",
            When::Ready => "its ports answer",
            When::Succeeded => "it has succeeded",
        };
        let _ = writeln!(text, "  starts after {}, when {when}", plan.job.roles[after.role as usize].name);
    }
    if role.restart.rule.max > 0 {
        let scope = match role.restart.scope {
            Scope::Replica => "replica",
            Scope::Role => "role, which starts again as a whole",
        };
        let _ = writeln!(text, "  restarts {} per {scope}", role.restart.rule.max);
    }
}

/// A line for each replica; columns that all leave empty are not shown.
fn table(text: &mut String, plan: &Plan) {
    let heads = ["replica", "rank", "address", "devices", "ports", "log"];
    let rows: Vec<[String; 6]> = plan.replicas.iter().map(cells).collect();
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .zip(heads)
        .map(|(width, head)| if width == 0 { 0 } else { width.max(head.len()) })
        .collect();
    let mut line = |cells: &[&str]| {
        let shown = cells.iter().zip(&widths).filter(|(_, width)| **width > 0);
        let padded: Vec<String> = shown.map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", padded.join("  ").trim_end());
    };
    line(&heads);
    for row in &rows {
        line(&row.each_ref().map(String::as_str));
    }
}

fn cells(replica: &Replica) -> [String; 6] {
    let ports = replica.ports.iter().map(|(name, ports)| {
        let list: Vec<String> = ports.iter().map(|port| port.get().to_string()).collect();
        format!("{name} {}", list.join(","))
    });
    [
        replica.name.clone(),
        replica.rank.0.to_string(),
        replica.endpoint.as_ref().map_or_else(|| replica.host.to_string(), ToString::to_string),
        replica.devices.iter().map(|device| device.label.as_str()).collect::<Vec<_>>().join(","),
        ports.collect::<Vec<_>>().join(" "),
        replica.log.as_ref().map(|log| log.path.display().to_string()).unwrap_or_default(),
    ]
}

fn variables(text: &mut String, variables: &[Variable], known: &Known) {
    for (name, value) in sorted(variables, known) {
        let _ = writeln!(text, "  {name}={value}");
    }
}

/// By name; of two with one name the last counts.
fn sorted(variables: &[Variable], known: &Known) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| (name.clone(), known.masked(name, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::tests::request;
    use crate::model::{Crew, Mode, Request, ServerMode};
    use crate::plan::Inventory;
    use crate::plan::document::tests as document;
    use crate::plan::launch::tests::plan;

    fn servers() -> Request {
        let mode = ServerMode {
            servers: Crew::Each(1),
            trainers: Crew::Each(1),
            coordinators: Crew::Each(0),
            stages: Vec::new(),
            gloo_port: None,
            with_gloo: "0".to_owned(),
            pod: None,
        };
        Request { mode: Mode::Servers(Box::new(mode)), ..request() }
    }

    fn launched() -> Plan {
        let env = [("http_proxy".to_owned(), "http://li:pw@proxy:80".to_owned())].into();
        plan(&Request { processes: Some(2), ..request() }, &Inventory { env, cpus: 8, ..Inventory::default() })
    }

    #[test]
    fn as_text() {
        let known = Known::default();
        insta::assert_snapshot!("launched", text(&launched(), &known));
        let servers = plan(&servers(), &Inventory { cpus: 8, ..Inventory::default() });
        insta::assert_snapshot!("servers", text(&servers, &known));
        insta::assert_snapshot!("document", text(&document::plan(), &known));
    }

    #[test]
    fn as_json() {
        let known = Known::default();
        for (name, plan) in [("launched_json", launched()), ("document_json", document::plan())] {
            let json = json(&Plan { umiak: "0".to_owned(), ..plan }, &known);
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            insta::assert_snapshot!(name, serde_json::to_string_pretty(&value).unwrap());
            let read: Plan = serde_json::from_str(&json).unwrap();
            let again: serde_json::Value = serde_json::from_str(&super::json(&read, &known)).unwrap();
            assert!(again == value, "what is printed can be read back");
        }
    }

    #[test]
    fn secrets_are_masked_wherever_they_stand() {
        let mut plan = document::plan();
        plan.job.roles[1].work.env =
            vec![("API_TOKEN".into(), "hidden-1".into()), ("HEADER".into(), "Bearer hidden-2".into())];
        plan.job.roles[1].work.command = vec!["train".into(), "--key=hidden-2".into()];
        plan.commands[1].argv = vec!["train".into(), "--key=hidden-2".into()];
        let mut known = Known::default();
        known.add("hidden-2");
        for printed in [text(&plan, &known), json(&plan, &known)] {
            assert!(printed.contains("--key=********") && !printed.contains("hidden"), "{printed}");
        }
    }
}
