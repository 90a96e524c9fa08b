"""Calls that enclose a call: operations, modules, and lines of the job's own code."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.core.types import Rank
from esprof.replay.cpu.frames import frame
from esprof.replay.cpu.module_calls import is_module_call
from esprof.replay.cpu.recorded_frames import recorded_frames
from esprof.run.raw.module_events import MODULE_PREFIX

_SCALAR = "aten::_local_scalar_dense"
ITEM = "aten::item"
"""`.item()`, which calls `_SCALAR` and appears in people's code."""

_MAX_OPERATIONS_BEFORE = 1_000
"""Most operations before a call that are searched for an enclosing one."""


class EnclosingCalls:
    """Finds enclosing calls for the calls of a rank, given by their rows in its event table."""

    def __init__(self, samples: JobSamples, rank: Rank) -> None:
        self._samples, events = samples.of(rank), samples.run.events(rank)
        self._frames = recorded_frames(events)
        self._start, self._tid = events.ints("start_ns"), events.ints("tid")
        self._end = self._start + events.ints("dur_ns")
        self._codes, self._texts = events.codes("name")
        self._operations = self._by_start(events.is_kind("op"))
        self._modules = self._by_start(is_module_call(events))

    def _by_start(self, mask: np.ndarray) -> np.ndarray:
        rows = np.flatnonzero(mask)
        ordered: np.ndarray = rows[np.argsort(self._start[rows], kind="stable")]
        return ordered

    def caller(self, row: int) -> str | None:
        """The innermost operation that encloses the call in this row; None if there is none."""
        names = [self._name(one) for one in self._enclosing(row, self._operations, _MAX_OPERATIONS_BEFORE)]
        if names[:1] == [_SCALAR] and ITEM in names:
            return ITEM
        return names[0] if names else None

    def line(self, row: int) -> str | None:
        """The line of the job's own code that made the call, from stack samples or else from recorded frames."""
        at = self._samples.at_ns
        codes = self._samples.code[(at >= self._start[row]) & (at <= self._end[row])]
        stacks = [self._samples.stacks[code] for code in codes.tolist() if code >= 0]
        frames = [line for stack in stacks for line in reversed(stack.splitlines())]
        return next((text for text in frames if frame(text).origin == "job"), self._frames.line(row))

    def modules(self, row: int) -> str | None:
        """The modules whose forward encloses the call, outermost first: `GPT.blocks.3.mlp` by their place in the model, or
        `GPT_0 › Block_3 › MLP_3` in traces of torch, which numbers the modules of a class by their first call. None if
        there are none, or the trace has no modules."""
        names = [self._name(one).removeprefix(MODULE_PREFIX) for one in self.module_calls(row)]
        return " › ".join(name for name, inner in pairwise([*names, ""]) if not inner.startswith(f"{name}.")) or None

    def module_calls(self, row: int) -> list[int]:
        """Rows of the calls of modules that enclose the call, outermost first."""
        return list(self._enclosing(row, self._modules, len(self._modules)))[::-1]

    def _enclosing(self, row: int, ordered: np.ndarray, most: int) -> Iterator[int]:
        """Those of the last `most` rows of `ordered` (by start) before the call that enclose it, innermost first."""
        behind = int(np.searchsorted(self._start[ordered], self._start[row], side="right"))
        near = ordered[max(0, behind - most) : behind][::-1]
        yield from near[(self._tid[near] == self._tid[row]) & (self._end[near] >= self._end[row])].tolist()

    def _name(self, row: int) -> str:
        name: str = self._texts[self._codes[row]]
        return name
