//! The control plane: etcd, the API server, the controllers and the scheduler, and the certificates of all.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use serde_json::json;

use super::daemon::Daemon;
use super::{Kube, words};
use crate::pem;

/// Where the API server listens in the cluster.
pub(super) const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 6443);

/// The users of the cluster: token and name of the file with their credentials, user, groups.
const USERS: [(&str, &str, &str); 5] = [
    ("admin", "admin", "system:masters"),
    ("controllers", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("node1", "system:node:node1", "system:nodes"),
    ("node2", "system:node:node2", "system:nodes"),
];

/// With the usual limits the controllers start one after the other, for seconds.
const CONTROLLERS: &str =
    "--node-monitor-period=1s --kube-api-qps=500 --kube-api-burst=1000 --use-service-account-credentials";
const SERVER: &str = "--advertise-address=10.244.0.1 --authorization-mode=Node,RBAC \
     --service-account-issuer=https://kubernetes.default.svc --kubelet-preferred-address-types=InternalIP \
     --service-cluster-ip-range=10.96.0.0/16 --endpoint-reconciler-type=none --profiling=false \
     --requestheader-allowed-names=none --requestheader-username-headers=X-Remote-User \
     --default-unreachable-toleration-seconds=5 --default-not-ready-toleration-seconds=5";

/// Makes all certificates, tokens and kubeconfig files.
pub(super) fn prepare(directory: &Path) {
    let both = "extendedKeyUsage=serverAuth,clientAuth";
    let server = |names: &str| format!("subjectAltName={names}\n{both}");
    let names = "IP:127.0.0.1,IP:10.244.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,\
         DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local";
    pem::make(directory, "ca", "/CN=umiak-testkit", None, "basicConstraints=critical,CA:TRUE");
    pem::openssl(directory, &["base64", "-A", "-in", "ca.pem", "-out", "ca.base64"]);
    pem::make(directory, "apiserver", "/CN=kube-apiserver", Some("ca"), &server(names));
    pem::make(directory, "kubelet-client", "/O=system:masters/CN=kubelet-client", Some("ca"), both);
    pem::make(directory, "kubelet", "/CN=kubelet", Some("ca"), &server("IP:10.244.0.1,IP:10.244.0.2"));
    pem::make(directory, "webhook", "/CN=webhook", Some("ca"), &server("IP:127.0.0.1"));
    // Of service accounts.
    pem::make(directory, "accounts", "/CN=accounts", None, both);
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("our own directory");
    let mut tokens = String::new();
    for (name, user, group) in USERS {
        let token = format!("{:032x}", fastrand::u128(..));
        let group = if group.is_empty() { String::new() } else { format!(",{group:?}") };
        let _ = writeln!(tokens, "{token},{user},{name}{group}");
        write(&format!("{name}.token"), &token);
        write(&format!("{name}.kubeconfig"), &kubeconfig(directory, API, &token));
    }
    write("tokens", &tokens);
}

/// The configuration of a client, in the JSON that YAML includes.
pub(super) fn kubeconfig(directory: &Path, server: SocketAddr, token: &str) -> String {
    let authority = directory.join("ca.pem");
    let value = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "test",
            "cluster": { "server": format!("https://{server}"), "certificate-authority": authority },
        }],
        "users": [{ "name": "test", "user": { "token": token } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test", "namespace": "default" } }],
        "current-context": "test",
    });
    format!("{value:#}\n")
}

impl Kube {
    pub(super) fn start_etcd_and_server(&self) {
        let at = self.directory.path().display();
        let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        let arguments = format!(
            "--data-dir={at}/etcd --listen-client-urls={client} --advertise-client-urls={client} \
             --listen-peer-urls={peer} --initial-advertise-peer-urls={peer} --initial-cluster=default={peer} \
             --unsafe-no-fsync"
        );
        self.start_daemon(Daemon::Etcd, "etcd", words(&arguments));
        let arguments = format!(
            "{SERVER} --etcd-servers={client} --bind-address={} --secure-port={} --token-auth-file={at}/tokens \
             --service-account-key-file={at}/accounts.key --service-account-signing-key-file={at}/accounts.key \
             --client-ca-file={at}/ca.pem --requestheader-client-ca-file={at}/ca.pem --tls-cert-file={at}/apiserver.pem --tls-private-key-file={at}/apiserver.key \
             --kubelet-client-certificate={at}/kubelet-client.pem --kubelet-client-key={at}/kubelet-client.key \
             --kubelet-certificate-authority={at}/ca.pem --cert-dir={at}/apiserver",
            API.ip(),
            API.port(),
        );
        self.start_program(Daemon::ApiServer, "kube-apiserver", words(&arguments));
    }

    pub(super) fn start_controllers_and_scheduler(&self, silence: u32) {
        let at = self.directory.path().display();
        let common = |user: &str, name: &str| {
            let file = format!("{at}/{user}.kubeconfig");
            format!(
                "--kubeconfig={file} --authentication-kubeconfig={file} --authorization-kubeconfig={file} \
                 --bind-address=127.0.0.1 --leader-elect=false --profiling=false --cert-dir={at}/{name}"
            )
        };
        let name = "kube-controller-manager";
        let arguments = format!(
            "{} {CONTROLLERS} --node-monitor-grace-period={silence}s --root-ca-file={at}/ca.pem \
             --service-account-private-key-file={at}/accounts.key",
            common("controllers", name)
        );
        self.start_program(Daemon::ControllerManager, name, words(&arguments));
        let name = "kube-scheduler";
        self.start_program(Daemon::Scheduler, name, words(&common("scheduler", name)));
    }

    /// Without its service account a namespace refuses pods.
    pub(super) fn wait_for_account(&self, namespace: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
        self.wait(&format!("the service account of {namespace}"), || self.api.get(&path).is_some());
    }
}
