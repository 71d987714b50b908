use std::path::Path;

use super::cloud::Cloud;
use super::{Backend, File};
use crate::diag::{Diagnostic, Severity, Source};
use crate::formats::document::keys::{KeyKind, Table};
use crate::formats::document::{Checked, Document, Format};
use crate::formats::settings::{self, Settings};
use crate::formats::{Given, check, convert, parse};
use crate::model::{Contract, EngineKind, Job, Part, When, Workload};

/// The files of PaddleRec's guide, with another backend.
const CONFIG: &str = r#"train:
  epochs: 10
  # engine: single
  engine: cluster
  workspace: "paddlerec.models.rank.dnn"

  trainer:
    # for cluster training
    strategy: "async"
    threads: 2
"#;
const BACKEND: &str = r#"engine:
  backend: "local"
  job_name: "k8s-ctr-dnn"

  submit:
    server_num: 2
    trainer_num: 2
    docker_image: "hub.baidubce.com/ctr/paddlerec:alpha"
    memory: "4Gi"
    storage: "10Gi"
    log_level: 0
"#;
const LISTS: &str = r#"workspace: "models/rank/dnn"
mode: [train_runner, infer_runner]
hyper_parameters: {optimizer: {class: Adam}}
dataset:
- {name: data, batch_size: 5, type: QueueDataset, data_path: "{workspace}/data"}
runner:
- name: train_runner
  class: local_cluster_train
  epochs: 4
  device: cpu
  worker_num: 3
  server_num: 2
  distribute_strategy: GEO
  phases: [phase1]
- name: infer_runner
  class: infer
- {name: other, class: train}
phase:
- {name: phase1, model: "{workspace}/model.py", dataset_name: data, thread_num: 4}
- {name: phase2, model: "{workspace}/model.py", dataset_name: data, thread_num: 8}
"#;
const CLOUD: &str = r#"backend: PaddleCloud
cluster_type: k8s
config:
  fs_name: "afs://x.com"
  fs_ugi: "usr,correct-horse"
  output_path: "/out"
  afs_remote_mount_point: "/mount"
  communicator: {FLAGS_rpc_retry_times: 5}
submit:
  ak: "key-of-li"
  sk: "battery-staple"
  job_name: "it's mine"
  files: ./*.py ./*.yaml
  k8s_trainers: 1
  k8s_trainers: 4
"#;

fn read<T>(config: &str, backend: Option<&str>, read: impl FnOnce(&Source, &Given<'_>) -> T) -> T {
    let (config, backend) = (Source::new("config.yaml", config), backend.map(|text| Source::new("backend.yaml", text)));
    let settings = Settings::default();
    let given = Given { companion: backend.as_ref(), dir: Path::new("/here"), ..Given::new(&[], &settings) };
    read(&config, &given)
}

fn good(config: &str, backend: Option<&str>) -> Document {
    read(config, backend, parse).unwrap_or_else(|errors| panic!("{}", plain(&errors)))
}

fn job(config: &str, backend: Option<&str>) -> Job {
    good(config, backend).job().expect("one job").clone()
}

fn bad(config: &str, backend: Option<&str>) -> String {
    plain(&read(config, backend, parse).expect_err("it has errors"))
}

fn plain(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(Diagnostic::to_plain).collect::<Vec<_>>().join("\n")
}

fn variable<'j>(job: &'j Job, role: usize, name: &str) -> Option<&'j str> {
    job.roles[role].work.env.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

#[test]
fn files_are_told_apart_in_every_generation() {
    for (text, expected) in [
        (CONFIG, Some(File::Config)),
        (LISTS, Some(File::Config)),
        (BACKEND, Some(File::Backend)),
        (CLOUD, Some(File::Backend)),
        ("engine: {backend: k8s", None),
        ("train:\n  workspace: a: b\n", Some(File::Config)),
        ("runner: [\nmode: x\n", Some(File::Config)),
        ("engine: {kind: diesel}", None),
        ("train: [a]", None),
        ("backend: gpu", None),
    ] {
        let source = Source::new("x.yaml", text);
        assert_eq!(File::of(&source), expected, "{text}");
        assert_eq!(Format::of(&source).is_some(), File::of(&source).is_some(), "{text}");
    }
}

#[test]
fn the_seeds_files() {
    let document = good(CONFIG, Some(BACKEND));
    assert_eq!(document.notices, []);
    assert_eq!(document.target.as_ref().map(|target| target.backend), Some(Backend::Local));
    let job = document.job().unwrap();
    assert_eq!((job.name.as_str(), job.contracts.as_slice()), ("k8s-ctr-dnn", &[Contract::PaddleJob][..]));
    let roles: Vec<_> = job.roles.iter().map(|role| (role.name.as_str(), role.replicas, role.part)).collect();
    assert_eq!(roles, [("pserver", 2, Some(Part::Server)), ("trainer", 2, Some(Part::Trainer))]);
    assert_eq!(job.roles.iter().map(|role| role.completion.decides).collect::<Vec<_>>(), [false, true]);
    assert_eq!(job.roles[1].start_after[0].when, When::Started);
    for (index, role) in job.roles.iter().enumerate() {
        let work = &role.work;
        assert_eq!(work.command, ["python3", "-m", "paddlerec.models.rank.dnn"]);
        assert_eq!((work.resources.cpu_millis, work.resources.memory_bytes), (Some(2000), Some(4 << 30)));
        assert_eq!((work.resources.storage_bytes, work.resources.gpus), (Some(10 << 30), 0));
        assert_eq!(work.image.as_deref(), Some("hub.baidubce.com/ctr/paddlerec:alpha"));
        for (name, value) in [
            ("CPU_NUM", "2"),
            ("GLOG_v", "0"),
            ("CLUSTER_INSTANCE", "1"),
            ("train.trainer.strategy", "async"),
            ("train.trainer.threads", "2"),
            ("train.epochs", "10"),
            ("engine_run_config", "/here/config.yaml"),
        ] {
            assert_eq!(variable(job, index, name), Some(value), "{name}");
        }
    }
    // The document of the run has both files, and is recognised.
    assert!(document.masked.starts_with("# config.yaml\ntrain:\n"), "{}", document.masked);
    assert_eq!(Format::of(&Source::new("document.yaml", &document.masked)), Some(Format::PaddleRec));
}

#[test]
fn either_file_may_be_the_document() {
    let (config, backend) = (Source::new("config.yaml", CONFIG), Source::new("backend.yaml", BACKEND));
    let settings = Settings::default();
    let given = |companion| Given { companion, dir: Path::new("/here"), ..Given::new(&[], &settings) };
    let (one, other) = (parse(&config, &given(Some(&backend))), parse(&backend, &given(Some(&config))));
    assert_eq!(one.unwrap(), other.unwrap());
    insta::assert_snapshot!(plain(&parse(&backend, &given(None)).unwrap_err()));
    insta::assert_snapshot!(plain(&parse(&config, &given(None)).unwrap_err()));
    insta::assert_snapshot!(plain(&parse(&config, &given(Some(&config))).unwrap_err()));
    let params = [("epochs".to_owned(), "1".to_owned())];
    let with = Given { params: &params, ..given(Some(&backend)) };
    insta::assert_snapshot!(plain(&parse(&config, &with).unwrap_err()));
}

#[test]
fn backends_in_any_case() {
    for (word, backend) in [
        ("local", Backend::Local),
        ("LOCAL", Backend::Local),
        ("k8s", Backend::Kubernetes),
        ("KUBERNETES", Backend::Kubernetes),
        ("Volcano", Backend::Kubernetes),
        ("MPI", Backend::Mpi),
        ("slurm", Backend::Slurm),
    ] {
        let Document { target, engine, .. } = good(CONFIG, Some(&BACKEND.replace("local", word)));
        let (target, engine) = (target.unwrap(), engine.map(|engine| engine.kind));
        let expected = match backend {
            Backend::Mpi => Some(EngineKind::Mpi),
            Backend::Slurm => Some(EngineKind::Slurm),
            Backend::Kubernetes => Some(EngineKind::Kubernetes),
            _ => None,
        };
        assert_eq!((target.backend, engine), (backend, expected), "{word}");
        assert_eq!(target.refused, None, "{word}");
    }
}

#[test]
fn options_of_slurm_and_mpi() {
    let keys = "    partition: gpu\n    account: ''\n    time: 90\n    nodes: \"2\"\n    hosts: [a:4, 'b, c:2', '']\n";
    let toml = "[engine.slurm]\npartition = 'cpu'\nqos = 'low'\n[engine.mpi]\nlauncher = 'mpiexec'\nhosts = ['c']\n";
    let settings = settings::parse(&Source::new("umiak.toml", toml)).unwrap();
    let cluster = |word: &str| {
        let source = Source::new("backend.yaml", BACKEND.replace("local", word) + keys);
        let given = Given { companion: Some(&source), ..Given::new(&[], &settings) };
        let document = parse(&Source::new("config.yaml", CONFIG), &given).unwrap();
        assert_eq!(document.notices, []);
        document.engine.unwrap().cluster
    };
    let native = cluster("slurm").slurm.native;
    let native: Vec<_> = native.iter().map(|(name, value)| (name.as_str(), value.as_deref().unwrap())).collect();
    assert_eq!(native, [("qos", "low"), ("nodes", "2"), ("partition", "gpu"), ("time", "90")]);
    let mpi = cluster("mpi").mpi;
    assert_eq!(mpi.hosts, [("a".to_owned(), 4), ("b".to_owned(), 1), ("c".to_owned(), 2)]);
    assert_eq!(mpi.launcher, Some("mpiexec".into()));
    // The third generation has them too.
    let flat = "backend: slurm\nsubmit: {server_num: 1, trainer_num: 1, partition: gpu}\n";
    assert_eq!(good(CONFIG, Some(flat)).engine.unwrap().cluster.slurm.value("partition"), Some("gpu"));
    let wrong =
        "    partition: \"a\\nb\"\n    nodes: [2]\n    hosts: [a:x, fe80::1]\n    partion: x\n    account: [a]\n";
    insta::assert_snapshot!(bad(CONFIG, Some(&(BACKEND.replace("local", "slurm") + wrong))));
}

/// Only runners of the cluster are given to its engine.
#[test]
fn modes_on_a_cluster_and_here() {
    let config = LISTS.replace("class: local_cluster_train", "class: cluster_train");
    let document = good(&config, Some(&BACKEND.replace("local", "slurm")));
    let engines: Vec<_> = document.pipeline().unwrap().iter_steps().map(|step| step.engine.clone()).collect();
    assert_eq!(engines, [None, Some(EngineKind::Local.into())]);
    assert_eq!(document.engine.map(|engine| engine.kind), Some(EngineKind::Slurm));
}

#[test]
fn trainers_and_workers() {
    let with = |keys: &str| BACKEND.replace("trainer_num: 2", keys);
    assert_eq!(job(CONFIG, Some(&with("worker_num: 5"))).roles[1].replicas, 5);
    assert_eq!(job(CONFIG, Some(&with("worker_num: 5\n    trainer_num: \"5\""))).roles[1].replicas, 5);
    insta::assert_snapshot!(bad(CONFIG, Some(&with("worker_num: 5\n    trainer_num: 2"))));
}

#[test]
fn unknown_and_duplicate_keys_are_notices() {
    let config = CONFIG.replace("strategy", "stratege") + "  reeder: {}\n  mine: 1\n";
    let backend = BACKEND.replace("memory", "mermory") + "    server_num: 3\n    colour: red\n";
    let document = good(&config, Some(&backend));
    assert_eq!(document.job().unwrap().roles[0].replicas, 3, "the last one is used");
    insta::assert_snapshot!(plain(&document.notices));
}

#[test]
fn all_errors_of_both_files_at_once() {
    let config =
        CONFIG.replace("cluster", "clustr").replace("\"async\"", "asink").replace("threads: 2", "threads: many");
    let backend = "engine:\n  backend: aws\n  submit: {server_num: 0, trainer_num: two, memory: lots, log_level: -1}\n";
    insta::assert_snapshot!(bad(&config, Some(backend)));
    insta::assert_snapshot!(bad(CONFIG, Some("engine: {backend: local, submit: {log_level: 1}}")));
    insta::assert_snapshot!(bad("train: {engine: cluster}", Some("engine: {job_name: a/b}")));
    insta::assert_snapshot!(bad(CONFIG, Some("engine: [")));
    insta::assert_snapshot!(bad("train: {engine: cluster, workspace: [", Some(BACKEND)));
}

#[test]
fn engines_that_need_no_backend() {
    let config = |engine: &str| CONFIG.replace("engine: cluster", &format!("engine: {engine}"));
    let single = job(&config("SINGLE"), None);
    assert_eq!((single.name.as_str(), single.roles.len(), single.contracts.len()), ("dnn", 1, 0));
    assert_eq!(variable(&single, 0, "train.trainer.engine"), Some("single"));
    assert_eq!(single.roles[0].work.resources.cpu_millis, None);
    let local = job(&config("tdm_local_cluster"), None);
    assert_eq!(local.roles.iter().map(|role| role.replicas).collect::<Vec<_>>(), [1, 1]);
    insta::assert_snapshot!(plain(&good(&config("single"), Some(BACKEND)).notices));
    assert_eq!(job("train: {engine: single, workspace: ./}", None).roles[0].work.command, ["python3", "./"]);
    assert_eq!(job("train: {engine: single, workspace: ./}", None).name.as_str(), "paddlerec");
    assert_eq!(job("train: {engine: single, workspace: a/model.py}", None).roles[0].work.command[1], "a/model.py");
}

#[test]
fn modes_run_one_after_the_other() {
    let document = good(LISTS, None);
    assert_eq!(document.notices, []);
    let pipeline = document.pipeline().expect("two modes");
    let jobs: Vec<&Job> = pipeline.jobs().collect();
    assert_eq!((pipeline.name.as_str(), jobs.len(), pipeline.nodes[2].deps.len()), ("dnn", 2, 1));
    let (train, infer) = (jobs[0], jobs[1]);
    assert_eq!(train.roles.iter().map(|role| role.replicas).collect::<Vec<_>>(), [2, 3]);
    for (name, value) in
        [("mode", "train_runner"), ("CPU_NUM", "4"), ("train.trainer.strategy", "geo"), ("fleet_mode", "ps")]
    {
        assert_eq!(variable(train, 1, name), Some(value), "{name}");
    }
    assert_eq!((infer.roles.len(), variable(infer, 0, "CPU_NUM")), (1, Some("8")), "all phases");
    let one = job(&LISTS.replace("[train_runner, infer_runner]", "other"), None);
    assert_eq!((one.roles.len(), variable(&one, 0, "mode")), (1, Some("other")));
}

#[test]
fn runners_on_gpus() {
    let with = |keys: &str| LISTS.replace("[train_runner, infer_runner]", "other").replace("class: train}", keys);
    let cards = job(&with("class: train, device: GPU, selected_gpus: '0,1'}"), None);
    assert_eq!((cards.roles.len(), cards.roles[0].replicas, cards.roles[0].work.resources.gpus), (1, 2, 1));
    assert_eq!(variable(&cards, 0, "fleet_mode"), Some("collective"));
    let one = job(&with("class: train, device: gpu}"), None);
    assert_eq!((one.roles[0].replicas, one.roles[0].work.resources.gpus), (1, 1));
    insta::assert_snapshot!(bad(&with("class: train, fleet_mode: collective}"), None));
    insta::assert_snapshot!(bad(&LISTS.replace("infer_runner]", "infer_runer]").replace("[phase1]", "[phase3]"), None));
    insta::assert_snapshot!(bad("mode: a\nrunner: [{class: train}]\nphase: 1\n", None));
}

/// Its files, as one text.
fn written(cloud: &Cloud) -> String {
    cloud.files.iter().flat_map(|file| ["== ", file.name, "\n", &file.text]).collect()
}

#[test]
fn submissions_to_paddlecloud() {
    let config = |keys: &str| {
        let runner = format!("class: cluster_train, {keys}}}");
        LISTS.replace("[train_runner, infer_runner]", "other").replace("class: train}", &runner)
    };
    let document = good(&config(""), Some(CLOUD));
    assert!(document.notices[0].message.starts_with("duplicate key `k8s_trainers`"), "{:?}", document.notices);
    assert!(!document.masked.contains("battery-staple") && !document.masked.contains("correct-horse"));
    let cloud = document.target.clone().unwrap().cloud.unwrap();
    let text = written(&cloud);
    assert_eq!(
        (cloud.name.as_str(), cloud.patterns.as_slice()),
        ("it's mine", &["./*.py", "./*.yaml"].map(str::to_owned)[..])
    );
    insta::assert_snapshot!("paddlecloud_servers", text);
    let roles: Vec<u32> = document.job().unwrap().roles.iter().map(|role| role.replicas).collect();
    assert_eq!(roles, [1, 4], "for `--engine local`");
    let render = |config: &str, backend: &str| -> String {
        let cloud = good(config, Some(backend)).target.unwrap().cloud.unwrap();
        written(&cloud)
    };
    let mpi = CLOUD.replace("cluster_type: k8s", "cluster_type: MPI").replace("output_path", "train_data_path");
    insta::assert_snapshot!("paddlecloud_mpi", render(&config(""), &mpi));
    insta::assert_snapshot!(
        "paddlecloud_gpu",
        render(&config("device: gpu, fleet_mode: collective"), &CLOUD.replace("  k8s_trainers: 4\n", ""))
    );
    insta::assert_snapshot!("paddlecloud_notices", plain(&good(&config(""), Some(&mpi)).notices));
    let text = [
        bad(
            &config(""),
            Some("backend: paddlecloud\ncluster_type: mpi\nconfig: {fs_name: ''}\nsubmit: {ak: key-of-li}\n"),
        ),
        bad(&config(""), Some("backend: paddlecloud\nsubmit: {}\n")),
    ];
    insta::assert_snapshot!("paddlecloud_errors", text.join("----\n"));
    assert_eq!(cloud.clone().renamed(&cloud.name), cloud);
    let other = cloud.renamed("another one");
    assert_eq!(other.name, "another one");
    assert!(other.files[2].text.contains("train \\\n    --job-name 'another one' \\\n"), "{}", written(&other));
}

/// What PaddleCloud cannot do is no mistake: another engine can.
#[test]
fn limits_of_paddlecloud() {
    let with = |keys: &str| LISTS.replace("[train_runner, infer_runner]", "other").replace("class: train}", keys);
    let gpu = with("class: cluster_train, device: gpu}");
    let several = LISTS.replace("class: local_cluster_train", "class: cluster_train");
    let mpi = CLOUD.replace("cluster_type: k8s", "cluster_type: MPI").replace("output_path", "train_data_path");
    let script = "engine: {backend: PaddleCloud, submit: {scrpit: hook.sh}}";
    let refused = [(gpu.as_str(), mpi.as_str()), (&gpu, CLOUD), (&several, CLOUD), (CONFIG, script)];
    let refused = refused.map(|(config, backend)| {
        good(config, Some(backend)).target.and_then(|target| target.refused).expect("it is refused")
    });
    insta::assert_snapshot!(plain(&refused));
}

/// Each runner has its own numbers, in any order.
#[test]
fn modes_with_and_without_servers() {
    let config = |mode: &str| {
        format!(
            "workspace: a\nmode: {mode}\nrunner:\n- {{name: ps, class: cluster_train}}\n- {{name: collective, class: cluster_train, device: gpu, fleet_mode: collective, selected_gpus: '0'}}\nphase: [{{name: p}}]\n"
        )
    };
    for (mode, expected) in [("[ps, collective]", [vec![2, 2], vec![2]]), ("[collective, ps]", [vec![2], vec![2, 2]])] {
        let document = good(&config(mode), Some(BACKEND));
        let sizes = |job: &Job| job.roles.iter().map(|role| role.replicas).collect::<Vec<_>>();
        let found: Vec<Vec<u32>> = document.pipeline().expect("two modes").jobs().map(sizes).collect();
        assert_eq!(found, expected, "{mode}");
        let errors = bad(&config(mode), Some("engine: {backend: local, submit: {log_level: 1}}"));
        for key in ["server_num", "trainer_num"] {
            assert_eq!(errors.matches(&format!("`engine.submit.{key}` is missing")).count(), 1, "{errors}");
        }
    }
}

/// A label shows its whole line.
#[test]
fn repeated_secrets_are_hidden() {
    let config =
        LISTS.replace("[train_runner, infer_runner]", "other").replace("class: train}", "class: cluster_train}");
    let backend = CLOUD
        .replace("  sk:", "  ak: old-key-of-li\n  sk: old-staple\n  sk:")
        .replace("  fs_ugi:", "  fs_ugi: usr,old-horse\n  fs_ugi:")
        + "submit: {ak: new-key-of-li, sk: new-staple, files: '*'}\n";
    let document = good(&config, Some(&backend));
    let text = plain(&document.notices);
    assert_eq!(document.notices.iter().filter(|notice| notice.message.starts_with("duplicate key")).count(), 5);
    for secret in ["old-staple", "old-horse", "correct-horse", "battery-staple", "new-staple", "key-of-li"] {
        assert!(!document.masked.contains(secret) && !text.contains(secret), "{secret}: {}{text}", document.masked);
    }
    let job = &document.target.unwrap().cloud.unwrap().files[2].text;
    assert!(job.contains("--ak new-key-of-li --sk new-staple"), "{job}");
}

#[test]
fn a_native_document_does_the_same() {
    let text = read(CONFIG, Some(BACKEND), convert).unwrap_or_else(|errors| panic!("{}", plain(&errors))).text;
    insta::assert_snapshot!(text);
    let text = read(CONFIG, Some(&BACKEND.replace("local", "Slurm")), convert).unwrap().text;
    assert!(text.contains("\n# Its backend `slurm` is not converted"), "{text}");
    let errors = read(LISTS, None, convert).unwrap_err();
    insta::assert_snapshot!(plain(&errors));
}

/// The examples of all keys together are files without notices.
#[test]
fn the_examples_of_keys_are_read() {
    fn example(table: &Table) -> String {
        let entry = |key: &crate::formats::document::keys::Key| {
            let value = match key.kind {
                KeyKind::Mapping(table) => example(table),
                KeyKind::Maps(table) => format!("[{}]", example(table)),
                _ => key.example.to_owned(),
            };
            format!("{}: {value}", key.name)
        };
        format!("{{{}}}", table.keys.iter().map(entry).collect::<Vec<_>>().join(", "))
    }
    use super::keys::{BACKEND, CONFIG, FLAT, LISTS};
    for (config, backend) in [(&CONFIG, &BACKEND), (&LISTS, &FLAT), (&CONFIG, &FLAT), (&LISTS, &BACKEND)] {
        let (config, backend) = (example(config), example(backend));
        let Checked { diagnostics, work, .. } = read(&config, Some(&backend), check);
        assert!(diagnostics.is_empty() && work.is_some(), "{config}\n{backend}\n{}", plain(&diagnostics));
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "tests read fixtures")]
fn fixtures_are_good() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/documents/paddlerec");
    let paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() > 2, "{paths:?}");
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        let (config, backend) = text.split_once("\n---\n").expect("both files");
        good(config, Some(backend));
    }
}

/// Never a panic, and every error has a position in one of the files.
#[test]
fn parts_of_files_are_read() {
    for (config, backend) in [(CONFIG, BACKEND), (LISTS, CLOUD)] {
        let lines = |text: &str| text.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>();
        for (text, is_config) in [(config, true), (backend, false)] {
            for skipped in 0..lines(text).len() {
                let mut kept = lines(text);
                kept.remove(skipped);
                let kept = kept.concat();
                let (config, backend) = if is_config { (kept.as_str(), backend) } else { (config, kept.as_str()) };
                let checked = read(config, Some(backend), check);
                for error in checked.diagnostics.iter().filter(|one| one.severity == Severity::Error) {
                    assert!(!error.labels.is_empty(), "{skipped}: {}", error.to_plain());
                }
                assert!(checked.work.is_some() || !checked.diagnostics.is_empty(), "{skipped}");
                assert!(!matches!(checked.work, Some(Workload::Job(job)) if job.roles.is_empty()));
            }
        }
    }
}
