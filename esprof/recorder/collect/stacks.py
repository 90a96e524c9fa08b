"""What Python did while nothing was recorded: the gaps between operations, read from a window with stacks."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.trace.schema import STACKS, Table, table
from esprof.types import NS_PER_US, Ns

MIN_GAP: Ns = 200 * NS_PER_US
"""Shortest gap that is listed: shorter ones are ordinary Python between two operations."""

_COVERS = 0.5
"""Share of a gap that a frame must cover to stand for it; the innermost of those that do is taken."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.*)")
_OURS = r"injected/|shared/(environment|files|identity|settings|talk)\.py"
_LIBRARY = re.compile(rf"(^|/)((torch|site-packages|dist-packages)/|{_OURS})|^<")
"""Files whose frames are passed over: torch's, installed ones, and the recorder's own; beside these the standard library's.
A trace names files relative to `sys.path`, so that little of their path may be left: a file in some folder `shared` is only
the recorder's if its name is one of these."""


@dataclass(frozen=True)
class Gap:
    """A stretch of the main thread between two top-level operations."""

    before: str
    after: str
    start_ns: Ns
    end_ns: Ns

    @property
    def dur_ns(self) -> Ns:
        return self.end_ns - self.start_ns


def stacks_of(events: Table, running: Sequence[tuple[str, int, int]] = ()) -> Table:
    """The `stacks` table of one rank: a row for each gap of the main thread, with the Python frame that fills it.

    A trace names a frame by the first line of its function, but one that was on the stack when the window began by the
    line that it was at. `running`, (function, that line, first line) of those, mends this.
    """
    main = events.where(np.array([role == "main" for role in events.texts("thread_role")], bool))
    frames = _Frames(main.where(main.is_kind("python")), {(name, at): first for name, at, first in running})
    rows = [(gap.before, gap.after, *frames.filling(gap), gap.dur_ns) for gap in gaps(main)]
    return table(dict(zip(STACKS.names, zip(*rows, strict=True), strict=False)) if rows else {}, STACKS)


def gaps(main: Table) -> Iterator[Gap]:
    """Gaps longer than MIN_GAP between consecutive top-level operations of the main thread, in order of time."""
    operations = main.where(main.is_kind("op", "runtime", "loader"))
    starts, durations = operations.ints("start_ns").tolist(), operations.ints("dur_ns").tolist()
    end: Ns | None = None
    before = ""
    for name, start, duration in zip(operations.texts("name"), starts, durations, strict=True):
        if end is not None and start - end > MIN_GAP:
            yield Gap(before, name or "", end, start)
        if end is None or start >= end:
            before, end = name or "", start + duration


class _Frames:
    """Python frames of one thread, by start."""

    def __init__(self, python: Table, first_lines: Mapping[tuple[str, int], int]) -> None:
        self._names = [_ADDRESS.sub("", name or "") for name in python.texts("name")]
        self._first_lines = first_lines
        self._starts = python.ints("start_ns")
        self._ends = self._starts + python.ints("dur_ns")
        self._is_user = np.array([_is_user_frame(name) for name in self._names], bool)
        self._is_builtin = np.array([name.startswith("<built-in") for name in self._names], bool)

    def filling(self, gap: Gap) -> tuple[str | None, str | None]:
        """(user frame, built-in call) that fill most of `gap`; None where there is none."""
        overlap = np.minimum(self._ends, gap.end_ns) - np.maximum(self._starts, gap.start_ns)
        fills = overlap >= _COVERS * gap.dur_ns
        frame = self._innermost(fills & self._is_user)
        return frame and self._by_first_line(frame), self._innermost(fills & self._is_builtin)

    def _innermost(self, mask: np.ndarray) -> str | None:
        # Frames are sorted by start: of those that fill one gap, the last to begin is the innermost.
        found = np.flatnonzero(mask)
        return self._names[found[-1]] if len(found) else None

    def _by_first_line(self, frame: str) -> str:
        match = _FRAME.fullmatch(frame)
        assert match is not None
        first = self._first_lines.get((match["function"], int(match["line"])), match["line"])
        return f"{match['file']}({first}): {match['function']}"


def _is_user_frame(name: str) -> bool:
    match = _FRAME.fullmatch(name)
    if match is None or _LIBRARY.search(match["file"]):
        return False
    return match["file"].split("/")[0].removesuffix(".py") not in sys.stdlib_module_names
