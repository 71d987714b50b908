//! The register of error codes: one table, from which `umiak explain CODE` and the reference page come.
//!
//! `L` launch, `F` formats, `R` rendezvous, `J` jobs, `E` engines, `U` the user's program (signatures;
//! those live in [`crate::diagnose::signatures`] because they carry a pattern too).

use std::fmt;

use serde::{Serialize, Serializer};

/// One row of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub code: Code,
    /// The case in a few words.
    pub title: &'static str,
    /// What it means and what to do, as `umiak explain` prints it.
    pub text: &'static str,
    /// Exit code of a command that ends because of it (0 for notices).
    pub exit: u8,
}

macro_rules! register {
    ($($code:ident, $exit:literal, $title:literal, $text:literal;)*) => {
        /// A code of the register.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $(#[doc = $title] $code),* }

        /// Every code, in order.
        pub const REGISTER: &[Entry] = &[
            $(Entry { code: Code::$code, title: $title, text: $text, exit: $exit }),*
        ];

        impl Code {
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$code => stringify!($code)),* }
            }
        }
    };
}

register! {
    L0001, 2, "wrong usage of the command line",
        "A flag is unknown, ambiguous, lacks its value or has one of the wrong type, or the training script is missing. `umiak launch -h` lists every flag. `--compat paddle` ignores unknown flags, as Paddle does.";
    L0002, 2, "flags that contradict each other",
        "Two flags, or a flag and a variable, ask for different things. The message names both.";
    L0003, 2, "not in this version",
        "The command line is understood, but what it asks for is not built yet. The changelog says what each version holds.";
    L0004, 2, "this host is not in the node list",
        "None of this host's addresses is in `--ips`. Run on a listed node, or say which one this is with `--host`.";
    L0005, 2, "a device that is not there",
        "`--gpus` (or `--devices`, `--xpus`, `--npus`) names a device that this machine does not have or that `CUDA_VISIBLE_DEVICES` hides. The message lists those that are there.";
    L0006, 2, "processes and devices do not fit",
        "The number of processes cannot be spread over the devices. Change `--nproc_per_node` or the device list; `--share-devices` lets several processes use one device.";
    L0007, 2, "bad backend",
        "`--backend` takes `auto`, `nccl`, `gloo`, `bkcl`, `cncl`, `hccl`, `xccl` or `heter`, and goes with collective mode only.";
    L0008, 2, "a variable of the platform is missing or does not fit",
        "The environment looks like PaddleCloud's, but a variable of its contract is missing, is no number, or disagrees with another. The message names it.";
    L0009, 2, "bad value of an environment variable",
        "An environment variable that stands for a flag has a value the flag would not take. Unset it or correct it.";
    L0010, 125, "too few free ports",
        "Each process needs a port, and one more each for Paddle's and torch's stores. Ports are chosen below the kernel's ephemeral range and clear of reserved ones, or where `FLAGS_START_PORT`, `PADDLE_START_PORT`, `PORT_RANGE`, `FLAGS_FIXED_PORT` or `--start-port` says.";
    L0011, 127, "the training script was not found",
        "There is no such file here and no such program on `PATH`.";
    L0012, 126, "the training script cannot be run",
        "The file is there but cannot be executed or read. Give a `.py` file or an executable.";
    L0013, 127, "no Python interpreter",
        "The script needs an interpreter: the word before `-m` in the command, else the one of `$VIRTUAL_ENV`, else `python3` or `python` on `PATH`. None was found.";
    L0014, 125, "the log directory cannot be used",
        "`--log_dir` cannot be created or written. Choose another directory, or free the path.";
    L0015, 125, "a process could not be started",
        "The kernel refused to start a rank: the message holds the call and the reason. Ranks that were already running have been stopped.";
    L0016, 125, "umiak itself failed",
        "An operation umiak depends on failed. Nothing of the job is left running. If the message does not tell what to mend, report it with the text.";
    L0017, 125, "the guardian was lost",
        "The process that holds the ranks was killed from outside. The ranks ended with it, and what they had started was stopped.";
    L0018, 2, "several entries of the node list are this host",
        "More than one address in `--ips` belongs to this host, and each entry is a node of its own. Say which of them this command is for with `--host`; start one command for each entry.";
    L0020, 0, "a rehearsal on CPU",
        "Devices were named, but this machine has no accelerator at all: the list sets the number of processes, and they run on CPU.";
    L0021, 0, "more processes than devices",
        "Processes were started without assigning devices, because there are more of them than devices and no device list was given.";
    L0022, 0, "ports inside the ephemeral range",
        "The kernel's ephemeral range leaves too little room below it, so ports were chosen inside it. Another program's outgoing connection may take one before the rank listens.";
    L0023, 0, "a flag without effect here",
        "The flag is accepted so that existing command lines work, but it changes nothing in this mode.";
    L0024, 0, "an environment variable overrides a flag",
        "As in Paddle, the environment wins over the command line. Unset the variable to use the flag.";
    L0025, 0, "processes were left by a rank",
        "A rank ended and left processes behind, which were stopped at the end of the job.";
    L0026, 0, "the log directory takes no more",
        "A rank failed, and nothing can be written to the log directory any more: the disk is full, or a quota is. A rank whose output cannot be written usually ends because of that, and its log stops in the middle. Free space there, or choose another directory with `--log_dir`.";
    L0027, 0, "cleaned up after a killed umiak",
        "The front and the guardian of an earlier job were killed at once, so nobody was left to stop what its ranks had started. It was still in the job's cgroup, and this command ended it.";
    L0028, 125, "isolation is not permitted here",
        "`--isolate` needs a PID namespace, which takes the right to make one: root, or user namespaces. Run without it; jobs are still cleaned up in every case but one (docs/guide/launch.md).";
    L0029, 0, "no interface has this node's address",
        "The address by which the other nodes know this one is on none of its interfaces, as in a container whose node address is not its own. `GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME` and `TP_SOCKET_IFNAME` are therefore not set: gloo and NCCL choose an interface themselves. Set them if they choose the wrong one.";
    R0001, 123, "not all nodes came",
        "Every node runs the same command, and the job starts when all of them are there. Some were not within `--rdzv-timeout`. The message says which, and how their addresses answer.";
    R0002, 123, "the coordinator refused this node",
        "This node does not fit the job that the coordinator has: another list of nodes, another number of processes, a place that is taken, another token or version. Both consoles show what differs.";
    R0003, 125, "the rendezvous port is taken",
        "The first node listens on one port for the others, and somebody has it already. Where that is another umiak job, give each its own `--job_id`; else choose another port with `--rdzv-port`.";
    R0004, 123, "a node was lost",
        "A node could not be heard for longer than `--node-timeout`, its connection did not come back within `--reconnect-window`, or its umiak was killed. All other nodes have stopped their ranks.";
    R0005, 123, "the coordinator was lost",
        "The first node cannot be reached any more. Ranks ran on until `--reconnect-window` was over, or until it was clear that nobody listens there. This node has stopped its ranks.";
    R0006, 123, "a node could not start",
        "One of the nodes could not prepare its ranks: too few ports, no room for files. Its own console says more.";
    R0007, 0, "nodes are not protected by a token",
        "Without `--token` or `UMIAK_TOKEN` the key that nodes prove themselves with comes from the job id. That guards against mix-ups, not against people in the same network.";
    R0008, 0, "a node was refused",
        "A node tried to join this job and does not fit. It shows the same reason on its console.";
    R0009, 0, "a node is not heard",
        "Nothing was heard of a node, or of the coordinator, for a while. Ranks run on; if it does not come back within the time-outs, the job ends.";
    R0010, 0, "logs are not gathered",
        "With `--gather-logs`: the coordinator's directory does not get all logs, because it takes no more, because nodes were lost, because somebody did not want to wait, or because it was not asked to. Or all nodes write to one shared directory, and nothing has to be gathered. Each node has the logs of its own ranks.";
}

impl Code {
    pub fn entry(self) -> &'static Entry {
        REGISTER.iter().find(|entry| entry.code == self).expect("the macro writes one entry for each code")
    }

    pub fn parse(text: &str) -> Option<Self> {
        REGISTER.iter().map(|entry| entry.code).find(|code| code.as_str().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
