//! The state of a pipeline's nodes, computed from their facts. `show` prints it, and `resume` and `retry` start from it.
//!
//! A node that has ended is a small value: its job's [`Status`] is kept only while it runs, and if it failed.

use std::collections::BTreeMap;

use super::{State, Status};
use crate::facts::{Fact, NodeEnd, NodeValues, Outcome, PlannedPipeline, Record, SkipReason, StopReason};
use crate::model::{StepName, Value};

/// The state of a run: of its job, or of its pipeline as a whole, and then of the pipeline's nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunStatus {
    pub run: Status,
    pub pipeline: Option<Box<PipelineStatus>>,
}

impl RunStatus {
    /// Adds all records of a journal.
    pub fn replay<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut status = Self::default();
        records.into_iter().for_each(|record| status.add(record));
        status
    }

    /// Adds one record.
    pub fn add(&mut self, record: &Record) {
        let is_stale = record.epoch < self.run.epoch;
        self.run.add(record);
        if is_stale {
            return;
        }
        if let (Fact::Pipeline(planned), None) = (&record.fact, &record.step) {
            self.pipeline.get_or_insert_default().planned.clone_from(planned);
        } else if let Some(pipeline) = &mut self.pipeline {
            pipeline.add(record);
        }
    }
}

/// The state of a pipeline's nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PipelineStatus {
    pub planned: Box<PlannedPipeline>,
    /// Why the run is being stopped, or was stopped. A later supervisor completes a stop.
    pub stopping: Option<StopReason>,
    nodes: BTreeMap<Box<str>, NodeStatus>,
}

/// The state of one instance of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeStatus {
    pub state: NodeState,
    /// The exit code of its job.
    pub exit_code: Option<u8>,
    /// Why it was skipped.
    pub skipped: Option<SkipReason>,
    /// Microseconds since the Unix epoch; 0 if it has not begun, or not ended.
    started: u64,
    ended: u64,
    values: Option<Box<NodeValues>>,
    more: Option<Box<More>>,
}

const _: () = assert!(size_of::<NodeStatus>() <= 40, "a node that has ended is a small value");

/// What only some nodes have.
#[derive(Debug, Clone, PartialEq, Eq)]
enum More {
    Cached { run: Box<str>, step: Box<str> },
    Refused(Box<str>),
    Items(Box<[Value]>),
    Job(Box<Status>),
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeState {
    /// Its values are known.
    #[default]
    Pending,
    /// A DAG or a loop.
    Open,
    /// A step whose job exists.
    Running,
    Ended(NodeEnd),
}

impl PipelineStatus {
    fn add(&mut self, record: &Record) {
        let Some(step) = &record.step else {
            self.of_run(record);
            return;
        };
        if !self.nodes.contains_key(step.as_str()) {
            self.nodes.insert(step.as_str().into(), NodeStatus::default());
        }
        if let Some(node) = self.nodes.get_mut(step.as_str()) {
            node.add(step, record);
        }
    }

    fn of_run(&mut self, record: &Record) {
        match &record.fact {
            Fact::Stopping { reason } => self.stopping = Some(*reason),
            // A new supervisor is one for the jobs that have not ended, too.
            Fact::Supervised(_) => {
                for node in self.nodes.values_mut().filter(|node| node.state == NodeState::Running) {
                    if let Some(More::Job(job)) = node.more.as_deref_mut() {
                        job.add(record);
                    }
                }
            }
            _ => {}
        }
    }

    /// The state of an instance: `train`, `dag.child`, `split.3`. `None` if nothing is recorded about it.
    pub fn node(&self, name: &str) -> Option<&NodeStatus> {
        self.nodes.get(name)
    }

    /// All instances of which something is recorded, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &NodeStatus)> {
        self.nodes.iter().map(|(name, node)| (&**name, node))
    }
}

impl NodeStatus {
    fn add(&mut self, step: &StepName, record: &Record) {
        let at = record.at;
        match &record.fact {
            Fact::Resolved(values) => self.resolve(values),
            Fact::Looping { items } => {
                self.more = Some(Box::new(More::Items(items.as_slice().into())));
                self.begin(NodeState::Open, at);
            }
            Fact::Entered => self.begin(NodeState::Open, at),
            Fact::Skipped { why } => {
                self.skipped = Some(*why);
                self.end(NodeEnd::Skipped, at);
            }
            Fact::Cached { from_run, from_step } => {
                let (run, step) = (from_run.as_str().into(), from_step.as_str().into());
                self.more = Some(Box::new(More::Cached { run, step }));
                self.end(NodeEnd::Cached, at);
            }
            Fact::Refused { reason } => {
                self.more = Some(Box::new(More::Refused(reason.as_str().into())));
                self.end(NodeEnd::Failed, at);
            }
            Fact::Left { end } => self.end(*end, at),
            Fact::Finished { outcome, exit_code } => {
                self.job(step).add(record);
                self.exit_code = Some(*exit_code);
                let end = (*outcome).into();
                // The verdict on a failure is part of it.
                if end != NodeEnd::Failed {
                    self.more = None;
                }
                self.end(end, at);
            }
            Fact::Planned(_) if self.state == NodeState::Pending => {
                self.job(step).add(record);
                self.begin(NodeState::Running, at);
            }
            // All other facts are about the job, which may have been planned again.
            _ => {
                if let Some(More::Job(job)) = self.more.as_deref_mut() {
                    job.add(record);
                }
            }
        }
    }

    /// The outputs of a DAG are known later than the rest.
    fn resolve(&mut self, values: &NodeValues) {
        let known = self.values.get_or_insert_default();
        let NodeValues { parameters, inputs, outputs, item } = values;
        if !parameters.is_empty() {
            known.parameters.clone_from(parameters);
        }
        if !inputs.is_empty() {
            known.inputs.clone_from(inputs);
        }
        if !outputs.is_empty() {
            known.outputs.clone_from(outputs);
        }
        if item.is_some() {
            known.item.clone_from(item);
        }
    }

    fn begin(&mut self, state: NodeState, at: u64) {
        (self.state, self.started) = (state, at);
    }

    fn end(&mut self, end: NodeEnd, at: u64) {
        (self.state, self.ended) = (NodeState::Ended(end), at);
    }

    fn job(&mut self, step: &StepName) -> &mut Status {
        if !matches!(self.more.as_deref(), Some(More::Job(_))) {
            self.more = Some(Box::new(More::Job(Box::new(Status::of_step(step.clone())))));
        }
        match self.more.as_deref_mut() {
            Some(More::Job(job)) => job,
            _ => unreachable!("it was just set"),
        }
    }

    /// How it ended.
    pub fn ended(&self) -> Option<NodeEnd> {
        match self.state {
            NodeState::Ended(end) => Some(end),
            NodeState::Pending | NodeState::Open | NodeState::Running => None,
        }
    }

    /// When it began and ended, in microseconds since the Unix epoch. What did not run has no beginning.
    pub fn times(&self) -> (Option<u64>, Option<u64>) {
        let known = |at| (at > 0).then_some(at);
        (known(self.started), known(self.ended))
    }

    pub fn values(&self) -> Option<&NodeValues> {
        self.values.as_deref()
    }

    /// The run and the step whose result is used.
    pub fn cached_from(&self) -> Option<(&str, &str)> {
        match self.more.as_deref()? {
            More::Cached { run, step } => Some((run, step)),
            _ => None,
        }
    }

    /// Why it could not start.
    pub fn refused(&self) -> Option<&str> {
        match self.more.as_deref()? {
            More::Refused(reason) => Some(reason),
            _ => None,
        }
    }

    /// The items of a loop.
    pub fn items(&self) -> Option<&[Value]> {
        match self.more.as_deref()? {
            More::Items(items) => Some(items),
            _ => None,
        }
    }

    /// The state of its job, while it runs and if it failed.
    pub fn job_status(&self) -> Option<&Status> {
        match self.more.as_deref()? {
            More::Job(job) => Some(job),
            _ => None,
        }
    }

    /// PaddleFlow's word for the state of a step or DAG.
    pub fn paddleflow_word(&self) -> &'static str {
        match self.state {
            NodeState::Pending => "pending",
            NodeState::Open => "running",
            NodeState::Running => self.job_status().map_or("running", |job| job.state.paddleflow_word()),
            NodeState::Ended(NodeEnd::Succeeded | NodeEnd::Cached) => "succeeded",
            NodeState::Ended(NodeEnd::Failed) => "failed",
            NodeState::Ended(NodeEnd::Stopped) => "terminated",
            NodeState::Ended(NodeEnd::Cancelled) => "cancelled",
            NodeState::Ended(NodeEnd::Skipped) => "skipped",
        }
    }
}

impl State {
    /// PaddleFlow's word for the state of a run.
    pub fn paddleflow_word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running | Self::Restarting => "running",
            Self::Stopping => "terminating",
            Self::Finished { outcome: Outcome::Succeeded, .. } => "succeeded",
            Self::Finished { outcome: Outcome::Failed, .. } => "failed",
            Self::Finished { outcome: Outcome::Interrupted | Outcome::Stopped, .. } => "terminated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Began, Planned, Supervised, VERSION};

    /// Facts as the records of a pipeline, each a second after the one before.
    fn replay(facts: Vec<(&str, Fact)>) -> RunStatus {
        let mut status = RunStatus::default();
        let pipeline = Fact::Pipeline(Box::new(PlannedPipeline { pipeline: "p".into(), ..PlannedPipeline::default() }));
        let facts = std::iter::once(("", pipeline)).chain(facts);
        for (seq, (name, fact)) in (0..).zip(facts) {
            let step = (!name.is_empty()).then(|| StepName::new(name).unwrap());
            status.add(&Record { run: None, v: VERSION, seq, at: (seq + 1) * 1_000_000, epoch: 0, step, fact });
        }
        status
    }

    fn planned() -> Fact {
        Fact::Planned(Planned {
            job: "job".into(),
            name: String::new(),
            command: String::new(),
            attempt: 1,
            umiak: "0".into(),
            world_size: 1,
            log_dir: String::new(),
            roles: vec![],
            replicas: vec![],
            nodes: vec![],
        })
    }

    fn finished(outcome: Outcome) -> Fact {
        Fact::Finished { outcome, exit_code: u8::from(outcome != Outcome::Succeeded) * 7 }
    }

    fn supervised() -> Fact {
        Fact::Supervised(Supervised { why: Began::Resumed, host: "here".into(), pid: 7, umiak: "0".into() })
    }

    #[test]
    fn nodes_are_what_their_facts_say() {
        let values = |name: &str| {
            Box::new(NodeValues { parameters: vec![(name.into(), Value::Int(1))], ..NodeValues::default() })
        };
        let outputs = NodeValues { outputs: vec![("out".into(), vec!["/x".into()])], ..NodeValues::default() };
        let status = replay(vec![
            ("good", Fact::Resolved(values("a"))),
            ("good", planned()),
            ("good", finished(Outcome::Succeeded)),
            ("bad", planned()),
            ("bad", finished(Outcome::Failed)),
            ("live", planned()),
            ("live", Fact::Stopping { reason: StopReason::User }),
            ("dag", Fact::Resolved(values("b"))),
            ("dag", Fact::Entered),
            ("dag.x", Fact::Skipped { why: SkipReason::Condition }),
            ("dag.y", Fact::Cached { from_run: "run-1".into(), from_step: "y".into() }),
            ("dag", Fact::Resolved(Box::new(outputs))),
            ("dag", Fact::Left { end: NodeEnd::Succeeded }),
            ("split", Fact::Looping { items: vec![Value::Int(1), Value::Int(2)] }),
            ("split.0", Fact::Refused { reason: "why".into() }),
            ("split.1", Fact::Left { end: NodeEnd::Cancelled }),
            ("split.1", Fact::Swept { pids: vec![1] }),
            ("ready", Fact::Resolved(values("c"))),
            ("stopped", planned()),
            ("stopped", finished(Outcome::Interrupted)),
        ]);
        assert_eq!((status.run.job.as_str(), status.run.state), ("p", State::Running));
        let pipeline = status.pipeline.unwrap();
        let words: Vec<String> =
            pipeline.nodes().map(|(name, node)| format!("{name} {}", node.paddleflow_word())).collect();
        assert_eq!(
            words,
            [
                "bad failed",
                "dag succeeded",
                "dag.x skipped",
                "dag.y succeeded",
                "good succeeded",
                "live terminating",
                "ready pending",
                "split running",
                "split.0 failed",
                "split.1 cancelled",
                "stopped terminated",
            ]
        );
        let node = |name: &str| pipeline.node(name).unwrap();
        assert_eq!(node("good").times(), (Some(3_000_000), Some(4_000_000)));
        assert_eq!((node("good").exit_code, node("bad").exit_code), (Some(0), Some(7)));
        assert_eq!(node("dag.x").times().0, None, "it did not run");
        assert!(node("good").job_status().is_none() && node("stopped").job_status().is_none(), "not needed any more");
        assert!(node("bad").job_status().is_some_and(Status::is_finished), "with the verdict");
        assert_eq!(node("live").job_status().unwrap().step.as_ref().unwrap().as_str(), "live");
        assert_eq!(node("dag.y").cached_from(), Some(("run-1", "y")));
        assert_eq!(node("dag.x").skipped, Some(SkipReason::Condition));
        assert_eq!((node("split.0").refused(), node("split").items().unwrap().len()), (Some("why"), 2));
        let dag = node("dag").values().unwrap();
        assert_eq!((dag.parameters.len(), dag.outputs.len()), (1, 1), "outputs are added");
        assert!(pipeline.node("other").is_none());
    }

    #[test]
    fn a_new_supervisor_is_one_of_the_jobs_that_run() {
        let stop = |name| (name, Fact::Stopping { reason: StopReason::User });
        let status = replay(vec![("a", planned()), stop("a"), stop(""), ("", supervised())]);
        let pipeline = status.pipeline.unwrap();
        assert_eq!(pipeline.stopping, Some(StopReason::User), "a stop of the run is completed");
        let job = pipeline.node("a").unwrap().job_status().unwrap();
        assert_eq!((job.stopping, job.supervisor.as_ref().map(|supervised| supervised.pid)), (None, Some(7)));
    }

    #[test]
    fn records_of_replaced_supervisors_are_ignored() {
        let mut status = replay(vec![("a", planned())]);
        let record = |epoch, name: &str, fact| {
            let step = Some(StepName::new(name).unwrap());
            Record { run: None, v: VERSION, seq: 9, at: 9, epoch, step, fact }
        };
        status.add(&record(1, "b", planned()));
        status.add(&record(0, "a", finished(Outcome::Failed)));
        assert_eq!(status.pipeline.unwrap().node("a").unwrap().ended(), None);
    }

    #[test]
    fn a_run_of_one_job_has_no_nodes() {
        let record = Record { run: None, v: VERSION, seq: 0, at: 1, epoch: 0, step: None, fact: planned() };
        assert_eq!(RunStatus::replay([&record]).pipeline, None);
        assert_eq!(State::Finished { outcome: Outcome::Stopped, exit_code: 3 }.paddleflow_word(), "terminated");
    }
}
