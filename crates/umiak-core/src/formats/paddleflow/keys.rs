//! The keys of PaddleFlow's pipelines, and what each does here: parsing and the reference page use them.

use crate::formats::document::keys::{Key, KeyKind, Table, key};

/// The most replicas of a member.
pub(super) const MAX_REPLICAS: u32 = 10_000;
/// PaddleFlow replaces other values of `parallelism`.
pub(super) const PARALLELISM: u32 = 10;
pub(super) const MAX_PARALLELISM: u32 = 20;

const TYPE: Key = key("type", KeyKind::Text, "", "`step` or `dag`, in any case. Optional.", "step");
const DEPS: Key = key(
    "deps",
    KeyKind::Text,
    "",
    "Names of components beside this one that must have ended well before it starts, separated by commas.",
    "'preprocess, split'",
);
const PARAMETERS: Key = key(
    "parameters",
    KeyKind::Named(&PARAMETER),
    "",
    "Values for templates: a number, a text, a list, or a mapping with a type. `-p name=value` replaces the value in every component that has the parameter, `-p step.name=value` in one.",
    "{epoch: 15, data: '{{PF_RUN_ID}}'}",
);
const CONDITION: Key = key(
    "condition",
    KeyKind::Text,
    "",
    "An expression. If it is false, the component is skipped. Templates insert parameters and the contents of input artifacts.",
    "'{{epoch}} > 10'",
);
const LOOP: Key = key(
    "loop_argument",
    KeyKind::Any,
    "",
    "It runs once for each item of a list, of a text with a JSON list, or of an own parameter or input artifact that contains one. `PF_LOOP_ARGUMENT` is the item. Without items the component is skipped.",
    "[1, 2, 3]",
);
const IMAGE: Key = key("docker_env", KeyKind::Text, "", "The image, for engines that have images.", "'centos:7'");
const CACHE: Key = key(
    "cache",
    KeyKind::Mapping(&CACHING),
    "",
    "Whether results of earlier runs are used. Options of a step win over those of the pipeline.",
    "{enable: true}",
);
const EXTRA: &str = "Further file systems. Those of a step come before those of the pipeline.";
const ENV: Key = key(
    "env",
    KeyKind::Texts,
    "",
    "Variables of its processes: texts and numbers. Some steer the job: `PF_JOB_FLAVOUR`, `PF_JOB_QUEUE_NAME`, `PF_JOB_PRIORITY`, `PF_JOB_RESTART_POLICY`, `PF_MOUNT_PATH=NONE`.",
    "{PF_JOB_FLAVOUR: flavour1, LR: 0.1}",
);

pub static DOCUMENT: Table = Table {
    title: "The pipeline",
    help: "A document is recognised by `entry_points`. Other keys are errors. JSON with PaddleFlow's camelCase keys (`entryPoints`) is accepted too.",
    keys: &[
        key(
            "name",
            KeyKind::Text,
            "",
            "Required. At most 128 letters, digits, `_` and `-`, not beginning with a digit or `-`.",
            "ctr",
        ),
        IMAGE,
        key(
            "entry_points",
            KeyKind::Named(&STEP),
            "",
            "Required. The components, by name: at most 30 letters, digits and `-`, beginning with a letter. One that has `entry_points` is a DAG, any other a step.",
            "{train: {command: make}}",
        ),
        key(
            "components",
            KeyKind::Named(&STEP),
            "",
            "Components that others use by `reference`. They have no `deps`.",
            "{show: {command: ls}}",
        ),
        key(
            "parallelism",
            KeyKind::Number(0, 20),
            "`10`",
            "The maximum number of steps that run at once. As in PaddleFlow, 0 and less become 10, more than 20 become 20.",
            "4",
        ),
        key("disabled", KeyKind::Text, "", "Components to skip, separated by commas: `a`, `dag.child`.", "'a, dag.b'"),
        CACHE,
        key(
            "failure_options",
            KeyKind::Mapping(&FAILURE),
            "",
            "What happens to the rest when a step fails.",
            "{strategy: continue}",
        ),
        key(
            "post_process",
            KeyKind::Named(&STEP),
            "",
            "At most one step, which runs when everything else has ended, whatever happened.",
            "{mail: {command: make}}",
        ),
        key("fs_options", KeyKind::Mapping(&FILES), "", "File systems of all steps.", "{main_fs: {name: ppl}}"),
    ],
};

pub static STEP: Table = Table {
    title: "A step",
    help: "One command, or one distributed job. Other keys are errors.",
    keys: &[
        TYPE,
        key("command", KeyKind::Text, "", "A line for the shell, `sh -c`.", "'python train.py {{epoch}}'"),
        DEPS,
        PARAMETERS,
        ENV,
        IMAGE,
        key(
            "artifacts",
            KeyKind::Mapping(&ARTIFACTS),
            "",
            "Files and directories that steps give to each other, on the main file system.",
            "{output: [model]}",
        ),
        CACHE,
        key("extra_fs", KeyKind::Maps(&MOUNT), "", EXTRA, "[{name: data, mount_path: /data}]"),
        CONDITION,
        LOOP,
        key(
            "reference",
            KeyKind::Mapping(&REFERENCE),
            "",
            "Uses one of `components` under this name. The step may then have only `deps`, `parameters` and input artifacts.",
            "{component: show}",
        ),
        key(
            "distributed_job",
            KeyKind::Mapping(&DISTRIBUTED),
            "",
            "Processes in several roles instead of one. Pull request #1164 of PaddleFlow; the develop branch rejects it.",
            "{framework: paddle, members: [{role: worker, replicas: 2, command: make}]}",
        ),
        key(
            "retries",
            KeyKind::Restarts(&RETRIES),
            "`0`",
            "Restarts of the step after it has failed. PaddleFlow rejects this key.",
            "3",
        ),
        key(
            "timeout",
            KeyKind::Duration,
            "",
            "Time limit of the step, restarts included. PaddleFlow rejects this key.",
            "1h",
        ),
        key(
            "engine",
            KeyKind::Text,
            "",
            "Where the step runs: `local`, `slurm`, `mpi`, or an engine that `umiak.toml` names. When omitted, the engine of its queue, if `umiak.toml` gives it one, or else `local`. `--engine` overrides it. PaddleFlow rejects this key.",
            "local",
        ),
    ],
};

pub static DAG: Table = Table {
    title: "A DAG",
    help: "A component with components of its own. Other keys are errors.",
    keys: &[
        TYPE,
        key("entry_points", KeyKind::Named(&STEP), "", "Its components.", "{a: {command: make}}"),
        DEPS,
        PARAMETERS,
        key(
            "artifacts",
            KeyKind::Mapping(&DAG_ARTIFACTS),
            "",
            "Input artifacts for its components, and outputs of its components that others may use.",
            "{output: {model: '{{a.model}}'}}",
        ),
        CONDITION,
        LOOP,
    ],
};

pub static PARAMETER: Table = Table {
    title: "A parameter with a type",
    help: "A parameter is a number, a text, a list, or this mapping.",
    keys: &[
        key("type", KeyKind::Choice(TYPES), "", "Required. Values on the command line are converted to it.", "int"),
        key("default", KeyKind::Any, "", "The value. Without one, it must be given: `-p step.name=value`.", "15"),
    ],
};

pub static ARTIFACTS: Table = Table {
    title: "`artifacts` of a step",
    help: "Templates in `command` insert their paths, and variables contain them: `PF_INPUT_ARTIFACT_NAME`, `PF_OUTPUT_ARTIFACT_NAME`.",
    keys: &[
        key(
            "input",
            KeyKind::Texts,
            "",
            "Names to outputs of components in `deps`, or of an input of the DAG: `{{PF_PARENT.name}}`.",
            "{data: '{{preprocess.data}}'}",
        ),
        key("output", KeyKind::Lines, "", "Names. The step makes them at the paths that it is given.", "[model]"),
    ],
};

pub static DAG_ARTIFACTS: Table = Table {
    title: "`artifacts` of a DAG",
    help: "",
    keys: &[
        key("input", KeyKind::Texts, "", "As for steps.", "{data: '{{preprocess.data}}'}"),
        key("output", KeyKind::Texts, "", "Names to outputs of its components.", "{model: '{{a.model}}'}"),
    ],
};

pub static CACHING: Table = Table {
    title: "`cache`",
    help: "",
    keys: &[
        key("enable", KeyKind::Bool, "`false`", "Use results of earlier runs.", "true"),
        key(
            "max_expired_time",
            KeyKind::Number(-1, 3_000_000_000),
            "`-1`",
            "Age of results in seconds; -1 for any.",
            "86400",
        ),
        key(
            "fs_scope",
            KeyKind::Maps(&SCOPE),
            "",
            "Files whose contents count as inputs.",
            "[{name: ppl, path: /code}]",
        ),
    ],
};

pub static SCOPE: Table = Table {
    title: "An item of `fs_scope`",
    help: "",
    keys: &[
        key("name", KeyKind::Text, "", "Required. A file system of the step.", "ppl"),
        key("path", KeyKind::Text, "`/`", "Paths on it, separated by commas.", "/code"),
    ],
};

pub static FAILURE: Table = Table {
    title: "`failure_options`",
    help: "",
    keys: &[key(
        "strategy",
        KeyKind::Choice(STRATEGIES),
        "`fail_fast`",
        "`fail_fast` stops everything else, `continue` cancels only what depends on the failed step.",
        "continue",
    )],
};

pub static FILES: Table = Table {
    title: "`fs_options`",
    help: "File systems are directories: `[fs.NAME]` in `umiak.toml`, or `--fs NAME=DIR`; others are the current directory.",
    keys: &[
        key(
            "main_fs",
            KeyKind::Mapping(&MOUNT),
            "",
            "Keeps artifacts, and is the working directory of steps.",
            "{name: ppl}",
        ),
        key("extra_fs", KeyKind::Maps(&MOUNT), "", EXTRA, "[{name: data}]"),
    ],
};

pub static MOUNT: Table = Table {
    title: "A file system of steps",
    help: "",
    keys: &[
        key("name", KeyKind::Text, "", "Required. Its name.", "ppl"),
        key(
            "mount_path",
            KeyKind::Text,
            "its own place",
            "Where steps see it. Needs a mount namespace, unless the path leads there.",
            "/data",
        ),
        key("sub_path", KeyKind::Text, "", "A directory on it, which is mounted instead of the whole.", "code"),
        key("read_only", KeyKind::Bool, "`false`", "Steps cannot write to it.", "true"),
    ],
};

pub static REFERENCE: Table = Table {
    title: "`reference`",
    help: "",
    keys: &[key("component", KeyKind::Text, "", "Required. One of `components`.", "show")],
};

pub static RETRIES: Table = Table {
    title: "`retries`",
    help: "",
    keys: &[
        key("max", KeyKind::Restart, "`0`", "Number of restarts.", "3"),
        key(
            "backoff",
            KeyKind::Duration,
            "`1s`",
            "Delay before the first restart; doubled for each further one.",
            "10s",
        ),
    ],
};

pub static DISTRIBUTED: Table = Table {
    title: "`distributed_job`",
    help: "Other keys are ignored, with a notice.",
    keys: &[
        key("framework", KeyKind::Choice(FRAMEWORKS), "", "Required. What sets the variables of members.", "paddle"),
        key(
            "members",
            KeyKind::Maps(&MEMBER),
            "",
            "The roles. Without members the step is a single process.",
            "[{role: worker, replicas: 2}]",
        ),
    ],
};

pub static MEMBER: Table = Table {
    title: "A member",
    help: "Processes with one role. Other keys are ignored, with a notice. Only `command` may have templates.",
    keys: &[
        key(
            "role",
            KeyKind::Choice(ROLES),
            "",
            "Required. `pworker` is `worker`. With `mpi`, `master` is the launcher. Members may share a role: their indices go on.",
            "worker",
        ),
        key("replicas", KeyKind::Number(1, MAX_REPLICAS as i64), "", "Required. Number of processes.", "2"),
        key("image", KeyKind::Text, "the step's", "The image, for engines that have images.", "'paddle:2'"),
        key("port", KeyKind::Number(0, 65534), "", "A fixed port, on the address of each replica.", "8080"),
        key("command", KeyKind::Text, "the step's", "A line for the shell.", "make"),
        key(
            "flavour",
            KeyKind::Mapping(&FLAVOUR),
            "`PF_JOB_FLAVOUR` of the step",
            "Resources of each replica.",
            "{name: flavour1}",
        ),
        key("env", KeyKind::Texts, "", "Variables in addition to the step's; of equal names, these.", "{LR: 0.1}"),
        key(
            "queue",
            KeyKind::Text,
            "the step's",
            "The same in all members, and `PF_JOB_QUEUE_NAME` of the step unless it is `default-queue`. Early versions of the pull request.",
            "default-queue",
        ),
        key(
            "priority",
            KeyKind::Text,
            "the step's",
            "`low`, `normal` or `high`, in any case. Early versions of the pull request.",
            "high",
        ),
        key(
            "fs",
            KeyKind::Mapping(&MEMBER_FS),
            "the main file system",
            "Instead of the main file system.",
            "{name: data}",
        ),
        key(
            "extra_fs",
            KeyKind::Maps(&MEMBER_FS),
            "the step's",
            "Instead of the step's.",
            "[{name: data, mountPath: /data}]",
        ),
        key("labels", KeyKind::Texts, "", "Labels of the job.", "{team: ads}"),
        key("annotations", KeyKind::Texts, "", "Not used.", "{note: x}"),
    ],
};

pub static FLAVOUR: Table = Table {
    title: "`flavour`",
    help: "A name from `umiak.toml`, values, or both: the values fill what the named flavour does not have. Other keys are ignored, with a notice.",
    keys: &[
        key("name", KeyKind::Text, "", "`flavour1` and others that PaddleFlow installs are built in.", "flavour1"),
        key("cpu", KeyKind::Cpu, "", "CPUs.", "'2'"),
        key("mem", KeyKind::Memory, "", "Memory.", "4Gi"),
        key(
            "scalar_resources",
            KeyKind::Texts,
            "",
            "`nvidia.com/gpu` is the number of GPUs; others are not used. `scalarResources` is the same.",
            "{nvidia.com/gpu: '1'}",
        ),
    ],
};

pub static MEMBER_FS: Table = Table {
    title: "A file system of a member",
    help: "`mountPath` and the like are the same. Other keys are ignored, with a notice.",
    keys: &[
        key("name", KeyKind::Text, "", "Required, unless there is `host_path`.", "data"),
        key("host_path", KeyKind::Text, "", "A directory on the host.", "/data"),
        key("mount_path", KeyKind::Text, "its own place", "Where replicas see it.", "/data"),
        key("sub_path", KeyKind::Text, "", "A directory on it, which is mounted instead of the whole.", "code"),
        key("read_only", KeyKind::Bool, "`false`", "Replicas cannot write to it.", "true"),
    ],
};

/// Types of parameters.
pub(super) const TYPES: &[&str] = &["string", "int", "float", "path", "list"];
pub(super) const STRATEGIES: &[&str] = &["fail_fast", "continue"];
/// Frameworks that can be run.
pub(super) const FRAMEWORKS: &[&str] = &["paddle", "pytorch", "tensorflow", "mpi"];
pub(super) const ROLES: &[&str] = &["pserver", "master", "worker", "pworker"];

/// Every mapping, in the order of the reference page.
pub static TABLES: &[&Table] = &[
    &DOCUMENT,
    &STEP,
    &DAG,
    &PARAMETER,
    &ARTIFACTS,
    &DAG_ARTIFACTS,
    &CACHING,
    &SCOPE,
    &FAILURE,
    &FILES,
    &MOUNT,
    &REFERENCE,
    &RETRIES,
    &DISTRIBUTED,
    &MEMBER,
    &FLAVOUR,
    &MEMBER_FS,
];

/// PaddleFlow's JSON form: its spelling of keys, and ours.
pub(super) const CAMEL: &[(&str, &str)] = &[
    ("dockerEnv", "docker_env"),
    ("entryPoints", "entry_points"),
    ("failureOptions", "failure_options"),
    ("postProcess", "post_process"),
    ("loopArgument", "loop_argument"),
    ("extraFS", "extra_fs"),
    ("fsOptions", "fs_options"),
    ("mainFS", "main_fs"),
    ("maxExpiredTime", "max_expired_time"),
    ("fsScope", "fs_scope"),
    ("mountPath", "mount_path"),
    ("subPath", "sub_path"),
    ("readOnly", "read_only"),
    ("distributedJob", "distributed_job"),
    ("hostPath", "host_path"),
    ("scalarResources", "scalar_resources"),
];
