"""DDP inside the instances of an OpenPAI job: one process for each GPU of an instance, started by `mp.spawn`.

    umiak run examples/jobs/openpai.yaml

Address and port of the first instance come from the variables that OpenPAI sets, as its manual shows. The processes of
an instance are counted by `--gpus`, with or without GPUs: on CPU they use gloo.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(local_rank, nodes, gpus, steps):
    rank, size = int(os.environ["PAI_TASK_INDEX"]) * gpus + local_rank, nodes * gpus
    has_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= gpus
    dist.init_process_group("nccl" if has_gpu else "gloo", rank=rank, world_size=size)
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    torch.manual_seed(2026)
    model = DistributedDataParallel(nn.Linear(4, 1).to(device), device_ids=[local_rank] if has_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(32, 4, generator=source).to(device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weight = model.module.weight.detach().clone()
    dist.all_reduce(weight)
    same = torch.allclose(weight / size, model.module.weight, atol=1e-6)
    assert same and losses[-1] < losses[0], (losses[0], losses[-1], same)
    if rank == 0:
        print(f"{size} processes: loss {losses[0]:.2f} -> {losses[-1]:.4f}, the same weights everywhere", flush=True)
    # While DDP lives, threads of gloo do, and they can abort a process that exits.
    del model
    gc.collect()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--local", type=int, help="this process only, started by the commands of the instance")
    options = parser.parse_args()
    os.environ["MASTER_ADDR"] = os.environ["PAI_HOST_IP_worker_0"]
    os.environ["MASTER_PORT"] = os.environ["PAI_worker_0_SynPort_PORT"]
    shared = (options.nodes, options.gpus, options.steps)
    if options.local is not None:
        train(options.local, *shared)
    else:
        mp.spawn(train, args=shared, nprocs=options.gpus)


if __name__ == "__main__":
    main()
