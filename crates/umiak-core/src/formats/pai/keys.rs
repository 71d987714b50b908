//! The keys of OpenPAI's protocol, version 2.

/// The document itself.
pub(super) const DOCUMENT: &[&str] = &[
    "protocolVersion",
    "name",
    "type",
    "version",
    "contributor",
    "description",
    "prerequisites",
    "parameters",
    "secrets",
    "jobRetryCount",
    "taskRoles",
    "deployments",
    "defaults",
    "extras",
];

/// Keys of every prerequisite.
pub(super) const PREREQUISITE: &[&str] =
    &["protocolVersion", "name", "type", "version", "contributor", "description", "uri", "plugin", "require"];
/// Keys of a container image, which has no others.
pub(super) const IMAGE: &[&str] =
    &["protocolVersion", "name", "type", "version", "contributor", "description", "uri", "auth"];
pub(super) const AUTH: &[&str] = &["username", "password", "registryuri"];

pub(super) const ROLE: &[&str] = &[
    "protocolVersion",
    "instances",
    "completion",
    "taskRetryCount",
    "prerequisites",
    "dockerImage",
    "data",
    "output",
    "script",
    "extraContainerOptions",
    "resourcePerInstance",
    "commands",
];
pub(super) const COMPLETION: &[&str] = &["minFailedInstances", "minSucceededInstances"];
pub(super) const RESOURCES: &[&str] = &["cpu", "memoryMB", "gpu", "ports"];
pub(super) const CONTAINER: &[&str] = &["shmMB", "infiniband"];

pub(super) const DEPLOYMENT: &[&str] = &["name", "taskRoles"];
pub(super) const DEPLOYED_ROLE: &[&str] = &["preCommands", "postCommands"];
pub(super) const DEFAULTS: &[&str] = &["virtualCluster", "deployment"];

pub(super) const PLUGINS: &str = "com.microsoft.pai.runtimeplugin";
/// The plugin that runs commands.
pub(super) const RUNS_COMMANDS: &str = "cmd";
pub(super) const EXTRAS: &[&str] =
    &["gangAllocation", PLUGINS, "storages", "hivedScheduler", "jobStatusChangeNotification", "submitFrom"];
pub(super) const PLUGIN: &[&str] = &["plugin", "taskroles", "parameters", "failurePolicy"];
pub(super) const COMMANDS: &[&str] = &["preCommands", "postCommands", "callbacks"];
pub(super) const CALLBACK: &[&str] = &["event", "commands"];
