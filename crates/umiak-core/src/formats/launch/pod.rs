//! One process of a parameter-server job placed by PaddleCloud or a compatible operator. Its variables identify the
//! process and list the others. Host names work as well as addresses, if `POD_IP` equals the one in the list.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use super::environment::Environment;
use super::words;
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;
use crate::model::{MAX_NODES, Nodes, Part, Pod, Port, meeting};

const ROLE: &str = "TRAINING_ROLE";
const SERVERS: &str = "PADDLE_PSERVERS_IP_PORT_LIST";
const TRAINERS: &str = "PADDLE_TRAINERS_NUM";
const ID: &str = "PADDLE_TRAINER_ID";
const ADDRESS: &str = "POD_IP";
const PORT: &str = "PADDLE_PORT";

/// Reads the platform's description of this process.
pub(super) fn read(env: &Environment) -> Result<Pod, Diagnostic> {
    let text = |name: &str| env.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
    let (part, own) = match text(ROLE) {
        Some("PSERVER") => (Part::Server, &[ADDRESS, PORT][..]),
        Some("TRAINER") => (Part::Trainer, &[ID][..]),
        Some(role @ ("HETER_TRAINER" | "COORDINATOR" | "HETER")) => {
            let message = format!("on PaddleCloud `{ROLE}` is `{role}`, which is not supported yet");
            return Err(Diagnostic::error(Code::L0003, message).hint("`PSERVER` and `TRAINER` are supported"));
        }
        role => {
            let message = format!("`{ROLE}` takes `PSERVER` or `TRAINER`, not `{}`", role.unwrap_or_default());
            return Err(Diagnostic::error(Code::L0008, message));
        }
    };
    let missing: Vec<&str> =
        [SERVERS, TRAINERS].iter().chain(own).copied().filter(|name| text(name).is_none()).collect();
    if !missing.is_empty() {
        let are = if missing.len() == 1 { "is" } else { "are" };
        let message = format!("the environment looks like PaddleCloud's, but {} {are} missing", words::both(&missing));
        return Err(Diagnostic::error(Code::L0008, message)
            .row(ROLE, part.training_role())
            .hint("set the missing variables, or use `--server_num` and `--trainer_num`"));
    }
    let value = |name: &str| text(name).unwrap_or_default();
    let servers = servers(value(SERVERS))?;
    let trainers = number(TRAINERS, value(TRAINERS))?;
    if trainers == 0 || servers.len() as u64 + u64::from(trainers) > u64::from(MAX_NODES) {
        let message =
            format!("`{TRAINERS}` is {trainers}, but a job has at least 1 trainer and at most {MAX_NODES} pods");
        return Err(Diagnostic::error(Code::L0008, message));
    }
    let port = text(PORT).map(port).transpose()?;
    let endpoint = port.map(|port| endpoint(value(ADDRESS), port)).unwrap_or_default();
    let place = servers.iter().position(|server| *server == endpoint);
    if part == Part::Trainer {
        let index = trainer(value(ID), trainers)?;
        // Some platforms set the servers' port for trainers too; on a host shared with a server, that port is in use.
        return Ok(Pod { part, index, servers, trainers, port: port.filter(|_| place.is_none()) });
    }
    match place {
        Some(place) => Ok(Pod { part, index: place as u32, servers, trainers, port }),
        None => Err(Diagnostic::error(Code::L0008, format!("`{ADDRESS}` and `{PORT}` are not in `{SERVERS}`"))
            .row("this server", endpoint)
            .row("listed", servers.join("\n"))
            .hint("entries are compared as text: a name in the list must equal the name in `POD_IP`")),
    }
}

fn port(text: &str) -> Result<Port, Diagnostic> {
    super::own::port(text)
        .ok_or_else(|| Diagnostic::error(Code::L0008, format!("`{PORT}` takes a port from 1 to 65535, not `{text}`")))
}

/// The endpoint as written in the list.
fn endpoint(host: &str, port: Port) -> String {
    let is_bare = host.parse::<Ipv6Addr>().is_ok();
    if is_bare { format!("[{host}]:{}", port.get()) } else { format!("{host}:{}", port.get()) }
}

fn trainer(text: &str, trainers: u32) -> Result<u32, Diagnostic> {
    let id = number(ID, text)?;
    if id < trainers {
        return Ok(id);
    }
    let message = format!("`{ID}` is {id}, but `{TRAINERS}` is {trainers}");
    Err(Diagnostic::error(Code::L0008, message).hint("trainers count from 0"))
}

fn number(name: &str, text: &str) -> Result<u32, Diagnostic> {
    argparse::int(text)
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| Diagnostic::error(Code::L0008, format!("`{name}` takes a whole number from 0 up, not `{text}`")))
}

fn servers(list: &str) -> Result<Vec<String>, Diagnostic> {
    let servers: Vec<String> = list.split(',').map(|server| server.trim().to_owned()).collect();
    if let Some(wrong) = servers.iter().find(|server| split(server).is_none()) {
        let message = format!("`{SERVERS}` takes `host:port` entries, not `{wrong}`");
        return Err(Diagnostic::error(Code::L0008, message));
    }
    let mut seen = BTreeSet::new();
    match servers.iter().find(|server| !seen.insert(server.as_str())) {
        Some(server) => Err(Diagnostic::error(Code::L0008, format!("`{SERVERS}` lists {server} twice"))),
        None => Ok(servers),
    }
}

/// The host without brackets, and the port.
fn split(server: &str) -> Option<(&str, Port)> {
    let (host, port) = server.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | '[' | ']');
    let host = match bare {
        Some(host) => host,
        None if host.contains(':') => return None,
        None => host,
    };
    if host.is_empty() || host.contains(is_odd) { None } else { Some((host, super::own::port(port)?)) }
}

/// The pods meet on the first server's host: at `given`, otherwise at a port that all of them compute. Servers have the
/// first ranks, then the trainers.
pub(super) fn nodes(pod: &Pod, job: &str, given: Option<Port>) -> Result<Nodes, Diagnostic> {
    let first = pod.servers.first().and_then(|server| split(server));
    let Some((host, _)) = first else {
        return Err(Diagnostic::error(Code::L0008, format!("`{SERVERS}` is empty")));
    };
    let taken: Vec<u16> = pod.servers.iter().filter_map(|server| Some(split(server)?.1.get())).collect();
    if let Some(port) = given.filter(|port| pod.servers.iter().any(|server| split(server) == Some((host, *port)))) {
        let message = format!("the nodes cannot meet at port {}: a server in `{SERVERS}` uses it", port.get());
        return Err(
            Diagnostic::error(Code::L0002, message).hint("choose another port with `--rdzv-port` or `UMIAK_PORT`")
        );
    }
    let free = || meeting::ports(job, &pod.servers.join(",")).find(|port| !taken.contains(port));
    // If servers use all candidate ports: the port below the candidates.
    let port = given.or_else(|| free().and_then(Port::new));
    let port = port.or_else(|| Port::new(meeting::FIRST_PORT - 1)).expect("not 0");
    let nodes = pod.servers.len() as u32 + pod.trainers;
    Ok(Nodes::Master { host: host.to_owned(), port, nodes, source: SERVERS.to_owned() })
}

/// The rank of this pod among all pods.
pub(super) fn rank(pod: &Pod) -> u32 {
    match pod.part {
        Part::Server => pod.index,
        _ => pod.servers.len() as u32 + pod.index,
    }
}
