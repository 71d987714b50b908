use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::facts::{Planned, Record, VERSION};
use crate::model::{Items, Job, JobId, Node, Output, Policy, Step, Value};
use crate::pipeline::Tree as _;
use crate::status::RunStatus;

/// A pipeline from lines such as `dag/child after a, b loop outputs`. Names that end with `/` are DAGs, and `!` marks
/// the post step.
fn pipeline(lines: &[&str]) -> Pipeline {
    let job = Job {
        name: JobId::new("job").unwrap(),
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: vec![],
        roles: vec![],
        policy: Policy::default(),
    };
    let node = |name: &str, parent, body| Node {
        name: name.to_owned(),
        parent,
        deps: vec![],
        parameters: vec![],
        inputs: vec![],
        outputs: vec![],
        condition: None,
        items: None,
        disabled: false,
        body,
    };
    let mut ids = BTreeMap::from([(String::new(), Pipeline::ROOT)]);
    let mut nodes = vec![node("", Pipeline::ROOT, Body::Dag { children: vec![] })];
    let mut post = None;
    for line in lines {
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let is_dag = words[0].ends_with('/');
        let path = words[0].trim_end_matches('/').trim_start_matches('!');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (id, parent_id) = (NodeId(nodes.len() as u32), ids[parent]);
        let body = if is_dag {
            Body::Dag { children: vec![] }
        } else {
            Body::Step(Box::new(Step { job: job.clone(), texts: vec![], cache: None, engine: None }))
        };
        let mut node = node(name, parent_id, body);
        for word in &words[1..] {
            match *word {
                "after" => {}
                "loop" => node.items = Some(Items::List(vec![])),
                "outputs" => node.outputs = vec![Output { name: "o".into(), from: None }],
                sibling => {
                    let path = if parent.is_empty() { sibling.to_owned() } else { format!("{parent}/{sibling}") };
                    node.deps.push(ids[&path]);
                }
            }
        }
        nodes.push(node);
        ids.insert(path.to_owned(), id);
        if line.starts_with('!') {
            post = Some(id);
        } else if let Body::Dag { children } = &mut nodes[parent_id.0 as usize].body {
            children.push(id);
        }
    }
    let (name, on_failure) = (JobId::new("p").unwrap(), OnFailure::FailFast);
    Pipeline { name, labels: BTreeMap::new(), nodes, post, parallelism: 10, on_failure, store: None, paddleflow: false }
}

/// A machine, and everything it asked for, in words.
struct Play {
    machine: Machine,
    log: Vec<String>,
    answers: BTreeMap<String, Resolution>,
    queue: VecDeque<Event>,
    /// What is recorded.
    status: RunStatus,
}

impl Play {
    fn new(pipeline: Pipeline) -> Self {
        Self {
            machine: Machine::new(Arc::new(pipeline)),
            log: Vec::new(),
            answers: BTreeMap::new(),
            queue: VecDeque::new(),
            status: RunStatus::default(),
        }
    }

    fn answer(mut self, name: &str, what: Resolution) -> Self {
        self.answers.insert(name.to_owned(), what);
        self
    }

    fn items(self, name: &str, count: i64) -> Self {
        self.answer(name, Resolution::Loop { items: (0..count).map(Value::Int).collect() })
    }

    fn name(&self, id: StepIndex) -> String {
        self.machine.name(id).map_or("run".to_owned(), |name| name.as_str().to_owned())
    }

    fn id(&self, name: &str) -> StepIndex {
        (0..self.machine.len()).map(StepIndex).find(|id| self.name(*id) == name).expect("it exists")
    }

    /// Performs an event and all that follows without the end of a job. Returns what was asked for.
    fn event(&mut self, event: Event) -> Vec<String> {
        self.queue.push_back(event);
        let before = self.log.len();
        while let Some(event) = self.queue.pop_front() {
            for effect in self.machine.step(event) {
                self.perform(effect);
            }
            assert!(self.machine.slots() <= self.machine.pipeline.parallelism);
        }
        self.log[before..].to_vec()
    }

    fn record(&mut self, id: StepIndex, fact: Fact) {
        let at = self.status.run.next_seq;
        let record = |seq, step, fact| Record { run: None, v: VERSION, seq, at: seq + 1, epoch: 0, step, fact };
        if at == 0 {
            self.status.add(&record(0, None, Fact::Pipeline(Box::default())));
        }
        self.status.add(&record(at.max(1), self.machine.name(id), fact));
    }

    /// The next supervisor of the run, or a run that repeats it.
    fn again(&self, is_repeated: bool) -> Self {
        let mut play = Self::new((*self.machine.pipeline).clone());
        play.answers.clone_from(&self.answers);
        let status = self.status.pipeline.as_deref().expect("something is recorded");
        if is_repeated {
            play.machine.recover(Recorded { own: None, repeated: Some((status, "run-1")) });
        } else {
            play.machine.recover(Recorded { own: Some(status), repeated: None });
            play.status = self.status.clone();
        }
        play
    }

    fn start(&mut self) -> Vec<String> {
        self.event(Event::Start)
    }

    fn end(&mut self, name: &str, outcome: Outcome) -> Vec<String> {
        let id = self.id(name);
        self.record(id, Fact::Finished { outcome, exit_code: 0 });
        self.event(Event::Ended { id, outcome })
    }

    fn stop(&mut self, force: bool) -> Vec<String> {
        self.event(Event::StopAsked { reason: StopReason::User, force })
    }

    fn perform(&mut self, effect: Effect) {
        let line = match effect {
            Effect::Record { id, fact } => {
                let name = self.name(id);
                self.record(id, fact.clone());
                match fact {
                    Fact::Entered => format!("{name} entered"),
                    Fact::Left { end } => format!("{name} {end:?}"),
                    Fact::Skipped { why } => format!("{name} Skipped, {why:?}"),
                    Fact::Cached { from_run, from_step } => format!("{name} Cached, {from_run} {from_step}"),
                    Fact::Refused { reason } => format!("{name} refused, {reason}"),
                    Fact::Looping { items } => format!("{name} loops over {}", items.len()),
                    Fact::Ignored { event, state } => format!("ignored {event}: {state}"),
                    Fact::Stopping { .. } => "stopping".to_owned(),
                    other => format!("{name} {other:?}"),
                }
            }
            Effect::Resolve(id) => {
                let name = self.name(id);
                let what = self.answers.get(&name).cloned().unwrap_or(Resolution::Run);
                self.queue.push_back(Event::Resolved { id, values: Box::default(), what });
                return;
            }
            Effect::Run { id, stopping } => {
                self.record(id, planned());
                format!("run {}{}", self.name(id), if stopping { " to stop it" } else { "" })
            }
            Effect::Close(id) => {
                let values = NodeValues { item: Some(Value::Int(1)), ..NodeValues::default() };
                let result = match self.answers.get(&format!("close {}", self.name(id))) {
                    Some(Resolution::Failed { reason }) => Err(reason.clone()),
                    _ => Ok(Box::new(values)),
                };
                self.queue.push_back(Event::Closed { id, result });
                format!("close {}", self.name(id))
            }
            Effect::Stop { ids, force } => {
                let names: Vec<String> = ids.into_iter().map(|id| self.name(id)).collect();
                format!("{} {}", if force { "kill" } else { "stop" }, names.join(" "))
            }
            Effect::Finish(outcome) => format!("finish {outcome:?}"),
        };
        self.log.push(line);
    }
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

use Outcome::{Failed, Stopped, Succeeded};

#[test]
fn a_step_starts_when_what_it_waits_for_has_ended_well() {
    let mut play = Play::new(pipeline(&["a", "b after a", "c after a", "d after b, c"]));
    assert_eq!(play.start(), ["run a"]);
    assert_eq!(play.end("a", Succeeded), ["run b", "run c"]);
    assert_eq!(play.end("c", Succeeded), [""; 0]);
    assert_eq!(play.end("b", Succeeded), ["run d"]);
    assert_eq!(play.end("d", Succeeded), ["finish Succeeded"]);
    assert!(play.machine.is_finished());
}

#[test]
fn slots_are_given_in_the_order_of_readiness() {
    let lines = ["a", "b", "c", "d after a"];
    let mut play = Play::new(Pipeline { parallelism: 1, ..pipeline(&lines) });
    assert_eq!(play.start(), ["run a"]);
    assert_eq!(play.end("a", Succeeded), ["run b"]);
    assert_eq!(play.end("b", Succeeded), ["run c"]);
    assert_eq!(play.end("c", Succeeded), ["run d"]);
    let mut play = Play::new(Pipeline { parallelism: 0, ..pipeline(&lines) });
    play.machine.step(Event::Start);
    assert_eq!(play.machine.slots(), 1);
}

/// Loops in loops multiply.
#[test]
fn a_run_has_a_limited_number_of_instances() {
    let most = MAX_INSTANCES as i64;
    let refused = format!("refused, {}", too_many());
    let mut play = Play::new(pipeline(&["dag/ loop", "dag/x loop"])).items("dag", 2);
    play = play.items("dag.0.x", most / 2).items("dag.1.x", most / 2);
    let log = play.start();
    assert!(log.contains(&format!("dag.1.x {refused}")), "{:?}", log.last());
    assert_eq!(i64::from(play.machine.len()), 1 + 1 + 2 + 2 + most / 2);

    let mut play = Play::new(pipeline(&["a loop", "dag/ after a", "dag/x"])).items("a", most - 3);
    play.start();
    play.stop(true);
    assert_eq!(i64::from(play.machine.len()), most);
    let mut play = Play::new(pipeline(&["a loop", "dag/", "dag/x"])).items("a", most - 3);
    assert!(play.start().contains(&format!("dag {refused}")));
}

#[test]
fn dags_and_loops_are_named_by_their_paths() {
    let mut play = Play::new(pipeline(&["dag/", "dag/child", "split after dag loop", "many/ loop", "many/in loop"]))
        .items("split", 2)
        .items("many", 2)
        .items("many.1.in", 2)
        .items("many.0.in", 0);
    let many = ["many.0 entered", "many.1 entered", "many.0.in Skipped, NoItems", "many.0 Succeeded"];
    let mut expected = vec!["dag entered", "many loops over 2", "run dag.child"];
    expected.extend(many);
    expected.extend(["many.1.in loops over 2", "run many.1.in.0", "run many.1.in.1"]);
    let mut log = play.start();
    log.sort();
    expected.sort_unstable();
    assert_eq!(log, expected);
    assert_eq!(play.end("dag.child", Succeeded), ["dag Succeeded", "split loops over 2", "run split.0", "run split.1"]);
    assert_eq!(play.end("split.1", Succeeded), [""; 0]);
    assert_eq!(play.end("split.0", Succeeded), ["split Succeeded"]);
    assert_eq!(play.end("many.1.in.0", Succeeded), [""; 0]);
    assert_eq!(
        play.end("many.1.in.1", Succeeded),
        ["many.1.in Succeeded", "many.1 Succeeded", "many Succeeded", "finish Succeeded"]
    );
    let ids = |names: &[&str]| names.iter().map(|name| play.id(name)).collect::<Vec<_>>();
    let machine = &play.machine;
    assert_eq!(machine.instances(ROOT, NodeId(3)), ids(&["split.0", "split.1"]));
    assert_eq!(machine.instances(ROOT, NodeId(1)), ids(&["dag"]));
    assert_eq!(machine.instances(play.id("many.0"), NodeId(5)), [], "a loop without items");
    assert_eq!(machine.instances(play.id("many.1"), NodeId(5)), ids(&["many.1.in.0", "many.1.in.1"]));
    assert_eq!(machine.instances(play.id("dag"), NodeId(5)), [], "not a child");
    assert_eq!(machine.parent(play.id("many.1.in.1")), Some(play.id("many.1")));
    assert_eq!(machine.parent(play.id("many.1")), Some(ROOT));
    assert_eq!((machine.parent(ROOT), machine.node(play.id("many.1"))), (None, NodeId(4)));
    assert_eq!((machine.item(play.id("many.1")), machine.item(play.id("many"))), (Some(1), None));
    assert_eq!(machine.loop_of(play.id("many.1.in.0")), Some(play.id("many.1.in")));
}

#[test]
fn what_does_not_run_counts_as_done() {
    let lines = ["a", "b after a", "c after b", "dag/ after c", "dag/child", "e after dag"];
    let mut play = Play::new(pipeline(&lines))
        .answer("a", Resolution::Skip { why: SkipReason::Condition })
        .answer("b", Resolution::Cached { run: "run-1".into(), step: "b".into() })
        .answer("dag", Resolution::Skip { why: SkipReason::Disabled });
    assert_eq!(play.start(), ["a Skipped, Condition", "b Cached, run-1 b", "run c"]);
    assert_eq!(play.end("c", Succeeded), ["dag Skipped, Disabled", "run e"]);
    assert_eq!(play.end("e", Succeeded), ["finish Succeeded"]);
}

#[test]
fn a_failure_stops_the_rest_under_fail_fast() {
    let lines = ["a", "b", "dag/", "dag/x", "dag/y after x", "c after b", "!post"];
    let mut play = Play::new(pipeline(&lines));
    assert_eq!(play.start(), ["dag entered", "run a", "run b", "run dag.x"]);
    assert_eq!(play.end("b", Failed), ["c Cancelled", "dag.y Cancelled", "stop a dag.x"]);
    assert_eq!(play.end("a", Succeeded), [""; 0], "it was faster than the stop");
    assert_eq!(play.end("dag.x", Stopped), ["dag Stopped", "run post"]);
    assert_eq!(play.end("post", Succeeded), ["finish Failed"]);
}

#[test]
fn only_dependants_are_cancelled_under_continue() {
    let lines = ["a", "b after a", "c after b", "d", "e after d", "dag/ after e", "dag/x", "dag/y", "f after dag", "g"];
    let mut play = Play::new(Pipeline { on_failure: OnFailure::Continue, ..pipeline(&lines) });
    assert_eq!(play.start(), ["run a", "run d", "run g"]);
    assert_eq!(play.end("a", Failed), ["b Cancelled", "c Cancelled"]);
    assert_eq!(play.end("d", Succeeded), ["run e"]);
    assert_eq!(play.end("e", Succeeded), ["dag entered", "run dag.x", "run dag.y"]);
    assert_eq!(play.end("dag.x", Stopped), [""; 0], "not by us");
    assert_eq!(play.end("dag.y", Succeeded), ["dag Failed", "f Cancelled"]);
    assert_eq!(play.end("g", Succeeded), ["finish Failed"]);
}

#[test]
fn a_node_that_cannot_start_has_failed() {
    let failed = || Resolution::Failed { reason: "why".into() };
    let mut play = Play::new(pipeline(&["a", "b"])).answer("a", failed());
    assert_eq!(play.start(), ["a refused, why", "b Cancelled", "finish Failed", "ignored Resolved, 2, Run: finished"]);
    let mut play = Play::new(pipeline(&["dag/ outputs", "dag/x"])).answer("close dag", failed());
    play.start();
    assert_eq!(play.end("dag.x", Succeeded), ["close dag", "dag refused, why", "finish Failed"]);
}

#[test]
fn a_dag_with_outputs_is_closed() {
    let mut play = Play::new(pipeline(&["dag/ outputs", "dag/x", "b after dag"]));
    play.start();
    let log = play.end("dag.x", Succeeded);
    assert!(log[0] == "close dag" && log[1].contains("Resolved") && log[2..] == ["dag Succeeded", "run b"], "{log:?}");
}

#[test]
fn a_stop_cancels_the_rest_and_the_post_step_runs() {
    let mut play = Play::new(pipeline(&["a", "b after a", "dag/ after a", "dag/x", "!post"]));
    play.start();
    assert_eq!(play.stop(false), ["stopping", "b Cancelled", "dag Cancelled", "stop a"]);
    assert_eq!(play.end("a", Stopped), ["run post"]);
    assert_eq!(play.end("post", Succeeded), ["finish Stopped"]);
}

#[test]
fn a_second_stop_is_forced() {
    let mut play = Play::new(pipeline(&["a", "b after a", "!post"]));
    play.start();
    play.stop(false);
    assert_eq!(play.stop(false), ["stopping", "post Cancelled", "kill a"]);
    assert_eq!(play.stop(true), ["ignored StopAsked, force true: Open"]);
    assert_eq!(play.end("a", Stopped), ["finish Stopped"]);
    let mut play = Play::new(pipeline(&["a", "!post"]));
    play.start();
    assert_eq!(play.end("a", Succeeded), ["run post"]);
    assert_eq!(play.stop(false), ["stopping"], "the post step is spared");
    assert_eq!(play.stop(false), ["stopping", "kill post"]);
    assert_eq!(play.end("post", Stopped), ["finish Stopped"]);
}

#[test]
fn a_stop_before_the_start_wins() {
    let mut play = Play::new(pipeline(&["a", "!post"]));
    let reason = StopReason::Signal { signal: 2 };
    assert_eq!(play.event(Event::StopAsked { reason, force: true }), ["stopping"]);
    assert_eq!(play.start(), ["a Cancelled", "post Cancelled", "finish Interrupted"]);
}

#[test]
fn a_stop_that_ends_nothing_is_no_stop() {
    let mut play = Play::new(pipeline(&["a"]));
    play.start();
    play.stop(false);
    assert_eq!(play.end("a", Succeeded), ["finish Succeeded"]);
    let mut play = Play::new(pipeline(&["a"]));
    play.start();
    play.stop(false);
    assert_eq!(play.end("a", Failed), ["finish Failed"]);
}

#[test]
fn a_failed_post_step_fails_the_run_and_stops_nothing() {
    let mut play = Play::new(pipeline(&["a", "!post"]));
    play.start();
    play.end("a", Succeeded);
    assert_eq!(play.end("post", Failed), ["finish Failed"]);
}

#[test]
fn unexpected_events_are_ignored() {
    let mut play = Play::new(pipeline(&["a", "dag/ loop", "dag/x", "b after a"])).items("dag", 1);
    let ended = |id| Event::Ended { id: StepIndex(id), outcome: Succeeded };
    let resolved = |id, what| Event::Resolved { id: StepIndex(id), values: Box::default(), what };
    assert_eq!(play.event(ended(0)), ["ignored Ended, 0, Succeeded: not started"]);
    play.start();
    let before = play.machine.clone();
    let cached = || Resolution::Cached { run: String::new(), step: String::new() };
    for event in [
        Event::Start,
        ended(0),
        ended(3),
        ended(99),
        resolved(1, Resolution::Run),
        resolved(2, cached()),
        resolved(3, Resolution::Run),
        Event::Closed { id: StepIndex(4), result: Err(String::new()) },
    ] {
        let log = play.event(event);
        assert!(log.len() == 1 && log[0].starts_with("ignored"), "{log:?}");
    }
    for id in (0..play.machine.len()).map(StepIndex) {
        assert_eq!(play.machine.state(id), before.state(id));
    }
    // Answers that do not fit their instance.
    let mut play = Play::new(pipeline(&["dag/ loop", "dag/x", "b"]));
    play.machine.step(Event::Start);
    for event in [resolved(1, Resolution::Run), resolved(1, cached()), resolved(2, Resolution::Loop { items: vec![] })]
    {
        let effects = play.machine.step(event);
        assert!(matches!(effects[..], [Effect::Record { fact: Fact::Ignored { .. }, .. }]), "{effects:?}");
    }
}

#[test]
fn a_pipeline_without_steps_succeeds() {
    assert_eq!(Play::new(pipeline(&[])).start(), ["finish Succeeded"]);
    let mut play = Play::new(pipeline(&["dag/", "dag/in/", "b after dag"]));
    assert_eq!(play.start(), ["dag entered", "dag.in entered", "dag.in Succeeded", "dag Succeeded", "run b"]);
}

#[test]
fn the_next_supervisor_continues() {
    let lines = ["a", "b after a", "split after a loop", "dag/ after split outputs", "dag/x", "c after dag", "!post"];
    let mut play = Play::new(pipeline(&lines)).items("split", 3);
    play.start();
    play.end("a", Succeeded);
    play.end("split.1", Succeeded);
    let mut next = play.again(false);
    let early = Event::Ended { id: next.id("b"), outcome: Succeeded };
    assert_eq!(next.event(early).len(), 1, "nothing but the record that it is ignored");
    assert_eq!(next.start(), ["run b", "run split.0", "run split.2"], "what ran, and nothing that has ended");
    next.end("split.0", Succeeded);
    next.end("split.2", Succeeded);
    next.end("b", Succeeded);
    let mut next = next.again(false);
    assert_eq!(next.start(), ["run dag.x"]);
    next.end("dag.x", Succeeded);
    next.end("c", Succeeded);
    let mut next = next.again(false);
    assert_eq!(next.start(), ["run post"]);
    assert_eq!(next.end("post", Succeeded), ["finish Succeeded"]);
    assert_eq!(next.again(false).start(), ["finish Succeeded"], "its end was not recorded");
}

#[test]
fn the_next_supervisor_completes_what_was_stopped() {
    let lines = ["a", "b", "c after b", "!post"];
    let mut play = Play::new(pipeline(&lines));
    play.start();
    let failed = play.id("a");
    play.record(failed, Fact::Finished { outcome: Failed, exit_code: 1 });
    assert_eq!(play.again(false).start(), ["run b to stop it", "c Cancelled"], "the failure has its consequences");
    let mut play = Play::new(pipeline(&lines));
    play.start();
    play.stop(false);
    let mut next = play.again(false);
    assert_eq!(next.start(), ["stopping", "run a to stop it", "run b to stop it"]);
    next.end("a", Stopped);
    assert_eq!(next.end("b", Stopped), ["run post"]);
    next.stop(false);
    let mut next = next.again(false);
    assert_eq!(next.start(), ["stopping", "run post"], "a stop that was not forced");
    assert_eq!(next.end("post", Succeeded), ["finish Stopped"]);
}

#[test]
fn a_repeated_run_keeps_what_has_ended_well() {
    let lines = ["a", "skip", "split after a loop", "dag/ after a outputs", "dag/x", "dag/y", "!post"];
    let on_failure = OnFailure::Continue;
    let mut play = Play::new(Pipeline { on_failure, ..pipeline(&lines) })
        .items("split", 3)
        .answer("skip", Resolution::Skip { why: SkipReason::Disabled });
    play.start();
    play.end("a", Succeeded);
    for (name, outcome) in [("split.0", Succeeded), ("split.1", Failed), ("split.2", Stopped), ("dag.x", Succeeded)] {
        play.end(name, outcome);
    }
    play.end("dag.y", Failed);
    assert_eq!(play.end("post", Succeeded), ["finish Failed"]);
    let mut next = play.again(true);
    let repeated = play.status.pipeline.as_deref().map(|status| (status, "run-1"));
    let continues = |name| next.machine.continued(next.id(name), Recorded { own: None, repeated }).is_some();
    assert!(["a", "skip", "split", "split.0", "dag", "dag.x"].into_iter().all(continues));
    assert!(!["split.1", "split.2", "dag.y"].into_iter().any(continues), "it runs again, with values of its own");
    assert_eq!(
        next.start(),
        [
            "a Cached, run-1 a",
            "skip Skipped, Disabled",
            "split loops over 3",
            "split.0 Cached, run-1 split.0",
            "dag entered",
            "dag.x Cached, run-1 dag.x",
            "run split.1",
            "run split.2",
            "run dag.y",
        ]
    );
    next.end("split.1", Succeeded);
    next.end("split.2", Succeeded);
    let log = next.end("dag.y", Succeeded);
    assert_eq!(log.last().map(String::as_str), Some("run post"), "each run has its own");
    assert_eq!(next.end("post", Succeeded), ["finish Succeeded"]);
    let mut last = next.again(true);
    let log = last.start();
    assert!(
        log.contains(&"a Cached, run-1 a".to_owned()) && log.last().is_some_and(|line| line == "run post"),
        "{log:?}"
    );
}

/// Pipelines of about this many steps, by name.
fn shapes(size: usize) -> Vec<(&'static str, Pipeline)> {
    let lines = |line: &dyn Fn(usize) -> String| -> Pipeline {
        let lines: Vec<String> = (0..size).map(line).collect();
        pipeline(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let after = |at: usize, from: usize| if at == 0 { format!("s{at}") } else { format!("s{at} after s{from}") };
    let diamond = |at: usize| match at % 4 {
        0 => after(at, at.saturating_sub(1)),
        3 => format!("s{at} after s{}, s{}", at - 2, at - 1),
        other => after(at, at - other),
    };
    vec![
        ("independent", lines(&|at| format!("s{at}"))),
        ("chained", lines(&|at| after(at, at.saturating_sub(1)))),
        ("fan", lines(&|at| after(at, 0))),
        ("diamonds", lines(&diamond)),
        ("loop", pipeline(&["split loop"])),
        ("loop of DAGs", pipeline(&["split/ loop", "split/a", "split/b after a"])),
    ]
}

#[test]
fn the_cost_of_an_event_does_not_depend_on_the_number_of_steps() {
    for on_failure in [OnFailure::Continue, OnFailure::FailFast] {
        for outcome in [Succeeded, Failed] {
            for size in [10, 1000, 4000] {
                for (name, pipeline) in shapes(size) {
                    let items = Resolution::Loop { items: vec![Value::Int(1); size] };
                    let mut play = Play::new(Pipeline { on_failure, ..pipeline }).answer("split", items);
                    let mut queue = VecDeque::from([Event::Start]);
                    let mut events = 0;
                    while let Some(event) = queue.pop_front() {
                        events += 1;
                        for effect in play.machine.step(event) {
                            match effect {
                                Effect::Run { id, .. } => queue.push_back(Event::Ended { id, outcome }),
                                Effect::Resolve(_) => play.perform(effect),
                                _ => {}
                            }
                        }
                        queue.append(&mut play.queue);
                    }
                    assert!(play.machine.is_finished(), "{name} of {size}");
                    let steps = f64::from(play.machine.len()) + f64::from(events);
                    // The names of resolved instances are visits of the test.
                    let mean = play.machine.visits() as f64 / steps;
                    assert!(mean < 12.0, "{name} of {size}: {mean} visits");
                }
            }
        }
    }
}
