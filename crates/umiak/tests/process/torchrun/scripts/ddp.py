"""Trains a small model with DistributedDataParallel (gloo, CPU) and saves a checkpoint after every step.

Data and initial weights depend only on the seed, the step and the rank, so the final parameters are the same however
often the job is restarted. Rank 0 prints `checksum <hex>` of the parameters and the optimizer's state at the end.

Files: `pid.<attempt>.<rank>` when a rank has started, `checkpoint.pt`, and `step`, the step of the checkpoint.
"""

import hashlib
import os
import sys
import time


def write(name, text):
    """Writes a file by a rename, so that a reader never sees an incomplete one."""
    with open(name + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.replace(name + ".new", name)


write(f"pid.{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}", str(os.getpid()))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(sys.argv[1])
CHECKPOINT = "checkpoint.pt"


def batch(step, rank):
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    inputs = torch.randn(16, 8, generator=generator)
    return inputs, inputs.sum(dim=1, keepdim=True).sin()


def save(model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)
    write("step", str(step))


def checksum(model, optimizer):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        digest.update(state["momentum_buffer"].numpy().tobytes())
    return digest.hexdigest()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    # Rank 0 writes the next checkpoint when all have read this one.
    dist.barrier()
    for step in range(first, STEPS):
        inputs, targets = batch(step, rank)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        # Time for a signal between two steps.
        time.sleep(0.005)
        if rank == 0:
            save(model, optimizer, step + 1)
    dist.barrier()
    if rank == 0:
        print("checksum", checksum(model, optimizer), flush=True)
    dist.destroy_process_group()


main()
