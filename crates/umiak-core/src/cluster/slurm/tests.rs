use std::path::Path;
use std::time::Duration;

use super::super::Seating;
use super::super::look::{Look, Over};
use super::parts::seating;
use super::render::{Rendered, arguments};
use super::status::{self, Report, look};
use crate::model::{Connect, Contract, Job, JobId, Policy, Role, RoleName, SlurmOptions};

fn role(name: &str, replicas: u32, cpu: Option<u32>, memory: Option<u64>, gpus: u32) -> Role {
    let mut role = Role::new(RoleName::new(name).unwrap(), replicas);
    role.work.resources.cpu_millis = cpu.map(|cpu| cpu * 1000);
    role.work.resources.memory_bytes = memory.map(|mib| mib << 20);
    role.work.resources.gpus = gpus;
    role
}

fn job(roles: Vec<Role>) -> Job {
    Job {
        name: JobId::new("ctr").unwrap(),
        labels: std::collections::BTreeMap::new(),
        agent_store: false,
        contracts: vec![Contract::Paddle],
        roles,
        policy: Policy::default(),
    }
}

fn text(job: &Job, options: &SlurmOptions) -> String {
    let (umiak, directory) = (Path::new("/opt/umiak"), Path::new("/runs/run-000012/unit"));
    Rendered { name: "ctr", run: "run-000012", job, options, umiak, directory }.text()
}

fn native(options: &[(&str, Option<&str>)]) -> SlurmOptions {
    let native = options.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
    SlurmOptions { native, ..SlurmOptions::default() }
}

#[test]
fn one_role() {
    insta::assert_snapshot!(text(&job(vec![role("trainer", 4, None, None, 0)]), &SlurmOptions::default()));
}

#[test]
fn equal_resources_share_a_part() {
    let mut job = job(vec![role("server", 2, Some(3), Some(1000), 0), role("trainer", 4, Some(3), Some(1000), 0)]);
    for role in &mut job.roles {
        role.work.queue = Some("gpu queue".to_owned());
    }
    let options = native(&[("qos", Some("high")), ("exclusive", None)]);
    assert_eq!(seating(&job, &options), Seating::Nodes { parts: vec![vec![0, 1]] });
    insta::assert_snapshot!(text(&job, &options));
}

#[test]
fn other_resources_are_another_part() {
    let job = job(vec![
        role("server", 2, Some(3), None, 0),
        role("trainer", 4, Some(8), Some(64 << 10), 2),
        role("logger", 1, Some(3), None, 0),
    ]);
    let options = SlurmOptions::default();
    assert_eq!(seating(&job, &options), Seating::Nodes { parts: vec![vec![0, 2], vec![1]] });
    let direct = SlurmOptions { direct: true, ..options.clone() };
    assert_eq!(super::parts(&job, &direct), [vec![0], vec![1], vec![2]]);
    insta::assert_snapshot!("parts", text(&job, &options));
    insta::assert_snapshot!("direct", text(&job, &direct));
}

#[test]
fn each_part_is_in_the_partition_of_its_roles() {
    let mut job = job(vec![
        role("server", 2, Some(3), None, 0),
        role("trainer", 4, Some(3), None, 0),
        role("logger", 1, Some(3), None, 0),
    ]);
    job.roles[0].work.queue = Some("cpu".to_owned());
    job.roles[1].work.queue = Some("gpu\n#SBATCH --uid=0".to_owned());
    let options = SlurmOptions::default();
    assert_eq!(seating(&job, &options), Seating::Nodes { parts: vec![vec![0], vec![1], vec![2]] });
    let text = text(&job, &options);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("partition") || line.contains("hetjob")).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    #SBATCH --partition=cpu
    #SBATCH hetjob
    #SBATCH --partition="gpu␊#SBATCH --uid=0"
    #SBATCH hetjob
    "#);
    assert!(!text.contains("\n#SBATCH --uid=0"), "{text}");
    assert_eq!(seating(&job, &native(&[("partition", Some("all"))])), Seating::Nodes { parts: vec![vec![0, 1, 2]] });
}

#[test]
fn requeue_with_a_short_time_limit() {
    let options = SlurmOptions { requeue: true, ..native(&[("time", Some("1:30")), ("partition", Some("short"))]) };
    insta::assert_snapshot!(text(&job(vec![role("trainer", 1, None, Some(512), 0)]), &options));
}

#[test]
fn nodes_that_do_not_see_the_run() {
    let options = SlurmOptions { connect: Some(Connect::default()), requeue: true, ..SlurmOptions::default() };
    insta::assert_snapshot!(text(&job(vec![role("trainer", 2, None, None, 0)]), &options));
}

#[test]
fn the_warning_leaves_time_to_stop() {
    let mut job = job(vec![role("server", 1, None, None, 0), role("trainer", 1, None, None, 0)]);
    let warning = |job: &Job, options: &SlurmOptions| {
        let text = text(job, options);
        let (_, rest) = text.split_once("#SBATCH --signal=B:USR1@").unwrap();
        rest.lines().next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(warning(&job, &SlurmOptions::default()), 60);
    job.roles[1].grace = Some(Duration::from_millis(240_500));
    assert_eq!(job.longest_grace(), Duration::from_millis(240_500));
    assert_eq!(warning(&job, &SlurmOptions::default()), 251);
    assert_eq!(warning(&job, &native(&[("time", Some("4"))])), 120, "half of the limit");
    assert_eq!(warning(&job, &SlurmOptions { warning: Some(30), ..SlurmOptions::default() }), 30);
    job.roles[1].grace = Some(Duration::MAX);
    assert_eq!(warning(&job, &SlurmOptions::default()), 65535);
}

#[test]
fn a_native_request_replaces_that_of_the_roles() {
    let options = native(&[("gres", Some("gpu:a100:4")), ("mem", Some("0"))]);
    let text = text(&job(vec![role("trainer", 4, Some(2), Some(512), 1)]), &options);
    assert!(!text.contains("gpus-per-task") && !text.contains("mem-per-cpu"), "{text}");
    assert!(text.contains("#SBATCH --gres=gpu:a100:4\n#SBATCH --mem=0\n"), "{text}");
}

#[test]
fn hostile_names() {
    let directory = Path::new("/runs/it's \"50%\" $HOME\n启动/unit");
    let options = native(&[("constraint", Some(r#"a b"c\d $x 'y' #z"#)), ("nodelist", Some("n[1-2]"))]);
    let job = job(vec![role("trainer", 1, None, None, 0)]);
    let umiak = Path::new("/opt/my tools/umiak");
    let text = Rendered { name: "it's 启动", run: "run-000012", job: &job, options: &options, umiak, directory }.text();
    insta::assert_snapshot!(format!(
        "{text}\n{:#?}",
        arguments(&directory.join("slurm.log"), Path::new("/home/li %j"))
    ));
}

/// All texts of this file are from Slurm 22.05.8, cut short.
const JSON: &str = r#"{"meta": {}, "errors": [], "jobs": [
    {"job_id": 7, "het_job_id": 7, "het_job_offset": 0, "job_state": "COMPLETED", "state_reason": "None", "nodes": "n1",
     "exit_code": 0, "restart_cnt": 0, "comment": ""},
    {"job_id": 8, "het_job_id": 7, "het_job_offset": 1, "job_state": "RUNNING", "state_reason": "None",
     "nodes": "n[2-3]", "exit_code": 0, "restart_cnt": 0, "comment": ""},
    {"job_id": 30, "het_job_id": 0, "het_job_offset": 0, "job_state": "RUNNING", "state_reason": "None", "nodes": "n1",
     "exit_code": 0, "restart_cnt": 2, "comment": "umiak:u|1 x", "name": "two words"},
    {"job_id": 37, "het_job_id": 0, "job_state": "FAILED", "state_reason": "NonZeroExitCode", "nodes": "n3",
     "exit_code": 768, "restart_cnt": 0, "comment": ""}
]}"#;

/// The shape of 24.05, from its documentation.
const LATER: &str = r#"{"jobs": [
    {"job_id": 41, "het_job_id": {"set": true, "infinite": false, "number": 0}, "job_state": ["CANCELLED", "COMPLETING"],
     "state_reason": "None", "nodes": "n1", "restart_cnt": 1, "comment": "umiak:a",
     "exit_code": {"status": ["SIGNALED"], "return_code": {"set": false, "infinite": false, "number": 0},
                   "signal": {"id": {"set": true, "infinite": false, "number": 15}, "name": "Terminated"}}}
]}"#;

const TEXT: &str = "\
38|CANCELLED|None|n2|(null)
7+0|COMPLETED|None|n1|(null)
7+1|COMPLETED|None|n[2-3]|(null)
36|FAILED|JobLaunchFailure|n2|(null)
34|PENDING|BeginTime||(null)
33|PENDING|JobHeldUser||(null)
30|RUNNING|None|n1|umiak:u|1 x
32|PENDING|PartitionTimeLimit||(null)
31|PENDING|PartitionNodeLimit||(null)
";

const DETAILS: &str = "\
JobId=30 JobName=two words UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901730 Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:02 TimeLimit=UNLIMITED Partition=main ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 BatchHost=n1
JobId=36 JobName=wrap UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901725 Nice=0 Account=(null) QOS=(null) JobState=FAILED Reason=JobLaunchFailure Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:9 RunTime=00:00:00 TimeLimit=UNLIMITED ReqNodeList=(null) ExcNodeList=(null) NodeList=n2
JobId=37 JobName=wrap UserId=root(0) GroupId=root(0) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0 NodeList=n3
JobId=8 HetJobId=7 HetJobOffset=1 JobName=h HetJobIdSet=7-8 UserId=root(0) GroupId=root(0) JobState=COMPLETED Reason=None Restarts=0 ExitCode=0:0 NodeList=n[2-3]
";

fn of<'a>(reports: &'a [Report], id: &str) -> Vec<&'a Report> {
    reports.iter().filter(|report| report.id == id).collect()
}

#[test]
fn json_of_two_versions() {
    let reports = status::json(JSON).unwrap();
    assert_eq!(of(&reports, "7").len(), 2);
    let running = of(&reports, "30")[0];
    assert_eq!((running.comment.as_str(), running.restarts), ("umiak:u|1 x", Some(2)));
    assert_eq!(of(&reports, "37")[0].exit, Some((3, 0)));
    assert_eq!(look(&reports[..2]), Look::Running);
    let later = status::json(LATER).unwrap();
    assert_eq!((later[0].id.as_str(), later[0].exit), ("41", Some((0, 15))));
    assert_eq!(look(&later), Look::Running);
    assert_eq!(status::json("squeue: unrecognized option '--json'"), None);
}

#[test]
fn states_with_flags() {
    for (states, expected) in [
        (r#"["RUNNING"]"#, "RUNNING"),
        (r#"["CANCELLED", "COMPLETING"]"#, "COMPLETING"),
        (r#"["CANCELLED", "COMPLETING", "SIGNALING"]"#, "COMPLETING"),
        (r#"["COMPLETED", "UPDATE_DB"]"#, "COMPLETED"),
        (r#"["FAILED", "FLAG_OF_LATER"]"#, "FAILED"),
        (r#"["PENDING", "REQUEUED", "FLAG_OF_LATER"]"#, "REQUEUED"),
        (r#"["RUNNING", "CONFIGURING", "POWER_UP_NODE"]"#, "CONFIGURING"),
    ] {
        let reports = status::json(&format!(r#"{{"jobs": [{{"job_id": 1, "job_state": {states}}}]}}"#)).unwrap();
        assert_eq!(reports[0].state, expected, "{states}");
    }
}

#[test]
fn lines_of_squeue() {
    let reports = status::text(TEXT);
    assert_eq!(reports.len(), 9);
    assert_eq!(of(&reports, "30")[0].comment, "umiak:u|1 x");
    let looks = reports.iter().map(|report| format!("{}: {:?}", report.id, look(std::slice::from_ref(report))));
    let looks = looks.collect::<Vec<_>>().join(
        "
",
    );
    insta::assert_snapshot!(looks);
}

#[test]
fn lines_of_scontrol_and_sacct() {
    let reports = status::details(DETAILS);
    assert_eq!(reports.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ["30", "36", "37", "7"]);
    assert_eq!(reports[0].nodes, "n1");
    assert_eq!(reports[3].nodes, "n[2-3]");
    let failed = |reason: &str| Look::Over(Over::Failed { reason: reason.to_owned() });
    assert_eq!(look(&reports[1..2]), failed("its script failed: signal 9 (FAILED)"));
    assert_eq!(look(&reports[2..3]), failed("its script failed: exit code 3 (FAILED)"));
    let accounted = status::accounting("41|CANCELLED by 1000|0:15|n1|None\n42|TIMEOUT|0:0|n[1-2]|TimeLimit\n");
    assert_eq!(look(&accounted[..1]), Look::Over(Over::Cancelled { by: Some("1000".to_owned()) }));
    let reason = "it reached its time limit".to_owned();
    assert_eq!(look(&accounted[1..]), Look::Over(Over::TimeLimit { reason }));
    assert_eq!(look(&[]), Look::Over(Over::Forgotten));
}

#[test]
fn nodes_that_are_down() {
    assert_eq!(status::down("n1|idle\nn2|down*\nn3|allocated*\nn4|draining\n"), ["n2", "n3"]);
}

#[test]
fn a_name_does_not_look_like_a_state() {
    let name = super::render::plain("x UserId=0 JobState=CANCELLED");
    let text = format!("JobId=7 JobName={name} UserId=li(1) JobState=RUNNING Reason=None Comment=c");
    assert_eq!(look(&status::details(&text)), Look::Running);
}
