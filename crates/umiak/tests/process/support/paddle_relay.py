"""Meets with Paddle on gloo, where rank 0 comes last: `paddle_relay.py [RANK]`.

Rank 0 imports the framework, and so hosts the store, only after all other ranks are connected to the address that they
have for it. With a rank, that one fails in the first attempt.
"""

import os
import sys
import time

RANK = int(os.environ["PADDLE_TRAINER_ID"])
WORLD = int(os.environ["PADDLE_TRAINERS_NUM"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STORE = os.environ["PADDLE_MASTER"]


def note(rank):
    return f"store.{ATTEMPT}.{rank}"


def until(condition):
    """Waits for a condition, and fails if it does not come."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the other ranks did not connect"
        time.sleep(0.01)


def connected(port):
    """The number of connections to a port, as their clients see them."""
    with open("/proc/self/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


if RANK == 0:
    others = [note(rank) for rank in range(1, WORLD)]
    until(lambda: all(os.path.exists(other) for other in others))
    relays = {open(other).read() for other in others}
    assert len(relays) == 1 and relays != {STORE}, relays
    port = int(relays.pop().rsplit(":", 1)[1])
    until(lambda: connected(port) == WORLD - 1)
else:
    with open(f"{note(RANK)}.new", "w") as file:
        file.write(STORE)
    os.rename(f"{note(RANK)}.new", note(RANK))

import paddle  # noqa: E402
import paddle.distributed as dist  # noqa: E402

dist.init_parallel_env()
numbers = paddle.to_tensor([float(RANK)])
dist.all_reduce(numbers)
if sys.argv[1:] == [str(RANK)] and ATTEMPT == 0:
    sys.exit("this rank fails once")
print(f"rank {RANK}: sum {int(numbers.item())} in attempt {ATTEMPT}", flush=True)
