//! Assigns devices and CPUs to replicas, which wait until enough are free.

use std::collections::BTreeMap;

use crate::model::{Device, Resources, Slot};

/// The free devices and CPUs of a host, and those that each replica holds.
#[derive(Debug, Default)]
pub struct Pool {
    devices: Vec<Device>,
    /// `None` if replicas are not bound to CPUs.
    cpus: Option<Vec<u32>>,
    held: BTreeMap<Slot, Given>,
}

/// The devices and CPUs assigned to one replica.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Given {
    pub devices: Vec<Device>,
    /// Empty for any.
    pub cpus: Vec<u32>,
}

impl Pool {
    /// `cpus` are the CPUs to bind replicas to, if they are bound.
    pub fn new(devices: Vec<Device>, cpus: Option<Vec<u32>>) -> Self {
        Self { devices, cpus, held: BTreeMap::new() }
    }

    /// Assigns everything that the replica needs, with devices renumbered as it sees them; `None` if anything is short.
    pub fn take(&mut self, slot: Slot, needed: Resources) -> Option<Given> {
        let gpus = needed.gpus as usize;
        let cpus = needed.whole_cpus() as usize;
        if self.devices.len() < gpus || self.cpus.as_ref().is_some_and(|free| free.len() < cpus) {
            return None;
        }
        let devices: Vec<Device> = self.devices.drain(..gpus).collect();
        let cpus = self.cpus.as_mut().map(|free| free.drain(..cpus).collect()).unwrap_or_default();
        let held = Given { devices, cpus };
        self.held.insert(slot, held.clone());
        let seen = held.devices.into_iter().zip(0..).map(|(device, position)| Device { position, ..device });
        Some(Given { devices: seen.collect(), ..held })
    }

    pub fn give_back(&mut self, slot: Slot) {
        let Some(given) = self.held.remove(&slot) else { return };
        self.devices.extend(given.devices);
        self.devices.sort_by_key(|device| device.position);
        if let Some(free) = &mut self.cpus {
            free.extend(given.cpus);
            free.sort_unstable();
        }
    }

    /// The devices that a replica has.
    pub fn devices_of(&self, slot: Slot) -> &[Device] {
        self.held.get(&slot).map_or(&[], |given| given.devices.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u32) -> Slot {
        Slot { role: 0, index }
    }

    #[test]
    fn devices_are_given_out_once() {
        let device = |position: u32| Device { label: (position + 4).to_string(), position };
        let gpus = |gpus| Resources { gpus, ..Resources::default() };
        let mut pool = Pool::new((0..3).map(device).collect(), None);
        let labels = |given: Given| given.devices.into_iter().map(|d| (d.label, d.position)).collect::<Vec<_>>();
        assert_eq!(labels(pool.take(slot(0), gpus(1)).unwrap()), [("4".to_owned(), 0)]);
        assert_eq!(labels(pool.take(slot(1), gpus(2)).unwrap()), [("5".to_owned(), 0), ("6".to_owned(), 1)]);
        assert_eq!(pool.take(slot(2), gpus(1)), None);
        pool.give_back(slot(0));
        assert_eq!(labels(pool.take(slot(2), gpus(1)).unwrap()), [("4".to_owned(), 0)]);
    }

    #[test]
    fn whole_cpus_are_given_out_once() {
        let millis = |millis| Resources { cpu_millis: Some(millis), ..Resources::default() };
        let mut pool = Pool::new(Vec::new(), Some(vec![0, 1, 4, 5, 6]));
        let mut take = |index, needed| pool.take(slot(index), needed).map(|given| given.cpus);
        assert_eq!(take(0, millis(1500)), Some(vec![0, 1]), "half a CPU is a whole one");
        assert_eq!(take(1, Resources::default()), Some(vec![]), "not bound without a request");
        assert_eq!(take(2, millis(2000)), Some(vec![4, 5]));
        assert_eq!(take(3, millis(2000)), None);
        assert_eq!(take(4, millis(1)), Some(vec![6]));
        pool.give_back(slot(0));
        pool.give_back(slot(4));
        assert_eq!(pool.take(slot(3), millis(3000)).map(|given| given.cpus), Some(vec![0, 1, 6]));
        let mut unbound = Pool::new(Vec::new(), None);
        assert_eq!(unbound.take(slot(0), millis(64_000)), Some(Given::default()), "not enforced");
    }

    #[test]
    fn what_cannot_be_had_in_full_is_not_taken() {
        let device = Device { label: "0".into(), position: 0 };
        let mut pool = Pool::new(vec![device], Some(vec![0]));
        assert_eq!(pool.take(slot(0), Resources { cpu_millis: Some(2000), gpus: 1, ..Resources::default() }), None);
        let both = Resources { cpu_millis: Some(1000), gpus: 1, ..Resources::default() };
        assert!(pool.take(slot(1), both).is_some());
        assert_eq!(pool.devices_of(slot(1)).len(), 1);
    }
}
