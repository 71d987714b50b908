"""Click prediction with Paddle's parameter servers: sparse embeddings, asynchronous training, on CPU.

    umiak launch --server_num 2 --worker_num 2 examples/ctr_ps.py

It needs a Paddle built with parameter servers, such as paddlepaddle 2.6.2 for Python 3.11.

One script for both roles: Paddle reads the role from the variables that the launcher sets. Each
server holds a part of the embeddings. Workers draw impressions (a user, an item, a context), pull
the rows they need, and push gradients without waiting for each other. The script checks its result:
every worker must end with a loss well below that of guessing.
"""

import argparse
import itertools
import math
import sys
import time

import numpy as np
import paddle
from paddle.distributed import fleet

SLOTS = ("user", "item", "context")
IDS_PER_SLOT = 200
IDS = len(SLOTS) * IDS_PER_SLOT
WIDTH = 8
BATCH = 128
# The loss of guessing, which is that of a new model. A late worker may find a partly trained one.
GUESSING = math.log(2)


def say(text):
    # A single write, so that lines of processes that share a terminal do not mix.
    role, rank, size = (
        ("server", fleet.server_index(), fleet.server_num())
        if fleet.is_server()
        else ("worker", fleet.worker_index(), fleet.worker_num())
    )
    sys.stdout.write(f"{role} {rank}/{size}  {text}\n")
    sys.stdout.flush()


def impressions(rank, steps):
    """Draws impressions, different for each worker, from one click model."""
    taste = np.random.default_rng(2026).normal(size=(len(SLOTS), IDS_PER_SLOT))
    source = np.random.default_rng(1000 + rank)
    for _ in range(steps):
        # Few ids are frequent and many are rare, as in real data.
        ids = (source.random(size=(BATCH, len(SLOTS))) ** 2 * IDS_PER_SLOT).astype("int64")
        appeal = sum(taste[slot, ids[:, slot]] for slot in range(len(SLOTS)))
        clicked = source.random(size=BATCH) < 1.0 / (1.0 + np.exp(-2.0 * appeal))
        feed = {name: ids[:, [slot]] + slot * IDS_PER_SLOT for slot, name in enumerate(SLOTS)}
        yield feed | {"clicked": clicked.astype("float32")[:, None]}


def build_model():
    """A factorization machine: one term for each id, and one for each pair of ids.

    It has no dense weights: worker 0 would have to send the initial ones, and only gloo makes the others wait for them.
    """
    slots = [paddle.static.data(name, [None, 1], "int64") for name in SLOTS]
    clicked = paddle.static.data("clicked", [None, 1], "float32")
    # Rows of this table exist on the servers only, and are created when an id is first seen.
    table = paddle.ParamAttr(name="embeddings", initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
    rows = [
        paddle.reshape(paddle.static.nn.sparse_embedding(slot, size=[IDS, WIDTH], param_attr=table), [-1, WIDTH])
        for slot in slots
    ]
    alone = sum(row[:, :1] for row in rows)
    together = sum(
        paddle.sum(one[:, 1:] * other[:, 1:], axis=1, keepdim=True) for one, other in itertools.combinations(rows, 2)
    )
    return paddle.nn.functional.binary_cross_entropy_with_logits(alone + together, clicked)


def train(loss, options):
    started = time.monotonic()
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    say(f"connected after {time.monotonic() - started:.1f} s")

    last, recent = GUESSING, []
    for step, feed in enumerate(impressions(fleet.worker_index(), options.steps), start=1):
        (value,) = executor.run(paddle.static.default_main_program(), feed=feed, fetch_list=[loss])
        recent.append(float(value))
        if step in (1, options.steps) or step % options.report_every == 0:
            last = sum(recent) / len(recent)  # the mean since the last report
            recent.clear()
            say(f"step {step:3d}  loss {last:.4f}")

    fleet.stop_worker()
    if last > 0.9 * GUESSING:
        sys.exit(f"the loss did not fall: {GUESSING:.4f} to {last:.4f}")
    say(f"done in {time.monotonic() - started:.1f} s: loss {GUESSING:.4f} -> {last:.4f}")


def main():
    parser = argparse.ArgumentParser(description="Click prediction with Paddle's parameter servers.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--report-every", type=int, default=50, metavar="STEPS")
    options = parser.parse_args()

    paddle.enable_static()
    paddle.seed(2026)
    fleet.init(fleet.PaddleCloudRoleMaker())

    loss = build_model()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    optimizer = paddle.optimizer.Adam(learning_rate=0.02)
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)  # a worker waits for the servers here

    if fleet.is_server():
        fleet.init_server()
        say("serving")
        fleet.run_server()  # until the launcher stops it after the last worker
    else:
        train(loss, options)


if __name__ == "__main__":
    main()
