//! Settings of etcd: a list of members, and umiak's variables for TLS and a user.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::diag::{Code, Diagnostic};
use crate::model::{EtcdEndpoint, EtcdOptions, EtcdTls, EtcdUser, InvalidEtcdEndpoint};

/// The settings. `servers` are separated by commas; `name` is the flag or variable that has them.
pub fn options(servers: &str, name: &str, env: &BTreeMap<String, String>) -> Result<EtcdOptions, Diagnostic> {
    let mut endpoints = Vec::new();
    for text in servers.split(',').map(str::trim) {
        let endpoint = text.parse::<EtcdEndpoint>().map_err(|why| invalid(name, text, why))?;
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    let variable = |name: &str| env.get(name).filter(|text| !text.is_empty());
    let file = |name: &str| variable(name).map(PathBuf::from);
    let together = |first: &str, second: &str| {
        let message = format!("`{first}` is set without `{second}`");
        Diagnostic::error(Code::R0038, message).hint("set both, or none")
    };
    let identity = match (file("UMIAK_ETCD_CERT_FILE"), file("UMIAK_ETCD_KEY_FILE")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(together("UMIAK_ETCD_CERT_FILE", "UMIAK_ETCD_KEY_FILE")),
        (None, Some(_)) => return Err(together("UMIAK_ETCD_KEY_FILE", "UMIAK_ETCD_CERT_FILE")),
    };
    let ca = file("UMIAK_ETCD_CA_FILE");
    let tls = (ca.is_some() || identity.is_some()).then_some(EtcdTls { ca, identity });
    let user = match (variable("UMIAK_ETCD_USER"), variable("UMIAK_ETCD_PASSWORD")) {
        (Some(name), Some(password)) => Some(EtcdUser { name: name.clone(), password: password.clone() }),
        (None, None) => None,
        (Some(_), None) => return Err(together("UMIAK_ETCD_USER", "UMIAK_ETCD_PASSWORD")),
        (None, Some(_)) => return Err(together("UMIAK_ETCD_PASSWORD", "UMIAK_ETCD_USER")),
    };
    Ok(EtcdOptions { endpoints, tls, user })
}

fn invalid(name: &str, text: &str, why: InvalidEtcdEndpoint) -> Diagnostic {
    let diagnostic = Diagnostic::error(Code::R0038, format!("`{name}` has an invalid address of etcd"));
    // What is before the `@` may be a password.
    let diagnostic = match why {
        InvalidEtcdEndpoint::User => diagnostic,
        _ => diagnostic.row("address", text),
    };
    diagnostic.row("reason", why.to_string()).hint("write `HOST:PORT`; several are separated by commas")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(text: &str) -> BTreeMap<String, String> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (format!("UMIAK_ETCD_{name}"), value.to_owned())).collect()
    }

    fn told(servers: &str, variables: &str) -> String {
        options(servers, "--elastic_server", &env(variables)).unwrap_err().to_plain()
    }

    #[test]
    fn members_files_and_user() {
        let all = "CA_FILE=/ca CERT_FILE=/c KEY_FILE=/k USER=ann PASSWORD=hunter2";
        let options = options("a:1, https://b,a:1", "x", &env(all)).unwrap();
        assert_eq!(options.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:1", "https://b:2379"]);
        let tls = EtcdTls { ca: Some("/ca".into()), identity: Some(("/c".into(), "/k".into())) };
        assert_eq!(options.tls, Some(tls));
        assert_eq!(options.user.unwrap().name, "ann");
        assert_eq!(super::options("a", "x", &env("CA_FILE=")).unwrap().tls, None);
    }

    #[test]
    fn errors() {
        assert_eq!(
            told("a:1,b:x", ""),
            "error[R0038]: `--elastic_server` has an invalid address of etcd\n  address  b:x\n  reason   the port must be a number from 1 to 65535\nhint: write `HOST:PORT`; several are separated by commas\n"
        );
        let message = told("http://root:hunter2@a", "");
        assert!(message.contains("UMIAK_ETCD_PASSWORD") && !message.contains("hunter2"), "{message}");
        assert_eq!(
            told("a", "USER=ann"),
            "error[R0038]: `UMIAK_ETCD_USER` is set without `UMIAK_ETCD_PASSWORD`\nhint: set both, or none\n"
        );
        assert!(told("a", "KEY_FILE=/k").contains("`UMIAK_ETCD_KEY_FILE` is set without `UMIAK_ETCD_CERT_FILE`"));
    }
}
