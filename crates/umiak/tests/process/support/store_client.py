"""Uses every operation of a store through torch's own client: store_client.py PORT."""

import os
import sys
import threading
from datetime import timedelta

import torch.distributed as dist

port = int(sys.argv[1])


def client(timeout=60, **words):
    return dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=timeout), wait_for_workers=False, **words)


def fails(call):
    try:
        call()
    except Exception:
        return True
    return False


a, b = client(), client()

a.set("key", "value")
assert b.get("key") == b"value"
assert [a.add("n", 1), b.add("n", 41), a.add("n", 0)] == [1, 42, 42]
assert b.get("n") == b"42"
if hasattr(a, "check"):
    assert a.check(["key", "n"]) and not a.check(["key", "missing"])
assert a.compare_set("swap", "other", "new") == b"other"
assert a.compare_set("swap", "", "first") == b"first"
assert a.compare_set("swap", "first", "second") == b"second"
assert a.compare_set("swap", "first", "third") == b"second"
before = a.num_keys()
assert a.delete_key("swap") and not a.delete_key("swap")
assert a.num_keys() == before - 1

# A get waits for the key; another client sets it.
got = []
thread = threading.Thread(target=lambda: got.append(b.get("later")))
thread.start()
a.set("later", "now")
thread.join()
assert got == [b"now"]

# A wait that times out is cancelled, and the same client goes on.
assert fails(lambda: a.wait(["never"], timedelta(milliseconds=200)))
a.set("never", "now")
a.wait(["never"])
assert fails(lambda: a.wait(["key", "n", "also never"], timedelta(milliseconds=200)))
assert a.get("key") == b"value"

a.append("log", "one")
a.append("log", "two")
assert a.get("log") == b"onetwo"
a.multi_set(["m1", "m2"], ["v1", "v2"])
assert b.multi_get(["m2", "m1", "n"]) == [b"v2", b"v1", b"42"]

for key in ["", "/", "ключ", "line\nfeed", "nul\0byte", "x" * 8000]:
    a.set(key, "odd")
    assert b.get(key) == b"odd", key

large = os.urandom(1) * (8 << 20)
a.set("large", large)
assert b.get("large") == large
assert b.multi_get(["large"] * 8) == [large] * 8

many = 100_000
count = a.num_keys()
for start in range(0, many, 10_000):
    names = [f"many/{i}" for i in range(start, start + 10_000)]
    a.multi_set(names, names)
# Sets have no reply, so only the client that sent them knows when they are done.
assert a.num_keys() == count + many
assert b.get(f"many/{many - 1}") == f"many/{many - 1}".encode()
b.wait([f"many/{i}" for i in range(many)])

if hasattr(a, "queue_push"):
    assert a.queue_len("queue") == 0
    a.queue_push("queue", "first")
    a.queue_push("queue", "second")
    assert a.queue_len("queue") == 2
    assert [b.queue_pop("queue"), b.queue_pop("queue")] == [b"first", b"second"]
    assert fails(lambda: b.queue_pop("queue", block=False))
    print("queues")
if hasattr(a, "list_keys"):
    keys = a.list_keys()
    assert len(keys) == a.num_keys() and "key" in keys and "nul\0byte" in keys
    print("list")
if hasattr(a, "barrier"):
    thread = threading.Thread(target=lambda: b.barrier("barrier", 2, timedelta(seconds=60)))
    thread.start()
    a.barrier("barrier", 2, timedelta(seconds=60))
    thread.join()
    assert fails(lambda: a.barrier("alone", 2, timedelta(milliseconds=200)))
    assert a.get("key") == b"value"
    print("barrier")

prefixed = dist.PrefixStore("group", a)
prefixed.set("key", "in group")
assert b.get("group/key") == b"in group"
assert fails(lambda: client().add("key", 1)), "a value that is no number"
assert a.get("key") == b"value"
print("done")
