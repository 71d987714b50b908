"""Passes numbers around a ring of plain sockets until the culprit fails: `ring.py FAULT RANK[,RANK] [SECONDS]`."""

import os
import socket
import sys
import time

import fault

NAME, CULPRITS = sys.argv[1], [int(rank) for rank in sys.argv[2].split(",")]
TIMEOUT = float(sys.argv[3]) if len(sys.argv) > 3 else 60
# On a busy machine, ranks need longer to meet than any of them waits later.
MEETING_TIMEOUT = TIMEOUT if NAME.endswith("@start") else 60
# Attempts to connect are given up earlier than an answer is, as in most libraries.
REFUSED_TIMEOUT = TIMEOUT if NAME == "wrong-port" else MEETING_TIMEOUT
if NAME == "wrong-port":
    TIMEOUT = MEETING_TIMEOUT
RANK = int(os.environ["PADDLE_TRAINER_ID"])
ENDPOINTS = [endpoint.rsplit(":", 1) for endpoint in os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")]
GUILTY = RANK in CULPRITS
STEPS = 100
MOMENT = 20


def connect(host, port):
    deadline = time.monotonic() + REFUSED_TIMEOUT
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=MEETING_TIMEOUT)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def join():
    """Returns the connections from the rank before and to the rank after this one."""
    port = int(ENDPOINTS[RANK][1])
    listener = socket.create_server(("", port + 1000 if GUILTY and NAME == "wrong-port" else port))
    listener.settimeout(MEETING_TIMEOUT)
    after = connect(*ENDPOINTS[(RANK + 1) % len(ENDPOINTS)])
    before, _ = listener.accept()
    before.settimeout(TIMEOUT)
    after.settimeout(TIMEOUT)
    return before, after


def main():
    if GUILTY and NAME.endswith("@start"):
        fault.strike(NAME.removesuffix("@start"))
    before, after = join()
    for step in range(STEPS):
        if GUILTY and step == (STEPS - 1 if NAME.endswith("@last") else MOMENT) and NAME != "wrong-port":
            fault.strike(NAME.removesuffix("@last"))
        after.sendall(bytes([step]))
        received = before.recv(1)
        if not received:
            raise ConnectionAbortedError("connection closed by peer")
        assert received[0] == step, f"step {received[0]} instead of {step}"
        time.sleep(0.005)
        if step % 10 == 0:
            print(f"step {step}", flush=True)


main()
