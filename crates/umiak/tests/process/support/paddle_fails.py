"""All-reduces with Paddle on gloo until one rank raises: `paddle_fails.py RANK [slowly|patiently]`.

The others ignore SIGTERM, so that they end because of the lost peer. Umiak must not take their error
for the cause. With `patiently` they wait to be stopped instead: Paddle's launcher checks its ranks every
few seconds, and of several that have ended by then it shows the first.
"""

import os
import signal
import socket
import sys
import time
import traceback

import paddle
import paddle.distributed as dist


def die_slowly():
    """Prints the current exception, closes every connection, and exits later.

    Large processes die like this: their sockets close well before the kernel reports the exit, so
    their peers may exit first.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    traceback.print_exc()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                socket.socket(fileno=os.dup(int(name))).shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the descriptor that lists the directory, a listener, a socket that is already closed
    time.sleep(0.3)
    os._exit(1)


def main():
    dist.init_parallel_env()
    failing = dist.get_rank() == int(sys.argv[1])
    patient = "patiently" in sys.argv
    if not failing and not patient:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        for step in range(1, 100_000):
            if failing and step == 20:
                raise ValueError("label 17 is out of range")
            dist.all_reduce(paddle.ones([4]))
    except ValueError:
        if "slowly" in sys.argv:
            die_slowly()
        raise
    except RuntimeError:
        if patient:
            time.sleep(60)
        raise


if __name__ == "__main__":
    main()
