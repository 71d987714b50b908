"""Impressions: a user, an item, a context, and whether there was a click."""

import numpy as np

SLOTS = ("user", "item", "context")
IDS_PER_SLOT = 200
BATCH = 128
BATCHES = 100  # of one epoch, of all trainers together


def batches(index, count, epoch):
    """Yields this trainer's part of an epoch. Trainers divide the batches among themselves, as they would divide files."""
    taste = np.random.default_rng(2026).normal(size=(len(SLOTS), IDS_PER_SLOT))
    for number in range(index, BATCHES, count):
        source = np.random.default_rng([epoch, number])
        # Few ids are frequent and many are rare, as in real data.
        ids = (source.random(size=(BATCH, len(SLOTS))) ** 2 * IDS_PER_SLOT).astype("int64")
        appeal = sum(taste[slot, ids[:, slot]] for slot in range(len(SLOTS)))
        clicked = source.random(size=BATCH) < 1.0 / (1.0 + np.exp(-2.0 * appeal))
        feed = {name: ids[:, [slot]] + slot * IDS_PER_SLOT for slot, name in enumerate(SLOTS)}
        yield feed | {"clicked": clicked.astype("float32")[:, None]}
