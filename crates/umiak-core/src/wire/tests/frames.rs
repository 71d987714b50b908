use proptest::prelude::*;

use super::*;
use crate::machine::round::messages::{FromAgent, ToAgent};
use crate::wire::frame::{LogChunk, MessageError, Payload};
use crate::wire::{AFTER_JOIN, BEFORE_JOIN};

/// A JSON text of this many bytes.
fn text(length: usize) -> Payload {
    Payload::message(&"x".repeat(length - 2)).unwrap()
}

fn message(length: usize) -> Frame {
    Frame::Message(format!("\"{}\"", "x".repeat(length - 2)).into_bytes())
}

#[test]
fn there_and_back() {
    let (mut agent, mut coordinator) = sessions();
    let bytes = [
        agent.sealer.seal(&Payload::message(&FromAgent::Bye).unwrap()),
        agent.sealer.seal(&Payload::log(3, 1 << 40, b"loss 0.1\n").unwrap()),
        agent.sealer.seal(&Payload::log(4, 0, b"").unwrap()),
        agent.sealer.prepared_gone(),
    ]
    .concat();
    let (frames, error) = decode(&mut coordinator, &[&bytes]);
    assert_eq!(error, None);
    assert_eq!(
        frames,
        [
            Frame::Message(br#"{"type":"bye"}"#.to_vec()),
            Frame::Log(LogChunk { rank: 3, offset: 1 << 40, bytes: b"loss 0.1\n".to_vec() }),
            Frame::Log(LogChunk { rank: 4, offset: 0, bytes: Vec::new() }),
            Frame::Gone,
        ]
    );
    let bytes = coordinator.sealer.seal(&Payload::message(&ToAgent::Welcome).unwrap());
    assert_eq!(decode(&mut agent, &[&bytes]), (vec![Frame::Message(br#"{"type":"welcome"}"#.to_vec())], None));
}

#[test]
fn one_payload_for_many() {
    let payload = text(1000);
    for _ in 0..3 {
        let (mut agent, mut coordinator) = sessions();
        let bytes = [coordinator.sealer.seal(&payload), coordinator.sealer.seal(&payload)].concat();
        assert_eq!(bytes.len(), 2 * payload.frame_length());
        assert_eq!(decode(&mut agent, &[&bytes]), (vec![message(1000); 2], None));
    }
}

#[test]
fn gone_fits_everywhere_and_counts_nothing() {
    let (mut agent, mut coordinator) = sessions();
    let gone = agent.sealer.prepared_gone();
    let (one, two) = (agent.sealer.seal(&text(10)), agent.sealer.seal(&text(11)));
    assert_eq!(agent.sealer.prepared_gone(), gone);
    let (frames, error) = decode(&mut coordinator, &[&one, &gone, &two]);
    assert_eq!((frames, error), (vec![message(10), Frame::Gone, message(11)], None));

    // Not accepted as another kind, or on another connection.
    let mut other = gone.clone();
    other[4] = 0;
    assert_eq!(decode(&mut sessions().1, &[&other]).1, Some(FrameError::WrongTag));
    assert_eq!(decode(&mut agent, &[&gone]).1, Some(FrameError::WrongTag));
}

#[test]
fn what_is_not_in_order_is_refused() {
    let (mut agent, _) = sessions();
    let [one, two, three] = [10, 11, 12].map(|length| agent.sealer.seal(&text(length)));
    for (bytes, good) in [
        ([&one[..], &one, &two], 1),
        ([&two[..], &one, &three], 0),
        ([&one[..], &three, &two], 1),
        ([&one[..], &two, &one], 2),
    ] {
        let (frames, error) = decode(&mut sessions().1, &bytes);
        assert_eq!((frames.len(), error), (good, Some(FrameError::WrongTag)));
    }
    // Truncated: no frame.
    assert_eq!(decode(&mut sessions().1, &[&one[..one.len() - 1]]), (vec![], None));
}

#[test]
fn own_frames_sent_back_are_refused() {
    let (mut agent, mut coordinator) = sessions();
    let (ours, theirs) = (agent.sealer.seal(&text(10)), coordinator.sealer.seal(&text(10)));
    assert_ne!(ours, theirs);
    assert_eq!(decode(&mut agent, &[&ours]).1, Some(FrameError::WrongTag));
    assert_eq!(decode(&mut coordinator, &[&theirs]).1, Some(FrameError::WrongTag));
}

#[test]
fn after_an_error_there_is_only_that() {
    let (mut agent, mut coordinator) = sessions();
    let good = agent.sealer.seal(&text(10));
    let mut bad = good.clone();
    bad[7] ^= 1;
    assert_eq!(decode(&mut coordinator, &[&bad]).1, Some(FrameError::WrongTag));
    assert_eq!(decode(&mut coordinator, &[&good]), (vec![], Some(FrameError::WrongTag)));
}

#[test]
fn a_changed_bit_anywhere_is_refused() {
    let (mut agent, _) = sessions();
    let bytes = [agent.sealer.seal(&text(20)), agent.sealer.prepared_gone()].concat();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // With a greater length it may wait for more bytes, without an error.
        let (frames, _) = decode(&mut sessions().1, &[&bytes]);
        let is_first_changed = bit / 8 < bytes.len() - 21;
        assert_eq!(frames.len(), usize::from(!is_first_changed), "bit {bit}");
    }
}

#[test]
fn lengths_are_checked_before_anything_is_kept() {
    let head = |length: usize| [&(length as u32).to_le_bytes()[..], &[0]].concat();
    let (mut agent, mut coordinator) = sessions();
    let error = decode(&mut coordinator, &[&head(BEFORE_JOIN + 1)]).1;
    assert_eq!(error, Some(FrameError::TooLong { length: BEFORE_JOIN + 1, limit: BEFORE_JOIN }));
    let error = decode(&mut agent, &[&head(u32::MAX as usize)]).1;
    assert_eq!(error, Some(FrameError::TooLong { length: u32::MAX as usize, limit: AFTER_JOIN }));
    assert_eq!(decode(&mut sessions().0, &[&head(16)]).1, Some(FrameError::Malformed));
    assert_eq!(decode(&mut sessions().0, &[&head(0)]).1, Some(FrameError::Malformed));
    assert_eq!(decode(&mut sessions().0, &[b"\x20\0\0\0\x03"]).1, Some(FrameError::Malformed));

    let (mut agent, _) = sessions();
    assert_eq!(decode(&mut agent, &[&head(AFTER_JOIN), b"abc"]), (vec![], None));
    assert_eq!(agent.decoder.held(), 3);
}

#[test]
fn the_limit_moves_between_two_frames() {
    let (mut agent, mut coordinator) = sessions();
    let bytes = [agent.sealer.seal(&text(BEFORE_JOIN - 17)), agent.sealer.seal(&text(BEFORE_JOIN - 16))].concat();
    let mut input = &bytes[..];
    assert_eq!(coordinator.decoder.next(&mut input), Ok(Some(message(BEFORE_JOIN - 17))));
    coordinator.decoder.set_limit(AFTER_JOIN);
    assert_eq!(coordinator.decoder.next(&mut input), Ok(Some(message(BEFORE_JOIN - 16))));
}

#[test]
fn what_nobody_would_take_is_not_sealed() {
    assert_eq!(text(AFTER_JOIN - 17).frame_length(), AFTER_JOIN + 4);
    let error = Payload::message(&"x".repeat(AFTER_JOIN - 18)).unwrap_err();
    assert!(matches!(error, MessageError::TooLong { length, .. } if length == AFTER_JOIN + 1), "{error}");
    assert!(Payload::log(0, 0, &vec![0; AFTER_JOIN]).is_err());
}

/// A stream of frames, and its decoded contents.
fn stream(lengths: &[(usize, bool)]) -> (Vec<u8>, Vec<Frame>) {
    let (mut agent, _) = sessions();
    let (mut bytes, mut frames) = (Vec::new(), Vec::new());
    for (number, &(length, is_log)) in lengths.iter().enumerate() {
        if is_log {
            let chunk = LogChunk { rank: number as u32, offset: 7, bytes: vec![b'l'; length] };
            bytes.extend(agent.sealer.seal(&Payload::log(chunk.rank, chunk.offset, &chunk.bytes).unwrap()));
            frames.push(Frame::Log(chunk));
        } else {
            bytes.extend(agent.sealer.seal(&text(length + 2)));
            frames.push(message(length + 2));
        }
    }
    bytes.extend(agent.sealer.prepared_gone());
    frames.push(Frame::Gone);
    (bytes, frames)
}

fn lengths() -> impl Strategy<Value = Vec<(usize, bool)>> {
    proptest::collection::vec((prop_oneof![9 => 0..40_usize, 1 => 0..60_000_usize], any::<bool>()), 0..5)
}

proptest! {
    #[test]
    fn cut_anywhere(lengths in lengths(), cuts in cuts()) {
        let (bytes, frames) = stream(&lengths);
        prop_assert_eq!(decode(&mut sessions().1, &cut(&bytes, &cuts)), (frames, None));
    }

    #[test]
    fn random_bytes_are_no_frames(bytes in proptest::collection::vec(any::<u8>(), 0..5000), cuts in cuts(), is_long in any::<bool>()) {
        let (_, mut coordinator) = sessions();
        // Most random lengths are far too long: some should be plausible at first.
        let bytes = if is_long { [b"\0\x10\0\0\0", &bytes[..]].concat() } else { bytes };
        let limit = 4000 + 200;
        coordinator.decoder.set_limit(limit);
        for piece in cut(&bytes, &cuts) {
            let mut input = piece;
            while let Ok(Some(_)) = coordinator.decoder.next(&mut input) {
                prop_assert!(false, "a frame");
            }
            prop_assert!(coordinator.decoder.held() <= limit);
        }
    }

    #[test]
    fn changed_streams_hold_nothing_new(lengths in lengths(), changes in changes(), cuts in cuts()) {
        let (bytes, sent) = stream(&lengths);
        let bytes = changed(bytes, &changes);
        let (frames, _) = decode(&mut sessions().1, &cut(&bytes, &cuts));
        // `gone` has no position: it may be repeated and moved.
        let counted = |frames: &[Frame]| -> Vec<Frame> {
            frames.iter().filter(|frame| **frame != Frame::Gone).cloned().collect()
        };
        prop_assert!(counted(&sent).starts_with(&counted(&frames)));
    }
}
