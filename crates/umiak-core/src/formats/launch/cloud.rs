//! PaddleCloud's variables, as the legacy generation reads them.
//!
//! The current generation uses the platform's endpoint list instead (see `environment`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::environment::Environment;
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;
use crate::model::{MAX_NODES, PortRequest};

/// All four are set on the platform, and only there.
const CONTRACT: [&str; 4] = ["PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM"];

/// The job, as the platform describes it; empty off the platform.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Platform {
    /// The platform's list, if it applies instead of `--ips`.
    pub(super) nodes: Vec<IpAddr>,
    /// The address of this node.
    pub(super) host: Option<IpAddr>,
    /// The fixed ports of the platform.
    pub(super) ports: Option<PortRequest>,
}

/// The source of a port that no variable names.
const VARIABLES: &str = "PaddleCloud's variables";

/// `None` off the platform. `processes` is the number on the command line.
pub(super) fn read(env: &Environment, processes: Option<i64>) -> Result<Option<Platform>, Diagnostic> {
    let trainers_num = match env.get("PADDLE_TRAINERS_NUM") {
        None => 1,
        Some(text) => argparse::int(text).ok_or_else(|| no_number("PADDLE_TRAINERS_NUM", text))?,
    };
    let nodes: Vec<&str> =
        env.get("PADDLE_TRAINERS").map(|list| list.split(',').map(str::trim).collect()).unwrap_or_default();
    let missing: Vec<&str> = CONTRACT.into_iter().filter(|name| !env.contains_key(*name)).collect();
    if !missing.is_empty() {
        // `PADDLE_TRAINERS` alone with several nodes means that a variable of the platform is missing. Silently
        // starting one node of a larger job would be wrong.
        return if nodes.len() > 1 && trainers_num != 1 {
            let are = if missing.len() == 1 { "is" } else { "are" };
            let message =
                format!("the environment looks like PaddleCloud's, but {} {are} missing", super::words::both(&missing));
            Err(Diagnostic::error(Code::L0008, message)
                .row("PADDLE_TRAINERS", nodes.join(", "))
                .hint("set the missing variables, or unset `PADDLE_TRAINERS` to run on this node alone"))
        } else {
            Ok(None)
        };
    }
    if trainers_num == 1 {
        return Ok(Some(Platform { ports: Some(fixed(6070, VARIABLES)), ..Platform::default() }));
    }
    let text = |name: &str| env.get(name).map_or("", String::as_str);
    let number = |name: &'static str| argparse::int(text(name)).ok_or_else(|| no_number(name, text(name)));
    let addresses = addresses(&nodes)?;
    let pod_ip = text("POD_IP").trim();
    let Some(place) = nodes.iter().position(|node| *node == pod_ip) else {
        return Err(Diagnostic::error(Code::L0008, "`POD_IP` is not in `PADDLE_TRAINERS`")
            .row("POD_IP", text("POD_IP"))
            .row("PADDLE_TRAINERS", nodes.join(", ")));
    };
    if number("PADDLE_TRAINER_ID")? != place as i64 {
        let id = text("PADDLE_TRAINER_ID");
        return Err(if nodes.len() == 1 {
            Diagnostic::error(Code::L0008, format!("`PADDLE_TRAINER_ID` is `{id}`, but the job has one node"))
        } else {
            let message = format!("`PADDLE_TRAINER_ID` is `{id}`, but `POD_IP` is node {place}");
            Diagnostic::error(Code::L0008, message)
                .row("POD_IP", pod_ip)
                .row("PADDLE_TRAINERS", nodes.join(", "))
                .hint("nodes count from 0, in the order of `PADDLE_TRAINERS`")
        });
    }
    let ports_num = number("TRAINER_PORTS_NUM")?;
    let ports = match (env.get("DISTRIBUTED_TRAINER_ENDPOINTS"), env.get("PADDLE_PORT")) {
        (Some(list), _) => fixed(first_port(list, place, nodes.len(), ports_num)?, "DISTRIBUTED_TRAINER_ENDPOINTS"),
        // With too few ports of its own, a job uses the default ports, as in Paddle.
        (None, Some(start)) if nodes.len() > 1 && processes.is_none_or(|count| count <= ports_num) => {
            let start = super::own::port(start).ok_or_else(|| {
                Diagnostic::error(Code::L0008, format!("`PADDLE_PORT` takes a port from 1 to 65535, not `{start}`"))
            })?;
            fixed(start.get(), "PADDLE_PORT")
        }
        _ => fixed(6170, VARIABLES),
    };
    Ok(Some(Platform { host: Some(addresses[place]), nodes: addresses, ports: Some(ports) }))
}

fn fixed(start: u16, source: &str) -> PortRequest {
    PortRequest::Fixed { start, source: source.to_owned() }
}

/// The platform's list: addresses without duplicates.
fn addresses(nodes: &[&str]) -> Result<Vec<IpAddr>, Diagnostic> {
    const NAME: &str = "PADDLE_TRAINERS";
    if nodes.len() > MAX_NODES as usize {
        let message = format!("`{NAME}` lists {} nodes; the maximum is {MAX_NODES}", nodes.len());
        return Err(Diagnostic::error(Code::L0008, message));
    }
    let mut seen = BTreeSet::new();
    let address = |node: &&str| {
        let address: IpAddr = node
            .parse()
            .map_err(|_| Diagnostic::error(Code::L0008, format!("`{NAME}` takes addresses, not `{node}`")))?;
        if seen.insert(address) {
            Ok(address)
        } else {
            let message = format!("`{NAME}` lists {node} twice");
            Err(Diagnostic::error(Code::L0008, message).row(NAME, nodes.join(", ")))
        }
    };
    nodes.iter().map(address).collect()
}

/// The first port of this node's endpoints. The list has the endpoints of one node after another, the platform's number
/// of ports for each. Ports of one node must be consecutive.
fn first_port(list: &str, place: usize, nodes: usize, ports_num: i64) -> Result<u16, Diagnostic> {
    const NAME: &str = "DISTRIBUTED_TRAINER_ENDPOINTS";
    let endpoints: Vec<&str> = list.split(',').collect();
    let each = usize::try_from(ports_num).ok().filter(|each| each.checked_mul(nodes) == Some(endpoints.len()));
    let Some(each) = each.filter(|each| *each > 0) else {
        let message = format!("`{NAME}` lists {} endpoints, but `TRAINER_PORTS_NUM` is {ports_num}", endpoints.len());
        let error = Diagnostic::error(Code::L0008, message);
        return Err(if nodes > 1 { error.row("nodes", nodes.to_string()) } else { error });
    };
    let own = &endpoints[place * each..][..each];
    let port = |endpoint: &&str| endpoint.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let ports: Option<Vec<u16>> = own.iter().map(port).collect();
    let ports = ports
        .filter(|ports| !ports.contains(&0))
        .ok_or_else(|| Diagnostic::error(Code::L0008, format!("`{NAME}` takes `ip:port` entries, not `{list}`")))?;
    if ports.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1])) {
        Ok(ports[0])
    } else {
        let message = format!("`{NAME}` has ports that are not consecutive, which is not supported yet");
        Err(Diagnostic::error(Code::L0003, message).row("endpoints", own.join(",")))
    }
}

fn no_number(name: &str, text: &str) -> Diagnostic {
    Diagnostic::error(Code::L0008, format!("`{name}` takes a whole number, not `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pairs: &[(&str, &str)]) -> Result<Option<Platform>, Code> {
        let env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        read(&env, None).map_err(|diagnostic| diagnostic.code)
    }

    /// The platform's variables for one node, with some of them changed.
    fn platform(changes: &[(&str, &str)]) -> Result<Option<Platform>, Code> {
        let mut pairs = vec![
            ("PADDLE_TRAINERS", "10.0.0.1"),
            ("POD_IP", "10.0.0.1"),
            ("PADDLE_TRAINER_ID", "0"),
            ("TRAINER_PORTS_NUM", "2"),
        ];
        pairs.extend_from_slice(changes);
        run(&pairs)
    }

    fn described(nodes: &[&str], host: &str, start: u16, source: &str) -> Platform {
        let nodes = nodes.iter().map(|node| node.parse().unwrap()).collect();
        Platform { nodes, host: host.parse().ok(), ports: Some(fixed(start, source)) }
    }

    #[test]
    fn one_node() {
        assert_eq!(run(&[]), Ok(None));
        assert_eq!(run(&[("PADDLE_TRAINERS", "10.0.0.1"), ("PADDLE_TRAINERS_NUM", "2")]), Ok(None));
        assert_eq!(platform(&[]), Ok(Some(described(&[], "", 6070, VARIABLES))));
        let (one, two) = ("10.0.0.1", ("PADDLE_TRAINERS_NUM", "2"));
        assert_eq!(platform(&[two]), Ok(Some(described(&[one], one, 6170, VARIABLES))));
        assert_eq!(platform(&[two, ("PADDLE_PORT", "8000")]), Ok(Some(described(&[one], one, 6170, VARIABLES))));
        let name = "DISTRIBUTED_TRAINER_ENDPOINTS";
        let listed = [two, (name, "10.0.0.1:7000,10.0.0.1:7001")];
        assert_eq!(platform(&listed), Ok(Some(described(&[one], one, 7000, name))));
    }

    #[test]
    fn several_nodes() {
        let name = "DISTRIBUTED_TRAINER_ENDPOINTS";
        let nodes = ["10.0.0.1", "10.0.0.2"];
        let second = |more: &[(&'static str, &'static str)]| {
            let mut changes = vec![
                ("PADDLE_TRAINERS_NUM", "2"),
                ("PADDLE_TRAINERS", "10.0.0.1, 10.0.0.2"),
                ("POD_IP", "10.0.0.2"),
                ("PADDLE_TRAINER_ID", "1"),
            ];
            changes.extend_from_slice(more);
            platform(&changes)
        };
        assert_eq!(second(&[]), Ok(Some(described(&nodes, nodes[1], 6170, VARIABLES))));
        assert_eq!(second(&[("PADDLE_PORT", "8000")]), Ok(Some(described(&nodes, nodes[1], 8000, "PADDLE_PORT"))));
        // Each node has its own slice, of the length that the platform sets.
        let list = "10.0.0.1:7000,10.0.0.1:7001,10.0.0.2:7010,10.0.0.2:7011";
        assert_eq!(second(&[(name, list)]), Ok(Some(described(&nodes, nodes[1], 7010, name))));
        // Gaps in the ports of another node do not matter.
        let list = "10.0.0.1:7000,10.0.0.1:7005,10.0.0.2:7010,10.0.0.2:7011";
        assert_eq!(second(&[(name, list)]), Ok(Some(described(&nodes, nodes[1], 7010, name))));
        for (more, code) in [
            (vec![("PADDLE_TRAINER_ID", "0")], Code::L0008),
            (vec![("POD_IP", "10.0.0.3")], Code::L0008),
            (vec![("PADDLE_PORT", "no")], Code::L0008),
            (vec![("PADDLE_TRAINERS", "10.0.0.2,10.0.0.2"), ("PADDLE_TRAINER_ID", "0")], Code::L0008),
            (vec![(name, "10.0.0.1:7000,10.0.0.2:7000")], Code::L0008),
            (vec![(name, "10.0.0.1:1,10.0.0.1:2,10.0.0.2:1,10.0.0.2:3")], Code::L0003),
        ] {
            assert_eq!(second(&more), Err(code), "{more:?}");
        }
        // More processes than the platform has ports for.
        let env = [
            ("PADDLE_TRAINERS", "10.0.0.1,10.0.0.2"),
            ("POD_IP", "10.0.0.1"),
            ("PADDLE_TRAINER_ID", "0"),
            ("TRAINER_PORTS_NUM", "2"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_PORT", "8000"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (processes, start) in [(Some(2), 8000), (Some(4), 6170)] {
            let ports = read(&env.clone().into(), processes).unwrap().unwrap().ports;
            assert!(matches!(ports, Some(PortRequest::Fixed { start: seen, .. }) if seen == start), "{ports:?}");
        }
    }

    #[test]
    fn what_does_not_fit() {
        let two = ("PADDLE_TRAINERS_NUM", "2");
        for (changes, code) in [
            (vec![("PADDLE_TRAINERS_NUM", "two")], Code::L0008),
            (vec![two, ("PADDLE_TRAINERS", "here"), ("POD_IP", "here")], Code::L0008),
            (vec![two, ("POD_IP", "10.0.0.9")], Code::L0008),
            (vec![two, ("PADDLE_TRAINER_ID", "1")], Code::L0008),
            (vec![two, ("TRAINER_PORTS_NUM", "x")], Code::L0008),
            (vec![two, ("DISTRIBUTED_TRAINER_ENDPOINTS", "10.0.0.1:7000")], Code::L0008),
            (vec![two, ("DISTRIBUTED_TRAINER_ENDPOINTS", "10.0.0.1:7000,10.0.0.1:0")], Code::L0008),
            (vec![two, ("DISTRIBUTED_TRAINER_ENDPOINTS", "10.0.0.1:7000,10.0.0.1:7002")], Code::L0003),
        ] {
            assert_eq!(platform(&changes), Err(code), "{changes:?}");
        }
        assert_eq!(run(&[("PADDLE_TRAINERS", "10.0.0.1,10.0.0.2"), two]), Err(Code::L0008));
    }
}
