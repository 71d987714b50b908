"""All-reduces with PyTorch on gloo until the rank named by the argument raises.

The others ignore SIGTERM, so that they end because of the lost peer. Umiak must not take their error
for the cause.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist


dist.init_process_group("gloo")
report = sys.excepthook


def report_and_leave(*error):
    """Skips the teardown: PyTorch's threads may abort it when peers disconnect, which would hide the real error."""
    report(*error)
    sys.stderr.flush()
    os._exit(1)


sys.excepthook = report_and_leave
failing = int(sys.argv[1])
if dist.get_rank() != failing:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in range(1, 100_000):
    if dist.get_rank() == failing and step == 20:
        raise ValueError("label 17 is out of range")
    dist.all_reduce(torch.ones(4))
