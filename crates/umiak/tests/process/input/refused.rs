//! Command lines that are refused before anything is started: line, exit code and stderr. `DIR` is the current
//! directory, which holds `train.py`, `job.yaml`, an empty `directory` and `bin`.

/// Line, exit code, stderr.
pub(super) type Row<'a> = (&'a str, i32, &'a str);

/// Flags and values that are invalid for every launcher.
pub(super) const USAGE: &[Row<'_>] = &[
    (
        "umiak launch",
        2,
        "error[L0001]: the training script is missing\nhint: the script comes after the flags: `umiak launch --gpus 0,1 train.py`\n",
    ),
    (
        "umiak launch --gpus 0,1",
        2,
        "error[L0001]: the training script is missing\nhint: `0,1` was read as the value of `--gpus`; the script comes after it\n",
    ),
    (
        "umiak fleetrun --log_dir x",
        2,
        "error[L0001]: the training script is missing\nhint: `x` was read as the value of `--log_dir`; the script comes after it\n",
    ),
    (
        "umiak launch --gpus",
        2,
        "error[L0001]: `--gpus` needs a value\nhint: a value that begins with a dash is written `--gpus=VALUE`\n",
    ),
    (
        "umiak launch --gpus --log_dir x train.py",
        2,
        "error[L0001]: `--gpus` needs a value\nhint: a value that begins with a dash is written `--gpus=VALUE`\n",
    ),
    (
        "umiak launch --gpsu 0,1 train.py",
        2,
        "error[L0001]: unknown flag `--gpsu`\nhint: did you mean `--gpus`?\nhint: `--compat paddle` ignores unknown flags, as Paddle does\n",
    ),
    (
        "umiak launch --log-dri=x train.py",
        2,
        "error[L0001]: unknown flag `--log-dri`\nhint: did you mean `--log_dir`?\nhint: `--compat paddle` ignores unknown flags, as Paddle does\n",
    ),
    (
        "umiak launch --frobnicate train.py",
        2,
        "error[L0001]: unknown flag `--frobnicate`\nhint: `-h` lists all flags; the script's own flags come after the script\nhint: `--compat paddle` ignores unknown flags, as Paddle does\n",
    ),
    (
        "umiak launch -x train.py",
        2,
        "error[L0001]: unknown flag `-x`\nhint: `-h` lists all flags; the script's own flags come after the script\nhint: `--compat paddle` ignores unknown flags, as Paddle does\n",
    ),
    (
        "umiak launch --dry train.py",
        2,
        "error[L0001]: unknown flag `--dry`\nhint: did you mean `--dry-run`?\nhint: `--compat paddle` ignores unknown flags, as Paddle does\n",
    ),
    (
        "umiak launch --gpsu=0,1",
        2,
        "error[L0001]: unknown flag `--gpsu`\nhint: did you mean `--gpus`?\nhint: `--compat paddle` ignores unknown flags, as Paddle does\nerror[L0001]: the training script is missing\nhint: the script comes after the flags: `umiak launch --gpus 0,1 train.py`\n",
    ),
    (
        "umiak launch -m train",
        2,
        "error[L0001]: `-m` is a flag of `torchrun`\nhint: start a module with `umiak launch python -m MODULE`\n",
    ),
    (
        "umiak launch --standalone --rdzv-backend=c10d train.py",
        2,
        "error[L0001]: `--standalone` is a flag of `torchrun`\nhint: one node is the default: leave it out\nerror[L0001]: `--rdzv-backend` is a flag of `torchrun`\nhint: leave it out; use `--master HOST:PORT --nnodes N`\n",
    ),
    (
        "umiak launch --nproc_per_node 0 train.py",
        2,
        "error[L0001]: `--nproc_per_node` takes a number from 1 to 65535, not `0`\n",
    ),
    (
        "umiak launch --n 2 train.py",
        2,
        "error[L0001]: `--n` is ambiguous: it could be `--nnodes`, `--nproc_per_node` or `--npus`\nhint: write the whole flag\n",
    ),
    ("umiak launch --dry-run=1 train.py", 2, "error[L0001]: `--dry-run` takes no value, but was given `1`\n"),
    (
        "umiak launch --nproc_per_node abc train.py",
        2,
        "error[L0001]: `--nproc_per_node` takes a whole number, not `abc`\n",
    ),
    (
        "umiak launch --nproc_per_node -1 train.py",
        2,
        "error[L0001]: `--nproc_per_node` takes a number from 1 to 65535, not `-1`\n",
    ),
    (
        "umiak launch --nproc_per_node 99999 train.py",
        2,
        "error[L0001]: `--nproc_per_node` takes a number from 1 to 65535, not `99999`\n",
    ),
    ("umiak launch --max_restart 1.5 train.py", 2, "error[L0001]: `--max_restart` takes a whole number, not `1.5`\n"),
    (
        "umiak launch --legacy maybe train.py",
        2,
        "error[L0001]: `--legacy` takes `true` or `false` (also yes/no, on/off, 1/0), not `maybe`\n",
    ),
    (
        "umiak launch --log_overwrite '' train.py",
        2,
        "error[L0001]: `--log_overwrite` takes `true` or `false` (also yes/no, on/off, 1/0), not ``\n",
    ),
    (
        "umiak launch --log_level loud train.py",
        2,
        "error[L0001]: `--log_level` takes `CRITICAL`, `FATAL`, `ERROR`, `WARNING`, `WARN`, `INFO`, `DEBUG` or `NOTSET`, not `loud`\n",
    ),
    (
        "umiak launch --grace 5x train.py",
        2,
        "error[L0001]: `--grace` takes a duration such as `10s`, `5m`, `6h`, `1d` or `500ms`, not `5x`\n",
    ),
    ("umiak launch --output xml train.py", 2, "error[L0001]: `--output` takes `human`, `json` or `quiet`, not `xml`\n"),
    (
        "umiak launch --run_mode pss train.py",
        2,
        "error[L0001]: `--run_mode` takes `collective`, `ps`, `ps-heter` or `rpc`, not `pss`\n",
    ),
    (
        "umiak launch --log_dir '' train.py",
        2,
        "error[L0001]: `--log_dir` is empty\nhint: name a directory, or leave it out to use `log`\n",
    ),
    ("umiak launch --job_id ../x train.py", 2, "error[L0001]: `--job_id` cannot be `../x`: it would be a path\n"),
    (
        "umiak launch --job_id 'a\tb' train.py",
        2,
        "error[L0001]: `--job_id` cannot be `a\\tb`: it contains a control character\n",
    ),
    (
        "umiak launch --gpus 0,,1 train.py",
        2,
        "error[L0001]: `--gpus` has an empty entry in its list: `0,,1`\nhint: separate devices by single commas: `--gpus 0,1`\n",
    ),
    (
        "umiak launch --host nohost train.py",
        2,
        "error[L0001]: `--host` takes the address of this node, not `nohost`\nhint: use an IP address of this host; `hostname -i` prints it\n",
    ),
    (
        "umiak launch --ips here train.py",
        2,
        "error[L0001]: `--ips` takes IP addresses, not `here`\nhint: leave it out to run on this node alone\n",
    ),
    (
        "umiak launch --ips 127.0.0.1,10.0.0.1 train.py",
        2,
        "error[L0002]: `127.0.0.1` cannot be one of several nodes in `--ips`\n  nodes  127.0.0.1, 10.0.0.1\nhint: every node must be able to reach the others at the addresses listed\n",
    ),
    (
        "umiak launch --nnodes 0 train.py",
        2,
        "error[L0001]: `--nnodes` takes a number of nodes such as `1` or `2:4`, not `0`\n",
    ),
    (
        "umiak launch --start_port 70000 train.py",
        2,
        "error[L0001]: `--start_port` asks for port 70000, which is not in the range 1-65535\n",
    ),
    (
        "umiak launch --backend foo train.py",
        2,
        "error[L0007]: `--backend` takes `auto`, `nccl`, `gloo`, `bkcl`, `cncl`, `hccl`, `xccl` or `heter`, not `foo`\n  Paddle says  ValueError: paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', 'auto', 'heter', 'xccl' but got foo\n",
    ),
    (
        "umiak launch --backend nccl --run_mode ps train.py",
        2,
        "error[L0002]: `--backend nccl` works with collective jobs only, but `--run_mode` is `ps`\n",
    ),
    (
        "umiak launch --worker_num 2 train.py",
        2,
        "error[L0001]: a parameter-server job needs servers, but neither `--server_num` nor `--servers` was given\nhint: set their number with `--server_num`, or list them with `--servers`\n",
    ),
    (
        "umiak launch --server_num 0 --trainer_num 2 train.py",
        2,
        "error[L0001]: `--server_num` is 0, but a job on one node needs servers\nhint: use at least 1, or add other nodes\n",
    ),
    (
        "umiak launch --servers 127.0.0.1:6170 --workers 127.0.0.1:6170 train.py",
        2,
        "error[L0002]: 127.0.0.1:6170 is in both `--servers` and `--workers`\n  --servers  entry 1\n  --workers  entry 1\nhint: every process needs its own port; correct one of the entries\n",
    ),
    (
        "umiak launch --run_mode ps-heter --server_num 1 --trainer_num 1 train.py",
        2,
        "error[L0001]: a heterogeneous job needs heterogeneous workers, but neither `--heter_worker_num` nor `--heter_workers` was given\nhint: set their number with `--heter_worker_num`, or list them with `--heter_workers`; stages are separated by `;`\n",
    ),
    (
        "umiak launch --nproc_per_node abc --log_level loud --gpsu 1 train.py",
        2,
        "error[L0001]: `--nproc_per_node` takes a whole number, not `abc`\nerror[L0001]: unknown flag `--gpsu`\nhint: did you mean `--gpus`?\nhint: `--compat paddle` ignores unknown flags, as Paddle does\nerror[L0001]: `--log_level` takes `CRITICAL`, `FATAL`, `ERROR`, `WARNING`, `WARN`, `INFO`, `DEBUG` or `NOTSET`, not `loud`\n",
    ),
];

/// Recognised but not implemented.
pub(super) const NOT_YET: &[Row<'_>] = &[
    (
        "umiak torchrun --nnodes 2:4 train.py",
        2,
        "error[L0002]: `--nnodes 2:4` cannot be used with the backend `static`\nhint: nodes come and go with `--rdzv-backend c10d --rdzv-endpoint HOST:29400`\n",
    ),
    (
        "umiak python -m paddlerec.run -m c.yaml -r WORKER",
        2,
        "error[L0003]: `-r WORKER` is not supported: umiak starts the workers itself\nhint: leave `-r` out\n",
    ),
    ("umiak top", 2, "error[L0003]: `umiak top` is not supported yet\nhint: `umiak --help` lists the commands\n"),
    (
        "umiak launch --nnodes 1:2 --ips 10.0.0.1,10.0.0.2 train.py",
        2,
        "error[L0002]: `--nnodes 1:2` cannot be used here: no nodes can come and go\nhint: say where the nodes meet with `--master HOST:PORT`\n",
    ),
    (
        "umiak launch --nproc_per_node gpu train.py",
        2,
        "error[L0001]: `--nproc_per_node` takes a whole number, not `gpu`\nhint: leave `--nproc_per_node` out: one process starts for each device\n",
    ),
    (
        "umiak launch job.yaml",
        126,
        "error[L0012]: `job.yaml` is a document, not a training script\nhint: to run a document, write `umiak run job.yaml`\n",
    ),
    (
        "umiak launch --enable_auto_mapping 1 train.py",
        2,
        "error[L0003]: `--enable_auto_mapping` needs auto mapping, which is not supported yet\n",
    ),
];

/// Nodes that meet in etcd. No row reaches it.
pub(super) const ETCD: &[Row<'_>] = &[
    (
        "umiak launch --elastic_server 127.0.0.1:2379 train.py",
        2,
        "error[L0001]: `--elastic_server` needs `--job_id` and `--np`\nhint: `--job_id` names the job in etcd, and `--np` is its number of nodes: `--job_id job1 --np 2`\n",
    ),
    (
        "umiak launch --master etcd://127.0.0.1:x train.py",
        2,
        "error[R0038]: `--master` has an invalid address of etcd\n  address  127.0.0.1:x\n  reason   the port must be a number from 1 to 65535\nhint: write `HOST:PORT`; several are separated by commas\n",
    ),
    (
        "umiak launch --run_mode ps --server_num 1 --trainer_num 1 --master etcd://127.0.0.1:2379 train.py",
        2,
        "error[L0002]: parameter-server jobs have a fixed number of nodes, and cannot use etcd\nhint: leave `--master` out, and say where the nodes meet with `--master HOST:PORT --nnodes N`\n",
    ),
    (
        "torchrun --rdzv-backend etcd train.py",
        2,
        "error[L0001]: `--rdzv-endpoint` is missing\nhint: list the members of etcd: `--rdzv-endpoint HOST:2379`\n",
    ),
];

/// Umiak's own commands.
pub(super) const OWN: &[Row<'_>] = &[
    (
        "umiak frobnicate",
        2,
        "error[L0001]: there is no command `frobnicate`\nhint: `umiak --help` lists the commands\n",
    ),
    ("umiak lauch train.py", 2, "error[L0001]: there is no command `lauch`\nhint: did you mean `umiak launch`?\n"),
    (
        "umiak train.py --lr 1",
        2,
        "error[L0001]: there is no command `train.py`\nhint: to start a script, write `umiak launch train.py`\n",
    ),
    (
        "umiak --gpus 0,1 train.py",
        2,
        "error[L0001]: `umiak` has no flag `--gpus`\nhint: flags of the launcher go after its name: `umiak launch --gpus 0,1 train.py`\n",
    ),
    (
        "umiak explain nonsense",
        2,
        "error[L0001]: there is no error code and no run `nonsense`\nhint: messages have their code in brackets, as in `error[L0004]`; `umiak ls` lists the runs\n",
    ),
    (
        "umiak python x.py",
        2,
        "error[L0001]: `umiak python` starts launchers, and `x.py` is not one\nhint: write `umiak python -m paddle.distributed.launch SCRIPT`, or `umiak launch SCRIPT`\n",
    ),
    (
        "umiak python",
        2,
        "error[L0001]: `umiak python` needs a launcher to start\nhint: write `umiak python -m paddle.distributed.launch SCRIPT`, or `umiak launch SCRIPT`\n",
    ),
    (
        "umiak python3 -m http.server",
        2,
        "error[L0001]: `umiak python3` starts launchers, and `http.server` is not one\nhint: write `umiak python3 -m paddle.distributed.launch SCRIPT`, or `umiak launch SCRIPT`\n",
    ),
    (
        "umiak ls --outptu json",
        2,
        "error[L0001]: unexpected argument '--outptu' found\nhint: a similar argument exists: '--output'\nhint: usage: `umiak ls --output <FORMAT>`\n",
    ),
    ("umiak man nothing", 2, "error[L0001]: there is no command `nothing`\nhint: `umiak --help` lists the commands\n"),
    ("umiak explain", 2, "error[J0002]: there are no runs yet\n  looked in  DIR/state\n"),
    (
        "umiak plan",
        2,
        "error[L0001]: the following required arguments were not provided: <FILE>\nhint: usage: `umiak plan <FILE>`\n",
    ),
    (
        "umiak schema nothing",
        2,
        "error[L0001]: invalid value 'nothing' for '[FORMAT]' [possible values: cloud-plan, code, detached, error, explain, facts, job, lint, logs, ls, pipeline-plan, plan, removed, show, show-pai, stacks, stop, store, wait]\n",
    ),
];

/// Variables that stand for flags, and variables of the platform.
pub(super) const ENVIRONMENT: &[Row<'_>] = &[
    (
        "PADDLE_NPROC_PER_NODE=many umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_NPROC_PER_NODE` takes a whole number, not `many`\nhint: `PADDLE_NPROC_PER_NODE` sets `--nproc_per_node`; correct or unset it\n",
    ),
    (
        "PADDLE_NNODES=x umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_NNODES` takes a number of nodes such as `1` or `2:4`, not `x`\nhint: `PADDLE_NNODES` sets `--nnodes`; correct or unset it\n",
    ),
    (
        "PADDLE_LOG_LEVEL=loud umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_LOG_LEVEL` takes `CRITICAL`, `FATAL`, `ERROR`, `WARNING`, `WARN`, `INFO`, `DEBUG` or `NOTSET`, not `loud`\nhint: `PADDLE_LOG_LEVEL` sets `--log_level`; correct or unset it\n",
    ),
    (
        "PADDLE_JOB_ID=a/b umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_JOB_ID` cannot be `a/b`: it would be a path\nhint: `PADDLE_JOB_ID` sets `--job_id`; correct or unset it\n",
    ),
    (
        "POD_IP=nohost umiak launch train.py",
        2,
        "error[L0009]: `POD_IP` takes the address of this node, not `nohost`\nhint: `POD_IP` sets `--host`; correct or unset it\nhint: use an IP address of this host; `hostname -i` prints it\n",
    ),
    (
        "PADDLE_LOG_OVERWRITE=maybe umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_LOG_OVERWRITE` takes `true` or `false` (also yes/no, on/off, 1/0), not `maybe`\nhint: `PADDLE_LOG_OVERWRITE` sets `--log_overwrite`; correct or unset it\n",
    ),
    (
        "PADDLE_LOG_DIR= umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_LOG_DIR` is empty\nhint: `PADDLE_LOG_DIR` sets `--log_dir`; correct or unset it\nhint: name a directory, or leave it out to use `log`\n",
    ),
    (
        "PADDLE_TRAINER_ID=first umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_TRAINER_ID` takes a whole number, not `first`\nhint: correct `PADDLE_TRAINER_ID`, or unset it\n",
    ),
    (
        "PADDLE_ENV_LIMIT_LEN=long umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_ENV_LIMIT_LEN` takes a whole number, not `long`\nhint: correct `PADDLE_ENV_LIMIT_LEN`, or unset it\n",
    ),
    (
        "PADDLE_START_PORT=0x10 umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_START_PORT` takes a whole number, not `0x10`\nhint: `PADDLE_START_PORT` sets `--start_port`; correct or unset it\n",
    ),
    (
        "FLAGS_START_PORT=abc umiak launch train.py",
        2,
        "error[L0009]: `FLAGS_START_PORT` takes a whole number, not `abc`\nhint: correct `FLAGS_START_PORT`, or unset it\n",
    ),
    (
        "FLAGS_START_PORT=70000 umiak launch train.py",
        2,
        "error[L0009]: `FLAGS_START_PORT` asks for port 70000, which is not in the range 1-65535\n",
    ),
    (
        "FLAGS_FIXED_PORT= umiak launch train.py",
        2,
        "error[L0009]: `FLAGS_FIXED_PORT` takes a whole number, not ``\nhint: correct `FLAGS_FIXED_PORT`, or unset it\n",
    ),
    (
        "PORT_RANGE=9 umiak launch train.py",
        2,
        "error[L0009]: `PORT_RANGE` takes two ports such as `35100:64000`, not `9`\nhint: write the lower port first, or unset the variable\n",
    ),
    (
        "PORT_RANGE=9:1 umiak launch train.py",
        2,
        "error[L0009]: `PORT_RANGE` takes two ports such as `35100:64000`, not `9:1`\nhint: write the lower port first, or unset the variable\n",
    ),
    (
        "PADDLE_DISTRI_BACKEND=foo umiak launch --legacy 1 train.py",
        2,
        "error[L0009]: `PADDLE_DISTRI_BACKEND` takes `auto`, `nccl`, `gloo`, `bkcl`, `cncl`, `hccl`, `xccl` or `heter`, not `foo`\n  Paddle says  ValueError: paddle.distributed initialize error, backend argument can only be one of 'nccl', 'gloo', 'bkcl', 'auto', 'heter', 'xccl' but got foo\nhint: `PADDLE_DISTRI_BACKEND` sets `--backend`; correct or unset it\n",
    ),
    (
        "PADDLE_LAUNCH_WITH_ARGS=x umiak launch train.py",
        2,
        "error[L0009]: `PADDLE_LAUNCH_WITH_ARGS` takes a whole number, not `x`\nhint: correct `PADDLE_LAUNCH_WITH_ARGS`, or unset it\n",
    ),
    (
        "PADDLE_TRAINERS=10.0.0.1,10.0.0.2 PADDLE_TRAINERS_NUM=2 umiak launch --legacy 1 train.py",
        2,
        "error[L0008]: the environment looks like PaddleCloud's, but `POD_IP`, `PADDLE_TRAINER_ID` and `TRAINER_PORTS_NUM` are missing\n  PADDLE_TRAINERS  10.0.0.1, 10.0.0.2\nhint: set the missing variables, or unset `PADDLE_TRAINERS` to run on this node alone\n",
    ),
    (
        "PADDLE_TRAINERS=10.0.0.1,10.0.0.2 PADDLE_TRAINERS_NUM=2 POD_IP=10.0.0.1 PADDLE_TRAINER_ID=0 umiak launch --legacy 1 train.py",
        2,
        "error[L0008]: the environment looks like PaddleCloud's, but `TRAINER_PORTS_NUM` is missing\n  PADDLE_TRAINERS  10.0.0.1, 10.0.0.2\nhint: set the missing variables, or unset `PADDLE_TRAINERS` to run on this node alone\n",
    ),
    (
        "PADDLE_TRAINERS=10.0.0.1 PADDLE_TRAINERS_NUM=2 POD_IP=10.0.0.9 PADDLE_TRAINER_ID=0 TRAINER_PORTS_NUM=2 umiak launch --legacy 1 train.py",
        2,
        "error[L0008]: `POD_IP` is not in `PADDLE_TRAINERS`\n  POD_IP           10.0.0.9\n  PADDLE_TRAINERS  10.0.0.1\n",
    ),
    (
        "PADDLE_TRAINERS=10.0.0.1 PADDLE_TRAINERS_NUM=2 POD_IP=10.0.0.1 PADDLE_TRAINER_ID=0 TRAINER_PORTS_NUM=2 DISTRIBUTED_TRAINER_ENDPOINTS=10.0.0.1:7000 umiak launch --legacy 1 train.py",
        2,
        "error[L0008]: `DISTRIBUTED_TRAINER_ENDPOINTS` lists 1 endpoints, but `TRAINER_PORTS_NUM` is 2\n",
    ),
];
