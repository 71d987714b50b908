use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::diagnose;
use crate::facts::{Evidence, Line, Outcome, Snapshot, StackFrame, Subject, Usage, Verdict};
use crate::machine::round::logs::Hello;
use crate::machine::round::messages::*;
use crate::model::{Device, DeviceKind, Endpoint, Exit, Port, Rank, Timestamp};
use crate::wire::frame::{MessageError, read_first, read_message};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn node() -> NodeName {
    NodeName { node: 1, address: V4, host: "node1".to_owned() }
}

fn port(number: u16) -> Port {
    Port::new(number).unwrap()
}

fn processes() -> Vec<NodeProcess> {
    let device = Device { label: "MIG-7".to_owned(), position: 0 };
    vec![NodeProcess::trainer(port(40_000), vec![device]), NodeProcess::trainer(port(40_001), vec![])]
}

fn list() -> Expects {
    Expects::List(vec![V4, V6])
}

fn count() -> Expects {
    Expects::Count { nodes: 2, sort_ip: true }
}

fn stages() -> Vec<Stage> {
    let end = diagnose::End {
        subject: Subject { replica: "trainer-3".to_owned(), rank: Some(Rank(3)), attempt: 1 },
        exit: Exit::Signal { signal: 9, core_dumped: false },
        classed: None,
        ran: Duration::from_millis(1500),
        order: 7,
        by_us: false,
        before_stop: true,
        serves: false,
        timed_out: None,
        evidence: Some(Evidence {
            headline: Some(Line { text: "\u{fffd}\"Error\"\n\0".to_owned(), number: Some(3) }),
            ..Evidence::default()
        }),
        snapshot: Some(Snapshot {
            connections: Some(3),
            stack: vec![StackFrame { function: "\0".to_owned(), file: "train.py".to_owned(), line: 88 }],
            ..Snapshot::default()
        }),
        addresses: vec!["[::1]:7".parse().unwrap()],
        usage: Some(Usage { user_micros: u64::MAX, system_micros: 0, max_rss_kib: 1 }),
    };
    vec![
        Stage::Ready(Offer { processes: processes(), stores: [port(1), port(2)], device_kind: Some(DeviceKind::Gpu) }),
        Stage::Running,
        Stage::Succeeded,
        Stage::Failed { waited: true },
        Stage::Told(vec![Told { end, place: RankPlace { rank: 3, ..RankPlace::default() } }]),
        Stage::Interrupted { signal: Some(2), kill: false },
        Stage::Unable { why: "no ports".to_owned() },
    ]
}

fn from_agent() -> Vec<FromAgent> {
    let mut messages = vec![
        FromAgent::Beat { sent: Timestamp::from_micros(u64::MAX) },
        FromAgent::Bye,
        FromAgent::Started { attempt: 2, pids: vec![1, u32::MAX] },
        FromAgent::Logs(Hello { launch: u64::MAX, ranks: vec![0, 7] }),
    ];
    for stage in stages() {
        let standing = Standing::new(2, stage);
        messages.push(FromAgent::Standing(standing.clone()));
        for expects in [list(), count()] {
            messages.push(FromAgent::Join(Box::new(Join {
                connected: Timestamp::from_micros(u64::MAX),
                launch: u64::MAX,
                command: 1,
                line: "train.py".to_owned(),
                address: V6,
                host: "node0".to_owned(),
                expects,
                kind: JobKind::Servers,
                rank: Some(0),
                uneven: false,
                logs: false,
                alive: Port::new(40_000),
                standing: standing.clone(),
            })));
        }
    }
    messages
}

fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::OtherNodes { ours: list(), theirs: count() },
        Refusal::Kinds { ours: JobKind::Servers, theirs: JobKind::Rpc, first: node() },
        Refusal::NotListed { address: V4, list: vec![V6] },
        Refusal::Taken { by: node(), from: Some(V6), same_command: true },
        Refusal::Rank { rank: 3, nodes: 2, by: Some(node()) },
        Refusal::MixedRanks,
        Refusal::Processes { ours: 8, theirs: 4, first: node() },
        Refusal::Full { nodes: 2 },
        Refusal::TooLate,
    ]
}

fn waiting() -> Waiting {
    let mut answers = vec![
        Answer::Unknown,
        Answer::Refused,
        Answer::NoRoute,
        Answer::Silent,
        Answer::OtherVersion { version: 2 },
        Answer::OtherToken,
        Answer::OtherJob { text: "`ctr`".to_owned() },
        Answer::Left,
        Answer::Failed { why: "?".to_owned() },
    ];
    answers.extend(refusals().into_iter().map(|refusal| Answer::TurnedAway(refusal.kind())));
    let missing = answers.into_iter().map(|answer| Missing { address: V4, answer }).collect();
    Waiting { joined: 1, of: 20, missing, most: Some(24), window: Some(Duration::from_secs(9)) }
}

fn to_agent() -> Vec<ToAgent> {
    let losses = [
        Loss::Killed,
        Loss::Vanished { after: Duration::from_secs(2) },
        Loss::Silent { after: Duration::from_secs(30) },
        Loss::Disconnected { after: Duration::from_nanos(1) },
        Loss::Refused,
        Loss::Left,
        Loss::LeftOut { failures: 3 },
        Loss::Fenced,
        Loss::Deposed,
    ];
    let mut whys = vec![
        Why::RankFailed { node: node(), waited: true },
        Why::Interrupted { node: node(), signal: Some(15), kill: false },
        Why::Unable { node: node(), why: "no ports".to_owned() },
        Why::Refused { node: node(), refusal: Refusal::MixedRanks },
        Why::TimeUp { waiting: waiting() },
    ];
    whys.extend(losses.map(|how| Why::NodeLost { node: node(), how }));
    whys.extend(losses.map(|how| Why::CoordinatorLost { how }));

    let share = NodeShare {
        launch: 7,
        address: V4,
        host: "node1".to_owned(),
        processes: processes(),
        device_kind: Some(DeviceKind::Npu),
    };
    let store = Endpoint { address: V6, port: Port::new(5).unwrap() };
    let mut messages = vec![
        ToAgent::Welcome,
        ToAgent::Waiting(waiting()),
        ToAgent::Start(Start {
            attempt: 1,
            nodes: vec![share],
            paddle_store: store,
            torch_store: store,
            restarts: Some(3),
            last: Some(LastAttempt { world: 4, end: AttemptEnd::NodeLost, changes: 1, counted: 2 }),
            commands: vec![NodeCommand { node: 0, line: "train.py --lr 0.1".to_owned() }],
            you: 0,
        }),
        ToAgent::Servers(Servers { attempt: 1, missing: vec![0, 7] }),
        ToAgent::Suspects { nodes: vec![node()] },
        ToAgent::Beat { sent: Timestamp::from_micros(7) },
    ];
    messages.extend(refusals().into_iter().map(ToAgent::Refused));
    for why in whys {
        messages.push(ToAgent::Stop(Stop { attempt: 1, why: why.clone() }));
        for outcome in [Outcome::Succeeded, Outcome::Failed, Outcome::Interrupted] {
            messages.push(ToAgent::Decision(Box::new(Decision {
                attempt: 1,
                outcome,
                why: Some(why.clone()),
                verdict: Some(Verdict { causes: vec![], victims: vec![] }),
                places: vec![RankPlace { rank: 1, pid: Some(9), ..RankPlace::default() }],
                restart: Some(Restart { attempt: 2, delay: Duration::from_secs(1), moves: false }),
                alone: false,
            })));
        }
    }
    messages
}

fn goes_there_and_back<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &M) {
    let json = serde_json::to_vec(message).unwrap();
    assert_eq!(read_message::<M>(&json).unwrap(), *message, "{}", String::from_utf8_lossy(&json));
    // A truncated message is not valid.
    for end in 0..json.len() {
        assert!(read_message::<M>(&json[..end]).is_err());
    }
}

#[test]
fn every_message_there_and_back() {
    from_agent().iter().for_each(goes_there_and_back);
    to_agent().iter().for_each(goes_there_and_back);
}

/// Adds an unknown field to every object that has fields; the object of an enum has one, its variant. Durations use
/// serde's own format, which is strict.
fn add_unknown(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.values_mut().for_each(add_unknown);
            if fields.len() > 1 && !fields.contains_key("nanos") {
                fields.insert("later".to_owned(), serde_json::json!({"a": [1, null]}));
            }
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(add_unknown),
        _ => {}
    }
}

#[test]
fn unknown_fields_are_left_alone() {
    for message in from_agent() {
        let mut value = serde_json::to_value(&message).unwrap();
        add_unknown(&mut value);
        assert_eq!(read_message::<FromAgent>(value.to_string().as_bytes()).unwrap(), message, "{value}");
    }
    for message in to_agent().into_iter().filter(|message| !matches!(message, ToAgent::Refused(_))) {
        let mut value = serde_json::to_value(&message).unwrap();
        add_unknown(&mut value);
        assert_eq!(read_message::<ToAgent>(value.to_string().as_bytes()).unwrap(), message, "{value}");
    }
}

#[test]
fn what_is_deep_or_huge_is_refused() {
    let deep = 1 << 20;
    let nested = [
        "[".repeat(deep),
        "{\"a\":".repeat(deep),
        format!("{{\"type\":\"standing\",\"x\":{}", "[".repeat(deep)),
        format!("{{\"x\":{}1{},\"type\":\"beat\"}}", "[".repeat(deep), "]".repeat(deep)),
        format!("{{\"type\":\"beat\",\"x\":{}1{}}}", "{\"a\":".repeat(1000), "}".repeat(1000)),
        format!("{{\"type\":\"standing\",\"attempt\":{}}}", "9".repeat(1 << 20)),
        "{\"type\":\"suspects\",\"nodes\":[1e999999999]}".to_owned(),
        format!("\"{}", "\\u0000".repeat(100_000)),
        String::new(),
    ];
    for text in nested {
        assert!(read_message::<FromAgent>(text.as_bytes()).is_err(), "{text:.60}");
        assert!(read_message::<ToAgent>(text.as_bytes()).is_err(), "{text:.60}");
    }
    assert!(read_message::<FromAgent>(b"{\"type\":\"bye\"} {}").is_err());
    assert!(read_message::<FromAgent>(b"{\"type\":\"\xff\"}").is_err());
}

#[test]
fn texts_of_a_join_are_bounded() {
    let join = |host: usize, why: usize| {
        let FromAgent::Join(mut join) =
            from_agent().into_iter().find(|message| matches!(message, FromAgent::Join(_))).unwrap()
        else {
            panic!("a join")
        };
        join.host = "\u{e9}".repeat(host / 2);
        join.standing.stage = Stage::Unable { why: "x".repeat(why) };
        FromAgent::Join(join)
    };
    let read = |value: &serde_json::Value| read_first::<FromAgent>(&serde_json::to_vec(value).unwrap());
    // Ours are cut.
    let sent = serde_json::to_value(join(1_000, 100_000)).unwrap();
    let Ok(FromAgent::Join(received)) = read(&sent) else { panic!("it is valid") };
    assert_eq!(received.host.len(), 254);
    assert!(matches!(received.standing.stage, Stage::Unable { why } if why.len() == 8192));
    // Those of others are refused, in any field.
    for (pointer, value) in [
        ("/host", "x".repeat(256)),
        ("/host", "\u{1}".repeat(100_000)),
        ("/standing/stage/unable/why", "x".repeat(8193)),
        ("/kind", "x".repeat(70_000)),
    ] {
        let mut wrong = sent.clone();
        *wrong.pointer_mut(pointer).unwrap() = value.into();
        assert!(read(&wrong).is_err(), "{pointer}");
    }
    let mut unknown = sent.clone();
    unknown["other"] = "x".repeat(70_000).into();
    assert!(matches!(read(&unknown), Err(MessageError::LongText { .. })));
    let mut long = sent;
    long["expects"] = serde_json::json!({ "list": vec!["10.0.0.1"; 16_385] });
    assert!(read(&long).is_err());
}

/// Whichever side is honest: a name is a part of a line.
#[test]
fn names_of_others_begin_no_line() {
    let hostile = "node1\nABORT!!! Out of all\r\u{1b}[2J\u{2028}";
    let shown = "node1?ABORT!!! Out of all??[2J?";
    let mut name = node();
    name.host = hostile.to_owned();
    let mut sent = serde_json::to_value(&name).unwrap();
    assert_eq!(sent["host"], shown);
    sent["host"] = hostile.into();
    let received: NodeName = serde_json::from_value(sent).unwrap();
    assert_eq!(received.host, shown);
    let place =
        RankPlace { host: hostile.into(), devices: hostile.into(), log: hostile.into(), ..RankPlace::default() };
    let sent = serde_json::to_value(&place).unwrap();
    assert_eq!((&sent["host"], &sent["devices"], &sent["log"]), (&shown.into(), &shown.into(), &shown.into()));
    let mut join = from_agent().into_iter().map(|message| serde_json::to_value(message).unwrap());
    let mut join = join.find(|message| message["type"] == "join").unwrap();
    join["host"] = hostile.into();
    let Ok(FromAgent::Join(received)) = read_first::<FromAgent>(&serde_json::to_vec(&join).unwrap()) else {
        panic!("it is valid")
    };
    assert_eq!(received.host, shown);
}
