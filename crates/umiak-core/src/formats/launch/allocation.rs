//! Nodes that a scheduler gave to this process, for command lines that name none.
//!
//! | started by | nodes |
//! |---|---|
//! | `srun`, one task on each node | those of the step, by `SLURM_STEP_NODELIST`; this one is `SLURM_NODEID` |
//! | `mpirun` inside an allocation of Slurm, one process on each of its nodes | those of the allocation; this one is its rank |
//! | `srun` or `mpirun`, several on one node | refused: each would start all ranks of the node |
//! | `mpirun` elsewhere | refused: its variables do not say on which hosts its processes run |
//! | a batch script or a shell of an allocation | this one, with a notice |
//!
//! `mpirun` names the host where it was started, which need not be one of those where its processes run. Only a client of
//! PMIx could ask for the others.

use super::environment::Environment;
use crate::diag::{Code, Diagnostic};
use crate::formats::hostlist;
use crate::model::{JobId, MAX_NODES, Nodes, Placement, Port, meeting};

const JOB: &str = "SLURM_JOB_ID";
const STEP: &str = "SLURM_STEP_ID";
const JOB_NODES: &str = "SLURM_JOB_NODELIST";
const STEP_NODES: &str = "SLURM_STEP_NODELIST";
const STEP_TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";
const NODE: &str = "SLURM_NODEID";

/// Step ids from here on are not steps of `srun`: batch scripts, interactive shells.
const SPECIAL_STEPS: u64 = 0xffff_fff0;

/// Variables that only a process of a launcher has. Its nodes are those of its launcher, and not to be started again.
const INSIDE: [&str; 3] = ["UMIAK_RUN", "TORCHELASTIC_RUN_ID", "PADDLE_CURRENT_ENDPOINT"];

/// Every variable that is read here, and what for.
pub const VARIABLES: &[(&str, &str)] = &[
    (JOB, "The allocation. Inside one, the nodes need not be named on the command line."),
    (
        STEP,
        "The step of `srun` that this process belongs to. Together with the allocation it determines the port where the nodes meet, and the job's id.",
    ),
    (STEP_NODES, "The nodes of the step. The first one coordinates."),
    (STEP_TASKS, "The tasks on each of these nodes: umiak takes the nodes from Slurm if each has one."),
    (NODE, "Which of these nodes this one is."),
    (JOB_NODES, "The nodes of the allocation, for `mpirun` inside it and for batch scripts."),
    ("SLURM_JOB_NUM_NODES", "Their number."),
    (
        "SLURM_NNODES",
        "The number of nodes of the step; variables of a step that contradict it are left over from another.",
    ),
    ("SLURMD_NODENAME", "The name of this node, for the same check."),
    ("SLURM_PTY_PORT", "Set: this process belongs to a shell, and only this node is used."),
    (
        "OMPI_COMM_WORLD_SIZE",
        "The number of processes that Open MPI's `mpirun` started; `PMI_SIZE` in MPICH and Intel MPI.",
    ),
    ("OMPI_COMM_WORLD_RANK", "Which of them this one is; `PMI_RANK` in MPICH and Intel MPI."),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "How many of them run on this host; `MPI_LOCALNRANKS` in MPICH and Intel MPI."),
    ("PMIX_NAMESPACE", "Tells one `mpirun` from another in the same allocation."),
];

/// What the flags leave to the scheduler.
pub(super) struct Left<'a> {
    pub(super) env: &'a Environment,
    /// The number of nodes on the command line, if it names one.
    pub(super) nodes: Option<u32>,
    /// The port where the nodes meet, if given.
    pub(super) port: Option<Port>,
    /// `umiak launch`, for messages.
    pub(super) program: &'a str,
    /// The flags that name the meeting place of so many nodes, for messages.
    pub(super) flags: &'a str,
}

/// The nodes of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) nodes: Nodes,
    pub(super) rank: u32,
    pub(super) placement: Placement,
    /// Different for each step, so that jobs on the same nodes do not mix.
    pub(super) job_id: JobId,
}

/// What a scheduler says about nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// This node is one of several, but umiak was not started on the others.
    Alone(Box<Diagnostic>),
    Several(Box<Allocation>),
}

impl Left<'_> {
    pub(super) fn find(&self) -> Result<Found, Diagnostic> {
        if self.nodes == Some(1) || INSIDE.iter().any(|name| self.text(name).is_some()) {
            return Ok(Found::Nothing);
        }
        match self.mpi()? {
            Found::Nothing if self.mpi_size()?.is_none() => self.slurm(),
            found => Ok(found),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Diagnostic> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| wrong(format!("`{name}` must be a whole number, not `{text}`")))
    }

    fn names(&self, name: &str) -> Result<Vec<String>, Diagnostic> {
        let text = self.text(name).unwrap_or_default();
        hostlist::expand(text, MAX_NODES as usize)
            .map_err(|error| wrong(format!("`{name}` is not a list of nodes: {error}")))
    }

    fn slurm(&self) -> Result<Found, Diagnostic> {
        let Some(job) = self.number(JOB)? else { return Ok(Found::Nothing) };
        let step = self.number(STEP)?.filter(|step| *step < SPECIAL_STEPS && self.text("SLURM_PTY_PORT").is_none());
        let Some(step) = step else { return self.without_step(job) };
        let list = if self.text(STEP_NODES).is_some() { STEP_NODES } else { JOB_NODES };
        let names = self.names(list)?;
        let count = names.len() as u32;
        let rank = match self.number(NODE)? {
            Some(node) if node < u64::from(count) => node as u32,
            node => {
                let node = node.map_or("missing".to_owned(), |node| node.to_string());
                return Err(wrong(format!("`{NODE}` is {node}, and `{list}` has {count} nodes")));
            }
        };
        let is_stale = self.number("SLURM_NNODES")?.is_some_and(|nodes| nodes != u64::from(count))
            || self.text("SLURMD_NODENAME").is_some_and(|name| name != names[rank as usize]);
        if is_stale {
            return self.without_step(job);
        }
        let tasks = match self.text(STEP_TASKS) {
            Some(text) => hostlist::counts(text, MAX_NODES as usize)
                .map_err(|error| wrong(format!("`{STEP_TASKS}` is not a list of counts: {error}")))?,
            None => vec![1; names.len()],
        };
        let most = tasks.iter().copied().max().unwrap_or(1);
        if most > 1 {
            return if self.nodes.is_some() { Ok(Found::Nothing) } else { Err(self.crowded(job, step, most)) };
        }
        if count == 1 {
            return Ok(Found::Nothing);
        }
        if let Some(nodes) = self.nodes.filter(|nodes| *nodes != count) {
            let message = format!("`--nnodes` is {nodes}, and Slurm step {job}.{step} has {count} nodes");
            return Err(Diagnostic::error(Code::L0008, message).hint(format!(
                "leave `--nnodes` out to use the nodes of the step, or name where {nodes} nodes meet: `{}`",
                self.flags.replace("{}", &nodes.to_string())
            )));
        }
        let port = self.port.unwrap_or_else(|| meeting::port_of_step(job, step));
        let nodes = Nodes::Master { host: names[0].clone(), port, nodes: count, source: list.to_owned() };
        let placement = Placement { by: format!("Slurm step {job}.{step}"), leads: Some(rank == 0) };
        Ok(several(nodes, rank, placement, format!("slurm-{job}.{step}")))
    }

    /// A batch script, or a shell: `srun` did not start this process on all nodes.
    fn without_step(&self, job: u64) -> Result<Found, Diagnostic> {
        let count = match self.number("SLURM_JOB_NUM_NODES")? {
            Some(count) => count,
            None if self.text(JOB_NODES).is_some() => self.names(JOB_NODES)?.len() as u64,
            None => 1,
        };
        if count < 2 || self.nodes.is_some() {
            return Ok(Found::Nothing);
        }
        let message = format!("Slurm job {job} has {count} nodes, and only this one is used");
        Ok(Found::Alone(Box::new(Diagnostic::notice(Code::L0038, message).hint(format!(
            "use all of them with `srun --ntasks-per-node=1 {} …`; `--nnodes 1` means this node alone",
            self.program
        )))))
    }

    fn crowded(&self, job: u64, step: u64, most: u32) -> Diagnostic {
        let message = format!("Slurm started {most} tasks on one node, and each would start all ranks of that node");
        let error = Diagnostic::error(Code::L0036, message).row("step", format!("{job}.{step}"));
        let error = match self.text(STEP_TASKS) {
            Some(tasks) => error.row("tasks", format!("{tasks} (on each node)")),
            None => error,
        };
        error.hint(format!(
            "start one on each node with `srun --ntasks-per-node=1 {0} --nproc_per_node {most} …`; with `--nnodes 1` each task is a job of its own",
            self.program
        ))
    }

    /// The number of processes of `mpirun`, if there are several. `PMI_SIZE` alone may be `srun`'s.
    fn mpi_size(&self) -> Result<Option<u64>, Diagnostic> {
        let size = match self.number("OMPI_COMM_WORLD_SIZE")? {
            None if self.text("MPI_LOCALNRANKS").is_some() => self.number("PMI_SIZE")?,
            size => size,
        };
        Ok(size.filter(|size| *size > 1))
    }

    fn mpi(&self) -> Result<Found, Diagnostic> {
        let Some(size) = self.mpi_size()? else { return Ok(Found::Nothing) };
        if self.nodes.is_some_and(|nodes| u64::from(nodes) != size) {
            return Ok(Found::Nothing);
        }
        let either = |open, other| {
            self.number(open).and_then(|number| number.map_or_else(|| self.number(other), |it| Ok(Some(it))))
        };
        let here = either("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")?.unwrap_or(1);
        if here > 1 {
            if self.nodes.is_some() {
                return Ok(Found::Nothing);
            }
            let message =
                format!("`mpirun` started {here} processes on this host, and each would start all ranks of it");
            return Err(Diagnostic::error(Code::L0036, message).hint(format!(
                "start one on each host with `mpirun --map-by ppr:1:node {} --nproc_per_node {here} …`; with `--nnodes 1` each process is a job of its own",
                self.program
            )));
        }
        let rank = either("OMPI_COMM_WORLD_RANK", "PMI_RANK")?.filter(|rank| *rank < size);
        let names = if self.text(JOB_NODES).is_some() { self.names(JOB_NODES)? } else { Vec::new() };
        let (Some(rank), Some(job), true) = (rank, self.number(JOB)?, names.len() as u64 == size) else {
            if self.nodes.is_some() {
                return Ok(Found::Nothing);
            }
            let message = format!("`mpirun` started {size} processes, and its variables do not say on which hosts");
            return Err(Diagnostic::error(Code::L0037, message).hint(format!(
                "name the host of one of them with `{}`, on all of them; with `--nnodes 1` each is a job of its own",
                self.flags.replace("{}", &size.to_string())
            )));
        };
        // The same in all processes of one `mpirun`, and usually different in another.
        let launch = meeting::fnv(self.text("PMIX_NAMESPACE").unwrap_or_default().bytes()) % 10_000;
        let port = self.port.unwrap_or_else(|| meeting::port_of_step(job, launch));
        let (count, rank) = (names.len() as u32, rank as u32);
        let nodes = Nodes::Master { host: names[0].clone(), port, nodes: count, source: JOB_NODES.to_owned() };
        // Which process runs on the first node depends on how `mpirun` places them.
        let placement = Placement { by: format!("mpirun in Slurm job {job}"), leads: None };
        Ok(several(nodes, rank, placement, format!("mpi-{job}.{launch}")))
    }
}

fn several(nodes: Nodes, rank: u32, placement: Placement, id: String) -> Found {
    let job_id = JobId::new(id).expect("letters, digits, a dash and a dot");
    Found::Several(Box::new(Allocation { nodes, rank, placement, job_id }))
}

fn wrong(message: String) -> Diagnostic {
    Diagnostic::error(Code::L0008, message).hint(
        "name where the nodes meet (`--master`, `--ips` or `--rdzv-endpoint`), or `--nnodes 1` for this one alone; then these variables are not read",
    )
}

#[cfg(test)]
mod tests;
