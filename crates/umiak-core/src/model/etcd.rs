//! How an etcd cluster is reached: its members, TLS, a user.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use super::{Endpoint, Host, Port};

/// The port of etcd's clients.
const PORT: u16 = 2379;

/// How a cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// Members, in the user's order; at least one.
    pub endpoints: Vec<EtcdEndpoint>,
    /// Members without a scheme are reached by TLS if this is set.
    pub tls: Option<EtcdTls>,
    pub user: Option<EtcdUser>,
}

/// Files in PEM format.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EtcdTls {
    /// Certificates of the authorities that sign members; those of the system if absent.
    pub ca: Option<PathBuf>,
    /// This client's certificate and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd. The password is never shown, not even by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    pub name: String,
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// One member: `host`, `host:port`, `http://host:port` or `https://host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdEndpoint {
    pub at: Endpoint<Host>,
    /// True for `https`, `None` without a scheme.
    pub is_secure: Option<bool>,
}

/// An invalid member. The text is not repeated: it may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvalidEtcdEndpoint {
    #[error("the host is missing")]
    NoHost,
    #[error("the port must be a number from 1 to 65535")]
    Port,
    #[error("the scheme must be `http` or `https`")]
    Scheme,
    #[error("a user belongs into `UMIAK_ETCD_USER`, and a password into `UMIAK_ETCD_PASSWORD`")]
    User,
    #[error("only a host and a port are allowed")]
    Rest,
    #[error("an IPv6 address is written in brackets: `[::1]:2379`")]
    Brackets,
}

impl FromStr for EtcdEndpoint {
    type Err = InvalidEtcdEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (is_secure, rest) = match text.split_once("://") {
            None => (None, text),
            Some(("http", rest)) => (Some(false), rest),
            Some(("https", rest)) => (Some(true), rest),
            Some(_) => return Err(InvalidEtcdEndpoint::Scheme),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err(InvalidEtcdEndpoint::User);
        }
        if rest.contains(|c: char| matches!(c, '/' | '?' | '#' | '\\') || c.is_whitespace() || c.is_control()) {
            return Err(InvalidEtcdEndpoint::Rest);
        }
        let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
            let (host, port) = inner.split_once(']').ok_or(InvalidEtcdEndpoint::Brackets)?;
            let address = host.parse().map_err(|_| InvalidEtcdEndpoint::Brackets)?;
            let port = if port.is_empty() { None } else { Some(port.strip_prefix(':').unwrap_or("")) };
            (Host::Address(std::net::IpAddr::V6(address)), port)
        } else {
            let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
            if port.is_some_and(|port| port.contains(':')) {
                return Err(InvalidEtcdEndpoint::Brackets);
            }
            (Host::from(host.to_owned()), port)
        };
        if matches!(&host, Host::Name(name) if name.is_empty()) {
            return Err(InvalidEtcdEndpoint::NoHost);
        }
        let port = port.map_or(Some(PORT), |port| port.parse().ok()).and_then(Port::new);
        Ok(Self { at: Endpoint { address: host, port: port.ok_or(InvalidEtcdEndpoint::Port)? }, is_secure })
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_secure {
            Some(true) => write!(f, "https://{}", self.at),
            Some(false) | None => self.at.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members() {
        for (text, expected) in [
            ("127.0.0.1:2379", "127.0.0.1:2379"),
            ("etcd", "etcd:2379"),
            ("http://etcd.svc:80/", "etcd.svc:80"),
            ("https://etcd", "https://etcd:2379"),
            ("[::1]:2390", "[::1]:2390"),
            ("https://[fe80::1]", "https://[fe80::1]:2379"),
            ("", "the host is missing"),
            (":2379", "the host is missing"),
            ("etcd:", "the port must be a number from 1 to 65535"),
            ("etcd:0", "the port must be a number from 1 to 65535"),
            ("etcd:70000", "the port must be a number from 1 to 65535"),
            ("[::1]2379", "the port must be a number from 1 to 65535"),
            ("::1", "an IPv6 address is written in brackets: `[::1]:2379`"),
            ("[::1", "an IPv6 address is written in brackets: `[::1]:2379`"),
            ("etcd:2379/v3", "only a host and a port are allowed"),
            ("a b:1", "only a host and a port are allowed"),
            ("grpc://etcd", "the scheme must be `http` or `https`"),
            (
                "http://root:hunter2@etcd",
                "a user belongs into `UMIAK_ETCD_USER`, and a password into `UMIAK_ETCD_PASSWORD`",
            ),
        ] {
            let shown = match text.parse::<EtcdEndpoint>() {
                Ok(endpoint) => endpoint.to_string(),
                Err(error) => error.to_string(),
            };
            assert_eq!(shown, expected, "{text}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let user = EtcdUser { name: "root".to_owned(), password: "hunter2".to_owned() };
        assert_eq!(format!("{user:?}"), "EtcdUser { name: \"root\", .. }");
    }
}
