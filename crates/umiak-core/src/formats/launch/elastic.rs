//! Nodes that meet in etcd, and nodes that come and go.
//!
//! | generation | etcd is used with | keys below |
//! |---|---|---|
//! | current | `--master etcd://…` | `/paddle/<job_id>` |
//! | legacy | `--elastic_server`, `--job_id` and `--np`, or their variables | the same |
//!
//! Paddle's legacy launcher reads a single `N` of `--np` as a minimum of N and a maximum of 1; here it is both.

use std::ffi::OsStr;
use std::time::Duration;

use super::arguments::{Arguments, Source, Value};
use super::checks::Checks;
use super::environment::{Environment, bad_number};
use super::flags::{FLAGS, by_attribute};
use super::mode::Kind;
use super::nodes::range;
use super::words;
use crate::diag::{Code, Diagnostic};
use crate::formats::elastic::{NAMES, SERVICE, by_service};
use crate::formats::{argparse, etcd};
use crate::model::{ELASTIC_WINDOW, Elastic, ElasticLevel, EtcdPlace, Generation, JobId, MAX_NODES, Nodes, Scaling};

/// What `--master` begins with.
const SCHEME: &str = "etcd://";

/// The window of Paddle's legacy launcher.
const LEGACY_WINDOW: Duration = Duration::from_secs(120);

const TIMEOUT: &str = "PADDLE_ELASTIC_TIMEOUT";
const TTL: &str = "PADDLE_ELASTIC_TTL";

/// The flags of the legacy launcher that have variables: those that make a job elastic, then the others.
const VARIABLES: [(&str, &str); 5] = [
    ("elastic_server", NAMES[0].1),
    ("job_id", NAMES[1].1),
    ("np", NAMES[2].1),
    ("scale", "PADDLE_ELASTIC_SCALE"),
    ("force", "PADDLE_ELASTIC_FORCE"),
];

/// Sets flags of the legacy launcher from variables, if the job is elastic: flags win. As in Paddle, variables alone
/// make it so only together.
pub(super) fn from_environment(arguments: &mut Arguments, env: &Environment) -> Vec<Diagnostic> {
    let set = |name: &str| env.get(name).filter(|text| !text.is_empty());
    let has = |(attribute, variable): &(&str, &str)| arguments.is_set(attribute) || set(variable).is_some();
    // Kubernetes sets the variables of a service in every pod, so they do not replace a list of nodes.
    let service = by_service(env).filter(|_| !arguments.is_set("ips") && !has(&VARIABLES[0]));
    let is_elastic = VARIABLES[1..3].iter().all(has) && (has(&VARIABLES[0]) || service.is_some());
    if !is_elastic && !arguments.is_set("elastic_server") {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if let Some(service) = service {
        arguments.put("elastic_server", Value::Text(service.into()), Source::Variable(SERVICE.0));
    }
    for (attribute, variable) in VARIABLES {
        if let (false, Some(text), Some(flag)) =
            (arguments.is_set(attribute), set(variable), by_attribute(FLAGS, attribute))
        {
            errors.extend(arguments.set(flag, Source::Variable(variable), OsStr::new(text)).err());
        }
    }
    errors
}

impl Checks<'_> {
    /// True if the nodes meet in etcd.
    pub(super) fn is_in_etcd(&self) -> bool {
        match self.generation {
            Generation::Current => self.arguments.text("master").is_some_and(|master| master.starts_with(SCHEME)),
            Generation::Legacy => self.arguments.is_set("elastic_server"),
        }
    }

    /// The flag with the members of etcd.
    fn members_flag(&self) -> &'static str {
        match self.generation {
            Generation::Current => "master",
            Generation::Legacy => "elastic_server",
        }
    }

    /// The flag with the number of nodes. The legacy launcher does not have `--nnodes`; without `--np` it means the same.
    fn nodes_flag(&self) -> &'static str {
        let is_np = self.generation == Generation::Legacy && self.arguments.is_set("np");
        if is_np { "np" } else { "nnodes" }
    }

    /// The nodes that meet in etcd; one node if an error is reported.
    pub(super) fn etcd(&mut self, job: &JobId) -> Nodes {
        let source = self.arguments.name(self.members_flag());
        if self.kind != Kind::Collective {
            let what = if self.kind == Kind::Rpc { "rpc jobs" } else { "parameter-server jobs" };
            let message = format!("{what} have a fixed number of nodes, and cannot use etcd");
            let hint =
                format!("leave `{source}` out, and say where the nodes meet with `--master HOST:PORT --nnodes N`");
            self.error(Diagnostic::error(Code::L0002, message).hint(hint));
            return Nodes::One;
        }
        if self.is_from_flag("ips") && self.arguments.is_set("ips") {
            self.idle(self.arguments.name("ips"), "the nodes meet in etcd");
        }
        if self.generation == Generation::Legacy && self.lacks(source) {
            return Nodes::One;
        }
        let text = self.arguments.text(self.members_flag()).unwrap_or_default();
        let members: Vec<&str> =
            text.split(',').map(str::trim).map(|it| it.strip_prefix(SCHEME).unwrap_or(it)).collect();
        let options = etcd::options(&members.join(","), source, self.env);
        let nodes = self.most_nodes();
        let (lease, scaling) = (self.lease(), nodes.map(|nodes| self.scaling(nodes)).unwrap_or_default());
        let (Some(etcd), Some(nodes)) = (self.report(options), nodes) else { return Nodes::One };
        if job.as_str() == "default" {
            self.issues.notices.push(shared_id("--job_id", job));
        }
        let root = format!("/paddle/{job}");
        Nodes::Etcd { at: Box::new(EtcdPlace { etcd, root, lease, scaling }), nodes, source: source.to_owned() }
    }

    /// Reports the flags without which `--elastic_server` says too little.
    fn lacks(&mut self, source: &str) -> bool {
        let given = [self.arguments.is_set("job_id"), self.arguments.is_set(self.nodes_flag())];
        let missing: Vec<&str> =
            NAMES[1..].iter().zip(given).filter(|(_, is_given)| !is_given).map(|(names, _)| names.0).collect();
        if missing.is_empty() {
            return false;
        }
        let message = format!("`{source}` needs {}", words::both(&missing));
        let hint = "`--job_id` names the job in etcd, and `--np` is its number of nodes: `--job_id job1 --np 2`";
        self.error(Diagnostic::error(Code::L0001, message).hint(hint));
        true
    }

    /// `None` if the number is wrong, which is then reported.
    fn most_nodes(&mut self) -> Option<u32> {
        let attribute = self.nodes_flag();
        let is_given = self.arguments.int(attribute).is_some() || self.arguments.text(attribute).is_some();
        if is_given { self.range(attribute).map(|(_, max)| max) } else { Some(1) }
    }

    /// `PADDLE_ELASTIC_TTL`, which only the legacy launcher reads.
    fn lease(&mut self) -> Option<Duration> {
        let number = self.seconds(TTL)?;
        if number <= 0 {
            let message = format!("`{TTL}` must be greater than zero, and is {number}");
            self.error(Diagnostic::error(Code::L0009, message).hint(format!("correct `{TTL}`, or unset it")));
        }
        Some(bounded(number))
    }

    /// The number of seconds in a variable of the legacy launcher.
    fn seconds(&mut self, variable: &'static str) -> Option<i64> {
        if self.generation == Generation::Current {
            return None;
        }
        let text = self.env.get(variable).filter(|text| !text.is_empty())?;
        let number = argparse::int(text);
        let error = bad_number(variable, self.env);
        // The current launcher's variables are checked before the generation is known.
        if number.is_none() && self.issues.errors.iter().all(|known| known.message != error.message) {
            self.error(error);
        }
        number
    }

    /// `--scale` and `--force`. With both, the number is replaced.
    fn scaling(&mut self, nodes: u32) -> Scaling {
        let change = self.arguments.int("scale").unwrap_or(0);
        if self.arguments.is_switched_on("force") {
            if change != 0 && self.is_from_flag("scale") {
                self.idle("--scale", "`--force` replaces the number of nodes");
            }
            return Scaling::Replace;
        }
        if change == 0 {
            return Scaling::Same;
        }
        let changed = i64::from(nodes).saturating_add(change);
        if !(1..=i64::from(MAX_NODES)).contains(&changed) {
            let (name, number) = (self.arguments.name("scale"), self.arguments.name(self.nodes_flag()));
            let message = format!("`{name}` is {change}, which makes {changed} nodes of {nodes} in `{number}`");
            self.error(self.wrong_value("scale", message).hint(format!("a job has from 1 to {MAX_NODES} nodes")));
        }
        Scaling::By(change)
    }

    /// How nodes come and go: always with etcd, otherwise with a range of `--nnodes`. Only nodes that meet at a master
    /// can do so, and only in jobs without servers.
    pub(super) fn elastic(&mut self, nodes: &Nodes) -> Option<Elastic> {
        let given = self.arguments.text(self.nodes_flag()).and_then(range);
        let min = match (nodes, given) {
            (Nodes::Etcd { nodes, .. }, None) => i64::from(*nodes),
            (Nodes::Etcd { .. }, Some((min, _))) => min,
            (_, Some((min, max))) if min < max && self.generation == Generation::Current && !self.is_in_etcd() => {
                self.check_range(nodes);
                min
            }
            _ => return None,
        };
        Some(Elastic {
            min: u32::try_from(min).unwrap_or(1),
            window: self.window(),
            level: self.level(),
            pre_hook: self.arguments.text("elastic_pre_hook").map(str::to_owned),
        })
    }

    fn check_range(&mut self, nodes: &Nodes) {
        let hint = match nodes {
            _ if self.kind.has_servers() => "parameter-server jobs have a fixed number of nodes",
            Nodes::One | Nodes::List { .. } => "say where the nodes meet with `--master HOST:PORT`",
            Nodes::Master { .. } | Nodes::Auto { .. } | Nodes::Etcd { .. } => return,
        };
        let (name, text) = (self.arguments.name("nnodes"), self.arguments.text("nnodes").unwrap_or_default());
        let message = format!("`{name} {text}` cannot be used here: no nodes can come and go");
        self.error(Diagnostic::error(Code::L0002, message).hint(hint));
    }

    /// A negative time is none, as in Paddle.
    fn window(&mut self) -> Duration {
        let default = match self.generation {
            Generation::Current => ELASTIC_WINDOW,
            Generation::Legacy => LEGACY_WINDOW,
        };
        self.seconds(TIMEOUT).or_else(|| self.arguments.int("elastic_timeout")).map_or(default, bounded)
    }

    /// Paddle's default of -1 is used only if it is given. In the legacy launcher the level follows from `--np`, and its
    /// variable has no effect.
    fn level(&mut self) -> ElasticLevel {
        match self.arguments.int("elastic_level").filter(|_| self.generation == Generation::Current) {
            None | Some(1) => ElasticLevel::Ranks,
            Some(0) => ElasticLevel::Nodes,
            Some(-1) => ElasticLevel::Off,
            Some(level) => {
                let message = format!("`{}` is {level}, and must be -1, 0 or 1", self.arguments.name("elastic_level"));
                let hint = "-1: nothing starts again; 0: a node whose rank fails ends, and the others start again; 1: all ranks start again";
                self.error(self.wrong_value("elastic_level", message).hint(hint));
                ElasticLevel::Ranks
            }
        }
    }

    /// Flags of elastic jobs that have no effect with these nodes.
    pub(super) fn idle_about_elastic(&mut self, nodes: &Nodes, is_elastic: bool) {
        let in_etcd = matches!(nodes, Nodes::Etcd { .. });
        let is_legacy = self.generation == Generation::Legacy;
        for (attribute, is_idle, why) in [
            ("elastic_level", is_elastic && is_legacy, "the legacy launcher does not have it"),
            ("elastic_level", !is_elastic, NOT_ELASTIC),
            ("elastic_pre_hook", !is_elastic, NOT_ELASTIC),
            // Without etcd, the current launcher does not have them, and they are reported as such.
            ("scale", is_legacy && !in_etcd, NOT_IN_ETCD),
            ("force", is_legacy && !in_etcd, NOT_IN_ETCD),
        ] {
            if is_idle && self.asks(attribute) && self.is_from_flag(attribute) {
                self.idle(self.arguments.name(attribute), why);
            }
        }
    }
}

const NOT_ELASTIC: &str = "the job has neither etcd nor a range of nodes";
const NOT_IN_ETCD: &str = "the nodes do not meet in etcd";

/// Longer times are as good as none.
fn bounded(seconds: i64) -> Duration {
    Duration::from_secs(u32::try_from(seconds.max(0)).unwrap_or(u32::MAX).into())
}

/// The notice about an id that every job has by default.
pub(super) fn shared_id(flag: &str, job: &JobId) -> Diagnostic {
    let message = format!("the job has the id `{job}` in etcd, as every job without `{flag}`");
    Diagnostic::notice(Code::R0043, message)
        .hint(format!("give each job its own `{flag}`, so that nodes do not join another job"))
}

/// Every variable that is read here.
#[cfg(test)]
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    VARIABLES.into_iter().map(|(_, variable)| variable).chain([TIMEOUT, TTL, SERVICE.0, SERVICE.1])
}
