//! PaddleCloud's variables, as the legacy generation reads them.
//!
//! The current generation takes the platform's endpoint list instead (see `environment`).

use std::net::IpAddr;

use super::PortRequest;
use super::environment::Environment;
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;

/// All four are there on the platform, and only there.
const CONTRACT: [&str; 4] = ["PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID", "TRAINER_PORTS_NUM"];

/// This node, as the platform describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Platform {
    /// Set when the platform's list of nodes counts, and not `--ips`.
    pub(super) address: Option<IpAddr>,
    /// Ports are never looked for on the platform.
    pub(super) ports: PortRequest,
}

/// `None` off the platform.
pub(super) fn read(env: &Environment) -> Result<Option<Platform>, Diagnostic> {
    let trainers_num = match env.get("PADDLE_TRAINERS_NUM") {
        None => 1,
        Some(text) => argparse::int(text).ok_or_else(|| no_number("PADDLE_TRAINERS_NUM", text))?,
    };
    let nodes: Vec<&str> =
        env.get("PADDLE_TRAINERS").map(|list| list.split(',').map(str::trim).collect()).unwrap_or_default();
    let missing: Vec<&str> = CONTRACT.into_iter().filter(|name| !env.contains_key(*name)).collect();
    if !missing.is_empty() {
        // A lone `PADDLE_TRAINERS` with several nodes is a platform that lost a variable, and starting one node
        // of a larger job in silence would help nobody.
        return if nodes.len() > 1 && trainers_num != 1 {
            let are = if missing.len() == 1 { "is" } else { "are" };
            let message =
                format!("the environment looks like PaddleCloud's, but {} {are} missing", super::words::both(&missing));
            Err(Diagnostic::error(Code::L0008, message)
                .row("PADDLE_TRAINERS", nodes.join(", "))
                .hint("set what is missing, or unset `PADDLE_TRAINERS` to run on this node alone"))
        } else {
            Ok(None)
        };
    }
    let fixed = |start, source: &str| PortRequest::Fixed { start, source: source.to_owned() };
    if trainers_num == 1 {
        return Ok(Some(Platform { address: None, ports: fixed(6070, "PaddleCloud's variables") }));
    }
    if nodes.len() > 1 {
        return Err(Diagnostic::error(
            Code::L0003,
            format!("jobs on several nodes are not in this version: `PADDLE_TRAINERS` names {}", nodes.len()),
        )
        .row("nodes", nodes.join(", ")));
    }
    let text = |name: &str| env.get(name).map_or("", String::as_str);
    let number = |name: &'static str| argparse::int(text(name)).ok_or_else(|| no_number(name, text(name)));
    let address: IpAddr = nodes[0].parse().map_err(|_| {
        Diagnostic::error(Code::L0008, format!("`PADDLE_TRAINERS` takes addresses, not `{}`", nodes[0]))
    })?;
    if text("POD_IP").trim() != nodes[0] {
        return Err(Diagnostic::error(Code::L0008, "`POD_IP` is not in `PADDLE_TRAINERS`")
            .row("POD_IP", text("POD_IP"))
            .row("PADDLE_TRAINERS", nodes.join(", ")));
    }
    if number("PADDLE_TRAINER_ID")? != 0 {
        let message = format!("`PADDLE_TRAINER_ID` is `{}`, but there is one node", text("PADDLE_TRAINER_ID"));
        return Err(Diagnostic::error(Code::L0008, message));
    }
    let ports_num = number("TRAINER_PORTS_NUM")?;
    let ports = match env.get("DISTRIBUTED_TRAINER_ENDPOINTS") {
        Some(list) => fixed(first_port(list, ports_num)?, "DISTRIBUTED_TRAINER_ENDPOINTS"),
        None => fixed(6170, "PaddleCloud's variables"),
    };
    Ok(Some(Platform { address: Some(address), ports }))
}

/// The first port of this node's endpoints. Their number must be the platform's, and they must follow each other.
fn first_port(list: &str, ports_num: i64) -> Result<u16, Diagnostic> {
    const NAME: &str = "DISTRIBUTED_TRAINER_ENDPOINTS";
    let endpoints: Vec<&str> = list.split(',').collect();
    if endpoints.len() as i64 != ports_num {
        let message = format!("`{NAME}` lists {} endpoints, and `TRAINER_PORTS_NUM` is {ports_num}", endpoints.len());
        return Err(Diagnostic::error(Code::L0008, message));
    }
    let port = |endpoint: &&str| endpoint.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let ports: Option<Vec<u16>> = endpoints.iter().map(port).collect();
    let ports = ports
        .filter(|ports| !ports.contains(&0))
        .ok_or_else(|| Diagnostic::error(Code::L0008, format!("`{NAME}` takes `ip:port` entries, not `{list}`")))?;
    if ports.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1])) {
        Ok(ports[0])
    } else {
        let message = format!("ports that do not follow each other are not in this version: `{NAME}`");
        Err(Diagnostic::error(Code::L0003, message).row("endpoints", list))
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
        read(&env).map_err(|diagnostic| diagnostic.code)
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

    #[test]
    fn one_node() {
        let fixed = |start, source: &str| PortRequest::Fixed { start, source: source.to_owned() };
        let variables = "PaddleCloud's variables";
        assert_eq!(run(&[]), Ok(None));
        assert_eq!(run(&[("PADDLE_TRAINERS", "10.0.0.1"), ("PADDLE_TRAINERS_NUM", "2")]), Ok(None));
        assert_eq!(platform(&[]), Ok(Some(Platform { address: None, ports: fixed(6070, variables) })));
        let address = "10.0.0.1".parse().ok();
        let listed = [("PADDLE_TRAINERS_NUM", "2")];
        assert_eq!(platform(&listed), Ok(Some(Platform { address, ports: fixed(6170, variables) })));
        let name = "DISTRIBUTED_TRAINER_ENDPOINTS";
        let listed = [("PADDLE_TRAINERS_NUM", "2"), (name, "10.0.0.1:7000,10.0.0.1:7001")];
        assert_eq!(platform(&listed), Ok(Some(Platform { address, ports: fixed(7000, name) })));
    }

    #[test]
    fn what_does_not_fit() {
        let two = ("PADDLE_TRAINERS_NUM", "2");
        for (changes, code) in [
            (vec![("PADDLE_TRAINERS_NUM", "two")], Code::L0008),
            (vec![two, ("PADDLE_TRAINERS", "10.0.0.1,10.0.0.2")], Code::L0003),
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
