"""The flight recorder: where a rank is when a step becomes slow or stands still, and where it was when a signal ended it."""

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from statistics import median

from ....core.frames import stack_of
from ....run.raw import names
from ....run.raw.reasons import SnapshotReason
from ....run.raw.settings import Settings
from ..log.notes import Log
from ..orders import OrderBox
from ..state import StepState
from .fatal_signals import note_fatal_signals
from .snapshot import (
    awaited_workers,
    calls,
    collective_progress,
    error_fields,
    groups,
    thread_of_error,
    threads,
    write_snapshot,
)
from .stillness import Stillness

_MAX_SNAPSHOTS_STORED = 16
"""Snapshots of a rank on disk, at most."""
_MIN_BETWEEN_SLOW_NS = 30 * 10**9
_UPDATE_EVERY_NS = 10 * 10**9
_MIN_STEPS_FOR_P99 = 50
"""Fewest steps of which a 99th percentile is taken."""
_SLOW_FACTOR, _SLOW_MARGIN_NS = 2, 20 * 10**6
_HANG_FACTOR = 3
_FIELDS_OF_STEP = 4
"""Fields of a step's row in a snapshot: number, start, duration, phase."""

_MAX_CALLS_OF_SLOW_STEP = 100
"""Collectives that a snapshot of a slow step keeps, of the thousands that PyTorch remembers."""
_WINDOWS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "windows")
_WINDOW_CODE = tuple(os.path.join(_WINDOWS, name) for name in ("window.py", "windows.py"))


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
        p99 = steps[(99 * len(steps) - 1) // 100] if len(steps) >= _MIN_STEPS_FOR_P99 else None
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

    def __init__(self, raw: str, state: StepState, log: Log, settings: Settings) -> None:
        self._raw = raw
        self._state = state
        self._log = log
        self._hang_s = settings.hang_s
        self._orders = OrderBox(raw)
        self._usual = Usual()
        self._updated_ns = 0
        self._next_slow_ns = 0
        self._slow_step = 0
        self._suspect = 0
        self._open_hang = _HangTracker()
        self._long_still_ns = settings.start_s * 10**9
        self._stillness: Stillness | None = None
        """Watches a step that may hang; None while there is none."""
        self._was_still = False
        self._stored: list[tuple[SnapshotReason, str]] = []
        """Reason and path of the snapshots on disk, oldest first."""
        self._taken = 0
        note_fatal_signals(os.path.join(raw, names.fatal(state.rank)))

    def tick(self, now_ns: int) -> None:
        # The launcher requests snapshots.
        if any(order.content.get("snapshot") is True for order in self._orders.new()):
            self._take(SnapshotReason.ASKED, threads(self._state.thread))
        # In this order: the training thread sets the start first, and a new step with an old start would look slow.
        step = self._state.step
        age_ns = now_ns - self._state.start_ns
        if now_ns - self._updated_ns > _UPDATE_EVERY_NS:
            self._update_usual(now_ns)
        if step and not self._state.pauses and age_ns > min(self._usual.slow_ns, self._usual.hang_ns(self._hang_s)):
            self._examine(now_ns, step, age_ns)

    def close(self) -> None:
        """Take a snapshot of the exception that ends the process, if one does."""
        # Python sets this for an uncaught exception before the exit handlers run, and never for SystemExit.
        error = getattr(sys, "last_value", None)
        if error is not None:
            self._take(SnapshotReason.ERROR, [thread_of_error(error)], **error_fields(error))

    def _update_usual(self, now_ns: int) -> None:
        self._usual, self._updated_ns = Usual.of(list(self._state.recent)), now_ns

    def _examine(self, now_ns: int, step: int, age_ns: int) -> None:
        """Take a snapshot of a step that seems too long, if it really is and has none yet."""
        if self._suspect != step:
            self._suspect, self._stillness = step, None
            self._update_usual(now_ns)
        if self._in_own_window():
            return
        hang_ns = self._usual.hang_ns(self._hang_s)
        if age_ns > hang_ns:
            stands_still = self._stands_still()
            is_news, self._was_still = stands_still and not self._was_still, stands_still
            if self._open_hang.is_new(step, now_ns, hang_ns) or is_news:
                self._take(SnapshotReason.HANG, threads(self._state.thread))
        elif age_ns > self._usual.slow_ns and self._slow_step != step and now_ns >= self._next_slow_ns:
            self._slow_step, self._next_slow_ns = step, now_ns + _MIN_BETWEEN_SLOW_NS
            self._take(SnapshotReason.SLOW, threads(self._state.thread))

    def _stands_still(self) -> bool:
        """Whether the training thread has not got on, nor its process done anything, for long."""
        if self._stillness is None:
            self._stillness = Stillness(self._long_still_ns)
        self._stillness.observe(self._state.thread)
        return self._stillness.idle_ns > self._long_still_ns

    def _stillness_fields(self) -> dict[str, object]:
        """Fields of a snapshot about a step without progress; empty if none is suspected."""
        still = self._stillness
        if still is None or self._suspect != self._state.step:
            return {}
        return {
            "same_place_ns": still.same_place_ns,
            "lingers": still.same_place_ns > self._long_still_ns,
            "stands_still": still.idle_ns > self._long_still_ns,
        }

    def _in_own_window(self) -> bool:
        """Whether the training thread is busy with a window of the recorder: that is no fault of the job."""
        return any(code.co_filename in _WINDOW_CODE for code, _, _ in stack_of(self._state.thread))

    def _take(self, reason: SnapshotReason, threads: list[dict[str, object]], **error: object) -> None:
        """Take a snapshot; `error` are its fields about an exception."""
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
            "steps": [row[:_FIELDS_OF_STEP] for row in self._log.tail("steps")],
            "workers": awaited_workers(state.thread) if reason in (SnapshotReason.HANG, SnapshotReason.ASKED) else [],
            "groups": groups(),
            "calls": calls(_MAX_CALLS_OF_SLOW_STEP if reason == SnapshotReason.SLOW else None),
        } | (error or self._stillness_fields())
        self._make_room()
        path = os.path.join(self._raw, names.snapshot(state.rank, self._taken))
        self._taken += 1
        write_snapshot(path, snapshot)
        self._stored.append((reason, path))

    def _make_room(self) -> None:
        """Remove the oldest snapshot of a slow step, or else the oldest of all, where there are too many."""
        if len(self._stored) >= _MAX_SNAPSHOTS_STORED:
            oldest = next(
                (snapshot for snapshot in self._stored if snapshot[0] == SnapshotReason.SLOW), self._stored[0]
            )
            self._stored.remove(oldest)
            os.unlink(oldest[1])


class _HangTracker:
    """Distinguishes several hangs within a long step: the rank's collectives made progress in between.

    A validation pass belongs to the step that it follows: it may hang long after that step has become too long.
    """

    def __init__(self) -> None:
        self.step = 0
        self._status = b""
        self._moved_ns: int | None = None

    def is_new(self, step: int, now_ns: int, patience_ns: float) -> bool:
        """Whether this is a new hang: the first one in `step`, or one after collectives have moved and stopped again
        for `patience_ns`."""
        now = collective_progress()
        if step != self.step:
            self.step, self._status, self._moved_ns = step, now, None
            return True
        if now != self._status:
            self._status, self._moved_ns = now, now_ns
        if self._moved_ns is None or now_ns - self._moved_ns <= patience_ns:
            return False
        self._moved_ns = None
        return True
