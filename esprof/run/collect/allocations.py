"""Allocations in a Kineto trace of `torch.profiler` with `profile_memory=True`."""

import re
from pathlib import Path

import numpy as np

from esprof.run.kineto.content import content
from esprof.run.reading import memory_limit
from esprof.run.schema import ALLOCATIONS, Table, table

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
    columns = {name: [row[at] for row in rows] for at, name in ((1, "on_gpu"), (2, "address"), (3, "bytes"))}
    return table(
        {"at_ns": at_ns, "step": _steps(at_ns, events), **columns, "allocated": [row[4] for row in rows]}, ALLOCATIONS
    )


def _steps(at_ns: np.ndarray, events: Table) -> list[int | None]:
    """The step that ran at each time; None for before the first step of `events` and after the last."""
    marks = events.where(np.flatnonzero(events.is_kind("step")))
    begin, number = marks.ints("start_ns"), marks.ints("step")
    end = begin + marks.ints("dur_ns")
    order = np.argsort(begin)
    at = np.searchsorted(begin[order], at_ns, side="right") - 1
    return [
        int(number[order[one]]) if one >= 0 and moment < end[order[one]] else None
        for one, moment in zip(at.tolist(), at_ns.tolist(), strict=True)
    ]


def _int64(address: int) -> int:
    """Addresses are unsigned."""
    return address if address < 1 << 63 else address - (1 << 64)
