//! Feeds a coordinator arbitrary bytes in place of an agent's frames, and parses both kinds of messages from them. The
//! first byte sets the chunk size.
#![no_main]

use std::fmt::Debug;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use umiak_core::machine::round::messages::{FromAgent, ToAgent};
use umiak_core::wire::frame::{Frame, read_message};
use umiak_fuzz::{exchange, pieces, stream};

static SENT: LazyLock<Vec<Frame>> = LazyLock::new(|| stream().1);

fuzz_target!(|data: &[u8]| {
    let Some((&size, bytes)) = data.split_first() else { return };
    let mut decoder = exchange().coordinator.decoder;
    let mut frames = Vec::new();
    'all: for mut piece in pieces(bytes, size) {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => break 'all,
            }
        }
        assert!(piece.is_empty());
    }
    // `gone` is not counted: it may be repeated and moved.
    frames.retain(|frame| *frame != Frame::Gone);
    assert!(SENT.starts_with(&frames));

    read::<FromAgent>(bytes);
    read::<ToAgent>(bytes);
});

/// A message that can be read can be written, and read again.
fn read<M: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(message) = read_message::<M>(bytes) else { return };
    let json = serde_json::to_vec(&message).expect("messages have a JSON form");
    assert_eq!(read_message::<M>(&json).expect("our own form is read"), message);
}
