"""All-reduces with Paddle on gloo until one rank raises: `paddle_fails.py RANK [slowly|patiently]`.

The others ignore SIGTERM, so that they end by what really happens to them: a lost peer. What they
print then is what umiak must not take for a cause. With `patiently` they wait to be stopped instead: Paddle's
launcher looks at its ranks every few seconds, and of several that have ended by then it shows the first.
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
    """Tells of the exception in hand, loses every connection, and is gone only later.

    A large process dies like that: its sockets close well before the kernel reports its exit, and
    its peers can be the first to go.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    traceback.print_exc()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                socket.socket(fileno=os.dup(int(name))).shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the descriptor that lists the directory, a listener, a socket that is closed already
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
