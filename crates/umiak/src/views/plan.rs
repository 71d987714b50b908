//! A plan as people read it: `--dry-run`, `umiak plan`. Secrets are masked.

use std::fmt::Write as _;

use umiak_core::mask::Known;
use umiak_core::model::{Device, Role, Scope, When};
use umiak_core::plan::{Plan, Replica, by_name};

use super::table::{TableCell, table};
use crate::screen::Style;

const HEADS: [&str; 6] = ["replica", "rank", "address", "devices", "ports", "log"];

/// The plan as text, as wide as it is.
pub(crate) fn text(plan: &Plan, known: &Known) -> String {
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
    let style = Style { fixed_width: Some(usize::MAX), ..Style::default() };
    let rows: Vec<Vec<TableCell>> = plan.replicas.iter().map(|replica| cells(replica).map(Into::into).into()).collect();
    text += &table(&style, &HEADS, &rows, 0);
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

fn cells(replica: &Replica) -> [String; 6] {
    let ports = replica.ports.iter().map(|(name, ports)| {
        let list: Vec<String> = ports.iter().map(|port| port.get().to_string()).collect();
        format!("{name} {}", list.join(","))
    });
    [
        replica.name.clone(),
        replica.rank.0.to_string(),
        replica.endpoint.as_ref().map_or_else(|| replica.host.to_string(), ToString::to_string),
        Device::labels(&replica.devices),
        ports.collect::<Vec<_>>().join(" "),
        replica.log.as_ref().map(|log| log.path.display().to_string()).unwrap_or_default(),
    ]
}

fn variables(text: &mut String, variables: &[(String, String)], known: &Known) {
    for (name, value) in by_name(variables, known) {
        let _ = writeln!(text, "  {name}={value}");
    }
}

#[cfg(test)]
mod tests {
    use umiak_core::diag::Source;
    use umiak_core::formats;
    use umiak_core::formats::settings::Settings;
    use umiak_core::model::{Host, Port};
    use umiak_core::plan::Wishes;
    use umiak_core::plan::document::{Granted, RunPlace, Submission, needs, place};

    use super::*;

    #[test]
    fn a_document_as_text() {
        let document = "umiak: v1\nname: ctr\npolicy: {restarts: {max: 2}}\nroles:\n  server: {command: [serve], ports: {rpc: 2}, completes: false}\n  trainer: {replicas: 2, command: [train, --key=hidden], start_after: server, env: {API_TOKEN: abc}}\n";
        let source = Source::new("job.yaml", document);
        let job = formats::parse(&source, &[], &Settings::default()).expect("a document").job;
        let needed = needs(&job);
        let granted = Granted {
            hosts: (1..=needed.addresses as u8).map(|last| Host::from([127, 3, 0, last])).collect(),
            ports: (0..needed.ports as u16).filter_map(|port| Port::new(20_000 + port)).collect(),
        };
        let mut known = Known::default();
        known.add("hidden");
        let submission = Submission {
            v: 1,
            job,
            engine: "local".into(),
            wishes: Wishes::default(),
            known: known.clone(),
            directory: "/home/li".into(),
            environment: [("OMP_NUM_THREADS".to_owned(), "1".to_owned())].into(),
            programs: vec!["/bin/serve".into(), "/bin/train".into()],
        };
        let (run, tasks, scratch) = ("run-000007".into(), "/r/tasks".into(), "/r/scratch".into());
        let plan = place(&submission, RunPlace { run, cpus: 8, tasks, scratch, attached: true }, granted);
        insta::assert_snapshot!(text(&plan, &known));
    }
}
