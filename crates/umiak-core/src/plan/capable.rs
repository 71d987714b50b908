//! Features of a job that an engine does not support, found before anything starts.

use super::value::contracts;
use crate::diag::{Code, Diagnostic};
use crate::model::{Capabilities, Contract, Job, Role, Scope, Unit};

/// All reasons why this engine cannot run this job.
pub fn capable(job: &Job, engine: &str, can: Capabilities) -> Vec<Diagnostic> {
    let hosted = (job.agent_store && !can.here).then(|| {
        Diagnostic::error(Code::J0030, format!("engine `{engine}` cannot run with `store: agent`"))
            .row("reason", "its replicas run elsewhere, and may not reach this host")
            .hint("remove `store: agent`: then the first rank hosts the store")
    });
    if can.unit == Unit::Replica {
        return hosted.into_iter().collect();
    }
    let is_apart = |role: &&Role| can.unit == Unit::Gang && role.restart.rule.max > 0;
    let restarted = job.roles.iter().filter(is_apart).map(|role| {
        let what = match role.restart.scope {
            Scope::Replica => "single replicas",
            Scope::Role => "a role by itself",
        };
        Diagnostic::error(Code::J0030, format!("engine `{engine}` cannot restart {what}"))
            .row("role", role.name.to_string())
            .row("reason", "replicas that start together are one unit, which is restarted as a whole")
            .hint("`policy: {restarts: N}` restarts the whole job; remove `restarts` from the role")
    });
    let apart = (!job.policy.gang).then(|| {
        Diagnostic::error(Code::J0030, format!("engine `{engine}` cannot run with `policy: {{gang: false}}`"))
            .row("reason", "the engine starts all replicas together, or none")
            .hint("remove `gang: false`: replicas wait in the engine's queue until there is room for all")
    });
    let leader = (can.unit == Unit::Allocation)
        .then(|| job.roles.iter().find(|role| contracts(job, role).contains(&Contract::Mpi)))
        .flatten();
    let nested = leader.map(|role| {
        Diagnostic::error(Code::J0030, format!("engine `{engine}` cannot run jobs of the framework `mpi`"))
            .row("role", role.name.to_string())
            .row("reason", "their launcher starts ranks on its workers with an `mpirun` of its own")
            .hint("`--engine local` runs them; for `--engine mpi`, give the ranks' command to one role without `mpi`")
    });
    let is_odd = |role: &&Role| role.work.queue.as_deref().is_some_and(|queue| queue.contains(char::is_control));
    let queue = job.roles.iter().find(is_odd).map(|role| {
        Diagnostic::error(Code::J0030, format!("engine `{engine}` cannot use the queue of `{}`", role.name))
            .row("reason", "the name of the queue has a line break or a control character")
    });
    let watched = (!can.here && job.policy.hang.is_some()).then(|| {
        Diagnostic::error(Code::J0030, format!("engine `{engine}` cannot watch for hangs"))
            .row("reason", "the processes of the replicas, whose progress is watched, are on other hosts")
            .hint("remove `hang` from `policy`, and limit the time with `timeout`")
    });
    restarted.chain(apart).chain(nested).chain(hosted).chain(watched).chain(queue).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::{Hosts, JobId, OutputSource, Policy, RoleName};

    fn job(change: impl FnOnce(&mut Job)) -> Job {
        let role = Role::new(RoleName::new("trainer").unwrap(), 2);
        let mut job = Job {
            name: JobId::new("ctr").unwrap(),
            labels: BTreeMap::default(),
            agent_store: false,
            contracts: Vec::new(),
            roles: vec![role],
            policy: Policy::default(),
        };
        change(&mut job);
        job
    }

    fn can(unit: Unit) -> Capabilities {
        let (hosts, output) = (Hosts::Names, OutputSource::Streams);
        Capabilities { unit, hosts, output, adoption: true, suspend: false, stdin: false, here: false }
    }

    #[test]
    fn a_gang_is_not_taken_apart() {
        let all = job(|job| {
            let mut other = Role::new(RoleName::new("server").unwrap(), 1);
            other.restart.rule.max = 1;
            other.restart.scope = Scope::Role;
            job.roles.push(other);
            job.roles[0].restart.rule.max = 2;
            job.policy.gang = false;
        });
        let refused = capable(&all, "kubernetes", can(Unit::Gang));
        let text: Vec<String> = refused.iter().map(Diagnostic::to_plain).collect();
        insta::assert_snapshot!(text.join("\n"), @r"
        error[J0030]: engine `kubernetes` cannot restart single replicas
          role    trainer
          reason  replicas that start together are one unit, which is restarted as a whole
        hint: `policy: {restarts: N}` restarts the whole job; remove `restarts` from the role

        error[J0030]: engine `kubernetes` cannot restart a role by itself
          role    server
          reason  replicas that start together are one unit, which is restarted as a whole
        hint: `policy: {restarts: N}` restarts the whole job; remove `restarts` from the role

        error[J0030]: engine `kubernetes` cannot run with `policy: {gang: false}`
          reason  the engine starts all replicas together, or none
        hint: remove `gang: false`: replicas wait in the engine's queue until there is room for all
        ");
        assert_eq!(capable(&all, "local", can(Unit::Replica)), []);
    }

    #[test]
    fn an_allocation_restarts_replicas_and_keeps_its_gang() {
        let restarted = job(|job| job.roles[0].restart.rule.max = 2);
        assert_eq!(capable(&restarted, "slurm", can(Unit::Allocation)), []);
        let all = job(|job| {
            job.policy.gang = false;
            job.agent_store = true;
            job.policy.hang = Some(std::time::Duration::from_secs(60));
            job.contracts = vec![Contract::Mpi];
            job.roles[0].work.queue = Some("a\nb".to_owned());
        });
        let text: Vec<String> =
            capable(&all, "slurm", can(Unit::Allocation)).iter().map(Diagnostic::to_plain).collect();
        insta::assert_snapshot!(text.join("\n"), @r"
        error[J0030]: engine `slurm` cannot run with `policy: {gang: false}`
          reason  the engine starts all replicas together, or none
        hint: remove `gang: false`: replicas wait in the engine's queue until there is room for all

        error[J0030]: engine `slurm` cannot run jobs of the framework `mpi`
          role    trainer
          reason  their launcher starts ranks on its workers with an `mpirun` of its own
        hint: `--engine local` runs them; for `--engine mpi`, give the ranks' command to one role without `mpi`

        error[J0030]: engine `slurm` cannot run with `store: agent`
          reason  its replicas run elsewhere, and may not reach this host
        hint: remove `store: agent`: then the first rank hosts the store

        error[J0030]: engine `slurm` cannot watch for hangs
          reason  the processes of the replicas, whose progress is watched, are on other hosts
        hint: remove `hang` from `policy`, and limit the time with `timeout`

        error[J0030]: engine `slurm` cannot use the queue of `trainer`
          reason  the name of the queue has a line break or a control character
        ");
    }

    #[test]
    fn restarts_of_the_whole_job_are_fine() {
        let whole = job(|job| job.policy.restart.max = 3);
        assert_eq!(capable(&whole, "kubernetes", can(Unit::Gang)), []);
    }
}
