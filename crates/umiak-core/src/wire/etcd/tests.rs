//! Texts of real gateways: etcd 3.4.23 and 3.5.1, and what else may be at the port.

use proptest::prelude::*;
use serde_json::Value;

use super::answer::{self, WatchLine};
use super::*;

const HEADER: &str = r#""header":{"cluster_id":"3249","member_id":"33198","revision":"7","raft_term":"2"}"#;

fn ok(rest: &str) -> Value {
    answer::read(200, format!("{{{HEADER}{rest}}}").as_bytes()).unwrap()
}

fn refused(status: u16, body: &str) -> String {
    format!("{:?}", answer::read(status, body.as_bytes()).unwrap_err())
}

fn watched(line: &str) -> Result<WatchLine, Fault> {
    answer::watch_line(&answer::read_line(200, line.as_bytes())?)
}

#[test]
fn requests() {
    let lease = LeaseId::from_random(9);
    for (request, path, body) in [
        (request::get("foo"), "/v3/kv/range", r#"{"key":"Zm9v"}"#),
        (request::list("/a/"), "/v3/kv/range", r#"{"key":"L2Ev","range_end":"L2Ew"}"#),
        (request::list(""), "/v3/kv/range", r#"{"key":"AA==","range_end":"AA=="}"#),
        (request::put("foo", b"bar", None), "/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#),
        (request::put("foo", b"", Some(lease)), "/v3/kv/put", r#"{"key":"Zm9v","value":"","lease":"4"}"#),
        (request::delete("foo"), "/v3/kv/deleterange", r#"{"key":"Zm9v"}"#),
        (
            request::delete_unchanged("foo", Revision(7)),
            "/v3/kv/txn",
            r#"{"compare":[{"key":"Zm9v","target":"MOD","result":"EQUAL","mod_revision":"7"}],"success":[{"request_delete_range":{"key":"Zm9v"}}]}"#,
        ),
        (
            request::delete_tree("a"),
            "/v3/kv/txn",
            r#"{"success":[{"request_delete_range":{"key":"YQ=="}},{"request_delete_range":{"key":"YS8=","range_end":"YTA="}}]}"#,
        ),
        (
            request::create("foo", b"bar", None, &[("a".to_owned(), b"b".to_vec())]),
            "/v3/kv/txn",
            r#"{"compare":[{"key":"Zm9v","target":"CREATE","result":"EQUAL","create_revision":"0"}],"success":[{"request_put":{"key":"Zm9v","value":"YmFy"}},{"request_put":{"key":"YQ==","value":"Yg=="}}],"failure":[{"request_range":{"key":"Zm9v"}}]}"#,
        ),
        (
            request::replace("foo", Revision(7), b"bar", None),
            "/v3/kv/txn",
            r#"{"compare":[{"key":"Zm9v","target":"MOD","result":"EQUAL","mod_revision":"7"}],"success":[{"request_put":{"key":"Zm9v","value":"YmFy"}}],"failure":[{"request_range":{"key":"Zm9v"}}]}"#,
        ),
        (request::grant(lease, 10), "/v3/lease/grant", r#"{"ID":"4","TTL":"10"}"#),
        (request::time_left(lease), "/v3/lease/timetolive", r#"{"ID":"4"}"#),
        (request::keep_alive(lease), "/v3/lease/keepalive", r#"{"ID":"4"}"#),
        (
            request::watch("/a/", Revision(8)),
            "/v3/watch",
            r#"{"create_request":{"key":"L2Ev","range_end":"L2Ew","start_revision":"8","progress_notify":true}}"#,
        ),
    ] {
        assert_eq!((request.path, request.body.as_str()), (path, body));
    }
    let request = request::authenticate("root", "hunter2");
    assert!(request.body.contains("hunter2") && !format!("{request:?}").contains("hunter2"));
}

#[test]
fn leases_are_positive() {
    assert_eq!(LeaseId::from_random(0), LeaseId(1));
    assert_eq!(LeaseId::from_random(u64::MAX), LeaseId(i64::MAX as u64));
}

#[test]
fn answers() {
    let entry =
        r#"{"key":"Zm9v","create_revision":"2","mod_revision":"5","version":"1","value":"YmFy","lease":"1234567"}"#;
    let foo = KeyValue {
        key: "foo".to_owned(),
        value: b"bar".to_vec(),
        created: Revision(2),
        modified: Revision(5),
        lease: Some(LeaseId(1_234_567)),
    };
    let listing = answer::listing(&ok(&format!(r#","kvs":[{entry}],"count":"1""#))).unwrap();
    assert_eq!(listing, Listing { revision: Revision(7), entries: vec![foo.clone()] });
    assert_eq!(answer::listing(&ok("")).unwrap().entries, []);
    assert_eq!(answer::deleted(&ok(r#","deleted":"3""#)), Ok(3));
    let parts = r#","succeeded":true,"responses":[{"response_delete_range":{"header":{"revision":"7"}}},{"response_delete_range":{"deleted":"2"}}]"#;
    assert_eq!(answer::deleted(&ok(parts)), Ok(2));
    assert_eq!(answer::written(&ok(r#","succeeded":true"#)), Ok(Written::Done(Revision(7))));
    let failure =
        format!(r#","responses":[{{"response_range":{{"header":{{"revision":"7"}},"kvs":[{entry}],"count":"1"}}}}]"#);
    assert_eq!(answer::written(&ok(&failure)), Ok(Written::Other(Some(foo))));
    let gone = r#","responses":[{"response_range":{"header":{"revision":"7"}}}]"#;
    assert_eq!(answer::written(&ok(gone)), Ok(Written::Other(None)));
    assert_eq!(answer::seconds(&ok(r#","ID":"777","TTL":"-1""#)), Ok(None));
    assert_eq!(answer::seconds(&ok(r#","ID":"777","TTL":"4","grantedTTL":"5""#)), Ok(Some(4)));
    let kept = format!(r#"{{"result":{{{HEADER},"ID":"777"}}}}"#);
    assert_eq!(answer::seconds(&answer::read_line(200, kept.as_bytes()).unwrap()), Ok(None));
}

#[test]
fn lines_of_a_watch() {
    let put = r#"{"kv":{"key":"Zm9v","create_revision":"2","mod_revision":"8","version":"2","value":"YmFy"}}"#;
    let delete = r#"{"type":"DELETE","kv":{"key":"Zm9v","mod_revision":"9"}}"#;
    let changed = WatchLine::Changed(vec![
        Event::Put(KeyValue {
            key: "foo".to_owned(),
            value: b"bar".to_vec(),
            created: Revision(2),
            modified: Revision(8),
            lease: None,
        }),
        Event::Deleted { key: "foo".to_owned(), modified: Revision(9) },
    ]);
    let line = |rest: &str| watched(&format!(r#"{{"result":{{{HEADER}{rest}}}}}"#));
    assert_eq!(line(r#","created":true"#), Ok(WatchLine::Opened(Revision(7))));
    assert_eq!(line(""), Ok(WatchLine::Idle(Revision(7))));
    assert_eq!(line(&format!(r#","events":[{put},{delete}]"#)), Ok(changed));
    assert_eq!(line(r#","canceled":true,"compact_revision":"3""#), Ok(WatchLine::Compacted(Revision(3))));
    let denied = r#","watch_id":"-1","created":true,"canceled":true,"cancel_reason":"rpc error: code = PermissionDenied desc = etcdserver: permission denied""#;
    assert_eq!(line(denied), Err(Fault::Refused(Refusal::Permission)));
    let expired = r#","created":true,"canceled":true,"cancel_reason":"rpc error: code = Unauthenticated desc = etcdserver: invalid auth token""#;
    assert_eq!(line(expired), Err(Fault::Refused(Refusal::Token)));
    for leaderless in [
        r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}}"#,
        r#"{"error":{"code":14,"message":"etcdserver: no leader","details":[]}}"#,
    ] {
        assert_eq!(watched(leaderless), Err(Fault::Refused(Refusal::NoLeader)));
    }
}

#[test]
fn refusals() {
    for (status, number, text, expected) in [
        (503, 14, "etcdserver: no leader", "NoLeader"),
        (503, 14, "etcdserver: request timed out", "TimedOut"),
        (503, 14, "etcdserver: request timed out, possibly due to previous leader failure", "TimedOut"),
        (503, 14, "etcdserver: leader changed", "TimedOut"),
        (504, 4, "context deadline exceeded", "TimedOut"),
        (503, 14, "etcdserver: server stopped", "Unavailable(\"etcdserver: server stopped\")"),
        (429, 8, "etcdserver: too many requests", "Unavailable(\"etcdserver: too many requests\")"),
        (500, 2, "raft proposal dropped", "Unavailable(\"raft proposal dropped\")"),
        (400, 3, "etcdserver: authentication failed, invalid user ID or password", "Password"),
        (400, 3, "etcdserver: user name is empty", "NoUser"),
        (401, 16, "etcdserver: invalid auth token", "Token"),
        (400, 3, "etcdserver: revision of auth store is old", "Token"),
        (412, 9, "etcdserver: authentication is not enabled", "AuthenticationOff"),
        (403, 7, "etcdserver: permission denied", "Permission"),
        (404, 5, "etcdserver: requested lease not found", "NoLease"),
        (412, 9, "etcdserver: lease already exists", "LeaseExists"),
        (429, 8, "etcdserver: mvcc: database space exceeded", "Full"),
        (400, 3, "etcdserver: request is too large", "TooLarge"),
        (400, 11, "etcdserver: mvcc: required revision has been compacted", "Compacted"),
        (400, 3, "etcdserver: key is not provided", "Other(\"etcdserver: key is not provided\")"),
    ] {
        let expected = format!("Refused({expected})");
        let old = format!(r#"{{"error":"{text}","message":"{text}","code":{number}}}"#);
        assert_eq!(refused(status, &old), expected);
        let new = format!(r#"{{"code":{number},"message":"{text}","details":[]}}"#);
        assert_eq!(refused(status, &new), expected);
    }
}

#[test]
fn other_servers() {
    for (status, body, expected) in [
        (404, "404 page not found\n", "HTTP status 404: 404 page not found"),
        (200, "<!DOCTYPE html>\n<html>", "HTTP status 200: <!DOCTYPE html>"),
        (200, r#"{"status":"up"}"#, r#"HTTP status 200: {"status":"up"}"#),
        (502, "", "HTTP status 502"),
        (400, "Client sent an HTTP request to an HTTPS server.\n", "it expects TLS"),
    ] {
        assert_eq!(refused(status, body), format!("NotEtcd({expected:?})"));
    }
    let invalid = ok(r#","kvs":[{"key":"Zm9","mod_revision":"2"}]"#);
    let fault = answer::listing(&invalid).unwrap_err();
    assert_eq!(fault.to_string(), "`key` of the answer is missing or invalid");
    assert!(answer::is_health(br#"{"health":"false","reason":"RAFT NO LEADER"}"#) && !answer::is_health(b"ok"));
}

proptest! {
    #[test]
    fn no_answer_panics(status: u16, body: Vec<u8>) {
        let _ = answer::read(status, &body);
        let _ = answer::read_line(status, &body).map(|line| answer::watch_line(&line));
    }

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys(prefix in "[a-z/\u{ff}]{1,8}", rest in "\\PC{0,8}") {
        let body: Value = serde_json::from_str(&request::list(&prefix).body).unwrap();
        let bytes = |name: &str| super::base64::decode(body[name].as_str().unwrap()).unwrap();
        let key = format!("{prefix}{rest}").into_bytes();
        prop_assert!(bytes("key") <= key && key < bytes("range_end"));
    }
}
