"""Runs one server or one trainer. Paddle reads which from the variables that the submission sets.

The settings of `config.yaml` are in variables with the names of its keys. The program checks its result: every trainer
must end with a loss well below that of guessing.
"""

import math
import os
import sys

import paddle
from paddle.distributed import fleet

from . import model, reader

GUESSING = math.log(2)


def say(text):
    # A single write, so that lines of processes that share a terminal do not mix.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def strategy(word):
    """How trainers update the servers."""
    if word not in ("async", "half_async"):
        sys.exit(f"`{word}` needs the whole table in every trainer; this model keeps its rows on the servers only")
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    return strategy


def train(loss, epochs):
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    fleet.init_worker()
    mean = GUESSING
    for epoch in range(1, epochs + 1):
        losses = []
        for feed in reader.batches(fleet.worker_index(), fleet.worker_num(), epoch):
            (value,) = executor.run(paddle.static.default_main_program(), feed=feed, fetch_list=[loss])
            losses.append(float(value))
        mean = sum(losses) / len(losses)
        say(f"epoch {epoch} of {epochs}  {len(losses)} batches  loss {mean:.4f}")
    fleet.stop_worker()
    if mean > 0.95 * GUESSING:
        sys.exit(f"the loss did not fall: {GUESSING:.4f} to {mean:.4f}")
    say(f"done: loss {GUESSING:.4f} -> {mean:.4f}")


def main():
    paddle.enable_static()
    paddle.seed(2026)
    fleet.init(fleet.PaddleCloudRoleMaker())
    loss = model.loss()
    how = os.environ["train.trainer.strategy"]
    optimizer = paddle.optimizer.Adam(learning_rate=0.05)
    fleet.distributed_optimizer(optimizer, strategy(how)).minimize(loss)  # a trainer waits for the servers here
    if fleet.is_server():
        fleet.init_server()
        say(f"serving, {how}")
        fleet.run_server()  # until the job ends, after the last trainer
    else:
        train(loss, int(os.environ["train.epochs"]))


if __name__ == "__main__":
    main()
