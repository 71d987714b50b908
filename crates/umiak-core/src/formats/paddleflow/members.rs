//! `distributed_job`: frameworks, roles, and what members inherit from their step.

use super::files;
use super::keys::{FRAMEWORKS, ROLES};
use super::raw::{Component, RawMember, RawStep, Variable};
use super::template::templates;
use crate::diag::{Code, Diagnostic};
use crate::formats::document::reader::{At, Reader, did_you_mean, either};
use crate::formats::document::tree::shortened;

/// PaddleFlow's queue for steps that name none.
const DEFAULT_QUEUE: &str = "default-queue";
const PRIORITIES: [&str; 3] = ["low", "normal", "high"];

/// A role of a distributed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Master,
    Server,
    Worker,
}

impl Kind {
    /// `pworker` is an old name of `worker`.
    pub(super) fn of(role: &str) -> Option<Self> {
        match role {
            "master" => Some(Self::Master),
            "pserver" => Some(Self::Server),
            "worker" | "pworker" => Some(Self::Worker),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Server => "pserver",
            Self::Worker => "worker",
        }
    }
}

/// The variable of a step that steers its job, if it has a value.
pub(super) fn steering<'r, 'n>(step: &'r RawStep<'n>, name: &str) -> Option<&'r Variable<'n>> {
    step.env.iter().find(|variable| variable.name.value == name && !variable.value.is_empty())
}

/// The same, if its value is known before the run.
fn known<'r>(step: &'r RawStep<'_>, name: &str) -> Option<&'r Variable<'r>> {
    steering(step, name).filter(|variable| templates(&variable.value).next().is_none())
}

pub(super) fn priority(text: &str) -> Option<&'static str> {
    PRIORITIES.into_iter().find(|priority| text.eq_ignore_ascii_case(priority))
}

pub(super) fn is_default_queue(name: &str) -> bool {
    matches!(name, DEFAULT_QUEUE | "default")
}

/// The rules of a step and its members that need no other component.
pub(super) fn check(reader: &mut Reader<'_>, component: &Component<'_>, step: &RawStep<'_>) {
    let of_step = known(step, "PF_JOB_PRIORITY").map(|one| (&one.value, one.node.at));
    let of_members = step.members.iter().filter_map(|member| member.priority.as_ref()).map(|one| (&one.value, one.at));
    for (value, at) in of_step.into_iter().chain(of_members).filter(|(value, _)| priority(value).is_none()) {
        let near = reader.nearest(&value.to_ascii_lowercase(), PRIORITIES);
        let message = format!("the priority must be {}", either(&PRIORITIES));
        reader.error(Code::F0013, at, message, did_you_mean(near, ""));
    }
    for member in &step.members {
        let extra = member.extra_fs.iter().flatten();
        member.fs.iter().chain(extra.clone()).for_each(|one| files::mount(reader, one));
        files::clash(reader, member.fs.iter().chain(extra));
    }
    if step.members.is_empty() || !step.knows_members {
        return;
    }
    let framework = step.framework.as_ref();
    if let Some(framework) = framework.filter(|framework| !FRAMEWORKS.contains(&framework.value.as_str())) {
        refuse_framework(reader, framework);
    } else if let Some(framework) = framework {
        roles(reader, component, step, framework);
    }
    queues(reader, component, step);
    reader.check_total(step.members.iter().map(|member| (member.replicas, member.role.at)));
}

fn refuse_framework(reader: &mut Reader<'_>, framework: &At<String>) {
    let name = framework.value.as_str();
    let what = match name {
        "ray" => "a step can start a Ray cluster itself: `ray start --head` in its command",
        "spark" => "call `spark-submit` in the command of a step",
        "mxnet" => "set the variables of MXNet in the members' env, with `framework: tensorflow` for the processes",
        "aitj" => "use `paddle`, `pytorch` or `tensorflow`, whichever the program uses",
        _ => "",
    };
    if what.is_empty() {
        let near = reader.nearest(name, FRAMEWORKS.iter().copied());
        let message = format!("unknown framework `{}`", shortened(name));
        reader.error(Code::F0115, framework.at, message, did_you_mean(near, ""));
        reader.hint(format!("use {}", either(FRAMEWORKS)));
    } else {
        let message = format!("framework `{name}` is not supported");
        reader.error(Code::F0115, framework.at, message, format!("use {}", either(FRAMEWORKS)));
        reader.hint(what);
    }
}

fn roles(reader: &mut Reader<'_>, component: &Component<'_>, step: &RawStep<'_>, framework: &At<String>) {
    let allowed: &[&str] = match framework.value.as_str() {
        "mpi" => &["master", "worker", "pworker"],
        // PaddleFlow accepts a master, and then fails to make the job.
        "paddle" => &["pserver", "worker", "pworker"],
        _ => ROLES,
    };
    let mut is_right = true;
    for member in step.members.iter().filter(|member| !allowed.contains(&member.role.value.as_str())) {
        is_right = false;
        let near = reader.nearest(&member.role.value, allowed.iter().copied());
        let message = format!("`{}` has no role `{}`", framework.value, shortened(&member.role.value));
        reader.error(Code::F0116, member.role.at, message, did_you_mean(near, ""));
        if near.is_none() {
            reader.hint(format!("use {}", either(allowed)));
        }
    }
    let count = |is_it: fn(Kind) -> bool| -> u64 {
        let these = step.members.iter().filter(|member| Kind::of(&member.role.value).is_some_and(is_it));
        these.map(|member| u64::from(member.replicas)).sum()
    };
    let (workers, others) = (count(|kind| kind == Kind::Worker), count(|kind| kind != Kind::Worker));
    let missing = match framework.value.as_str() {
        "mpi" if others == 0 => "a member with the role `master`",
        _ if workers == 0 => "a member with the role `worker`",
        "mpi" => return,
        _ if others == 0 && workers < 2 => "at least two workers, or servers beside one",
        _ => return,
    };
    if is_right {
        let at = step.distributed.unwrap_or(framework.at);
        let message = format!("the distributed job of {} needs {missing}", component.what());
        reader.error(Code::F0116, at, message, "");
    }
}

/// All members use the queue of their step.
fn queues(reader: &mut Reader<'_>, component: &Component<'_>, step: &RawStep<'_>) {
    let variable = steering(step, "PF_JOB_QUEUE_NAME");
    let (source, mut named) =
        (reader.source, step.members.iter().filter_map(|member| Some((member, member.queue.as_ref()?))));
    let Some((first, queue)) = named.next() else { return };
    let asks = |member: &RawMember<'_>, queue: &str| format!("`{}` asks for `{}`", member.role.value, shortened(queue));
    if let Some((other, different)) = named.find(|(_, other)| other.value != queue.value) {
        let message = format!("members of {} use different queues", component.what());
        reader.errors.add(|| {
            Diagnostic::error(Code::F0117, message)
                .label(source.label(queue.at, asks(first, &queue.value)))
                .label(source.label(different.at, asks(other, &different.value)))
                .hint("a distributed job runs in one queue; make them equal, and set `PF_JOB_QUEUE_NAME` in the step's env")
        });
        return;
    }
    match variable {
        // Known only when the step runs.
        Some(variable) if templates(&variable.value).next().is_some() => {}
        Some(variable) if variable.value != queue.value => {
            let message = format!("members of {} use another queue than the step", component.what());
            reader.errors.add(|| {
                Diagnostic::error(Code::F0117, message)
                    .label(source.label(queue.at, asks(first, &queue.value)))
                    .label(source.label(variable.node.at, format!("the step's is `{}`", shortened(&variable.value))))
                    .hint("a distributed job runs in one queue; make them equal")
            });
        }
        Some(_) => {}
        None if is_default_queue(&queue.value) => {}
        None => {
            let message = format!("members of {} use another queue than the step", component.what());
            reader.error(Code::F0117, queue.at, message, format!("the step's is `{DEFAULT_QUEUE}`"));
            reader.hint(format!("add `PF_JOB_QUEUE_NAME: {}` to the step's env", shortened(&queue.value)));
        }
    }
}
