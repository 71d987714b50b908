//! `backend.yaml` as written, in any generation.

use super::keys::{self, BACKENDS, CLUSTER_TYPES, MAX_LEVEL, PRIORITIES};
use super::section::{Others, Section};
use crate::diag::{Code, Diagnostic, Span};
use crate::formats::document::limits::MAX_REPLICAS;
use crate::formats::document::reader::{At, Reader};
use crate::formats::document::tree::Node;
use crate::formats::engines;
use crate::model::{ClusterOptions, MpiOptions, SlurmOptions};

/// Where a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Local,
    Kubernetes,
    PaddleCloud,
    Mpi,
    Slurm,
}

impl Backend {
    /// Its usual name, if it is not this host.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::Local => None,
            Self::Kubernetes => Some("k8s"),
            Self::PaddleCloud => Some("paddlecloud"),
            Self::Mpi => Some("mpi"),
            Self::Slurm => Some("slurm"),
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "k8s" | "kubernetes" | "volcano" => Self::Kubernetes,
            "paddlecloud" => Self::PaddleCloud,
            "mpi" => Self::Mpi,
            "slurm" => Self::Slurm,
            _ => Self::Local,
        }
    }
}

#[derive(Debug)]
pub(super) struct RawBackend {
    /// The word, and where it is written.
    pub(super) backend: Option<(Backend, At<&'static str>)>,
    pub(super) name: Option<At<String>>,
    pub(super) servers: Count,
    pub(super) trainers: Count,
    pub(super) image: Option<At<String>>,
    pub(super) memory: Option<u64>,
    pub(super) storage: Option<u64>,
    pub(super) log_level: Option<u32>,
    /// Where `submit` is, for errors about keys that it does not have, and its path.
    pub(super) submit: (Span, String),
    /// What only Slurm and MPI use.
    pub(super) cluster: ClusterOptions,
    pub(super) cloud: RawCloud,
}

/// A number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Missing,
    /// It is written, but not as a number, which is already reported.
    Wrong,
    Is(u32),
}

impl Count {
    fn read(reader: &mut Reader<'_>, submit: Option<&Section<'_>>, name: &str) -> (Self, Option<At<u32>>) {
        let count = submit.and_then(|submit| submit.number(reader, name, 1, MAX_REPLICAS));
        let is_written = submit.is_none_or(|submit| submit.get(name).is_some());
        let kind = match &count {
            Some(count) => Self::Is(count.value),
            None if is_written => Self::Wrong,
            None => Self::Missing,
        };
        (kind, count)
    }
}

/// What only PaddleCloud uses.
#[derive(Debug, Default)]
pub(super) struct RawCloud {
    pub(super) cluster_type: Option<At<&'static str>>,
    /// The script of the first form.
    pub(super) script: Option<Span>,
    /// Keys of `config` that have a value, with their positions.
    pub(super) config: Vec<(&'static str, At<String>)>,
    /// The same of `communicator`.
    pub(super) flags: Vec<(&'static str, At<String>)>,
    /// The same of `submit`: texts.
    pub(super) submit: Vec<(&'static str, At<String>)>,
    /// The same: numbers.
    pub(super) counts: Vec<(&'static str, u32)>,
    /// Where `config` is.
    pub(super) at: Option<Span>,
}

const TEXTS: [&str; 5] = ["ak", "sk", "group", "start_cmd", "files"];
/// Keys of `submit` that are options of `sbatch`.
const NATIVE: [&str; 5] = ["partition", "account", "qos", "constraint", "time"];
const COUNTS: [&str; 6] = ["nodes", "k8s_trainers", "k8s_cpu_cores", "k8s_gpu_card", "k8s_ps_num", "k8s_ps_cores"];

pub(super) fn backend(reader: &mut Reader<'_>, root: &Node) -> Option<RawBackend> {
    let is_flat = root.entries().iter().all(|(key, _)| key.text() != Some("engine"));
    let section = if is_flat {
        Section::open(reader, "", root, &keys::FLAT, Others::Ignored)?
    } else {
        let root = Section::open(reader, "", root, &keys::BACKEND, Others::Ignored)?;
        root.required(reader, "engine")?;
        root.section(reader, "engine", &keys::ENGINE, Others::Ignored)?
    };
    section.required(reader, "backend");
    let word = section.choice(reader, "backend", BACKENDS);
    let mut name = if is_flat { None } else { section.word(reader, "job_name") };
    section.required(reader, "submit");
    let submit = section.section(reader, "submit", &keys::SUBMIT, Others::Ignored);
    let (servers, _) = Count::read(reader, submit.as_ref(), "server_num");
    let (by_trainer, trainers) = Count::read(reader, submit.as_ref(), "trainer_num");
    let (by_worker, workers) = Count::read(reader, submit.as_ref(), "worker_num");
    if let (Some(trainers), Some(workers)) = (&trainers, &workers)
        && trainers.value != workers.value
    {
        let source = reader.source;
        let path = section.path("submit");
        reader.errors.add(|| {
            Diagnostic::error(Code::F0018, format!("`{path}.trainer_num` and `{path}.worker_num` differ"))
                .label(source.label(workers.at, format!("this is {}", workers.value)))
                .label(source.label(trainers.at, format!("and this {}", trainers.value)))
                .hint("both are the number of trainers: remove one of them")
        });
    }
    let mut raw = RawBackend {
        backend: word.map(|word| (Backend::of(word.value), word)),
        name: None,
        servers,
        trainers: if by_trainer == Count::Missing { by_worker } else { by_trainer },
        image: None,
        memory: None,
        storage: None,
        log_level: None,
        submit: (submit.as_ref().map_or(section.at(), Section::at), section.path("submit")),
        cluster: ClusterOptions::default(),
        cloud: RawCloud::default(),
    };
    if let Some(submit) = &submit {
        raw.image = submit.word(reader, "docker_image");
        raw.memory = submit.read(reader, "memory", Reader::memory).map(|memory| memory.value);
        raw.storage = submit.read(reader, "storage", Reader::memory).map(|storage| storage.value);
        raw.log_level = submit.number(reader, "log_level", 0, MAX_LEVEL).map(|level| level.value);
        name = name.or(submit.word(reader, "job_name"));
    }
    raw.name = name;
    raw.cloud = cloud(reader, &section, submit.as_ref(), is_flat);
    if let Some(submit) = &submit {
        let nodes = raw.cloud.counts.iter().find(|(name, _)| *name == "nodes").map(|(_, count)| *count);
        raw.cluster = cluster(reader, submit, nodes);
    }
    Some(raw)
}

fn cluster(reader: &mut Reader<'_>, submit: &Section<'_>, nodes: Option<u32>) -> ClusterOptions {
    let mut native: Vec<_> = nodes.map(|nodes| ("nodes".to_owned(), Some(nodes.to_string()))).into_iter().collect();
    for name in NATIVE {
        let Some(value) = submit.word(reader, name) else { continue };
        match engines::slurm_native(name, Some(&value.value)) {
            Ok(option) => native.push(option),
            Err(why) => reader.error(Code::F0013, value.at, format!("`{}` is not valid", submit.path(name)), why),
        }
    }
    let mut hosts = Vec::new();
    let what = format!("`{}`", submit.path("hosts"));
    for node in submit.get("hosts").map(Node::one_or_many).unwrap_or_default() {
        let Some(text) = reader.text(&what, node).filter(|text| !text.value.trim().is_empty()) else { continue };
        match engines::mpi_hosts(&text.value) {
            Ok(some) => hosts.extend(some),
            Err(why) => reader.error(Code::F0013, text.at, format!("{what} is not valid"), why),
        }
    }
    ClusterOptions {
        slurm: SlurmOptions { native, ..SlurmOptions::default() },
        mpi: MpiOptions { hosts, ..MpiOptions::default() },
        ..ClusterOptions::default()
    }
}

fn cloud(reader: &mut Reader<'_>, section: &Section<'_>, submit: Option<&Section<'_>>, is_flat: bool) -> RawCloud {
    let mut raw = RawCloud::default();
    if is_flat {
        raw.cluster_type = section.choice(reader, "cluster_type", CLUSTER_TYPES);
        if let Some(config) = section.section(reader, "config", &keys::CLOUD, Others::Ignored) {
            raw.at = Some(config.at());
            let texts = keys::CLOUD.names().filter(|name| *name != "communicator");
            raw.config = texts.filter_map(|name| Some((name, config.word(reader, name)?))).collect();
            if let Some(flags) = config.section(reader, "communicator", &keys::COMMUNICATOR, Others::Ignored) {
                let names = keys::COMMUNICATOR.names();
                raw.flags = names.filter_map(|name| Some((name, flags.word(reader, name)?))).collect();
            }
        }
    }
    if let Some(submit) = submit {
        raw.script = submit.get("scrpit").map(|node| node.at);
        raw.submit = TEXTS.into_iter().filter_map(|name| Some((name, submit.word(reader, name)?))).collect();
        raw.submit.extend(
            submit
                .choice(reader, "priority", PRIORITIES)
                .map(|word| ("priority", At { value: word.value.to_owned(), at: word.at })),
        );
        let number = |name| Some((name, submit.number(reader, name, 1, MAX_REPLICAS)?.value));
        raw.counts = COUNTS.into_iter().filter_map(number).collect();
    }
    raw
}
