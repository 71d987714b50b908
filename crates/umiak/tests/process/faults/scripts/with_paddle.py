"""Trains with Paddle over gloo until the culprit fails: `with_paddle.py FAULT RANK [SECONDS]`."""

import os
import sys

import fault

NAME, CULPRIT = sys.argv[1], int(sys.argv[2])
TIMEOUT = int(sys.argv[3]) if len(sys.argv) > 3 else 60
RANK, SIZE = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])
GUILTY = RANK == CULPRIT
STEPS = 400
MOMENT = 20

if GUILTY and NAME.endswith("@import"):
    fault.strike(NAME.removesuffix("@import"))

import paddle
import paddle.distributed as dist

if GUILTY and NAME.endswith("@start"):
    fault.strike(NAME.removesuffix("@start"))
if GUILTY and NAME == "wrong-port":
    address, port = os.environ["PADDLE_MASTER"].rsplit(":", 1)
    os.environ["PADDLE_MASTER"] = f"{address}:{int(port) + 1}"

paddle.set_device("cpu")
dist.init_parallel_env()


def main():
    paddle.seed(2026)
    model = paddle.DataParallel(paddle.nn.Linear(8, 1))
    optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
    for step in range(STEPS):
        strikes = GUILTY and step == MOMENT
        if GUILTY and NAME.endswith("@last") and step == STEPS - 1:
            fault.strike(NAME.removesuffix("@last"))
        loss = model(paddle.randn([4, 8])).square().mean()
        if strikes and NAME == "skip":
            continue
        if strikes and NAME == "shape":
            dist.all_reduce(paddle.ones([7]))
        elif strikes and "@" not in NAME and not NAME.startswith("wrong"):
            fault.strike(NAME)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        dist.all_reduce(paddle.ones([4]))
        if step % 10 == 0:
            print(f"step {step} loss {float(loss):.4f}", flush=True)


main()
dist.barrier()
