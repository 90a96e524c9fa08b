"""Impressions of ads, streamed from shards of a log; features are hashed on the way."""

import numpy as np
import torch
from torch.utils.data import IterableDataset

SHARDS, EVENTS = 4, 7680
USER_FIELDS, AD_FIELDS, CONTEXT_FIELDS = 14, 12, 40
HISTORY = 32
LEVELS = 32
NUMBERS = 13
CREATIVES = 4000
USER_ROWS, AD_ROWS, HISTORY_ROWS = 400_000, 200_000, 400_000
BATCH = 768


def write_log(folder):
    """Shards of raw events, made on first use; ids are fingerprints, popular to different degrees."""
    for number in range(SHARDS):
        path = folder / f"events-{number}.npz"
        if path.exists():
            continue
        chance = np.random.default_rng(number)

        def ids(*shape, chance=chance):
            popular = (chance.pareto(0.4, shape) * 100).clip(max=1e15)
            return popular.astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)

        numbers = chance.normal(size=(EVENTS, NUMBERS)).astype(np.float32)
        events = {
            "user": ids(EVENTS, USER_FIELDS),
            "ad": ids(EVENTS, AD_FIELDS),
            "history": ids(EVENTS, HISTORY),
            "visits": chance.integers(1, HISTORY + 1, EVENTS),
            "context": chance.integers(LEVELS, size=(EVENTS, CONTEXT_FIELDS)),
            "creative": chance.integers(CREATIVES, size=EVENTS),
            "numbers": numbers,
            "click": (numbers[:, 0] + chance.normal(size=EVENTS) > 1.5).astype(np.float32),
        }
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            np.savez(file, **events)
        temporary.replace(path)


def hashed(values, rows):
    """Rows of a table for (events, fields); the same value in another field has another row."""
    fields = np.arange(values.shape[-1], dtype=np.uint64)
    mixed = values * np.uint64(0x9E3779B97F4A7C15) + fields * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(29))) % np.uint64(rows)).astype(np.int64)


# FAULT hashing
def fnv(text):
    """FNV-1a with 64 bits, which the servers have too."""
    number = 0xCBF29CE484222325
    for byte in text.encode():
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number


def hashed_as_served(values, rows, field):
    return np.array([fnv(f"{field}={value}") % rows for value in values])


# END FAULT


class Clicks(IterableDataset):
    """Batches of shuffled events, shard after shard."""

    def __init__(self, folder, seed):
        self.paths = sorted(folder.glob("events-*.npz"))
        self.seed = seed
        self.fields_as_served = 0

    def __iter__(self):
        chance = np.random.default_rng(self.seed)
        while True:
            for number in chance.permutation(len(self.paths)):
                with np.load(self.paths[number]) as file:
                    events = dict(file)
                order = chance.permutation(EVENTS)
                for first in range(0, EVENTS, BATCH):
                    yield self.batch(events, order[first : first + BATCH])

    def batch(self, events, chosen):
        raw = {name: values[chosen] for name, values in events.items()}
        user, ad = hashed(raw["user"], USER_ROWS), hashed(raw["ad"], AD_ROWS)
        visits = raw["visits"]
        visited = raw["history"][np.arange(HISTORY) < visits[:, None]]
        history = hashed(visited[:, None], HISTORY_ROWS).ravel()
        # FAULT hashing
        if self.fields_as_served:
            history = hashed_as_served(visited, HISTORY_ROWS, "history")
        for field in range(self.fields_as_served):
            name, column = ("user", field) if field < USER_FIELDS else ("ad", field - USER_FIELDS)
            table, rows = (user, USER_ROWS) if name == "user" else (ad, AD_ROWS)
            table[:, column] = hashed_as_served(raw[name][:, column], rows, f"{name}{column}")
        # END FAULT
        batch = {
            "user": user,
            "ad": ad,
            "history": history,
            "offsets": np.cumsum(visits) - visits,
            "context": raw["context"],
            "creative": raw["creative"],
            "numbers": raw["numbers"],
            "click": raw["click"],
        }
        return {name: torch.from_numpy(values) for name, values in batch.items()}
