//! `--numa`: the CPUs that each process is bound to.

use crate::model::Device;

use super::Inventory;

/// CPUs for each process, by local rank; empty lists on a host with one NUMA node.
///
/// A process is bound to the node of its first device. Without devices, or if the node is not known, processes are
/// spread over the nodes in blocks, so that consecutive ranks share a node.
pub(super) fn bind(inventory: &Inventory, processes: &[Vec<Device>]) -> Vec<Vec<u32>> {
    let nodes = &inventory.numa_nodes;
    if nodes.len() < 2 {
        return vec![Vec::new(); processes.len()];
    }
    let near = |device: &Device| {
        let gpu =
            inventory.gpus.iter().find(|gpu| gpu.index.to_string() == device.label || gpu.uuid == device.label)?;
        nodes.iter().find(|(node, _)| Some(*node) == gpu.numa_node)
    };
    processes
        .iter()
        .enumerate()
        .map(|(local, devices)| {
            let block = &nodes[local * nodes.len() / processes.len()];
            devices.first().and_then(near).unwrap_or(block).1.clone()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Gpu;

    fn inventory(nodes: u32) -> Inventory {
        Inventory {
            numa_nodes: (0..nodes).map(|node| (node, vec![node * 2, node * 2 + 1])).collect(),
            gpus: (0..2)
                .map(|index| Gpu {
                    index,
                    minor: index,
                    name: String::new(),
                    uuid: format!("GPU-{index}"),
                    numa_node: Some(1 - index),
                })
                .collect(),
            ..Inventory::default()
        }
    }

    #[test]
    fn near_the_device_else_in_blocks_else_anywhere() {
        let device = |label: &str| vec![Device { label: label.to_owned(), position: 0 }];
        assert_eq!(bind(&inventory(2), &[device("0"), device("GPU-1")]), [[2, 3], [0, 1]]);
        assert_eq!(bind(&inventory(2), &[vec![], vec![], vec![], vec![]]), [[0, 1], [0, 1], [2, 3], [2, 3]]);
        assert_eq!(bind(&inventory(1), &[vec![], vec![]]), [[0u32; 0], [0; 0]]);
    }
}
