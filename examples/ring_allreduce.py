"""Data-parallel training over a ring, with only Python's standard library.

    umiak launch --nproc_per_node 4 examples/ring_allreduce.py

Every rank owns one shard of a linear-regression problem. In each step it computes the gradient of
its own shard; a ring all-reduce gives every rank the mean of these gradients; every rank takes the
same step. So all ranks always have bit-identical weights, although no rank ever sees the data of
another.

The launcher describes the job in four variables:

    PADDLE_TRAINER_ID         this rank
    PADDLE_TRAINERS_NUM       number of ranks
    PADDLE_TRAINER_ENDPOINTS  where each rank may listen, in rank order
    PADDLE_CURRENT_ENDPOINT   where this rank may listen

To see a failure:

    umiak launch --nproc_per_node 4 examples/ring_allreduce.py --fail-rank 2 --fail-step 30

Rank 2 raises; its neighbours lose their connections and raise too. The report names only rank 2 as the cause.
"""

import argparse
import hashlib
import math
import os
import random
import select
import socket
import struct
import sys
import time
from array import array
from operator import mul

FEATURES = 24
SAMPLES_PER_RANK = 1500
NOISE = 0.1
LEARNING_RATE = 0.08

PATIENCE_SECONDS = 30.0  # limit for a peer to listen, to connect, or to send a byte
HELLO = struct.Struct("!8sI")  # a fixed word and the sender's rank
WORD = b"ringdemo"


class Ring:
    """One connection to the next rank, one from the previous rank, and the algorithms on top."""

    def __init__(self, rank, endpoints, own_endpoint):
        self.rank = rank
        self.size = len(endpoints)
        self.next_rank = (rank + 1) % self.size
        self.previous_rank = (rank - 1) % self.size
        if self.size == 1:
            return

        # Listen first, connect second, accept third. A connection completes as soon as the other
        # side listens, so the order in which the ranks start does not matter.
        deadline = time.monotonic() + PATIENCE_SECONDS
        with listen(own_endpoint) as listener:
            self.to_next = self._connect(endpoints[self.next_rank], deadline)
            self.from_previous = self._accept(listener, deadline)
        for connection in (self.to_next, self.from_previous):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def _connect(self, endpoint, deadline):
        while True:
            try:
                connection = socket.create_connection(split(endpoint), timeout=1.0)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ConnectionError(
                        f"rank {self.rank} could not reach rank {self.next_rank} at {endpoint} "
                        f"within {PATIENCE_SECONDS:.0f} s: {error}"
                    ) from error
                time.sleep(0.02)
            else:
                connection.sendall(HELLO.pack(WORD, self.rank))
                return connection

    def _accept(self, listener, deadline):
        while True:
            listener.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except OSError as error:
                raise ConnectionError(
                    f"rank {self.rank} waited {PATIENCE_SECONDS:.0f} s for rank {self.previous_rank} to connect"
                ) from error
            # Any process can connect to the port: close connections without the right hello.
            if read_hello(connection) == HELLO.pack(WORD, self.previous_rank):
                return connection
            connection.close()

    def exchange(self, payload, expected):
        """Send `payload` to the next rank while receiving `expected` bytes from the previous one.

        Both at once: if every rank first sent and then received, a payload larger than the
        kernel's buffers would block the whole ring.
        """
        unsent = memoryview(payload)
        received = bytearray()
        while unsent or len(received) < expected:
            readable, writable, _ = select.select(
                [self.from_previous] if len(received) < expected else [],
                [self.to_next] if unsent else [],
                [],
                PATIENCE_SECONDS,
            )
            if not readable and not writable:
                stuck = self.previous_rank if len(received) < expected else self.next_rank
                raise ConnectionError(
                    f"rank {self.rank} received nothing from rank {stuck} for {PATIENCE_SECONDS:.0f} s"
                )
            if writable:
                try:
                    unsent = unsent[self.to_next.send(unsent) :]
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise ConnectionError(f"rank {self.rank} lost rank {self.next_rank}: {error}") from error
            if readable:
                try:
                    piece = self.from_previous.recv(expected - len(received))
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise ConnectionError(f"rank {self.rank} lost rank {self.previous_rank}: {error}") from error
                if not piece:
                    raise ConnectionError(
                        f"rank {self.rank} lost rank {self.previous_rank}: it closed the connection"
                    )
                received += piece
        return bytes(received)

    def all_reduce_mean(self, values):
        """Returns the element-wise mean over all ranks, bit-identical on each.

        The vector is split into one chunk per rank. In the first lap (reduce-scatter) partial sums
        travel round the ring, after which each rank holds one complete chunk. In the second lap
        (all-gather) the complete chunks travel. Each of n ranks sends 2 (n-1)/n times the vector,
        less than twice its size for any n.
        """
        vector = array("d", values)
        bounds = [len(vector) * i // self.size for i in range(self.size + 1)]

        def chunk(i):
            i %= self.size
            return slice(bounds[i], bounds[i + 1])

        def pass_on(outgoing, incoming):
            expected = (incoming.stop - incoming.start) * vector.itemsize
            return array("d", self.exchange(vector[outgoing].tobytes(), expected))

        for lap_step in range(self.size - 1):
            outgoing, incoming = chunk(self.rank - lap_step), chunk(self.rank - lap_step - 1)
            partial = pass_on(outgoing, incoming)
            vector[incoming] = array("d", (mine + theirs for mine, theirs in zip(vector[incoming], partial)))
        for lap_step in range(self.size - 1):
            outgoing, incoming = chunk(self.rank + 1 - lap_step), chunk(self.rank - lap_step)
            vector[incoming] = pass_on(outgoing, incoming)

        return [value / self.size for value in vector]

    def all_gather(self, blob):
        """Returns the blobs of all ranks, of equal length, in rank order."""
        blobs = {self.rank: blob}
        for lap_step in range(self.size - 1):
            blob = self.exchange(blob, len(blob))
            blobs[(self.rank - lap_step - 1) % self.size] = blob
        return [blobs[rank] for rank in range(self.size)]


def split(endpoint):
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def read_hello(connection):
    connection.settimeout(1.0)
    hello = b""
    try:
        while len(hello) < HELLO.size:
            piece = connection.recv(HELLO.size - len(hello))
            if not piece:
                break
            hello += piece
    except OSError:
        pass  # an incomplete hello is invalid
    return hello


def listen(endpoint):
    host, port = split(endpoint)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # The port of a run that has just ended may still be in TIME_WAIT.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen()
    return listener


def true_weights():
    """Returns the target of the training, used only by the data generator and the last line."""
    source = random.Random(2026)
    return [source.uniform(-2.0, 2.0) for _ in range(FEATURES)]


def make_shard(rank):
    source = random.Random(1000 + rank)
    weights = true_weights()
    shard = []
    for _ in range(SAMPLES_PER_RANK):
        inputs = [source.gauss(0.0, 1.0) for _ in range(FEATURES)]
        target = sum(map(mul, weights, inputs)) + source.gauss(0.0, NOISE)
        shard.append((inputs, target))
    return shard


def loss_and_gradient(weights, shard):
    loss = 0.0
    gradient = [0.0] * len(weights)
    for inputs, target in shard:
        error = sum(map(mul, weights, inputs)) - target
        loss += error * error
        gradient = [slope + error * value for slope, value in zip(gradient, inputs)]
    return loss / len(shard), [2.0 * slope / len(shard) for slope in gradient]


def say(rank, size, text):
    # A single write, so that lines of ranks that share a terminal do not mix.
    sys.stdout.write(f"rank {rank}/{size}  {text}\n")
    sys.stdout.flush()


def arguments():
    parser = argparse.ArgumentParser(description="Linear regression over a ring all-reduce.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--report-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--fail-rank", type=int, metavar="RANK", help="raise in this rank, to see the diagnosis")
    parser.add_argument("--fail-step", type=int, default=30, metavar="STEP", help="in this step (default: 30)")
    return parser.parse_args()


def main():
    options = arguments()
    # Without a launcher there is one rank.
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    size = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:0").split(",")
    if len(endpoints) != size:
        raise ValueError(f"PADDLE_TRAINERS_NUM is {size}, but PADDLE_TRAINER_ENDPOINTS lists {len(endpoints)}")

    started = time.monotonic()
    ring = Ring(rank, endpoints, os.environ.get("PADDLE_CURRENT_ENDPOINT", endpoints[rank]))
    neighbours = f"{ring.previous_rank} -> {rank} -> {ring.next_rank}"
    say(rank, size, f"{neighbours}  {SAMPLES_PER_RANK} samples, {FEATURES} weights")

    shard = make_shard(rank)
    weights = [0.0] * FEATURES
    loss = math.nan
    for step in range(1, options.steps + 1):
        if rank == options.fail_rank and step == options.fail_step:
            raise RuntimeError(f"rank {rank} fails in step {step}, as --fail-rank asked")
        own_loss, own_gradient = loss_and_gradient(weights, shard)
        # The loss is one more element, so that one all-reduce serves both.
        loss, *gradient = ring.all_reduce_mean([own_loss, *own_gradient])
        weights = [weight - LEARNING_RATE * slope for weight, slope in zip(weights, gradient)]
        if step in (1, options.steps) or step % options.report_every == 0:
            say(rank, size, f"step {step:3d}  own loss {own_loss:9.5f}  mean loss {loss:9.5f}")

    digest = hashlib.sha256(array("d", weights).tobytes()).digest()
    digests = ring.all_gather(digest)
    if len(set(digests)) != 1:
        different = [other for other in range(size) if digests[other] != digest]
        raise AssertionError(f"rank {rank} holds other weights than ranks {different}")
    off_by = max(abs(found - true) for found, true in zip(weights, true_weights()))
    say(
        rank,
        size,
        f"done in {time.monotonic() - started:.1f} s: loss {loss:.5f}, weights within {off_by:.3f} of the truth, "
        f"identical on all {size} ranks ({digest.hex()[:8]})",
    )


if __name__ == "__main__":
    main()
