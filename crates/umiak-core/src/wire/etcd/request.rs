//! What is posted to the gateway, and where.

use serde_json::{Value, json};

use super::base64::encode;
use super::{LeaseId, Revision};

/// A request. Its `{:?}` has no body: that of [`authenticate`] contains a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Request {
    pub path: &'static str,
    pub body: String,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Request {
    fn new(path: &'static str, body: &Value) -> Self {
        Self { path, body: body.to_string() }
    }
}

/// One key, as the cluster agrees on it.
pub fn get(key: &str) -> Request {
    Request::new("/v3/kv/range", &range(key))
}

/// Asks a member, without the others, how many keys have the prefix: any answer shows that it responds.
pub fn probe(prefix: &str) -> Request {
    let (key, end) = below(prefix);
    Request::new(
        "/v3/kv/range",
        &json!({ "key": key, "range_end": end, "serializable": true, "count_only": true, "limit": "1" }),
    )
}

/// All keys with the prefix.
pub fn list(prefix: &str) -> Request {
    let (key, end) = below(prefix);
    Request::new("/v3/kv/range", &json!({ "key": key, "range_end": end }))
}

pub fn put(key: &str, value: &[u8], lease: Option<LeaseId>) -> Request {
    Request::new("/v3/kv/put", &assignment(key, value, lease))
}

pub fn delete(key: &str) -> Request {
    Request::new("/v3/kv/deleterange", &range(key))
}

/// Deletes a key that has not changed since `expected`.
pub fn delete_unchanged(key: &str, expected: Revision) -> Request {
    let condition = unchanged(key, expected);
    let body = json!({ "compare": [condition], "success": [{ "request_delete_range": range(key) }] });
    Request::new("/v3/kv/txn", &body)
}

/// The key and all keys below it, which begin with the key and a slash, at once.
pub fn delete_tree(key: &str) -> Request {
    let (first, end) = below(&format!("{key}/"));
    let parts = [range(key), json!({ "key": first, "range_end": end })];
    let parts: Vec<Value> = parts.into_iter().map(|part| json!({ "request_delete_range": part })).collect();
    Request::new("/v3/kv/txn", &json!({ "success": parts }))
}

/// Puts a key that must not exist, and others together with it; answers with what is there otherwise.
pub fn create(key: &str, value: &[u8], lease: Option<LeaseId>, with: &[(String, Vec<u8>)]) -> Request {
    let condition =
        json!({ "key": encode(key.as_bytes()), "target": "CREATE", "result": "EQUAL", "create_revision": "0" });
    transaction(&condition, key, value, lease, with)
}

/// Puts a key that must not have changed since `expected`; answers with what is there otherwise.
pub fn replace(key: &str, expected: Revision, value: &[u8], lease: Option<LeaseId>) -> Request {
    transaction(&unchanged(key, expected), key, value, lease, &[])
}

/// Changes of all keys with the prefix, from a revision on. A stream.
pub fn watch(prefix: &str, from: Revision) -> Request {
    let (key, end) = below(prefix);
    let from = from.0.to_string();
    let wanted = json!({ "key": key, "range_end": end, "start_revision": from, "progress_notify": true });
    Request::new("/v3/watch", &json!({ "create_request": wanted }))
}

pub fn grant(lease: LeaseId, seconds: u64) -> Request {
    Request::new("/v3/lease/grant", &json!({ "ID": lease.0.to_string(), "TTL": seconds.to_string() }))
}

/// The time that is left to a lease, which is not extended.
pub fn time_left(lease: LeaseId) -> Request {
    Request::new("/v3/lease/timetolive", &json!({ "ID": lease.0.to_string() }))
}

/// A stream with one answer.
pub fn keep_alive(lease: LeaseId) -> Request {
    Request::new("/v3/lease/keepalive", &json!({ "ID": lease.0.to_string() }))
}

pub fn revoke(lease: LeaseId) -> Request {
    Request::new("/v3/lease/revoke", &json!({ "ID": lease.0.to_string() }))
}

pub fn authenticate(name: &str, password: &str) -> Request {
    Request::new("/v3/auth/authenticate", &json!({ "name": name, "password": password }))
}

/// The condition that a key has not changed since a revision.
fn unchanged(key: &str, since: Revision) -> Value {
    let since = since.0.to_string();
    json!({ "key": encode(key.as_bytes()), "target": "MOD", "result": "EQUAL", "mod_revision": since })
}

fn range(key: &str) -> Value {
    json!({ "key": encode(key.as_bytes()) })
}

fn assignment(key: &str, value: &[u8], lease: Option<LeaseId>) -> Value {
    let mut body = json!({ "key": encode(key.as_bytes()), "value": encode(value) });
    if let Some(lease) = lease {
        body["lease"] = lease.0.to_string().into();
    }
    body
}

fn transaction(
    condition: &Value,
    key: &str,
    value: &[u8],
    lease: Option<LeaseId>,
    with: &[(String, Vec<u8>)],
) -> Request {
    let others = with.iter().map(|(key, value)| assignment(key, value, None));
    let puts: Vec<Value> =
        std::iter::once(assignment(key, value, lease)).chain(others).map(|put| json!({ "request_put": put })).collect();
    let body = json!({
        "compare": [condition],
        "success": puts,
        "failure": [{ "request_range": range(key) }],
    });
    Request::new("/v3/kv/txn", &body)
}

/// The first key with the prefix, and the first after all of them.
fn below(prefix: &str) -> (String, String) {
    let mut end = prefix.as_bytes().to_vec();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    match end.last_mut() {
        Some(last) => *last += 1,
        // etcd's word for the end of all keys.
        None => end.push(0),
    }
    // The first key of all is not empty.
    let first = if prefix.is_empty() { "\0" } else { prefix };
    (encode(first.as_bytes()), encode(&end))
}
