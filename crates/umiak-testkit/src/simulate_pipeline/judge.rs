//! Checks a timeline against the pipeline, with rules of its own. It knows nothing of the machine but the names.

use std::collections::{BTreeMap, BTreeSet};

use umiak_core::facts::{Began, Fact, NodeEnd, Outcome, SkipReason};
use umiak_core::machine::pipeline::Resolution;
use umiak_core::model::{Body, NodeId, OnFailure, Pipeline};

use super::timeline::{Done, Moment, Rule, Run, Violation, What};

/// The name of the root.
const ROOT: &str = "";

pub(super) fn check(run: &Run) -> Vec<Violation> {
    let mut judge = Judge::new(&run.scenario.pipeline);
    for (index, moment) in run.moments.iter().enumerate() {
        judge.at = index;
        judge.moment(moment);
    }
    if run.stalled || judge.outcome.is_none() {
        judge.blame(Rule::Finish, "the run has not ended");
    }
    judge.violations
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Step,
    Dag,
    Loop,
}

/// What is known about an instance.
#[derive(Debug, Clone)]
struct Known {
    node: NodeId,
    kind: Kind,
    whole: String,
    deps: Vec<String>,
    parts: Option<Vec<String>>,
    resolving: bool,
    /// It runs under this supervisor.
    live: bool,
    /// It ran when the last supervisor was lost.
    orphaned: bool,
    closing: bool,
    /// How often it was asked to stop.
    asked: u32,
    end: Option<NodeEnd>,
    /// When it became ready.
    ready: Option<usize>,
}

struct Judge<'a> {
    pipeline: &'a Pipeline,
    at: usize,
    known: BTreeMap<String, Known>,
    /// Good ends of the run that is repeated, and whether there is one.
    repeated: Option<BTreeSet<String>>,
    stopping: bool,
    forced: bool,
    failed: bool,
    outcome: Option<Outcome>,
    /// How the answer of this moment ends its node.
    answer: Option<(String, NodeEnd)>,
    violations: Vec<Violation>,
}

impl<'a> Judge<'a> {
    fn new(pipeline: &'a Pipeline) -> Self {
        Self {
            pipeline,
            at: 0,
            known: BTreeMap::new(),
            repeated: None,
            stopping: false,
            forced: false,
            failed: false,
            outcome: None,
            answer: None,
            violations: Vec::new(),
        }
    }

    fn blame(&mut self, rule: Rule, message: impl Into<String>) {
        self.violations.push(Violation { rule, moment: self.at, message: message.into() });
    }

    fn require(&mut self, holds: bool, rule: Rule, message: impl FnOnce() -> String) {
        if !holds {
            self.blame(rule, message());
        }
    }

    fn moment(&mut self, moment: &Moment) {
        let is_stale = self.is_stale(&moment.what);
        let ignored = moment.done.iter().filter(|done| matches!(done, Done::Fact(None, Fact::Ignored { .. }))).count();
        if is_stale {
            // The end of a job is recorded by the driver.
            let is_alone = moment.done.len() == ignored && ignored <= 1 && (ignored == 1 || moment.lost);
            self.require(is_alone, Rule::Stale, || format!("{:?} did {:?}", moment.what, moment.done));
            return;
        }
        self.require(ignored == 0, Rule::Stale, || "an event that fits was ignored".into());
        self.event(&moment.what);
        for done in &moment.done {
            self.done(done, &moment.what);
        }
        self.answer = None;
        if !moment.lost {
            self.settled(moment);
        }
    }

    /// True if the event cannot be meant for the state of its instance.
    fn is_stale(&self, what: &What) -> bool {
        let is = |name: &str, is: fn(&Known) -> bool| !self.known.get(name).is_some_and(is);
        match what {
            What::Stray => true,
            What::Began(_) => false,
            _ if self.outcome.is_some() => true,
            What::Resolved(name, _) => is(name, |known| known.resolving),
            What::Ended(name, _) => is(name, |known| known.live),
            What::Closed(name, _) => is(name, |known| known.closing),
            What::StopAsked { .. } => self.forced,
        }
    }

    fn event(&mut self, what: &What) {
        match what {
            What::Began(Began::Resumed) => {
                for known in self.known.values_mut().filter(|known| known.end.is_none()) {
                    known.orphaned |= known.live;
                    (known.live, known.resolving, known.closing, known.asked) = (false, false, false, 0);
                    known.ready = None;
                }
                let is_cancelled = |known: &Known| known.end == Some(NodeEnd::Cancelled);
                self.forced = self.post().is_some_and(|post| self.known.get(&post).is_some_and(is_cancelled));
                self.note_ready();
            }
            What::Began(why) => self.begin(*why),
            What::Resolved(name, what) => {
                let end = match what {
                    Resolution::Run => None,
                    Resolution::Loop { items } => items.is_empty().then_some(NodeEnd::Skipped),
                    Resolution::Skip { .. } => Some(NodeEnd::Skipped),
                    Resolution::Cached { .. } => Some(NodeEnd::Cached),
                    Resolution::Failed { .. } => Some(NodeEnd::Failed),
                };
                self.answer = end.map(|end| (name.clone(), end));
                // A step runs from now on; a slot is given back when it has ended.
            }
            What::Closed(name, is_good) => {
                let end = if *is_good { NodeEnd::Succeeded } else { NodeEnd::Failed };
                self.answer = Some((name.clone(), end));
            }
            What::Ended(name, outcome) => {
                let end = match outcome {
                    Outcome::Succeeded => NodeEnd::Succeeded,
                    Outcome::Failed => NodeEnd::Failed,
                    Outcome::Interrupted | Outcome::Stopped => NodeEnd::Stopped,
                };
                self.answer = Some((name.clone(), end));
            }
            What::StopAsked { .. } | What::Stray => {}
        }
    }

    /// A new run.
    fn begin(&mut self, why: Began) {
        if why == Began::Retried {
            let post = self.post();
            let good = self.known.iter().filter(|(_, known)| known.end.is_some_and(NodeEnd::is_good));
            self.repeated =
                Some(good.map(|(name, _)| name.clone()).filter(|name| Some(name) != post.as_ref()).collect());
        }
        self.known.clear();
        (self.stopping, self.forced, self.failed, self.outcome) = (false, false, false, None);
        self.known.insert(ROOT.to_owned(), Known::new(Pipeline::ROOT, Kind::Dag, ROOT.to_owned()));
        self.open(ROOT, None);
    }

    fn post(&self) -> Option<String> {
        self.pipeline.post.map(|post| self.pipeline.node(post).name.clone())
    }

    fn is_halted(&self) -> bool {
        self.stopping || self.failed
    }

    /// The parts of a DAG, or of a loop with this many items, come to be.
    fn open(&mut self, name: &str, items: Option<usize>) {
        let Some(node) = self.known.get(name).map(|known| known.node) else { return };
        let join = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
        let mut parts = Vec::new();
        let body = &self.pipeline.node(node).body;
        match (items, body) {
            (Some(count), _) => {
                for item in 0..count {
                    let kind = if matches!(body, Body::Dag { .. }) { Kind::Dag } else { Kind::Step };
                    parts.push((join(&item.to_string()), Known::new(node, kind, name.to_owned())));
                }
            }
            (None, Body::Dag { children }) => {
                for child in children {
                    let of = self.pipeline.node(*child);
                    let kind = match (&of.items, &of.body) {
                        (Some(_), _) => Kind::Loop,
                        (None, Body::Dag { .. }) => Kind::Dag,
                        (None, Body::Step(_)) => Kind::Step,
                    };
                    let mut known = Known::new(*child, kind, name.to_owned());
                    known.deps = of.deps.iter().map(|dep| join(&self.pipeline.node(*dep).name)).collect();
                    parts.push((join(&of.name), known));
                }
            }
            (None, Body::Step(_)) => {}
        }
        if let Some(known) = self.known.get_mut(name) {
            known.parts = Some(parts.iter().map(|(name, _)| name.clone()).collect());
        }
        self.known.extend(parts);
        self.note_ready();
    }

    /// True if nothing but a slot is missing.
    fn may_begin(&self, name: &str) -> bool {
        let known = &self.known[name];
        let is_good = |name: &String| self.known.get(name).is_some_and(|known| known.end.is_some_and(NodeEnd::is_good));
        name != ROOT
            && known.end.is_none()
            && known.parts.is_none()
            && !(known.resolving || known.live || known.orphaned)
            && known.deps.iter().all(is_good)
            && self.known[&known.whole].end.is_none()
    }

    fn note_ready(&mut self) {
        let ready: Vec<String> = self.known.keys().filter(|name| self.may_begin(name)).cloned().collect();
        for name in ready {
            if let Some(known) = self.known.get_mut(&name) {
                known.ready.get_or_insert(self.at);
            }
        }
    }

    fn slots(&self) -> u32 {
        let holds = |known: &&Known| known.kind == Kind::Step && (known.resolving || known.live);
        self.known.values().filter(holds).count() as u32
    }

    fn done(&mut self, done: &Done, what: &What) {
        let parallelism = self.pipeline.parallelism;
        match done {
            Done::Fact(None, Fact::Stopping { .. }) => {
                let asked = matches!(what, What::StopAsked { .. });
                let again = matches!(what, What::Began(Began::Resumed)) && self.stopping;
                self.require(asked || again, Rule::Stop, || "nothing asked for a stop".into());
                if let What::StopAsked { force } = what {
                    self.forced = *force || self.stopping;
                }
                self.stopping = true;
            }
            Done::Fact(None, fact) => self.blame(Rule::Finish, format!("{fact:?} is not about the run")),
            Done::Fact(Some(name), fact) => self.fact(name, fact, what),
            Done::Resolve(name) => self.resolve(name),
            Done::Run { name, stopping } => self.run(name, *stopping, what),
            Done::Close(name) => self.close(name),
            Done::Stop { names, force } => self.stop(names, *force),
            Done::Finish(outcome) => self.finish(*outcome),
        }
        let slots = self.slots();
        self.require(slots <= parallelism, Rule::Slots, || format!("{slots} steps of at most {parallelism}"));
    }

    fn fact(&mut self, name: &str, fact: &Fact, what: &What) {
        let is_copy = self.repeated.is_some() && matches!(what, What::Began(_));
        if !self.known.contains_key(name) && Some(name) == self.post().as_deref() {
            self.make_post(name);
        }
        let Some(known) = self.known.get(name).cloned() else {
            self.blame(Rule::Begin, format!("{name} does not exist"));
            return;
        };
        match fact {
            Fact::Resolved(_) => {
                let fits = is_copy || known.resolving || known.closing;
                self.require(fits, Rule::Begin, || format!("{name} has values, and was not resolved"));
            }
            Fact::Looping { items } => {
                let is_answer = matches!(what, What::Resolved(of, Resolution::Loop { .. }) if of == name);
                self.require(is_answer || is_copy, Rule::Begin, || format!("{name} loops without an answer"));
                self.require(known.kind == Kind::Loop, Rule::Begin, || format!("{name} is no loop"));
                self.unresolve(name);
                self.open(name, Some(items.len()));
            }
            Fact::Entered => {
                let is_answer = matches!(what, What::Resolved(of, Resolution::Run) if of == name);
                self.require(is_answer || is_copy, Rule::Begin, || format!("{name} is entered without an answer"));
                self.require(known.kind == Kind::Dag, Rule::Begin, || format!("{name} is no DAG"));
                self.unresolve(name);
                self.open(name, None);
            }
            Fact::Skipped { why } => {
                let has_none = matches!(what, What::Resolved(_, Resolution::Loop { .. }));
                let fits = is_copy || has_none == (*why == SkipReason::NoItems);
                self.require(fits, Rule::End, || format!("{name} was skipped for {why:?}"));
                self.end(name, NodeEnd::Skipped, is_copy);
            }
            Fact::Cached { .. } => self.end(name, NodeEnd::Cached, is_copy),
            Fact::Refused { .. } => self.end(name, NodeEnd::Failed, false),
            Fact::Finished { outcome, .. } => {
                self.require(known.live, Rule::End, || format!("{name} did not run"));
                let end = match outcome {
                    Outcome::Succeeded => NodeEnd::Succeeded,
                    Outcome::Failed => NodeEnd::Failed,
                    Outcome::Interrupted | Outcome::Stopped => NodeEnd::Stopped,
                };
                self.end(name, end, false);
            }
            Fact::Left { end: NodeEnd::Cancelled } => self.cancel(name, &known),
            Fact::Left { end } => self.end(name, *end, is_copy),
            other => self.blame(Rule::End, format!("{name}: {other:?}")),
        }
    }

    fn unresolve(&mut self, name: &str) {
        if let Some(known) = self.known.get_mut(name) {
            known.resolving = false;
        }
    }

    /// What a part of this kind means for its whole.
    fn expected(&self, known: &Known) -> Option<NodeEnd> {
        let parts = known.parts.as_ref()?;
        let ends: Option<Vec<NodeEnd>> = parts.iter().map(|part| self.known[part].end).collect();
        let ends = ends?;
        let has = |end| ends.contains(&end);
        Some(if has(NodeEnd::Failed) {
            NodeEnd::Failed
        } else if has(NodeEnd::Stopped) {
            if self.is_halted() { NodeEnd::Stopped } else { NodeEnd::Failed }
        } else if has(NodeEnd::Cancelled) {
            NodeEnd::Stopped
        } else {
            NodeEnd::Succeeded
        })
    }

    fn end(&mut self, name: &str, end: NodeEnd, is_copy: bool) {
        let Some(known) = self.known.get(name).cloned() else { return };
        let is_post = Some(name) == self.post().as_deref();
        self.require(known.end.is_none(), Rule::OneEnd, || format!("{name} ends again, as {end:?}"));
        if is_copy {
            let is_good = self.repeated.as_ref().is_some_and(|good| good.contains(name));
            self.require(is_good || known.parts.is_some(), Rule::Kept, || format!("{name} had no good end"));
        }
        match self.answer.take_if(|(of, _)| of == name) {
            Some((_, answer)) => {
                self.require(end == answer, Rule::End, || format!("{name} is {end:?}, not {answer:?}"));
            }
            None if known.parts.is_some() => {
                let expected = self.expected(&known);
                self.require(expected == Some(end), Rule::End, || format!("{name} is {end:?}, not {expected:?}"));
                let closes = known.kind == Kind::Dag && !self.pipeline.node(known.node).outputs.is_empty();
                let skips = closes && end == NodeEnd::Succeeded && !is_copy;
                self.require(!skips, Rule::End, || format!("{name} was not closed"));
            }
            None => self.require(is_copy, Rule::End, || format!("{name} is {end:?} for no reason")),
        }
        if let Some(known) = self.known.get_mut(name) {
            known.end = Some(end);
            (known.resolving, known.live, known.orphaned, known.closing) = (false, false, false, false);
        }
        let is_bad = matches!(end, NodeEnd::Failed | NodeEnd::Stopped);
        self.failed |= is_bad && !is_post && self.pipeline.on_failure == OnFailure::FailFast;
        self.note_ready();
    }

    fn cancel(&mut self, name: &str, known: &Known) {
        self.require(known.end.is_none(), Rule::OneEnd, || format!("{name} ends again, as cancelled"));
        let is_idle = known.parts.is_none() && !known.live && !known.orphaned;
        self.require(is_idle, Rule::Cancel, || format!("{name} has begun"));
        let is_bad = |dep: &String| self.known[dep].end.is_some_and(|end| !end.is_good());
        let is_post = Some(name) == self.post().as_deref();
        let has_reason = if is_post { self.forced } else { self.is_halted() || known.deps.iter().any(is_bad) };
        self.require(has_reason, Rule::Cancel, || format!("{name} was cancelled for no reason"));
        if let Some(known) = self.known.get_mut(name) {
            (known.end, known.resolving) = (Some(NodeEnd::Cancelled), false);
        }
        self.note_ready();
    }

    fn resolve(&mut self, name: &str) {
        let post = self.post();
        if Some(name) == post.as_deref() {
            self.require(!self.forced, Rule::Post, || "after a forced stop".into());
            self.require(self.root_end().is_some(), Rule::Post, || "before the end of the rest".into());
            if !self.known.contains_key(name) {
                self.make_post(name);
            }
        } else {
            self.require(!self.is_halted(), Rule::Stop, || format!("{name} begins"));
        }
        let Some(known) = self.known.get(name).cloned() else {
            self.blame(Rule::Begin, format!("{name} does not exist"));
            return;
        };
        let may_begin = self.may_begin(name);
        self.require(may_begin || Some(name) == post.as_deref(), Rule::Begin, || format!("{name} is not ready"));
        self.require(!known.resolving && !known.live, Rule::Begin, || format!("{name} has begun"));
        if known.kind == Kind::Step {
            let earlier = |(other, of): &(&String, &Known)| {
                of.kind == Kind::Step && self.may_begin(other) && of.ready < known.ready && other.as_str() != name
            };
            let passed = self.known.iter().find(earlier).map(|(other, _)| other.clone());
            self.require(passed.is_none(), Rule::Begin, || format!("{name} begins before {passed:?}"));
        }
        let is_kept = self.repeated.as_ref().is_some_and(|good| good.contains(name));
        self.require(!is_kept, Rule::Kept, || format!("{name} has a good end in the repeated run"));
        if let Some(known) = self.known.get_mut(name) {
            known.resolving = true;
        }
    }

    fn make_post(&mut self, name: &str) {
        if let Some(node) = self.pipeline.post {
            self.known.insert(name.to_owned(), Known::new(node, Kind::Step, ROOT.to_owned()));
        }
    }

    fn run(&mut self, name: &str, stopping: bool, what: &What) {
        let Some(known) = self.known.get(name).cloned() else {
            self.blame(Rule::Run, format!("{name} does not exist"));
            return;
        };
        let is_spared = Some(name) == self.post().as_deref() && !self.forced;
        let is_stopped = self.is_halted() && !is_spared;
        if *what == What::Began(Began::Resumed) {
            self.require(known.orphaned && known.end.is_none(), Rule::Run, || format!("{name} did not run"));
            self.require(stopping == is_stopped, Rule::Stop, || format!("{name}, stopping: {stopping}"));
        } else {
            let is_answer = matches!(what, What::Resolved(of, Resolution::Run) if of == name);
            let fits = is_answer && known.resolving && known.kind == Kind::Step && known.end.is_none();
            self.require(fits, Rule::Run, || format!("{name} was not resolved"));
            self.require(!stopping && !is_stopped, Rule::Stop, || format!("{name} runs"));
        }
        if let Some(known) = self.known.get_mut(name) {
            (known.resolving, known.live, known.orphaned) = (false, true, false);
            known.asked = u32::from(stopping);
        }
    }

    fn close(&mut self, name: &str) {
        let known = self.known.get(name).cloned();
        let fits = known.as_ref().is_some_and(|known| {
            let has_outputs = !self.pipeline.node(known.node).outputs.is_empty();
            known.kind == Kind::Dag && has_outputs && self.expected(known) == Some(NodeEnd::Succeeded)
        });
        self.require(fits, Rule::End, || format!("{name} is closed too early"));
        if let Some(known) = self.known.get_mut(name) {
            let again = std::mem::replace(&mut known.closing, true);
            self.require(!again, Rule::End, || format!("{name} is closed twice"));
        }
    }

    fn stop(&mut self, names: &[String], force: bool) {
        self.require(self.is_halted() && (force == self.forced), Rule::Stop, || "there is no reason to stop".into());
        for name in names {
            let Some(known) = self.known.get_mut(name) else { continue };
            let level = if force { 2 } else { 1 };
            let fits = known.live && known.asked < level;
            known.asked = level;
            self.require(fits, Rule::Stop, || format!("{name} is stopped again, or does not run"));
        }
    }

    fn root_end(&self) -> Option<NodeEnd> {
        self.expected(&self.known[ROOT])
    }

    fn finish(&mut self, outcome: Outcome) {
        self.require(self.outcome.is_none(), Rule::Finish, || "a second time".into());
        let mut ends: Vec<Option<NodeEnd>> = vec![self.root_end()];
        if let Some(post) = self.post() {
            ends.push(self.known.get(&post).and_then(|known| known.end));
        }
        let has = |end| ends.contains(&Some(end));
        let expected = if ends.contains(&None) {
            None
        } else if has(NodeEnd::Failed) {
            Some(Outcome::Failed)
        } else if has(NodeEnd::Stopped) || has(NodeEnd::Cancelled) {
            Some(if self.stopping { Outcome::Stopped } else { Outcome::Failed })
        } else {
            Some(Outcome::Succeeded)
        };
        let said = if outcome == Outcome::Interrupted { Outcome::Stopped } else { outcome };
        self.require(expected == Some(said), Rule::Finish, || format!("{outcome:?}, not {expected:?}"));
        let open = |(name, known): &(&String, &Known)| name.as_str() != ROOT && known.end.is_none();
        let open = self.known.iter().find(open).map(|(name, _)| name.clone());
        self.require(open.is_none(), Rule::OneEnd, || format!("{open:?} has not ended"));
        self.outcome = Some(outcome);
    }

    /// Everything that follows from what has happened so far must have been done.
    fn settled(&mut self, moment: &Moment) {
        if let Some((name, end)) = self.answer.clone() {
            self.blame(Rule::End, format!("{name} is not {end:?}"));
        }
        if matches!(moment.what, What::Began(_))
            && let Some(good) = self.repeated.clone()
        {
            for name in good {
                let Some(known) = self.known.get(&name).cloned() else {
                    self.blame(Rule::Kept, format!("{name} does not exist"));
                    continue;
                };
                // What a lost supervisor did not record of a DAG or loop is determined again, from its parts.
                let is_again = moment.what == What::Began(Began::Resumed) && known.parts.is_some();
                let is_kept = known.end.map_or(is_again, NodeEnd::is_good);
                self.require(is_kept, Rule::Kept, || format!("{name} is {:?}", known.end));
            }
        }
        if self.outcome.is_some() {
            return;
        }
        let (slots, parallelism) = (self.slots(), self.pipeline.parallelism);
        let post = self.post();
        let mut wrong = Vec::new();
        for (name, known) in self.known.iter().filter(|(name, known)| known.end.is_none() && name.as_str() != ROOT) {
            let is_spared = Some(name) == post.as_ref() && !self.forced;
            let is_bad = |dep: &String| self.known[dep].end.is_some_and(|end| !end.is_good());
            if known.orphaned {
                wrong.push((Rule::Run, format!("{name} was left by a lost supervisor")));
            } else if known.live {
                let least = if self.forced { 2 } else { u32::from(self.is_halted() && !is_spared) };
                if known.asked < least {
                    wrong.push((Rule::Stop, format!("{name} was not asked to stop")));
                }
            } else if known.parts.is_some() {
                if self.expected(known).is_some() && !known.closing {
                    wrong.push((Rule::OneEnd, format!("{name} does not end")));
                }
            } else if self.is_halted() && !is_spared {
                wrong.push((Rule::Cancel, format!("{name} is not cancelled")));
            } else if known.deps.iter().any(is_bad) {
                wrong.push((Rule::Cancel, format!("{name} is not cancelled, and depends on a failure")));
            } else if self.may_begin(name) && (known.kind != Kind::Step || slots < parallelism) {
                wrong.push((Rule::Idle, format!("{name} waits for nothing")));
            }
        }
        if self.root_end().is_some() && post.as_ref().is_none_or(|post| !self.known.contains_key(post)) {
            wrong.push((Rule::Finish, "everything has ended".to_owned()));
        }
        for (rule, message) in wrong {
            self.blame(rule, message);
        }
    }
}

impl Known {
    fn new(node: NodeId, kind: Kind, whole: String) -> Self {
        Self {
            node,
            kind,
            whole,
            deps: vec![],
            parts: None,
            resolving: false,
            live: false,
            orphaned: false,
            closing: false,
            asked: 0,
            end: None,
            ready: None,
        }
    }
}
