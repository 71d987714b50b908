//! The namespaces of a cluster: mounts, network and processes of its own. Fixed ports collide with nothing, nothing
//! listens outside, and the death of the first process ends all others and removes all mounts.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

/// The bridge that nodes and pods share; its address is the first node's, too. Loopback cannot be a node's address.
pub(super) const BRIDGE: &str = "umiak0";

/// Directories of daemons that no flag moves lie below these: in the cluster they are empty, and vanish with it.
const EMPTIED: [&str; 3] = ["/run", "/var/lib", "/var/log"];

const PATIENCE: Duration = Duration::from_secs(30);

/// What the first process does. `wait` reaps orphans, and returns when the pipe to the harness closes: a harness that
/// was killed leaves nothing behind.
const FIRST: &str = r#"set -e
ip link set lo up
ip link add "$1" type bridge
ip address add 10.244.0.1/24 dev "$1"
ip link set "$1" up
ready=$2
shift 2
for directory; do mount -t tmpfs -o mode=755 none "$directory"; done
exec 3<&0
cat <&3 >/dev/null &
: >"$ready"
wait $!
"#;

#[derive(Debug)]
pub(super) struct Space {
    /// `unshare`, which waits for the first process.
    child: Child,
    first: u32,
    door: Door,
}

impl Space {
    /// Logs and signs of life lie in `directory`. It and the programs must be visible in the cluster.
    pub(super) fn start(directory: &Path, programs: &Path) -> Self {
        for (path, variable) in [(directory, "TMPDIR"), (programs, "XDG_CACHE_HOME")] {
            let is_hidden = EMPTIED.iter().any(|emptied| path.starts_with(emptied));
            assert!(!is_hidden, "{} is hidden in the cluster: set `{variable}` to another place", path.display());
        }
        let log = File::create(directory.join("log/first")).expect("our own directory");
        let ready = directory.join("ready");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["--propagation", "private", "sh", "-c", FIRST, "sh", BRIDGE]).arg(&ready).args(EMPTIED);
        command.stdin(Stdio::piped()).stdout(log.try_clone().expect("a descriptor")).stderr(log);
        let mut child = command.spawn().expect("unshare starts");
        let deadline = Instant::now() + PATIENCE;
        while !ready.exists() {
            let ended = child.try_wait().expect("our own child");
            if ended.is_some() || Instant::now() >= deadline {
                let _ = child.kill();
                let log = std::fs::read_to_string(directory.join("log/first")).unwrap_or_default();
                panic!("no namespaces ({ended:?}): {log}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let first = umiak_sys::descend::children(child.id())[0];
        let network = File::open(format!("/proc/{first}/ns/net")).expect("a process that runs");
        Self { child, first, door: Door { network: Arc::new(network) } }
    }

    /// A command in the namespaces, with `/` as its directory.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.to_string(), "--mount", "--net", "--pid", "--"]);
        command.arg(program.as_ref()).stdin(Stdio::null());
        command
    }

    pub(super) fn door(&self) -> Door {
        self.door.clone()
    }

    /// True for processes in it.
    pub(super) fn holds(&self, pid: u32) -> bool {
        let space = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        space(pid).is_some() && space(pid) == space(self.first)
    }

    /// Kills everything in it. The first process is gone only after all others.
    pub(super) fn end(&mut self) -> io::Result<()> {
        umiak_sys::descend::signal(self.first, 9);
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                return Err(io::Error::other("processes of the cluster cannot be killed"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// A way into the network of a cluster.
#[derive(Debug, Clone)]
pub struct Door {
    network: Arc<File>,
}

impl Door {
    /// Connects to an address of the cluster. A network namespace belongs to a thread, and a socket keeps the one it was
    /// made in: so a thread that ends again is enough.
    pub fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let network = self.network.clone();
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
            setns(&*network, CloneFlags::CLONE_NEWNET)?;
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }
}
