"""Operations whose gradient a backward pass computes."""

import numpy as np

from esprof.run.schema import Table


def has_gradient(events: Table) -> np.ndarray:
    """Mask of the operations through which a recorded backward pass goes, bool[rows].

    A forward operation shares its sequence number with its backward operation. PyTorch gives every operation the number
    that the next node of the autograd graph will have. So of the operations with one number, the last to start creates the
    node; those around it share its gradient, and those before it have none.
    """
    sequence, forward_tid = events.ints("autograd_seq", -1), events.ints("fwd_tid", 0)
    start, tid = events.ints("start_ns"), events.ints("tid")
    end = start + events.ints("dur_ns")
    numbered = events.is_kind("op") & (sequence >= 0)
    backward = np.unique(sequence[numbered & (forward_tid > 0)])
    forward = np.flatnonzero(numbered & (forward_tid <= 0) & np.isin(sequence, backward))
    mask = np.zeros(len(events), bool)
    if len(forward):
        _, number = np.unique(np.stack([tid[forward], sequence[forward]]), axis=1, return_inverse=True)
        creation = np.zeros(number.max() + 1, np.int64)
        np.maximum.at(creation, number, start[forward])
        mask[forward] = end[forward] > creation[number]
    return mask
