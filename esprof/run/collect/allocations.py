"""Allocations in a Kineto trace of `torch.profiler` with `profile_memory=True`."""

import re
from pathlib import Path

import numpy as np

from esprof.run.kineto.content import content
from esprof.run.reading import memory_limit
from esprof.run.schema import ALLOCATIONS, Table, table
from esprof.run.step_rows import step_at

_EVENT = re.compile(rb'"name": ?"\[memory\]"([^{}]*)\{([^{}]*)\}')
"""An instant event: its own values, and those of its `args`."""
_TIME = re.compile(rb'"ts": ?(-?\d{1,18})(?:\.(\d{1,9}))?')
_VALUE = re.compile(rb'"(Total Allocated|Bytes|Device Type|Addr)": ?"?(-?\d{1,20})')
_BASE = re.compile(rb'"baseTimeNanoseconds": ?(\d{1,19})')
_ABSOLUTE_NS = 10**17
"""A time above this (the year 1973) counts from the epoch; below, from `baseTimeNanoseconds`."""


def read_allocations(path: Path, events: Table) -> Table:
    """The allocations in the trace at `path`, whose events are `events`. Raises InputError as `read_traces`."""
    text = content(path, memory_limit())
    base = _BASE.search(text)
    base_ns = int(base[1]) if base else 0
    rows = []
    for match in _EVENT.finditer(text):
        time, values = _TIME.search(match[1]), dict(_VALUE.findall(match[2]))
        if time is not None and len(values) == 4:
            at = int(time[1]) * 1000 + int((time[2] or b"").ljust(3, b"0")[:3])
            size, total, kind, address = (
                int(values[name]) for name in (b"Bytes", b"Total Allocated", b"Device Type", b"Addr")
            )
            rows.append((at if at > _ABSOLUTE_NS else at + base_ns, kind != 0, _int64(address), size, total))
    rows.sort(key=lambda row: row[0])
    at_ns = np.array([row[0] for row in rows], np.int64)
    step = step_at(events.where(np.flatnonzero(events.is_kind("step"))), at_ns)
    columns = {name: [row[at] for row in rows] for at, name in ((1, "on_gpu"), (2, "address"), (3, "bytes"))}
    steps = [one if one >= 0 else None for one in step.tolist()]
    return table({"at_ns": at_ns, "step": steps, **columns, "allocated": [row[4] for row in rows]}, ALLOCATIONS)


def _int64(address: int) -> int:
    """Addresses are unsigned."""
    return address if address < 1 << 63 else address - (1 << 64)
