"""When DataLoaders deliver their batches, by the rules of PyTorch's DataLoader."""

import numpy as np

from esprof.core.compiled import compiled


@compiled
def delivered(took_ns: np.ndarray, workers: np.ndarray, ahead: np.ndarray, step_ns: np.ndarray) -> np.ndarray:
    """Return when the batch of each step is delivered on each of R ranks, ns since the loaders start, float64[R, K].

    `took_ns`, float64[R, K], is the time to make each batch; `step_ns`, float64[K], that of each step without waiting for
    data. A rank with `workers` > 0 has that many workers, which get batches in turn; at most `ahead` batches are requested
    before they are delivered, and the delivery of one requests the next. Batches are delivered in order. A rank without
    workers makes a batch when the step begins. All ranks begin a step when the last one has finished the step before.
    """
    ranks, count = took_ns.shape
    done, at = np.zeros((ranks, count)), np.zeros((ranks, count))
    begin = 0.0
    for k in range(count):
        latest = begin
        for r in range(ranks):
            if workers[r] == 0:
                at[r, k] = begin + took_ns[r, k]
            else:
                free = done[r, k - workers[r]] if k >= workers[r] else 0.0
                asked = at[r, k - ahead[r]] if k >= ahead[r] else 0.0
                done[r, k] = max(free, asked) + took_ns[r, k]
                at[r, k] = max(begin, done[r, k])
            latest = max(latest, at[r, k])
        begin = latest + step_ns[k]
    return at
