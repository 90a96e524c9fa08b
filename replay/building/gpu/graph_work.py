"""Work of CUDA graphs whose kernels the profiler did not record, inferred from what waited for it."""

import re

import numpy as np

from esprof.replay import rules
from esprof.replay.building.gpu.inferred_work import with_work
from esprof.replay.building.lookup import Sequences, entries
from esprof.replay.building.node_names import Text
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.runtime_names import CALL_TRAITS, call_traits

_GRAPH_LAUNCH = re.compile("GraphLaunch")


def with_graph_work(events: RankEvents) -> RankEvents:
    """`events` with the work of graph launches that have no recorded work.

    Such a graph occupies its stream from the end of the piece before it, or from its launch, until the next piece on the
    stream begins; or until the thread's next long wait for the GPU ends, if it launches nothing before that wait. Its
    stream is assumed to be that of the thread's next launch, else of its last one. Several graphs in a row are one piece.
    """
    calls = events.threads.row[events.of_kind(events.threads.row, "runtime")]
    graphs = calls[events.by_name(calls, lambda name: bool(_GRAPH_LAUNCH.search(name)))]
    graphs = graphs[~np.isin(graphs, events.launch)]
    known = events.launch >= 0
    if not len(graphs) or not known.any():
        return events
    work, launch = events.gpu[known], events.launch[known]
    origin = min(events.begin, int(events.start.min()))
    by_thread = Sequences(events.thread[launch], events.start[launch], origin)
    thread, since = events.thread[graphs], events.start[graphs]
    after, before = by_thread.next(thread, since), by_thread.last(thread, since)
    stream = events.ints("stream", work)
    on = np.where(after >= 0, entries(stream, after, -1), entries(stream, before, -1))
    of_stream = Sequences(stream, events.start[launch], origin)
    previous = of_stream.last(on, since)
    begin = np.maximum(entries(events.end[work], previous, 0), since + rules.DEFAULT_LAUNCH_LATENCY)
    until = np.minimum(_start(events, work, after), _end_of_wait(events, calls, graphs, _start(events, launch, after)))
    usable = (on >= 0) & (until < _NEVER)
    # Of several graphs before the same piece or wait, the first stands for all.
    _, first = np.unique(np.stack([on, until])[:, usable], axis=1, return_index=True)
    at = np.flatnonzero(usable)[first]
    return with_work(events, Text.GRAPH_WORK, begin[at], until[at], on[at], graphs[at])


_NEVER = np.iinfo(np.int64).max


def _start(events: RankEvents, rows: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Start of the rows at these positions, ns; `_NEVER` for -1."""
    return np.where(at >= 0, entries(events.start[rows], at, 0), _NEVER)


def _end_of_wait(events: RankEvents, calls: np.ndarray, graphs: np.ndarray, launched: np.ndarray) -> np.ndarray:
    """End of the thread's first long wait after each of the launches `graphs`, ns; `_NEVER` if there is none.

    A wait after the next launch, which was made at `launched` (ns), says nothing of the graph: it may be for earlier work.
    """
    long = events.end[calls] - events.start[calls] > rules.MIN_WAITING_CALL
    waits = calls[events.by_name(calls, call_traits, CALL_TRAITS)["synchronizes"] & long]
    if not len(waits):
        return np.full(len(graphs), _NEVER)
    by_thread = Sequences(events.thread[waits], events.start[waits], events.begin)
    at = by_thread.next(events.thread[graphs], events.start[graphs])
    first = _start(events, waits, at) < launched
    return np.where(first, np.minimum(entries(events.end[waits], at, 0), events.finish), _NEVER)
