"""All-reduces with PyTorch on gloo until the rank named by the argument raises.

The others ignore SIGTERM, so that they end by what really happens to them: a lost peer. What they
print then is what umiak must not take for a cause.
"""

import signal
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
failing = int(sys.argv[1])
if dist.get_rank() != failing:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in range(1, 100_000):
    if dist.get_rank() == failing and step == 20:
        raise ValueError("label 17 is out of range")
    dist.all_reduce(torch.ones(4))
