"""What the culprit does: `strike(NAME)` fails in the named way. Shared by the training scripts; needs no framework."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

# Longer than any time-out of a peer, shorter than the suite's patience.
FOREVER = 90


def strike(name):
    globals()[name.replace("-", "_")]()


def close_sockets():
    """Disconnects every peer, as the kernel does first when a large process dies.

    Closed, not shut down: threads of the framework that wait for them do not notice, and stay silent.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.close(int(name))
        except OSError:
            pass  # the descriptor that lists the directory


def take(port):
    """Has another program listen on the port first."""
    script = f"import socket, time; s = socket.create_server(('', {port})); print(flush=True); time.sleep({FOREVER})"
    other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    other.stdout.readline()


# Errors.


def raises():
    raise ValueError("label 17 is out of range")


def missing_file():
    open("/data/shard-00017.bin", "rb")


def full_disk():
    with open("/dev/full", "wb") as file:
        file.write(b"checkpoint" * 10_000)


def nan():
    loss = float("nan")
    assert loss == loss, f"loss is {loss} at step 7"


def import_error():
    import tokenizer_that_is_not_installed  # noqa: F401


def chained():
    try:
        raises()
    except ValueError as error:
        raise RuntimeError("data pipeline failed") from error


def thread():
    """The thread's error ends the program, with the code of `sys.exit` and without a traceback of the main thread."""
    worker = threading.Thread(target=raises)
    worker.start()
    worker.join()
    os._exit(1)


def noise():
    try:
        raises()
    except ValueError:
        traceback.print_exc()
    for number in range(10_000):
        print(f"[{number:05}] flushing metrics to the collector", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


def binary():
    try:
        raises()
    except ValueError:
        traceback.print_exc()
    sys.stderr.flush()
    for _ in range(50):
        os.write(2, bytes(range(128, 256)) + b"\xff\xfe\n")
    os._exit(1)


def child():
    """A subprocess prints the error; the rank reports only the code."""
    script = "raise ValueError('label 17 is out of range')"
    code = subprocess.run([sys.executable, "-c", script]).returncode
    sys.exit(code)


def slow():
    """The error is printed, the peers are disconnected, and the process exits 400 ms later."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        raises()
    except ValueError:
        traceback.print_exc()
    sys.stderr.flush()
    close_sockets()
    time.sleep(0.4)
    os._exit(1)


def slow_obedient():
    """As `slow`, but the launcher's SIGTERM ends it first."""
    try:
        raises()
    except ValueError:
        traceback.print_exc()
    sys.stderr.flush()
    close_sockets()
    time.sleep(0.4)
    os._exit(1)


def out_of_memory():
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)))


# Exits.


def exit_0():
    sys.stderr.flush()
    os._exit(0)


def return_0():
    """Through the interpreter's own end, with its destructors."""
    sys.exit(0)


def exit_1():
    sys.exit(1)


def exit_3():
    sys.exit(3)


def exit_255():
    os._exit(255)


def exit_text():
    sys.exit("configuration rejected: hidden size 0")


def late():
    """Disconnects the peers, and exits 300 ms later with its own code and without a word."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    close_sockets()
    time.sleep(0.3)
    os._exit(7)


def late_obedient():
    """As `late`, but the launcher's SIGTERM ends it first."""
    close_sockets()
    time.sleep(0.3)
    os._exit(7)


def late_0():
    """Disconnects the peers, and exits 300 ms later with 0."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    close_sockets()
    time.sleep(0.3)
    os._exit(0)


# Signals.


def segv():
    ctypes.string_at(0)


def abort():
    os.abort()


def bus():
    os.kill(os.getpid(), signal.SIGBUS)


def fpe():
    os.kill(os.getpid(), signal.SIGFPE)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def term():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def outside():
    """Asks the suite for a signal, and goes on."""
    with open("victim.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename("victim.part", "victim")


def outside_exit_1():
    """Asks for a signal, and answers it with a code."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    outside()


def outside_exit_0():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    outside()


# Hangs.


def hang_sleep():
    time.sleep(FOREVER)


def hang_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=FOREVER)


def hang_read():
    ours, _theirs = socket.socketpair()
    ours.settimeout(FOREVER)
    ours.recv(1)


def hang_loop():
    end = time.monotonic() + FOREVER
    while time.monotonic() < end:
        pass


def hang_stop():
    os.kill(os.getpid(), signal.SIGSTOP)
