//! The model: a job of roles, replicas and attempts, its policies, a pipeline of jobs, and how a process ended.
//!
//! Newtypes are validated in their constructors, so that every value is valid.

mod capabilities;
mod cluster;
mod dialect;
mod engine;
mod etcd;
mod exit;
mod framework;
mod ids;
mod instance;
mod job;
mod kubernetes;
pub(crate) mod meeting;
mod part;
mod pipeline;
pub(crate) mod request;
mod seconds;
mod streams;
mod time;
mod whose;

pub use capabilities::{Capabilities, Hosts, OutputSource, Unit};
pub use cluster::{
    ClusterOptions, Connect, MPI_VARIABLES, MpiOptions, SLURM_VARIABLES, SlurmOptions, is_of_node, is_of_scheduler,
};
pub use dialect::{ExitCodes, Generation, OutputMode, Show};
pub use engine::{EngineChoice, EngineKind};
pub use etcd::{EtcdEndpoint, EtcdOptions, EtcdTls, EtcdUser, InvalidEtcdEndpoint};
pub use exit::{Classed, Exit, ExitClass, SpawnError, SpawnStage, signal_name};
pub use framework::Framework;
pub use ids::{
    Endpoint, FIRST_ATTEMPT, Host, InvalidName, JobId, NodeIndex, Port, Rank, RoleName, Slot, StepIndex, StepName,
    WorldSize, global_rank, pai_name,
};
pub use instance::{Instance, StopHow, StopSent};
pub use job::{
    Blame, Command, Completion, Contract, Device, DeviceKind, Exits, Job, MinSucceeded, Policy, PortNeed, Resources,
    Restart, Role, RoleRestart, Scope, StartAfter, StopPolicy, Success, Timeouts, When, Work,
};
pub use kubernetes::{KubeKind, KubeVolume, KubernetesOptions, PullPolicy, Toleration, VolumeSource};
pub use part::Part;
pub use pipeline::{
    Body, Cache, Float, Given, Input, Items, Mount, Node, NodeId, OnFailure, Output, Parameter, Piece, Pipeline, Place,
    Reference, Step, Store, SystemParameter, Text, Value, Workload,
};
pub use request::{
    Backend, CommandRequest, Crew, DeviceRequest, ELASTIC_WINDOW, Elastic, ElasticLevel, EtcdPlace, HeterStage,
    Interpreter, LogNames, LogRequest, MAX_NODES, Mode, Nodes, Omp, PaddleHabits, PaddleVariables, Placement, Pod,
    PortRequest, Processes, Proxies, Request, Rotation, SERVER_PATIENCE, Scaling, ScriptKind, ServerMode, StoreHost,
    TorchHabits, TorchLogs, TorchVariables,
};
pub use streams::{OnConsole, PrefixOf, Stream, StreamMap, StreamRules, Streams, substituted};
pub use time::{Timestamp, shown};
pub use whose::{Whose, replica_parts};
