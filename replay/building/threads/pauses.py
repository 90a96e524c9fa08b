"""Find pauses in which operations wait for a collective: the profiler does not record such waits, only the silence."""

import numpy as np

from esprof.replay import rules
from esprof.replay.building.lookup import numbered
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.threads.layout import Works

_COMPUTES = "aten::"
"""Prefix of the names of PyTorch's own operators, which compute and never wait for collectives."""

_NAME_BITS = 31


def pauses(events: RankEvents, row: np.ndarray, works: Works) -> tuple[np.ndarray, np.ndarray]:
    """(begin, end) of the silences inside operations in which this thread waits for collectives, ns, ascending.

    `row` are the thread's rows, `works` the collectives that it launched. A silence is time in an operation without any
    operation inside it: own work, or a wait. A single silence may end with a collective by chance, so silences are grouped
    by site: the pair of the event before and the event after. A site is a wait if most of its silences that begin while a
    collective is outstanding end with a collective.
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
    """(begin, ns; end, ns; site) of the silences of a thread that may be waits, ascending; a site is an int64 key."""
    moment = np.concatenate([events.start[row], events.end[row]])
    closes = np.arange(len(moment)) >= len(row)
    order = np.lexsort((~closes, moment))  # at equal times, ends precede begins
    moment, closes, name = moment[order], closes[order], np.tile(events.name[row], 2)[order]
    inside = np.cumsum(np.where(closes, -1, 1))[:-1] > 0
    computes = events.by_text(row, lambda text: text.startswith(_COMPUTES))[name]
    # Silence directly after an operation begins, or directly before it ends, is that operation's own work.
    of_operator = (computes & ~closes)[:-1] | (computes & closes)[1:]
    at = np.flatnonzero(inside & ~of_operator & (np.diff(moment) > 0))
    boundary = name.astype(np.int64) << 1 | closes
    return moment[at], moment[at + 1], boundary[at] << _NAME_BITS | boundary[at + 1]


def _end_with_one(begin: np.ndarray, end: np.ndarray, works: Works) -> np.ndarray:
    """Mask of the silences that end with a collective which was outstanding at their beginning.

    The waiting thread may continue before gloo's thread has recorded the end (`layout._awaited`).
    """
    early = np.where(end - begin > 2 * rules.MAX_WAKE_UP, rules.MAX_WAKE_UP, rules.MAX_SYNC_EARLY)
    last = np.searchsorted(works.end, end + early, side="right") - 1
    done = works.end[last]
    mask: np.ndarray = (
        (last >= 0) & (done > begin) & (done >= end - rules.MAX_WAKE_UP) & (works.launched[last] <= begin)
    )
    return mask
