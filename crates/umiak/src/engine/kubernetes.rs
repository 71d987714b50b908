//! Jobs on Kubernetes. This version renders them; see [`umiak_core::cluster::kubernetes`].

mod ship;

use umiak_core::cluster::kubernetes::{Names, Shipped, Unit, masked, planned, render};
use umiak_core::diag::Diagnostic;
use umiak_core::mask::Known;
use umiak_core::model::Job;
use umiak_core::plan::Plan;
use umiak_core::plan::document::{RunPlace, Submission};

use crate::engine::EngineKind;

/// A job as it is given to the cluster.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) names: Names,
    files: Vec<Shipped>,
}

impl Prepared {
    /// Reads the files that the job is given. `identity` is that of [`Names::new`].
    pub(crate) fn new(
        submission: &Submission,
        job: &Job,
        programs: &[std::path::PathBuf],
        run: RunPlace,
        identity: &str,
    ) -> Result<Self, Diagnostic> {
        let submission = Submission { engine: EngineKind::Kubernetes.word().to_owned(), ..submission.clone() };
        let ship = &submission.cluster.kubernetes.ship;
        let files = ship::files(ship.iter().map(|path| submission.directory.join(path)))?;
        let (plan, names) = planned(&submission, job, programs, run, identity)?;
        Ok(Self { plan, names, files })
    }

    /// The objects to show: without secrets.
    pub(crate) fn shown(&self, known: &Known) -> Result<Vec<serde_json::Value>, Diagnostic> {
        let unit = Unit { attempt: self.plan.attempt, files: &self.files, known };
        Ok(masked(&render(&self.plan, &self.names, &unit)?, known))
    }
}
