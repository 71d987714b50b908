"""Asynchronous training with parameter servers, with only Python's standard library.

    umiak launch --server_num 2 --worker_num 2 examples/tiny_ps.py

Each server holds a part of the weights of a linear-regression problem. Each trainer draws its own
samples, pulls the weights, computes a gradient, and pushes each part of it to its server. Trainers do
not wait for each other.

One script for both roles. The launcher sets the role of a process, and describes the job:

    TRAINING_ROLE                 PSERVER or TRAINER
    PADDLE_PSERVERS_IP_PORT_LIST  where each server listens
    POD_IP, PADDLE_PORT           where this process may listen: a server finds its place in the list by them
    PADDLE_TRAINER_ID             number of this trainer
    PADDLE_TRAINERS_NUM           number of trainers

Servers run until they are stopped, or with TINY_PS_ENDS=1 until all trainers have ended. To see one fail:

    umiak launch --server_num 2 --worker_num 2 examples/tiny_ps.py --fail-server 1
"""

import argparse
import json
import math
import os
import random
import socket
import socketserver
import sys
import threading
import time
from operator import mul

WEIGHTS = 24
BATCH = 32
NOISE = 0.1
LEARNING_RATE = 0.02
PATIENCE_SECONDS = 30.0  # how long a trainer waits for a lost server, like Paddle's


def say(who, text):
    # A single write, so that lines of processes that share a terminal do not mix.
    sys.stdout.write(f"{who}  {text}\n")
    sys.stdout.flush()


class Server(socketserver.ThreadingTCPServer):
    """Holds every n-th weight from `index` on, for n servers."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, index, endpoints, pushes):
        self.weights = [0.0] * len(range(index, WEIGHTS, len(endpoints)))
        self.pushes_left = pushes
        ends = os.environ.get("TINY_PS_ENDS") == "1"
        self.trainers_left = int(os.environ["PADDLE_TRAINERS_NUM"]) if ends else math.inf
        self.over = threading.Event()
        self.lock = threading.Lock()
        super().__init__(split(endpoints[index]), Connection)


class Connection(socketserver.StreamRequestHandler):
    """Reads a gradient and answers with the updated weights, one line each."""

    def handle(self):
        server = self.server
        for line in self.rfile:
            with server.lock:
                gradient = json.loads(line)
                server.weights = [
                    weight - LEARNING_RATE * slope for weight, slope in zip(server.weights, gradient)
                ]
                server.pushes_left -= 1
                if server.pushes_left <= 0:
                    return server.over.set()
                answer = json.dumps(server.weights)
            self.wfile.write(answer.encode() + b"\n")

    def finish(self):
        super().finish()
        with self.server.lock:
            self.server.trainers_left -= 1
            if self.server.trainers_left <= 0:
                self.server.over.set()


def serve(index, endpoints, options):
    pushes = options.fail_after if index == options.fail_server else math.inf
    with Server(index, endpoints, pushes) as server:
        say(f"server {index}/{len(endpoints)}", f"{len(server.weights)} weights")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.over.wait()
        if server.trainers_left <= 0:
            return say(f"server {index}/{len(endpoints)}", "all trainers have ended")
        raise RuntimeError(f"server {index} fails after {pushes} gradients, as --fail-server asked")


def connected(address):
    """Connects to a server, which may start later than its trainers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Shard:
    """A trainer's connection to one server."""

    def __init__(self, index, endpoints):
        self.name = f"server {index} at {endpoints[index]}"
        self.size = len(range(index, WEIGHTS, len(endpoints)))
        self.stream = connected(split(endpoints[index])).makefile("rw")

    def push(self, gradient):
        try:
            self.stream.write(json.dumps(gradient) + "\n")
            self.stream.flush()
            return json.loads(self.stream.readline())
        except (OSError, ValueError) as error:
            # The server might come back; the launcher decides.
            time.sleep(PATIENCE_SECONDS)
            raise ConnectionError(f"{self.name} is gone") from error


def train(rank, size, endpoints, options):
    started = time.monotonic()
    who = f"trainer {rank}/{size}"
    shards = [Shard(index, endpoints) for index in range(len(endpoints))]
    say(who, f"{len(shards)} servers, {WEIGHTS} weights")
    truth = [random.Random(2026 + place).uniform(-1.0, 1.0) for place in range(WEIGHTS)]
    source = random.Random(rank)
    # The first push is zero: it only fetches the weights.
    gradient = [0.0] * WEIGHTS
    # A late trainer finds weights that others have trained, so the loss is compared with that of initial weights.
    untrained, _ = loss_and_gradient(gradient, truth, random.Random(rank))
    for step in range(1, options.steps + 1):
        weights = [0.0] * WEIGHTS
        for index, shard in enumerate(shards):
            weights[index :: len(shards)] = shard.push(gradient[index :: len(shards)])
        loss, gradient = loss_and_gradient(weights, truth, source)
        if step in (1, options.steps) or step % options.report_every == 0:
            say(who, f"step {step:3d}  loss {loss:8.5f}")
    if loss > untrained / 10.0:
        sys.exit(f"the loss did not fall: {untrained:.5f} to {loss:.5f}")
    say(who, f"done in {time.monotonic() - started:.1f} s: loss {untrained:.5f} -> {loss:.5f}")


def loss_and_gradient(weights, truth, source):
    loss, gradient = 0.0, [0.0] * WEIGHTS
    for _ in range(BATCH):
        inputs = [source.uniform(-1.0, 1.0) for _ in range(WEIGHTS)]
        target = sum(map(mul, truth, inputs)) + source.gauss(0.0, NOISE)
        error = sum(map(mul, weights, inputs)) - target
        loss += error * error
        gradient = [slope + 2.0 * error * value for slope, value in zip(gradient, inputs)]
    return loss / BATCH, [slope / BATCH for slope in gradient]


def split(endpoint):
    host, port = endpoint.rsplit(":", 1)
    return host.strip("[]"), int(port)


def arguments():
    parser = argparse.ArgumentParser(description="Linear regression with parameter servers.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--report-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--fail-server", type=int, metavar="SERVER", help="raise in this server, to see the diagnosis")
    parser.add_argument("--fail-after", type=int, default=20, metavar="PUSHES", help="of all trainers (default: 20)")
    return parser.parse_args()


def main():
    options = arguments()
    endpoints = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        own = f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}"
        serve(endpoints.index(own), endpoints, options)
    else:
        rank, size = int(os.environ["PADDLE_TRAINER_ID"]), int(os.environ["PADDLE_TRAINERS_NUM"])
        train(rank, size, endpoints, options)


if __name__ == "__main__":
    main()
