"""The example of Paddle's parameter servers, in which the culprit fails: `with_servers.py FAULT PART-NUMBER`."""

import os
import subprocess
import sys

import fault

sys.path.insert(0, os.path.join(os.path.dirname(__file__), *[os.pardir] * 6, "examples"))
NAME, CULPRIT = sys.argv[1:3]
del sys.argv[1:]

import ctr_ps

MOMENT = 20
ENDPOINT = f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}"
IS_SERVER = os.environ["TRAINING_ROLE"] == "PSERVER"
number = (
    os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",").index(ENDPOINT)
    if IS_SERVER
    else os.environ["PADDLE_TRAINER_ID"]
)
GUILTY = f"{'pserver' if IS_SERVER else 'trainer'}-{number}" == CULPRIT
draw = ctr_ps.impressions


def impressions(rank, steps):
    for step, feed in enumerate(draw(rank, 1_000_000)):
        if step == MOMENT:
            fault.strike(NAME)
        yield feed


if GUILTY and NAME.endswith("@start"):
    fault.strike(NAME.removesuffix("@start"))
elif GUILTY and NAME == "port-taken":
    fault.take(int(os.environ["PADDLE_PORT"]))
elif GUILTY and IS_SERVER:
    # The server's only thread of Python is inside Paddle from here on, so another process asks for the signal.
    asks = f"until grep -q step log/workerlog.0; do sleep 0.1; done; echo {os.getpid()} > victim.part; mv victim.part victim"
    subprocess.Popen(["sh", "-c", asks])
elif GUILTY:
    ctr_ps.impressions = impressions
elif not IS_SERVER:
    ctr_ps.impressions = lambda rank, steps: draw(rank, 1_000_000)
ctr_ps.main()
