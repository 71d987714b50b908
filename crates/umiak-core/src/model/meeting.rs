//! The default rendezvous port: each node computes it from data that all nodes have. Concurrent jobs on the same hosts
//! rarely get the same port.

use super::Port;

/// The range of ports.
pub(crate) const FIRST_PORT: u16 = 7168;
pub(crate) const PORTS: u16 = 64;

/// All ports, in the order in which this job tries them. `list` is the job's node list.
pub(crate) fn ports(job: &str, list: &str) -> impl Iterator<Item = u16> + use<> {
    let offset = (hash(job, list) % u64::from(PORTS)) as u16;
    (0..PORTS).map(move |step| FIRST_PORT + (offset + step) % PORTS)
}

/// The port of a step of Slurm. Neighbouring steps of a job, and the same step of neighbouring jobs, have different ones.
pub(crate) fn port_of_step(job: u64, step: u64) -> Port {
    let offset = job.wrapping_mul(9).wrapping_add(step) % u64::from(PORTS);
    Port::new(FIRST_PORT + offset as u16).expect("not 0")
}

fn hash(job: &str, list: &str) -> u64 {
    fnv(job.bytes().chain([0]).chain(list.bytes()))
}

/// FNV-1a, 64 bits: the same in every build and on every machine.
pub(crate) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_is_tried_and_the_first_is_the_same_for_ever() {
        // These values are part of the protocol: nodes with different builds must agree.
        assert_eq!(hash("", ""), 0xaf63_bd4c_8601_b7df);
        let mut tried: Vec<u16> = ports("default", "192.168.0.1,192.168.0.2").collect();
        assert_eq!(tried[..2], [7231, 7168]);
        tried.sort_unstable();
        assert_eq!(tried, (FIRST_PORT..FIRST_PORT + PORTS).collect::<Vec<_>>());
    }

    #[test]
    fn steps_that_run_side_by_side_have_different_ports() {
        assert_eq!(port_of_step(12, 0).get(), 7212);
        let steps = (0..u64::from(PORTS)).map(|step| port_of_step(12, step));
        assert_eq!(steps.collect::<std::collections::BTreeSet<_>>().len(), usize::from(PORTS));
        let jobs = (0..u64::from(PORTS)).map(|job| port_of_step(1_000_000 + job, 0));
        assert_eq!(jobs.collect::<std::collections::BTreeSet<_>>().len(), usize::from(PORTS));
        assert!((FIRST_PORT..FIRST_PORT + PORTS).contains(&port_of_step(u64::MAX, u64::MAX).get()));
    }
}
