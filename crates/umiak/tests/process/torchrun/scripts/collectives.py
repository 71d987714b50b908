"""Calls what needs the store: process groups, and collectives over them."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

# A script that chooses its own rendezvous.
for setting in sys.argv[1:]:
    name, _, value = setting.partition("=")
    os.environ[name] = value

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
numbers = torch.full((1,), float(rank))
dist.all_reduce(numbers)
dist.barrier()
group = dist.new_group(list(range(world)))
dist.all_reduce(numbers, group=group)
dist.monitored_barrier(timeout=timedelta(seconds=60))
assert int(numbers) == world * sum(range(world)), numbers
hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE")
print(f"rank {rank}/{world}: torch {torch.__version__.split('+')[0]}, sum {int(numbers)}, hosted {hosted}", flush=True)
dist.destroy_process_group()
