//! The engines by name, and the one that a document chooses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Capabilities, ClusterOptions, Hosts, OutputSource, Unit};

/// A kind of engine: where replicas run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    Local,
    Mock,
    MockCluster,
    Slurm,
    Mpi,
    Kubernetes,
}

impl EngineKind {
    /// All engines.
    pub const ALL: [Self; 6] = [Self::Local, Self::Mock, Self::MockCluster, Self::Slurm, Self::Mpi, Self::Kubernetes];
    /// Planned engines.
    pub const LATER: [&str; 2] = ["container", "paddlecloud"];
    /// Another name of an engine, with its kind.
    pub const OTHER_NAME: (&str, Self) = ("k8s", Self::Kubernetes);

    pub fn named(word: &str) -> Option<Self> {
        let (other, kind) = Self::OTHER_NAME;
        if word == other { Some(kind) } else { Self::ALL.into_iter().find(|kind| kind.word() == word) }
    }

    pub const fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Mock => "mock",
            Self::MockCluster => "mock-cluster",
            Self::Slurm => "slurm",
            Self::Mpi => "mpi",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// The engine that gave a unit this handle, `slurm:run-000001/0.1`.
    pub fn of_handle(handle: &str) -> Option<Self> {
        handle.split_once(':').and_then(|(word, _)| Self::named(word))
    }

    /// True if a unit remains when all of its replicas have ended, for their next attempts.
    pub fn keeps_units(self) -> bool {
        self.capabilities().unit == Unit::Allocation
    }

    /// True if replicas write their logs on other hosts, to a directory that these share with this host. Its kernel
    /// reports no such write, and a file that stays open may not show it.
    pub fn writes_elsewhere(self, options: &ClusterOptions) -> bool {
        let Capabilities { hosts, output, .. } = self.capabilities();
        // With a connection, this host writes what agents send.
        let is_sent = self == Self::Slurm && options.slurm.connect.is_some();
        hosts == Hosts::Placed && output == OutputSource::Files && !is_sent
    }

    /// What it is, for lists.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Local => "processes of this host",
            Self::Mock => "a simulation that starts nothing",
            Self::MockCluster => "a simulated cluster with queues, in a process of its own",
            Self::Slurm => "an allocation of Slurm",
            Self::Mpi => "processes that `mpirun` starts",
            Self::Kubernetes => "pods of Kubernetes; this version prints their manifests, and does not submit them",
        }
    }

    pub const fn capabilities(self) -> Capabilities {
        let here = Capabilities {
            unit: Unit::Replica,
            hosts: Hosts::Addresses,
            output: OutputSource::Files,
            adoption: false,
            suspend: true,
            stdin: true,
            here: true,
        };
        match self {
            Self::Local => here,
            Self::Mock => Capabilities { suspend: false, here: false, ..here },
            Self::MockCluster | Self::Kubernetes => Capabilities {
                unit: Unit::Gang,
                hosts: Hosts::Names,
                output: OutputSource::Streams,
                adoption: true,
                suspend: false,
                stdin: false,
                here: false,
            },
            Self::Slurm | Self::Mpi => Capabilities {
                unit: Unit::Allocation,
                hosts: Hosts::Placed,
                output: OutputSource::Files,
                adoption: matches!(self, Self::Slurm),
                suspend: false,
                stdin: false,
                here: false,
            },
        }
    }
}

/// The engine that a job is given to, and its options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineChoice {
    /// As users write it: a kind, or a name of `umiak.toml`.
    pub name: String,
    pub kind: EngineKind,
    #[serde(default, skip_serializing_if = "ClusterOptions::is_default")]
    pub cluster: ClusterOptions,
}

impl EngineChoice {
    /// Adds options that win over its own; those of other engines have no effect.
    pub fn add(&mut self, over: &ClusterOptions) {
        match self.kind {
            EngineKind::Slurm => self.cluster.slurm.add(&over.slurm),
            EngineKind::Mpi => self.cluster.mpi.add(&over.mpi),
            EngineKind::Kubernetes => self.cluster.kubernetes.add(&over.kubernetes),
            EngineKind::Local | EngineKind::Mock | EngineKind::MockCluster => {}
        }
    }
}

impl From<EngineKind> for EngineChoice {
    fn from(kind: EngineKind) -> Self {
        Self { name: kind.word().to_owned(), kind, cluster: ClusterOptions::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Connect;

    #[test]
    fn logs_that_other_hosts_write() {
        let mut options = ClusterOptions::default();
        let elsewhere = |options: &ClusterOptions| -> Vec<&str> {
            EngineKind::ALL.into_iter().filter(|kind| kind.writes_elsewhere(options)).map(EngineKind::word).collect()
        };
        assert_eq!(elsewhere(&options), ["slurm", "mpi"]);
        options.slurm.connect = Some(Connect::default());
        assert_eq!(elsewhere(&options), ["mpi"], "agents send their logs");
    }
}
