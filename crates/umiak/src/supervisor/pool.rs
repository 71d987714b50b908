//! Which device is whose: replicas that need some wait until enough are free.

use std::collections::BTreeMap;

use umiak_core::model::{Device, Slot};

#[derive(Debug, Default)]
pub(super) struct Pool {
    free: Vec<Device>,
    held: BTreeMap<Slot, Vec<Device>>,
}

impl Pool {
    pub(super) fn new(devices: Vec<Device>) -> Self {
        Self { free: devices, held: BTreeMap::new() }
    }

    /// So many for this replica, renumbered as it will see them; nothing if there are too few.
    pub(super) fn take(&mut self, slot: Slot, count: u32) -> Option<Vec<Device>> {
        if (self.free.len() as u32) < count {
            return None;
        }
        let taken: Vec<Device> = self.free.drain(..count as usize).collect();
        self.held.insert(slot, taken.clone());
        Some(taken.into_iter().zip(0..).map(|(device, position)| Device { position, ..device }).collect())
    }

    pub(super) fn give_back(&mut self, slot: Slot) {
        let Some(devices) = self.held.remove(&slot) else { return };
        self.free.extend(devices);
        self.free.sort_by_key(|device| device.position);
    }

    /// What a replica has.
    pub(super) fn of(&self, slot: Slot) -> &[Device] {
        self.held.get(&slot).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_given_out_once() {
        let device = |position: u32| Device { label: (position + 4).to_string(), position };
        let slot = |index| Slot { role: 0, index };
        let mut pool = Pool::new((0..3).map(device).collect());
        let labels = |devices: Vec<Device>| devices.into_iter().map(|d| (d.label, d.position)).collect::<Vec<_>>();
        assert_eq!(labels(pool.take(slot(0), 1).unwrap()), [("4".to_owned(), 0)]);
        assert_eq!(labels(pool.take(slot(1), 2).unwrap()), [("5".to_owned(), 0), ("6".to_owned(), 1)]);
        assert_eq!(pool.take(slot(2), 1), None);
        pool.give_back(slot(0));
        assert_eq!(labels(pool.take(slot(2), 1).unwrap()), [("4".to_owned(), 0)]);
    }
}
