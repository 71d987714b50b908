//! What `umiak plan` shows of jobs for Slurm and MPI. Neither has to be installed.

use serde_json::Value;
use umiak_testkit::sandbox::{Outcome, Sandbox};
use umiak_testkit::suite::Suite;

pub(crate) fn register(suite: &mut Suite) {
    suite
        .test("plans::the_script_and_the_command_line_of_a_job", &[], job)
        .test("plans::the_scripts_of_steps", &[], steps)
        .test("plans::a_command_line_without_a_launcher", &[], no_launcher);
}

const JOB: &str = "umiak: v1\nname: ctr\nroles: {trainer: {replicas: 2, command: ['true', --password=hunter22]}}\n";

const STEPS: &str = "umiak: v1\nname: steps\nsteps:\n  prepare: {command: 'echo 7'}\n  train:\n    after: [prepare]\n    engine: slurm\n    roles: {trainer: {replicas: 3, resources: {cpu: 2}, command: 'echo $RANK'}}\n  check: {after: [train], engine: mpi, roles: {w: {replicas: 4, command: 'true'}}}\n";

/// With a `PATH` on which there is no program.
fn plan(sandbox: &Sandbox, document: &str, flags: &str) -> Outcome {
    sandbox.write("job.yaml", document);
    let words = format!("plan job.yaml {flags}");
    let outcome = sandbox.umiak(words.split_whitespace()).env("PATH", "/nonexistent").finish();
    outcome.expect_code(0);
    outcome
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.out()).expect("JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn job() {
    let sandbox = Sandbox::new();
    let shown = plan(&sandbox, JOB, "--engine slurm --slurm partition=main");
    let command = format!(
        "sbatch --parsable --export=ALL '--output=run-??????/units/0.1/slurm.log' --chdir={} '--comment=umiak:run-??????/0.1:????????????????' 'run-??????/units/0.1/script'",
        sandbox.path().display()
    );
    shown
        .expect_out(&format!("\nscript, engine slurm\n  command  {command}\n\n#!/bin/bash\n"))
        .expect_out("#SBATCH --partition=main")
        .expect_out("#SBATCH --ntasks=2");
    let plan_json = json(&plan(&sandbox, JOB, "--engine slurm --slurm partition=main --output json"));
    assert_eq!(text(&plan_json["script"]["command"]), command);
    assert!(shown.out().ends_with(text(&plan_json["script"]["text"])), "{plan_json}");
    assert!(json(&plan(&sandbox, JOB, "--engine mock --output json"))["script"].is_null());
    assert_eq!(plan(&sandbox, JOB, "--engine slurm --output quiet").out(), "");
    let run = sandbox.umiak(["run", "job.yaml", "--engine", "slurm"]).env("PATH", "/nonexistent").finish();
    run.expect_code(127).expect_err("error[E0208]: `sbatch` was not found");
    assert!(!sandbox.path().join("state/runs").exists(), "a run needs it, and a plan does not");
}

fn steps() {
    let sandbox = Sandbox::new();
    let shown = plan(&sandbox, STEPS, "");
    shown
        .expect_out("\nscript of step train, engine slurm\n  command  sbatch --parsable ")
        .expect_out("'--comment=umiak:run-??????/?.1:")
        .expect_out("#SBATCH --job-name=train.train\n#SBATCH --ntasks=3\n#SBATCH --cpus-per-task=2\n")
        .expect_out("\nscript of step check, engine mpi\n\n#!/usr/bin/env bash\n")
        .expect_err("notice[E0201]: neither `mpirun` nor `mpiexec` was found; the plan is for Open MPI 4");
    assert!(!shown.out().contains("units/0.1"), "steps have no number yet: {}", shown.out());
    let scripts = json(&plan(&sandbox, STEPS, "--output json"))["scripts"].clone();
    let seen: Vec<[&str; 2]> = scripts
        .as_array()
        .expect("scripts")
        .iter()
        .map(|script| [text(&script["step"]), text(&script["engine"])])
        .collect();
    assert_eq!(seen, [["train", "slurm"], ["check", "mpi"]]);
    let all = json(&plan(&sandbox, STEPS, "--engine slurm --output json"));
    assert_eq!(all["scripts"].as_array().map(Vec::len), Some(3));
}

fn no_launcher() {
    let sandbox = Sandbox::new();
    let shown = plan(&sandbox, JOB, "--engine mpi --mpi-hosts a:1,b:1");
    shown
        .expect_out("exec mpirun ")
        .expect_out("--hostfile 'run-??????/units/0.1/hosts' --map-by slot --bind-to none \\\n    -n 2 ")
        .expect_err("notice[E0201]: neither `mpirun` nor `mpiexec` was found; the plan is for Open MPI 4")
        .expect_err("hint: install Open MPI");
    let named = plan(&sandbox, JOB, "--engine mpi --mpi-launcher /opt/mpi/bin/mpirun");
    named.expect_out("exec /opt/mpi/bin/mpirun ").expect_err("`/opt/mpi/bin/mpirun` is not an executable file;");
}
