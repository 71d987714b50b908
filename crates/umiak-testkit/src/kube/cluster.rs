//! A cluster: its start, its end, and what tests do with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::api::Api;
use super::cache::Cache;
use super::daemon::{self, Daemon, Process};
use super::fake::Fakes;
use super::relay::Relay;
use super::space::{Door, Space};
use super::{control, node};

/// Names of directories and cgroups: this, the harness's pid, and something random.
const PREFIX: &str = "umiak-kube-";

/// Of each log, these many lines are shown, and these many characters of each.
const LINES: usize = 8;
const LENGTH: usize = 400;

const PATIENCE: Duration = Duration::from_secs(90);

/// The parts of a cluster beside its control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Real nodes, `node1` and `node2`. With one at least, there are names of pods.
    pub nodes: usize,
    pub volcano: bool,
    pub jobset: bool,
    /// After this many seconds of silence a node is lost, and after five more its pods are replaced. At least 5.
    pub silence: u32,
}

impl Options {
    /// etcd, API server, controllers and scheduler: no pod runs.
    pub const CONTROL_PLANE: Self = Self { nodes: 0, volcano: false, jobset: false, silence: 20 };
    pub const NODE: Self = Self { nodes: 1, ..Self::CONTROL_PLANE };
    pub const ALL: Self = Self { volcano: true, jobset: true, ..Self::NODE };
}

/// A running cluster.
#[derive(Debug)]
pub struct Kube {
    // Fields are dropped in this order: a directory is removed when nothing runs in it.
    fakes: Fakes,
    relay: Relay,
    daemons: Mutex<BTreeMap<Daemon, Process>>,
    pub(super) space: Space,
    pub(super) api: Arc<Api>,
    pub(super) cache: Cache,
    pub(super) directory: TempDir,
}

impl Kube {
    /// Starts a cluster, and waits until all its parts are ready. Compiles its programs first if they are not there.
    ///
    /// # Panics
    ///
    /// If a part does not start.
    pub fn start(options: Options) -> Self {
        assert!(options.nodes <= node::MOST, "at most {} real nodes", node::MOST);
        let cache = Cache::fill().unwrap_or_else(|error| panic!("no programs of Kubernetes: {error}"));
        sweep();
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().expect("a temporary directory");
        let at = directory.path();
        std::fs::create_dir(at.join("log")).expect("our own directory");
        // Programs of pods may have other users.
        std::fs::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own directory");
        control::prepare(at);
        let token = std::fs::read_to_string(at.join("admin.token")).expect("our own file");
        let space = Space::start(at, cache.directory());
        let relay = Relay::start(space.door(), control::API).expect("a port of loopback");
        let outside = control::kubeconfig(at, relay.address(), &token);
        std::fs::write(at.join("kubeconfig"), outside).expect("our own directory");
        let api = Arc::new(Api::new(space.door(), control::API, &at.join("ca.pem"), &token));
        let (fakes, daemons) = (Fakes::default(), Mutex::default());
        let kube = Self { fakes, relay, daemons, space, api, cache, directory };
        kube.start_parts(options);
        kube
    }

    fn start_parts(&self, options: Options) {
        self.start_etcd_and_server();
        std::thread::scope(|scope| {
            let containers = scope.spawn(|| (0..options.nodes).for_each(|node| self.start_containerd(node)));
            self.wait("the API server is ready", || self.is_ready());
            self.start_controllers_and_scheduler(options.silence);
            let crds = scope.spawn(|| self.create_types(options));
            containers.join().expect("containerd starts");
            (0..options.nodes).for_each(|node| self.start_kubelet(node));
            if options.nodes > 0 {
                self.start_dns();
            }
            crds.join().expect("types can be created");
        });
        if options.volcano {
            self.start_volcano();
        }
        if options.jobset {
            self.start_jobset();
        }
        self.wait_for_account("default");
        (0..options.nodes).for_each(|node| self.wait_for_node(&node::name(node)));
        if options.volcano {
            self.wait_for_volcano();
        }
        if options.jobset {
            self.wait_for_jobset();
        }
        if options.nodes > 0 {
            self.wait_for_dns();
        }
    }

    /// The configuration of clients on this machine.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// The configuration of clients in the cluster's network, such as those of [`Kube::inside`].
    pub fn kubeconfig_inside(&self) -> PathBuf {
        self.path("admin.kubeconfig")
    }

    /// The cluster's directory, which has the same path in the cluster: tests may mount what they put there.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The relay that clients on this machine use.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// A way into the cluster's network.
    pub fn door(&self) -> Door {
        self.space.door()
    }

    /// `kubectl` on this machine.
    pub fn kubectl<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(self.cache.program("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig()).env("KUBECACHEDIR", self.path("kubectl")).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Runs `kubectl` to its end and returns what it prints, trimmed.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let output = self.expect(&mut self.kubectl(arguments.iter().copied()));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// `kubectl apply` of manifests.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn apply(&self, manifests: &str) -> String {
        let mut command = self.kubectl(["apply", "--filename", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.as_mut().expect("kubectl starts");
        child.stdin.take().expect("a pipe").write_all(manifests.as_bytes()).expect("kubectl reads");
        let (mut out, mut error) = (String::new(), String::new());
        let _ = child.stdout.take().expect("a pipe").read_to_string(&mut out);
        let _ = child.stderr.take().expect("a pipe").read_to_string(&mut error);
        let status = child.wait().expect("our own child");
        assert!(status.success(), "kubectl apply: {error}\n{manifests}");
        out
    }

    /// A command in the cluster's namespaces, with `/` as its directory. Files have the same paths there, except below
    /// `/run`, `/var/lib` and `/var/log`.
    pub fn inside(&self, program: impl AsRef<Path>) -> Command {
        self.space.command(program)
    }

    /// The status of a condition of an object.
    pub fn condition(&self, path: &str, kind: &str) -> Option<String> {
        let object = self.api.get(path)?;
        let conditions = object["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == kind)?;
        found["status"].as_str().map(str::to_owned)
    }

    /// All daemons; true for those that run.
    pub fn running(&self) -> BTreeMap<Daemon, bool> {
        self.daemons().iter_mut().map(|(daemon, process)| (*daemon, process.is_running())).collect()
    }

    /// Kills a daemon with SIGKILL.
    pub fn kill(&self, daemon: Daemon) {
        self.daemons().get_mut(&daemon).expect("a daemon of this cluster").kill();
    }

    /// Sends a signal to a daemon, such as SIGSTOP.
    pub fn signal(&self, daemon: Daemon, signal: i32) {
        self.daemons().get_mut(&daemon).expect("a daemon of this cluster").signal(signal);
    }

    /// Starts a daemon again, with its data. Waits for the API server and containerd, without which others end.
    pub fn restart(&self, daemon: Daemon) {
        let mut process = self.daemons().remove(&daemon).expect("a daemon of this cluster");
        process.kill();
        self.spawn(daemon, process.command.clone());
        match daemon {
            Daemon::ApiServer => self.wait("the API server is ready again", || self.is_ready()),
            Daemon::Containerd(node) => self.wait_for_containerd(node),
            _ => {}
        }
    }

    /// Adds nodes without machines: they are ready, and pods on them run nowhere.
    /// A pod with the annotation [`FAKE_SECONDS`] ends after that time, with the exit code in [`FAKE_EXIT`].
    pub fn add_fake_nodes(&self, count: usize, capacity: &[(&str, &str)]) -> Vec<String> {
        self.fakes.add(self, count, capacity)
    }

    /// Ends a fake node as a power failure does.
    pub fn lose_fake_node(&self, name: &str) {
        self.fakes.lose(name);
    }

    /// Waits for a condition; without it, or if a daemon ends, fails with the ends of the daemons' logs.
    pub fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            let ended = self.ended();
            assert!(ended.is_empty(), "{} ended before: {what}\n{}", ended.join(", "), self.logs());
            assert!(Instant::now() < deadline, "never happened: {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_ready(&self) -> bool {
        self.api.status("/readyz") == Some(200)
    }

    /// Creates the types of Volcano and JobSet, and waits until they are served.
    fn create_types(&self, options: Options) {
        let sets = [("volcano", options.volcano), ("jobflow", options.volcano), ("jobset", options.jobset)];
        let wanted = sets.iter().filter(|(_, is_wanted)| *is_wanted);
        let mut paths = Vec::new();
        for (set, _) in wanted {
            let entries = std::fs::read_dir(self.cache.file(&format!("crds/{set}"))).expect("a directory of the cache");
            for entry in entries.flatten() {
                paths.push(self.create(&std::fs::read_to_string(entry.path()).expect("a file of the cache")));
            }
        }
        for path in paths {
            self.wait(&format!("{path} is served"), || self.condition(&path, "Established").as_deref() == Some("True"));
        }
    }

    /// Creates an object without a namespace, and returns its path.
    pub(super) fn create(&self, yaml: &str) -> String {
        let after = |prefix: &str| yaml.lines().find_map(|line| line.strip_prefix(prefix)).expect("a manifest");
        let (group, kind, name) = (after("apiVersion: "), after("kind: "), after("  name: "));
        let path = format!("/apis/{group}/{}s", kind.to_lowercase());
        let answer = self.api.post_yaml(&path, yaml);
        assert!(matches!(answer, Ok((201, _))), "{path}/{name}: {answer:?}");
        format!("{path}/{name}")
    }

    /// The certificate of the authority, as webhooks need it.
    pub(super) fn authority(&self) -> String {
        std::fs::read_to_string(self.path("ca.base64")).expect("our own file").trim().to_owned()
    }

    /// A program of the cache.
    pub(super) fn start_program(&self, daemon: Daemon, program: &str, arguments: Vec<String>) {
        self.spawn(daemon, daemon::Command { program: self.cache.program(program), arguments });
    }

    /// A program of this machine.
    pub(super) fn start_daemon(&self, daemon: Daemon, program: &str, arguments: Vec<String>) {
        self.spawn(daemon, daemon::Command { program: PathBuf::from(program), arguments });
    }

    fn spawn(&self, daemon: Daemon, command: daemon::Command) {
        let process = Process::start(&self.space, self.directory.path(), daemon, command);
        let process = process.unwrap_or_else(|error| panic!("{}: {error}", daemon.name()));
        self.daemons().insert(daemon, process);
    }

    fn daemons(&self) -> MutexGuard<'_, BTreeMap<Daemon, Process>> {
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Daemons that ended without being killed by a test.
    fn ended(&self) -> Vec<String> {
        let mut daemons = self.daemons();
        daemons.iter_mut().filter_map(|(daemon, process)| process.has_ended().then(|| daemon.name())).collect()
    }

    /// True if a server on loopback answers a request with 200.
    pub(super) fn answers(&self, port: u16, path: &str) -> bool {
        let ask = || -> io::Result<String> {
            let mut stream = self.space.door().connect((Ipv4Addr::LOCALHOST, port).into())?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        ask().is_ok_and(|text| text.split(' ').nth(1) == Some("200"))
    }

    pub(super) fn expect(&self, command: &mut Command) -> Output {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {error}\n{}", self.logs());
        output
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The last part of the directory, which no other cluster has.
    pub(super) fn name(&self) -> String {
        self.directory.path().file_name().expect("a directory below another").to_string_lossy().into_owned()
    }

    /// The ends of the daemons' logs.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.path("log")).into_iter().flatten().flatten() {
            let log = std::fs::read(entry.path()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            let lines: Vec<&str> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(LINES)..];
            let end: Vec<String> = end.iter().map(|line| line.chars().take(LENGTH).collect()).collect();
            let end = end.join("\n");
            let _ = writeln!(text, "--- {}\n{end}", entry.file_name().display());
        }
        text
    }

    /// Ends everything, and says what is left: processes, cgroups, files.
    fn end(&mut self) -> Result<(), String> {
        self.space.end().map_err(|error| error.to_string())?;
        self.daemons().values_mut().for_each(Process::kill);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let cgroups = node::remove_cgroups(&self.name());
            let _ = std::fs::remove_dir_all(self.directory.path());
            let has_files = self.directory.path().exists();
            if cgroups.is_empty() && !has_files {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("cgroups {cgroups:?}, files: {has_files}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Kube {
    fn drop(&mut self) {
        let result = self.end();
        assert!(result.is_ok() || std::thread::panicking(), "a cluster left something behind: {result:?}");
    }
}

/// Removes what is left of clusters whose harness was killed; their processes have ended with it.
fn sweep() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            node::remove_cgroups(&name);
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
