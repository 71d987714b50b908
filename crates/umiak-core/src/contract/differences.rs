//! Every visible difference between umiak and Paddle's launcher, with the reason.
//!
//! The conformance test runs one probe under real Paddle, in both generations, and under umiak, and compares
//! every variable, file and console line. It fails on a difference that is not listed here, and on an
//! entry that no longer differs.

use super::torch;
use crate::model::Generation;

/// Where a difference can be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Surface {
    Variable,
    /// A property of the rank's process: its parent, its standard input.
    Process,
    File,
    /// A line of stdout, stderr or the pod log.
    Console,
    Exit,
}

impl Surface {
    /// Every surface, in the order of the reference page.
    pub const ALL: [Self; 5] = [Self::Variable, Self::Process, Self::File, Self::Console, Self::Exit];
}

/// How it differs from Paddle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Only in umiak.
    Added,
    /// In both, with different values.
    Changed,
    /// Only in Paddle.
    Absent,
}

/// The jobs that an entry applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Jobs {
    All,
    /// Parameter-server jobs: `ps` and `ps-heter`.
    Servers,
    /// Jobs on several nodes. The comparison with Paddle is on one node; tests with several nodes check these.
    SeveralNodes,
}

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    pub surface: Surface,
    /// Names of variables, properties or files, or console lines; `*` stands for anything. Names that change from
    /// run to run are written as the conformance test writes them: `<ts>`, `<pod 1>`.
    pub patterns: &'static [&'static str],
    /// `None` for both generations.
    pub generation: Option<Generation>,
    pub jobs: Jobs,
    pub kind: Kind,
    pub reason: &'static str,
}

impl Difference {
    pub fn covers(&self, surface: Surface, generation: Generation, jobs: Jobs, kind: Kind, name: &str) -> bool {
        self.surface == surface
            && self.kind == kind
            && self.generation.is_none_or(|only| only == generation)
            && (self.jobs == Jobs::All || self.jobs == jobs)
            && self.patterns.iter().any(|pattern| matches(pattern, name))
    }
}

/// `*` matches any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            tail.is_empty()
                || rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(tail, &rest[at..]))
        }),
    }
}

/// The list.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        surface: Surface::Variable,
        patterns: torch::NAMES,
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "torch's variables are set besides Paddle's, so that scripts of either framework work",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &[
            "PADDLE_LOCAL_DEVICE_IDS",
            "PADDLE_WORLD_DEVICE_IDS",
            "PADDLE_WITH_GLOO",
            "PADDLE_GLOO_RENDEZVOUS",
            "PADDLE_GLOO_FS_PATH",
            "FLAGS_selected_accelerators",
            "PADDLE_COORDINATOR_ENDPOINTS",
        ],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "the legacy launcher's variables: always the union of both generations",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &[
            "PADDLE_MASTER",
            "PADDLE_GLOBAL_SIZE",
            "PADDLE_GLOBAL_RANK",
            "PADDLE_LOCAL_SIZE",
            "PADDLE_LOCAL_RANK",
            "PADDLE_NNODES",
            "PADDLE_AUTO_CLUSTER",
            "PADDLE_LOG_DIR",
            "PADDLE_BACKUP_ENV_PATH",
            "POD_NAME",
            "PADDLE_ROLE",
        ],
        generation: Some(Generation::Legacy),
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "the current launcher's variables: always the union of both generations",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["PADDLE_NNODES"],
        generation: Some(Generation::Current),
        jobs: Jobs::Servers,
        kind: Kind::Added,
        reason: "Paddle sets it only if no lists were given",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["PYTHONUNBUFFERED"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "1 unless it is set; Paddle disables buffering only for scripts that it starts with `python -u`",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["http_proxy", "https_proxy"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "ranks may need them to fetch data; `--compat paddle` removes them, as Paddle does",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["http_proxy_original", "https_proxy_original"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Absent,
        reason: "proxies keep their own names; `--compat paddle` renames them, as Paddle does",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["no_proxy"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "with a proxy, it includes the addresses of the nodes, so that ranks reach each other directly",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["CUDA_VISIBLE_DEVICES", "FLAGS_selected_gpus"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "ranks see only the chosen devices, and positions count among these: correct for torch's `LOCAL_RANK` too",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["CUDA_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Changed,
        reason: "the id of a visible device; Paddle sets its position among the visible ones, which names another device, and 0 on CPU",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["CUDA_DEVICE_ORDER"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "umiak numbers devices by PCI address; without the variable CUDA orders them by speed",
    },
    Difference {
        surface: Surface::Process,
        patterns: &["stdin"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "several ranks cannot share one stdin: only a single rank, or the rank that `--stdin` names, has the caller's",
    },
    Difference {
        surface: Surface::Process,
        patterns: &["parent is the launcher"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "ranks are children of the guardian, which stops them if the launcher dies",
    },
    Difference {
        surface: Surface::Process,
        patterns: &["is_session_leader", "leads its group"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Changed,
        reason: "a separate session, as for all other ranks: processes that it has started are stopped with it",
    },
    Difference {
        surface: Surface::File,
        patterns: &["endpoints.log"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "the legacy launcher's file, which Paddle's guide documents: always the union of both generations",
    },
    Difference {
        surface: Surface::File,
        patterns: &["endpoints.log"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Added,
        reason: "the file is written in every mode, with the trainers' endpoints",
    },
    Difference {
        surface: Surface::File,
        patterns: &["envlog.*", "backup_env.*.json", "*.<pod *>.log"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "the current launcher's files: always the union of both generations",
    },
    Difference {
        surface: Surface::File,
        patterns: &["backup_env.*.json"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "only the launcher's own variables, mode 0600: the rest of the environment may contain secrets",
    },
    Difference {
        surface: Surface::File,
        patterns: &["*.<pod *>.log"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "after Paddle's own two lines it has Paddle's console lines, because the console shows umiak's",
    },
    Difference {
        surface: Surface::File,
        patterns: &["serverlog.*", "workerlog.*"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Changed,
        reason: "output is appended, as in all other jobs; Paddle truncates these logs",
    },
    Difference {
        surface: Surface::File,
        patterns: &["*.gpu.log"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Absent,
        reason: "only with `--enable_gpu_log`: querying the driver every five seconds has a cost",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["*/extension_utils.py:*: UserWarning: *", "<frozen runpy>:*", "  warnings.warn(*"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Absent,
        reason: "Python's warnings about a launcher that imports the framework",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["UserWarning: Unset '*_proxy' to ensure stable NCCL communication *"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Absent,
        reason: "proxies are kept; with `--compat paddle` the line is printed",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["[<ts>] [*] launch*.py - *"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::All,
        kind: Kind::Absent,
        reason: "the legacy launcher prints every line twice, in two forms; the second is kept",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["LAUNCH INFO <ts> ------------------------- ERROR LOG DETAIL -------------------------"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Absent,
        reason: "the end of the failed rank's log is part of the failure report, without a heading",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["LAUNCH INFO <ts> Exit code *"],
        generation: Some(Generation::Current),
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "it shows the exit code, which is that of the rank that caused the failure",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["*ABORT!!! Out of all * trainers, *"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "the line of Paddle's guide, in both generations and on a line of its own",
    },
    Difference {
        surface: Surface::Console,
        patterns: &[
            "* planned * on * node*",
            "* started * in *",
            "* finished * in *",
            "✗ * on *",
            "  │ *",
            "  used *",
            "  log *",
            "  stopped by us  *",
            "notice[*]: *",
            "  --job_id *",
            "  PADDLE_JOB_ID *",
        ],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "umiak's own console lines",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["probe rank 0 *"],
        generation: None,
        jobs: Jobs::Servers,
        kind: Kind::Added,
        reason: "the console shows the first trainer's output, as in all other jobs",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["probe rank pserver-0 *"],
        generation: Some(Generation::Current),
        jobs: Jobs::Servers,
        kind: Kind::Absent,
        reason: "the first server's output, which Paddle shows instead, is in its log",
    },
    Difference {
        surface: Surface::Console,
        patterns: &[">>> *"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Absent,
        reason: "debug output left in Paddle's launcher",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["WARNING <ts> launch.py] launch start with CPUONLY mode"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Absent,
        reason: "Paddle prints it for CPU builds, umiak if there are no devices",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["| CUDA_VISIBLE_DEVICES *", "| XPU_VISIBLE_DEVICES *"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Changed,
        reason: "same as the variables",
    },
    Difference {
        surface: Surface::Console,
        patterns: &["gpus: *"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::All,
        kind: Kind::Added,
        reason: "the configuration block lists the flags of every build; Paddle's lists those of its CPU build",
    },
    Difference {
        surface: Surface::File,
        patterns: &["workerlog.*"],
        generation: None,
        jobs: Jobs::SeveralNodes,
        kind: Kind::Changed,
        reason: "named by global rank, as in Paddle's guide, so that nodes may share a directory; `--log-names local` counts on each node, as Paddle does",
    },
    Difference {
        surface: Surface::Variable,
        patterns: &["PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINER_ENDPOINTS"],
        generation: None,
        jobs: Jobs::SeveralNodes,
        kind: Kind::Changed,
        reason: "ports from 6070 up (legacy: 6170) if they are free on that node, otherwise other free ports; Paddle uses the same numbers on every node, free or not",
    },
    Difference {
        surface: Surface::Process,
        patterns: &["start"],
        generation: None,
        jobs: Jobs::SeveralNodes,
        kind: Kind::Changed,
        reason: "ranks start when all nodes have joined; with `--ips` Paddle starts the ranks of a node at once, and they wait for the others",
    },
    Difference {
        surface: Surface::Exit,
        patterns: &["exit code"],
        generation: None,
        jobs: Jobs::All,
        kind: Kind::Changed,
        reason: "the code of the rank that caused the failure; `--exit-codes paddle` gives Paddle's",
    },
    Difference {
        surface: Surface::Exit,
        patterns: &["exit code"],
        generation: Some(Generation::Legacy),
        jobs: Jobs::Servers,
        kind: Kind::Changed,
        reason: "Paddle exits with 0 if trainers have failed; `--exit-codes paddle` gives 1, as in all other jobs",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Additions are harmless to a drop-in replacement; changes and omissions must stay few.
    #[test]
    fn few_changes_and_each_with_its_reason() {
        let taken = DIFFERENCES.iter().filter(|entry| entry.kind != Kind::Added).count();
        assert!(taken <= 25, "{taken} entries change something or leave it out");
        for entry in DIFFERENCES {
            assert!(!entry.patterns.is_empty() && !entry.reason.is_empty(), "{entry:?}");
        }
    }

    #[test]
    fn patterns() {
        assert!(matches("TORCHELASTIC_*", "TORCHELASTIC_RUN_ID"));
        assert!(matches("*.gpu.log", "default.gpu.log"));
        assert!(matches("envlog.*", "envlog."));
        assert!(!matches("PADDLE_MASTER", "PADDLE_MASTERS"));
        assert!(!matches("*.gpu.log", "gpu.txt"));
    }
}
