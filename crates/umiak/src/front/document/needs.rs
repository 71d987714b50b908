//! Leases the addresses and ports of a job before anything starts.

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::{Host, Hosts, Job, Port, StepIndex};
use umiak_core::plan::document::{self, Granted, Needs};
use umiak_sys::ports::{LeaseError, LeaseRequest, PortRange};

use crate::engine::{Engine, NotLeased, no_sockets, reserved_by};

/// Leases from an engine, which holds the lease until it ends.
pub(super) fn lease(engine: &mut dyn Engine, step: StepIndex, job: &Job, needs: &Needs) -> Result<Granted, Diagnostic> {
    let request = ports(needs)?;
    let hosts = match engine.capabilities(step).hosts {
        Hosts::Names | Hosts::Placed => document::names(job),
        Hosts::Addresses => {
            let addresses = engine.lease_addresses(step, needs.addresses)?;
            addresses.into_iter().map(Host::Address).collect()
        }
    };
    let Some(request) = request else { return Ok(Granted { hosts, ..Granted::default() }) };
    let leased = engine.lease_ports(step, request).map_err(|error| match error {
        NotLeased::TooFew(error) => too_few_ports(&error),
        NotLeased::Lost(diagnostic) => *diagnostic,
    })?;
    Ok(Granted { hosts, ports: leased.ports.into_iter().filter_map(Port::new).collect(), by_owner: false })
}

/// The request for all ports of a job; `None` if it needs none.
pub(crate) fn ports(needs: &Needs) -> Result<Option<LeaseRequest>, Diagnostic> {
    let count = u16::try_from(needs.ports).map_err(|_| {
        Diagnostic::error(Code::J0020, format!("the job needs {} ports, more than a host has", needs.ports))
            .hint("start fewer replicas, or request fewer ports")
    })?;
    Ok((count > 0).then(|| LeaseRequest { count, range: PortRange::Anywhere, address: None, seed: fastrand::u64(..) }))
}

fn too_few(error: &LeaseError) -> Diagnostic {
    Diagnostic::error(Code::J0020, "too few free ports on this host")
        .row("needed", error.wanted.to_string())
        .row("free", format!("{} between {} and {}", error.found, error.low, error.high))
}

pub(crate) fn too_few_ports(error: &LeaseError) -> Diagnostic {
    match error.refused {
        Some(errno) => no_sockets(Code::J0020, error.wanted, errno, "replicas"),
        None => reserved_by(too_few(error), &error.holders)
            .hint("stop the processes that use them, or start fewer replicas"),
    }
}
