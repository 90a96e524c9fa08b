"""When DataLoaders deliver their batches, by the rules of PyTorch's DataLoader."""

import numpy as np

from esprof.core.compiled import compiled


@compiled
def delivered(
    took_ns: np.ndarray, workers: np.ndarray, ahead: np.ndarray, in_order: np.ndarray, step_ns: np.ndarray
) -> np.ndarray:
    """Return when the batch of each step is delivered on each of R ranks, ns since the loaders start, float64[R, K].

    `took_ns`, float64[R, K], is the time to make each batch; `step_ns`, float64[K], that of each step without waiting for
    data. A rank with `workers` > 0 has that many workers, which get batches in turn; at most `ahead` batches are requested
    before they are delivered, and the delivery of one requests the next. `in_order`, bool[R]: whether batches are delivered
    in order, or as soon as one is made; the next batch is then requested of the same worker. A rank without workers makes a
    batch when the step begins. All ranks begin a step when the last one has finished the step before.
    """
    ranks, count = took_ns.shape
    done, at = np.zeros((ranks, count)), np.zeros((ranks, count))
    # Without order: when the batches that were requested are made, and until when each worker is busy.
    made, busy = np.zeros((ranks, ahead.max())), np.zeros((ranks, max(1, workers.max())))
    for r in range(ranks):
        if workers[r] and not in_order[r]:
            for slot in range(ahead[r]):
                busy[r, slot % workers[r]] += took_ns[r, slot] if slot < count else np.inf
                made[r, slot] = busy[r, slot % workers[r]]
    begin = 0.0
    for k in range(count):
        latest = begin
        for r in range(ranks):
            if workers[r] == 0:
                at[r, k] = begin + took_ns[r, k]
            elif not in_order[r]:
                first = int(np.argmin(made[r, : ahead[r]]))
                at[r, k] = max(begin, made[r, first])
                worker, following = first % workers[r], k + ahead[r]
                busy[r, worker] = max(busy[r, worker], at[r, k])
                busy[r, worker] += took_ns[r, following] if following < count else np.inf
                made[r, first] = busy[r, worker]
            else:
                free = done[r, k - workers[r]] if k >= workers[r] else 0.0
                asked = at[r, k - ahead[r]] if k >= ahead[r] else 0.0
                done[r, k] = max(free, asked) + took_ns[r, k]
                at[r, k] = max(begin, done[r, k])
            latest = max(latest, at[r, k])
        begin = latest + step_ns[k]
    return at
