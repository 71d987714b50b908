"""Click prediction with Paddle's parameter servers: sparse embeddings, asynchronous training, on CPU.

    umiak launch --server_num 2 --worker_num 2 examples/ctr_ps.py

It needs a Paddle with parameter servers inside, such as paddlepaddle 2.6.2 for Python 3.11.

One script for both roles: Paddle finds its own in the variables that the launcher sets. Servers hold
the embeddings, a part each. Workers draw impressions (a user, an item, a context), pull the rows
that those need, and push gradients without waiting for each other. The script checks its own work:
every worker has to end with a loss well below that of guessing.
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
# The loss of guessing, which is what a new model does. Who comes late may find one that knows more.
GUESSING = math.log(2)


def say(text):
    # In one write: processes that share a terminal must not tear each other's lines.
    role, rank, size = (
        ("server", fleet.server_index(), fleet.server_num())
        if fleet.is_server()
        else ("worker", fleet.worker_index(), fleet.worker_num())
    )
    sys.stdout.write(f"{role} {rank}/{size}  {text}\n")
    sys.stdout.flush()


def impressions(rank, steps):
    """Each worker draws its own impressions; what makes people click is the same for all."""
    taste = np.random.default_rng(2026).normal(size=(len(SLOTS), IDS_PER_SLOT))
    source = np.random.default_rng(1000 + rank)
    for _ in range(steps):
        # Few ids are seen often and many rarely, as in real life.
        ids = (source.random(size=(BATCH, len(SLOTS))) ** 2 * IDS_PER_SLOT).astype("int64")
        appeal = sum(taste[slot, ids[:, slot]] for slot in range(len(SLOTS)))
        clicked = source.random(size=BATCH) < 1.0 / (1.0 + np.exp(-2.0 * appeal))
        feed = {name: ids[:, [slot]] + slot * IDS_PER_SLOT for slot, name in enumerate(SLOTS)}
        yield feed | {"clicked": clicked.astype("float32")[:, None]}


def build_model():
    """A factorization machine: what each id adds by itself, and what every pair of ids adds together.

    It has no dense weights. Worker 0 would have to send the first ones, and only gloo makes others wait for that.
    """
    slots = [paddle.static.data(name, [None, 1], "int64") for name in SLOTS]
    clicked = paddle.static.data("clicked", [None, 1], "float32")
    # Rows of this table live on the servers only, and come to be when an id is first seen.
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
        fleet.run_server()  # until the launcher ends it, when all workers are gone
    else:
        train(loss, options)


if __name__ == "__main__":
    main()
