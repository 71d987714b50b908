"""Training that goes on when nodes come and go, with PyTorch or with Paddle, on CPU with gloo.

    umiak torchrun --nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint node-a:29400 examples/elastic_train.py CHECKPOINT
    umiak launch --nnodes 1:4 --master node-a:6768 examples/elastic_train.py CHECKPOINT --framework paddle

Start the same line on each node, at any time; CHECKPOINT is a file that all of them see. Every attempt begins with the
last checkpoint. Each rank works on its share of the samples, and the gradients of all shares are added: the result does
not depend on the number of ranks, so that the last line is the same whatever happened on the way.
"""

import argparse
import os
import sys
import time

import numpy as np

SAMPLES, FEATURES = 240, 6
RATE = 0.05


def data():
    source = np.random.RandomState(7)
    inputs = source.randn(SAMPLES, FEATURES)
    targets = inputs @ np.arange(1.0, FEATURES + 1) + 0.1 * source.randn(SAMPLES)
    return inputs, targets


class Torch:
    def __init__(self):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, values):
        tensor = self.torch.from_numpy(values.copy())
        self.dist.all_reduce(tensor)
        return tensor.numpy()

    def end(self):
        self.dist.barrier()
        self.dist.destroy_process_group()


class Paddle:
    def __init__(self):
        import paddle
        import paddle.distributed as dist

        paddle.set_device("cpu")
        self.paddle, self.dist = paddle, dist
        dist.init_parallel_env()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, values):
        tensor = self.paddle.to_tensor(values)
        if self.size > 1:
            self.dist.all_reduce(tensor)
        return tensor.numpy()

    def end(self):
        if self.size > 1:
            self.dist.barrier()


def load(path):
    try:
        with open(path, "rb") as file:
            saved = np.load(file)
            return int(saved["step"]), saved["weights"]
    except FileNotFoundError:
        return 0, np.zeros(FEATURES)


def save(path, step, weights):
    """A reader sees the old file or the new one, never a part."""
    with open(f"{path}.new", "wb") as file:
        np.savez(file, step=step, weights=weights)
    os.replace(f"{path}.new", path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--framework", choices=["torch", "paddle"], default="torch")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    options = parser.parse_args()
    group = Torch() if options.framework == "torch" else Paddle()
    inputs, targets = data()
    mine = slice(group.rank, SAMPLES, group.size)
    step, weights = load(options.checkpoint)
    # All ranks begin with the same step, whoever saved one meanwhile.
    saved = np.append(weights, float(step))
    saved = group.sum(saved if group.rank == 0 else np.zeros(FEATURES + 1))
    weights, step = saved[:-1], int(saved[-1])
    reason = os.environ.get("UMIAK_RESTART_REASON", "the first attempt")
    say(group, f"begins with step {step} ({reason})")
    while step < options.steps:
        errors = inputs[mine] @ weights - targets[mine]
        weights = weights - RATE * group.sum(inputs[mine].T @ errors) / SAMPLES
        step += 1
        if group.rank == 0 and step % 10 == 0:
            save(options.checkpoint, step, weights)
        time.sleep(options.pause)
    errors = inputs[mine] @ weights - targets[mine]
    loss = group.sum(np.array([errors @ errors]))[0] / SAMPLES
    say(group, f"done: loss {loss:.9f} after {step} steps")
    group.end()


def say(group, text):
    sys.stdout.write(f"rank {group.rank}/{group.size}  {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
