//! Objects against the schemas of their kinds, strictly: documents of the corpus, ours, and PaddleRec's.

#![expect(clippy::print_stdout, reason = "which documents were left out, and why")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use umiak_core::cluster::kubernetes::{Shipped, check};
use umiak_core::diag::{Diagnostic, Source};
use umiak_core::formats::settings::Settings;
use umiak_core::formats::{Given, parse};
use umiak_core::mask::Known;
use umiak_core::model::{Job, KubeKind, KubeVolume, KubernetesOptions, Toleration, VolumeSource, Workload};
use umiak_testkit::components::{Component, corpus, is_present};
use umiak_testkit::schema::violation;

use super::{rendered, templates};

/// The schemas of the custom kinds.
struct Schemas {
    volcano: Value,
    jobset: Value,
}

impl Schemas {
    fn read(corpus: &Path) -> Self {
        let read = |path: &str| {
            let text = std::fs::read_to_string(corpus.join("k8s-crds").join(path)).expect("a file of the corpus");
            let options = serde_saphyr::options! { budget: None };
            let crd: Value = serde_saphyr::from_str_with_options(&text, options).expect("YAML");
            let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
            schema["properties"]["metadata"] = metadata();
            schema
        };
        Self {
            volcano: read("volcano/batch.volcano.sh_jobs.yaml"),
            jobset: read("jobset/jobset.x-k8s.io_jobsets.yaml"),
        }
    }

    /// The schema of an object. Kinds of Kubernetes itself are as far as they are here.
    fn of(&self, object: &Value) -> Value {
        let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let (kind, properties) = match object["apiVersion"].as_str() {
            Some("batch.volcano.sh/v1alpha1") => return self.volcano.clone(),
            Some("jobset.x-k8s.io/v1alpha2") => return self.jobset.clone(),
            Some("batch/v1") => {
                let job = "/properties/spec/properties/replicatedJobs/items/properties/template/properties/spec";
                ("Job", json!({"spec": self.jobset.pointer(job).expect("a Job is in a JobSet")}))
            }
            Some("v1") if object["kind"] == "Secret" => {
                ("Secret", json!({"type": {"const": "Opaque"}, "stringData": texts}))
            }
            Some("v1") if object["kind"] == "ConfigMap" => ("ConfigMap", json!({"data": texts, "binaryData": texts})),
            Some("v1") if object["kind"] == "Service" => {
                let spec = json!({"type": "object", "properties": {
                    "clusterIP": {"const": "None"}, "publishNotReadyAddresses": {"type": "boolean"}, "selector": texts,
                }});
                ("Service", json!({"spec": spec}))
            }
            other => panic!("an object of {other:?}"),
        };
        let mut schema = json!({"type": "object", "properties": properties});
        schema["properties"]["apiVersion"] = json!({"type": "string"});
        schema["properties"]["kind"] = json!({"const": kind});
        schema["properties"]["metadata"] = metadata();
        schema
    }
}

fn metadata() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 63}, "namespace": {"type": "string", "maxLength": 63},
            "labels": texts, "annotations": texts,
        },
    })
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

/// What API servers check beyond schemas, and what the first renderer of PaddleRec did not do.
fn check_objects(objects: &[Value], stem: &str) {
    let data = |kind: &str, key: &str| {
        let object = objects.iter().find(|object| object["kind"] == kind);
        let keys = object.and_then(|object| object[key].as_object()).into_iter().flat_map(|data| data.keys().cloned());
        keys.collect::<BTreeSet<String>>()
    };
    let secrets = data("Secret", "stringData");
    let shipped: BTreeSet<String> = &data("ConfigMap", "data") | &data("ConfigMap", "binaryData");
    for object in objects {
        assert!(
            object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(stem)),
            "names are the job's own"
        );
        assert_eq!(object["metadata"]["labels"]["umiak.dev/unit"], stem);
    }
    for template in templates(objects).values() {
        let (labels, spec) = (&template["metadata"]["labels"], &template["spec"]);
        for (key, value) in labels.as_object().into_iter().flatten() {
            let value = value.as_str().expect("a text");
            assert!(
                value.len() <= 63 && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)),
                "{key}={value}"
            );
        }
        assert_eq!(spec["restartPolicy"], "Never");
        assert!(
            spec["serviceAccountName"].is_string() || spec["automountServiceAccountToken"] == false,
            "no API access"
        );
        let container = &spec["containers"][0];
        assert_eq!(container["resources"]["limits"], container["resources"]["requests"]);
        let volumes = names(&spec["volumes"]);
        assert_eq!(volumes.iter().collect::<BTreeSet<_>>().len(), volumes.len(), "{volumes:?}");
        let mounts = container["volumeMounts"].as_array().expect("a list");
        assert!(names(&container["volumeMounts"]).iter().all(|name| volumes.contains(name)));
        let paths: BTreeSet<&str> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
        assert_eq!(paths.len(), mounts.len(), "{mounts:?}");
        let variables = names(&container["env"]);
        assert_eq!(variables.iter().collect::<BTreeSet<_>>().len(), variables.len(), "{variables:?}");
        for name in variables {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name}");
        }
        for variable in container["env"].as_array().expect("a list") {
            if let Some(key) = variable.pointer("/valueFrom/secretKeyRef/key") {
                assert!(secrets.contains(key.as_str().expect("a text")), "{key}");
            }
        }
        let items = spec["volumes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|it| it.pointer("/configMap/items")?.as_array());
        for item in items.flatten() {
            assert!(shipped.contains(item["key"].as_str().expect("a text")), "{item}");
        }
    }
}

/// Options that use everything.
fn everything() -> KubernetesOptions {
    let volume = |source, path: &str| KubeVolume { source, path: path.to_owned(), read_only: true };
    KubernetesOptions {
        namespace: Some("ads".into()),
        image: Some("image".into()),
        pull: Some(umiak_core::model::PullPolicy::IfNotPresent),
        pull_secrets: vec!["registry".into()],
        service_account: Some("train".into()),
        queue: Some("gpu".into()),
        priority_class: Some("high".into()),
        node_selector: vec![("zone".into(), "a".into())],
        tolerations: vec![Toleration { key: None, value: None, effect: Some("NoExecute".into()) }],
        volumes: vec![
            volume(VolumeSource::Claim("c".into()), "/claim"),
            volume(VolumeSource::Host("/x".into()), "/host"),
            volume(VolumeSource::Empty, "/empty"),
            volume(VolumeSource::Config("c".into()), "/config"),
            volume(VolumeSource::Secret("s".into()), "/secret"),
        ],
        ..KubernetesOptions::default()
    }
}

/// Renders a job as each kind, and checks the objects. Returns how many kinds took it.
fn validate(schemas: &Schemas, what: &str, job: &Job, known: &Known) -> usize {
    let files = [Shipped { path: "a/b.py".into(), bytes: b"x".into(), executable: true }];
    let mut taken = 0;
    for kind in [KubeKind::Volcano, KubeKind::Jobset, KubeKind::Jobs] {
        for options in [KubernetesOptions { image: Some("image".into()), ..KubernetesOptions::default() }, everything()]
        {
            let options = KubernetesOptions { kind, ..options };
            let errors = check(job, &options);
            if !errors.is_empty() {
                println!("{what} as {}: {}", kind.word(), errors[0].to_plain());
                continue;
            }
            let rendered = rendered(job, &options, known, &files);
            let rendered = rendered.unwrap_or_else(|error| panic!("{what}: {}", error.to_plain()));
            for object in &rendered.objects {
                if let Some(wrong) = violation(&schemas.of(object), object) {
                    panic!("{what} as {}: {wrong}\n{object:#}", kind.word());
                }
            }
            check_objects(&rendered.objects, rendered.names.stem());
            taken += 1;
        }
    }
    taken
}

fn documents(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(directory).expect("a directory").filter_map(Result::ok).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for path in entries.iter().map(std::fs::DirEntry::path) {
        let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        match path.is_dir() {
            true => documents(&path, found),
            false if is_yaml => found.push(path),
            false => {}
        }
    }
}

/// Validates every job of the documents in a directory. Returns the numbers of documents, of those that can be read, and of
/// objects' kinds that took a job.
fn validate_all(schemas: &Schemas, directory: &Path) -> (usize, usize, usize) {
    let mut paths = Vec::new();
    documents(directory, &mut paths);
    let (mut read, mut taken) = (0, 0);
    for path in &paths {
        let text = std::fs::read_to_string(path).expect("a document");
        let settings = Settings::default();
        let given = Given { dir: Path::new("/here"), ..Given::new(&[], &settings) };
        let what = path.display().to_string();
        match parse(&Source::new(what.clone(), text), &given) {
            Err(errors) => println!("{what}: {}", errors.first().map(Diagnostic::to_plain).unwrap_or_default()),
            Ok(document) => {
                read += 1;
                let jobs: Vec<&Job> = match &document.work {
                    Workload::Job(job) => vec![job],
                    Workload::Pipeline(pipeline) => pipeline.iter_steps().map(|step| &step.job).collect(),
                };
                // A step without a command is filled in when it runs.
                let jobs = jobs.into_iter().filter(|job| job.roles.iter().all(|role| !role.work.command.is_empty()));
                taken += jobs.map(|job| validate(schemas, &what, job, &document.secrets)).sum::<usize>();
            }
        }
    }
    (paths.len(), read, taken)
}

#[test]
fn documents_of_the_corpus() {
    if !is_present(Component::Corpus) {
        return;
    }
    let corpus = corpus().expect("it is there");
    let schemas = Schemas::read(&corpus);
    for (folder, least_read, least_taken) in [("openpai", 40, 240), ("paddleflow", 8, 48)] {
        let (all, read, taken) = validate_all(&schemas, &corpus.join(folder));
        println!("{folder}: {all} documents, {read} read, {taken} renderings");
        assert!(
            read >= least_read && taken >= least_taken,
            "{folder}: {read} of {all} documents read, {taken} renderings"
        );
    }
}

#[test]
fn our_documents() {
    if !is_present(Component::Corpus) {
        return;
    }
    let schemas = Schemas::read(&corpus().expect("it is there"));
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/documents");
    for folder in ["good", "openpai", "paddleflow"] {
        let (all, read, taken) = validate_all(&schemas, &fixtures.join(folder));
        println!("{folder}: {all} documents, {read} read, {taken} renderings");
        assert!(taken > 0, "{folder}");
    }
}

/// The files of PaddleRec's guide.
#[test]
fn paddlerec() {
    if !is_present(Component::Corpus) {
        return;
    }
    let schemas = Schemas::read(&corpus().expect("it is there"));
    let config = "train:\n  epochs: 10\n  engine: cluster\n  workspace: \"paddlerec.models.rank.dnn\"\n  trainer:\n    strategy: \"async\"\n    threads: 2\n";
    let backend = "engine:\n  backend: \"k8s\"\n  job_name: \"k8s-ctr-dnn\"\n  submit:\n    server_num: 2\n    trainer_num: 2\n    docker_image: \"hub.baidubce.com/ctr/paddlerec:alpha\"\n    memory: \"4Gi\"\n    storage: \"10Gi\"\n    log_level: 0\n";
    let (settings, backend) = (Settings::default(), Source::new("backend.yaml", backend.to_owned()));
    let given = Given { companion: Some(&backend), dir: Path::new("/here"), ..Given::new(&[], &settings) };
    let document = parse(&Source::new("config.yaml", config.to_owned()), &given).expect("the guide's files");
    assert_eq!(validate(&schemas, "paddlerec", document.job().expect("one job"), &document.secrets), 6);
}
