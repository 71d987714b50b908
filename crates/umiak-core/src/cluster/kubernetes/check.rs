//! What a job asks for that Kubernetes, or a kind of object, cannot do.

use crate::diag::{Code, Diagnostic};
use crate::model::{Contract, Job, KubeKind, KubernetesOptions, Role, When};

/// The queue of umiak that stands for any.
const ANY_QUEUE: &str = "default";
/// The priority that stands for none.
const ANY_PRIORITY: &str = "normal";

/// All reasons why this job cannot be rendered with these options.
pub fn check(job: &Job, options: &KubernetesOptions) -> Vec<Diagnostic> {
    let mut errors = Vec::new();
    let cannot = |message: String| Diagnostic::error(Code::J0030, message);
    for role in job.roles.iter().filter(|role| role.replicas > 0) {
        let name = role.name.as_str();
        if role.work.image.is_none() && options.image.is_none() {
            errors.push(no_image(role));
        }
        let contracts = role.work.contracts.as_ref().unwrap_or(&job.contracts);
        if contracts.contains(&Contract::Mpi) {
            errors.push(
                cannot("engine `kubernetes` cannot run jobs of the framework `mpi`".to_owned())
                    .row("role", name)
                    .row("reason", "their launcher starts ranks on its workers through umiak, which is not in the pods")
                    .hint("use a framework without a launcher, such as `pytorch`"),
            );
        }
        if role.start_after.iter().any(|after| after.when == When::Succeeded) {
            errors.push(
                cannot(format!("engine `kubernetes` cannot start `{name}` after another role has succeeded"))
                    .row("reason", "all pods of a job are one gang: those that wait would hold their nodes")
                    .hint("make them two steps of a pipeline"),
            );
        }
        if options.kind == KubeKind::Jobset && role.completion.min_failed != 1 {
            errors.push(
                cannot(format!("a JobSet cannot go on after a failed replica of `{name}`"))
                    .row("reason", "the first failure of a replica fails the whole JobSet")
                    .hint("use `--kube-kind volcano` or `--kube-kind jobs`"),
            );
        }
        if role.work.dir.as_ref().is_some_and(|dir| dir.to_str().is_none()) {
            errors.push(cannot(format!("the working directory of `{name}` is not UTF-8")));
        }
    }
    let queues = job.roles.iter().filter_map(|role| role.work.queue.as_deref());
    let mut queues: Vec<&str> = queues.filter(|_| options.queue.is_none()).collect();
    queues.sort_unstable();
    queues.dedup();
    if queues.len() > 1 {
        let error = cannot(format!("roles of `{}` are in different queues", job.name));
        errors.push(
            error
                .row("queues", queues.join(", "))
                .row("reason", "all replicas of a job are one object, which is in one queue")
                .hint("make them equal, or name one with `--kube-queue`"),
        );
    }
    if let Some(wrong) = queue(job, options).filter(|queue| crate::formats::kubernetes::name(queue).is_err()) {
        errors.push(
            cannot(format!("`{wrong}` is not a name of a queue on Kubernetes"))
                .hint("names have lower-case letters, digits, `-` and `.`; `--kube-queue` names another queue"),
        );
    }
    errors
}

/// What is good to know about a job on this kind of object.
pub fn notices(job: &Job, kind: KubeKind, options: &KubernetesOptions) -> Vec<Diagnostic> {
    let replicas: u32 = job.roles.iter().map(|role| role.replicas).sum();
    let is_gang = matches!(kind, KubeKind::Auto | KubeKind::Volcano) || queue(job, options).is_some();
    if is_gang || replicas < 2 || !job.policy.gang {
        return Vec::new();
    }
    let what = if kind == KubeKind::Jobset { "a JobSet" } else { "Jobs" };
    let message = format!("{what} without a queue may start with only some of the replicas");
    vec![
        Diagnostic::notice(Code::E0303, message)
            .hint("a queue of Kueue (`--kube-queue`) or Volcano starts all of them or none"),
    ]
}

pub(super) fn no_image(role: &Role) -> Diagnostic {
    Diagnostic::error(Code::E0301, format!("role `{}` has no image", role.name))
        .hint("write `image` in the document, or name one for all roles with `--kube-image`")
}

/// The queue of the job. One that stands for any is not named.
pub(super) fn queue<'a>(job: &'a Job, options: &'a KubernetesOptions) -> Option<&'a str> {
    let own = job.roles.iter().find_map(|role| role.work.queue.as_deref()).filter(|queue| *queue != ANY_QUEUE);
    options.queue.as_deref().or(own)
}

/// The priority class of a role. Words of other platforms become names: `VERY_HIGH` is `very-high`.
pub(super) fn priority(role: &Role, options: &KubernetesOptions) -> Option<String> {
    let own = role.work.priority.as_ref().map(|own| own.to_ascii_lowercase().replace('_', "-"));
    let own = own.filter(|own| own != ANY_PRIORITY && crate::formats::kubernetes::name(own).is_ok());
    options.priority_class.clone().or(own)
}
