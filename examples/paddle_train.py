"""Data-parallel training with Paddle: a small network, on CPU (gloo) or on GPUs (NCCL).

    umiak launch --nproc_per_node 2 examples/paddle_train.py
    umiak launch --gpus 0,1,2,3     examples/paddle_train.py

Paddle reads everything it needs from the variables that the launcher sets. The script checks its
result: the sum of an all-reduce, that the loss falls, and that all ranks end with the same weights.
"""

import argparse
import sys
import time

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn

FEATURES = 8
BATCH = 64


def say(rank, size, text):
    # A single write, so that lines of ranks that share a terminal do not mix.
    sys.stdout.write(f"rank {rank}/{size}  {text}\n")
    sys.stdout.flush()


def build_model():
    # The same seed on every rank, so that all start from the same weights.
    paddle.seed(2026)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))


def batches(rank, steps):
    """Draws samples of the same function, different for each rank."""
    source = np.random.default_rng(1000 + rank)
    for _ in range(steps):
        inputs = source.normal(size=(BATCH, FEATURES)).astype("float32")
        targets = np.sin(inputs[:, :1]) + 0.5 * inputs[:, 1:2] * inputs[:, 2:3]
        yield paddle.to_tensor(inputs), paddle.to_tensor(targets)


def reduced(tensor, operation, world_size):
    """Returns the tensor after an all-reduce; with one rank, unchanged."""
    result = tensor.detach().clone()
    if world_size > 1:
        dist.all_reduce(result, op=operation)
    return result


def check_all_reduce(rank, world_size):
    total = reduced(paddle.to_tensor([float(rank + 1)]), dist.ReduceOp.SUM, world_size).item()
    expected = world_size * (world_size + 1) / 2
    assert total == expected, f"all_reduce gave {total}, expected {expected}"
    return total


def check_same_weights(model, world_size):
    weights = paddle.concat([parameter.detach().flatten() for parameter in model.parameters()])
    highest = reduced(weights, dist.ReduceOp.MAX, world_size)
    lowest = reduced(weights, dist.ReduceOp.MIN, world_size)
    assert bool((highest == lowest).all()), "the ranks ended with different weights"


def main():
    parser = argparse.ArgumentParser(description="Data-parallel training with Paddle.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--report-every", type=int, default=20, metavar="STEPS")
    options = parser.parse_args()

    started = time.monotonic()
    dist.init_parallel_env()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    say(rank, world_size, f"on {paddle.device.get_device()}, connected after {time.monotonic() - started:.1f} s")
    total = check_all_reduce(rank, world_size)
    say(rank, world_size, f"all_reduce of 1..{world_size} gives {total:g}")

    model = build_model()
    network = paddle.DataParallel(model) if world_size > 1 else model
    optimizer = paddle.optimizer.Adam(learning_rate=0.01, parameters=model.parameters())
    first = last = None
    recent = []
    for step, (inputs, targets) in enumerate(batches(rank, options.steps), start=1):
        loss = nn.functional.mse_loss(network(inputs), targets)
        loss.backward()  # DataParallel averages the gradients over all ranks here
        optimizer.step()
        optimizer.clear_grad()
        recent.append(loss.detach())
        if step in (1, options.steps) or step % options.report_every == 0:
            # The mean over the steps since the last report, and over all ranks.
            last = reduced(paddle.stack(recent).mean(), dist.ReduceOp.SUM, world_size).item() / world_size
            recent.clear()
            first = last if first is None else first
            say(rank, world_size, f"step {step:3d}  loss {last:.4f}")

    assert options.steps == 1 or last < first, f"the loss did not fall: {first:.4f} to {last:.4f}"
    check_same_weights(model, world_size)
    say(
        rank,
        world_size,
        f"done in {time.monotonic() - started:.1f} s: loss {first:.4f} -> {last:.4f}, "
        f"weights identical on all {world_size} ranks",
    )


if __name__ == "__main__":
    main()
