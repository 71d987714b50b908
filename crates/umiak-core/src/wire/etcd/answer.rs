//! What the gateway answers.

use serde_json::Value;
use thiserror::Error;

use super::base64::decode;
use super::refusal::shortened;
use super::{LeaseId, Refusal, Revision};

/// An answer that is not the wanted one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    #[error(transparent)]
    Refused(Refusal),
    #[error("{0}")]
    NotEtcd(String),
}

/// A key and what etcd knows about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Bytes that are not UTF-8 are replaced: such keys are not ours.
    pub key: String,
    pub value: Vec<u8>,
    pub created: Revision,
    pub modified: Revision,
    pub lease: Option<LeaseId>,
}

/// Keys, and the revision at which they had these values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub revision: Revision,
    pub entries: Vec<KeyValue>,
}

/// The result of a conditional put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    Done(Revision),
    /// The condition was not met: what is there, if anything.
    Other(Option<KeyValue>),
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Put(KeyValue),
    /// Deleted, or its lease has expired.
    Deleted {
        key: String,
        modified: Revision,
    },
}

/// One line of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchLine {
    /// The watch begins, at this revision of the member.
    Opened(Revision),
    Changed(Vec<Event>),
    /// No change up to this revision.
    Idle(Revision),
    /// Changes before this revision are no longer known.
    Compacted(Revision),
}

/// Reads the answer of a request. `status` is HTTP's.
pub fn read(status: u16, body: &[u8]) -> Result<Value, Fault> {
    let strange = || Fault::NotEtcd(strange(status, body));
    let value: Value = serde_json::from_slice(body).map_err(|_| strange())?;
    if status == 200 && value.get("header").is_some_and(Value::is_object) {
        return Ok(value);
    }
    Err(refusal(&value).map_or_else(strange, Fault::Refused))
}

/// Reads one line of a stream.
pub fn read_line(status: u16, line: &[u8]) -> Result<Value, Fault> {
    let strange = || Fault::NotEtcd(strange(status, line));
    let mut value: Value = serde_json::from_slice(line).map_err(|_| strange())?;
    match value.get_mut("result") {
        Some(result) if status == 200 && result.is_object() => Ok(result.take()),
        _ => Err(refusal(value.get("error").filter(|error| error.is_object()).unwrap_or(&value))
            .map_or_else(strange, Fault::Refused)),
    }
}

pub fn listing(answer: &Value) -> Result<Listing, Fault> {
    let entries = items(answer, "kvs").iter().map(key_value).collect::<Result<_, _>>()?;
    Ok(Listing { revision: revision(answer)?, entries })
}

/// The revision of the store.
pub fn revision(answer: &Value) -> Result<Revision, Fault> {
    number(&answer["header"], "revision").map(Revision)
}

/// How many keys were deleted, by one request or by a transaction of them.
pub fn deleted(answer: &Value) -> Result<u64, Fault> {
    let parts = items(answer, "responses").iter().map(|part| number(&part["response_delete_range"], "deleted"));
    Ok(number(answer, "deleted")? + parts.sum::<Result<u64, _>>()?)
}

/// The answer to [`super::request::create`] and [`super::request::replace`].
pub fn written(answer: &Value) -> Result<Written, Fault> {
    if answer["succeeded"] == true {
        return revision(answer).map(Written::Done);
    }
    let found = items(&answer["responses"][0]["response_range"], "kvs").first();
    Ok(Written::Other(found.map(key_value).transpose()?))
}

/// Seconds that are left to a lease; `None` if it has expired.
pub fn seconds(answer: &Value) -> Result<Option<u64>, Fault> {
    // -1 where the time is asked for, absent where it is extended.
    if answer["TTL"] == "-1" {
        return Ok(None);
    }
    Ok(Some(number(answer, "TTL")?).filter(|seconds| *seconds > 0))
}

pub fn token(answer: &Value) -> Result<String, Fault> {
    answer["token"].as_str().map(str::to_owned).ok_or_else(|| missing("token"))
}

/// One line of a watch, of which [`read_line`] has read the result.
pub fn watch_line(result: &Value) -> Result<WatchLine, Fault> {
    // First: a watch without permission is both created and cancelled.
    if result["canceled"] == true {
        let compacted = number(result, "compact_revision")?;
        if compacted > 0 {
            return Ok(WatchLine::Compacted(Revision(compacted)));
        }
        let reason = result["cancel_reason"].as_str().unwrap_or("the watch was cancelled");
        return Err(Fault::Refused(Refusal::new(0, reason)));
    }
    if result["created"] == true {
        return revision(result).map(WatchLine::Opened);
    }
    let events: Vec<Event> = items(result, "events").iter().map(event).collect::<Result<_, _>>()?;
    if events.is_empty() { revision(result).map(WatchLine::Idle) } else { Ok(WatchLine::Changed(events)) }
}

/// True if the text is what etcd answers at `/health`, healthy or not.
pub fn is_health(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|value| value.get("health").is_some())
}

fn event(event: &Value) -> Result<Event, Fault> {
    let entry = key_value(&event["kv"])?;
    match event["type"].as_str() {
        Some("DELETE") => Ok(Event::Deleted { key: entry.key, modified: entry.modified }),
        None | Some("PUT") => Ok(Event::Put(entry)),
        Some(_) => Err(missing("type")),
    }
}

fn key_value(entry: &Value) -> Result<KeyValue, Fault> {
    let bytes = |name: &str| match &entry[name] {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => decode(text).ok_or_else(|| missing(name)),
        _ => Err(missing(name)),
    };
    let key = bytes("key")?;
    if key.is_empty() {
        return Err(missing("key"));
    }
    Ok(KeyValue {
        key: String::from_utf8_lossy(&key).into_owned(),
        value: bytes("value")?,
        created: Revision(number(entry, "create_revision")?),
        modified: Revision(number(entry, "mod_revision")?),
        lease: LeaseId::read(number(entry, "lease")?),
    })
}

fn items<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// A 64-bit number: a string, or absent if 0.
fn number(value: &Value, name: &str) -> Result<u64, Fault> {
    match &value[name] {
        Value::Null => Ok(0),
        Value::String(text) => text.parse().map_err(|_| missing(name)),
        Value::Number(number) => number.as_u64().ok_or_else(|| missing(name)),
        _ => Err(missing(name)),
    }
}

fn missing(name: &str) -> Fault {
    Fault::NotEtcd(format!("`{name}` of the answer is missing or invalid"))
}

/// Errors have `message` and `code`, in streams of older versions `grpc_code`.
fn refusal(error: &Value) -> Option<Refusal> {
    let text = error["message"].as_str().or_else(|| error["error"].as_str())?;
    let number = ["code", "grpc_code"].iter().find_map(|name| error[name].as_u64())?;
    Some(Refusal::new(number, text))
}

/// What another server said, in a few words.
fn strange(status: u16, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(1000)]);
    // Go's server says this, in HTTP/1.0.
    if text.contains("HTTP request to an HTTPS server") {
        return "it expects TLS".to_owned();
    }
    match shortened(text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()) {
        line if line.is_empty() => format!("HTTP status {status}"),
        line => format!("HTTP status {status}: {line}"),
    }
}
