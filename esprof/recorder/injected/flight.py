"""The flight recorder: where a rank is when a step becomes slow or stands still, and where it was when a signal ended it."""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from statistics import median
from types import FrameType
from typing import Any

import torch.distributed as dist

from ..shared import names
from ..shared.files import NewFile, write_new
from ..shared.reasons import SnapshotReason
from ..shared.settings import Settings
from .calls import dumps
from .log import Log
from .orders import OrderBox
from .state import State

_MOST = 16
"""Snapshots that a rank keeps on disk."""
_SLOW_APART_NS = 30 * 10**9
_RECKON_EVERY_NS = 10 * 10**9
_ENOUGH_STEPS = 50
"""Fewest steps of which a 99th percentile is taken."""
_SLOW_FACTOR, _SLOW_MARGIN_NS = 2, 20 * 10**6
_HANG_FACTOR = 3
_MOST_THREADS, _MOST_FRAMES = 64, 100
_TOLD_OF_A_STEP = 4
"""How many fields of a step's row a snapshot tells: number, start, duration, phase."""

_CALLS_OF_SLOW_STEP = 100
"""Collectives that a snapshot of a slow step keeps, of the thousands that PyTorch remembers."""
_WINDOW_CODE = tuple(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), name) for name in ("window.py", "windows.py")
)


@dataclass(frozen=True)
class Usual:
    """How long the recent plain steps took, in ns."""

    median_ns: int | None = None
    p99_ns: int | None = None
    """99th percentile of the recent plain steps, in ns; None where they are too few."""
    longest_ns: int = 0

    @classmethod
    def of(cls, recent: Iterable[int]) -> "Usual":
        steps = sorted(recent)
        if not steps:
            return cls()
        p99 = steps[(99 * len(steps) - 1) // 100] if len(steps) >= _ENOUGH_STEPS else None
        return cls(int(median(steps)), p99, steps[-1])

    @property
    def slow_ns(self) -> float:
        """The duration (ns) above which a step is slow."""
        return inf if self.p99_ns is None else max(_SLOW_FACTOR * self.p99_ns, self.p99_ns + _SLOW_MARGIN_NS)

    def hang_ns(self, hang_s: float) -> float:
        """The duration (ns) above which a step may hang; infinite where `hang_s` is 0."""
        return max(hang_s * 10**9, _HANG_FACTOR * self.longest_ns) if hang_s else inf


class FlightWatch:
    """Takes snapshots of the rank: of all its Python threads' stacks, and of what PyTorch knows of its collectives.

    While steps take what they usually take, a tick only compares two numbers.
    """

    def __init__(self, raw: str, state: State, log: Log, settings: Settings) -> None:
        self._raw = raw
        self._state = state
        self._log = log
        self._hang_s = settings.hang_s
        self._orders = OrderBox(raw)
        self._usual = Usual()
        self._reckoned_ns = 0
        self._next_slow_ns = 0
        self._slow_step = 0
        self._suspect = 0
        self._standstill = _Standstill()
        self._kept: list[tuple[SnapshotReason, str]] = []
        """Reason and path of the snapshots on disk, oldest first."""
        self._taken = 0
        _note_deadly_signals(os.path.join(raw, names.fatal(state.rank)))

    def tick(self, now_ns: int) -> None:
        # The launcher asks where this rank is.
        if any(order.content.get("snapshot") is True for order in self._orders.new()):
            self._take(SnapshotReason.ASKED, self._threads())
        # In this order: the training thread sets the start first, and a new step with an old start would look slow.
        step = self._state.step
        age_ns = now_ns - self._state.start_ns
        if now_ns - self._reckoned_ns > _RECKON_EVERY_NS:
            self._reckon(now_ns)
        if step and age_ns > min(self._usual.slow_ns, self._usual.hang_ns(self._hang_s)):
            self._look_closer(now_ns, step, age_ns)

    def close(self) -> None:
        """Take a snapshot of the exception that ends the process, if one does."""
        # Python sets this for an uncaught exception before the exit handlers run, and never for SystemExit.
        error = getattr(sys, "last_value", None)
        if error is not None:
            frames = reversed(traceback.extract_tb(error.__traceback__))
            listed = [[frame.filename, frame.lineno, frame.name] for frame in frames][:_MOST_FRAMES]
            thread = {"name": threading.current_thread().name, "training": True, "frames": listed}
            text = "".join(traceback.format_exception_only(error)).strip()
            self._take(SnapshotReason.ERROR, [thread], error=text[:1000], error_type=type(error).__name__)

    def _reckon(self, now_ns: int) -> None:
        self._usual, self._reckoned_ns = Usual.of(list(self._state.recent)), now_ns

    def _look_closer(self, now_ns: int, step: int, age_ns: int) -> None:
        """Take a snapshot of a step that seems too long, if it really is and has none yet."""
        if self._suspect != step:
            self._suspect = step
            self._reckon(now_ns)
        if self._in_own_window():
            return
        hang_ns = self._usual.hang_ns(self._hang_s)
        if age_ns > hang_ns:
            if self._standstill.is_new(step, now_ns, hang_ns):
                self._take(SnapshotReason.HANG, self._threads())
        elif age_ns > self._usual.slow_ns and self._slow_step != step and now_ns >= self._next_slow_ns:
            self._slow_step, self._next_slow_ns = step, now_ns + _SLOW_APART_NS
            self._take(SnapshotReason.SLOW, self._threads())

    def _in_own_window(self) -> bool:
        """Whether the training thread is busy with a window of the recorder: that is no fault of the job."""
        frame = sys._current_frames().get(self._state.thread)
        return any(one.f_code.co_filename in _WINDOW_CODE for one in _outwards(frame))

    def _threads(self) -> list[dict[str, object]]:
        names_of = {thread.ident: thread.name for thread in threading.enumerate()}
        training, own = self._state.thread, threading.get_ident()
        stacks = [(ident, frame) for ident, frame in sys._current_frames().items() if ident != own]
        stacks.sort(key=lambda stack: stack[0] != training)
        return [
            {"name": names_of.get(ident, ""), "training": ident == training, "frames": _frames(frame)}
            for ident, frame in stacks[:_MOST_THREADS]
        ]

    def _take(self, reason: SnapshotReason, threads: list[dict[str, object]], **error: str) -> None:
        """`error` are the fields of a snapshot that tell of an exception."""
        state, usual = self._state, self._usual
        snapshot = {
            "reason": reason,
            "rank": state.rank,
            "at_ns": time.time_ns(),
            "step": state.step,
            "since_ns": state.start_ns,
            "usual_ns": usual.median_ns,
            "p99_ns": usual.p99_ns,
            "threads": threads,
            "steps": [row[:_TOLD_OF_A_STEP] for row in self._log.tail("steps")],
            "groups": _groups(),
            "calls": _calls(_CALLS_OF_SLOW_STEP if reason == SnapshotReason.SLOW else None),
        } | error
        self._make_room()
        path = os.path.join(self._raw, names.snapshot(state.rank, self._taken))
        self._taken += 1
        write_new(f"{path}.part", json.dumps(snapshot, separators=(",", ":")).encode())
        os.rename(f"{path}.part", path)
        self._kept.append((reason, path))

    def _make_room(self) -> None:
        """Remove the oldest snapshot of a slow step, or else the oldest of all, where there are too many."""
        if len(self._kept) >= _MOST:
            oldest = next((kept for kept in self._kept if kept[0] == SnapshotReason.SLOW), self._kept[0])
            self._kept.remove(oldest)
            os.unlink(oldest[1])


class _Standstill:
    """Tells one standstill from the next within a long step, by whether the rank's collectives moved in between.

    A validation pass belongs to the step that it follows: it may hang long after that step has become too long.
    """

    def __init__(self) -> None:
        self.step = 0
        self._status = b""
        self._moved_ns: int | None = None

    def is_new(self, step: int, now_ns: int, patience_ns: float) -> bool:
        """Whether this is a new standstill: the first one in `step`, or one after collectives have moved and stopped again
        for `patience_ns`."""
        status = _status()
        if step != self.step:
            self.step, self._status, self._moved_ns = step, status, None
            return True
        if status != self._status:
            self._status, self._moved_ns = status, now_ns
        if self._moved_ns is None or now_ns - self._moved_ns <= patience_ns:
            return False
        self._moved_ns = None
        return True


def _note_deadly_signals(path: str) -> None:
    """Have Python's faulthandler write all stacks to `path` when a signal ends the process; the signal still ends it.

    Handlers that the job has set stay, and those that it sets later replace ours.
    """
    file = NewFile(path)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        faulthandler.register(signal.SIGTERM, file=file.number, all_threads=True, chain=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=file.number, all_threads=True)
    os.register_at_fork(after_in_child=lambda: _silence(file))


def _silence(file: NewFile) -> None:
    """In a forked child: let its last stacks go nowhere, as they are not the rank's. The handlers stay: they may be the
    job's own by now."""
    if file.is_ours:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.number)
        os.close(nowhere)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _frames(innermost: FrameType) -> list[tuple[str, int, str]]:
    """(file, line, function) of the frames, innermost first, at most _MOST_FRAMES."""
    frames = islice(_outwards(innermost), _MOST_FRAMES)
    return [(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name) for frame in frames]


def _groups() -> list[dict[str, object]]:
    """The process groups that this rank is in. Their names are unique among the members, but not beyond them."""
    if not (dist.is_available() and dist.is_initialized()):
        return []
    world = dist.distributed_c10d._world
    members = [(group, sorted(ranks)) for group, ranks in list(world.pg_group_ranks.items())]
    return [
        {"name": world.pg_names[group], "description": group.group_desc, "ranks": ranks} for group, ranks in members
    ]


def _calls(newest: int | None) -> list[dict[str, Any]]:
    """What each of PyTorch's Flight Recorders holds: its `newest` calls, or all where that is None."""
    recorders = [json.loads(dump) for dump in dumps(include_calls=True)]
    for recorder in recorders:
        entries: Sequence[object] = recorder.get("entries", [])
        recorder["entries"] = entries if newest is None else entries[-newest:]
    return [recorder for recorder in recorders if recorder["entries"]]


def _status() -> bytes:
    """How far the collectives of each process group have come, as text to compare."""
    return b"".join(dumps(include_calls=False))
