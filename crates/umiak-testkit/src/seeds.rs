//! Many seeds at once, for the simulators.

use std::ops::Range;
use std::thread;

/// Tries all these seeds, on all processors: `add` takes one of them into a part's summary, `merge` puts two together.
pub(crate) fn spread<T: Default + Send>(seeds: Range<u64>, add: fn(&mut T, u64), merge: fn(&mut T, T)) -> T {
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let part = |thread: u64| {
        let mut summary = T::default();
        seeds.clone().filter(|seed| seed % threads == thread).for_each(|seed| add(&mut summary, seed));
        summary
    };
    let part = &part;
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
        let mut whole = T::default();
        for part in parts {
            merge(&mut whole, part.join().expect("a simulated run does not panic"));
        }
        whole
    })
}
