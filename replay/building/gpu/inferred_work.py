"""GPU work that is missing from the trace, inferred from what waited for it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from esprof.replay.building.node_names import Text
from esprof.replay.building.rank_events import RankEvents
from esprof.run.schema import EVENTS, Table, table


def with_work(
    events: RankEvents, text: Text, begin: np.ndarray, end: np.ndarray, stream: np.ndarray, launch: np.ndarray
) -> RankEvents:
    """`events` with more pieces of work of this name, in rows after those of the table.

    The arrays have one entry for each piece: begin and end (ns), stream, and row of the call that launched it (-1 for none).
    Pieces of no duration are left out.
    """
    kept = end > begin
    count = int(kept.sum())
    if not count:
        return events
    begin, end = begin[kept], end[kept]
    more = table({"kind": ["kernel"] * count, "start_ns": begin, "dur_ns": end - begin, "stream": stream[kept]}, EVENTS)
    kernel = events.kinds.index("kernel") if "kernel" in events.kinds else -1
    starts = np.append(events.start, begin)
    gpu = np.append(len(events.start) + np.arange(count), events.gpu)
    launches = np.append(launch[kept], events.launch)
    order = np.argsort(starts[gpu], kind="stable")
    return replace(
        events,
        table=Table(pa.concat_tables([events.table.arrow, more.arrow]).unify_dictionaries()),
        start=starts,
        end=np.append(events.end, end),
        name=np.append(events.name, np.full(count, text, np.int32)),
        kind=np.append(events.kind, np.full(count, kernel, events.kind.dtype)),
        thread=np.append(events.thread, np.full(count, -1, np.int32)),
        gpu=gpu[order],
        launch=launches[order],
    )
