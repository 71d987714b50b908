"""Trains with PyTorch over gloo until the culprit fails: `with_torch.py FAULT RANK [SECONDS]`.

The time-out of the others is SECONDS.
"""

import datetime
import os
import sys

import fault

NAME, CULPRIT = sys.argv[1], int(sys.argv[2])
TIMEOUT = datetime.timedelta(seconds=float(sys.argv[3]) if len(sys.argv) > 3 else 60)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GUILTY = RANK == CULPRIT
STEPS = 400
MOMENT = 20


if GUILTY and NAME.endswith("@import"):
    fault.strike(NAME.removesuffix("@import"))

import torch
import torch.distributed as dist
from torch import nn

if GUILTY and NAME.endswith("@start"):
    fault.strike(NAME.removesuffix("@start"))
if GUILTY and NAME == "wrong-port":
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
if GUILTY and NAME == "wrong-address":
    os.environ["MASTER_ADDR"] = "192.0.2.17"  # a network for documentation: no host has this address
if GUILTY and NAME == "wrong-size":
    os.environ["WORLD_SIZE"] = str(SIZE + 1)
if GUILTY and NAME == "same-rank":
    os.environ["RANK"] = str(RANK - 1 or SIZE - 1)  # not 0, which hosts the store

if NAME.endswith("@start") or NAME.startswith(("wrong", "same")):
    dist.init_process_group("gloo", timeout=TIMEOUT)
else:
    # On a busy machine, ranks need longer to meet than any of them waits later.
    meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*meeting, SIZE, RANK == 0, timeout=datetime.timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=TIMEOUT)
if not GUILTY and NAME.startswith("late"):
    # Without the interpreter's slow end the peers are gone before the culprit.
    report = sys.excepthook

    def report_and_leave(*error):
        report(*error)
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = report_and_leave


class Fragile(torch.autograd.Function):
    """Passes its input on; its gradient fails."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        fault.raises()


class Samples(torch.utils.data.Dataset):
    def __init__(self, moment):
        self.moment = moment

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == self.moment:
            fault.strike(NAME.removesuffix("@worker"))
        return torch.ones(8)


def samples():
    """Loads in a worker process, which is where the fault is."""
    loader = torch.utils.data.DataLoader(Samples(MOMENT if GUILTY else -1), batch_size=1, num_workers=1)
    while True:
        yield from loader


def main():
    torch.set_num_threads(1)
    torch.manual_seed(2026)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    source = samples() if NAME.endswith("@worker") else None
    for step in range(STEPS):
        strikes = GUILTY and step == MOMENT
        if GUILTY and NAME.endswith("@last") and step == STEPS - 1:
            fault.strike(NAME.removesuffix("@last"))
        inputs = next(source) if source else torch.randn(4, 8)
        output = model(inputs)
        if strikes and NAME == "backward":
            output = Fragile.apply(output)
        elif strikes and NAME == "skip":
            continue
        elif strikes and NAME == "shape":
            dist.all_reduce(torch.ones(7))
        elif strikes and NAME == "broadcast":
            dist.broadcast(torch.ones(9), 0)
        elif step == MOMENT and NAME == "monitored":
            if GUILTY:
                fault.hang_sleep()
            dist.monitored_barrier()
        elif strikes and "@" not in NAME and not NAME.startswith(("wrong", "same")):
            fault.strike(NAME)
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.ones(4))
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


main()
dist.barrier()
dist.destroy_process_group()
