use proptest::prelude::*;

use super::*;
use crate::machine::store::{ConnectionId, Reply, Store};

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn list(keys: &[&[u8]]) -> Vec<u8> {
    let mut bytes = (keys.len() as u64).to_le_bytes().to_vec();
    for key in keys {
        bytes.extend(string(key));
    }
    bytes
}

fn validate() -> Vec<u8> {
    [&[opcode::VALIDATE], &MAGIC[..]].concat()
}

/// One of each request, as a client sends them.
fn all() -> Vec<u8> {
    let one = |operation: u8, parts: &[&[u8]]| [&[operation], parts.concat().as_slice()].concat();
    let (key, value, number) = (string(b"/k"), string(b"\0\xff value"), 7_i64.to_le_bytes());
    let keys = list(&[b"/k", b"", b"/other"]);
    let pairs = [&2_u64.to_le_bytes()[..], &key, &value, &key, &string(b"")].concat();
    [
        validate(),
        one(opcode::PING, &[&99_u32.to_le_bytes()]),
        one(opcode::SET, &[&key, &value]),
        one(opcode::COMPARE_SET, &[&key, &value, &string(b"x")]),
        one(opcode::GET, &[&key]),
        one(opcode::ADD, &[&key, &number]),
        one(opcode::CHECK, &[&keys]),
        one(opcode::WAIT, &[&keys]),
        one(opcode::WAIT, &[&list(&[])]),
        one(opcode::NUM_KEYS, &[]),
        one(opcode::DELETE, &[&key]),
        one(opcode::APPEND, &[&key, &value]),
        one(opcode::MULTI_GET, &[&keys]),
        one(opcode::MULTI_SET, &[&pairs]),
        one(opcode::CANCEL_WAIT, &[]),
        one(opcode::QUEUE_PUSH, &[&key, &value]),
        one(opcode::QUEUE_POP, &[&key]),
        one(opcode::QUEUE_LEN, &[&key]),
        one(opcode::LIST_KEYS, &[]),
        one(opcode::BARRIER, &[&key, &number]),
    ]
    .concat()
}

/// The requests in the pieces, as text.
fn read(pieces: &[&[u8]]) -> Result<Vec<String>, Violation> {
    let (mut reader, mut input, mut requests) = (Reader::default(), Vec::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        let mut at = 0;
        while let Some((request, length)) = reader.next(&input[at..])? {
            requests.push(format!("{request:?}"));
            at += length;
        }
        input.drain(..at);
    }
    assert!(input.is_empty(), "{input:?}");
    Ok(requests)
}

#[test]
fn requests_can_be_split_anywhere() {
    let bytes = all();
    let whole = read(&[&bytes]).unwrap();
    assert_eq!(whole.len(), 20);
    for at in 0..bytes.len() {
        assert_eq!(read(&[&bytes[..at], &bytes[at..]]).unwrap(), whole, "at {at}");
    }
    assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()).unwrap(), whole);
}

#[test]
fn fields_are_where_torch_puts_them() {
    let mut reader = Reader { is_validated: true, ..Reader::default() };
    let bytes = [&[opcode::ADD][..], &string(b"init/"), &1_i64.to_le_bytes()].concat();
    assert_eq!(reader.next(&bytes), Ok(Some((Request::Add { key: b"init/", delta: 1 }, 22))));
    let bytes = [&[opcode::COMPARE_SET][..], &string(b"k"), &string(b"old"), &string(b"new")].concat();
    let request = Request::CompareSet { key: b"k", expected: b"old", desired: b"new" };
    assert_eq!(reader.next(&bytes), Ok(Some((request, bytes.len()))));
    let bytes = [&[opcode::BARRIER][..], &string(b"b"), &(-2_i64).to_le_bytes()].concat();
    assert_eq!(reader.next(&bytes), Ok(Some((Request::Barrier { key: b"b", size: -2 }, bytes.len()))));
}

#[test]
fn limits_are_checked_before_the_bytes_arrive() {
    let after = |bytes: &[u8]| {
        let mut reader = Reader { is_validated: true, ..Reader::default() };
        reader.next(bytes).map(|request| request.map(|(_, length)| length))
    };
    let head = |operation: u8, number: u64| [&[operation], &number.to_le_bytes()[..]].concat();
    assert_eq!(after(&head(opcode::GET, 8192)), Ok(None));
    assert_eq!(after(&head(opcode::GET, 8193)), Err(Violation::LongKey(8193)));
    assert_eq!(after(&head(opcode::GET, u64::MAX)), Err(Violation::LongKey(u64::MAX)));
    let set = |length: u64| [&[opcode::SET][..], &string(b"k"), &length.to_le_bytes()].concat();
    assert_eq!(after(&set(8 << 20)), Ok(None));
    assert_eq!(after(&set((8 << 20) + 1)), Err(Violation::LongValue((8 << 20) + 1)));
    assert_eq!(after(&head(opcode::MULTI_SET, 131_072)), Ok(None));
    assert_eq!(after(&head(opcode::WAIT, 131_073)), Err(Violation::ManyKeys(131_073)));
    assert_eq!(after(&[19]), Err(Violation::Opcode(19)));
    assert_eq!(after(&validate()), Err(Violation::Opcode(0)), "only the first message may be one");
}

#[test]
fn first_bytes_of_others() {
    let first = |bytes: &[u8]| {
        let outcomes: Vec<_> = (1..=bytes.len()).map(|end| Reader::default().next(&bytes[..end])).collect();
        // Not decided differently while bytes arrive.
        let decided = outcomes.iter().find(|outcome| **outcome != Ok(None));
        decided.copied().unwrap_or(Ok(None)).map(|request| request.is_some())
    };
    assert_eq!(first(&validate()), Ok(true));
    assert_eq!(first(b"GET / HTTP/1.1\r\n\r\n"), Err(Violation::NotTorch));
    assert_eq!(first(b"\x16\x03\x01\x02\x00\x01"), Err(Violation::NotTorch));
    assert_eq!(first(b"\0\xce\xf7\x85\x3d"), Err(Violation::NotTorch));
    assert_eq!(first(&[0; 64]), Err(Violation::NotTorch));
    // Torch 2.1 and 2.0: `ADD init/ 1`, and with no world size, `SET /key` or `WAIT /key`.
    let add = [&[3][..], &string(b"init/"), &1_i64.to_le_bytes()].concat();
    assert_eq!(first(&add), Err(Violation::Torch22));
    assert_eq!(first(&[&[0][..], &string(b"/key"), &string(b"value")].concat()), Err(Violation::Torch22));
    assert_eq!(first(&[&[5][..], &list(&[b"/key"])].concat()), Err(Violation::Torch22));
    assert_eq!(first(&[&[3][..], &string(b"other"), &1_i64.to_le_bytes()].concat()), Err(Violation::NotTorch));
}

/// Requests with few keys, some of them damaged.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let name = || prop::sample::select(vec![&b"a"[..], b"b", b"", b"12"]).prop_map(string);
    let count = || prop_oneof![9 => 0..3_u64, 1 => any::<u64>()].prop_map(|count| count.to_le_bytes().to_vec());
    let part = prop_oneof![4 => name(), 1 => count(), 1 => prop::collection::vec(any::<u8>(), 0..9)];
    let one = (0..20_u8, prop::collection::vec(part, 0..4)).prop_map(|(operation, parts)| {
        let mut bytes = vec![operation];
        bytes.extend(parts.concat());
        bytes
    });
    prop::collection::vec(one, 0..20).prop_map(|requests| requests.concat())
}

/// The replies to a client that sends these pieces, and what ended the connection.
fn replies<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Violation>) {
    let (mut store, mut reader) = (Store::new(), Reader { is_validated: true, ..Reader::default() });
    let (mut input, mut reply, mut woken) = (Vec::new(), Reply::default(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match reader.next(&input[at..]) {
                Ok(Some((request, length))) => {
                    at += length;
                    // The order of a list is not fixed.
                    let before = reply.bytes.len();
                    if store.apply(ConnectionId(1), request, &mut reply, &mut woken).is_err() {
                        return (reply.concat(), None);
                    }
                    if request == Request::ListKeys {
                        reply.bytes[before..].sort_unstable();
                    }
                }
                Ok(None) => break,
                Err(violation) => return (reply.concat(), Some(violation)),
            }
        }
        input.drain(..at);
    }
    (reply.concat(), None)
}

proptest! {
    #[test]
    fn any_bytes_have_the_same_replies_in_pieces(bytes in requests(), size in 1..40_usize) {
        prop_assert_eq!(replies(bytes.chunks(size)), replies(std::iter::once(bytes.as_slice())));
    }
}
