//! With real Slurm. A shell script stands for the agent.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use umiak_core::cluster::slurm::render::LOG_FILE;
use umiak_core::mask::Known;
use umiak_core::model::{ClusterOptions, Host, Job, JobId, Policy, Role, RoleName, SlurmOptions, Workload};
use umiak_core::plan::Wishes;
use umiak_core::plan::document::{Chosen, Granted, RunPlace, SUBMISSION_VERSION, Submission, place};
use umiak_testkit::components::{Component, is_present};
use umiak_testkit::slurm::Slurm as Cluster;

use super::*;

/// What agents write about themselves, each to its own file.
const AGENT: &str = r#"#!/bin/bash
echo "$SLURM_NODEID $SLURM_PROCID/$SLURM_NTASKS $SLURMD_NODENAME cpus=$SLURM_CPUS_ON_NODE tasks=$UMIAK_TASKS" \
  "again=$SLURM_RESTART_COUNT $1" >"$2/agent-$SLURM_PROCID-$SLURM_RESTART_COUNT"
"#;

/// A cluster, the directory of a unit, and a script for the agent.
struct Room {
    cluster: Cluster,
    slurm: Slurm,
    _directory: TempDir,
    unit: UnitPlace,
    umiak: PathBuf,
}

impl Room {
    fn new(name: &str, agent: &str) -> Option<Self> {
        if !is_present(Component::Slurm) {
            return None;
        }
        let cluster = Cluster::start(3);
        let directory = tempfile::Builder::new().prefix("umiak-unit-").tempdir().expect("a temporary directory");
        let unit = UnitPlace { directory: directory.path().join(name), variables: Vec::new() };
        std::fs::create_dir(&unit.directory).expect("our own directory");
        let umiak = unit.directory.join("agent");
        write_program(&umiak, &format!("{AGENT}{agent}\n"));
        let slurm = Slurm { variables: vec![("SLURM_CONF", cluster.conf().into())], ..Slurm::new() };
        Some(Self { cluster, slurm, _directory: directory, unit, umiak })
    }

    fn submit(&mut self, roles: Vec<Role>, options: SlurmOptions) -> Result<String, String> {
        let options = SlurmOptions { umiak: Some(self.umiak.clone()), ..options };
        self.slurm.submit(&self.unit, &plan(roles, options, &self.unit.directory))
    }

    /// Waits until the job has ended.
    fn end(&mut self, job: &str) -> Over {
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            match self.slurm.look(job) {
                Look::Over(over) => return over,
                look => assert!(Instant::now() < deadline, "{look:?}\n{}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.unit.directory.join(LOG_FILE)).unwrap_or_default()
    }

    /// What agents wrote, in their order.
    fn agents(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.unit.directory).expect("our own directory").flatten();
        let is_agent = |path: &PathBuf| path.file_name().is_some_and(|it| it.to_string_lossy().starts_with("agent-"));
        let paths = files.map(|file| file.path()).filter(is_agent);
        let mut texts: Vec<String> = paths.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        texts.sort();
        texts.iter().map(|text| text.trim().to_owned()).collect()
    }
}

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text).expect("our own directory");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("our own file");
}

fn role(name: &str, replicas: u32, cpus: u32) -> Role {
    let mut role = Role::new(RoleName::new(name).expect("a name"), replicas);
    role.work.resources.cpu_millis = (cpus > 0).then_some(cpus * 1000);
    role.work.command = vec!["true".to_owned()];
    role
}

fn plan(roles: Vec<Role>, slurm: SlurmOptions, directory: &Path) -> Plan {
    let job = Job {
        name: JobId::new("ctr").expect("a name"),
        labels: BTreeMap::new(),
        agent_store: false,
        contracts: Vec::new(),
        roles,
        policy: Policy::default(),
    };
    let submission = Submission {
        v: SUBMISSION_VERSION,
        params: Vec::new(),
        chosen: Chosen::default(),
        repeats: None,
        work: Workload::Job(Box::new(job.clone())),
        engine: "slurm".to_owned(),
        wishes: Wishes::default(),
        cluster: ClusterOptions { slurm, ..ClusterOptions::default() },
        known: Known::default(),
        directory: directory.to_owned(),
        document: directory.join("job.yaml"),
        environment: BTreeMap::new(),
        programs: vec!["/bin/true".into(); job.roles.len()],
    };
    let replicas: u32 = job.roles.iter().map(|role| role.replicas).sum();
    let hosts = (0..replicas).map(|_| Host::from([127, 0, 0, 1])).collect();
    let run = RunPlace {
        run: "run-000001".to_owned(),
        step: None,
        user: "li".to_owned(),
        cpus: 2,
        tasks: directory.join("tasks"),
        scratch: directory.join("scratch"),
        attached: false,
    };
    place(&submission, &job, &submission.programs, run, Granted { hosts, ..Granted::default() })
}

fn native(options: &[(&str, Option<&str>)]) -> SlurmOptions {
    let native = options.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
    SlurmOptions { native, ..SlurmOptions::default() }
}

/// The CPUs of tasks fill the nodes: otherwise Slurm 22.05 may give 4 tasks of 20 CPUs to a node of 64.
#[test]
fn an_agent_on_each_node_has_all_that_was_given_there() {
    let Some(mut room) = Room::new("it's 100%j \"$HOME\"\n启动", "") else { return };
    let options = native(&[("wckey", Some(r#"a "b" \c $d #e"#))]);
    let job = room.submit(vec![role("server", 2, 32), role("trainer", 3, 32)], options).expect("accepted");
    assert_eq!(room.end(&job), Over::Done, "{}", room.log());
    let expected = [("0 0/3", "n1", 64), ("1 1/3", "n2", 64), ("2 2/3", "n3", 32)];
    let expected = expected.map(|(who, node, cpus)| format!("{who} {node} cpus={cpus} tasks=2(x2),1 again= agent"));
    assert_eq!(room.agents(), expected);
    let shown = room.cluster.ask("squeue", &["-h", "-t", "all", "-j", &job, "-o", "%w|%k"]);
    assert_eq!(shown, format!(r#"a "b" \c $d #e|{}"#, comment(&room.unit)));
    assert_eq!(room.slurm.find(&room.unit).expect("an answer"), Some(job.clone()));
    std::fs::remove_file(room.unit.directory.join(JOB)).expect("written by the submission");
    assert_eq!(room.slurm.find(&room.unit).expect("an answer"), Some(job));
    let other = UnitPlace { directory: room.unit.directory.join("another"), ..room.unit.clone() };
    assert_eq!(room.slurm.find(&other).expect("an answer"), None);
}

#[test]
fn agents_of_several_parts_are_numbered_through() {
    let Some(mut room) = Room::new("unit", "") else { return };
    let job = room.submit(vec![role("server", 3, 4), role("trainer", 2, 40)], SlurmOptions::default());
    let job = job.expect("accepted");
    assert_eq!(room.end(&job), Over::Done, "{}", room.log());
    let tasks = "tasks=3;1(x2) again= agent";
    let expected = [("0 0/3", "n1", 12), ("1 1/3", "n2", 40), ("2 2/3", "n3", 40)];
    assert_eq!(room.agents(), expected.map(|(who, node, cpus)| format!("{who} {node} cpus={cpus} {tasks}")));
}

#[test]
fn an_agent_for_each_replica() {
    let Some(mut room) = Room::new("unit", "") else { return };
    let options = SlurmOptions { direct: true, ..SlurmOptions::default() };
    let roles = vec![role("server", 1, 2), role("trainer", 2, 32), role("logger", 1, 2)];
    let job = room.submit(roles, options).expect("accepted");
    let over = room.end(&job);
    assert_eq!(over, Over::Done, "{}", room.log());
    let ranks: Vec<String> =
        room.agents().iter().map(|it| it.split(' ').nth(1).unwrap_or_default().to_owned()).collect();
    assert_eq!(ranks.len(), 4, "{:?}", room.agents());
    (0..4).for_each(|rank| assert!(ranks.contains(&format!("{rank}/4")), "{ranks:?}"));
}

#[test]
fn refusals_and_waits_in_words() {
    let Some(mut room) = Room::new("unit", "") else { return };
    let one = || vec![role("trainer", 1, 0)];
    let refused = room.submit(one(), native(&[("partition", Some("nope"))])).expect_err("no such partition");
    assert!(refused.contains("invalid partition specified: nope"), "{refused}");
    assert!(room.unit.directory.join(SCRIPT).exists());
    let nine = vec![role("trainer", 9, 0)];
    let job = room.submit(nine, native(&[("nodes", Some("9"))])).expect("accepted");
    room.cluster.wait("Slurm has a reason", || room.cluster.ask("squeue", &["-h", "-j", &job, "-o", "%r"]) != "None");
    assert!(matches!(room.slurm.look(&job), Look::Hopeless { .. }), "{:?}", room.slurm.look(&job));
    room.slurm.cancel(&job, false).expect("accepted");
    assert_eq!(room.end(&job), Over::Cancelled { by: Some("`scancel`".to_owned()) });
    let job = room.submit(one(), native(&[("begin", Some("now+1hour"))])).expect("accepted");
    assert!(matches!(room.slurm.look(&job), Look::Pending { .. }), "{:?}", room.slurm.look(&job));
    room.slurm.cancel(&job, true).expect("accepted");
    assert_eq!(room.end(&job), Over::Cancelled { by: Some("`scancel`".to_owned()) });
    assert_eq!(room.slurm.look("999999"), Look::Over(Over::Forgotten));
    assert!(IS_WITHOUT_JSON.load(Ordering::Relaxed), "22.05 prints the whole queue");
}

#[test]
fn ends_that_are_no_success() {
    let Some(mut room) = Room::new("unit", "[ $SLURM_PROCID = 1 ] && exit 7; sleep 1000") else { return };
    let spread = || native(&[("nodes", Some("2"))]);
    let job = room.submit(vec![role("trainer", 2, 0)], spread()).expect("accepted");
    let Over::Failed { reason } = room.end(&job) else { panic!("it failed") };
    assert!(reason.starts_with("its script failed: exit code"), "{reason}");
    for kill in [false, true] {
        let job = room.submit(vec![role("trainer", 1, 0)], SlurmOptions::default()).expect("accepted");
        room.cluster.wait("it runs", || room.cluster.state(&job) == "RUNNING");
        room.slurm.cancel(&job, kill).expect("accepted");
        assert_eq!(room.end(&job), Over::Cancelled { by: Some("`scancel`".to_owned()) });
    }
    room.umiak = room.unit.directory.join("nowhere");
    let job = room.submit(vec![role("trainer", 1, 0)], SlurmOptions::default()).expect("accepted");
    assert!(matches!(room.end(&job), Over::Failed { .. }));
    assert!(room.log().contains("is not a program on n1, and there is no copy of it in"), "{}", room.log());
}

/// Slurm's own warning takes half a minute to come; the same signal is sent by hand.
#[test]
fn a_warned_job_is_started_again() {
    let agent = r#"[ "$SLURM_RESTART_COUNT" ] && exit 0
        trap 'echo "agent $SLURM_PROCID: USR1"' USR1
        until [ -e "$2/limit" ]; do sleep 0.05; done
        exit 75"#;
    let Some(mut room) = Room::new("unit", agent) else { return };
    let options = SlurmOptions { requeue: true, ..native(&[("nodes", Some("2")), ("time", Some("5"))]) };
    let job = room.submit(vec![role("trainer", 2, 0)], options).expect("accepted");
    let unit = room.unit.directory.clone();
    room.cluster.wait("agents run", || ["agent-0-", "agent-1-"].iter().all(|name| unit.join(name).exists()));
    room.cluster.ask("scancel", &["--signal=USR1", "--batch", &job]);
    room.cluster.wait("it waits again", || room.cluster.state(&job) == "PENDING");
    assert!(matches!(room.slurm.look(&job), Look::Pending { .. }), "{:?}", room.slurm.look(&job));
    assert_eq!(room.end(&job), Over::Done, "{}", room.log());
    assert_eq!(room.agents().iter().filter(|line| line.contains("again=1")).count(), 2, "{:?}", room.agents());
    assert!(!room.log().contains("USR1"), "{}", room.log());
    let limit = std::fs::read_to_string(unit.join("limit")).expect("written by the script");
    assert_eq!(limit, "0\n", "the first start was warned, and not the second");
}

#[test]
fn umiak_is_copied_to_nodes_that_do_not_have_it() {
    let Some(mut room) = Room::new("unit", r#"echo "copy $UMIAK_COPY""#) else { return };
    std::fs::rename(&room.umiak, room.unit.directory.join("umiak")).expect("our own file");
    let job =
        room.submit(vec![role("server", 1, 1), role("trainer", 1, 2)], SlurmOptions::default()).expect("accepted");
    assert_eq!(room.end(&job), Over::Done, "{}", room.log());
    let log = room.log();
    let copies: Vec<&Path> = log.lines().filter_map(|line| line.strip_prefix("copy ")).map(Path::new).collect();
    assert!(copies.len() == 2 && copies[0] == copies[1], "{log}");
    let directory = copies[0].parent().expect("a directory of its own");
    assert!(directory.to_string_lossy().starts_with(&format!("/tmp/umiak-{job}.")), "{log}");
    let mode = std::fs::metadata(directory).expect("left for the agent to remove").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::remove_dir_all(directory).expect("our own directory");
}

#[test]
fn a_lost_node_and_a_lost_controller() {
    let Some(mut room) = Room::new("unit", "sleep 1000") else { return };
    let job = room.submit(vec![role("trainer", 3, 64)], SlurmOptions::default()).expect("accepted");
    room.cluster.wait("agents run", || room.agents().len() == 3);
    room.cluster.kill_node(1);
    assert_eq!(room.end(&job), Over::NodeLost { node: "n2".to_owned() });
    room.slurm.variables = vec![("SLURM_CONF", room.unit.directory.join("nowhere").into())];
    assert!(matches!(room.slurm.look(&job), Look::Unknown { .. }));
}

#[test]
fn variables_that_change_answers_do_not_count() {
    let names = ["SQUEUE_STATES", "SCANCEL_USER", "SINFO_FORMAT", "SLURM_TIME_FORMAT", "SLURM_CONF", "SLURM_CLUSTERS"];
    let counted: Vec<&str> = names.into_iter().filter(|name| !is_of_answers(&OsString::from(name))).collect();
    assert_eq!(counted, ["SLURM_CONF", "SLURM_CLUSTERS"]);
}

#[test]
fn comments_of_odd_paths() {
    let comment = |path: &[u8]| {
        let directory = PathBuf::from(OsStr::from_bytes(path));
        comment(&UnitPlace { directory, variables: Vec::new() })
    };
    let plain = comment(b"/home/li/.umiak/runs/run-000007/units/0.1");
    assert!(plain.starts_with("umiak:run-000007/0.1:") && plain.len() == "umiak:run-000007/0.1:".len() + 16, "{plain}");
    let odd = [&b"/a|\nb/run \xff/units/0.1"[..], b"/a|\nb/run \xfe/units/0.1"].map(comment);
    assert_ne!(odd[0], odd[1]);
    assert!(odd.iter().all(|comment| comment.starts_with("umiak:run__/0.1:") && !comment.contains(char::is_control)));
}

/// `sbatch` is killed after the controller has answered, before, and never.
#[test]
fn a_submission_that_is_cut_short() {
    let Some(mut room) = Room::new("unit", "sleep 1000") else { return };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = room.unit.directory.join("programs");
    std::fs::create_dir(&programs).expect("our own directory");
    let mut all = vec![programs.clone()];
    all.extend(std::env::split_paths(&path));
    room.slurm.variables.push(("PATH", std::env::join_paths(all).expect("paths")));
    let sbatch = |end: &str| {
        let real = std::env::split_paths(&path).map(|it| it.join("sbatch")).find(|it| it.exists()).expect("Slurm");
        write_program(&programs.join("sbatch"), &format!("#!/bin/bash\nreal={}\n{end}\n", real.display()));
    };
    let one = || vec![role("trainer", 1, 1)];
    sbatch(r#""$real" "$@" >/dev/null; kill -9 $$"#);
    let job = room.submit(one(), SlurmOptions::default()).expect("it is found");
    assert_eq!(room.slurm.find(&room.unit).expect("an answer"), Some(job.clone()));
    room.slurm.cancel(&job, true).expect("accepted");
    room.end(&job);
    // Another unit has another comment.
    room.unit.directory = room.unit.directory.join("next");
    std::fs::create_dir(&room.unit.directory).expect("our own directory");
    room.slurm.search = Duration::from_secs(1);
    let unit = room.unit.directory.join(UNIT);
    std::fs::write(&unit, "{}").expect("our own directory");
    sbatch("kill -9 $$");
    assert_eq!(room.submit(one(), SlurmOptions::default()), Err("`sbatch` was killed by signal 9".to_owned()));
    assert!(!unit.exists(), "a job that appears now has nothing to run");
    assert_eq!(room.slurm.find(&room.unit).expect("an answer"), None);
}

#[test]
fn what_sbatch_says() {
    let answer = |is_success, out: &str, error: &str| {
        Submitted::of(Ok(Answer { is_success, out: out.to_owned(), error: error.to_owned() }))
    };
    assert_eq!(answer(true, "a notice\n12;far\n", ""), Submitted::Accepted("12;far".to_owned()));
    assert_eq!(answer(false, "", "invalid account"), Submitted::Refused("invalid account".to_owned()));
    let late = "Batch job submission failed: Socket timed out on send/recv operation";
    assert_eq!(answer(false, "", late), Submitted::Unclear(late.to_owned()));
    assert!(matches!(answer(true, "", ""), Submitted::Unclear(_)));
    let none = |error| Submitted::of(Err(error));
    assert!(matches!(none(NoAnswer::Missing("sbatch".to_owned())), Submitted::Refused(_)));
    let (program, limit) = ("sbatch".to_owned(), SUBMISSION);
    assert_eq!(
        none(NoAnswer::Late { program, limit }),
        Submitted::Unclear("`sbatch` did not answer within 60 s".to_owned())
    );
}

#[test]
fn variables_of_an_enclosing_allocation_do_not_count() {
    let names =
        ["SLURM_CONF", "SLURM_JOB_ID", "SLURM_NTASKS", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SRUN_DEBUG", "HOME"];
    let foreign = |queue: Option<&str>, options: SlurmOptions| {
        let mut trainer = role("trainer", 1, 0);
        trainer.work.queue = queue.map(str::to_owned);
        super::foreign(names.iter().map(OsString::from), &plan(vec![trainer], options, Path::new("/")))
    };
    let expected = ["SLURM_JOB_ID", "SLURM_NTASKS", "SBATCH_PARTITION", "SRUN_DEBUG"];
    assert_eq!(foreign(None, native(&[("partition", Some("gpu"))])), expected);
    assert_eq!(foreign(Some("gpu"), native(&[])), expected, "the queue of a role");
    assert_eq!(foreign(None, native(&[])), ["SLURM_JOB_ID", "SLURM_NTASKS", "SRUN_DEBUG"]);
}
