//! The processes of a parameter-server job: a number on each node, or a list of addresses.
//!
//! Each generation of Paddle's launcher has its own flags for trainers. Both are accepted in both generations, so that
//! `--worker_num` also works with `--master`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checks::Checks;
use super::endpoints::{self, Form, List};
use super::mode::{HETER, Kind};
use crate::diag::{Code, Diagnostic};
use crate::model::{Crew, Endpoint, Generation, HeterStage, MAX_NODES, Nodes, Port, ServerMode};

/// The processes that the flags ask for, before the nodes are known.
#[derive(Debug)]
pub(super) struct Crews {
    pub(super) mode: ServerMode,
    /// The addresses in the lists, without duplicates, and the first flag with a list.
    pub(super) addresses: Vec<IpAddr>,
    source: &'static str,
}

/// The flags of one part: its number and its list.
#[derive(Debug, Clone, Copy)]
struct Flags {
    number: &'static str,
    list: &'static str,
    /// Name of the processes in messages.
    who: &'static str,
}

const SERVERS: Flags = Flags { number: "server_num", list: "servers", who: "servers" };
const TRAINERS: Flags = Flags { number: "trainer_num", list: "trainers", who: "trainers" };
const WORKERS: Flags = Flags { number: "worker_num", list: "workers", who: "workers" };
const COORDINATORS: Flags = Flags { number: "coordinator_num", list: "coordinators", who: "coordinators" };

/// The fixed port of gloo in the current launcher.
const GLOO_PORT: u16 = 6767;

const WITH_PORTS: Form = Form { stages: false, ports_may_lack: false };

impl Checks<'_> {
    /// `None` if the flags are wrong, which is then reported.
    pub(super) fn crews(&mut self) -> Option<Crews> {
        let errors = self.issues.errors.len();
        let trainers = self.trainers();
        let is_heter = self.kind == Kind::Heter;
        let workers = Form { ports_may_lack: trainers.list == "workers", ..WITH_PORTS };
        let mut server_list = self.list(SERVERS.list, WITH_PORTS);
        let mut trainer_list = self.list(trainers.list, workers);
        let mut heter_list =
            if is_heter { self.list("heter_workers", Form { stages: true, ports_may_lack: true }) } else { None };
        let mut coordinator_list = self.list(COORDINATORS.list, WITH_PORTS);
        let server_crew = self.crew(SERVERS, server_list.as_ref());
        let trainer_crew = self.crew(trainers, trainer_list.as_ref());
        let coordinators = self.crew(COORDINATORS, coordinator_list.as_ref()).unwrap_or(Some(0));
        let sizes = if is_heter { self.stages(heter_list.as_ref()) } else { Vec::new() };
        let devices = if is_heter { self.heter_devices(sizes.len()) } else { Vec::new() };
        let servers = self.needed(SERVERS, server_crew, server_list.as_ref());
        let workers = self.needed(trainers, trainer_crew, trainer_list.as_ref());

        let (server_count, worker_count) = (servers.unwrap_or(0) as usize, workers.unwrap_or(0) as usize);
        let mut lists: Vec<(&mut List, usize)> = Vec::new();
        lists.extend(server_list.as_mut().map(|list| (list, 0)));
        lists.extend(trainer_list.as_mut().map(|list| (list, server_count)));
        lists.extend(heter_list.as_mut().map(|list| (list, server_count + worker_count)));
        lists.extend(coordinator_list.as_mut().map(|list| (list, 0)));
        let settled = endpoints::settle(&mut lists);
        self.report(settled);
        let lists: Vec<&List> = lists.into_iter().map(|(list, _)| &*list).collect();
        let (addresses, source) = self.addresses_of(&lists);
        if self.issues.errors.len() > errors {
            return None;
        }
        let stage = |index: usize, size: &u32| match &heter_list {
            Some(list) => list.endpoints().nth(index).map_or(Crew::Each(0), Crew::Listed),
            None => Crew::Each(*size),
        };
        let stages = sizes.iter().enumerate().zip(devices);
        let mut mode = ServerMode {
            servers: lowered(server_list.as_ref(), servers),
            trainers: lowered(trainer_list.as_ref(), workers),
            coordinators: lowered(coordinator_list.as_ref(), coordinators),
            stages: stages.map(|((index, size), device)| HeterStage { crew: stage(index, size), device }).collect(),
            gloo_port: None,
            with_gloo: self.with_gloo(),
            pod: None,
        };
        mode.gloo_port = self.gloo_port(&mode);
        Some(Crews { mode, addresses, source })
    }

    fn list(&mut self, attribute: &'static str, form: Form) -> Option<List> {
        let list = endpoints::read(self.arguments, attribute, form);
        self.report(list).flatten()
    }

    /// The flags for trainers that were used: those of the generation, unless only the other's are given.
    fn trainers(&mut self) -> Flags {
        let (own, other) = match self.generation {
            Generation::Current => (TRAINERS, WORKERS),
            Generation::Legacy => (WORKERS, TRAINERS),
        };
        let given = |flags: Flags| [flags.number, flags.list].into_iter().find(|name| self.is_said(name));
        match (given(own), given(other)) {
            (Some(first), Some(second)) => {
                let (first, second) = (self.arguments.name(first), self.arguments.name(second));
                let message = format!("`{first}` and `{second}` both set the trainers");
                self.error(Diagnostic::error(Code::L0002, message).hint("leave one of them out"));
                own
            }
            (None, Some(_)) => other,
            _ => own,
        }
    }

    /// True if a number, including 0, or a text that is not empty was given.
    fn is_said(&self, attribute: &str) -> bool {
        self.arguments.int(attribute).is_some() || self.arguments.text(attribute).is_some()
    }

    /// The number of processes: `None` if it is not given, `Some(None)` if it is wrong.
    #[expect(clippy::option_option, reason = "not given, or given and wrong")]
    fn crew(&mut self, flags: Flags, list: Option<&List>) -> Option<Option<u32>> {
        let number = self.number(flags.number);
        if self.arguments.text(flags.list).is_some() && list.is_none() {
            return Some(None);
        }
        let Some(list) = list else { return number };
        let listed = list.len() as u32;
        if let Some(Some(number)) = number
            && number != listed
        {
            let name = self.arguments.name(flags.number);
            let message = format!("`{name}` is {number}, but `{}` lists {listed}", list.name);
            let hint = format!("correct one of them; with `{}` no number is needed", list.name);
            self.error(Diagnostic::error(Code::L0002, message).hint(hint));
        }
        Some(Some(listed))
    }

    #[expect(clippy::option_option, reason = "not given, or given and wrong")]
    fn number(&mut self, attribute: &str) -> Option<Option<u32>> {
        let number = self.arguments.int(attribute)?;
        // There cannot be more processes than ports.
        let count = u16::try_from(number).ok().map(u32::from);
        if count.is_none() {
            let name = self.arguments.name(attribute);
            let message = format!("`{name}` takes a number from 0 to 65535, not `{number}`");
            self.error(self.wrong_value(attribute, message));
        }
        Some(count)
    }

    /// Servers and trainers are required. The current launcher starts one of each by default.
    #[expect(clippy::option_option, reason = "not given, or given and wrong")]
    fn needed(&mut self, flags: Flags, count: Option<Option<u32>>, list: Option<&List>) -> Option<u32> {
        let is_legacy = self.generation == Generation::Legacy;
        let who = flags.who;
        match count {
            Some(Some(0)) if is_legacy && list.is_none() => {
                let name = self.arguments.name(flags.number);
                let message = format!("`{name}` is 0, but a parameter-server job needs {who}");
                self.error(self.wrong_value(flags.number, message));
                None
            }
            Some(count) => count,
            None if is_legacy => {
                let message = format!(
                    "a parameter-server job needs {who}, but neither `--{}` nor `--{}` was given",
                    flags.number, flags.list
                );
                let hint = format!("set their number with `--{}`, or list them with `--{}`", flags.number, flags.list);
                self.error(Diagnostic::error(Code::L0001, message).hint(hint));
                None
            }
            None => Some(1),
        }
    }

    /// The number of heterogeneous workers in each stage.
    fn stages(&mut self, list: Option<&List>) -> Vec<u32> {
        let numbers = self.stage_numbers();
        let listed: Option<Vec<u32>> =
            list.map(|list| list.stages.iter().map(|stage| stage.len() as u32).collect::<Vec<u32>>());
        match (numbers, listed) {
            (Some(numbers), Some(listed)) if numbers != listed => {
                let (number, list) = (self.arguments.name("heter_worker_num"), self.arguments.name("heter_workers"));
                let message = format!("`{number}` is `{}`, but `{list}` lists `{}`", staged(&numbers), staged(&listed));
                let hint = format!("correct one of them; with `{list}` no number is needed");
                self.error(Diagnostic::error(Code::L0002, message).hint(hint));
                listed
            }
            (_, Some(listed)) => listed,
            (Some(numbers), None) => numbers,
            (None, None) => {
                // Wrong values are already reported.
                if !self.is_said("heter_worker_num") && !self.is_said("heter_workers") {
                    let message = "a heterogeneous job needs heterogeneous workers, but neither `--heter_worker_num` \
                                   nor `--heter_workers` was given";
                    let hint = "set their number with `--heter_worker_num`, or list them with `--heter_workers`; stages are \
                                separated by `;`";
                    self.error(Diagnostic::error(Code::L0001, message).hint(hint));
                }
                Vec::new()
            }
        }
    }

    fn stage_numbers(&mut self) -> Option<Vec<u32>> {
        let text = self.arguments.text("heter_worker_num")?;
        let number = |word: &str| word.trim().parse::<u16>().ok().map(u32::from).filter(|count| *count > 0);
        let numbers: Option<Vec<u32>> = text.split(';').map(number).collect();
        if numbers.is_none() {
            let name = self.arguments.name("heter_worker_num");
            let message = format!("`{name}` takes a number for each stage, such as `2` or `1;2`, not `{text}`");
            self.error(self.wrong_value("heter_worker_num", message));
        }
        numbers
    }

    /// The kind of device of each stage. Without the flag, a single stage uses the devices of the job.
    fn heter_devices(&mut self, stages: usize) -> Vec<String> {
        let name = self.arguments.name("heter_devices");
        let Some(text) = self.arguments.text("heter_devices") else {
            if stages > 1 {
                let message = format!("there are {stages} stages of heterogeneous workers, but `{name}` is missing");
                let hint = format!("name the kind of device of each stage: `{name} {}`", vec!["gpu"; stages].join(";"));
                self.error(Diagnostic::error(Code::L0001, message).hint(hint));
            }
            if stages != 1 {
                return Vec::new();
            }
            let device = self.device_word();
            let message = format!("`{name}` is not given; heterogeneous workers are assumed to use `{device}`");
            let notice = Diagnostic::notice(Code::L0023, message);
            self.issues.notices.push(notice.hint(format!("set `{name} {device}`, or another kind of device")));
            return vec![device.to_owned()];
        };
        let devices: Vec<String> = text.split(';').map(|word| word.trim().to_ascii_lowercase()).collect();
        let is_word = |word: &String| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !devices.iter().all(is_word) {
            let message = format!("`{name}` takes a kind of device for each stage, such as `gpu;cpu`, not `{text}`");
            self.error(self.wrong_value("heter_devices", message).hint("stages are separated by `;`"));
        } else if stages != 0 && devices.len() != stages {
            let message = format!("`{name}` lists {}, but there are {stages} stages of workers", devices.len());
            self.error(Diagnostic::error(Code::L0002, message).row(name, text).hint("stages are separated by `;`"));
        }
        devices
    }

    fn device_word(&self) -> &'static str {
        match self.arguments.text("devices").map(|_| self.arguments.name("devices")) {
            None => "cpu",
            Some("--xpus" | "--selected_xpus") => "xpu",
            Some("--npus" | "--selected_npus") => "npu",
            Some(_) => "gpu",
        }
    }

    /// The nodes in the lists, and the flag of the first list.
    fn addresses_of(&mut self, lists: &[&List]) -> (Vec<IpAddr>, &'static str) {
        let mut addresses: Vec<IpAddr> = Vec::new();
        let mut seen = BTreeSet::new();
        for entry in lists.iter().flat_map(|list| list.entries()) {
            if seen.insert(entry.address) {
                addresses.push(entry.address);
            }
        }
        let source = lists.first().map_or("", |list| list.name);
        if addresses.len() > 1
            && let Some(list) = lists.iter().find(|list| list.entries().any(|entry| is_everybodys(&entry.address)))
            && let Some(address) = list.entries().map(|entry| entry.address).find(is_everybodys)
        {
            let message = format!("`{address}` cannot be one of several nodes in `{}`", list.name);
            let nodes: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            self.error(
                Diagnostic::error(Code::L0002, message)
                    .row("nodes", nodes.join(", "))
                    .hint("every node must be able to reach the others at the addresses listed"),
            );
        }
        if addresses.len() > MAX_NODES as usize {
            let message =
                format!("`{source}` and the other lists have {} nodes; the maximum is {MAX_NODES}", addresses.len());
            self.error(Diagnostic::error(Code::L0001, message));
        }
        (addresses, source)
    }

    /// The nodes of the lists. Other flags about nodes have no effect, and must not contradict the lists.
    pub(super) fn nodes_of(&mut self, crews: &Crews) -> (Nodes, Option<IpAddr>) {
        let (addresses, source) = (&crews.addresses, crews.source);
        if let Some((attribute, count @ 2..)) = self.count()
            && count as usize != addresses.len()
            // A platform's list of trainers may contain other nodes.
            && let name = self.arguments.name(attribute)
            && !name.ends_with("_ENDPOINTS")
        {
            let nodes: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            let message =
                format!("`{name}` asks for {count} nodes, but `{source}` and the other lists have {}", nodes.len());
            let hint = format!("correct one of them; with `{source}` no number is needed");
            self.error(Diagnostic::error(Code::L0002, message).row("nodes", nodes.join(", ")).hint(hint));
        }
        let why = format!("`{source}` sets the nodes");
        let words = |text: &str| text.split(',').filter_map(super::checks::parse_address).collect::<Vec<_>>();
        for attribute in ["ips", "master"] {
            if self.is_from_flag(attribute)
                && self.arguments.text(attribute).is_some_and(|text| words(text) != *addresses)
            {
                self.idle(self.arguments.name(attribute), &why);
            }
        }
        match addresses.as_slice() {
            [address] => (Nodes::One, Some(*address)),
            _ => (Nodes::List { addresses: addresses.clone(), source: source.to_owned() }, None),
        }
    }

    /// Checks that every node has a process to run, and that a single node has servers and trainers.
    pub(super) fn is_whole(&mut self, mode: &ServerMode, nodes: &Nodes) {
        let trainers = self.trainers();
        let parts = [(SERVERS, &mode.servers), (trainers, &mode.trainers)];
        if *nodes == Nodes::One {
            for (flags, crew) in parts {
                if crew.is_empty() {
                    let name = self.arguments.name(flags.number);
                    let message = format!("`{name}` is 0, but a job on one node needs {}", flags.who);
                    let hint = "use at least 1, or add other nodes";
                    self.error(self.wrong_value(flags.number, message).hint(hint));
                }
            }
            return;
        }
        let is_idle = |crew: &Crew| matches!(crew, Crew::Each(0));
        let all = [&mode.servers, &mode.trainers, &mode.coordinators];
        if all.into_iter().chain(mode.stages.iter().map(|stage| &stage.crew)).all(is_idle) {
            let (servers, trainers) = (self.arguments.name(SERVERS.number), self.arguments.name(trainers.number));
            let message = format!("this node has nothing to run: `{servers}` and `{trainers}` are 0");
            self.error(Diagnostic::error(Code::L0001, message).hint("set one of them to at least 1"));
        }
    }

    /// `PADDLE_WITH_GLOO`.
    pub(super) fn with_gloo(&self) -> String {
        let said = || self.arguments.text("with_gloo").map(str::to_owned);
        let inherited = || self.env.get("PADDLE_WITH_GLOO").cloned();
        // On the platform, the platform's value applies.
        let default = if self.generation == Generation::Current && self.kind != Kind::Pod { "1" } else { "0" };
        inherited().or_else(said).unwrap_or_else(|| default.to_owned())
    }

    /// Gloo's rendezvous port, if it is set or fixed.
    fn gloo_port(&mut self, mode: &ServerMode) -> Option<Port> {
        let first = match &mode.servers {
            Crew::Listed(servers) => servers.first().map(|server| server.address),
            Crew::Each(_) => None,
        };
        let taken: Vec<u16> = everybody(mode)
            .filter(|endpoint| Some(endpoint.address) == first)
            .map(|endpoint| endpoint.port.get())
            .collect();
        let both_listed = matches!((&mode.servers, &mode.trainers), (Crew::Listed(_), Crew::Listed(_)));
        let attribute = match (self.is_said("http_port"), self.is_said("gloo_port")) {
            (true, _) => "http_port",
            (false, true) if self.generation == Generation::Legacy || both_listed => "gloo_port",
            (false, is_said) => {
                if is_said && self.is_from_flag("gloo_port") {
                    self.idle("--gloo_port", "without lists of servers and trainers, a free port is used");
                }
                let is_fixed = self.generation == Generation::Current && both_listed && !taken.contains(&GLOO_PORT);
                return if is_fixed { Port::new(GLOO_PORT) } else { None };
            }
        };
        let name = self.arguments.name(attribute);
        let port = self.port(attribute)?;
        if taken.contains(&port.get()) {
            let message =
                format!("`{name}` is {}, but a process on the first server's host uses that port", port.get());
            let hint = format!("the first server listens at `{name}` too; choose another port");
            self.error(Diagnostic::error(Code::L0002, message).hint(hint));
        }
        Some(port)
    }

    fn port(&mut self, attribute: &str) -> Option<Port> {
        let number = self.arguments.int(attribute)?;
        let port = u16::try_from(number).ok().and_then(Port::new);
        if port.is_none() {
            let message = format!("`{}` takes a port from 1 to 65535, not `{number}`", self.arguments.name(attribute));
            self.error(self.wrong_value(attribute, message));
        }
        port
    }

    /// Gloo's rendezvous port in a pod, where only a flag sets it.
    pub(super) fn gloo_port_said(&mut self) -> Option<Port> {
        let said = ["http_port", "gloo_port"].into_iter().find(|attribute| self.is_said(attribute))?;
        self.port(said)
    }

    /// Reports flags of other modes, and flags without effect in a job with servers.
    pub(super) fn idle_about_mode(&mut self) {
        let in_mode = format!("the mode is `{}`", self.kind.word());
        if self.kind == Kind::Servers {
            for attribute in HETER {
                if self.is_said(attribute) && self.is_from_flag(attribute) {
                    self.idle(self.arguments.name(attribute), &in_mode);
                }
            }
        }
        if self.kind.has_servers() && self.is_from_flag("nproc_per_node") && self.arguments.is_set("nproc_per_node") {
            self.idle("--nproc_per_node", "servers and trainers have their own flags");
        }
        if self.kind != Kind::Collective && self.arguments.is_switched_on("store-relay") {
            self.idle("--store-relay", &in_mode);
        }
    }
}

/// True for an address that every host has. The other addresses of 127.0.0.0/8 may represent separate hosts.
fn is_everybodys(address: &IpAddr) -> bool {
    *address == IpAddr::V4(Ipv4Addr::LOCALHOST) || *address == IpAddr::V6(Ipv6Addr::LOCALHOST)
}

/// `1;2`
fn staged(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(";")
}

fn lowered(list: Option<&List>, count: Option<u32>) -> Crew {
    match list {
        Some(list) => Crew::Listed(list.endpoints().flatten().collect()),
        None => Crew::Each(count.unwrap_or(0)),
    }
}

/// Returns all endpoints of all lists.
fn everybody(mode: &ServerMode) -> impl Iterator<Item = &Endpoint> {
    let crews = [&mode.servers, &mode.trainers, &mode.coordinators].into_iter();
    crews.chain(mode.stages.iter().map(|stage| &stage.crew)).flat_map(|crew| match crew {
        Crew::Listed(list) => list.as_slice(),
        Crew::Each(_) => &[],
    })
}
