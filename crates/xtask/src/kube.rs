//! A cluster of real Kubernetes that stays: `cargo xtask kube up|down|status|build`.
//!
//! A process of its own holds the cluster, which ends with it. It answers on a socket below `target/`, so there is no
//! file that can be out of date.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, Subcommand};
use umiak_sys::net::in_directory;
use umiak_testkit::kube::{Cache, Kube, Options, version};

const SOCKET: &str = "socket";

/// Longest start of a cluster whose programs are compiled.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Start a cluster that stays until `down`, and print the path of its kubeconfig
    Up(Parts),
    /// End it
    Down,
    /// Print its kubeconfig, its daemons and its nodes
    Status,
    /// Compile its programs, if they are not in the cache
    Build,
    #[command(hide = true)]
    Hold(Parts),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Parts {
    /// Real nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    nodes: u8,
    /// Nodes without machines, with 8 GPUs each
    #[arg(long, value_name = "N", default_value_t = 0)]
    fake_nodes: usize,
    /// Start without Volcano
    #[arg(long)]
    no_volcano: bool,
    /// Start without JobSet
    #[arg(long)]
    no_jobset: bool,
}

pub(crate) fn kube(root: &Path, task: &Task) -> anyhow::Result<ExitCode> {
    let directory = root.join("target/kube");
    let mut stdout = std::io::stdout().lock();
    match task {
        Task::Up(parts) => writeln!(stdout, "{}", up(&directory, parts)?)?,
        Task::Down => writeln!(stdout, "{}", down(&directory)?)?,
        Task::Status => {
            let Ok(text) = ask(&directory, "status") else {
                writeln!(stdout, "no cluster runs")?;
                return Ok(ExitCode::FAILURE);
            };
            writeln!(stdout, "{text}")?;
        }
        Task::Build => writeln!(stdout, "{}", build()?.directory().display())?,
        Task::Hold(parts) => hold(&directory, parts)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn build() -> anyhow::Result<Cache> {
    Ok(Cache::fill()?)
}

/// Starts the process that holds the cluster, and waits until it answers.
fn up(directory: &Path, parts: &Parts) -> anyhow::Result<String> {
    if let Ok(text) = ask(directory, "kubeconfig") {
        return Ok(text);
    }
    if version().is_none() {
        bail!("a cluster needs root, Go, and the packages that `.ci/run` installs");
    }
    // In the foreground, where its messages are seen.
    build()?;
    fs::create_dir_all(directory)?;
    let log = directory.join("log");
    let file = File::create(&log)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["kube", "hold", &format!("--nodes={}", parts.nodes), &format!("--fake-nodes={}", parts.fake_nodes)]);
    command.args(parts.no_volcano.then_some("--no-volcano")).args(parts.no_jobset.then_some("--no-jobset"));
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(text) = ask(directory, "kubeconfig") {
            return Ok(text);
        }
        if let Some(status) = child.try_wait()? {
            bail!("the cluster did not start ({status}):\n{}", fs::read_to_string(&log)?);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            bail!("the cluster is not ready after {PATIENCE:?}:\n{}", fs::read_to_string(&log)?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn down(directory: &Path) -> anyhow::Result<&'static str> {
    if ask(directory, "down").is_err() {
        return Ok("no cluster runs");
    }
    let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
    if !log.is_empty() {
        bail!("the cluster did not end well:\n{log}");
    }
    Ok("ended")
}

/// One question to the process that holds the cluster, and its whole answer.
fn ask(directory: &Path, question: &str) -> anyhow::Result<String> {
    let mut stream = in_directory(directory, SOCKET, |path| UnixStream::connect(path))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(question.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The process itself. It leaves the terminal, and listens once the cluster is ready.
fn hold(directory: &Path, parts: &Parts) -> anyhow::Result<()> {
    nix::unistd::setsid()?;
    let kube = Kube::start(Options {
        nodes: parts.nodes.into(),
        volcano: !parts.no_volcano,
        jobset: !parts.no_jobset,
        ..Options::CONTROL_PLANE
    });
    if parts.fake_nodes > 0 {
        kube.add_fake_nodes(parts.fake_nodes, &[("nvidia.com/gpu", "8")]);
    }
    let socket = directory.join(SOCKET);
    // Of one that was killed.
    let _ = fs::remove_file(&socket);
    let listener = in_directory(directory, SOCKET, |path| UnixListener::bind(path))?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        if let Ok(true) = answer(&mut stream, &kube) {
            // The connection closes when nothing is left.
            drop(kube);
            fs::remove_file(&socket)?;
            break;
        }
    }
    Ok(())
}

/// Answers a question; true if the cluster is to end.
fn answer(stream: &mut UnixStream, kube: &Kube) -> std::io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut question = String::new();
    stream.read_to_string(&mut question)?;
    let text = match question.as_str() {
        "kubeconfig" => kube.kubeconfig().display().to_string(),
        "status" => status(kube),
        "down" => return Ok(true),
        _ => "unknown".to_owned(),
    };
    stream.write_all(text.as_bytes())?;
    Ok(false)
}

fn status(kube: &Kube) -> String {
    let mut lines = vec![format!("kubeconfig  {}", kube.kubeconfig().display())];
    for (daemon, is_running) in kube.running() {
        lines.push(format!("{:<24} {}", daemon.name(), if is_running { "running" } else { "ended" }));
    }
    let nodes = kube.api().get("/api/v1/nodes").unwrap_or_default();
    for node in nodes["items"].as_array().into_iter().flatten() {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let ready = kube.condition(&format!("/api/v1/nodes/{name}"), "Ready");
        let state = if ready.as_deref() == Some("True") { "ready" } else { "not ready" };
        lines.push(format!("{name:<24} {state}"));
    }
    lines.join("\n")
}
