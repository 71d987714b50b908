//! How jobs are given to Kubernetes.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How a job is given to Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct KubernetesOptions {
    /// The object that holds the job.
    #[serde(default, skip_serializing_if = "KubeKind::is_auto")]
    pub kind: KubeKind,
    /// The file with clusters and credentials; when omitted, as for `kubectl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// The context in that file; when omitted, its current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// When omitted, that of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The image of roles without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When images are pulled; when omitted, as the cluster decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<PullPolicy>,
    /// Secrets with the credentials of registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<String>,
    /// The service account of pods; when omitted, the namespace's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// The queue of Volcano or Kueue; when omitted, that of the roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The priority class of pods; when omitted, that of the roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_selector: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Volumes that all pods have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<KubeVolume>,
    /// The volumes of file systems, by name. Others are directories of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fs: Vec<(String, VolumeSource)>,
    /// The name of GPUs among the resources of nodes; when omitted, `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_resource: Option<String>,
    /// Files, and directories with files, of which pods get copies in their working directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ship: Vec<PathBuf>,
    /// A JSON merge patch for the object.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub patch: Map<String, Value>,
    /// A JSON merge patch for each pod template.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub pod_patch: Map<String, Value>,
}

impl KubernetesOptions {
    /// The name of GPUs, unless the options have another.
    pub const GPU_RESOURCE: &'static str = "nvidia.com/gpu";
    /// The working directory of pods with shipped files.
    pub const WORK: &'static str = "/umiak/work";

    /// Adds options that win over these.
    pub fn add(&mut self, over: &Self) {
        fn take<T: Clone>(own: &mut Option<T>, over: Option<&T>) {
            *own = over.cloned().or(own.take());
        }
        if !over.kind.is_auto() {
            self.kind = over.kind;
        }
        take(&mut self.kubeconfig, over.kubeconfig.as_ref());
        take(&mut self.context, over.context.as_ref());
        take(&mut self.namespace, over.namespace.as_ref());
        take(&mut self.image, over.image.as_ref());
        take(&mut self.pull, over.pull.as_ref());
        take(&mut self.service_account, over.service_account.as_ref());
        take(&mut self.queue, over.queue.as_ref());
        take(&mut self.priority_class, over.priority_class.as_ref());
        take(&mut self.gpu_resource, over.gpu_resource.as_ref());
        self.ship.extend(over.ship.iter().cloned());
        self.pull_secrets.extend(over.pull_secrets.iter().cloned());
        self.tolerations.extend(over.tolerations.iter().cloned());
        self.node_selector.retain(|(name, _)| over.node_selector.iter().all(|(other, _)| other != name));
        self.node_selector.extend(over.node_selector.iter().cloned());
        // What is mounted at the same path is replaced.
        self.volumes.retain(|volume| over.volumes.iter().all(|other| other.path != volume.path));
        self.volumes.extend(over.volumes.iter().cloned());
        self.fs.retain(|(name, _)| over.fs.iter().all(|(other, _)| other != name));
        self.fs.extend(over.fs.iter().cloned());
        merge(&mut self.patch, &over.patch);
        merge(&mut self.pod_patch, &over.pod_patch);
    }
}

/// Adds entries that win, at every level.
fn merge(into: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        match (into.get_mut(key), value) {
            (Some(Value::Object(own)), Value::Object(over)) => merge(own, over),
            _ => drop(into.insert(key.clone(), value.clone())),
        }
    }
}

/// The kind of object that holds all replicas of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KubeKind {
    /// The first of the others that the cluster has.
    #[default]
    Auto,
    Volcano,
    Jobset,
    /// An Indexed Job for each role, and a headless Service.
    Jobs,
}

impl KubeKind {
    pub const ALL: [Self; 4] = [Self::Auto, Self::Volcano, Self::Jobset, Self::Jobs];
    /// Their names for users.
    pub const WORDS: &'static [&'static str] =
        &[Self::Auto.word(), Self::Volcano.word(), Self::Jobset.word(), Self::Jobs.word()];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Volcano => "volcano",
            Self::Jobset => "jobset",
            Self::Jobs => "jobs",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub const ALL: [Self; 3] = [Self::Always, Self::IfNotPresent, Self::Never];

    /// As Kubernetes writes it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }

    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.word().eq_ignore_ascii_case(word))
    }
}

/// A taint that pods tolerate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Toleration {
    /// `None` for every key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `None` for every value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; `None` for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}

/// A volume, and where pods see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KubeVolume {
    pub source: VolumeSource,
    /// An absolute path in the pod.
    pub path: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// Where the files of a volume are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeSource {
    /// A PersistentVolumeClaim.
    Claim(String),
    /// A directory of the node.
    Host(String),
    /// An empty directory that ends with the pod.
    Empty,
    /// A ConfigMap.
    Config(String),
    Secret(String),
}

impl fmt::Display for VolumeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(name) => write!(f, "pvc:{name}"),
            Self::Host(path) => write!(f, "host:{path}"),
            Self::Empty => f.write_str("empty"),
            Self::Config(name) => write!(f, "config:{name}"),
            Self::Secret(name) => write!(f, "secret:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn later_options_win() {
        let map = |value: Value| value.as_object().unwrap().clone();
        let volume = |path: &str, source| KubeVolume { source, path: path.to_owned(), read_only: false };
        let mut options = KubernetesOptions {
            kind: KubeKind::Jobs,
            namespace: Some("a".to_owned()),
            node_selector: vec![("zone".to_owned(), "a".to_owned())],
            volumes: vec![volume("/data", VolumeSource::Empty), volume("/tmp", VolumeSource::Empty)],
            pod_patch: map(json!({"spec": {"hostIPC": true, "hostNetwork": false}})),
            ..KubernetesOptions::default()
        };
        options.add(&KubernetesOptions {
            image: Some("x".to_owned()),
            node_selector: vec![("zone".to_owned(), "b".to_owned())],
            volumes: vec![volume("/data", VolumeSource::Claim("data".to_owned()))],
            pod_patch: map(json!({"spec": {"hostNetwork": true}})),
            ..KubernetesOptions::default()
        });
        assert_eq!((options.kind, options.namespace.as_deref()), (KubeKind::Jobs, Some("a")));
        assert_eq!(options.node_selector, [("zone".to_owned(), "b".to_owned())]);
        let volumes: Vec<String> = options.volumes.iter().map(|it| format!("{}:{}", it.source, it.path)).collect();
        assert_eq!(volumes, ["empty:/tmp", "pvc:data:/data"]);
        assert_eq!(options.pod_patch, map(json!({"spec": {"hostIPC": true, "hostNetwork": true}})));
    }
}
