"""The layers of a model: the entries of its largest list of modules, by their recorded calls."""

import re
from dataclasses import dataclass

import numpy as np

from esprof.replay.whatif.memory.passes import BackwardPasses
from esprof.replay.whatif.scenario import Declined
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.schema import Table

_ENTRY = re.compile(rf"{re.escape(MODULE_PREFIX)}(.+)\.\d+")
"""Matches the call of an entry of `nn.Sequential` or `nn.ModuleList`, by its place in the model."""


@dataclass(frozen=True)
class LayerCalls:
    """Calls of the entries of a list of modules in order of time, int64[calls] each."""

    name: str
    """The list's place in the model."""
    tid: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    backward_row: np.ndarray
    """Row of the first autograd node of its backward pass."""
    backward_ns: np.ndarray
    """Start of that node."""

    def of(self, at_ns: np.ndarray) -> np.ndarray:
        """The call that runs at each time, int64; -1 for none."""
        before = np.searchsorted(self.begin_ns, at_ns, side="right") - 1
        return np.where((before >= 0) & (at_ns <= self.end_ns[np.maximum(before, 0)]), before, -1)


def layers_of(events: Table, passes: BackwardPasses) -> LayerCalls:
    """The layers with a backward pass: entries of the list of modules whose calls take the most time.

    Raises Declined if no list of modules was recorded.
    """
    lists = module_lists(events)
    if not lists:
        raise Declined(
            "no list of modules was recorded (nn.Sequential, nn.ModuleList), whose entries could be checkpointed"
        )
    found = {name: _with_backward(name, events, rows, passes) for name, rows in lists.items()}
    best = max(found, key=lambda name: int((found[name].end_ns - found[name].begin_ns).sum()))
    if not len(found[best].tid):
        raise Declined("no backward pass of a list of modules was recorded")
    return found[best]


def module_lists(events: Table, least: int = 2) -> dict[str, np.ndarray]:
    """Rows of the calls of the entries of each list of at least so many, by the list's name, in order of time."""
    codes, names = events.codes("name")
    matches = [_ENTRY.fullmatch(name) for name in names]
    entries: dict[str, list[int]] = {}
    for code, match in enumerate(matches):
        if match is not None:
            entries.setdefault(match[1], []).append(code)
    calls = np.flatnonzero(events.is_kind("python"))
    lists = {}
    for name, some in entries.items():
        rows = calls[np.isin(codes[calls], some)]
        rows = rows[np.argsort(events.ints("start_ns")[rows], kind="stable")]
        begin, end = events.ints("start_ns")[rows], (events.ints("start_ns") + events.ints("dur_ns"))[rows]
        # The entries of one list do not enclose each other.
        if len(some) >= least and (begin[1:] >= end[:-1]).all():
            lists[name] = rows
    return lists


def _with_backward(name: str, events: Table, rows: np.ndarray, passes: BackwardPasses) -> LayerCalls:
    """The calls in these rows that have a backward pass: nodes with the sequence numbers of their operations."""
    start, tid, sequence = (events.ints(name) for name in ("start_ns", "tid", "autograd_seq"))
    end = start + events.ints("dur_ns")
    is_forward = events.is_kind("op") & (sequence >= 0) & (events.ints("fwd_tid") <= 0)
    forward = np.flatnonzero(is_forward)
    nodes = passes.node_row[sequence[passes.node_row] >= 0]
    kept = list[tuple[int, int]]()
    for row in rows.tolist():
        low, high = np.searchsorted(start[forward], (start[row], end[row]))
        mine = sequence[forward[low:high]][tid[forward[low:high]] == tid[row]]
        if not len(mine):
            continue
        later = nodes[start[nodes] >= end[row]]
        own = later[(sequence[later] >= mine.min()) & (sequence[later] <= mine.max())]
        # Numbers are unique on a thread; of several passes over one graph the first counts.
        if len(own):
            kept.append((row, int(own[0])))
    call, node = (np.array([pair[side] for pair in kept], np.int64) for side in (0, 1))
    return LayerCalls(name, tid[call], start[call], end[call], node, start[node])
