//! The template of a role's pods.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::patch::{apply, literal};
use super::prologue::{Prologue, Wait, is_identifier};
use super::variables::{Divided, divide};
use super::{OWN, Render, SHIPPED, check, key};
use crate::diag::{Code, Diagnostic};
use crate::model::{Device, KubeKind, KubernetesOptions, Resources, Role, Slot, VolumeSource, When};
use crate::plan::pool::Given;
use crate::plan::{Attempt, MAX_VARIABLE, Replica};

/// The name of the container, also for patches.
const CONTAINER: &str = "main";

/// The template of a role. Adds values to the object with secrets.
pub(super) fn template(
    render: &Render<'_>,
    position: usize,
    secrets: &mut Map<String, Value>,
) -> Result<Value, Diagnostic> {
    let mut pod = Pod { render, position, role: &render.plan.job.roles[position], secrets, env: Vec::new() };
    let script = pod.script()?;
    let mut template = pod.render.metadata(Some(position));
    template = Map::from_iter([("metadata".to_owned(), Value::Object(template))]);
    let (volumes, mounts) = pod.volumes();
    let container = pod.container(&script, mounts)?;
    template.insert("spec".to_owned(), pod.spec(&container, volumes));
    let mut template = Value::Object(template);
    apply(&mut template, &render.options.pod_patch);
    Ok(template)
}

struct Pod<'a, 'r> {
    render: &'r Render<'a>,
    position: usize,
    role: &'r Role,
    secrets: &'r mut Map<String, Value>,
    /// Variables of the template.
    env: Vec<Value>,
}

impl Pod<'_, '_> {
    fn options(&self) -> &KubernetesOptions {
        self.render.options
    }

    fn replicas(&self) -> impl Iterator<Item = &Replica> {
        let position = self.position;
        self.render.plan.replicas.iter().filter(move |replica| usize::from(replica.slot.role) == position)
    }

    fn attempt<'g>(&self, slot: Slot, given: &'g Given) -> Attempt<'g> {
        let number = self.render.unit.attempt;
        Attempt { slot, number, of_job: number, retries: 0, given }
    }

    /// Devices have other numbers in each container, from 0.
    fn given(&self) -> Given {
        let gpus = self.role.work.resources.gpus;
        let devices = (0..gpus).map(|position| Device { label: position.to_string(), position }).collect();
        Given { devices, cpus: Vec::new() }
    }

    fn divided(&self) -> Divided {
        let given = self.given();
        let all = self.replicas().map(|replica| {
            let own = self.render.plan.variables(replica, &self.attempt(replica.slot, &given));
            self.render.plan.common.iter().cloned().chain(own).collect::<BTreeMap<String, String>>()
        });
        divide(all)
    }

    /// The script, and with it the variables of the template.
    fn script(&mut self) -> Result<String, Diagnostic> {
        let mut divided = self.divided();
        let mut aliases = Vec::new();
        let mut odd = Vec::new();
        for (name, value) in std::mem::take(&mut divided.common) {
            let is_secret = self.is_secret(&name, &value);
            match (is_secret, is_identifier(&name)) {
                (false, true) => self.env.push(json!({"name": name, "value": literal(&value)})),
                (false, false) => odd.push((name, value)),
                (true, true) => self.add_secret(&name, &name, value),
                (true, false) => {
                    let alias = format!("UMIAK_SECRET_{}", aliases.len() + 1);
                    self.add_secret(&alias, &alias, value);
                    aliases.push((name, alias));
                }
            }
        }
        divided.common = odd;
        let table = divided.table.iter().flat_map(|(name, column)| column.iter().flatten().map(move |it| (name, it)));
        if let Some((name, _)) = table.into_iter().find(|(name, value)| self.is_secret(name, value)) {
            let message = format!("the secret `{name}` differs between replicas of `{}`", self.role.name);
            return Err(Diagnostic::error(Code::J0030, message)
                .row("reason", "replicas of a role share one template on Kubernetes, and with it their secrets"));
        }
        let script = self.prologue(divided, aliases).text();
        if script.len() > MAX_VARIABLE - 1 {
            let message = format!("the script that starts replicas of `{}` is too long", self.role.name);
            return Err(Diagnostic::error(Code::E0302, message)
                .row("size", format!("{} bytes", script.len()))
                .row("limit", format!("{MAX_VARIABLE} bytes (kernel)"))
                .hint("start fewer replicas: it lists values of each"));
        }
        Ok(script)
    }

    fn prologue(&self, variables: Divided, aliases: Vec<(String, String)>) -> Prologue<'_> {
        let command = &self.role.work.command;
        let is_secret = |(_, word): &(usize, &String)| self.is_secret("", word);
        let words = command.iter().enumerate().filter(is_secret).map(|(at, _)| (at, word_variable(at)));
        Prologue {
            index: match self.render.names.kind() {
                KubeKind::Auto | KubeKind::Volcano => "VC_TASK_INDEX",
                KubeKind::Jobset | KubeKind::Jobs => "JOB_COMPLETION_INDEX",
            },
            replicas: self.role.replicas,
            words: words.collect(),
            count: command.len(),
            directories: self.directories(&variables),
            files: (!self.render.unit.files.is_empty()).then_some((SHIPPED, KubernetesOptions::WORK)),
            dir: self.role.work.dir.as_deref().and_then(|dir| dir.to_str()),
            waits: self.waits(),
            variables,
            aliases,
        }
    }

    /// Directories that variables name, below umiak's own.
    fn directories(&self, variables: &Divided) -> Vec<Vec<String>> {
        let plan = self.render.plan;
        let number = self.render.unit.attempt;
        let is_named = |path: &str| {
            let common = self.env.iter().filter_map(|variable| variable["value"].as_str());
            let table = variables.table.iter().flat_map(|(_, column)| column.iter().flatten().map(String::as_str));
            let ruled = variables.ruled.iter().map(|(_, pieces)| super::variables::filled(pieces, 0));
            common.chain(table).any(|value| value.contains(path)) || ruled.into_iter().any(|value| value.contains(path))
        };
        let own = self.replicas().map(|replica| plan.attempt_dir(replica, number));
        let met = self.replicas().map(|replica| Some(plan.meeting_dir(replica.member?.group, number)));
        let all: [Option<Vec<_>>; 2] = [own.collect(), met.collect()];
        let shown = |paths: Vec<std::path::PathBuf>| {
            paths.iter().map(|path| path.to_string_lossy().into_owned()).collect::<Vec<String>>()
        };
        all.into_iter().flatten().map(shown).filter(|paths| paths.first().is_some_and(|path| is_named(path))).collect()
    }

    fn waits(&self) -> Vec<Wait> {
        let plan = self.render.plan;
        let of = |after: &crate::model::StartAfter| {
            let replicas = plan.replicas.iter().filter(|replica| replica.slot.role == after.role);
            let targets = replicas.flat_map(|replica| {
                let ports = replica.ports.iter().flat_map(|(_, ports)| ports).map(|port| Some(port.get()));
                let mut ports: Vec<Option<u16>> = ports.filter(|_| after.when == When::Ready).collect();
                if ports.is_empty() {
                    ports.push(None);
                }
                ports.into_iter().map(|port| (replica.host.to_string(), port)).collect::<Vec<_>>()
            });
            let patience = plan.job.roles[usize::from(after.role)].timeouts.patience;
            Wait { targets: targets.collect(), patience: patience.map(|time| time.as_secs().max(1)) }
        };
        self.role.start_after.iter().map(of).filter(|wait| !wait.targets.is_empty()).collect()
    }

    fn is_secret(&self, name: &str, value: &str) -> bool {
        !value.is_empty() && self.render.unit.known.masked(name, value) != value
    }

    /// A variable whose value is in the Secret.
    fn add_secret(&mut self, variable: &str, key: &str, value: String) {
        let key = format!("{}.{key}", self.render.names.role(self.position));
        let from = json!({"secretKeyRef": {"name": self.render.names.stem(), "key": key}});
        self.env.push(json!({"name": variable, "valueFrom": from}));
        self.secrets.insert(key, Value::String(value));
    }

    fn container(&mut self, script: &str, mounts: Vec<Value>) -> Result<Value, Diagnostic> {
        let work = &self.role.work;
        let image = work.image.as_ref().or(self.options().image.as_ref());
        let image = image.ok_or_else(|| check::no_image(self.role))?.clone();
        let mut args = Vec::new();
        for (position, word) in self.role.work.command.iter().enumerate() {
            if self.is_secret("", word) {
                let name = word_variable(position);
                self.add_secret(&name, &name, word.clone());
                args.push(String::new());
            } else {
                args.push(literal(word));
            }
        }
        let longest = self.env.iter().filter_map(|variable| {
            let (name, value) = (variable["name"].as_str()?, variable["value"].as_str()?);
            Some((name, name.len() + value.len() + 2))
        });
        if let Some((name, bytes)) = longest.filter(|(_, bytes)| *bytes > MAX_VARIABLE).max_by_key(|(_, bytes)| *bytes)
        {
            return Err(Diagnostic::error(Code::E0302, format!("the environment variable `{name}` is too long"))
                .row("size", format!("{bytes} bytes"))
                .row("limit", format!("{MAX_VARIABLE} bytes (kernel)"))
                .hint("put its value into a file; if it lists replicas, start fewer of them"));
        }
        let mut container = Map::new();
        container.insert("name".to_owned(), json!(CONTAINER));
        container.insert("image".to_owned(), json!(image));
        if let Some(pull) = self.options().pull {
            container.insert("imagePullPolicy".to_owned(), json!(pull.word()));
        }
        container.insert("command".to_owned(), json!(["/bin/sh", "-c", literal(script), "umiak"]));
        container.insert("args".to_owned(), json!(args));
        container.insert("env".to_owned(), Value::Array(std::mem::take(&mut self.env)));
        let amounts = amounts(&self.role.work.resources, self.options());
        if !amounts.is_empty() {
            container.insert("resources".to_owned(), json!({"limits": amounts, "requests": amounts}));
        }
        if !mounts.is_empty() {
            container.insert("volumeMounts".to_owned(), Value::Array(mounts));
        }
        container.insert("terminationMessagePolicy".to_owned(), json!("FallbackToLogsOnError"));
        Ok(Value::Object(container))
    }

    fn spec(&self, container: &Value, volumes: Vec<Value>) -> Value {
        let (options, policy) = (self.options(), &self.render.plan.job.policy);
        let grace = self.role.grace.unwrap_or(policy.stop.grace);
        let mut spec = Map::new();
        let mut set = |key: &str, value: Value| drop(spec.insert(key.to_owned(), value));
        set("restartPolicy", json!("Never"));
        set("terminationGracePeriodSeconds", json!(whole_seconds(grace)));
        if let Some(limit) = self.role.timeouts.run {
            set("activeDeadlineSeconds", json!(whole_seconds(limit).max(1)));
        }
        set("enableServiceLinks", json!(false));
        match &options.service_account {
            Some(account) => set("serviceAccountName", json!(account)),
            None => set("automountServiceAccountToken", json!(false)),
        }
        if self.render.names.kind() == KubeKind::Jobs {
            set("subdomain", json!(self.render.names.stem()));
        }
        if let Some(class) = check::priority(self.role, options) {
            set("priorityClassName", json!(class));
        }
        if !options.pull_secrets.is_empty() {
            set("imagePullSecrets", options.pull_secrets.iter().map(|name| json!({"name": name})).collect());
        }
        if !options.node_selector.is_empty() {
            let labels = options.node_selector.iter().map(|(name, value)| (name.clone(), json!(value)));
            set("nodeSelector", Value::Object(labels.collect()));
        }
        if !options.tolerations.is_empty() {
            set("tolerations", options.tolerations.iter().map(toleration).collect());
        }
        set("containers", json!([container]));
        if !volumes.is_empty() {
            set("volumes", Value::Array(volumes));
        }
        Value::Object(spec)
    }

    /// The volumes of the pod, and where its container sees them. What the options mount at a path replaces what the
    /// document mounts there.
    fn volumes(&self) -> (Vec<Value>, Vec<Value>) {
        let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
        let mut add = |name: String, mut volume: Value, path: &str, read_only: bool| {
            volume["name"] = json!(name);
            if let Value::Object(entries) = &mut volume {
                let name = entries.shift_remove("name").unwrap_or_default();
                entries.shift_insert(0, "name".to_owned(), name);
            }
            let mut mount = json!({"name": name, "mountPath": path});
            if read_only {
                mount["readOnly"] = json!(true);
            }
            volumes.push(volume);
            mounts.push(mount);
        };
        let (options, work) = (self.options(), &self.role.work);
        for (number, volume) in options.volumes.iter().enumerate() {
            add(format!("volume-{number}"), source(&volume.source), &volume.path, volume.read_only);
        }
        for (number, mount) in work.mounts.iter().enumerate() {
            let path = mount.path.to_string_lossy();
            let is_replaced = options.volumes.iter().any(|volume| volume.path == path)
                || work.mounts[number + 1..].iter().any(|later| later.path == mount.path);
            if !is_replaced {
                let own = options.fs.iter().find(|(name, _)| *name == mount.name).map(|(_, own)| source(own));
                let dir = mount.below(&self.render.plan.directory).dir;
                let dir = || json!({"hostPath": {"path": dir.to_string_lossy(), "type": "Directory"}});
                add(format!("fs-{number}"), own.unwrap_or_else(dir), &path, mount.read_only);
            }
        }
        if let Some(bytes) = work.resources.shm_bytes {
            add(
                "shm".to_owned(),
                json!({"emptyDir": {"medium": "Memory", "sizeLimit": memory(bytes)}}),
                "/dev/shm",
                false,
            );
        }
        add("umiak".to_owned(), json!({"emptyDir": {}}), OWN, false);
        let files = self.render.unit.files;
        if !files.is_empty() {
            let item = |(number, file): (usize, &super::Shipped)| {
                let mut item = json!({"key": key(number), "path": file.path});
                if file.executable {
                    item["mode"] = json!(0o755);
                }
                item
            };
            let items: Value = files.iter().enumerate().map(item).collect();
            add(
                "shipped".to_owned(),
                json!({"configMap": {"name": self.render.names.stem(), "items": items}}),
                SHIPPED,
                true,
            );
        }
        (volumes, mounts)
    }
}

/// The variable with a secret word of the command.
fn word_variable(position: usize) -> String {
    format!("UMIAK_WORD_{position}")
}

pub(super) fn whole_seconds(time: std::time::Duration) -> u64 {
    // More than any cluster counts to.
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).min(u64::from(u32::MAX) / 4)
}

fn source(source: &VolumeSource) -> Value {
    match source {
        VolumeSource::Claim(name) => json!({"persistentVolumeClaim": {"claimName": name}}),
        VolumeSource::Host(path) => json!({"hostPath": {"path": path, "type": "Directory"}}),
        VolumeSource::Empty => json!({"emptyDir": {}}),
        VolumeSource::Config(name) => json!({"configMap": {"name": name}}),
        VolumeSource::Secret(name) => json!({"secret": {"secretName": name}}),
    }
}

fn toleration(toleration: &crate::model::Toleration) -> Value {
    let mut value = Map::new();
    if let Some(key) = &toleration.key {
        value.insert("key".to_owned(), json!(key));
    }
    value.insert("operator".to_owned(), json!(if toleration.value.is_some() { "Equal" } else { "Exists" }));
    if let Some(text) = &toleration.value {
        value.insert("value".to_owned(), json!(text));
    }
    if let Some(effect) = &toleration.effect {
        value.insert("effect".to_owned(), json!(effect));
    }
    Value::Object(value)
}

/// Resources as quantities.
fn amounts(resources: &Resources, options: &KubernetesOptions) -> Map<String, Value> {
    let mut amounts = Map::new();
    if let Some(millis) = resources.cpu_millis {
        let cpus = if millis % 1000 == 0 { (millis / 1000).to_string() } else { format!("{millis}m") };
        amounts.insert("cpu".to_owned(), json!(cpus));
    }
    if let Some(bytes) = resources.memory_bytes {
        amounts.insert("memory".to_owned(), json!(memory(bytes)));
    }
    if let Some(bytes) = resources.storage_bytes {
        amounts.insert("ephemeral-storage".to_owned(), json!(memory(bytes)));
    }
    if resources.gpus > 0 {
        let name = options.gpu_resource.as_deref().unwrap_or(KubernetesOptions::GPU_RESOURCE);
        amounts.insert(name.to_owned(), json!(resources.gpus.to_string()));
    }
    amounts
}

fn memory(bytes: u64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}
