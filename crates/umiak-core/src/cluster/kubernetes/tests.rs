use serde_json::Value;

use super::*;
use crate::diag::{Diagnostic, Source};
use crate::formats::settings::{self, Settings};
use crate::formats::{Given, parse};
use crate::model::{Job, Workload};
use crate::plan::Wishes;
use crate::plan::document::{Chosen, SUBMISSION_VERSION};

/// A pair of roles as parameter servers and trainers, with everything that a document can ask for.
const SERVERS: &str = r#"
umiak: v1
name: ctr
labels: {team: ads}
contracts: paddle-job
policy: {restarts: {max: 2}}
roles:
  server:
    replicas: 2
    part: server
    command: [python, server.py, --name, "$(HOME) $$ it's"]
    ports: {rpc: 2, http: {port: 8080}}
    image: registry/ctr:1
    env: {train.mode: sync, API_TOKEN: s3cr3t-t0k3n}
    resources: {cpu: 1.5, memory: 2Gi, storage: 10Gi}
  trainer:
    replicas: 3
    part: trainer
    command: [python, train.py]
    start_after: {role: server, when: ready}
    image: registry/ctr:1
    dir: models/rank
    queue: gpu
    priority: VERY_HIGH
    timeout: 2h
    grace: 30s
    resources: {cpu: 4, memory: 1000M, gpu: 2, shm: 1Gi}
"#;

const TORCH: &str = r"
umiak: v1
name: bert
contracts: torch
roles:
  worker: {replicas: 2, command: [python, train.py], image: torch, resources: {gpu: 1}}
";

const PAI: &str = r#"
protocolVersion: 2
name: tf
type: job
prerequisites:
- {name: image, type: dockerimage, uri: "openpai/tf:1"}
taskRoles:
  ps_server:
    instances: 1
    dockerImage: image
    resourcePerInstance: {cpu: 2, memoryMB: 4096, gpu: 0, ports: {http: 1}}
    commands: [python server.py --ps=$PAI_HOST_IP_ps_server_0]
    completion: {minFailedInstances: 1}
  worker:
    instances: 2
    dockerImage: image
    completion: {minFailedInstances: 1, minSucceededInstances: 2}
    resourcePerInstance: {cpu: 4, memoryMB: 8192, gpu: 1}
    commands: ["python train.py", "echo done"]
"#;

fn job(text: &str) -> (Job, Known) {
    let document = parse(&Source::new("job.yaml", text.to_owned()), &Given::new(&[], &Settings::default()));
    let document = document.unwrap_or_else(|errors| {
        panic!("{}", errors.iter().map(Diagnostic::to_plain).collect::<String>());
    });
    (document.job().expect("one job").clone(), document.secrets)
}

fn objects(text: &str, options: KubernetesOptions, files: &[Shipped]) -> Vec<Value> {
    let (job, known) = job(text);
    assert_eq!(check(&job, &options), []);
    let cluster = crate::model::ClusterOptions { kubernetes: options, ..Default::default() };
    let programs: Vec<_> = job.roles.iter().map(|role| role.work.command[0].clone().into()).collect();
    let submission = Submission {
        v: SUBMISSION_VERSION,
        work: Workload::Job(Box::new(job.clone())),
        params: Vec::new(),
        chosen: Chosen::default(),
        repeats: None,
        engine: "kubernetes".into(),
        wishes: Wishes::default(),
        cluster,
        known: Known::default(),
        directory: "/home/li".into(),
        document: "/home/li/job.yaml".into(),
        environment: [("OMP_NUM_THREADS".to_owned(), "64".to_owned())].into(),
        programs: Vec::new(),
    };
    let run = RunPlace {
        run: "run-000007".into(),
        step: None,
        user: "li".into(),
        cpus: 64,
        tasks: "/r/tasks".into(),
        scratch: "/r/scratch".into(),
        attached: false,
    };
    let (plan, names) = planned(&submission, &job, &programs, run, "li@host:/r").unwrap();
    render(&plan, &names, &Unit { attempt: 1, files, known: &known })
        .unwrap_or_else(|error| panic!("{}", error.to_plain()))
}

fn kind(kind: KubeKind) -> KubernetesOptions {
    KubernetesOptions { kind, ..KubernetesOptions::default() }
}

fn text(objects: &[Value]) -> String {
    crate::formats::document::printed(objects)
}

#[test]
fn servers_and_trainers() {
    for kind in [KubeKind::Auto, KubeKind::Jobset, KubeKind::Jobs] {
        insta::assert_snapshot!(
            format!("servers_{}", kind.word()),
            text(&objects(SERVERS, KubernetesOptions { kind, ..KubernetesOptions::default() }, &[]))
        );
    }
}

#[test]
fn a_collective_job() {
    for one in [KubeKind::Volcano, KubeKind::Jobset, KubeKind::Jobs] {
        insta::assert_snapshot!(format!("torch_{}", one.word()), text(&objects(TORCH, kind(one), &[])));
    }
}

#[test]
fn two_roles_of_openpai() {
    for one in [KubeKind::Volcano, KubeKind::Jobset, KubeKind::Jobs] {
        insta::assert_snapshot!(format!("pai_{}", one.word()), text(&objects(PAI, kind(one), &[])));
    }
}

#[test]
fn everything_that_options_say() {
    let toml = r#"
        [engine.kubernetes]
        namespace = "ads"
        image = "ctr:1"
        pull = "Always"
        pull_secrets = ["registry"]
        service_account = "train"
        queue = "q"
        priority_class = "high"
        node_selector = {zone = "a"}
        tolerations = ["gpu=yes:NoSchedule", "*"]
        volumes = ["pvc:data:/data", "host:/mnt/x:/x:ro", "empty:/tmp/y", "config:c:/c", "secret:s:/s"]
        gpu_resource = "amd.com/gpu"
        [engine.kubernetes.patch.metadata.labels]
        cost = "42"
        [engine.kubernetes.pod.spec]
        hostNetwork = true
        containers = [{name = "main", securityContext = {privileged = true}}]
    "#;
    let settings = settings::parse(&Source::new("umiak.toml", toml)).unwrap();
    let options = settings.engine("kubernetes").unwrap().cluster.kubernetes;
    let shipped = |path: &str, bytes: &[u8], executable| Shipped { path: path.into(), bytes: bytes.into(), executable };
    let files = [shipped("train.sh", b"#!/bin/sh\necho hi\n", true), shipped("a b/启.bin", b"\xff", false)];
    let document = "umiak: v1\nname: one\nroles:\n  w: {command: [./train.sh], resources: {gpu: 1}}\n";
    insta::assert_snapshot!(text(&objects(document, options, &files)));
}

#[test]
fn secrets_are_in_the_secret_alone() {
    let document = "umiak: v1\nname: one\nroles:\n  w: {replicas: 2, image: i, command: [curl, '-H', 'Authorization: Bearer abc123def456'], env: {DB_PASSWORD: hunter22x, odd.secret-key: 'open99sesame'}}\n";
    let rendered = objects(document, KubernetesOptions::default(), &[]);
    assert_eq!(rendered[0]["kind"], "Secret");
    let others = serde_json::to_string(&rendered[1..]).unwrap();
    for secret in ["abc123def456", "hunter22x", "open99sesame"] {
        assert!(!others.contains(secret), "{secret}: {others}");
    }
    insta::assert_snapshot!(text(&masked(&rendered, &Known::default())));
}

#[test]
fn restarts_and_ends() {
    let of = |policy: &str, role: &str| {
        let text = format!(
            "umiak: v1\nname: x\npolicy: {policy}\nroles: {{a: {{image: i, command: x, completes: false}}, w: {{image: i, command: x, replicas: 4, {role}}}}}"
        );
        let volcano = &objects(&text, kind(KubeKind::Volcano), &[])[0];
        let (spec, tasks) = (&volcano["spec"], &volcano["spec"]["tasks"]);
        let jobs = objects(&text, kind(KubeKind::Jobs), &[]);
        let job = &jobs[2]["spec"];
        let job: Vec<String> = ["backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"]
            .iter()
            .filter(|key| !job[**key].is_null())
            .map(|key| format!("{key}: {}", job[*key]))
            .collect();
        format!(
            "{policy} {role}\n  maxRetry {}, {}, {}\n  {}\n",
            spec["maxRetry"],
            tasks[0]["policies"],
            tasks[1]["policies"],
            job.join(", ")
        )
    };
    insta::assert_snapshot!(
        [
            of("{}", ""),
            of("{restarts: 3}", ""),
            of("{restarts: {max_platform: 2}}", ""),
            of("{exits: pai}", ""),
            of("{linger: 90s}", ""),
            of("{}", "completion: {min_failed: 3}"),
            of("{}", "completion: {min_failed: 0}"),
            of("{}", "completion: {min_succeeded: 2}"),
        ]
        .concat()
    );
}

#[test]
fn jobs_that_cannot_be_run() {
    let documents = [
        "name: a\nroles: {a: {command: x, queue: p}, b: {command: x, image: i, queue: q, start_after: {role: a, when: succeeded}}}",
        "name: a\ncontracts: mpi\nroles: {a: {part: leader, command: x, image: i, queue: Gpu}, b: {part: trainer, command: x, image: i}}",
    ];
    let errors = documents.map(|text| {
        let (job, _) = job(&format!("umiak: v1\n{text}"));
        check(&job, &KubernetesOptions::default()).iter().map(Diagnostic::to_plain).collect::<Vec<_>>().join("\n")
    });
    insta::assert_snapshot!(errors.join("\n"));
}
