//! Environment variables that umiak itself reads. The reference page is generated from this list.

/// One variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    pub name: &'static str,
    pub text: &'static str,
}

/// Where the NVIDIA driver's list of devices stands.
pub const NVIDIA_PROC: &str = "UMIAK_NVIDIA_PROC";

/// Where the kernel's list of PCI devices stands.
pub const PCI_DEVICES: &str = "UMIAK_PCI_DEVICES";

/// What to log.
pub const LOG: &str = "UMIAK_LOG";
/// Where to log.
pub const LOG_FILE: &str = "UMIAK_LOG_FILE";

/// Every variable of ours, then the conventions we respect.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: NVIDIA_PROC,
        text: "Directory to read instead of `/proc/driver/nvidia/gpus`: one sub-directory for each GPU, named by its PCI address, holding the driver's `information` file. For tests, and for containers that mount it elsewhere.",
    },
    Variable {
        name: PCI_DEVICES,
        text: "Directory to read instead of `/sys/bus/pci/devices`, when devices are named and the driver lists no GPU. For tests.",
    },
    Variable {
        name: "UMIAK_TOKEN",
        text: "The secret that all nodes of a job share, unless `--token` gives it. It is taken out of the ranks' environment, and shown nowhere.",
    },
    Variable { name: "UMIAK_PORT", text: "Where the nodes of `--ips` meet, unless `--rdzv-port` says so." },
    Variable {
        name: "UMIAK_HOME",
        text: "Where runs are kept. Default `$XDG_STATE_HOME/umiak`, else `~/.local/state/umiak`.",
    },
    Variable {
        name: LOG,
        text: "What umiak logs about itself, unless `-v` says so: a level (`error`, `warn`, `info`, `debug`, `trace`), or levels of modules (`info,umiak::rendezvous=trace`). Nothing when unset. A detached supervisor logs to its `supervisor.log`.",
    },
    Variable { name: LOG_FILE, text: "File to which `-v` and `UMIAK_LOG` append instead of stderr." },
    Variable {
        name: "TMPDIR",
        text: "Where the run's scratch directory is made (gloo rendezvous files, torch error files). Default `/tmp`.",
    },
    Variable { name: "VIRTUAL_ENV", text: "Its interpreter runs scripts when the command line names none." },
    Variable { name: "NO_COLOR", text: "Set and not empty: no colours." },
    Variable { name: "CLICOLOR_FORCE", text: "Set and not `0`: colours even where the stream is no terminal." },
    Variable { name: "CI", text: "Set and not empty: plain lines, no status line." },
    Variable { name: "TERM", text: "`dumb`: plain lines, no status line, no colours." },
];
