//! The register of error codes: one table, from which `umiak explain CODE` and the reference page come.
//!
//! `L` launch, `F` formats, `R` rendezvous, `J` jobs, `E` engines, `U` the user's program (signatures;
//! those live in [`crate::diagnose::signatures`] because they carry a pattern too).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

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
        "A flag is unknown, ambiguous, lacks its value or has one of the wrong type, or the training script is missing. `umiak launch -h` lists every flag. With Paddle's own spelling in front (`umiak fleetrun …`, `umiak python -m paddle.distributed.launch …`), and with `--compat paddle`, unknown flags are ignored with a notice, as Paddle does.";
    L0002, 2, "flags that contradict each other",
        "Two flags, or a flag and a variable, ask for different things. The message names both.";
    L0003, 2, "not in this version",
        "The command line is understood, but what it asks for is not built yet. The changelog says what each version holds.";
    L0004, 2, "this host is not in the node list",
        "None of this host's addresses is in `--ips`, or in the lists of a parameter-server job. Run on a listed node, or say which one this is with `--host`.";
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
        "The script needs an interpreter: the word before `-m` in the command, the one that `uv run`, `poetry run` or `conda run` chooses, or the one in the first line of `fleetrun`; else the one of `$VIRTUAL_ENV`, else `python3` or `python` on `PATH`. None was found.";
    L0014, 125, "the log directory cannot be used",
        "`--log_dir` cannot be created or written. Choose another directory, or free the path.";
    L0015, 125, "a process could not be started",
        "The kernel refused to start a rank: the message holds the call and the reason. Ranks that were already running have been stopped.";
    L0016, 125, "umiak itself failed",
        "An operation umiak depends on failed. Nothing of the job is left running. If the message does not tell what to mend, report it with the text.";
    L0017, 125, "the guardian was lost",
        "The process that holds the ranks was killed from outside. The ranks ended with it, and what they had started was stopped.";
    L0018, 2, "several entries of the node list are this host",
        "More than one address in `--ips`, or in the lists of a parameter-server job, belongs to this host, and each entry is a node of its own. Say which of them this command is for with `--host`; start one command for each entry.";
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
    L0030, 0, "a GPU that another run uses",
        "GPUs of a launched job are held for it, so that runs of documents take others. Another run holds this one already: both use it, and its memory is shared between them. Name other devices with `--gpus`, or wait for the other run to end.";
    L0031, 0, "a server that ended before it listened",
        "A server of a parameter-server job has ended with 0, and never listened at its port. That is no failure by its code, so the trainers of all nodes start without it. Paddle's server does this when its port is taken; a script that only prints something does it too.";
    L0032, 0, "a log directory that another launch uses",
        "Two launches that write to one log directory would mix their lines: the names of log files are the same in every launch. The later launch writes to a directory of its own below it, which has the name of its run.";
    L0033, 2, "GPUs without a working driver",
        "Devices were named, and the PCI bus has NVIDIA GPUs, but the NVIDIA driver lists none of them: it is not loaded, it failed to start, or another driver has them. The job is refused, because on CPU it would only seem to work. On a machine without any GPU the list sets the number of processes, as a rehearsal.";
    L0034, 0, "trainers start before all servers listen",
        "A server of a parameter-server job runs, and nothing listened at its port for 30 s. Trainers were started all the same, as Paddle starts them: most of them try to connect until it works. A server that listens at another port than its own does this, and one that is slow. `--server-timeout` waits longer, and ends the job when the time is up; `--server-timeout 0s` waits for nothing.";
    F0001, 2, "the document cannot be read",
        "The file is not there, may not be read, is a directory, or is no text in UTF-8. `-` reads standard input.";
    F0002, 2, "not YAML",
        "The text breaks a rule of YAML, so nothing after that place could be read. Common reasons: a tab in the indentation, a bracket or a quote that is not closed, a template such as `{{ name }}` without quotes.";
    F0003, 2, "the format is not recognised",
        "A native document starts with `umiak: v1`. `umiak schema job` prints its schema.";
    F0004, 2, "a document that asks for what is not in this version",
        "The document is understood, but a format, a contract or a value that it uses is not built yet. The changelog says what each version holds.";
    F0005, 2, "the document is too large",
        "Documents have at most 4 MiB, 48 levels and 200000 values, counted after aliases are resolved.";
    F0006, 2, "a key is there twice",
        "A mapping has the same key twice, and YAML does not say which one holds. Both places are shown.";
    F0010, 2, "an unknown key",
        "The key means nothing in this place, and an ignored key would be a surprise later. The message names the nearest one, or those that are known. `docs/reference/job.md` lists them all.";
    F0011, 2, "a value of the wrong type",
        "The message says what is expected and what was found.";
    F0012, 2, "something is missing",
        "A key without which the document says too little. The message names it.";
    F0013, 2, "a value that cannot be meant",
        "A number, a duration, a size or a word that is outside what the key takes. The message says what it takes.";
    F0014, 2, "a bad name",
        "Names become directories, variables or both. The message says which characters are allowed.";
    F0015, 2, "two names become one",
        "Names of roles and ports become parts of variables: upper case, with `-` and `.` as `_`. Two names that differ only in that would share a variable. Rename one.";
    F0016, 2, "a start order that cannot be kept",
        "`start_after` names a role that is not there, the role itself, or a role without ports that could not be seen to be ready, or roles wait for each other in a circle.";
    F0017, 2, "an unknown name",
        "The document names a contract, a flavour or a file system that nobody defined. Flavours stand in `umiak.toml` as `[flavour.NAME]`.";
    F0018, 2, "numbers that do not fit together",
        "Two values of the document contradict each other, such as more replicas that must succeed than there are.";
    F0030, 2, "a template names an unknown parameter",
        "`{{ name }}` is replaced by the parameter of that name. Parameters stand under `params`, with their defaults.";
    F0031, 2, "a template without quotes",
        "Without quotes `{{name}}` is a YAML mapping in a mapping. Write \"{{ name }}\".";
    F0032, 2, "a template that cannot be read",
        "Between `{{` and `}}` stands the name of one parameter, nothing else. For braces that are meant literally write `{{ '{{' }}`.";
    F0033, 2, "a parameter that the document does not have",
        "`-p NAME=VALUE` replaces the value of a parameter under `params`; it cannot add one, because nothing would use it.";
    F0034, 2, "a parameter without a value",
        "A parameter whose default is empty must be given: `-p NAME=VALUE`.";
    F0040, 2, "umiak.toml is not TOML",
        "The text breaks a rule of TOML. The place is shown.";
    F0050, 0, "a queue that umiak.toml does not have",
        "The queue is passed on to engines that have queues. If it is misspelt, they will say so later than this notice does.";
    F0051, 0, "a setting without effect",
        "The document says something that changes nothing here, because of something else it says.";
    F0052, 0, "a variable that is not expanded",
        "Values of `env` are taken literally: `$NAME` in them stays as it is written. A shell expands variables in `command`; `{{ name }}` takes the value of a parameter.";
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
    J0001, 125, "runs cannot be recorded",
        "Runs are kept below `$UMIAK_HOME`, else `$XDG_STATE_HOME/umiak`, else `~/.local/state/umiak`. That directory cannot be made, read or written. Free the path, or name another one with `UMIAK_HOME`.";
    J0002, 2, "no such run",
        "RUN is an id (`run-000032`), its number or the end of it if only one run has that (`32`), or a job's name, which means its newest run. `umiak ls` lists them.";
    J0003, 125, "facts could not be written",
        "What happened could not be written to the run's journal until the end, usually because the disk is full. The replicas ran on; what is missing is named. The run cannot be resumed beyond what is in the journal.";
    J0004, 125, "a journal cannot be read",
        "A line of `journal.jsonl` is not what umiak writes, and it is not the last one, which a killed supervisor may have left incomplete. Somebody changed the file, or the disk did. `umiak events` shows what stands before that line.";
    J0005, 125, "a run of a newer umiak",
        "The journal was written by a newer version of umiak. It is shown as far as this version understands it, but not written to. Use the newer version.";
    J0006, 2, "the run is live",
        "A supervisor holds this run, and there can be only one. Stop it first with `umiak stop`, or wait for its end with `umiak wait`.";
    J0007, 125, "the supervisor was lost",
        "The run has not ended, and nobody supervises it: its supervisor was killed, or the machine was. Local replicas ended with it. `umiak resume` goes on with what is not done.";
    J0008, 125, "a run of another host",
        "The run directory is on a file system that several hosts share, and the run belongs to another one. Type the command there.";
    J0009, 125, "a log cannot be shown",
        "The run knows where the output of this replica should be, but the file is not there or cannot be read: it was removed, it is on another host, or the attempt never began.";
    J0010, 0, "part of a log is gone",
        "The file was cut by size, or made shorter, since this attempt wrote to it. What is left is shown.";
    J0011, 0, "facts that this version does not know",
        "The journal holds facts of a newer umiak. What is shown leaves them out.";
    J0012, 124, "a run did not end in time",
        "`umiak wait --timeout` waits no longer than it was told to. The run goes on.";
    J0020, 125, "too little room on this host",
        "The job needs more ports, loopback addresses, GPUs or (with `--strict-resources`) CPUs than there are for it, or a limit that cannot be set here. The message says how many of which. A job is a gang unless `policy: {gang: false}` says otherwise: nobody starts unless there is room for everybody.";
    J0021, 127, "a command was not found",
        "The first word of a role's `command` is neither a file nor on the `PATH`. Relative paths start at the role's `dir`, else where the run was submitted.";
    J0022, 126, "a command cannot be executed",
        "The first word of a role's `command` is a file that may not be executed. `chmod +x` makes it one, or name the interpreter in front of it.";
    J0023, 0, "a resource that is not enforced",
        "The document asks for CPUs or memory, and replicas are not held to it. CPUs are advice unless `--strict-resources` binds replicas to their own. A limit of memory needs a memory cgroup below umiak's own, and the message says why there is none: no controller, no permission (containers often show cgroups that may not be changed), or, with cgroup version 2, other processes in the same cgroup, which `systemd-run --user --scope -p Delegate=yes umiak run …` avoids. With `--strict-resources` it is an error. Images are not used on `local`.";
    J0024, 0, "logging out ends this run",
        "The system ends a user's processes at log-out (`KillUserProcesses=yes`) and lingering is off. `loginctl enable-linger` lets the run go on.";
    J0025, 2, "nothing to do for this run",
        "`resume` goes on with a run whose supervisor was lost, `retry` with one that has ended and not succeeded, `stop` ends one that is live. The message says what the run is.";
    J0026, 125, "the supervisor does not answer",
        "The run is live, but its control socket took no order. It may be stopped (Ctrl-Z) or very busy. Signals reach it all the same: the message has its pid.";
    J0027, 2, "a document cannot be read",
        "The file is not there, is a directory, is no text, or may not be read.";
    J0028, 2, "a run that was not recorded as a document",
        "A run of `umiak launch` has no document, so that `resume` and `retry` have nothing to go by. The message has its command line: start it again with that.";
    J0029, 125, "a file of the run cannot be written",
        "Something of the run's directory (a plan, a task's directory) could not be made. The message names it and the reason.";
    J0030, 2, "the engine cannot run this job",
        "The document asks for something that the engine of `--engine` cannot do. An engine that starts gangs restarts them as a whole: `restarts` of a role and `policy: {gang: false}` need an engine that starts each replica by itself, as `local` does.";
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

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom(format!("no code of the register: {text}")))
    }
}
