"""Two workers call each other."""

import os

from paddle.distributed import rpc


def add(one, other):
    return one + other


rank = int(os.environ["PADDLE_TRAINER_ID"])
rpc.init_rpc(f"worker{rank}")
answer = rpc.rpc_sync(f"worker{1 - rank}", add, args=(20, 22))
print(f"worker {rank} of {[worker.name for worker in rpc.get_all_worker_infos()]}: {answer}", flush=True)
rpc.shutdown()
