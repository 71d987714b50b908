//! Simulated replicas of both mock engines. They exist only in memory and act on the words of their command.
//!
//! Words, in order: `print=TEXT`, `sleep=50ms`, `ready`, `ignore-term`, `on-term=CODE`, and the end: `exit=CODE`,
//! `signal=NUMBER`, `evict`, `node-lost` or `preempt`. Other words are ignored; the default end is `exit=0`.
//! `spawn-fails=ERRNO` anywhere: the process cannot be created, or the program not executed. In an engine with a queue,
//! `queue=200ms` anywhere is the time in it, and `preempt=2` pre-empts only the first two starts (`preempt`: the
//! first).
//!
//! A word may have a condition as prefix: `INDICES@ATTEMPT:WORD` applies only to these replicas of the role in this
//! attempt, and either part may be omitted: `0,2:exit=1`, `@1:exit=1`, `1@1:signal=9`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

use umiak_core::machine::job::AttemptId;
use umiak_core::model::{Exit, Instance, SpawnError, SpawnStage, StopHow};
use umiak_sys::guardian;

use super::EngineNews;

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// Errors of fork itself; other errors occur after the fork.
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Print(String),
    Sleep(Duration),
    Ready,
    IgnoreTerm,
    OnTerm(i32),
    End(Exit),
    NodeLost,
    /// Pre-empted this many times.
    Preempt(u32),
    /// The process cannot be created, with this errno.
    NoSpawn(i32),
    Queue(Duration),
}

/// Parses the steps of one attempt from its command. A shell line is split at whitespace.
pub(super) fn steps<Word: AsRef<OsStr>>(argv: &[Word], id: AttemptId) -> Vec<Step> {
    let argv: Vec<_> = argv.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let words: Vec<&str> = match argv.as_slice() {
        [_, flag, line] if flag == "-c" => line.split_whitespace().collect(),
        _ => argv.iter().map(AsRef::as_ref).collect(),
    };
    let step = |word: &str| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = value.parse::<i32>().ok();
        Some(match name {
            "print" => Step::Print(value.to_owned()),
            "sleep" => Step::Sleep(duration(value)?),
            "queue" => Step::Queue(duration(value)?),
            "ready" => Step::Ready,
            "ignore-term" => Step::IgnoreTerm,
            "on-term" => Step::OnTerm(number?),
            "exit" => Step::End(Exit::Code { code: number? }),
            "signal" => Step::End(Exit::Signal { signal: number?, core_dumped: false }),
            "evict" => Step::End(Exit::Evicted { reason: "the node is out of memory".to_owned() }),
            "no-room" => {
                Step::End(Exit::NoRoom { reason: "not enough room for all instances within 10 min".to_owned() })
            }
            "node-lost" => Step::NodeLost,
            "preempt" => Step::Preempt(value.parse().unwrap_or(1)),
            "spawn-fails" => Step::NoSpawn(number?),
            _ => return None,
        })
    };
    let end = Step::End(Exit::Code { code: 0 });
    words.into_iter().filter_map(|word| step(holds(word, id)?)).chain([end]).collect()
}

/// Strips the condition of a word; `None` if the condition does not apply.
fn holds(word: &str, id: AttemptId) -> Option<&str> {
    let Some((condition, rest)) = word.split_once(':') else { return Some(word) };
    let is_condition = |c: char| c.is_ascii_digit() || c == ',' || c == '@';
    if condition.is_empty() || !condition.chars().all(is_condition) {
        return Some(word);
    }
    let (indices, attempts) = condition.split_once('@').unwrap_or((condition, ""));
    let names = |list: &str, number: u32| list.is_empty() || list.split(',').any(|one| one.parse() == Ok(number));
    (names(indices, id.slot.index) && names(attempts, id.attempt)).then_some(rest)
}

fn duration(text: &str) -> Option<Duration> {
    match text.strip_suffix("ms") {
        Some(millis) => millis.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s').unwrap_or(text).parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()),
    }
}

/// One start of an actor.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: AttemptId,
    pub(super) steps: Vec<Step>,
    pub(super) instance: Instance,
    /// Number of earlier starts of this attempt.
    pub(super) starts: u32,
    /// Bytes written by the earlier starts.
    pub(super) written: u64,
}

/// Runs actors. The results are news, in order.
#[derive(Debug, Default)]
pub(super) struct Stage {
    actors: BTreeMap<AttemptId, Actor>,
    ready: BTreeSet<AttemptId>,
    /// Actors whose readiness must be reported.
    awaited: BTreeSet<AttemptId>,
}

#[derive(Debug)]
struct Actor {
    steps: VecDeque<Step>,
    node: String,
    starts: u32,
    written: u64,
    wakes: Instant,
    ignores_term: bool,
    on_term: Option<i32>,
}

impl Stage {
    /// Time of the next step of any actor.
    pub(super) fn wakes(&self) -> Option<Instant> {
        self.actors.values().map(|actor| actor.wakes).min()
    }

    /// Adds an actor. It does nothing before [`Stage::act`], so a whole gang can enter first.
    pub(super) fn enter(&mut self, entry: Entry) -> Vec<EngineNews> {
        let Entry { id, steps, instance, starts, written } = entry;
        let refused = steps.iter().find_map(|step| if let Step::NoSpawn(errno) = step { Some(*errno) } else { None });
        let refuse = |doing: SpawnStage, errno: i32| {
            let error = SpawnError { doing, errno, reason: guardian::describe_errno(errno) };
            ended(id, Exit::Spawn(error))
        };
        if let Some(errno @ (EAGAIN | ENOMEM)) = refused {
            return vec![refuse(SpawnStage::Fork, errno)];
        }
        let node = instance.node.clone().unwrap_or_default();
        // The empty output creates the log.
        let mut news =
            vec![EngineNews::Output { id, at: written, bytes: Vec::new() }, EngineNews::Started { id, instance }];
        if let Some(errno) = refused {
            news.push(refuse(SpawnStage::Execute, errno));
            return news;
        }
        let (steps, wakes) = (steps.into(), Instant::now());
        self.actors.insert(id, Actor { steps, node, starts, written, wakes, ignores_term: false, on_term: None });
        news
    }

    /// Performs all steps that are due.
    pub(super) fn act(&mut self, now: Instant) -> Vec<EngineNews> {
        let due: Vec<AttemptId> = self.actors.iter().filter(|(_, a)| a.wakes <= now).map(|(id, _)| *id).collect();
        due.into_iter().flat_map(|id| self.act_one(id)).collect()
    }

    fn act_one(&mut self, id: AttemptId) -> Vec<EngineNews> {
        let mut news = Vec::new();
        let Some(actor) = self.actors.get_mut(&id) else { return news };
        while let Some(step) = actor.steps.pop_front() {
            let exit = match step {
                Step::Print(text) => {
                    let bytes = format!("{text}\n").into_bytes();
                    let at = actor.written;
                    actor.written += bytes.len() as u64;
                    news.push(EngineNews::Output { id, at, bytes });
                    continue;
                }
                Step::Sleep(time) => {
                    actor.wakes = Instant::now() + time;
                    return news;
                }
                Step::Ready => {
                    self.ready.insert(id);
                    if self.awaited.contains(&id) {
                        news.push(EngineNews::Ready { id });
                    }
                    continue;
                }
                Step::IgnoreTerm => {
                    actor.ignores_term = true;
                    continue;
                }
                Step::OnTerm(code) => {
                    actor.on_term = Some(code);
                    continue;
                }
                Step::NoSpawn(_) | Step::Queue(_) => continue,
                Step::Preempt(times) if actor.starts >= times => continue,
                Step::Preempt(_) => Exit::Preempted { reason: "work of higher priority".to_owned() },
                Step::NodeLost => Exit::NodeLost { node: actor.node.clone() },
                Step::End(exit) => exit,
            };
            self.withdraw(id);
            news.push(ended(id, exit));
            return news;
        }
        news
    }

    /// Reports when this actor is ready, at once if it already is.
    pub(super) fn await_ready(&mut self, id: AttemptId) -> Vec<EngineNews> {
        self.awaited.insert(id);
        if self.ready.contains(&id) { vec![EngineNews::Ready { id }] } else { Vec::new() }
    }

    /// Stops reporting readiness until it is requested again.
    pub(super) fn forget_awaited(&mut self) {
        self.awaited.clear();
    }

    pub(super) fn stop(&mut self, id: AttemptId, how: StopHow) -> Vec<EngineNews> {
        let Some(actor) = self.actors.get(&id) else { return Vec::new() };
        let exit = match (how, actor.on_term) {
            (StopHow::Interrupt | StopHow::Terminate, _) if actor.ignores_term => return Vec::new(),
            (StopHow::Interrupt | StopHow::Terminate, Some(code)) => Exit::Code { code },
            (how, _) => stopped(how),
        };
        self.withdraw(id);
        vec![ended(id, exit)]
    }

    /// Removes an actor without reporting its end.
    pub(super) fn withdraw(&mut self, id: AttemptId) {
        self.actors.remove(&id);
        self.ready.remove(&id);
    }
}

/// Returns the exit of an actor that does not handle the signal.
pub(super) fn stopped(how: StopHow) -> Exit {
    let signal = match how {
        StopHow::Interrupt => SIGINT,
        StopHow::Terminate => SIGTERM,
        StopHow::Kill => SIGKILL,
    };
    Exit::Signal { signal, core_dumped: false }
}

pub(super) fn ended(id: AttemptId, exit: Exit) -> EngineNews {
    EngineNews::Ended { id, exit, usage: None, over_limit: false }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use umiak_core::model::{Slot, StepIndex};

    use super::*;

    fn id(index: u32, attempt: u32) -> AttemptId {
        AttemptId { step: StepIndex(0), slot: Slot { role: 0, index }, attempt }
    }

    #[test]
    fn words_hold_for_whom_they_say() {
        let end = |code| Step::End(Exit::Code { code });
        let argv = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<OsString>>();
        for (line, who, expected) in [
            ("actor", id(0, 1), vec![]),
            (
                "actor print=a:b sleep=50ms",
                id(0, 1),
                vec![Step::Print("a:b".into()), Step::Sleep(Duration::from_millis(50))],
            ),
            ("actor 1:exit=3", id(0, 1), vec![]),
            ("actor 1:exit=3", id(1, 5), vec![end(3)]),
            ("actor @2:exit=3", id(1, 1), vec![]),
            ("actor @2:exit=3", id(7, 2), vec![end(3)]),
            ("actor 0,2@2:exit=3", id(2, 2), vec![end(3)]),
            ("actor 0,2@2:exit=3", id(2, 1), vec![]),
            ("actor exit=many unknown", id(0, 1), vec![]),
            ("actor preempt preempt=3", id(0, 1), vec![Step::Preempt(1), Step::Preempt(3)]),
            ("actor @1:queue=2s node-lost", id(0, 1), vec![Step::Queue(Duration::from_secs(2)), Step::NodeLost]),
        ] {
            let seen = steps(&argv(line), who);
            assert_eq!(seen, [expected, vec![end(0)]].concat(), "{line} for {who:?}");
        }
        let line = ["/bin/sh", "-c", "actor ready exit=2"];
        assert_eq!(steps(&line, id(0, 1)), [Step::Ready, end(2), end(0)]);
    }

    #[test]
    fn an_actor_goes_on_writing_where_it_was_and_is_preempted_as_often_as_it_says() {
        let mut stage = Stage::default();
        let mut play = |starts, written| {
            let steps = steps(&["actor", "print=ab", "preempt=2"], id(0, 1));
            let instance = Instance { node: Some("node-1".into()), ..Instance::default() };
            stage.enter(Entry { id: id(0, 1), steps, instance, starts, written });
            stage.act(Instant::now())
        };
        let output = |at| EngineNews::Output { id: id(0, 1), at, bytes: b"ab\n".to_vec() };
        let preempted = Exit::Preempted { reason: "work of higher priority".into() };
        assert_eq!(play(0, 0), [output(0), ended(id(0, 1), preempted.clone())]);
        assert_eq!(play(1, 3), [output(3), ended(id(0, 1), preempted)]);
        assert_eq!(play(2, 6), [output(6), ended(id(0, 1), Exit::Code { code: 0 })]);
    }
}
