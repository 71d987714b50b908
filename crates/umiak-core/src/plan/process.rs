//! One attempt of a replica, ready to start.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::contract::mpi::{Slots, slots};
use crate::contract::{Variable, View, umiak};
use crate::model::{Contract, Device, DeviceKind, Host, Mount, Part, Slot, substituted};

use super::command::Resolved;
use super::pool::Given;
use super::value::contracts;
use super::{Log, Membership, Plan, Replica};

/// An attempt of a replica, and the resources assigned to it.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub slot: Slot,
    /// Of the replica, from 1.
    pub number: u32,
    /// Of the whole job, from 1.
    pub of_job: u32,
    /// Restarts of the replica in this attempt of the job.
    pub retries: u32,
    /// Devices and CPUs from the pool, if the job uses one.
    pub given: &'a Given,
}

/// A process, ready to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub program: PathBuf,
    pub argv: Vec<OsString>,
    /// The line of a shell command contains a secret: it must not be an argument, which every user of the host can read.
    pub is_secret: bool,
    /// Variables in addition to the common ones.
    pub env: Vec<Variable>,
    /// Working directory; `None` for that of umiak.
    pub dir: Option<PathBuf>,
    /// The directory to whose entries it gets links, if its own is to be made.
    pub linked: Option<PathBuf>,
    pub log: Log,
    /// The file where torch may write its error.
    pub error_file: PathBuf,
    pub inherit_stdin: bool,
    /// CPUs that it may use; empty for any.
    pub cpus: Vec<u32>,
    /// Memory limit of the process and its children, if the engine can enforce it.
    pub memory: Option<Memory>,
    /// Directories that it sees at other paths.
    pub mounts: Vec<Mount>,
    pub remote: Option<Remote>,
}

/// The part of a process in a job under `mpirun`. `sockets` is where the remote shell meets the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// It starts processes on these hosts.
    Launcher { sockets: PathBuf, slots: Vec<Slots> },
    /// It is such a host.
    Worker { sockets: PathBuf, host: Host },
}

impl Process {
    /// The line of `sh -c line`, and of other shells.
    pub fn shell_line(&self) -> Option<&OsStr> {
        const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
        let is_shell =
            |word: &OsStr| Path::new(word).file_name().is_some_and(|name| SHELLS.iter().any(|shell| name == *shell));
        match &self.argv[..] {
            [shell, flag, line] if flag == "-c" && is_shell(shell) => Some(line),
            _ => None,
        }
    }
}

/// A memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Name of the attempt, visible on the host.
    pub name: String,
    pub bytes: u64,
}

/// The kernel's limit for one variable, including its name and the final NUL (`MAX_ARG_STRLEN`). With a longer one, no
/// program can start.
pub const MAX_VARIABLE: usize = 128 << 10;

impl Plan {
    /// One attempt of one of this node's replicas.
    pub fn process(&self, attempt: &Attempt<'_>) -> Process {
        let replica = self.at(attempt.slot).expect("a replica of this node");
        let work = &self.role(attempt.slot).work;
        let command = &self.commands[attempt.slot.role as usize];
        let memory = work.resources.memory_bytes;
        let dir = self.is_document().then(|| match &work.dir {
            Some(dir) => self.directory.join(dir),
            None => self.directory.clone(),
        });
        let own_dir = self.attempt_dir(replica, attempt.number).filter(|_| work.own_dir).map(|dir| dir.join("work"));
        Process {
            program: command.program.clone(),
            argv: self.argv(command, replica),
            is_secret: false,
            env: self.variables(replica, attempt),
            dir: own_dir.clone().or_else(|| dir.clone()),
            linked: dir.filter(|_| own_dir.is_some()),
            log: self.log(replica, attempt.number),
            error_file: self.error_file(replica, attempt.number),
            inherit_stdin: self.inherit_stdin,
            cpus: if attempt.given.cpus.is_empty() { replica.cpus.clone() } else { attempt.given.cpus.clone() },
            memory: memory.map(|bytes| Memory { name: format!("{}.{}", replica.name, attempt.number), bytes }),
            mounts: work.mounts.iter().map(|mount| mount.below(&self.directory)).collect(),
            remote: self.remote(replica, attempt.of_job),
        }
    }

    /// The words of the command; macros stand for values of this replica. The program's own name has none.
    fn argv(&self, command: &Resolved, replica: &Replica) -> Vec<OsString> {
        let Some((_, member)) = self.member(replica).filter(|_| self.substitutes) else { return command.argv.clone() };
        let value = |name: &str| (name == "local_rank").then(|| member.local_rank.to_string());
        let (program, args) = command.argv.split_at(1.min(command.argv.len()));
        let args =
            args.iter().map(|word| word.to_str().map_or_else(|| word.clone(), |it| substituted(it, value).into()));
        program.iter().cloned().chain(args).collect()
    }

    fn remote(&self, replica: &Replica, of_job: u32) -> Option<Remote> {
        let Membership { group, .. } = replica.member?;
        let (_, member) = self.member(replica)?;
        let is_mpi = contracts(&self.job, self.role(replica.slot)).contains(&Contract::Mpi);
        let sockets = self.meeting_dir(group, of_job);
        match member.part {
            Part::Leader if is_mpi => Some(Remote::Launcher { sockets, slots: slots(&self.job, self.places()) }),
            Part::Trainer if is_mpi => Some(Remote::Worker { sockets, host: replica.host.clone() }),
            _ => None,
        }
    }

    /// The variables of an attempt, in addition to the common ones.
    pub fn variables(&self, replica: &Replica, attempt: &Attempt<'_>) -> Vec<Variable> {
        let mut variables = self.contract_variables(replica, attempt);
        if self.is_document() {
            self.add_own(&mut variables, replica, attempt);
        }
        variables
    }

    /// The variables for the attempt of the plan, as far as known before it starts.
    pub fn known_variables(&self, replica: &Replica) -> Vec<Variable> {
        let gpus = self.role(replica.slot).work.resources.gpus;
        let devices = (0..gpus).map(|position| Device { label: "?".to_owned(), position }).collect();
        let given = Given { devices, cpus: Vec::new() };
        self.variables(
            replica,
            &Attempt { slot: replica.slot, number: self.attempt, of_job: self.attempt, retries: 0, given: &given },
        )
    }

    fn contract_variables(&self, replica: &Replica, attempt: &Attempt<'_>) -> Vec<Variable> {
        let (Some(Membership { group, .. }), Some((topology, member))) = (replica.member, self.member(replica)) else {
            return Vec::new();
        };
        let role = self.role(replica.slot);
        let dir = self.attempt_dir(replica, attempt.number);
        let view = View {
            group: topology,
            roles: self.places(),
            options: &self.options,
            job: &self.job,
            run: self.run.as_deref().unwrap_or_default(),
            slot: replica.slot,
            job_attempt: attempt.of_job,
            attempt: attempt.number,
            retries: attempt.retries,
            max_restarts: role.restart.rule.max.max(self.job.policy.restart.max),
            pod_name: self.options.pod_name.as_deref().unwrap_or(&replica.name),
            log_dir: dir.as_deref().unwrap_or(self.logs.dir()),
            gloo_dir: &self.meeting_dir(group, attempt.of_job),
            error_file: &self.error_file(replica, attempt.number),
        };
        contracts(&self.job, role).iter().flat_map(|contract: &Contract| view.variables(*contract, member)).collect()
    }

    /// Adds the variables of the document, and those that umiak sets for its replicas.
    fn add_own(&self, variables: &mut Vec<Variable>, replica: &Replica, attempt: &Attempt<'_>) {
        let work = &self.role(replica.slot).work;
        let mut set = |name: &str, value: String| variables.push((name.to_owned(), value));
        if let Some(share) = self.threads {
            let asked = work.resources.whole_cpus();
            set("OMP_NUM_THREADS", if asked > 0 { asked } else { share }.to_string());
        }
        if work.resources.gpus > 0 {
            set(DeviceKind::Gpu.visible_variable(), Device::labels(&attempt.given.devices));
            // Umiak numbers devices by PCI address, whatever the submitter's order is.
            set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned());
        }
        for (name, value) in work.env.iter().filter(|(name, _)| !umiak::is_common(name)) {
            set(name, value.clone());
        }
        if work.own_dir {
            set("UMIAK_SUBMIT_DIR", self.directory.to_string_lossy().into_owned());
        }
        let role = &self.places()[replica.slot.role as usize];
        variables.extend(umiak::variables(self.step.as_ref(), role, replica.index, replica.rank, attempt.number));
    }

    /// The name and size of the longest variable of any replica, if it exceeds the kernel's limit.
    pub fn too_long(&self) -> Option<(String, usize)> {
        // The first replica of each role is enough: only lists of peers grow, and they are equal for all.
        let first = self.replicas.iter().filter(|replica| replica.slot.index == 0);
        let own = first.flat_map(|replica| self.known_variables(replica));
        let sized = self.common.iter().cloned().chain(own).map(|(name, value)| {
            // `NAME=value` and the final NUL.
            let bytes = name.len() + value.len() + 2;
            (name, bytes)
        });
        sized.filter(|(_, bytes)| *bytes > MAX_VARIABLE).max_by_key(|(_, bytes)| *bytes)
    }
}

/// Without this variable, Python buffers output to a file in blocks: lines appear late, and are lost if it is killed. A
/// value in the environment is kept.
pub(super) fn unbuffered(env: &std::collections::BTreeMap<String, String>) -> Option<Variable> {
    const NAME: &str = "PYTHONUNBUFFERED";
    (!env.contains_key(NAME)).then(|| (NAME.to_owned(), "1".to_owned()))
}

/// The number of threads for each process, unless the environment sets it.
pub(super) fn threads(env: &std::collections::BTreeMap<String, String>, cpus: usize, processes: usize) -> Option<u32> {
    (!env.contains_key("OMP_NUM_THREADS")).then(|| share(cpus, processes))
}

/// CPUs divided among processes.
pub(super) fn share(cpus: usize, processes: usize) -> u32 {
    (cpus / processes.max(1)).max(1) as u32
}
