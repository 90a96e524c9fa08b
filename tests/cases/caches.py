"""Caches that are simulated item by item, and published accesses to embedding tables."""

import numpy as np

KEYS = (0.047, 0.068, 0.112, 0.138, 0.149, 0.144, 0.342)
ACCESSES = (0.618, 0.120, 0.105, 0.068, 0.040, 0.023, 0.027)
"""Shares of the keys of 788 embedding tables that are used more than 32 times, 17 to 32, 9 to 16, 5 to 8, 3 or 4 times,
twice and once, and their shares of the accesses (facebookresearch/dlrm_datasets, embedding_bag/2022/locality_stats.txt)."""
USES = 1_405_163_864 / 110_259_238
"""Accesses per key there."""


def simulated(items: list[int], capacity: int, policy: str) -> list[bool]:
    """Which reads are hits in a list of items. A full list drops its head for a new item, but not with the policy `minio`;
    with `lru` hits move to its end."""
    held: list[int] = []
    hits = []
    for item in items:
        hits.append(item in held)
        if hits[-1] and policy == "lru":
            held.remove(item)
        if item in held:
            continue
        if len(held) == capacity and (policy == "minio" or not capacity):
            continue
        held = [*held[len(held) == capacity :], item]
    return hits


def embedding_accesses(keys: int) -> np.ndarray:
    """Accesses to so many keys with the published shares, the most used keys first, those of a key one after the other."""
    found, first = [], 0
    for of_keys, of_accesses in zip(KEYS, ACCESSES, strict=True):
        count = round(of_keys * keys)
        uses = of_accesses * USES * keys / count
        # Whole numbers of uses that add up to those of all keys in this row of the table.
        ends = np.rint(uses * np.arange(count + 1)).astype(np.int64)
        found.append(np.repeat(np.arange(first, first + count), np.diff(ends)))
        first += count
    return np.concatenate(found)
