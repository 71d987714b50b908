//! The variables that Paddle's launchers set in collective mode: the union of both generations. The
//! generation matters only where they conflict.

use crate::model::{Backend, DeviceKind, Generation};

use super::{Member, Options, Topology, Variable, View};

pub fn variables(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let mut variables = everything(view, member);
    variables.retain(|(name, value)| !is_over_limit(view.options, name, value));
    variables
}

/// True for lists that Paddle removes from an environment that would become too large.
pub(super) fn is_over_limit(options: &Options, name: &str, value: &str) -> bool {
    matches!(name, "PADDLE_TRAINER_ENDPOINTS" | "TRAINER_IP_PORT_LIST") && is_too_long(options, value)
}

/// True if a list is too long for the environment.
pub fn is_too_long(options: &Options, list: &str) -> bool {
    options.paddle.env_limit.is_some_and(|limit| list.chars().count() >= limit)
}

/// The file from which the framework reads variables that are missing in the environment; `None` without a limit.
pub(super) fn backup_file(view: &View<'_>, member: &Member) -> Option<String> {
    let file = || view.log_dir.join(format!("backup_env.{}.json", member.index)).to_string_lossy().into_owned();
    view.options.paddle.env_limit.map(|_| file())
}

fn backend(options: &Options, topology: &Topology) -> &'static str {
    match (options.backend, topology.device_kind) {
        (Backend::Auto, None) => "gloo",
        (Backend::Auto, Some(DeviceKind::Gpu)) => "nccl",
        (Backend::Auto, Some(DeviceKind::Xpu)) => "bkcl",
        (Backend::Auto, Some(DeviceKind::Npu)) => "hccl",
        (Backend::Auto, Some(DeviceKind::Mlu)) => "cncl",
        (explicit, _) => explicit.as_str(),
    }
}

/// Like [`variables`], including lists that are too long: the contents of the backup file.
fn everything(view: &View<'_>, member: &Member) -> Vec<Variable> {
    let (topology, options) = (view.group, view.options);
    let world = topology.world_size().get().to_string();
    let rank = member.rank.0.to_string();
    let local_rank = member.local_rank.to_string();
    let mut variables = vec![
        ("PADDLE_MASTER", topology.paddle_store_of(member).to_string()),
        ("PADDLE_GLOBAL_SIZE", world.clone()),
        ("PADDLE_LOCAL_SIZE", topology.local_size(member).to_string()),
        ("PADDLE_GLOBAL_RANK", rank.clone()),
        ("PADDLE_LOCAL_RANK", local_rank.clone()),
        ("PADDLE_NNODES", topology.nodes.len().to_string()),
        ("PADDLE_CURRENT_ENDPOINT", member.endpoint.to_string()),
        ("PADDLE_TRAINER_ID", rank),
        ("PADDLE_TRAINERS_NUM", world),
        ("PADDLE_RANK_IN_NODE", local_rank),
        ("PADDLE_AUTO_CLUSTER", u8::from(options.paddle.auto_cluster).to_string()),
        ("PADDLE_TRAINER_ENDPOINTS", topology.endpoint_list().to_owned()),
        ("PADDLE_LOCAL_DEVICE_IDS", member.device_positions(",")),
        ("PADDLE_WORLD_DEVICE_IDS", topology.device_list().to_owned()),
        ("PADDLE_WITH_GLOO", options.with_gloo.clone().unwrap_or_else(|| "0".to_owned())),
        ("PADDLE_GLOO_RENDEZVOUS", "3".to_owned()),
        ("PADDLE_GLOO_FS_PATH", view.gloo_dir.to_string_lossy().into_owned()),
        ("PADDLE_LOG_DIR", view.log_dir.to_string_lossy().into_owned()),
        ("POD_NAME", view.pod_name.to_owned()),
    ];
    variables.extend(backup_file(view, member).map(|file| ("PADDLE_BACKUP_ENV_PATH", file)));
    // With devices, the current launcher leaves the choice to the framework.
    if options.paddle.generation == Generation::Legacy || topology.device_kind.is_none() {
        variables.push(("PADDLE_DISTRI_BACKEND", backend(options, topology).to_owned()));
    }
    if let Some(kind) = topology.device_kind.filter(|_| !member.devices.is_empty()) {
        let flag = match kind {
            DeviceKind::Gpu => "FLAGS_selected_gpus",
            DeviceKind::Xpu => "FLAGS_selected_xpus",
            DeviceKind::Npu => "FLAGS_selected_npus",
            DeviceKind::Mlu => "FLAGS_selected_mlus",
        };
        variables.push((flag, member.device_positions(",")));
        variables.push(("FLAGS_selected_accelerators", member.device_positions(",")));
    }
    if let Some(path) = &options.paddle.auto_parallel_config {
        variables.push(("PADDLE_AUTO_PARALLEL_CONFIG", path.clone()));
        variables.push(("PADDLE_AUTO_PARALLEL_STAGE", "run".to_owned()));
    }
    if let Some(path) = &options.paddle.cluster_topo_path {
        variables.push(("PADDLE_CLUSTER_TOPO_PATH", path.clone()));
    }
    if let Some(path) = &options.paddle.rank_mapping_path {
        variables.push(("PADDLE_RANK_MAPPING_PATH", path.clone()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::LazyLock;

    use super::*;
    use crate::contract::Node;
    use crate::model::{
        Device, Endpoint, Job, JobId, NodeIndex, PaddleVariables, Part, Policy, Port, Rank, Slot, global_rank,
    };

    pub(crate) fn topology(sizes: &[u32], device_kind: Option<DeviceKind>) -> Topology {
        let endpoint = |node: u32, port: u16| Endpoint {
            address: format!("192.168.0.{}", node + 1).into(),
            port: Port::new(port).unwrap(),
        };
        let members = (0..sizes.len() as u32)
            .flat_map(|node| (0..sizes[node as usize]).map(move |local| (node, local)))
            .map(|(node, local)| {
                let Rank(rank) = global_rank(sizes, NodeIndex(node), local);
                let device = Device { label: (local + 4).to_string(), position: local };
                crate::contract::Member {
                    rank: Rank(rank),
                    node: NodeIndex(node),
                    local_rank: local,
                    part: Part::Trainer,
                    index: rank,
                    stage: 0,
                    endpoint: endpoint(node, 6170 + local as u16),
                    devices: if device_kind.is_some() { vec![device] } else { vec![] },
                }
            })
            .collect();
        let nodes = sizes
            .iter()
            .enumerate()
            .map(|(node, size)| Node {
                address: endpoint(node as u32, 1).address,
                host: format!("node-{node}"),
                size: *size,
            })
            .collect();
        let stores = (endpoint(0, 6168), endpoint(0, 6169));
        Topology::new(JobId::new("default").unwrap(), nodes, members, stores, device_kind)
    }

    pub(crate) fn options(generation: Generation) -> Options {
        let paddle = PaddleVariables { generation, env_limit: Some(48_000), ..PaddleVariables::default() };
        Options { paddle, ..Options::default() }
    }

    static JOB: LazyLock<Job> = LazyLock::new(|| Job {
        name: JobId::new("j").unwrap(),
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: Vec::new(),
        roles: Vec::new(),
        policy: Policy::default(),
    });

    pub(crate) fn view<'a>(group: &'a Topology, options: &'a Options) -> View<'a> {
        View {
            group,
            roles: &[],
            options,
            job: &JOB,
            run: "",
            slot: Slot { role: 0, index: 0 },
            job_attempt: 1,
            retries: 0,
            attempt: 1,
            max_restarts: 3,
            pod_name: "abcdef",
            log_dir: Path::new("/w/log"),
            gloo_dir: Path::new("/t/gloo"),
            error_file: Path::new("/e/2.json"),
        }
    }

    fn get<'a>(variables: &'a [Variable], name: &str) -> Option<&'a str> {
        variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn ranks_over_nodes_of_unequal_size() {
        let topology = topology(&[2, 3], Some(DeviceKind::Gpu));
        let variables = variables(&view(&topology, &options(Generation::Current)), &topology.members[3]);
        for (name, value) in [
            ("PADDLE_TRAINER_ID", "3"),
            ("PADDLE_GLOBAL_RANK", "3"),
            ("PADDLE_LOCAL_RANK", "1"),
            ("PADDLE_RANK_IN_NODE", "1"),
            ("PADDLE_LOCAL_SIZE", "3"),
            ("PADDLE_TRAINERS_NUM", "5"),
            ("PADDLE_NNODES", "2"),
            ("PADDLE_CURRENT_ENDPOINT", "192.168.0.2:6171"),
            ("FLAGS_selected_gpus", "1"),
            ("FLAGS_selected_accelerators", "1"),
            ("PADDLE_WORLD_DEVICE_IDS", "0,1,0,1,2"),
            ("PADDLE_MASTER", "192.168.0.1:6168"),
        ] {
            assert_eq!(get(&variables, name), Some(value), "{name}");
        }
        assert_eq!(get(&variables, "PADDLE_DISTRI_BACKEND"), None);
    }

    #[test]
    fn on_cpu_lists_are_empty_and_the_backend_is_said() {
        let topology = topology(&[3], None);
        for generation in [Generation::Legacy, Generation::Current] {
            let variables = variables(&view(&topology, &options(generation)), &topology.members[0]);
            assert_eq!(get(&variables, "PADDLE_LOCAL_DEVICE_IDS"), Some(""));
            assert_eq!(get(&variables, "PADDLE_WORLD_DEVICE_IDS"), Some(",,"));
            assert_eq!(get(&variables, "PADDLE_DISTRI_BACKEND"), Some("gloo"));
            assert_eq!(get(&variables, "FLAGS_selected_gpus"), None);
        }
    }

    #[test]
    fn lists_that_are_too_long_are_only_in_the_backup() {
        let topology = topology(&[4], None);
        let limit = topology.endpoint_list().len();
        let mut options = options(Generation::Current);
        options.paddle.env_limit = Some(limit);
        let name = "PADDLE_TRAINER_ENDPOINTS";
        assert_eq!(get(&variables(&view(&topology, &options), &topology.members[0]), name), None);
        assert!(get(&everything(&view(&topology, &options), &topology.members[0]), name).is_some());
    }
}
