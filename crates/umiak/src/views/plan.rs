//! A plan as text: `--dry-run`, `umiak plan`. Secrets are masked.

use std::fmt::Write as _;

use umiak_core::diag::shown;
use umiak_core::mask::Known;
use umiak_core::model::{Body, Device, Given, Node, OnFailure, Pipeline, Role, Scope, Step, When};
use umiak_core::pipeline::text::print;
use umiak_core::plan::{ClusterScript, PipelinePlan, Plan, Replica, by_name};

use super::graph::{Drawing, Graph, template, template_of};
use super::table::{Giving, TableCell, table};
use crate::screen::Style;
use crate::screen::style::duration;

const HEADS: [&str; 6] = ["replica", "rank", "address", "devices", "ports", "log"];

/// The plan as text, not fitted to the terminal.
pub(crate) fn text(plan: &Plan, known: &Known) -> String {
    let plan = &plan.masked(known);
    let mut text = format!("job {}\nengine {}\n", plan.job.name, plan.engine);
    if !plan.is_document() {
        let _ = writeln!(text, "logs {}", shown(&plan.logs.dir().display().to_string()));
        node_line(&mut text, plan);
    }
    for (position, role) in plan.job.roles.iter().enumerate() {
        role_lines(&mut text, plan, position, role);
    }
    if plan.job.policy.restart.max > 0 {
        let (max, plural) = (plan.job.policy.restart.max, if plan.job.policy.restart.max == 1 { "" } else { "s" });
        let _ = writeln!(text, "\nthe whole job restarts at most {max} time{plural}");
    }
    text.push('\n');
    let style = Style { fixed_width: Some(usize::MAX), ..Style::default() };
    let rows: Vec<Vec<TableCell>> = plan.replicas.iter().map(|replica| cells(replica).map(Into::into).into()).collect();
    text += &table(&style, &HEADS, &rows, Giving::default());
    text += "\nenvironment, all replicas\n";
    for name in &plan.unset {
        let _ = writeln!(text, "  unset {name}");
    }
    variables(&mut text, &plan.common, known);
    // A document may have thousands of replicas: only the first of each role is shown.
    for replica in plan.replicas.iter().filter(|replica| !plan.is_document() || replica.slot.index == 0) {
        let _ = writeln!(text, "\nenvironment, {}", replica.name);
        variables(&mut text, &plan.known_variables(replica), known);
    }
    plan.script.iter().for_each(|script| script_lines(&mut text, script));
    text
}

/// What a scheduler gets.
fn script_lines(text: &mut String, script: &ClusterScript) {
    let step = script.step.as_ref().map(|step| format!(" of step {}", shown(step))).unwrap_or_default();
    let _ = writeln!(text, "\nscript{step}, engine {}", script.engine.word());
    if let Some(command) = &script.command {
        let _ = writeln!(text, "  command  {}", shown(command));
    }
    let _ = write!(text, "\n{}", script.text);
}

/// A pipeline that is already masked: its graph, then each node with its values and its job.
pub(crate) fn pipeline_text(style: &Style, plan: &PipelinePlan) -> String {
    let pipeline = &plan.pipeline;
    let mut text = format!("pipeline {}\nengine {}\n", pipeline.name, plan.engine);
    let on_failure = match pipeline.on_failure {
        OnFailure::FailFast => "everything else is stopped",
        OnFailure::Continue => "what does not depend on it continues",
    };
    let _ = writeln!(text, "at most {} steps at once; after a failure, {on_failure}", pipeline.parallelism);
    if let Some(store) = &pipeline.store {
        let _ = writeln!(text, "artifacts in {} (file system {})", store.dir.display(), store.name);
    }
    let _ = write!(text, "\n{}", Drawing { pipeline, run: None }.draw(Graph::Text, style));
    for (id, node) in pipeline.iter().skip(1) {
        let kind = if matches!(node.body, Body::Dag { .. }) { "dag" } else { "step" };
        let _ = writeln!(text, "\n{kind} {}", pipeline.path(id));
        node_lines(&mut text, pipeline, node);
        if let Body::Step(step) = &node.body {
            step_lines(&mut text, pipeline, step);
        }
    }
    plan.scripts.iter().for_each(|script| script_lines(&mut text, script));
    text
}

fn node_lines(text: &mut String, pipeline: &Pipeline, node: &Node) {
    for parameter in &node.parameters {
        let value = match &parameter.value {
            Given::Value(value) => print(value),
            Given::Text(value) => template(pipeline, value),
        };
        let _ = writeln!(text, "  parameter {} = {}", parameter.name, shown(&value));
    }
    for input in &node.inputs {
        let _ = writeln!(text, "  input {} = {}", input.name, template_of(pipeline, &input.from));
    }
    for output in &node.outputs {
        let from = output.from.as_ref().map(|(node, name)| format!(" = {}.{name}", pipeline.node(*node).name));
        let _ = writeln!(text, "  output {}{}", output.name, from.unwrap_or_default());
    }
}

fn step_lines(text: &mut String, pipeline: &Pipeline, step: &Step) {
    use umiak_core::model::Place;

    for (position, role) in step.job.roles.iter().enumerate() {
        let plural = if role.replicas == 1 { "" } else { "s" };
        let resources = &role.work.resources;
        let cpus = resources.cpu_millis.map(|millis| format!(", {} CPUs each", f64::from(millis) / 1000.0));
        let memory = resources.memory_bytes.map(|bytes| format!(", {} MiB each", bytes >> 20));
        let gpus = (resources.gpus > 0).then(|| format!(", {} GPUs each", resources.gpus));
        let resources: String = [cpus, memory, gpus].into_iter().flatten().collect();
        let _ = writeln!(text, "  role {}, {} replica{plural}{resources}", role.name, role.replicas);
        let words = role.work.command.iter().enumerate().map(|(word, plain)| {
            let place = Place::Word { role: position as u16, word: word as u16 };
            let text = step.texts.iter().find(|(at, _)| *at == place);
            text.map_or_else(|| plain.clone(), |(_, text)| template(pipeline, text))
        });
        let words = words.collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "    command  {}", words.trim_end().replace('\n', "\n             "));
    }
    if let Some(cache) = &step.cache {
        let age = cache.max_age.map(|age| format!(" of at most {}", duration(age))).unwrap_or_default();
        let _ = writeln!(text, "  uses results{age} of earlier runs");
    }
}

/// Which of several nodes this is. The ports of the others are not known before all have joined.
fn node_line(text: &mut String, plan: &Plan) {
    let nodes = &plan.topology().nodes;
    let own = plan.replicas.first().and_then(|replica| plan.member(replica)).map(|(_, member)| member.node.0 as usize);
    if let Some(own) = own.filter(|_| nodes.len() > 1) {
        let _ = writeln!(text, "node {} of {}, {}", own + 1, nodes.len(), nodes[own].address);
        let _ = writeln!(
            text,
            "  the other nodes are assumed to be like this one; their ports are exchanged when all have joined"
        );
    }
}

fn role_lines(text: &mut String, plan: &Plan, position: usize, role: &Role) {
    let plural = if role.replicas == 1 { "" } else { "s" };
    let _ = writeln!(text, "\nrole {}, {} replica{plural}", role.name, role.replicas);
    let words: Vec<_> = plan.commands[position].argv.iter().map(|word| word.to_string_lossy()).collect();
    let _ = writeln!(text, "  command  {}", words.join(" ").trim_end().replace('\n', "\n           "));
    if !role.completion.decides {
        let _ = writeln!(text, "  does not decide the job's end: it is stopped when the others have ended");
    }
    for after in &role.start_after {
        let when = match after.when {
            When::Started => "it has started",
            When::Ready => "it listens on its ports",
            When::Succeeded => "it has succeeded",
        };
        let _ = writeln!(text, "  starts after {}, when {when}", plan.job.roles[after.role as usize].name);
    }
    if role.restart.rule.max > 0 {
        let scope = match role.restart.scope {
            Scope::Replica => "replica",
            Scope::Role => "role, which restarts as a whole",
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
        let _ = writeln!(text, "  {}={}", shown(&name), shown(&value));
    }
}

#[cfg(test)]
mod tests {
    use umiak_core::diag::Source;
    use umiak_core::formats::launch::{Parsed, Spelling, parse};
    use umiak_core::formats::{self, settings::Settings};
    use umiak_core::model::{ClusterOptions, Host, Port, Workload};
    use umiak_core::plan::command::Resolved;
    use umiak_core::plan::document::{Chosen, Granted, RunPlace, SUBMISSION_VERSION, Submission, needs, place};
    use umiak_core::plan::{Gpu, Inventory, Ports, Run, STORES, Share, Wishes, finish, layout};

    use super::*;

    fn ports(first: u16, count: u16) -> Vec<Port> {
        (first..first + count).filter_map(Port::new).collect()
    }

    #[test]
    fn a_document_as_text() {
        let document = "umiak: v1\nname: ctr\npolicy: {restarts: {max: 2}}\nroles:\n  server: {command: [serve], ports: {rpc: 2}, completes: false, restarts: {max: 1, scope: role}}\n  trainer: {replicas: 2, command: [train, --key=hidden], start_after: server, env: {API_TOKEN: abc}}\n";
        let source = Source::new("job.yaml", document);
        let job = formats::parse(&source, &formats::Given::new(&[], &Settings::default()))
            .expect("a document")
            .job()
            .expect("a job")
            .clone();
        let needed = needs(&job);
        let hosts = (1..=needed.addresses as u8).map(|last| Host::from([127, 3, 0, last])).collect();
        let mut known = Known::default();
        known.add("hidden");
        let submission = Submission {
            v: SUBMISSION_VERSION,
            params: Vec::new(),
            chosen: Chosen::default(),
            repeats: None,
            work: Workload::Job(Box::new(job.clone())),
            engine: "local".into(),
            wishes: Wishes::default(),
            cluster: ClusterOptions::default(),
            known: known.clone(),
            directory: "/home/li".into(),
            document: "/home/li/job.yaml".into(),
            environment: [("OMP_NUM_THREADS".to_owned(), "1".to_owned())].into(),
            programs: vec!["/bin/serve".into(), "/bin/train".into()],
        };
        let (run, tasks, scratch) = ("run-000007".into(), "/r/tasks".into(), "/r/scratch".into());
        let granted = Granted { hosts, ports: ports(20_000, needed.ports as u16), by_owner: false };
        let plan = place(
            &submission,
            &job,
            &submission.programs,
            RunPlace { run, step: None, user: "li".into(), cpus: 8, tasks, scratch, attached: true },
            granted,
        );
        insta::assert_snapshot!(text(&plan, &known));
    }

    /// Of a launch on a host with two GPUs.
    fn launched(words: &str) -> String {
        let words: Vec<_> = words.split(' ').map(Into::into).collect();
        let env = [("http_proxy".to_owned(), "http://li:pw@proxy:80".to_owned())].into();
        let Ok(Parsed::Launch(spec)) = parse(Spelling::Launch, &words, &env) else { panic!("{words:?}") };
        let gpu = |index| Gpu { index, name: String::new(), uuid: String::new(), minor: index, numa_node: None };
        let inventory = Inventory { gpus: (0..2).map(gpu).collect(), cpus: 8, env, ..Inventory::default() };
        let layout = layout(&spec.request, &inventory).expect("it fits the host");
        let ports = Ports { endpoints: ports(6170, layout.seats.len() as u16), stores: ports(7001, STORES) };
        let share = Share::without_others(&spec.request, &inventory, &layout, &ports).expect("one node");
        let run = Run {
            pod_name: "abcdef".to_owned(),
            scratch: "/tmp/umiak-x".into(),
            directory: "/home/li".into(),
            log_dir: "/home/li/log".into(),
            command: Resolved { program: "/usr/bin/python3".into(), argv: vec!["python3".into(), "train.py".into()] },
            attempt: 1,
            last: None,
        };
        text(&finish(&spec.request, &inventory, layout, share, &run), &Known::default())
    }

    #[test]
    fn launches_as_text() {
        insta::assert_snapshot!("launched", launched("--nproc_per_node 2 --max_restart 1 train.py"));
        insta::assert_snapshot!("servers", launched("--server_num 1 --worker_num 1 train.py"));
    }
}
