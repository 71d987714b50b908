//! Torch's store, if umiak hosts it: it listens before the first rank starts. On one node it has its own port. With several
//! nodes it is at the coordinator, on the port where the nodes meet.

use std::net::{IpAddr, TcpListener};
use std::sync::Arc;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::{Mode, Nodes, Port, StoreHost};

use super::{Around, Taken};
use crate::rendezvous::StoreDoor;
use crate::store::{Stores, bind};

/// Opens the store and, on one node, its port; the request then names that port, also for later attempts.
pub(super) fn open(around: &mut Around<'_>, taken: &Taken) -> Result<(), Diagnostic> {
    let StoreHost::Agent { host, port } = &around.spec.request.store else { return Ok(()) };
    if matches!(around.spec.request.mode, Mode::Servers(_)) {
        return Ok(());
    }
    let stores = Stores::start().map_err(|error| Diagnostic::failed("start the store", &error))?;
    let id = stores.open();
    if around.spec.request.nodes == Nodes::One {
        // Where ranks are told to connect: loopback, unless the user gave an address. A name may have any.
        let address = taken.outline.layout.address.filter(|_| host.is_none());
        let listener = match port {
            Some(port) => bind(address, port.get()).map_err(|error| cannot_listen(*port, &error))?,
            None => on_any_port(address, taken)?,
        };
        let port = listener.local_addr().ok().and_then(|address| Port::new(address.port()));
        stores.listen(id, listener);
        let mut spec = (*around.spec).clone();
        let (host, address) = (host.clone(), taken.outline.layout.address);
        spec.request.store = StoreHost::Agent { host: host.or(address.map(|address| address.to_string())), port };
        around.spec = Arc::new(spec);
    }
    around.store = Some(StoreDoor::new(stores, id));
    Ok(())
}

/// The leased port or, if another program took it meanwhile, any.
fn on_any_port(address: Option<IpAddr>, taken: &Taken) -> Result<TcpListener, Diagnostic> {
    let leased = taken.outline.ports.stores.get(1).map_or(0, |port| port.get());
    bind(address, leased).or_else(|_| bind(address, 0)).map_err(|error| Diagnostic::failed("listen for ranks", &error))
}

fn cannot_listen(port: Port, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::R0020, format!("the store cannot listen on port {}", port.get()))
        .row("reason", error.to_string())
        .hint("choose another port with `--master-port`, or leave it out to use a free one")
}
