"""Data-parallel training with PyTorch DDP: on GPUs with NCCL where each rank has one, else on CPU with gloo.

    umiak launch --nproc_per_node 2 examples/torch_ddp.py
    umiak torchrun --nproc-per-node 2 examples/torch_ddp.py

The script is an ordinary torchrun script: it reads RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT and does not depend on the launcher. It checks its result: the sum of an all-reduce,
that the loss falls, and that all ranks end with the same weights.
"""

import argparse
import gc
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES = 8
BATCH = 64


def choose_device(local_rank, local_size):
    """NCCL needs a GPU per rank; with fewer GPUs than ranks, all ranks use the CPU."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_size:
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank), "nccl"
    return torch.device("cpu"), "gloo"


def say(rank, size, text):
    # A single write, so that lines of ranks that share a terminal do not mix.
    sys.stdout.write(f"rank {rank}/{size}  {text}\n")
    sys.stdout.flush()


def build_model():
    torch.manual_seed(2026)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))


def batches(rank, steps, device):
    """Draws samples of the same function, different for each rank."""
    source = torch.Generator().manual_seed(1000 + rank)
    for _ in range(steps):
        inputs = torch.randn(BATCH, FEATURES, generator=source)
        targets = torch.sin(inputs[:, :1]) + 0.5 * inputs[:, 1:2] * inputs[:, 2:3]
        yield inputs.to(device), targets.to(device)


def reduced(tensor, operation):
    result = tensor.detach().clone()
    dist.all_reduce(result, op=operation)
    return result


def check_all_reduce(rank, world_size, device):
    total = reduced(torch.tensor([float(rank + 1)], device=device), dist.ReduceOp.SUM).item()
    expected = world_size * (world_size + 1) / 2
    assert total == expected, f"all_reduce gave {total}, expected {expected}"
    return total


def check_same_weights(model):
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    highest = reduced(weights, dist.ReduceOp.MAX)
    lowest = reduced(weights, dist.ReduceOp.MIN)
    assert torch.equal(highest, lowest), "the ranks ended with different weights"


def train(options, device, backend, started):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    say(rank, world_size, f"on {device} with {backend}, connected after {time.monotonic() - started:.1f} s")
    total = check_all_reduce(rank, world_size, device)
    say(rank, world_size, f"all_reduce of 1..{world_size} gives {total:g}")

    model = build_model().to(device)
    network = DistributedDataParallel(model, device_ids=[device.index] if backend == "nccl" else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = last = None
    recent = []
    for step, (inputs, targets) in enumerate(batches(rank, options.steps, device), start=1):
        loss = nn.functional.mse_loss(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients over all ranks here
        optimizer.step()
        recent.append(loss.detach())
        if step in (1, options.steps) or step % options.report_every == 0:
            # The mean over the steps since the last report, and over all ranks.
            last = reduced(torch.stack(recent).mean(), dist.ReduceOp.SUM).item() / world_size
            recent.clear()
            first = last if first is None else first
            say(rank, world_size, f"step {step:3d}  loss {last:.4f}")

    assert options.steps == 1 or last < first, f"the loss did not fall: {first:.4f} to {last:.4f}"
    check_same_weights(model)
    say(
        rank,
        world_size,
        f"done in {time.monotonic() - started:.1f} s: loss {first:.4f} -> {last:.4f}, "
        f"weights identical on all {world_size} ranks",
    )


def main():
    parser = argparse.ArgumentParser(description="Data-parallel training with PyTorch DDP.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--report-every", type=int, default=20, metavar="STEPS")
    options = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    local_size = int(os.environ["LOCAL_WORLD_SIZE"])
    device, backend = choose_device(local_rank, local_size)

    started = time.monotonic()
    dist.init_process_group(backend)
    train(options, device, backend, started)
    # DDP is part of a cycle. While it lives, so do the threads of gloo, and one that lets go of a tensor while Python
    # exits aborts the process.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
