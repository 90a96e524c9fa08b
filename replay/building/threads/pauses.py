"""Where operations pause for a collective: the profiler records no wait inside one, only that nothing else happens."""

import numpy as np

from esprof.replay import rules
from esprof.replay.building.lookup import numbered
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.threads.layout import Works

_COMPUTES = "aten::"
"""What the names of PyTorch's own operators begin with: they compute, and know of no process group."""

_NAME_BITS = 31


def pauses(events: RankEvents, row: np.ndarray, works: Works) -> tuple[np.ndarray, np.ndarray]:
    """(begin, end) of the silences inside operations at places where this thread waits for collectives, ns, ascending.

    `row` are the thread's rows, `works` the collectives that it launched. Silence is a stretch of an operation without any
    operation inside it: the operation's own work, or a wait. A single one that ends with a collective may do so by chance. A
    place (what comes before, what comes after) that waits ends most of its silences so, of those that begin while a
    collective is outstanding; one that works is done when its work is done, whatever is outstanding.
    """
    if not len(works.end) or not events.may_wait_inside:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begin, end, site = _silences(events, row)
    under_way = np.searchsorted(np.sort(works.launched), begin, side="right")
    asked = under_way > np.searchsorted(works.end, begin, side="right")
    begin, end = begin[asked], end[asked]
    site, sites = numbered(site[asked])
    silences = np.bincount(site, minlength=len(sites))
    with_collective = np.bincount(site[_end_with_one(begin, end, works)], minlength=len(sites))
    waits = (2 * with_collective > silences)[site]
    return begin[waits], end[waits]


def _silences(events: RankEvents, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(begin, end, place) of the silences of a thread that may be waits, ascending; the place is a number of its own."""
    moment = np.concatenate([events.start[row], events.end[row]])
    closes = np.arange(len(moment)) >= len(row)
    order = np.lexsort((~closes, moment))  # At the same moment one operation ends before the next begins.
    moment, closes, name = moment[order], closes[order], np.tile(events.name[row], 2)[order]
    inside = np.cumsum(np.where(closes, -1, 1))[:-1] > 0
    computes = events.by_text(row, lambda text: text.startswith(_COMPUTES))[name]
    # Silence right behind the beginning of an operation, or right before its end, is that operation's own.
    of_operator = (computes & ~closes)[:-1] | (computes & closes)[1:]
    at = np.flatnonzero(inside & ~of_operator & (np.diff(moment) > 0))
    boundary = name.astype(np.int64) << 1 | closes
    return moment[at], moment[at + 1], boundary[at] << _NAME_BITS | boundary[at + 1]


def _end_with_one(begin: np.ndarray, end: np.ndarray, works: Works) -> np.ndarray:
    """Mask of the silences at whose end a collective ends that was outstanding at their beginning.

    The waiting thread may go on before the transfer's own thread has noted the end (`layout._awaited`).
    """
    early = np.where(end - begin > 2 * rules.MAX_WAKE_UP, rules.MAX_WAKE_UP, rules.MAX_SYNC_EARLY)
    last = np.searchsorted(works.end, end + early, side="right") - 1
    done = works.end[last]
    mask: np.ndarray = (
        (last >= 0) & (done > begin) & (done >= end - rules.MAX_WAKE_UP) & (works.launched[last] <= begin)
    )
    return mask
