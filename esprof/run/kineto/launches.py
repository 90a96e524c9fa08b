"""What launched each piece of device work: the call with its correlation id, or else the operation with its external id."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from esprof.run.kineto.scan import MISSING
from esprof.run.schema import EVENTS, Table, table

_CALL = "launch (not recorded)"
_NO_DEVICE_PID = 1000
"""From here on a process id is not the number of a device, as recorders write it for device work."""


@dataclass(frozen=True)
class LaunchLinks:
    """For each row, what launched it."""

    row: np.ndarray
    """Row of the call or operation that launched the row, -1 where none is known."""
    correlation: np.ndarray
    """Correlation id, which a call and its work share. Calls that were not recorded have new ids."""
    by_operation: np.ndarray
    """Rows of work whose operation is known, but not the call."""


def links(
    is_runtime: np.ndarray, is_work: np.ndarray, correlation: np.ndarray, external: np.ndarray, is_op: np.ndarray
) -> LaunchLinks:
    """Link the rows of `is_work` to the calls of `is_runtime`, of several the last, or to the operations of `is_op`.

    Masks and ids (MISSING for none) have one entry for each row. Work of some ROCm versions has no correlation id, but the
    external id of its operation.
    """
    launch = _partner(np.flatnonzero(is_runtime), np.flatnonzero(is_work), correlation)
    unknown = is_work & (launch < 0) & (correlation == MISSING)
    by_operation = _partner(np.flatnonzero(is_op), np.flatnonzero(unknown), external)
    linked = np.flatnonzero(by_operation >= 0)
    launch[linked] = by_operation[linked]
    correlation = correlation.copy()
    if len(linked):
        # Not above the largest: a file may have any number.
        free = np.setdiff1d(np.arange(1, len(correlation) + len(linked) + 1), correlation)
        correlation[linked] = free[: len(linked)]
    return LaunchLinks(launch, correlation, linked)


def _partner(sources: np.ndarray, targets: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """For each row of `targets` the last of `sources` with the same id; -1 for all other rows."""
    found = np.full(len(ids), -1)
    sources, targets = sources[ids[sources] != MISSING], targets[ids[targets] != MISSING]
    if len(sources):
        sources = sources[np.argsort(ids[sources], kind="stable")]
        # The last source whose id is not larger; where the ids are not equal, there is no such source.
        last = np.searchsorted(ids[sources], ids[targets], side="right") - 1
        found[targets] = np.where(ids[sources[last]] == ids[targets], sources[last], -1)
    return found


def with_unrecorded_calls(events: Table, links: LaunchLinks) -> Table:
    """`events` with a call of no duration for each piece of work whose operation alone is known, inside that operation."""
    if not len(links.by_operation):
        return events
    operation, work = links.row[links.by_operation], links.by_operation
    start, dur = events.ints("start_ns"), events.ints("dur_ns")
    at = np.clip(start[work], start[operation], start[operation] + dur[operation])
    same = events.arrow.take(pa.array(operation))
    count = len(work)
    calls = table(
        {
            "name": [_CALL] * count,
            "kind": ["runtime"] * count,
            "start_ns": at,
            "dur_ns": np.zeros(count, np.int64),
            "correlation": links.correlation[work],
        }
        | {name: same[name].to_pylist() for name in ("pid", "tid", "thread_role", "external_id", "step", "est")},
        EVENTS,
    )
    joined = Table(pa.concat_tables([events.arrow, calls.arrow]).unify_dictionaries())
    order = np.lexsort((-joined.ints("dur_ns"), joined.ints("start_ns")))
    return Table(joined.arrow.take(pa.array(order)).combine_chunks())


def lanes(work: np.ndarray, columns: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(device, stream) of the rows of `work` (a mask); MISSING elsewhere.

    Recorders also write the stream as the thread of device work and the device as its process: these stand in where work
    has neither, and else the first device and stream do.
    """
    pid = np.where(columns["pid"] < _NO_DEVICE_PID, columns["pid"], 0)
    stream, device = columns["stream"], columns["device"]
    for stand_in in (columns["tid"], 0):
        stream = np.where(work & (stream < 0), stand_in, stream)
    for stand_in in (pid, 0):
        device = np.where(work & (device < 0), stand_in, device)
    return device, stream
