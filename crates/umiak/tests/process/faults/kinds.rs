//! The kinds of faults, one row each.

use std::ffi::OsString;
use std::path::PathBuf;

use umiak_testkit::components::Component::{self, MemoryCgroup, Netns, Paddle, PaddlePs, Python, Torch};
use umiak_testkit::components::{environment, ps_environment};
use umiak_testkit::sandbox::Sandbox;

/// Ranks of a collective job, over all nodes.
const RANKS: usize = 4;
/// Servers, and as many trainers, of a job with servers, over all nodes.
const SERVERS: usize = 2;

/// One kind of fault.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) work: Work,
    /// What the culprit does: a function of `fault.py`, or a case of the script.
    fault: &'static str,
    pub(super) nodes: usize,
    culprit: Culprit,
    /// After how many seconds a rank that waits for another gives up; 0 for the script's own.
    timeout: u32,
    pub(super) act: Act,
    pub(super) right: Right,
    /// Part of the default run.
    pub(super) is_quick: bool,
}

/// What the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Torch,
    Paddle,
    /// Plain Python: a ring of sockets.
    Ring,
    /// The ring, started by a shell script.
    Wrapper,
    /// Shell scripts that do not communicate.
    Shell,
    /// A shell script of which each node has a copy; the culprit's cannot be started.
    Copies,
    /// The ring as a document with a memory limit.
    Document,
    /// Plain Python: servers and trainers.
    Servers,
    /// Plain Python, with heterogeneous trainers.
    Heter,
    /// Paddle's parameter servers.
    PaddleServers,
}

/// Which process fails; the repetition selects among several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Culprit {
    Any,
    /// Rank 0 has a part of its own in this kind.
    NotFirst,
    /// Two ranks fail independently. Either is right.
    Two,
    Server,
    Trainer,
    Heter,
}

/// What the suite does when the culprit has written the file `victim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    None,
    Signal(i32),
    /// Kills the parent of the process that asked.
    KillParent,
    /// Kills the umiak of the culprit's node.
    KillUmiak,
    /// Takes the link of the culprit's node down.
    CutLink,
}

/// Which verdict is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Culprit,
    /// The culprit's node, which refuses to start; no rank.
    Refusal,
    /// The node, and no rank of another node.
    Node,
}

const fn kind(work: Work, fault: &'static str) -> Kind {
    let (culprit, act, right) = (Culprit::Any, Act::None, Right::Culprit);
    Kind { work, fault, nodes: 1, culprit, timeout: 0, act, right, is_quick: false }
}

const fn torch(fault: &'static str) -> Kind {
    kind(Work::Torch, fault)
}

const fn paddle(fault: &'static str) -> Kind {
    kind(Work::Paddle, fault)
}

const fn ring(fault: &'static str) -> Kind {
    kind(Work::Ring, fault)
}

const fn shell(fault: &'static str) -> Kind {
    kind(Work::Shell, fault)
}

const fn server(work: Work, fault: &'static str) -> Kind {
    Kind { culprit: Culprit::Server, ..kind(work, fault) }
}

const fn trainer(work: Work, fault: &'static str) -> Kind {
    Kind { culprit: Culprit::Trainer, ..kind(work, fault) }
}

const fn refused(fault: &'static str) -> Kind {
    Kind { right: Right::Refusal, nodes: 2, ..kind(Work::Copies, fault) }
}

const fn lost(work: Work, act: Act) -> Kind {
    Kind { act, right: Right::Node, nodes: 2, ..kind(work, "outside") }
}

impl Kind {
    const fn on_two_nodes(self) -> Self {
        Self { nodes: 2, ..self }
    }

    const fn timeout(self, seconds: u32) -> Self {
        Self { timeout: seconds, ..self }
    }

    const fn signal(self, signal: i32) -> Self {
        Self { act: Act::Signal(signal), ..self }
    }

    const fn act(self, act: Act) -> Self {
        Self { act, ..self }
    }

    const fn not_first(self) -> Self {
        Self { culprit: Culprit::NotFirst, ..self }
    }

    const fn two(self) -> Self {
        Self { culprit: Culprit::Two, ..self }
    }

    const fn quick(self) -> Self {
        Self { is_quick: true, ..self }
    }
}

const SIGINT: i32 = 2;
const SIGABRT: i32 = 6;
const SIGFPE: i32 = 8;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;
const SIGSTOP: i32 = 19;

pub(super) const KINDS: &[Kind] = &[
    // Errors of the program.
    ring("raises").quick(),
    ring("raises").on_two_nodes().quick(),
    ring("chained"),
    ring("import-error@start"),
    ring("missing-file").on_two_nodes(),
    ring("full-disk"),
    ring("nan"),
    ring("thread").on_two_nodes(),
    ring("noise").quick(),
    ring("binary"),
    ring("child").on_two_nodes(),
    ring("slow").quick(),
    ring("slow-obedient").on_two_nodes(),
    ring("raises").two(),
    kind(Work::Wrapper, "raises").quick(),
    kind(Work::Document, "out-of-memory"),
    torch("raises").quick(),
    torch("backward").on_two_nodes(),
    torch("raises@worker"),
    torch("kill@worker"),
    torch("import-error@import").on_two_nodes(),
    torch("thread").on_two_nodes(),
    torch("slow"),
    torch("slow-obedient").on_two_nodes(),
    paddle("raises").on_two_nodes().quick(),
    paddle("missing-file").on_two_nodes(),
    paddle("slow"),
    // Exits with a code.
    shell("exit-3").quick(),
    shell("exit-255").on_two_nodes(),
    shell("not-found"),
    shell("missing-file"),
    shell("unset").on_two_nodes(),
    shell("child-killed"),
    ring("exit-text"),
    ring("exit-3").on_two_nodes(),
    ring("exit-255@start"),
    torch("exit-3"),
    torch("exit-text").on_two_nodes(),
    paddle("exit-255"),
    // Exits with 0 while the others train.
    ring("exit-0").quick(),
    ring("exit-0").on_two_nodes().quick(),
    ring("exit-0@start").timeout(3),
    ring("exit-0@last"),
    ring("return-0").on_two_nodes(),
    kind(Work::Wrapper, "exit-0"),
    torch("exit-0").quick(),
    torch("exit-0").on_two_nodes(),
    torch("return-0"),
    torch("exit-0@start").timeout(6),
    torch("exit-0@last"),
    paddle("exit-0").quick(),
    paddle("exit-0").on_two_nodes(),
    paddle("exit-0@last"),
    // Connections closed before the exit.
    ring("late").quick(),
    ring("late").on_two_nodes(),
    ring("late-obedient"),
    ring("late-0").on_two_nodes(),
    torch("late"),
    torch("late-obedient").on_two_nodes(),
    paddle("late"),
    // Signals, by itself and from outside.
    ring("segv").on_two_nodes(),
    ring("abort"),
    ring("bus"),
    ring("fpe").on_two_nodes(),
    ring("term"),
    ring("interrupt").on_two_nodes(),
    ring("outside").signal(SIGKILL).on_two_nodes().quick(),
    ring("outside").signal(SIGTERM),
    ring("outside").signal(SIGINT),
    ring("outside-exit-1").signal(SIGTERM).on_two_nodes(),
    ring("outside-exit-0").signal(SIGTERM),
    shell("segv"),
    shell("limit"),
    shell("outside").signal(SIGABRT).on_two_nodes(),
    shell("outside").signal(SIGFPE),
    kind(Work::Wrapper, "outside").signal(SIGKILL),
    kind(Work::Wrapper, "outside").act(Act::KillParent).on_two_nodes(),
    torch("segv"),
    torch("outside").signal(SIGKILL).on_two_nodes(),
    torch("outside").signal(SIGTERM),
    paddle("segv"),
    paddle("outside").signal(SIGKILL),
    paddle("outside").signal(SIGSEGV).on_two_nodes(),
    // Hangs, until the others give up.
    ring("hang-sleep").timeout(3).quick(),
    ring("hang-lock").timeout(3).on_two_nodes(),
    ring("hang-read").timeout(3),
    ring("hang-loop").timeout(3).on_two_nodes(),
    ring("hang-stop").timeout(3),
    ring("outside").signal(SIGSTOP).timeout(3).on_two_nodes(),
    torch("hang-sleep").timeout(6),
    torch("hang-lock").timeout(6).on_two_nodes(),
    torch("hang-loop").timeout(6),
    torch("hang-stop").timeout(6).on_two_nodes(),
    torch("hang-sleep@start").timeout(6),
    paddle("hang-sleep"),
    // Disagreement about the job.
    ring("wrong-port").timeout(3),
    torch("wrong-port").timeout(6).not_first(),
    torch("wrong-port").timeout(6).not_first().on_two_nodes(),
    torch("wrong-address").timeout(6).not_first(),
    torch("wrong-size").timeout(6).not_first(),
    torch("same-rank").timeout(6).not_first(),
    torch("skip").timeout(6),
    torch("broadcast").timeout(6),
    torch("shape").timeout(6),
    torch("monitored").timeout(6).not_first(),
    // Programs that cannot be started, on one node.
    refused("not-executable").quick(),
    refused("no-interpreter"),
    // Lost nodes.
    lost(Work::Ring, Act::KillUmiak).quick(),
    lost(Work::Ring, Act::CutLink),
    lost(Work::Torch, Act::KillUmiak),
    // Parameter servers.
    server(Work::Servers, "raises").quick(),
    server(Work::Servers, "raises@start").on_two_nodes(),
    server(Work::Servers, "outside").signal(SIGKILL),
    server(Work::Servers, "exit-0").on_two_nodes().quick(),
    server(Work::Servers, "hang-sleep@start"),
    server(Work::Servers, "port-taken"),
    trainer(Work::Servers, "raises").on_two_nodes(),
    trainer(Work::Servers, "outside").signal(SIGKILL).on_two_nodes(),
    Kind { culprit: Culprit::Heter, ..kind(Work::Heter, "raises") },
    server(Work::PaddleServers, "outside").signal(SIGKILL),
    server(Work::PaddleServers, "raises@start"),
    server(Work::PaddleServers, "outside").signal(SIGTERM),
    trainer(Work::PaddleServers, "raises").quick(),
    trainer(Work::PaddleServers, "outside").signal(SIGSEGV),
];

impl Work {
    fn component(self) -> Component {
        match self {
            Self::Torch => Torch,
            Self::Paddle => Paddle,
            Self::PaddleServers => PaddlePs,
            Self::Document => MemoryCgroup,
            Self::Ring | Self::Wrapper | Self::Shell | Self::Copies | Self::Servers | Self::Heter => Python,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Paddle => "paddle",
            Self::Ring => "ring",
            Self::Wrapper => "wrapper",
            Self::Shell => "shell",
            Self::Copies => "copies",
            Self::Document => "document",
            Self::Servers => "servers",
            Self::Heter => "heter",
            Self::PaddleServers => "paddle-servers",
        }
    }

    fn script(self) -> String {
        let name = match self {
            Self::Torch => "with_torch.py",
            Self::Paddle => "with_paddle.py",
            Self::Ring | Self::Document => "ring.py",
            Self::Wrapper => "wrapper.sh",
            Self::Shell => "alone.sh",
            Self::Copies => return "./alone.sh".to_owned(),
            Self::Servers | Self::Heter => "servers.py",
            Self::PaddleServers => "with_servers.py",
        };
        format!("{}/tests/process/faults/scripts/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    /// Variables that it needs: the virtual environment of its interpreter, and more.
    pub(super) fn variables(self) -> Vec<(&'static str, OsString)> {
        let python = |directory: Option<PathBuf>| ("VIRTUAL_ENV", directory.expect("the component is present").into());
        match self {
            Self::Torch | Self::Paddle => vec![python(environment())],
            // Without gloo, servers open their ports before trainers have met.
            Self::PaddleServers => vec![python(ps_environment()), ("PADDLE_WITH_GLOO", "0".into())],
            _ => Vec::new(),
        }
    }

    fn has_servers(self) -> bool {
        matches!(self, Self::Servers | Self::Heter | Self::PaddleServers)
    }

    /// Writes the files that the job needs on this node.
    pub(super) fn prepare(self, kind: &Kind, node: usize, repetition: usize, sandbox: &Sandbox) {
        match self {
            Self::Document => {
                let (script, fault, rank) = (self.script(), kind.fault, kind.argument(repetition));
                let document = format!(
                    "umiak: v1\nname: ring\ncontracts: paddle\nroles:\n  trainer:\n    replicas: {RANKS}\n    \
                     resources: {{memory: 96Mi}}\n    command: [python3, -u, {script}, {fault}, \"{rank}\"]\n"
                );
                sandbox.write("job.yaml", document);
            }
            Self::Copies => {
                let is_broken = Some(node) == kind.node_of_culprit(repetition);
                let interpreter = if is_broken && kind.fault == "no-interpreter" { "/opt/sh-17" } else { "/bin/sh" };
                let path = sandbox.write("alone.sh", format!("#!{interpreter}\nexec sleep 90\n"));
                let mode = if is_broken && kind.fault == "not-executable" { 0o644 } else { 0o755 };
                let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
                std::fs::set_permissions(path, permissions).expect("our own file");
            }
            _ => {}
        }
    }
}

impl Kind {
    /// `torch/exit-0/2-nodes`.
    pub(super) fn name(&self) -> String {
        let mut name = format!("{}/{}", self.work.name(), self.fault);
        match self.culprit {
            Culprit::Any | Culprit::NotFirst => {}
            Culprit::Two => name += "/twice",
            Culprit::Server => name += "/server",
            Culprit::Trainer => name += "/trainer",
            Culprit::Heter => name += "/heter",
        }
        match self.act {
            Act::None => {}
            Act::Signal(signal) => name.extend(["/signal-", &signal.to_string()]),
            Act::KillParent => name += "/parent-killed",
            Act::KillUmiak => name += "/umiak-killed",
            Act::CutLink => name += "/link-cut",
        }
        if self.nodes > 1 {
            name += "/2-nodes";
        }
        name
    }

    pub(super) fn needs(&self) -> Vec<Component> {
        let mut needs = vec![self.work.component()];
        needs.extend((self.nodes > 1).then_some(Netns));
        needs
    }

    pub(super) fn repetitions(&self) -> usize {
        match self.work {
            Work::Torch | Work::Paddle | Work::PaddleServers => 3,
            _ => 10,
        }
    }

    /// The numbers of the culprits among the processes of their part.
    fn numbers(&self, repetition: usize) -> Vec<usize> {
        match self.culprit {
            Culprit::Any => vec![repetition % RANKS],
            Culprit::NotFirst => vec![1 + repetition % (RANKS - 1)],
            Culprit::Two => [[0, 3], [1, 2], [0, 1], [2, 3]][repetition % 4].to_vec(),
            Culprit::Server | Culprit::Trainer | Culprit::Heter => vec![repetition % SERVERS],
        }
    }

    fn part(&self) -> &'static str {
        match self.culprit {
            Culprit::Server => "pserver",
            Culprit::Heter => "heter_trainer",
            Culprit::Any | Culprit::NotFirst | Culprit::Two | Culprit::Trainer => "trainer",
        }
    }

    /// The argument by which the script knows the culprit.
    fn argument(&self, repetition: usize) -> String {
        let numbers: Vec<String> = self.numbers(repetition).iter().map(usize::to_string).collect();
        let numbers = numbers.join(",");
        if self.work.has_servers() { format!("{}-{numbers}", self.part()) } else { numbers }
    }

    /// The replicas that are right to be named.
    pub(super) fn culprits(&self, repetition: usize) -> Vec<String> {
        self.numbers(repetition).iter().map(|number| format!("{}-{number}", self.part())).collect()
    }

    /// The ranks of a node.
    pub(super) fn replicas_of(&self, node: usize) -> Vec<String> {
        let share = RANKS / self.nodes;
        (node * share..(node + 1) * share).map(|rank| format!("trainer-{rank}")).collect()
    }

    pub(super) fn node_of_culprit(&self, repetition: usize) -> Option<usize> {
        let all = if self.work.has_servers() { SERVERS } else { RANKS };
        (self.nodes > 1).then(|| self.numbers(repetition)[0] / (all / self.nodes))
    }

    /// The command line of a node.
    pub(super) fn words(&self, repetition: usize, ips: Option<&str>) -> Vec<String> {
        if self.work == Work::Document {
            return ["run", "job.yaml"].map(str::to_owned).to_vec();
        }
        let mut words = vec!["launch".to_owned()];
        let mut flag = |name: &str, value: &dyn std::fmt::Display| words.extend([name.to_owned(), value.to_string()]);
        if self.work.has_servers() {
            flag("--server_num", &(SERVERS / self.nodes));
            flag("--worker_num", &(SERVERS / self.nodes));
            flag("--server-timeout", &if self.fault == "hang-sleep@start" { "3s" } else { "60s" });
        } else {
            flag("--nproc_per_node", &(RANKS / self.nodes));
        }
        if self.work == Work::Heter {
            flag("--heter_worker_num", &SERVERS);
            flag("--heter_devices", &"cpu");
        }
        flag("--grace", &"2s");
        if let Some(ips) = ips {
            flag("--ips", &ips);
            flag("--node-timeout", &if self.act == Act::CutLink { "2s" } else { "30s" });
            flag("--reconnect-window", &if self.act == Act::CutLink { "3s" } else { "60s" });
        }
        words.extend([self.work.script(), self.fault.to_owned(), self.argument(repetition)]);
        words.extend((self.timeout > 0).then(|| self.timeout.to_string()));
        words
    }
}
