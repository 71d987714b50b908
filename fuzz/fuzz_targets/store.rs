//! Feeds a store arbitrary bytes in place of a client's requests, in chunks and at once: both must give the same replies,
//! and nothing may be held that was not sent. The first byte sets the chunk size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umiak_core::machine::store::{ConnectionId, Reply, Request, Store};
use umiak_core::wire::store::{Reader, Violation};
use umiak_fuzz::pieces;

/// Longer replies are those of a client that asks for much again and again.
const LONG: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((&size, bytes)) = data.split_first() else { return };
    assert_eq!(replies(pieces(bytes, size)), replies(std::iter::once(bytes)));
});

/// The replies to two clients that send the same, and how it ended.
fn replies<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Violation>) {
    let (mut store, mut reader, mut input, mut sent) = (Store::new(), Reader::default(), Vec::new(), Vec::new());
    let mut woken = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let (request, length) = match reader.next(&input[at..]) {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(violation) => return (sent, Some(violation)),
            };
            at += length;
            for client in [1, 2] {
                let mut reply = Reply::default();
                if store.apply(ConnectionId(client), request, &mut reply, &mut woken).is_err() {
                    return (sent, None);
                }
                match request {
                    // In any order.
                    Request::ListKeys => sent.extend(reply.concat().len().to_le_bytes()),
                    _ => sent.extend(reply.concat()),
                }
            }
            sent.extend(woken.drain(..).map(|id: ConnectionId| id.0 as u8));
            if sent.len() > LONG {
                return (Vec::new(), None);
            }
        }
        input.drain(..at);
    }
    let awaited: usize = store.awaited(usize::MAX).iter().map(|(key, _)| key.len()).sum();
    assert!(awaited <= input.len() + sent.len() + LONG);
    (sent, None)
}
