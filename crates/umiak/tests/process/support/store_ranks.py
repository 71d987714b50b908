"""Two gloo ranks whose store is served by umiak: store_ranks.py PORT."""

import datetime
import os
import subprocess
import sys

if "RANK" not in os.environ:
    port = sys.argv[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, port],
            env=os.environ
            | {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
            },
        )
        for rank in range(2)
    ]
    sys.exit(max(rank.wait() for rank in ranks))

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
value = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(value)
assert value.tolist() == [3.0] * 4
group = dist.new_group([0, 1])
dist.all_reduce(value, group=group)
assert value.tolist() == [6.0] * 4
dist.barrier()
dist.monitored_barrier()
dist.destroy_process_group()
# Torch 2.15 sometimes aborts at interpreter exit.
sys.stdout.flush()
os._exit(0)
