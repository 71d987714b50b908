"""Trainers that ask servers over plain sockets until the culprit fails: `servers.py FAULT PART-NUMBER`.

Parts are pserver, trainer and heter_trainer. Servers run until they are stopped.
"""

import os
import selectors
import socket
import sys
import time

import fault

NAME, CULPRIT = sys.argv[1], sys.argv[2]
PART = os.environ["TRAINING_ROLE"].lower()
ENDPOINTS = [endpoint.rsplit(":", 1) for endpoint in os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")]
TIMEOUT = 10
STEPS = 200
MOMENT = 20


def number():
    if PART == "pserver":
        return ENDPOINTS.index([os.environ["POD_IP"], os.environ["PADDLE_PORT"]])
    if PART == "heter_trainer":
        listed = os.environ["PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"].split(",")
        return listed.index(f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}")
    return int(os.environ["PADDLE_TRAINER_ID"])


GUILTY = f"{PART}-{number()}" == CULPRIT


def serve():
    port = int(os.environ["PADDLE_PORT"])
    if GUILTY and NAME == "port-taken":
        fault.take(port)
    listener = socket.create_server(("", port))
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    served = 0
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                ready.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            asked = key.fileobj.recv(1)
            if not asked:
                ready.unregister(key.fileobj)
                continue
            key.fileobj.sendall(asked)
            served += 1
            if GUILTY and served == MOMENT:
                fault.strike(NAME)


def train():
    servers = [socket.create_connection((host, int(port)), timeout=TIMEOUT) for host, port in ENDPOINTS]
    for step in range(STEPS):
        if GUILTY and step == MOMENT:
            fault.strike(NAME)
        for server in servers:
            server.sendall(b"?")
            if not server.recv(1):
                raise ConnectionAbortedError("connection closed by the server")
        time.sleep(0.005)


if GUILTY and NAME.endswith("@start"):
    fault.strike(NAME.removesuffix("@start"))
serve() if PART == "pserver" else train()
