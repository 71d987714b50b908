//! Turns starts into a manifest. Pure: `umiak plan` can show it, and a test compares it with a snapshot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use umiak_core::machine::job::AttemptId;
use umiak_core::plan::Plan;

use super::super::{Common, Start};

/// A gang as it is submitted to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) unit: String,
    pub(super) job: String,
    /// Variables of all replicas.
    pub(super) env: BTreeMap<String, String>,
    pub(super) replicas: Vec<Member>,
}

/// One replica of a gang.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) id: AttemptId,
    /// Name in the cluster, and host name for the other replicas: `ctr-trainer-0`.
    pub(super) name: String,
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory_bytes: Option<u64>,
}

/// Returns the manifest of these starts.
pub(super) fn render(unit: String, plan: &Plan, common: &Common, starts: &[Start]) -> Manifest {
    let member = |start: &Start| Member {
        id: start.id,
        name: plan.at(start.id.slot).map(|replica| replica.host.to_string()).unwrap_or_default(),
        argv: start.process.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        env: start.process.env.iter().cloned().collect(),
        memory_bytes: start.process.memory.as_ref().map(|memory| memory.bytes),
    };
    Manifest {
        unit,
        job: plan.job.name.to_string(),
        env: common.set.iter().cloned().collect(),
        replicas: starts.iter().map(member).collect(),
    }
}

#[cfg(test)]
mod tests {
    use umiak_core::diag::Source;
    use umiak_core::formats;
    use umiak_core::formats::settings::Settings;
    use umiak_core::mask::Known;
    use umiak_core::model::{ClusterOptions, FIRST_ATTEMPT, StepIndex, Workload};
    use umiak_core::plan::document::{Chosen, Granted, RunPlace, Submission, names, needs, place};
    use umiak_core::plan::pool::Given;
    use umiak_core::plan::{Attempt, Wishes};

    use super::super::super::mock::Paper;
    use super::*;

    #[test]
    fn a_gang_as_it_is_submitted() {
        let document = "umiak: v1\nname: ctr\nroles:\n  server: {command: [serve], ports: {rpc: 1}, completes: false}\n  trainer: {replicas: 2, command: [train, --fast], env: {MODE: sync}, contracts: torch, resources: {memory: 2Gi}}\n";
        let source = Source::new("job.yaml", document);
        let job = formats::parse(&source, &formats::Given::new(&[], &Settings::default()))
            .expect("a document")
            .job()
            .expect("a job")
            .clone();
        let needed = needs(&job);
        let ports = Paper::default().ports(needed.ports as u16).ports;
        let granted = Granted {
            hosts: names(&job),
            ports: ports.into_iter().filter_map(umiak_core::model::Port::new).collect(),
            by_owner: false,
        };
        let submission = Submission {
            v: 1,
            params: Vec::new(),
            chosen: Chosen::default(),
            repeats: None,
            work: Workload::Job(Box::new(job.clone())),
            engine: "mock-cluster".into(),
            wishes: Wishes::default(),
            cluster: ClusterOptions::default(),
            known: Known::default(),
            directory: "/work".into(),
            document: "/work/job.yaml".into(),
            environment: BTreeMap::new(),
            programs: vec!["serve".into(), "train".into()],
        };
        let (run, tasks, scratch) = ("run-000001".into(), "tasks".into(), "scratch".into());
        let plan = place(
            &submission,
            &job,
            &submission.programs,
            RunPlace { run, step: None, user: "li".into(), cpus: 4, tasks, scratch, attached: false },
            granted,
        );
        let start = |slot| {
            let given = Given::default();
            let process = plan.process(&Attempt {
                slot,
                number: FIRST_ATTEMPT,
                of_job: FIRST_ATTEMPT,
                retries: 0,
                given: &given,
            });
            let id = AttemptId { step: StepIndex(0), slot, attempt: FIRST_ATTEMPT };
            Start { id, of_job: FIRST_ATTEMPT, retries: 0, process, bound: false }
        };
        let starts: Vec<Start> = plan.replicas.iter().map(|replica| start(replica.slot)).collect();
        let common = Common { set: plan.common.clone(), ..Common::default() };
        let manifest = render("mock-cluster:run-000001/0.0.0.0".into(), &plan, &common, &starts);
        insta::assert_snapshot!(serde_json::to_string_pretty(&manifest).expect("plain data"));
    }
}
