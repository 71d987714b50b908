//! What Paddle's launchers give their workers in collective mode: the union of both generations. The
//! generation decides only where they conflict.

use crate::model::{DeviceKind, Generation};

use super::{Member, Topology, Variable};

/// What only the launcher knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub generation: Generation,
    /// The resolved backend: `gloo`, `nccl`.
    pub backend: String,
    pub pod_name: String,
    /// Absolute.
    pub log_dir: String,
    /// A directory of this run, for gloo's file rendezvous.
    pub gloo_dir: String,
    pub backup_env_path: String,
    pub auto_cluster: bool,
    pub auto_parallel_config: Option<String>,
    pub cluster_topo_path: Option<String>,
    pub rank_mapping_path: Option<String>,
    /// Lists of at least this many characters are left out; the framework reads them from the backup file.
    pub env_limit: usize,
    /// `PADDLE_WITH_GLOO` as inherited.
    pub with_gloo: Option<String>,
}

pub fn variables(topology: &Topology, member: &Member, options: &Options) -> Vec<Variable> {
    let mut variables = everything(topology, member, options);
    variables.retain(|(name, value)| !is_over_limit(name, value, options.env_limit));
    variables
}

/// Lists that Paddle drops from an environment that would become too large.
pub(super) fn is_over_limit(name: &str, value: &str, limit: usize) -> bool {
    matches!(name, "PADDLE_TRAINER_ENDPOINTS" | "TRAINER_IP_PORT_LIST") && value.chars().count() >= limit
}

/// As [`variables`], with the lists that are too long: what the backup file holds.
pub fn everything(topology: &Topology, member: &Member, options: &Options) -> Vec<Variable> {
    let world = topology.world_size().get().to_string();
    let rank = member.rank.0.to_string();
    let local_rank = member.local_rank.to_string();
    let mut variables = vec![
        ("PADDLE_MASTER", topology.paddle_store.to_string()),
        ("PADDLE_GLOBAL_SIZE", world.clone()),
        ("PADDLE_LOCAL_SIZE", topology.local_size(member).to_string()),
        ("PADDLE_GLOBAL_RANK", rank.clone()),
        ("PADDLE_LOCAL_RANK", local_rank.clone()),
        ("PADDLE_NNODES", topology.nodes.len().to_string()),
        ("PADDLE_CURRENT_ENDPOINT", member.endpoint.to_string()),
        ("PADDLE_TRAINER_ID", rank),
        ("PADDLE_TRAINERS_NUM", world),
        ("PADDLE_RANK_IN_NODE", local_rank),
        ("PADDLE_AUTO_CLUSTER", u8::from(options.auto_cluster).to_string()),
        ("PADDLE_TRAINER_ENDPOINTS", topology.endpoint_list().to_owned()),
        ("PADDLE_LOCAL_DEVICE_IDS", member.device_positions(",")),
        ("PADDLE_WORLD_DEVICE_IDS", topology.device_list().to_owned()),
        ("PADDLE_WITH_GLOO", options.with_gloo.clone().unwrap_or_else(|| "0".to_owned())),
        ("PADDLE_GLOO_RENDEZVOUS", "3".to_owned()),
        ("PADDLE_GLOO_FS_PATH", options.gloo_dir.clone()),
        ("PADDLE_LOG_DIR", options.log_dir.clone()),
        ("PADDLE_BACKUP_ENV_PATH", options.backup_env_path.clone()),
        ("POD_NAME", options.pod_name.clone()),
    ];
    // The current launcher leaves the choice to the framework where there are devices.
    if options.generation == Generation::Legacy || topology.device_kind.is_none() {
        variables.push(("PADDLE_DISTRI_BACKEND", options.backend.clone()));
    }
    if let Some(kind) = topology.device_kind.filter(|_| !member.devices.is_empty()) {
        let flag = match kind {
            DeviceKind::Gpu => "FLAGS_selected_gpus",
            DeviceKind::Xpu => "FLAGS_selected_xpus",
            DeviceKind::Npu => "FLAGS_selected_npus",
        };
        variables.push((flag, member.device_positions(",")));
        variables.push(("FLAGS_selected_accelerators", member.device_positions(",")));
    }
    if let Some(path) = &options.auto_parallel_config {
        variables.push(("PADDLE_AUTO_PARALLEL_CONFIG", path.clone()));
        variables.push(("PADDLE_AUTO_PARALLEL_STAGE", "run".to_owned()));
    }
    if let Some(path) = &options.cluster_topo_path {
        variables.push(("PADDLE_CLUSTER_TOPO_PATH", path.clone()));
    }
    if let Some(path) = &options.rank_mapping_path {
        variables.push(("PADDLE_RANK_MAPPING_PATH", path.clone()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::contract::Node;
    use crate::model::{Device, Endpoint, JobId, NodeIndex, Part, Port, Rank, global_rank};

    pub(crate) fn topology(sizes: &[u32], device_kind: Option<DeviceKind>) -> Topology {
        let endpoint = |node: u32, port: u16| Endpoint {
            address: format!("192.168.0.{}", node + 1).parse().unwrap(),
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
        Options {
            generation,
            backend: "gloo".into(),
            pod_name: "abcdef".into(),
            log_dir: "/w/log".into(),
            gloo_dir: "/t/gloo".into(),
            backup_env_path: "/w/log/backup_env.0.json".into(),
            auto_cluster: false,
            auto_parallel_config: None,
            cluster_topo_path: None,
            rank_mapping_path: None,
            env_limit: 48_000,
            with_gloo: None,
        }
    }

    fn get<'a>(variables: &'a [Variable], name: &str) -> Option<&'a str> {
        variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn ranks_over_nodes_of_unequal_size() {
        let topology = topology(&[2, 3], Some(DeviceKind::Gpu));
        let variables = variables(&topology, &topology.members[3], &options(Generation::Current));
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
            let variables = variables(&topology, &topology.members[0], &options(generation));
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
        let options = Options { env_limit: limit, ..options(Generation::Current) };
        let name = "PADDLE_TRAINER_ENDPOINTS";
        assert_eq!(get(&variables(&topology, &topology.members[0], &options), name), None);
        assert!(get(&everything(&topology, &topology.members[0], &options), name).is_some());
    }
}
