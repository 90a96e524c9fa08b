"""GPU work that was launched before the window and is missing from the trace, inferred from what waited for it."""

from itertools import pairwise

import numpy as np

from esprof.replay import rules
from esprof.replay.building.gpu.inferred_work import with_work
from esprof.replay.building.node_names import Text
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.runtime_names import CALL_TRAITS, call_traits


def with_cut_work(events: RankEvents) -> RankEvents:
    """`events` with the work that occupied the GPU before the first recorded kernel, in rows after those of the table.

    A profiler records no kernel that was launched before it started. Such work occupied a stream from the window's begin
    until the stream's first recorded piece, if that piece starts long after its launch, and until the end of each wait of
    the CPU that no recorded work explains. The pieces on one stream are split where such a wait ends.
    """
    first = _first_per_stream(events)
    if not len(first):
        return events
    late = _starts_late(events, first)
    stream, start = events.ints("stream", events.gpu[first]), events.start[events.gpu[first]]
    until = {int(stream[at]): [int(start[at])] for at in np.flatnonzero(late)}
    waited = _ends_of_waits(events)
    if len(waited):
        ends = until.setdefault(int(stream[0]), [])
        most = ends[0] if ends else int(start[0]) + rules.MAX_SYNC_EARLY
        ends += [moment for moment in waited.tolist() if moment < most]
    pieces = [
        (begin, end, stream) for stream, ends in until.items() for begin, end in pairwise([events.begin, *sorted(ends)])
    ]
    begin, end, stream = np.array(pieces, np.int64).reshape(-1, 3).T
    return with_work(events, Text.CUT_WORK, begin, end, stream, np.full(len(pieces), -1))


def _first_per_stream(events: RankEvents) -> np.ndarray:
    """Index into `events.gpu` of the first piece of each stream that works before, or with, the first kernel, by start.

    Streams that begin later may wait for recorded work. Empty if work was recorded before the window: nothing was cut away.
    """
    work = events.gpu
    if events.works_before or not len(work):
        return np.zeros(0, np.int64)
    kernels = work[~(events.of_kind(work, "memcpy") | events.of_kind(work, "memset"))]
    _, at = np.unique(events.ints("stream", work), return_index=True)
    limit = events.start[kernels[:1] if len(kernels) else work[:1]] + rules.MAX_FOLLOWING_PAUSE
    found: np.ndarray = np.sort(at[events.start[work[at]] <= limit])
    return found


def _starts_late(events: RankEvents, first: np.ndarray) -> np.ndarray:
    """Mask of the pieces that started long after they could: after their launch, or the window's begin if that is later.

    A launch returns at once, so a kernel that starts within the call waits for nothing but the call, which may be the first
    of its kernel. A copy may block the call until its turn on the stream.
    """
    started, launch = events.start[events.gpu[first]], events.launch[first]
    call = np.maximum(launch, 0)
    copies = events.by_name(call, call_traits, CALL_TRAITS)["copies"]
    ready = np.where(copies, events.start[call], np.minimum(events.end[call], started))
    ready = np.where(launch >= 0, ready, events.begin)
    late: np.ndarray = started - ready > rules.MIN_CUT_WORK
    return late


def _ends_of_waits(events: RankEvents) -> np.ndarray:
    """Ends of the long waits for the GPU that returned before, or as, the first kernel began, ns, ascending.

    Waits in which any recorded work ends are excluded: they may be for that work.
    """
    rows = events.threads.row[events.of_kind(events.threads.row, "runtime")]
    traits = events.by_name(rows, call_traits, CALL_TRAITS)
    start, end = events.start[rows], np.minimum(events.end[rows], events.finish)
    long = end - start > rules.MIN_WAITING_CALL
    rows = np.flatnonzero(traits["synchronizes"] & ~traits["allocates"] & long)
    ended = np.sort(events.end[events.gpu])
    unexplained = np.searchsorted(ended, start[rows]) == np.searchsorted(ended, end[rows] + rules.MAX_SYNC_EARLY)
    return np.unique(end[rows[unexplained]])
