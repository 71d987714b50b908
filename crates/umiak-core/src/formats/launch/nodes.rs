//! Finds the nodes of the job.
//!
//! | given | nodes |
//! |---|---|
//! | nothing, `--nnodes 1`, one address in `--ips` | this one |
//! | `--ips a,b,…`, PaddleCloud's list | the list, in its order |
//! | `--master` and `--nnodes N` | the nodes that join there; `--ips` is ignored, as in Paddle |
//! | `--nnodes N` alone | the same, with this node as the master |
//! | `--nnodes MIN:MAX` with or without `--master` | the same, and nodes may come and go |
//! | nothing, inside a step of Slurm | those of the step (see `allocation`) |
//! | `--master etcd://…`, `--elastic_server` | those that join in etcd (see `elastic`) |
//!
//! Lists of servers and trainers take precedence (see `servers`).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::allocation::{Found, Left};
use super::checks::{Checks, parse_address};
use super::mode::Kind;
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;
use crate::formats::elastic::reversed;
use crate::model::{Generation, MAX_NODES, Nodes, Port};

/// The port in examples: the one that Paddle adds where it adds one.
const EXAMPLE_PORT: u16 = 6768;

impl Checks<'_> {
    /// The nodes and, for a single node, its address if given. `platform` is PaddleCloud's list.
    pub(super) fn nodes(&mut self, platform: &[IpAddr]) -> (Nodes, Option<IpAddr>) {
        let count = self.count();
        let listed = self.listed(platform);
        let nodes = count.map_or(1, |(_, nodes)| nodes);
        let one = match listed.as_slice() {
            [address] => (Nodes::One, Some(*address)),
            _ => (Nodes::One, None),
        };
        let master = self.arguments.text("master").filter(|_| self.generation == Generation::Current);
        if listed.is_empty()
            && self.arguments.text("ips").is_none()
            && self.arguments.text("master").is_none()
            && let Some(nodes) = self.allocated()
        {
            return (nodes, None);
        }
        if let Some(master) = master.filter(|_| nodes > 1) {
            if !listed.is_empty() {
                self.idle(self.arguments.name("ips"), "the nodes meet at `--master`");
            }
            let Some((host, port)) = self.report(self.master(master)) else { return one };
            return (Nodes::Master { host, port, nodes, source: self.arguments.name("master").to_owned() }, None);
        }
        if let Some(error) = self.contradiction(count, &listed, master) {
            self.error(error);
            return one;
        }
        if listed.len() > 1 {
            let source = if platform.is_empty() { self.arguments.name("ips") } else { "PADDLE_TRAINERS" };
            return (Nodes::List { addresses: listed, source: source.to_owned() }, None);
        }
        match count {
            Some((attribute, nodes @ 2..)) => {
                (Nodes::Auto { nodes, source: self.arguments.name(attribute).to_owned() }, None)
            }
            _ => one,
        }
    }

    /// The nodes of a scheduler, if it has given this process several, and the command line does not ask for others.
    fn allocated(&mut self) -> Option<Nodes> {
        let mut nodes = None;
        for attribute in ["nnodes", "np"].into_iter().filter(|attribute| self.arguments.is_set(attribute)) {
            let text = self.arguments.text(attribute).map(str::to_owned);
            let text = text.or_else(|| self.arguments.int(attribute).map(|count| count.to_string()));
            let (min, max) = range(&text.unwrap_or_default())?;
            nodes = Some(u32::try_from(max).ok().filter(|_| min == max)?);
        }
        let flags = "--master HOST:6768 --nnodes {}";
        let left = Left { env: self.env, nodes, port: self.rdzv_port, program: self.program, flags };
        match self.report(left.find())? {
            Found::Nothing => None,
            Found::Alone(notice) => {
                self.issues.notices.push(*notice);
                None
            }
            Found::Several(allocation) => {
                let nodes = allocation.nodes.clone();
                self.allocation = Some(allocation);
                Some(nodes)
            }
        }
    }

    /// `--nnodes`, or the legacy launcher's `--np`: the flag's attribute and the most nodes, if given.
    pub(super) fn count(&mut self) -> Option<(&'static str, u32)> {
        let mut found = None;
        for attribute in ["nnodes", "np"] {
            if attribute == "np" && self.generation == Generation::Current {
                continue;
            }
            let Some((min, max)) = self.range(attribute) else { continue };
            if min < max && self.generation == Generation::Legacy {
                let name = self.arguments.name(attribute);
                let message = format!("`{name} {min}:{max}` is a range of nodes, which needs etcd or `--master`");
                self.error(Diagnostic::error(Code::L0002, message).hint(format!(
                    "use `--elastic_server HOST:PORT --job_id ID --np {min}:{max}`, or `--master HOST:PORT --nnodes {min}:{max}`"
                )));
            } else {
                found = found.or(Some((attribute, max)));
            }
        }
        found
    }

    /// The fewest and the most nodes of `--nnodes` or `--np`, if given and valid.
    pub(super) fn range(&mut self, attribute: &str) -> Option<(u32, u32)> {
        let text = match (self.arguments.int(attribute), self.arguments.text(attribute)) {
            (Some(count), _) => count.to_string(),
            (None, text) => text?.to_owned(),
        };
        let name = self.arguments.name(attribute);
        let Some((min, max)) = range(&text) else {
            let error = if let Some(hint) = reversed(&text) {
                let message = format!("the range `{text}` of `{name}` is reversed");
                self.wrong_value(attribute, message).hint(hint)
            } else {
                let message = format!("`{name}` takes a number of nodes such as `1` or `2:4`, not `{text}`");
                self.wrong_value(attribute, message)
            };
            self.error(error);
            return None;
        };
        let number = |count: i64| u32::try_from(count).ok().filter(|nodes| *nodes <= MAX_NODES);
        let found = number(min).zip(number(max));
        if found.is_none() {
            self.error(self.wrong_value(attribute, too_many(name, "asks for", max)));
        }
        found
    }

    /// `--ips`, or the platform's list, which takes precedence. Empty if it is not given or wrong.
    fn listed(&mut self, platform: &[IpAddr]) -> Vec<IpAddr> {
        let Some(text) = self.arguments.text("ips") else { return platform.to_vec() };
        let name = self.arguments.name("ips");
        let list: Vec<&str> = text.split(',').map(str::trim).collect();
        if !platform.is_empty() {
            let theirs = platform.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
            if list.join(",") != theirs {
                let message = format!("PaddleCloud's `PADDLE_TRAINERS` overrides `{name}`");
                let notice = Diagnostic::notice(Code::L0024, message);
                self.issues.notices.push(notice.row(name, text).row("PADDLE_TRAINERS", theirs));
            }
            return platform.to_vec();
        }
        let addresses = self.addresses(name, &list);
        self.report(addresses).unwrap_or_default()
    }

    fn addresses(&self, name: &str, list: &[&str]) -> Result<Vec<IpAddr>, Diagnostic> {
        if let [one] = list {
            let address = if *one == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { parse_address(one) };
            return address.map(|address| vec![address]).ok_or_else(|| {
                let message = format!("`{name}` takes IP addresses, not `{one}`");
                self.wrong_value("ips", message).hint("leave it out to run on this node alone")
            });
        }
        if list.len() > MAX_NODES as usize {
            return Err(self.wrong_value("ips", too_many(name, "lists", list.len() as i64)));
        }
        if let Some(word) = list.iter().find(|word| ["127.0.0.1", "localhost", "::1", "[::1]"].contains(*word)) {
            let message = format!("`{word}` cannot be one of several nodes in `{name}`");
            return Err(Diagnostic::error(Code::L0002, message)
                .row("nodes", list.join(", "))
                .hint("every node must be able to reach the others at the addresses listed"));
        }
        let mut addresses = Vec::with_capacity(list.len());
        let mut seen = BTreeSet::new();
        for (index, word) in list.iter().enumerate() {
            let place = index + 1;
            let Some(address) = parse_address(word) else {
                let is = if word.is_empty() { "empty".to_owned() } else { format!("`{word}`") };
                let message = format!("`{name}` takes IP addresses, and entry {place} is {is}");
                return Err(self
                    .wrong_value("ips", message)
                    .row("nodes", list.join(", "))
                    .hint("separate addresses with single commas; host names are not accepted"));
            };
            if !seen.insert(address) {
                return Err(self
                    .wrong_value("ips", format!("`{name}` lists {address} twice, the second time as entry {place}"))
                    .row("nodes", list.join(", "))
                    .hint("name each node once; `--nproc_per_node` sets the number of processes on it"));
            }
            addresses.push(address);
        }
        Ok(addresses)
    }

    /// The error where a number and a list contradict, or a number alone does not identify the nodes.
    fn contradiction(
        &self,
        count: Option<(&'static str, u32)>,
        listed: &[IpAddr],
        master: Option<&str>,
    ) -> Option<Diagnostic> {
        let ips = self.arguments.name("ips");
        let with_list = |message: String| {
            let nodes = listed.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
            Diagnostic::error(Code::L0002, message).row("nodes", nodes)
        };
        match count {
            Some((attribute, nodes)) if !listed.is_empty() && listed.len() != nodes as usize => {
                let name = self.arguments.name(attribute);
                let plural = if nodes == 1 { "" } else { "s" };
                let message = format!("`{name}` asks for {nodes} node{plural}, and `{ips}` lists {}", listed.len());
                Some(with_list(message).hint(format!("correct one of them; with `{ips}` no number is needed")))
            }
            Some((attribute, 2..))
                if self.generation == Generation::Legacy
                    && listed.is_empty()
                    && self.arguments.text("ips").is_none() =>
            {
                let name = self.arguments.name(attribute);
                let message = format!("`{name}` asks for several nodes, but no addresses are given");
                let hint = "list their addresses with `--ips`, or let them meet with `--master HOST:PORT --nnodes N`, \
                            or in etcd with `--elastic_server HOST:PORT --job_id ID --np N`";
                Some(Diagnostic::error(Code::L0002, message).hint(hint))
            }
            None if master.is_some() && listed.len() > 1 => {
                let name = self.arguments.name("master");
                let message = format!("`{name}` needs the number of nodes; `{ips}` lists {}", listed.len());
                let hint = format!("add `--nnodes {}`, or leave one of `{name}` and `{ips}` out", listed.len());
                Some(with_list(message).hint(hint))
            }
            _ => None,
        }
    }

    /// The address where the nodes meet: `host:port`, with or without `http://`; IPv6 addresses in brackets.
    fn master(&self, text: &str) -> Result<(String, Port), Diagnostic> {
        let name = self.arguments.name("master");
        let wrong = |message: String| self.wrong_value("master", message);
        let malformed = || {
            wrong(format!("`{name}` takes `host:port`, not `{text}`"))
                .hint(format!("write the address of the first node and a port, as in `192.168.0.1:{EXAMPLE_PORT}`"))
        };
        let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | '?' | '#');
        if bare.contains(is_odd) {
            return Err(malformed());
        }
        let (host, port) = if let Some(rest) = bare.strip_prefix('[') {
            let (host, tail) = rest.split_once(']').ok_or_else(malformed)?;
            let port = if tail.is_empty() { None } else { Some(tail.strip_prefix(':').ok_or_else(malformed)?) };
            host.parse::<Ipv6Addr>().map_err(|_| malformed())?;
            (host, port)
        } else if bare.parse::<Ipv6Addr>().is_ok() {
            let message = format!("`{name}` is an IPv6 address without a port: `{text}`");
            return Err(
                wrong(message).hint(format!("write `[{bare}]:{EXAMPLE_PORT}`, with a port that is free on that host"))
            );
        } else {
            bare.rsplit_once(':').map_or((bare, None), |(host, port)| (host, Some(port)))
        };
        if host.is_empty() || (host.contains(':') && host.parse::<Ipv6Addr>().is_err()) {
            return Err(malformed());
        }
        let Some(port) = port else {
            let example = if bare.starts_with('[') { bare } else { host };
            return Err(wrong(format!("`{name}` has no port: `{text}`"))
                .hint(format!("write `{example}:{EXAMPLE_PORT}`, with a port that is free on that host")));
        };
        let number = super::own::port(port).ok_or_else(|| {
            wrong(format!("`{name}` has the port `{port}`, which is not in the range 1-65535: `{text}`"))
        })?;
        Ok((host.to_owned(), number))
    }

    /// `--rank`: ignored with `--ips`, where the list decides, with one node, and with etcd.
    pub(super) fn node_rank(&mut self, nodes: &Nodes) -> Option<u32> {
        if matches!(nodes, Nodes::Etcd { .. }) {
            return None;
        }
        if let Some(allocation) = &self.allocation {
            return Some(allocation.rank);
        }
        let rank = self.arguments.int("rank").and_then(|rank| u32::try_from(rank).ok())?;
        if let Nodes::Master { nodes, .. } | Nodes::Auto { nodes, .. } = nodes
            && rank >= *nodes
        {
            let name = self.arguments.name("rank");
            let message = format!("`{name}` is {rank}, but {nodes} nodes have ranks from 0 to {}", nodes - 1);
            self.error(self.wrong_value("rank", message));
        }
        Some(rank)
    }

    /// This node's address. Paddle ignores a name without a dot; a job that then listens elsewhere is harder to
    /// understand than an error. `platform` is PaddleCloud's address.
    pub(super) fn host(&mut self, nodes: &Nodes, ip: Option<IpAddr>, platform: Option<IpAddr>) -> Option<IpAddr> {
        let several = !matches!(nodes, Nodes::One);
        if platform.is_some() && several {
            return platform;
        }
        let pod_ip = || self.env.get("POD_IP").and_then(|text| parse_address(text));
        if self.kind == Kind::Pod {
            // `POD_IP` may be a name; the address is then found later.
            return pod_ip().or_else(|| self.arguments.text("host").and_then(parse_address));
        }
        let counts = self.counts_host(nodes, ip);
        let Some(text) = self.arguments.text("host").filter(|_| counts) else {
            // The legacy launcher reads the variable only with servers and with etcd.
            let needs_it = self.kind.has_servers() || matches!(nodes, Nodes::Etcd { .. });
            let is_read = self.generation == Generation::Legacy && needs_it && counts;
            return if is_read { pod_ip() } else { None };
        };
        let address = parse_address(text);
        let name = self.arguments.name("host");
        if address.is_some() {
            return address;
        }
        if self.passes_over(text) {
            self.idle(name, "it is not an address, and is ignored as in Paddle");
        } else {
            let message = format!("`{name}` takes the address of this node, not `{text}`");
            self.error(
                self.wrong_value("host", message).hint("use an IP address of this host; `hostname -i` prints it"),
            );
        }
        None
    }

    /// True if `--host` is used. The legacy launcher uses it to find this node among several, or in the lists of servers
    /// and trainers.
    fn counts_host(&self, nodes: &Nodes, ip: Option<IpAddr>) -> bool {
        self.generation == Generation::Current || *nodes != Nodes::One || (self.kind.has_servers() && ip.is_some())
    }

    /// Flags about nodes that have no effect with these nodes.
    pub(super) fn idle_about_nodes(&mut self, nodes: &Nodes, ip: Option<IpAddr>) {
        let why = match nodes {
            _ if self.kind == Kind::Pod => "the platform sets which node this is",
            _ if self.allocation.is_some() => "Slurm or `mpirun` sets which node this is",
            Nodes::One => "the job has one node",
            Nodes::List { .. } => "nodes keep the order of the list",
            Nodes::Etcd { .. } => "nodes that meet in etcd get their ranks when they join",
            Nodes::Master { .. } | Nodes::Auto { .. } => "",
        };
        if !why.is_empty() {
            if self.is_from_flag("sort_ip") && self.arguments.is_switched_on("sort_ip") {
                self.idle("--sort_ip", why);
            }
            let smallest = i64::from(*nodes == Nodes::One);
            if self.is_from_flag("rank") && self.arguments.int("rank").is_some_and(|rank| rank >= smallest) {
                self.idle("--rank", why);
            }
        }
        if *nodes == Nodes::One {
            for flag in SEVERAL_NODES {
                if self.arguments.is_set(flag.trim_start_matches('-')) {
                    self.idle(flag, why);
                }
            }
            if self.arguments.text("host").is_some() && !self.counts_host(nodes, ip) {
                self.idle("--host", "the legacy launcher takes the address of a single node from `--ips`");
            }
        }
        if matches!(nodes, Nodes::Master { .. })
            && self.kind != Kind::Pod
            && self.allocation.is_none()
            && self.arguments.is_set("rdzv-port")
        {
            self.idle("--rdzv-port", "the port is that of `--master`");
        }
    }
}

/// Flags of umiak that have an effect only with several nodes.
const SEVERAL_NODES: [&str; 8] = [
    "--token",
    "--token-file",
    "--rdzv-port",
    "--rdzv-timeout",
    "--node-timeout",
    "--reconnect-window",
    "--uneven",
    "--gather-logs",
];

fn too_many(name: &str, verb: &str, nodes: i64) -> String {
    format!("`{name}` {verb} {nodes} nodes; the maximum is {MAX_NODES}")
}

/// The fewest and the most nodes of `N` or `MIN:MAX`, greater than 0.
pub(super) fn range(text: &str) -> Option<(i64, i64)> {
    let positive = |text: &str| argparse::int(text).filter(|count| *count > 0);
    let (min, max) = match text.split_once(':') {
        Some((low, high)) => (argparse::int(low)?.max(1), positive(high)?),
        None => (positive(text)?, positive(text)?),
    };
    (min <= max).then_some((min, max))
}
