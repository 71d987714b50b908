//! What the schedulers of Slurm and MPI would get: the scripts and command lines that `umiak plan` shows. Nothing is
//! started, and neither has to be installed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use umiak_core::cluster::mpi::{self, Call, Launcher, LauncherKind};
use umiak_core::cluster::slurm;
use umiak_core::diag::{Code, Diagnostic};
use umiak_core::model::{Body, Job, MpiOptions, Pipeline, Port, StepName, Unit};
use umiak_core::plan::document::{self, Granted, RunPlace, Submission};
use umiak_core::plan::{ClusterScript, Plan};

use super::cluster::mpi::Mpi;
use super::{EngineKind, cluster};

/// The run gets its number when it is run.
pub(crate) const RUN: &str = "run-??????";
/// The unit of a run with one job.
const FIRST: &str = "0.1";
/// Steps are numbered while the pipeline runs.
const OF_STEP: &str = "?.1";

/// Renders what schedulers get. Each launcher of MPI is asked for its version once.
#[derive(Debug, Default)]
pub(crate) struct Renderer {
    /// By the program that the options name; `None` if there is none.
    launchers: HashMap<Option<PathBuf>, Option<Mpi>>,
    /// About scripts that are only likely.
    pub(crate) notices: Vec<Diagnostic>,
}

impl Renderer {
    /// What a scheduler gets for this plan, if the engine has one.
    pub(crate) fn script(&mut self, kind: EngineKind, plan: &Plan) -> Result<Option<ClusterScript>, Diagnostic> {
        let units = Path::new(plan.run.as_deref().unwrap_or_default()).join("units");
        let name = if plan.step.is_some() { OF_STEP } else { FIRST };
        let unit = units.join(name);
        let (text, words) = match kind {
            EngineKind::Slurm => {
                let script = cluster::slurm::script(plan, &unit);
                let script = script.map_err(|error| Diagnostic::failed("find its own program", &error))?;
                (script.text, sbatch(plan, &unit, name))
            }
            EngineKind::Mpi => (self.mpi(plan, &unit)?, Vec::new()),
            EngineKind::Local | EngineKind::Mock | EngineKind::MockCluster | EngineKind::Kubernetes => {
                return Ok(None);
            }
        };
        let step = plan.step.as_ref().map(ToString::to_string);
        Ok(Some(ClusterScript { step, ..ClusterScript::new(kind, &words, text) }))
    }

    /// The scripts of all steps that are on such an engine, each loop once.
    pub(crate) fn scripts(
        &mut self,
        submission: &Submission,
        pipeline: &Pipeline,
    ) -> Result<Vec<ClusterScript>, Diagnostic> {
        let usual = super::kind(&submission.engine)?;
        let mut scripts = Vec::new();
        for (id, node) in pipeline.iter() {
            let Body::Step(step) = &node.body else { continue };
            let own = step.engine.as_ref().map(|own| (own.kind, &own.cluster));
            let (kind, options) = own.unwrap_or((usual, &submission.cluster));
            if kind.capabilities().unit == Unit::Allocation {
                let mut plan = placed(submission, &step.job, &pipeline.path(id));
                (plan.engine, plan.cluster) = (kind.word().to_owned(), options.clone());
                scripts.extend(self.script(kind, &plan)?);
            }
        }
        Ok(scripts)
    }

    fn mpi(&mut self, plan: &Plan, unit: &Path) -> Result<String, Diagnostic> {
        let options = &plan.cluster.mpi;
        let launcher = match self.launchers.entry(options.launcher.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(entry) => entry.insert(match Mpi::find(options) {
                Ok(launcher) => Some(launcher),
                Err(error) if error.code == Code::E0201 => {
                    self.notices.push(assumed(&error));
                    None
                }
                Err(error) => return Err(error),
            }),
        };
        match launcher {
            Some(launcher) => Ok(Mpi::script(&launcher.render(&plan.job, options, unit)?)),
            None => usual_mpi(&plan.job, options, unit),
        }
    }
}

/// A plan needs no launcher.
fn assumed(missing: &Diagnostic) -> Diagnostic {
    let notice = Diagnostic::notice(Code::E0201, format!("{}; the plan is for Open MPI 4", missing.message));
    missing.hints.iter().fold(notice, |notice, hint| notice.hint(hint.clone()))
}

/// The plan of a step, as far as scripts depend on it: its texts may have references, and its ports are not real.
fn placed(submission: &Submission, job: &Job, path: &str) -> Plan {
    let port = Port::new(u16::MAX).expect("a number of a port");
    let granted = Granted {
        hosts: document::names(job),
        ports: vec![port; document::needs(job).ports as usize],
        by_owner: false,
    };
    let place = RunPlace {
        run: RUN.to_owned(),
        step: StepName::new(path).ok(),
        user: String::new(),
        cpus: 1,
        tasks: PathBuf::new(),
        scratch: PathBuf::new(),
        attached: false,
    };
    let program = |words: &[String]| words.first().map(PathBuf::from).unwrap_or_default();
    let programs: Vec<PathBuf> = job.roles.iter().map(|role| program(&role.work.command)).collect();
    document::place(submission, job, &programs, place, granted)
}

/// The command line of `sbatch`. A digest of the unit's path ends the comment.
fn sbatch(plan: &Plan, unit: &Path, name: &str) -> Vec<OsString> {
    let mut words = vec![OsString::from("sbatch")];
    words.extend(slurm::render(plan, &plan.cluster.slurm, Path::new(""), unit).arguments);
    let run = plan.run.as_deref().unwrap_or_default();
    words.push(format!("--comment=umiak:{run}/{name}:{}", "?".repeat(16)).into());
    words.push(unit.join("script").into());
    words
}

/// The command line for Open MPI 4, where no launcher is installed.
fn usual_mpi(job: &Job, options: &MpiOptions, unit: &Path) -> Result<String, Diagnostic> {
    let launcher = Launcher { kind: LauncherKind::OpenMpi4, version: "4".to_owned() };
    let umiak = std::env::current_exe().map_err(|error| Diagnostic::failed("find its own program", &error))?;
    let program = options.launcher.clone().unwrap_or_else(|| "mpirun".into());
    let call = Call {
        launcher: &launcher,
        program: &program,
        umiak: &umiak,
        directory: unit,
        is_root: umiak_sys::host::user_id() == 0,
        in_allocation: std::env::var_os("SLURM_JOB_ID").is_some_and(|value| !value.is_empty()),
    };
    Ok(mpi::render(job, options, &call)?.script(&[]))
}
