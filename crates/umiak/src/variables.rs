//! Environment variables that umiak itself reads, and those that it sets for its agents. The reference page is generated from this list.

/// One variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    pub name: &'static str,
    pub text: &'static str,
}

/// Path of the NVIDIA driver's list of devices.
pub const NVIDIA_PROC: &str = "UMIAK_NVIDIA_PROC";

/// Path of the kernel's list of PCI devices.
pub const PCI_DEVICES: &str = "UMIAK_PCI_DEVICES";

/// Log filter.
pub const LOG: &str = "UMIAK_LOG";
/// Log file.
pub const LOG_FILE: &str = "UMIAK_LOG_FILE";

/// Variables that umiak sets for its agents on the nodes of a cluster. They are listed by name, since the rooms that set and
/// read them own the constants.
pub const AGENT_VARIABLES: &[Variable] = &[
    Variable {
        name: "UMIAK_TASKS",
        text: "Slurm: the number of tasks on each node of the allocation (`2(x3),1`), with `;` between the parts of a heterogeneous job. The script sets it.",
    },
    Variable {
        name: "UMIAK_COPY",
        text: "Slurm: path of the copy of umiak that the script made on the node. The agent removes the copy. Not set if umiak is at the same path on the nodes.",
    },
    Variable {
        name: "UMIAK_CONNECT",
        text: "With `--slurm-connect`: addresses and ports of the host that submits, separated by spaces. Replicas do not get it.",
    },
    Variable {
        name: "UMIAK_CONNECT_KEY",
        text: "With `--slurm-connect`: the public key of that host and the token of the job. Replicas do not get it.",
    },
];

/// umiak's own variables, then the conventions it respects.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: NVIDIA_PROC,
        text: "Directory to read instead of `/proc/driver/nvidia/gpus`: one sub-directory for each GPU, named by its PCI address, holding the driver's `information` file. For tests, and for containers that mount it elsewhere.",
    },
    Variable {
        name: PCI_DEVICES,
        text: "Directory to read instead of `/sys/bus/pci/devices`, used if the command line names devices and the driver lists no GPU. For tests.",
    },
    Variable {
        name: "UMIAK_TOKEN",
        text: "Secret shared by all nodes of a job. `--token` and `--token-file` override it. `launch` overwrites it in its own environment once it is read, ranks do not get it, and it is never shown.",
    },
    Variable {
        name: "UMIAK_PORT",
        text: "Port where the nodes of `--ips`, or of a step of Slurm, meet. `--rdzv-port` overrides it.",
    },
    Variable {
        name: "UMIAK_ETCD_CA_FILE",
        text: "Certificates (PEM) of the authorities that sign etcd's members. Default: those of the system.",
    },
    Variable {
        name: "UMIAK_ETCD_CERT_FILE",
        text: "This client's certificate (PEM) for etcd; `UMIAK_ETCD_KEY_FILE` has its private key.",
    },
    Variable { name: "UMIAK_ETCD_KEY_FILE", text: "The private key (PEM) of `UMIAK_ETCD_CERT_FILE`." },
    Variable { name: "UMIAK_ETCD_USER", text: "User of etcd, if its authentication is enabled." },
    Variable {
        name: "UMIAK_ETCD_PASSWORD",
        text: "Password of `UMIAK_ETCD_USER`. `launch` overwrites it in its own environment once it is read, ranks do not get it, and it is never shown.",
    },
    Variable {
        name: "UMIAK_HOME",
        text: "Directory of recorded runs. Default `$XDG_STATE_HOME/umiak`, else `~/.local/state/umiak`.",
    },
    Variable {
        name: LOG,
        text: "What umiak logs about itself: a level (`error`, `warn`, `info`, `debug`, `trace`), or levels by module (`info,umiak::rendezvous=trace`). `-v` overrides it. Nothing is logged when unset. A detached supervisor logs to its `supervisor.log`.",
    },
    Variable { name: LOG_FILE, text: "File to which `-v` and `UMIAK_LOG` append instead of stderr." },
    Variable {
        name: "TMPDIR",
        text: "Parent of the run's scratch directory (gloo rendezvous files, torch error files). Default `/tmp`.",
    },
    Variable { name: "VIRTUAL_ENV", text: "Its interpreter runs scripts when the command line names none." },
    Variable { name: "NO_COLOR", text: "Set and not empty: no colours." },
    Variable { name: "CLICOLOR_FORCE", text: "Set and not `0`: colours even if the stream is not a terminal." },
    Variable { name: "CI", text: "Set and not empty: plain lines, no status line." },
    Variable { name: "TERM", text: "`dumb`: plain lines, no status line, no colours." },
];
