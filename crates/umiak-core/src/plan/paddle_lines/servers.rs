//! The lines of Paddle's launchers for jobs with servers.

use std::ffi::OsStr;

use crate::contract::Variable;
use crate::model::{Crew, DeviceKind, PaddleHabits, Part, Request, ServerMode};
use crate::plan::{Inventory, Plan, Replica};
use crate::quote::python::{list, quoted};

use super::{cpu_only, legacy, pod_name, table};

/// The variables of a process in the launcher's tables, if set.
const SHOWN: [&str; 24] = [
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_COORDINATOR_ENDPOINTS",
    "PADDLE_COORDINATOR_NUM",
    "PADDLE_STAGE_TRAINERS_NUM",
    "STAGE_ID",
    "STAGE_NUM",
    "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
    "HETER_DEVICE_TYPE",
    "TRAINING_ROLE",
    "POD_IP",
    "PADDLE_PORT",
    "PADDLE_TRAINER_ID",
    "PADDLE_WITH_GLOO",
    "PADDLE_GLOO_RENDEZVOUS",
    "PADDLE_GLOO_FS_PATH",
    "FLAGS_selected_gpus",
    "FLAGS_selected_xpus",
    "CUDA_VISIBLE_DEVICES",
    "XPU_VISIBLE_DEVICES",
    "PADDLE_GLOO_HTTP_ENDPOINT",
];

/// The legacy launcher's lines between its configuration and the first process.
pub(super) fn at_start(request: &Request, inventory: &Inventory, plan: &Plan) -> Vec<String> {
    let mut lines: Vec<String> = request.paddle.iter().filter_map(|paddle| inferred(paddle, inventory)).collect();
    lines.extend(cpu_only(plan));
    for (part, name) in [
        (Part::Server, "server"),
        (Part::Trainer, "worker"),
        (Part::Coordinator, "coordinator"),
        (Part::HeterTrainer, "heter_worker"),
    ] {
        let these: Vec<&Replica> = plan.replicas.iter().filter(|replica| is(plan, replica, part)).collect();
        if let Some(first) = these.first() {
            let heading = format!("Local {name} start");
            lines.push(legacy(
                "INFO",
                "launch_utils.py",
                &table(&heading, these.len(), &rows(&plan.known_variables(first))),
            ));
        }
    }
    let dir = request.logs.dir.display();
    let check = format!(
        "Please check servers, workers, coordinator and heter_worker logs in {dir}/workerlog.*, {dir}/serverlog.* , {dir}/coordinatorlog.*, and {dir}/heterlog.*"
    );
    lines.push(legacy("INFO", "launch_utils.py", &check));
    lines
}

/// The flags that made it a job with servers, unless `--run_mode` did.
fn inferred(paddle: &PaddleHabits, inventory: &Inventory) -> Option<String> {
    if paddle.configuration.iter().any(|(name, value)| name == "run_mode" && value != "None") {
        return None;
    }
    let found = &paddle.server_flags;
    let text = format!(
        "Run parameter-sever mode. pserver arguments:{}, accelerators count:{}",
        list(found.iter().map(OsStr::new)),
        inventory.gpus.len()
    );
    (!found.is_empty()).then(|| legacy("INFO", "launch.py", &text))
}

fn is(plan: &Plan, replica: &Replica, part: Part) -> bool {
    plan.member(replica).is_some_and(|(_, member)| member.part == part)
}

fn rows(variables: &[Variable]) -> Vec<(&'static str, &str)> {
    let value = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    SHOWN.into_iter().filter_map(|name| value(name).map(|value| (name, value))).collect()
}

/// The legacy launcher's last lines: the parts that are stopped after the trainers.
pub(super) fn at_end(plan: &Plan) -> Vec<String> {
    let is_here = |part: Part| plan.replicas.iter().any(|replica| is(plan, replica, part));
    if !is_here(Part::Trainer) {
        return Vec::new();
    }
    let stopped = [
        (Part::HeterTrainer, "all heter_worker are killed"),
        (Part::Server, "all parameter server are killed"),
        (Part::Coordinator, "all coordinators are killed"),
    ];
    let stopped = stopped.into_iter().filter(|(part, _)| is_here(*part)).map(|(_, text)| text);
    ["all workers exit, going to finish parameter server and heter_worker."]
        .into_iter()
        .chain(stopped)
        .map(|text| legacy("INFO", "launch_utils.py", text))
        .collect()
}

/// The peers in the current launcher's pod log: both lists if given, or a record for each node.
pub(super) fn peers(request: &Request, mode: &ServerMode, plan: &Plan) -> String {
    if is_listed(mode) {
        let of = |part: Part| endpoints(plan.topology().endpoints(part), '\'');
        return format!("[{}, {}]", of(Part::Server), of(Part::Trainer));
    }
    format!("[{}]", records(request, plan, '\'').join(", "))
}

/// The records that the nodes have exchanged; none with lists.
pub(super) fn exchanged(request: &Request, mode: &ServerMode, plan: &Plan) -> Option<String> {
    let records = records(request, plan, '"');
    (!is_listed(mode)).then(|| list(records.iter().map(OsStr::new)))
}

fn is_listed(mode: &ServerMode) -> bool {
    matches!((&mode.servers, &mode.trainers), (Crew::Listed(_), Crew::Listed(_)))
}

fn endpoints(joined: &str, quote: char) -> String {
    let quoted: Vec<String> =
        joined.split(',').filter(|one| !one.is_empty()).map(|one| format!("{quote}{one}{quote}")).collect();
    format!("[{}]", quoted.join(", "))
}

/// One record for each node, in Python's quotes or JSON's.
fn records(request: &Request, plan: &Plan, quote: char) -> Vec<String> {
    let topology = plan.topology();
    let own = plan.first_rank();
    let mut first = 0;
    let record = |(index, node): (usize, &crate::contract::Node)| {
        let members = &topology.members[first..first + node.size as usize];
        first += node.size as usize;
        let is_own = members.iter().any(|member| member.rank == own);
        let name = if is_own { pod_name(plan) } else { &node.host };
        let name = if quote == '"' { format!("{name:?}") } else { quoted(OsStr::new(name)) };
        let of = |part: Part| {
            let these = members.iter().filter(|member| member.part == part);
            endpoints(&these.map(|member| member.endpoint.to_string()).collect::<Vec<_>>().join(","), quote)
        };
        let fields = [
            ("name", name),
            ("rank", super::node_rank(request, topology, index).to_string()),
            ("servers", of(Part::Server)),
            ("trainers", of(Part::Trainer)),
            ("dtype", format!("{quote}{}{quote}", topology.device_kind.map_or("cpu", DeviceKind::word))),
            // Only the first node's is ever used.
            ("gloo_port", topology.paddle_store.port.get().to_string()),
        ];
        let fields: Vec<String> =
            fields.into_iter().map(|(name, value)| format!("{quote}{name}{quote}: {value}")).collect();
        format!("{{{}}}", fields.join(", "))
    };
    topology.nodes.iter().enumerate().map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::request::tests::request;
    use crate::model::{Generation, HeterStage, Mode, PaddleVariables};
    use crate::plan::launch::tests::plan;
    use crate::plan::paddle_lines;

    fn servers(generation: Generation, stages: Vec<HeterStage>) -> Request {
        let mode = ServerMode {
            servers: Crew::Each(1),
            trainers: Crew::Each(2),
            coordinators: Crew::Each(0),
            stages,
            gloo_port: None,
            with_gloo: "0".to_owned(),
            pod: None,
        };
        let asked = request();
        let paddle = asked.paddle.map(|paddle| PaddleHabits {
            variables: PaddleVariables { generation, ..paddle.variables },
            log_level: "DEBUG".to_owned(),
            server_flags: vec!["--worker_num".to_owned(), "--server_num".to_owned()],
            ..paddle
        });
        Request { mode: Mode::Servers(Box::new(mode)), paddle, ..request() }
    }

    #[test]
    fn the_legacy_launcher_shows_each_role() {
        let stage = HeterStage { crew: Crew::Each(1), device: "gpu".to_owned() };
        let request = servers(Generation::Legacy, vec![stage]);
        let inventory = Inventory { cpus: 1, ..Inventory::default() };
        let plan = plan(&request, &inventory);
        let lines = at_start(&request, &inventory, &plan);
        let first: Vec<&str> = lines.iter().filter_map(|line| line.lines().next()).collect();
        let table = "processes. First process distributed environment info (Only For Debug): ";
        let check = "Please check servers, workers, coordinator and heter_worker logs in log/workerlog.*, log/serverlog.* , log/coordinatorlog.*, and log/heterlog.*";
        let expected = [
            "INFO <ts> launch.py] Run parameter-sever mode. pserver arguments:['--worker_num', '--server_num'], accelerators count:0".to_owned(),
            "WARNING <ts> launch.py] launch start with CPUONLY mode".to_owned(),
            format!("INFO <ts> launch_utils.py] Local server start 1 {table}"),
            format!("INFO <ts> launch_utils.py] Local worker start 2 {table}"),
            format!("INFO <ts> launch_utils.py] Local heter_worker start 1 {table}"),
            format!("INFO <ts> launch_utils.py] {check}"),
        ];
        assert_eq!(first, expected);
        // As wide as the longest name.
        let widths: Vec<usize> = lines[2..5].iter().map(|line| line.lines().nth(1).unwrap().len()).collect();
        assert_eq!(widths, [93, 95, 95]);
        let row = "    |                                  POD_IP                    127.0.0.1                  |";
        assert!(lines[2].lines().any(|line| line == row), "{}", lines[2]);
        assert_eq!(
            at_end(&plan).iter().map(|line| line.rsplit_once("] ").unwrap().1).collect::<Vec<_>>(),
            [
                "all workers exit, going to finish parameter server and heter_worker.",
                "all heter_worker are killed",
                "all parameter server are killed",
            ]
        );
        assert_eq!(paddle_lines::at_started(&request, 0, 1), None);
    }

    #[test]
    fn the_current_launcher_tells_its_peers() {
        let mut request = servers(Generation::Current, vec![]);
        let inventory = Inventory { cpus: 1, ..Inventory::default() };
        let lines = |request: &Request| paddle_lines::at_start(request, &inventory, &plan(request, &inventory));
        let record = "{'name': 'abcdef', 'rank': -1, 'servers': ['127.0.0.1:6170'], 'trainers': ['127.0.0.1:6171', '127.0.0.1:6172'], 'dtype': 'cpu', 'gloo_port': 7001}";
        let told = lines(&request);
        assert_eq!(told[1], format!("[{record}]"));
        for line in [
            "LAUNCH DEBUG <ts> PSController enabled".to_owned(),
            "LAUNCH INFO <ts> Job: default, mode ps, replicas 1[1:1], elastic False".to_owned(),
            format!("LAUNCH DEBUG <ts> sync peers done ['{}']", record.replace('\'', "\"")),
        ] {
            assert!(told.contains(&line), "{line}\n{told:#?}");
        }
        let Mode::Servers(mode) = &mut request.mode else { unreachable!() };
        let listed = |ports: &[u16]| {
            let port = |port: &u16| crate::model::Port::new(*port).unwrap();
            let endpoint = |at: &u16| crate::model::Endpoint { address: [127, 0, 0, 1].into(), port: port(at) };
            Crew::Listed(ports.iter().map(endpoint).collect())
        };
        (mode.servers, mode.trainers) = (listed(&[6170]), listed(&[6171, 6172]));
        let told = lines(&request);
        assert_eq!(told[1], "[['127.0.0.1:6170'], ['127.0.0.1:6171', '127.0.0.1:6172']]");
        assert!(!told.iter().any(|line| line.contains("sync peers done")), "{told:#?}");
    }
}
