"""A factorization machine: one term for each id, and one for each pair of ids."""

import itertools

import paddle

from .reader import IDS_PER_SLOT, SLOTS

WIDTH = 8


def loss():
    slots = [paddle.static.data(name, [None, 1], "int64") for name in SLOTS]
    clicked = paddle.static.data("clicked", [None, 1], "float32")
    # Rows of this table exist on the servers only, and are created when an id is first seen.
    table = paddle.ParamAttr(name="embeddings", initializer=paddle.nn.initializer.Uniform(-0.1, 0.1))
    size = [len(SLOTS) * IDS_PER_SLOT, WIDTH]
    rows = [
        paddle.reshape(paddle.static.nn.sparse_embedding(slot, size=size, param_attr=table), [-1, WIDTH])
        for slot in slots
    ]
    alone = sum(row[:, :1] for row in rows)
    together = sum(
        paddle.sum(one[:, 1:] * other[:, 1:], axis=1, keepdim=True) for one, other in itertools.combinations(rows, 2)
    )
    return paddle.nn.functional.binary_cross_entropy_with_logits(alone + together, clicked)
