//! Command lines that need something missing on the machine, in the form of `refused`.

use super::refused::Row;

/// Missing files, interpreters, ports and devices.
pub(super) const MACHINE: &[Row<'_>] = &[
    (
        "umiak launch trian.py",
        127,
        "error[L0011]: the training script `trian.py` was not found\n  looked in  DIR\nhint: did you mean `train.py`?\n",
    ),
    (
        "umiak launch other.py",
        127,
        "error[L0011]: the training script `other.py` was not found\n  looked in  DIR\nhint: change to the script's directory, or give its path\n",
    ),
    (
        "umiak launch worker",
        127,
        "error[L0011]: the training script `worker` was not found\n  looked in  DIR\n             PATH\nhint: change to the script's directory, or give its path\n",
    ),
    (
        "umiak launch ./bin/worker",
        127,
        "error[L0011]: the training script `./bin/worker` was not found\n  looked for  DIR/bin/worker\n",
    ),
    (
        "umiak launch 'no such/train.py'",
        127,
        "error[L0011]: the training script `no such/train.py` was not found\n  looked for  DIR/no such/train.py\n",
    ),
    (
        "umiak launch --gpus 0 1 train.py",
        127,
        "error[L0011]: the training script `1` was not found\n  looked in  DIR\n             PATH\nhint: write lists without spaces: `--gpus 0,1`; the first word that is not a flag is the script\n",
    ),
    (
        "umiak launch directory",
        126,
        "error[L0012]: `directory` is a directory, not a training script\nhint: name the script inside it, as in `umiak launch train.py`\n",
    ),
    (
        "umiak launch directory/",
        126,
        "error[L0012]: `directory/` is a directory, not a training script\nhint: name the script inside it, as in `umiak launch train.py`\n",
    ),
    (
        "PATH=/nothing bin/umiak launch train.py",
        127,
        "error[L0013]: no Python interpreter was found\n  tried  python3, python\nhint: install Python, activate a virtual environment, or name one: `umiak /path/to/python -m paddle.distributed.launch …`\n",
    ),
    (
        "PATH=/nothing bin/umiak python3.11 -m paddle.distributed.launch train.py",
        127,
        "error[L0013]: no Python interpreter was found\n  tried  python3.11\nhint: install Python, activate a virtual environment, or name one: `umiak /path/to/python -m paddle.distributed.launch …`\n",
    ),
    (
        "umiak ./no/python -m paddle.distributed.launch train.py",
        127,
        "error[L0013]: no Python interpreter was found\n  tried  ./no/python\nhint: install Python, activate a virtual environment, or name one: `umiak /path/to/python -m paddle.distributed.launch …`\n",
    ),
    (
        "umiak launch --log_dir train.py train.py",
        125,
        "error[L0014]: the log directory `DIR/train.py` cannot be used\n  reason  `DIR/train.py` is a file, not a directory\nhint: choose another one with `--log_dir`\n",
    ),
    (
        "umiak launch --log_dir train.py/log train.py",
        125,
        "error[L0014]: the log directory `DIR/train.py/log` cannot be used\n  reason  `DIR/train.py` is a file, not a directory\nhint: choose another one with `--log_dir`\n",
    ),
    (
        "umiak launch --log_dir /proc/nothing train.py",
        125,
        "error[L0014]: the log directory `/proc/nothing` cannot be used\n  reason  No such file or directory (os error 2)\nhint: choose another one with `--log_dir`\n",
    ),
    (
        "umiak launch --backend nccl train.py",
        2,
        "error[L0007]: backend `nccl` needs GPUs, but this machine has none\n  Paddle says  ValueError: paddle.distributed initialize error, your paddle is not compiled with cuda but you assign 'nccl' as backend.\nhint: use `--backend gloo` to run on CPU, or leave out `--backend` and `PADDLE_DISTRI_BACKEND`\n",
    ),
    (
        "PADDLE_DISTRI_BACKEND=nccl umiak launch --legacy 1 train.py",
        2,
        "error[L0007]: backend `nccl` needs GPUs, but this machine has none\n  Paddle says  ValueError: paddle.distributed initialize error, your paddle is not compiled with cuda but you assign 'nccl' as backend.\nhint: use `--backend gloo` to run on CPU, or leave out `--backend` and `PADDLE_DISTRI_BACKEND`\n",
    ),
    (
        "FLAGS_START_PORT=65534 umiak launch --nproc_per_node 4 train.py",
        125,
        "error[L0010]: `FLAGS_START_PORT` asks for ports above 65535\n  start   65534\n  needed  4\nhint: choose a lower start, or leave `FLAGS_START_PORT` out to use free ports\n",
    ),
    (
        "umiak launch --nproc_per_node 30000 train.py",
        125,
        "error[L0010]: 30000 processes on one node need more ports than a host has\nhint: start fewer processes with `--nproc_per_node`\n",
    ),
];

/// Devices, on a machine with four GPUs.
pub(super) const GPUS: &[Row<'_>] = &[
    (
        "umiak launch --gpus 4 train.py",
        2,
        "error[L0005]: `--gpus` names gpu 4, which this machine does not have\n  available  gpu 0 (NVIDIA H200)\n             gpu 1 (NVIDIA H200)\n             gpu 2 (NVIDIA H200)\n             gpu 3 (NVIDIA H200)\nhint: numbers are physical device numbers; omit `--gpus` to use every available gpu\n",
    ),
    (
        "umiak launch --gpus 0,0 train.py",
        2,
        "error[L0006]: a gpu is listed twice\n  listed  0,0\nhint: name each device once, or let processes share one with `--share-devices`\n",
    ),
    (
        "umiak launch --devices 0,9 train.py",
        2,
        "error[L0005]: `--devices` names gpu 9, which this machine does not have\n  available  gpu 0 (NVIDIA H200)\n             gpu 1 (NVIDIA H200)\n             gpu 2 (NVIDIA H200)\n             gpu 3 (NVIDIA H200)\nhint: numbers are physical device numbers; omit `--devices` to use every available gpu\n",
    ),
    (
        "CUDA_VISIBLE_DEVICES=0,1 umiak launch --gpus 1,2 train.py",
        2,
        "error[L0005]: `--gpus` names gpu 2, which `CUDA_VISIBLE_DEVICES` hides\n  CUDA_VISIBLE_DEVICES  0,1\n  available             gpu 0 (NVIDIA H200)\n                        gpu 1 (NVIDIA H200)\nhint: numbers are physical device numbers; omit `--gpus` to use every available gpu\n",
    ),
    (
        "umiak launch --gpus 0,1,2 --nproc_per_node 2 --legacy 1 train.py",
        2,
        "error[L0006]: 3 gpus cannot be split evenly over 2 processes\n  --nproc_per_node  2\n  gpus              0,1,2\nhint: choose a number of processes that divides the number of devices\n",
    ),
    (
        "umiak launch --gpus 0,1 --nproc_per_node 4 train.py",
        2,
        "error[L0006]: 4 processes cannot share 2 gpus\n  --nproc_per_node  4\n  --gpus            0,1\nhint: name more devices, start fewer processes, or share them with `--share-devices`\n",
    ),
    (
        "PADDLE_DEVICES=7 umiak launch train.py",
        2,
        "error[L0005]: `PADDLE_DEVICES` names gpu 7, which this machine does not have\n  available  gpu 0 (NVIDIA H200)\n             gpu 1 (NVIDIA H200)\n             gpu 2 (NVIDIA H200)\n             gpu 3 (NVIDIA H200)\nhint: numbers are physical device numbers; omit `PADDLE_DEVICES` to use every available gpu\n",
    ),
    (
        "umiak launch --backend bkcl train.py",
        2,
        "error[L0007]: backend `bkcl` needs XPUs, but this machine has none\n  Paddle says  ValueError: paddle.distributed initialize error, your paddle is not compiled with xpu but you assign 'bkcl' as backend.\nhint: use `--backend gloo` to run on CPU, or leave out `--backend` and `PADDLE_DISTRI_BACKEND`\n",
    ),
    (
        "umiak launch --gpus GPU-nothing train.py",
        2,
        "error[L0005]: `--gpus` names gpu GPU-nothing, which this machine does not have\n  available  gpu 0 (NVIDIA H200)\n             gpu 1 (NVIDIA H200)\n             gpu 2 (NVIDIA H200)\n             gpu 3 (NVIDIA H200)\nhint: numbers are physical device numbers; omit `--gpus` to use every available gpu\n",
    ),
];
