//! The keys of OpenPAI's protocol, version 2, and what each does here: parsing and the reference page use them.

use crate::formats::document::keys::{Key, KeyKind, Table, key};

const PROTOCOL: Key =
    key("protocolVersion", KeyKind::Choice(&["2"]), "", "Version of the protocol; optional here.", "2");
const VERSION: Key = key("version", KeyKind::Text, "", "For people.", "1.0");
const CONTRIBUTOR: Key = key("contributor", KeyKind::Text, "", "For people.", "li");
const DESCRIPTION: Key = key("description", KeyKind::Text, "", "For people.", "Trains a model.");
const BEFORE: Key = key("preCommands", KeyKind::Lines, "", "Commands before those of the task role.", "[make]");
const AFTER: Key =
    key("postCommands", KeyKind::Lines, "", "Commands after those of the task role, if these succeed.", "[make clean]");

pub static DOCUMENT: Table = Table {
    title: "The document",
    help: "A document is recognised by `protocolVersion` or `taskRoles`. Other keys are errors.",
    keys: &[
        key("protocolVersion", KeyKind::Choice(&["2"]), "", "Required. Version of the protocol: `2`.", "2"),
        key(
            "name",
            KeyKind::Text,
            "",
            "Required. Name of the job in lists and logs: at most 200 letters, digits, `-` and `_`.",
            "train",
        ),
        key("type", KeyKind::Choice(&["job"]), "", "Required.", "job"),
        VERSION,
        CONTRIBUTOR,
        DESCRIPTION,
        key(
            "prerequisites",
            KeyKind::Maps(&PREREQUISITE),
            "",
            "Images, data, scripts and outputs that task roles use by name.",
            "[{type: dockerimage, name: image, uri: python:3}]",
        ),
        key(
            "parameters",
            KeyKind::Any,
            "",
            "Values of `<% $parameters.name %>` in commands. `-p name=value` overrides them.",
            "{epochs: 5}",
        ),
        key(
            "secrets",
            KeyKind::Any,
            "",
            "Values of `<% $secrets.name %>`, masked in everything that is recorded or shown. `-p secrets.name=value` overrides them, and gives those that OpenPAI has masked.",
            "{token: abc}",
        ),
        key(
            "jobRetryCount",
            KeyKind::Number(0, MAX_RETRIES as i64),
            "`0`",
            "Restarts of the whole job after failures of unknown class. Transient failures have their own 10.",
            "3",
        ),
        key(
            "taskRoles",
            KeyKind::Named(&ROLE),
            "",
            "Required. The task roles, by name: letters, digits and `_`, not beginning with a digit. Two names that differ only in case or in `_` are refused.",
            "{worker: {dockerImage: image, resourcePerInstance: {cpu: 1, memoryMB: 64, gpu: 0}, commands: [make]}}",
        ),
        key(
            "deployments",
            KeyKind::Maps(&DEPLOYMENT),
            "",
            "Commands around those of task roles, for one place. `defaults.deployment` selects one.",
            "[{name: prod, taskRoles: {worker: {preCommands: [make]}}}]",
        ),
        key(
            "defaults",
            KeyKind::Mapping(&DEFAULTS),
            "",
            "The cluster and the deployment.",
            "{virtualCluster: default}",
        ),
        key(
            "extras",
            KeyKind::Mapping(&EXTRAS),
            "",
            "Settings of the platform, and plugins.",
            "{gangAllocation: false}",
        ),
    ],
};

pub static PREREQUISITE: Table = Table {
    title: "A prerequisite",
    help: "Data, a script or an output. It may have other keys: `<% $data.key %>`, `$script` and `$output` insert values of what the task role uses.",
    keys: &[
        PROTOCOL,
        key(
            "name",
            KeyKind::Text,
            "",
            "Required. Task roles refer to it by this name, which is unique for its type.",
            "set",
        ),
        key("type", KeyKind::Choice(PREREQUISITES), "", "Required. What it is.", "data"),
        VERSION,
        CONTRIBUTOR,
        DESCRIPTION,
        key("uri", KeyKind::Lines, "", "Where it is: a list for `data`, else a text. Nothing is fetched.", "[/data]"),
        key(
            "plugin",
            KeyKind::Text,
            "",
            "The plugin that prepares it, for task roles that list it under `prerequisites`. `com.microsoft.pai.runtimeplugin.cmd` runs the commands of its keys `callbacks`, `preCommands` and `postCommands`; others are not used.",
            "com.microsoft.pai.runtimeplugin.cmd",
        ),
        key("require", KeyKind::Lines, "", "Not used.", "[other]"),
    ],
};

pub static IMAGE: Table = Table {
    title: "An image",
    help: "A prerequisite of type `dockerimage`. Other keys are errors.",
    keys: &[
        PROTOCOL,
        key("name", KeyKind::Text, "", "Required. Task roles refer to it by this name.", "image"),
        key("type", KeyKind::Choice(PREREQUISITES), "", "Required.", "dockerimage"),
        VERSION,
        CONTRIBUTOR,
        DESCRIPTION,
        key("uri", KeyKind::Text, "", "Required. The image, for engines that use images.", "python:3"),
        key("auth", KeyKind::Mapping(&AUTH), "", "How to fetch it. Not used.", "{username: li}"),
    ],
};

pub static AUTH: Table = Table {
    title: "`auth`",
    help: "Credentials of an image. Not used.",
    keys: &[
        key("username", KeyKind::Text, "", "Not used.", "li"),
        key("password", KeyKind::Text, "", "Not used; masked.", "abc"),
        key("registryuri", KeyKind::Text, "", "Not used.", "registry.example"),
    ],
};

pub static ROLE: Table = Table {
    title: "A task role",
    help: "Instances that run the same commands. Other keys are errors.",
    keys: &[
        PROTOCOL,
        key("instances", KeyKind::Number(1, MAX_INSTANCES as i64), "`1`", "Number of instances.", "2"),
        key(
            "completion",
            KeyKind::Mapping(&COMPLETION),
            "",
            "When the task role ends the job.",
            "{minFailedInstances: 1}",
        ),
        key(
            "taskRetryCount",
            KeyKind::Number(-2, MAX_RETRIES as i64),
            "`0`",
            "Restarts of a single instance, with `extras: {gangAllocation: false}`; negative numbers mean no limit.",
            "3",
        ),
        key(
            "prerequisites",
            KeyKind::Lines,
            "",
            "Prerequisites whose plugins prepare the instances, in this order.",
            "[image]",
        ),
        key("dockerImage", KeyKind::Text, "", "Required. Name of the image.", "image"),
        key("data", KeyKind::Text, "", "Name of the prerequisite for `<% $data.key %>`.", "set"),
        key("output", KeyKind::Text, "", "Name of the prerequisite for `<% $output.key %>`.", "model"),
        key("script", KeyKind::Text, "", "Name of the prerequisite for `<% $script.key %>`.", "code"),
        key("extraContainerOptions", KeyKind::Mapping(&CONTAINER), "", "Options of the container.", "{shmMB: 64}"),
        key(
            "resourcePerInstance",
            KeyKind::Mapping(&RESOURCES),
            "",
            "Required. What one instance needs.",
            "{cpu: 1, memoryMB: 64, gpu: 0}",
        ),
        key(
            "commands",
            KeyKind::Lines,
            "",
            "Required. The lines of one bash script with `errexit`, `nounset` and `pipefail`.",
            "[python train.py]",
        ),
    ],
};

pub static COMPLETION: Table = Table {
    title: "`completion`",
    help: "When the task role ends the job. `null` and `0` mean the default.",
    keys: &[
        key(
            "minFailedInstances",
            KeyKind::Number(-1, MAX_INSTANCES as i64),
            "`1`",
            "Number of failed instances that fails the job; -1 means never.",
            "1",
        ),
        key(
            "minSucceededInstances",
            KeyKind::Number(-1, MAX_INSTANCES as i64),
            "all",
            "Number of successful instances that ends the job with success; -1 means never.",
            "1",
        ),
    ],
};

pub static RESOURCES: Table = Table {
    title: "`resourcePerInstance`",
    help: "What one instance needs. Other keys are errors.",
    keys: &[
        key(
            "cpu",
            KeyKind::Number(0, 100_000),
            "",
            "Required. CPUs. Not enforced, unless `--strict-resources` binds instances to their CPUs.",
            "2",
        ),
        key(
            "memoryMB",
            KeyKind::Number(0, u32::MAX as i64),
            "",
            "Required. Memory in MiB: a limit where the engine can enforce it.",
            "4096",
        ),
        key(
            "gpu",
            KeyKind::Number(0, 1024),
            "",
            "Required. GPUs, reserved for the instance. With 0 it sees none.",
            "1",
        ),
        key(
            "ports",
            KeyKind::Counts,
            "",
            "Number of ports by label, reserved for the instance. Labels keep their case. `ssh` and `http` are always there.",
            "{SynPort: 1}",
        ),
    ],
};

pub static CONTAINER: Table = Table {
    title: "`extraContainerOptions`",
    help: "Options of the container. Other keys are ignored.",
    keys: &[
        key(
            "shmMB",
            KeyKind::Number(0, u32::MAX as i64),
            "",
            "Size of `/dev/shm` in MiB, for engines that have containers.",
            "512",
        ),
        key("infiniband", KeyKind::Bool, "`false`", "Not used.", "true"),
    ],
};

pub static DEPLOYMENT: Table = Table {
    title: "A deployment",
    help: "Commands around those of task roles. Other keys are errors.",
    keys: &[
        key("name", KeyKind::Text, "", "Required. `defaults.deployment` selects it by this name.", "prod"),
        key(
            "taskRoles",
            KeyKind::Named(&DEPLOYED_ROLE),
            "",
            "Required. Task roles, by name.",
            "{worker: {preCommands: [make]}}",
        ),
    ],
};

pub static DEPLOYED_ROLE: Table = Table {
    title: "A task role of a deployment",
    help: "Its commands are parts of the same script. Other keys are errors.",
    keys: &[BEFORE, AFTER],
};

pub static DEFAULTS: Table = Table {
    title: "`defaults`",
    help: "The cluster and the deployment. Other keys are ignored.",
    keys: &[
        key(
            "virtualCluster",
            KeyKind::Text,
            "`default`",
            "The queue, for engines that have queues; it is in `PAI_VIRTUAL_CLUSTER`.",
            "default",
        ),
        key("deployment", KeyKind::Text, "none", "Name of the deployment whose commands are used.", "prod"),
    ],
};

pub(super) const PLUGINS: &str = "com.microsoft.pai.runtimeplugin";
/// The plugin that runs commands.
pub(super) const RUNS_COMMANDS: &str = "cmd";

pub static EXTRAS: Table = Table {
    title: "`extras`",
    help: "Settings of the platform, and plugins. Other keys are not used, with a notice.",
    keys: &[
        key(
            "gangAllocation",
            KeyKind::Bool,
            "`true`",
            "Start instances only when there is room for all of them, and restart them together.",
            "false",
        ),
        key(PLUGINS, KeyKind::Maps(&PLUGIN), "", "Runtime plugins. Only `cmd` is used.", "[{plugin: cmd}]"),
        key("storages", KeyKind::Any, "", "Not used, with a notice.", "[{name: data}]"),
        key(
            "hivedScheduler",
            KeyKind::Any,
            "",
            "`jobPriorityClass` is the priority, for engines that have priorities. The rest is not used, with a notice.",
            "{jobPriorityClass: prod}",
        ),
        key("jobStatusChangeNotification", KeyKind::Any, "", "Not used, with a notice.", "{failed: true}"),
        key("submitFrom", KeyKind::Any, "", "Not used.", "portal"),
    ],
};

pub static PLUGIN: Table = Table {
    title: "A plugin",
    help: "An item of `com.microsoft.pai.runtimeplugin`. Other keys are errors.",
    keys: &[
        key("plugin", KeyKind::Text, "", "Required. Only `cmd` is used; others have no effect, with a notice.", "cmd"),
        key("taskroles", KeyKind::Lines, "all", "Task roles to which it applies.", "[worker]"),
        key("parameters", KeyKind::Mapping(&COMMANDS), "", "What the plugin does.", "{preCommands: [make]}"),
        key(
            "failurePolicy",
            KeyKind::Choice(&["fail", "ignore"]),
            "`fail`",
            "Whether a failing command of the plugin fails the instance.",
            "ignore",
        ),
    ],
};

pub static COMMANDS: Table = Table {
    title: "`parameters` of `cmd`",
    help: "Commands around those of the task role, each part in a bash of its own. Other keys are ignored.",
    keys: &[
        BEFORE,
        AFTER,
        key(
            "callbacks",
            KeyKind::Maps(&CALLBACK),
            "",
            "The same, by event; instead of the other keys.",
            "[{event: taskStarts, commands: [make]}]",
        ),
    ],
};

pub static CALLBACK: Table = Table {
    title: "A callback",
    help: "Commands at an event. Other keys are errors.",
    keys: &[
        key(
            "event",
            KeyKind::Choice(&["taskStarts", "taskSucceeds"]),
            "",
            "Required. Before the commands of the task role, or after them.",
            "taskStarts",
        ),
        key("commands", KeyKind::Lines, "", "Required. The commands.", "[make]"),
    ],
};

/// The types of prerequisites.
pub(super) const PREREQUISITES: &[&str] = &["dockerimage", "script", "output", "data"];
/// The most instances of a task role.
pub(super) const MAX_INSTANCES: u32 = 10_000;
pub(super) const MAX_RETRIES: u32 = 1_000_000;

/// Every mapping, in the order of the reference page.
pub static TABLES: &[&Table] = &[
    &DOCUMENT,
    &PREREQUISITE,
    &IMAGE,
    &AUTH,
    &ROLE,
    &COMPLETION,
    &RESOURCES,
    &CONTAINER,
    &DEPLOYMENT,
    &DEPLOYED_ROLE,
    &DEFAULTS,
    &EXTRAS,
    &PLUGIN,
    &COMMANDS,
    &CALLBACK,
];
