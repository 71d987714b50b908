use proptest::prelude::*;

use super::*;
use crate::wire::VERSION;
use crate::wire::handshake::{MAX_FROM_AGENT, MAX_TEXT, Unwanted};

/// More than any handshake buffers: the head, the longest text, and the growth of a vector.
const MAX_HELD: usize = 2 * (MAX_TEXT + 16);

#[test]
fn both_sides_come_together() {
    let exchange = meet(("ctr", "t"), ("ctr", "t"));
    assert!(exchange.agent.unwrap().is_some());
    assert!(exchange.coordinator.unwrap().is_some());
    assert_eq!(exchange.from_agent.len(), 8 + 1 + 3 + 16 + 32);
    assert_eq!(exchange.from_coordinator.len(), 8 + 1 + 16 + 1 + 32);

    let long = "x".repeat(200);
    assert!(meet((&long, "t"), (&long, "t")).from_agent.len() <= MAX_FROM_AGENT);
}

#[test]
fn bytes_beyond_the_handshake_are_left() {
    let whole = meet(("ctr", "t"), ("ctr", "t"));
    let (mut from_agent, mut from_coordinator) = (whole.from_agent, whole.from_coordinator);
    from_agent.extend_from_slice(b"frame");
    from_coordinator.extend_from_slice(b"frame");

    let mut input = &from_agent[..];
    assert!(coordinator("ctr", "t").feed(&mut input, &mut Vec::new()).unwrap().is_some());
    assert_eq!(input, b"frame");
    let mut input = &from_coordinator[..];
    assert!(agent("ctr", "t", &mut Vec::new()).feed(&mut input, &mut Vec::new()).unwrap().is_some());
    assert_eq!(input, b"frame");
}

#[test]
fn a_wrong_token_is_told_by_the_coordinator() {
    let exchange = meet(("ctr", "t"), ("ctr", "u"));
    assert_eq!(exchange.agent.unwrap_err(), HandshakeError::WrongToken);
    assert_eq!(exchange.coordinator.unwrap_err(), HandshakeError::WrongToken);
    // Nothing that would help to guess the token.
    assert_eq!(exchange.from_coordinator[25..], [3, 0, 0]);
}

#[test]
fn the_coordinator_must_prove_itself_too() {
    let mut whole = meet(("ctr", "t"), ("ctr", "t")).from_coordinator;
    *whole.last_mut().unwrap() ^= 1;
    let error = agent("ctr", "t", &mut Vec::new()).feed(&mut &whole[..], &mut Vec::new()).unwrap_err();
    assert_eq!(error, HandshakeError::WrongToken);

    // A peer that sends back what it receives.
    let mut heard = Vec::new();
    let mut agent = agent("ctr", "t", &mut heard);
    let mut answer = heard[..8].to_vec();
    answer.push(0);
    answer.extend_from_slice(&heard[heard.len() - 16..]);
    let mut proof = Vec::new();
    assert!(agent.feed(&mut &answer[..], &mut proof).unwrap().is_none());
    proof.insert(0, 0);
    assert_eq!(agent.feed(&mut &proof[..], &mut Vec::new()).unwrap_err(), HandshakeError::WrongToken);
}

#[test]
fn another_job_is_told_whose_port_it_is() {
    let exchange = meet(("default", "t"), ("ctr", "t"));
    assert_eq!(exchange.agent.unwrap_err(), HandshakeError::OtherJob { text: ABOUT_US.to_owned() });
    assert_eq!(exchange.coordinator.unwrap_err(), HandshakeError::OtherJob { text: "default".to_owned() });
}

#[test]
fn another_version_is_told_by_the_first_bytes() {
    let mut preamble = Vec::new();
    let _ = agent("ctr", "t", &mut preamble);
    preamble[6] = 77;
    let mut answer = Vec::new();
    let mut listener = coordinator("ctr", "t");
    // In that version the following bytes may have another meaning.
    let error = listener.feed(&mut &preamble[..8], &mut answer).unwrap_err();
    assert_eq!(error, HandshakeError::OtherVersion { version: 77 });
    assert_eq!(answer, b"UMIAK\0\x0a\0\x01\x02\x0010");

    answer[6] = 78;
    let error = agent("ctr", "t", &mut Vec::new()).feed(&mut &answer[..8], &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), format!("the peer uses protocol version 78, this umiak uses version {VERSION}"));
}

#[test]
fn strangers_hear_nothing() {
    for bytes in [&b"G"[..], b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"UMIAC", b"\0"] {
        let mut send = Vec::new();
        let error = coordinator("ctr", "t").feed(&mut &bytes[..], &mut send).unwrap_err();
        assert_eq!(error, HandshakeError::NotUmiak);
        assert!(send.is_empty());
        let error = agent("ctr", "t", &mut Vec::new()).feed(&mut &bytes[..], &mut Vec::new()).unwrap_err();
        assert_eq!(error, HandshakeError::NotUmiak);
    }
}

#[test]
fn the_unwanted_are_told_why() {
    let told = |why, text: &str| {
        let mut preamble = Vec::new();
        let agent = agent("ctr", "t", &mut preamble);
        let mut coordinator = coordinator("ctr", "t");
        coordinator.refuse(why, text, &mut Vec::new());
        let exchange = talk(agent, preamble, coordinator);
        let error = exchange.agent.unwrap_err();
        assert_eq!(exchange.coordinator.unwrap_err(), error);
        error
    };
    assert_eq!(told(Unwanted::Over, "at 12:10"), HandshakeError::Over { text: "at 12:10".to_owned() });
    assert_eq!(told(Unwanted::TooMany, ""), HandshakeError::TooMany { text: String::new() });
    assert_eq!(told(Unwanted::OtherJob, "new"), HandshakeError::OtherJob { text: "new".to_owned() });
}

#[test]
fn refused_while_a_proof_is_awaited() {
    let (mut preamble, mut answer, mut proof) = (Vec::new(), Vec::new(), Vec::new());
    let mut agent = agent("ctr", "t", &mut preamble);
    let mut coordinator = coordinator("ctr", "t");
    assert!(coordinator.feed(&mut &preamble[..], &mut answer).unwrap().is_none());
    coordinator.refuse(Unwanted::Over, "at 12:10", &mut answer);
    let error = agent.feed(&mut &answer[..], &mut proof).unwrap_err();
    assert_eq!(error, HandshakeError::Over { text: "at 12:10".to_owned() });
    assert_eq!(coordinator.feed(&mut &proof[..], &mut Vec::new()).unwrap_err(), HandshakeError::Malformed);
}

#[test]
fn texts_are_cut_and_cleaned() {
    let mut preamble = Vec::new();
    let agent = agent("default", "t", &mut preamble);
    let about = format!("\x1b[2J{}", "é".repeat(600));
    let coordinator = CoordinatorHandshake::new(job("ctr"), [9; 16], Key::from_token("t"), about);
    let HandshakeError::OtherJob { text } = talk(agent, preamble, coordinator).agent.unwrap_err() else { panic!() };
    assert_eq!(text, format!("\u{fffd}[2J{}", "é".repeat(510)));
}

#[test]
fn words_nobody_says_are_refused() {
    for tail in [&b"\x06\0\0"[..], b"\x01\x01\x001", b"\xff\0\0", b"\x02\x01\x04", b"\x02\xff\xff"] {
        let answer = [b"UMIAK\0\x0a\0", tail].concat();
        let error = agent("ctr", "t", &mut Vec::new()).feed(&mut &answer[..], &mut Vec::new()).unwrap_err();
        assert_eq!(error, HandshakeError::Malformed, "{tail:?}");
    }
}

#[test]
fn a_changed_byte_anywhere_spoils_it() {
    let whole = meet(("ctr", "t"), ("ctr", "t"));
    for at in 0..whole.from_agent.len() {
        let mut bytes = whole.from_agent.clone();
        bytes[at] ^= 1;
        // With a longer job id it may wait for more bytes.
        let result = coordinator("ctr", "t").feed(&mut &bytes[..], &mut Vec::new());
        assert!(!matches!(result, Ok(Some(_))), "byte {at}");
    }
    for at in 0..whole.from_coordinator.len() {
        let mut bytes = whole.from_coordinator.clone();
        bytes[at] ^= 1;
        let result = agent("ctr", "t", &mut Vec::new()).feed(&mut &bytes[..], &mut Vec::new());
        assert!(!matches!(result, Ok(Some(_))), "byte {at}");
    }
}

#[test]
fn old_handshakes_cannot_be_repeated() {
    let whole = meet(("ctr", "t"), ("ctr", "t"));
    let mut coordinator = CoordinatorHandshake::new(job("ctr"), [10; 16], Key::from_token("t"), ABOUT_US);
    let error = coordinator.feed(&mut &whole.from_agent[..], &mut Vec::new()).unwrap_err();
    assert_eq!(error, HandshakeError::WrongToken);
    let mut agent = AgentHandshake::new(job("ctr"), [8; 16], Key::from_token("t"), &mut Vec::new());
    let error = agent.feed(&mut &whole.from_coordinator[..], &mut Vec::new()).unwrap_err();
    assert_eq!(error, HandshakeError::WrongToken);
}

/// Feeds bytes until there is a result; true if it is a session.
fn feed_agent(pieces: &[&[u8]]) -> bool {
    let mut send = Vec::new();
    let mut agent = agent("ctr", "t", &mut send);
    for piece in pieces {
        let result = agent.feed(&mut &piece[..], &mut send);
        assert!(agent.held() <= MAX_HELD && send.len() <= MAX_FROM_AGENT);
        match result {
            Ok(None) => {}
            Ok(Some(_)) => return true,
            Err(_) => {
                assert_eq!(agent.feed(&mut &piece[..], &mut send).unwrap_err(), HandshakeError::Malformed);
                return false;
            }
        }
    }
    false
}

fn feed_coordinator(pieces: &[&[u8]]) -> bool {
    let mut send = Vec::new();
    let mut coordinator = coordinator("ctr", "t");
    for piece in pieces {
        let mut input = *piece;
        let result = coordinator.feed(&mut input, &mut send);
        assert!(coordinator.held() <= 2 * MAX_FROM_AGENT && send.len() <= MAX_HELD);
        match result {
            Ok(None) => assert!(input.is_empty()),
            Ok(Some(_)) => return true,
            Err(_) => {
                assert_eq!(coordinator.feed(&mut input, &mut send).unwrap_err(), HandshakeError::Malformed);
                return false;
            }
        }
    }
    false
}

proptest! {
    #[test]
    fn cut_anywhere(cuts in cuts()) {
        let whole = meet(("ctr", "t"), ("ctr", "t"));
        prop_assert!(feed_agent(&cut(&whole.from_coordinator, &cuts)));
        prop_assert!(feed_coordinator(&cut(&whole.from_agent, &cuts)));
    }

    #[test]
    fn random_bytes_prove_nothing(keep in 0..60_usize, tail in proptest::collection::vec(any::<u8>(), 0..3000), cuts in cuts()) {
        let whole = meet(("ctr", "t"), ("ctr", "t"));
        for (valid, is_agent) in [(whole.from_coordinator, true), (whole.from_agent, false)] {
            let kept = keep.min(valid.len() - 1);
            let bytes = [&valid[..kept], &tail].concat();
            prop_assume!(!bytes.starts_with(&valid));
            let pieces = cut(&bytes, &cuts);
            let is_proven = if is_agent { feed_agent(&pieces) } else { feed_coordinator(&pieces) };
            prop_assert!(!is_proven);
        }
    }

    #[test]
    fn changed_handshakes_prove_nothing(changes in changes(), cuts in cuts()) {
        let whole = meet(("ctr", "t"), ("ctr", "t"));
        let bytes = changed(whole.from_coordinator.clone(), &changes);
        prop_assert_eq!(feed_agent(&cut(&bytes, &cuts)), bytes.starts_with(&whole.from_coordinator));
        let bytes = changed(whole.from_agent.clone(), &changes);
        prop_assert_eq!(feed_coordinator(&cut(&bytes, &cuts)), bytes.starts_with(&whole.from_agent));
    }
}
