//! From both files to the model.

use std::collections::BTreeMap;
use std::path::Path;

use super::cloud::{self, Cloud};
use super::config::{Engine, RawConfig, RawRun};
use super::raw::{Backend, Count, RawBackend};
use super::section::first_line;
use crate::diag::{Code, Diagnostic, Span};
use crate::formats::document::reader::Reader;
use crate::formats::settings::Settings;
use crate::model::{
    Body, Contract, EngineChoice, EngineKind, Job, JobId, KubernetesOptions, Node, NodeId, OnFailure, Part, Pipeline,
    Policy, Resources, Role, StartAfter, Step, When, Work, Workload,
};

/// PaddleRec's name of jobs that have none.
pub(super) const DEFAULT_NAME: &str = "PaddleRecClusterJob";
/// PaddleRec's number of threads.
pub(super) const DEFAULT_THREADS: u32 = 2;
/// The interpreter of images.
const POD_PYTHON: &str = "python";
const DEFAULT_STRATEGY: &str = "async";

/// Where the job of both files runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub backend: Backend,
    /// True if the backend gives the job its name, which then identifies it.
    pub is_named: bool,
    /// The error about a backend that this version does not have, or that cannot run this job.
    pub refused: Option<Diagnostic>,
    /// The submission to PaddleCloud.
    pub cloud: Option<Cloud>,
}

/// The readers of both files, each for errors about its own.
pub(super) struct Readers<'r, 'c, 'b> {
    pub(super) config: &'r mut Reader<'c>,
    pub(super) backend: Option<&'r mut Reader<'b>>,
}

/// What the job has that is in neither file.
pub(super) struct Around<'a> {
    /// The Python interpreter.
    pub(super) python: &'a str,
    /// The path of `config.yaml`.
    pub(super) config: Option<String>,
    pub(super) settings: &'a Settings,
    /// The engine of the command line.
    pub(super) engine: Option<EngineKind>,
}

impl Around<'_> {
    /// The same on an engine. Pods have the interpreter of their image, and a copy of `config.yaml`.
    fn on(&self, engine: Option<EngineKind>) -> Around<'_> {
        let is_pod = self.engine.or(engine) == Some(EngineKind::Kubernetes);
        let in_pod = |path: &String| {
            let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
            format!("{}/{name}", KubernetesOptions::WORK)
        };
        Around {
            python: if is_pod { POD_PYTHON } else { self.python },
            config: if is_pod { self.config.as_ref().map(in_pod) } else { self.config.clone() },
            ..*self
        }
    }
}

/// What both files mean.
pub(super) struct Lowered {
    pub(super) work: Workload,
    pub(super) target: Target,
    /// The engine that the backend names.
    pub(super) engine: Option<EngineChoice>,
}

/// Numbers of replicas.
#[derive(Clone, Copy)]
struct Counts {
    servers: u32,
    trainers: u32,
}

/// Returns `None` if the files have errors, which are in the readers.
pub(super) fn lower(
    readers: &mut Readers<'_, '_, '_>,
    config: &RawConfig,
    backend: Option<&RawBackend>,
    around: &Around<'_>,
) -> Option<Lowered> {
    let cluster = config.runs.iter().find(|run| run.engine.value == Engine::Cluster);
    let used = backend.filter(|_| cluster.is_some());
    if let (None, Some(run), None) = (backend, cluster, &readers.backend) {
        let name = &readers.config.source.name;
        let hint =
            format!("give it: `umiak submit -m {name} -b BACKEND`; `umiak run` uses the `backend.yaml` beside it");
        readers.config.error(
            Code::F0060,
            run.engine.at,
            "a cluster engine needs a `backend.yaml`, which is not here",
            "",
        );
        readers.config.hint(hint);
    }
    if let (None, Some(run), Some(reader)) = (cluster, config.runs.first(), &readers.backend) {
        let message = format!("`{}` is not used: the job runs on this host", reader.source.name);
        readers.config.notice(Code::F0051, run.engine.at, message, "not a cluster engine");
    }
    let target = match (used, cluster, &mut readers.backend) {
        (Some(raw), Some(run), Some(reader)) => {
            let is_single = config.runs.len() == 1;
            target(reader, raw, run, is_single)
        }
        _ => Some(Target { backend: Backend::Local, is_named: false, refused: None, cloud: None }),
    };
    let mut told = Vec::new();
    let counts = config.runs.iter().map(|run| match (run.engine.value, used, &mut readers.backend) {
        (Engine::Single, ..) => Some(Counts { servers: 0, trainers: 1 }),
        (Engine::LocalCluster, ..) if run.is_collective => Some(Counts { servers: 0, trainers: run.gpus }),
        (Engine::LocalCluster, ..) => {
            Some(Counts { servers: run.servers.unwrap_or(1), trainers: run.workers.unwrap_or(1) })
        }
        (Engine::Cluster, Some(raw), Some(reader)) => counts(reader, raw, run, &mut told),
        (Engine::Cluster, ..) => None,
    });
    let counts: Vec<Option<Counts>> = counts.collect();
    let engine = target.as_ref().zip(used).and_then(|(target, raw)| engine(raw, target.backend, around.settings));
    let around = &around.on(engine.as_ref().map(|engine| engine.kind).filter(|_| used.is_some()));
    // An error about one part does not hide those about others.
    let (name, target) = (name(readers, config, used)?, target?);
    let mut jobs = Vec::new();
    for (run, counts) in config.runs.iter().zip(counts) {
        let own = run.name.as_ref().filter(|_| config.runs.len() > 1);
        let name = own.map_or_else(|| Some(name.clone()), |own| step_name(readers.config, &own.value, own.at));
        if let (Some(counts), Some(name)) = (counts, name) {
            readers.config.check_total([(counts.servers, run.engine.at), (counts.trainers, run.engine.at)].into_iter());
            jobs.extend(job(name, config, run, used, counts, around));
        }
    }
    if jobs.len() != config.runs.len() || jobs.is_empty() {
        return None;
    }
    let work = if jobs.len() == 1 {
        Workload::Job(Box::new(jobs.remove(0)))
    } else {
        let is_here = |run: &RawRun| run.engine.value != Engine::Cluster;
        let engines = config.runs.iter().map(|run| is_here(run).then(|| EngineKind::Local.into()));
        Workload::Pipeline(Box::new(pipeline(name, jobs.into_iter().zip(engines))))
    };
    Some(Lowered { work, target, engine })
}

/// The engine of a backend, with the options that the file has for it.
fn engine(raw: &RawBackend, backend: Backend, settings: &Settings) -> Option<EngineChoice> {
    let kind = match backend {
        Backend::Slurm => EngineKind::Slurm,
        Backend::Mpi => EngineKind::Mpi,
        Backend::Kubernetes => EngineKind::Kubernetes,
        Backend::Local | Backend::PaddleCloud => return None,
    };
    let mut choice = settings.engine(kind.word()).unwrap_or(kind.into());
    choice.add(&raw.cluster);
    Some(choice)
}

fn target(reader: &mut Reader<'_>, raw: &RawBackend, run: &RawRun, is_single: bool) -> Option<Target> {
    let (backend, word) = raw.backend.as_ref()?;
    let refuse = |message: String| {
        Diagnostic::error(Code::F0004, message)
            .label(reader.source.label(word.at, ""))
            .hint("`--engine local` runs the job on this host")
    };
    let (refused, is_cloud) = match backend {
        Backend::Local | Backend::Mpi | Backend::Slurm | Backend::Kubernetes => (None, false),
        Backend::PaddleCloud if is_single => (None, true),
        Backend::PaddleCloud => {
            let message = "a submission to `paddlecloud` is one runner, and `mode` names several";
            (Some(refuse(message.to_owned()).hint("or submit them one by one")), true)
        }
    };
    let mut target = Target { backend: *backend, is_named: raw.name.is_some(), refused, cloud: None };
    if is_cloud {
        match cloud::cloud(reader, raw, run) {
            Ok(cloud) => target.cloud = cloud,
            Err(refused) => target.refused = target.refused.or(Some(*refused)),
        }
    }
    Some(target)
}

/// The numbers of a run on the backend. `told` are the missing keys that are already reported.
fn counts(reader: &mut Reader<'_>, raw: &RawBackend, run: &RawRun, told: &mut Vec<&'static str>) -> Option<Counts> {
    if raw.backend.as_ref().is_some_and(|(backend, _)| *backend == Backend::PaddleCloud) {
        let (servers, trainers) = cloud::counts(raw, run);
        return Some(Counts { servers, trainers });
    }
    let mut need = |count: Count, name: &'static str| match count {
        Count::Is(count) => Some(count),
        Count::Wrong => None,
        Count::Missing if told.contains(&name) => None,
        Count::Missing => {
            told.push(name);
            let (at, path) = &raw.submit;
            let at = first_line(reader, *at);
            reader.error(Code::F0012, at, format!("`{path}.{name}` is missing"), "");
            None
        }
    };
    let servers = if run.is_collective { Some(0) } else { need(raw.servers, "server_num") };
    let trainers = need(raw.trainers, "trainer_num");
    Some(Counts { servers: servers?, trainers: trainers? })
}

/// The name of the run: that of the backend, or else the last part of the workspace.
fn name(readers: &mut Readers<'_, '_, '_>, config: &RawConfig, used: Option<&RawBackend>) -> Option<JobId> {
    match (used, &mut readers.backend) {
        (Some(RawBackend { name: Some(name), .. }), Some(reader)) => step_name(reader, &name.value, name.at),
        (Some(_), _) => JobId::new(DEFAULT_NAME).ok(),
        (None, _) => {
            let workspace = config.workspace.as_ref().map_or("", |workspace| workspace.value.as_str());
            let last = workspace.trim_end_matches('/').rsplit(['/', '.']).find(|part| !part.is_empty());
            JobId::new(last.unwrap_or("paddlerec")).or_else(|_| JobId::new("paddlerec")).ok()
        }
    }
}

fn step_name(reader: &mut Reader<'_>, name: &str, at: Span) -> Option<JobId> {
    let name = JobId::new(name);
    name.map_err(|error| reader.error(Code::F0014, at, "invalid name for the job", error.why)).ok()
}

fn job(
    name: JobId,
    config: &RawConfig,
    run: &RawRun,
    backend: Option<&RawBackend>,
    counts: Counts,
    around: &Around<'_>,
) -> Option<Job> {
    let workspace = config.workspace.as_ref()?.value.as_str();
    let backend = backend.filter(|_| run.engine.value == Engine::Cluster);
    let is_distributed = run.engine.value != Engine::Single;
    let threads = run.threads.unwrap_or(DEFAULT_THREADS);
    let python = around.python.to_owned();
    let command = if is_module(workspace) {
        vec![python, "-m".to_owned(), workspace.to_owned()]
    } else {
        vec![python, workspace.to_owned()]
    };
    let env = env(config, run, backend, counts, around);
    let role = |part: Part, replicas: u32| {
        let mut role = Role { part: is_distributed.then_some(part), ..part.as_role(replicas) };
        role.work = Work {
            command: command.clone(),
            env: env.clone(),
            resources: Resources {
                cpu_millis: backend.map(|_| threads * 1000),
                memory_bytes: backend.and_then(|backend| backend.memory),
                gpus: u32::from(run.gpus > 0 && part == Part::Trainer),
                shm_bytes: None,
                storage_bytes: backend.and_then(|backend| backend.storage),
            },
            image: backend.and_then(|backend| backend.image.as_ref()).map(|image| image.value.clone()),
            ..Work::default()
        };
        role
    };
    let mut roles = Vec::new();
    if counts.servers > 0 {
        roles.push(role(Part::Server, counts.servers));
    }
    let mut trainers = role(Part::Trainer, counts.trainers);
    if counts.servers > 0 {
        trainers.start_after = vec![StartAfter { role: 0, when: When::Started }];
    }
    roles.push(trainers);
    Some(Job {
        name,
        labels: BTreeMap::new(),
        contracts: if is_distributed { vec![Contract::PaddleJob] } else { Vec::new() },
        agent_store: false,
        roles,
        policy: Policy::default(),
    })
}

/// The variables with which PaddleRec tells its processes what to do. What the contract of parameter servers has is not
/// here.
fn env(
    config: &RawConfig,
    run: &RawRun,
    backend: Option<&RawBackend>,
    counts: Counts,
    around: &Around<'_>,
) -> Vec<(String, String)> {
    let threads = run.threads.unwrap_or(DEFAULT_THREADS).to_string();
    let engine = match run.engine.value {
        Engine::Single => "single",
        Engine::LocalCluster => "local_cluster",
        Engine::Cluster => "cluster",
    };
    let mut env = vec![("train.trainer.engine", engine.to_owned()), ("train.trainer.threads", threads.clone())];
    env.push(("CPU_NUM", threads));
    env.extend(run.epochs.map(|epochs| ("train.epochs", epochs.to_string())));
    if run.engine.value != Engine::Single {
        env.push(("train.trainer.strategy", run.strategy.unwrap_or(DEFAULT_STRATEGY).to_owned()));
        env.push(("CLUSTER_INSTANCE", "1".to_owned()));
        env.push(("PADDLE_PADDLEREC_ROLE", "WORKER".to_owned()));
        if counts.servers > 0 {
            env.push(("PADDLE_PSERVERS_NUM", counts.servers.to_string()));
        }
    }
    if run.engine.value == Engine::Cluster {
        // Trainers divide the data among themselves: no platform has done it.
        env.push(("PADDLEREC_CLUSTER_TYPE", "K8S".to_owned()));
    }
    if let Some(workspace) = &config.workspace {
        env.push(("workspace", workspace.value.clone()));
    }
    if let Some(name) = &run.name {
        env.push(("mode", name.value.clone()));
        env.push(("fleet_mode", if run.is_collective { "collective" } else { "ps" }.to_owned()));
    }
    if let Some(path) = &around.config {
        env.push(("engine_run_config", path.clone()));
        if config.is_first {
            env.push(("paddlerec_model_config", path.clone()));
        }
    }
    if let Some(level) = backend.and_then(|backend| backend.log_level) {
        env.push(("GLOG_v", level.to_string()));
        env.push(("GLOG_logtostderr", "1".to_owned()));
    }
    env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// True for `paddlerec.models.rank.dnn`; false for a directory or a file.
fn is_module(workspace: &str) -> bool {
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    Path::new(workspace).extension().is_none_or(|extension| extension != "py") && workspace.split('.').all(is_name)
}

/// Jobs that run one after the other, each on an engine of its own or on that of the document.
fn pipeline(name: JobId, jobs: impl ExactSizeIterator<Item = (Job, Option<EngineChoice>)>) -> Pipeline {
    let id = |index: usize| NodeId(u32::try_from(index).unwrap_or(u32::MAX));
    let children = (1..=jobs.len()).map(id).collect();
    let mut nodes = vec![Node::new(name.to_string(), Pipeline::ROOT, Body::Dag { children })];
    for (index, (job, engine)) in jobs.enumerate() {
        let deps = if index == 0 { Vec::new() } else { vec![id(index)] };
        let step_name = job.name.to_string();
        let body = Body::Step(Box::new(Step { job, texts: Vec::new(), cache: None, engine }));
        nodes.push(Node { deps, ..Node::new(step_name, Pipeline::ROOT, body) });
    }
    Pipeline {
        name,
        labels: BTreeMap::new(),
        nodes,
        post: None,
        parallelism: 1,
        on_failure: OnFailure::FailFast,
        store: None,
        paddleflow: false,
    }
}
