//! A cluster of real Slurm on loopback: munged, slurmctld and one slurmd for each node, in a directory of its own. All
//! of it ends with the value, and so do the jobs that still run. Nothing of the system's own Slurm or munge is used.
//!
//! Every node is this host: tasks see the same host name, and tell their nodes apart by `SLURMD_NODENAME`. The names of
//! the nodes resolve inside tasks, all to 127.0.0.1, by a hosts file that only the daemons of the nodes see.
//!
//! From nothing to idle nodes takes half a second, so each test has a cluster of its own.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use umiak_sys::ports::{LeaseRequest, PortLease, PortRange, lease};

use crate::programs::find_on_path;
use crate::sandbox::{Run, Sandbox, find_processes};

const PATIENCE: Duration = Duration::from_secs(60);
/// CPUs that each node claims to have, whatever this machine has.
const CPUS: u32 = 64;
/// After this many seconds of silence a node is down.
const SILENCE: u32 = 10;

/// The version, if a cluster can be started: as root, with all daemons, and with mounts of its own.
pub fn version() -> Option<String> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let programs = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "unshare", "mount"];
    if !is_root || programs.iter().any(|program| find_on_path(program).is_none()) {
        return None;
    }
    let mounts = Command::new("unshare").args(["--mount", "true"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    mounts.ok().filter(std::process::ExitStatus::success)?;
    let output = Command::new("slurmctld").arg("-V").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().rsplit(' ').next()?.to_owned())
}

/// A running cluster, with nodes `n1`, `n2`, … in one partition.
#[derive(Debug)]
pub struct Slurm {
    directory: TempDir,
    munged: Child,
    controller: Option<Child>,
    nodes: Vec<Option<Child>>,
    first_job: u64,
    /// A directory that nodes see empty.
    hidden: Option<PathBuf>,
    _leases: Vec<PortLease>,
}

impl Slurm {
    /// Starts a cluster and waits until all nodes are idle.
    ///
    /// # Panics
    ///
    /// If Slurm is installed but does not start.
    pub fn start(nodes: usize) -> Self {
        Self::start_hiding(nodes, None)
    }

    /// The same with nodes that do not see the contents of a directory, as if they did not share its file system.
    ///
    /// # Panics
    ///
    /// If Slurm is installed but does not start.
    pub fn start_hiding(nodes: usize, hidden: Option<&Path>) -> Self {
        let directory = tempfile::Builder::new().prefix("umiak-slurm-").tempdir().expect("a temporary directory");
        let wanted = LeaseRequest {
            count: 1 + nodes as u16,
            range: PortRange::Anywhere,
            address: None,
            seed: fastrand::u64(..),
        };
        let (leased, mut leases) = lease(&wanted).expect("free ports");
        let (first_job, meeting) = first_job();
        leases.extend(meeting);
        prepare(directory.path(), &leased.ports, first_job);
        let munged = daemon(directory.path(), "munged", &munge_arguments(directory.path()));
        let nodes_of = (0..nodes).map(|_| None).collect();
        let hidden = hidden.map(Path::to_owned);
        let mut cluster =
            Self { directory, munged, controller: None, nodes: nodes_of, first_job, hidden, _leases: leases };
        let socket = cluster.path("munge/sock");
        cluster.wait("munged listens", || socket.exists());
        cluster.start_controller(&["-c"]);
        (0..nodes).for_each(|node| cluster.start_node(node));
        cluster.wait_until_idle();
        cluster
    }

    /// `SLURM_CONF` of clients.
    pub fn conf(&self) -> PathBuf {
        self.path("slurm.conf")
    }

    /// The id of the first job.
    pub fn first_job(&self) -> u64 {
        self.first_job
    }

    /// A client program (`srun`, `sbatch`, `squeue`, …) in the environment of a test.
    pub fn run<'a, S: AsRef<OsStr>>(
        &self,
        sandbox: &'a Sandbox,
        program: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Run<'a> {
        sandbox.program(Path::new(program), arguments).env("SLURM_CONF", self.conf())
    }

    /// Runs a client program to its end and returns what it prints, trimmed.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn ask(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.client(program, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {error}\n{}", self.logs());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Submits a job, and returns its id.
    pub fn submit(&self, sandbox: &Sandbox, arguments: &[&str]) -> String {
        let words = ["--parsable"].iter().chain(arguments);
        let outcome = self.run(sandbox, "sbatch", words).start().finish_unchecked();
        outcome.expect_code(0).out().trim().to_owned()
    }

    /// The state of a job in a word, such as `RUNNING`, as long as the controller knows it.
    pub fn state(&self, job: &str) -> String {
        let text = self.ask("scontrol", &["show", "job", job]);
        let word = text.split_whitespace().find_map(|word| word.strip_prefix("JobState="));
        word.unwrap_or_else(|| panic!("no state: {text}")).to_owned()
    }

    /// Waits until a job has ended, and returns its state.
    pub fn wait_for_end(&self, job: &str) -> String {
        self.wait(&format!("job {job} ends"), || {
            !["PENDING", "CONFIGURING", "RUNNING", "COMPLETING"].contains(&self.state(job).as_str())
        });
        self.state(job)
    }

    /// Waits until every node is idle.
    pub fn wait_until_idle(&self) {
        let count = self.nodes.len().to_string();
        self.wait("all nodes are idle", || {
            let output = self.client("sinfo", &["-h", "-t", "idle", "-o", "%D"]);
            output.status.success() && String::from_utf8_lossy(&output.stdout).trim() == count
        });
    }

    /// Ends the controller in the usual way and starts it again, with the jobs that it had.
    pub fn restart_controller(&mut self) {
        let mut child = self.controller.take().expect("a controller that runs");
        umiak_sys::descend::signal(child.id(), 15);
        self.wait("slurmctld ends", || child.try_wait().expect("our own child").is_some());
        self.start_controller(&[]);
        self.wait("slurmctld answers", || self.client("scontrol", &["ping"]).status.success());
    }

    /// Kills the slurmd of a node with SIGKILL; the node's tasks run on.
    pub fn kill_node(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn start_node(&mut self, node: usize) {
        let (hosts, conf) = (self.path("hosts").display().to_string(), self.conf().display().to_string());
        let name = format!("n{}", node + 1);
        let mount = r#"mount --bind "$0" /etc/hosts && { [ -z "$1" ] || mount -t tmpfs none "$1"; } && shift && exec slurmd "$@""#;
        let hidden = self.hidden.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let arguments = ["--mount", "sh", "-c", mount, &hosts, &hidden, "-D", "-f", &conf, "-N", &name];
        self.nodes[node] = Some(daemon(self.directory.path(), "unshare", &arguments.map(str::to_owned)));
    }

    fn start_controller(&mut self, arguments: &[&str]) {
        let conf = self.conf().display().to_string();
        let words: Vec<String> = ["-D", "-f", &conf].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
        self.controller = Some(daemon(self.directory.path(), "slurmctld", &words));
    }

    fn client(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// Waits for a condition; without it, fails with the ends of the daemons' logs.
    pub fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "never happened: {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The ends of the daemons' logs.
    fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.path("log")).into_iter().flatten().flatten() {
            let log = std::fs::read(entry.path()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(8)..].join("\n");
            let _ = writeln!(text, "--- {}\n{end}", entry.file_name().display());
        }
        text
    }

    /// Processes of this cluster: daemons, steps and tasks.
    fn processes(&self) -> Vec<u32> {
        let mark = format!("SLURM_CONF={}", self.conf().display());
        let found =
            find_processes(|_, environment| environment.split(|byte| *byte == 0).any(|it| it == mark.as_bytes()));
        found.into_iter().map(|(pid, _)| pid).filter(|pid| *pid != std::process::id()).collect()
    }

    fn reap(&mut self) {
        let children = self.nodes.iter_mut().flatten().chain(&mut self.controller).chain([&mut self.munged]);
        children.for_each(|child| drop(child.try_wait()));
    }
}

impl Drop for Slurm {
    /// Tasks outlive the daemons that started them, so everything that has the cluster's configuration is killed: nodes
    /// first, which then start nothing more.
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.kill_node(node));
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.processes();
            self.reap();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline || std::thread::panicking(), "Slurm left processes behind: {left:?}");
            if Instant::now() >= deadline {
                break;
            }
            for pid in left {
                umiak_sys::descend::signal(pid, 9);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// An id for the first job, such that its first four steps have ports to themselves where their nodes meet: the nodes of
/// all clusters of this machine are one host. Umiak's port for a step is 7168 + (9 × job + step) mod 64.
fn first_job() -> (u64, Vec<PortLease>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let offset = 4 * fastrand::u16(..16);
        let wanted =
            LeaseRequest { count: 4, range: PortRange::Exactly { start: 7168 + offset }, address: None, seed: 0 };
        if let Ok((_, leases)) = lease(&wanted) {
            // 57 × 9 is 1, modulo 64.
            return (64 * fastrand::u64(1..1000) + 57 * u64::from(offset) % 64, leases);
        }
        assert!(Instant::now() < deadline, "no ports for the nodes to meet at");
    }
}

/// Writes the key, the configuration and the hosts file. The first port is the controller's.
fn prepare(directory: &Path, ports: &[u16], first_job: u64) {
    let at = directory.display();
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).expect("our own directory");
    // munged requires that all users reach its socket.
    std::fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("our own directory");
    for name in ["munge", "state", "log"] {
        std::fs::create_dir(directory.join(name)).expect("our own directory");
    }
    let key: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(1024).collect();
    let file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(directory.join("munge.key"));
    file.and_then(|mut file| file.write_all(&key)).expect("our own directory");
    let names: Vec<String> = (1..ports.len()).map(|node| format!("n{node}")).collect();
    let mut conf = format!(
        "ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={}\nSlurmUser=root\nSlurmdUser=root\n\
         FirstJobId={first_job}\n\
         AuthType=auth/munge\nAuthInfo=socket={at}/munge/sock,cred_expire=5\n\
         StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool.%n\n\
         SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.%n.pid\n\
         SlurmctldLogFile={at}/log/slurmctld\nSlurmdLogFile={at}/log/slurmd.%n\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1\n\
         AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n\
         ReturnToService=2\nKillWait=2\nSlurmctldTimeout=30\nSlurmdTimeout={SILENCE}\nSlurmdParameters=config_overrides\n",
        ports[0]
    );
    for (name, port) in names.iter().zip(&ports[1..]) {
        std::fs::create_dir(directory.join(format!("spool.{name}"))).expect("our own directory");
        let node = format!("NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port}");
        let _ = writeln!(conf, "{node} CPUs={CPUS} RealMemory=4000");
    }
    let _ = writeln!(conf, "PartitionName=main Nodes={} Default=YES MaxTime=INFINITE State=UP", names.join(","));
    write("slurm.conf", &conf);
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    write("hosts", &format!("127.0.0.1 {}\n{hosts}", names.join(" ")));
}

fn munge_arguments(directory: &Path) -> Vec<String> {
    let at = directory.display();
    let mut words = vec!["--foreground".to_owned(), format!("--key-file={at}/munge.key"), "--num-threads=2".to_owned()];
    let files = [("socket", "sock"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")];
    words.extend(files.map(|(flag, name)| format!("--{flag}={at}/munge/{name}")));
    words
}

/// Starts a daemon in the foreground. What it starts has the cluster's mark: its `SLURM_CONF`.
fn daemon(directory: &Path, program: &str, arguments: &[String]) -> Child {
    let log = File::options().append(true).create(true).open(directory.join("log").join(program));
    let log = log.expect("our own directory");
    Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("SLURM_CONF", directory.join("slurm.conf"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a descriptor"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}
