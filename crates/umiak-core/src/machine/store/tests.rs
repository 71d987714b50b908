use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A store, and what its clients have received.
#[derive(Default)]
struct World {
    store: Store,
    received: BTreeMap<u32, Vec<u8>>,
}

impl World {
    fn ask(&mut self, client: u32, request: Request<'_>) -> Result<Standing, NotANumber> {
        let (mut reply, mut woken) = (Reply::default(), Vec::new());
        let standing = self.store.apply(ConnectionId(client), request, &mut reply, &mut woken)?;
        self.received.entry(client).or_default().extend(reply.concat());
        for ConnectionId(woken) in woken {
            self.received.entry(woken).or_default().push(WOKEN);
        }
        Ok(standing)
    }

    /// What the client has received since the last call.
    fn take(&mut self, client: u32) -> Vec<u8> {
        self.received.remove(&client).unwrap_or_default()
    }

    fn answer(&mut self, client: u32, request: Request<'_>) -> Vec<u8> {
        self.ask(client, request).unwrap();
        self.take(client)
    }

    fn get(&mut self, key: &str) -> String {
        let reply = self.answer(99, Request::Get { key: key.as_bytes() });
        String::from_utf8(reply[8..].to_vec()).unwrap()
    }

    fn set(&mut self, key: &str, value: &str) {
        self.ask(98, Request::Set { key: key.as_bytes(), value: value.as_bytes() }).unwrap();
    }

    fn wait(&mut self, client: u32, keys: &[&str]) -> Standing {
        self.ask(client, Request::Wait(Strings::new(&list(keys)))).unwrap()
    }
}

const NOTHING: [u8; 0] = [];

fn list(keys: &[&str]) -> Vec<u8> {
    keys.iter().flat_map(|key| [&(key.len() as u64).to_le_bytes(), key.as_bytes()].concat()).collect()
}

fn number(number: i64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[test]
fn counters_are_decimal_text() {
    let mut world = World::default();
    assert_eq!(world.answer(1, Request::Add { key: b"n", delta: 5 }), number(5));
    assert_eq!(world.get("n"), "5");
    for (text, sum) in [("12abc", 13), (" \t+7", 8), ("-3", -2), ("9223372036854775807", i64::MIN)] {
        world.set("n", text);
        assert_eq!(world.answer(1, Request::Add { key: b"n", delta: 1 }), number(sum), "{text}");
        assert_eq!(world.get("n"), sum.to_string());
    }
    for text in ["", "abc", "+", "99999999999999999999"] {
        world.set("n", text);
        assert_eq!(world.ask(1, Request::Add { key: b"n", delta: 1 }), Err(NotANumber), "{text}");
        assert_eq!(world.ask(1, Request::Barrier { key: b"n", size: 1 }), Err(NotANumber), "{text}");
    }
    world.ask(1, Request::Add { key: b"m", delta: 5 }).unwrap();
    world.ask(1, Request::Append { key: b"m", value: b"x" }).unwrap();
    assert_eq!(world.get("m"), "5x");
}

#[test]
fn compare_and_set() {
    let mut world = World::default();
    let mut swap = |expected: &str, desired: &str| {
        let (expected, desired) = (expected.as_bytes(), desired.as_bytes());
        world.answer(1, Request::CompareSet { key: b"k", expected, desired })
    };
    assert_eq!(swap("e", "d"), string("e"), "a missing key is not set");
    assert_eq!(swap("", "d"), string("d"));
    assert_eq!(swap("x", "y"), string("d"));
    assert_eq!(swap("", "y"), string("d"));
    assert_eq!(swap("d", ""), string(""));
    assert_eq!(swap("", "z"), string("z"));
    world.answer(1, Request::Add { key: b"n", delta: 3 });
    let request = Request::CompareSet { key: b"n", expected: b"3", desired: b"4" };
    assert_eq!(world.answer(1, request), string("4"));
}

#[test]
fn missing_keys_are_empty() {
    let mut world = World::default();
    world.set("k", "v");
    let keys = list(&["k", "none", "k"]);
    let expected = [string("v"), string(""), string("v")].concat();
    assert_eq!(world.answer(1, Request::MultiGet(Strings::new(&keys))), expected);
    assert_eq!(world.answer(1, Request::Check(Strings::new(&keys))), [1]);
    assert_eq!(world.answer(1, Request::Check(Strings::new(&[]))), [0]);
    assert_eq!(world.answer(1, Request::Delete { key: b"none" }), number(0));
    assert_eq!(world.answer(1, Request::Delete { key: b"k" }), number(1));
    assert_eq!(world.answer(1, Request::NumKeys), number(0));
}

#[test]
fn waits_end_when_the_last_key_is_there() {
    let mut world = World::default();
    world.set("a", "");
    assert_eq!(world.wait(1, &["a"]), Standing::Free);
    assert_eq!(world.take(1), [0]);
    assert_eq!(world.wait(1, &["a", "b", "c", "b"]), Standing::Waiting);
    assert_eq!(world.store.awaited(8), [(b"b".to_vec(), 1), (b"c".to_vec(), 1)]);
    world.set("c", "");
    assert_eq!(world.take(1), NOTHING);
    world.answer(2, Request::MultiSet(Strings::new(&list(&["x", "1", "b", "2"]))));
    assert_eq!(world.take(1), [0]);
    assert!(world.store.awaited(8).is_empty());
    // Deleting a key neither wakes nor cancels.
    world.wait(1, &["d"]);
    world.answer(2, Request::Delete { key: b"d" });
    assert_eq!(world.take(1), NOTHING);
    world.ask(2, Request::CompareSet { key: b"d", expected: b"", desired: b"" }).unwrap();
    assert_eq!(world.take(1), [0]);
}

#[test]
fn cancelled_waits_are_answered_once() {
    let mut world = World::default();
    assert_eq!(world.answer(1, Request::CancelWait), [1], "although nothing waits");
    world.wait(1, &["k"]);
    assert_eq!(world.ask(1, Request::CancelWait), Ok(Standing::Free));
    world.set("k", "");
    assert_eq!(world.take(1), [1]);
    world.wait(2, &["m"]);
    world.store.forget(ConnectionId(2));
    world.set("m", "");
    assert_eq!(world.take(2), NOTHING);
}

#[test]
fn a_value_of_a_queue_wakes_one() {
    let mut world = World::default();
    world.wait(1, &["q", "other"]);
    world.wait(2, &["q"]);
    world.wait(3, &["q"]);
    world.ask(9, Request::QueuePush { key: b"q", value: b"x" }).unwrap();
    // The first one still waits for another key.
    assert_eq!([world.take(1), world.take(2), world.take(3)], [vec![], vec![0], vec![]]);
    assert_eq!(world.answer(2, Request::QueueLen { key: b"q" }), number(1));
    assert_eq!(world.answer(2, Request::QueuePop { key: b"q" }), [number(1), string("x")].concat());
    assert_eq!(world.answer(2, Request::QueuePop { key: b"q" }), number(0));
    world.ask(9, Request::QueuePush { key: b"q", value: b"y" }).unwrap();
    assert_eq!(world.take(3), [0]);
    world.set("other", "");
    assert_eq!(world.take(1), [0]);
    // Queues are not keys.
    assert_eq!(world.answer(9, Request::NumKeys), number(1));
    assert_eq!(world.answer(9, Request::ListKeys), [number(1), string("other")].concat());
    assert_eq!(world.answer(9, Request::Delete { key: b"q" }), number(0));
    assert_eq!(world.answer(9, Request::QueueLen { key: b"q" }), number(1));
}

#[test]
fn barriers_open_for_all() {
    let mut world = World::default();
    world.wait(7, &["b"]);
    let barrier = Request::Barrier { key: b"b", size: 3 };
    assert_eq!(world.ask(1, barrier), Ok(Standing::Waiting));
    assert_eq!(world.ask(2, barrier), Ok(Standing::Waiting));
    assert_eq!(world.get("b"), "2");
    assert_eq!([world.take(1), world.take(2), world.take(7)], [NOTHING; 3]);
    assert_eq!(world.ask(3, barrier), Ok(Standing::Free));
    for client in [1, 2, 3, 7] {
        assert_eq!(world.take(client), [0], "{client}");
    }
    assert_eq!(world.answer(4, barrier), [0], "it stays open");
    assert_eq!(world.answer(5, Request::Barrier { key: b"none", size: 0 }), [0]);
}

#[test]
fn long_values_are_shared() {
    let mut world = World::default();
    let long = "x".repeat(SHARED + 1);
    world.set("k", &long);
    let (mut reply, mut woken) = (Reply::default(), Vec::new());
    let keys = list(&["k", "none", "k"]);
    let request = Request::MultiGet(Strings::new(&keys));
    world.store.apply(ConnectionId(1), request, &mut reply, &mut woken).unwrap();
    assert_eq!((reply.bytes.len(), reply.shared.len()), (24, 2));
    assert_eq!(reply.concat(), [string(&long), string(""), string(&long)].concat());
    // What is being sent does not change.
    world.ask(2, Request::Append { key: b"k", value: b"y" }).unwrap();
    assert_eq!(reply.concat().len(), 2 * long.len() + 24);
    assert_eq!(world.get("k").len(), long.len() + 1);
}

#[test]
fn a_crowd_may_wait_and_leave_in_any_order() {
    let mut world = World::default();
    for client in 0..1000 {
        world.wait(client, &["k"]);
    }
    for client in (0..1000_u32).filter(|client| !client.is_multiple_of(3)) {
        world.store.forget(ConnectionId(client));
    }
    assert_eq!(world.store.awaited(8), [(b"k".to_vec(), 334)]);
    world.set("k", "");
    let woken: Vec<u32> = (0..1000).filter(|client| world.take(*client) == [0]).collect();
    assert_eq!(woken, (0..1000_u32).filter(|client| client.is_multiple_of(3)).collect::<Vec<_>>());
}

/// Waits in the simplest way: every wait looks at all of its keys after every request.
#[derive(Default)]
struct Model {
    keys: BTreeMap<u8, i64>,
    /// Keys that have not been seen since the beginning of the wait.
    waits: Vec<(u32, Vec<u8>)>,
}

impl Model {
    fn look(&mut self, woken: &mut Vec<u32>) {
        for (client, keys) in &mut self.waits {
            while keys.first().is_some_and(|key| self.keys.contains_key(key)) {
                keys.remove(0);
            }
            if keys.is_empty() {
                woken.push(*client);
            }
        }
        self.waits.retain(|(_, keys)| !keys.is_empty());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Delete(u8),
    Wait(u32, Vec<u8>),
    Cancel(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..6_u8;
    prop_oneof![
        3 => key().prop_map(Step::Add),
        2 => key().prop_map(Step::Delete),
        3 => (0..5_u32, prop::collection::vec(key(), 0..4)).prop_map(|(client, keys)| Step::Wait(client, keys)),
        1 => (0..5_u32).prop_map(Step::Cancel),
    ]
}

proptest! {
    #[test]
    fn waits_are_those_of_the_model(steps in prop::collection::vec(step(), 0..60)) {
        let (mut store, mut model) = (Store::new(), Model::default());
        for step in steps {
            let (mut reply, mut woken, mut expected) = (Reply::default(), Vec::new(), Vec::new());
            let mut ask = |client, request: Request<'_>| {
                store.apply(ConnectionId(client), request, &mut reply, &mut woken).unwrap();
            };
            match step {
                Step::Add(key) => {
                    ask(9, Request::Add { key: &[key], delta: 1 });
                    *model.keys.entry(key).or_default() += 1;
                    model.look(&mut expected);
                }
                Step::Delete(key) => {
                    ask(9, Request::Delete { key: &[key] });
                    model.keys.remove(&key);
                }
                Step::Wait(client, keys) => {
                    let bytes: Vec<u8> = keys.iter().flat_map(|key| [1, 0, 0, 0, 0, 0, 0, 0, *key]).collect();
                    ask(client, Request::Wait(Strings::new(&bytes)));
                    model.waits.retain(|(other, _)| *other != client);
                    model.waits.push((client, keys));
                    model.look(&mut expected);
                    prop_assert_eq!(reply.bytes.as_slice(), if expected.is_empty() { &[][..] } else { &[0] });
                    expected.clear();
                }
                Step::Cancel(client) => {
                    ask(client, Request::CancelWait);
                    model.waits.retain(|(other, _)| *other != client);
                }
            }
            let mut woken: Vec<u32> = woken.into_iter().map(|id| id.0).collect();
            woken.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(woken, expected);
        }
    }
}
