//! Jobs on clusters. A *unit* is what is given to the scheduler: an allocation with room for all replicas of a job. In it
//! run *agents*, which start, stop and report replicas as the supervisor orders.
//!
//! Supervisor and agents talk through files in the unit's directory, each with one writer, in lines that are only added:
//!
//! | file | written by | contents |
//! |---|---|---|
//! | `unit.json` | supervisor | [`UnitFile`] |
//! | `orders.jsonl` | supervisor | [`Order`]s |
//! | `supervisor.json` | supervisor | [`Beat`] |
//! | `agent-N.jsonl` | agent N | [`Told`] |
//! | `placement.json` | agent 0 | [`Placement`], once all agents are there |
//!
//! | module | in one sentence |
//! |---|---|
//! | [`agent`] | what an agent does about orders and ends |
//! | [`unit`] | what the supervisor of a unit does about reports, answers of the scheduler, and requests |
//! | [`look`] | what a scheduler says about a unit |
//! | [`seats`] | which agent has which replicas |
//! | [`slurm`] | the script for `sbatch`, and what Slurm says about a job |
//! | [`mpi`] | the command line of `mpirun` |
//! | [`kubernetes`] | the objects of a job on Kubernetes, which has no agents |
//! | [`post`] | the same files over a connection, for nodes that do not see the directory |

pub mod agent;
pub mod kubernetes;
pub mod look;
pub mod mpi;
pub mod post;
pub mod seats;
pub mod slurm;
pub mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::facts::Usage;
use crate::machine::job::AttemptId;
use crate::model::{Exit, Host, Job, Port, StepIndex, StopHow};
use crate::plan::Plan;
use crate::plan::document::{Granted, RunPlace, Submission, place, port_owners};

/// The version of these files. Supervisor and agents are the same program.
pub const VERSION: u32 = 1;

/// What agents need before there are orders. It contains secrets, and is readable by its owner only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnitFile {
    pub v: u32,
    /// The engine: `slurm` or `mpi`.
    pub engine: String,
    pub submission: Submission,
    pub step: StepIndex,
    /// The job that is placed: the submitted one, or a step's.
    pub job: Job,
    pub programs: Vec<PathBuf>,
    /// Paths below the run, if the nodes do not see it.
    pub place: RunPlace,
    pub seating: Seating,
}

/// A sign that the supervisor lives: it changes from time to time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Beat {
    pub count: u64,
    /// Where a datagram wakes it.
    pub wake: Vec<SocketAddr>,
}

/// How replicas are divided among agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seating {
    /// An agent for each replica, in order.
    Replicas,
    /// An agent for each node of a part of the allocation, with as many replicas of these roles, in order, as tasks were
    /// given to the node.
    Nodes { parts: Vec<Vec<u16>> },
}

/// An order of the supervisor. Agents follow those about their own replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Start(Vec<StartOrder>),
    Stop {
        how: StopHow,
        targets: Vec<AttemptId>,
    },
    /// Report when it listens on its ports.
    AwaitReady {
        id: AttemptId,
    },
    /// Stop what attempts that have ended left behind.
    Forsake {
        targets: Vec<AttemptId>,
    },
    /// Stop what all attempts left behind, and say so.
    Clear {},
    /// Stop everything, and leave.
    End {
        patient: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    pub id: AttemptId,
    /// The attempt of the whole job.
    pub of_job: u32,
    pub retries: u32,
}

/// A line of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It is there.
    Place(Place),
    Started {
        id: AttemptId,
        pid: u32,
    },
    Ready {
        id: AttemptId,
    },
    Ended {
        id: AttemptId,
        exit: Exit,
        usage: Option<Usage>,
        over_limit: bool,
        /// What the scheduler asked of the agent before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Asked>,
    },
    /// The answer to [`Order::Clear`].
    Cleared {
        stopped: Vec<u32>,
        remaining: Vec<u32>,
    },
    /// Its last line: nothing of it is left.
    Left {
        stopped: Vec<u32>,
        remaining: Vec<u32>,
    },
}

/// What a scheduler asks of a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// To end.
    End,
    /// To end before its time limit.
    Limit,
}

/// Where an agent runs, and what it has leased there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// How often the scheduler had started the unit again.
    pub again: u32,
    pub node: String,
    pub address: IpAddr,
    /// In the order of [`port_owners`], those of its own replicas.
    pub ports: Vec<u16>,
    /// Where a datagram wakes it.
    pub wake: SocketAddr,
}

/// The places of all agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub again: u32,
    /// The replicas of each agent, by rank.
    pub seats: Vec<Vec<u32>>,
    pub places: Vec<Place>,
    /// Attempts that had ended by themselves before the scheduler started the unit again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ended: BTreeSet<AttemptId>,
}

impl Placement {
    /// The agent of each replica, by rank.
    fn agents(&self) -> BTreeMap<u32, usize> {
        let of_agent = |(agent, ranks): (usize, &Vec<u32>)| ranks.iter().map(|rank| (*rank, agent)).collect::<Vec<_>>();
        self.seats.iter().enumerate().flat_map(of_agent).collect()
    }

    /// The hosts and ports of a job's replicas. `None` if a replica has no place.
    pub fn granted(&self, job: &Job) -> Option<Granted> {
        let agents = self.agents();
        let replicas: u32 = job.roles.iter().map(|role| role.replicas).sum();
        let place = |rank: u32| self.places.get(*agents.get(&rank)?);
        let hosts = (0..replicas).map(|rank| Some(Host::Address(place(rank)?.address))).collect::<Option<Vec<_>>>()?;
        let mut left: Vec<_> = self.places.iter().map(|place| place.ports.iter()).collect();
        let port = |owner: u32| Port::new(*left.get_mut(*agents.get(&owner)?)?.next()?);
        let ports = port_owners(job).into_iter().map(port).collect::<Option<Vec<_>>>()?;
        Some(Granted { hosts, ports, by_owner: true })
    }
}

impl UnitFile {
    /// The plan of the job at these places.
    pub fn placed(&self, placement: &Placement) -> Option<Plan> {
        let granted = placement.granted(&self.job)?;
        Some(place(&self.submission, &self.job, &self.programs, self.place.clone(), granted))
    }

    /// Number of ports that an agent leases for these replicas.
    pub fn ports(&self, seats: &[u32]) -> usize {
        port_owners(&self.job).iter().filter(|owner| seats.contains(owner)).count()
    }
}
