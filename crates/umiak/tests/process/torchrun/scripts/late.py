"""Attempt 1: all ranks form a group, then the last rank fails. Attempt 2: rank 0 is 3 s late, and the job succeeds.

With a store that keeps the keys of attempt 1, the other ranks of attempt 2 find addresses of processes that are gone.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if rank == 0 and not is_first:
    time.sleep(3)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
numbers = torch.full((1,), float(rank))
dist.all_reduce(numbers)
if is_first:
    dist.barrier()
    if rank == world - 1:
        sys.exit(5)
    time.sleep(600)
print(f"rank {rank}: sum {int(numbers)} in attempt 2", flush=True)
dist.destroy_process_group()
