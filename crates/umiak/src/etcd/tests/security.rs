//! TLS and users.

use umiak_core::model::{EtcdTls, EtcdUser};
use umiak_core::wire::etcd::Revision;
use umiak_testkit::etcd::{Certificates, Cluster, Setup};

use super::super::{Etcd, WatchNews};
use super::{is_missing, options, short, wait};

/// How an attempt to read a key ends: `ok`, or the message.
fn read(servers: &str, tls: Option<EtcdTls>, user: Option<(&str, &str)>, key: &str) -> String {
    let user = user.map(|(name, password)| EtcdUser { name: name.to_owned(), password: password.to_owned() });
    let options = super::EtcdOptions { tls, user, ..options(servers) };
    let result = Etcd::with_limits(options, short()).and_then(|etcd| wait(etcd.get(key)));
    result.map_or_else(|error| error.diagnostic().to_plain(), |_| "ok".to_owned())
}

#[test]
fn certificates_on_both_sides() {
    if is_missing() {
        return;
    }
    let pem = Certificates::new();
    let arguments =
        ["--client-cert-auth".to_owned(), "--trusted-ca-file".to_owned(), pem.path("ca.pem").display().to_string()];
    let cluster =
        Cluster::with(1, &Setup { certificates: Some(&pem), arguments: arguments.to_vec(), ..Setup::default() });
    let (address, port) = (cluster.address(0), cluster.port(0));
    let tls = |ca: Option<&str>, identity: Option<&str>| {
        let identity = identity.map(|name| (pem.path(&format!("{name}.pem")), pem.path(&format!("{name}.key"))));
        Some(EtcdTls { ca: ca.map(|name| pem.path(name)), identity })
    };
    let read = |address: &str, tls| read(address, tls, None, "/a");
    assert_eq!(read(&address, tls(Some("ca.pem"), Some("client"))), "ok");
    assert_eq!(read(&format!("https://{address}"), tls(Some("ca.pem"), Some("client"))), "ok");
    for (wrong, text) in [
        (read(&address, tls(Some("other.pem"), Some("client"))), "signed by an unknown authority"),
        (read(&format!("https://{address}"), None), "signed by an unknown authority"),
        (
            read(&format!("localhost:{port}"), tls(Some("ca.pem"), Some("client"))),
            "the server's certificate is for other names",
        ),
        (read(&format!("http://{address}"), None), "hint: if etcd uses TLS, write the address with `https://`"),
    ] {
        assert!(wrong.contains(text), "{wrong}");
    }
    // The server's answer comes after the client has begun to send: it must not depend on who is faster.
    for _ in 0..20 {
        let wrong = read(&address, tls(Some("ca.pem"), None));
        assert!(wrong.starts_with("error[R0031]") && wrong.contains("requires a client certificate"), "{wrong}");
        let wrong = read(&address, tls(Some("ca.pem"), Some("other")));
        assert!(wrong.contains("does not accept the client certificate"), "{wrong}");
    }
    // A watch through TLS.
    let etcd = Etcd::new(super::EtcdOptions { tls: tls(Some("ca.pem"), Some("client")), ..options(&address) }).unwrap();
    wait(etcd.put("/n/a", b"1", None)).unwrap();
    let mut watch = etcd.watch("/n/", Revision(1)).unwrap();
    assert!(matches!(wait(watch.next()), Some(WatchNews::Changed(_))));
}

#[test]
fn files_that_cannot_be_used() {
    let read = |tls| read("127.0.0.1:1", Some(tls), None, "/a");
    let missing = EtcdTls { ca: Some("/missing.pem".into()), identity: None };
    let told = read(missing);
    assert!(
        told.starts_with("error[R0038]: the file of `UMIAK_ETCD_CA_FILE` cannot be used\n  file    /missing.pem\n"),
        "{told}"
    );
    let empty = EtcdTls { ca: Some("/dev/null".into()), identity: None };
    let told = read(empty);
    assert!(told.contains("it contains no certificate"), "{told}");
}

#[test]
fn a_server_without_tls() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let told = read(&format!("https://{}", cluster.address(0)), None, None, "/a");
    assert!(told.contains("hint: if etcd does not use TLS, write the address with `http://`"), "{told}");
}

#[test]
fn users_and_permissions() {
    if is_missing() {
        return;
    }
    let cluster = Cluster::start(1);
    let address = cluster.address(0);
    let ann = Some(("ann", "hunter2-ann"));
    assert_eq!(read(&address, None, ann, "/a"), "ok", "without authentication, a user is no error");
    cluster.authenticate();
    assert_eq!(read(&address, None, ann, "/paddle/j"), "ok");
    assert_eq!(read(&address, None, Some(("root", "hunter2-root")), "/a"), "ok");
    for (user, key, text) in [
        (ann, "/a", "error[R0033]: no permission for `/a` in etcd\n  user    ann\n"),
        (
            Some(("ann", "hunter2-wrong")),
            "/paddle/j",
            "error[R0032]: etcd refused the user or the password\n  user    ann\n",
        ),
        (None, "/paddle/j", "error[R0032]: etcd requires a user and a password\n"),
    ] {
        let told = read(&address, None, user, key);
        assert!(told.starts_with(text) && !told.contains("hunter2"), "{told}");
    }
}

/// A member that restarts has forgotten its sessions, and tokens expire.
#[test]
fn sessions_are_renewed() {
    if is_missing() {
        return;
    }
    let arguments = vec!["--auth-token-ttl".to_owned(), "1".to_owned()];
    // Since 3.5 the time of tokens can be set; before, they live for 5 minutes.
    let has_ttl =
        umiak_testkit::components::Component::Etcd.version().is_some_and(|version| !version.starts_with("3.4"));
    let mut cluster =
        Cluster::with(1, &Setup { arguments: if has_ttl { arguments } else { Vec::new() }, ..Setup::default() });
    cluster.authenticate();
    let servers = cluster.address(0);
    let ann = || {
        let user = Some(EtcdUser { name: "ann".to_owned(), password: "hunter2-ann".to_owned() });
        Etcd::new(super::EtcdOptions { user, ..options(&servers) }).unwrap()
    };
    let etcd = ann();
    wait(etcd.put("/paddle/a", b"1", None)).unwrap();
    let mut watch = etcd.watch("/paddle/", Revision(1)).unwrap();
    assert!(matches!(wait(watch.next()), Some(WatchNews::Changed(_))));
    cluster.kill(0);
    cluster.restart(0);
    // Another client's session is new; the one of the watch must be renewed by the watch.
    wait(ann().put("/paddle/b", b"1", None)).unwrap();
    let news = wait(async {
        loop {
            match watch.next().await {
                Some(WatchNews::Lost(_) | WatchNews::Regained) => {}
                other => return other,
            }
        }
    });
    assert!(matches!(&news, Some(WatchNews::Changed(_))), "{news:?}");
    wait(etcd.put("/paddle/c", b"1", None)).unwrap();
    // A watch without permission fails, and does not try for ever.
    let mut denied = etcd.watch("/other/", Revision(1)).unwrap();
    let news = wait(denied.next());
    let Some(WatchNews::Failed(error)) = news else { panic!("{news:?}") };
    assert!(error.diagnostic().message.contains("no permission for `/other/`"), "{error:?}");
}
