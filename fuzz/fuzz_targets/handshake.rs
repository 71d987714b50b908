//! Feeds one side arbitrary bytes. The first byte selects the side and the chunk size.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use umiak_core::wire::handshake::{MAX_FROM_AGENT, MAX_TEXT};
use umiak_fuzz::{Exchange, agent, coordinator, exchange, pieces};

static VALID: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let Exchange { from_agent, from_coordinator, .. } = exchange();
    (from_agent, from_coordinator)
});

fuzz_target!(|data: &[u8]| {
    let Some((&how, bytes)) = data.split_first() else { return };
    let mut send = Vec::new();
    let mut taken = 0;
    let (valid, proven) = if how % 2 == 0 {
        let mut agent = agent(&mut send);
        let proven = pieces(bytes, how / 2).find_map(|mut piece| {
            let length = piece.len();
            let result = agent.feed(&mut piece, &mut send);
            taken += length - piece.len();
            result.map(|session| session.map(|_| true)).unwrap_or(Some(false))
        });
        assert!(send.len() <= MAX_FROM_AGENT);
        (&VALID.1, proven)
    } else {
        let mut coordinator = coordinator();
        let proven = pieces(bytes, how / 2).find_map(|mut piece| {
            let length = piece.len();
            let result = coordinator.feed(&mut piece, &mut send);
            taken += length - piece.len();
            result.map(|session| session.map(|_| true)).unwrap_or(Some(false))
        });
        assert!(taken <= MAX_FROM_AGENT && send.len() <= 2 * MAX_TEXT);
        (&VALID.0, proven)
    };
    assert_eq!(proven == Some(true), bytes.starts_with(valid));
});
