"""Messages over gloo: when the data passed, which the events of sender and receiver only bound.

gloo sends once both ends have asked for the message. Each end's event lasts until its rank has waited for it: the data
passed at that moment only if the rank stood still until then.
"""

from dataclasses import dataclass

import numpy as np

from esprof.replay import rules
from esprof.run.clocks.by_collectives import MatchedCalls


@dataclass(frozen=True)
class Transfers:
    """One entry per matched call; without meaning for calls that are no messages."""

    took_ns: np.ndarray
    """From the moment both ends had asked until the data had passed, ns."""
    late_ns: np.ndarray
    """From then to the end of the call's event, ns; 0 for calls that are no messages."""
    is_awaited_late: np.ndarray
    """bool: the data had passed before the rank waited for it."""


def transfers(calls: MatchedCalls, silent_ns: np.ndarray, receives: np.ndarray, size: np.ndarray) -> Transfers:
    """When the data of each message passed; `calls` have one clock.

    `silent_ns` is how long each call's thread had been silent at its end, -1 for other calls; `size` is in bytes. The data
    passed when the receiver stopped waiting, or else the sender. If neither waited, the first end is a bound, and the data
    took no longer than messages of that size usually do.
    """
    is_message = silent_ns >= 0
    number, end, waited = calls.collective, calls.end_ns, silent_ns > rules.MIN_WAITING_CALL
    count = number.max(initial=-1) + 1
    begin, first_end = np.full(count, np.iinfo(np.int64).min), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(begin, number, calls.start_ns)
    np.minimum.at(first_end, number, end)
    passed, seen = first_end.copy(), np.zeros(count, bool)
    for shows in (is_message & waited & ~receives, is_message & waited & receives):  # The receiver has the last word.
        passed[number[shows]], seen[number[shows]] = end[shows], True
    took = np.maximum(passed - begin, 0)[number]
    usual = _usual(size, took, seen[number] & is_message)
    took = np.where(seen[number], took, np.minimum(took, usual))
    done = np.minimum(begin[number] + took, end)
    took = np.maximum(done - begin[number], 0)
    late = np.where(is_message, end - done, 0)
    return Transfers(took, late, is_message & ~(waited & (silent_ns >= late)))


def _usual(size: np.ndarray, took_ns: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Median time of the messages `seen` of the same size as each call, ns; the largest int64 where there is none."""
    usual = np.full(len(size), np.iinfo(np.int64).max)
    for one in np.unique(size[seen & (size >= 0)]).tolist():
        usual[size == one] = int(np.median(took_ns[seen & (size == one)]))
    return usual
