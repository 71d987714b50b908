//! The variables that Paddle's launchers set in parameter-server jobs: the union of both generations. The generation
//! matters only where they conflict.

use crate::model::{Generation, Part};

use super::{Member, Topology, Variable, View, paddle};

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let (topology, options) = (view.group, view.options);
    let part = member.part;
    let mut variables = vec![
        ("TRAINING_ROLE", part.training_role().to_owned()),
        ("PADDLE_ROLE", part.training_role().to_owned()),
        ("PADDLE_PSERVERS_IP_PORT_LIST", topology.endpoints(Part::Server).to_owned()),
        ("PADDLE_TRAINER_ENDPOINTS", topology.endpoint_list().to_owned()),
        ("PADDLE_TRAINERS_NUM", topology.count(Part::Trainer).to_string()),
        ("PADDLE_NNODES", topology.nodes.len().to_string()),
        ("POD_IP", member.endpoint.address.to_string()),
        ("PADDLE_PORT", member.endpoint.port.get().to_string()),
        ("PADDLE_WITH_GLOO", options.with_gloo.clone().unwrap_or_default()),
        ("PADDLE_GLOO_RENDEZVOUS", "3".to_owned()),
        ("PADDLE_GLOO_FS_PATH", view.gloo_dir.to_string_lossy().into_owned()),
        ("PADDLE_GLOO_HTTP_ENDPOINT", topology.paddle_store.to_string()),
        ("PADDLE_LOG_DIR", view.log_dir.to_string_lossy().into_owned()),
        ("POD_NAME", view.pod_name.to_owned()),
    ];
    if matches!(part, Part::Trainer | Part::Coordinator) {
        variables.push(("PADDLE_TRAINER_ID", member.index.to_string()));
    }
    if part == Part::Trainer {
        variables.extend(paddle::backup_file(view, member).map(|file| ("PADDLE_BACKUP_ENV_PATH", file)));
    }
    if part != Part::HeterTrainer {
        variables.push(("PADDLE_COORDINATOR_ENDPOINTS", topology.endpoints(Part::Coordinator).to_owned()));
    }
    if part == Part::Coordinator {
        variables.push(("PADDLE_COORDINATOR_NUM", topology.count(Part::Coordinator).to_string()));
    }
    if part != Part::Server && options.paddle.generation == Generation::Legacy {
        let device = match part {
            // A coordinator does not compute.
            Part::Coordinator => "0",
            _ => member.devices.first().map_or("0", |device| device.label.as_str()),
        };
        variables.extend([
            ("FLAGS_selected_gpus", "0".to_owned()),
            ("FLAGS_selected_xpus", "0".to_owned()),
            ("CUDA_VISIBLE_DEVICES", device.to_owned()),
            ("XPU_VISIBLE_DEVICES", device.to_owned()),
        ]);
    }
    if !options.stages.is_empty() {
        variables.extend(heterogeneous(topology, member, &options.stages));
    }
    variables.retain(|(name, value)| !paddle::is_over_limit(options, name, value));
    variables.into_iter().map(|(name, value)| (name.to_owned(), options.placed(name, value))).collect()
}

/// The variables of a stage: its neighbours and its own position.
fn heterogeneous(topology: &Topology, member: &Member, stages: &[String]) -> Vec<(&'static str, String)> {
    if member.part == Part::Coordinator {
        return Vec::new();
    }
    let all = ("PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST", topology.endpoints(Part::HeterTrainer).to_owned());
    if member.part == Part::Server {
        return vec![all];
    }
    let of_stage = |stage: u32| match stage {
        1 => topology.endpoint_list().to_owned(),
        _ => topology.stage_endpoints(stage),
    };
    let counts = (1..=stages.len() as u32).map(|stage| match stage {
        1 => topology.count(Part::Trainer),
        _ => topology.members.iter().filter(|member| member.stage == stage).count() as u32,
    });
    let counts: Vec<String> = counts.map(|count| count.to_string()).collect();
    // The first stage has no previous stage and the last has no next one. Trainers are not in the heterogeneous lists.
    let previous = if member.stage > 1 { of_stage(member.stage - 1) } else { String::new() };
    vec![
        all,
        ("PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST", of_stage(member.stage + 1)),
        ("PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST", previous),
        ("STAGE_ID", member.stage.to_string()),
        ("STAGE_NUM", stages.len().to_string()),
        ("PADDLE_STAGE_TRAINERS_NUM", format!("[{}]", counts.join(", "))),
        ("HETER_DEVICE_TYPE", stages[member.stage as usize - 1].clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Node, Options, paddle, paddle::tests::view};
    use crate::model::{Device, Endpoint, JobId, NodeIndex, Port, Rank};

    /// Processes on one node, at ports from 7000 in this order.
    fn topology(processes: &[(Part, u32)]) -> Topology {
        let endpoint = |port: u16| Endpoint { address: [10, 0, 0, 1].into(), port: Port::new(port).unwrap() };
        let member = |(position, (part, stage)): (usize, &(Part, u32))| Member {
            rank: Rank(position as u32),
            node: NodeIndex(0),
            local_rank: position as u32,
            part: *part,
            index: processes[..position].iter().filter(|(other, _)| other == part).count() as u32,
            stage: *stage,
            endpoint: endpoint(7000 + position as u16),
            devices: vec![Device { label: "5".to_owned(), position: 0 }],
        };
        let members: Vec<Member> = processes.iter().enumerate().map(member).collect();
        let node = Node { address: [10, 0, 0, 1].into(), host: "one".to_owned(), size: members.len() as u32 };
        let stores = (endpoint(7100), endpoint(7101));
        Topology::new(JobId::new("default").unwrap(), vec![node], members, stores, None)
    }

    fn options(generation: Generation, stages: &[&str]) -> Options {
        Options {
            with_gloo: Some("1".to_owned()),
            stages: stages.iter().map(|stage| (*stage).to_owned()).collect(),
            ..paddle::tests::options(generation)
        }
    }

    /// The values of some variables, each of which may be absent.
    fn get<'a>(variables: &'a [Variable], names: &[&str]) -> Vec<Option<&'a str>> {
        let get = |name: &&str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        names.iter().map(get).collect()
    }

    const SERVERS: [(Part, u32); 5] =
        [(Part::Server, 0), (Part::Server, 0), (Part::Trainer, 0), (Part::Trainer, 0), (Part::Coordinator, 0)];

    #[test]
    fn what_all_roles_are_told() {
        let topology = topology(&SERVERS);
        let options = options(Generation::Legacy, &[]);
        for (member, role) in topology.members.iter().zip(["PSERVER", "PSERVER", "TRAINER", "TRAINER", "COORDINATOR"]) {
            let port = member.endpoint.port.get().to_string();
            let variables = variables(&view(&topology, &options), member);
            for (name, value) in [
                ("TRAINING_ROLE", role),
                ("PADDLE_ROLE", role),
                ("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:7000,10.0.0.1:7001"),
                ("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:7002,10.0.0.1:7003"),
                ("PADDLE_COORDINATOR_ENDPOINTS", "10.0.0.1:7004"),
                ("PADDLE_TRAINERS_NUM", "2"),
                ("POD_IP", "10.0.0.1"),
                ("PADDLE_PORT", port.as_str()),
                ("PADDLE_WITH_GLOO", "1"),
                ("PADDLE_GLOO_HTTP_ENDPOINT", "10.0.0.1:7100"),
            ] {
                assert_eq!(get(&variables, &[name]), [Some(value)], "{role} {name}");
            }
            assert_eq!(get(&variables, &["STAGE_ID", "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"]), [None, None], "{role}");
        }
    }

    #[test]
    fn what_only_some_roles_are_told() {
        let names = ["PADDLE_TRAINER_ID", "PADDLE_BACKUP_ENV_PATH", "PADDLE_COORDINATOR_NUM", "CUDA_VISIBLE_DEVICES"];
        let topology = topology(&SERVERS);
        let backup = Some("/w/log/backup_env.1.json");
        for (position, expected, devices) in [
            (1, [None, None, None], None),
            (3, [Some("1"), backup, None], Some("5")),
            (4, [Some("0"), None, Some("1")], Some("0")),
        ] {
            let member = &topology.members[position];
            for (generation, devices) in [(Generation::Legacy, devices), (Generation::Current, None)] {
                let variables = variables(&view(&topology, &options(generation, &[])), member);
                let expected: Vec<_> = expected.into_iter().chain([devices]).collect();
                assert_eq!(get(&variables, &names), expected, "{position} {generation:?}");
            }
        }
    }

    #[test]
    fn stages_know_their_neighbours() {
        let topology = topology(&[
            (Part::Server, 0),
            (Part::Trainer, 1),
            (Part::Coordinator, 0),
            (Part::HeterTrainer, 2),
            (Part::HeterTrainer, 3),
            (Part::HeterTrainer, 3),
        ]);
        let options = options(Generation::Legacy, &["cpu", "cpu", "gpu"]);
        let names = [
            "STAGE_ID",
            "PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST",
            "PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST",
            "HETER_DEVICE_TYPE",
        ];
        let last = "10.0.0.1:7004,10.0.0.1:7005";
        for (position, expected) in [
            (0, None),
            (1, Some(["1", "", "10.0.0.1:7003", "cpu"])),
            (2, None),
            (3, Some(["2", "10.0.0.1:7001", last, "cpu"])),
            (4, Some(["3", "10.0.0.1:7003", "", "gpu"])),
            (5, Some(["3", "10.0.0.1:7003", "", "gpu"])),
        ] {
            let variables = variables(&view(&topology, &options), &topology.members[position]);
            let expected = expected.map_or(vec![None; 4], |values| values.into_iter().map(Some).collect());
            assert_eq!(get(&variables, &names), expected, "{position}");
            let all = (position != 2).then_some("10.0.0.1:7003,10.0.0.1:7004,10.0.0.1:7005");
            assert_eq!(get(&variables, &["PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"]), [all], "{position}");
            let counts = (![0, 2].contains(&position)).then_some("[1, 1, 2]");
            assert_eq!(get(&variables, &["PADDLE_STAGE_TRAINERS_NUM"]), [counts], "{position}");
            assert_eq!(get(&variables, &["PADDLE_COORDINATOR_ENDPOINTS"])[0].is_some(), position < 3, "{position}");
        }
    }
}
