"""Which reads of a sequence are hits: compiled loops over numbered items."""

import numpy as np

from esprof.core.compiled import compiled


@compiled
def stack_distances(item: np.ndarray, items: int) -> np.ndarray:
    """Return for each read how many other items were read since its item was last read, int64[N]; -1 at its first read.

    `item`, int[N], numbers the item of each read from 0 to `items` - 1. An LRU cache of any capacity C answers exactly the
    reads of distance 0 to C - 1 (Mattson et al., IBM Systems Journal 9(2), 1970). A Fenwick tree holds
    a 1 at the latest read of each item, so all distances take O(N log N).
    """
    reads = len(item)
    distance = np.full(reads, -1, np.int64)
    latest = np.zeros(items, np.int64)  # Read at which an item was last read, from 1; 0 before the first.
    tree = np.zeros(reads + 1, np.int32)
    seen = 0
    for now in range(1, reads + 1):
        before = latest[item[now - 1]]
        if before == 0:
            seen += 1
        else:
            until = 0
            at = before
            while at > 0:
                until += tree[at]
                at &= at - 1
            distance[now - 1] = seen - until
            at = before
            while at <= reads:
                tree[at] -= 1
                at += at & -at
        at = now
        while at <= reads:
            tree[at] += 1
            at += at & -at
        latest[item[now - 1]] = now
    return distance


@compiled
def fifo_hits(item: np.ndarray, items: int, capacity: int, first: int) -> int:
    """Return how many reads from number `first` on a cache answers that replaces the item it has held for longest.

    `item`, int[N], numbers the item of each read from 0 to `items` - 1. The cache is empty at first.
    """
    entered = np.full(items, -1, np.int64)  # Number of misses before an item last entered.
    misses = 0
    hits = 0
    for now in range(len(item)):
        at = entered[item[now]]
        if at >= 0 and misses - at <= capacity:
            hits += now >= first
        else:
            entered[item[now]] = misses
            misses += 1
    return hits
