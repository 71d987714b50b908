//! Every key of a native document: one table, from which parsing, the JSON schema and the reference page come.

/// A key of a mapping.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: KeyKind,
    /// What it is when left out, in words or as written; empty where nothing is.
    pub default: &'static str,
    /// One or two sentences, in Markdown.
    pub help: &'static str,
    /// A value that parses, in flow style.
    pub example: &'static str,
}

/// What a value may be.
#[derive(Debug)]
pub enum KeyKind {
    Version,
    /// One line or several.
    Text,
    /// A whole number in these bounds.
    Number(u32, u32),
    Bool,
    Duration,
    Cpu,
    Memory,
    Choice(&'static [&'static str]),
    /// Names to scalars.
    Texts,
    /// Names to scalars or to nothing.
    Params,
    /// A line for the shell, or a list of words.
    Command,
    /// One contract or a list.
    Contracts,
    /// `all` or a number.
    AllOr,
    /// A number of restarts, or a mapping.
    Restarts(&'static Table),
    /// Role names to roles, and the like.
    Named(&'static Table),
    /// Port names to a count or a mapping.
    Ports(&'static Table),
    /// A role name, a mapping, or a list of them.
    StartAfter(&'static Table),
    Mapping(&'static Table),
}

/// A mapping with fixed keys.
#[derive(Debug)]
pub struct Table {
    /// Its heading in the reference.
    pub title: &'static str,
    pub help: &'static str,
    pub keys: &'static [Key],
}

impl Table {
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

/// Keys of the document that mean nothing here: a place for anchors.
pub fn is_extension(key: &str) -> bool {
    key.starts_with("x-")
}

/// Contracts that exist, and those that will.
pub const CONTRACTS: &[&str] = &["paddle", "torch"];
pub const LATER_CONTRACTS: &[&str] = &["pai", "mpi", "tensorflow", "jax", "volcano"];

pub const MAX_REPLICAS: u32 = 100_000;
/// Of one replica.
pub const MAX_PORTS: u16 = 1024;

const fn key(
    name: &'static str,
    kind: KeyKind,
    default: &'static str,
    help: &'static str,
    example: &'static str,
) -> Key {
    Key { name, kind, default, help, example }
}

/// The whole document.
pub static DOCUMENT: Table = Table {
    title: "The document",
    help: "Keys of the document itself. Others that begin with `x-` are ignored: a place for anchors (`x-env: &env {A: 1}`, then `env: *env` or `<<: *env`).",
    keys: &[
        key(
            "umiak",
            KeyKind::Version,
            "",
            "The version of the format: `v1`. It is how a native document is recognised.",
            "v1",
        ),
        key(
            "name",
            KeyKind::Text,
            "the file's name",
            "The job's name in lists and logs. A run can be found by it. It cannot hold a secret parameter.",
            "ctr",
        ),
        key("labels", KeyKind::Texts, "", "For people and filters; they change nothing.", "{team: ads}"),
        key(
            "params",
            KeyKind::Params,
            "",
            "Parameters and their defaults. `{{ name }}` in any text of the document becomes the value; `-p name=value` replaces it. A parameter without a default must be given.",
            "{epochs: 5, data: /data}",
        ),
        key(
            "contracts",
            KeyKind::Contracts,
            "none",
            "The environments of frameworks that replicas are given: `paddle`, `torch`. They hold for every role that decides the job's end.",
            "[paddle, torch]",
        ),
        key(
            "policy",
            KeyKind::Mapping(&POLICY),
            "",
            "How the job as a whole is restarted, limited and stopped.",
            "{restarts: 2}",
        ),
        key(
            "roles",
            KeyKind::Named(&ROLE),
            "",
            "The roles, by name, in the order of ranks. A name has letters, digits, `-`, `_` and `.`, at most 63 of them.",
            "{trainer: {command: \"true\"}}",
        ),
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
            "How often it is started again after a failure.",
            "{max: 2, backoff: 10s}",
        ),
        BACKOFF,
        MAX_BACKOFF,
        WINDOW,
        key(
            "scope",
            KeyKind::Choice(&["job", "role", "replica"]),
            "`job`",
            "Who is started again: all roles, the role that failed, or the replica alone. `role` and `replica` hold for every role that does not say it itself.",
            "replica",
        ),
        key(
            "timeout",
            KeyKind::Duration,
            "none",
            "For the whole run, restarts and all. It then ends with code 124.",
            "6h",
        ),
        key("grace", KeyKind::Duration, "`5s`", "From the first signal to SIGKILL when replicas are stopped.", "30s"),
        key("gang", KeyKind::Bool, "`true`", "Nobody starts unless there is room for everybody.", "false"),
        key(
            "settle",
            KeyKind::Duration,
            "`500ms`",
            "How long after the first failure later exits may still turn out to be the cause. It delays the report, never the stopping.",
            "1s",
        ),
    ],
};

pub static RESTART: Table = Table {
    title: "`restarts` of the policy",
    help: "In full, where a number says too little.",
    keys: &[MAX, MAX_PLATFORM, BACKOFF, MAX_BACKOFF, WINDOW],
};

pub static ROLE_RESTART: Table = Table {
    title: "`restart` of a role",
    help: "Restarts inside a role while the job goes on. When they are spent, `completion` decides.",
    keys: &[
        MAX,
        key(
            "scope",
            KeyKind::Choice(&["role", "replica"]),
            "`replica`",
            "Who is started again: the replica that failed, or all of its role.",
            "role",
        ),
        MAX_PLATFORM,
        BACKOFF,
        MAX_BACKOFF,
        WINDOW,
    ],
};

const MAX: Key = key("max", KeyKind::Number(0, 1_000_000), "`0`", "This many restarts beside the first start.", "3");
const MAX_PLATFORM: Key = key(
    "max_platform",
    KeyKind::Number(0, 1_000_000),
    "`10`",
    "Failures that are not the program's (no memory to fork, a lost host) have this budget of their own.",
    "5",
);
const BACKOFF: Key =
    key("backoff", KeyKind::Duration, "`1s`", "Before the first restart; doubled for each further one.", "10s");
const MAX_BACKOFF: Key = key("max_backoff", KeyKind::Duration, "`30s`", "The longest wait before a restart.", "5m");
const WINDOW: Key =
    key("window", KeyKind::Duration, "the whole run", "Only restarts of this last stretch of time count.", "1h");

pub static ROLE: Table = Table {
    title: "A role",
    help: "Replicas with one command and one purpose.",
    keys: &[
        key("replicas", KeyKind::Number(1, MAX_REPLICAS), "`1`", "How many run.", "4"),
        key(
            "command",
            KeyKind::Command,
            "",
            "Required. A text is a line for `/bin/sh -c`; a list is a program and its arguments, untouched.",
            "[python, train.py]",
        ),
        key(
            "env",
            KeyKind::Texts,
            "",
            "Variables beside the submitter's and the contracts'. Numbers and booleans are taken as they are written.",
            "{LR: 0.1}",
        ),
        key("dir", KeyKind::Text, "where the job was submitted", "Where replicas start.", "src"),
        key("image", KeyKind::Text, "", "For engines that have images.", "\"python:3.12\""),
        key("queue", KeyKind::Text, "", "For engines that have queues; `[queue.NAME]` of `umiak.toml`.", "default"),
        key("priority", KeyKind::Text, "", "For engines that have priorities.", "high"),
        key("resources", KeyKind::Mapping(&RESOURCES), "", "What one replica needs.", "{cpu: 2, memory: 4Gi, gpu: 1}"),
        key(
            "flavour",
            KeyKind::Text,
            "",
            "Resources by name: `[flavour.NAME]` of `umiak.toml`, or `flavour1` (1 CPU, 1 GiB), `flavour2` (4 CPUs, 8 GiB, 1 GPU), `flavour3` (4 CPUs, 8 GiB, 2 GPUs). What `resources` says wins.",
            "flavour1",
        ),
        key(
            "ports",
            KeyKind::Ports(&PORT),
            "",
            "Ports that each replica is given, by name: how many, or a mapping. Names have lower case letters, digits and `_`. A replica is ready when all of them answer.",
            "{rpc: 1, http: {port: 8080}}",
        ),
        key(
            "completes",
            KeyKind::Bool,
            "`true`",
            "Whether its end decides the job's. A role that does not decide is stopped, without blame, when the others have ended.",
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
            "How often a replica is started again after a failure, while the job goes on.",
            "3",
        ),
        key(
            "restart",
            KeyKind::Restarts(&ROLE_RESTART),
            "`0`",
            "The same as `restarts`; one of them is enough.",
            "{max: 3, scope: role}",
        ),
        key(
            "start_after",
            KeyKind::StartAfter(&START_AFTER),
            "",
            "Roles that come first: a name, a mapping, or a list of them.",
            "[first]",
        ),
        key("timeout", KeyKind::Duration, "none", "For one attempt of a replica. It has then failed.", "1h"),
        key(
            "start_timeout",
            KeyKind::Duration,
            "`10m` where another role waits for this one to be ready",
            "From the start of a replica until its ports answer. It has then failed.",
            "2m",
        ),
        key("grace", KeyKind::Duration, "the policy's", "From the first signal to SIGKILL.", "1m"),
        key("contracts", KeyKind::Contracts, "the document's", "Instead of the document's.", "[torch]"),
    ],
};

pub static RESOURCES: Table = Table {
    title: "`resources`",
    help: "What one replica needs of a host.",
    keys: &[
        key(
            "cpu",
            KeyKind::Cpu,
            "",
            "CPUs: `2`, `0.5` or `500m`. Advice, unless `--strict-resources` binds replicas to their own.",
            "500m",
        ),
        key("memory", KeyKind::Memory, "", "`4Gi`, `512M` or bytes. A limit, where the engine can enforce it.", "4Gi"),
        key("gpu", KeyKind::Number(0, 1024), "`0`", "Whole GPUs, which nobody else is given meanwhile.", "1"),
    ],
};

pub static COMPLETION: Table = Table {
    title: "`completion`",
    help: "When the role has ended.",
    keys: &[
        key(
            "min_failed",
            KeyKind::Number(0, MAX_REPLICAS),
            "`1`",
            "This many failed replicas fail the role; 0 means that failures never do: it has succeeded when all replicas have ended, even if none of them well.",
            "1",
        ),
        key("min_succeeded", KeyKind::AllOr, "`all`", "This many successes complete the role.", "all"),
    ],
};

pub static PORT: Table = Table {
    title: "A port",
    help: "Ports of one name; a plain number is `count`.",
    keys: &[
        key("count", KeyKind::Number(1, MAX_PORTS as u32), "`1`", "This many free ports.", "1"),
        key("port", KeyKind::Number(1, 65535), "a free one", "This very port, on the replica's own address.", "8080"),
    ],
};

pub static START_AFTER: Table = Table {
    title: "`start_after` in full",
    help: "Which role, and what of it is waited for.",
    keys: &[
        key("role", KeyKind::Text, "", "Required. Its name.", "first"),
        key(
            "when",
            KeyKind::Choice(&["started", "ready", "succeeded"]),
            "`ready` for a role with ports, else `started`",
            "`started`: all its processes exist. `ready`: all its ports answer. `succeeded`: it has ended well.",
            "succeeded",
        ),
    ],
};

/// Every mapping, in the order of the reference page.
pub static TABLES: &[&Table] =
    &[&DOCUMENT, &POLICY, &RESTART, &ROLE, &ROLE_RESTART, &RESOURCES, &COMPLETION, &PORT, &START_AFTER];
