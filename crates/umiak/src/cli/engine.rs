//! The flags of engines, and the engine of each job of a document.

use std::path::{Path, PathBuf};

use clap::Args;
use umiak_core::diag::{Code, Diagnostic, nearest};
use umiak_core::formats::document::Document;
use umiak_core::formats::engines::{self, Said, agent, mpi_hosts, slurm_option, slurm_warning};
use umiak_core::formats::kubernetes::{self as kube, kind, volume};
use umiak_core::formats::settings::Settings;
use umiak_core::model::{
    ClusterOptions, Connect, EngineChoice, EngineKind, KubeKind, KubeVolume, KubernetesOptions, MpiOptions,
    SlurmOptions,
};
use umiak_core::plan::capable;

use crate::engine;

/// Where a job runs.
#[derive(Debug, Args)]
pub(super) struct Engines {
    /// Where the job runs: `local` (this host), `slurm`, `mpi` (`mpirun`), `kubernetes` or `k8s` (`umiak plan` only), `mock` (a
    /// simulation that starts nothing), `mock-cluster` (a simulated cluster), or a name of `umiak.toml`. When omitted, what the document says, or else
    /// `local`
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Slurm: set an option of `sbatch`, without dashes: `--slurm partition=gpu --slurm exclusive`
    #[arg(long, value_name = "OPTION", value_parser = slurm_option, allow_hyphen_values = true)]
    slurm: Vec<(String, Option<String>)>,
    /// Slurm: `srun` starts the replicas directly, without an agent on each node
    #[arg(long)]
    slurm_direct: bool,
    /// Slurm: start the job again after the loss of a node, a pre-emption, or its time limit
    #[arg(long)]
    slurm_requeue: bool,
    /// Slurm: stop replicas this long before the time limit; when omitted, 60s, or the longest grace period plus 10s, if
    /// that is longer
    #[arg(long, value_name = "DURATION", value_parser = slurm_warning)]
    slurm_warning: Option<u32>,
    /// Slurm: the nodes do not see the directory of the run: agents connect to this host, by this name or address; when
    /// omitted, by any of its addresses
    #[arg(long, value_name = "HOST[:PORT]", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = slurm_connect)]
    slurm_connect: Option<Connect>,
    /// MPI: hosts and their slots, as in `a:4,b:4`
    #[arg(long, value_name = "HOSTS")]
    mpi_hosts: Option<String>,
    /// MPI: the `mpirun` to use
    #[arg(long, value_name = "PROGRAM")]
    mpi_launcher: Option<PathBuf>,
    /// MPI: pass a word on to `mpirun`
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    mpi_arg: Vec<String>,
    /// Kubernetes: the object that holds the job: `volcano`, `jobset`, `jobs`, or `auto` for the first that the cluster has
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kube_kind: Option<KubeKind>,
    /// Kubernetes: the context of the kubeconfig
    #[arg(long, value_name = "CONTEXT")]
    kube_context: Option<String>,
    /// Kubernetes: the namespace
    #[arg(long, value_name = "NAMESPACE", value_parser = kube::name)]
    kube_namespace: Option<String>,
    /// Kubernetes: the image of roles without one
    #[arg(long, value_name = "IMAGE")]
    kube_image: Option<String>,
    /// Kubernetes: the queue of Volcano or Kueue
    #[arg(long, value_name = "QUEUE", value_parser = kube::name)]
    kube_queue: Option<String>,
    /// Kubernetes: mount a volume in all pods: `pvc:NAME:PATH`, `host:DIRECTORY:PATH`, `empty:PATH`, `config:NAME:PATH` or
    /// `secret:NAME:PATH`, with `:ro` to read only
    #[arg(long, value_name = "VOLUME", value_parser = volume)]
    kube_volume: Vec<KubeVolume>,
    /// Kubernetes: give the pods a copy of this file, or of the files in this directory, to start in; up to 900 KiB
    #[arg(long, value_name = "PATH")]
    kube_ship: Vec<PathBuf>,
    /// Slurm and MPI: path of umiak on the nodes; when omitted, the path of this program
    #[arg(long, value_name = "PATH", value_parser = agent)]
    agent: Option<PathBuf>,
}

fn slurm_connect(text: &str) -> Result<Connect, String> {
    if text.is_empty() { Ok(Connect::default()) } else { engines::connect(text) }
}

impl Engines {
    /// A flag that has a meaning only for one kind of engine, and those kinds.
    fn given(&self) -> impl Iterator<Item = (&'static str, &'static [EngineKind])> {
        const SLURM: &[EngineKind] = &[EngineKind::Slurm];
        const MPI: &[EngineKind] = &[EngineKind::Mpi];
        const KUBERNETES: &[EngineKind] = &[EngineKind::Kubernetes];
        let flags: [(&str, bool, &[EngineKind]); 16] = [
            ("--slurm", !self.slurm.is_empty(), SLURM),
            ("--slurm-direct", self.slurm_direct, SLURM),
            ("--slurm-requeue", self.slurm_requeue, SLURM),
            ("--slurm-warning", self.slurm_warning.is_some(), SLURM),
            ("--slurm-connect", self.slurm_connect.is_some(), SLURM),
            ("--mpi-hosts", self.mpi_hosts.is_some(), MPI),
            ("--mpi-launcher", self.mpi_launcher.is_some(), MPI),
            ("--mpi-arg", !self.mpi_arg.is_empty(), MPI),
            ("--kube-kind", self.kube_kind.is_some(), KUBERNETES),
            ("--kube-context", self.kube_context.is_some(), KUBERNETES),
            ("--kube-namespace", self.kube_namespace.is_some(), KUBERNETES),
            ("--kube-image", self.kube_image.is_some(), KUBERNETES),
            ("--kube-queue", self.kube_queue.is_some(), KUBERNETES),
            ("--kube-volume", !self.kube_volume.is_empty(), KUBERNETES),
            ("--kube-ship", !self.kube_ship.is_empty(), KUBERNETES),
            ("--agent", self.agent.is_some(), &[EngineKind::Slurm, EngineKind::Mpi]),
        ];
        flags.into_iter().filter(|(_, is_given, _)| *is_given).map(|(flag, _, kinds)| (flag, kinds))
    }

    fn options(&self, dir: &Path) -> Result<ClusterOptions, Diagnostic> {
        let hosts = self.mpi_hosts.as_deref().map(mpi_hosts).transpose().map_err(|reason| {
            Diagnostic::error(Code::L0001, "`--mpi-hosts` is not valid")
                .row("reason", reason)
                .hint("write `--mpi-hosts a:4,b:4`")
        })?;
        // A path starts here, a name is found on the `PATH`.
        let program = |path: &PathBuf| if path.components().count() > 1 { dir.join(path) } else { path.clone() };
        Ok(ClusterOptions {
            slurm: SlurmOptions {
                native: self.slurm.clone(),
                direct: self.slurm_direct,
                requeue: self.slurm_requeue,
                warning: self.slurm_warning,
                umiak: self.agent.clone(),
                connect: self.slurm_connect.clone(),
            },
            mpi: MpiOptions {
                launcher: self.mpi_launcher.as_ref().map(program),
                hosts: hosts.unwrap_or_default(),
                arguments: self.mpi_arg.clone(),
                umiak: self.agent.clone(),
            },
            kubernetes: KubernetesOptions {
                kind: self.kube_kind.unwrap_or_default(),
                context: self.kube_context.clone(),
                namespace: self.kube_namespace.clone(),
                image: self.kube_image.clone(),
                queue: self.kube_queue.clone(),
                volumes: self.kube_volume.clone(),
                ship: self.kube_ship.iter().map(|path| dir.join(path)).collect(),
                ..KubernetesOptions::default()
            },
        })
    }

    /// The engine that the command line names.
    pub(super) fn named(&self, settings: &Settings) -> Result<Option<EngineChoice>, Diagnostic> {
        let Some(name) = &self.engine else { return Ok(None) };
        if let Some(choice) = settings.engine(name) {
            return Ok(Some(choice));
        }
        let error = engine::kind(name).map(EngineChoice::from);
        let own = settings.engines.keys().map(String::as_str).filter(|own| EngineKind::named(own).is_none());
        match (error, nearest(name, own)) {
            (Err(error), Some(near)) => {
                Err(Diagnostic { hints: Vec::new(), ..error }.hint(format!("did you mean `{near}`?")))
            }
            (choice, _) => choice.map(Some),
        }
    }

    /// Gives every job of a document to an engine, and checks that it can run there. Returns the engine of the run.
    pub(super) fn assign(
        &self,
        named: Option<EngineChoice>,
        document: &mut Document,
        settings: &Settings,
        dir: &Path,
    ) -> Result<EngineChoice, Vec<Diagnostic>> {
        let one = |diagnostic| vec![diagnostic];
        let options = self.options(dir).map_err(one)?;
        let said = Said { named, document: document.engine.take(), options };
        let usual = engines::assign(&mut document.work, said, settings).map_err(one)?;
        let used = document.work.engines(usual.kind);
        let is_unused = |kinds: &[EngineKind]| kinds.iter().all(|kind| !used.contains(kind));
        if let Some((flag, kinds)) = self.given().find(|(_, kinds)| is_unused(kinds)) {
            let words = |kinds: &[EngineKind], and: &str| {
                kinds.iter().map(|kind| format!("`{}`", kind.word())).collect::<Vec<_>>().join(and)
            };
            let message = format!("`{flag}` is a flag of engine {}", words(kinds, " and "));
            let error = Diagnostic::error(Code::L0002, message).row("engine of this run", words(&used, ", "));
            return Err(one(error.hint(format!("add `--engine {}`, or leave `{flag}` out", kinds[0].word()))));
        }
        let refused =
            document.work.placed(usual.kind).flat_map(|(job, kind)| capable(job, kind.word(), kind.capabilities()));
        let refused: Vec<Diagnostic> = refused.collect();
        if refused.is_empty() { Ok(usual) } else { Err(refused) }
    }
}
