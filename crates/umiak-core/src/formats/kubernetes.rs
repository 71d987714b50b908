//! Options of the engine `kubernetes`, on the command line and in `umiak.toml`.
//!
//! ```toml
//! [engine.kubernetes]
//! namespace = "ads"
//! image = "registry/ctr:1"
//! queue = "gpu"
//! volumes = ["pvc:data:/data", "host:/mnt/cache:/cache:ro", "empty:/tmp/work"]
//! tolerations = ["gpu=yes:NoSchedule"]
//! node_selector = {zone = "a"}
//! [engine.kubernetes.pod]
//! spec = {hostNetwork = true}
//! ```

use serde_json::{Map, Value as Json};

use super::document::reader::{At, Entries, Reader};
use super::document::tree::{Node, Scalar, ScalarKind, Value, shortened};
use crate::diag::Code;
use crate::model::{KubeKind, KubeVolume, KubernetesOptions, PullPolicy, Toleration, VolumeSource};

/// Longest name of most objects.
const LONGEST_NAME: usize = 253;
/// Longest DNS label, and longest name of a label or a taint.
const LONGEST_LABEL: usize = 63;
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// The name of an object: lower-case letters, digits, `-` and `.`.
pub fn name(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let ends = [label.bytes().next(), label.bytes().last()];
        ends.into_iter().all(|end| end.is_some_and(is_letter))
            && label.bytes().all(|byte| is_letter(byte) || byte == b'-')
    };
    if text.len() <= LONGEST_NAME && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    let rule = "lower-case letters, digits, `-` and `.`, with a letter or digit at both ends";
    Err(format!("`{}` is not a name of Kubernetes: {rule}", shortened(text).escape_debug()))
}

/// `auto`, `volcano`, `jobset` or `jobs`.
pub fn kind(text: &str) -> Result<KubeKind, String> {
    KubeKind::named(text).ok_or_else(|| {
        let words = KubeKind::WORDS.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>();
        format!("`{}` is not one of {}", shortened(text).escape_debug(), words.join(", "))
    })
}

/// `KIND:NAME:PATH` or `KIND:NAME:PATH:ro`: `pvc:data:/data`, `host:/mnt/data:/data:ro`, `empty:/scratch`, `config:NAME:/etc/x`,
/// `secret:NAME:/etc/x`.
pub fn volume(text: &str) -> Result<KubeVolume, String> {
    let shape = "is not KIND:NAME:PATH, where KIND is `pvc`, `host`, `empty` (without a name), `config` or `secret`";
    let wrong = || format!("`{}` {shape}", shortened(text).escape_debug());
    let (rest, read_only) = text.strip_suffix(":ro").map_or((text, false), |rest| (rest, true));
    let (rest, path) = rest.rsplit_once(':').ok_or_else(wrong)?;
    if !path.starts_with('/') || path == "/" || path.contains(char::is_control) {
        return Err(format!("`{}` is not an absolute path below `/`", shortened(path).escape_debug()));
    }
    let source = source(rest).map_err(|reason| if rest.contains(':') { reason } else { wrong() })?;
    Ok(KubeVolume { source, path: path.to_owned(), read_only })
}

/// `pvc:NAME`, `host:PATH`, `empty`, `config:NAME` or `secret:NAME`.
pub fn source(text: &str) -> Result<VolumeSource, String> {
    match text.split_once(':').unwrap_or((text, "")) {
        ("pvc", claim) => name(claim).map(VolumeSource::Claim),
        ("host", path) if path.starts_with('/') => Ok(VolumeSource::Host(path.to_owned())),
        ("host", path) => Err(format!("`{}` is not an absolute path", shortened(path).escape_debug())),
        ("empty", "") => Ok(VolumeSource::Empty),
        ("config", map) => name(map).map(VolumeSource::Config),
        ("secret", secret) => name(secret).map(VolumeSource::Secret),
        _ => Err(format!("`{}` is not a volume: write `pvc:NAME` or `host:PATH`", shortened(text).escape_debug())),
    }
}

/// A taint as `kubectl taint` writes it: `KEY`, `KEY=VALUE`, each with `:EFFECT` or for every effect; `*` for every key.
pub fn toleration(text: &str) -> Result<Toleration, String> {
    let (rest, effect) = match text.split_once(':') {
        Some((rest, effect)) if EFFECTS.contains(&effect) => (rest, Some(effect.to_owned())),
        Some((_, effect)) => {
            let effect = shortened(effect).escape_debug().to_string();
            return Err(format!("`{effect}` is not one of `NoSchedule`, `PreferNoSchedule`, `NoExecute`"));
        }
        None => (text, None),
    };
    if rest == "*" {
        return Ok(Toleration { key: None, value: None, effect });
    }
    let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
    let value = value.map(|value| label_value(key, value)).transpose()?;
    Ok(Toleration { key: Some(label_key(key)?), value, effect })
}

/// `KEY=VALUE` of a label.
pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("`{}` is not KEY=VALUE", shortened(text).escape_debug()))?;
    Ok((label_key(key)?, label_value(key, value)?))
}

/// Letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_qualified(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= LONGEST_LABEL
        && ends.into_iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn label_key(key: &str) -> Result<String, String> {
    let (prefix, last) = key.split_once('/').map_or((None, key), |(prefix, last)| (Some(prefix), last));
    if is_qualified(last) && prefix.is_none_or(|prefix| name(prefix).is_ok()) {
        return Ok(key.to_owned());
    }
    Err(format!("`{}` is not a key of labels", shortened(key).escape_debug()))
}

fn label_value(key: &str, value: &str) -> Result<String, String> {
    if value.is_empty() || is_qualified(value) {
        return Ok(value.to_owned());
    }
    let rule = "up to 63 letters, digits, `-`, `_` and `.`";
    Err(format!("`{}` is not a value of `{key}`: it must be {rule}", shortened(value).escape_debug()))
}

fn pull_policy(text: &str) -> Result<PullPolicy, String> {
    PullPolicy::named(text)
        .ok_or_else(|| format!("`{}` is not one of `Always`, `IfNotPresent`, `Never`", shortened(text).escape_debug()))
}

/// A resource of nodes: `nvidia.com/gpu`.
fn resource(text: &str) -> Result<String, String> {
    label_key(text).map_err(|_| format!("`{}` is not the name of a resource", shortened(text).escape_debug()))
}

/// Any text of one line.
fn line(text: &str) -> Result<String, String> {
    if text.contains(char::is_control) { Err("it must be one line".to_owned()) } else { Ok(text.to_owned()) }
}

/// `[engine.kubernetes]`, or another engine of this kind.
pub(super) fn table(reader: &mut Reader<'_>, what: &str, node: &Node) -> Option<KubernetesOptions> {
    const KEYS: [&str; 19] = [
        "kind",
        "object",
        "kubeconfig",
        "context",
        "namespace",
        "image",
        "pull",
        "pull_secrets",
        "service_account",
        "queue",
        "priority_class",
        "node_selector",
        "tolerations",
        "volumes",
        "fs",
        "gpu_resource",
        "ship",
        "patch",
        "pod",
    ];
    let entries = reader.entries(what, node, KEYS)?;
    Some(KubernetesOptions {
        kind: one(reader, &entries, "object", kind).unwrap_or_default(),
        kubeconfig: one(reader, &entries, "kubeconfig", line).map(Into::into),
        context: one(reader, &entries, "context", line),
        namespace: one(reader, &entries, "namespace", name),
        image: one(reader, &entries, "image", line),
        pull: one(reader, &entries, "pull", pull_policy),
        pull_secrets: many(reader, &entries, "pull_secrets", name),
        service_account: one(reader, &entries, "service_account", name),
        queue: one(reader, &entries, "queue", name),
        priority_class: one(reader, &entries, "priority_class", name),
        node_selector: named(reader, &entries, "node_selector", |key, value| {
            Ok((label_key(key)?, label_value(key, value)?))
        }),
        tolerations: many(reader, &entries, "tolerations", toleration),
        volumes: many(reader, &entries, "volumes", volume),
        fs: named(reader, &entries, "fs", |name, text| Ok((name.to_owned(), source(text)?))),
        gpu_resource: one(reader, &entries, "gpu_resource", resource),
        ship: many(reader, &entries, "ship", line).into_iter().map(Into::into).collect(),
        patch: patch(reader, &entries, "patch"),
        pod_patch: patch(reader, &entries, "pod"),
    })
}

fn checked<T>(
    reader: &mut Reader<'_>,
    what: &str,
    text: &At<String>,
    read: fn(&str) -> Result<T, String>,
) -> Option<T> {
    read(&text.value).map_err(|why| reader.error(Code::F0013, text.at, format!("{what} is not valid"), why)).ok()
}

fn one<T>(reader: &mut Reader<'_>, entries: &Entries<'_>, key: &str, read: fn(&str) -> Result<T, String>) -> Option<T> {
    let text = entries.read(reader, key, Reader::word)?;
    checked(reader, &format!("`{key}`"), &text, read)
}

fn many<T>(reader: &mut Reader<'_>, entries: &Entries<'_>, key: &str, read: fn(&str) -> Result<T, String>) -> Vec<T> {
    let what = format!("`{key}`");
    let mut all = Vec::new();
    for node in entries.get(key).map(Node::one_or_many).unwrap_or_default() {
        let text = reader.word(&what, node);
        all.extend(text.and_then(|text| checked(reader, &what, &text, read)));
    }
    all
}

fn named<T>(
    reader: &mut Reader<'_>,
    entries: &Entries<'_>,
    key: &str,
    read: fn(&str, &str) -> Result<T, String>,
) -> Vec<T> {
    let texts = entries.read(reader, key, Reader::texts).unwrap_or_default();
    let mut all = Vec::new();
    for (name, text) in texts {
        match read(&name.value, &text.value) {
            Ok(value) => all.push(value),
            Err(why) => reader.error(Code::F0013, text.at, format!("`{key}` is not valid"), why),
        }
    }
    all
}

/// A patch, passed on as it is.
fn patch(reader: &mut Reader<'_>, entries: &Entries<'_>, key: &str) -> Map<String, Json> {
    let Some(node) = entries.get(key) else { return Map::new() };
    if let Json::Object(map) = json(node) {
        return map;
    }
    reader.wrong_type(&format!("`{key}`"), node, "a mapping");
    Map::new()
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::Scalar(Scalar { text, kind }) => match kind {
            ScalarKind::Null | ScalarKind::Broken => Json::Null,
            ScalarKind::Bool => Json::Bool(text == "true"),
            ScalarKind::Number => serde_json::from_str(&text.replace('_', "")).unwrap_or_else(|_| text.clone().into()),
            ScalarKind::Text | ScalarKind::Filled => text.clone().into(),
        },
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(entries) => {
            let entries = entries.iter().filter_map(|(key, value)| Some((key.text()?.to_owned(), json(value))));
            Json::Object(entries.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::diag::{Diagnostic, Source};
    use crate::formats::settings::parse;
    use crate::model::EngineKind;

    #[test]
    fn volumes() {
        let shown = |text| volume(text).map(|it| format!("{} {} {}", it.source, it.path, it.read_only));
        for (text, expected) in [
            ("pvc:data:/data", "pvc:data /data false"),
            ("host:/mnt/a:/data:ro", "host:/mnt/a /data true"),
            ("empty:/scratch", "empty /scratch false"),
            ("config:my.map:/etc/x:ro", "config:my.map /etc/x true"),
            ("secret:keys:/keys", "secret:keys /keys false"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, why) in [
            (
                "data:/data",
                "`data:/data` is not KIND:NAME:PATH, where KIND is `pvc`, `host`, `empty` (without a name), `config` or `secret`",
            ),
            ("pvc:data", "`data` is not an absolute path below `/`"),
            (
                "pvc:Data:/data",
                "`Data` is not a name of Kubernetes: lower-case letters, digits, `-` and `.`, with a letter or digit at both ends",
            ),
            ("host:mnt:/data", "`mnt` is not an absolute path"),
            ("nfs:a:/data", "`nfs:a` is not a volume: write `pvc:NAME` or `host:PATH`"),
            ("empty:/", "`/` is not an absolute path below `/`"),
        ] {
            assert_eq!(shown(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn tolerations() {
        let shown = |text| {
            toleration(text)
                .map(|it| [it.key, it.value, it.effect].map(|part| part.unwrap_or("-".to_owned())).join(" "))
        };
        for (text, expected) in [
            ("gpu", "gpu - -"),
            ("nvidia.com/gpu=present:NoSchedule", "nvidia.com/gpu present NoSchedule"),
            ("*:NoExecute", "- - NoExecute"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected), "{text}");
        }
        assert!(toleration("gpu:Never").is_err() && toleration("a b").is_err() && toleration("").is_err());
    }

    #[test]
    fn names_of_objects() {
        for good in ["a", "gpu-a", "my.map", "0"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        for bad in ["", "A", "-a", "a-", "a..b", "a_b", "a/b", &"a".repeat(254)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn in_settings() {
        let text = r#"
            [engine.k8s]
            object = "jobset"
            kubeconfig = "/etc/kube"
            context = "prod"
            namespace = "ads"
            image = "ctr:1"
            pull = "always"
            pull_secrets = "registry"
            service_account = "train"
            queue = "gpu"
            priority_class = "high"
            node_selector = {"zone" = "a", arch = "amd64"}
            tolerations = ["gpu=yes:NoSchedule", "*"]
            volumes = ["pvc:data:/data"]
            fs = {data = "pvc:data"}
            gpu_resource = "amd.com/gpu"
            ship = "src"
            [engine.k8s.pod.spec]
            hostNetwork = true
            containers = [{name = "x", weight = 1_000}]
            [engine.other]
            kind = "kubernetes"
            namespace = "b"
        "#;
        let settings = parse(&Source::new("umiak.toml", text)).unwrap();
        let choice = settings.engine("k8s").unwrap();
        assert_eq!((choice.kind, choice.name.as_str()), (EngineKind::Kubernetes, "kubernetes"));
        assert_eq!(Some(choice), settings.engine("kubernetes"));
        let options = settings.engine("kubernetes").unwrap().cluster.kubernetes;
        let pod = json!({"spec": {"hostNetwork": true, "containers": [{"name": "x", "weight": 1000}]}});
        assert_eq!(Json::Object(options.pod_patch.clone()), pod);
        insta::assert_snapshot!(serde_json::to_string_pretty(&options).unwrap());
        assert_eq!(settings.engine("other").unwrap().cluster.kubernetes.namespace.as_deref(), Some("b"));
    }

    #[test]
    fn errors_in_settings() {
        let text = r#"
            [engine.kubernetes]
            object = "job"
            image = ""
            namespace = "A"
            pull = "sometimes"
            tolerations = ["a:b"]
            node_selector = {zone = "a b"}
            volumes = ["data"]
            pod = 1
            partition = "gpu"
        "#;
        let errors = parse(&Source::new("umiak.toml", text)).unwrap_err();
        insta::assert_snapshot!(errors.iter().map(Diagnostic::to_plain).collect::<String>());
    }
}
