//! Every key of a native document: one table, from which parsing, the JSON schema and the reference page come.

use crate::formats::document::keys::key;
pub use crate::formats::document::keys::{Key, KeyKind, Table};
use crate::model::{Contract, Exits, Part};

/// True for keys of the document that are ignored: a place for anchors.
pub fn is_extension(key: &str) -> bool {
    key.starts_with("x-")
}

/// Contracts of this version, and planned ones.
pub const CONTRACTS: &[(&str, Contract)] = &[
    ("paddle", Contract::Paddle),
    ("torch", Contract::Torch),
    ("pai", Contract::Pai),
    ("paddle-job", Contract::PaddleJob),
    ("pytorch-job", Contract::PytorchJob),
    ("tensorflow", Contract::Tensorflow),
    ("mpi", Contract::Mpi),
];
pub const LATER_CONTRACTS: &[&str] = &["jax", "volcano"];

/// Parts that a role may have.
pub const PARTS: &[(&str, Part)] = &[("leader", Part::Leader), ("server", Part::Server), ("trainer", Part::Trainer)];
pub(super) const PART_WORDS: &[&str] = &["leader", "server", "trainer"];

pub use crate::formats::document::limits::{MAX_PORTS, MAX_REPLICAS, MAX_RESTARTS, UNLIMITED};
/// Maximum number of steps at once.
pub const MAX_PARALLELISM: u32 = 10_000;
/// Maximum length of the name of a role, a step or a port.
pub const MAX_NAME: usize = 63;

/// The whole document.
pub static DOCUMENT: Table = Table {
    title: "The document",
    help: "Keys of the document itself. Keys that begin with `x-` are ignored; use them for anchors (`x-env: &env {A: 1}`, then `env: *env` or `<<: *env`).",
    keys: &[
        key("umiak", KeyKind::Version, "", "Version of the format: `v1`. This key identifies a native document.", "v1"),
        key(
            "name",
            KeyKind::Text,
            "the file's name",
            "Name of the job in lists and logs; it can select a run. It must not contain a secret parameter.",
            "ctr",
        ),
        key("labels", KeyKind::Texts, "", "Labels for people and filters; they do not affect the run.", "{team: ads}"),
        key(
            "params",
            KeyKind::Params,
            "",
            "Parameters and their defaults. `{{ name }}` in any text of the document becomes the value; `-p name=value` overrides it. A parameter without a default must be given.",
            "{epochs: 5, data: /data}",
        ),
        key(
            "secrets",
            KeyKind::Params,
            "",
            "Parameters whose values are secrets, whatever their names are. They are masked in everything that is recorded or shown. Leave a value empty to give it with `-p name=value`.",
            "{token: abc}",
        ),
        key(
            "contracts",
            KeyKind::Contracts,
            "none",
            "Environment variables that the replicas get: those of `paddle` or `torch`, or those that OpenPAI sets (`pai`). They apply to every role that decides the job's end.",
            "[paddle, torch]",
        ),
        key(
            "engine",
            KeyKind::Text,
            "`local`",
            "Where the job runs: `local`, `slurm`, `mpi`, `mock-cluster`, or an engine that `umiak.toml` names. When omitted, the engine of the queue, if `umiak.toml` gives it one. `--engine` overrides it.",
            "local",
        ),
        STORE,
        key(
            "policy",
            KeyKind::Mapping(&POLICY),
            "",
            "How the whole job is restarted, limited and stopped.",
            "{restarts: 2}",
        ),
        key(
            "roles",
            KeyKind::Named(&ROLE),
            "",
            "Required without `steps`. The roles, by name, in the order of ranks. A name consists of at most 63 letters, digits, `-`, `_` and `.`.",
            "{trainer: {command: \"true\"}}",
        ),
        key(
            "steps",
            KeyKind::Named(&STEP),
            "",
            "Jobs that run one after the other or at once, in place of `roles`: a pipeline. A name consists of at most 63 letters, digits, `-` and `_`, and begins with a letter.",
            "{prepare: {command: \"true\"}, train: {after: prepare, command: \"true\"}}",
        ),
        key(
            "parallelism",
            KeyKind::Number(1, MAX_PARALLELISM as i64),
            "`10`",
            "The maximum number of steps that run at once.",
            "4",
        ),
        key(
            "on_failure",
            KeyKind::Choice(ON_FAILURE),
            "`fail_fast`",
            "What a failed step does to the others. `fail_fast`: they are stopped or cancelled. `continue`: only steps that depend on it are cancelled.",
            "continue",
        ),
    ],
};

const STORE: Key = key(
    "store",
    KeyKind::Choice(STORES),
    "`rank0`",
    "The process that hosts torch's store: the first rank, or umiak (`agent`), so that every rank is a client. `agent` is not for scripts that set `MASTER_PORT` themselves, and not for the contract `pai`.",
    "agent",
);

/// Which process hosts torch's store.
pub(super) const STORES: &[&str] = &["rank0", "agent"];
/// The words of `on_failure`.
pub(super) const ON_FAILURE: &[&str] = &["fail_fast", "continue"];

pub static STEP: Table = Table {
    title: "A step",
    help: "A job of a pipeline. A step without `roles` is a job with one role, `main`, and has the keys of [a role](#a-role) itself: `command`, `env`, `restarts`, `timeout` and so on.",
    keys: &[
        key(
            "after",
            KeyKind::Names,
            "",
            "Steps that must have succeeded, or must have been skipped, before this one starts.",
            "prepare",
        ),
        key(
            "if",
            KeyKind::Text,
            "",
            "A condition, such as `{{ epochs }} > 3 && '{{ mode }}' == 'full'`. If it is false, the step is skipped, and what comes after it runs.",
            "1 < 2",
        ),
        key(
            "policy",
            KeyKind::Mapping(&POLICY),
            "",
            "How the job of the step is restarted, limited and stopped.",
            "{restarts: 2, timeout: 1h}",
        ),
        key("engine", KeyKind::Text, "the document's", "Where the step runs. `--engine` overrides it.", "local"),
        STORE,
        key("roles", KeyKind::Named(&ROLE), "", "The roles of a job with several.", "{trainer: {command: \"true\"}}"),
    ],
};

pub static POLICY: Table = Table {
    title: "`policy`",
    help: "Policies of the whole job.",
    keys: &[
        key(
            "restarts",
            KeyKind::Restarts(&RESTART),
            "`0`",
            "How many times to restart after a failure.",
            "{max: 2, backoff: 10s}",
        ),
        BACKOFF,
        MAX_BACKOFF,
        WINDOW,
        key(
            "scope",
            KeyKind::Choice(&["job", "role", "replica"]),
            "`job`",
            "What is restarted: all roles, the failed role, or only the failed replica. `role` and `replica` apply to every role without its own `restarts`.",
            "replica",
        ),
        key(
            "timeout",
            KeyKind::Duration,
            "none",
            "Time limit of the whole run, including restarts. A run that exceeds it ends with code 124.",
            "6h",
        ),
        key(
            "hang",
            KeyKind::Duration,
            "none",
            "The job fails, with the stacks of all replicas in `umiak explain`, if for this time none of them writes, reads or sends anything and no stack changes.",
            "30m",
        ),
        key(
            "grace",
            KeyKind::Duration,
            "`5s`",
            "Time from the first signal to SIGKILL when replicas are stopped.",
            "30s",
        ),
        key(
            "success",
            KeyKind::Choice(&["all", "first", "end"]),
            "`all`",
            "When the job succeeds. `all`: every role that decides has succeeded. `first`: one of them has; it ends the others. If all their replicas end without that, one that succeeded is enough. `end`: like `first`, but the job succeeds too if all replicas failed.",
            "first",
        ),
        key(
            "exits",
            KeyKind::Choice(Exits::WORDS),
            "by kind",
            "Which failures are repeated. `pai`: by OpenPAI's table of exit codes and log texts; a transient failure counts towards `max_platform`, a permanent one is not repeated. Without it, a program's own failure counts towards `max`.",
            "pai",
        ),
        key(
            "linger",
            KeyKind::Duration,
            "`0s`",
            "How long roles with `completes: false` may run on, to end by themselves, after the deciding ones have succeeded. They are then stopped.",
            "30s",
        ),
        key("gang", KeyKind::Bool, "`true`", "Start replicas only when there is room for all of them.", "false"),
        key(
            "settle",
            KeyKind::Duration,
            "`500ms`",
            "How long after the first failure a later exit may still be taken as the cause. It delays the report, not the stop.",
            "1s",
        ),
    ],
};

pub static RESTART: Table = Table {
    title: "`restarts` of the policy",
    help: "Restarts in full, as a mapping.",
    keys: &[MAX, MAX_PLATFORM, BACKOFF, PLATFORM_BACKOFF, MAX_BACKOFF, WINDOW],
};

pub static ROLE_RESTART: Table = Table {
    title: "`restart` of a role",
    help: "Restarts inside a role while the job keeps running. When they are used up, `completion` decides.",
    keys: &[
        MAX,
        key(
            "scope",
            KeyKind::Choice(&["role", "replica"]),
            "`replica`",
            "What is restarted: only the failed replica, or the whole role.",
            "role",
        ),
        MAX_PLATFORM,
        BACKOFF,
        PLATFORM_BACKOFF,
        MAX_BACKOFF,
        WINDOW,
    ],
};

const MAX: Key = key("max", KeyKind::Restart, "`0`", "Maximum number of restarts.", "3");
const MAX_PLATFORM: Key = key(
    "max_platform",
    KeyKind::Restart,
    "`10`",
    "Maximum number of restarts after failures outside the program (no memory to fork, a lost host). They do not count towards `max`.",
    "5",
);
const BACKOFF: Key =
    key("backoff", KeyKind::Duration, "`1s`", "Wait before the first restart; doubled for each further one.", "10s");
const PLATFORM_BACKOFF: Key = key(
    "platform_backoff",
    KeyKind::Duration,
    "`backoff`",
    "The same for failures outside the program, if it is another.",
    "1m",
);
const MAX_BACKOFF: Key = key("max_backoff", KeyKind::Duration, "`30s`", "The longest wait before a restart.", "5m");
const WINDOW: Key =
    key("window", KeyKind::Duration, "the whole run", "Only restarts within this last period count.", "1h");

pub static ROLE: Table = Table {
    title: "A role",
    help: "A group of replicas that run the same command.",
    keys: &[
        key("replicas", KeyKind::Number(1, MAX_REPLICAS as i64), "`1`", "Number of replicas.", "4"),
        key(
            "command",
            KeyKind::Command,
            "",
            "Required. A string is run by `/bin/sh -c`; a list is a program and its arguments, passed unchanged.",
            "[python, train.py]",
        ),
        key(
            "env",
            KeyKind::Texts,
            "",
            "Environment variables, in addition to those of the submitter and the contracts. Numbers and booleans are passed as written.",
            "{LR: 0.1}",
        ),
        key("dir", KeyKind::Text, "where the job was submitted", "Working directory of the replicas.", "src"),
        key(
            "own_dir",
            KeyKind::Bool,
            "`false`",
            "Start each attempt in a new directory with links to what is in `dir`. What it creates there stays in the run's directory. `UMIAK_SUBMIT_DIR` names the directory where the job was submitted.",
            "true",
        ),
        key(
            "mounts",
            KeyKind::Maps(&MOUNT),
            "",
            "Directories that the replicas see at other paths, as if mounted there. Only they see them.",
            "[{dir: data, path: /data}]",
        ),
        key("image", KeyKind::Text, "", "Container image, for engines that use images.", "\"python:3.12\""),
        key(
            "queue",
            KeyKind::Text,
            "",
            "Queue, for engines that have queues: `[queue.NAME]` in `umiak.toml`.",
            "default",
        ),
        key("priority", KeyKind::Text, "", "Priority, for engines that have priorities.", "high"),
        key("resources", KeyKind::Mapping(&RESOURCES), "", "What one replica needs.", "{cpu: 2, memory: 4Gi, gpu: 1}"),
        key(
            "flavour",
            KeyKind::Text,
            "",
            "Resources by name: `[flavour.NAME]` in `umiak.toml`, or `flavour1` (1 CPU, 1 GiB), `flavour2` (4 CPUs, 8 GiB, 1 GPU), `flavour3` (4 CPUs, 8 GiB, 2 GPUs). Values in `resources` override the flavour's.",
            "flavour1",
        ),
        key(
            "ports",
            KeyKind::Ports(&PORT),
            "",
            "Ports of each replica, by name: a count or a mapping. Names consist of letters, digits and `_`; in variables they are upper-case. A replica is ready when it listens on all of them.",
            "{rpc: 1, http: {port: 8080}}",
        ),
        key(
            "completes",
            KeyKind::Bool,
            "`true`",
            "Whether the end of this role decides the end of the job. A role that does not decide is stopped when the others have ended; that is not a failure.",
            "true",
        ),
        key(
            "completion",
            KeyKind::Mapping(&COMPLETION),
            "",
            "When the role has failed or succeeded.",
            "{min_failed: 1}",
        ),
        key(
            "restarts",
            KeyKind::Restarts(&ROLE_RESTART),
            "`0`",
            "How many times to restart a replica after a failure while the job keeps running.",
            "3",
        ),
        key(
            "restart",
            KeyKind::Restarts(&ROLE_RESTART),
            "`0`",
            "The same as `restarts`; use one of them.",
            "{max: 3, scope: role}",
        ),
        key(
            "start_after",
            KeyKind::StartAfter(&START_AFTER),
            "",
            "Roles that start first: a name, a mapping, or a list of them.",
            "[first]",
        ),
        key(
            "timeout",
            KeyKind::Duration,
            "none",
            "Time limit of one attempt of a replica. A replica that exceeds it has failed.",
            "1h",
        ),
        key(
            "start_timeout",
            KeyKind::Duration,
            "`10m` where another role waits for this one to be ready",
            "Time limit from the start of a replica until it listens on its ports. A replica that exceeds it has failed.",
            "2m",
        ),
        key("grace", KeyKind::Duration, "the policy's", "Time from the first signal to SIGKILL.", "1m"),
        key(
            "contracts",
            KeyKind::Contracts,
            "the document's",
            "Contracts of this role, instead of the document's.",
            "[torch]",
        ),
        key(
            "part",
            KeyKind::Choice(PART_WORDS),
            "",
            "Part of this role in the group of all roles that have one: their replicas are numbered together and know each other's endpoints, as in a distributed job of an operator. Without it a role with contracts is a group of its own.",
            "server",
        ),
    ],
};

pub static MOUNT: Table = Table {
    title: "A mount",
    help: "A directory that the replicas see at another path.",
    keys: &[
        key(
            "dir",
            KeyKind::Text,
            "",
            "Required. A directory of this host; a relative path starts where the job was submitted.",
            "data",
        ),
        key(
            "path",
            KeyKind::Text,
            "",
            "Required. Where the replicas see it: an absolute path. It need not exist on the host, unless the directory that should contain it can be written.",
            "/data",
        ),
        key("read_only", KeyKind::Bool, "`false`", "Replicas cannot change it.", "true"),
    ],
};

pub static RESOURCES: Table = Table {
    title: "`resources`",
    help: "Resources that one replica needs.",
    keys: &[
        key(
            "cpu",
            KeyKind::Cpu,
            "",
            "CPUs: `2`, `0.5` or `500m`. Not enforced, unless `--strict-resources` binds replicas to their CPUs.",
            "500m",
        ),
        key(
            "memory",
            KeyKind::Memory,
            "",
            "Memory: `4Gi`, `512M` or bytes. A limit where the engine can enforce it.",
            "4Gi",
        ),
        key("gpu", KeyKind::Number(0, 1024), "`0`", "Number of GPUs, reserved for the replica while it runs.", "1"),
        key("shm", KeyKind::Memory, "", "Size of `/dev/shm`, for engines that have containers.", "512Mi"),
        key(
            "storage",
            KeyKind::Memory,
            "",
            "Disk space for the files of the replica: a limit where the engine can enforce it.",
            "10Gi",
        ),
    ],
};

pub static COMPLETION: Table = Table {
    title: "`completion`",
    help: "When the role has ended.",
    keys: &[
        key(
            "min_failed",
            KeyKind::Number(0, MAX_REPLICAS as i64),
            "`1`",
            "Number of failed replicas that fails the role. With 0, failures never do: the role succeeds when all replicas have ended, even if all of them failed.",
            "1",
        ),
        key(
            "min_succeeded",
            KeyKind::AllOr,
            "`all`",
            "Number of successful replicas that completes the role. With `never` it completes when all have ended.",
            "all",
        ),
    ],
};

pub static PORT: Table = Table {
    title: "A port",
    help: "Ports of one name; a plain number means `count`.",
    keys: &[
        key("count", KeyKind::Number(1, MAX_PORTS as i64), "`1`", "Number of free ports.", "1"),
        key("port", KeyKind::Number(1, 65535), "a free one", "Fixed port, on the replica's own address.", "8080"),
    ],
};

pub static START_AFTER: Table = Table {
    title: "`start_after` in full",
    help: "The role to wait for, and the state to wait for.",
    keys: &[
        key("role", KeyKind::Text, "", "Required. Name of the role.", "first"),
        key(
            "when",
            KeyKind::Choice(&["started", "ready", "succeeded"]),
            "`ready` for a role with ports, else `started`",
            "`started`: all its processes exist. `ready`: all of them listen on their ports. `succeeded`: the role has succeeded.",
            "succeeded",
        ),
    ],
};

/// Every mapping, in the order of the reference page.
pub static TABLES: &[&Table] =
    &[&DOCUMENT, &STEP, &POLICY, &RESTART, &ROLE, &ROLE_RESTART, &MOUNT, &RESOURCES, &COMPLETION, &PORT, &START_AFTER];
