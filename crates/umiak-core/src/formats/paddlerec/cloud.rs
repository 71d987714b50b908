//! A submission to PaddleCloud: its checks, and the files of its folder. They have the names and keys of PaddleRec's.

use std::fmt::Write as _;

use super::config::RawRun;
use super::lower::{DEFAULT_NAME, DEFAULT_THREADS};
use super::raw::{RawBackend, RawCloud};
use super::section::first_line;
use crate::diag::{Code, Diagnostic, Label, Span};
use crate::formats::document::reader::{At, Reader};
use crate::quote::shell;

/// The client of PaddleCloud, which the site installs.
pub const CLIENT: &str = "paddlecloud";
/// The file that calls it.
pub const JOB: &str = "job.sh";
/// The name under which nodes expect the configuration.
pub const CONFIG: &str = "config.yaml";

/// A submission, ready to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cloud {
    /// The name of the job on the platform. That of the folder has the time behind it.
    pub name: String,
    /// Patterns of the user's files.
    pub patterns: Vec<String>,
    /// Where they are written, for errors about them.
    pub files_at: Label,
    pub files: Vec<CloudFile>,
}

impl Cloud {
    /// The same under another name.
    #[must_use]
    pub fn renamed(mut self, name: &str) -> Self {
        // No value has a line feed: these words begin one line.
        let line = |name: &str| format!("\n    --job-name {} \\\n", quoted(name));
        let (old, new) = (line(&self.name), line(name));
        self.files.iter_mut().for_each(|file| file.text = file.text.replacen(&old, &new, 1));
        name.clone_into(&mut self.name);
        self
    }
}

/// The command that submits the files of a folder.
pub fn call(folder: &str) -> String {
    format!("bash {}", quoted(&format!("{folder}/{JOB}")))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudFile {
    pub name: &'static str,
    pub text: String,
}

/// What runs where on the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Mpi,
    Servers,
    Collective,
}

impl RawCloud {
    fn config(&self, name: &str) -> &str {
        value(&self.config, name)
    }

    fn submit(&self, name: &str) -> &str {
        value(&self.submit, name)
    }

    fn count(&self, name: &str, default: u32) -> u32 {
        self.counts.iter().find(|(other, _)| *other == name).map_or(default, |(_, count)| *count)
    }
}

fn value<'r>(values: &'r [(&'static str, At<String>)], name: &str) -> &'r str {
    values.iter().find(|(other, _)| *other == name).map_or("", |(_, value)| value.value.as_str())
}

/// The numbers of servers and trainers, for an engine of this host.
pub(super) fn counts(raw: &RawBackend, run: &RawRun) -> (u32, u32) {
    let cloud = &raw.cloud;
    let nodes = cloud.count("nodes", 1);
    match cloud.cluster_type.as_ref().map(|word| word.value) {
        Some("mpi") => (nodes, nodes),
        _ if run.is_collective => (0, cloud.count("k8s_trainers", 1).saturating_mul(cloud.count("k8s_gpu_card", 1))),
        _ => (cloud.count("k8s_ps_num", 1), cloud.count("k8s_trainers", 1)),
    }
}

/// What the platform cannot do is an `Err`: another engine may. `None` if the backend has errors, which are in the
/// reader.
pub(super) fn cloud(reader: &mut Reader<'_>, raw: &RawBackend, run: &RawRun) -> Result<Option<Cloud>, Box<Diagnostic>> {
    let cloud = &raw.cloud;
    if let Some(at) = cloud.script {
        let message = "the form of PaddleCloud with a script of one's own is not supported";
        return Err(Box::new(
            Diagnostic::error(Code::F0004, message)
                .label(reader.source.label(at, ""))
                .hint("write `backend`, `cluster_type`, `config` and `submit` at the top level, as of PaddleRec 1.8.5"),
        ));
    }
    let (variant, refused) = match variant(reader, raw, run) {
        Ok(variant) => (variant, None),
        Err(refused) => (None, Some(refused)),
    };
    let config_at = cloud.at.unwrap_or(raw.submit.0);
    let is_mpi = variant == Some(Variant::Mpi);
    for (name, is_needed) in [("fs_name", true), ("fs_ugi", true), ("train_data_path", is_mpi)] {
        if is_needed && cloud.config(name).is_empty() {
            missing(reader, config_at, &format!("config.{name}"));
        }
    }
    let submit = &raw.submit.1;
    for name in ["ak", "sk", "files"].into_iter().filter(|name| cloud.submit(name).is_empty()) {
        missing(reader, raw.submit.0, &format!("{submit}.{name}"));
    }
    let wanted: &[&str] = match variant {
        Some(Variant::Mpi) => &["output_path", "test_data_path", "thirdparty_path"],
        Some(_) => &["output_path", "afs_remote_mount_point"],
        None => &["output_path"],
    };
    for name in wanted.iter().filter(|name| cloud.config(name).is_empty()) {
        reader.notice(Code::F0061, first_line(reader, config_at), format!("`config.{name}` is empty"), "");
    }
    let values = cloud.config.iter().chain(&cloud.flags).chain(&cloud.submit);
    for (name, value) in values.filter(|(_, value)| value.value.contains(char::is_control)) {
        reader.error(Code::F0013, value.at, format!("`{name}` must be one line without control characters"), "");
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    let Some(variant) = variant.filter(|_| reader.errors.is_empty()) else { return Ok(None) };
    let threads = run.threads.unwrap_or(DEFAULT_THREADS);
    let name = raw.name.as_ref().map_or(DEFAULT_NAME, |name| name.value.as_str());
    let files = vec![
        CloudFile { name: "before_hook.sh", text: before_hook(cloud, variant) },
        CloudFile { name: "config.ini", text: config_ini(cloud, variant, threads) },
        CloudFile { name: JOB, text: job(cloud, variant, name) },
        CloudFile {
            name: "end_hook.sh",
            text: "#!/bin/bash\n# Runs on every node after the start command.\n".to_owned(),
        },
    ];
    let patterns = cloud.submit("files").split_whitespace().map(str::to_owned).collect();
    let patterns_at =
        cloud.submit.iter().find(|(name, _)| *name == "files").map_or(raw.submit.0, |(_, value)| value.at);
    let files_at = reader.source.label(patterns_at, "");
    Ok(Some(Cloud { name: name.to_owned(), patterns, files_at, files }))
}

fn missing(reader: &mut Reader<'_>, at: Span, path: &str) {
    let at = first_line(reader, at);
    reader.error(Code::F0012, at, format!("`{path}` is missing or empty"), "");
}

fn variant(reader: &mut Reader<'_>, raw: &RawBackend, run: &RawRun) -> Result<Option<Variant>, Box<Diagnostic>> {
    let Some(kind) = &raw.cloud.cluster_type else {
        let at = raw.backend.as_ref().map_or(raw.submit.0, |(_, word)| word.at);
        if reader.errors.is_empty() {
            reader.error(Code::F0012, at, "`paddlecloud` needs `cluster_type`", "`mpi` or `k8s`");
        }
        return Ok(None);
    };
    let refuse = |message: &str| {
        let error = Diagnostic::error(Code::F0018, message).label(reader.source.label(kind.at, ""));
        Err(Box::new(error.hint("`--engine local` runs the job on this host")))
    };
    match (kind.value, run.gpus > 0, run.is_collective) {
        ("mpi", false, false) => Ok(Some(Variant::Mpi)),
        ("mpi", ..) => refuse("`cluster_type: mpi` of PaddleCloud does not train on GPUs"),
        (_, false, false) => Ok(Some(Variant::Servers)),
        (_, true, true) => Ok(Some(Variant::Collective)),
        (_, true, false) => refuse("`cluster_type: k8s` of PaddleCloud has no parameter servers on GPUs"),
        (_, false, true) => refuse("`collective` needs `device: gpu`"),
    }
}

fn before_hook(cloud: &RawCloud, variant: Variant) -> String {
    let version = match cloud.config("paddle_version") {
        "" => "1.7.2",
        version => version,
    };
    let package = match variant {
        Variant::Collective => format!("paddlepaddle-gpu=={version}.post107"),
        Variant::Mpi | Variant::Servers => format!("paddlepaddle=={version}"),
    };
    let package = quoted(&package);
    format!(
        "#!/bin/bash\n# Runs on every node before the start command.\nwget https://paddlerec.bj.bcebos.com/whl/PaddleRec.tar.gz\ntar -xf PaddleRec.tar.gz\n(cd PaddleRec && python setup.py install)\npip uninstall -y paddlepaddle\npip install {package}\n"
    )
}

fn config_ini(cloud: &RawCloud, variant: Variant, threads: u32) -> String {
    let config = |name: &str| cloud.config(name).to_owned();
    let mut lines: Vec<(&str, String)> = Vec::new();
    if variant == Variant::Mpi {
        lines.push(("storage_type", "\"hdfs\"".to_owned()));
        lines.push(("force_reuse_output_path", "\"True\"".to_owned()));
    }
    lines.extend(["fs_name", "fs_ugi", "output_path"].map(|name| (name, config(name))));
    if variant == Variant::Mpi {
        let paths = ["train_data_path", "test_data_path", "thirdparty_path"];
        lines.extend(paths.map(|name| (name, config(name))));
    } else {
        lines.push(("mount_afs", "\"true\"".to_owned()));
        lines.push(("AFS_REMOTE_MOUNT_POINT", config("afs_remote_mount_point")));
        lines.push(("afs_local_mount_point", "\"/root/paddlejob/workspace/env_run/afs/\"".to_owned()));
    }
    let python = if cloud.config("use_python3").is_empty() { "0".to_owned() } else { config("use_python3") };
    let kind = if variant == Variant::Mpi { "MPI" } else { "K8S" };
    lines.extend([
        ("PADDLE_PADDLEREC_ROLE", "WORKER".to_owned()),
        ("PADDLEREC_CLUSTER_TYPE", kind.to_owned()),
        ("use_python3", python),
        ("CPU_NUM", threads.to_string()),
        ("GLOG_v", "0".to_owned()),
        ("FLAGS_rpc_deadline", "300000".to_owned()),
    ]);
    for (name, default) in [
        ("FLAGS_communicator_is_sgd_optimizer", 0),
        ("FLAGS_communicator_send_queue_size", threads),
        ("FLAGS_communicator_thread_pool_size", 32),
        ("FLAGS_communicator_max_merge_var_num", threads),
        ("FLAGS_communicator_max_send_grad_num_before_recv", threads),
        ("FLAGS_communicator_fake_rpc", 0),
        ("FLAGS_rpc_retry_times", 3),
    ] {
        let given = value(&cloud.flags, name);
        lines.push((name, if given.is_empty() { default.to_string() } else { given.to_owned() }));
    }
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name}={value}");
        text
    })
}

fn job(cloud: &RawCloud, variant: Variant, name: &str) -> String {
    let or = |value: &str, default: &str| quoted(if value.is_empty() { default } else { value });
    let start = or(cloud.submit("start_cmd"), "python -m paddlerec.run -m ./config.yaml");
    let priority = or(cloud.submit("priority"), "high");
    let trainers = cloud.count("k8s_trainers", 1);
    let number = |name: &str, default: u32| cloud.count(name, default).to_string();
    let mut flags = vec![
        ("--job-name", quoted(name)),
        ("--group-name", or(cloud.submit("group"), "paddle")),
        ("--job-version", "paddle-fluid-v1.7.1".to_owned()),
        ("--job-conf", "config.ini".to_owned()),
        ("--start-cmd", start),
        ("--permission", "group".to_owned()),
        ("--files", "./*".to_owned()),
    ];
    match variant {
        Variant::Mpi => flags.extend([
            ("--mpi-priority", priority),
            ("--mpi-wall-time", "2000:00:00".to_owned()),
            ("--mpi-nodes", number("nodes", 1)),
            ("--is-standalone", "0".to_owned()),
        ]),
        Variant::Servers => flags.extend([
            ("--k8s-priority", priority),
            ("--wall-time", "2000:00:00".to_owned()),
            ("--k8s-trainers", trainers.to_string()),
            ("--k8s-cpu-cores", number("k8s_cpu_cores", 2)),
            ("--k8s-ps-num", number("k8s_ps_num", 1)),
            ("--k8s-ps-cores", number("k8s_ps_cores", 2)),
            ("--is-standalone", "0".to_owned()),
            ("--distribute-job-type", "PSERVER".to_owned()),
        ]),
        Variant::Collective => flags.extend([
            ("--k8s-priority", priority),
            ("--wall-time", "2000:00:00".to_owned()),
            ("--k8s-trainers", trainers.to_string()),
            ("--k8s-cpu-cores", number("k8s_cpu_cores", 1)),
            ("--k8s-gpu-cards", number("k8s_gpu_card", 1)),
            ("--is-standalone", u32::from(trainers == 1).to_string()),
            ("--distribute-job-type", "NCCL2".to_owned()),
        ]),
    }
    let (ak, sk) = (quoted(cloud.submit("ak")), quoted(cloud.submit("sk")));
    let mut text = format!(
        "#!/bin/bash\n# Submits the files of this directory. It can be changed and run again.\ncd \"$(dirname \"$0\")\" || exit\n{CLIENT} job --ak {ak} --sk {sk} train"
    );
    for (name, value) in flags {
        let _ = write!(text, " \\\n    {name} {value}");
    }
    text + " \\\n    --json\n"
}

fn quoted(word: &str) -> String {
    shell::quoted(word.as_ref())
}
