//! Jobs on Kubernetes: the objects of a plan, as JSON. They need nothing of umiak in the image, and no access to the API
//! from a pod. See `docs/design/0013-kubernetes.md`.
//!
//! | module | in one sentence |
//! |---|---|
//! | [`names`] | names of objects and pods, addresses |
//! | [`variables`] | which variables the replicas of a role share, and how the others follow from the index |
//! | [`prologue`] | the script that is the first process of a pod |
//! | [`pod`] | the template of a role's pods, for all kinds |
//! | [`volcano`], [`jobset`], [`jobs`] | the object with all roles |
//! | [`check`] | what cannot be done, found before anything is created |
//! | [`patch`] | patches of the user |

mod check;
mod jobs;
mod jobset;
pub mod names;
mod patch;
mod pod;
mod prologue;
mod variables;
mod volcano;

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

pub use self::check::{check, notices};
pub use self::names::Names;
use crate::diag::{Code, Diagnostic};
use crate::mask::{Known, MASK};
use crate::model::{Job, KubeKind, KubernetesOptions};
use crate::plan::Plan;
use crate::plan::document::{Granted, RunPlace, Submission, fixed_ports, place};

/// Label of everything that belongs to one job: its stem.
pub const UNIT: &str = "umiak.dev/unit";
/// Label of what belongs to a role.
pub const ROLE: &str = "umiak.dev/role";
/// A directory that umiak adds to a pod.
const OWN: &str = "/umiak";
/// Where shipped files are in a pod, and where they are copied to.
const SHIPPED: &str = "/umiak/shipped";
/// The largest sum of shipped files. A ConfigMap has up to 1 MiB, with the names.
pub const MAX_SHIPPED: usize = 900 << 10;
/// The largest object that etcd takes, by its default, is 1.5 MiB.
const MAX_OBJECT: usize = 1_400_000;

/// A file that pods get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shipped {
    /// Relative, with `/`.
    pub path: String,
    pub bytes: Vec<u8>,
    pub executable: bool,
}

/// What is started, beside the plan.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// The attempt of the job, from 1.
    pub attempt: u32,
    pub files: &'a [Shipped],
    /// Secrets of the document.
    pub known: &'a Known,
}

/// The plan of a job, and its names. Nothing of the submitter's environment reaches a pod.
pub fn planned(
    submission: &Submission,
    job: &Job,
    programs: &[PathBuf],
    run: RunPlace,
    identity: &str,
) -> Result<(Plan, Names), Diagnostic> {
    let names = Names::new(job, identity, submission.cluster.kubernetes.kind)?;
    let ports = fixed_ports(job).ok_or_else(|| {
        Diagnostic::error(Code::J0020, "the job needs more ports than a pod has")
            .hint("each replica has an address of its own: ask for fewer ports per replica")
    })?;
    let granted = Granted { hosts: names.hosts(job), ports, by_owner: false };
    let submission = Submission { environment: BTreeMap::new(), ..submission.clone() };
    let own = |name: &str| PathBuf::from(OWN).join(name);
    let run = RunPlace { cpus: 1, tasks: own("tasks"), scratch: own("scratch"), attached: false, ..run };
    Ok((place(&submission, job, programs, run, granted), names))
}

/// The objects of a job, in the order in which they are created. Those with secrets contain them: [`masked`] does not.
pub fn render(plan: &Plan, names: &Names, unit: &Unit<'_>) -> Result<Vec<Value>, Diagnostic> {
    let render = Render { plan, names, options: &plan.cluster.kubernetes, unit };
    let mut secrets = Map::new();
    let mut templates = Vec::new();
    for (position, role) in plan.job.roles.iter().enumerate() {
        if role.replicas > 0 {
            templates.push((position, pod::template(&render, position, &mut secrets)?));
        }
    }
    let mut objects = Vec::new();
    if !secrets.is_empty() {
        let mut secret = render.object("v1", "Secret", names.stem(), None);
        secret.insert("type".to_owned(), json!("Opaque"));
        secret.insert("stringData".to_owned(), Value::Object(secrets));
        objects.push(Value::Object(secret));
    }
    objects.extend(render.shipped()?);
    let mut main = match names.kind() {
        KubeKind::Jobset => vec![jobset::object(&render, &templates)],
        KubeKind::Jobs => jobs::objects(&render, &templates),
        KubeKind::Auto | KubeKind::Volcano => vec![volcano::object(&render, &templates)],
    };
    for object in &mut main {
        if object["kind"] != "Service" {
            patch::apply(object, &render.options.patch);
        }
    }
    objects.extend(main);
    for object in &objects {
        let size = object.to_string().len();
        if size > MAX_OBJECT && object["kind"] != "ConfigMap" {
            let what = object["kind"].as_str().unwrap_or_default();
            return Err(Diagnostic::error(Code::E0302, format!("the {what} of the job is too large"))
                .row("size", format!("{size} bytes"))
                .row("limit", format!("{MAX_OBJECT} bytes"))
                .hint("start fewer replicas: variables list them all"));
        }
    }
    Ok(objects)
}

/// The objects without secrets, to be shown.
pub fn masked(objects: &[Value], known: &Known) -> Vec<Value> {
    objects.iter().map(|object| without_secrets(object, object["kind"] == "Secret", known)).collect()
}

fn without_secrets(value: &Value, is_secret: bool, known: &Known) -> Value {
    match value {
        // What a text may contain by its form is in the Secret.
        Value::String(text) => {
            Value::String(known.values().fold(text.clone(), |text, secret| text.replace(secret, MASK)))
        }
        Value::Array(items) => items.iter().map(|item| without_secrets(item, is_secret, known)).collect(),
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| {
                let value = match value {
                    Value::Object(data) if is_secret && key == "stringData" => {
                        Value::Object(data.keys().map(|name| (name.clone(), json!(MASK))).collect())
                    }
                    value => without_secrets(value, is_secret, known),
                };
                (key.clone(), value)
            };
            Value::Object(entries.iter().map(entry).collect())
        }
        other => other.clone(),
    }
}

/// What is rendered.
struct Render<'a> {
    plan: &'a Plan,
    names: &'a Names,
    options: &'a KubernetesOptions,
    unit: &'a Unit<'a>,
}

impl Render<'_> {
    /// An object with its name, labels and annotations.
    fn object(&self, version: &str, kind: &str, name: &str, role: Option<usize>) -> Map<String, Value> {
        let mut metadata = self.metadata(role);
        metadata.shift_insert(0, "name".to_owned(), json!(name));
        if let Some(namespace) = &self.options.namespace {
            metadata.shift_insert(1, "namespace".to_owned(), json!(namespace));
        }
        let mut object = Map::new();
        object.insert("apiVersion".to_owned(), json!(version));
        object.insert("kind".to_owned(), json!(kind));
        object.insert("metadata".to_owned(), Value::Object(metadata));
        object
    }

    /// Labels and annotations.
    fn metadata(&self, role: Option<usize>) -> Map<String, Value> {
        let Self { plan, names, .. } = self;
        let mut labels = json!({"app.kubernetes.io/managed-by": "umiak", UNIT: names.stem()});
        let mut annotations = json!({
            "umiak.dev/job": plan.job.name.as_str(),
            "umiak.dev/run": plan.run.as_deref().unwrap_or_default(),
            "umiak.dev/user": plan.options.user,
            "umiak.dev/attempt": self.unit.attempt.to_string(),
        });
        if let Some(step) = &plan.step {
            annotations["umiak.dev/step"] = json!(step.as_str());
        }
        if !plan.job.labels.is_empty() {
            annotations["umiak.dev/labels"] = json!(json!(plan.job.labels).to_string());
        }
        if let Some(role) = role {
            labels[ROLE] = json!(names.role(role));
            annotations[ROLE] = json!(plan.job.roles[role].name.as_str());
        }
        let mut metadata = Map::new();
        metadata.insert("labels".to_owned(), labels);
        metadata.insert("annotations".to_owned(), annotations);
        metadata
    }

    /// The queue of the job, unless it is the one that stands for any.
    fn queue(&self) -> Option<&str> {
        check::queue(&self.plan.job, self.options)
    }

    /// The object with the shipped files.
    fn shipped(&self) -> Result<Option<Value>, Diagnostic> {
        let files = self.unit.files;
        let size: usize = files.iter().map(|file| file.bytes.len()).sum();
        if size > MAX_SHIPPED {
            return Err(Diagnostic::error(Code::E0302, "the shipped files are too large for the cluster")
                .row("size", format!("{size} bytes in {} files", files.len()))
                .row("limit", format!("{MAX_SHIPPED} bytes"))
                .hint("put them into the image or a volume, and ship only what changes"));
        }
        if files.is_empty() {
            return Ok(None);
        }
        let (mut texts, mut bytes) = (Map::new(), Map::new());
        for (number, file) in files.iter().enumerate() {
            match std::str::from_utf8(&file.bytes) {
                Ok(text) => drop(texts.insert(key(number), json!(text))),
                Err(_) => drop(bytes.insert(key(number), json!(STANDARD.encode(&file.bytes)))),
            }
        }
        let mut object = self.object("v1", "ConfigMap", self.names.stem(), None);
        object.insert("data".to_owned(), Value::Object(texts));
        object.insert("binaryData".to_owned(), Value::Object(bytes));
        object.retain(|_, value| value.as_object().is_none_or(|entries| !entries.is_empty()));
        Ok(Some(Value::Object(object)))
    }
}

/// The key of a shipped file: a path may have letters that keys do not have.
fn key(number: usize) -> String {
    format!("file-{number}")
}

#[cfg(test)]
mod tests;
