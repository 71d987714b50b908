//! `--rdzv-conf`: options of the rendezvous.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::Reading;
use super::nodes::Backend;
use crate::diag::{Code, Diagnostic};
use crate::formats::{argparse, etcd};
use crate::model::{EtcdOptions, EtcdPlace, EtcdTls, JobId, Scaling};

/// Keys of every backend; those with an effect are read below.
const KEYS: [&str; 15] = [
    "cas_backoff_max_seconds",
    "close_timeout",
    "heartbeat_timeout",
    "is_host",
    "join_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "last_call_timeout",
    "rank",
    "read_timeout",
    "store_type",
    "timeout",
    "use_libuv",
    "max_nodes",
    "min_nodes",
];

/// Keys of `etcd`, then those that `etcd-v2` has instead.
const ETCD_KEYS: [&str; 8] =
    ["etcd_prefix", "protocol", "cacert", "cert", "key", "ca_cert", "ssl_cert", "ssl_cert_key"];

/// Where `etcd` keeps its keys.
const PREFIX: &str = "/torchelastic/p2p";

/// torchrun's defaults of `keep_alive_interval` and `keep_alive_max_attempt`.
const INTERVAL: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 3;

/// The options with an effect.
#[derive(Debug, Default)]
pub(super) struct Conf {
    /// `join_timeout` of c10d, `timeout` of the others.
    pub(super) timeout: Option<Duration>,
    pub(super) window: Option<Duration>,
    interval: Option<Duration>,
    attempts: Option<u32>,
    protocol: Option<&'static str>,
    prefix: Option<String>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Conf {
    /// The time after which a silent node is lost, if one of its two factors is given.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        let is_given = self.interval.is_some() || self.attempts.is_some();
        let time = self.interval.unwrap_or(INTERVAL).saturating_mul(self.attempts.unwrap_or(ATTEMPTS));
        is_given.then_some(time)
    }

    /// The place where the nodes of a job meet. `servers` are the members of etcd, `name` is their flag.
    pub(super) fn place(
        &self,
        servers: &str,
        name: &str,
        job: &JobId,
        env: &BTreeMap<String, String>,
    ) -> Result<EtcdPlace, Diagnostic> {
        let with_scheme = |member: &str| match self.protocol {
            Some(protocol) if !member.contains("://") => format!("{protocol}://{member}"),
            _ => member.to_owned(),
        };
        let members: Vec<String> = servers.split(',').map(|member| with_scheme(member.trim())).collect();
        let EtcdOptions { endpoints, tls, user } = etcd::options(&members.join(","), name, env)?;
        let EtcdTls { ca, identity } = tls.unwrap_or_default();
        let ca = self.ca.clone().or(ca);
        let identity = match (&self.certificate, &self.key) {
            // A file may have both.
            (Some(certificate), key) => Some((certificate.clone(), key.as_ref().unwrap_or(certificate).clone())),
            (None, Some(_)) => {
                let error = Diagnostic::error(Code::R0038, "`--rdzv-conf` has `key` without `cert`");
                return Err(error.hint("give both: `--rdzv-conf cert=FILE,key=FILE`"));
            }
            (None, None) => identity,
        };
        let tls = (ca.is_some() || identity.is_some()).then_some(EtcdTls { ca, identity });
        let root = format!("{}/{job}", self.prefix.as_deref().unwrap_or(PREFIX));
        let etcd = EtcdOptions { endpoints, tls, user };
        Ok(EtcdPlace { etcd, root, lease: self.keep_alive(), scaling: Scaling::Same })
    }
}

impl Reading<'_> {
    pub(super) fn conf(&mut self, backend: Backend) -> Conf {
        let mut conf = Conf::default();
        let Some(text) = self.arguments.text("rdzv_conf") else { return conf };
        for entry in text.split(',') {
            let (key, value) = entry.split_once('=').map_or((entry, ""), |(key, value)| (key.trim(), value.trim()));
            if key.is_empty() || value.is_empty() {
                self.wrong("rdzv_conf", "keys and values, as in `join_timeout=600,read_timeout=60`", text);
                return conf;
            }
            let is_known = KEYS.contains(&key) || backend == Backend::Etcd && ETCD_KEYS.contains(&key);
            if !is_known {
                self.issues.idle(&format!("--rdzv-conf {key}"), "it is not an option of this backend");
                continue;
            }
            match key {
                // Each backend has its own name for it; the other one's is meant alike.
                "timeout" | "join_timeout" => conf.timeout = self.seconds(key, value),
                "last_call_timeout" => conf.window = self.seconds(key, value),
                "keep_alive_interval" => conf.interval = self.seconds(key, value),
                "keep_alive_max_attempt" => {
                    let number = argparse::int(value).and_then(|number| u32::try_from(number).ok());
                    conf.attempts = number.filter(|number| *number > 0);
                    if conf.attempts.is_none() {
                        self.wrong("rdzv_conf", &format!("a number from 1 up for `{key}`"), value);
                    }
                }
                "protocol" => match value.to_ascii_lowercase().as_str() {
                    "http" => conf.protocol = Some("http"),
                    "https" => conf.protocol = Some("https"),
                    _ => self.wrong("rdzv_conf", "`http` or `https` for `protocol`", value),
                },
                "etcd_prefix" => {
                    let names = value.trim_matches('/');
                    conf.prefix = Some(if names.is_empty() { String::new() } else { format!("/{names}") });
                }
                "cacert" | "ca_cert" => conf.ca = Some(value.into()),
                "cert" | "ssl_cert" => conf.certificate = Some(value.into()),
                "key" | "ssl_cert_key" => conf.key = Some(value.into()),
                _ => {}
            }
        }
        conf
    }

    fn seconds(&mut self, key: &str, value: &str) -> Option<Duration> {
        let seconds = value.parse::<f64>().ok().filter(|seconds| (0.001..1e9).contains(seconds));
        if seconds.is_none() {
            self.wrong("rdzv_conf", &format!("seconds for `{key}`"), value);
        }
        seconds.map(Duration::from_secs_f64)
    }
}
