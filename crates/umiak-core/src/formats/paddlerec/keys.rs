//! The keys of PaddleRec's two files in all three generations, and what each does here: parsing and the reference page
//! use them.

use crate::formats::document::keys::{Key, KeyKind, Table, key};
use crate::formats::document::limits::MAX_REPLICAS;

/// The most threads of a trainer.
pub(super) const MAX_THREADS: u32 = 10_000;
/// The highest level of glog.
pub(super) const MAX_LEVEL: u32 = 100;
const REPLICAS: KeyKind = KeyKind::Number(1, MAX_REPLICAS as i64);
const THREADS: KeyKind = KeyKind::Number(1, MAX_THREADS as i64);
const PASSED_ON: &str = "For the model, which reads it.";

pub(super) const STRATEGIES: &[&str] = &["sync", "async", "half_async", "geo"];
pub(super) const DEVICES: &[&str] = &["cpu", "gpu"];
pub(super) const FLEET_MODES: &[&str] = &["ps", "pslib", "collective"];
pub(super) const CLUSTER_TYPES: &[&str] = &["mpi", "k8s"];
pub(super) const PRIORITIES: &[&str] = &["normal", "high", "very_high"];
/// Words of `train.engine`.
pub(super) const ENGINES: &[&str] = &["single", "local_cluster", "cluster"];
/// Words of a runner's `class`.
pub(super) const CLASSES: &[&str] = &[
    "train",
    "infer",
    "local_cluster_train",
    "cluster_train",
    "single_train",
    "single_infer",
    "local_cluster",
    "cluster",
];
/// Words of `backend`.
pub(super) const BACKENDS: &[&str] = &["local", "k8s", "kubernetes", "volcano", "paddlecloud", "mpi", "slurm"];

/// A key whose value only the model reads.
const fn of_model(name: &'static str, example: &'static str) -> Key {
    key(name, KeyKind::Any, "", PASSED_ON, example)
}

pub static CONFIG: Table = Table {
    title: "`config.yaml`, first generation",
    help: "What is trained. It is recognised by `train` with `engine`, `workspace` or `trainer`. Other keys are for the model.",
    keys: &[
        key(
            "train",
            KeyKind::Mapping(&TRAIN),
            "",
            "Required. The training.",
            "{engine: cluster, workspace: models.dnn}",
        ),
        of_model("evaluate", "{workspace: models.dnn}"),
    ],
};

pub static TRAIN: Table = Table {
    title: "`train`",
    help: "Other keys are for the model.",
    keys: &[
        key(
            "engine",
            KeyKind::Choice(ENGINES),
            "`single`",
            "`single` is one process on this host, `local_cluster` one server and one trainer on this host, and `cluster` what `backend.yaml` says. Case does not matter; words with `tdm_` before them mean the same.",
            "cluster",
        ),
        key(
            "workspace",
            KeyKind::Text,
            "",
            "Required. The program of servers and trainers: a dotted name is run with `python -m`, a directory or a file with `python`.",
            "models.dnn",
        ),
        key("epochs", KeyKind::Number(0, u32::MAX as i64), "", "For the model: the variable `train.epochs`.", "10"),
        key(
            "trainer",
            KeyKind::Mapping(&TRAINER),
            "",
            "How to train on several nodes.",
            "{strategy: async, threads: 2}",
        ),
        of_model("device", "cpu"),
        of_model("reader", "{batch_size: 2}"),
        of_model("model", "{models: '{workspace}/model.py'}"),
        of_model("save", "{increment: {dirname: increment}}"),
        of_model("strategy", "{mode: {push_num: 100}}"),
    ],
};

pub static TRAINER: Table = Table {
    title: "`trainer`",
    help: "Other keys are ignored, with a notice.",
    keys: &[
        key(
            "strategy",
            KeyKind::Choice(STRATEGIES),
            "`async`",
            "How servers are updated: the variable `train.trainer.strategy`.",
            "async",
        ),
        key(
            "threads",
            THREADS,
            "`2`",
            "Threads of each node: the variables `CPU_NUM` and `train.trainer.threads`. On a cluster also the CPUs of each node.",
            "2",
        ),
    ],
};

pub static LISTS: Table = Table {
    title: "`config.yaml`, second and third generation",
    help: "What is trained. It is recognised by `runner` with `mode`, `phase` or `dataset`, or by `hyper_parameters`. Other keys are for the model.",
    keys: &[
        key("workspace", KeyKind::Text, "", "Required. As in the first generation.", "models.dnn"),
        key("mode", KeyKind::Names, "", "Required. The runners to execute, one after the other.", "[train_runner]"),
        key(
            "runner",
            KeyKind::Maps(&RUNNER),
            "",
            "Required. Ways to run the program.",
            "[{name: train_runner, class: train}]",
        ),
        key("phase", KeyKind::Maps(&PHASE), "", "Required. Parts of a run.", "[{name: phase1, thread_num: 2}]"),
        of_model("dataset", "[{name: data, type: DataLoader, data_path: '{workspace}/data'}]"),
        of_model("hyper_parameters", "{optimizer: {class: Adam}}"),
        of_model("debug", "false"),
    ],
};

pub static RUNNER: Table = Table {
    title: "A runner",
    help: "Other keys are for the model.",
    keys: &[
        key("name", KeyKind::Text, "", "Required. `mode` selects it; the variable `mode`.", "train_runner"),
        key(
            "class",
            KeyKind::Choice(CLASSES),
            "",
            "Required. `train` and `infer` are one process on this host, `local_cluster_train` servers and trainers on this host, and `cluster_train` what `backend.yaml` says. Case does not matter.",
            "cluster_train",
        ),
        key("device", KeyKind::Choice(DEVICES), "`cpu`", "With `gpu`, each trainer has a GPU.", "cpu"),
        key(
            "fleet_mode",
            KeyKind::Choice(FLEET_MODES),
            "`ps`",
            "With `collective` there are no servers, and `device` must be `gpu`. `pslib` is as `ps`.",
            "ps",
        ),
        key(
            "distribute_strategy",
            KeyKind::Choice(STRATEGIES),
            "`async`",
            "How servers are updated: the variable `train.trainer.strategy`.",
            "async",
        ),
        key(
            "selected_gpus",
            KeyKind::Text,
            "`0`",
            "The number of cards in this list is the number of GPUs. With more than one, all classes but `cluster_train` are `local_cluster_train`. Which GPUs are used is decided here: free ones.",
            "'0,1'",
        ),
        key("worker_num", REPLICAS, "`1`", "Trainers of `local_cluster_train`.", "2"),
        key("server_num", REPLICAS, "`1`", "Servers of `local_cluster_train`.", "2"),
        key("phases", KeyKind::Names, "all", "Phases of this runner.", "[phase1]"),
        of_model("trainer_class", "GeneralTrainer"),
        of_model("epochs", "10"),
        of_model("init_model_path", "increment"),
        of_model("print_interval", "10"),
        of_model("save_checkpoint_interval", "1"),
        of_model("save_checkpoint_path", "increment"),
        of_model("save_inference_interval", "1"),
        of_model("save_inference_path", "inference"),
        of_model("save_step_interval", "1"),
        of_model("save_step_path", "step"),
    ],
};

pub static PHASE: Table = Table {
    title: "A phase",
    help: "Other keys are for the model.",
    keys: &[
        key("name", KeyKind::Text, "", "Required. `phases` of a runner selects it.", "phase1"),
        key(
            "thread_num",
            THREADS,
            "`2`",
            "Threads. The maximum over the phases of a runner is as `threads` of the first generation.",
            "2",
        ),
        of_model("model", "'{workspace}/model.py'"),
        of_model("dataset_name", "data"),
    ],
};

pub static BACKEND: Table = Table {
    title: "`backend.yaml`, first and second generation",
    help: "Where it is trained. It is recognised by `engine` with `backend`, `job_name` or `submit`.",
    keys: &[key("engine", KeyKind::Mapping(&ENGINE), "", "Required. The cluster.", "{backend: local, job_name: ctr}")],
};

const WHERE: Key = key(
    "backend",
    KeyKind::Choice(BACKENDS),
    "",
    "Required. `local` is this host, `slurm` an allocation of Slurm, and `mpi` what `mpirun` starts. `paddlecloud` writes the files of a submission and calls PaddleCloud's client. `k8s`, `kubernetes` and `volcano` are Kubernetes: this version prints the manifests (`--dry-run`), and does not submit them. Case does not matter. `--engine` overrides it.",
    "local",
);
const NAME: Key = key(
    "job_name",
    KeyKind::Text,
    "`PaddleRecClusterJob`",
    "Name of the run. A second run of this name is refused while the first one is live; `--replace` stops that one first.",
    "ctr",
);

pub static ENGINE: Table = Table {
    title: "`engine`",
    help: "Other keys are ignored, with a notice.",
    keys: &[
        WHERE,
        NAME,
        key(
            "submit",
            KeyKind::Mapping(&SUBMIT),
            "",
            "Required. What the job needs of the cluster.",
            "{server_num: 2, trainer_num: 2}",
        ),
    ],
};

pub static FLAT: Table = Table {
    title: "`backend.yaml`, third generation",
    help: "Where it is trained. It is recognised by `backend` with `cluster_type`, `config` or `submit`. Other keys are ignored, with a notice.",
    keys: &[
        WHERE,
        key(
            "cluster_type",
            KeyKind::Choice(CLUSTER_TYPES),
            "",
            "Required by `paddlecloud`. Case does not matter.",
            "k8s",
        ),
        key("config", KeyKind::Mapping(&CLOUD), "", "Files and versions, for `paddlecloud`.", "{fs_name: 'afs://x'}"),
        key(
            "submit",
            KeyKind::Mapping(&SUBMIT),
            "",
            "Required. What the job needs of the cluster.",
            "{server_num: 2, trainer_num: 2}",
        ),
    ],
};

pub static SUBMIT: Table = Table {
    title: "`submit`",
    help: "Other keys are ignored, with a notice. The keys from `partition` to `nodes` are for `slurm`, `hosts` is for `mpi`, and those from `ak` on, with `nodes`, are for `paddlecloud`; other backends do not use them.",
    keys: &[
        key("server_num", REPLICAS, "", "Required, except by `paddlecloud` and `collective`. Number of servers.", "2"),
        key("trainer_num", REPLICAS, "", "Required, except by `paddlecloud`. Number of trainers.", "2"),
        key("worker_num", REPLICAS, "", "Another name of `trainer_num`. If both are set, they must be equal.", "2"),
        key("docker_image", KeyKind::Text, "", "The image, for engines that use images.", "'paddlerec:alpha'"),
        key("memory", KeyKind::Memory, "", "Memory of each node: a limit where the engine can enforce it.", "4Gi"),
        key(
            "storage",
            KeyKind::Memory,
            "",
            "Disk space of each node: a limit where the engine can enforce it.",
            "10Gi",
        ),
        key(
            "log_level",
            KeyKind::Number(0, MAX_LEVEL as i64),
            "",
            "Level of Paddle's log: the variable `GLOG_v`.",
            "0",
        ),
        NAME,
        key("partition", KeyKind::Text, "that of Slurm", "Partition: `--partition` of `sbatch`.", "cpu"),
        key("account", KeyKind::Text, "that of Slurm", "Account: `--account` of `sbatch`.", "ads"),
        key("qos", KeyKind::Text, "that of Slurm", "Quality of service: `--qos` of `sbatch`.", "normal"),
        key("constraint", KeyKind::Text, "", "Features of the nodes: `--constraint` of `sbatch`.", "avx512"),
        key("time", KeyKind::Text, "that of Slurm", "Time limit: `--time` of `sbatch`.", "'2:00:00'"),
        key(
            "nodes",
            REPLICAS,
            "",
            "Nodes of the allocation: `--nodes` of `sbatch`. With `paddlecloud` and `cluster_type: mpi`, its nodes; when omitted, 1.",
            "2",
        ),
        key(
            "hosts",
            KeyKind::Names,
            "those of an allocation, or this host",
            "Hosts of `mpirun`, each `HOST` or `HOST:SLOTS`.",
            "['node-1:2', 'node-2:2']",
        ),
        key("ak", KeyKind::Text, "", "Required. Key of the user; masked.", "abc"),
        key("sk", KeyKind::Text, "", "Required. Its secret; masked.", "abc"),
        key("priority", KeyKind::Choice(PRIORITIES), "`high`", "Priority.", "high"),
        key("group", KeyKind::Text, "`paddle`", "Group of resources.", "paddle"),
        key(
            "start_cmd",
            KeyKind::Text,
            "`python -m paddlerec.run -m ./config.yaml`",
            "Command of each node.",
            "'python -m paddlerec.run -m ./config.yaml'",
        ),
        key(
            "files",
            KeyKind::Text,
            "",
            "Required. Patterns of files for the submission, separated by blanks.",
            "'./*.py'",
        ),
        key("k8s_trainers", REPLICAS, "`1`", "Trainers, with `cluster_type: k8s`.", "2"),
        key("k8s_cpu_cores", REPLICAS, "`2`; `1` with GPUs", "CPUs of a trainer.", "2"),
        key("k8s_gpu_card", REPLICAS, "`1`", "GPUs of a trainer.", "1"),
        key("k8s_ps_num", REPLICAS, "`1`", "Servers, with `cluster_type: k8s`.", "2"),
        key("k8s_ps_cores", REPLICAS, "`2`", "CPUs of a server.", "2"),
        key(
            "scrpit",
            KeyKind::Text,
            "",
            "The script of PaddleCloud's first form, spelt like this. Not supported: write the third generation.",
            "cluster.sh",
        ),
    ],
};

pub static CLOUD: Table = Table {
    title: "`config`",
    help: "For `paddlecloud`. Other keys are ignored, with a notice.",
    keys: &[
        key("fs_name", KeyKind::Text, "", "Required. The remote file system.", "'afs://x'"),
        key("fs_ugi", KeyKind::Text, "", "Required. Its user and password; masked.", "'user,abc'"),
        key("output_path", KeyKind::Text, "", "Remote directory of results; a notice if it is empty.", "/output"),
        key("paddle_version", KeyKind::Text, "`1.7.2`", "Version of Paddle on the nodes.", "1.7.2"),
        key("use_python3", KeyKind::Text, "`0`", "`1` for Python 3.", "1"),
        key("train_data_path", KeyKind::Text, "", "Required with `cluster_type: mpi`. Remote training data.", "/train"),
        key("test_data_path", KeyKind::Text, "", "Remote test data; with `mpi`, a notice if it is empty.", "/test"),
        key("thirdparty_path", KeyKind::Text, "", "Other remote files; with `mpi`, a notice if it is empty.", "/third"),
        key(
            "afs_remote_mount_point",
            KeyKind::Text,
            "",
            "Remote directory that nodes see as `./afs/`; with `k8s`, a notice if it is empty.",
            "/afs",
        ),
        key("communicator", KeyKind::Mapping(&COMMUNICATOR), "", "Flags of Paddle.", "{FLAGS_rpc_retry_times: 3}"),
    ],
};

const THREAD_DEFAULT: &str = "the threads";

pub static COMMUNICATOR: Table = Table {
    title: "`communicator`",
    help: "Flags of Paddle on the nodes. Other keys are ignored, with a notice.",
    keys: &[
        key("FLAGS_communicator_is_sgd_optimizer", KeyKind::Text, "`0`", PADDLES, "0"),
        key("FLAGS_communicator_send_queue_size", KeyKind::Text, THREAD_DEFAULT, PADDLES, "5"),
        key("FLAGS_communicator_thread_pool_size", KeyKind::Text, "`32`", PADDLES, "32"),
        key("FLAGS_communicator_max_merge_var_num", KeyKind::Text, THREAD_DEFAULT, PADDLES, "5"),
        key("FLAGS_communicator_max_send_grad_num_before_recv", KeyKind::Text, THREAD_DEFAULT, PADDLES, "5"),
        key("FLAGS_communicator_fake_rpc", KeyKind::Text, "`0`", PADDLES, "0"),
        key("FLAGS_rpc_retry_times", KeyKind::Text, "`3`", PADDLES, "3"),
    ],
};

const PADDLES: &str = "As in Paddle.";

/// Every mapping, in the order of the reference page.
pub static TABLES: &[&Table] =
    &[&CONFIG, &TRAIN, &TRAINER, &LISTS, &RUNNER, &PHASE, &BACKEND, &ENGINE, &FLAT, &SUBMIT, &CLOUD, &COMMUNICATOR];
