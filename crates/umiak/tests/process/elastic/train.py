"""A trainer that counts steps and keeps a checkpoint: what an elastic script does, without a framework.

    train.py SHARED STEPS_PER_CHECKPOINT

Every rank writes what happens to it to SHARED/log, a line each. Rank 0 trains: it counts on from the number in
SHARED/checkpoint, and writes it there after so many steps. All end with 0 once SHARED/finish is there.
"""

import os
import sys
import time

shared, every = sys.argv[1], int(sys.argv[2])
env = os.environ
rank, world, attempt = int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["UMIAK_ATTEMPT"])
log = os.open(f"{shared}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def say(*words):
    os.write(log, (" ".join(map(str, words)) + "\n").encode())


def saved():
    try:
        with open(f"{shared}/checkpoint") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


step = saved()
reason, before = env.get("UMIAK_RESTART_REASON", "-"), env.get("UMIAK_PREVIOUS_WORLD_SIZE", "-")
say("start", attempt, rank, world, env["GROUP_RANK"], reason, before, step, os.getpid())
while not os.path.exists(f"{shared}/finish"):
    time.sleep(0.02)
    if rank == 0:
        step += 1
        say("step", attempt, step)
        if step % every == 0:
            with open(f"{shared}/checkpoint.{attempt}", "w") as file:
                file.write(str(step))
            os.rename(f"{shared}/checkpoint.{attempt}", f"{shared}/checkpoint")
say("end", attempt, rank)
