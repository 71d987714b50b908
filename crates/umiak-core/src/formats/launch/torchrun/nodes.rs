//! Where the nodes of a `torchrun` job meet, and which of them hosts the store.

use std::net::IpAddr;
use std::time::Duration;

use super::Reading;
use super::conf::Conf;
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;
use crate::formats::launch::allocation::{Allocation, Found, Left};
use crate::formats::launch::elastic::shared_id;
use crate::model::{ELASTIC_WINDOW, Elastic, EtcdPlace, JobId, MAX_NODES, Nodes, Placement, Port, StoreHost};

/// torchrun's ports.
const STATIC_PORT: u16 = 29_500;
const C10D_PORT: u16 = 29_400;

/// What the flags of the rendezvous say.
pub(super) struct Meeting {
    pub(super) nodes: Nodes,
    pub(super) placement: Option<Placement>,
    pub(super) elastic: Option<Elastic>,
    pub(super) store: StoreHost,
    pub(super) job_id: JobId,
    /// `--rdzv-id` names the job.
    pub(super) is_named: bool,
    pub(super) random_id: bool,
    pub(super) host: Option<IpAddr>,
    pub(super) node_rank: Option<u32>,
    /// Longest wait for all nodes.
    pub(super) timeout: Option<Duration>,
    /// Silence after which a node is lost.
    pub(super) node_timeout: Option<Duration>,
}

/// How nodes find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Static,
    C10d,
    Etcd,
}

impl Reading<'_> {
    pub(super) fn meeting(&mut self, port: Option<Port>) -> Meeting {
        let (min, count) = self.count();
        let standalone = self.arguments.is_switched_on("standalone");
        if standalone && count > 1 {
            let error = Diagnostic::error(Code::L0002, "`--standalone` starts one node, but `--nnodes` asks for more");
            self.error(error.hint("leave `--standalone` out, and say where the nodes meet with `--rdzv-endpoint`"));
        }
        let backend = if standalone { Backend::C10d } else { self.backend() };
        if min < count && backend == Backend::Static && !standalone {
            let message = format!("`--nnodes {min}:{count}` cannot be used with the backend `static`");
            let hint = "nodes come and go with `--rdzv-backend c10d --rdzv-endpoint HOST:29400`";
            self.error(Diagnostic::error(Code::L0002, message).hint(hint));
        }
        let allocation = if standalone || backend == Backend::Etcd { None } else { self.allocated(min, count, port) };
        if let Some(allocation) = allocation {
            return self.allocated_meeting(*allocation, backend);
        }
        let endpoint = if standalone { None } else { self.endpoint(backend, count) };
        // Without an endpoint or a port, torchrun makes a rendezvous of its own, with a random id.
        let alone = count == 1 && endpoint.is_none() && backend == Backend::Static;
        let random_id = standalone || alone;
        let given_id = self.arguments.text("rdzv_id").filter(|id| !random_id && *id != "none");
        let is_named = given_id.is_some();
        let job_id = self.job_id(given_id.unwrap_or("none").to_owned());
        let local = self.arguments.text("local_addr").map(|text| unbracketed(text).to_owned());
        let host = local.as_deref().and_then(|text| text.parse().ok());
        if (count > 1 || backend == Backend::Etcd) && local.is_some() && host.is_none() {
            self.issues.idle("--local-addr", "with several nodes it takes an IP address");
        }
        let node_rank = if count > 1 && backend == Backend::Static { self.node_rank(count) } else { None };
        let conf = self.conf(backend);
        let nodes = match (&endpoint, count) {
            _ if backend == Backend::Etcd => self.etcd(&conf, &job_id, is_named).map_or(Nodes::One, |at| {
                let source = self.arguments.name("rdzv_endpoint").to_owned();
                Nodes::Etcd { at: Box::new(at), nodes: count, source }
            }),
            (_, 1) => Nodes::One,
            (Some((host, port)), nodes) => {
                Nodes::Master { host: host.clone(), port: *port, nodes, source: "--nnodes".to_owned() }
            }
            (None, nodes) => {
                if backend == Backend::C10d && !standalone {
                    let error = Diagnostic::error(Code::L0001, "`--rdzv-endpoint` is missing");
                    self.error(error.hint("name the node where all nodes meet: `--rdzv-endpoint HOST:29400`"));
                }
                Nodes::Auto { nodes, source: "--nnodes".to_owned() }
            }
        };
        let store = self.store(backend, &nodes, endpoint, local);
        let is_elastic = min < count || backend == Backend::Etcd;
        let elastic = is_elastic.then(|| Elastic::new(min, conf.window.unwrap_or(ELASTIC_WINDOW)));
        // In etcd it is the lease of a node.
        let node_timeout = conf.keep_alive().filter(|_| backend == Backend::C10d);
        let timeout = conf.timeout;
        let placement = None;
        Meeting {
            nodes,
            placement,
            elastic,
            store,
            job_id,
            is_named,
            random_id,
            host,
            node_rank,
            timeout,
            node_timeout,
        }
    }

    /// The nodes of a scheduler, if it has given this process several, and neither flags nor variables ask for others.
    fn allocated(&mut self, min: u32, count: u32, port: Option<Port>) -> Option<Box<Allocation>> {
        let says = ["rdzv_endpoint", "master_addr", "master_port", "node_rank"];
        if min != count || says.iter().any(|attribute| self.arguments.is_set(attribute)) {
            return None;
        }
        let nodes = self.arguments.text("nnodes").map(|_| count);
        let flags = "--rdzv-backend c10d --rdzv-endpoint HOST:29400 --nnodes {}";
        let program = self.spelling.program();
        let left = Left { env: self.env, nodes, port, program: &program, flags };
        match left.find() {
            Ok(Found::Nothing) => None,
            Ok(Found::Alone(notice)) => {
                self.issues.notices.push(*notice);
                None
            }
            Ok(Found::Several(allocation)) => Some(allocation),
            Err(error) => {
                self.error(error);
                None
            }
        }
    }

    fn allocated_meeting(&mut self, allocation: Allocation, backend: Backend) -> Meeting {
        let Allocation { nodes, rank, placement, job_id } = allocation;
        let given_id = self.arguments.text("rdzv_id").filter(|id| *id != "none").map(str::to_owned);
        let conf = self.conf(backend);
        Meeting {
            store: self.store(backend, &nodes, None, None),
            nodes,
            placement: Some(placement),
            elastic: None,
            is_named: given_id.is_some(),
            job_id: given_id.map_or(job_id, |id| self.job_id(id)),
            random_id: false,
            host: self.arguments.text("local_addr").and_then(|text| unbracketed(text).parse().ok()),
            node_rank: Some(rank),
            timeout: conf.timeout,
            node_timeout: conf.keep_alive().filter(|_| backend == Backend::C10d),
        }
    }

    /// The place in etcd; `None` if an error is reported.
    fn etcd(&mut self, conf: &Conf, job: &JobId, is_named: bool) -> Option<EtcdPlace> {
        let Some(text) = self.arguments.text("rdzv_endpoint") else {
            let error = Diagnostic::error(Code::L0001, "`--rdzv-endpoint` is missing");
            self.error(error.hint("list the members of etcd: `--rdzv-endpoint HOST:2379`"));
            return None;
        };
        let place = conf.place(text, self.arguments.name("rdzv_endpoint"), job, self.env);
        let place = place.map_err(|error| self.error(error)).ok()?;
        if !is_named {
            self.issues.notices.push(shared_id("--rdzv-id", job));
        }
        Some(place)
    }

    /// Every rank is a client of the store, unless the user turned that off as for torchrun.
    fn store(
        &mut self,
        backend: Backend,
        nodes: &Nodes,
        endpoint: Option<(String, Port)>,
        local: Option<String>,
    ) -> StoreHost {
        if self.env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE").is_some_and(|text| text == "1") {
            return StoreHost::Rank0;
        }
        // With `static`, ranks meet where the nodes do.
        match endpoint.filter(|_| *nodes == Nodes::One && backend == Backend::Static) {
            Some((host, port)) => StoreHost::Agent { host: Some(host), port: Some(port) },
            None => StoreHost::Agent { host: local.filter(|_| *nodes == Nodes::One), port: None },
        }
    }

    /// The fewest and the most nodes.
    fn count(&mut self) -> (u32, u32) {
        let Some(text) = self.arguments.text("nnodes") else { return (1, 1) };
        let number = |text: &str| argparse::int(text).and_then(|number| u32::try_from(number).ok());
        let range = match text.split_once(':') {
            None => number(text).map(|count| (count, count)),
            Some((low, high)) => number(low).zip(number(high)),
        };
        match range.filter(|(low, high)| 0 < *low && low <= high) {
            None => self.wrong("nnodes", "a number from 1 up, or a range as in `2:4`", text),
            Some((_, count)) if count > MAX_NODES => {
                let message = format!("`--nnodes` asks for {count} nodes; the maximum is {MAX_NODES}");
                self.error(self.arguments.wrong_value("nnodes", message));
            }
            Some(range) => return range,
        }
        (1, 1)
    }

    fn backend(&mut self) -> Backend {
        match self.arguments.text("rdzv_backend").unwrap_or("static") {
            "static" => Backend::Static,
            "c10d" => Backend::C10d,
            // They differ in the layout of torch's keys, which umiak does not use.
            "etcd" | "etcd-v2" => Backend::Etcd,
            name => {
                self.wrong("rdzv_backend", "`static`, `c10d`, `etcd` or `etcd-v2`", name);
                Backend::Static
            }
        }
    }

    /// The endpoint; with `static` also from `--master-addr` and `--master-port`.
    fn endpoint(&mut self, backend: Backend, count: u32) -> Option<(String, Port)> {
        if backend == Backend::Etcd {
            return None;
        }
        if let Some(text) = self.arguments.text("rdzv_endpoint") {
            let default = if backend == Backend::Static { STATIC_PORT } else { C10D_PORT };
            let parsed = parse_endpoint(text, default);
            if parsed.is_none() {
                self.wrong("rdzv_endpoint", "a host and a port, as in `node-a:29400`", text);
            }
            return parsed;
        }
        let (address, port) = (self.arguments.text("master_addr"), self.arguments.int("master_port"));
        if backend == Backend::C10d || port.is_none() && count == 1 {
            return None;
        }
        let number = port.unwrap_or(STATIC_PORT.into());
        let Some(port) = u16::try_from(number).ok().and_then(Port::new) else {
            self.wrong("master_port", "a port from 1 to 65535", &number.to_string());
            return None;
        };
        Some((unbracketed(address.unwrap_or("127.0.0.1")).to_owned(), port))
    }

    fn node_rank(&mut self, count: u32) -> Option<u32> {
        let number = self.arguments.int("node_rank").unwrap_or(0);
        let rank = u32::try_from(number).ok().filter(|rank| *rank < count);
        if rank.is_none() {
            self.wrong("node_rank", &format!("a number from 0 to {}", count - 1), &number.to_string());
        }
        rank
    }

    fn job_id(&mut self, text: String) -> JobId {
        JobId::new(text).unwrap_or_else(|error| {
            let message = format!("`--rdzv-id` cannot be `{}`: {}", error.name.escape_debug(), error.why);
            self.error(self.arguments.wrong_value("rdzv_id", message));
            JobId::new("none").expect("a plain word is a job id")
        })
    }
}

/// `host`, `host:port`, `[::1]:port`. Port 0 is not an endpoint that other nodes can find.
fn parse_endpoint(text: &str, default: u16) -> Option<(String, Port)> {
    let text = text.trim();
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some(""))?)
        }
        None if text.matches(':').count() > 1 => (text, ""),
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = if port.is_empty() { default } else { port.parse().ok()? };
    let is_host = !host.is_empty() && !host.contains(['/', ' ']);
    Some((host.to_owned(), Port::new(port)?)).filter(|_| is_host)
}

fn unbracketed(text: &str) -> &str {
    text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text)
}
