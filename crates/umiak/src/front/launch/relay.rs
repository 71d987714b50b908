//! `--store-relay`: ranks reach the store of Paddle's rank 0 through umiak on its node.
//!
//! Which node has rank 0 is known only when all nodes have met, and then ranks start at once. So every node listens before
//! it offers its ports; those without rank 0 close the port again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use umiak_core::diag::Diagnostic;
use umiak_core::model::{Nodes, Port, Request};
use umiak_core::plan::{Ports, Share};

use crate::relay::Relay;

/// A relay whose clients may connect, but are not served yet.
pub(super) struct Waiting {
    listener: TcpListener,
    /// Where rank 0 will host the store.
    server: Port,
}

/// Listens on the port that this node offers for Paddle's store or, if another program took it meanwhile, on any other,
/// which is offered then.
pub(super) fn open(
    request: &Request,
    address: Option<IpAddr>,
    ports: &mut Ports,
) -> Result<Option<Waiting>, Diagnostic> {
    let [relay, _, server] = &mut ports.stores[..] else { return Ok(None) };
    // Other hosts are not meant to connect, unless this node has an address that they know.
    let address = address.filter(|address| request.nodes == Nodes::One && address.is_loopback());
    let listener = umiak_sys::net::listen_promptly(address, relay.get())
        .or_else(|_| umiak_sys::net::listen_promptly(address, 0))
        .map_err(|error| failed(&error))?;
    let bound = listener.local_addr().map_err(|error| failed(&error))?;
    *relay = Port::new(bound.port()).unwrap_or(*relay);
    Ok(Some(Waiting { listener, server: *server }))
}

/// Serves the clients, if this node has rank 0. The share then tells rank 0 where to host its store.
pub(super) fn begin(waiting: Option<Waiting>, share: Share) -> Result<(Share, Option<Relay>), Diagnostic> {
    let Some(Waiting { listener, server }) = waiting else { return Ok((share, None)) };
    let share = share.relaying(Some(&server));
    if share.topology.relayed_store.is_none() {
        return Ok((share, None));
    }
    // Rank 0 listens on all addresses.
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server.get()));
    let relay = Relay::start(listener, server).map_err(|error| failed(&error))?;
    Ok((share, Some(relay)))
}

fn failed(error: &std::io::Error) -> Diagnostic {
    Diagnostic::failed("relay to the store of rank 0", error)
}
