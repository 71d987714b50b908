//! The processes of this node before their ports are known.

use std::net::IpAddr;

use crate::model::{Crew, Mode, Request, ServerMode};
use crate::model::{Part, Port};

/// One process that this node will run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    pub part: Part,
    /// Stage in a heterogeneous job: 1 for trainers, 0 for processes without a stage.
    pub stage: u32,
    /// The port on the command line; `None` for a free port.
    pub port: Option<Port>,
}

/// The processes of this node, in the order of the parts. `address` is this node's; `ranks` is its number of ranks in a
/// collective job.
pub(super) fn seats(request: &Request, address: Option<IpAddr>, ranks: usize) -> Vec<Seat> {
    match &request.mode {
        Mode::Collective | Mode::Rpc => vec![Seat { part: Part::Trainer, stage: 0, port: None }; ranks],
        Mode::Servers(mode) => of_servers(mode, address),
    }
}

fn of_servers(mode: &ServerMode, address: Option<IpAddr>) -> Vec<Seat> {
    if let Some(pod) = &mode.pod {
        return vec![Seat { part: pod.part, stage: 0, port: pod.port }];
    }
    let first_stage = u32::from(!mode.stages.is_empty());
    let mut crews = vec![
        (Part::Server, 0, &mode.servers),
        (Part::Trainer, first_stage, &mode.trainers),
        (Part::Coordinator, 0, &mode.coordinators),
    ];
    crews.extend((2..).zip(&mode.stages).map(|(stage, of_stage)| (Part::HeterTrainer, stage, &of_stage.crew)));
    let mut seats = Vec::new();
    for (part, stage, crew) in crews {
        match crew {
            Crew::Each(count) => seats.extend((0..*count).map(|_| Seat { part, stage, port: None })),
            Crew::Listed(list) => {
                let here = list.iter().filter(|endpoint| Some(endpoint.address) == address);
                seats.extend(here.map(|endpoint| Seat { part, stage, port: Some(endpoint.port) }));
            }
        }
    }
    seats
}
